"""Speed: ratios beside the paper's, sweeps, grouping, the waterfall, raw times, time against deviation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from drainsinkhorn_bench.report import words
from drainsinkhorn_bench.report.figures.frame import (
    ALL_PADDING,
    MOST_PADDING,
    PAPER,
    Figure,
    Row,
    Series,
    Strip,
    listing,
)
from drainsinkhorn_bench.report.paper import Ratio
from drainsinkhorn_bench.report.svg import WIDE, Axis, Plot, apart, around, time_ticks


class Measured(NamedTuple):
    """A ratio with its interval, as a figure needs it.

    Attributes:
        name: The contrast.
        below: What is said under it: arms, endpoint, marks such as "extrapolated".
        ratio: Geometric mean; None where void.
        low: Lower end of the interval.
        high: Upper end.
        wins: How many pairs have a ratio above one, e.g. "5 of 6".
        units: Units that the pairs come from.
        paper: The paper's ratio.
        missing: Why there is no ratio: "void" or "not run".
        tone: CSS class for the colour of the mark.
    """

    name: str
    below: str
    ratio: float | None
    low: float
    high: float
    wins: str
    units: int
    paper: Ratio | None
    missing: str = "not run"
    tone: str = "t4"


def paper_text(found: Ratio | None) -> str:
    """The paper's ratio with its interval, as HTML."""
    if found is None:
        return f'<span class="none">{words.DASH}</span>'
    spread = f' <small title="{found.spread}">{words.told_span(found.low, found.high)}</small>' if found.spread else ""
    return f'<span title="{found.what}; {found.source}">{words.told(found.value)}</span>{spread}'


def our_text(row: Measured) -> str:
    """Our ratio with its interval, as HTML."""
    if row.ratio is None:
        return f'<span class="flag {row.missing.replace(" ", "-")}">{row.missing}</span>'
    spread = words.span(row.low, row.high) if row.high > row.low else ""
    return f"<b>{words.times(row.ratio)}</b> <small>{spread}</small>"


def wins_text(row: Measured) -> str:
    """Pairs won and how many units they come from, as HTML."""
    return f"{row.wins} <small>{words.plural(row.units, 'unit')}</small>" if row.units else words.DASH


def ratio_axis(rows: Sequence[Measured], label: str = "") -> Axis:
    """One logarithmic axis for all rows, with 1 in sight."""
    values = [v for row in rows if row.ratio is not None for v in (row.ratio, row.low, row.high)]
    values += [v for row in rows if row.paper for v in (row.paper.value, row.paper.low or row.paper.value)]
    values += [row.paper.high for row in rows if row.paper and row.paper.high]
    low, high = around(values, log=True, room=0.06, keep=(1.0, 1.2))
    bare = Axis(low, high, label, log=True)
    rounds = (1, 2, 5, 10, 1.5, 3, 0.5, 20, 50, 100, 200, 500, 1000, 0.2, 0.1, 4, 7, 1.25, 2.5, 0.8, 1.1, 0.9)
    ticks = [(tick, f"{tick:g}×") for tick in rounds if low <= tick <= high]
    return Axis(low, high, label, log=True, ticks=apart(ticks, bare, 0.11, 1))


def forest(key: str, title: str, groups: Mapping[str, Sequence[Measured]], note: str) -> Figure:
    """Ratios under one axis, ours filled and the paper's hollow; one heading for each group."""
    axis = ratio_axis([row for rows in groups.values() for row in rows])
    lines = list[Row | str]()
    for name, rows in groups.items():
        if len(groups) > 1:
            lines.append(name)
        lines += [_forest_row(axis, row) for row in rows]
    heads = ("contrast", "here", "pairs won", "paper")
    return Figure(key, title, listing(axis, lines, heads, "forest"), note, wide=True, first=True)


def _forest_row(axis: Axis, row: Measured) -> Row:
    strip = Strip(axis, base=1.0)
    both = row.ratio is not None and row.paper is not None
    told = f"{row.name}: " + (row.missing if row.ratio is None else f"here {words.times(row.ratio)}")
    if row.paper is not None:
        found, shift = row.paper, 6.5 if both else 0
        if found.low is not None and found.high is not None:
            strip.interval(found.low, found.high, "t-paper", shift)
        spread = f" {words.told_span(found.low, found.high)} ({found.spread})" if found.spread else ""
        tip = f"paper {words.told(found.value)}{spread}: {found.what}; {found.source}"
        strip.mark(found.value, "diamond", "t-paper", tip, shift=shift, size=3.9)
        told += f", paper {words.told(found.value)}"
    if row.ratio is not None:
        shift = -5 if both else 0
        strip.interval(row.low, row.high, row.tone, shift)
        tip = f"here {words.times(row.ratio)} {words.span(row.low, row.high)}, {row.wins} pairs won"
        strip.mark(row.ratio, "circle", row.tone, tip, shift=shift)
    return Row(row.name, row.below, strip.render(told), (our_text(row), wins_text(row), paper_text(row.paper)))


