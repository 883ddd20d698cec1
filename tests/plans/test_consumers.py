"""Consumers agree with dense float64 plans on ragged batches, and what is drawn follows the plan."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2, chisquare

import drainsinkhorn as ds
from drainsinkhorn.backends import load
from drainsinkhorn.backends.cpu import CpuBackend
from tests.conftest import needs
from tests.dense import array, cost_of, plan_of, ragged, weights

ACCURACY = 1e-5
BACKENDS = ["reference", "cpu"]


def close(found: Any, truth: Any) -> None:
    """To ACCURACY of the largest entry: float32 callers get float32 back."""
    found, truth = array(found), np.asarray(truth)
    assert found.shape == truth.shape
    assert np.abs(found - truth).max() <= ACCURACY * max(np.abs(truth).max(), 1e-30)


@pytest.fixture(scope="module", params=BACKENDS)
def solution(request: pytest.FixtureRequest) -> Any:
    solution = ds.solve(ragged(np.random.default_rng(0), 24), backend=request.param)
    solution.raise_for_status()
    return solution


def test_plan(solution: Any) -> None:
    for found, result in zip(ds.plan(solution), solution, strict=True):
        close(found, plan_of(result))


@pytest.mark.parametrize("side", ["row", "col"])
@pytest.mark.parametrize("channels", [(), (1,), (3,), (40,), (2, 3)])
def test_apply(solution: Any, side: str, channels: tuple[int, ...]) -> None:
    rng, plans = np.random.default_rng(1), [plan_of(result) for result in solution]
    plans = [plan if side == "row" else plan.T for plan in plans]
    values = [rng.normal(size=(plan.shape[1], *channels)) for plan in plans]
    for found, plan, value in zip(ds.apply(solution, values, side), plans, values, strict=True):
        close(found, np.tensordot(plan, value, axes=1))


@pytest.mark.parametrize("side", ["row", "col"])
def test_barycentric_map(solution: Any, side: str) -> None:
    some = [result for result in solution if result.problem.x is not None]
    for found, result in zip(ds.barycentric_map(some, side), some, strict=True):
        plan = plan_of(result) if side == "row" else plan_of(result).T
        mass = plan.sum(1, keepdims=True)
        other = array(result.problem.y if side == "row" else result.problem.x)
        inside = mass[:, 0] > 0
        close(found[inside], (plan @ other)[inside] / mass[inside])
        assert np.isfinite(array(found)).all()


@pytest.mark.parametrize("side", ["row", "col"])
def test_top_match(solution: Any, side: str) -> None:
    for found, result in zip(ds.top_match(solution, side), solution, strict=True):
        plan = plan_of(result) if side == "row" else plan_of(result).T
        assert found.dtype == np.int64
        # Whatever place is named holds the largest entry.
        assert np.take_along_axis(plan, found[:, None], axis=1)[:, 0] == pytest.approx(plan.max(1), rel=1e-9)


def test_transport_cost(solution: Any) -> None:
    for found, result in zip(ds.transport_cost(solution), solution, strict=True):
        plan, cost, eps = plan_of(result), cost_of(result.problem), result.problem.eps
        f, g = (array(p) for p in result.potentials)
        a, b = weights(result.problem.a, len(f)), weights(result.problem.b, len(g))
        inside = plan > 0
        product = (a[:, None] * b)[inside]
        kl = (plan[inside] * np.log(plan[inside] / product)).sum() - plan.sum() + 1
        assert found.transport == pytest.approx((plan * cost).sum(), rel=1e-9)
        assert found.kl == pytest.approx(kl, rel=1e-7, abs=1e-9)
        assert found.entropic == pytest.approx((plan * cost).sum() + eps * kl, rel=1e-7)
        assert found.dual == pytest.approx(a @ f + b @ g - eps * (plan.sum() - 1), rel=1e-9)


def test_one_result_is_a_batch_of_one(solution: Any) -> None:
    result = solution[3]
    value = np.ones(array(result.potentials.g).size)
    assert np.array_equal(result.apply(value), ds.apply(result, value))
    assert np.array_equal(result.apply(value), ds.apply([result], [value])[0])
    assert np.array_equal(result.plan(), ds.plan(solution)[3])
    for k in (0, 1):
        assert np.array_equal(result.sample(9, seed=1)[k], ds.sample(solution, 9, seed=1)[3][k])
        assert np.array_equal(result.sample(9, seed=1)[k], ds.sample(result, 9, seed=1)[k])
    assert result.transport_cost() == ds.transport_cost(result) == ds.transport_cost([result])[0]
    assert np.array_equal(result.top_match(), ds.top_match(result))
    assert np.array_equal(result.barycentric_map(), ds.barycentric_map(result))


class TestSample:
    COUNT = 200_000

    def test_pair_frequencies_and_marginals(self, solution: Any) -> None:
        some = [r for r in solution if plan_of(r).size >= 20]
        worst = []
        for (i, j), result in zip(ds.sample(some, self.COUNT, seed=7), some, strict=True):
            plan = plan_of(result)
            plan = plan / plan.sum()
            counts = np.bincount(i * plan.shape[1] + j, minlength=plan.size)
            assert counts[plan.ravel() == 0].sum() == 0
            # Cells of few expected pairs are joined, as the test needs.
            expected = self.COUNT * plan.ravel()
            rare = expected < 20
            seen, wanted = (
                np.append(counts[~rare], counts[rare].sum()),
                np.append(expected[~rare], expected[rare].sum()),
            )
            keep = wanted >= 20
            if keep.sum() > 1:
                scale = seen[keep].sum() / wanted[keep].sum()
                worst.append(chisquare(seen[keep], scale * wanted[keep]).pvalue)
            for axis, side in ((1, i), (0, j)):
                marginal = plan.sum(axis)
                seen = np.bincount(side, minlength=marginal.size)
                inside = marginal > 0
                statistic = ((seen - self.COUNT * marginal)[inside] ** 2 / (self.COUNT * marginal)[inside]).sum()
                assert chi2.sf(statistic, inside.sum() - 1) > 1e-5 or inside.sum() == 1
        # Bonferroni over the batch: each of them would fall below this once in a hundred thousand.
        assert len(worst) > 10
        assert min(worst) > 1e-5

    def test_seeds_decide(self, solution: Any) -> None:
        first, again, other = (ds.sample(solution, 50, seed=seed) for seed in (1, 1, 2))
        assert all(np.array_equal(p, q) for a, b in zip(first, again, strict=True) for p, q in zip(a, b, strict=True))
        assert any(not np.array_equal(a[1], b[1]) for a, b in zip(first, other, strict=True))

    def test_backends_draw_the_same_pairs(self) -> None:
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=(3, 80, 2)), rng.normal(size=(3, 70, 2))
        start = ds.solve(x, y, eps=0.5).potentials
        drawn = [
            ds.sample(ds.solve(x, y, eps=0.5, init=start, backend=name, tol=0.1, max_depth=1), 500, seed=0)
            for name in BACKENDS
        ]
        equal = np.mean([np.mean((p[0] == q[0]) & (p[1] == q[1])) for p, q in zip(*drawn, strict=True)])
        assert equal > 0.95

    def test_threads_change_nothing(self) -> None:
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=(300, 3)), rng.normal(size=(400, 3))
        found = [ds.solve(x, y, eps=0.5, backend=CpuBackend(threads=threads))[0] for threads in (1, 3)]
        assert np.array_equal(found[0].sample(1000, seed=0)[1], found[1].sample(1000, seed=0)[1])
        assert np.array_equal(found[0].apply(np.ones(400)), found[1].apply(np.ones(400)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_points_without_weight_may_lie_anywhere(backend: str) -> None:
    rng = np.random.default_rng(0)
    x, y, a, b = rng.normal(size=(20, 2)), rng.normal(size=(15, 2)), np.ones(20), np.ones(15)
    x[0], y[3], a[0], b[3] = 1e200, -1e200, 0, 0
    whole = ds.solve(x, y, a=a / 19, b=b / 14, eps=0.5, backend=backend)[0]
    rest = ds.solve(x[1:], np.delete(y, 3, axis=0), eps=0.5, backend=backend)[0]
    values = rng.normal(size=(15, 2))
    pushed = whole.apply(values)
    assert np.allclose(pushed[1:], rest.apply(np.delete(values, 3, axis=0)))
    assert np.array_equal(pushed[0], np.zeros(2))
    assert np.allclose(whole.transport_cost(), rest.transport_cost())
    assert set(whole.sample(500, seed=0)[0]) <= set(range(1, 20))
    assert 3 not in whole.sample(500, seed=0)[1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_is_linear(backend: str) -> None:
    rng, n = np.random.default_rng(0), 6000
    problem = ds.Problem(x=rng.normal(size=(n, 2)), y=rng.normal(size=(n, 2)), eps=5.0)
    # Zero potentials are all this needs: a plan of this size would be 288 MB.
    solved = ds.solve(problem, backend="cpu", max_depth=1, rescue=False, tol=1e9)[0]
    loaded = ds.Result(
        ticket=0, problem=problem, validate=solved.validate, emitted=solved.potentials, residual=solved.residual,
        status=solved.status, depth=1,
        backend=solved.backend if backend == "cpu" else load("reference"),
    )  # fmt: skip
    loaded.apply(np.ones((n, 3)))
    tracemalloc.start()
    loaded.apply(np.ones((n, 3)))
    loaded.barycentric_map("col")
    loaded.top_match()
    loaded.sample(n, seed=0)
    loaded.transport_cost()
    assert tracemalloc.get_traced_memory()[1] < 24e6
    tracemalloc.stop()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_torch_comes_back(dtype: str) -> None:
    torch = needs("torch")
    rng = np.random.default_rng(0)
    x, y = (torch.as_tensor(rng.normal(size=(2, 30, 3)), dtype=getattr(torch, dtype)) for _ in range(2))
    solution = ds.solve(x, y, eps=0.5)
    (pushed, _), (image, _), ((i, j), _), (top, _) = (
        ds.apply(solution, torch.ones(2, 30, 4)),
        ds.barycentric_map(solution),
        ds.sample(solution, 7, seed=0),
        ds.top_match(solution),
    )
    assert (pushed.dtype, image.dtype, i.dtype, top.dtype) == (x.dtype, x.dtype, torch.int64, torch.int64)
    assert (pushed.shape, image.shape, j.shape) == ((30, 4), (30, 3), (7,))
    close(pushed, plan_of(solution[0]) @ np.ones((30, 4)))


def test_jax_comes_back() -> None:
    jax = needs("jax")
    rng = np.random.default_rng(0)
    x, y = (jax.numpy.asarray(rng.normal(size=(2, 30, 3)), dtype="float32") for _ in range(2))
    solution = ds.solve(x, y, eps=0.5)
    pushed = ds.apply(solution, jax.numpy.ones((2, 30, 4)))[0]
    assert isinstance(pushed, jax.Array)
    close(pushed, plan_of(solution[0]) @ np.ones((30, 4)))
    assert isinstance(ds.sample(solution, 7, seed=0)[0][0], jax.Array)


class TestBadInput:
    @pytest.fixture
    def pair(self) -> Any:
        rng = np.random.default_rng(0)
        return ds.solve([rng.normal(size=(n, 2)) for n in (5, 6)], [rng.normal(size=(n, 2)) for n in (7, 8)], eps=1.0)

    def test_values(self, pair: Any) -> None:
        with pytest.raises(ds.ProblemError, match=r"first axis and there are 2 results; pass one array for each"):
            ds.apply(pair, np.ones(7))
        with pytest.raises(ds.ProblemError, match=r"one row for each of the 7 points of the other side, got float64"):
            ds.apply(pair, [np.ones(8), np.ones(8)])
        with pytest.raises(ds.ProblemError, match="values must be real numbers"):
            pair[0].apply(np.ones(7) * 1j)
        with pytest.raises(ds.ProblemError, match="values must be an array"):
            pair[0].apply(3.0)
        with pytest.raises(ds.ProblemError, match="values must be a list"):
            ds.apply(pair, 3.0)

    def test_side_count_seed(self, pair: Any) -> None:
        with pytest.raises(ds.ProblemError, match='side must be "row" or "col", got \'up\''):
            ds.barycentric_map(pair, "up")
        with pytest.raises(ds.ProblemError, match="count must be an integer of at least 1, got 0"):
            ds.sample(pair, 0, seed=0)
        with pytest.raises(ds.ProblemError, match=r"seed must be a non-negative integer, .*, got -1$"):
            ds.sample(pair, 5, seed=-1)

    def test_a_large_plan_is_refused(self, pair: Any) -> None:
        with pytest.raises(ds.ProblemError, match=r"35 entries.*max_pairs is 10; use apply.*plan\(max_pairs=35\)"):
            pair[0].plan(max_pairs=10)
        with pytest.raises(ds.ProblemError, match=r"2 dense plan\(s\) have 83 entries"):
            ds.plan(pair, max_pairs=82)

    def test_a_dense_cost_has_no_points(self) -> None:
        result = ds.solve(cost=np.ones((3, 4)), eps=1.0)[0]
        with pytest.raises(ds.ProblemError, match="no points to average"):
            result.barycentric_map()

    def test_what_is_no_result(self) -> None:
        with pytest.raises(ds.ProblemError, match="expected Results, got int at place 0"):
            ds.transport_cost([3])  # type: ignore[list-item]
        for verb in (ds.barycentric_map, ds.transport_cost, ds.plan):
            with pytest.raises(ds.ProblemError, match="a Solution or a sequence of Results, got NoneType"):
                verb(None)  # type: ignore[arg-type]

    def test_an_invalid_one_says_so(self) -> None:
        solution = ds.solve([np.zeros((3, 2)), np.full((3, 2), np.nan)], [np.ones((4, 2))] * 2, eps=1.0, warn=False)
        with pytest.raises(ds.ProblemError, match="problem 1 has no potentials: INVALID"):
            ds.transport_cost(solution)
        assert len(ds.transport_cost([r for r in solution if r.converged])) == 1  # type: ignore[arg-type]
