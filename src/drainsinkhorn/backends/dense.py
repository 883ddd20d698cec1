"""A problem as dense float64 matrices."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.model.instance import Instance
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.numerics.costs import cost_matrix
from drainsinkhorn.numerics.rounding import exponent_rounding, largest_potentials, rounding_bound
from drainsinkhorn.numerics.soft import largest
from drainsinkhorn.numerics.update import log_ratios, total

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


class Kernels(Protocol):
    """The reductions of one problem in float64: all that a lane needs to know of it.

    An implementation may hold only some of the rows while other processes (ranks) hold the rest. Then f, a and ratios
    of rows cover the rows that it holds; `split` selects them from potentials of all rows, and `join` collects all
    rows. Column ratios and scalars are the same on all ranks.
    """

    eps: float
    a: Vector
    b: Vector

    @property
    def holds_all_rows(self) -> bool:
        """Whether every row is held here."""
        ...

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

    def most_over_rows(self, values: Vector) -> float:
        """The largest of one value for each row."""
        ...

    def finite(self, f: Vector, g: Vector) -> bool:
        """Whether every number is finite."""
        ...

    def split(self, f: Vector, g: Vector) -> tuple[Vector, Vector]:
        """Return the part of the potentials of all rows and columns that is held here."""
        ...

    def join(self, f: Vector) -> Vector:
        """Potentials of all rows, from those that are held here."""
        ...


class AllRows:
    """The methods of `Kernels` for implementations that hold every row."""

    holds_all_rows: bool = True

    def over_rows(self, values: Vector) -> float:
        """The sum of one value for each row."""
        return total(values)

    def over_cols(self, values: Vector) -> float:
        """The sum of one value for each column."""
        return total(values)

    def most_over_rows(self, values: Vector) -> float:
        """The largest of one value for each row."""
        return largest(values)

    def finite(self, f: Vector, g: Vector) -> bool:
        """Whether every number is finite."""
        return bool(np.isfinite(f).all() and np.isfinite(g).all())

    def split(self, f: Vector, g: Vector) -> tuple[Vector, Vector]:
        """Return both unchanged: all rows are held here."""
        return f, g

    def join(self, f: Vector) -> Vector:
        """Return f unchanged: all rows are held here."""
        return f


class Geometry(AllRows):
    """A validated problem as float64 matrices.

    Attributes:
        eps: Strength of the entropic term.
        a: Weights of rows, (n,).
        b: Weights of columns, (m,).
        log_a: Logarithms of `a`.
        log_b: Logarithms of `b`.
        scores: Scaled costs `C / eps`, (n, m).
        rounding: Rounding error of a log marginal ratio in nats, apart from that of potentials.
    """

    def __init__(self, instance: Instance[Any]) -> None:
        self.eps = instance.eps
        self.a, self.b = to_numpy(instance.a), to_numpy(instance.b)
        cost, rounding = cost_matrix(instance)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            self.log_a, self.log_b = np.log(self.a), np.log(self.b)
            self.scores: Matrix = cost / self.eps
        self._work = np.empty_like(self.scores)
        self._col_scores, self._col_work = self.scores.T, self._work.T
        self.rounding = exponent_rounding(rounding, self.eps, self.scores, self.log_a, self.log_b)

    def log_row_ratio(self, f: Vector, g: Vector) -> Vector:
        """`log (P 1)_i / a_i`."""
        return log_ratios(f, g, self.log_b, self.scores, self.eps, self._work)

    def log_col_ratio(self, f: Vector, g: Vector) -> Vector:
        """`log (P^T 1)_j / b_j`."""
        return log_ratios(g, f, self.log_a, self._col_scores, self.eps, self._col_work)

    def band(self, f: Vector, g: Vector) -> float:
        """Bound on the rounding error of a measured residual."""
        return float(rounding_bound(self.rounding, largest_potentials(f, g) / self.eps))
