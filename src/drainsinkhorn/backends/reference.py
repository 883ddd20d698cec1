"""The ground truth: dense NumPy in float64, one lane at a time, nothing clever.

Convention: `P_ij = a_i b_j exp((f_i + g_j - C_ij) / eps)`. Everything is one reduction, the log of a marginal ratio:

    log rho_i = f_i / eps + logsumexp_j(log b_j + (g_j - C_ij) / eps)        # rho_i = (P 1)_i / a_i

A leg sets `f_i <- f_i - eps log rho_i`; `sum_i a_i |rho_i - 1|` is the row residual of the state before that leg.
A lane's numbers depend on its own problem alone, so lanes are independent to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.backends.arrays import to_caller, to_numpy
from drainsinkhorn.backends.costs import UNIT, cost_matrix
from drainsinkhorn.backends.door import admit, caller_array, sizes
from drainsinkhorn.backends.emission import emission, rounded
from drainsinkhorn.backends.lanes import LanePack
from drainsinkhorn.backends.support import restrict
from drainsinkhorn.core.audit import is_count
from drainsinkhorn.core.errors import ProblemError
from drainsinkhorn.core.problem import Potentials, Problem
from drainsinkhorn.core.protocol import Emission
from drainsinkhorn.core.result import Residual

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

SAFETY = 2.0
"""Factor on the worst-case rounding bound of a residual."""


@dataclass(frozen=True, slots=True)
class ReferenceBackend:
    """Dense float64 NumPy.

    Attributes:
        max_pairs: Largest n * m it takes; each lane stores two matrices of that many float64.
        max_bytes: Largest sum of those matrices in a pack; beyond it a pack reports that memory is out.
    """

    max_pairs: int = 2**26
    max_bytes: int = 2**33
    name: str = field(default="reference", init=False)
    stride: int = field(default=1, init=False)
    bitwise: bool = field(default=True, init=False)
    accelerations: tuple[str, ...] = field(default=("none",), init=False)

    def signature(self, problem: Problem[Any]) -> Hashable:
        """All problems share packs, whatever their sizes; those with too many pairs are refused."""
        n, m = sizes(problem)
        if n * m > self.max_pairs:
            raise ProblemError(
                f"n * m = {n} * {m} pairs need {16e-9 * n * m:.1f} GB in the dense reference backend, whose limit is "
                f"{self.max_pairs} pairs; use fewer points, or ReferenceBackend(max_pairs={n * m})"
            )
        return self.name

    def width_for(self, lanes: int) -> int:
        """A pack is as wide as its lanes are many."""
        return lanes

    def natural_width(self, problem: Problem[Any]) -> int:
        """Sixteen."""
        return 16

    def prepare(self, problems: Sequence[Problem[Any]]) -> None:
        """Nothing to do."""

    def pack(self, problems: Sequence[Problem[Any]]) -> ReferencePack:
        """Build cost matrices and measure every lane's first f-leg."""
        return ReferencePack(problems, self.max_bytes)

    def couple(self, problem: Problem[Any], potentials: Potentials[Any]) -> DenseCoupling:
        """The dense plan of a problem."""
        return DenseCoupling(problem, potentials)

    def precise(self) -> ReferenceBackend:
        """Itself: it knows nothing but float64."""
        return self

    def using(self, acceleration: str) -> ReferenceBackend:
        """Itself: it is plain Sinkhorn."""
        return self

    def describe(self, problem: Problem[Any]) -> str:
        """Always the same."""
        return "float64, dense"


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


def _residual(weights: Vector, log_ratio: Vector) -> float:
    """`sum_i w_i |rho_i - 1|`."""
    return float(np.sum(weights * np.abs(np.expm1(log_ratio))))


class ReferenceLane:
    """One problem's state: (f, g), and the next f-leg, measured but not applied."""

    def __init__(self, problem: Problem[Any]) -> None:
        self.problem = problem
        inner, self.support = restrict(problem)
        self.geometry = Geometry(inner)
        n, m = sizes(inner)
        f, g = inner.init or (np.zeros(n), np.zeros(m))
        self.f, self.g = to_numpy(f).astype(np.float64), to_numpy(g).astype(np.float64)
        self.depth = 0
        self.frozen = False
        self.measure()

    def measure(self) -> None:
        """Measure the next f-leg, and with it the residual of the rows."""
        self.pending = self.geometry.log_row_ratio(self.f, self.g)
        self.stale = _residual(self.geometry.a, self.pending) + self.geometry.band(self.f, self.g)

    def cycle(self) -> None:
        """Apply the pending f-leg, run the g-leg, measure the next f-leg. A state that is not finite is not entered."""
        eps = self.geometry.eps
        f = self.f - eps * self.pending
        g = self.g - eps * self.geometry.log_col_ratio(f, self.g)
        self.depth += 1
        if np.isfinite(f).all() and np.isfinite(g).all():
            self.f, self.g = f, g
            self.measure()
        else:
            self.stale = math.nan

    def discarded_cycle(self) -> None:
        """Do the work of a cycle and forget it: what a lane costs that is finished and still in the kernel."""
        f = self.f - self.geometry.eps * self.pending
        g = self.g - self.geometry.eps * self.geometry.log_col_ratio(f, self.g)
        self.geometry.log_row_ratio(f, g)

    def screened(self) -> float:
        """The row residual in a pass of its own, band included."""
        if math.isnan(self.stale):
            return math.nan
        ratio = self.geometry.log_row_ratio(self.f, self.g)
        return _residual(self.geometry.a, ratio) + self.geometry.band(self.f, self.g)

    def verify(self, *, exact: bool) -> Residual:
        """Both marginals of the potentials as they will be emitted; always in float64, so `exact` changes nothing."""
        if math.isnan(self.stale):
            return Residual(math.nan, math.nan, math.nan)
        f, g, _ = rounded(self.problem, self.f, self.g)
        geometry = self.geometry
        row = _residual(geometry.a, geometry.log_row_ratio(f, g))
        col = _residual(geometry.b, geometry.log_col_ratio(f, g))
        return Residual(row, col, geometry.band(f, g))

    def emit(self) -> Emission:
        """Copies for the caller."""
        return emission(self.problem, rounded(self.problem, self.f, self.g), self.support)


class ReferencePack(LanePack[ReferenceLane]):
    """A list of reference lanes with a budget of memory."""

    def __init__(self, problems: Sequence[Problem[Any]], max_bytes: int = 2**33) -> None:
        self._max_bytes = max_bytes
        super().__init__(problems, ReferenceLane)

    def repack(self, keep: Sequence[int], admit: Sequence[Problem[Any]] = ()) -> None:
        """Keep these lanes, in this order, and append the admitted, if the budget allows."""
        problems = [*(self._lanes[i].problem for i in keep), *admit]
        needed = 16 * sum(math.prod(sizes(problem)) for problem in problems)
        if needed > self._max_bytes:
            raise MemoryError(f"{needed:,} bytes of matrices, {self._max_bytes:,} allowed")
        super().repack(keep, admit)


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
