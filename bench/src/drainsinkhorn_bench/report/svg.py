"""Charts as SVG text: scales, ticks, marks. The same input gives the same bytes; colours come from the style sheet."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from drainsinkhorn_bench.report import words

Point = tuple[float, float]
WIDE = (68, 18, 16, 46)
"""Margins of a chart whose vertical ticks are times."""
SHAPES = ("circle", "square", "triangle", "diamond", "down", "cross")


def place(value: float) -> str:
    """A coordinate, to a hundredth."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def tag(name: str, body: str | None = None, **attributes: object) -> str:
    """An element. `class_` is class, other underscores are hyphens; None leaves an attribute out."""
    parts = [name]
    for key, value in attributes.items():
        if value is None:
            continue
        text = place(value) if isinstance(value, float) else str(value)
        parts.append(f'{key.rstrip("_").replace("_", "-")}="{escape(text)}"')
    head = " ".join(parts)
    return f"<{head}/>" if body is None else f"<{head}>{body}</{name}>"


@dataclass(frozen=True)
class Axis:
    """One direction of a chart.

    Attributes:
        low: Value at its start.
        high: Value at its end.
        label: What it measures, with unit.
        log: Logarithmic.
        ticks: Values and labels, where the usual ones will not do.
    """

    low: float
    high: float
    label: str = ""
    log: bool = False
    ticks: Sequence[tuple[float, str]] | None = None

    def share(self, value: float) -> float:
        """How far along a value lies, from 0 to 1; values outside go to the edge."""
        low, high, value = (math.log(max(v, 1e-300)) if self.log else v for v in (self.low, self.high, value))
        return min(1.0, max(0.0, (value - low) / (high - low))) if high > low else 0.5

    def marks(self, about: int = 5) -> list[tuple[float, str]]:
        """Tick values and their labels."""
        if self.ticks is not None:
            return list(self.ticks)
        values = log_ticks(self.low, self.high, about) if self.log else linear_ticks(self.low, self.high, about)
        return [(value, tick_text(value)) for value in values]


