"""Leading halves alone make scores of many coordinates as long as the residual is large."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.device import DEVICE, torch

import drainsinkhorn as ds
from drainsinkhorn.backends.triton import TritonBackend, kernels
from drainsinkhorn.backends.triton.pack import TritonPack
from drainsinkhorn.run.validate import validate
from drainsinkhorn.testing import marginal_errors

# The interpreter computes in NumPy, which warns of overflow where a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

TOL = 1e-3
BACKEND = TritonBackend(stored_pairs=0)
WHOLE = replace(BACKEND, leading=False)


def clouds(n: int, m: int, d: int, eps: float, seed: int = 0) -> ds.Problem[Any]:
    """Two mixtures of three, so that plain Sinkhorn takes some cycles."""
    rng = np.random.default_rng([seed, n, m, d])
    x, y = (rng.normal(size=(3, d))[rng.integers(3, size=size)] + 0.3 * rng.normal(size=(size, d)) for size in (n, m))
    x, y = (torch.tensor(points.astype(np.float32)).to(DEVICE) for points in (x, y))
    return ds.Problem(x=x, y=y, eps=eps)


def led(pack: Any) -> list[float]:
    """By lane the residual above which leading halves make scores, as the device has it."""
    numbers = pack._states[pack._parity].cpu()
    return [float(numbers[lane.place, kernels.LEADING.value]) for lane in pack._lanes]


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
def test_leading_halves_cost_no_cycles(problem: ds.Problem[Any]) -> None:
    (depth, potentials), (whole_depth, whole) = drained(BACKEND, [problem]) + drained(WHOLE, [problem])
    assert max(marginal_errors(problem, potentials)) <= TOL
    assert abs(depth - whole_depth) <= 1
    # They were taken at all: the way there was another one.
    assert not torch.equal(potentials.f, whole.f)


def test_they_give_way_before_the_lane_is_done() -> None:
    pack = BACKEND.pack([validate(replace(clouds(40, 33, 40, 8.0), init="zero"), TOL)])
    (above,) = led(pack)
    assert above >= 2 * TOL
    while led(pack) != [0.0]:
        progress = pack.advance(1, [TOL])
        assert progress.stale[0] >= led(pack)[0]
        assert progress.depths[0] < 100
    assert progress.stale[0] <= 2 * above


def test_a_lane_may_be_led_with_potentials_in_the_product_that_do_not_stay_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured = TritonPack._rounding

    def doubted(pack: Any, live: Any, lanes: Any, *, folded: bool) -> Any:
        """What is measured; more where potentials of the first of two lanes are in the product of all halves."""
        doubt = [float(folded and len(lane.instance.x) == 40) for lane in lanes]
        return measured(pack, live, lanes, folded=folded) + np.array(doubt)

    monkeypatch.setattr(TritonPack, "_rounding", doubted)
    problems = [clouds(40, 33, 40, 8.0), clouds(33, 40, 40, 8.0)]
    pack = BACKEND.pack([validate(problem, TOL) for problem in problems])
    assert [(lane.folded, lane.wide) for lane in pack._lanes] == [(False, False), (True, False)]
    assert all(led(pack))
    for problem, (depth, potentials) in zip(problems, drained(BACKEND, problems), strict=True):
        ((alone_depth, alone),) = drained(BACKEND, [problem])
        assert alone_depth == depth
        assert torch.equal(alone.f, potentials.f)
        assert torch.equal(alone.g, potentials.g)


def test_a_start_that_is_given_is_not_led_away() -> None:
    problem = clouds(40, 33, 40, 8.0)
    ((_, potentials),) = drained(BACKEND, [problem])
    pack = BACKEND.pack([validate(replace(problem, init=potentials), 2 * TOL)])
    assert led(pack) == [0.0]
    assert pack.advance(0, [2 * TOL]).stale[0] <= 2 * TOL


def test_scores_that_leading_halves_cannot_tell_apart_are_not_led() -> None:
    pack = BACKEND.pack([validate(clouds(20, 20, 40, 2e-4), TOL)])
    assert led(pack) == [0.0]
