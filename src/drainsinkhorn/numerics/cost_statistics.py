"""Mean, median and standard deviation of the costs of all pairs of points, each pair counted once.

For squared distances of points or of directions, mean and variance have closed forms. With u and v the points less the
means of their clouds, h the difference of these means, and S = E u u', T = E v v',

    mean = tr S + tr T + |h|^2
    variance = Var(|u|^2 + 2 u'h) + Var(|v|^2 - 2 v'h) + 4 tr(S T)

In all other cases costs are computed pair by pair: all pairs up to PAIRS, above that a sample of PAIRS pairs.

Arrays are NumPy's, or tensors of torch, which are reduced on their device. The value of a problem does not depend on
the other problems of a stack.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.model.cost import Cost, Distances
from drainsinkhorn.numerics.arrays import library, to_numpy
from drainsinkhorn.numerics.costs import UNIT, evaluate

PAIRS = 2**20
"""Largest number of pairs whose costs are all computed; above it a sample has this number of pairs."""
SIDE = 128
"""Points on each side of a block of sampled pairs, unless a cloud has fewer."""
CHUNK = 2**18
"""Numbers of float64 that are computed with at a time, unless one problem has more."""
MANY_COORDINATES = 16
"""From this number of coordinates on, distances are computed by products first; see `_pair_costs`."""
ACCURATE = 1e-9
"""Relative rounding error up to which distances by products are accurate enough for a statistic of them."""
RANGE = (1e-70, 1e70)
"""Statistics outside of this range are computed again, from points scaled by a power of two."""
SEED = 20
"""Seed of the sample of pairs."""


def point_statistics(cost: Cost, x: Any, y: Any, of: str) -> list[float]:
    """Return the mean, median or standard deviation of the costs of each problem of a stack.

    A value is NaN or infinite where a cost leaves the range of float64.

    Args:
        cost: A cost between points, with a PointCost as its kind; "distances" is one of its forms.
        x: Source points, (W, n, d); or (1, n, d), shared by all problems.
        y: Target points, (W, m, d) or (1, m, d), in the same library.
        of: "mean", "median" or "std".
    """
    form = cost.kind.distances
    (_, n, d), m = x.shape, y.shape[1]
    closed = not form.root and of != "median"
    size = (n + m) * d if closed else min(n * m, PAIRS)
    width, step = max(len(x), len(y)), max(1, CHUNK // size)
    with np.errstate(all="ignore"):
        parts = [_statistics(form, _rows(x, first, step), _rows(y, first, step), of) for first in range(0, width, step)]
        values = _join(parts)
        low, high = RANGE
        for place, value in enumerate(values):
            if not low < value < high and not form.directions:
                values[place] = _scaled_statistic(form, _rows(x, place, 1), _rows(y, place, 1), of)
    return [cost.scale * form.factor * value for value in values]


def own_cost_statistic(cost: Cost, x: Any, y: Any, of: str) -> float:
    """Return the statistic for a cost of the caller's own, from points (n, d) and (m, d)."""
    x, y = (to_numpy(points).astype(np.float64) for points in (x, y))
    n, m = len(x), len(y)
    with np.errstate(all="ignore"):
        if n * m <= PAIRS:
            costs = evaluate(cost.kind, x, y).ravel()
        else:
            costs = np.concatenate(
                [evaluate(cost.kind, x[i], y[j]).ravel() for i, j in zip(*sample(n, m), strict=True)]
            )
        return cost.scale * float(_reduce(costs[None], of)[0])


def matrix_statistic(matrix: Any, of: str) -> float:
    """Return the statistic of a matrix of costs (n, m); median of more than PAIRS costs: that of a sample."""
    n, m = matrix.shape
    with np.errstate(all="ignore"):
        if n * m <= PAIRS:
            return float(_reduce(_wide(matrix).reshape(1, -1), of)[0])
        if of == "median":
            rows, columns = _on_device(sample(n, m), matrix)
            return float(_reduce(_wide(matrix[rows[:, :, None], columns[:, None, :]]).reshape(1, -1), of)[0])
        return _moments_of_matrix(matrix, of)


def _moments_of_matrix(matrix: Any, of: str) -> float:
    """Mean or standard deviation of a large matrix, some rows at a time."""
    n, m = matrix.shape
    blocks = _blocks(n, m)
    mean = math.fsum(float(_wide(matrix[rows]).sum()) / (n * m) for rows in blocks)
    if of == "mean":
        return mean
    # Deviations are divided by the largest of them, so that squares neither overflow nor vanish.
    largest = max(float(abs(_wide(matrix[rows]) - mean).max()) for rows in blocks)
    if not 0 < largest < math.inf:
        return largest
    squares = (((_wide(matrix[rows]) - mean) / largest) ** 2 for rows in blocks)
    return largest * math.sqrt(math.fsum(float(square.sum()) / (n * m) for square in squares))


