"""The ground truth: dense NumPy in float64, one lane at a time, nothing clever.

Convention: `P_ij = a_i b_j exp((f_i + g_j - C_ij) / eps)`. Everything is one reduction, the log of a marginal ratio:

    log rho_i = f_i / eps + logsumexp_j(log b_j + (g_j - C_ij) / eps)        # rho_i = (P 1)_i / a_i

A leg sets `f_i <- f_i - eps log rho_i`; `sum_i a_i |rho_i - 1|` is the row residual of the state before that leg.
A lane's numbers depend on its own problem alone, so lanes are independent to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.backends.certificate import certify
from drainsinkhorn.backends.couplings import BlockCouplings
from drainsinkhorn.backends.dense import Geometry, Kernels
from drainsinkhorn.backends.emission import Rounded, emission, rounded
from drainsinkhorn.backends.lanes import LanePack
from drainsinkhorn.backends.laws import plain_couplings
from drainsinkhorn.backends.momentum import PLAIN, Momentum, Stride
from drainsinkhorn.backends.support import restrict
from drainsinkhorn.core.protocol import Emission, Hints
from drainsinkhorn.model.errors import ProblemError
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.model.result import Residual
from drainsinkhorn.numerics.starts import start

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ReferenceBackend:
    """Dense float64 NumPy.

    Attributes:
        max_pairs: Largest n * m it takes; each lane stores two matrices of that many float64.
        max_bytes: Largest sum of those matrices in a pack; beyond it a pack reports that memory is out.
        acceleration: "momentum" or "none"; `solve` sets it.
    """

    max_pairs: int = 2**26
    max_bytes: int = 2**33
    acceleration: str = "none"
    name: str = field(default="reference", init=False)
    stride: int = field(default=1, init=False)
    bitwise: bool = field(default=True, init=False)
    accelerations: tuple[str, ...] = field(default=("momentum", "none"), init=False)

    def signature(self, instance: Instance[Any]) -> Hashable:
        """All problems share packs, whatever their sizes; those with too many pairs are refused."""
        n, m = instance.shape
        if n * m > self.max_pairs:
            raise ProblemError(
                f"n * m = {n} * {m} pairs need {16e-9 * n * m:.1f} GB in the dense reference backend, whose limit is "
                f"{self.max_pairs} pairs; use fewer points, or ReferenceBackend(max_pairs={n * m})"
            )
        return self.name

    def width_for(self, lanes: int) -> int:
        """A pack is as wide as its lanes are many."""
        return lanes

    def hints(self, instance: Instance[Any]) -> Hints:
        """Return its only arithmetic, and sixteen lanes."""
        return Hints("float64, dense", 16)

    def prepare(self, instances: Sequence[Instance[Any]]) -> None:
        """Nothing to do."""

    def pack(self, instances: Sequence[Instance[Any]]) -> ReferencePack:
        """Build cost matrices and measure every lane's first f-leg."""
        return ReferencePack(instances, self.max_bytes, momentum=self.acceleration == "momentum")

    def couple(self, instances: Sequence[Instance[Any]], potentials: Sequence[Potentials[Any]]) -> BlockCouplings:
        """Plans in plain NumPy, some rows at a time."""
        return plain_couplings(instances, potentials)

    def precise(self) -> ReferenceBackend:
        """Itself: it knows nothing but float64."""
        return self

    def frugal(self) -> ReferenceBackend:
        """Return itself: it has no representation but dense matrices."""
        return self

    def release(self) -> None:
        """Do nothing: it caches no memory."""

    def using(self, acceleration: str) -> ReferenceBackend:
        """Plain Sinkhorn, or with momentum."""
        return replace(self, acceleration=acceleration)


def _errors(weights: Vector, log_ratio: Vector) -> Vector:
    """`w_i |rho_i - 1|`, which sum to a residual."""
    return weights * np.abs(np.expm1(log_ratio))


