"""An auditor that shares no code with any backend.

`marginal_errors` measures a plan in float64 with direct differences, row by row. `judge` decides whether a plan is
within a tolerance, in extended precision if float64 does not suffice, whatever the size of costs and potentials.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.testing.forms import form_of, prices_of
from drainsinkhorn.testing.judgements import Judgement, PlanClaim, in_decimal, in_double_double, in_float64

Vector = NDArray[np.float64]


def cost_row(problem: Problem[Any], i: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Costs from point i of x to every point of y."""
    cost = problem.cost
    matrix = None if isinstance(cost, (str, Cost)) else to_numpy(cost)
    if matrix is not None and matrix.ndim == 2:
        return matrix[i].astype(np.float64)
    form = form_of(cost)
    x, y = to_numpy(problem.x)[i].astype(np.float64), to_numpy(problem.y).astype(np.float64)
    if form.dot:
        return form.scale * form.dot * (y * x).sum(axis=1)
    if form.directions:
        x, y = x / np.linalg.norm(x), y / np.linalg.norm(y, axis=1, keepdims=True)
    squares = ((y - x) ** 2).sum(axis=1) / form.divisor
    return form.scale * (np.sqrt(squares) if form.root else squares)


def marginal_errors(problem: Problem[Any] | Instance[Any], potentials: Potentials[Any]) -> tuple[float, float]:
    """L1 errors of rows and columns of the plan that these potentials stand for.

    With a soft marginal they are relative to the mass of the plan, and marginals are compared with `a exp(-f / rho)`.
    """
    problem = problem.as_problem() if isinstance(problem, Instance) else problem
    f, g = (to_numpy(p).astype(np.float64) for p in potentials)
    rhos = prices_of(problem)
    is_balanced = min(rhos) == math.inf

    def weights(given: Any, size: int) -> Any:
        values = np.ones(size) if given is None else to_numpy(given).astype(np.float64)
        return values / (values.sum() if is_balanced or given is None else 1.0)

    a, b = weights(problem.a, len(f)), weights(problem.b, len(g))
    row, columns = 0.0, np.zeros(len(g))
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = [w * np.where(w > 0, np.exp(-p / rho), 1.0) for w, p, rho in ((a, f, rhos[0]), (b, g, rhos[1]))]
    with np.errstate(over="ignore"):
        for i in range(len(f)):
            ratios = np.exp((f[i] + g - cost_row(problem, i)) / problem.eps)
            plan = a[i] * np.where(b > 0, b * ratios, 0.0) if a[i] > 0 else np.zeros(len(g))
            row += abs(plan.sum() - wanted[0][i])
            columns += plan
    mass = 1.0 if is_balanced else columns.sum()
    if not mass > 0:
        return math.inf, math.inf
    return float(row / mass), float(np.abs(columns - wanted[1]).sum() / mass)


def judge(problem: Problem[Any], potentials: Potentials[Any], tol: float) -> Judgement:
    """Measure both marginals of exactly these potentials with as much precision as it takes to compare them with tol.

    The plan is `a_i b_j exp((f_i + g_j - C_ij) / eps)`, where C comes from the caller's points by direct differences,
    or is the caller's matrix, and a and b are the caller's weights, over their exact sums if both marginals are hard.
    Float64 is tried first, with
    a bound on its rounding error. If the residual differs from tol by no more than the bound, scaled costs in
    double-double with sums in long double are tried next, then decimal arithmetic of 60 digits and more, entry by
    entry.

    Args:
        problem: The problem as given.
        potentials: The potentials as emitted.
        tol: What the residual is compared with.
    """
    claim = PlanClaim.of(problem, potentials)
    for arithmetic in (in_float64, in_double_double):
        with np.errstate(all="ignore"):
            judgement = arithmetic(claim)
        if judgement.settles(tol):
            return judgement
    return in_decimal(claim)
