"""Claims, and whether the records of a report support them."""

from __future__ import annotations

import statistics as middle
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from drainsinkhorn_bench.records import Record
from drainsinkhorn_bench.report import words
from drainsinkhorn_bench.report.evidence import Evidence, is_let_out, is_stopped
from drainsinkhorn_bench.report.tables import Table

NULL, NEAR_NULL = 0.01, 0.005
"""How far mask / compact may be from 1 where all lanes finish together; padding up to which they do."""
EVEN = {True: 0.02, False: 0.05}
"""How far static / mask may be from 1 where all lanes finish together, so that both spend equal slots: GPU, CPU."""
PADDED, DELIVERED = 0.2, 0.92
"""Padding from which compaction must deliver, and the share of 1 + padding that it must."""
RIVALS = {"mask": ("mask",), "static": ("static", "row-screen")}
"""Names of the arms that run in a mode, after the prefix that says under which audits."""
FREE = "free-"
"""Arms under our own audits. With the paper's a pass of rows every few cycles costs mask and compact the same."""
FORETOLD = 0.10
"""How far a predicted time may be from the measured one."""
CASES = 100
"""Decisions near the tolerance that must have been compared."""
NAMED = 3
"""Void units and arms that a claim names."""
STATES = {"yes": "holds", "no": "does not hold", "unknown": "not measured"}


class Claim(NamedTuple):
    """Something that must hold.

    Attributes:
        name: The statement.
        asked: How it is judged.
        found: What these records say.
        holds: None where it was not measured.
    """

    name: str
    asked: str
    found: str
    holds: bool | None


def claims(every: Sequence[Evidence]) -> list[Claim]:
    """Return the claims, each checked against these records."""
    return [
        *_audited(every), _identity(every), *_compaction(every), _even(every), _order(every), _foretold(every),
        *_precision(every),
    ]  # fmt: skip


def _audited(every: Sequence[Evidence]) -> Iterator[Claim]:
    timings = [(_attempt(e, record), record) for e in every for record in e.run.kind("timing")]
    timed, in_full = {key for key, _ in timings}, {key for key, record in timings if not record["extrapolated"]}
    audits = dict[tuple[str, ...], list[Record]]()
    for e in every:
        for gate in e.gates:
            audits.setdefault(_attempt(e, gate), []).append(gate)
    # A later audit of an attempt is written where a run contradicts the audited one, and has then failed.
    passed = {key for key, gates in audits.items() if all(g["passed"] and g["residual"] is not None for g in gates)}
    partly = {key for key, gates in audits.items() if any(g["audited"] < g["problems"] for g in gates)} & in_full
    shares = [gate["residual"] / gate["tol"] for key in passed for gate in audits[key]]
    found = f"{len(timed & passed - partly)} of {len(timed)} timed pairs of a unit and an arm passed"
    found += f"; largest residual {max(shares):.3f} of tol" if shares else ""
    found += f"; {len(audits.keys() - passed)} failed and not timed" if audits.keys() - passed else ""
    found += f"; {len(partly & passed)} audited in part" if partly & passed else ""
    yield Claim("Only answers that pass a float64 audit are timed", "each timed arm passed the audit of its unit",
                found, timed <= passed - partly if timed else None)  # fmt: skip
    exact = {(e.name, arm["name"]) for e in every for arm in e.manifest["arms"] if arm["slack"] == 1}
    own = {key for key in audits if (key[0], key[2]) in exact}
    void = sorted(own - passed)
    found = f"{len(own & passed)} of {len(own)} passed" if own else "not measured"
    found += f"; failed: {', '.join(' '.join(key[:3]) for key in void[:NAMED])}" if void else ""
    found += f" and {len(void) - NAMED} more" if len(void) > NAMED else ""
    yield Claim("Every answer of this library passes that audit", "none fails", found, not void if own else None)


def _attempt(e: Evidence, record: Record) -> tuple[str, ...]:
    """Campaign, unit, arm, host and attempt of a gate or a timing."""
    return e.name, record["unit"], record["arm"], record["host"], record["attempt"]


def _identity(every: Sequence[Evidence]) -> Claim:
    said = [fact["value"]["equal"] for e in every for fact in e.facts("slot_identity")]
    known = [equal for equal in said if equal is not None]
    found = f"equal in {sum(known)} of {len(known)} runs" if known else "not measured"
    asked = "cycles of lanes counted, and those that depths and mode imply, exactly equal"
    return Claim("Every mode does exactly the work that theory says", asked, found, all(known) if known else None)


def padded(e: Evidence, mode: str) -> Iterator[tuple[str, str, float, float]]:
    """Unit, arm, padding and ratio over compact of arms in a mode ("mask" or "static"), under the audits of both."""
    for before in ("", "sweep-", FREE):
        for arm in (before + name for name in RIVALS[mode]):
            if not {arm, f"{before}compact"} <= e.arms.keys():
                continue
            for unit in e.units:
                pad, found = e.padding(unit, f"{before}compact"), e.pair(arm, f"{before}compact", [unit])
                if pad is not None and found.ratio is not None:
                    yield unit, arm, pad, found.ratio


