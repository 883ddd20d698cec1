"""A problem as dense float64 matrices."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.model.instance import Instance
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.numerics.costs import UNIT, cost_matrix

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

SAFETY = 2.0
"""Factor on the worst-case rounding bound of a residual."""


class Kernels(Protocol):
    """The reductions of one problem in float64: all that a lane needs to know of it.

    A decorator may hold some of the rows only, and let others hold the rest: then f, a and ratios of rows are those it
    holds, `join` and `split` go between them and all rows, and every number it returns is the same for all who share.
    """

    eps: float
    a: Vector
    b: Vector

    whole: bool
    """Whether every row is held here."""

    def log_row_ratio(self, f: Vector, g: Vector) -> Vector:
        """`log (P 1)_i / a_i`."""
        ...

    def log_col_ratio(self, f: Vector, g: Vector) -> Vector:
        """`log (P^T 1)_j / b_j`."""
        ...

    def band(self, f: Vector, g: Vector) -> float:
        """How far rounding can carry a measured residual."""
        ...

    def over_rows(self, values: Vector) -> float:
        """The sum of one value for each row."""
        ...

    def over_cols(self, values: Vector) -> float:
        """The sum of one value for each column."""
        ...

    def finite(self, f: Vector, g: Vector) -> bool:
        """Whether every number is finite."""
        ...

    def split(self, f: Vector, g: Vector) -> tuple[Vector, Vector]:
        """Of potentials of all rows and columns, those that are held here."""
        ...

    def join(self, f: Vector) -> Vector:
        """Potentials of all rows, from those that are held here."""
        ...


class AllRows:
    """The part of `Kernels` that is the same for all who hold every row."""

    whole: bool = True

    def over_rows(self, values: Vector) -> float:
        """The sum."""
        return float(np.sum(values))

    def over_cols(self, values: Vector) -> float:
        """The sum."""
        return float(np.sum(values))

    def finite(self, f: Vector, g: Vector) -> bool:
        """Whether every number is finite."""
        return bool(np.isfinite(f).all() and np.isfinite(g).all())

    def split(self, f: Vector, g: Vector) -> tuple[Vector, Vector]:
        """All of them."""
        return f, g

    def join(self, f: Vector) -> Vector:
        """All of them."""
        return f


class Geometry(AllRows):
    """An admitted problem as float64 matrices: scores `C / eps`, log weights, and the rounding of a score."""

    def __init__(self, instance: Instance[Any]) -> None:
        self.eps = instance.eps
        self.a, self.b = to_numpy(instance.a), to_numpy(instance.b)
        cost, rounding = cost_matrix(instance)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            self.log_a, self.log_b = np.log(self.a), np.log(self.b)
            self.scores: Matrix = cost / self.eps
        self._scratch = np.empty_like(self.scores)
        self.rounding = rounding / self.eps + UNIT * float(np.abs(self.scores).max())
        # Reductions of n or m terms, in whatever order NumPy adds them.
        self.rounding += UNIT * sum(self.scores.shape)
        # Logarithms of weights are added to the exponents.
        self.rounding += 4 * UNIT * (float(np.abs(self.log_a).max()) + float(np.abs(self.log_b).max()))

    def log_row_ratio(self, f: Vector, g: Vector) -> Vector:
        """`log (P 1)_i / a_i`."""
        return f / self.eps + self._logsumexp((self.log_b + g / self.eps)[None, :], axis=1)

    def log_col_ratio(self, f: Vector, g: Vector) -> Vector:
        """`log (P^T 1)_j / b_j`."""
        return g / self.eps + self._logsumexp((self.log_a + f / self.eps)[:, None], axis=0)

    def _logsumexp(self, shift: Matrix, axis: int) -> Vector:
        """`logsumexp(shift - scores)` along an axis, in place of a new matrix."""
        exponents = np.subtract(shift, self.scores, out=self._scratch)
        largest = exponents.max(axis=axis, keepdims=True)
        np.exp(np.subtract(exponents, largest, out=exponents), out=exponents)
        return np.log(exponents.sum(axis=axis)) + largest.squeeze(axis)

    def band(self, f: Vector, g: Vector) -> float:
        """How far rounding can carry a measured residual: the error of a score in nats is that of a plan entry."""
        potentials = (float(np.abs(f).max()) + float(np.abs(g).max())) / self.eps
        return SAFETY * (self.rounding + 4 * UNIT * potentials)
