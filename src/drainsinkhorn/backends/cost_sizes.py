"""How large the costs of a problem are, and which of its points to sample: from this, precision is chosen."""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.backends.support import restrict
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.numerics.costs import evaluate, unit_rows
from drainsinkhorn.numerics.rounding import float32_suffices, streamed_rounding

Vector = NDArray[np.float64]

LIGHT = 1e-3
"""Points lighter than this fraction of the mean weight are not sampled: together they hold at most this mass."""

SQUARES = (1e-140, 1e140)
"""Lengths between these have squares in the range of float64."""


class CostSizes(NamedTuple):
    """How large costs are, in units of eps.

    Attributes:
        typical: A typical cost.
        largest: A bound on the absolute values of all costs.
        rounding: A bound on the rounding error of a cost in float64.
    """

    typical: float
    largest: float
    rounding: float


_known: WeakKeyDictionary[Instance[Any], CostSizes] = WeakKeyDictionary()
"""Sizes of problems that are still in use: they are needed when a problem is sorted, described and opened."""


def cost_sizes(instance: Instance[Any]) -> CostSizes:
    """How large costs are where a problem has mass; `largest` of a caller's own cost is twice that of a sample."""
    sizes = _known.get(instance)
    if sizes is None:
        sizes = _known[instance] = _measure(instance)
    return sizes


def is_single(instance: Instance[Any], precision: str) -> bool:
    """Whether a problem is computed in float32: with precision "float32", and with "auto" where it suffices for tol."""
    if precision == "auto":
        return float32_suffices(cost_sizes(instance).typical, instance.tol)
    return precision == "float32"


def leg_rounding(instance: Instance[Any]) -> float:
    """Bound on the rounding error of a log marginal ratio in float64, in nats: `streamed_rounding` of a problem."""
    sizes = cost_sizes(instance)
    return streamed_rounding(sizes.rounding, sizes.largest, sum(instance.shape))


@np.errstate(all="ignore")
def _measure(instance: Instance[Any]) -> CostSizes:
    instance, _ = restrict(instance)
    if instance.is_dense:
        costs = np.abs(to_numpy(instance.matrix))
        return CostSizes(float(costs.mean()) / instance.eps, float(costs.max()) / instance.eps, 0.0)
    kind = instance.cost.kind
    factor, (x, y) = instance.cost.scale / instance.eps, (to_numpy(points) for points in (instance.x, instance.y))
    if kind.distances is None:
        samples = [p[np.linspace(0, len(p) - 1, min(len(p), 64)).astype(int)].astype(np.float64) for p in (x, y)]
        costs = np.abs(evaluate(kind, *samples))
        far = 2 * float(costs.max())
        return CostSizes(factor * float(costs.mean()), factor * far, factor * kind.rounding(x.shape[1], far))
    (a, b), x, y = unit_weights(instance), native(x), native(y)
    if kind.distances.directions:
        x, y = (unit_rows(points.astype(np.float64)) for points in (x, y))
    centre = middle(a, b, x, y)
    from_x, from_y = (_lengths(np.subtract(points, centre, dtype=np.float64)) for points in (x, y))
    far = float(kind.largest(float(from_x.max()) + float(from_y.max())))
    typical = float(a @ kind.largest(from_x) + b @ kind.largest(from_y))
    return CostSizes(factor * typical, factor * far, factor * float(kind.rounding(x.shape[1], far)))


def unit_weights(instance: Instance[Any]) -> tuple[Vector, Vector]:
    """Weights of both sides with mass 1, which those of soft marginals need not have."""
    a, b = (to_numpy(weights) / mass for weights, mass in zip((instance.a, instance.b), instance.masses, strict=True))
    return a, b


def native(points: Any) -> Any:
    """Points in float32 as they are, others (other floats, integers, the other order of bytes) in float64."""
    return points if points.dtype == np.float32 else points.astype(np.float64, copy=False)


def middle(a: Vector, b: Vector, x: Any, y: Any) -> Vector:
    """The mean of the means of both clouds, (d,), in float64.

    It is summed in the dtype of the clouds, which is accurate enough to centre them.
    """
    means = [(weights.astype(points.dtype) @ points).astype(np.float64) for weights, points in ((a, x), (b, y))]
    return (means[0] + means[1]) / 2


def _lengths(points: Any) -> Vector:
    """Lengths of vectors whose squares may overflow."""
    squares = np.einsum("ij,ij->i", points, points)
    if SQUARES[0] ** 2 < squares.max() < SQUARES[1] ** 2:
        return np.sqrt(squares)
    largest = np.abs(points).max()
    # One scale for all points: those that underflow beside the farthest change neither the largest nor the mean.
    unit = largest if not SQUARES[0] < largest < SQUARES[1] and 0 < largest < np.inf else 1.0
    points = points / unit if unit != 1.0 else points
    return unit * np.sqrt(np.einsum("ij,ij->i", points, points))


def samples(weights: Vector, count: int) -> NDArray[np.int32]:
    """Indices of `count` points, evenly spread over those not lighter than LIGHT; repeated if these are fewer."""
    heavy = np.flatnonzero(weights >= LIGHT / len(weights))
    return heavy[np.linspace(0, len(heavy) - 1, count).astype(int)].astype(np.int32)
