"""Decisions, attacks, shadow replay, quality, gates: what a campaign says of truth, and what it leaves out."""

from __future__ import annotations

from collections.abc import Iterator

from drainsinkhorn_bench.report import notes, paper, words
from drainsinkhorn_bench.report.evidence import Evidence, is_let_out, is_stopped
from drainsinkhorn_bench.report.figures import truth
from drainsinkhorn_bench.report.tables import VOID, Block, Table

METHODS = (("fp32", "fp32"), ("tf32", "TF32"), ("split", "fp16 split"), ("guarded", "guarded"))


def decisions(e: Evidence) -> Iterator[Block]:
    """Yield a figure and a table that compare the pass decisions of each precision with those of float64."""
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
    """Yield a table of attacks: how each ended, what stopped it, and with which numbers of workers it was tried."""
    facts = [fact["value"] for fact in e.facts("attack")]
    if not facts:
        return
    tried = dict[tuple[str, str, str, str], list[str]]()
    for value in facts:
        guard = words.GUARDS.get(str(value.get("stopped_by")), words.DASH)
        outcome = "stopped" if is_stopped(value) else "let out" if is_let_out(value) else "not as foretold"
        key = (str(value["attack"]), outcome, guard, str(value.get("how") or ""))
        tried.setdefault(key, []).append(words.plain(value.get("workers")))
    rows = [[attack, ", ".join(workers), *rest] for (attack, *rest), workers in tried.items()]
    stopped, out = sum(map(is_stopped, facts)), sum(map(is_let_out, facts))
    title = f"attacks, {stopped} of {len(facts)} stopped by the library"
    title += f", {out} seen by the external audit alone" if out else ""
    yield Table(f"{e.name}-attacks", title, ("attack", ">workers", "outcome", "guard", "how"), rows, notes.ATTACKS)


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


MEASURES = {"curvature": "curvature", "loss": "held-out FM error", "frechet": "projected Fréchet"}


def quality(e: Evidence) -> Iterator[Block]:
    """The nine gates of flow matching."""
    rows = list[list[str]]()
    for fact in e.facts("gates_nine"):
        for value in fact["value"]["rows"]:
            quoted = paper.QUALITY.get(value["nfe"], {}).get(value["metric"])
            rows.append(
                [
                    str(value["nfe"]),
                    MEASURES.get(str(value["metric"]), str(value["metric"])),
                    words.significant(value["public"], 4),
                    words.significant(value["complete"], 4),
                    f"{value['ratio']:.4f}",
                    f"{value['margin']:.2f}",
                    "yes" if value["passed"] else "no",
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
        value = fact["value"]
        why = f"{value['what']}: {value['why']}" if isinstance(value, dict) else str(value)
        rows.append([fact["unit"] or fact.get("study") or words.DASH, arm, "not run", why])
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
