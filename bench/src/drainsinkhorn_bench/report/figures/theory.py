"""Theory beside measurement: predicted and measured times, and depths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from drainsinkhorn_bench.report import words
from drainsinkhorn_bench.report.figures.frame import Figure, Series
from drainsinkhorn_bench.report.svg import WIDE, Axis, Plot, around, time_ticks


class Foretold(NamedTuple):
    """A predicted time and the measured one, in seconds."""

    predicted: float
    measured: float
    told: str


def predicted_times(key: str, found: Mapping[Series, Sequence[Foretold]], note: str) -> Figure:
    """Predicted against measured seconds, with the band of ten percent."""
    values = [v for spots in found.values() for spot in spots for v in (spot.predicted, spot.measured)]
    ends = around(values, log=True)
    ticks = time_ticks(*ends)
    x, y = Axis(*ends, "measured", log=True, ticks=ticks), Axis(*ends, "predicted", log=True, ticks=ticks)
    plot = Plot(x, y, title="Predicted against measured time", height=360, grid="xy", margins=WIDE)
    low, high = ends
    band = [(low, low), (low / 0.9, low), (high, 0.9 * high), (high, high), (high / 1.1, high), (low, 1.1 * low)]
    plot.path(band, "band", close=True)
    plot.path([(low, low), (high, high)], "base")
    _spots(plot, found)
    return Figure(key, "Predicted against measured time", plot.render(), note, list(found))


def depths(key: str, found: Mapping[Series, Sequence[Foretold]], note: str) -> Figure:
    """Predicted against measured depth, from the whole spectrum and from the slowest mode alone."""
    values = [v for spots in found.values() for spot in spots for v in (spot.predicted, spot.measured)]
    ends = around([value for value in values if value > 0], log=True)
    x, y = Axis(*ends, "measured depth (cycles)", log=True), Axis(*ends, "predicted depth", log=True)
    plot = Plot(x, y, title="Predicted against measured depth", height=360, grid="xy")
    plot.path([(ends[0], ends[0]), (ends[1], ends[1])], "base")
    _spots(plot, found)
    return Figure(key, "Depth foretold by the modal response", plot.render(), note, list(found))


def _spots(plot: Plot, found: Mapping[Series, Sequence[Foretold]]) -> None:
    for series, spots in found.items():
        for spot in spots:
            plot.mark(spot.measured, spot.predicted, series.shape, series.tone, spot.told, series=series.key)


def error_text(predicted: float, measured: float) -> str:
    """How far a prediction was off, with its sign."""
    return f"{100 * (predicted / measured - 1):+.1f} %" if measured else words.DASH
