"""What the report says of one campaign: figures and tables for whatever its records hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from drainsinkhorn.campaign.report import notes, paper, words
from drainsinkhorn.campaign.report.evidence import ENDPOINTS, Evidence, spread
from drainsinkhorn.campaign.report.figures import machine, speed, truth, work
from drainsinkhorn.campaign.report.figures.frame import TONES, Figure, Series
from drainsinkhorn.campaign.report.svg import SHAPES
from drainsinkhorn.campaign.report.tables import VOID, Table

Block = Figure | Table
PANELS = 6
"""Survival curves and width traces of a campaign; more are spread evenly over its units."""
FEW_UNITS, FEW_ARMS = 8, 6


@dataclass(frozen=True)
class Section:
    """A part of the report.

    Attributes:
        key: Anchor.
        title: Heading.
        lead: What is asked.
        chips: Short facts shown under the heading.
        differs: What is not as in the paper.
        blocks: Figures and tables.
    """

    key: str
    title: str
    lead: str = ""
    chips: Sequence[tuple[str, str]] = ()
    differs: Sequence[str] = ()
    blocks: Sequence[Block] = field(default_factory=tuple[Block, ...])


def section(e: Evidence) -> Section:
    """The section of a campaign."""
    parts: tuple[Callable[[Evidence], Iterator[Block]], ...] = (
        ratios, sweeps, frontier, layouts, decisions, attacks, shadow, crews,
        survivals, traces, times, native, quality, curves, kernels,
        resources, settings, gates, left_out,
    )  # fmt: skip
    blocks = sorted((block for part in parts for block in part(e)), key=_rank)
    blocks = [replace(b, about=e.manifest["title"]) if isinstance(b, Table) else b for b in blocks]
    lead = notes.INTRODUCTIONS.get(e.name, "")
    return Section(e.name, e.manifest["title"], lead, chips(e), differs(e), blocks)


def _rank(block: Block) -> int:
    """First the ratios, then small figures beside one another, wide ones, tables, and what is folded."""
    if isinstance(block, Table):
        return 4 if block.folded else 3
    return 0 if block.first else 2 if block.wide else 1


def chips(e: Evidence) -> list[tuple[str, str]]:
    """Short facts: kind and text."""
    failed = len(e.void)
    standing = len({(gate["unit"], gate["arm"]) for gate in e.gates}) - failed
    found = [
        ("machine", e.machine),
        (
            "warn" if e.generated else "data",
            "generated data" if e.generated else e.manifest["options"].get("data", "data"),
        ),
        ("scale", f"{e.manifest['scale']} scale"),
    ]
    if e.timings:
        found.append(("plain", words.plural(len(e.timings), "timed run")))
    if standing or failed:
        found.append(("good", f"{words.plural(standing, 'gate')} passed"))
    if failed:
        found.append(("bad", f"{failed} void"))
    return found


def differs(e: Evidence) -> list[str]:
    """Sentences on what is not as in the paper."""
    said = [sentence(text) for text in e.manifest["options"].get("differs", ())]
    setting = paper.SETTINGS.get(e.name)
    if setting is not None:
        said.insert(0, f"Measured on {e.machine}; the paper's numbers come from {setting.machine} ({setting.source}).")
    return list(dict.fromkeys(said))


def sentence(text: str) -> str:
    """A sentence with its capital and its full stop."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def ratios(e: Evidence) -> Iterator[Block]:
    """All contrasts; as a waterfall where each begins with the arm that the one before ended with."""
    rows = e.measured
    if not rows:
        return
    chain = _chain(e.manifest["contrasts"])
    if len(chain) >= 3:
        note = notes.WATERFALL
        steps = [rows[place]._replace(below=_becomes(e, rows[place], place)) for place in chain]
        yield speed.waterfall(f"{e.name}-waterfall", steps, note)
        rest = [row for place, row in enumerate(rows) if place not in chain]
    else:
        rest = rows
    if rest:
        note = notes.RATIOS
        yield speed.forest(f"{e.name}-ratios", "Ratios of times", {"": rest}, note)
    yield _ratio_table(e)


def _becomes(e: Evidence, row: speed.Measured, place: int) -> str:
    """What a step of the waterfall leads to, and what must be known of it."""
    return "; ".join(["to " + e.label(e.manifest["contrasts"][place]["numerator"]), *flags(row)])


