from __future__ import annotations

import gc
import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy

import drainsinkhorn as ds
from drainsinkhorn.core.executor import execute
from drainsinkhorn.core.ledger import Ledger
from drainsinkhorn.core.options import Options
from drainsinkhorn.core.source import Admission, Batch
from drainsinkhorn.model.errors import FileError, OptionsError
from drainsinkhorn.testing import ScriptedBackend
from drainsinkhorn.testing.auditor import marginal_errors
from drainsinkhorn.testing.scripted import scripted
from drainsinkhorn_bench import gate, meters, records, runner, statistics, theory
from drainsinkhorn_bench.plan import Arm, Campaign, Contrast, Finding, Loaded, Outcome, Ran, Study, Unit, Work

CPU = meters.place("cpu")


def go(campaign: Campaign, folder: Path, **how: Any) -> tuple[runner.Ended, records.Run]:
    ended = runner.run(campaign, folder, CPU, **how)
    return ended, records.read(folder)


def test_a_campaign_from_gate_to_summary(tmp_path: Path):
    ended, run = go(toy.campaign(), tmp_path)
    assert ended.complete
    assert (ended.done, ended.void) == (3, {})
    gates = run.kind("gate")
    assert len(gates) == 2 * 3
    assert all(g["passed"] and 0 < g["residual"] <= 1e-3 and len(g["depths"]) == toy.WIDTH for g in gates)
    assert len(run.kind("timing")) == 2 * 2 * 3
    assert [fact["value"] for fact in run.facts("h_d")] == [0.5]
    found = statistics.summarise(run, run.manifest["contrasts"][0])
    assert found.pairs == 4
    assert found.ratio is not None


def test_slots_are_what_depths_demand(tmp_path: Path):
    _, run = go(toy.campaign(), tmp_path)
    identities = run.facts("slot_identity")
    assert len(identities) == 2 * 3
    assert all(fact["value"]["equal"] and fact["value"]["counted"] > 0 for fact in identities)
    by_arm = {t["arm"]: t for t in run.kind("timing")}
    assert by_arm["compact"]["slots"] == by_arm["compact"]["active_slots"] < by_arm["mask"]["slots"]
    trace = by_arm["compact"]["widths"]
    assert trace[0] == [0, toy.WIDTH]
    assert trace[-1][1] == 0
    assert [width for _, width in trace] == sorted((width for _, width in trace), reverse=True)


@pytest.mark.parametrize("ladder", [False, True])
@pytest.mark.parametrize("mode", ["width-one", "static", "mask", "compact"])
def test_slots_of_a_ladder_are_those_of_its_rungs(mode: str, ladder: bool):
    """Depths 3, 5, 5, 9, 12 in windows of four, looked at every second cycle: lanes leave at 4, 6, 6, 10 and 12."""
    backend, audit = ScriptedBackend(ladder=ladder), ds.Audit(every=2, first_passage=False)
    ledger = Ledger()
    waiting = Batch([Admission(ticket, scripted(depth)) for ticket, depth in enumerate((3, 5, 5, 9, 12))])
    plan = Options(mode=mode, width=4, audit=audit).plan(None)
    for _ in execute(backend, waiting, plan, ledger):
        pass
    by_hand = {"width-one": 38, "static": 4 * 10 + 12, "mask": 4 * 10 + 12, "compact": 38}[mode]
    if ladder and mode == "compact":
        # Widths 4 for 4 cycles, 3 (a rung of 4) for 2, 1 for 4; then 1 for 12.
        by_hand = 4 * 4 + 4 * 2 + 1 * 4 + 12
    told = theory.slot_identity(ledger, Ran(mode, 4, audit, "none", backend))
    assert told == {"predicted": by_hand, "counted": by_hand, "equal": True}


def test_gates_come_before_timings_and_orders_are_balanced(tmp_path: Path):
    units = [Unit(name="u", load=toy.load, repeats=6)]
    _, run = go(toy.campaign(units=units), tmp_path)
    kinds = [r["kind"] for r in run.records if r["kind"] in ("gate", "timing")]
    assert kinds == ["gate"] * 3 + ["timing"] * 18
    places = [(t["arm"], t["position"]) for t in run.kind("timing")]
    assert all(places.count((arm, place)) == 2 for arm in ("static", "mask", "compact") for place in range(3))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7])
