"""The executor against scripts: slot identities, statuses, order, memory, no live-lock. No arrays anywhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drainsinkhorn.core.audit import Audit, Geometric, Standing
from drainsinkhorn.core.events import Advanced, Event, Narrowed, Retired, ignore
from drainsinkhorn.core.executor import execute
from drainsinkhorn.core.ledger import Ledger
from drainsinkhorn.core.options import MODES, Mode, Options
from drainsinkhorn.core.source import Admission, Batch
from drainsinkhorn.model.errors import ContractError
from drainsinkhorn.model.problem import Problem
from drainsinkhorn.model.status import Status
from drainsinkhorn.testing.scripted import Script, ScriptedBackend, ScriptedPack, scripted


class Outcome:
    """A run with everything it told."""

    def __init__(self, scripts: Sequence[Script | int], *, backend: ScriptedBackend | None = None, **settings: object):
        self.ledger, self.events = Ledger(), list[Event]()
        plan = Options(**{"mode": "compact", **settings}).plan(None)  # type: ignore[arg-type]
        waiting = Batch([Admission(ticket, scripted(script)) for ticket, script in enumerate(scripts)])
        events = execute(backend or ScriptedBackend(), waiting, plan, self.observe)
        self.retired = [outcome for event in events for outcome in event.outcomes]
        self.depth = {retired.ticket: retired.depth for retired in self.retired}
        self.status = {retired.ticket: retired.status for retired in self.retired}

    def observe(self, event: Event) -> None:
        self.events.append(event)
        self.ledger(event)


def expected(script: Script, limit: int, stride: int = 1) -> tuple[int, Status]:
    """First passage of a script, worked out by hand: at least one cycle runs, then screen and verify must agree."""

    def rounded(depth: int) -> int:
        return math.ceil(max(1, depth) / stride) * stride

    passes, dies, limit = rounded(script.depth + script.rejects), script.nan_at, rounded(limit)
    if not math.isinf(dies) and rounded(int(dies)) <= min(passes, limit):
        return rounded(int(dies)), Status.NONFINITE
    return (passes, Status.CONVERGED) if passes <= limit else (limit, Status.DEPTH_LIMIT)


def windows(values: Sequence[int], width: int) -> list[Sequence[int]]:
    return [values[i : i + width] for i in range(0, len(values), width)]


scripts = st.builds(
    Script,
    depth=st.integers(0, 60),
    rejects=st.sampled_from([0, 0, 0, 1, 2, 5]),
    nan_at=st.one_of(st.just(math.inf), st.just(math.inf), st.just(math.inf), st.integers(0, 40)),
)
profiles = st.lists(scripts, min_size=1, max_size=40)
widths = st.integers(1, 12)
limits = st.sampled_from([1, 7, 30, 1000])
audits = st.sampled_from([1, 2, 3, 8, 100, Geometric(1, 1.01), Geometric(2, 3.0)])


@settings(max_examples=1500)
@given(profiles, widths, limits, audits)
def test_compact_spends_the_sum_of_depths(
    profile: list[Script], width: int, limit: int, every: int | Geometric
) -> None:
    run = Outcome(profile, width=width, max_depth=limit, audit=Audit(every=every))
    truth = dict(enumerate(expected(script, limit) for script in profile))
    assert {t: (run.depth[t], run.status[t]) for t in run.depth} == truth
    depths = [depth for depth, _ in truth.values()]
    assert run.ledger.slots == sum(depths)
    static = sum(len(window) * max(window) for window in windows(depths, width))
    assert run.ledger.static_slots == static
    assert run.ledger.removed_slots == static - sum(depths)


@settings(max_examples=1000)
@given(profiles, widths, limits, audits)
def test_mask_spends_width_times_the_deepest(
    profile: list[Script], width: int, limit: int, every: int | Geometric
) -> None:
    run = Outcome(profile, mode="mask", width=width, max_depth=limit, audit=Audit(every=every))
    truth = dict(enumerate(expected(script, limit) for script in profile))
    assert {t: (run.depth[t], run.status[t]) for t in run.depth} == truth
    depths = [depth for depth, _ in truth.values()]
    assert run.ledger.slots == sum(len(window) * max(window) for window in windows(depths, width))
    assert run.ledger.removed_slots == 0


@settings(max_examples=1000)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=40), widths, limits, st.sampled_from([1, 2, 3, 8, 100]))
def test_static_spends_width_times_the_boundary(profile: list[int], width: int, limit: int, every: int) -> None:
    run = Outcome(profile, mode="static", width=width, max_depth=limit, audit=Audit(every=every))
    boundaries = []
    for window in windows(profile, width):
        together = math.ceil(max(1, *window) / every) * every
        boundaries += [min(together, limit)] * len(window)
    assert [run.depth[t] for t in range(len(profile))] == boundaries
    assert run.ledger.slots == sum(boundaries)
    assert run.ledger.removed_slots == 0
    for ticket, depth in enumerate(profile):
        converged = max(1, depth) <= boundaries[ticket]
        assert run.status[ticket] is (Status.CONVERGED if converged else Status.DEPTH_LIMIT)


@settings(max_examples=1000)
@given(profiles, widths, limits, st.sampled_from([1, 2, 3, 8, 100]), st.integers(1, 4))
def test_stream_refills_and_spends_the_sum_of_depths(
    profile: list[Script], width: int, limit: int, every: int, refill: int
) -> None:
    mode = replace(MODES["stream"], refill=refill)
    run = Outcome(profile, mode=mode, width=width, max_depth=limit, audit=Audit(every=every))
    truth = dict(enumerate(expected(script, limit) for script in profile))
    assert {t: (run.depth[t], run.status[t]) for t in run.depth} == truth
    assert run.ledger.slots == sum(depth for depth, _ in truth.values())
    assert max(width for width, _ in run.ledger.widths) <= width


@settings(max_examples=500)
@given(profiles, limits, st.sampled_from([1, 3, 8]))
def test_width_one_spends_the_sum_of_depths(profile: list[Script], limit: int, every: int) -> None:
    run = Outcome(profile, mode="width-one", max_depth=limit, audit=Audit(every=every))
    assert run.ledger.slots == run.ledger.static_slots == sum(expected(script, limit)[0] for script in profile)
    assert list(run.depth) == list(range(len(profile)))


@settings(max_examples=500)
@given(profiles, widths, limits)
def test_a_width_ladder_pays_for_its_rungs(profile: list[Script], width: int, limit: int) -> None:
    run = Outcome(profile, width=width, max_depth=limit, backend=ScriptedBackend(ladder=True), audit=Audit(every=1))
    depths = [expected(script, limit)[0] for script in profile]
    assert [run.depth[t] for t in range(len(profile))] == depths
    rungs = 0
    for window in windows(depths, width):
        for cycle in range(1, max(window) + 1):
            survivors = sum(depth >= cycle for depth in window)
            rungs += 1 << (survivors - 1).bit_length()
    assert run.ledger.slots == rungs
    static = sum((1 << (len(window) - 1).bit_length()) * max(window) for window in windows(depths, width))
    assert run.ledger.static_slots == static
    assert run.ledger.removed_slots == static - rungs


@settings(max_examples=300)
@given(profiles, widths, limits, st.sampled_from([1, 3, 8]), st.sampled_from(["mask", "static"]))
def test_lockstep_on_a_ladder_removes_nothing(
    profile: list[Script], width: int, limit: int, every: int, mode: str
) -> None:
    backend = ScriptedBackend(ladder=True)
    run = Outcome(profile, mode=mode, width=width, max_depth=limit, backend=backend, audit=Audit(every=every))
    depths = [run.depth[t] for t in range(len(profile))]
    assert run.ledger.slots == sum((1 << (len(w) - 1).bit_length()) * max(w) for w in windows(depths, width))
    assert run.ledger.removed_slots == 0


def test_a_dead_lane_does_not_slow_a_static_batch() -> None:
    healthy, beside = (Outcome(p, mode="static", width=3) for p in ([40, 30, 20], [40, Script(30, nan_at=2), 20]))
    calls = [sum(isinstance(event, Advanced) for event in run.events) for run in (healthy, beside)]
    assert calls == [5, 5]
    assert beside.depth == {0: 40, 1: 40, 2: 40}
    assert beside.status[1] is Status.NONFINITE


@pytest.mark.parametrize("screen", ["free", "row"])
@pytest.mark.parametrize("first_passage", [True, False])
@pytest.mark.parametrize(
    ("profile", "limit", "verified"),
    [
        ([3, 40, 12, 80], 1000, 4),
        ([3, Script(40, nan_at=2), 12, 80], 1000, 4),
        # Three audits find every screen passed: two of them reject the deepest lane.
        ([3, 40, 12, Script(80, rejects=8)], 1000, 12),
        # At the depth limit lanes are verified although one screen has not passed.
        ([3, 40, 12, 80], 60, 4),
    ],
)
def test_static_verifies_only_where_every_screen_passes(
    profile: list[Script | int], limit: int, verified: int, first_passage: bool, screen: str
) -> None:
    audit = Audit(every=4, first_passage=first_passage, screen=screen)  # type: ignore[arg-type]
    run = Outcome(profile, mode="static", width=4, max_depth=limit, audit=audit)
    assert run.ledger.verified == verified
    assert len(run.retired) == 4


def test_an_expired_lane_of_a_static_batch_is_verified_when_all_leave() -> None:
    plan = replace(Options(mode="static", width=3, audit=Audit(every=4)).plan(None), expired={0})
    ledger, waiting = Ledger(), Batch([Admission(k, scripted(depth)) for k, depth in enumerate((90, 20, 40))])
    events = execute(ScriptedBackend(), waiting, plan, ledger)
    retired = {each.ticket: each for event in events for each in event.outcomes}
    assert {ticket: each.depth for ticket, each in retired.items()} == {0: 40, 1: 40, 2: 40}
    assert (retired[0].status, retired[1].status) == (Status.EXPIRED, Status.CONVERGED)
    assert ledger.verified == 3


@settings(max_examples=300)
@given(profiles, widths, limits, st.sampled_from([1, 4, 7]))
def test_off_first_passage_depths_do_not_depend_on_neighbours(
    profile: list[Script], width: int, limit: int, every: int
) -> None:
    audit = Audit(every=every, first_passage=False)
    together = Outcome(profile, width=width, max_depth=limit, audit=audit)
    for ticket, script in enumerate(profile):
        alone = Outcome([script], max_depth=limit, audit=audit)
        assert (together.depth[ticket], together.status[ticket]) == (alone.depth[0], alone.status[0])


@settings(max_examples=500)
@given(profiles, widths, limits, st.integers(1, 7), st.sampled_from([1, 3, 8]))
def test_strides_round_depths_up(profile: list[Script], width: int, limit: int, stride: int, every: int) -> None:
    run = Outcome(
        profile, width=width, max_depth=limit, backend=ScriptedBackend(stride=stride), audit=Audit(every=every)
    )
    assert all(depth % stride == 0 for depth in run.depth.values())
    clean = [s for s in profile if not s.rejects]
    assert all(run.depth[t] == expected(s, limit, stride)[0] for t, s in enumerate(profile) if s in clean)
    assert run.ledger.slots == sum(run.depth.values())


@settings(max_examples=500)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=30), widths, st.sampled_from([1, 4, 7]), limits)
def test_off_first_passage_lanes_leave_on_the_grid(profile: list[int], width: int, every: int, limit: int) -> None:
    audit = Audit(every=every, first_passage=False)
    run = Outcome(profile, width=width, max_depth=limit, audit=audit)
    for ticket, depth in enumerate(profile):
        assert run.depth[ticket] == min(math.ceil(max(1, depth) / every) * every, limit)
    assert run.ledger.slots == sum(run.depth.values())


@pytest.mark.parametrize("screen", ["free", "row", "none"])
@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("shadow", [True, False])
def test_audit_controls_change_cost_and_nothing_else(screen: str, batched: bool, shadow: bool) -> None:
    profile = [Script(3), Script(17, rejects=2), Script(40), Script(9, nan_at=5), Script(1)]
    audit = Audit(every=1, screen=screen, batched=batched, shadow=shadow)  # type: ignore[arg-type]
    run = Outcome(profile, width=5, audit=audit)
    plain = Outcome(profile, width=5, audit=Audit(every=1))
    assert run.depth == plain.depth
    assert run.status == plain.status
    assert run.ledger.slots == plain.ledger.slots
    looks = sum(event.live for event in run.events if isinstance(event, Advanced))
    # 5 first legs, two per slot, two per verify of 5 lanes and 2 rejections.
    legs = 5 + 2 * run.ledger.slots + 2 * 7
    extra = {"free": 0, "row": looks, "none": 2 * (looks - 7)}[screen]
    shadowed = 2 * (looks - 7) if shadow and screen != "none" else 0
    assert run.ledger.legs == legs + extra + shadowed
    assert run.ledger.shadow_ready == 0


def test_shadow_finds_lanes_that_the_screen_missed() -> None:
    class Liar(ScriptedPack):
        """Reports a residual that is too large for three cycles."""

        def advance(self, cycles: int, stops: Sequence[float], *, lockstep: bool = False):
            said = super().advance(cycles, [-math.inf] * len(stops), lockstep=lockstep)
            stale = [2.0 if depth < 8 else stale for depth, stale in zip(*said, strict=True)]
            return said._replace(stale=stale)

    class Lying(ScriptedBackend):
        def pack(self, problems):
            return Liar(self, problems)

    run = Outcome([5], backend=Lying(), audit=Audit(every=1, shadow=True))
    assert run.depth == {0: 8}
    assert run.ledger.shadow_ready == 3


@pytest.mark.parametrize(("above", "missed"), [(1.05, 0), (1.2, 3)])
def test_on_the_grid_a_screen_that_rounds_up_a_little_misses_nobody(above: float, missed: int) -> None:
    class High(ScriptedPack):
        """Screens that lie above the stop where verify passes, until cycle 8."""

        def screen(self, lanes: Sequence[int]):
            return [
                above if self._lanes[lane].depth < 8 and s <= 1 else s
                for lane, s in zip(lanes, super().screen(lanes), strict=True)
            ]

    class Rounding(ScriptedBackend):
        def pack(self, problems):
            return High(self, problems)

    audit = Audit(every=1, screen="row", first_passage=False, shadow=True)
    run = Outcome([5], backend=Rounding(), audit=audit)
    assert run.ledger.shadow_ready == missed
    assert run.depth == {0: 5 + missed}


def test_margin_tightens_the_stop() -> None:
    assert Outcome([4], audit=Audit(margin=0.6), max_depth=9).status == {0: Status.CONVERGED}
    assert Outcome([4], audit=Audit(margin=0.4), max_depth=9).status == {0: Status.DEPTH_LIMIT}


def test_min_shrink_waits_for_enough_vacancies() -> None:
    run = Outcome([1, 2, 3, 10], width=4, mode=Mode(name="lazy", min_shrink=2), audit=Audit(every=1))
    # One frozen lane rides along in cycle 2; at 3 the pack narrows from 4 to 2, and the next lane again waits.
    assert run.ledger.widths == [(4, 2), (2, 8)]
    assert run.ledger.slots == 4 * 2 + 2 * 8
    assert run.ledger.repacks == 1


@settings(max_examples=300)
@given(profiles, widths, st.integers(1, 12), st.sampled_from(["compact", "stream"]))
def test_little_memory_narrows_the_width_and_loses_nothing(
    profile: list[Script], width: int, room: int, mode: str
) -> None:
    run = Outcome(profile, mode=mode, width=width, max_depth=100, backend=ScriptedBackend(room=room))
    assert run.depth == {t: expected(script, 100)[0] for t, script in enumerate(profile)} | {}
    assert max(width for width, _ in run.ledger.widths) <= min(room, width)
    assert (run.ledger.narrowed > 0) >= (min(width, len(profile)) > room)
    assert run.ledger.slots == sum(run.depth.values())


def test_a_problem_that_fits_nowhere_is_invalid_and_the_rest_go_on() -> None:
    run = Outcome([1, 2, 3], width=4, backend=ScriptedBackend(room=0))
    assert set(run.status.values()) == {Status.INVALID}
    assert "memory" in run.retired[0].detail
    assert any(isinstance(event, Narrowed) for event in run.events)


def test_a_pack_that_does_not_move_is_a_broken_contract() -> None:
    class Stuck(ScriptedPack):
        def advance(self, cycles: int, stops: Sequence[float], *, lockstep: bool = False):
            return super().advance(0, stops)

    class Sticky(ScriptedBackend):
        def pack(self, problems):
            return Stuck(self, problems)

    with pytest.raises(ContractError, match="moved no live lane"):
        Outcome([3], backend=Sticky())


class Astray(ScriptedPack):
    """Emits the state of lane 0 wherever lane 1 leaves."""

    def emit(self, lanes: Sequence[int]):
        return super().emit([0 if lane == 1 else lane for lane in lanes])


class Swapping(ScriptedPack):
    """Keeps lanes in another order than it was told."""

    def repack(self, keep: Sequence[int], admit: Sequence[Problem[Any]] = ()) -> None:
        super().repack(list(reversed(keep)), admit)


class Doubling(ScriptedPack):
    """Keeps the first lane in place of the last."""

    def repack(self, keep: Sequence[int], admit: Sequence[Problem[Any]] = ()) -> None:
        super().repack([*keep[:-1], *keep[:1]], admit)


class Short(ScriptedPack):
    """Emits one lane too few."""

    def emit(self, lanes: Sequence[int]):
        return super().emit(lanes[1:])


@pytest.mark.parametrize(
    ("pack", "mode", "depths", "sound", "message"),
    [
        (Astray, "compact", [5, 5, 5], [0, 2], "lane 1 holds problem 1, but emit returned the state of problem 0"),
        (Astray, "mask", [2, 9, 9], [0, 2], "lane 1 holds problem 1, but emit returned the state of a lane that has"),
        (Swapping, "compact", [2, 9, 9], [0], "lane 0 holds problem 1, but emit returned the state of problem 2"),
        (Doubling, "compact", [2, 9, 9], [0, 1], "lane 1 holds problem 2, but emit returned the state of problem 1"),
        (Short, "compact", [5, 5, 5], [], "emit was called for 3 lanes and returned 2"),
    ],
)
def test_a_lane_leaves_only_with_its_own_state(
    pack: type[ScriptedPack], mode: str, depths: list[int], sound: list[int], message: str
) -> None:
    class Straying(ScriptedBackend):
        def pack(self, problems):
            return pack(self, problems)

    plan = Options(mode=mode, width=3, audit=Audit(every=1)).plan(None)
    source = Batch([Admission(ticket, scripted(depth)) for ticket, depth in enumerate(depths)])
    retired = list[int]()

    def run() -> None:
        for event in execute(Straying(), source, plan, ignore):
            retired.extend(event.outcomes.tickets)

    with pytest.raises(ContractError, match=message):
        run()
    assert retired == sound


def test_results_are_yielded_before_later_lanes_run() -> None:
    ledger = Ledger()
    source = Batch([Admission(t, scripted(d)) for t, d in enumerate([50, 2])])
    run = execute(ScriptedBackend(), source, Options(mode="compact", audit=Audit(every=1)).plan(None), ledger)
    first = next(run)
    assert isinstance(first, Retired)
    assert (first.outcomes.tickets, ledger.slots) == ([1], 4)


def test_lanes_that_leave_together_are_one_event() -> None:
    backend, plan = ScriptedBackend(spare=4, room=0), Options(mode="compact", audit=Audit(every=4)).plan(None)
    for ran in (ScriptedBackend(), backend):
        source = Batch([Admission(t, scripted(d)) for t, d in enumerate([3, 9, 3, 4])])
        events = list[Event]()
        yielded = list(execute(ran, source, plan, events.append))
        assert [event for event in events if isinstance(event, Retired)] == yielded
        together = ran is not backend
        assert [event.outcomes.tickets for event in yielded] == ([[0, 2, 3], [1]] if together else [[0], [1], [2], [3]])
        for event in yielded:
            assert [instance.x.depth for instance in event.instances] == event.outcomes.depths
        outcomes = [outcome for event in yielded for outcome in event.outcomes]
        assert {each.arithmetic for each in outcomes} == {"integers" if together else "integers, streaming"}
        assert {each.streamed for each in outcomes} == {not together}


def test_a_thousand_problems_at_width_sixteen_refill() -> None:
    profile = [1 + (7 * i) % 23 for i in range(1000)]
    run = Outcome(profile, mode="stream", width=16)
    assert run.ledger.slots == sum(profile)
    assert run.ledger.refills == 1000 - 16
    assert len([event for event in run.events if type(event).__name__ == "Opened"]) == 1


def test_lanes_say_where_they_stand_to_those_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Standing] = []

    def standing(*values: float) -> Standing:
        made.append(Standing(*values))  # type: ignore[arg-type]
        return made[-1]

    def ask(event: Event) -> None:
        if isinstance(event, Advanced):
            assert len(list(event.standings())) == event.live

    monkeypatch.setattr("drainsinkhorn.core.executor.Standing", standing)
    for observe in (ignore, ask):
        source = Batch([Admission(t, scripted(d)) for t, d in enumerate([3, 9])])
        list(execute(ScriptedBackend(), source, Options(mode="compact", audit=Audit(every=4)).plan(None), observe))
        asked = observe is ask
        assert made == asked * [
            Standing(0, 3, 0.5, 1.0),
            Standing(1, 4, 2.0, 1.0),
            Standing(1, 8, 2.0, 1.0),
            Standing(1, 9, 0.5, 1.0),
        ]
