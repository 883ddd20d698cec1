"""How deep a problem will go, predicted from its points before it runs: for order and shares of work, not for results.

Between Gaussians the entropic coupling is Gaussian, and plain Sinkhorn contracts by the square of its largest
correlation. In one dimension with variances A, B and cost |x - y|^2 the covariance of the coupling is

    c = sqrt(4 A B + (eps / 2)^2) / 2 - eps / 4,    rate = c^2 / (A B)

(Janati, Muzellec, Peyre, Cuturi: Entropic optimal transport between unbalanced Gaussian measures has a closed form,
2020). A and B are the largest variances of the two clouds; for other costs half the spread of the costs takes the place
of sqrt(A B). With momentum the depth is the root of the plain one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from drainsinkhorn.backends.support import part
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.numerics.costs import cost_matrix, has_squares

SAMPLE = 64
"""Points of each side that are looked at."""
FULL_DIM = 64
"""Above this dimension the largest variance of a coordinate stands for the largest of all directions."""


@np.errstate(all="ignore")
def predicted_depth(instance: Instance[Any], *, momentum: bool) -> float:
    """Cycles that an instance will need, roughly; 1 if its spread is zero or not finite."""
    spread = _spread_of_points(instance) if has_squares(instance) else _spread_of_costs(instance)
    strength = instance.eps / 4
    if not 0 < spread < math.inf:
        return 1.0
    correlation = (math.hypot(spread, strength) - strength) / spread
    rate = -2 * math.log(correlation) if correlation > 0 else math.inf
    plain = max(1.0, math.log(max(math.e, 1 / instance.tol)) / max(rate, 1e-12))
    return math.sqrt(plain) if momentum else plain


def _spread_of_points(instance: Instance[Any]) -> float:
    """The geometric mean of the largest variances of both clouds, in units of the cost."""
    factor = instance.cost.scale * instance.cost.kind.distances.factor
    return factor * math.sqrt(_variance(instance.x) * _variance(instance.y))


def _sample(count: int) -> Any:
    """At most SAMPLE places, spread evenly over `count`."""
    return np.unique(np.linspace(0, count - 1, min(count, SAMPLE)).astype(np.intp))


def _variance(points: Any) -> float:
    """The largest variance of a cloud in any direction, from some of its points."""
    sample = to_numpy(points[:: -(-len(points) // SAMPLE)]).astype(np.float64)
    around = sample - np.add.reduce(sample) / len(sample)
    if around.shape[1] > FULL_DIM:
        return float((around**2).mean(axis=0).max())
    spread = around.T @ around / len(around)
    return float(np.linalg.eigvalsh(spread)[-1]) if np.isfinite(spread).all() else math.nan


def _spread_of_costs(instance: Instance[Any]) -> float:
    """Half the standard deviation of the costs, from some of them."""
    n, m = instance.shape
    return float(cost_matrix(part(instance, _sample(n), _sample(m)))[0].std()) / 2
