"""Float16 high parts alone make scores of many coordinates as long as the residual is large."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.backends.triton import TritonBackend
from drainsinkhorn.backends.triton.kernels import columns as c
from drainsinkhorn.backends.triton.pack import TritonPack
from drainsinkhorn.backends.triton.precision import Arithmetic
from drainsinkhorn.run.validate import validate
from drainsinkhorn.testing import marginal_errors
from tests.device import DEVICE, torch

# The interpreter computes in NumPy, which warns of overflow where a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

TOL = 1e-3
BACKEND = TritonBackend(cached_bytes=0)
WHOLE = replace(BACKEND, leading=False)


def clouds(n: int, m: int, d: int, eps: float, seed: int = 0) -> ds.Problem[Any]:
    """Two mixtures of three, so that plain Sinkhorn takes some cycles."""
    rng = np.random.default_rng([seed, n, m, d])
    x, y = (rng.normal(size=(3, d))[rng.integers(3, size=size)] + 0.3 * rng.normal(size=(size, d)) for size in (n, m))
    x, y = (torch.tensor(points.astype(np.float32)).to(DEVICE) for points in (x, y))
    return ds.Problem(x=x, y=y, eps=eps)


def switches(pack: Any) -> list[float]:
    """The residual of each lane at which it switches to all products, as the device has it."""
    numbers = pack._table.state.cpu()
    return numbers[pack._lanes.places, c.SWITCH.value].tolist()


def drained(backend: TritonBackend, problems: list[ds.Problem[Any]]) -> list[Any]:
    """Depths and states of lanes that are held when they pass, and then verified. Nothing is compiled beforehand."""
    pack = backend.pack([validate(replace(problem, init="zero"), TOL) for problem in problems])
    lanes = range(len(problems))
    told = pack.advance(8, [TOL for _ in lanes])
    while any(stale > TOL for stale in told.stale):
        told = pack.advance(8, [TOL for _ in lanes])
    for residual in pack.verify(lanes).rows():
        assert max(residual.row, residual.col) + residual.band <= TOL
    emitted = pack.emit(lanes)
    return [(depth, emitted.potentials(lane)) for lane, depth in enumerate(told.depths)]


@pytest.mark.parametrize(
    "problem",
    [clouds(40, 33, 40, 8.0), clouds(30, 70, 62, 12.0), clouds(33, 40, 70, 12.0)],
    ids=["room", "none", "many"],
)
def test_high_parts_cost_no_cycles(problem: ds.Problem[Any]) -> None:
    (depth, potentials), (whole_depth, whole) = drained(BACKEND, [problem]) + drained(WHOLE, [problem])
    assert max(marginal_errors(problem, potentials)) <= TOL
    assert abs(depth - whole_depth) <= 1
    # High parts were used at all: states on the way differ.
    assert not torch.equal(potentials.f, whole.f)


def test_lanes_switch_to_all_products_before_they_pass() -> None:
    pack = BACKEND.pack([validate(replace(clouds(40, 33, 40, 8.0), init="zero"), TOL)])
    (above,) = switches(pack)
    assert above >= 2 * TOL
    while switches(pack) != [0.0]:
        progress = pack.advance(1, [TOL])
        assert progress.stale[0] >= switches(pack)[0]
        assert progress.depths[0] < 100
    assert progress.stale[0] <= 2 * above


def test_potentials_of_a_lane_may_be_inside_the_product_for_high_parts_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured = TritonPack._first_errors

    def increased(pack: Any, lanes: Any, *, inside: bool) -> Any:
        """What is measured; more for the first of two lanes if its potentials are inside the product of all parts."""
        more = [float(inside and rows == 40) for rows, _ in lanes.column("size")]
        return measured(pack, lanes, inside=inside) + np.array(more)

    monkeypatch.setattr(TritonPack, "_first_errors", increased)
    problems = [clouds(40, 33, 40, 8.0), clouds(33, 40, 40, 8.0)]
    pack = BACKEND.pack([validate(problem, TOL) for problem in problems])
    assert [Arithmetic(rung) for rung in pack._lanes.column("arithmetic")] == [Arithmetic.FLOAT32, Arithmetic.AUGMENTED]
    assert all(switches(pack))
    for problem, (depth, potentials) in zip(problems, drained(BACKEND, problems), strict=True):
        ((alone_depth, alone),) = drained(BACKEND, [problem])
        assert alone_depth == depth
        assert torch.equal(alone.f, potentials.f)
        assert torch.equal(alone.g, potentials.g)


def test_high_parts_are_not_used_from_a_given_start() -> None:
    problem = clouds(40, 33, 40, 8.0)
    ((_, potentials),) = drained(BACKEND, [problem])
    pack = BACKEND.pack([validate(replace(problem, init=potentials), 2 * TOL)])
    assert switches(pack) == [0.0]
    assert pack.advance(0, [2 * TOL]).stale[0] <= 2 * TOL


def test_high_parts_are_not_used_for_scores_that_they_cannot_tell_apart() -> None:
    pack = BACKEND.pack([validate(clouds(20, 20, 40, 2e-4), TOL)])
    assert switches(pack) == [0.0]
