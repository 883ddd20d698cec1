"""POT's names: results equal those of POT at the same accuracy, and what is not entropic is refused."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn import pot
from tests.conftest import needs

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(12, 3)), RNG.normal(size=(15, 3)) + 0.3
A, B = RNG.dirichlet(np.full(12, 4.0)), RNG.dirichlet(np.full(15, 4.0))
M = ((X[:, None] - Y[None]) ** 2).sum(-1)
REG = 2.0
CLOSE = {"rtol": 1e-7, "atol": 1e-9}


def same(ours: Any, theirs: Any, **tolerance: float) -> None:
    """Fields of both results agree; potentials up to a constant that is added to one and subtracted from the other."""
    np.testing.assert_allclose(ours.plan, theirs.plan, **{**CLOSE, **tolerance})
    for name in ("value", "value_linear"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), **{**CLOSE, **tolerance})
    (u, v), (p, q) = ours.potentials, theirs.potentials
    np.testing.assert_allclose(u[..., :, None] + v[..., None, :], p[..., :, None] + q[..., None, :], rtol=0, atol=1e-6)


@pytest.mark.parametrize("reg_type", ["KL", "entropy"])
@pytest.mark.parametrize("mass", [1.0, 3.0])
def test_solve_has_the_fields_of_pot(reg_type: str, mass: float) -> None:
    ot = needs("ot")
    theirs = ot.solve(M, mass * A, mass * B, reg=REG, reg_type=reg_type, tol=1e-13)
    ours = pot.solve(M, mass * A, mass * B, REG, reg_type=reg_type)
    same(ours, theirs)
    np.testing.assert_allclose(ours.potential_a, ours.potentials[0])
    for marginal, wanted in zip(ours.marginals, (mass * A, mass * B), strict=True):
        np.testing.assert_allclose(marginal, wanted, atol=mass * 1e-8)
    np.testing.assert_allclose(ours.sparse_plan.toarray(), ours.plan)
    assert ours.status == "CONVERGED"
    assert ours.log["err"] <= 1e-9
    assert ours.solution[0].converged


def test_a_point_without_weight_has_no_mass() -> None:
    ot = needs("ot")
    a = np.where(np.arange(12) == 4, 0.0, A)
    a /= a.sum()
    with np.errstate(divide="ignore"):
        wanted = ot.sinkhorn(a, B, M, REG, method="sinkhorn_log", stopThr=1e-13)
    ours = pot.solve(M, a, B, REG)
    np.testing.assert_allclose(ours.plan, wanted, **CLOSE)
    np.testing.assert_allclose(ours.lazy_plan[3:6], wanted[3:6], **CLOSE)
    assert (ours.lazy_plan[4] == 0).all()
    assert np.isneginf(ours.potential_a[4])
    assert np.isfinite(ours.value)


@pytest.mark.parametrize("metric", ["sqeuclidean", "euclidean", "cosine"])
def test_solve_sample_is_solve_of_the_cost_matrix(metric: str) -> None:
    ot = needs("ot")
    ours = pot.solve_sample(X, Y, A, B, metric, 0.5)
    same(ours, ot.solve_sample(X, Y, A, B, metric, 0.5, tol=1e-13))
    lazy = ours.lazy_plan
    assert lazy.shape == (12, 15)
    for key in (np.s_[:], np.s_[2:7], 3, np.s_[-1, 4], np.s_[1:9:2, 3:5], np.s_[..., 2]):
        np.testing.assert_allclose(lazy[key], ours.plan[key], rtol=1e-12)


def test_debiased_values_come_from_one_batch() -> None:
    ot = needs("ot")
    theirs = ot.solve_sample(X, Y, A, B, reg=REG, tol=1e-13, max_iter=20_000, debias=True)
    ours = pot.solve_sample(X, Y, A, B, reg=REG, debias=True)
    same(ours, theirs)
    assert ours.value < ours.log["res_ab"].value
    np.testing.assert_allclose(ours.log["res_aa"].value, theirs.log["res_aa"].value, **CLOSE)


@pytest.mark.parametrize("method", ["log_sinkhorn", "sinkhorn"])
@pytest.mark.parametrize("reg_type", ["kl", "entropy"])
def test_batches_have_stacked_fields(method: str, reg_type: str) -> None:
    ot = needs("ot")
    xs, ys = RNG.random((3, 8, 2)), RNG.random((3, 9, 2))
    options = {"reg": 0.5, "reg_type": reg_type, "method": method, "grad": "detach"}
    theirs = ot.batch.solve_sample_batch(xs, ys, tol=1e-13, **options)
    ours = pot.solve_sample_batch(xs, ys, tol=1e-9, **options)
    np.testing.assert_allclose(ours.plan, theirs.plan, **CLOSE)
    np.testing.assert_allclose(ours.value, theirs.value, **CLOSE)
    np.testing.assert_allclose(ours.value_linear, theirs.value_linear, **CLOSE)
    ratios = ours.potentials[0] / theirs.potentials[0] if method == "sinkhorn" else np.ones(1)
    np.testing.assert_allclose(ratios, ratios[..., :1] * np.ones_like(ratios), rtol=1e-6)
    from_matrices = pot.solve_batch(ot.batch.dist_batch(xs, ys), tol=1e-9, **options)
    np.testing.assert_allclose(from_matrices.plan, ours.plan, **CLOSE)
    assert ours.lazy_plan is None
    assert ours.status == ["CONVERGED"] * 3


def test_a_bad_problem_of_a_batch_is_nan_and_harms_no_other() -> None:
    costs = np.stack([M, np.full_like(M, np.nan), M])
    ours = pot.solve_batch(costs, REG, grad="detach")
    alone = pot.solve(M, reg=REG, reg_type="entropy", tol=1e-5)
    assert ours.status == ["CONVERGED", "INVALID", "CONVERGED"]
    for field in (ours.value, ours.plan, ours.value_linear, ours.marginal_a, *ours.potentials):
        assert np.isnan(field[1]).all()
        assert np.isfinite(field[[0, 2]]).all()
    np.testing.assert_allclose(ours.plan[2], alone.plan)
    with pytest.raises(ds.ProblemError, match="nan"):
        pot.solve(costs[1], reg=REG)


def read(result: Any, field: str, weights: Any) -> Any:
    """A number that depends on a field of a result, and not on the gauge of potentials."""
    u, v = result.potentials
    return {
        "value": lambda: result.value,
        "value_linear": lambda: result.value_linear,
        "plan": lambda: (result.plan * weights).sum(),
        "potentials": lambda: (u - u.mean()).square().sum() + (v - v.mean()).pow(3).sum(),
    }[field]()


@pytest.mark.parametrize("field", ["value", "value_linear", "plan", "potentials"])
@pytest.mark.parametrize("reg_type", ["KL", "entropy"])
def test_torch_derivatives_are_those_of_pots_iterations(field: str, reg_type: str) -> None:
    ot, torch = needs("ot"), needs("torch")
    weights = torch.from_numpy(RNG.normal(size=M.shape))

    def gradients(solve: Any, tol: float) -> list[Any]:
        costs, a, b = (torch.tensor(array, requires_grad=True) for array in (M, A, B))
        read(solve(costs, a, b, reg=REG, reg_type=reg_type, tol=tol), field, weights).backward()
        # Derivatives in weights of fixed sum are defined up to a constant.
        return [costs.grad, a.grad - a.grad.mean(), b.grad - b.grad.mean()]

    for ours, theirs in zip(gradients(pot.solve, 1e-11), gradients(ot.solve, 1e-13), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("metric", ["sqeuclidean", "euclidean", "cosine"])
def test_torch_derivatives_in_points(metric: str) -> None:
    ot, torch = needs("ot"), needs("torch")

    def gradients(solve: Any, tol: float) -> list[Any]:
        x, y = (torch.tensor(array, requires_grad=True) for array in (X, Y))
        result = solve(x, y, metric=metric, reg=REG, tol=tol)
        (result.plan.square().sum() + 3 * result.value).backward()
        return [x.grad, y.grad]

    for ours, theirs in zip(gradients(pot.solve_sample, 1e-11), gradients(ot.solve_sample, 1e-13), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)


def test_grad_says_what_is_differentiated() -> None:
    torch = needs("torch")
    costs = torch.tensor(M, requires_grad=True)
    envelope = pot.solve(costs, reg=REG, grad="envelope")
    assert envelope.value.requires_grad
    assert not envelope.plan.requires_grad
    assert not envelope.value_linear.requires_grad
    envelope.value.backward()
    torch.testing.assert_close(costs.grad, envelope.plan)
    with pytest.warns(ds.GradientWarning, match="functions of reg"):
        pot.solve(costs, reg=torch.tensor(REG, requires_grad=True))
    assert not pot.solve(costs, reg=REG, grad="detach").value.requires_grad
    with torch.no_grad():
        assert not pot.solve(costs, reg=REG).value.requires_grad
    # In a batch, as in POT, the transport cost keeps the derivative at a fixed plan.
    batch = pot.solve_batch(costs[None], REG)
    (gradient,) = torch.autograd.grad(batch.value_linear.sum(), costs)
    torch.testing.assert_close(gradient, batch.plan[0])
    (value_gradient,) = torch.autograd.grad(batch.value.sum(), costs)
    torch.testing.assert_close(value_gradient, batch.plan[0])
    plan = pot.solve(costs, reg=REG).plan
    with pytest.raises(NotImplementedError, match="first order"):
        torch.autograd.grad(plan.square().sum(), costs, create_graph=True)


@pytest.mark.parametrize("metric", [None, "sqeuclidean"])
def test_objectives_have_second_derivatives(metric: str | None) -> None:
    torch = needs("torch")
    options: dict[str, Any] = {"reg": REG, "tol": 1e-12}

    def of_costs(costs: Any) -> Any:
        return pot.solve(costs, a, b, **options).value

    def of_points(x: Any, y: Any) -> Any:
        return pot.solve_sample(x, y, a, b, metric=metric, **options).value

    a, b = (torch.tensor(array[:4] / array[:4].sum()) for array in (A, B))
    arrays = (M[:4, :4],) if metric is None else (X[:4], Y[:4])
    tensors = [torch.tensor(array, requires_grad=True) for array in arrays]
    assert torch.autograd.gradgradcheck(of_costs if metric is None else of_points, tensors, atol=1e-5)


@pytest.mark.parametrize("kind", ["torch", "jax"])
def test_arrays_come_back_in_their_library_and_dtype(kind: str) -> None:
    library = needs("torch") if kind == "torch" else needs("jax.numpy")
    x, y = (library.asarray(array.astype(np.float32)) for array in (X, Y))
    result = pot.solve_sample(x, y, reg=REG)
    wanted = pot.solve_sample(X, Y, reg=REG)
    for name in ("value", "value_linear", "plan", "potential_a", "marginal_a", "marginal_b"):
        field = getattr(result, name)
        assert type(field) is type(x)
        assert field.dtype == x.dtype
        np.testing.assert_allclose(field, getattr(wanted, name), rtol=1e-4, atol=1e-6)
    assert result.lazy_plan[:2].dtype == x.dtype


def test_integers_give_float64_and_short_floats_float32() -> None:
    torch = needs("torch")
    for costs, wanted in ((torch.arange(6).reshape(2, 3), torch.float64), (torch.rand(2, 3).half(), torch.float32)):
        result = pot.solve(costs, reg=REG)
        fields = (result.value, result.plan, result.potential_a, result.marginal_b, result.lazy_plan[:1])
        assert {field.dtype for field in fields} == {wanted}


def test_sinkhorn_returns_plans_and_costs() -> None:
    ot = needs("ot")
    np.testing.assert_allclose(pot.sinkhorn(A, B, M, REG), ot.sinkhorn(A, B, M, REG, stopThr=1e-13), **CLOSE)
    uniform = pot.sinkhorn2([], [], M, REG, method="sinkhorn_stabilized", tau=1e3)
    np.testing.assert_allclose(uniform, ot.sinkhorn2([], [], M, REG, stopThr=1e-13), **CLOSE)
    many = RNG.dirichlet(np.ones(15), size=4).T
    costs, log = pot.sinkhorn(A, many, M, REG, log=True)
    np.testing.assert_allclose(costs, ot.sinkhorn(A, many, M, REG, stopThr=1e-13), **CLOSE)
    plan = log["u"][:, None, 2] * np.exp(-M / REG) * log["v"][None, :, 2]
    np.testing.assert_allclose(plan, pot.sinkhorn(A, many[:, 2], M, REG), **CLOSE)
    with pytest.raises(ValueError, match="new_method"):
        pot.sinkhorn(A, B, M, REG, method="new_method")


def test_potentials_start_another_solve() -> None:
    first = pot.solve(M, A, B, REG)
    again = pot.solve(M, A, B, REG, potentials_init=first.potentials)
    assert again.log["niter"] < first.log["niter"]
    np.testing.assert_allclose(again.plan, first.plan, **CLOSE)
    _, log = pot.sinkhorn(A, B, M, REG, warmstart=first.potentials, log=True)
    assert log["niter"] < first.log["niter"]


def test_max_iter_ends_the_solve_with_a_warning() -> None:
    with pytest.warns(ds.ConvergenceWarning):
        result = pot.solve(M, A, B, 0.05, max_iter=2, tol=0, rescue=False, accelerate="none")
    assert result.status == "DEPTH_LIMIT"
    with pytest.raises(ValueError, match="max_iter"):
        pot.solve(M, A, B, REG, grad="last_step", max_iter=0)


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (lambda: pot.solve(M), "exact transport.*ot.solve"),
        (lambda: pot.solve(M, reg=0), "exact transport.*ot.solve"),
        (
            lambda: pot.solve(M, reg=1, unbalanced=0.5, unbalanced_type="L2"),
            "'L2' is only in POT.*ot.solve.*unbalanced",
        ),
        (lambda: pot.solve(M, reg=1, unbalanced=0.5, reg_type="entropy"), "reg_type='entropy'.*ot.solve"),
        (lambda: pot.solve(M, reg=1, unbalanced=0.5, c=M), "reference measure.*ot.solve"),
        (lambda: pot.solve_sample(X, Y, reg=1, unbalanced=0.5, debias=True), "debias=True is only in POT"),
        (lambda: pot.solve(M, reg=1, reg_type="L2"), "no entropy.*ot.solve"),
        (lambda: pot.solve(M, reg=1, reg_type=(np.sum, np.sum)), "no entropy.*ot.solve"),
        (lambda: pot.solve_sample(X, Y, reg=1, method="nystroem"), "another solver.*ot.solve_sample"),
        (lambda: pot.solve_sample(X, Y, reg=1, metric="cityblock"), "no cost.*ot.dist"),
        (lambda: pot.solve_sample(X, Y, reg=1, debias="split"), "only in POT"),
        (lambda: pot.solve_sample(X, Y, reg=1, scaler="standard"), "only in POT"),
        (lambda: pot.solve_batch(M[None], 1.0, method="proximal"), "proximal.*ot.batch.solve_batch"),
        (lambda: pot.sinkhorn(A, B, M, 0), "exact transport.*ot.emd"),
    ],
)
def test_other_problems_are_refused_with_the_call_of_pot(call: Any, advice: str) -> None:
    with pytest.raises(NotImplementedError, match=advice):
        call()


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ds.ProblemError, match=r"2 dimensions.*solve_batch"):
        pot.solve(M[None], reg=1)
    with pytest.raises(ds.OptionsError, match="grad"):
        pot.solve(M, reg=1, grad="none")
    with pytest.raises(ds.ProblemError, match="eps"):
        pot.solve(M, reg=-1)
    with pytest.raises(ds.ProblemError, match="equal masses"):
        pot.solve(M, A, 2 * B, reg=1)
    np.testing.assert_array_equal(pot.solve(M, reg=1, unbalanced=np.inf).plan, pot.solve(M, reg=1).plan)


@pytest.mark.parametrize("unbalanced", [0.7, (2.0, 0.5), [3.0], (np.inf, 1.0)])
@pytest.mark.parametrize("points", [False, True])
def test_soft_marginals_are_those_of_pot(unbalanced: Any, points: bool) -> None:
    ot = needs("ot")
    a, b = np.asarray(A), 1.7 * np.asarray(B)
    settings = {"reg": REG, "unbalanced": unbalanced, "tol": 1e-12, "max_iter": 50_000}
    names = ("solve_sample", X, Y) if points else ("solve", M)
    ours, theirs = (getattr(library, names[0])(*names[1:], a, b, **settings) for library in (pot, ot))
    assert ours.status == "CONVERGED"
    np.testing.assert_allclose(ours.plan, theirs.plan, rtol=1e-5, atol=1e-14)
    for field in ("value", "value_linear"):
        # Without the masses in its KL, POT's value of an optimal plan of two soft marginals is 0.
        np.testing.assert_allclose(getattr(ours, field), getattr(theirs, field), rtol=1e-5, atol=1e-10)
    for mine, other in zip((*ours.potentials, *ours.marginals), (*theirs.potentials, *theirs.marginals), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(ours.lazy_plan[:3], theirs.plan[:3], rtol=1e-5, atol=1e-14)
    again = pot.solve(M, a, b, REG, unbalanced=unbalanced, potentials_init=ours.potentials, tol=1e-6)
    assert again.log["niter"] <= 1 or points


def test_pot_is_imported_when_it_is_used() -> None:
    code = """
import sys
import drainsinkhorn as ds
assert "drainsinkhorn.pot" not in sys.modules
print(ds.pot.solve([[0.0, 1.0], [1.0, 0.0]], reg=1.0).status, "ot" in sys.modules, "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["CONVERGED", "False", "False"], done.stderr
