"""Bad input, each named with the message a person reads; in a batch it costs nobody else anything."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from tests.conftest import needs

rng = np.random.default_rng(0)
X, Y = rng.normal(size=(6, 2)), rng.normal(size=(5, 2))
NAN, INF = X.copy(), X.copy()
NAN[3, 1], INF[2, 0] = np.nan, -np.inf
OBJECTS = np.array([[1, "a"], [None, 2]], dtype=object)


class Raises:
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise RuntimeError("no array here")


class Frame:
    """Looks like a table of another library: a shape, and no dtype."""

    def __init__(self, values: Any) -> None:
        self.values, self.shape, self.ndim = values, values.shape, values.ndim

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.values


def problem(**changes: Any) -> ds.Problem[Any]:
    return ds.Problem(**{"x": X, "y": Y, "eps": 0.5, **changes})


BAD: dict[str, tuple[Any, str]] = {
    "nan point": (problem(x=NAN), "x[3, 1] is nan; remove or replace entries that are not finite"),
    "inf point": (problem(y=INF), "y[2, 0] is -inf; remove or replace entries that are not finite"),
    "nan weight": (problem(a=[1, 1, 1, 1, 1, math.nan]), "a[5] is nan; remove or replace entries that are not finite"),
    "inf weight": (problem(b=[1, 1, 1, 1, math.inf]), "b[4] is inf"),
    "nan cost": (problem(x=None, y=None, cost=NAN), "cost[3, 1] is nan"),
    "nan init": (problem(init=(np.zeros(6), np.full(5, np.nan))), "init.g[0] is nan"),
    "negative weight": (problem(a=[1, 1, -0.5, 1, 1, 1]), "a[2] is -0.5; weights cannot be negative"),
    "all-zero weights": (problem(b=np.zeros(5)), "b is zero everywhere; at least one weight must be positive"),
    "unequal masses": (
        problem(a=np.ones(6), b=np.ones(5)),
        "a has total mass 6 and b 5; balanced transport needs equal masses: normalise both if only their shapes matter",
    ),
    "overflowing mass": (problem(a=np.full(6, 1e308)), "a sums to inf, which cannot be normalised"),
    "empty source": (problem(x=np.empty((0, 2))), "x is empty (shape (0, 2)); a problem needs at least one point"),
    "empty target": (problem(y=np.empty((0, 2))), "y is empty (shape (0, 2))"),
    "no coordinates": (problem(x=np.empty((4, 0)), y=np.empty((3, 0))), "x is empty (shape (4, 0))"),
    "dimension mismatch": (problem(y=np.ones((5, 3))), "x has dimension 2 and y has 3; both need the same"),
    "eps zero": (problem(eps=0), "eps must be a positive finite number, got 0 (int)"),
    "eps negative": (problem(eps=-1.0), "eps must be a positive finite number, got -1.0 (float)"),
    "eps nan": (problem(eps=math.nan), "eps must be a positive finite number, got nan (float)"),
    "eps inf": (problem(eps=math.inf), "eps must be a positive finite number, got inf (float)"),
    "eps text": (problem(eps="0.1"), "eps must be a positive finite number, got '0.1' (str)"),
    "eps bool": (problem(eps=True), "eps must be a positive finite number, got True (bool)"),
    "eps array": (problem(eps=np.ones(3)), "eps must be a positive finite number, got an array of shape (3,)"),
    "tol zero": (problem(tol=0.0), "tol must be a positive finite number, got 0.0 (float)"),
    "tol nan": (problem(tol=math.nan), "tol must be a positive finite number, got nan"),
    "complex": (problem(x=X + 1j), "x has dtype complex128, which holds complex numbers; pass the real part"),
    "objects": (problem(x=OBJECTS), "x has dtype object, which holds no numbers"),
    "dates": (problem(x=np.zeros((6, 2), dtype="datetime64[s]")), "x has dtype datetime64[s]"),
    "strings": (problem(x=np.full((6, 2), "a")), "x has dtype <U1, which holds no numbers"),
    "text for points": (problem(x="points"), "x must be a numeric array of shape (n, d), got 'points' (str)"),
    "no points": (problem(x=None), "x must be a numeric array of shape (n, d), got None (NoneType)"),
    "ragged list": (problem(x=[[1.0, 2.0], [3.0]]), "x must be a numeric array of shape (n, d), but it cannot be read"),
    "line": (problem(x=np.ones(6)), "x must have shape (n, d), got (6,); write x[:, None] for points on a line"),
    "stack": (problem(x=np.ones((2, 6, 2))), "x must have shape (n, d), got (2, 6, 2)"),
    "short weights": (problem(a=np.ones(5)), "a must have shape (6,), one weight per point, got (5,)"),
    "matrix weights": (problem(b=np.ones((5, 1))), "b must have shape (5,), got (5, 1)"),
    "short init": (
        problem(init=(np.zeros(6), np.zeros(6))),
        "init.g must have shape (5,), one potential per point, got",
    ),
    "lone init": (
        problem(init=np.zeros(6)),
        "init must be one of ['auto', 'gaussian', 'zero'] or a pair (f, g) of potentials",
    ),
    "init none": (problem(init=(None, np.zeros(5))), "init.f must be a numeric array of shape (6,), got None"),
    "unknown cost": (problem(cost="manhattan"), "cost 'manhattan' is unknown; use one of ['cosine', 'dot',"),
    "bad scale": (problem(cost=ds.Cost("euclidean", -2.0)), "the scale of the cost must be a positive finite number"),
    "cost and points": (
        problem(cost=np.ones((6, 5))),
        "a dense cost matrix takes the place of the points; leave x and y",
    ),
    "flat cost": (problem(x=None, y=None, cost=np.ones(30)), "cost must have shape (n, m), got (30,)"),
    "cost none": (
        problem(x=None, y=None, cost=None),
        "cost must be a name, a Cost or a numeric array of shape (n, m), got None",
    ),
    "zero direction": (problem(x=0 * X, cost="cosine"), "x[0] is the zero vector, which has no direction"),
    "dot of other spaces": (problem(y=Y[:, :1], cost="negdot"), "x has dimension 2 and y has 1; both need the same"),
    "gaussian start of distances": (
        problem(cost="euclidean", init="gaussian"),
        'init "gaussian" needs the cost sqeuclidean or a dot product, this one is euclidean',
    ),
    "a name that is none": (
        problem(cost="inner"),
        "cost 'inner' is unknown; use one of ['cosine', 'dot', 'euclidean', 'neg",
    ),
    "timestamps": (
        problem(x=np.array([[1.7e18], [1.7e18]]).astype(np.int64) + 1, y=np.zeros((2, 1), dtype=np.int64)),
        "x has dtype int64 and values that float64 cannot hold; subtract a common offset first",
    ),
    "long doubles": (
        problem(x=X.astype(np.longdouble) / 3),
        "x has dtype float128 and values that float64 cannot hold",
    ),
    "masked points": (problem(x=np.ma.array(X, mask=X > 0)), "x is a masked array; fill or drop masked entries first"),
    "masked weights": (problem(a=np.ma.array(np.ones(6), mask=False)), "a is a masked array"),
    "huge eps": (problem(eps=10**400), "eps must be a positive finite number, got inf"),
    "odd cost": (problem(cost=ds.Cost(["a"])), "cost ['a'] is unknown"),
    "callable cost": (
        problem(cost=len),
        "cost must be a name, a Cost or a numeric array of shape (n, m), got <built-in",
    ),
    "array that raises": (problem(x=Raises()), "the problem cannot be read: RuntimeError: no array here"),
    "not a problem": ("hello", "expected a Problem, got 'hello' (str); build one with Problem(x=, y=, eps=)"),
    "none": (None, "expected a Problem, got None (NoneType)"),
}
GOOD = [problem(), problem(x=2 * X), problem(y=Y[:2])]


@pytest.mark.parametrize("name", BAD)
def test_message(name: str) -> None:
    bad, message = BAD[name]
    result = ds.solve([bad], warn=False)[0]
    assert result.status is ds.Status.INVALID
    assert message in result.message
    assert (result.depth, result.problem) == (0, bad)
    with pytest.raises(ds.ProblemError, match=re.escape(message)):
        _ = result.potentials
    with pytest.raises(ds.ProblemError, match=f"problem 0: {re.escape(message)}"):
        ds.solve([bad], strict=True)


def test_bad_problems_cost_the_good_ones_nothing() -> None:
    alone = ds.solve(GOOD)
    mixed: list[Any] = [bad for bad, _ in BAD.values()]
    places = [1, 17, len(mixed)]
    for place, good in zip(places, GOOD, strict=True):
        mixed.insert(place, good)
    solution = ds.solve(mixed, warn=False)
    for place, single in zip(places, alone, strict=True):
        assert np.array_equal(solution[place].potentials.f, single.potentials.f)
        assert solution[place].depth == single.depth
    assert solution.counts == {ds.Status.INVALID: len(BAD), ds.Status.CONVERGED: 3}
    assert solution.ledger.slots == alone.ledger.slots
    with pytest.raises(ds.NotConverged, match=rf"{len(BAD)} of {len(mixed)} problems did not converge: problem 0"):
        solution.raise_for_status()


def test_the_dense_reference_says_when_a_problem_is_too_large_for_it() -> None:
    large = problem(x=np.ones((9000, 1)), y=np.ones((9000, 1)))
    result = ds.solve([large], backend="reference", warn=False)[0]
    assert "n * m = 9000 * 9000 pairs need 1.3 GB in the dense reference backend" in result.message


def test_strict_raises_before_anything_runs() -> None:
    events: list[object] = []
    with pytest.raises(ds.ProblemError, match="problem 2: x"):
        ds.solve([problem(), problem(), problem(x=NAN)], strict=True, observe=events.append)
    assert [type(event).__name__ for event in events] == ["Chosen"]


def test_libraries_cannot_be_mixed() -> None:
    torch = needs("torch")
    result = ds.solve([problem(x=torch.as_tensor(X))], warn=False)[0]
    assert "x is a torch array and y a numpy array; use one library" in result.message


def test_sparse_tensors_and_tracers_are_refused() -> None:
    torch, jax = needs("torch"), needs("jax")
    assert "sparse" in ds.solve([problem(x=torch.eye(3).to_sparse())], warn=False)[0].message
    messages: list[str] = []

    def traced(x: Any) -> Any:
        messages.append(ds.solve([problem(x=x, y=x)], warn=False)[0].message)
        return x

    jax.jit(traced)(jax.numpy.ones((3, 2)))
    assert "it is a JAX tracer; call this outside jit" in messages[0]


CALLS: dict[str, tuple[Any, str]] = {
    "list, no y": (
        lambda: ds.solve([X, X], eps=1.0),
        "expected problems, or points x and y; got x of type list and no y",
    ),
    "class": (lambda: ds.solve(X, Y, eps=1.0, backend=dict), 'backend must be "auto", a name or a Backend, got <class'),
    "options": (lambda: ds.solve(X, Y, eps=1.0, options=None), "options must be an Options, got None"),
    "objects": (
        lambda: ds.solve(np.array([X, Y, None], dtype=object), Y, eps=1.0),
        "pass clouds of unequal size as a list",
    ),
    "cost shape": (lambda: ds.solve(cost=np.ones(4), eps=1.0), "cost has shape (4,), expected (n, m) or (W, n, m)"),
    "no y": (lambda: ds.solve(X, eps=1.0), "expected problems, or points x and y; got x of type ndarray and no y"),
    "nothing": (lambda: ds.solve(), "expected problems, or points x and y"),
    "text": (lambda: ds.solve("abc"), "expected problems, or points x and y; got x of type str"),
    "counts": (lambda: ds.solve(np.ones((3, 4, 2)), np.ones((2, 4, 2)), eps=1.0), "x for 3, y for 2"),
    "eps count": (lambda: ds.solve(np.ones((3, 4, 2)), Y, eps=[1.0, 2.0]), "x for 3, eps for 2"),
    "line": (
        lambda: ds.solve(np.ones(4), Y, eps=1.0),
        "x has shape (4,), expected (n, d) or (W, n, d); write x[:, None]",
    ),
    "four": (
        lambda: ds.solve(np.ones((1, 2, 3, 4)), Y, eps=1.0),
        "x has shape (1, 2, 3, 4), expected (n, d) or (W, n, d)",
    ),
    "weights": (
        lambda: ds.solve(X, Y, eps=1.0, a=np.ones((1, 1, 6))),
        "a has shape (1, 1, 6), expected (n,) or (W, n)",
    ),
    "init": (lambda: ds.solve(X, Y, eps=1.0, init=np.ones(6)), "or a pair (f, g)"),
    "eps twice": (lambda: ds.solve([problem()], eps=1.0), "eps belongs to each Problem when problems are passed"),
    "cost twice": (lambda: ds.solve([problem()], cost="cosine"), "cost belongs to each Problem"),
    "option": (
        lambda: ds.solve(X, Y, eps=1.0, widht=3),
        "unknown option 'widht'; did you mean 'width'?",
    ),
    "backend": (
        lambda: ds.solve(X, Y, eps=1.0, backend="cuda"),
        "backend 'cuda' is unknown; use one of ['auto', 'cpu', 'triton', 'ott', 'keops', 'refe",
    ),
    "backend object": (
        lambda: ds.solve(X, Y, eps=1.0, backend=3),
        'backend must be "auto", a name or a Backend, got 3',
    ),
    "accelerate": (lambda: ds.solve(X, Y, eps=1.0, accelerate="warp"), "accelerate='warp' is not offered by backend"),
    "tol": (lambda: ds.solve(X, Y, eps=1.0, tol=-1), "tol must be a positive finite number, got -1"),
    "stream": (lambda: ds.stream(X), "expected problems, or points x and y"),
    "stream option": (lambda: ds.stream([], widht=3), "unknown option 'widht'"),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_that_form_no_batch_raise(name: str) -> None:
    call, message = CALLS[name]
    with pytest.raises(ds.DrainError, match=re.escape(message)):
        call()


@pytest.mark.parametrize("cost", ["sqeuclidean", "negdot"])
def test_overflow_is_nonfinite_with_advice(cost: str) -> None:
    result = ds.solve([problem(x=1e200 * X, cost=cost)], warn=False)[0]
    assert result.status is ds.Status.NONFINITE
    assert "rescale the points or raise eps" in result.message
    assert np.isfinite(result.potentials.f).all()
    assert not result.rescued
    assert "a second run, in float64, did not help" in result.message


def test_whatever_can_be_read_as_an_array_is_taken() -> None:
    plain = ds.solve([problem()])[0]
    for wrap in (Frame, memoryview, lambda v: v.tolist(), np.asfortranarray, lambda v: v[::-1][::-1]):
        result = ds.solve([problem(x=wrap(X), y=wrap(Y))])[0]
        assert np.array_equal(result.potentials.f, plain.potentials.f)
    cost = ((X[:, None] - Y) ** 2).sum(-1)
    dense = [ds.solve([problem(x=None, y=None, cost=c)])[0] for c in (cost, np.asfortranarray(cost), Frame(cost))]
    assert all(np.array_equal(d.potentials.f, dense[0].potentials.f) for d in dense)


def test_odd_tensors_of_other_libraries_harm_nobody() -> None:
    torch, jax = needs("torch"), needs("jax")
    deleted = jax.numpy.ones((3, 2))
    deleted.delete()
    odd = [problem(x=torch.ones(3, 2, device="meta")), problem(x=deleted), problem(eps=jax.numpy.ones(2))]
    negative = torch.complex(torch.ones(3, 2), torch.ones(3, 2)).conj().imag
    solution = ds.solve([problem(), *odd, problem(x=negative, y=negative)], warn=False)
    assert [r.status.name for r in solution][:4] == ["CONVERGED", "INVALID", "INVALID", "INVALID"]
    assert ds.solve(X, Y, eps=torch.tensor(0.5), tol=np.array(1e-3)).converged


@pytest.mark.parametrize("backend", ["reference", "cpu", "ott", "keops"])
def test_points_of_denormal_weight_have_finite_potentials(backend: str) -> None:
    if backend in ("ott", "keops"):
        needs({"ott": "ott", "keops": "pykeops"}[backend])
    x, y = np.array([[0.0], [1.0]]), np.array([[0.0], [2.0]])
    (result,) = ds.solve([ds.Problem(x=x, y=y, eps=1.0, a=np.array([1.0, 1e-310]))], backend=backend)
    assert result.converged
    assert np.isfinite(result.potentials.f).all()
