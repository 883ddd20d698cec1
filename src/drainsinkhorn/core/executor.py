"""The executor: runs every problem of a source, window after window, on a backend.

A window is one pack from opening to empty. The executor handles lane numbers, tickets and floats, never an array; the
calls between it and the pack are those of `core/protocol.py`.
"""

from __future__ import annotations

import gc
import math
import operator
import time
from bisect import bisect_right
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import accumulate
from typing import Any

from drainsinkhorn.core.audit import Limits, Standing, judge, last_states
from drainsinkhorn.core.collector import collector_paused
from drainsinkhorn.core.events import Advanced, Audited, Frozen, Narrowed, Observer, Opened, Repacked, Retired
from drainsinkhorn.core.options import FEW_LANES, Plan
from drainsinkhorn.core.protocol import Backend, Emission, Pack, Progress, Spent
from drainsinkhorn.core.shortage import Exhausted, Shortage, describe_shortage
from drainsinkhorn.core.source import Admission, Admissions, Batch, Source, pick
from drainsinkhorn.model.errors import ContractError, ProblemError
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.instances import are_same, each, strengths, take
from drainsinkhorn.model.outcomes import Blocks, Outcomes, make_rejection
from drainsinkhorn.model.result import Residuals
from drainsinkhorn.model.status import Status


