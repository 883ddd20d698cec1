"""Lanes whose points are in three float16 parts: which lanes these are, their errors, and the promises of packs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.backends.triton import TritonBackend, cycles, triples
from drainsinkhorn.backends.triton.kernels import columns as c
from drainsinkhorn.backends.triton.kernels import triple as kernels
from drainsinkhorn.backends.triton.precision import Arithmetic, PrecisionPolicy, in_triples
from drainsinkhorn.numerics.costs import cost_matrix
from drainsinkhorn.numerics.exponentials import compensated_power, power
from drainsinkhorn.numerics.update import log_ratios
from drainsinkhorn.run.validate import validate
from drainsinkhorn.testing import PROMISES, Bench, marginal_errors
from drainsinkhorn.testing.auditor import judge
from tests.device import CUDA, DEVICE, torch

# The interpreter computes in NumPy, which warns of overflow where a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

triton, tl = kernels.triton, kernels.tl
LN2 = math.log(2)
RUNGS = {"triple": Arithmetic.TRIPLE, "compensated": Arithmetic.COMPENSATED}
KEPT = (
    "answers agree with the reference",
    "calls add up",
    "lanes are independent",
    "first passage does not depend on the calls",
    "a held lane rests",
    "nan speaks",
)
"""Promises that depend on the kernels of legs."""


def on_device(array: Any) -> Any:
    return torch.as_tensor(np.asarray(array, dtype=np.float32)).to(DEVICE)


def clouds(dim: int, tol: float, seed: int = 0, n: int = 40, m: int = 29, **more: Any) -> ds.Problem[Any]:
    rng = np.random.default_rng([seed, dim])
    x, y = on_device(rng.normal(size=(n, dim))), on_device(0.8 * rng.normal(size=(m, dim)) + 0.3)
    return ds.Problem(x=x, y=y, **{"eps": 0.3 * dim, "tol": tol, **more})


def force(monkeypatch: pytest.MonkeyPatch, rung: Arithmetic) -> None:
    """Let every lane that may have points in three parts climb to one arithmetic."""

    def only(_: Any, errors: Any, tolerances: Any, arithmetic: Arithmetic = Arithmetic.FLOAT32) -> Any:
        return np.full(len(errors), arithmetic is rung)

    monkeypatch.setattr(PrecisionPolicy, "accurate_enough", only)


@triton.jit
def run_powers(exponents, rests, out, COUNT: tl.constexpr):
    places = tl.arange(0, COUNT)
    exponent, rest = tl.load(exponents + places), tl.load(rests + places)
    first, second, factor = kernels._compensated_power(exponent, rest)
    tl.store(out + places, kernels._power(exponent, rest))
    tl.store(out + COUNT + places, first)
    tl.store(out + 2 * COUNT + places, second * factor)


def test_powers() -> None:
    rng = np.random.default_rng(1)
    exponents = (np.round(rng.uniform(-119, 119, size=256) * 2**12) / 2**12).astype(np.float32)
    rests = (0.1 * rng.normal(size=256)).astype(np.float32)
    out = torch.zeros((3, 256), dtype=torch.float32, device=DEVICE)
    run_powers[(1,)](torch.as_tensor(exponents).to(DEVICE), torch.as_tensor(rests).to(DEVICE), out, COUNT=256)
    one, first, second = out.cpu().numpy()
    truth_first, truth_second = compensated_power(exponents, rests)
    # A device may fuse a product and a sum; the first part is exact either way.
    assert np.allclose(one, power(exponents, rests), rtol=2.0**-22, atol=0)
    assert np.array_equal(first, truth_first)
    assert (np.abs(second - truth_second) <= 2.0**-26 * np.abs(first)).all()


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("dim", [1, 3, 4, 8, 20, 62])
def test_legs_are_those_of_float64(dim: int, rung: str, monkeypatch: pytest.MonkeyPatch) -> None:
    force(monkeypatch, RUNGS[rung])
    weights = np.random.default_rng(5).uniform(0.2, 1.0, size=29)
    instance = validate(clouds(dim, 1e-6, b=on_device(weights / weights.sum())), 1e-3)
    pack = TritonBackend(acceleration="momentum").pack([instance])
    (place,) = pack._lanes.places
    lane = pack._table.host[place]
    assert Arithmetic(lane["arithmetic"]) is RUNGS[rung]
    pack.advance(12, [-math.inf])
    starts = pack._table.fields[place, c.POTENTIAL.value : c.POTENTIAL.value + 2].tolist()
    vectors = pack._buffers["vectors64"].cpu().numpy()
    f, g = (vectors[start : start + size] for start, size in zip(starts, lane["size"], strict=True))
    unit = instance.eps * LN2
    truth = log_ratios(
        f * unit, g * unit, np.log(np.asarray(instance.b)), cost_matrix(instance)[0] / instance.eps, instance.eps
    )
    begin = int(pack._table.fields[place, c.LOG_RATIOS.value])
    rest = int(pack._table.fields[place, c.WEIGHT.value])
    vectors = pack._buffers["vectors32"].cpu().numpy().astype(np.float64)
    found = LN2 * (vectors[begin : begin + lane["size"][0]] + vectors[rest : rest + lane["size"][0]])
    allowed = {"triple": 2e-7, "compensated": 1e-8}[rung]
    assert np.abs(found - truth).max() <= allowed


@pytest.mark.parametrize("tol", [1e-6, 1e-7, 1e-8])
@pytest.mark.parametrize("dim", [2, 10])
def test_tight_lanes_have_points_in_three_parts_and_true_residuals(dim: int, tol: float) -> None:
    problem = clouds(dim, tol)
    pack = TritonBackend(acceleration="momentum").pack([validate(problem, 1e-3)])
    assert in_triples(pack._lanes).all()
    result = ds.solve([problem], backend="triton", rescue=False)[0]
    assert result.converged, result.message
    assert max(marginal_errors(validate(problem, 1e-3), result.potentials)) <= tol
    assert "products of three parts or float64 where needed" in result.arithmetic


@pytest.mark.parametrize("rho", [1.0, (math.inf, 0.5), (3.0, 0.4)])
def test_soft_lanes(rho: Any) -> None:
    rng = np.random.default_rng(3)
    b = rng.uniform(0.2, 1.0, size=29)
    problem = clouds(3, 1e-7, b=1.4 * b / b.sum() if np.ndim(rho) == 0 or math.inf not in rho else b / b.sum(), rho=rho)
    pack = TritonBackend(acceleration="momentum").pack([validate(problem, 1e-3)])
    assert in_triples(pack._lanes).all()
    result = ds.solve([problem], backend="triton", rescue=False)[0]
    assert result.converged, result.message
    assert not judge(problem, result.potentials, problem.tol).refutes(problem.tol)


@pytest.mark.parametrize("fused", [True, False])
def test_lanes_do_not_depend_on_their_neighbours(fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not fused:
        # As large lanes are run.
        monkeypatch.setattr(cycles, "SMALL", 0)
    # Several programs share a tile of rows.
    small = {key: {**tile, "bn": 32, "least": 1} for key, tile in triples.TRIPLE_TILES.items()}
    for key, tile in small.items():
        monkeypatch.setitem(triples.TRIPLE_TILES, key, tile)
    batch = [clouds(8, 1e-6, 1, n=80, m=70), clouds(12, 1e-3, 2), clouds(8, 1e-8, 3, n=33), clouds(8, 1e-13, 4),
             clouds(8, 1e-6, 5), clouds(8, 1e-7, 6, rho=1.0), clouds(15, 1e-7, 7)]  # fmt: skip
    instances = [validate(problem, 1e-3) for problem in batch]
    backend = TritonBackend(acceleration="momentum")

    def states(chosen: list[Any], calls: list[int]) -> list[Any]:
        pack = backend.pack(chosen)
        for cycles_of_call in calls:
            pack.advance(cycles_of_call, [-math.inf] * len(chosen))
        emission = pack.emit(range(len(chosen)))
        return [emission.potentials(place) for place in range(len(chosen))]

    together = states(instances, [4])
    for place, (instance, potentials) in enumerate(zip(instances, together, strict=True)):
        for calls in ([4], [1, 3]) if place == 0 else ([4],):
            (alone,) = states([instance], calls)
            assert all(torch.equal(ours, theirs) for ours, theirs in zip(alone, potentials, strict=True))


@pytest.mark.parametrize("rung", RUNGS)
def test_sums_out_of_range_are_computed_again(rung: str, monkeypatch: pytest.MonkeyPatch) -> None:
    force(monkeypatch, RUNGS[rung])
    problem = clouds(5, 1e-6, eps=1.0, init="zero")
    far = ds.Problem(x=problem.x, y=problem.y + 12, eps=1.0, tol=1e-6, init="zero")
    pack = TritonBackend(acceleration="momentum").pack([validate(far, 1e-3)])
    (place,) = pack._lanes.places
    lane = pack._table.host[place]
    assert Arithmetic(lane["arithmetic"]) is RUNGS[rung]
    start = int(pack._table.fields[place, c.LOG_RATIOS.value])
    ratios = pack._buffers["vectors32"][start : start + lane["size"][0]].cpu().numpy()
    costs = cost_matrix(pack._instances[0])[0] / LN2
    truth = np.log2(np.exp2(-costs + costs.min(1, keepdims=True)).mean(1)) - costs.min(1)
    assert truth.max() < -c.TRIPLE_RANGE.value
    assert np.allclose(ratios, truth, rtol=1e-6, atol=0)


def test_lanes_that_leave_give_their_memory_back() -> None:
    instance = validate(clouds(8, 1e-7), 1e-3)
    pack = TritonBackend(acceleration="momentum").pack([instance])
    taken = {name: arena._end for name, arena in pack._buffers._arenas.items()}
    pack.repack([], [instance])
    pack.repack([], [instance])
    again = {name: arena._end for name, arena in pack._buffers._arenas.items()}
    assert all(again[name] <= 2 * end for name, end in taken.items())
    pack.repack([])
    assert all(arena._end == 0 for arena in pack._buffers._arenas.values())


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("promise", KEPT)
def test_promise(promise: str, rung: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if rung == "triple" and not CUDA and promise not in ("calls add up", "nan speaks"):
        pytest.skip("slow in the interpreter, and run for the other rung there")
    force(monkeypatch, RUNGS[rung])
    backend = TritonBackend(acceleration="momentum")
    for shape in [(13, 17, 3), (1, 9, 20), (200, 5, 8), (700, 1501, 3)] if CUDA else [(7, 19, 3)]:
        PROMISES[promise](Bench(backend, on_device, shape))
