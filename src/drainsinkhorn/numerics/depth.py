"""Depth of a problem, predicted from its points before it runs. It decides order and shares of work, never a result.

Between Gaussians the entropic coupling is Gaussian, and a cycle of plain Sinkhorn multiplies the error by the square of
the largest correlation of that coupling. In one dimension with variances A, B and cost |x - y|^2 its covariance is

    c = sqrt(4 A B + (eps / 2)^2) / 2 - eps / 4,    rate = c^2 / (A B)

(Janati, Muzellec, Peyre, Cuturi: Entropic optimal transport between unbalanced Gaussian measures has a closed form,
2020). A and B are the largest variances of the two clouds; for other costs half the standard deviation of the costs
replaces sqrt(A B). With momentum the depth is the square root of the plain one.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from drainsinkhorn.model.instance import Instance
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.numerics.costs import cost_matrix, has_squares
from drainsinkhorn.numerics.products import as_squares

SAMPLE = 64
"""Number of points of each side from which variances and costs are estimated."""
FULL_DIM = 64
"""Above this dimension the largest variance of a coordinate replaces the largest variance in any direction."""


def correlation(spread: float, eps: float) -> float:
    """Correlation of the entropic coupling of two Gaussians on the line, with cost |x - y|^2.

    It is `c / sqrt(A B)`, with covariance c and variances A and B. A cycle of plain Sinkhorn multiplies the error by
    the square of the correlation.

    Args:
        spread: `sqrt(A B)`, the product of both standard deviations.
        eps: Strength of the entropic term.
    """
    strength = eps / 4
    return (math.hypot(spread, strength) - strength) / spread


@np.errstate(all="ignore")
def predicted_depth(instance: Instance[Any], *, momentum: bool) -> float:
    """Estimate of the cycles that an instance needs; 1 if its spread is zero or not finite."""
    instance = as_squares(instance)
    spread = _spread_of_points(instance) if has_squares(instance) else _spread_of_costs(instance)
    if not 0 < spread < math.inf:
        return 1.0
    root = correlation(spread, instance.eps)
    rate = -2 * math.log(root) if root > 0 else math.inf
    plain = max(1.0, math.log(max(math.e, 1 / instance.tol)) / max(rate, 1e-12))
    return math.sqrt(plain) if momentum else plain


def _spread_of_points(instance: Instance[Any]) -> float:
    """The geometric mean of the largest variances of both clouds, in units of the cost."""
    factor = instance.cost.scale * instance.cost.kind.distances.factor
    return factor * math.sqrt(_variance(instance.x) * _variance(instance.y))


def _variance(points: Any) -> float:
    """The largest variance of a cloud in any direction, from a sample of its points."""
    sample = to_numpy(points[:: -(-len(points) // SAMPLE)]).astype(np.float64)
    around = sample - np.add.reduce(sample) / len(sample)
    if around.shape[1] > FULL_DIM:
        return float((around**2).mean(axis=0).max())
    spread = around.T @ around / len(around)
    return float(np.linalg.eigvalsh(spread)[-1]) if np.isfinite(spread).all() else math.nan


def _spread_of_costs(instance: Instance[Any]) -> float:
    """Half the standard deviation of the costs, from a sample of the points of both sides."""
    rows, cols = (_sample(size) for size in instance.shape)
    if instance.is_dense:
        subproblem = replace(instance, matrix=to_numpy(instance.matrix)[np.ix_(rows, cols)])
    else:
        subproblem = replace(instance, x=to_numpy(instance.x)[rows], y=to_numpy(instance.y)[cols])
    return float(cost_matrix(subproblem)[0].std()) / 2


def _sample(count: int) -> Any:
    """Indices of at most SAMPLE points, spread evenly over `count`."""
    return np.unique(np.linspace(0, count - 1, min(count, SAMPLE)).astype(np.intp))
