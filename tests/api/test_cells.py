"""Time points: push, pull and tables against dense plans, bootstraps, AnnData in and out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.conftest import needs
from tests.dense import plan_of

import drainsinkhorn as ds
from drainsinkhorn.cells import couple_timepoints

rng = np.random.default_rng(0)
SIZES = {1: 40, 2: 50, 3: 30}
POINTS = np.concatenate([rng.normal(size=(n, 4)) + 0.3 * t for t, n in SIZES.items()])
TIMES = np.repeat(list(SIZES), list(SIZES.values()))
NAMES = np.array(["neuron", "muscle", "skin"])[rng.integers(0, 3, size=len(TIMES))]
ORDER = rng.permutation(len(TIMES))
POINTS, TIMES, NAMES = POINTS[ORDER], TIMES[ORDER], NAMES[ORDER]


@pytest.fixture(scope="module")
def found() -> Any:
    return couple_timepoints(POINTS, TIMES, bootstraps=6)


def test_every_pair_is_a_lane(found: Any) -> None:
    assert found.pairs == [(1, 2), (2, 3)]
    assert len(found.solution) == 2 * 7
    found.solution.raise_for_status()
    for pair, (t, u) in enumerate(found.pairs):
        problem = found.result(pair).problem
        assert np.array_equal(problem.x, POINTS[t == TIMES])
        assert np.array_equal(problem.y, POINTS[u == TIMES])
        mean = ((problem.x[:, None] - problem.y[None]) ** 2).sum(-1).mean()
        assert problem.eps == pytest.approx(0.05 * mean)


def test_push_pull_and_tables(found: Any) -> None:
    for pair in (0, 1):
        plan, here, there = plan_of(found.result(pair)), found.cells[pair], found.cells[pair + 1]
        values = rng.normal(size=(len(here), 2))
        assert np.allclose(found.push(values, pair), plan.T @ values / plan.sum(0)[:, None])
        assert np.allclose(found.pull(POINTS[there], pair), plan @ POINTS[there] / plan.sum(1, keepdims=True))
        table = found.transitions(NAMES, pair)
        assert table.sources == table.targets == ["muscle", "neuron", "skin"]
        for k, source in enumerate(table.sources):
            for l, target in enumerate(table.targets):
                mass = plan[NAMES[here] == source][:, NAMES[there] == target].sum()
                assert table.mass[k, l] == pytest.approx(mass / plan.sum())
        assert table.law.sum(1) == pytest.approx(1.0)
        assert table.spread is not None
        assert (table.spread > 0).all()
        assert (table.spread < 0.2).all()
        assert table.draws.shape == (6, 3, 3)
        assert table.distance(table) == 0


def test_pairs_may_be_counted_from_the_end(found: Any) -> None:
    assert found.transitions(NAMES, -1).distance(found.transitions(NAMES, 1)) == 0
    assert found.transitions(NAMES, -2).distance(found.transitions(NAMES, 0)) == 0
    with pytest.raises(IndexError):
        found.transitions(NAMES, 2)


def test_tol_may_come_with_options() -> None:
    found = couple_timepoints(POINTS, TIMES, options=ds.Options(tol=1e-6))
    assert max(result.residual.worst for result in found.solution) <= 1e-6


def test_bootstraps_are_draws_of_cells(found: Any) -> None:
    for result in found.bootstraps(0):
        assert result.problem.x is found.result(0).problem.x, "points are shared"
        counts = result.problem.a * 40
        assert counts == pytest.approx(counts.round())
        assert counts.sum() == pytest.approx(40)
    other = couple_timepoints(POINTS, TIMES, bootstraps=1, seed=0)
    assert np.array_equal(other.bootstraps(0)[0].problem.a, found.bootstraps(0)[0].problem.a)


def test_weights_times_and_mappings() -> None:
    weights = rng.uniform(1, 3, size=len(TIMES))
    found = couple_timepoints(POINTS, TIMES, weights=weights, times=[3, 1], eps=0.5, relative=False)
    assert found.pairs == [(3, 1)]
    problem = found.result(0).problem
    assert problem.eps == 0.5
    assert problem.a == pytest.approx(weights[TIMES == 3] / weights[TIMES == 3].sum())
    clouds = {t: POINTS[t == TIMES] for t in SIZES}
    same = couple_timepoints(clouds).result(1).potentials.f
    assert np.array_equal(same, couple_timepoints(POINTS, TIMES).result(1).potentials.f)
    table = couple_timepoints(clouds).transitions((["a"] * 20 + ["b"] * 20, ["c"] * 50), 0)
    assert table.mass[:, 0] == pytest.approx([0.5, 0.5], abs=1e-3)


def annotated() -> Any:
    anndata = needs("anndata")
    pandas = needs("pandas")
    names = [f"cell{k}" for k in range(len(TIMES))]
    obs = pandas.DataFrame({"day": TIMES, "type": NAMES, "growth": 1.0}, index=names)
    return anndata.AnnData(X=POINTS.astype("float32"), obs=obs, obsm={"X_pca": POINTS})


def test_anndata_in_and_out() -> None:
    data = annotated()
    found = couple_timepoints(data, "day", weights="growth")
    plain = couple_timepoints(POINTS, TIMES)
    assert np.array_equal(found.result(0).potentials.f, plain.result(0).potentials.f)
    out = found.to_anndata("type")
    assert "fate_type" not in data.obsm
    fate, origin = out.obsm["fate_type"], out.obsm["origin_type"]
    assert np.isnan(fate).all(1).tolist() == (TIMES == 3).tolist()
    assert np.isnan(origin).all(1).tolist() == (TIMES == 1).tolist()
    assert fate[TIMES < 3].sum(1) == pytest.approx(1.0)
    first = int(np.flatnonzero(TIMES == 1)[0])
    best = plan_of(plain.result(0))[0].argmax()
    assert out.obs["match"].iloc[first] == f"cell{np.flatnonzero(TIMES == 2)[best]}"
    assert np.allclose(out.uns["transitions"]["1 2"]["mass"], plain.transitions(NAMES, 0).mass)


def test_what_was_written_can_be_read(tmp_path: Any) -> None:
    anndata = needs("anndata")
    out = couple_timepoints(annotated(), "day").to_anndata("type")
    out.write_h5ad(tmp_path / "out.h5ad")
    assert anndata.read_h5ad(tmp_path / "out.h5ad").obsm["fate_type"].shape == (len(TIMES), 3)


def test_bad_input() -> None:
    data = annotated()
    with pytest.raises(ds.ProblemError, match="obs has no column 'hour'"):
        couple_timepoints(data, "hour")
    with pytest.raises(ds.ProblemError, match="obsm has no entry 'X_umap'; it has"):
        couple_timepoints(data, "day", rep="X_umap")
    with pytest.raises(ds.ProblemError, match="time point 9 has no cells; there are"):
        couple_timepoints(POINTS, TIMES, times=[1, 9])
    with pytest.raises(ds.ProblemError, match="at least two time points"):
        couple_timepoints(POINTS, TIMES, times=[1])
    with pytest.raises(ds.ProblemError, match="key is missing"):
        couple_timepoints(POINTS)
    with pytest.raises(ds.ProblemError, match="one time for each of 120 cells"):
        couple_timepoints(POINTS, TIMES[:5])
    with pytest.raises(ds.ProblemError, match="did not come from an AnnData"):
        couple_timepoints(POINTS, TIMES).to_anndata("type")
    with pytest.raises(ds.ProblemError, match="labels are for"):
        couple_timepoints(POINTS, TIMES).transitions((["a"], ["b"]), 0)


@pytest.mark.parametrize("bootstraps", [-1, 1.5])
def test_bad_bootstraps(bootstraps: Any) -> None:
    with pytest.raises(ds.OptionsError, match=f"bootstraps must be an integer of at least 0, got {bootstraps}"):
        couple_timepoints(POINTS, TIMES, bootstraps=bootstraps)


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan])
def test_bad_weights_of_a_time_point(value: float) -> None:
    with pytest.raises(ds.ProblemError, match="weights of time point 2 must be finite, not negative, and not all zero"):
        couple_timepoints(POINTS, TIMES, weights=np.where(TIMES == 2, value, 1.0))


@pytest.mark.parametrize("dtype", [float, object])
def test_cells_without_a_time(dtype: Any) -> None:
    times = TIMES.astype(dtype)
    times[7] = np.nan if dtype is float else None
    with pytest.raises(ds.ProblemError, match="cell 7 has no time"):
        couple_timepoints(POINTS, times)
    assert couple_timepoints(POINTS, times, times=[1, 2, 3]).pairs == [(1, 2), (2, 3)]


def test_labels_of_other_cells(found: Any) -> None:
    with pytest.raises(ds.ProblemError, match=r"labels must name 120 cells, those of the data, got \(121,\)"):
        found.transitions([*NAMES, "skin"], 0)
    clouds = couple_timepoints({t: POINTS[t == TIMES] for t in (1, 2)})
    with pytest.raises(ds.ProblemError, match="separate clouds; pass labels as a pair"):
        clouds.transitions(NAMES, 0)


def test_texts_are_sorted_as_texts_unless_told() -> None:
    days = np.array(["", "day2", "day10", "day11"])[TIMES]
    assert couple_timepoints(POINTS, days).times == ["day10", "day11", "day2"]
    assert couple_timepoints(POINTS, days, times=["day2", "day10"]).times == ["day2", "day10"]
