"""The rounding bound of a certificate, from sums over the plan. `backends.certificate` derives the formula."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.result import UNKNOWN, Residual
from drainsinkhorn.numerics.costs import SMALLEST, UNIT

BLOCK_PAIRS = {"numpy": 2**16, "torch": 2**24}
"""Entries that are computed at once: what stays in a core's cache, or what fills a device."""
PRODUCT_DIM = {"numpy": 128, "torch": 12}
"""Coordinates from which squared distances come from inner products."""
FIRST_ORDER = 0.1
"""Largest error of an exponent for which `exp(E) - 1 <= 1.06 E`."""


class CostBound(NamedTuple):
    """How costs between points follow from distances, and how far rounding can carry them.

    Attributes:
        factor: What a squared distance is multiplied with; a distance for the euclidean cost.
        relative: Error of a cost over the cost.
        constant: Absolute error of every cost.
        largest: A bound on costs.
    """

    factor: float
    relative: float
    constant: float
    largest: Any


def bound_costs(cost: Cost, dim: int, extent: Any, unit: float = 1.0) -> CostBound:
    """Return the bound for a cost by distances.

    Args:
        cost: The cost.
        dim: Coordinates of a point.
        extent: A bound on squared distances, or on distances where the cost is one; of unit vectors where directions
            count.
        unit: What coordinates were divided by; a power of two, where the cost is a distance.
    """
    form = cost.kind.distances
    factor = cost.scale * form.factor * unit
    lost = math.sqrt(dim * SMALLEST) if form.root else dim * SMALLEST
    constant, relative = factor * lost, (dim + (6 if form.root else 4)) * UNIT
    if form.directions:
        # Unit vectors are rounded themselves.
        constant = cost.scale * (float(cost.kind.rounding(dim, form.factor * unit * extent)) + dim * SMALLEST)
    return CostBound(factor, relative, constant, factor * extent)


def product_error(dim: int) -> float:
    """Return the error that inner products add to a squared distance, over the squared norms of both points."""
    return (2 * dim + 16) * UNIT


@dataclass
class PlanSums:
    """What a certificate reads of a plan, all in float64.

    Attributes:
        eps: Strength of the entropic term.
        points: Points of both sides that carry weight.
        row: `sum_i |sum_j P_ij - a_i|`.
        col: `sum_j |sum_i P_ij - b_j|`.
        mass: `sum_ij P_ij`.
        point_mean: Errors of exponents that belong to points, `4 u (|f_i| / eps + |log a_i|)` and the same for g and
            b, summed over the plan.
        point_most: The sum of their largest values of both sides.
        transport: `sum_ij P_ij C_ij`.
        costs: The bound on costs.
        dense: Costs are a matrix, whose entries may be negative.
        added: Error that inner products add to costs, summed over the plan; 0 where `point_mean` contains it.
        added_most: A bound on that error for one cost.
    """

    eps: float
    points: int
    row: float
    col: float
    mass: float
    point_mean: float
    point_most: float
    transport: float
    costs: CostBound
    dense: bool
    added: float = 0.0
    added_most: float = 0.0


def bounded_residual(sums: PlanSums) -> Residual:
    """Return both residuals with the bound on their rounding error; infinite where the expansion does not hold."""
    if math.isnan(sums.row) or math.isnan(sums.col):
        return UNKNOWN
    costs, eps = sums.costs, sums.eps
    by_cost = 4 * UNIT + costs.relative
    most = sums.point_most + (by_cost * costs.largest + costs.constant + sums.added_most) / eps
    if not most < FIRST_ORDER:
        return Residual(sums.row, sums.col, math.inf)
    # Dense costs may be negative, so that the transport cost says nothing of their size.
    size = costs.largest * sums.mass if sums.dense else abs(sums.transport)
    mean = sums.point_mean + (by_cost * size + costs.constant * sums.mass + sums.added) / eps
    return Residual(sums.row, sums.col, 1.06 * mean + (2 * sums.points + 32) * UNIT * (1 + sums.mass))
