"""What every figure shares: the series and their tones, the frame, and rows whose charts stretch with the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from drainsinkhorn_bench.report import words
from drainsinkhorn_bench.report.svg import SHAPES, Axis, marker, place, tag

TONES = 12
KNOWN = ("official", "width-one", "static", "mask", "compact", "default")
"""Arms that keep their tone in every figure; others take the next free one."""


class Series(NamedTuple):
    """A line of the legend: what can be switched off, how it is called, its tone and shape."""

    key: str
    label: str
    tone: str
    shape: str


PAPER = Series("paper", "paper", "t-paper", "diamond")
ALL_PADDING = Series("all", "1 + padding", "t-base", "dash")
MOST_PADDING = Series("most", "0.92 (1 + padding)", "t-faint", "dash")


def palette(names: Iterable[str], labels: dict[str, str] | None = None) -> dict[str, Series]:
    """A tone and a shape for every arm, the same wherever the arm appears."""
    found = dict[str, Series]()
    free = [tone for tone in range(TONES) if tone >= len(KNOWN)]
    for place_, name in enumerate(names):
        tone = KNOWN.index(name) if name in KNOWN else free[(place_ - len(KNOWN)) % len(free)]
        taken = {series.tone for series in found.values()}
        if f"t{tone}" in taken:
            tone = next((t for t in (*free, *range(len(KNOWN))) if f"t{t}" not in taken), tone)
        found[name] = Series(name, (labels or {}).get(name, name), f"t{tone}", SHAPES[tone % 6])
    return found


@dataclass(frozen=True)
class Figure:
    """A figure of the page.

    Attributes:
        key: Short name, unique in a report.
        title: What it shows.
        body: SVG or HTML.
        note: How to read it, and what differs from the paper.
        legend: Series that it draws.
        wide: Takes the full width.
        first: Stands before all others of its section.
    """

    key: str
    title: str
    body: str
    note: str = ""
    legend: Sequence[Series] = ()
    wide: bool = False
    first: bool = False

    def html(self) -> str:
        """As HTML."""
        legend = "".join(_button(series) for series in self.legend)
        shown = f'<div class="legend" role="group" aria-label="Series shown">{legend}</div>' if legend else ""
        note = f'<p class="note">{words.html(self.note)}</p>' if self.note else ""
        wide = " wide" if self.wide else ""
        head = f"<figcaption>{words.html(self.title)}</figcaption>" if self.title else ""
        return f'<figure class="fig{wide}" id="{escape(self.key)}">{head}{shown}{self.body}{note}</figure>'


def _button(series: Series) -> str:
    sign = tag("svg", marker(8, 7, series.shape, series.tone, size=4.4), width=16, height=14, aria_hidden="true")
    return (
        f'<button type="button" class="key" data-series="{escape(series.key)}" aria-pressed="true">'
        f"{sign}<span>{words.html(series.label)}</span></button>"
    )


class Row(NamedTuple):
    """A row of a figure that is a list: its name, what is below the name, chart, and texts to the right."""

    name: str
    below: str
    chart: str
    cells: Sequence[str]


def listing(axis: Axis, rows: Sequence[Row | str], heads: Sequence[str], kind: str = "") -> str:
    """Rows under one axis; the charts stretch with the page and the words wrap. A string is a heading between rows."""
    count = len(heads) - 1
    scale = "".join(
        tag("text", escape(text), x=f"{place(100 * share)}%", y=12, text_anchor=_anchor(share), class_="num")
        for share, text in ((axis.share(value), text) for value, text in axis.marks())
    )
    ruler = tag("svg", scale, class_="ruler", width="100%", height=16, aria_hidden="true")
    top = "".join(f'<div class="cell">{words.html(head)}</div>' for head in heads[1:])
    parts = [f'<div class="row head"><div class="name">{words.html(heads[0])}</div><div>{ruler}</div>{top}</div>']
    for row in rows:
        if isinstance(row, str):
            parts.append(f'<div class="row between"><div class="name">{words.html(row)}</div></div>')
            continue
        below = f'<span class="below">{words.html(row.below)}</span>' if row.below else ""
        cells = "".join(
            f'<div class="cell" data-head="{escape(head)}">{cell}</div>'
            for head, cell in zip(heads[1:], row.cells, strict=True)
        )
        parts.append(f'<div class="row"><div class="name">{words.html(row.name)}{below}</div>{row.chart}{cells}</div>')
    return f'<div class="listing n{count} {kind}">{"".join(parts)}</div>'


def _anchor(share: float) -> str:
    """Return the text anchor with which a label at this share of the axis stays inside the chart."""
    return "start" if share < 0.03 else "end" if share > 0.97 else "middle"


class Strip:
    """The chart of one row: marks placed in percent of its width."""

    def __init__(self, axis: Axis, height: int = 26, base: float | None = None) -> None:
        self._axis, self._height = axis, height
        self._parts = [self._upright(value, "grid") for value, _ in axis.marks()]
        if base is not None:
            self._parts.append(self._upright(base, "base"))

    def _x(self, value: float) -> str:
        return f"{place(100 * self._axis.share(value))}%"

    def _upright(self, value: float, class_: str) -> str:
        return tag("line", x1=self._x(value), x2=self._x(value), y1=0, y2=self._height, class_=class_)

    def bar(self, low: float, high: float, class_: str, tip: str, *, thick: int = 12) -> None:
        """A bar between two values."""
        left, right = sorted((self._axis.share(low), self._axis.share(high)))
        self._parts.append(
            tag(
                "rect",
                x=f"{place(100 * left)}%",
                width=f"{place(max(0.25, 100 * (right - left)))}%",
                y=(self._height - thick) / 2,
                height=thick,
                rx=2,
                class_=class_,
                data_tip=tip,
            )
        )

    def interval(self, low: float, high: float, class_: str, shift: float = 0) -> None:
        """A thin line between two values."""
        middle = self._height / 2 + shift
        ends = {"x1": self._x(low), "x2": self._x(high), "y1": middle, "y2": middle}
        self._parts.append(tag("line", **ends, class_=f"interval {class_}"))

    def mark(self, value: float, shape: str, class_: str, tip: str, *, shift: float = 0, size: float = 4.8) -> None:
        """A mark at a value."""
        inner = marker(0, 0, shape, class_, tip, size)
        middle = self._height / 2 + shift
        self._parts.append(tag("svg", inner, x=self._x(value), y=middle, overflow="visible", width=1, height=1))

    def render(self, told: str) -> str:
        """Return the SVG element; `told` is its text for screen readers."""
        body = "".join(self._parts)
        return tag("svg", body, class_="strip", width="100%", height=self._height, role="img", aria_label=told)
