"""How far rounding can change a residual, and which precision suffices for a tolerance.

If every exponent of a plan has a rounding error of at most t nats, each marginal ratio is wrong by a factor between
`exp(-t)` and `exp(t)`, so the residual is wrong by at most about t times the mass of the plan, which is near 1. Errors
of sums and products are bounded as in Higham: Accuracy and stability of numerical algorithms, 2002, chapters 3 and 4.
u is the unit roundoff of float64.

Three kinds of bounds are used. A bound on float64 arithmetic follows from the sizes of costs and potentials
(`exponent_rounding`, `streamed_rounding`, `rounding_bound`). Of lower precision the error itself is measured: sampled
points are computed in float64 as well (`sampled_error`, `sampled_bound`). A certificate bounds every exponent of the
plan (`certified_residual`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.result import UNKNOWN, Residual
from drainsinkhorn.numerics.costs import SMALLEST, UNIT

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

SAFETY = 2.0
"""Factor on the worst-case rounding bound of a residual."""
SAMPLE_SAFETY = 4.0
"""Factor on the mean error of sampled points, which bounds what the errors of all points do to an L1 residual."""
LEAST_SAMPLED = {"float32": 2.0**-22, "float64": 2.0**-50}
"""Rounding bounds below which no comparison of sampled points is trusted, by the dtype that is compared."""
UNSAMPLED = 16 * 2.0**-24
"""Rounding error of a residual in float32 per nat of `unsampled_size`: some units in the last place of a cost."""
TRIPLE_UNSAMPLED = 16 * 2.0**-35
"""The same of points in three parts: some times TRIPLE_COST."""
POWER_POLYNOMIAL, REMAINDER_POLYNOMIAL = 3.1e-9, 1.1e-10
"""Largest relative error of the polynomials of `exponentials.power` and `exponentials.compensated_power`, without that
of their evaluation; a test compares them with arbitrary precision."""
TRIPLE_ERROR, COMPENSATED_ERROR = 2.0**-25, REMAINDER_POLYNOMIAL + 2.0**-33
"""Least mean relative errors that a bound assumes of marginal ratios from points in three parts. TRIPLE_ERROR is a
quarter of the largest rounding error of an exponential, 2^-23, since rounding errors average out; it covers
POWER_POLYNOMIAL. COMPENSATED_ERROR is the error of the polynomial, which all terms of a sum may share, and 2^-33: an
exponential of `compensated_power` has an error of at most 2^-26, most of which averages out."""
FLOAT32_COST = 2.0**-23
"""Rounding error of a scaled cost in float32, as a fraction of it: products, norms and sums together."""
TRIPLE_COST = 2.0**-35
"""Typical rounding error of a scaled cost from points in three float16 parts, as a fraction of the largest one.