def test_a_williams_square_balances_places_and_predecessors(count: int):
    whole = count * (1 + count % 2)
    rows = runner.orders(count, whole)
    assert all(sorted(row) == list(range(count)) for row in rows)
    for place in range(count):
        held = [row[place] for row in rows]
        assert all(held.count(arm) == whole // count for arm in range(count))
    after = [pair for row in rows for pair in itertools.pairwise(row)]
    assert len({after.count((i, j)) for i in range(count) for j in range(count) if i != j}) <= 1


def lying(work: Work) -> Outcome:
    """Says that it is done and gives potentials of nothing."""
    answers = {t: ds.Potentials(np.zeros(40), np.zeros(40)) for t in range(len(work.problems))}
    return Outcome(answers=answers, e1=1e-9)


def breaking(_: Work) -> Outcome:
    raise RuntimeError("no such kernel")


def lazy(work: Work) -> Outcome:
    whole = toy.ours("compact")(work)
    return replace(whole, answers={0: whole.answers[0]})


def poisoned(work: Work) -> Outcome:
    whole = toy.ours("compact")(work)
    f, g = whole.answers[2]
    return replace(whole, answers={**whole.answers, 2: ds.Potentials(f * np.nan, g)})


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (lying, "more than 0.001"),
        (breaking, "RuntimeError: no such kernel"),
        (lazy, "3 of 4 problems have no answer"),
        (poisoned, "problem 2 has no finite residual"),
    ],
)
def test_an_arm_that_fails_its_gate_is_void_and_harms_no_other(
    tmp_path: Path, run: Callable[[Work], Outcome], reason: str
):
    bad = toy.arm("mask", run=run)
    ended, found = go(toy.campaign(arms=[bad, toy.arm("compact")]), tmp_path)
    assert set(ended.void) == {("seed0", "mask"), ("seed1", "mask")}
    assert reason in ended.void["seed0", "mask"]
    assert {t["arm"] for t in found.kind("timing")} == {"compact"}
    contrast = statistics.summarise(found, found.manifest["contrasts"][0])
    assert contrast.ratio is None
    assert contrast.void == ("seed0", "seed1")


def test_a_part_that_is_extrapolated_passes_on_what_it_has(tmp_path: Path):
    def some(work: Work) -> Outcome:
        return replace(lazy(work), extrapolated=True)

    ended, found = go(toy.campaign(arms=[toy.arm("mask", run=some), toy.arm("compact")]), tmp_path)
    assert not ended.void
    assert statistics.summarise(found, found.manifest["contrasts"][0]).extrapolated


def test_a_first_run_that_had_no_time_for_all_problems_is_not_the_audited_one(tmp_path: Path):
    """A peer that compiles in its first run solves one problem in it, and all of them in the runs that are timed."""
    calls = list[str]()

    def compiling(work: Work) -> Outcome:
        calls.append(work.unit.name)
        return replace(lazy(work), extrapolated=True) if len(calls) == 1 else toy.ours("mask")(work)

    _, found = go(toy.campaign(arms=[toy.arm("mask", run=compiling), toy.arm("compact")]), tmp_path)
    assert [g["audited"] for g in found.kind("gate") if g["arm"] == "mask"] == [4, 4]
    assert not any(t["extrapolated"] for t in found.kind("timing"))


def test_a_timed_run_that_contradicts_its_gate_makes_the_arm_void(tmp_path: Path):
    seen = iter(range(100))

    def changing(work: Work) -> Outcome:
        outcome = toy.ours("mask")(work)
        return outcome if next(seen) < 2 else replace(outcome, depths=[1, 2, 3, 4])

    units = [Unit(name="u", load=toy.load, repeats=4)]
    ended, found = go(toy.campaign(arms=[toy.arm("mask", run=changing), toy.arm("compact")], units=units), tmp_path)
    assert "other depths" in ended.void["u", "mask"]
    assert len([t for t in found.kind("timing") if t["arm"] == "mask"]) == 1
    assert statistics.summarise(found, found.manifest["contrasts"][0]).pairs == 0


def test_an_arm_that_cannot_run_here_is_skipped_with_its_reason(tmp_path: Path):
    absent = toy.arm("mask", available=lambda: "needs a CUDA device")
    _, run = go(toy.campaign(arms=[absent, toy.arm("compact")]), tmp_path)
    assert {(f["unit"], f["arm"], f["value"]) for f in run.facts("skipped")} == {
        (unit, "mask", "needs a CUDA device") for unit in ("seed0", "seed1")
    }
    assert {g["arm"] for g in run.kind("gate")} == {"compact"}


