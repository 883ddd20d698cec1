"""Dot products on every backend: emitted potentials are those of the dot product itself, and so are their residuals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.backends import load
from drainsinkhorn.backends.cpu import CpuBackend
from drainsinkhorn.backends.products import ProductPack
from drainsinkhorn.core.protocol import Emission
from drainsinkhorn.numerics import products
from drainsinkhorn.numerics.arrays import library
from drainsinkhorn.run.validate import validate
from drainsinkhorn.testing.auditor import judge
from tests.conftest import needs
from tests.device import DEVICE, torch

# Triton's interpreter computes in NumPy, which warns of overflow where a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

LIBRARIES = {"ott": "ott", "keops": "pykeops", "triton": "triton"}
BACKENDS = ["reference", "cpu", "streaming", "ott", "keops", "triton"]


def backend_of(name: str) -> Any:
    if name == "streaming":
        return CpuBackend(representation="streaming")
    needs(LIBRARIES.get(name, "numpy"))
    return load(name)


def problem(cost: Any, seed: int = 0, far: float = 0.0, dtype: str = "float64", **more: Any) -> ds.Problem[Any]:
    """Two clouds of unequal sizes; one point of each has no weight, and that of y lies far away."""
    rng = np.random.default_rng(seed)
    a, b = rng.uniform(0.5, 1.5, size=11), rng.uniform(0.5, 1.5, size=15)
    a[2] = b[-1] = 0.0
    x, y = far + rng.normal(size=(11, 3)), far + rng.normal(size=(15, 3))
    y[-1] = 1e4 + far
    settings = {"eps": 0.5, "tol": 1e-6, **more}
    return ds.Problem(x=x.astype(dtype), y=y.astype(dtype), a=a / a.sum(), b=b / b.sum(), cost=cost, **settings)


def audit(result: ds.Result[Any]) -> None:
    assert result.converged, result.message
    judgement = judge(result.problem, result.potentials, result.problem.tol)
    assert not judgement.refutes(result.problem.tol)
    assert abs(judgement.row - result.residual.row) <= result.residual.band + judgement.error
    assert abs(judgement.col - result.residual.col) <= result.residual.band + judgement.error


@pytest.mark.parametrize(
    ("name", "certify"), [*((name, "auto") for name in BACKENDS), *((name, "always") for name in BACKENDS[:3])]
)
def test_residuals_are_those_of_the_dot_product(name: str, certify: Any) -> None:
    batch = [problem("dot"), problem(ds.Cost("negdot", 0.7), 1), problem("negdot", 2, far=5.0)]
    solution = ds.solve(batch, backend=backend_of(name), certify=certify, recheck="all")
    for result in solution:
        audit(result)
    (truth,) = ds.solve([replace(batch[2], cost="sqeuclidean", eps=2 * batch[2].eps, tol=1e-10)], backend="reference")
    assert np.abs(solution[2].plan() - truth.plan()).max() <= 1e-5


@pytest.mark.parametrize(
    ("name", "certify"), [*((name, "auto") for name in BACKENDS), *((name, "always") for name in BACKENDS[:3])]
)
def test_soft_marginals(name: str, certify: Any) -> None:
    """Squared distances have other weights and the same prices."""
    inf = np.inf
    batch = [
        problem("dot", rho=3.0),
        problem(ds.Cost("negdot", 0.7), 1, rho=(inf, 2.0)),
        problem("negdot", 2, far=2.0, rho=(5.0, inf)),
        problem("dot", 3, dtype="float32", rho=(4.0, 6.0), tol=1e-4),
    ]
    batch = [replace(one, b=1.4 * one.b, max_depth=100_000) for one in batch]
    solution = ds.solve(batch, backend=backend_of(name), certify=certify, recheck="all")
    for result in solution:
        audit(result)
    if name != "reference":
        for result, truth in zip(solution, ds.solve(batch, backend="reference"), strict=True):
            assert np.abs(result.plan() - truth.plan()).max() <= 1e-4 * truth.plan().max()


@pytest.mark.parametrize("name", BACKENDS[1:])
def test_consumers_of_soft_plans_keep_the_weights(name: str) -> None:
    for cost, rho in (("dot", 3.0), ("negdot", (np.inf, 2.0))):
        one = problem(cost, rho=rho, max_depth=100_000)
        (result,), (truth,) = ds.solve([one], backend=backend_of(name)), ds.solve([one], backend="reference")
        assert result.transport_cost() == pytest.approx(truth.transport_cost(), rel=1e-4)
        weighted = one.a > 0
        logs = [np.asarray(each.couplings.log_ratios("row")[0])[weighted] for each in (result, truth)]
        assert np.allclose(*logs, atol=1e-4)
        maps = [np.asarray(each.barycentric_map())[weighted] for each in (result, truth)]
        assert np.allclose(*maps, rtol=1e-4, atol=1e-4)


def test_random_soft_products_have_true_residuals() -> None:
    rng = np.random.default_rng(5)
    problems: list[ds.Problem[Any]] = []
    for seed in range(120):
        rho = [10 ** rng.uniform(-1.5, 2) if rng.random() < 0.7 else np.inf for _ in range(2)]
        cost, eps = ds.Cost(str(rng.choice(["dot", "negdot"])), 10 ** rng.uniform(-2, 0.5)), 10 ** rng.uniform(-1, 0.5)
        far, dtype, tol = rng.uniform(0, 3), str(rng.choice(["float32", "float64"])), 10 ** rng.uniform(-8, -2)
        mass = 10 ** rng.uniform(-3, 3, size=2) if min(rho) < np.inf else np.ones(2)
        one = problem(cost, seed, far=far, dtype=dtype, eps=eps, tol=tol, rho=tuple(rho), max_depth=3000)
        problems.append(replace(one, a=mass[0] * one.a, b=mass[1] * one.b))
    for backend in ("cpu", CpuBackend(representation="streaming")):
        solution = ds.solve(problems, backend=backend, warn=False)
        ended = [result for result in solution if result.status is not ds.Status.INVALID]
        assert sum(result.converged for result in ended) > 60
        for result in ended:
            judgement = judge(result.problem, result.potentials, result.problem.tol)
            assert not (result.converged and judgement.refutes(result.problem.tol)), result
            if judgement.worst < 1:
                assert abs(judgement.row - result.residual.row) <= result.residual.band + judgement.error
                assert abs(judgement.col - result.residual.col) <= result.residual.band + judgement.error
        for result in solution:
            assert result in ended or "leave the range of float32" in result.message


@pytest.mark.parametrize("rho", [None, 3.0, (np.inf, 4.0)], ids=str)
@pytest.mark.parametrize("name", ["reference", "cpu", "triton"])
def test_arrays_and_tensors_of_a_device_share_a_pack(name: str, rho: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Largest shifts of tensors are read back from the device together; those of arrays are at hand."""
    needs("torch")
    if not torch.cuda.is_available():
        monkeypatch.setattr(products, "on_cuda", lambda points: library(points) == "torch")
    batch = [problem("dot", seed, rho=rho) for seed in range(4)]
    for k in (1, 2):
        x, y = (torch.as_tensor(points).to(DEVICE) for points in (batch[k].x, batch[k].y))
        batch[k] = replace(batch[k], x=x, y=y)
    for result in ds.solve(batch, backend=backend_of(name)):
        audit(result)


