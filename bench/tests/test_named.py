"""The named campaigns: each one's description on every scale and device, and one unit of each through the runner."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import needs

import drainsinkhorn as ds
from drainsinkhorn_bench import arms, loaders, meters, records, runner, training, transitions, windows
from drainsinkhorn_bench.named import NAMES, grouping, load, packer19, scaleout
from drainsinkhorn_bench.plan import Campaign, Loaded, Unit, Work
from drainsinkhorn_bench.report.paper import RATIOS

for library in ("ott", "torch", "pykeops"):
    needs(library)

CPU = meters.place("cpu")
ONE: dict[str, tuple[str, ...]] = {
    "metropt3": ("plan 2",),
    "packer19": ("tol 1e-02",),
    "imagenet": ("seed 0", "width 2, window 0"),
    "lidar": ("clip 0",),
    "transfer": ("OTT images 0",),
    "grouping": ("homogeneous",),
    "attribution": ("seed 0",),
    "scaleout": ("route 0",),
}
"""Units that are run here."""
PROBLEMS = {"attribution": 9, "scaleout": 16}
"""How many of the problems of a unit, where there are many: more than there are lanes, so that lanes are refilled."""


def brief(campaign: Campaign, names: tuple[str, ...]) -> Campaign:
    """Only these units with some of their problems, timed once, without theory, and nothing else."""

    def load(unit: Unit) -> Loaded:
        loaded = unit.load()
        return loaded._replace(problems=loaded.problems[: PROBLEMS.get(campaign.name)])

    units = [
        replace(unit, repeats=1, theory=0.0, modal=0, load=partial(load, unit))
        for unit in campaign.units
        if unit.name in names
    ]
    return replace(campaign, units=units, contrasts=[], studies=[])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", ["small", "full"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_campaign_is_data_wherever_it_is_described(name: str, scale: str, device: str):
    campaign = load(name, scale=scale, device=device)
    assert (campaign.name, campaign.scale) == (name, scale)
    assert campaign.options["data"] == "generated"
    assert any("generated" in sentence for sentence in campaign.options["differs"])
    told = [campaign.options, *(arm.options for arm in campaign.arms), *(unit.options for unit in campaign.units)]
    json.dumps(told, allow_nan=False)
    assert len({arm.label for arm in campaign.arms}) == len(campaign.arms)
    assert all(c.paper is None or c.paper["value"] == RATIOS[c.paper["key"]].value for c in campaign.contrasts)
    public = {arm.name for arm in campaign.arms} & {"official", "ott"}
    assert public <= ({"official"} if device == "cuda" else {"ott"})


@pytest.mark.parametrize("name", ONE)
def test_a_unit_from_gate_to_timing(name: str, tmp_path: Path):
    campaign = brief(load(name), ONE[name])
    assert len(campaign.units) == len(ONE[name])
    ended = runner.run(campaign, tmp_path, CPU)
    run = records.read(tmp_path)
    assert ended.complete
    assert ended.void == {}
    gates = run.kind("gate")
    assert all(gate["passed"] and gate["residual"] <= 1.01 * gate["tol"] for gate in gates)
    skipped = {fact["arm"] for fact in run.facts("skipped")}
    assert len(run.kind("timing")) == sum(len(campaign.arms_of(unit)) for unit in campaign.units) - len(skipped)
    assert all(fact["value"]["equal"] for fact in run.facts("slot_identity"))
    assert all(timing["seconds"]["e1"] > 0 for timing in run.kind("timing"))


def run_arms(campaign: Campaign, unit: Unit, names: tuple[str, ...]) -> dict[str, Any]:
    work = Work(unit, *[unit.load()[0]], CPU, unit.load()[1])
    return {arm.name: arm.run(work) for arm in campaign.arms if arm.name in names}


def test_packer19_tables_are_nearer_to_the_reference_where_tol_is_tighter():
    campaign = load("packer19")
    found = [run_arms(campaign, unit, ("compact",))["compact"].facts["tv"] for unit in campaign.units]
    assert found == sorted(found)
    assert 0 < found[0] < 1e-4 < found[-1] < 2e-2


def test_the_native_rule_maps_to_residuals_that_fall():
    x, y = np.random.default_rng(0).normal(size=(2, 80, 3))
    problem = arms.problem(x, y, 0.1, "cpu")
    states = packer19.replayed(problem, CPU)
    assert sorted(states) == sorted(packer19.THRESHOLDS)
    cycles = [states[threshold][1] for threshold in sorted(states, reverse=True)]
    assert cycles == sorted(cycles)
    assert all(cycle % packer19.CHECK == 0 for cycle in cycles)
    # Between two checks that are apart no potential moves by the threshold, and before that one does.
    threshold = 1e-3
    after, n = states[threshold][0], states[threshold][1]
    wide = ds.Problem(x=np.float64(problem.x), y=np.float64(problem.y), eps=problem.eps, init="zero")
    run = [
        ds.solve([wide], max_depth=depth, tol=1e-12, accelerate="none", rescue=False, warn=False)[0].potentials
        for depth in (n - 2 * packer19.CHECK, n - packer19.CHECK, n)
    ]
    moved = [max(np.abs(a - b).max() for a, b in zip(p, q, strict=True)) for p, q in itertools.pairwise(run)]
    assert moved[1] < threshold <= moved[0]
    assert np.allclose(run[2].f, after.f, atol=1e-9)


def test_layouts_hold_the_same_problems_and_differ_as_they_should():
    depths = [int(d) for d in np.random.default_rng(0).integers(4, 100, size=32)]
    found = {
        name: grouping.layout(name, depths, 8) for name in ("homogeneous", "heterogeneous", "random 1", "random 2")
    }
    assert all(sorted(order) == list(range(32)) for order in found.values())
    spread = {name: grouping.heterogeneity([depths[k] for k in order], 8) for name, order in found.items()}
    assert spread["homogeneous"] < min(value for name, value in spread.items() if name != "homogeneous") / 2
    assert found["random 1"] != found["random 2"]
    assert grouping.heterogeneity([2, 4, 5, 5], 2) == pytest.approx((1 / 3 + 0) / 2)


def test_heterogeneous_windows_get_one_of_each_stratum():
    order = grouping.layout("heterogeneous", list(range(32)), 8)
    strata = [[k // 4 for k in order[start : start + 8]] for start in range(0, 32, 8)]
    assert all(sorted(window) == list(range(8)) for window in strata)


def test_problems_are_centred_and_their_mean_cost_is_one():
    rng = np.random.default_rng(0)
    made = arms.problem(rng.normal(size=(50, 4)) * 7 + 1e4, rng.normal(size=(60, 4)) + 1e4, 0.1, "cpu")
    costs = ((made.x[:, None].astype(float) - made.y[None]) ** 2).sum(-1)
    assert costs.mean() == pytest.approx(1, rel=1e-4)
    assert np.abs(made.x.mean(0) + made.y.mean(0)).max() < 1e-3


def test_earlier_and_later_cells_stay_apart():
    cells = loaders.packer19(None, 300)
    for early, late in windows.cell_pairs(cells, 300, 8, 0):
        assert len(set(early)) == len(set(late)) == 300
        assert cells.times[early].max() <= cells.times[late].min()


def test_a_serial_peer_that_is_short_of_time_runs_some_and_says_so():
    campaign = load("metropt3")
    unit = campaign.units[2]
    work = Work(unit, unit.load().problems, CPU, None)
    public = arms.public("cpu", seconds=0.0)
    found = public.run(work)
    assert found.extrapolated
    assert len(found.answers) == 1
    assert "1 of 16" in found.note
    assert [depth is not None for depth in found.depths].count(True) == 1


def test_more_workers_than_cores_are_not_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scaleout, "room", lambda _: 2)
    reasons = {arm.name: arm.available() for arm in load("scaleout").arms}
    assert reasons["workers-2"] is None
    assert "there are 2" in str(reasons["workers-4"])


def test_nine_gates_by_hand():
    low = {
        "curvature": dict.fromkeys((4, 8, 16), 1.0),
        "loss": dict.fromkeys((4, 8, 16), 1.0),
        "frechet": dict.fromkeys((4, 8, 16), 1.0),
    }
    high = {
        "curvature": dict.fromkeys((4, 8, 16), 1.03),
        "loss": dict.fromkeys((4, 8, 16), 1.005),
        "frechet": dict.fromkeys((4, 8, 16), 1.2),
    }
    rows = training.gates_nine([low, high], [low, low])
    assert len(rows) == 9
    passed = {(row["metric"], row["nfe"]): row["passed"] for row in rows}
    assert passed["curvature", 4]  # 1.015 <= 1.02
    assert passed["loss", 8]  # 1.0025 <= 1.01
    assert passed["frechet", 16]  # 1.10 <= 1.10
    assert not any(row["passed"] for row in training.gates_nine([high], [low]) if row["metric"] != "loss")


def test_frechet_distance_of_known_gaussians():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200_000, 2))
    assert training.frechet(x, 2 * x + 3) == pytest.approx(2 * 9 + 2 * 1, rel=2e-2)
    assert training.frechet(x, x) == pytest.approx(0, abs=1e-9)


def test_transition_tables_by_hand():
    """Two early and two late cells with all mass on the diagonal."""
    problem: ds.Problem[Any] = ds.Problem(x=np.array([[0.0], [10.0]]), y=np.array([[0.0], [10.0]]), eps=0.1)
    known = transitions.Transitions([np.array([0, 1])], [np.eye(2)], [np.array([[0.5, 0.0], [0.0, 0.5]])])
    answers = arms.answers_of(ds.solve([problem], tol=1e-9, backend="reference"))
    found = transitions.tables(known, [problem], arms.backend_of("cpu"), answers)
    assert np.allclose(found[0], [[0.5, 0], [0, 0.5]])
    assert transitions.deviation(known, found) < 1e-6
    assert transitions.deviation(known, {0: np.array([[0.5, 0.25], [0.0, 0.25]])}) == pytest.approx(0.25)