def linear_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round values between low and high."""
    if not high > low:
        return [low]
    raw = (high - low) / about
    base = 10.0 ** math.floor(math.log10(raw))
    step = next(base * m for m in (1, 2, 2.5, 5, 10) if base * m >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def whole_ticks(high: float, about: int = 4) -> list[tuple[float, str]]:
    """Round whole numbers from 0."""
    return [(value, f"{value:g}") for value in linear_ticks(0, high, about) if value == int(value)]


def log_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round values between low and high on a logarithmic axis: decades, or finer steps where few decades are seen."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    found = list[float]()
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
        values = [round(m * 10.0**k, 12 - k) for k in range(first, last + 1) for m in steps]
        found = [value for value in values if low * 0.999 <= value <= high * 1.001]
        if len(found) >= min(about - 1, 3):
            break
    if len(found) < 3:
        found = [value for value in linear_ticks(low, high, about) if value > 0]
    every = math.ceil(len(found) / (about + 2))
    return found[::every]


def tick_text(value: float) -> str:
    """Return a tick as text, such as 20k from 10,000 on; powers of ten from a million on and below 0.01."""
    size = abs(value)
    if value == 0:
        return "0"
    if size >= 10000 or size < 0.01:
        mantissa, exponent = f"{value:.1e}".split("e")
        if size < 1e6 and size >= 10000:
            return f"{value / 1000:g}k"
        head = mantissa.removesuffix(".0")
        return words.raised(f"{head}e{int(exponent)}")
    return f"{value:g}"


def time_ticks(low: float, high: float, about: int = 5) -> list[tuple[float, str]]:
    """Ticks of a logarithmic axis of seconds, each with its unit."""
    return [(value, words.brief_seconds(value)) for value in log_ticks(low, high, about)]


def apart(ticks: Sequence[tuple[float, str]], axis: Axis, least: float, keep: float) -> list[tuple[float, str]]:
    """Ticks that stand at least so far apart, as a share of the axis; one of them stays in any case."""
    kept = [tick for tick in ticks if tick[0] == keep]
    for tick in ticks:
        if all(abs(axis.share(tick[0]) - axis.share(other[0])) >= least for other in kept):
            kept.append(tick)
    return sorted(kept)


def around(values: Iterable[float], *, log: bool = False, room: float = 0.08, keep: Iterable[float] = ()) -> Point:
    """Ends of an axis that shows all values with some room, and what is to be kept in sight."""
    every = [value for value in (*values, *keep) if math.isfinite(value) and (value > 0 or not log)]
    if not every:
        return (1.0, 10.0) if log else (0.0, 1.0)
    low, high = min(every), max(every)
    if log:
        if high / low < 1.02:
            low, high = low / 1.3, high * 1.3
        grow = (high / low) ** room
        return low / grow, high * grow
    if high == low:
        low, high = low - abs(low) * 0.5 - 1e-12, high + abs(high) * 0.5 + 1e-12
    return low - (high - low) * room, high + (high - low) * room


class Plot:
    """A chart that is drawn part by part and ends in one SVG element.

    Args:
        x: Horizontal axis.
        y: Vertical axis.
        title: What a reader who cannot see it is told.
        width: Of the view box.
        height: Of the view box.
        margins: Left, right, top, bottom.
        grid: Lines at the ticks: any of "x" and "y".
    """

    def __init__(
        self,
        x: Axis,
        y: Axis,
        *,
        title: str,
        width: int = 460,
        height: int = 290,
        margins: tuple[int, int, int, int] = (52, 18, 16, 46),
        grid: str = "y",
    ) -> None:
        self.x, self.y, self._title, self._grid = x, y, title, grid
        self.width, self.height = width, height
        self.left, self.right = margins[0], width - margins[1]
        self.top, self.bottom = margins[2], height - margins[3]
        self._parts = list[str]()

    def at(self, x: float, y: float) -> Point:
        """Where a value lies in the view box."""
        return (
            self.left + self.x.share(x) * (self.right - self.left),
            self.bottom - self.y.share(y) * (self.bottom - self.top),
        )

    def add(self, element: str, series: str | None = None) -> None:
        """Add an element; one of a series can be switched off by the legend."""
        self._parts.append(element if series is None else tag("g", element, data_s=series))

    def path(self, points: Sequence[Point], class_: str, *, series: str | None = None, close: bool = False) -> None:
        """Join points by straight lines."""
        if points:
            text = "M" + "L".join(f"{place(px)} {place(py)}" for px, py in (self.at(*p) for p in points))
            self.add(tag("path", class_=class_, d=text + ("Z" if close else "")), series)

    def mark(self, x: float, y: float, shape: str, class_: str, tip: str, *, series: str | None = None) -> None:
        """A data point, with what is shown when the pointer rests on it."""
        self.add(marker(*self.at(x, y), shape, class_, tip), series)

    def whisker(self, x: float, low: float, high: float, class_: str, *, series: str | None = None) -> None:
        """A vertical interval."""
        (px, top), (_, bottom) = self.at(x, high), self.at(x, low)
        text = f"M{place(px)} {place(top)}V{place(bottom)}"
        text += "".join(f"M{place(px - 4)} {place(at)}h8" for at in (top, bottom))
        self.add(tag("path", class_=f"whisker {class_}", d=text), series)

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        dx: float = 0,
        dy: float = 0,
        anchor: str = "start",
        class_: str = "lab",
    ) -> None:
        """Words at a data point, moved by some units of the view box."""
        px, py = self.at(x, y)
        self.add(tag("text", escape(words), x=px + dx, y=py + dy, text_anchor=anchor, class_=class_))

    def names(self, spots: Sequence[tuple[float, float, str]]) -> None:
        """Name data points, to the right or on the side where there is room, one name above the other."""
        sides: dict[str, list[tuple[float, float, str]]] = {"start": [], "end": []}
        for x, y, text in spots:
            px, py = self.at(x, y)
            sides["start" if px < 0.62 * self.right else "end"].append((py, px, text))
        for anchor, found in sides.items():
            last = -math.inf
            for py, px, text in sorted(found):
                last = max(py + 4, last + 13)
                at = px + (9 if anchor == "start" else -9)
                self.add(tag("text", escape(text), x=float(at), y=float(last), text_anchor=anchor, class_="lab"))

    def zone(self, x0: float, x1: float, tip: str) -> None:
        """An unseen band over the full height that tells something when the pointer is in it."""
        (left, _), (right, _) = self.at(x0, self.y.low), self.at(x1, self.y.low)
        box = f"M{place(left)} {self.top}H{place(right)}V{self.bottom}H{place(left)}Z"
        self.add(tag("path", d=box, class_="zone", data_tip=tip))

    def render(self) -> str:
        """The SVG element."""
        body = [tag("title", escape(self._title)), *self._axes(), *self._parts]
        size = f"0 0 {self.width} {self.height}"
        return tag("svg", "".join(body), viewBox=size, class_="plot", role="img", aria_label=self._title)

    def _axes(self) -> list[str]:
        parts = list[str]()
        for value, text in self.x.marks():
            px, _ = self.at(value, self.y.low)
            if "x" in self._grid:
                parts.append(tag("path", class_="grid", d=f"M{place(px)} {self.top}V{self.bottom}"))
            parts.append(tag("path", class_="tick", d=f"M{place(px)} {self.bottom}v4"))
            parts.append(tag("text", escape(text), x=px, y=self.bottom + 17, text_anchor="middle", class_="num"))
        for value, text in self.y.marks():
            _, py = self.at(self.x.low, value)
            if "y" in self._grid:
                parts.append(tag("path", class_="grid", d=f"M{self.left} {place(py)}H{self.right}"))
            parts.append(tag("text", escape(text), x=self.left - 7, y=py + 3.8, text_anchor="end", class_="num"))
        parts.append(tag("path", class_="axis", d=f"M{self.left} {self.bottom}H{self.right}"))
        middle = (self.left + self.right) / 2
        if self.x.label:
            label = escape(self.x.label)
            parts.append(tag("text", label, x=middle, y=self.height - 8, text_anchor="middle", class_="axlab"))
        if self.y.label:
            at = f"translate(13 {place((self.top + self.bottom) / 2)}) rotate(-90)"
            parts.append(tag("text", escape(self.y.label), transform=at, text_anchor="middle", class_="axlab"))
        return parts


def marker(px: float, py: float, shape: str, class_: str, tip: str | None = None, size: float = 4.6) -> str:
    """A mark of some shape; shapes tell series apart where colours cannot."""
    s = size
    paths = {
        "square": f"M{place(px - s)} {place(py - s)}h{place(2 * s)}v{place(2 * s)}h{place(-2 * s)}Z",
        "triangle": f"M{place(px)} {place(py - 1.25 * s)}l{place(1.2 * s)} {place(2.1 * s)}h{place(-2.4 * s)}Z",
        "down": f"M{place(px)} {place(py + 1.25 * s)}l{place(1.2 * s)} {place(-2.1 * s)}h{place(-2.4 * s)}Z",
        "diamond": f"M{place(px)} {place(py - 1.35 * s)}l{place(1.35 * s)} {place(1.35 * s)}"
        f"l{place(-1.35 * s)} {place(1.35 * s)}l{place(-1.35 * s)} {place(-1.35 * s)}Z",
        "cross": f"M{place(px - s)} {place(py - s)}l{place(2 * s)} {place(2 * s)}"
        f"m0 {place(-2 * s)}l{place(-2 * s)} {place(2 * s)}",
        "dash": f"M{place(px - 1.4 * s)} {place(py)}h{place(2.8 * s)}",
    }
    common = {"class_": f"mark {shape} {class_}", "data_tip": tip}
    if shape in paths:
        return tag("path", d=paths[shape], **common)
    return tag("circle", cx=float(px), cy=float(py), r=float(s), **common)
