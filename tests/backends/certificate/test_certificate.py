"""A certificate's bound holds: against extended precision, for every cost, and for potentials of any size."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.backends import certificate
from drainsinkhorn.backends.certificate import blocks, certify
from drainsinkhorn.backends.cpu import CpuBackend
from drainsinkhorn.backends.cpu.certificate_kernels import compiled_sweep
from drainsinkhorn.backends.reference import ReferenceLane
from drainsinkhorn.core.audit import Audit, Limits, judge
from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.result import Residual, Residuals
from drainsinkhorn.model.status import Status
from drainsinkhorn.run.validate import validate
from tests.conftest import needs

KINDS = ("sqeuclidean", "euclidean", "cosine", "negdot", "dense")
Long = np.longdouble


def extended_residuals(problem: ds.Instance[Any], f: Any, g: Any) -> tuple[Any, Any]:
    """Both residuals in extended precision, from the points as given."""
    a, b = problem.a.astype(Long), problem.b.astype(Long)
    if not problem.is_dense:
        x, y = problem.x.astype(Long), problem.y.astype(Long)
        if str(problem.cost.kind) == "cosine":
            x, y = (p / np.sqrt((p * p).sum(1, keepdims=True)) for p in (x, y))
        cost = ((x[:, None] - y[None]) ** 2).sum(-1)
        cost = np.sqrt(cost) if str(problem.cost.kind) == "euclidean" else cost
        cost = -np.einsum("ik,jk->ij", x, y) if str(problem.cost.kind) == "negdot" else cost
        cost = (cost / 2 if str(problem.cost.kind) == "cosine" else cost) * Long(problem.cost.scale)
    else:
        cost = problem.matrix.astype(Long)
    with np.errstate(over="ignore"):
        ratios = np.exp((f.astype(Long)[:, None] + g.astype(Long)[None] - cost) / Long(problem.eps))
    plan = a[:, None] * b[None] * ratios
    return abs(plan.sum(1) - a).sum(), abs(plan.sum(0) - b).sum()


def hostile(rng: np.random.Generator, kind: str) -> ds.Instance[Any]:
    n, m = rng.integers(1, 60, size=2)
    d = int(rng.choice([1, 2, 3, 11, 40, 130]))
    a, b = (rng.random(size) ** 8 + 10.0 ** rng.uniform(-300, -3) for size in (n, m))
    offset = 10.0 ** rng.integers(0, 5)
    points = {"x": rng.normal(size=(n, d)) + offset, "y": rng.normal(size=(m, d)) + offset, "cost": Cost(kind, 0.7)}
    given: dict[str, Any] = (
        points if kind != "dense" else {"cost": 10.0 ** rng.uniform(-2, 4) * rng.normal(size=(n, m))}
    )
    return validate(
        ds.Problem(eps=10.0 ** rng.uniform(-3, 2), a=a / a.sum(), b=b / b.sum(), init="zero", **given), 1e-6
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sweep", [None, partial(compiled_sweep, threads=2)], ids=["numpy", "compiled"])
def test_the_bound_holds_in_extended_precision(kind: str, sweep: Any) -> None:
    if np.finfo(Long).eps > 1e-18:
        pytest.skip("long double is no wider than double on this machine")
    rng = np.random.default_rng(7)
    finite = 0
    for _ in range(60):
        problem = hostile(rng, kind)
        with np.errstate(all="ignore"):
            lane = ReferenceLane(problem)
            for _ in range(int(rng.integers(0, 20))):
                lane.cycle()
        shift = problem.eps * 10.0 ** rng.uniform(-3, 15) if rng.random() < 0.5 else 0.0
        f, g = lane.f + shift, lane.g - shift
        found = certify(problem, ds.Potentials(f, g), sweep)
        row, col = extended_residuals(problem, f, g)
        # Plans of enormous mass are beyond any tolerance.
        if found.band < math.inf and row < 1e6:
            finite += 1
            assert abs(found.row - row) <= found.band
            assert abs(found.col - col) <= found.band
    assert finite >= 20


def test_products_and_differences_certify_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    problem = validate(ds.Problem(x=rng.normal(size=(50, 20)) + 30, y=rng.normal(size=(60, 20)) + 30, eps=2.0), 1e-6)
    state = ds.Potentials(rng.normal(size=50), rng.normal(size=60))
    by_differences = certify(problem, state)
    monkeypatch.setitem(blocks.PRODUCT_DIM, "numpy", 1)
    by_products = certify(problem, state)
    assert by_products.band != by_differences.band
    assert abs(by_products.row - by_differences.row) <= by_products.band + by_differences.band


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [3, 20])
def test_tensors_on_a_device_are_certified_alike(kind: str, dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = needs("torch")
    rng = np.random.default_rng(5)
    x, y, a = rng.normal(size=(30, dim)), rng.normal(size=(40, dim)), rng.random(30)
    a[3] = 0.0
    arrays: dict[str, Any] = {"x": x, "y": y} if kind != "dense" else {"cost": rng.random((30, 40))}
    named = {} if kind == "dense" else {"cost": kind}
    problem = validate(ds.Problem(a=a, eps=0.5, **arrays, **named), 1e-6)
    tensors = {name: torch.tensor(array) for name, array in arrays.items()}
    there = validate(ds.Problem(a=a, eps=0.5, **tensors, **named), 1e-6)
    state = ds.Potentials(rng.normal(size=30), rng.normal(size=40))
    if kind == "negdot":
        # Potentials of half the squared distance, shifted: the mass of the plan is near 1.
        state = ds.Potentials(state.f - (x**2).sum(1) / 2, state.g - (y**2).sum(1) / 2)
    by_numpy = certify(problem, state)
    # The same expressions run on a CUDA device.
    monkeypatch.setattr(certificate, "on_cuda", lambda array: True)
    by_torch = certify(there, ds.Potentials(*map(torch.tensor, state)))
    assert 0 < by_torch.band < 1e-10
    assert abs(by_torch.row - by_numpy.row) <= by_torch.band + by_numpy.band
    assert abs(by_torch.col - by_numpy.col) <= by_torch.band + by_numpy.band


def test_a_state_that_rounding_hides_has_an_infinite_bound() -> None:
    problem = validate(ds.Problem(cost=np.ones((3, 4)), eps=0.5), 1e-2)
    found = certify(problem, ds.Potentials(np.full(3, 1e16), np.full(4, -1e16)))
    assert found.band == math.inf


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("kind", KINDS)
def test_certify_always_certifies_from_the_callers_arrays(backend: str, kind: str) -> None:
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(40, 3)).astype(np.float32), rng.normal(size=(50, 3)).astype(np.float32)
    given: dict[str, Any] = {"cost": kind, "x": x, "y": y} if kind != "dense" else {"cost": rng.random((40, 50))}
    problem = ds.Problem(eps=0.3, tol=1e-4, **given)
    (result,) = ds.solve([problem], backend=backend, certify="always")
    assert result.converged
    assert result.residual == certify(
        validate(problem, 1e-4), result.potentials, partial(compiled_sweep, threads=1)
    ) or (abs(result.residual.worst - certify(validate(problem, 1e-4), result.potentials).worst) <= 1e-12)


def test_a_cost_buffer_that_is_refilled_is_read_again() -> None:
    rng = np.random.default_rng(0)
    buffer, backend = np.empty((20, 20)), CpuBackend()
    bands = []
    for size in (1e8, 1.0, 1e8):
        buffer[:] = size * rng.random((20, 20))
        problem = ds.Problem(cost=buffer, eps=0.1 * size, tol=1e-6)
        (result,) = ds.solve([problem], backend=backend)
        (fresh,) = ds.solve([ds.Problem(cost=buffer.copy(), eps=0.1 * size, tol=1e-6)], backend=backend)
        assert result.converged
        assert result.residual == fresh.residual
        bands.append(result.residual.band)
    assert max(bands) < 1e-6


class _Doubtful:
    """A pack whose verify has a rounding estimate, and whose certificate has none."""

    def __init__(self, row: float, band: float, certified: float) -> None:
        self._said, self._certified, self.exact = Residual(row, 0.0, band), Residual(certified, 0.0, 0.0), 0

    def verify(self, lanes: Any, exact: bool) -> Residuals:
        self.exact += exact * len(lanes)
        return Residuals.from_rows(self._certified if exact else self._said for _ in lanes)


def judged(pack: Any, *, final: bool = False) -> Any:
    limits = Limits([100], [0.9], [1.0], [1.0], {0: Status.DEPTH_LIMIT} if final else {})
    _, _, statuses, _ = judge(limits, [0], Audit(), lambda _: [], pack.verify, exact=False)
    return statuses[0] if statuses else None


class TestEscalation:
    def test_an_estimate_that_straddles_tol_is_certified_before_it_rejects(self) -> None:
        pack = _Doubtful(0.9, 0.2, certified=0.9)
        assert judged(pack) is Status.CONVERGED
        assert pack.exact == 1

    def test_a_certificate_can_reject(self) -> None:
        assert judged(_Doubtful(0.9, 0.2, certified=1.01)) is None

    def test_a_small_estimate_runs_on(self) -> None:
        pack = _Doubtful(0.95, 0.06, certified=0.9)
        assert judged(pack) is None
        assert pack.exact == 0

    def test_the_last_state_is_always_certified(self) -> None:
        assert judged(_Doubtful(1.01, 0.02, certified=0.99), final=True) is Status.CONVERGED
        assert judged(_Doubtful(1.01, 0.02, certified=1.001), final=True) is Status.DEPTH_LIMIT

    def test_what_is_clear_is_not_certified(self) -> None:
        for row, status in ((0.5, Status.CONVERGED), (2.0, None)):
            pack = _Doubtful(row, 0.2, certified=math.nan)
            assert judged(pack) is status
            assert pack.exact == 0

    def test_a_certificate_that_says_nothing_leaves_the_estimate(self) -> None:
        assert judged(_Doubtful(0.9, 0.2, certified=math.nan)) is None
