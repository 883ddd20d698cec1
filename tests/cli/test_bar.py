"""The time left, against scripts and a clock that ticks once per slot."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console

from drainsinkhorn.core.audit import Audit
from drainsinkhorn.core.events import Advanced, Event, Finished, Observer, Rescuing, fan_out
from drainsinkhorn.core.executor import execute
from drainsinkhorn.core.options import Options
from drainsinkhorn.core.protocol import Spent
from drainsinkhorn.core.source import Admission, Batch
from drainsinkhorn.model.status import Status
from drainsinkhorn.run.progress import UNKNOWN, Bar, TimeLeft
from drainsinkhorn.testing.scripted import Script, ScriptedBackend, scripted

PER_SLOT = 0.25


class Clock:
    """A clock that begins anywhere and goes on with the work."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def tick(self, event: Event) -> None:
        if isinstance(event, Advanced):
            self.now += PER_SLOT * event.spent.slots


def run(scripts: list[Script | int], observe: Observer, **settings: Any) -> None:
    plan = Options(**{"mode": "compact", "audit": Audit(every=4), **settings}).plan(None)
    waiting = Batch([Admission(ticket, scripted(script)) for ticket, script in enumerate(scripts)])
    for retired in execute(ScriptedBackend(), waiting, plan, observe):
        for outcome in retired.outcomes:
            observe(Finished(outcome.ticket, outcome.status))


def estimates(scripts: list[Script | int], **settings: Any) -> tuple[list[tuple[float, float | None]], float]:
    """At every look the time and the estimate then, and the time at the end."""
    clock, found = Clock(), list[tuple[float, float | None]]()
    left = TimeLeft(len(scripts), clock)

    def look(event: Event) -> None:
        if isinstance(event, Advanced):
            found.append((clock(), left.seconds()))

    run(scripts, fan_out(clock.tick, left, look), **settings)
    return found, clock()


def test_lanes_that_fall_evenly_are_foretold_to_the_second() -> None:
    found, end = estimates([Script(depth, start=50.0) for depth in (16, 32, 48, 80)])
    assert found[0][1] is None
    for now, left in found[1:]:
        assert left == pytest.approx(end - now)


def test_no_lane_is_foretold_beyond_the_depth_limit() -> None:
    clock, found = Clock(), list[float | None]()
    left = TimeLeft(2, clock, max_depth=40)

    def look(event: Event) -> None:
        if isinstance(event, Advanced):
            found.append(left.seconds())

    run([Script(400, start=50.0)] * 2, fan_out(clock.tick, left, look), max_depth=40)
    known = [seconds for seconds in found if seconds is not None]
    assert known
    assert max(known) <= 2 * 40 * PER_SLOT


def test_a_stream_of_unknown_length_has_no_time_left() -> None:
    clock = Clock()
    left = TimeLeft(None, clock)
    run([Script(16, start=50.0)] * 4, fan_out(clock.tick, left))
    assert left.seconds() is None


@pytest.mark.parametrize("mode", ["compact", "stream", "width-one"])
def test_waiting_problems_go_as_deep_as_the_mean(mode: str) -> None:
    found, end = estimates([Script(24, start=50.0)] * 30, mode=mode, width=5)
    assert [left for _, left in found[1:]] == pytest.approx([end - now for now, _ in found[1:]])


def test_lanes_in_flight_count_in_the_mean() -> None:
    # The shallow half of each window ends first; counting only what has ended would foretell half of the work.
    scripts: list[Script | int] = [Script(depth, start=50.0) for depth in (12, 60)] * 20
    found, end = estimates(scripts, width=10)
    begin, total = 1000.0, end - 1000.0
    for now, left in found[2:]:
        assert left == pytest.approx(end - now, abs=0.01 * total), f"after {now - begin} of {total} s"


