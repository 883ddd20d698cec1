"""What the report says of all campaigns together: ratios beside the paper's, theory, provenance."""

from __future__ import annotations

import statistics as middle
from collections.abc import Iterator, Sequence

from drainsinkhorn_bench.report import notes, words
from drainsinkhorn_bench.report.claims import DELIVERED, RIVALS, STATES, Claim, errors_of, padded, state
from drainsinkhorn_bench.report.evidence import Evidence
from drainsinkhorn_bench.report.figures import speed, theory
from drainsinkhorn_bench.report.figures.frame import ALL_PADDING, MOST_PADDING, TONES, Figure, Series
from drainsinkhorn_bench.report.figures.speed import Measured
from drainsinkhorn_bench.report.parts.speed import flags
from drainsinkhorn_bench.report.sections import Section
from drainsinkhorn_bench.report.svg import SHAPES, Axis, Plot, around
from drainsinkhorn_bench.report.tables import Block, Table

PUBLIC = ("official", "ott")
"""Names of the arm that is a public solver, one problem after another."""
COMPARED = {
    "compact": "both with plain Sinkhorn",
    "default": "ours as shipped, with momentum and its start",
}
"""Arms that are compared with it, and what the first lines say of each."""


def opening(every: Sequence[Evidence], found: Sequence[Claim]) -> list[tuple[str, str]]:
    """Return the labels and texts of the first paragraphs: what was measured, how fast it was, which claims hold."""
    said = [("Measured", _scope(every))]
    speeds = "; ".join(text for arm in COMPARED if (text := _speed(every, arm)))
    if speeds:
        names = dict.fromkeys(e.label(arm).split(" (")[0] for e in every for arm in PUBLIC if arm in e.arms)
        said.append(("Speed", f"Time of a public solver ({' and '.join(names)}) over ours, {speeds}."))
    return [*said, ("Claims", _verdict(found))]


def _scope(every: Sequence[Evidence]) -> str:
    machines = list(dict.fromkeys(e.machine for e in every))
    scales = " and ".join(dict.fromkeys(str(e.manifest["scale"]) for e in every))
    made = sum(e.generated for e in every)
    data = (
        "all on generated data" if made == len(every) else f"{made} on generated data" if made else "all on real data"
    )
    runs = sum(len(e.timings) for e in every)
    text = (
        f"{words.plural(len(every), 'campaign')} (experiments whose settings were fixed before they ran) at {scales} "
    )
    return f"{text}scale, {data}; {words.plural(runs, 'timed run')} on {'; '.join(machines)}."


def _speed(every: Sequence[Evidence], arm: str) -> str:
    """Return by campaign the ratio of the public solver's time to that of an arm, or the range of its ratios."""
    told = list[str]()
    for e in every:
        pairs = zip(e.contrasts, e.measured, strict=True)
        rows = [
            row
            for contrast, row in pairs
            if contrast["numerator"] == arm and contrast["denominator"] in PUBLIC and contrast["endpoint"] == "e1"
        ]
        ratios = sorted(row.ratio for row in rows if row.ratio is not None)
        if ratios:
            ends = list(dict.fromkeys(map(words.times, (ratios[0], ratios[-1]))))
            scaled = any("scaled" in flag for row in rows for flag in flags(row))
            name = str(e.manifest["title"]).split(":")[0]
            told.append(f"{'about ' * scaled}{' to '.join(ends)} ({name})")
    return f"{COMPARED[arm]}: {', '.join(told)}" if told else ""


def _verdict(found: Sequence[Claim]) -> str:
    kinds = {kind: [claim.name for claim in found if state(claim) == kind] for kind in STATES}
    text = f"{len(kinds['yes'])} of {len(found)} hold"
    text += f", {len(kinds['unknown'])} not measured" if kinds["unknown"] else ""
    text += f"; {len(kinds['no'])} do not: " + ", ".join(f"“{name}”" for name in kinds["no"]) if kinds["no"] else ""
    return text + "."