def test_a_run_goes_on_where_it_stopped_and_edits_nothing(tmp_path: Path):
    ended, _ = go(toy.campaign(), tmp_path, seconds=0.0)
    assert ended.done == 1
    before = (tmp_path / records.RAW).read_bytes()
    while not ended.complete:
        ended, run = go(toy.campaign(), tmp_path, seconds=0.0)
    after = (tmp_path / records.RAW).read_bytes()
    assert after.startswith(before)
    assert len(run.kind("timing")) == 12
    assert len([line for line in after.splitlines() if json.loads(line)["kind"] == "host"]) == 1
    ended, _ = go(toy.campaign(), tmp_path)
    assert ended.complete
    assert (tmp_path / records.RAW).read_bytes() == after


def test_an_interrupted_unit_is_begun_again_and_its_half_is_left_out(tmp_path: Path):
    class Killed(BaseException):
        pass

    calls = iter(range(100))

    def dying(work: Work) -> Outcome:
        if next(calls) == 2:
            raise Killed
        return toy.ours("mask")(work)

    plan = toy.campaign(arms=[toy.arm("mask", run=dying), toy.arm("compact")])
    with pytest.raises(Killed):
        go(plan, tmp_path)
    half = records.read(tmp_path)
    assert half.records == []
    assert half.abandoned > 0
    ended, run = go(plan, tmp_path)
    assert ended.complete
    assert run.abandoned == half.abandoned
    assert len(run.kind("timing")) == 8


def test_a_torn_last_line_is_dropped_and_spoils_nothing_that_follows(tmp_path: Path):
    go(toy.campaign(), tmp_path, seconds=0.0)
    raw = tmp_path / records.RAW
    whole = raw.read_bytes()
    raw.write_bytes(whole[:-20])
    torn = records.read(tmp_path)
    assert torn.torn == 1
    assert torn.closed == {}
    ended, run = go(toy.campaign(), tmp_path)
    assert ended.complete
    assert run.torn == 1
    assert len(run.kind("timing")) == 12


def test_another_manifest_is_refused_and_says_what_changed(tmp_path: Path):
    go(toy.campaign(), tmp_path)
    with pytest.raises(FileError, match="seed: 0 became 1"):
        go(toy.campaign(seed=1), tmp_path)


def test_time_left_is_told(tmp_path: Path):
    ticks = list[runner.Tick]()
    go(toy.campaign(), tmp_path, tell=ticks.append)
    assert ticks[0].left is None
    assert ticks[-1].left is not None
    assert [tick.done for tick in ticks] == sorted(tick.done for tick in ticks)
    assert [tick.what for tick in ticks[-2:]] == ["find", "done"]
    assert ticks[-1].left == 0


def test_a_study_that_fails_is_void_and_the_run_goes_on(tmp_path: Path):
    def fail(_: Any) -> Any:
        yield Finding("half", 1)
        raise RuntimeError("out of memory")

    studies = [Study(name="bad", run=fail), Study(name="find", run=toy.find)]
    ended, run = go(toy.campaign(studies=studies), tmp_path)
    assert ended.void == {("bad", "study"): "RuntimeError: out of memory"}
    assert run.facts("half") == []
    assert len(run.facts("h_d")) == 1
    assert not ended.complete


def test_a_unit_without_its_data_is_told_and_stays_open(tmp_path: Path):
    def absent() -> Loaded:
        raise FileError("metropt3.npz is not there")

    units = [Unit(name="bad", load=absent), Unit(name="good", load=toy.load, repeats=1)]
    ended, run = go(toy.campaign(units=units), tmp_path)
    assert ended.void == {("bad", "load"): "FileError: metropt3.npz is not there"}
    assert set(run.closed) == {("unit", "good"), ("study", "find")}


def test_reconstructed_e1_takes_the_consumer_off_inside_the_unit(tmp_path: Path):
    def consuming(work: Work) -> Outcome:
        return replace(toy.ours("mask")(work), e1=None, e2=3.0, consumer=1.0)

    contrasts = [
        Contrast(name="e1", numerator="compact", denominator="mask"),
        Contrast(name="e2", numerator="compact", denominator="mask", endpoint="e2"),
    ]

    def direct(work: Work) -> Outcome:
        return replace(toy.ours("compact")(work), e1=1.0, e2=2.0)

    plan = toy.campaign(arms=[toy.arm("mask", run=consuming), toy.arm("compact", run=direct)], contrasts=contrasts)
    _, run = go(plan, tmp_path)
    e1, e2 = (statistics.summarise(run, contrast) for contrast in run.manifest["contrasts"])
    assert (e1.ratio, e2.ratio) == pytest.approx((2.0, 1.5))
    assert (e1.reconstructed, e2.reconstructed) == (True, False)


