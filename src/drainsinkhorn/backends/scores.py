"""How large the scores of a problem are, and which of its points to look at: from this, precision is chosen."""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.backends.support import restrict
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.numerics.costs import evaluate, unit_rows

Vector = NDArray[np.float64]

LIGHT = 1e-3
"""Points lighter than this part of the mean weight are not sampled: together they hold no more of the mass."""

UNSAMPLED = 16 * 2.0**-24
"""Rounding error of a residual in float32 per nat of `unsampled` potentials: some units in the last place of a score.
"""

SQUARES = (1e-140, 1e140)
"""Lengths between these have squares that are numbers."""


class Scores(NamedTuple):
    """How large costs are, in units of eps: a typical one, a bound on all, and one on their rounding in float64."""

    typical: float
    largest: float
    rounding: float


_judged: WeakKeyDictionary[Instance[Any], Scores] = WeakKeyDictionary()
"""What was found of problems that are still in use: precision is asked for when one is sorted, described and opened."""


def scores(instance: Instance[Any]) -> Scores:
    """How large costs are where a problem has mass; a caller's own are judged by a sample and twice its largest."""
    judged = _judged.get(instance)
    if judged is None:
        judged = _judged[instance] = _judge(instance)
    return judged


@np.errstate(all="ignore")
def _judge(instance: Instance[Any]) -> Scores:
    instance, _ = restrict(instance)
    if instance.is_dense:
        costs = np.abs(to_numpy(instance.matrix))
        return Scores(float(costs.mean()) / instance.eps, float(costs.max()) / instance.eps, 0.0)
    kind = instance.cost.kind
    factor, (x, y) = instance.cost.scale / instance.eps, (to_numpy(points) for points in (instance.x, instance.y))
    if kind.distances is None:
        samples = [p[np.linspace(0, len(p) - 1, min(len(p), 64)).astype(int)].astype(np.float64) for p in (x, y)]
        costs = np.abs(evaluate(kind, *samples))
        far = 2 * float(costs.max())
        return Scores(factor * float(costs.mean()), factor * far, factor * kind.rounding(x.shape[1], far))
    a, b, x, y = to_numpy(instance.a), to_numpy(instance.b), native(x), native(y)
    if kind.distances.directions:
        x, y = (unit_rows(points.astype(np.float64)) for points in (x, y))
    centre = middle(a, b, x, y)
    from_x, from_y = (_lengths(np.subtract(points, centre, dtype=np.float64)) for points in (x, y))
    far = float(kind.largest(float(from_x.max()) + float(from_y.max())))
    typical = float(a @ kind.largest(from_x) + b @ kind.largest(from_y))
    return Scores(factor * typical, factor * far, factor * float(kind.rounding(x.shape[1], far)))


def native(points: Any) -> Any:
    """Points in float32 as they are, others in float64: short or long floats, integers, the other order of bytes."""
    return points if points.dtype == np.float32 else points.astype(np.float64, copy=False)


def middle(a: Vector, b: Vector, x: Any, y: Any) -> Vector:
    """A point amid both clouds, in float64 but no more exact than they are: any will do if both are seen from it."""
    means = [(weights.astype(points.dtype) @ points).astype(np.float64) for weights, points in ((a, x), (b, y))]
    return (means[0] + means[1]) / 2


def _lengths(points: Any) -> Vector:
    """Lengths of vectors whose squares may overflow."""
    squares = np.einsum("ij,ij->i", points, points)
    if SQUARES[0] ** 2 < squares.max() < SQUARES[1] ** 2:
        return np.sqrt(squares)
    largest = np.abs(points).max()
    # One scale for all points: those that are lost beside the farthest count for nothing in a largest or a mean.
    unit = largest if not SQUARES[0] < largest < SQUARES[1] and 0 < largest < np.inf else 1.0
    points = points / unit if unit != 1.0 else points
    return unit * np.sqrt(np.einsum("ij,ij->i", points, points))


def samples(weights: Vector, count: int) -> NDArray[np.int32]:
    """Places of points, evenly spread over those that are not light; some twice if there are fewer."""
    heavy = np.flatnonzero(weights >= LIGHT / len(weights))
    return heavy[np.linspace(0, len(heavy) - 1, count).astype(int)].astype(np.int32)


def unsampled(xp: Any, weights: Any, potentials: Any, places: Any) -> Any:
    """Return by how much the mean size of potentials exceeds what sampled points account for; 0 if it does not.

    The rounding error of a score grows with the score, and the potential of a point is as large as the scores that
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
