"""How cycles are launched: legs of small lanes are fused, and a call ends when all lanes are held."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.backends.triton import HELD_SPACING, TritonBackend
from drainsinkhorn.backends.triton.cycles import POLL, Cycles, will_pass
from drainsinkhorn.backends.triton.kernels import columns as c
from drainsinkhorn.backends.triton.pack import TritonPack
from drainsinkhorn.core.audit import Audit
from drainsinkhorn.core.options import MODES
from drainsinkhorn.run.validate import validate
from tests.device import CUDA, DEVICE, torch

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

SIZES = ((1100, 700), (64, 1030), (513, 40)) if CUDA else ((70, 21), (20, 41))
"""On a device some lanes are applied in several pieces."""
INTERPRETED = ((3, "momentum", "auto"), (10, "none", "auto"), (70, "momentum", "auto"), (3, "none", "float64"))


def clouds(dim: int, eps: float) -> list[Any]:
    return [validate(problem, 1e-3) for problem in given_clouds(dim, eps)]


def given_clouds(dim: int, eps: float) -> list[Any]:
    rng = np.random.default_rng([5, dim])
    found = []
    for n, m in SIZES:
        x, y = (torch.as_tensor(rng.normal(size=(size, dim)), dtype=torch.float32).to(DEVICE) for size in (n, m))
        found.append(ds.Problem(x=x, y=y + 0.3, eps=eps, init="zero"))
    return found


def state(pack: TritonPack) -> list[Any]:
    """Potentials, and numbers of all lanes but whether they are held, to the bit."""
    numbers = pack._table.state.cpu().numpy()
    rows = [np.delete(numbers[place], [c.HELD.value]) for place in pack._lanes.places]
    emitted = pack.emit(range(pack.width))
    return [*rows, *(part.cpu().numpy() for pair in zip(emitted.f, emitted.g, strict=True) for part in pair)]


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Cycles]:
    """Grows with every cycle that is launched."""
    found: list[Cycles] = []
    cycle = Cycles._cycle

    def counted(self: Cycles, **how: bool) -> list[Any]:
        found.append(self)
        return cycle(self, **how)

    monkeypatch.setattr(Cycles, "_cycle", counted)
    return found


@pytest.mark.parametrize("precision", ["auto", "float64"])
@pytest.mark.parametrize("acceleration", ["momentum", "none"])
@pytest.mark.parametrize(("dim", "eps"), [(3, 0.05), (10, 1.0), (70, 10.0)])
def test_lanes_that_apply_their_own_legs_are_the_same_to_the_bit(
    dim: int, eps: float, acceleration: str, precision: Any
) -> None:
    if not CUDA and (dim, acceleration, precision) not in INTERPRETED:
        pytest.skip("slow in the interpreter; some of its kind are run there, and all on a CUDA device")
    backend, found = TritonBackend(precision=precision, acceleration=acceleration), []
    for small in (True, False):
        pack = backend.pack(clouds(dim, eps))
        assert pack._cycles.fused
        pack._cycles.fused = small
        # The stop of the second lane holds it on the way; the others go on.
        stops = [-math.inf, 0.3, -1.0][: pack.width]
        told = [pack.advance(4, stops), pack.advance(3, [1e-6] * len(stops)), pack.advance(1, [-math.inf] * len(stops))]
        found.append((told, state(pack), pack.verify(range(pack.width))))
    (told, states, residuals), (others, other_states, other_residuals) = found
    assert told == others
    assert residuals == other_residuals
    assert all(np.array_equal(one, other) for one, other in zip(states, other_states, strict=True))


def test_both_ways_in_one_pack() -> None:
    packs = [TritonBackend(acceleration="momentum").pack(clouds(3, 1.0)) for _ in range(2)]
    told: list[Any] = [[], []]
    for way in (True, False, True):
        packs[0]._cycles.fused, packs[1]._cycles.fused = way, False
        for pack, found in zip(packs, told, strict=True):
            found.append(pack.advance(3, [-1.0] * pack.width))
    assert told[0] == told[1]


@pytest.mark.parametrize("small", [True, False])
def test_a_call_ends_when_all_lanes_rest(small: bool, launched: list[Cycles]) -> None:
    packs = [TritonBackend(acceleration="momentum").pack(clouds(3, 1.0)) for _ in range(2)]
    for pack in packs:
        pack._cycles.fused = small
    stops = [1e-3] * packs[0].width
    progress = packs[0].advance(10_000, stops)
    depth = max(progress.depths)
    assert all(stale <= 1e-3 for stale in progress.stale)
    assert depth <= len(launched) <= depth + 3 * POLL
    # One cycle a call, to where each lane passes: the same states.
    told: list[Any] = [None] * packs[1].width
    for _ in range(depth):
        for lane, now in enumerate(zip(*packs[1].advance(1, stops), strict=True)):
            told[lane] = told[lane] or (now if now[1] <= 1e-3 else None)
    assert told == list(zip(*progress, strict=True))
    # A lane that was rejected moves on.
    again = packs[0].advance(POLL + 3, [1e-3, *[-math.inf] * (len(stops) - 1)])
    assert again.depths[0] > progress.depths[0]
    assert again.depths[1:] == [depth + POLL + 3 for depth in progress.depths[1:]]


def test_a_lane_that_just_switched_from_high_parts_is_not_taken_for_a_held_one() -> None:
    rng, tol = np.random.default_rng([0, 18, 21, 40]), 3e-4
    x, y = (rng.normal(size=(3, 40))[rng.integers(3, size=n)] + 0.3 * rng.normal(size=(n, 40)) for n in (18, 21))
    x, y = (torch.as_tensor(points, dtype=torch.float32).to(DEVICE) for points in (x, y))
    found = []
    for small in (True, False):
        pack = TritonBackend(cached_bytes=0).pack([validate(ds.Problem(x=x, y=y, eps=4.0), tol, init="zero")])
        pack._cycles.fused = small
        assert pack._launcher.representation.high_parts
        # After the second call's eighth cycle, at the poll, its residual from high parts has passed.
        told = [pack.advance(1, [-math.inf]), pack.advance(100, [tol])]
        found.append((told, state(pack), pack.spent))
    (told, states, spent), (others, other_states, other_spent) = found
    assert told == others
    assert spent == other_spent
    assert all(np.array_equal(one, other) for one, other in zip(states, other_states, strict=True))


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("more", [0, 1])
def test_nothing_is_launched_for_lanes_that_rest(small: bool, more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for idle in (math.inf, 0.0):
        monkeypatch.setattr("drainsinkhorn.backends.triton.cycles.IDLE", idle)
        pack = TritonBackend(acceleration="momentum").pack(clouds(3, 0.5))
        pack._cycles.fused = small
        # The first lane rests at once, and the others never; then all move again.
        told = [pack.advance(3 * POLL + more, [1.0, *[-math.inf] * (pack.width - 1)])]
        launched = len(pack._cycles.active)
        told += [pack.advance(3, [1.0] * pack.width), pack.advance(2, [-math.inf] * pack.width)]
        assert len(pack._cycles.active) == pack.width
        found.append((told, state(pack), pack.verify(range(pack.width)), launched))
    (told, states, residuals, launched), (others, other_states, other_residuals, fewer) = found
    assert (launched, fewer) == (pack.width, pack.width - 1)
    assert told[0].depths[0] < told[0].depths[1] == 3 * POLL + more
    assert told == others
    assert residuals == other_residuals
    assert all(np.array_equal(one, other) for one, other in zip(states, other_states, strict=True))


@pytest.mark.parametrize("lockstep", [False, True])
def test_large_lanes_are_asked_more_often_when_their_end_is_near(
    lockstep: bool, launched: list[Cycles], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for waves in (math.inf, 0.0):
        monkeypatch.setattr("drainsinkhorn.backends.triton.cycles.WAVES", waves)
        pack = TritonBackend().pack(clouds(3, 0.5))
        pack._cycles.fused = False
        told = pack.advance(10_000, [1e-3] * pack.width, lockstep=lockstep)
        found.append((told, launched.count(pack._cycles), state(pack)))
    (told, cycles, states), (others, fewer, other_states) = found
    assert told == others
    assert all(np.array_equal(one, other) for one, other in zip(states, other_states, strict=True))
    assert max(told.depths) < fewer < cycles


@pytest.mark.parametrize(
    ("then", "now", "ends"),
    [
        ((8, 4.0), (16, 3.0), False),
        ((8, 4.0), (16, 1.1), True),
        ((8, 4.0), (10, 3.0), True),
        ((8, 4.0), (16, 4.0), False),
        ((8, 4.0), (16, 5.0), False),
        ((8, 4.0), (8, 1.0), True),
        ((8, 4.0), (8, 2.0), False),
        ((8, math.inf), (16, 2.0), True),
        ((8, 4.0), (16, math.nan), True),
    ],
)
def test_how_soon_a_lane_ends_is_judged_by_how_it_falls(then: Any, now: Any, ends: bool) -> None:
    assert will_pass(*then, *now, 1.0) is ends
    assert not will_pass(*then, *now, -math.inf)


def test_lanes_that_are_never_held_run_all_cycles() -> None:
    pack = TritonBackend().pack(clouds(3, 1.0))
    assert pack.advance(2 * POLL + 1, [-math.inf] * pack.width).depths == [2 * POLL + 1] * pack.width


def test_audits_are_far_apart_where_lanes_rest() -> None:
    backend = TritonBackend()
    problem = clouds(3, 1.0)[0]
    audits = {holds: Audit(first_passage=holds) for holds in (True, False)}
    spacing = {
        (refills, holds): MODES["stream" if refills else "compact"].spacing(audit, backend.hints(problem))
        for refills in (True, False)
        for holds, audit in audits.items()
    }
    assert spacing[False, True] == HELD_SPACING
    assert spacing[True, True] == spacing[True, False] < spacing[False, False] < HELD_SPACING
    assert MODES["compact"].spacing(audits[True], backend.hints(problem), polled=True) == spacing[False, False]
    found = ds.solve(given_clouds(3, 1.0), tol=1e-3, backend=backend, mode="compact")
    assert found.ledger.audits == 1


def test_audits_of_large_problems_are_never_far_apart_in_time() -> None:
    spacing = []
    for n in (1 << 10, 1 << 14, 1 << 16, 1 << 20):
        points = torch.zeros((1, 3)).expand(n, 3)
        problem = validate(ds.Problem(x=points, y=points, eps=1.0), 1e-3)
        spacing.append(MODES["compact"].spacing(Audit(), TritonBackend().hints(problem)))
    assert spacing == [HELD_SPACING, 512, 32, 8]
