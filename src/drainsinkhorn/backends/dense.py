"""A problem as dense float64 matrices, and the plan that is built from them."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.backends.arrays import to_caller, to_numpy
from drainsinkhorn.backends.costs import UNIT, cost_matrix
from drainsinkhorn.backends.door import admit, caller_array
from drainsinkhorn.core.audit import is_count
from drainsinkhorn.core.errors import ProblemError
from drainsinkhorn.core.problem import Potentials, Problem

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


class DenseCoupling:
    """A plan that is built when it is used."""

    def __init__(self, problem: Problem[Any], potentials: Potentials[Any]) -> None:
        self._problem = admit(problem, tol=1.0)
        self._like = caller_array(self._problem)
        self._dtype = to_numpy(potentials.f).dtype
        self._f, self._g = (to_numpy(p).astype(np.float64) for p in potentials)

    @np.errstate(all="ignore")
    def _plan(self) -> Matrix:
        geometry = Geometry(self._problem)
        exponent = (self._f[:, None] + self._g[None, :]) / geometry.eps - geometry.scores
        plan = np.exp(exponent + geometry.log_a[:, None] + geometry.log_b[None, :])
        # Between points without weight the exponent may be anything.
        plan[geometry.a == 0], plan[:, geometry.b == 0] = 0.0, 0.0
        return plan

    def _return(self, array: NDArray[Any]) -> Any:
        """In the dtype of the potentials, which is wider than the caller's where that cannot hold tol."""
        with np.errstate(over="ignore"):
            return to_caller(array if array.dtype.kind == "i" else array.astype(self._dtype), self._like)

    def plan(self) -> Any:
        """The dense plan."""
        return self._return(self._plan())

    def apply(self, values: Any, side: str = "row") -> Any:
        """`P @ values` ("row") or `P.T @ values` ("col")."""
        plan = self._plan() if self._is_row(side) else self._plan().T
        array = to_numpy(values)
        if array.dtype.kind not in "fiub" or array.ndim == 0 or array.shape[0] != plan.shape[1]:
            raise ProblemError(
                f"values must be real numbers, one row for each of the {plan.shape[1]} points of the other side, "
                f"got {array.dtype} of shape {array.shape}"
            )
        return self._return(plan @ array.astype(np.float64))

    @np.errstate(all="ignore")
    def barycentric_map(self, side: str = "row") -> Any:
        """Conditional mean of the other cloud for every point of this side."""
        rows = self._is_row(side)
        other = self._problem.y if rows else self._problem.x
        if other is None:
            raise ProblemError("a dense cost has no points to average; use apply with your own values")
        # The conditional law needs no weight of its own side, so a point of weight zero has an image too.
        geometry = Geometry(self._problem)
        if rows:
            exponent = geometry.log_b + self._g / geometry.eps - geometry.scores
        else:
            exponent = geometry.log_a + self._f / geometry.eps - geometry.scores.T
        law = np.exp(exponent - exponent.max(axis=1, keepdims=True))
        return self._return(law @ to_numpy(other).astype(np.float64) / law.sum(axis=1, keepdims=True))

    def sample(self, count: int, *, seed: int) -> tuple[Any, Any]:
        """Independent index pairs drawn from the plan."""
        if not is_count(count):
            raise ProblemError(f"count must be an integer of at least 1, got {count!r}")
        plan = self._plan()
        if not np.isfinite(plan).all():
            raise ProblemError("the plan is not finite, so nothing can be drawn from it; see the result's message")
        drawn = np.random.default_rng(seed).choice(plan.size, size=count, p=(plan / plan.sum()).ravel())
        rows, cols = np.divmod(drawn, plan.shape[1])
        return self._return(rows), self._return(cols)

    @np.errstate(all="ignore")
    def transport_cost(self) -> float:
        """`sum_ij P_ij C_ij`."""
        plan = self._plan()
        return float(plan[plan > 0] @ cost_matrix(self._problem)[0][plan > 0])

    @staticmethod
    def _is_row(side: str) -> bool:
        if side not in ("row", "col"):
            raise ProblemError(f'side must be "row" or "col", got {side!r}')
        return side == "row"
