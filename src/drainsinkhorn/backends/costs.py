"""Costs between points, dense and in float64 with direct differences. One entry of COSTS is one cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]

UNIT = 2.0**-53
"""Unit roundoff of float64."""


def sqeuclidean(x: Matrix, y: Matrix) -> Matrix:
    """`|x_i - y_j|^2`, summed one coordinate at a time so that no (n, m, d) array is built."""
    total = np.zeros((len(x), len(y)))
    for k in range(x.shape[1]):
        difference = x[:, k, None] - y[None, :, k]
        total += difference * difference
    return total


def euclidean(x: Matrix, y: Matrix) -> Matrix:
    """`|x_i - y_j|`."""
    return np.sqrt(sqeuclidean(x, y))


def cosine(x: Matrix, y: Matrix) -> Matrix:
    """`1 - cos(x_i, y_j)`, as half the squared distance of the unit vectors, which is exact near zero."""
    return sqeuclidean(unit_rows(x), unit_rows(y)) / 2


def unit_rows(x: Matrix) -> Matrix:
    """Rows scaled to length one; first by their largest entry, so that squares neither overflow nor vanish."""
    x = x / np.abs(x).max(axis=1, keepdims=True)
    return x / np.sqrt((x * x).sum(axis=1, keepdims=True))


@dataclass(frozen=True, slots=True)
class PointCost:
    """A cost and how far rounding can carry it.

    Attributes:
        matrix: Points (n, d) and (m, d) to costs (n, m).
        rounding: Dimension and largest cost to a bound on the absolute error of a cost.
    """

    matrix: Callable[[Matrix, Matrix], Matrix]
    rounding: Callable[[int, float], float]


# A sum of d squares of rounded differences has relative error below (d + 3) u; unit vectors add about d u, absolutely.
COSTS: dict[str, PointCost] = {
    "sqeuclidean": PointCost(sqeuclidean, lambda d, largest: (d + 3) * UNIT * largest),
    "euclidean": PointCost(euclidean, lambda d, largest: (d + 3) * UNIT * largest),
    "cosine": PointCost(cosine, lambda d, largest: 4 * (d + 3) * UNIT),
}