def flags(row: speed.Measured) -> list[str]:
    """What must be known of a ratio wherever it is shown."""
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
                else " ".join((words.span(theirs.low, theirs.high), theirs.spread)).strip(),
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
    """By arms, then by the value that all units of a contrast share."""
    found = dict[tuple[str, str], dict[float, speed.Measured]]()
    for contrast, row in zip(e.manifest["contrasts"], e.measured, strict=True):
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
    """Time against the deviation of the output."""
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


METHODS = (("fp32", "fp32"), ("tf32", "TF32"), ("split", "fp16 split"), ("guarded", "guarded"))


def decisions(e: Evidence) -> Iterator[Block]:
    """Decisions of each precision against float64."""
    facts = [fact["value"] for fact in e.facts("decision")]
    if not facts:
        return
    facts.sort(key=lambda value: (value.get("delta") or 0.0, str(value["case"])))
    cases = [
        truth.Case(str(value["case"]), bool(value["float64"]), {key: value.get(key) for key, _ in METHODS})
        for value in facts
    ]
    asked = [(key, label) for key, label in METHODS if any(case.decisions[key] is not None for case in cases)]
    note = notes.DECISIONS
    yield truth.decisions(f"{e.name}-decisions", cases, asked, note)
    rows = list[list[str]]()
    for key, label in asked:
        said = [(case.decisions[key], case.float64) for case in cases if case.decisions[key] is not None]
        early = sum(bool(mine) and not true for mine, true in said)
        late = sum(not mine and true for mine, true in said)
        theirs = paper.PRECISION_DISAGREE.get(key)
        quoted = f"{theirs} of {paper.PRECISION_CASES}" if theirs is not None else words.DASH
        rows.append([label, words.count(len(said)), str(early + late), str(early), str(late), quoted])
    columns = (
        "decisions of",
        ">cases",
        ">disagree with float64",
        ">passed too early",
        ">held too long",
        ">paper disagree",
    )
    gaps = [abs(value["screen_gap"]) for value in facts if value.get("screen_gap") is not None]
    note = (
        f"Largest difference between a screen and the row residual of its verify: {words.small(max(gaps))}. "
        if gaps
        else ""
    )
    raised = sum(bool(value.get("escalated")) for value in facts)
    note += f"Guarded went to float64 in {words.plural(raised, 'case')}. " if raised else ""
    note += "Paper: 84 cases and 16 attacks together, fp32 and TF32 three each, guarded none (C10)."
    yield Table(f"{e.name}-disagree", "disagreements", columns, rows, note, frozenset({5}))


def attacks(e: Evidence) -> Iterator[Block]:
    """Attacks on a running solve; a line for each kind and outcome, with the numbers of workers it was tried on."""
    facts = [fact["value"] for fact in e.facts("attack")]
    if not facts:
        return
    tried = dict[tuple[str, str, str], list[str]]()
    for value in facts:
        outcome = "caught" if value["caught"] else "missed"
        key = (str(value["attack"]), outcome, str(value.get("how") or ""))
        tried.setdefault(key, []).append(words.plain(value.get("workers")))
    rows = [[attack, ", ".join(workers), outcome, how] for (attack, outcome, how), workers in tried.items()]
    caught = sum(bool(value["caught"]) for value in facts)
    title = f"attacks, {caught} of {len(facts)} caught"
    yield Table(f"{e.name}-attacks", title, ("attack", ">workers", "outcome", "how"), rows)


def shadow(e: Evidence) -> Iterator[Block]:
    """Shadow replay: every lane that the screen held back, verified beside it."""
    rows = [
        [
            str(fact["value"].get("windows") or fact["unit"] or fact.get("study")),
            words.count(fact["value"]["events"]),
            words.count(fact["value"]["missed_ready"]),
            words.small(fact["value"].get("largest_row_gap")),
        ]
        for fact in e.facts("shadow")
    ]
    if not rows:
        return
    events, missed, gap = paper.SHADOW
    rows.append(["paper", words.count(events), words.count(missed), words.small(gap)])
    columns = ("windows", ">lanes held back by the screen", ">of them ready", ">largest gap of row residuals")
    yield Table(f"{e.name}-shadow", "shadow replay", columns, rows)


