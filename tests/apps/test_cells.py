"""Time points: push, pull and tables against dense plans, bootstraps, AnnData in and out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.cells import Table, couple_timepoints
from tests.conftest import needs
from tests.dense import plan_of

rng = np.random.default_rng(0)
SIZES = {1: 40, 2: 50, 3: 30}
POINTS = np.concatenate([rng.normal(size=(n, 4)) + 0.3 * t for t, n in SIZES.items()])
TIMES = np.repeat(list(SIZES), list(SIZES.values()))
NAMES = np.array(["neuron", "muscle", "skin"])[rng.integers(0, 3, size=len(TIMES))]
ORDER = rng.permutation(len(TIMES))
POINTS, TIMES, NAMES = POINTS[ORDER], TIMES[ORDER], NAMES[ORDER]

DAYS = np.array(["", "day30", "day2", "day10"])[TIMES]


def coupled(*args: Any, **settings: Any) -> Any:
    return couple_timepoints(*args, backend="reference", eps=1.0, tol=0.1, **settings)


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
        assert table.conditional.sum(1) == pytest.approx(1.0)
        assert table.spread is not None
        assert (table.spread > 0).all()
        assert (table.spread < 0.2).all()
        assert table.draws.shape == (6, 3, 3)
        assert table.distance(table) == 0


def test_pairs_may_be_counted_from_the_end(found: Any) -> None:
    assert found.transitions(NAMES, -1).distance(found.transitions(NAMES, 1)) == 0
    assert found.transitions(NAMES, -2).distance(found.transitions(NAMES, 0)) == 0
    for number in (2, -3):
        with pytest.raises(IndexError, match=rf"there is no pair {number}: there are 2, \[\(1, 2\), \(2, 3\)\]"):
            found.transitions(NAMES, number)


@pytest.fixture(scope="module")
def named() -> Any:
    return coupled(POINTS, DAYS, times=["day2", "day10", "day30"], bootstraps=1)


class TestPairsByName:
    @pytest.mark.parametrize("pair", [("day10", "day30"), "day10", ("day10",)], ids=str)
    def test_by_its_time_points(self, named: Any, pair: Any) -> None:
        here, there = named.cells[1], named.cells[2]
        assert named.result(pair) is named.result(1)
        assert named.bootstraps(pair) == named.bootstraps(1)
        assert np.array_equal(named.push(POINTS[here], pair), named.push(POINTS[here], 1))
        assert np.array_equal(named.pull(POINTS[there], pair), named.pull(POINTS[there], 1))
        assert named.transitions(NAMES, pair).distance(named.transitions(NAMES, 1)) == 0

    def test_integers_are_numbers(self, found: Any) -> None:
        assert found.result(1) is found.result((2, 3))
        assert found.result("1") is found.result(0)
        assert found.result(np.int64(1)) is found.result(1)

    def test_dates(self) -> None:
        dates = np.array(["2024-01-01", "2024-01-10", "2024-02-01", "2023-12-31"], dtype="datetime64[D]")
        dated = coupled(POINTS, dates[TIMES])
        first, second = dated.times[:2]
        for pair in (first, (first, second), "2023-12-31 00:00:00", str(first)):
            assert dated.result(pair) is dated.result(0)

    def test_names_that_are_no_pair(self, named: Any) -> None:
        for pair, message in (
            ("dya2", r"there is no time point 'dya2'; it has \['day2', .*; did you mean 'day2'\?"),
            (("day2", "day3"), r"there is no time point 'day3'; .*did you mean 'day30'\?"),
            (("day2", "day30"), r"\('day2', 'day30'\) are no consecutive time points; there are the pairs \["),
            (("day10", "day2"), r"are no consecutive time points"),
            ("day30", r"'day30' is the last time point, so no pair begins with it"),
            (("day2", "day10", "day30"), r"a pair is a number, the earlier time point or two time points"),
        ):
            with pytest.raises(ds.ProblemError, match=message):
                named.result(pair)


def test_law_is_deprecated(found: Any) -> None:
    table = found.transitions(NAMES, 0)
    with pytest.warns(DeprecationWarning, match=r"Table.law is deprecated; use Table.conditional"):
        assert np.array_equal(table.law, table.conditional)


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
    with pytest.raises(ds.ProblemError, match=r"time point 'dya2' has no cells; .*; did you mean 'day2'\?"):
        couple_timepoints(POINTS, DAYS, times=["dya2", "day10"])
    with pytest.raises(ds.ProblemError, match=r"obs has no column 'dya'; it has .*; did you mean 'day'\?"):
        couple_timepoints(data, "dya")
    with pytest.raises(ds.ProblemError, match=r"obs has no column 'grwoth'; it has .*; did you mean 'growth'\?"):
        couple_timepoints(data, "day", weights="grwoth")
    for verb, args in (("transitions", (0,)), ("to_anndata", ())):
        with pytest.raises(ds.ProblemError, match=r"obs has no column 'typx'; it has .*; did you mean 'type'\?"):
            getattr(coupled(data, "day"), verb)("typx", *args)
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


def test_texts_are_sorted_by_the_numbers_they_end_in() -> None:
    with pytest.warns(UserWarning, match=r"in the order \['day2', 'day10', 'day30'\].*pass times="):
        assert coupled(POINTS, DAYS).times == ["day2", "day10", "day30"]
    assert coupled(POINTS, DAYS, times=["day30", "day2"]).times == ["day30", "day2"]
    clouds = {day: POINTS[day == DAYS] for day in ("day30", "day10", "day2")}
    with pytest.warns(UserWarning, match="in the order"):
        assert coupled(clouds).pairs == [("day2", "day10"), ("day10", "day30")]
    for texts in (["-9", "9.5", "1e1"], ["E8", "e_8.75", "E 9.5"]):
        with pytest.warns(UserWarning, match="in the order"):
            found = coupled(POINTS, np.array(["", *reversed(texts)])[TIMES])
        assert found.times == texts


@pytest.mark.parametrize(
    "texts",
    [
        ["early", "mid", "late"],
        ["2h", "10h", "30h"],
        ["E18", "P0", "P7"],
        ["day-1", "day0", "day1"],
        ["day1", "day01", "day2"],
        [b"day1", b"day2", b"day3"],
        [1, "day2", 3],
        [1, (2,), 3],
    ],
    ids=str,
)
def test_texts_without_an_order_must_be_given_one(texts: list[Any]) -> None:
    labels = np.empty(len(TIMES), dtype=object)
    labels[:] = [texts[time - 1] for time in TIMES]
    with pytest.raises(ds.ProblemError, match=r"the order of time points .* is unknown.*times="):
        coupled(POINTS, labels)


def test_an_order_may_be_given_for_any_texts() -> None:
    labels = np.array(["", "early", "mid", "late"])[TIMES]
    assert coupled(POINTS, labels, times=["early", "mid", "late"]).pairs == [("early", "mid"), ("mid", "late")]


@pytest.mark.parametrize("name", ["mixed", "Mixed_gastrulation", "unknown 3", "NA"])
def test_a_label_of_no_single_time_is_refused(name: str) -> None:
    pandas = needs("pandas")
    labels = np.array(["", "day2", "day10", name])[TIMES]
    ordered = pandas.Categorical(labels, categories=["day2", "day10", name], ordered=True)
    for key in (labels, ordered):
        for times in (None, ["day2", name]):
            with pytest.raises(ds.ProblemError, match=f"label '{name}' is no time point"):
                coupled(POINTS, key, times=times)
        assert coupled(POINTS, key, times=["day2", "day10"]).pairs == [("day2", "day10")]
    with pytest.raises(ds.ProblemError, match=f"label '{name}' is no time point"):
        coupled({1: POINTS, name: POINTS})


def test_ordered_categories_keep_their_order() -> None:
    pandas = needs("pandas")
    data = annotated()
    data.obs["day"] = pandas.Categorical(DAYS, categories=["day0", "day2", "day10", "day30"], ordered=True)
    found = coupled(data, "day")
    assert found.pairs == [("day2", "day10"), ("day10", "day30")]
    assert np.array_equal(found.result(0).problem.x, POINTS[DAYS == "day2"])
    assert coupled(POINTS, data.obs["day"]).pairs == found.pairs
    assert coupled(data, "day", times=["day10", "day2"]).times == ["day10", "day2"]
    names = np.array(["", "zygote", "2cell", "blast"])[TIMES]
    data.obs["day"] = pandas.Categorical(names, categories=["zygote", "2cell", "blast"], ordered=True)
    assert coupled(data, "day").times == ["zygote", "2cell", "blast"]
    # pandas sorts categories as texts if they are not given.
    data.obs["day"] = pandas.Categorical(DAYS, ordered=True)
    with pytest.warns(UserWarning, match="not that of their numbers"):
        assert coupled(data, "day").times == ["day10", "day2", "day30"]


def test_categories_without_an_order_are_texts() -> None:
    pandas = needs("pandas")
    data = annotated()
    data.obs["day"] = pandas.Categorical(DAYS)
    with pytest.warns(UserWarning, match="in the order"):
        assert coupled(data, "day").times == ["day2", "day10", "day30"]
    data.obs["day"] = pandas.Categorical(np.array(["", "b", "c", "a"])[TIMES])
    with pytest.raises(ds.ProblemError, match="is unknown"):
        coupled(data, "day")


@pytest.mark.parametrize("unit", ["D", "ns"])
def test_dates_are_sorted(unit: str) -> None:
    dates = np.array(["2024-01-01", "2024-02-01", "2024-01-10", "2023-12-31"], dtype=f"datetime64[{unit}]")
    for labels in (dates[TIMES], (dates - dates[0])[TIMES]):
        found = coupled(POINTS, labels)
        assert [len(cells) for cells in found.cells] == [SIZES[3], SIZES[2], SIZES[1]]
        assert coupled(POINTS, labels, times=found.times[1:]).pairs == found.pairs[1:]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_coordinates_that_are_not_finite(value: float) -> None:
    points, last = POINTS.copy(), np.flatnonzero(TIMES == 3)[4]
    points[last, 2] = value
    data = annotated()
    data.obsm["X_pca"] = points
    for given in ((points, TIMES), (data, "day")):
        with pytest.raises(ds.ProblemError, match=f"coordinate 2 of cell {last}, of time point 3, is {value} .1 cells"):
            coupled(*given)
    assert coupled(points, TIMES, times=[1, 2]).pairs == [(1, 2)]
    with pytest.raises(ds.ProblemError, match=f"coordinate 2 of cell 4, of time point 3, is {value}"):
        coupled({t: points[t == TIMES] for t in (1, 2, 3)})
    with pytest.raises(ds.ProblemError, match="points of time point 1 must be numbers, got"):
        coupled({1: np.array([["a"]]), 2: points})


def test_course_and_tables_in_short(found: Any) -> None:
    assert repr(found) == "Timepoints(3 times from 1 to 3, 120 cells, 6 bootstraps, 14 CONVERGED)"
    table = found.transitions(NAMES, 0)
    assert repr(table) == "Table(3 sources x 3 targets, 6 bootstraps)"
    text = table._repr_html_()
    assert f"{table.conditional[0, 0]:.2f} ± {table.spread[0, 0]:.2f}" in text
    many = Table([f"<{k}>" for k in range(14)], ["a"], np.ones((14, 1)) / 14, np.empty((0, 14, 1)))
    assert "2 more sources" in many._repr_html_()
    assert "&lt;1&gt;" in many._repr_html_()