@pytest.mark.parametrize("name", BACKENDS)
def test_consumers_are_those_of_the_dot_product(name: str) -> None:
    given = problem(ds.Cost("negdot", 0.7))
    (result,) = ds.solve([given], backend=backend_of(name))
    f, g = (np.asarray(side, dtype=float) for side in result.potentials)
    costs = -0.7 * given.x @ given.y.T
    plan = given.a[:, None] * given.b * np.exp((f[:, None] + g - costs) / given.eps)
    inside = plan > 0
    kl = (plan[inside] * np.log(plan[inside] / (given.a[:, None] * given.b)[inside])).sum() - plan.sum() + 1
    found = result.transport_cost()
    assert found.transport == pytest.approx((plan * costs).sum(), rel=1e-6)
    assert found.kl == pytest.approx(kl, rel=1e-6)
    assert found.dual == pytest.approx(given.a @ f + given.b @ g - given.eps * (plan.sum() - 1), rel=1e-6)
    assert np.abs(result.plan() - plan).max() <= 1e-7
    weight = np.random.default_rng(3).uniform(size=15)
    assert np.allclose(result.couplings.slopes("row", [weight])[0], -0.7 * (plan * weight) @ given.y, atol=1e-6)
    assert np.allclose(result.couplings.slopes("col")[0], -0.7 * plan.T @ given.x, atol=1e-6)


@pytest.mark.parametrize("name", BACKENDS)
def test_large_norms_are_not_hidden(name: str) -> None:
    """At 1e7 from the origin float64 potentials have a spacing of 0.03, and eps is 0.5."""
    (result,) = ds.solve(
        [problem("negdot", far=1e7, tol=1e-3)], backend=backend_of(name), max_depth=6, rescue=False, warn=False
    )
    assert result.status is ds.Status.DEPTH_LIMIT
    assert result.residual.band > 1e-3
    assert "rounding" in result.message
    if name == "cpu":
        squares = replace(result.problem, cost="sqeuclidean")
        assert ds.solve([squares], backend=name)[0].converged