def crews(e: Evidence) -> Iterator[Block]:
    """Workers and throughput."""
    routes = dict[str, list[machine.Crew]]()
    rows = list[list[str]]()
    for fact in e.facts("workers"):
        value = fact["value"]
        name = str(value.get("route") or fact["unit"] or "windows")
        scaling = value["efficiency"] * value["workers"]
        told = f"{name}: {words.plural(value['workers'], 'worker')}, {words.times(scaling)}, "
        told += f"efficiency {words.percent(value['efficiency'], 1)}, {words.seconds(value['seconds'])}"
        routes.setdefault(name, []).append(machine.Crew(value["workers"], scaling, told))
        efficiency = words.percent(value["efficiency"], 1)
        rows.append([name, str(value["workers"]), words.seconds(value["seconds"]), words.times(scaling), efficiency])
    if not rows:
        return
    for found in routes.values():
        found.sort()
    cores = e.manifest["machine"].get("cores")
    most = max(crew.workers for found in routes.values() for crew in found)
    note = notes.WORKERS
    if not e.gpu and cores and most > cores:
        note += f" This machine has {words.plural(cores, 'core')}; more workers than that share them."
    yield machine.scaleout(f"{e.name}-workers", routes, paper.SCALEOUT, note)
    low, high = paper.SCALEOUT[4]
    rows.append(["paper", "4", words.DASH, f"{low}–{high}×", words.percent(low / 4, 1)])
    columns = ("route", ">workers", ">seconds", ">throughput over one", ">efficiency")
    yield Table(f"{e.name}-worker-table", "workers", columns, rows)


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


def native(e: Evidence) -> Iterator[Block]:
    """What a threshold on the change of potentials reaches."""
    theirs = {row[0]: row for row in paper.NATIVE}
    rows = list[list[str]]()
    for fact in e.facts("native_threshold"):
        value = fact["value"]
        quoted = theirs.get(value["threshold"])
        rows.append(
            [
                words.tolerance(value["threshold"]),
                words.plain(value.get("depth")) + (" (cap)" if value.get("capped") else ""),
                words.small(value.get("residual")),
                words.small(value.get("tv")),
                words.seconds(value.get("seconds")),
                *(
                    [words.small(quoted[1]), words.small(quoted[2]), words.seconds(quoted[3])]
                    if quoted
                    else [words.DASH] * 3
                ),
            ]
        )
    if rows:
        columns = (
            ">threshold", ">depth", ">residual reached", ">deviation", ">seconds",
            ">paper: residual", ">deviation", ">seconds",
        )  # fmt: skip
        title = "what a threshold on the change of potentials reaches"
        ran = dict.fromkeys(str(f["value"]["by"]) for f in e.facts("native_threshold") if f["value"].get("by"))
        note = (f"Here: {', '.join(ran)}. " if ran else "") + notes.NATIVE
        yield Table(f"{e.name}-native", title, columns, rows, note, frozenset({5, 6, 7}))


MEASURES = {"curvature": "curvature", "fm_mse": "held-out FM error", "frechet": "projected Fréchet"}


def quality(e: Evidence) -> Iterator[Block]:
    """The nine gates of flow matching."""
    rows = list[list[str]]()
    for fact in e.facts("gates_nine"):
        for value in fact["value"] if isinstance(fact["value"], list) else [fact["value"]]:
            measure = str(value.get("metric"))
            quoted = paper.QUALITY.get(value.get("nfe"), {}).get(measure)
            rows.append(
                [
                    words.plain(value.get("nfe")),
                    MEASURES.get(measure, measure),
                    words.plain(value.get("official")),
                    words.plain(value.get("compact")),
                    f"{value['ratio']:.4f}" if value.get("ratio") is not None else words.DASH,
                    words.plain(value.get("limit", paper.QUALITY_LIMITS.get(measure))),
                    "yes" if value.get("passed") else "no",
                    f"{quoted[1] / quoted[0]:.4f}" if quoted else words.DASH,
                ]
            )
    if rows:
        columns = (
            ">evaluations", "measure", ">official", ">compact", ">ratio", ">allowed", "passed", ">paper: ratio",
        )  # fmt: skip
        title = "quality of the trained flow"
        note = notes.QUALITY
        yield Table(f"{e.name}-quality", title, columns, rows, note, frozenset({7}))


def curves(e: Evidence) -> Iterator[Block]:
    """Cost of a cycle by width."""
    found = dict[str, dict[int, float]]()
    for fact in e.facts("curve"):
        value = fact["value"]
        name = ", ".join(part for part in (fact["unit"], e.label(fact["arm"]) if fact["arm"] else None) if part)
        found[name] = dict(zip(value["widths"], value["seconds"], strict=True))
    if found:
        note = notes.CURVE
        yield machine.cost_curve(f"{e.name}-curve", {name: found[name] for name in spread(list(found), 5)}, note)


