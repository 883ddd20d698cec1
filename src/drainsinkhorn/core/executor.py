"""Windows one after another, and what happens when memory runs out. The loop of a window is in `core/window.py`."""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from drainsinkhorn.core.events import Narrowed, Observer, Retired, refused
from drainsinkhorn.core.options import Plan
from drainsinkhorn.core.protocol import Backend
from drainsinkhorn.core.shortage import Shortage
from drainsinkhorn.core.source import Admission, Batch, Source
from drainsinkhorn.core.window import Window
from drainsinkhorn.model.errors import ProblemError


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
    frugal, ways, reason = backend.frugal(), {backend.describe(lane.instance): backend}, ""
    # It may not know this problem's cost.
    with suppress(ProblemError):
        frugal.signature(lane.instance)
        ways.setdefault(frugal.describe(lane.instance), frugal)
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
) -> Generator[Retired, None, tuple[Plan, Shortage | None]]:
    """Run a window until it is empty or memory runs out. When this returns, nothing refers to its pack any more."""
    try:
        pack = backend.pack([admission.instance for admission in opening])
    except MemoryError as error:
        return plan, Shortage(opening, len(opening), str(error))
    window = Window(backend, pack, plan, observe, opening, streamed=streamed)
    shortage = yield from window.run(source)
    return window.plan, shortage
