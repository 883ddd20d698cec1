"""Work: survival curves with the removed area, and the width of the kernel over its cycles."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from drainsinkhorn.core.ledger import survival
from drainsinkhorn_bench.report import words
from drainsinkhorn_bench.report.figures.frame import Figure, Series
from drainsinkhorn_bench.report.svg import Axis, Plot, whole_ticks

ZONES = 160
"""Parts of a curve that tell their numbers; more could not be pointed at."""


class Window(NamedTuple):
    """Depths of a unit's problems, which ran in windows of some width."""

    name: str
    depths: Sequence[int]
    width: int


def static_lanes(depths: Sequence[int], width: int) -> list[int]:
    """Lanes that static windows execute at cycle k, over all windows at once."""
    lanes = [0] * max(depths, default=0)
    for first in range(0, len(depths), width):
        window = depths[first : first + width]
        for cycle in range(max(window)):
            lanes[cycle] += len(window)
    return lanes


def survivals(key: str, windows: Sequence[Window], note: str) -> Figure:
    """A small survival curve for every unit."""
    panels = "".join(_survival(window) for window in windows)
    keys = '<span class="sample needed"></span>still at work <span class="sample removed"></span>removed by compaction'
    one = " one" if len(windows) == 1 else ""
    body = f'<p class="samples">{keys}</p><div class="panels{one}">{panels}</div>'
    title = "Survival: lanes that still work, and the work that compaction removes"
    return Figure(key, title, body, note, wide=len(windows) > 1)


def _survival(window: Window) -> str:
    alive, lanes = survival(window.depths), static_lanes(window.depths, window.width)
    spent, needed = sum(lanes), sum(alive)
    share = (spent - needed) / spent if spent else 0.0
    said = f"{words.count(spent - needed)} of {words.count(spent)} slots removed ({words.percent(share)})"
    plot = Plot(
        Axis(0, max(1, len(lanes)), "cycle", ticks=whole_ticks(len(lanes))),
        Axis(0, max(1, len(window.depths)) * 1.04, "lanes", ticks=whole_ticks(len(window.depths))),
        title=f"{window.name}: {said}",
        width=320,
        height=210,
        margins=(42, 12, 10, 42),
    )
    plot.path(_outline(lanes), "removed", close=True)
    plot.path(_outline(alive), "needed", close=True)
    for first, last, at in _runs(alive):
        told = f"cycles {first + 1} to {last}" if last > first + 1 else f"cycle {last}"
        gone = lanes[first] - at
        plot.zone(first, last, f"{told}: {at} of {lanes[first]} lanes at work" + (f", {gone} removed" if gone else ""))
    return f'<div class="panel"><h5>{words.html(window.name)}<small>{said}</small></h5>{plot.render()}</div>'


def _outline(lanes: Sequence[int]) -> list[tuple[float, float]]:
    """The corners of a staircase, from the origin and back to the axis."""
    points: list[tuple[float, float]] = [(0, 0)]
    for cycle, count in enumerate(lanes):
        if not points or points[-1][1] != count:
            points += [(cycle, points[-1][1]), (cycle, count)]
    end = len(lanes)
    return [*points, (end, points[-1][1]), (end, 0)]


def _runs(lanes: Sequence[int]) -> list[tuple[int, int, int]]:
    """Stretches of equal height: first, end, height; neighbours are joined where there are too many to point at."""
    runs = list[tuple[int, int, int]]()
    for cycle, count in enumerate(lanes):
        if runs and runs[-1][2] == count:
            runs[-1] = (runs[-1][0], cycle + 1, count)
        else:
            runs.append((cycle, cycle + 1, count))
    if len(runs) <= ZONES:
        return runs
    every = -(-len(runs) // ZONES)
    return [(runs[i][0], runs[min(i + every, len(runs)) - 1][1], runs[i][2]) for i in range(0, len(runs), every)]


Trace = Sequence[tuple[int, int]]
"""Cycle and the width from it on; the last entry has the end and width 0."""


def widths(key: str, units: Mapping[str, Mapping[str, Trace]], arms: Mapping[str, Series], note: str) -> Figure:
    """Width over cycles for the arms of a unit; the reader chooses the unit."""
    panels = list[str]()
    for place, (unit, traces) in enumerate(units.items()):
        hidden = " hidden" if place else ""
        panels.append(f'<div data-panel="{place}"{hidden}>{_widths(unit, traces, arms)}</div>')
    choice = ""
    if len(units) > 1:
        options = "".join(
            f'<option value="{place}">{escape(words.raised(unit))}</option>' for place, unit in enumerate(units)
        )
        choice = f'<label class="choose">unit <select data-choose>{options}</select></label>'
    drawn = {arm for traces in units.values() for arm in traces}
    legend = [series._replace(shape="dash") for arm, series in arms.items() if arm in drawn]
    return Figure(key, "Width of the kernel, cycle by cycle", choice + "".join(panels), note, legend)


def _widths(unit: str, traces: Mapping[str, Trace], arms: Mapping[str, Series]) -> str:
    end = max((trace[-1][0] for trace in traces.values() if trace), default=1)
    top = max((width for trace in traces.values() for _, width in trace), default=1)
    plot = Plot(
        Axis(0, max(1, end), "cycle of the kernel"),
        Axis(0, top * 1.08, "width (lanes executed)", ticks=whole_ticks(top)),
        title=f"Width over cycles, {unit}",
    )
    for arm, trace in traces.items():
        series = arms[arm]
        points = list[tuple[float, float]]()
        for cycle, width in trace:
            if points:
                points.append((cycle, points[-1][1]))
            points.append((cycle, width))
        plot.path(points, f"stair {series.tone}", series=arm)
    for arm, trace in traces.items():
        for (cycle, width), (after, _) in itertools.pairwise(trace):
            middle = (cycle + after) / 2
            tip = f"{arms[arm].label}: width {width}, cycles {cycle + 1} to {after}"
            plot.mark(middle, width, "circle", f"ghost {arms[arm].tone}", tip, series=arm)
    return plot.render()
