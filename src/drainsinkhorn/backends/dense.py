"""A problem as dense float64 matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.backends.arrays import to_numpy
from drainsinkhorn.backends.costs import UNIT, cost_matrix
from drainsinkhorn.core.problem import Problem

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

SAFETY = 2.0
"""Factor on the worst-case rounding bound of a residual."""


class Geometry:
    """An admitted problem as float64 matrices: scores `C / eps`, log weights, and the rounding of a score."""

    def __init__(self, problem: Problem[Any]) -> None:
        self.eps = problem.eps
        self.a, self.b = to_numpy(problem.a), to_numpy(problem.b)
        cost, rounding = cost_matrix(problem)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            self.log_a, self.log_b = np.log(self.a), np.log(self.b)
            self.scores: Matrix = cost / self.eps
        self._scratch = np.empty_like(self.scores)
        self.rounding = rounding / self.eps + UNIT * float(np.abs(self.scores).max())
        # Reductions of n or m terms, in whatever order NumPy adds them.
        self.rounding += UNIT * sum(self.scores.shape)

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
