"""Truth: decisions of each precision against float64, case by case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from drainsinkhorn_bench.report import words
from drainsinkhorn_bench.report.figures.frame import Figure
from drainsinkhorn_bench.report.svg import tag


class Case(NamedTuple):
    """A near-threshold case: float64's decision and those of the others; None where one was not asked."""

    name: str
    float64: bool
    decisions: Mapping[str, bool | None]


def decisions(key: str, cases: Sequence[Case], methods: Sequence[tuple[str, str]], note: str) -> Figure:
    """A cell for every case and method; those that disagree with float64 stand out."""
    left, height = 150, 20
    step = max(3, min(9, 940 // max(1, len(cases))))
    cell = step - 1
    width = left + step * max(1, len(cases)) + 84
    parts = list[str]()
    for row, (method, label) in enumerate(methods):
        y = row * (height + 6) + 4
        wrong = asked = 0
        parts.append(tag("text", words.html(label), x=left - 10, y=y + 14, text_anchor="end", class_="lab"))
        for place, case in enumerate(cases):
            said = case.decisions.get(method)
            asked += said is not None
            agrees = said == case.float64
            wrong += said is not None and not agrees
            kind = "unasked" if said is None else "agree" if agrees else "differ"
            verdict = "not asked" if said is None else "accepts" if said else "rejects"
            truth = "accepts" if case.float64 else "rejects"
            tip = f"{case.name}: float64 {truth}, {label} {verdict}"
            box = f"M{left + place * step} {y}h{cell}v{height}h{-cell}Z"
            parts.append(tag("path", d=box, class_=f"case {kind}", data_tip=tip))
        count = tag("tspan", str(wrong), class_="wrong" if wrong else "right")
        text = f"{count} of {asked}"
        parts.append(tag("text", text, x=left + len(cases) * step + 8, y=y + 14, class_="lab"))
    total = len(methods) * (height + 6) + 6
    size = f"0 0 {width} {total}"
    told = "Decisions that differ from float64, by case and precision"
    svg = tag("svg", "".join(parts), viewBox=size, class_="plot cases", role="img", aria_label=told)
    body = f'<div class="scroll"><div class="least">{svg}</div></div>'
    return Figure(key, "Decisions against float64, case by case", body, note, wide=True, first=True)
