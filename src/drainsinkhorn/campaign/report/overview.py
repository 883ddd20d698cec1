"""What the report says of all campaigns together: the claims, the ratios beside the paper's, theory, provenance."""

from __future__ import annotations

import statistics as middle
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from drainsinkhorn.campaign.report import notes, words
from drainsinkhorn.campaign.report.evidence import Evidence
from drainsinkhorn.campaign.report.figures import speed, theory
from drainsinkhorn.campaign.report.figures.frame import ALL_PADDING, MOST_PADDING, TONES, Figure, Series
from drainsinkhorn.campaign.report.figures.speed import Measured
from drainsinkhorn.campaign.report.sections import Block, Section, flags
from drainsinkhorn.campaign.report.svg import SHAPES, Axis, Plot, around
from drainsinkhorn.campaign.report.tables import Table

NULL, NEAR_NULL = 0.01, 0.005
"""How far mask / compact may be from 1 where all lanes finish together; padding up to which they do."""
PADDED, DELIVERED = 0.2, 0.92
"""Padding from which compaction must deliver, and the share of 1 + padding that it must."""
FORETOLD = 0.10
"""How far a predicted time may be from the measured one."""
CASES = 100


class Claim(NamedTuple):
    """Something that must hold.

    Attributes:
        name: What.
        asked: How it is judged.
        found: What these records say.
        holds: None where it was not measured.
        gpu: Asked of GPUs; elsewhere it is shown and not demanded.
    """

    name: str
    asked: str
    found: str
    holds: bool | None
    gpu: bool = False


def claims(every: Sequence[Evidence]) -> list[Claim]:
    """What must hold, checked against these records; what only GPUs are asked is marked as such unless one was used."""
    gpu = any(e.gpu for e in every)
    return [claim._replace(gpu=claim.gpu and not gpu) for claim in _claims(every)]


def _claims(every: Sequence[Evidence]) -> list[Claim]:
    return [_audited(every), _identity(every), *_compaction(every), _order(every), _foretold(every), *_precision(every)]


def _audited(every: Sequence[Evidence]) -> Claim:
    gates = [(e, gate) for e in every for gate in e.gates]
    void = {(e.name, *key) for e in every for key in e.void}
    cells = {(e.name, gate["unit"], gate["arm"]) for e, gate in gates}
    shares = [g["residual"] / g["tol"] for _, g in gates if g["passed"] and g["residual"] is not None]
    found = f"{len(cells) - len(void)} of {len(cells)} unit and arm pairs passed"
    found += f"; worst residual that passed {max(shares):.3f} of tol" if shares else ""
    found += f"; {len(void)} void, not timed" if void else ""
    return Claim("Every timed answer passed a float64 audit", "void is never timed", found, bool(shares) or None)


def _identity(every: Sequence[Evidence]) -> Claim:
    said = [fact["value"]["equal"] for e in every for fact in e.facts("slot_identity")]
    known = [equal for equal in said if equal is not None]
    found = f"{sum(known)} of {len(known)} equal" if known else "not measured"
    return Claim("Slots counted are those that depths demand", "equal, exactly", found, all(known) if known else None)


def padded(e: Evidence) -> Iterator[tuple[str, str, float, float]]:
    """Unit, arm compared, padding, ratio over compact, wherever compact was timed beside mask or static."""
    if "compact" not in e.arms:
        return
    for unit in e.units:
        pad = e.padding(unit)
        for arm in ("mask", "static", "row-screen"):
            found = e.pair(arm, "compact", [unit]) if arm in e.arms and pad is not None else None
            if found is not None and found.ratio is not None and pad is not None:
                yield unit, arm, pad, found.ratio
                break


def _compaction(every: Sequence[Evidence]) -> Iterator[Claim]:
    found = [(e.name, *row) for e in every for row in padded(e)]
    null = [abs(ratio - 1) for _, _, arm, pad, ratio in found if pad <= NEAR_NULL and arm == "mask"]
    text = (
        f"{words.plural(len(null), 'such unit')}, at most {words.percent(max(null), 1)} from 1"
        if null
        else "no such unit"
    )
    yield Claim("Where all lanes finish together, compaction costs nothing", "mask / compact within 1 % of 1", text,
                max(null) <= NULL if null else None, gpu=True)  # fmt: skip
    rich = [ratio / (1 + pad) for _, _, _, pad, ratio in found if pad >= PADDED]
    good = sum(share >= DELIVERED for share in rich)
    text = f"{good} of {len(rich)} units; least {min(rich):.2f} (1 + padding)" if rich else "no such unit"
    yield Claim("Where they do not, padding becomes time", "ratio at least 0.92 (1 + padding), padding ≥ 0.2",
                text, good == len(rich) if rich else None, gpu=True)  # fmt: skip


