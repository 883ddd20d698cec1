"""The reference backend: dense NumPy in float64, one lane after another, written with the functions of `numerics`.

Each leg measures log marginal ratios (`numerics.update.log_ratios`), and with them the residual of its side at the
state before the leg (`numerics.residual.residual`; with a soft marginal `numerics.soft.soft_residual`). A lane computes
only with its own problem, so its results do not depend on other lanes, to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.backends.certificate import certify
from drainsinkhorn.backends.conditionals import plain_couplings
from drainsinkhorn.backends.couplings import BlockCouplings
from drainsinkhorn.backends.dense import Geometry, Kernels
from drainsinkhorn.backends.emission import Rounded, emission, round_state
from drainsinkhorn.backends.lanes import LanePack
from drainsinkhorn.backends.support import restrict
from drainsinkhorn.core.protocol import Emission, Hints
from drainsinkhorn.model.errors import ProblemError
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.model.result import UNKNOWN, Residual
from drainsinkhorn.numerics.residual import residual
from drainsinkhorn.numerics.rounding import soft_bound
from drainsinkhorn.numerics.soft import log_deviations, log_total, soft_exponents, soft_residual, translation
from drainsinkhorn.numerics.starts import start
from drainsinkhorn.numerics.update import PLAIN, Momentum, Stride, alignment, update

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ReferenceBackend:
    """Dense float64 NumPy.

    Attributes:
        max_pairs: Largest n * m of a problem; each lane stores two matrices of that many float64.
        max_bytes: Largest size of all matrices of a pack; a pack that needs more raises MemoryError.
        acceleration: "momentum" or "none"; `solve` sets it.
    """

    max_pairs: int = 2**26
    max_bytes: int = 2**33
    acceleration: str = "none"
    name: str = field(default="reference", init=False)
    stride: int = field(default=1, init=False)
    bitwise: bool = field(default=True, init=False)
    accelerations: tuple[str, ...] = field(default=("momentum", "none"), init=False)
    soft_marginals: bool = field(default=True, init=False)

    def signature(self, instance: Instance[Any]) -> Hashable:
        """Return the same for all problems, so that all share packs; reject those with too many pairs."""
        n, m = instance.shape
        if n * m > self.max_pairs:
            raise ProblemError(
                f"n * m = {n} * {m} pairs need {16e-9 * n * m:.1f} GB in the dense reference backend, whose limit is "
                f"{self.max_pairs} pairs; use fewer points, or ReferenceBackend(max_pairs={n * m})"
            )
        return self.name

    def width_for(self, lanes: int) -> int:
        """The width of a pack is its number of lanes."""
        return lanes

    def hints(self, instance: Instance[Any]) -> Hints:
        """Return the only arithmetic of this backend, and a width of sixteen lanes."""
        return Hints("float64, dense", 16)

    def prepare(self, instances: Sequence[Instance[Any]]) -> None:
        """Nothing to do."""

    def pack(self, instances: Sequence[Instance[Any]]) -> ReferencePack:
        """Build cost matrices and measure every lane's first f-leg."""
        return ReferencePack(instances, self.max_bytes, momentum=self.acceleration == "momentum")

    def couple(self, instances: Sequence[Instance[Any]], potentials: Sequence[Potentials[Any]]) -> BlockCouplings:
        """Return plans in plain NumPy, which are computed some rows at a time."""
        return plain_couplings(instances, potentials)

    def precise(self) -> ReferenceBackend:
        """Return itself: it always computes in float64."""
        return self

    def frugal(self) -> ReferenceBackend:
        """Return itself: it has no representation but dense matrices."""
        return self

    def release(self) -> None:
        """Do nothing: it caches no memory."""

    def using(self, acceleration: str) -> ReferenceBackend:
        """Return this backend with another acceleration."""
        return replace(self, acceleration=acceleration)


