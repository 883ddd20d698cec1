"""Survival, widths, grouping, slots: what a campaign says of work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from drainsinkhorn_bench.report import notes, paper, words
from drainsinkhorn_bench.report.evidence import Evidence, spread
from drainsinkhorn_bench.report.figures import speed, work
from drainsinkhorn_bench.report.tables import VOID, Block, Table

PANELS = 6
"""Survival curves and width traces of a campaign; more are spread evenly over its units."""


def survivals(e: Evidence) -> Iterator[Block]:
    """Survival curves of units."""
    known = {unit: found for unit in e.units if (found := e.depths(unit))}
    shown = spread(list(known), PANELS)
    windows = list[work.Window]()
    for unit in shown:
        _, depths = known[unit]
        width = e.option(unit, "width")
        windows.append(work.Window(unit, depths, width if isinstance(width, int) and width > 0 else len(depths)))
    if not windows:
        return
    arms = {known[unit][0] for unit in shown}
    note = (
        f"Depths as the arm {' and '.join(sorted(map(e.label, arms)))} ran them. The whole area is what static windows "
    )
    note += "execute, the dark part what the problems need; windows of a unit are added up."
    if len(known) > len(shown):
        note += f" {len(shown)} of {len(known)} units, evenly spread."
    yield work.survivals(f"{e.name}-survival", windows, note)


def traces(e: Evidence) -> Iterator[Block]:
    """Widths over cycles."""
    units = dict[str, dict[str, work.Trace]]()
    for record in e.timings:
        trace = record.get("widths")
        if trace and record["repeat"] == 0 and max(width for _, width in trace) > 1:
            units.setdefault(record["unit"], {}).setdefault(record["arm"], [(at, width) for at, width in trace])
    shown = spread(list(units), PANELS)
    if shown:
        note = notes.WIDTHS
        yield work.widths(f"{e.name}-widths", {unit: units[unit] for unit in shown}, e.arms, note)


def layouts(e: Evidence) -> Iterator[Block]:
    """Grouping: padding beside the ratio it gave."""
    facts = [fact["value"] for fact in e.facts("layout")]
    here, rows = list[speed.Layout](), list[list[str]]()
    for value in facts:
        name = value["layout"]
        found = e.pair("static", "compact", [name]) if {"static", "compact"} <= e.arms.keys() else None
        theirs = paper.GROUPING.get(name)
        ratio = found.ratio if found else None
        if found and ratio is not None and found.interval is not None:
            here.append(speed.Layout(name, value["padding"], ratio, found.interval.low, found.interval.high))
        rows.append(
            [
                name,
                f"{value['h_d']:.3f}",
                f"{value['padding']:.3f}",
                f"{value['active_slots']:.3f}",
                VOID if ratio is None else words.times(ratio),
                *([f"{v:.3f}" for v in theirs[:3]] + [words.told(theirs[3])] if theirs else [words.DASH] * 4),
            ]
        )
    if not rows:
        return
    theirs_drawn = [speed.Layout(name, row[1], row[3], row[3], row[3]) for name, row in paper.GROUPING.items()]
    if here:
        note = notes.GROUPING
        yield speed.grouping(f"{e.name}-padding", here, theirs_drawn, note)
    columns = (
        "layout", ">H_D", ">padding", ">active / static slots", ">static / compact",
        ">paper: H_D", ">padding", ">active / static", ">static / active",
    )  # fmt: skip
    title = "layouts"
    note = notes.LAYOUTS
    yield Table(f"{e.name}-layouts", title, columns, rows, note, frozenset({5, 6, 7, 8}))


def resources(e: Evidence) -> Iterator[Block]:
    """Slots, energy and memory."""
    rows = list[list[str]]()
    for arm, series in e.arms.items():
        slots, needed = _total(e, arm, "slots"), _needed(e, arm)
        joules = e.median(None, arm, lambda record: record["joules"])
        peak = e.median(None, arm, lambda record: record["peak_bytes"])
        share = words.percent(needed / slots) if slots and needed else words.DASH
        cells = [words.count(slots), words.count(needed), share, _joules(joules), words.size(peak)]
        if any(cell != words.DASH for cell in cells):
            rows.append([series.label, *cells])
    if rows:
        columns = ("arm", ">slots executed", ">slots needed", ">needed / executed", ">energy", ">peak memory")
        note = notes.RESOURCES
        if e.name == "metropt3":
            static, active = paper.METRO_SLOTS
            note += f" Paper: {words.count(static)} slots static, {words.count(active)} active, "
            note += f"{paper.METRO_ENERGY}× less energy."
        if e.name in ("packer19", "attribution"):
            note += (
                " Paper (C80-LM): 100 of 256 slots removed; 880 J and 80.8 MiB masked, 688 J and 106.9 MiB compacted."
            )
        yield Table(f"{e.name}-resources", "slots, energy, memory", columns, rows, note)


def _joules(value: float | None) -> str:
    return words.DASH if value is None else f"{words.significant(value)} J"


def _needed(e: Evidence, arm: str) -> float | None:
    """Slots that the problems of an arm needed.

    In a static window all lanes run to the same depth, which does not show when each was ready. For a static arm the
    slots are therefore those of a mask or compact arm whose other options are the same; None if there is none.
    """
    options = {known["name"]: known["options"] for known in e.manifest["arms"]}
    if options[arm].get("mode") != "static":
        return _total(e, arm, "active_slots")
    rest = _but_mode(options[arm])
    for other in options:
        if options[other].get("mode") in ("mask", "compact") and _but_mode(options[other]) == rest:
            return _total(e, other, "active_slots")
    return None


def _but_mode(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key != "mode"}


def _total(e: Evidence, arm: str, what: str) -> float | None:
    values = [e.median(unit, arm, lambda record: record.get(what)) for unit in e.units]
    known = [value for value in values if value is not None]
    return sum(known) if known else None
