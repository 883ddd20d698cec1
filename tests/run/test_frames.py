"""What a notebook shows of a solution and of a result, and results as a DataFrame."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.model.errors import BackendUnavailable
from tests.conftest import needs
from tests.model.test_brief import parsed

rng = np.random.default_rng(0)


def problems(count: int = 3) -> list[ds.Problem[Any]]:
    return [ds.Problem(x=rng.normal(size=(20 + k, 2)), y=rng.normal(size=(15, 2)), eps=0.5 + k) for k in range(count)]


def solve(given: list[ds.Problem[Any]], **settings: Any) -> ds.Solution[Any]:
    return ds.solve(given, backend="reference", warn=False, **settings)


def test_a_frame_has_one_row_for_each_problem() -> None:
    pd = needs("pandas")
    bad = ds.Problem(x=[[np.nan]], y=[[0.0]], eps="wide")  # type: ignore[arg-type]
    solution = solve([*problems(), bad])
    frame = solution.to_frame()
    assert frame["ticket"].tolist() == [0, 1, 2, 3]
    assert frame["status"].tolist() == ["CONVERGED"] * 3 + ["INVALID"]
    assert frame["n"].tolist()[:3] == [20, 21, 22]
    assert pd.isna(frame["n"][3])
    assert frame["eps"].tolist()[:3] == [0.5, 1.5, 2.5]
    assert np.isnan(frame["eps"][3])
    for name in ("depth", "message", "arithmetic", "rescued", "streamed", "widened"):
        assert frame[name].tolist() == [getattr(result, name) for result in solution]
    for name in ("row", "col", "band"):
        assert frame[name].tolist()[:3] == [getattr(result.residual, name) for result in solution[:3]]
    assert frame["backend"].tolist() == ["reference"] * 4


def test_frames_of_streams_and_of_nothing() -> None:
    needs("pandas")
    frame = ds.to_frame(ds.stream(iter(problems()), backend="reference"))
    assert sorted(frame["ticket"]) == [0, 1, 2]
    empty = ds.solve([]).to_frame()
    assert len(empty) == 0
    assert list(empty.columns) == list(frame.columns)
    assert (empty.dtypes == frame.dtypes)[["ticket", "n", "eps", "depth"]].all()


def test_without_pandas_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    solution = solve(problems(1))
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(BackendUnavailable, match=r"drainsinkhorn\[frame\]"):
        solution.to_frame()


def test_a_notebook_shows_the_first_results() -> None:
    seen = parsed(solve(problems(12))._repr_html_())
    assert "12 problems: 12 CONVERGED" in seen.texts
    assert seen.tags.count("tr") == 11
    assert any(text.startswith("2 more; ") for text in seen.texts)
    assert "0 problems: none" in parsed(ds.solve([])._repr_html_()).texts


def test_a_notebook_shows_problems_that_did_not_converge() -> None:
    given = problems(12)
    given[7] = ds.Problem(x=[["<b>"]], y=[[0.0]], eps=1.0)  # type: ignore[arg-type]
    text = solve(given)._repr_html_()
    seen = parsed(text)
    assert seen.tags.count("tr") == 2
    assert "7" in seen.texts
    assert any("INVALID: x" in each for each in seen.texts)
    assert "b" not in seen.tags


def test_a_notebook_shows_a_result_and_a_ledger() -> None:
    solution = solve(problems())
    seen = parsed(solution[1]._repr_html_())
    assert {"Result of problem 1", "21 x 15 points"} <= set(seen.texts)
    assert "Problem(x=(21, 2) float64, y=(15, 2) float64, eps=1.5)" in seen.texts
    seen = parsed(solution.ledger._repr_html_())
    assert {"Work of 3 problems", f"{solution.ledger.slots:,}", "svg"} <= {*seen.texts, *seen.tags}
    invalid = solve([ds.Problem(x=[[np.nan]], y=[[0.0]], eps=1.0)])[0]
    assert invalid.shape is None
    assert any(text.startswith("INVALID") for text in parsed(invalid._repr_html_()).texts)