def glance(every: Sequence[Evidence]) -> Section:
    """All contrasts that have a number in the paper, under one axis."""
    groups = dict[str, list[Measured]]()
    for e in every:
        rows = [row._replace(below="; ".join(flags(row))) for row in e.measured if row.paper is not None]
        if rows:
            what = "generated data" if e.generated else str(e.manifest["options"].get("data", "real data"))
            groups[f"{e.manifest['title']} · {e.machine} · {what}"] = rows
    note = notes.GLANCE
    blocks = [speed.forest("glance-forest", "", groups, note)] if groups else []
    return Section("glance", "Here and in the paper", "", blocks=[*blocks])


def foretold(every: Sequence[Evidence]) -> Section:
    """Theory beside measurement, over all campaigns."""
    blocks = [*_promise(every), *_times(every), *_depths(every), *_identities(every), *_even(every)]
    lead = notes.THEORY
    return Section("theory", "Theory beside measurement", lead, blocks=blocks)


def _series(place: int, name: str) -> Series:
    return Series(name, name, f"t{(place + 4) % TONES}", SHAPES[place % 6])


def _promise(every: Sequence[Evidence]) -> Iterator[Figure]:
    """Draw the ratio of mask or static time to compact time against padding, for every unit of every campaign."""
    spots = [(e.name, *row) for e in every for mode in RIVALS for row in padded(e, mode)]
    if not spots:
        return
    ends = around([1.0, *(1 + pad for *_, pad, _ in spots)], log=True)
    y_ends = around([*(ratio for *_, ratio in spots), *ends], log=True, room=0.04)
    plot = Plot(
        Axis(*ends, "1 + padding", log=True),
        Axis(*y_ends, "mask or static / compact", log=True),
        title="Ratio over compact against padding, every unit",
        height=360,
        grid="xy",
    )
    plot.path([(end, end) for end in ends], "base", series=ALL_PADDING.key)
    plot.path([(end, DELIVERED * end) for end in ends], "dashed faint", series=MOST_PADDING.key)
    names = list(dict.fromkeys(name for name, *_ in spots))
    legend = [_series(place, name) for place, name in enumerate(names)]
    for name, unit, arm, pad, ratio in spots:
        series = legend[names.index(name)]
        tip = f"{name}, {unit}: {arm} / compact {words.times(ratio)}, 1 + padding {1 + pad:.3f}"
        plot.mark(1 + pad, ratio, series.shape, series.tone, tip, series=name)
    note = notes.PADDING
    yield Figure(
        "theory-padding",
        "What padding promises, and what compaction delivers",
        plot.render(),
        note,
        [*legend, ALL_PADDING, MOST_PADDING],
    )


def _times(every: Sequence[Evidence]) -> Iterator[Figure]:
    found = dict[Series, list[theory.Foretold]]()
    for e in every:
        spots = list[theory.Foretold]()
        for fact in e.facts("predicted_time"):
            value = fact["value"]
            off = theory.error_text(value["predicted"], value["measured"])
            told = f"{e.name}, {fact['unit']}, {fact['arm']}: predicted {words.seconds(value['predicted'])}, "
            told += f"measured {words.seconds(value['measured'])} ({off})"
            spots.append(theory.Foretold(value["predicted"], value["measured"], told))
        if spots:
            found[_series(len(found), e.name)] = spots
    if found:
        note = notes.FORETOLD
        yield theory.predicted_times("theory-time", found, note)


def _depths(every: Sequence[Evidence]) -> Iterator[Figure]:
    kinds = {
        "full": Series("full", "full spectrum", "t4", "circle"),
        "lambda2": Series("lambda2", "λ₂ alone", "t5", "triangle"),
    }
    found: dict[Series, list[theory.Foretold]] = {series: [] for series in kinds.values()}
    for e in every:
        for fact in e.facts("modal"):
            for value in fact["value"]:
                for kind, series in kinds.items():
                    if value.get("depth") and value.get(kind):
                        told = f"{e.name}, {fact['unit']}, problem {value['problem']}, {value['start']} start, "
                        told += f"tol {words.tolerance(value['tol'])}: {series.label} {value[kind]}, "
                        told += f"measured {value['depth']}"
                        found[series].append(theory.Foretold(value[kind], value["depth"], told))
    if any(found.values()):
        note = notes.MODAL
        yield theory.depths("theory-depth", {series: spots for series, spots in found.items() if spots}, note)


