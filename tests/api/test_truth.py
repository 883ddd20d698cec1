"""CONVERGED is true: the residual of what was emitted, recomputed here in float64, is within tol."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import cdist

import drainsinkhorn as ds

PARTS, EACH = 10, 100
MAX_DEPTH = 150


def hostile(rng: np.random.Generator) -> ds.Problem[Any]:
    n, m = np.exp(rng.uniform(0, np.log(300), size=2)).round().astype(int)
    d = int(rng.integers(1, 8))
    offset = 10 ** rng.uniform(-1, 4) * rng.normal(size=d) / np.sqrt(d)
    dtype = rng.choice(["float32", "float64"])
    scale = 10 ** rng.uniform(-2, 2)
    x = (offset + scale * rng.normal(size=(n, d))).astype(dtype)
    y = (offset + scale * (rng.normal(size=(m, d)) + rng.normal(size=d))).astype(dtype)
    a, b = (10 ** rng.uniform(-12, 0, size=size) for size in (n, m))
    if rng.random() < 0.3:
        a[rng.random(n) < 0.3] = 0.0
        a[0] = 1.0
    kind = str(rng.choice(["sqeuclidean", "euclidean", "cosine"]))
    cost = cdist(x.astype(float), y.astype(float), kind)
    eps = float(10 ** rng.uniform(-3, 0) * max(np.median(cost), 1e-12))
    tol = float(rng.choice([1e-2, 1e-3, 1e-4, 1e-6]))
    return ds.Problem(x=x, y=y, a=a / a.sum(), b=b / b.sum(), eps=eps, tol=tol, cost=kind)


def true_residual(problem: ds.Problem[Any], potentials: ds.Potentials[Any]) -> float:
    """From what was emitted, with SciPy's distances and nothing of ours."""
    cost = cdist(problem.x.astype(float), problem.y.astype(float), problem.cost)
    f, g = (p.astype(np.float64) for p in potentials)
    a, b = (w.astype(np.float64) / w.astype(np.float64).sum() for w in (problem.a, problem.b))
    with np.errstate(over="ignore", invalid="ignore"):
        plan = np.where((a[:, None] > 0) & (b > 0), a[:, None] * b * np.exp((f[:, None] + g - cost) / problem.eps), 0.0)
    return float(max(np.abs(plan.sum(1) - a).sum(), np.abs(plan.sum(0) - b).sum()))


@pytest.mark.parametrize("part", range(PARTS))
def test_every_converged_result_is_within_tol(part: int) -> None:
    rng = np.random.default_rng([11, part])
    batch = [hostile(rng) for _ in range(EACH)]
    solution = ds.solve(batch, max_depth=MAX_DEPTH)
    for result in solution:
        tol = result.problem.tol
        truth = true_residual(result.problem, result.potentials)
        if result.converged:
            assert truth <= tol, f"problem {result.ticket} claims {result.residual}, truth {truth}, tol {tol}"
            assert result.residual.worst <= tol
        else:
            assert result.status is ds.Status.DEPTH_LIMIT, result.message
            assert truth > tol - 2 * result.residual.band
            assert result.rescued
            assert result.depth == 2 * MAX_DEPTH
        assert abs(truth - max(result.residual.row, result.residual.col)) <= result.residual.band + 1e-9 * truth
    assert sum(r.converged for r in solution) >= EACH // 2, "the batch is meant to be solvable in the main"


def test_a_tolerance_below_rounding_is_never_claimed() -> None:
    rng = np.random.default_rng(0)
    x, y = 1e4 + rng.normal(size=(40, 3)), 1e4 + rng.normal(size=(50, 3))
    result = ds.solve(x, y, eps=0.5, tol=1e-15, max_depth=400)[0]
    assert result.status is ds.Status.DEPTH_LIMIT
    assert "below the rounding" in result.message


def test_float32_that_cannot_hold_tol_comes_back_wider_and_says_so() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 3)).astype("float32"), rng.normal(size=(40, 3)).astype("float32")
    held = ds.solve(x, y, eps=1.0, tol=1e-3)[0]
    assert (held.potentials.f.dtype, held.widened) == (np.float32, False)
    tight = ds.solve(x, y, eps=1.0, tol=1e-7)[0]
    assert (tight.potentials.f.dtype, tight.widened) == (np.float64, True)
    assert tight.converged
    far = ds.solve(x, y + 1000, eps=1.0, tol=1e-3)[0]
    assert far.converged
    assert far.widened
