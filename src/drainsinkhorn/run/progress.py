"""A live bar: an observer that shows lanes live, problems done, slots removed and the time left."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from drainsinkhorn.core.events import Advanced, Chosen, Event, Finished, Lost, Opened, Reported, Rescuing, Retired
from drainsinkhorn.core.forecast import Forecasts
from drainsinkhorn.core.ledger import Ledger

REFRESH = 0.1
"""Seconds between two looks at the ledger and the lanes."""
UNKNOWN = "-:--:--"
Clock = Callable[[], float]


class TimeLeft:
    """How long the rest of a run will take.

    A live lane is expected to retire at its forecast. The mean depth is taken over retired problems and forecasts: that
    of retired problems alone would be too small, since shallow problems retire first. A waiting problem is expected to
    run to the mean depth; a live lane without a forecast, to the mean or to twice its present depth, whichever is
    larger. The time of a cycle is the mean since the first pack was opened. The time of a rescue is not estimated.

    Args:
        total: How many problems there are; None: unknown.
        clock: Function that gives the time in seconds.
        max_depth: The depth limit, which no forecast exceeds.
    """

    def __init__(self, total: int | None, clock: Clock, max_depth: float = math.inf) -> None:
        self._total, self._limit = total, max_depth
        self._clock = clock
        self._begin: float | None = None
        self._forecasts = Forecasts()
        self._ended: set[int] = set()
        self._rescue: set[int] = set()
        self._ran = self._cycles = 0

    def __call__(self, event: Event) -> None:
        """Take in an event. Lanes are looked at on every Advanced, which may be left out to look more rarely."""
        self._forecasts(event)
        if isinstance(event, Opened) and self._begin is None:
            self._begin = self._clock()
        elif isinstance(event, Retired):
            self._ended.update(event.outcomes.tickets)
            self._ran += len(event.outcomes)
            self._cycles += sum(event.outcomes.depths)
        elif isinstance(event, Finished):
            # Also what was turned away at the door, and never ran.
            self._ended.add(event.ticket)
            self._rescue.discard(event.ticket)
        elif isinstance(event, Rescuing):
            self._rescue.update(event.tickets)

    def seconds(self) -> float | None:
        """Return the seconds left; None while they are unknown."""
        lanes = self._forecasts.lanes().values()
        predicted = [min(self._limit, lane.predicted_depth) for lane in lanes if lane.predicted_depth is not None]
        known = self._ran + len(predicted)
        spent = self._cycles + sum(lane.depth for lane in lanes)
        if self._total is None or self._begin is None or self._rescue or not known or not spent:
            return None
        mean = (self._cycles + sum(predicted)) / known
        waiting = self._total - len(self._ended) - len(lanes)
        rest = waiting * mean
        for lane in lanes:
            end = max(mean, 2 * lane.depth) if lane.predicted_depth is None else lane.predicted_depth
            rest += max(0.0, min(self._limit, end) - lane.depth)
        return rest * (self._clock() - self._begin) / spent


class Bar:
    """Shows a run on a terminal or in a notebook; shows nothing elsewhere.

    Args:
        console: Where to show it.
        total: How many problems there are; None: unknown.
        quiet: Show nothing at all.
        clock: Function that gives the time in seconds.
        max_depth: The depth limit of the run.
    """

    def __init__(
        self,
        console: Console,
        total: int | None,
        *,
        quiet: bool = False,
        clock: Clock = time.monotonic,
        max_depth: float = math.inf,
    ) -> None:
        self._ledger = Ledger()
        self._left = TimeLeft(total, clock, max_depth)
        self._clock = clock
        self._live = 0
        # Live lanes of each worker of a fleet.
        self._lanes: dict[int, int] = {}
        self._shown = -math.inf
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            # It ticks while kernels are compiled, when there are no events.
            TimeElapsedColumn(),
            TextColumn("{task.fields[facts]}"),
            console=console,
            disable=quiet or not (console.is_terminal or console.is_jupyter),
            transient=True,
        )
        self._task = self._progress.add_task("draining", total=total, facts="")

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Remove the bar."""
        if self._progress.live.is_started:
            self._progress.stop()

    def __call__(self, event: Event) -> None:
        """Show an event."""
        if self._progress.disable:
            return
        # A run that is never read chooses its backend, and needs no bar.
        if not isinstance(event, Chosen) and not self._progress.live.is_started:
            self._progress.start()
        self._ledger(event)
        due = self._clock() - self._shown >= REFRESH
        if due or not isinstance(event, Advanced):
            self._left(event)
        if isinstance(event, Advanced):
            self._live = event.live
        elif isinstance(event, Reported):
            self._lanes[event.worker] = event.live
            self._live = sum(self._lanes.values())
        elif isinstance(event, Lost):
            self._lanes.pop(event.worker, None)
        elif isinstance(event, Finished):
            self._progress.advance(self._task)
        elif isinstance(event, Rescuing):
            self._progress.update(self._task, description="rescuing")
            self._live = 1
        if due and isinstance(event, Advanced | Finished):
            self._show()

    def _show(self) -> None:
        self._shown = self._clock()
        removed, seconds = max(0, self._ledger.removed_slots), self._left.seconds()
        shown = UNKNOWN if seconds is None else str(timedelta(seconds=round(seconds)))
        where = f" on {len(self._lanes)} workers" if self._lanes else f", {removed:,} slots removed"
        facts = f"{self._live} lanes live{where}, {shown} left"
        self._progress.update(self._task, facts=facts)


def make_bar(total: int | None, max_depth: int) -> Bar:
    """Return a bar on stderr, which appears with the first event of a run."""
    return Bar(Console(stderr=True), total, max_depth=max_depth)