def _order(every: Sequence[Evidence]) -> Claim:
    """Ratios of layouts ordered as their padding, up to what intervals cannot tell apart."""
    rows = list[tuple[float, float, float]]()
    for e in every:
        for fact in e.facts("layout"):
            found = e.pair("static", "compact", [fact["value"]["layout"]])
            if found.interval is not None:
                rows.append((fact["value"]["padding"], found.interval.low, found.interval.high))
    rows.sort()
    pairs = [(a, b) for i, a in enumerate(rows) for b in rows[i + 1 :] if b[0] > a[0]]
    wrong = sum(a[1] > b[2] for a, b in pairs)
    found = (
        f"{len(pairs) - wrong} of {len(pairs)} pairs of layouts, within their intervals" if pairs else "not measured"
    )
    return Claim("Layouts are ordered as their padding predicts", "no pair the other way round", found,
                 not wrong if pairs else None, gpu=True)  # fmt: skip


def _errors(every: Sequence[Evidence]) -> list[float]:
    facts = [fact["value"] for e in every for fact in e.facts("predicted_time")]
    return [value["predicted"] / value["measured"] - 1 for value in facts if value["measured"]]


def _foretold(every: Sequence[Evidence]) -> Claim:
    errors = [abs(error) for error in _errors(every)]
    if not errors:
        return Claim("Time is foretold by the width-cost curve", "within 10 %", "not measured", None, gpu=True)
    good = sum(error <= FORETOLD for error in errors)
    found = f"{good} of {len(errors)}; median {words.percent(middle.median(errors), 1)}, "
    found += f"worst {words.percent(max(errors), 1)}"
    return Claim("Time is foretold by the width-cost curve", "within 10 %", found, good == len(errors), gpu=True)


def _precision(every: Sequence[Evidence]) -> Iterator[Claim]:
    cases = [fact["value"] for e in every for fact in e.facts("decision")]
    asked = [value for value in cases if value.get("guarded") is not None]
    wrong = sum(bool(value["guarded"]) != bool(value["float64"]) for value in asked)
    found = f"{wrong} of {len(asked)}" if asked else "not measured"
    holds = wrong == 0 and len(asked) >= CASES if asked else None
    yield Claim("Guarded decisions are float64's", f"0 disagree, of at least {CASES}", found, holds)
    events = [fact["value"] for e in every for fact in e.facts("shadow")]
    missed, total = (sum(value[key] for value in events) for key in ("missed_ready", "events"))
    found = f"{missed} of {words.count(total)} lanes held back" if events else "not measured"
    yield Claim("The screen holds back no lane that is ready", "0 missed", found, missed == 0 if events else None)
    tried = [fact["value"] for e in every for fact in e.facts("attack")]
    caught = sum(bool(value["caught"]) for value in tried)
    found = f"{caught} of {len(tried)} caught" if tried else "not measured"
    yield Claim("No attack on a running solve gets a wrong answer out", "all caught", found,
                caught == len(tried) if tried else None)  # fmt: skip


def claim_table(found: Sequence[Claim]) -> Table:
    """Claims as a table."""
    rows = [[claim.name, claim.asked, claim.found, STATES[state(claim)]] for claim in found]
    return Table("claims", "What must hold", ("claim", "asked", "found", "holds here"), rows)


STATES = {"yes": "holds", "no": "does not hold", "gpu": "not on this CPU; asked of GPUs", "unknown": "not measured"}


def state(claim: Claim) -> str:
    """Where a claim stands, a key of STATES."""
    if claim.holds is None:
        return "unknown"
    return "yes" if claim.holds else "gpu" if claim.gpu else "no"


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
    """Ratio over compact against padding, every unit of every campaign."""
    spots = [(e.name, *row) for e in every for row in padded(e)]
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
        errors = _errors([e])
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
            e.manifest["scale"],
            str(e.manifest["hash"])[:16],
            str(e.manifest["source"].get("commit") or words.DASH)[:10]
            + (" with changes" if e.manifest["source"].get("dirty") else ""),
            str(e.manifest["source"].get("tree_hash") or words.DASH)[:16],
            words.plural(len(e.run.hosts), "host"),
            ", ".join(f"{name} {str(value)[:12]}" for name, value in e.manifest["inputs"].items()) or "generated",
        ]
        for e in every
    ]
    columns = ("campaign", "scale", "manifest", "source commit", "package files", "hosts", "inputs (sha256)")
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
