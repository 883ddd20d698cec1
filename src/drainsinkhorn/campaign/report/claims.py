"""What must hold, and whether these records say so."""

from __future__ import annotations

import statistics as middle
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from drainsinkhorn.campaign.report import words
from drainsinkhorn.campaign.report.evidence import Evidence
from drainsinkhorn.campaign.report.tables import Table

NULL, NEAR_NULL = 0.01, 0.005
"""How far mask / compact may be from 1 where all lanes finish together; padding up to which they do."""
PADDED, DELIVERED = 0.2, 0.92
"""Padding from which compaction must deliver, and the share of 1 + padding that it must."""
FREE = "free-"
"""Arms under our own audits. With the paper's a pass of rows every few cycles costs mask and compact the same."""
FORETOLD = 0.10
"""How far a predicted time may be from the measured one."""
CASES = 100
STATES = {"yes": "holds", "no": "does not hold", "gpu": "not on this CPU; asked of GPUs", "unknown": "not measured"}


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
    """Unit, arm compared, padding, ratio over compact, wherever our kernels ran compact beside mask or static."""
    for before in ("", "sweep-", FREE):
        if f"{before}compact" not in e.arms:
            continue
        rivals = [arm for mode in ("mask", "static", "row-screen") if (arm := before + mode) in e.arms]
        for unit in e.units:
            pad = e.padding(unit, f"{before}compact")
            if pad is None:
                continue
            for arm in rivals:
                found = e.pair(arm, f"{before}compact", [unit])
                if found.ratio is not None:
                    yield unit, arm.removeprefix("sweep-"), pad, found.ratio
                    break


def _compaction(every: Sequence[Evidence]) -> Iterator[Claim]:
    found = [(e.name, *row) for e in every for row in padded(e)]
    null = [abs(ratio - 1) for _, _, arm, pad, ratio in found if pad <= NEAR_NULL and arm in ("mask", f"{FREE}mask")]
    text = (
        f"{words.plural(len(null), 'such unit')}, at most {words.percent(max(null), 1)} from 1"
        if null
        else "no such unit"
    )
    yield Claim("Where all lanes finish together, compaction costs nothing", "mask / compact within 1 % of 1", text,
                max(null) <= NULL if null else None, gpu=True)  # fmt: skip
    for own, audits in ((True, "free screen, first passage"), (False, "the paper's audits")):
        rich = [ratio / (1 + pad) for _, _, arm, pad, ratio in found if pad >= PADDED and arm.startswith(FREE) == own]
        good = sum(share >= DELIVERED for share in rich)
        text = f"{good} of {len(rich)} units; least {min(rich):.2f} (1 + padding)" if rich else "no such unit"
        yield Claim(f"Where lanes finish apart, padding becomes time ({audits})",
                    "ratio at least 0.92 (1 + padding), padding ≥ 0.2",
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


def errors_of(every: Sequence[Evidence]) -> list[float]:
    """By how much predicted times were off, as shares of the measured ones."""
    facts = [fact["value"] for e in every for fact in e.facts("predicted_time")]
    return [value["predicted"] / value["measured"] - 1 for value in facts if value["measured"]]


def _foretold(every: Sequence[Evidence]) -> Claim:
    errors = [abs(error) for error in errors_of(every)]
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


def state(claim: Claim) -> str:
    """Where a claim stands, a key of STATES."""
    if claim.holds is None:
        return "unknown"
    return "yes" if claim.holds else "gpu" if claim.gpu else "no"