def kernels(e: Evidence) -> Iterator[Block]:
    """Kernels against their floor."""
    values = [fact["value"] for fact in e.facts("roofline")]
    found = [machine.Kernel(str(v["kernel"]), v["seconds"], v["floor"], str(v.get("bound", ""))) for v in values]
    if found:
        note = notes.ROOFLINE
        yield machine.roofline(f"{e.name}-roofline", found, note)


def resources(e: Evidence) -> Iterator[Block]:
    """Slots, energy and memory."""
    rows = list[list[str]]()
    for arm, series in e.arms.items():
        slots, needed = (_total(e, arm, what) for what in ("slots", "active_slots"))
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


def _total(e: Evidence, arm: str, what: str) -> float | None:
    values = [e.median(unit, arm, lambda record: record.get(what)) for unit in e.units]
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def settings(e: Evidence) -> Iterator[Block]:
    """Configuration, here and in the paper."""
    setting = paper.SETTINGS.get(e.name)
    audits = {arm["options"].get("audit", {}).get("every") for arm in e.manifest["arms"] if arm["options"].get("audit")}
    every = ", ".join(sorted(words.plain(value) if value is not None else "as the backend likes" for value in audits))
    data = "generated" if e.generated else str(e.manifest["options"].get("data", ", ".join(e.manifest["inputs"])))
    here = {
        "data": data,
        "n": words.plain(e.options("n")),
        "width": words.plain(e.options("width")),
        "eps": words.plain(e.options("eps")),
        "audits every": every or words.DASH,
        "tolerance": ", ".join(words.tolerance(tol) for tol in e.options("tol")),
        "units": words.plural(len(e.units), "unit") if e.units else words.plural(len(e.manifest["studies"]), "study"),
        "machine": e.machine,
    }
    theirs = {
        "data": setting.data,
        "n": words.plain(setting.n),
        "width": words.plain(setting.width),
        "eps": words.plain(setting.eps),
        "audits every": words.plain(setting.every),
        "tolerance": ", ".join(words.tolerance(tol) for tol in setting.tol),
        "units": setting.units,
        "machine": setting.machine,
    } if setting else {}  # fmt: skip
    rows = [[name, value or words.DASH, theirs.get(name) or words.DASH] for name, value in here.items()]
    name = setting.name if setting else "paper"
    title = "configuration"
    yield Table(f"{e.name}-settings", title, ("", "here", f"paper ({name})"), rows, paper=frozenset({2}), folded=True)


def gates(e: Evidence) -> Iterator[Block]:
    """Every gate."""
    rows = [
        [
            gate["unit"],
            e.label(gate["arm"]),
            "passed" if gate["passed"] else VOID,
            words.small(gate["residual"]),
            words.tolerance(gate["tol"]),
            f"{gate.get('audited', gate['problems'])} of {gate['problems']}",
            gate.get("arithmetic") or words.DASH,
            gate.get("note") or "",
        ]
        for gate in e.gates
    ]
    if rows:
        columns = ("unit", "arm", "gate", ">largest residual", ">tolerance", ">audited", "arithmetic", "note")
        note = notes.GATES
        yield Table(f"{e.name}-gates", "gates", columns, rows, note, folded=True)


def left_out(e: Evidence) -> Iterator[Block]:
    """What did not run, and void arms."""
    rows = list[list[str]]()
    for fact in e.facts("skipped"):
        arm = e.arms[fact["arm"]].label if fact["arm"] in e.arms else fact["arm"] or words.DASH
        rows.append([fact["unit"] or fact.get("study") or words.DASH, arm, "not run", words.plain(fact["value"])])
    rows = [list(row) for row in dict.fromkeys(map(tuple, rows))]
    rows += [[g["unit"], e.label(g["arm"]), VOID, g.get("note") or ""] for g in e.gates if not g["passed"]]
    closed = {name for _, name in e.run.closed}
    missing = [u["name"] for u in (*e.manifest["units"], *e.manifest["studies"]) if u["name"] not in closed]
    rows += [[name, "all", "not yet run", "the run was stopped before it; drain bench run goes on"] for name in missing]
    if e.run.abandoned or e.run.torn:
        said = f"{words.plural(e.run.abandoned, 'record')} of interrupted attempts, "
        said += words.plural(e.run.torn, "torn line")
        rows.append(["raw file", words.DASH, "left out", said])
    if rows:
        title = "what is void, was not run or is left out"
        yield Table(f"{e.name}-left-out", title, ("unit", "arm", "state", "why"), rows)