def test_theory_stands_beside_what_was_measured(tmp_path: Path):
    units = [Unit(name="u", load=toy.load, repeats=3, theory=0.5, modal=1)]
    _, run = go(toy.campaign(units=units), tmp_path)
    (curve,) = run.facts("curve")
    assert curve["value"]["widths"] == [1, 2, 3, 4]
    assert len(curve["value"]["seconds"]) == 4
    predicted = {fact["arm"]: fact["value"] for fact in run.facts("predicted_time")}
    assert set(predicted) == {"static", "mask", "compact"}
    # A machine that does other things at the same time decides how near; the cost model itself is tested elsewhere.
    assert all(0.2 < value["predicted"] / value["measured"] < 5 for value in predicted.values())
    assert [row["width"] for row in run.facts("break_even")[0]["value"]] == [2, 3, 4]
    cold, near = run.facts("modal")[0]["value"]
    assert near["full"] == near["depth"]
    assert cold["lambda2"] >= cold["full"]


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_the_gate_measures_what_the_auditor_of_the_backends_measures(library: str):
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(30, 3)), rng.normal(size=(41, 3)) + 100
    a, b = rng.uniform(size=30), rng.uniform(size=41)
    f, g = rng.normal(size=30) + 3e4, rng.normal(size=41)
    problem, potentials = ds.Problem(x=x, y=y, a=a, b=b, eps=2.0), ds.Potentials(f, g)
    truth = max(marginal_errors(problem, potentials))
    if library == "torch":
        torch = pytest.importorskip("torch")
        arrays = {side: torch.tensor(getattr(problem, side)) for side in "xyab"}
        problem, potentials = replace(problem, **arrays), ds.Potentials(torch.tensor(f), torch.tensor(g))
    assert gate.residual(problem, potentials) == pytest.approx(truth, rel=1e-12)


def test_names_must_be_known_and_differ():
    with pytest.raises(OptionsError, match="'mask' comes twice"):
        toy.campaign(arms=[toy.arm("mask"), toy.arm("mask")])
    with pytest.raises(OptionsError, match="names the arm 'mask'"):
        toy.campaign(arms=[toy.arm("compact")])
    with pytest.raises(OptionsError, match="endpoint"):
        toy.campaign(contrasts=[Contrast(name="x", numerator="compact", denominator="mask", endpoint="e9")])


def test_merging_hosts_needs_the_same_campaign(tmp_path: Path):
    for name in ("one", "two"):
        go(toy.campaign(), tmp_path / name)
    one, two = (records.read(tmp_path / name) for name in ("one", "two"))
    elsewhere = records.Run(
        {**two.manifest, "machine": {"gpu": "another"}, "hash": "other"},
        [{**record, "host": "other"} for record in two.records],
        {"other": {}},
        two.closed,
    )
    both = records.merge([one, elsewhere])
    found = statistics.summarise(both, both.manifest["contrasts"][0])
    assert len(found.hosts) == 2
    assert found.pairs == 8
    with pytest.raises(FileError, match="seed"):
        records.merge([one, records.Run({**two.manifest, "seed": 5}, two.records)])


def test_arms_know_what_they_were_given(tmp_path: Path):
    seen = list[Work]()

    def watching(work: Work) -> Outcome:
        seen.append(work)
        return toy.ours("compact")(work)

    unit = Unit(name="u", load=lambda: Loaded(toy.load().problems, {"labels": [1]}), repeats=1, warmups=2)
    plan = Campaign(
        name="toy", title="", scale="small", units=[unit], arms=[Arm(name="compact", label="", run=watching)]
    )
    go(plan, tmp_path)
    assert len(seen) == 1 + 2 + 1
    assert seen[0].extra == {"labels": [1]}
    assert seen[0].place.device == "cpu"


def test_the_heap_rests_only_while_arms_are_timed() -> None:
    before = gc.get_freeze_count()
    with meters.heap_at_rest():
        assert gc.get_freeze_count() > before
    assert gc.get_freeze_count() <= before
