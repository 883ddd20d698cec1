"""Slots from depths: against hand-worked cases, the executor with scripts, and simulation."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainsinkhorn.core.audit import Audit, Geometric
from drainsinkhorn.core.executor import execute
from drainsinkhorn.core.ledger import Ledger
from drainsinkhorn.core.options import MODES, Options
from drainsinkhorn.core.source import Admission, Batch
from drainsinkhorn.model.errors import OptionsError
from drainsinkhorn.testing.scripted import ScriptedBackend, scripted
from drainsinkhorn.theory import opportunity, padding, removable, saved, slots, survival, windows
from drainsinkhorn.theory.replay import replay

profiles = st.lists(st.integers(1, 60), min_size=1, max_size=30)


@given(profiles, st.integers(1, 9), st.sampled_from(sorted(MODES)), st.sampled_from([1, 3, 8]))
def test_slots_are_what_the_executor_spends(depths: list[int], width: int, mode: str, every: int) -> None:
    ledger, audit = Ledger(), Audit(every=every)
    plan = Options(mode=mode, width=width, audit=audit).plan(None)
    waiting = Batch([Admission(ticket, scripted(depth)) for ticket, depth in enumerate(depths)])
    list(execute(ScriptedBackend(), waiting, plan, ledger))
    assert slots(depths, mode, width, audit) == ledger.slots


class Meter:
    """A meter, so that a replay leaves no audit out."""

    def count(self, *_: object) -> None:
        pass

    def advance(self, *_: object, lockstep: bool) -> None:
        pass

    refill = count


audits = st.sampled_from([Audit(), Audit(every=3), Audit(first_passage=False), Audit(every=Geometric(3, 1.5))])


@given(profiles, st.integers(1, 9), st.sampled_from(sorted(MODES)), audits)
def test_audits_at_which_no_lane_leaves_change_no_slot(depths: list[int], width: int, mode: str, audit: Audit) -> None:
    if mode == "stream" and isinstance(audit.every, Geometric):
        return
    every, few = replay(depths, mode, width, audit, Meter()), replay(depths, mode, width, audit)
    assert few.audits <= every.audits
    for name in ("slots", "widths", "repacks", "refills", "frozen", "depths"):
        assert getattr(few, name) == getattr(every, name), name


def test_the_time_of_a_replay_does_not_depend_on_depths() -> None:
    for mode in MODES:
        ledger = replay([10**12 + k for k in range(20)], mode, 4, Audit())
        assert ledger.audits <= 20
        assert ledger.slots >= 20 * 10**12


@given(profiles, st.integers(1, 9))
def test_the_area_above_the_survival_curve_is_what_compaction_removes(depths: list[int], width: int) -> None:
    area = sum(sum(len(window) - alive for alive in survival(window)) for window in windows(depths, width))
    assert removable(depths, width) == area == slots(depths, "mask", width) - slots(depths, "compact", width)
    assert padding(depths, width) == pytest.approx(area / sum(depths))


def test_by_hand() -> None:
    assert survival([1, 3, 3, 5]) == [4, 3, 3, 1, 1]
    assert removable([1, 3, 3, 5], 4) == 8
    assert removable([1, 3, 3, 5], 2) == 2 + 2
    assert padding([1, 3, 3, 5], 4) == pytest.approx(20 / 12 - 1)
    assert slots([9, 1], "static", 2, Audit(every=8)) == 2 * 16
    assert padding([], 4) == 0.0
    # c(A) = 1 + A: a narrower kernel saves its lanes alone.
    assert saved([1, 3, 3, 5], lambda width: 1.0 + width) == 8.0
    # A kernel that costs the same at every width saves nothing.
    assert saved([1, 3, 3, 5], lambda _: 1.0) == 0.0


class TestOpportunity:
    def test_synchronised_windows_offer_nothing(self) -> None:
        found = opportunity([[depth] * 4 for depth in (3, 90, 7, 11)], overhead=1.0)
        assert not found.exists
        assert found.removed.mean == 0.0
        assert max(found.mixed) == 0.0
        assert found.verdict == "does not pay"

    def test_the_condition_and_the_removed_slots_agree(self) -> None:
        rng = random.Random(0)
        for _ in range(200):
            repeated = [[rng.choice([4, 4, 4, 5]) for _ in range(3)] for _ in range(4)]
            found = opportunity(repeated)
            assert found.exists == (max(found.mixed) > 0) == (found.removed.mean > 0)

    def test_mixed_by_hand(self) -> None:
        found = opportunity([[1, 2], [3, 3]])
        assert found.mixed == (0.0, 0.5, 0.0)
        assert found.unequal.mean == 0.5
        assert found.removed.mean == 0.5

    def test_the_interval_covers_the_truth(self) -> None:
        """Two lanes of depth 1 or 11, each with probability 1/2: E[R] = 10 / 2, so at H = 4 the net gain is 1."""
        rng = random.Random(1)
        covered = 0
        for _ in range(400):
            repeated = [[rng.choice([1, 11]), rng.choice([1, 11])] for _ in range(60)]
            net = opportunity(repeated, overhead=4.0).net
            covered += abs(net.mean - 1.0) <= 1.96 * net.error
        assert 0.91 <= covered / 400 <= 0.98

    def test_verdicts(self) -> None:
        rng = random.Random(2)
        repeated = [[rng.choice([1, 11]), rng.choice([1, 11])] for _ in range(200)]
        assert opportunity(repeated, overhead=0.5).verdict == "pays"
        assert opportunity(repeated, overhead=9.0).verdict == "does not pay"
        assert opportunity(repeated, overhead=5.0).verdict == "undecided"
        assert opportunity(repeated[:1]).verdict == "undecided"
        assert opportunity(repeated[:1]).net.error == math.inf
        # An overhead that depends on the window is paid only where something was compacted.
        assert opportunity(repeated, overhead=lambda w: 9.0 * (len(set(w)) > 1)).verdict == "pays"

    def test_bad_windows_are_refused(self) -> None:
        for bad in ([], [[]], [[1, 2], [3]]):
            with pytest.raises(OptionsError, match="windows of one width"):
                opportunity(bad)
        with pytest.raises(OptionsError, match="width must be"):
            windows([1], 0)
        with pytest.raises(OptionsError, match="mode must be one of"):
            slots([1], "auto", 2)
