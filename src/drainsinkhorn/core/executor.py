"""Run windows one after another, and handle a lack of memory. The loop of one window is in `core/window.py`."""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from drainsinkhorn.core.events import Narrowed, Observer, Retired, refused
from drainsinkhorn.core.options import Plan
from drainsinkhorn.core.protocol import Backend
from drainsinkhorn.core.source import Admission, Batch, Shortage, Source
from drainsinkhorn.core.window import Window
from drainsinkhorn.model.errors import ProblemError


def execute(backend: Backend[Any], source: Source, plan: Plan, observe: Observer) -> Iterator[Retired]:
    """Run every problem of a source, window after window, and yield each lane as it retires.

    If memory runs out, the live lanes run again from their own starts, in windows half as wide; the window in which a
    lane runs changes no result. If memory does not suffice for one lane alone, it runs once more after idle memory was
    freed, then on `Backend.frugal`; if memory does not suffice for that either, it is rejected.
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
    """Run a lane that ran out of memory once more, then in its most frugal representation; else reject it."""
    # Arrays of the discarded pack may be in reference cycles.
    gc.collect()
    backend.release()
    frugal, ways, reason = backend.frugal(), {backend.describe(lane.instance): backend}, ""
    # The frugal backend may not support this problem's cost.
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
        instances = [admission.instance for admission in opening]
        backend.prepare(instances)
        pack = backend.pack(instances)
    except MemoryError as error:
        return plan, Shortage(opening, len(opening), str(error))
    window = Window(backend, pack, plan, observe, opening, streamed=streamed)
    shortage = yield from window.run(source)
    return window.plan, shortage
