"""One window: a pack from opening to empty. It never sees an array: it speaks in lane numbers, tickets and floats."""

from __future__ import annotations

import math
from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any

from drainsinkhorn.core.audit import Standing, judge, last_states
from drainsinkhorn.core.events import Advanced, Audited, Frozen, Narrowed, Observer, Opened, Repacked, Retired
from drainsinkhorn.core.leaving import retire
from drainsinkhorn.core.options import Plan
from drainsinkhorn.core.protocol import FRESH, Backend, Pack, Progress, Spent
from drainsinkhorn.core.source import Admission, Exhausted, Shortage, Source, call
from drainsinkhorn.model.errors import ContractError


class Window:
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

    def run(self, source: Source) -> Generator[Retired, None, Shortage | None]:
        """Yield each lane as it retires; if memory runs out, return the lanes that have to run again."""
        try:
            while self.live:
                self._advance()
                leaving, stray = self._audit()
                for retired in leaving.values():
                    self.observe(retired)
                yield from leaving.values()
                if stray:
                    raise ContractError(f"backend {self.backend.name!r}: {stray}")
                self._repack(source, leaving)
        except Exhausted as error:
            return Shortage(list(self.live.values()), len(self.stops), str(error))
        return None

    def _seat(self, lanes: Sequence[Admission], progress: Sequence[Progress], holds: Sequence[float]) -> None:
        self.live, self.progress = dict(enumerate(lanes)), [*progress, *[FRESH] * (len(lanes) - len(progress))]
        self.stops = [self.plan.stop(lane.instance) for lane in lanes]
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
        self.progress = call(self.pack.advance, span, self.holds, lockstep=self.plan.mode.lockstep)
        cycles = max(self.progress[number].depth - before[number].depth for number in self.live)
        if cycles < 1:
            raise ContractError(f"backend {self.backend.name!r}: advance({span}) moved no live lane")
        self.clock += cycles if self.plan.mode.lockstep else span
        self.on_grid = self.plan.holds or self.clock >= audit_at
        self.observe(Advanced(cycles, self.pack.width, len(self.live), self._newly_spent(), self._standings))

    def _audit(self) -> tuple[dict[int, Retired], str]:
        """Judge the lanes that are due and emit those that leave; see `retire` for what is returned."""
        plan, pack, progress, stops = self.plan, self.pack, self.progress, self.stops
        final = last_states(self.live, progress, plan.max_depth, plan.expired)
        due, quorum = list(self.live) if self.on_grid else list(final), len(self.live) if plan.mode.together else 0
        decided, counts = call(judge, pack, progress, due, final, stops, self.holds, plan.audit, plan.exact, quorum)
        self.observe(Audited(counts, self._newly_spent()))
        retired, stray = call(retire, pack, self.live, decided, progress, streamed=self.streamed)
        for number in decided:
            del self.live[number]
            self.holds[number] = -math.inf
        return retired, stray

    def _repack(self, source: Source, left: Collection[int]) -> None:
        """Refill vacancies, or compact the pack, or freeze the lanes that have left."""
        mode, live, vacancies = self.plan.mode, len(self.live), self.plan.width - len(self.live)
        due = mode.refill is not None and vacancies >= mode.refill and self.on_grid
        new = source.take(vacancies) if due else ()
        if new:
            try:
                self.pack.repack(list(self.live), [admission.instance for admission in new])
            except MemoryError:
                self.backend.release()
                source.give_back(new)
                self.plan = replace(self.plan, width=max(1, live, (live + len(new)) // 2))
                self.observe(Narrowed(self.plan.width))
            else:
                return self._reseat(new)
        if live and left and self.pack.width - self.backend.width_for(live) >= mode.min_shrink:
            call(self.pack.repack, list(self.live))
            self._reseat(())
        elif live and left and mode.freeze:
            call(self.pack.freeze, list(left))
            self.observe(Frozen(len(left)))
        return None

    def _reseat(self, new: Sequence[Admission]) -> None:
        """Renumber the lanes after a repack that kept the live lanes and admitted new ones."""
        keep, lanes = list(self.live), [*self.live.values(), *new]
        self._seat(lanes, [self.progress[number] for number in keep], [self.holds[number] for number in keep])
        self.observe(Repacked(len(keep), [lane.ticket for lane in new], self.pack.width, self._newly_spent()))
