"""Cycles of a pack: what is launched for which lanes, and when it is asked whether they still move."""

# pyright: basic

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from drainsinkhorn.backends.triton import kernels as k
from drainsinkhorn.backends.triton.lane import Lane
from drainsinkhorn.backends.triton.launches import Launches
from drainsinkhorn.backends.triton.launching import Download, Launch, stream_of
from drainsinkhorn.backends.triton.tiles import MULTIPROCESSORS
from drainsinkhorn.core.protocol import Progress

GLANCE, OFTEN = 8, 2
"""Cycles after which it is asked whether lanes still move; the answer is waited for when so many more are launched.

The second holds where lanes will soon rest and cycles in vain cost something: legs of so many WAVES or more.
"""
WAVES = 2.0
"""Programs of a leg, over those that fit on the device at once."""
IDLE = 0.9
"""Waves of programs that lanes at rest may have before they are no longer launched."""


class Crew(NamedTuple):
    """Lanes for which cycles are launched: all, or those that still move.

    Attributes:
        lanes: They.
        live: Their table.
        ready: What is launched for them, made ready once.
    """

    lanes: list[Lane]
    live: Any
    ready: dict[tuple[Any, ...], list[Launch]]


def _rest(seen: list[list[float]], free: Sequence[bool], lockstep: bool) -> bool:
    """Whether a call has ended: no lane that is not frozen moves any more."""
    held = (row[2] > 0 for row, moves in zip(seen, free, strict=True) if moves)
    return any(held) if lockstep else all(held)


def _ends(then: list[float], now: list[float], stop: float) -> bool:
    """Whether a residual that falls as it did will have passed its stop two looks from now."""
    (earlier, before, *_), (depth, stale, *_) = then, now
    if not stale > stop:
        # Under a stop of -inf nobody ever rests, whatever is no number.
        return stop > -math.inf
    falls = depth > earlier and 0 < stale < before
    return falls and stale * (stale / before) ** (2 * GLANCE / (depth - earlier)) <= stop


def _progress(report: list[list[float]]) -> Progress:
    """Return depths and stale residuals from rows of a report on all lanes."""
    return Progress([int(row[0]) for row in report], [row[1] for row in report])


class Cycles(Launches):
    """How a pack runs cycles."""

    small: bool
    _everyone: Crew
    _crew: Crew
    _stops: Any
    _report: Any
    _glances: list[Download]

    def _run_cycles(self, cycles: int, *, lockstep: bool, held: bool) -> Progress:
        """Launch cycles until all have run or all lanes are held (`held`: lanes may be), and return their progress.

        The device is always some cycles behind, so that it never waits for the host; those launched in vain do nothing.
        """
        stream, free = stream_of(self.device), [not lane.frozen for lane in self._lanes]
        last: Download | None = None
        seen: list[list[float]] = []
        self._crew, ask = self._everyone, GLANCE
        for cycle in range(cycles if any(free) else 0):
            for launch in self._cycle(first=cycle == 0, last=cycle == cycles - 1, lockstep=lockstep):
                launch(stream)
            if held and cycle + 1 == ask and cycle < cycles - 1:
                before, last = last, self._glance(stream, decided=self._applied_by_legs(lockstep))
                then, seen = seen, [] if before is None else before.read().tolist()
                if seen and _rest(seen, free, lockstep):
                    return _progress(seen)
                if seen and not lockstep:
                    self._leave([row[2] > 0 for row in seen])
                ask += OFTEN if then and self._soon(then, seen, lockstep) else GLANCE
        return _progress(self._glance(stream).read().tolist())

    def _waves(self, lanes: int) -> float:
        return lanes * self._most[0][1] / (self.how.resident * MULTIPROCESSORS)

    def _soon(self, then: list[list[float]], now: list[list[float]], lockstep: bool) -> bool:
        """Whether cycles in vain would cost something, and the call ends within two looks if lanes go on as before."""
        if self._waves(len(self._crew.lanes)) < WAVES:
            return False
        ends = (
            _ends(before, told, self._stops[lane.place])
            for lane, before, told in zip(self._lanes, then, now, strict=True)
            if not lane.frozen
        )
        return any(ends) if lockstep else all(ends)

    def _applied_by_legs(self, lockstep: bool) -> bool:
        """Whether legs on the rows apply themselves, all but the last of a call."""
        return self.small and not lockstep

    def _cycle(self, *, first: bool, last: bool, lockstep: bool) -> list[Launch]:
        """Apply, columns, rows. Of small lanes the rows of a cycle apply themselves, unless it is the last one."""
        alone = self._applied_by_legs(lockstep)
        applies = first or not alone
        key = (first, applies, last or not alone, lockstep, self._parity)
        if applies:
            self._parity = 1 - self._parity
        crew, parity = self._crew, self._parity
        if key not in crew.ready:
            legs = (1, k.APPLIED, parity, False, False), (0, k.KEPT, parity, lockstep, alone and not last)
            found = self._once(crew, self._apply_of, first, 1 - parity) if applies else []
            crew.ready[key] = [*found, *(launch for leg in legs for launch in self._once(crew, self._side_of, *leg))]
        return crew.ready[key]

    def _once(self, crew: Crew, made: Callable[..., list[Launch]], *how: Any) -> list[Launch]:
        """What `made` makes ready for a crew, once."""
        key = (made.__name__, *how)
        if key not in crew.ready:
            crew.ready[key] = made(crew.live, crew.lanes, *how)
        return crew.ready[key]

    def _side_of(
        self, live: Any, lanes: Sequence[Lane], side: int, role: Any, parity: int, lock: bool, goes_on: bool
    ) -> list[Launch]:
        """A leg of lanes, whatever their arithmetic."""
        found = self._legs_of(live, lanes, side, role, parity, lock=lock, goes_on=goes_on)
        if any(lane.wide for lane in lanes):
            found.append(self._exact_of(live, lanes, side, role, parity, lock=lock, goes_on=goes_on))
        return found

    def _glance(self, stream: int, *, decided: bool = False) -> Download:
        """What is known of all lanes when all that was launched has run. `decided`: the last leg has applied itself."""
        for launch in self._once(self._everyone, self._report_of, self._parity, decided):
            launch(stream)
        # Two are under way at a time, at most.
        if len(self._glances) < 2:
            self._glances.append(Download(self._report))
        else:
            self._glances.append(self._glances.pop(0).again(self._report))
        return self._glances[-1]

    def _report_of(self, live: Any, _: Sequence[Lane], parity: int, decided: bool) -> list[Launch]:
        return self._look_of(live, self._report, parity, decided=decided)

    def _leave(self, held: Sequence[bool]) -> None:
        """Launch nothing more for lanes that rest, if their programs would take the device as long as others' do.

        It is the look of some cycles ago that says so: since then `apply` has written both states of such a lane. Where
        legs decide by themselves a lane has one, which nothing has touched.
        """
        resting = {lane for lane, rests in zip(self._lanes, held, strict=True) if rests and not lane.frozen}
        moving = [lane for lane in self._crew.lanes if lane not in resting]
        if moving and self._waves(len(self._crew.lanes) - len(moving)) >= IDLE:
            self._crew = Crew(moving, self._seats(moving), {})