def test_without_a_forecast_the_mean_of_the_ended_and_then_as_much_again() -> None:
    clock = Clock()
    left = TimeLeft(3, clock)
    seen: dict[int, float | None] = {}

    def look(event: Event) -> None:
        if isinstance(event, Advanced):
            depth = max(standing.depth for standing in event.standings())
            seen[depth] = left.seconds()

    run([8, 40, 40], fan_out(clock.tick, left, look), width=3)
    # Nobody has ended, and nobody has a forecast.
    assert seen[4] is None
    # One ended at 8; two at 12 may need as much again.
    assert seen[12] == pytest.approx(2 * 12 * PER_SLOT)


def test_refused_problems_do_not_wait() -> None:
    clock = Clock()
    left = TimeLeft(4, clock)
    for ticket in (2, 3):
        left(Finished(ticket, Status.INVALID))
    assert left.seconds() is None
    found: list[float | None] = []
    run([Script(40, start=50.0)] * 2, fan_out(clock.tick, left, lambda e: found.append(left.seconds())), width=2)
    assert found[-1] == 0
    known = [seconds for seconds in found if seconds is not None]
    assert known[0] == pytest.approx(2 * 32 * PER_SLOT)


def test_a_rescue_is_not_foreseen() -> None:
    clock = Clock()
    left = TimeLeft(1, clock)
    run([Script(8, start=5.0)], fan_out(clock.tick, left))
    assert left.seconds() == 0
    left(Rescuing([0]))
    assert left.seconds() is None
    left(Finished(0, Status.CONVERGED))
    assert left.seconds() == 0


def shown(scripts: list[Script | int], **settings: Any) -> str:
    clock, file = Clock(), io.StringIO()
    console = Console(file=file, force_terminal=settings.pop("terminal", True), width=160)
    with Bar(console, len(scripts), quiet=settings.pop("quiet", False), clock=clock) as bar:
        run(scripts, fan_out(clock.tick, bar), **settings)
        # The state that is drawn when the bar closes is that of the last look.
        clock.now += 1
        bar(Finished(0, Status.CONVERGED))
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())


def test_the_bar_says_what_is_left() -> None:
    text = shown([Script(24, start=50.0)] * 6, width=3)
    assert re.search(r"draining.*\d+/6.*\d+ lanes live, [\d,]+ slots removed, 0:00:00 left", text), text


def test_the_bar_says_what_it_does_not_know() -> None:
    clock, file = Clock(), io.StringIO()
    bar = Bar(Console(file=file, force_terminal=True, width=160), 2, clock=clock)
    stop: list[str] = []

    def look(event: Event) -> None:
        if isinstance(event, Advanced):
            stop.append(bar._progress.tasks[0].fields["facts"])

    run([Script(9000, start=1e3), Script(9000, start=1e3)], fan_out(clock.tick, bar, look))
    assert stop[0] == f"2 lanes live, 0 slots removed, {UNKNOWN} left"
    assert stop[2] == "2 lanes live, 0 slots removed, 1:14:54 left"


@pytest.mark.parametrize("hidden", [{"terminal": False}, {"quiet": True}])
def test_a_hidden_bar_asks_no_lane(hidden: dict[str, Any]) -> None:
    class Curious(Exception):
        pass

    def asked() -> Any:
        raise Curious

    bar = Bar(
        Console(file=io.StringIO(), force_terminal=hidden.get("terminal", True)), 1, quiet=hidden.get("quiet", False)
    )
    bar(Advanced(1, 1, 1, Spent(1, 2), asked))
    assert shown([9] * 3, **hidden).strip() == ""


def test_a_bar_looks_at_lanes_no_more_often_than_it_is_drawn() -> None:
    clock, asked = Clock(), 0
    bar = Bar(Console(file=io.StringIO(), force_terminal=True), 1, clock=clock)

    def count() -> Any:
        nonlocal asked
        asked += 1
        return ()

    for _ in range(1000):
        clock.now += 0.001
        bar(Advanced(1, 1, 1, Spent(1, 2), count))
    assert 8 <= asked <= 11