def _compaction(every: Sequence[Evidence]) -> Iterator[Claim]:
    """Mask over compact. Static is no stand-in for mask: it screens other lanes and leaves at other times."""
    found = [row for e in every for row in padded(e, "mask")]
    null = [abs(ratio - 1) for _, _, pad, ratio in found if pad <= NEAR_NULL]
    yield Claim("If all problems finish together, removal costs no time", "mask / compact within 1 % of 1",
                _farthest(null), max(null) <= NULL if null else None)  # fmt: skip
    for own, audits in ((True, "our checks"), (False, "the paper's checks")):
        rich = [ratio / (1 + pad) for _, arm, pad, ratio in found if pad >= PADDED and arm.startswith(FREE) == own]
        good = sum(share >= DELIVERED for share in rich)
        text = (
            f"reached in {good} of {len(rich)} units; least: {min(rich):.2f} (1 + padding)" if rich else "no such unit"
        )
        yield Claim(f"If problems finish apart, removal saves the time of the removed work ({audits})",
                    "mask / compact at least 0.92 (1 + padding) in units with padding ≥ 0.2",
                    text, good == len(rich) if rich else None)  # fmt: skip


def _even(every: Sequence[Evidence]) -> Claim:
    """Static over mask at equal slots."""
    found = list[tuple[float, float]]()
    for e in every:
        for arm in (arm for arm in RIVALS["static"] if {arm, "mask"} <= e.arms.keys()):
            for unit in e.units:
                pad, ratio = e.padding(unit), e.pair(arm, "mask", [unit]).ratio
                if pad is not None and pad <= NEAR_NULL and ratio is not None:
                    found.append((abs(ratio - 1), EVEN[e.gpu]))
    return Claim("If all problems finish together, static and mask take equal time",
                 "static / mask within 2 % of 1 on a GPU, 5 % on a CPU", _farthest([off for off, _ in found]),
                 all(off <= bound for off, bound in found) if found else None)  # fmt: skip


def _farthest(offsets: Sequence[float]) -> str:
    if not offsets:
        return "no such unit"
    return f"{words.plural(len(offsets), 'such unit')}, at most {words.percent(max(offsets), 1)} from 1"


def _order(every: Sequence[Evidence]) -> Claim:
    """Claim that layouts with more padding gain at least as much from compaction, as far as intervals can tell."""
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
        f"so in {len(pairs) - wrong} of {len(pairs)} pairs of layouts, up to their intervals"
        if pairs
        else "not measured"
    )
    return Claim("In a layout with more padding, removal saves more", "no pair of layouts the other way round", found,
                 not wrong if pairs else None)  # fmt: skip


def errors_of(every: Sequence[Evidence]) -> list[float]:
    """By how much predicted times were off, as shares of the measured ones."""
    facts = [fact["value"] for e in every for fact in e.facts("predicted_time")]
    return [value["predicted"] / value["measured"] - 1 for value in facts if value["measured"]]


def _foretold(every: Sequence[Evidence]) -> Claim:
    errors = [abs(error) for error in errors_of(every)]
    if not errors:
        return Claim("Theory predicts the time of a run", "each within 10 %", "not measured", None)
    good = sum(error <= FORETOLD for error in errors)
    found = f"{good} of {len(errors)} within 10 %; median error {words.percent(middle.median(errors), 1)}, "
    found += f"worst {words.percent(max(errors), 1)}"
    return Claim("Theory predicts the time of a run", "each within 10 %", found, good == len(errors))


def _precision(every: Sequence[Evidence]) -> Iterator[Claim]:
    cases = [fact["value"] for e in every for fact in e.facts("decision")]
    asked = [value for value in cases if value.get("guarded") is not None]
    wrong = sum(bool(value["guarded"]) != bool(value["float64"]) for value in asked)
    found = f"{wrong} of {len(asked)} differ" if asked else "not measured"
    holds = wrong == 0 and len(asked) >= CASES if asked else None
    enough = f"0 of at least {CASES} cases near tol differ"
    yield Claim("The check of this library decides as float64 does", enough, found, holds)
    events = [fact["value"] for e in every for fact in e.facts("shadow")]
    missed, total = (sum(value[key] for value in events) for key in ("missed_ready", "events"))
    found = f"verify would have passed {missed} of {words.count(total)} rejected lanes" if events else "not measured"
    yield Claim(
        "The cheap check (screen) rejects no finished problem",
        "it would have passed none",
        found,
        missed == 0 if events else None,
    )
    tried = [fact["value"] for e in every for fact in e.facts("attack")]
    stopped, out = sum(map(is_stopped, tried)), sum(map(is_let_out, tried))
    found = f"{stopped} of {len(tried)} stopped" if tried else "not measured"
    found += f"; {out} detected by the campaign's own audit alone" if out else ""
    yield Claim("No attack on a running solve gets a wrong answer out", "the library stops all of them", found,
                stopped == len(tried) if tried else None)  # fmt: skip


def claim_table(found: Sequence[Claim]) -> Table:
    """Claims as a table."""
    rows = [[claim.name, claim.asked, claim.found, STATES[state(claim)]] for claim in found]
    return Table("claims", "Claims", ("claim", "required", "measured", "holds here"), rows)


def state(claim: Claim) -> str:
    """Where a claim stands, a key of STATES."""
    if claim.holds is None:
        return "unknown"
    return "yes" if claim.holds else "no"
