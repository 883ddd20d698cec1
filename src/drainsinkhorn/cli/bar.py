"""A live bar: an observer that shows lanes live, problems done, slots removed and the time left."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from drainsinkhorn.core.events import Advanced, Event, Finished, Rescuing
from drainsinkhorn.core.ledger import Ledger

REFRESH = 0.1
"""Seconds between two looks at the ledger."""


class Bar:
    """Shows a run on a terminal; shows nothing elsewhere.

    Args:
        console: Where to show it.
        total: How many problems there are.
        quiet: Show nothing at all.
    """

    def __init__(self, console: Console, total: int, *, quiet: bool = False) -> None:
        self._ledger = Ledger()
        self._live = 0
        self._shown = 0.0
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}"),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=quiet or not console.is_terminal,
            transient=True,
        )
        self._task = self._progress.add_task("draining", total=total, facts="")

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, event: Event) -> None:
        """Show an event."""
        self._ledger(event)
        if isinstance(event, Advanced):
            self._live = event.live
        elif isinstance(event, Finished):
            self._progress.advance(self._task)
        elif isinstance(event, Rescuing):
            self._progress.update(self._task, description="rescuing")
            self._live = 1
        now = time.monotonic()
        if not self._progress.disable and now - self._shown >= REFRESH:
            self._shown = now
            removed = max(0, self._ledger.removed_slots)
            self._progress.update(self._task, facts=f"{self._live} lanes live, {removed:,} slots removed")
