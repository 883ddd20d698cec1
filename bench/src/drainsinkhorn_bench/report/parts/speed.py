"""Ratios, sweeps, raw times, time against deviation: what a campaign says of speed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from drainsinkhorn_bench.report import notes, paper, words
from drainsinkhorn_bench.report.evidence import ENDPOINTS, Evidence
from drainsinkhorn_bench.report.figures import speed
from drainsinkhorn_bench.report.figures.frame import TONES, Series
from drainsinkhorn_bench.report.svg import SHAPES
from drainsinkhorn_bench.report.tables import VOID, Block, Table

FEW_UNITS, FEW_ARMS = 8, 6
"""Units up to which a table of seconds is open, arms up to which they are its columns."""


def ratios(e: Evidence) -> Iterator[Block]:
    """All contrasts; as a waterfall where each begins with the arm that the one before ended with."""
    rows = e.measured
    if not rows:
        return
    chain = _chain(e.contrasts)
    if len(chain) >= 3:
        note = notes.WATERFALL
        steps = [rows[place]._replace(below=_becomes(e, rows[place], place)) for place in chain]
        yield speed.waterfall(f"{e.name}-waterfall", steps, note)
        rest = [row for place, row in enumerate(rows) if place not in chain]
    else:
        rest = rows
    if rest:
        note = notes.RATIOS
        yield speed.forest(f"{e.name}-ratios", "Ratios of times", {"": _once(rest)}, note)
    yield _ratio_table(e)


def _once(rows: Sequence[speed.Measured]) -> list[speed.Measured]:
    """Rows that say what they compare only where it is not what the row above said."""
    above = ""
    shown = list[speed.Measured]()
    for row in rows:
        shown.append(row._replace(below="; ".join(flags(row))) if row.below == above else row)
        above = row.below
    return shown


def _becomes(e: Evidence, row: speed.Measured, place: int) -> str:
    """Return the label of the arm to which a step of the waterfall leads, and the remarks on its ratio."""
    return "; ".join(["to " + e.label(e.contrasts[place]["numerator"]), *flags(row)])


def flags(row: speed.Measured) -> list[str]:
    """Return the remarks shown with a ratio everywhere: that seconds were scaled up, or that units are void."""
    return [part for part in row.below.split("; ") if part.startswith("scaled") or part.endswith("void")]


def _chain(contrasts: Sequence[Mapping[str, Any]]) -> list[int]:
    """Places of contrasts that follow one another, each starting from the arm where the one before ended."""
    chain = list[int]()
    for place, contrast in enumerate(contrasts):
        if not chain or contrast["denominator"] == contrasts[chain[-1]]["numerator"]:
            chain.append(place)
    return chain


def _ratio_table(e: Evidence) -> Table:
    rows = list[list[str]]()
    for row in e.measured:
        theirs = row.paper
        rows.append(
            [
                row.name,
                row.below,
                row.missing if row.ratio is None else words.times(row.ratio),
                words.DASH if row.ratio is None else words.span(row.low, row.high),
                row.wins,
                words.DASH if theirs is None else words.told(theirs.value),
                words.DASH
                if theirs is None
                else " ".join((words.told_span(theirs.low, theirs.high), theirs.spread)).strip(),
                words.DASH if theirs is None else theirs.source,
            ]
        )
    columns = ("contrast", "arms and endpoint", ">here", ">95 %", ">wins", ">paper", "its interval", "in the paper")
    title = "ratios"
    return Table(f"{e.name}-ratio-table", title, columns, rows, paper=frozenset({5, 6, 7}), folded=True)


def sweeps(e: Evidence) -> Iterator[Block]:
    """Ratios along tolerances or widths, where contrasts of the same arms are asked of units that differ in them."""
    for option, across in (("tol", "tolerance"), ("width", "width of the window (lanes)")):
        levels, theirs = dict[Series, list[speed.Level]](), dict[str, list[tuple[float, paper.Ratio]]]()
        for (top, bottom), found in _along(e, option).items():
            drawn = [(value, row) for value, row in sorted(found.items()) if row.ratio is not None]
            if len(drawn) < 3:
                continue
            name = f"{top} / {bottom}"
            tone = (4 + len(levels)) % TONES
            levels[Series(name, name, f"t{tone}", SHAPES[len(levels) % 6])] = [_level(option, *pair) for pair in drawn]
            quotes = [(value, row.paper) for value, row in sorted(found.items()) if row.paper is not None]
            theirs |= {name: quotes} if quotes else {}
        if levels:
            title = f"Ratios against {'tolerance' if option == 'tol' else 'width'}"
            yield speed.sweep(f"{e.name}-by-{option}", title, across, levels, theirs, notes.SWEEP)


def _along(e: Evidence, option: str) -> dict[tuple[str, str], dict[float, speed.Measured]]:
    """Return E1 ratios by pair of arms, then by the option's value, for contrasts whose units share one value."""
    found = dict[tuple[str, str], dict[float, speed.Measured]]()
    for contrast, row in zip(e.contrasts, e.measured, strict=True):
        values = {e.option(unit, option) for unit in contrast["units"] or ()}
        if len(values) == 1 and contrast["endpoint"] == "e1":
            (value,) = values
            if isinstance(value, int | float):
                found.setdefault((contrast["denominator"], contrast["numerator"]), {})[value] = row
    return found