class ReferenceLane:
    """The state of one problem: potentials (f, g), and the next f-leg, measured but not applied.

    Args:
        instance: The problem.
        momentum: True to use momentum on f.
        kernels: Builds the reductions of the problem, whose weights are all positive.

    Attributes:
        f: Potentials of rows, (n,).
        g: Potentials of columns, (m,).
        before: The x of the update rule at the last update of f (`numerics.update`), (n,).
        pending: Log marginal ratios of the rows, (n,): the next f-leg.
        error: Row residual of (f, g), without its rounding bound.
        mass: Log mass of the plan, with a soft marginal.
        stale: Row residual with its rounding bound; NaN once a state was not finite.
        depth: Cycles that were run.
        frozen: True if the state no longer changes.
    """

    def __init__(
        self,
        instance: Instance[Any],
        *,
        momentum: bool = False,
        kernels: Callable[[Instance[Any]], Kernels] = Geometry,
    ) -> None:
        self.instance = instance
        # None: both marginals are hard.
        self.marginals = None if instance.marginals.are_hard else instance.marginals
        inner, self.support = restrict(instance)
        self.geometry = kernels(inner)
        self.f, self.g = self.geometry.split(*start(inner))
        self._log_masses = [math.log(mass) for mass in instance.masses]
        self.momentum = Momentum() if momentum else None
        self.before = self.f
        self.mass = math.nan
        self.depth = 0
        self.frozen = False
        self.measure()

    def measure(self) -> None:
        """Measure the next f-leg, and with it the residual of the rows."""
        self.pending = self.geometry.log_row_ratio(self.f, self.g)
        self.error, self.mass = self._row_deviation(self.pending, self.f)
        self.stale = self.error + self._band(self.f, self.g, self.error)

    def _row_deviation(self, log_ratios: Vector, f: Vector) -> tuple[float, float]:
        """Return the row residual and, with a soft marginal, the log mass of the plan."""
        geometry = self.geometry
        if self.marginals is None:
            return residual(geometry.a, log_ratios, geometry.over_rows), math.nan
        kappa = self.marginals.row.kappa
        return soft_residual(geometry.a, log_ratios, f, kappa, geometry.over_rows, geometry.most_over_rows)

    def _col_residual(self, log_ratios: Vector, g: Vector) -> float:
        geometry = self.geometry
        if self.marginals is None:
            return residual(geometry.b, log_ratios, geometry.over_cols)
        return soft_residual(geometry.b, log_ratios, g, self.marginals.col.kappa, geometry.over_cols).residual

    def _band(self, f: Vector, g: Vector, error: float) -> float:
        """Return the bound on the rounding error of a residual; `error` is the larger residual of both sides."""
        band = self.geometry.band(f, g)
        if self.marginals is None:
            return band
        row, col = self.marginals
        largest_f, largest_g = self.geometry.most_over_rows(np.abs(f)), float(np.abs(g).max())
        exponents = max(soft_exponents(row.kappa, largest_f), soft_exponents(col.kappa, largest_g))
        return float(soft_bound(band, exponents, error))

    def _round_state(self) -> Rounded:
        """Return the potentials of all rows and columns, rounded as they will be emitted."""
        return round_state(self.instance, self.geometry.join(self.f), self.g)

    def _stride(self) -> Stride:
        """Decide step and beta of the pending f-leg."""
        if self.momentum is None:
            return PLAIN
        along = alignment(self.geometry.a, self._row_leg(), self.f, self.before, self.geometry.over_rows)
        return self.momentum.stride(self.error, along)

    def _row_leg(self) -> Vector:
        """Return the L of the pending f-leg."""
        if self.marginals is None:
            return self.pending
        return log_deviations(self.pending, self.f, self.marginals.row.kappa)

    def _translation(self) -> float:
        """Return the translation of the pending f-leg (`numerics.soft.translation`), which is part of momentum."""
        if self.marginals is None or self.momentum is None:
            return 0.0
        geometry, (row, col), eps = self.geometry, self.marginals, self.geometry.eps
        lam = row.damping(eps)
        own = self._log_masses[0]
        if not row.is_hard:
            plain = update(self.f, self._row_leg(), eps, lam=lam)[0]
            own = log_total(geometry.a, -row.kappa * plain, geometry.over_rows, geometry.most_over_rows)
        other = self._log_masses[1]
        if not col.is_hard:
            # At the first leg columns are not exact, so that the mass of the plan is not what they ask for.
            other = self.mass if self.depth else log_total(geometry.b, -col.kappa * self.g, geometry.over_cols)
        return translation(own, other, row.kappa, lam, col.kappa, eps)

    def _update_rows(self) -> tuple[Vector, Vector, Vector]:
        """Apply the f-leg by `numerics.update.update`: return the new f, its x, and g after the translation."""
        stride, eps = self._stride(), self.geometry.eps
        if self.marginals is None:
            return *update(self.f, self.pending, eps, stride, self.before), self.g
        lam, shift = self.marginals.row.damping(eps), self._translation()
        f, point = update(self.f, self._row_leg(), eps, stride, self.before, lam)
        return f + lam * shift, point + lam * shift, self.g - shift

    def _update_cols(self, f: Vector, g: Vector) -> Vector:
        """Measure and apply the g-leg, which is always plain, by `numerics.update.update`."""
        log_ratios = self.geometry.log_col_ratio(f, g)
        if self.momentum is not None and self.momentum.rows_exact:
            self.momentum.measured_columns(self._col_residual(log_ratios, g))
        if self.marginals is None:
            return update(g, log_ratios, self.geometry.eps)[0]
        col, eps = self.marginals.col, self.geometry.eps
        return update(g, log_deviations(log_ratios, g, col.kappa), eps, lam=col.damping(eps))[0]

    def cycle(self) -> None:
        """Apply the pending f-leg by `numerics.update.update`, run the g-leg, measure the next f-leg.

        A state that is not finite is not entered.
        """
        f, point, g = self._update_rows()
        g = self._update_cols(f, g)
        self.depth += 1
        if self.geometry.finite(f, g):
            self.f, self.g, self.before = f, g, point
            self.measure()
        else:
            self.stale = math.nan

    def discarded_cycle(self) -> None:
        """Do the work of a cycle and discard its outcome: the cost of a finished lane that is still in the pack."""
        f, _ = update(self.f, self.pending, self.geometry.eps)
        g, _ = update(self.g, self.geometry.log_col_ratio(f, self.g), self.geometry.eps)
        self.geometry.log_row_ratio(f, g)

    def screen(self) -> float:
        """Measure the row residual in a pass of its own, and add its rounding bound."""
        if math.isnan(self.stale):
            return math.nan
        log_ratios = self.geometry.log_row_ratio(self.f, self.g)
        error = self._row_deviation(log_ratios, self.f)[0]
        return error + self._band(self.f, self.g, error)

    def verify(self, *, exact: bool) -> Residual:
        """Measure both residuals of the potentials as they will be emitted.

        With `exact` they are certified from the caller's arrays.
        """
        if math.isnan(self.stale):
            return UNKNOWN
        if exact and self.geometry.holds_all_rows:
            return certify(self.instance, self.emit().potentials(0))
        state, geometry = self._round_state(), self.geometry
        f, g = geometry.split(state.f, state.g)
        row = self._row_deviation(geometry.log_row_ratio(f, g), f)[0]
        col = self._col_residual(geometry.log_col_ratio(f, g), g)
        return Residual(row, col, self._band(f, g, max(row, col)))

    def emit(self) -> Emission:
        """Return copies of the potentials for the caller."""
        return emission(self.instance, self._round_state(), self.support)


class ReferencePack(LanePack[ReferenceLane]):
    """A list of reference lanes whose matrices need at most `max_bytes`."""

    def __init__(self, instances: Sequence[Instance[Any]], max_bytes: int = 2**33, *, momentum: bool = False) -> None:
        self._max_bytes = max_bytes
        super().__init__(instances, lambda instance: ReferenceLane(instance, momentum=momentum))

    def repack(self, keep: Sequence[int], admit: Sequence[Instance[Any]] = ()) -> None:
        """Keep these lanes, in this order, and append lanes of new instances; MemoryError above `max_bytes`."""
        instances = [*(self._lanes[i].instance for i in keep), *admit]
        needed = 16 * sum(math.prod(instance.shape) for instance in instances)
        if needed > self._max_bytes:
            raise MemoryError(f"{needed:,} bytes of matrices, {self._max_bytes:,} allowed")
        super().repack(keep, admit)
