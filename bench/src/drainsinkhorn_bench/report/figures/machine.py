"""Figures about the machine: cost of a cycle by width, kernel times over their lower bounds, throughput of workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from drainsinkhorn_bench.report import words
from drainsinkhorn_bench.report.figures.frame import PAPER, TONES, Figure, Row, Series, Strip, listing
from drainsinkhorn_bench.report.svg import WIDE, Axis, Plot, around, time_ticks


class Kernel(NamedTuple):
    """A kernel's seconds, the least the machine allows, and what sets that floor."""

    name: str
    seconds: float
    floor: float
    bound: str


def roofline(key: str, kernels: Sequence[Kernel], note: str) -> Figure:
    """Draw the time of each kernel as a multiple of its floor, the least time that the machine allows."""
    highest = max([2.0, *(kernel.seconds / kernel.floor for kernel in kernels)])
    log = highest > 8
    ends = around([1.0, highest], log=True, room=0.04) if log else (0.0, highest * 1.04)
    steps = (1, 2, 5, 10, 20, 50, 100, 200, 500) if log else (0, 1, 2, 3, 4, 5, 6, 7, 8)
    axis = Axis(*ends, log=log, ticks=[(v, f"{v}×") for v in steps if ends[0] <= v <= ends[1]])
    lines = list[Row | str]()
    for kernel in kernels:
        over = kernel.seconds / kernel.floor
        strip = Strip(axis, 24, base=1.0)
        tip = f"{kernel.name}: {words.seconds(kernel.seconds)}, floor {words.seconds(kernel.floor)} ({kernel.bound})"
        strip.bar(ends[0], over, "over-floor", tip)
        strip.bar(ends[0], min(1.0, over), "floor", tip)
        told = f"{kernel.name}: {over:.2f} times its floor"
        cells = (f"<b>{words.times(over)}</b>", words.seconds(kernel.seconds), words.seconds(kernel.floor))
        lines.append(Row(kernel.name, f"bound: {kernel.bound}", strip.render(told), cells))
    heads = ("kernel", "over floor", "measured", "floor")
    return Figure(
        key, "Roofline: kernels against what the machine allows", listing(axis, lines, heads), note, wide=True
    )


def cost_curve(key: str, curves: Mapping[str, Mapping[int, float]], note: str) -> Figure:
    """Seconds of a cycle against width, one curve for each unit."""
    values = [seconds for curve in curves.values() for seconds in curve.values()]
    places = sorted({width for curve in curves.values() for width in curve})
    low, high = around(values, log=True)
    x = Axis(*around(places, log=True, room=0.06), "width (lanes)", log=True, ticks=[(w, str(w)) for w in _few(places)])
    y = Axis(low, high, "time of a cycle", log=True, ticks=time_ticks(low, high))
    plot = Plot(x, y, title="Cost of a cycle against width", margins=WIDE, height=320)
    legend = list[Series]()
    for place, (name, curve) in enumerate(curves.items()):
        series = Series(name, name, f"t{(place + 4) % TONES}", ("circle", "square", "triangle", "diamond")[place % 4])
        legend.append(series)
        points = sorted(curve.items())
        plot.path(points, f"line {series.tone}", series=name)
        for width, seconds in points:
            tip = f"{name}: width {width}, {words.seconds(seconds)} a cycle, {words.seconds(seconds / width)} a lane"
            plot.mark(width, seconds, series.shape, series.tone, tip, series=name)
    return Figure(key, "Cost of a cycle against width", plot.render(), note, legend)


def _few(places: Sequence[int]) -> list[int]:
    """Widths that are named on the axis: powers of two where there are many."""
    return list(places) if len(places) <= 7 else [w for w in places if w & (w - 1) == 0]


class Crew(NamedTuple):
    """A number of workers, and their throughput as a multiple of that of one worker."""

    workers: int
    scaling: float
    told: str


def scaleout(
    key: str, routes: Mapping[str, Sequence[Crew]], paper: Mapping[int, tuple[float, float]], note: str
) -> Figure:
    """Throughput against workers, with the ideal line."""
    most = max([2, *(crew.workers for crews in routes.values() for crew in crews), *paper])
    top = max([most, *(crew.scaling for crews in routes.values() for crew in crews)])
    count = sorted({crew.workers for crews in routes.values() for crew in crews} | set(paper))
    x = Axis(0.6, most + 0.4, "workers", ticks=[(w, str(w)) for w in count])
    plot = Plot(x, Axis(0, top * 1.08, "throughput over one worker"), title="Throughput against workers")
    plot.path([(0.6, 0.6), (most + 0.4, most + 0.4)], "base")
    plot.text(most, most, "ideal", dx=-8, dy=-4, anchor="end", class_="lab dim")
    for workers, (low, high) in paper.items():
        middle = (low + high) / 2
        plot.mark(workers, middle, "diamond", "t-paper", f"paper: {low} to {high} with {workers} GPUs", series="paper")
    legend = list[Series]()
    for place, (name, crews) in enumerate(routes.items()):
        series = Series(name, name, f"t{(place + 4) % TONES}", ("circle", "square", "triangle")[place % 3])
        legend.append(series)
        plot.path([(crew.workers, crew.scaling) for crew in crews], f"line {series.tone}", series=name)
        for crew in crews:
            plot.mark(crew.workers, crew.scaling, series.shape, series.tone, crew.told, series=name)
    return Figure(key, "Workers and throughput", plot.render(), note, [*legend, *([PAPER] if paper else [])])
