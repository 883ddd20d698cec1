"""An auditor that shares no code with any backend: float64, direct differences, row by row."""

from __future__ import annotations

from typing import Any

import numpy as np

from drainsinkhorn.backends.arrays import to_numpy
from drainsinkhorn.core.errors import ProblemError
from drainsinkhorn.core.problem import Cost, Potentials, Problem

KINDS = ("sqeuclidean", "euclidean", "cosine")


def cost_row(problem: Problem[Any], i: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Costs from point i of x to every point of y."""
    cost = problem.cost
    matrix = None if isinstance(cost, (str, Cost)) else to_numpy(cost)
    if matrix is not None and matrix.ndim == 2:
        return matrix[i].astype(np.float64)
    cost = cost if isinstance(cost, Cost) else Cost(cost)
    if cost.kind not in KINDS:
        raise ProblemError(f"the auditor knows the costs {list(KINDS)}, not {cost.kind!r}; give it the matrix of costs")
    x, y = to_numpy(problem.x)[i].astype(np.float64), to_numpy(problem.y).astype(np.float64)
    if cost.kind == "cosine":
        # As half a squared distance, since 1 - cos loses what is left of nearly parallel vectors.
        value = ((y / np.linalg.norm(y, axis=1, keepdims=True) - x / np.linalg.norm(x)) ** 2).sum(axis=1) / 2
    else:
        value = ((y - x) ** 2).sum(axis=1)
        value = np.sqrt(value) if cost.kind == "euclidean" else value
    return cost.scale * value


def marginal_errors(problem: Problem[Any], potentials: Potentials[Any]) -> tuple[float, float]:
    """L1 errors of rows and columns of the plan that these potentials stand for."""
    f, g = (to_numpy(p).astype(np.float64) for p in potentials)

    def weights(given: Any, size: int) -> Any:
        values = np.ones(size) if given is None else to_numpy(given).astype(np.float64)
        return values / values.sum()

    a, b = weights(problem.a, len(f)), weights(problem.b, len(g))
    row, columns = 0.0, np.zeros(len(g))
    with np.errstate(over="ignore"):
        for i in range(len(f)):
            ratios = np.exp((f[i] + g - cost_row(problem, i)) / problem.eps)
            plan = a[i] * np.where(b > 0, b * ratios, 0.0) if a[i] > 0 else np.zeros(len(g))
            row += abs(plan.sum() - a[i])
            columns += plan
    return float(row), float(np.abs(columns - b).sum())
