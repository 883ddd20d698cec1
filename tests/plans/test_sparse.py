"""Sparse plans: the largest entries of every row, and a bound on what was left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.plans import sparse
from tests.conftest import needs

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(90, 2)), RNG.normal(size=(70, 2))
WEIGHTS = np.where(RNG.uniform(size=90) < 0.2, 0.0, RNG.uniform(size=90))
COST = ((X[:, None] - Y[None]) ** 2).sum(-1)


def dense(plan: ds.SparsePlan) -> Any:
    matrix = np.zeros(plan.shape, dtype=plan.data.dtype)
    for row, (first, end) in enumerate(zip(plan.indptr[:-1], plan.indptr[1:], strict=True)):
        assert (np.diff(plan.indices[first:end]) > 0).all()
        matrix[row, plan.indices[first:end]] = plan.data[first:end]
    return matrix


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize(
    "problem",
    [
        ds.Problem(x=X, y=Y, eps=0.05),
        ds.Problem(x=np.float32(X), y=np.float32(Y), a=WEIGHTS, eps=0.05),
        ds.Problem(cost=COST, eps=0.05),
    ],
    ids=["points", "weights", "dense"],
)
def test_the_dropped_mass_is_certified(backend: str, problem: ds.Problem[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "BLOCK_PAIRS", 1000)
    result = ds.solve([problem], backend=backend)[0]
    plan = np.asarray(result.plan(), dtype=np.float64)
    sizes = []
    for drop in (0.0, 1e-3, 0.1):
        some = ds.sparse_plan(result, drop)
        matrix = dense(some).astype(np.float64)
        assert np.allclose(matrix[matrix > 0], plan[matrix > 0], rtol=1e-5)
        lost = (plan - matrix).sum(axis=1)
        assert (lost <= drop * plan.sum(axis=1) + 1e-7 * plan.sum(axis=1)).all()
        assert abs(plan - matrix).sum() <= some.dropped + 1e-7
        assert some.dropped <= drop
        # Any one more entry would exceed the share.
        for row in range(90):
            kept = np.sort(matrix[row][matrix[row] > 0])
            if kept.size:
                assert lost[row] + kept[0] > drop * plan[row].sum() * (1 - 1e-5)
        sizes.append(some.data.size)
    assert sizes[0] > sizes[1] > sizes[2] > 0


def test_arrays_are_those_of_scipy() -> None:
    needs("scipy")
    result = ds.solve(X, Y, eps=0.05, backend="reference")[0]
    plan = ds.sparse_plan(result)
    assert np.array_equal(plan.to_scipy().toarray(), dense(plan))
    assert repr(plan).startswith("SparsePlan(90 x 70, ")


def test_bad_arguments_are_named() -> None:
    solution = ds.solve(X, Y, eps=0.05, backend="reference")
    with pytest.raises(ds.ProblemError, match="takes one Result, got Solution"):
        ds.sparse_plan(solution)  # type: ignore[arg-type]
    for drop in (-0.1, 1.0, float("nan"), "x"):
        with pytest.raises(ds.ProblemError, match="drop is a share of the mass of a row"):
            ds.sparse_plan(solution[0], drop)  # type: ignore[arg-type]
    with pytest.raises(ds.ProblemError, match="max_entries is 50"):
        ds.sparse_plan(solution[0], 0.0, max_entries=50)