def waterfall(key: str, rows: Sequence[Measured], note: str) -> Figure:
    """Each change as a bar from the time before it to the time after it, in units of the time at the start."""
    edges, at = [1.0], 1.0
    for row in rows:
        at = at / row.ratio if row.ratio else at
        edges.append(at)
    low, high = around(edges, log=True, room=0.05)
    marks = [t for t in (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3) if low <= t <= high]
    bare = Axis(low, high, log=True)
    axis = Axis(low, high, log=True, ticks=apart([(t, f"{t:g}") for t in marks], bare, 0.08, 1))
    lines = list[Row | str]()
    for row, (before, after) in zip(rows, itertools.pairwise(edges), strict=True):
        strip = Strip(axis, base=1.0)
        if row.ratio is not None:
            small = abs(math.log(row.ratio)) < math.log(1.02)
            kind = "neutral" if small else "faster" if row.ratio > 1 else "slower"
            tip = f"{row.name}: {words.times(row.ratio)} {words.span(row.low, row.high)}"
            strip.bar(before, after, f"step {kind}", tip + f"; {before:.3g} becomes {after:.3g} of the first time")
            strip.interval(before / row.high, before / row.low, "over")
        told = f"{row.name}: {words.times(row.ratio)}"
        cells = (our_text(row), f"{words.significant(after, 3)}", paper_text(row.paper))
        lines.append(Row(row.name, row.below, strip.render(told), cells))
    body = listing(axis, lines, ("change", "ratio here", "time left", "paper"), "waterfall")
    return Figure(key, "Where the speed comes from, one variable at a time", body, note, wide=True, first=True)


class Level(NamedTuple):
    """One value of the varied option, and the ratio measured at this value."""

    value: float
    label: str
    ratio: float
    low: float
    high: float
    told: str


def sweep(
    key: str,
    title: str,
    across: str,
    levels: Mapping[Series, Sequence[Level]],
    paper: Mapping[str, Sequence[tuple[float, Ratio]]],
    note: str,
) -> Figure:
    """Draw ratios over the varied option, one line for each series, and the paper's ratios as hollow marks.

    `paper` has the paper's ratios by the key of their series.
    """
    every = [level for found in levels.values() for level in found]
    theirs = [(value, ratio) for found in paper.values() for value, ratio in found]
    values = [v for level in every for v in (level.ratio, level.low, level.high)]
    values += [v for _, ratio in theirs for v in (ratio.low or ratio.value, ratio.high or ratio.value)]
    places = {value: words.plain(value) for value, _ in theirs} | {level.value: level.label for level in every}
    x = Axis(
        *around(places, log=True, room=0.07),
        across,
        log=True,
        ticks=[(v, words.raised(text)) for v, text in sorted(places.items())],
    )
    log = high_span(values)
    plot = Plot(x, Axis(*around(values, log=log, keep=(1.0,)), "ratio of times", log=log), title=title, height=320)
    plot.path([(x.low, 1.0), (x.high, 1.0)], "base")
    tones = {series.key: series.tone for series in levels}
    for name, found in paper.items():
        plot.path([(value, ratio.value) for value, ratio in found], f"dashed {tones[name]}", series="paper")
        for value, ratio in found:
            wins = f", {ratio.wins[0]} of {ratio.wins[1]} won" if ratio.wins else ""
            tip = f"paper, {ratio.what}: {words.told(ratio.value)} {words.told_span(ratio.low, ratio.high)}{wins}"
            shape = f"hollow {tones[name]}"
            plot.mark(value, ratio.value, "diamond", shape, f"{tip}; {ratio.source}", series="paper")
    for place, (series, found) in enumerate(levels.items()):
        # Side by side, so that one interval does not hide another.
        shift = (x.high / x.low) ** (0.011 * (place - (len(levels) - 1) / 2))
        plot.path([(level.value * shift, level.ratio) for level in found], f"line {series.tone}", series=series.key)
        for level in found:
            at = level.value * shift
            plot.whisker(at, level.low, level.high, series.tone, series=series.key)
            plot.mark(at, level.ratio, series.shape, series.tone, level.told, series=series.key)
    legend = [*levels, PAPER] if theirs else list(levels)
    return Figure(key, title, plot.render(), note, legend)


def high_span(values: Sequence[float]) -> bool:
    """Whether ratios span so much that a logarithmic axis reads better."""
    good = [value for value in values if value > 0]
    return bool(good) and max(good) / min(good) > 5


class Layout(NamedTuple):
    """A grouping of problems into windows, with its padding and the ratio it gave."""

    name: str
    padding: float
    ratio: float
    low: float
    high: float