class ReferenceLane:
    """One problem's state: (f, g), and the next f-leg, measured but not applied.

    Args:
        instance: The problem as admitted.
        momentum: Whether to take long steps where they help.
        kernels: Makes the reductions of the problem on its support.
    """

    def __init__(
        self,
        instance: Instance[Any],
        *,
        momentum: bool = False,
        kernels: Callable[[Instance[Any]], Kernels] = Geometry,
    ) -> None:
        self.instance = instance
        inner, self.support = restrict(instance)
        self.geometry = kernels(inner)
        self.f, self.g = self.geometry.split(*start(inner))
        self.momentum = Momentum() if momentum else None
        self.before = self.f
        self.depth = 0
        self.frozen = False
        self.measure()

    def measure(self) -> None:
        """Measure the next f-leg, and with it the residual of the rows."""
        self.pending = self.geometry.log_row_ratio(self.f, self.g)
        self.error = self._row_residual(self.pending)
        self.stale = self.error + self.geometry.band(self.f, self.g)

    def _row_residual(self, log_ratio: Vector) -> float:
        return self.geometry.over_rows(_errors(self.geometry.a, log_ratio))

    def _col_residual(self, log_ratio: Vector) -> float:
        return self.geometry.over_cols(_errors(self.geometry.b, log_ratio))

    def _rounded(self) -> Rounded:
        """The state of all rows as it will be emitted."""
        return rounded(self.instance, self.geometry.join(self.f), self.g)

    def _stride(self) -> Stride:
        if self.momentum is None:
            return PLAIN
        along = -self.geometry.over_rows(self.geometry.a * self.pending * (self.f - self.before))
        return self.momentum.stride(self.error, along)

    def _proposed(self, stride: Stride) -> tuple[Vector, Vector, Vector]:
        """The state after the next f-leg and the plain g-leg, and the point from which momentum goes on."""
        eps, x = self.geometry.eps, self.f - self.geometry.eps * stride.step * self.pending
        f = x + stride.beta * (x - self.before) if stride.beta else x
        ratio = self.geometry.log_col_ratio(f, self.g)
        if self.momentum is not None and self.momentum.rows_exact:
            self.momentum.measured_columns(self._col_residual(ratio))
        return f, self.g - eps * ratio, x

    def cycle(self) -> None:
        """Apply the pending f-leg, run the g-leg, measure the next f-leg. A state that is not finite is not entered."""
        f, g, x = self._proposed(self._stride())
        self.depth += 1
        if self.geometry.finite(f, g):
            self.f, self.g, self.before = f, g, x
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
        return self._row_residual(ratio) + self.geometry.band(self.f, self.g)

    def verify(self, *, exact: bool) -> Residual:
        """Both marginals of the potentials as they will be emitted; `exact` certifies them from the caller's arrays."""
        if math.isnan(self.stale):
            return Residual(math.nan, math.nan, math.nan)
        if exact and self.geometry.whole:
            return certify(self.instance, self.emit().potentials(0))
        state, geometry = self._rounded(), self.geometry
        f, g = geometry.split(state.f, state.g)
        row = self._row_residual(geometry.log_row_ratio(f, g))
        col = self._col_residual(geometry.log_col_ratio(f, g))
        return Residual(row, col, geometry.band(f, g))

    def emit(self) -> Emission:
        """Copies for the caller."""
        return emission(self.instance, self._rounded(), self.support)


class ReferencePack(LanePack[ReferenceLane]):
    """A list of reference lanes with a budget of memory."""

    def __init__(self, instances: Sequence[Instance[Any]], max_bytes: int = 2**33, *, momentum: bool = False) -> None:
        self._max_bytes = max_bytes
        super().__init__(instances, lambda instance: ReferenceLane(instance, momentum=momentum))

    def repack(self, keep: Sequence[int], admit: Sequence[Instance[Any]] = ()) -> None:
        """Keep these lanes, in this order, and append the admitted, if the budget allows."""
        instances = [*(self._lanes[i].instance for i in keep), *admit]
        needed = 16 * sum(math.prod(instance.shape) for instance in instances)
        if needed > self._max_bytes:
            raise MemoryError(f"{needed:,} bytes of matrices, {self._max_bytes:,} allowed")
        super().repack(keep, admit)
