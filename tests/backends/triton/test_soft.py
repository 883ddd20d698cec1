"""Soft marginals in the Triton backend: agreement with the reference, lane independence, certificates and plans."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.backends.triton import TritonBackend, cycles
from drainsinkhorn.backends.triton.kernels import columns as c
from drainsinkhorn.backends.triton.precision import in_float64
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.numerics.costs import cost_matrix
from drainsinkhorn.numerics.soft import log_deviations
from drainsinkhorn.numerics.update import log_ratios
from drainsinkhorn.run.validate import validate
from drainsinkhorn.testing.auditor import judge
from tests.device import CUDA

# The interpreter computes in NumPy, which warns of overflow where a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

INF, LN2 = math.inf, math.log(2)
BACKENDS = {
    "usual": TritonBackend(),
    "float64": TritonBackend(precision="float64"),
    "resident": TritonBackend(resident_points=128),
    "resident float64": TritonBackend(resident_points=128, precision="float64"),
}
PRICES = (0.02, 1.0, (3.0, 0.4), (INF, 1.0), (0.6, INF), 50.0)


def cloud(seed: int, n: int = 12, m: int = 15, dim: int = 2, **more: Any) -> ds.Problem[Any]:
    rng = np.random.default_rng(seed)
    a, b = rng.uniform(0.2, 1, size=n), rng.uniform(0.2, 1, size=m)
    fields = {"a": a / a.sum(), "b": 1.6 * b / b.sum(), "eps": 0.1 * dim, "rho": 1.0, **more}
    scale = fields.pop("scale", 1.0)
    x, y = scale * rng.normal(size=(n, dim)), scale * 0.7 * rng.normal(size=(m, dim)) + 0.3
    return ds.Problem(x=x, y=y, **fields)


def various() -> list[ds.Problem[Any]]:
    """Prices, scores, masses and sizes of every kind."""
    rng = np.random.default_rng(0)
    a = rng.uniform(size=12)
    a[[0, 7]] = 0.0
    return [
        *(cloud(k, rho=rho) for k, rho in enumerate(PRICES)),
        *(cloud(7, dim=dim) for dim in (5, 20, 40, 70)),
        *(cloud(8, cost=cost) for cost in ("euclidean", "cosine")),
        ds.Problem(cost=rng.uniform(0, 2, size=(12, 15)), eps=0.3, rho=0.7, a=a),
        cloud(4, a=a),
        cloud(5, a=1e3 * a, b=None),
        cloud(6, a=1e30 * a),
        cloud(9, n=1, m=3),
        cloud(10, n=40, m=7, rho=(1.0, 30.0)),
        replace(cloud(11), y=np.asarray(cloud(11).y) + 20),
        cloud(13, tol=0.3),
        cloud(14, init="gaussian"),
        cloud(2, rho=None, b=None),
        cloud(3, rho=None, b=None, dim=20),
    ]


@pytest.mark.parametrize("accelerate", ["momentum", "none"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_results_agree_with_the_reference(backend: str, accelerate: str) -> None:
    problems = various()[:: 1 if CUDA else 3] if backend in ("usual", "resident") else various()[:4]
    if accelerate == "none":
        problems = problems[:3]
    truth = ds.solve(problems, backend="reference", accelerate=accelerate)
    # Early cycles from float16 high parts alone would lead to states of another arithmetic.
    chosen = replace(BACKENDS[backend], leading=False)
    ours = ds.solve(problems, backend=chosen, accelerate=accelerate, recheck="all")
    for k, (one, other) in enumerate(zip(ours, truth, strict=True)):
        assert one.converged == other.converged, (k, one.message)
        assert abs(one.depth - other.depth) <= 1, k
        assert not judge(replace(one.problem, eps=one.eps), one.potentials, 1e-3).refutes(one.instance.tol / 0.9), k
        # Gaussian starts of the device have another floor of variances than those of NumPy.
        if one.depth == other.depth and one.problem.init != "gaussian":
            plan, best = to_numpy(one.plan()), to_numpy(other.plan())
            # Far clouds have a larger rounding bound of their own.
            assert np.abs(plan - best).sum() <= (2e-5 + one.residual.band) * best.sum() + 1e-300, k


@pytest.mark.parametrize("backend", ["usual", "resident"])
def test_lanes_are_independent_to_the_bit(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problems = [various()[k] for k in (0, 4, 12, 21)]
    alone = ds.solve(problems, backend=BACKENDS[backend], mode="width-one")
    # The legs of small lanes are fused, those of large ones are not.
    for small in (cycles.SMALL, 0):
        monkeypatch.setattr(cycles, "SMALL", small)
        together = ds.solve(problems[::-1], backend=BACKENDS[backend], mode="compact")[::-1]
        for k, (one, other) in enumerate(zip(alone, together, strict=True)):
            assert (one.status, one.depth, one.residual) == (other.status, other.depth, other.residual), (small, k)
            assert all(np.array_equal(p, q) for p, q in zip(one.potentials, other.potentials, strict=True)), (small, k)


def test_infinite_prices_and_hard_lanes_beside_soft_ones_keep_their_bits() -> None:
    balanced = [cloud(k, rho=None, b=None, dim=dim) for k, dim in enumerate((2, 20, 70))]
    soft = [cloud(k, dim=dim) for k, dim in enumerate((2, 20, 70))]
    truth = ds.solve(balanced, backend=BACKENDS["usual"])
    mixed = ds.solve([*soft, *(replace(p, rho=INF) for p in balanced)], backend=BACKENDS["usual"])[3:]
    for one, other in zip(truth, mixed, strict=True):
        assert (one.status, one.depth, one.residual) == (other.status, other.depth, other.residual)
        assert all(np.array_equal(p, q) for p, q in zip(one.potentials, other.potentials, strict=True))


def test_hard_and_soft_lanes_are_one_pack_with_one_launch_of_each_kernel_for_either() -> None:
    problems = [cloud(1), cloud(2, rho=None, b=None), cloud(3, rho=(INF, 1.0))]
    pack = TritonBackend(acceleration="momentum").pack([validate(p, 1e-3) for p in problems])
    parts = pack._lanes.by_softness()
    assert [part.column("is_soft").tolist() for part in parts] == [[False], [True, True]]
    prices = pack._table.fields[pack._lanes.rows, c.PRICES.value].tolist()
    assert [offset > 0 for offset in prices] == [True, False, True]
    numbers = pack._buffers["vectors64"][prices[2] : prices[2] + c.SOFT_NUMBERS.value].cpu().numpy()
    assert numbers == pytest.approx([0, 0.2, 1, 1 / 1.2, 0, math.log2(1.6), math.log2(1.6)], abs=1e-12)


@pytest.mark.parametrize("backend", ["usual", "resident"])
def test_momentum_with_translation_saves_cycles(backend: str) -> None:
    problem = cloud(1, eps=0.1, rho=100.0)
    # Plain Sinkhorn takes thousands of cycles, and as many in any backend (test_results_agree_with_the_reference).
    plain = ds.solve([problem], backend="reference", accelerate="none")[0]
    fast = ds.solve([problem], backend=BACKENDS[backend], accelerate="momentum")[0]
    assert plain.converged
    assert fast.converged
    assert fast.depth <= plain.depth / 10


@pytest.mark.parametrize("kind", ["numpy", "float32", "bfloat16"])
def test_plans_have_the_costs_and_marginals_of_the_host(kind: str) -> None:
    torch = pytest.importorskip("torch")
    problems = [
        cloud(k, rho=rho, dim=dim) for k, (rho, dim) in enumerate(zip(PRICES, (2, 3, 5, 20, 70, 2), strict=True))
    ]
    if kind != "numpy":
        dtype = getattr(torch, kind)
        problems = [replace(p, x=torch.tensor(p.x).to(dtype), y=torch.tensor(p.y).to(dtype)) for p in problems]
    results = ds.solve(problems, backend=TritonBackend())
    instances, potentials = [r.instance for r in results], [r.potentials for r in results]
    device = TritonBackend().couple(instances, potentials)
    from drainsinkhorn.backends.conditionals import plain_couplings

    host = plain_couplings(instances, potentials)
    for ours, theirs in zip(device.transport_cost(), host.transport_cost(), strict=True):
        assert ours == pytest.approx(theirs, rel=2e-5, abs=1e-7)
    for side in ("row", "col"):
        for ours, theirs in zip(device.log_ratios(side), host.log_ratios(side), strict=True):
            assert to_numpy(ours) == pytest.approx(to_numpy(theirs), abs=2e-5)
        for ours, theirs in zip(device.barycentric_map(side), host.barycentric_map(side), strict=True):
            assert to_numpy(ours) == pytest.approx(to_numpy(theirs), abs=1e-4)


@pytest.mark.parametrize("rho", [1.0, (3.0, 0.4), (INF, 1.0), 50.0])
@pytest.mark.parametrize("backend", ["float64", "resident float64"])
def test_lanes_in_float64_pass_small_tolerances_in_as_many_cycles_as_the_reference(backend: str, rho: Any) -> None:
    """A leg is rounded to float32 between two kernels: what is rounded is zero at the optimum."""
    problem = cloud(1, n=24, m=30, rho=rho, tol=1e-10)
    truth, ours = (ds.solve([problem], backend=b, max_depth=100)[0] for b in ("reference", BACKENDS[backend]))
    assert truth.converged
    assert ours.converged, ours.message
    assert not ours.rescued
    assert abs(ours.depth - truth.depth) <= 1
    assert not judge(replace(ours.problem, eps=ours.eps), ours.potentials, 1e-10).refutes(1e-10)


@pytest.mark.parametrize("backend", ["usual", "float64", "resident", "resident float64"])
def test_the_measured_leg_is_what_the_update_rule_applies(backend: str) -> None:
    """`log r + kappa f` of soft lanes, log ratios of hard ones; checks and screens leave it as it is."""
    problems = [cloud(1), cloud(2, rho=(INF, 1.0)), cloud(3, rho=None, b=None)]
    pack = replace(BACKENDS[backend], acceleration="momentum").pack([validate(p, 1e-3) for p in problems])
    for _ in range(3):
        sizes, exact = pack._lanes.column("size"), in_float64(pack._lanes)
        for place, (instance, offsets) in enumerate(
            zip(pack._instances, pack._table.fields[pack._lanes.rows], strict=True)
        ):
            f, g, leg = (
                pack._buffers[name][int(offsets[column]) :][: sizes[place, side]].cpu().double().numpy() * LN2
                for name, column, side in (
                    ("vectors64", c.POTENTIAL.value, 0),
                    ("vectors64", c.POTENTIAL.value + 1, 1),
                    ("vectors32", c.LOG_RATIOS.value, 0),
                )
            )
            ratios = log_ratios(f, g, np.log(np.asarray(instance.b)), cost_matrix(instance)[0] / instance.eps, 1.0)
            truth = log_deviations(ratios, f, instance.eps * instance.marginals.row.kappa)
            accuracy = 2.0**-24 * np.abs(truth).max() + 1e-13 if exact[place] else 1e-5
            assert np.abs(leg - truth).max() <= accuracy, place
        before = pack._buffers["vectors32"].clone()
        pack.screen([0, 1, 2])
        assert bool((pack._buffers["vectors32"] == before).all())
        pack.advance(2, [-INF] * 3)