def grouping(key: str, here: Sequence[Layout], paper: Sequence[Layout], note: str) -> Figure:
    """The ratio of static over compact against padding, with the line on which all padding becomes time."""
    every = [*here, *paper]
    top = max((1 + layout.padding for layout in every), default=1.5)
    high = max([top, *(layout.high for layout in every)])
    x = Axis(*around([1.0, top], room=0.06), "1 + padding (static slots over needed slots)")
    y = Axis(
        *around([1.0, high], room=0.06, keep=[min((layout.low for layout in every), default=1)]), "static / compact"
    )
    plot = Plot(x, y, title="Grouping: ratio of times against padding", height=320)
    ends = (max(x.low, 1.0), x.high)
    plot.path([(value, value) for value in ends], "base", series=ALL_PADDING.key)
    plot.path([(value, 0.92 * value) for value in ends], "dashed faint", series=MOST_PADDING.key)
    for layout in paper:
        tip = f"paper, {layout.name}: padding {layout.padding:.3f}, {words.times(layout.ratio)}; tab:m3-grouping"
        plot.mark(1 + layout.padding, layout.ratio, "diamond", "t-paper", tip, series="paper")
    for layout in here:
        at = 1 + layout.padding
        plot.whisker(at, layout.low, layout.high, "t4", series="here")
        tip = f"{layout.name}: padding {layout.padding:.3f}, {words.times(layout.ratio)} "
        plot.mark(at, layout.ratio, "circle", "t4", tip + words.span(layout.low, layout.high), series="here")
    plot.names([(1 + layout.padding, layout.ratio, layout.name) for layout in here])
    legend = [Series("here", "here", "t4", "circle"), *([PAPER] if paper else []), ALL_PADDING, MOST_PADDING]
    return Figure(key, "Grouping: what padding predicts, and what it gave", plot.render(), note, legend)


class Timed(NamedTuple):
    """One timed run."""

    arm: str
    unit: str
    seconds: float
    told: str


def raw_times(key: str, title: str, runs: Sequence[Timed], arms: Mapping[str, Series], note: str) -> Figure:
    """Every timed run as a dot, a row for each arm, and the median as a line."""
    ends = around([run.seconds for run in runs], log=True)
    axis = Axis(*ends, log=True, ticks=time_ticks(*ends))
    lines = list[Row | str]()
    for arm, series in arms.items():
        own = [run for run in runs if run.arm == arm]
        if not own:
            continue
        strip = Strip(axis, 24)
        middle = sorted(run.seconds for run in own)[len(own) // 2]
        for run in own:
            strip.mark(run.seconds, "circle", f"raw {series.tone}", run.told, size=3.4)
        told = f"{series.label}: {len(own)} timed runs, about {words.seconds(middle)}"
        lines.append(Row(series.label, "", strip.render(told), (words.plural(len(own), "run"),)))
    return Figure(key, title, listing(axis, lines, ("arm", "timed"), "times"), note, wide=True)


class Spot(NamedTuple):
    """An arm at a tolerance: how far its output is from the reference, and how long it took."""

    arm: str
    tol: float
    deviation: float
    seconds: float


def pareto(key: str, spots: Sequence[Spot], arms: Mapping[str, Series], paper: Sequence[Spot], note: str) -> Figure:
    """Time against deviation of the output; down and to the left is better."""
    seen = [spot for spot in spots if spot.deviation > 0]
    every = [*seen, *paper]
    x = Axis(*around([s.deviation for s in every], log=True), "total variation of the output", log=True)
    ends = around([s.seconds for s in every], log=True)
    y = Axis(*ends, "time to potentials (E1)", log=True, ticks=time_ticks(*ends))
    plot = Plot(x, y, title="Speed against deviation of the output", height=340, grid="xy", margins=WIDE)
    for spot in paper:
        tip = f"paper at tol {words.tolerance(spot.tol)}: {words.seconds(spot.seconds)}, {words.small(spot.deviation)}"
        plot.mark(spot.deviation, spot.seconds, "diamond", "t-paper", tip, series="paper")
    drawn = [series for arm, series in arms.items() if any(spot.arm == arm for spot in seen)]
    for series in drawn:
        own = sorted((spot for spot in seen if spot.arm == series.key), key=lambda spot: spot.tol)
        plot.path([(spot.deviation, spot.seconds) for spot in own], f"line {series.tone}", series=series.key)
        for spot in own:
            tip = f"{series.label}, tol {words.tolerance(spot.tol)}: {words.seconds(spot.seconds)}, "
            tip += f"total variation {words.small(spot.deviation)}"
            plot.mark(spot.deviation, spot.seconds, series.shape, series.tone, tip, series=series.key)
    low = {spot.tol: spot for spot in sorted(seen, key=lambda spot: -spot.seconds)}
    for spot in low.values():
        label = words.raised(words.tolerance(spot.tol))
        plot.text(spot.deviation, spot.seconds, label, dy=19, anchor="middle", class_="lab dim")
    legend = [*drawn, *([PAPER] if paper else [])]
    return Figure(key, "Speed against deviation of the output", plot.render(), note, legend)