It is 2^-12 of the unit of products of first parts, of which the largest cost has 2^23 at least (`kernels.triple` of
Triton), and comes from products of second and third parts, which are left out, and from sums in float32.
"""
FIRST_ORDER = 0.1
"""Largest error of an exponent for which `exp(E) - 1 <= 1.06 E`."""


def float32_suffices(typical: float, tol: float) -> bool:
    """Whether scaled costs in float32 are accurate to a tenth of tol; NaN and infinite ones are not.

    Args:
        typical: A typical cost over eps.
        tol: Bound on the residual.
    """
    return FLOAT32_COST * typical <= tol / 10


def emission_budget(eps: Any, tol: Any, lam: Any = 1.0) -> Any:
    """Largest change of potentials by rounding to the caller's dtype: it changes a residual by about `tol / 10`.

    Args:
        eps: Strength of the entropic term.
        tol: Bound on the residual.
        lam: The smaller damping of both sides: soft marginals change with potentials as well, `(1 / lam)` times as much
            in all.
    """
    return eps * tol / 10 * lam


def exponent_rounding(cost_rounding: float, eps: float, scaled_cost: Matrix, log_a: Vector, log_b: Vector) -> float:
    """Bound on the float64 rounding error of a log marginal ratio in nats, apart from that of potentials.

    It is `cost_rounding / eps + u max|C / eps| + u (n + m) + 4 u (max|log a| + max|log b|)`: costs, their division by
    eps, sums of n or m terms in any order, and logarithms of weights.

    Args:
        cost_rounding: Bound on the absolute error of a cost.
        eps: Strength of the entropic term.
        scaled_cost: `C / eps`, (n, m).
        log_a: Logarithms of weights of rows, (n,).
        log_b: Logarithms of weights of columns, (m,).
    """
    rounding = cost_rounding / eps + UNIT * float(np.abs(scaled_cost).max())
    rounding += UNIT * sum(scaled_cost.shape)
    return rounding + 4 * UNIT * (float(np.abs(log_a).max()) + float(np.abs(log_b).max()))


def streamed_rounding(scaled_rounding: float, largest: float, points: int) -> float:
    """`exponent_rounding` where costs are computed anew in every leg: `scaled_rounding + u (8 max|C / eps| + n + m)`.

    Coordinates are centred and scaled first, which is part of the factor 8, as are logarithms of weights.

    Args:
        scaled_rounding: Bound on the absolute error of a cost over eps.
        largest: A bound on `|C / eps|`.
        points: n + m.
    """
    return scaled_rounding + UNIT * (8 * largest + points)


def rounding_bound(rounding: Any, potentials: Any, units: float = 4.0) -> Any:
    """Bound on the rounding error of a residual in float64: `SAFETY (rounding + units u (max|f| + max|g|) / eps)`.

    Args:
        rounding: `exponent_rounding` or `streamed_rounding` of the problem, in nats.
        potentials: `(max|f| + max|g|) / eps`, see `largest_potentials`.
        units: Rounding error of an exponent per nat of potentials, in units of u.
    """
    return SAFETY * (rounding + units * UNIT * potentials)


def soft_bound(bound: Any, exponents: Any, residual: Any) -> Any:
    """Bound on the rounding error of a residual relative to the mass of the plan: `(bound + SAFETY u e) (1 + R)`.

    An error of t nats in log ratios changes numerator and mass of the residual R by factors of up to `exp(t)`.

    Args:
        bound: Bound on the rounding error of the residual of hard marginals: `rounding_bound`, `sampled_bound`.
        exponents: The larger `soft_exponents` of both sides, e.
        residual: The residual R; of both sides, the larger one.
    """
    return (bound + SAFETY * UNIT * exponents) * (1 + residual)


def largest_potentials(f: Any, g: Any) -> Any:
    """`max|f| + max|g|`, for arrays of any library."""
    return abs(f).max() + abs(g).max()


def sampled_error(xp: Any, weights: Any, errors: Any) -> Any:
    """Mean error of the marginal ratios of sampled points, `max(mean e_i, sum w_i e_i / sum w_i)`, over the last axis.

    Args:
        xp: The array library: NumPy, torch or JAX's NumPy.
        weights: Weights w of sampled points, (..., k).
        errors: `|rho_i - exact rho_i|` of sampled points, (..., k).
    """
    return xp.maximum(errors.mean(-1), (weights * errors).sum(-1) / weights.sum(-1))


def sampled_bound(bound: Any, error: Any, dtype: str, far: Any = 0.0) -> Any:
    """Bound on the rounding error of a residual of which samples were computed in float64.

    It is `bound + 4 error + LEAST_SAMPLED + UNSAMPLED far`.

    Args:
        bound: Bound on the rounding error that float64 arithmetic alone causes: `rounding_bound`.
        error: `sampled_error`; of both sides, the larger one.
        dtype: Name of the dtype that is compared with float64.
        far: By how much potentials exceed what the samples account for: `unsampled_size` of both sides, added, in nats.
    """
    return bound + SAMPLE_SAFETY * error + LEAST_SAMPLED[dtype] + UNSAMPLED * far


def unsampled_size(xp: Any, weights: Any, potentials: Any, places: Any) -> Any:
    """Return by how much the mean size of potentials exceeds what sampled points account for; 0 if it does not.

    The rounding error of a scaled cost grows with the cost, and the potential of a point is as large as the costs that
    matter to it. A few points far from all others may hold most of the error. Where the sample has none of them, its
    errors say nothing of theirs. Sizes are distances from the median of the sample; a safety factor on its errors
    accounts for a mean of four times its median size.

    Args:
        xp: NumPy, or its counterpart in JAX.
        weights: (n,), of mass 1, and 0 for points that do not count.
        potentials: (n,), finite.
        places: Indices of the sampled points.
    """
    sizes = abs(potentials - xp.median(potentials[places]))
    return xp.maximum(0.0, (weights * sizes).sum() - 4 * xp.median(sizes[places]))


class CostBound(NamedTuple):
    """Factors that turn distances into costs, and bounds on the rounding errors of these costs.

    Attributes:
        factor: Factor of squared distances; of distances for the euclidean cost.
        relative: Relative error of every cost.
        constant: Absolute error of every cost.
        largest: A bound on costs.
    """

    factor: float
    relative: float
    constant: float
    largest: Any


def bound_costs(cost: Cost, dim: int, extent: Any, unit: float = 1.0) -> CostBound:
    """Return the bound for a cost by distances: `(d + 4) u C` by differences, `(d + 6) u C` of roots, and underflow.

    Args:
        cost: The cost.
        dim: Coordinates of a point.
        extent: A bound on distances if the cost is a factor times distances, else on squared distances; for a cost of
            directions (cosine), on those of unit vectors.
        unit: What coordinates were divided by: a power of two if the cost is a factor times distances, else 1.
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


def dot_error(dim: int) -> float:
    """Return a bound on the error of a dot product, and of its exponent, over the squared lengths of both points.

    A sum of `dim` products is off by at most `(dim + 2) u |x| |y|`, its exponent by `4 u |<x, y>|` more (as in E_ij of
    `certified_residual`), and `|x| |y| <= (|x|^2 + |y|^2) / 2`.
    """
    return (dim + 8) / 2 * UNIT