@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_potentials_of_short_dtypes_are_widened_where_they_must_be(name: str) -> None:
    near, far = (problem("negdot", far=far, dtype="float32", tol=1e-3) for far in (0.0, 100.0))
    held, wide = ds.solve([near, far], backend=name)
    assert (held.widened, held.potentials.f.dtype) == (False, np.float32)
    assert (wide.widened, wide.potentials.f.dtype) == (True, np.float64)
    audit(held)
    audit(wide)


@pytest.mark.parametrize("name", ["cpu", "triton"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_tensors_come_back(name: str, dtype: str) -> None:
    given = problem("dot", dtype="float32", tol=1e-2)
    x, y = (torch.as_tensor(p).to(getattr(torch, dtype)).to(DEVICE) for p in (given.x, given.y))
    batch = [replace(given, x=x, y=y), replace(given, x=x + 1, y=y, a=None, b=None)]
    for result in ds.solve(batch, backend=backend_of(name)):
        audit(result)
        assert result.potentials.f.device == x.device
        assert result.widened == (result.potentials.f.dtype != x.dtype)
        assert all(torch.isfinite(side).all() for side in result.potentials)


def test_tensors_and_arrays_are_shifted_alike() -> None:
    given = [problem("negdot", k, far=3.0, dtype="float32", tol=1e-3) for k in range(3)]
    tensors = [replace(p, x=torch.as_tensor(p.x), y=torch.as_tensor(p.y)) for p in given]
    backend = CpuBackend()
    packs = [backend.pack([validate(p, 1e-3) for p in batch]) for batch in (given, tensors)]
    assert all(isinstance(pack, ProductPack) for pack in packs)
    for pack in packs:
        pack.advance(5, [-np.inf] * 3)
    ours, theirs = (pack.emit([2, 0]) for pack in packs)
    assert ours.widened == theirs.widened
    for one, two in zip([*ours.f, *ours.g], [*theirs.f, *theirs.g], strict=True):
        assert np.array_equal(one, two.numpy())
    bands = [pack.verify([2, 0]).band for pack in packs]
    assert bands[0] == pytest.approx(bands[1], rel=1e-6)


def test_an_emission_of_another_lane_is_noticed() -> None:
    """The pack returns the problem whose state the inner pack has emitted."""
    instances = [validate(problem("dot", k), 1e-3) for k in range(2)]
    pack = CpuBackend().pack(instances)
    emit = pack.inner.emit
    pack.inner.emit = lambda lanes: Emission.join([emit([1 - lane]) for lane in lanes])
    assert pack.emit([0]).instances[0] is instances[1]


def test_costs_do_not_share_packs() -> None:
    backend = CpuBackend()
    products, squares = (backend.signature(validate(problem(cost), 1e-3)) for cost in ("dot", "sqeuclidean"))
    assert products != squares
    assert products == backend.signature(validate(problem("negdot", 1), 1e-3))


@pytest.mark.parametrize("name", ["reference", "cpu", "streaming"])
def test_lanes_do_not_depend_on_their_neighbours(name: str) -> None:
    batch = [problem(cost, k, far=float(k)) for k, cost in enumerate(("dot", "sqeuclidean", "negdot", "negdot", "dot"))]
    backend = backend_of(name)
    together = ds.solve(batch, backend=backend)
    for mode in ("compact", "stream", "width-one"):
        for one, two in zip(together, ds.solve(batch, backend=backend, mode=mode, width=2), strict=True):
            assert one.depth == two.depth
            assert all(np.array_equal(p, q) for p, q in zip(one.potentials, two.potentials, strict=True))


@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_chains_and_starts(name: str) -> None:
    first = problem("negdot", chain="c", tol=1e-4)
    cold, warm = ds.solve([first, replace(first, tol=1e-5)], backend=name)
    assert warm.depth < cold.depth
    again = ds.solve([replace(first, init=cold.potentials, chain=None)], backend=name)[0]
    assert again.depth <= 2
    extended = ds.extend(first, cold.potentials, replace(first, x=first.x + 0.1), backend_of(name))
    exponents = (extended.f[:, None] + cold.potentials.g + (first.x + 0.1) @ first.y.T) / first.eps
    assert np.allclose((first.b * np.exp(exponents))[:, :-1].sum(axis=1), 1.0)


def test_divergences_are_those_of_half_the_squared_distance() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 20, 3)), rng.normal(size=(2, 25, 3)) + 0.5
    products = ds.divergence(x, y, eps=0.4, cost=ds.Cost("negdot", 2.0), tol=1e-7)
    assert np.allclose(products.values, ds.divergence(x, y, eps=0.4, tol=1e-7).values, atol=1e-9)
    with pytest.raises(ds.ProblemError, match=r'"dot" may be negative.*use "negdot"'):
        ds.divergence(x, y, eps=0.4, cost="dot")