@lru_cache(maxsize=16)
def sample(n: int, m: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return PAIRS pairs of n and m points as blocks: indices (K, r) and (K, c); all pairs within a block are taken.

    Points are drawn without replacement; once all were drawn, they are drawn anew. The draw depends on n and m alone.
    """
    rows, columns = min(n, SIDE), min(m, SIDE)
    rows, columns = min(n, SIDE**2 // columns), min(m, SIDE**2 // rows)
    count = -(-PAIRS // (rows * columns))
    # Raw numbers of a bit generator are the same in all versions of NumPy.
    source = np.random.PCG64(SEED)

    def draw(size: int, wanted: int) -> NDArray[np.int64]:
        turns = [np.argsort(source.random_raw(size), kind="stable") for _ in range(-(-wanted // size))]
        return np.concatenate(turns)[:wanted]

    return draw(n, count * rows).reshape(count, rows), draw(m, count * columns).reshape(count, columns)


def _rows(points: Any, first: int, count: int) -> Any:
    """Points of some problems of a stack; a shared cloud has one row, which belongs to all of them."""
    return points if len(points) == 1 else points[first : first + count]


def _join(parts: list[Any]) -> list[float]:
    """All values in one list; values on a device are copied from there together."""
    if library(parts[0]) == "torch":
        return sys.modules["torch"].cat(parts).tolist()
    return np.concatenate(parts).tolist()


def _wide(values: Any) -> Any:
    """The same numbers in float64, contiguous, on their device."""
    if library(values) == "torch":
        return values.detach().double().contiguous()
    return np.ascontiguousarray(values, dtype=np.float64)


def _namespace(values: Any) -> Any:
    """The module of functions for an array: torch or NumPy."""
    return sys.modules["torch"] if library(values) == "torch" else np


def _on_device(indices: tuple[NDArray[np.int64], ...], like: Any) -> tuple[Any, ...]:
    if library(like) != "torch":
        return indices
    torch = sys.modules["torch"]
    return tuple(torch.from_numpy(part).to(like.device) for part in indices)


def _blocks(count: int, width: int) -> list[slice]:
    """Slices of rows, each of at most CHUNK numbers, or of one row."""
    step = max(1, CHUNK // width)
    return [slice(first, first + step) for first in range(0, count, step)]


def _statistics(form: Distances, x: Any, y: Any, of: str) -> Any:
    """The statistic of each problem of a part of a stack, (W,), for a factor of 1."""
    is_closed = not form.root and of != "median"
    n, m = x.shape[1], y.shape[1]
    if is_closed or n * m <= PAIRS:
        if form.directions:
            x, y = _directions(x), _directions(y)
        return _moments(x, y, of) if is_closed else _pair_statistics(form, x, y, of)
    rows, columns = _on_device(sample(n, m), x)
    values: list[Any] = []
    for place in range(max(len(x), len(y))):
        p, q = x[place % len(x)][rows], y[place % len(y)][columns]
        if form.directions:
            p, q = _directions(p), _directions(q)
        values.append(_pair_statistics(form, p, q, of, together=True))
    return _namespace(x).concatenate(values)


def _directions(points: Any) -> Any:
    """Points divided by their lengths; first by the largest coordinate, so that squares neither overflow nor vanish."""
    xp, points = _namespace(points), _wide(points)
    points = points / xp.amax(abs(points), axis=-1, keepdims=True)
    return points / xp.sqrt((points * points).sum(-1)[..., None])


class _Cloud:
    """Points of a side less their mean. The first point is subtracted first, so that large offsets cost no digits.

    Coordinates come before points, since sums over the last axis are fastest.

    Attributes:
        count: Number of points.
        first: The first point of each problem, (W, d, 1).
        mean: The mean less the first point, (W, d, 1).
    """

    def __init__(self, points: Any) -> None:
        (_, self.count, dim), self._points = points.shape, points
        self._slices = _blocks(self.count, dim) if len(points) == 1 else [slice(None)]
        self.first = _wide(points[:, :1].swapaxes(1, 2))
        total, shifted = 0.0, None
        for rows in self._slices:
            shifted = self._shift(rows)
            total = total + shifted.sum(-1)[..., None]
        self.mean: Any = total / self.count
        # Points of several blocks are not kept.
        self._all = shifted - self.mean if len(self._slices) == 1 else None

    def blocks(self) -> Iterator[Any]:
        """Centred points, (W, d, r), some points at a time."""
        if self._all is not None:
            yield self._all
            return
        for rows in self._slices:
            yield self._shift(rows) - self.mean

    def _shift(self, rows: slice) -> Any:
        return _wide(self._points[:, rows].swapaxes(1, 2)) - self.first


def _moments(x: Any, y: Any, of: str) -> Any:
    """Mean or standard deviation of the squared distances of each problem in closed form, (W,)."""
    xp, sides = _namespace(x), (_Cloud(x), _Cloud(y))
    gap = (sides[0].first - sides[1].first) + (sides[0].mean - sides[1].mean)
    spreads = [sum((u * u).sum(-1).sum(-1) for u in side.blocks()) / side.count for side in sides]
    if of == "mean":
        return spreads[0] + spreads[1] + (gap * gap).sum(1)[:, 0]
    variance = 4 * _mean_square_product(sides)
    for side, sign in zip(sides, (2.0, -2.0), strict=True):
        # |u|^2 + 2 u'h of each point
        norms = [(u * u).sum(1) + sign * (gap.swapaxes(1, 2) @ u)[:, 0] for u in side.blocks()]
        norms = xp.concatenate(norms, axis=-1) if len(norms) > 1 else norms[0]
        around = norms - norms.mean(-1)[:, None]
        variance = variance + (around * around).mean(-1)
    return xp.sqrt(variance)


def _mean_square_product(sides: tuple[_Cloud, _Cloud]) -> Any:
    """`E (u'v)^2 = tr(S T)` over all pairs, (W,): from the second moments or from all products, what is cheaper."""
    n, m = (side.count for side in sides)
    dim = sides[0].first.shape[1]
    if n * m < (n + m) * dim:
        products = (u.swapaxes(1, 2) @ v for u in sides[0].blocks() for v in sides[1].blocks())
        return sum((product * product).sum(-1).sum(-1) for product in products) / (n * m)
    first, second = (sum(u @ u.swapaxes(1, 2) for u in side.blocks()) / side.count for side in sides)
    return (first * second).sum(-1).sum(-1)


def _pair_statistics(form: Distances, x: Any, y: Any, of: str, *, together: bool = False) -> Any:
    """The statistic of all costs between x (W, n, d) and y (W, m, d): (W,); (1,) if all problems are taken together."""
    if x.shape[-1] < MANY_COORDINATES:
        return _reduce(_flat(_distances(form, x, y), together), of)
    costs, error = _distances_by_products(form, x, y)
    values = _reduce(_flat(costs, together), of)
    accurate = (error.max() if together else error) <= ACCURATE * values
    if bool(accurate.all()):
        return values
    if together:
        return _reduce(_flat(_distances(form, x, y), together), of)
    for place in range(len(values)):
        if not bool(accurate[place]):
            values[place] = _reduce(_flat(_distances(form, _rows(x, place, 1), _rows(y, place, 1)), together), of)[0]
    return values


def _flat(costs: Any, together: bool) -> Any:
    return costs.reshape(1 if together else len(costs), -1)


def _distances(form: Distances, x: Any, y: Any) -> Any:
    """Squared distances, or distances, of all pairs, (W, n, m), by differences of one coordinate at a time."""
    x, y = _wide(x), _wide(y)
    total = 0.0
    for k in range(x.shape[-1]):
        difference = x[:, :, k, None] - y[:, None, :, k]
        total = total + difference * difference
    return _namespace(x).sqrt(total) if form.root else total


def _distances_by_products(form: Distances, x: Any, y: Any) -> tuple[Any, Any]:
    """Squared distances, or distances, by one product of matrices, (W, n, m), and their errors, (W,).

    The error of squared distances is a bound; that of distances holds at their root mean square.
    """
    xp = _namespace(x)
    x, y = _wide(x), _wide(y)
    centre = x[:, :1] + (x - x[:, :1]).mean(1)[:, None]
    u, v = x - centre, y - centre
    squares, others = (u * u).sum(-1), (v * v).sum(-1)
    costs = (squares[:, :, None] + others[:, None, :] - 2 * (u @ v.swapaxes(1, 2))).clip(0)
    error = 4 * (x.shape[-1] + 6) * UNIT * (xp.amax(squares, axis=-1) + xp.amax(others, axis=-1))
    if not form.root:
        return costs, error
    return xp.sqrt(costs), error / (2 * (squares.mean(-1) + others.mean(-1)) ** 0.5)


def _reduce(costs: Any, of: str) -> Any:
    """The statistic along the last axis: (W, P) to (W,). The median of an even number is the mean of the middle two."""
    if of == "mean":
        return costs.mean(-1)
    if of == "std":
        around = costs - costs.mean(-1)[:, None]
        largest = _namespace(costs).amax(abs(around), axis=-1)
        scale = _namespace(costs).where((largest > 0) & (largest < math.inf), largest, largest * 0 + 1)
        return scale * ((around / scale[:, None]) ** 2).mean(-1) ** 0.5
    if library(costs) != "torch":
        return np.median(costs, axis=-1)
    ordered, count = costs.sort(-1).values, costs.shape[-1]
    return (ordered[:, (count - 1) // 2] + ordered[:, count // 2]) / 2


def _scaled_statistic(form: Distances, x: Any, y: Any, of: str) -> float:
    """The statistic of one problem whose squares overflow or vanish; 0 if all costs are equal to 0."""
    x, y = _wide(x), _wide(y)
    first = x[:, :1]
    unit = max(float(abs(points - first).max()) for points in (x, y))
    if not 0 < unit < math.inf:
        return unit
    value = float(_statistics(form, (x - first) / unit, (y - first) / unit, of)[0])
    return value * unit if form.root else value * unit * unit