def _identities(every: Sequence[Evidence]) -> Iterator[Block]:
    rows = list[list[str]]()
    for e in every:
        facts = [fact["value"] for fact in e.facts("slot_identity")]
        known = [value for value in facts if value["equal"] is not None]
        errors = errors_of([e])
        if not facts and not errors:
            continue
        counted = sum(value["counted"] for value in known)
        rows.append(
            [
                e.name,
                f"{sum(value['equal'] for value in known)} of {len(known)}" if known else words.DASH,
                words.count(counted) if known else words.DASH,
                words.count(len(errors)) if errors else words.DASH,
                words.percent(middle.median(map(abs, errors)), 1) if errors else words.DASH,
                words.percent(max(map(abs, errors)), 1) if errors else words.DASH,
            ]
        )
    if rows:
        columns = (
            "campaign", ">slot identities that hold", ">slots counted", ">predicted times", ">median error", ">worst",
        )  # fmt: skip
        yield Table("theory-identities", "Slots and times, predicted and counted", columns, rows)


def _even(every: Sequence[Evidence]) -> Iterator[Block]:
    rows = list[list[str]]()
    for e in every:
        for fact in e.facts("break_even"):
            said = ", ".join(
                f"{row['width']}: {'never' if row['shrink'] is None else row['shrink']}" for row in fact["value"]
            )
            cycles = fact["value"][0]["cycles"] if fact["value"] else words.DASH
            where = f"{e.name}, {fact['unit']}"
            rows.append([where, e.label(fact["arm"]) if fact["arm"] else words.DASH, words.plain(cycles), said])
    if rows:
        columns = (
            "unit",
            "arm",
            ">cycles to the next audit",
            "width: fewest lanes that must leave for a repack to pay",
        )
        yield Table("theory-even", "Break-even of a repack", columns, rows, folded=len(rows) > 6)


def provenance(every: Sequence[Evidence]) -> Section:
    """Where the numbers come from."""
    rows = [
        [
            e.name,
            f"drain bench run {e.name} --scale {e.manifest['scale']}",
            str(e.manifest["hash"])[:16],
            str(e.manifest["source"].get("commit") or words.DASH)[:10]
            + (" with changes" if e.manifest["source"].get("dirty") else ""),
            str(e.manifest["source"].get("tree_hash") or words.DASH)[:16],
            words.plural(len(e.run.hosts), "host"),
            ", ".join(f"{name} {str(value)[:12]}" for name, value in e.manifest["inputs"].items()) or "generated",
        ]
        for e in every
    ]
    columns = ("campaign", "made by", "manifest", "source commit", "package files", "hosts", "inputs (sha256)")
    made = Table("provenance-table", "Manifests", columns, rows)
    hosts = {key: facts for e in every for key, facts in e.run.hosts.items()}
    host_rows = [
        [
            key,
            str(facts.get("processor") or words.DASH),
            words.plain(facts.get("cores")),
            f"{facts.get('memory_gib')} GiB" if facts.get("memory_gib") else words.DASH,
            str(facts.get("gpu") or "none"),
            str(facts.get("driver_version") or words.DASH),
        ]
        for key, facts in hosts.items()
    ]
    machines = Table("hosts", "Machines", ("host", "processor", ">cores", ">memory", "GPU", "driver"), host_rows)
    names = sorted({name for e in every for name in e.manifest["versions"]})
    versions = [
        [name, ", ".join(sorted({str(e.manifest["versions"][name]) for e in every if name in e.manifest["versions"]}))]
        for name in names
    ]
    packages = Table("versions", "Versions", ("package", "version"), versions, folded=True)
    lead = notes.PROVENANCE
    return Section("provenance", "Provenance", lead, blocks=[made, machines, packages])
