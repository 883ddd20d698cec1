"""The one loop. It never sees an array: it speaks in lane numbers, tickets and floats."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from drainsinkhorn.core.audit import Standing, judge
from drainsinkhorn.core.errors import ContractError, ProblemError
from drainsinkhorn.core.events import Advanced, Audited, Frozen, Narrowed, Observer, Opened, Repacked, Retired, refused
from drainsinkhorn.core.options import Plan
from drainsinkhorn.core.problem import Problem
from drainsinkhorn.core.protocol import FRESH, Backend, Pack, Progress, Spent
from drainsinkhorn.core.source import Admission, Batch, Source

T = TypeVar("T")


class _Shortage(NamedTuple):
    """Memory ran out: lanes that have to run again, how many lanes the pack had, and what the backend said."""

    again: Sequence[Admission]
    width: int
    reason: str


class _Exhausted(Exception):
    """A verb of a pack ran out of memory; the pack cannot be used any more."""


def execute(backend: Backend[Any], source: Source, plan: Plan, observe: Observer) -> Iterator[Retired]:
    """Run every problem of a source, window after window, and yield each lane as it retires.

    When memory runs out, lanes that were live run again from their own starts, in windows half as wide: which window a
    lane runs in changes no result. A lane for which memory does not suffice alone is run once more after idle memory
    was freed, then as `Backend.frugal` runs it, and is refused if there is no memory for that either.
    """
    while opening := source.take(plan.width):
        plan, shortage = yield from _run_window(backend, source, plan, observe, opening)
        if shortage is None:
            continue
        backend.release()
        tickets = [lane.ticket for lane in shortage.again]
        if shortage.width > 1:
            source.give_back(shortage.again)
            plan = replace(plan, width=shortage.width // 2)
            observe(Narrowed(plan.width, tickets))
        else:
            observe(Narrowed(plan.width, tickets))
            yield from _run_alone(backend, shortage.again[0], plan, observe)


def _run_alone(backend: Backend[Any], lane: Admission, plan: Plan, observe: Observer) -> Iterator[Retired]:
    """Run a lane for which there was no memory once more, then with the least memory it can do with, or refuse it."""
    # What is left of the pack that was given up may wait for the garbage collector.
    gc.collect()
    backend.release()
    frugal, ways, reason = backend.frugal(), {backend.describe(lane.problem): backend}, ""
    # It may not know this problem's cost.
    with suppress(ProblemError):
        frugal.signature(lane.problem)
        ways.setdefault(frugal.describe(lane.problem), frugal)
    for way in ways.values():
        _, shortage = yield from _run_window(
            way, Batch([]), replace(plan, width=1), observe, [lane], streamed=way is not backend
        )
        if shortage is None:
            return
        reason = shortage.reason
        backend.release()
        observe(Narrowed(plan.width, [lane.ticket]))
    tried = " or ".join(f"as {name!r}" for name in ways)
    yield refused(*lane, f"there is not enough memory for this problem alone {tried} ({reason})")


def _run_window(
    backend: Backend[Any],
    source: Source,
    plan: Plan,
    observe: Observer,
    opening: Sequence[Admission],
    *,
    streamed: bool = False,
) -> Generator[Retired, None, tuple[Plan, _Shortage | None]]:
    """Run a window until it is empty or memory runs out. When this returns, nothing refers to its pack any more."""
    try:
        pack = backend.pack([admission.problem for admission in opening])
    except MemoryError as error:
        return plan, _Shortage(opening, len(opening), str(error))
    window = _Window(backend, pack, plan, observe, opening, streamed=streamed)
    shortage = yield from window.run(source)
    return window.plan, shortage


class _Window:
    """One pack from opening to empty. `live` are the lanes still to be solved, by their number in the pack."""

    def __init__(
        self,
        backend: Backend[Any],
        pack: Pack[Any],
        plan: Plan,
        observe: Observer,
        opening: Sequence[Admission],
        *,
        streamed: bool,
    ) -> None:
        self.backend, self.pack, self.plan, self.observe, self.streamed = backend, pack, plan, observe, streamed
        self.clock, self.on_grid, self.spent = 0, False, Spent(0, 0)
        self._seat(opening, [], [])
        observe(Opened([lane.ticket for lane in opening], plan.width, backend.width_for, self._newly_spent()))

    def run(self, source: Source) -> Generator[Retired, None, _Shortage | None]:
        while self.live:
            try:
                self._advance()
                leaving, stray = self._audit()
            except _Exhausted as error:
                return self._shortage(error)
            for retired in leaving.values():
                self.observe(retired)
            yield from leaving.values()
            if stray:
                raise ContractError(f"backend {self.backend.name!r}: {stray}")
            try:
                self._repack(source, leaving)
            except _Exhausted as error:
                return self._shortage(error)
        return None

    def _shortage(self, error: _Exhausted) -> _Shortage:
        return _Shortage(list(self.live.values()), len(self.stops), str(error))

    def _call(self, verb: Callable[..., T], *args: Any, **keywords: Any) -> T:
        """Call a verb of the pack, or a function that calls its verbs; a MemoryError there means the pack is lost."""
        try:
            return verb(*args, **keywords)
        except MemoryError as error:
            raise _Exhausted(error) from None

    def _seat(self, lanes: Sequence[Admission], progress: Sequence[Progress], holds: Sequence[float]) -> None:
        self.live, self.progress = dict(enumerate(lanes)), [*progress, *[FRESH] * (len(lanes) - len(progress))]
        self.stops = [self.plan.stop(lane.problem) for lane in lanes]
        self.holds = [*holds, *(stop if self.plan.holds else -math.inf for stop in self.stops[len(holds) :])]

    def _standings(self) -> Iterator[Standing]:
        for number, (ticket, _) in self.live.items():
            yield Standing(ticket, *self.progress[number], self.stops[number])

    def _newly_spent(self) -> Spent:
        before, self.spent = self.spent, self.pack.spent
        return Spent(self.spent.slots - before.slots, self.spent.legs - before.legs)

    def _advance(self) -> None:
        """Advance to the next audit or the nearest depth limit."""
        before, audit_at = self.progress, self.plan.audit.following(self.clock)
        span = min(audit_at - self.clock, self.plan.max_depth - max(before[number].depth for number in self.live))
        span = -(-span // self.backend.stride) * self.backend.stride
        self.progress = self._call(self.pack.advance, span, self.holds, lockstep=self.plan.mode.lockstep)
        cycles = max(self.progress[number].depth - before[number].depth for number in self.live)
        if cycles < 1:
            raise ContractError(f"backend {self.backend.name!r}: advance({span}) moved no live lane")
        self.clock += cycles if self.plan.mode.lockstep else span
        self.on_grid = self.plan.holds or self.clock >= audit_at
        self.observe(Advanced(cycles, self.pack.width, len(self.live), self._newly_spent(), self._standings))

    def _audit(self) -> tuple[dict[int, Retired], str]:
        """Judge the lanes that are due and emit those that leave.

        Returns:
            The lanes that left, by lane number, and which lane was emitted with a state that is not its own ("": none).
            Such a lane is not among those that left.
        """
        retired, plan, progress = dict[int, Retired](), self.plan, self.progress
        final = [k for k, (t, _) in self.live.items() if progress[k].depth >= plan.max_depth or t in plan.expired]
        due = list(self.live) if self.on_grid else final
        quorum = len(self.live) if plan.mode.together else 0
        decided, counts = self._call(
            judge, self.pack, progress, due, final, self.stops, self.holds, plan.audit, plan.exact, quorum
        )
        self.observe(Audited(counts, self._newly_spent()))
        emitted, before, stray = self._call(self.pack.emit, list(decided)), list(self.live.values()), ""
        if len(emitted) != len(decided):
            return retired, f"emit was asked for {len(decided)} lanes and returned {len(emitted)}"
        for number, (potentials, widened, owner) in zip(decided, emitted, strict=True):
            (ticket, problem), verdict, depth = self.live.pop(number), decided[number], progress[number].depth
            self.holds[number] = -math.inf
            if owner is problem:
                retired[number] = Retired(ticket, problem, potentials, *verdict, depth, widened, streamed=self.streamed)
            else:
                stray = stray or f"lane {number} holds problem {ticket}, but emit returned {_whose(owner, before)}"
        return retired, stray

    def _repack(self, source: Source, left: Collection[int]) -> None:
        """Fill or close the vacancies, or freeze what stays in the kernel."""
        mode, live, vacancies = self.plan.mode, len(self.live), self.plan.width - len(self.live)
        due = mode.refill is not None and vacancies >= mode.refill and self.on_grid
        new = source.take(vacancies) if due else ()
        if new:
            try:
                self.pack.repack(list(self.live), [admission.problem for admission in new])
            except MemoryError:
                self.backend.release()
                source.give_back(new)
                self.plan = replace(self.plan, width=max(1, live, (live + len(new)) // 2))
                self.observe(Narrowed(self.plan.width))
            else:
                return self._reseat(new)
        if live and left and self.pack.width - self.backend.width_for(live) >= mode.min_shrink:
            self._call(self.pack.repack, list(self.live))
            self._reseat(())
        elif live and left and mode.freeze:
            self._call(self.pack.freeze, list(left))
            self.observe(Frozen(len(left)))
        return None

    def _reseat(self, new: Sequence[Admission]) -> None:
        """Note that the pack has kept its live lanes and admitted these."""
        keep, lanes = list(self.live), [*self.live.values(), *new]
        self._seat(lanes, [self.progress[number] for number in keep], [self.holds[number] for number in keep])
        self.observe(Repacked(len(keep), [lane.ticket for lane in new], self.pack.width, self._newly_spent()))


def _whose(owner: Problem[Any], live: Sequence[Admission]) -> str:
    """In words, whose state was emitted in place of a lane's own."""
    tickets = [ticket for ticket, problem in live if problem is owner]
    return f"the state of problem {tickets[0]}" if tickets else "the state of a lane that has left, or was never there"