def execute(
    backend: Backend[Any], source: Source, plan: Plan, observe: Observer, seconds: dict[str, float] | None = None
) -> Iterator[Retired]:
    """Run every problem of a source, window after window, and yield lanes as they retire: one event for each audit.

    If memory runs out, the live lanes run again from their own starts, in windows half as wide; the window in which a
    lane runs changes no result. If memory does not suffice for one lane alone, it runs once more after idle memory was
    freed, then on `Backend.frugal`; if memory does not suffice for that either, it is rejected.

    Args:
        backend: The backend.
        source: Where problems come from. All of them may share a pack.
        plan: Mode, width and audits.
        observe: Called with every event.
        seconds: Where to add up the wall time of each call of the backend: prepare, pack, advance, screen, verify,
            emit, repack.
    """
    seconds = {} if seconds is None else seconds
    while opening := _take(source, plan.width, plan):
        plan, shortage = yield from _Window(backend, plan, observe, seconds).run(source, opening)
        if shortage is None:
            continue
        backend.release()
        tickets = shortage.again.tickets
        if shortage.width > 1:
            source.give_back(shortage.again)
            plan = replace(plan, width=shortage.width // 2)
            observe(Narrowed(plan.width, tickets))
        else:
            observe(Narrowed(plan.width, tickets))
            yield from _run_alone(backend, shortage.again[0], plan, observe, seconds)


def _take(source: Source, count: int, plan: Plan, live: Admissions | None = None) -> Admissions:
    """Take up to `count` problems, as many as the plan allows pairs of points besides those of the live lanes."""
    taken = Admissions.of(source.take(count))
    if not taken or plan.pairs == math.inf:
        return taken
    room, count = (plan.pairs, 0) if live is None else (plan.pairs - sum(live.pairs), len(live))
    needed = list(accumulate(taken.pairs))
    place = max(bisect_right(needed, room), FEW_LANES - count)
    if place < len(taken):
        source.give_back(taken[place:])
        return taken[:place]
    return taken


def _run_alone(
    backend: Backend[Any], lane: Admission, plan: Plan, observe: Observer, seconds: dict[str, float]
) -> Iterator[Retired]:
    """Run a lane by itself after memory ran out: first on the same backend, then on `Backend.frugal`.

    The problem is rejected if memory runs out on both.
    """
    # Arrays of the discarded pack may be in reference cycles.
    gc.collect()
    backend.release()
    frugal, candidates, reason = backend.frugal(), {backend.hints(lane.instance).arithmetic: backend}, ""
    # The frugal backend may not support this problem's cost.
    with suppress(ProblemError):
        frugal.signature(lane.instance)
        candidates.setdefault(frugal.hints(lane.instance).arithmetic, frugal)
    for candidate in candidates.values():
        window = _Window(candidate, replace(plan, width=1), observe, seconds, streamed=candidate is not backend)
        _, shortage = yield from window.run(Batch([]), [lane])
        del window
        if shortage is None:
            return
        reason = shortage.reason
        backend.release()
        observe(Narrowed(plan.width, [lane.ticket]))
    outcome = make_rejection(lane.ticket, describe_shortage(lane.instance, list(candidates), reason))
    yield Retired([lane.instance], Outcomes.from_rows([outcome]))


class _Window:
    """One pack from opening to empty.

    Attributes:
        lanes: Problems of all lanes of the pack, live or not, by lane number.
        live: Numbers of the lanes still to be solved, ascending.
        progress: Depths and stale residuals of all lanes of the pack, live or not, as columns.
        stops: Largest residual at which each lane of the pack passes.
        limits: Cycles that each lane of the pack may run.
        holds: The residual at which each lane of the pack is held; -inf: it is not held.
        clock: Cycles that the pack has run.
        on_grid: Whether all live lanes are due for an audit, not only those at their last state.
        spent: Slots and legs that events have reported so far.
        arithmetic: Precision and representation of all lanes of the pack.
        streamed: Whether lanes stream only for lack of memory.
    """

    pack: Pack[Any]
    lanes: Admissions
    live: Sequence[int]
    progress: Progress
    stops: list[float]
    limits: list[int]
    holds: list[float]

    def __init__(
        self,
        backend: Backend[Any],
        plan: Plan,
        observe: Observer,
        seconds: dict[str, float],
        *,
        streamed: bool = False,
    ) -> None:
        self.backend, self.plan, self.observe, self.seconds, self.streamed = backend, plan, observe, seconds, streamed
        self.clock, self.on_grid, self.spent = 0, False, Spent(0, 0)

    def run(
        self, source: Source, opening: Sequence[Admission]
    ) -> Generator[Retired, None, tuple[Plan, Shortage | None]]:
        """Yield lanes as they retire: one event for all that leave at one audit.

        Returns:
            The plan, narrower if a refill ran out of memory; and, if memory ran out for the pack, the lanes that have
            to run again.
        """
        self._number(Admissions.of(opening))
        try:
            self._open()
            while self.live:
                self._advance()
                leaving, residuals, statuses = self._audit()
                if leaving:
                    retired, stray = self._retire(leaving, residuals, statuses)
                    if retired.instances:
                        self.observe(retired)
                        yield retired
                    if stray:
                        raise ContractError(f"backend {self.backend.name!r}: {stray}")
                self._repack(source, leaving)
        except Exhausted as error:
            return self.plan, Shortage(self.lanes.take(self.live), len(self.stops), str(error))
        return self.plan, None

    def _open(self) -> None:
        """Build the pack. Kernels are compiled before, so that the time of no other method contains compilation."""
        instances = self.lanes.instances
        self.arithmetic = self.backend.hints(instances[0]).arithmetic
        with self._verb("prepare"):
            self.backend.prepare(instances)
        with self._verb("pack"), collector_paused():
            self.pack = self.backend.pack(instances)
        self.observe(Opened(self.lanes.tickets, self.plan.width, self.backend.width_for, self._newly_spent()))

    def _advance(self) -> None:
        """Advance to the next audit or the nearest depth limit."""
        live, audit_at = self.live, self.plan.audit.following(self.clock)
        before = pick(self.progress.depths, live)
        remaining = list(map(operator.sub, pick(self.limits, live), before))
        span = min(audit_at - self.clock, min(filter((0).__lt__, remaining)))
        span = -(-span // self.backend.stride) * self.backend.stride
        with self._verb("advance"):
            if min(remaining) <= 0:
                # Lanes of this mode leave together, and some are at their limit.
                self.pack.freeze([lane for lane, cycles in zip(live, remaining, strict=True) if cycles <= 0])
            self.progress = self.pack.advance(span, self.holds, lockstep=self.plan.mode.lockstep)
        cycles = max(map(operator.sub, pick(self.progress.depths, live), before))
        if cycles < 1:
            raise ContractError(f"backend {self.backend.name!r}: advance({span}) moved no live lane")
        self.clock += cycles if self.plan.mode.lockstep else span
        self.on_grid = self.plan.holds or self.clock >= audit_at
        self.observe(Advanced(cycles, self.pack.width, len(live), self._newly_spent(), self._standings))

    def _audit(self) -> tuple[list[int], Residuals, list[Status]]:
        """Judge the lanes that are due; return those that leave, with residuals and statuses."""
        plan, live = self.plan, self.live
        final = last_states(live, self.progress.depths, self.limits, self.lanes.tickets, plan.expired)
        limits = Limits(self.progress.depths, self.progress.stale, self.stops, self.holds, final)
        due, quorum = live if self.on_grid else list(final), len(live) if plan.mode.together else 0
        leaving, residuals, statuses, counts = judge(
            limits, due, plan.audit, self._screen, self._verify, exact=plan.exact, quorum=quorum
        )
        self.observe(Audited(counts, self._newly_spent()))
        return leaving, residuals, statuses

    def _retire(self, leaving: Sequence[int], residuals: Residuals, statuses: Sequence[Status]) -> tuple[Retired, str]:
        """Emit the lanes that leave, and check that each emitted state belongs to the problem of its lane.

        Returns:
            The lanes that left, and a message that names the first lane emitted with another lane's state (empty if
            there is none). Such a lane is not among those that left.
        """
        with self._verb("emit"), collector_paused():
            emission = self.pack.emit(leaving)
        left, count = self.lanes.take(leaving), len(leaving)
        sound, stray = self._check_owners(emission, leaving, left.instances)
        depths, earlier = pick(self.progress.depths, leaving), left.depths_before
        outcomes = Outcomes(
            f=Blocks(emission.f),
            g=Blocks(emission.g),
            row=list(residuals.row),
            col=list(residuals.col),
            band=list(residuals.band),
            statuses=list(statuses),
            depths=list(map(operator.add, depths, earlier)),
            widened=list(emission.widened),
            arithmetic=[self.arithmetic] * count,
            details=[""] * count,
            streamed=[self.streamed] * count,
            rescued=[False] * count,
            eps=strengths(left.instances),
            tickets=list(left.tickets),
        )
        if count == len(self.live):
            self.live = ()
        else:
            gone = set(leaving)
            self.live = [lane for lane in self.live if lane not in gone]
            for lane in leaving:
                self.holds[lane] = -math.inf
        if stray:
            outcomes = Outcomes.from_rows(outcomes[place] for place in sound)
        return Retired(take(left.instances, sound), outcomes), stray

    def _check_owners(
        self, emission: Emission, leaving: Sequence[int], owners: Sequence[Instance[Any]]
    ) -> tuple[Sequence[int], str]:
        """Return the places of lanes whose own state was emitted, and a message if another state was."""
        for column in emission:
            if len(column) != len(leaving):
                return [], f"emit was called for {len(leaving)} lanes and returned {len(column)}"
        owned = are_same(emission.instances, owners)
        if all(owned):
            return range(len(leaving)), ""
        place = owned.index(False)
        lane, stranger = leaving[place], emission.instances[place]
        tickets = [ticket for ticket, instance in self.lanes.take(self.live) if instance is stranger]
        whose = f"problem {tickets[0]}" if tickets else "a lane that has left, or was never there"
        stray = f"lane {lane} holds problem {self.lanes.tickets[lane]}, but emit returned the state of {whose}"
        return [place for place, is_own in enumerate(owned) if is_own], stray

    def _repack(self, source: Source, left: Collection[int]) -> None:
        """Refill vacancies, or compact the pack, or freeze the lanes that have left."""
        mode, live, vacancies = self.plan.mode, len(self.live), self.plan.width - len(self.live)
        due = mode.refill is not None and vacancies >= mode.refill and self.on_grid
        new = _take(source, vacancies, self.plan, self.lanes.take(self.live)) if due else None
        if new:
            try:
                with self._verb("repack"):
                    self.pack.repack(list(self.live), new.instances)
            except Exhausted:
                self.backend.release()
                source.give_back(new)
                self.plan = replace(self.plan, width=max(1, live, (live + len(new)) // 2))
                self.observe(Narrowed(self.plan.width))
            else:
                return self._renumber(new)
        if live and left and self.pack.width - self.backend.width_for(live) >= mode.min_shrink:
            with self._verb("repack"):
                self.pack.repack(list(self.live))
            self._renumber()
        elif live and left and mode.freeze:
            with self._verb():
                self.pack.freeze(list(left))
            self.observe(Frozen(len(left)))
        return None

    def _renumber(self, new: Admissions | None = None) -> None:
        """Renumber the lanes after a repack that kept the live lanes and admitted new ones."""
        kept_lanes, admitted = self.live, () if new is None else new.tickets
        lanes = self.lanes.take(kept_lanes)
        self._number(lanes if new is None else lanes.followed_by(new), kept_lanes)
        self.observe(Repacked(len(kept_lanes), admitted, self.pack.width, self._newly_spent()))

    def _number(self, lanes: Admissions, kept: Sequence[int] = ()) -> None:
        """Number the lanes of a pack. The first ones had the numbers `kept` before; the others are new."""
        self.lanes, self.live, fresh = lanes, range(len(lanes)), len(lanes) - len(kept)
        depths, stale, holds = list[int](), list[float](), list[float]()
        if kept:
            before = self.progress
            depths, stale = [before.depths[lane] for lane in kept], [before.stale[lane] for lane in kept]
            holds = [self.holds[lane] for lane in kept]
        self.progress = Progress([*depths, *[0] * fresh], [*stale, *[math.inf] * fresh])
        self.stops = each(lanes.instances, self.plan.stop)
        self.limits = each(lanes.instances, lambda instance: instance.cycles_left(self.plan.max_depth))
        self.holds = [*holds, *(self.stops[len(kept) :] if self.plan.holds else [-math.inf] * fresh)]

    def _screen(self, lanes: Sequence[int]) -> Sequence[float]:
        with self._verb("screen"):
            return self.pack.screen(lanes)

    def _verify(self, lanes: Sequence[int], exact: bool) -> Residuals:
        with self._verb("verify"):
            return self.pack.verify(lanes, exact=exact)

    @contextmanager
    def _verb(self, name: str = "") -> Generator[None]:
        """Context of one call of the backend: adds its wall time to `seconds`; a MemoryError becomes Exhausted."""
        start = time.perf_counter()
        try:
            yield
        except MemoryError as error:
            raise Exhausted(error) from None
        finally:
            if name:
                self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def _newly_spent(self) -> Spent:
        before, self.spent = self.spent, self.pack.spent
        return Spent(self.spent.slots - before.slots, self.spent.legs - before.legs)

    def _standings(self) -> Iterator[Standing]:
        earlier = self.lanes.depths_before
        for lane in self.live:
            depth = earlier[lane] + self.progress.depths[lane]
            yield Standing(self.lanes.tickets[lane], depth, self.progress.stale[lane], self.stops[lane])
