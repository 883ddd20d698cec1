"""The one loop. It never sees an array: it speaks in lane numbers, tickets and floats."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from drainsinkhorn.core.audit import Standing, judge
from drainsinkhorn.core.errors import ContractError
from drainsinkhorn.core.events import Advanced, Audited, Frozen, Narrowed, Observer, Opened, Repacked, Retired, refused
from drainsinkhorn.core.options import Plan
from drainsinkhorn.core.problem import Problem
from drainsinkhorn.core.protocol import FRESH, Backend, Pack, Progress, Spent
from drainsinkhorn.core.source import Admission, Source


def execute(backend: Backend[Any], source: Source, plan: Plan, observe: Observer) -> Iterator[Retired]:
    """Run every problem of a source, window after window, and yield each lane as it retires."""
    while opening := source.take(plan.width):
        try:
            pack = backend.pack([admission.problem for admission in opening])
        except MemoryError as error:
            if len(opening) == 1:
                yield refused(*opening[0], f"there is not enough memory for this problem alone ({error})")
                continue
            source.give_back(opening)
            plan = replace(plan, width=len(opening) // 2)
            observe(Narrowed(plan.width))
        else:
            window = _Window(backend, pack, plan, observe, opening)
            yield from window.run(source)
            plan = window.plan


class _Window:
    """One pack from opening to empty. `live` are the lanes still to be solved, by their number in the pack."""

    def __init__(
        self, backend: Backend[Any], pack: Pack[Any], plan: Plan, observe: Observer, opening: Sequence[Admission]
    ) -> None:
        self.backend, self.pack, self.plan, self.observe = backend, pack, plan, observe
        self.clock, self.on_grid, self.spent = 0, False, Spent(0, 0)
        self._seat(opening, [], [])
        observe(Opened([lane.ticket for lane in opening], plan.width, backend.width_for, self._newly_spent()))

    def run(self, source: Source) -> Iterator[Retired]:
        while self.live:
            self._advance()
            leaving, stray = self._audit()
            for retired in leaving.values():
                self.observe(retired)
                yield retired
            if stray:
                raise ContractError(f"backend {self.backend.name!r}: {stray}")
            self._repack(source, leaving)

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
        self.progress = self.pack.advance(span, self.holds, lockstep=self.plan.mode.lockstep)
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
        decided, counts = judge(self.pack, progress, due, final, self.stops, self.holds, plan.audit, plan.exact, quorum)
        self.observe(Audited(counts, self._newly_spent()))
        emitted, before, stray = self.pack.emit(list(decided)), list(self.live.values()), ""
        if len(emitted) != len(decided):
            return retired, f"emit was asked for {len(decided)} lanes and returned {len(emitted)}"
        for number, (potentials, widened, owner) in zip(decided, emitted, strict=True):
            (ticket, problem), verdict, depth = self.live.pop(number), decided[number], progress[number].depth
            self.holds[number] = -math.inf
            if owner is problem:
                retired[number] = Retired(ticket, problem, potentials, *verdict, depth, widened)
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
                return self._reseat(new)
            except MemoryError:
                source.give_back(new)
                self.plan = replace(self.plan, width=max(1, live, (live + len(new)) // 2))
                self.observe(Narrowed(self.plan.width))
        if live and left and self.pack.width - self.backend.width_for(live) >= mode.min_shrink:
            self._reseat(())
        elif live and left and mode.freeze:
            self.pack.freeze(list(left))
            self.observe(Frozen(len(left)))
        return None

    def _reseat(self, new: Sequence[Admission]) -> None:
        keep, lanes = list(self.live), [*self.live.values(), *new]
        self.pack.repack(keep, [admission.problem for admission in new])
        self._seat(lanes, [self.progress[number] for number in keep], [self.holds[number] for number in keep])
        self.observe(Repacked(len(keep), [lane.ticket for lane in new], self.pack.width, self._newly_spent()))


def _whose(owner: Problem[Any], live: Sequence[Admission]) -> str:
    """In words, whose state was emitted in place of a lane's own."""
    tickets = [ticket for ticket, problem in live if problem is owner]
    return f"the state of problem {tickets[0]}" if tickets else "the state of a lane that has left, or was never there"