@dataclass
class PlanSums:
    """Sums over a plan from which its residuals are certified, all in float64.

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
        dense: Costs are a matrix or dot products, which may be negative.
        added: Error that inner products add to costs, summed over the plan; 0 where `point_mean` contains it.
        added_most: A bound on that error for one cost.
        targets: Rounding error of the masses that marginals are compared with, `a_i exp(-kappa f_i)`, summed over the
            side where the sum is larger. None: both marginals are hard. Else `row` and `col` are compared with these
            masses, and residuals are relative to the mass of the plan.
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
    targets: float | None = None


def target_rounding(kappa: float, points: int, weighted: float, mass: float) -> float:
    """Bound on the rounding errors of `a_i exp(-kappa f_i)`, summed over a side; 0 where the marginal is hard.

    It is `u (4 sum_i kappa |f_i| t_i + (n + 8) sum_i t_i)` with `t_i = a_i exp(-kappa f_i)`.

    Args:
        kappa: The marginal's kappa.
        points: Number of points n of the side.
        weighted: `sum_i kappa |f_i| t_i`.
        mass: `sum_i t_i`.
    """
    return 0.0 if kappa == 0.0 else UNIT * (4 * weighted + (points + 8) * mass)


def certified_residual(sums: PlanSums) -> Residual:
    """Return both residuals and a rigorous bound on their rounding error; the bound may be infinite (see below).

    Write P for the computed plan and E_ij for a bound on the error of the exponent of entry ij:

        E_ij = 4 u (|f_i| / eps + |log a_i|) + 4 u (|g_j| / eps + |log b_j|) + (4 u C_ij + e_ij) / eps

    where e_ij bounds the error of the cost: 0 for a dense matrix, else the error from `bound_costs`. If squared
    distances are computed by inner products of centred points (Higham, section 3.1), e_ij also contains `product_error`
    times (|x_i|^2 + |y_j|^2), times the factor of the cost. Of dot products e_ij is `dot_error` times the same, and
    contains `4 u |C_ij|`; their bound on costs is 0. If every E_ij is below 0.1, the error of an entry is at
    most 1.06 E_ij P_ij, so that of a residual is at most

        1.06 sum_ij P_ij E_ij + (2 (n + m) + 32) u (1 + sum_ij P_ij)

    of which the last term covers exponentials, sums and the normalisation of the weights. The sums over P_ij need only
    the two marginals of P and `sum_ij P_ij C_ij`. Where some E_ij is not below 0.1 the bound is infinite. Of a cost of
    the caller's own (a Formula, a CostFn) the value that its evaluation in float64 returns counts as exact.

    With a soft marginal weights are not normalised, and the errors of `a_i exp(-kappa f_i)` and of products below the
    normal range are added. If a numerator R m and the mass m each have an error of at most e < m, R has one of at most
    `e (1 + R) / (m - e)`.
    """
    if sums.targets is not None and sums.mass == math.inf:
        # Overflowing entries, less overflowing targets, gave NaN. The state is far from optimal, but its potentials are
        # finite, so it is no NONFINITE problem.
        return Residual(math.inf, math.inf, math.inf)
    if math.isnan(sums.row) or math.isnan(sums.col):
        return UNKNOWN
    if sums.targets is not None:
        return _relative_residual(sums, sums.targets)
    return Residual(sums.row, sums.col, _plan_rounding(sums))


def _relative_residual(sums: PlanSums, targets: float) -> Residual:
    """Return residuals relative to the mass of the plan."""
    lost = 2.0**-1022 * (sums.points + 2) ** 2
    error, mass = _plan_rounding(sums) + targets + lost, sums.mass
    if not 0 < mass < math.inf:
        return Residual(math.inf, math.inf, math.inf)
    row, col = sums.row / mass, sums.col / mass
    # Written so that NaN gives an infinite bound.
    return Residual(row, col, error * (1 + max(row, col)) / (mass - error) if error < mass else math.inf)


def _plan_rounding(sums: PlanSums) -> float:
    """Return the bound on the error of a sum over the plan, see `certified_residual`; infinite where some E_ij is."""
    costs, eps = sums.costs, sums.eps
    by_cost = 4 * UNIT + costs.relative
    most = sums.point_most + (by_cost * costs.largest + costs.constant + sums.added_most) / eps
    if not most < FIRST_ORDER:
        return math.inf
    # Dense costs may be negative, so that the transport cost says nothing of their size.
    size = costs.largest * sums.mass if sums.dense else abs(sums.transport)
    mean = sums.point_mean + (by_cost * size + costs.constant * sums.mass + sums.added) / eps
    # Hard marginals have weights of mass 1, whose normalisation rounds as well.
    total = sums.mass if sums.targets is not None else 1 + sums.mass
    return 1.06 * mean + (2 * sums.points + 32) * UNIT * total
