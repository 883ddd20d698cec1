"""Where cells come from: sparse and backed AnnData, DataFrames, and columns matched by the names of cells."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.apps import cell_points
from drainsinkhorn.cells import couple_timepoints
from tests.conftest import needs

anndata = needs("anndata")
pandas = needs("pandas")
sparse = needs("scipy.sparse")

rng = np.random.default_rng(0)
DAYS = np.array(["day2", "day10", "other"])[rng.integers(0, 3, size=60)]
POINTS = np.where(rng.random((60, 5)) < 0.5, 0.0, rng.normal(size=(60, 5)))
WEIGHTS = rng.uniform(1, 2, size=60)
TYPES = rng.choice(["neuron", "muscle"], size=60)
CELLS = [f"cell{k}" for k in range(60)]
TIMES = ["day2", "day10"]


def couple(*args: Any, **settings: Any) -> Any:
    return couple_timepoints(*args, times=TIMES, backend="reference", eps=1.0, tol=0.1, **settings)


def cells(x: Any = POINTS) -> Any:
    obs = pandas.DataFrame({"day": DAYS, "type": TYPES, "growth": WEIGHTS}, index=CELLS)
    return anndata.AnnData(
        X=x,
        obs=obs,
        obsm={"X_pca": POINTS[:, :2], "frame": pandas.DataFrame(POINTS, index=CELLS, columns=list("abcde"))},
    )


@pytest.fixture(scope="module")
def truth() -> Any:
    return couple(POINTS, DAYS)


def assert_same(found: Any, truth: Any) -> None:
    assert found.pairs == truth.pairs
    for side in ("x", "y", "a", "b"):
        assert np.array_equal(getattr(found.result(0).problem, side), getattr(truth.result(0).problem, side))
    assert np.array_equal(found.result(0).potentials.f, truth.result(0).potentials.f)


class TestRepresentation:
    @pytest.mark.parametrize("name", ["rep", "use_rep"])
    def test_x_by_its_name(self, name: str, truth: Any) -> None:
        assert_same(couple(cells(), "day", **{name: "X"}), truth)
        assert_same(couple(cells(), "day", **{name: "frame"}), truth)

    def test_the_default_is_principal_components(self) -> None:
        for settings in ({}, {"rep": "X_pca"}, {"use_rep": "X_pca"}):
            assert np.array_equal(couple(cells(), "day", **settings).result(0).problem.x, POINTS[DAYS == "day2", :2])
        assert couple(cells(), "day", rep=None).result(0).problem.x.shape[1] == 5

    @pytest.mark.parametrize("rep", ["X_pca", "X", None])
    def test_both_names(self, rep: str | None) -> None:
        with pytest.raises(ds.ProblemError, match=r"use_rep='X_umap' are two names of one argument; pass one of them"):
            couple(cells(), "day", rep=rep, use_rep="X_umap")

    def test_names_that_do_not_exist(self) -> None:
        with pytest.raises(
            ds.ProblemError, match=r"obsm has no entry 'X_pac'.* did you mean 'X_pca'\?; .*\"X\" takes X"
        ):
            couple(cells(), "day", use_rep="X_pac")
        with pytest.raises(ds.ProblemError, match=r"has no X; name an entry of obsm, which has \['X_pca'"):
            couple(cells(None), "day", use_rep="X")


class TestSparse:
    @pytest.mark.parametrize("form", ["csr_matrix", "csc_matrix", "csr_array"])
    def test_it_becomes_dense_with_a_warning_of_its_size(self, form: str, truth: Any) -> None:
        count = int((DAYS != "other").sum())
        matrix = getattr(sparse, form)(POINTS)
        for args in ((cells(matrix), "day"), (matrix, DAYS)):
            with pytest.warns(
                UserWarning, match=f"{count} cells x 5 features of float64 are {count * 40:,} bytes"
            ) as seen:
                found = couple(*args, **({"use_rep": "X"} if len(args[1]) == 3 else {}))
            assert_same(found, truth)
            assert seen[0].filename == __file__
        assert found.transitions(TYPES, 0).mass.sum() == pytest.approx(1)

    def test_clouds_of_a_mapping(self, truth: Any) -> None:
        with pytest.warns(UserWarning, match="the points are a sparse matrix and become dense"):
            assert_same(couple({day: sparse.csr_matrix(POINTS[day == DAYS]) for day in TIMES}), truth)

    def test_too_large(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cell_points, "DENSE_BYTES", 1000)
        with pytest.raises(
            ds.ProblemError, match=r"more than the 1,000 allowed; .*use_rep=\"X_pca\"\), choose features"
        ):
            couple(cells(sparse.csr_matrix(POINTS)), "day", use_rep="X")
        assert couple(cells(POINTS), "day", use_rep="X").pairs == [("day2", "day10")]


class TestBacked:
    @pytest.mark.parametrize("form", ["dense", "sparse"])
    @pytest.mark.parametrize("block", [1, 2**26])
    def test_rows_are_read_from_the_file(
        self, form: str, block: int, truth: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cell_points, "BLOCK_BYTES", 7 * 40 * block)
        cells(sparse.csr_matrix(POINTS) if form == "sparse" else POINTS).write_h5ad(tmp_path / "cells.h5ad")
        backed = anndata.read_h5ad(tmp_path / "cells.h5ad", backed="r")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            found = couple(backed, "day", use_rep="X")
        assert_same(found, truth)
        assert couple(backed, "day").result(0).problem.x.shape[1] == 2
        out = found.to_anndata("type")
        assert not out.isbacked
        assert np.array_equal(
            out.obsm["fate_type"],
            couple(cells(), "day", use_rep="X").to_anndata("type").obsm["fate_type"],
            equal_nan=True,
        )
        backed.file.close()


class TestFrames:
    ORDER = rng.permutation(60)

    def frame(self) -> Any:
        return pandas.DataFrame(POINTS, index=CELLS, columns=list("abcde"))

    def shuffled(self, values: Any) -> Any:
        """A Series with the same value for each cell, in another order."""
        return pandas.Series(values, index=CELLS).iloc[self.ORDER]

    def test_times_and_weights_are_matched_by_names(self, truth: Any) -> None:
        assert_same(couple(self.frame(), DAYS), truth)
        assert_same(couple(self.frame(), self.shuffled(DAYS)), truth)
        weighted = couple(POINTS, DAYS, weights=WEIGHTS)
        assert_same(couple(self.frame(), self.shuffled(DAYS), weights=self.shuffled(WEIGHTS)), weighted)
        assert_same(couple(cells(), self.shuffled(DAYS), weights=self.shuffled(WEIGHTS), use_rep="X"), weighted)

    def test_labels_are_matched_by_names(self, truth: Any) -> None:
        expected = truth.transitions(TYPES, 0)
        for found in (couple(self.frame(), DAYS), couple(cells(), "day", use_rep="X")):
            assert found.transitions(self.shuffled(TYPES), 0).distance(expected) == 0
            assert found.transitions(TYPES, 0).distance(expected) == 0

    def test_columns_of_the_frame(self, truth: Any) -> None:
        assert_same(couple(self.frame().assign(day=DAYS), "day"), truth)
        frame = self.frame().assign(growth=WEIGHTS, day=pandas.Categorical(DAYS, [*TIMES[::-1], "other"], ordered=True))
        assert_same(couple(frame, "day", weights="growth"), couple(POINTS, DAYS, weights=WEIGHTS))
        with pytest.warns(UserWarning, match="not that of their numbers"):
            ordered = couple_timepoints(frame[frame["day"] != "other"].drop(columns="growth"), "day", tol=0.1)
        assert ordered.times == TIMES[::-1]

    def test_names_that_do_not_fit(self) -> None:
        with pytest.raises(ds.ProblemError, match=r"the DataFrame has no column 'dya'; .*; did you mean 'day'\?"):
            couple(self.frame().assign(day=DAYS), "dya")
        with pytest.raises(ds.ProblemError, match=r"columns \['type'\] of the DataFrame are no coordinates"):
            couple(self.frame().assign(day=DAYS, type=TYPES), "day")
        with pytest.raises(ds.ProblemError, match=r"key is a Series with no value for cell 'cell\d+'"):
            couple(self.frame(), self.shuffled(DAYS).iloc[1:])
        twice = pandas.concat([self.shuffled(WEIGHTS), self.shuffled(WEIGHTS)])
        with pytest.raises(ds.ProblemError, match="weights is a Series with several values for one cell"):
            couple(self.frame(), DAYS, weights=twice)

    def test_an_index_without_names_of_cells_says_nothing(self, truth: Any) -> None:
        assert_same(couple(self.frame(), pandas.Series(DAYS)), truth)
        assert_same(couple(POINTS, self.shuffled(DAYS).to_numpy()[np.argsort(self.ORDER)]), truth)