def _level(option: str, value: float, row: speed.Measured) -> speed.Level:
    label = words.tolerance(value) if option == "tol" else words.plain(value)
    told = f"{row.name}: {words.times(row.ratio)} {words.span(row.low, row.high)}, {row.wins} pairs won"
    return speed.Level(value, label, row.ratio or 1.0, row.low, row.high, told)


def frontier(e: Evidence) -> Iterator[Block]:
    """Yield a figure and a table of time against the deviation of the output."""
    spots = list[speed.Spot]()
    for fact in e.facts("tv"):
        seconds = e.typical(fact["unit"], fact["arm"]) if fact["unit"] and fact["arm"] else None
        value = fact["value"]
        deviation = max(value) if isinstance(value, list) else value
        if seconds is not None and isinstance(deviation, int | float):
            spots.append(speed.Spot(fact["arm"], e.units[fact["unit"]]["tol"], deviation, seconds))
    if len(spots) < 2:
        return
    theirs = list[speed.Spot]()
    if e.name == "packer19":
        theirs = [speed.Spot("compact", 1e-3, paper.PARETO[1e-3][6], paper.SECONDS["packer19"]["compact"])]
    note = notes.PARETO
    if theirs:
        note += " The paper gives a time at 1e-3 alone (tab:absolute-ot-times, tab:packer-pareto)."
    yield speed.pareto(f"{e.name}-pareto", spots, e.arms, theirs, note)
    yield _deviations(e, spots)


def _deviations(e: Evidence, spots: Sequence[speed.Spot]) -> Table:
    """By tolerance: the largest residual and deviation, beside the paper's."""
    rows = list[list[str]]()
    for tol in sorted({spot.tol for spot in spots}):
        units = {unit for unit in e.units if e.units[unit]["tol"] == tol}
        residuals = [gate["residual"] for gate in e.gates if gate["unit"] in units and gate["passed"]]
        ours = max(spot.deviation for spot in spots if spot.tol == tol)
        theirs = paper.PARETO.get(tol) if e.name == "packer19" else None
        known = [residual for residual in residuals if residual is not None]
        rows.append(
            [
                words.tolerance(tol),
                words.small(max(known)) if known else words.DASH,
                words.small(ours),
                words.small(theirs[5]) if theirs else words.DASH,
                words.small(theirs[6]) if theirs else words.DASH,
            ]
        )
    columns = (">tolerance", ">largest residual", ">largest deviation", ">paper: residual", ">paper: deviation")
    note = notes.DEVIATIONS
    title = "what each tolerance reaches"
    return Table(f"{e.name}-deviations", title, columns, rows, note, frozenset({3, 4}))


def times(e: Evidence) -> Iterator[Block]:
    """Every timed run, and medians."""
    for endpoint, ending in ENDPOINTS.items():
        runs = [
            speed.Timed(
                record["arm"],
                record["unit"],
                record["seconds"][endpoint],
                f"{e.label(record['arm'])}, {record['unit']}, repeat {record['repeat'] + 1}: "
                f"{words.seconds(record['seconds'][endpoint])}" + (", scaled up" if record["extrapolated"] else ""),
            )
            for record in e.timings
            if record["seconds"].get(endpoint) is not None
        ]
        if not runs:
            continue
        if endpoint == "e1" or not any(r["seconds"].get("e1") is not None for r in e.timings):
            note = notes.TIMES
            yield speed.raw_times(
                f"{e.name}-times-{endpoint}", f"Every timed run, seconds {ending}", runs, e.arms, note
            )
        yield _medians(e, endpoint, ending)


def _medians(e: Evidence, endpoint: str, ending: str) -> Table:
    arms = [arm for arm in e.arms if any(e.typical(unit, arm, endpoint) is not None for unit in e.units)]
    scaled = {(r["unit"], r["arm"]) for r in e.timings if r["extrapolated"]}

    def cell(unit: str, arm: str) -> str:
        value = e.typical(unit, arm, endpoint)
        shown = VOID if (unit, arm) in e.void else words.seconds(value)
        return f"~{shown}" if (unit, arm) in scaled and value is not None else shown

    rows = [[unit, *(cell(unit, arm) for arm in arms)] for unit in e.units]
    theirs = paper.SECONDS.get(e.name) if endpoint == "e1" else None
    if theirs:
        rows.append(["paper", *(words.seconds(theirs.get(arm)) for arm in arms)])
    note = "Medians of the repeats." + (" ~: scaled up from some of the problems." if scaled else "")
    note += " Paper: tab:absolute-ot-times, at 1e-3." if theirs else ""
    columns = ("unit", *(f">{e.label(arm)}" for arm in arms))
    if len(arms) > FEW_ARMS and len(rows) <= FEW_ARMS:
        lines = [[e.label(arm) for arm in arms], *(row[1:] for row in rows)]
        columns = ("arm", *(f">{row[0]}" for row in rows))
        rows = [list(line) for line in zip(*lines, strict=True)]
    title = f"seconds {ending} ({endpoint.upper()})"
    folded = len(rows) > FEW_UNITS or endpoint != "e1"
    return Table(f"{e.name}-seconds-{endpoint}", title, columns, rows, note, folded=folded)
