"""Short texts for objects that hold arrays: shapes, dtypes and counts in place of contents; tables for notebooks."""

from __future__ import annotations

import html
import itertools
import numbers
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, cast

from drainsinkhorn.model.status import Status

LONGEST = 60
"""Characters of the repr of an unknown object that are shown."""


def brief(value: object) -> str:
    """Return one line about a value: shape and dtype of an array, the length of a list, or its repr."""
    if isinstance(value, numbers.Real) and not isinstance(value, int):
        return f"{float(value):.6g}"
    shape: Any = getattr(value, "shape", None)
    dtype: Any = getattr(value, "dtype", None)
    if isinstance(shape, Sequence) and dtype is not None:
        lengths = [str(length) for length in cast("Sequence[object]", shape)]
        device = str(getattr(value, "device", "cpu"))
        where = f" on {device}" if device.startswith(("cuda", "mps", "xpu")) else ""
        return f"({', '.join(lengths)}{',' * (len(lengths) == 1)}) {str(dtype).removeprefix('torch.')}{where}"
    if type(value) in (list, tuple):
        return _describe_sequence(cast("Sequence[object]", value))
    # A named tuple has a repr of its own.
    text = " ".join(repr(value).split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def _describe_sequence(items: Sequence[object]) -> str:
    """Return the numbers of a tuple of floats, or the length of any other list or tuple."""
    floats = [item for item in items if isinstance(item, float)]
    if isinstance(items, tuple) and items and len(floats) == len(items):
        return f"({', '.join(f'{number:.6g}' for number in floats)})"
    return f"{'tuple' if isinstance(items, tuple) else 'list'} of {len(items)}"


def call(name: str, *counts: str, **fields: Any) -> str:
    """Return `name(counts, field=brief, ...)` in one line; empty counts, and fields that are None, are left out."""
    shown = [f"{field}={brief(value)}" for field, value in fields.items() if value is not None]
    return f"{name}({', '.join([*filter(None, counts), *shown])})"


def count_of(number: int, noun: str) -> str:
    """Return the number with its noun, in the plural unless it is 1."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def status_counts(statuses: Iterable[Status]) -> str:
    """Return how many problems ended in each status, as "47 CONVERGED, 1 DEPTH_LIMIT"."""
    return ", ".join(f"{count:,} {status.name}" for status, count in Counter(statuses).items())


CELL = "padding:0.1em 0.7em;border:none"
LINE = "border-bottom:1px solid rgba(128,128,128,0.5)"


def html_table(caption: str, header: Sequence[str], rows: Iterable[Sequence[Any]], foot: str = "") -> str:
    """Return a table for notebooks, without script, and in the notebook's own colours; every text is escaped.

    Args:
        caption: Text above the table.
        header: Names of the columns; empty: no header.
        rows: Cells of each row. Numbers are aligned to the right.
        foot: Text below the table.
    """
    lines = [f"<div style='font-weight:bold'>{html.escape(caption)}</div>"]
    lines.append("<table style='border-collapse:collapse;border:none'>")
    if header:
        names = "".join(f"<th style='{CELL};{LINE};text-align:left'>{html.escape(name)}</th>" for name in header)
        lines.append(f"<thead><tr>{names}</tr></thead>")
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    lines.append(f"<tbody>{body}</tbody></table>")
    if foot:
        lines.append(f"<div>{html.escape(foot)}</div>")
    return "".join(lines)


def _cell(value: Any) -> str:
    is_number = isinstance(value, numbers.Real) and value is not True and value is not False
    if is_number:
        text = f"{value:,}" if isinstance(value, int) else f"{float(value):.3g}"
    else:
        text = "" if value is None else str(value)
    return f"<td style='{CELL};text-align:{'right' if is_number else 'left'}'>{html.escape(text)}</td>"


def html_curve(values: Sequence[float], title: str, width: int = 240, height: int = 48) -> str:
    """Return a small picture of a curve as SVG, in the colour of the text.

    Args:
        values: Heights, at least 0; of more than `width` the mean of neighbours is drawn.
        title: Text that appears under the pointer.
        width: Width in pixels.
        height: Height in pixels.
    """
    top = max(values, default=0)
    if not top:
        return ""
    columns = min(width, len(values))
    edges = [round(k * len(values) / columns) for k in range(columns + 1)]
    bars = list(itertools.pairwise(edges))
    tops = [height * (1 - sum(values[i:j]) / (j - i) / top) for i, j in bars]
    step = width / columns
    steps = [f"L{k * step:.1f} {y:.1f}h{step:.1f}" for k, y in enumerate(tops)]
    path = f"M0 {height}{''.join(steps)}L{width} {height}Z"
    return (
        f"<svg width='{width}' height='{height}' viewBox='0 0 {width} {height}' role='img'>"
        f"<title>{html.escape(title)}</title><path d='{path}' fill='currentColor' fill-opacity='0.6'/></svg>"
    )
