"""The streaming pack: O(n d) memory per lane, for problems whose matrix would not fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.backends.certificate import certify
from drainsinkhorn.backends.cpu import streaming_kernels as s
from drainsinkhorn.backends.cpu.certificate_kernels import compiled_sweep
from drainsinkhorn.backends.cpu.plan_kernels import compiled_couplings
from drainsinkhorn.backends.cpu.precision import FLOAT32, FLOAT64, STREAMED, CpuArithmetic, cost_rounding
from drainsinkhorn.backends.cpu.resources import each
from drainsinkhorn.backends.cpu.scores import extent
from drainsinkhorn.backends.cpu.update_kernels import update_rule
from drainsinkhorn.backends.emission import Rounded, emission, round_state
from drainsinkhorn.backends.lanes import LanePack
from drainsinkhorn.backends.support import restrict
from drainsinkhorn.core.protocol import Emission
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.result import UNKNOWN, Residual
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.numerics.costs import UNIT, unit_rows
from drainsinkhorn.numerics.residual import residual
from drainsinkhorn.numerics.rounding import UNSAMPLED, soft_bound, unsampled_size
from drainsinkhorn.numerics.soft import (
    Deviation,
    log_deviations,
    log_total,
    soft_exponents,
    soft_residual,
    translation,
)
from drainsinkhorn.numerics.starts import start
from drainsinkhorn.numerics.update import PLAIN, Momentum, Stride, alignment

Vector = NDArray[np.float64]

BLOCK = 64
"""Rows that a thread takes at a time."""

SAMPLES, SAFETY = 16, 4.0
"""Rows compared with float64 at every measurement, and the factor on the largest relative error among them."""

LN2 = math.log(2.0)


class _Side:
    """The points of one side, scaled so that squared distances are scores in bits; as rows and as columns."""

    def __init__(self, points: NDArray[np.float64], weights: Vector) -> None:
        self.size = len(points)
        padded = np.zeros((-(-self.size // 4) * 4, points.shape[1]))
        padded[: self.size] = points
        self.rows = {FLOAT64: padded, FLOAT32: padded.astype(np.float32)}
        columns = np.ascontiguousarray(points.T)
        self.columns = {FLOAT64: columns, FLOAT32: columns.astype(np.float32)}
        self.weights = weights
        self.samples = np.unique(np.linspace(0, self.size - 1, SAMPLES).astype(np.int64))


class StreamingLane:
    """The state of one problem: potentials in bits, and the next f-leg, measured but not applied.

    Attributes:
        f: Potentials of rows over `eps ln 2`, (n,).
        g: Potentials of columns over `eps ln 2`, (m,).
        before: x of the last update of f, (n,).
        pending: Log marginal ratios of the rows in nats, (n,): the next f-leg.
        error: Row residual of (f, g), without its rounding bound.
        stale: Row residual with its rounding bound; NaN once a state was not finite.
        depth: Cycles that were run.
        frozen: True if the state no longer changes.
    """

    def __init__(
        self, instance: Instance[Any], arithmetic: CpuArithmetic, threads: int, *, momentum: bool = False
    ) -> None:
        self.instance = instance
        self.inner, self.support = (instance, None) if instance.positive else restrict(instance)
        self.threads = threads
        self.frozen = False
        self.depth = 0
        self.dtype, self.may_switch = arithmetic.dtype, arithmetic.may_switch
        self.unit = instance.eps * LN2
        row, col = instance.marginals
        self.is_soft = not instance.marginals.are_hard
        self.damping, self.kappa = row.damping(instance.eps), row.kappa * self.unit
        self.col_damping, self.col_kappa = col.damping(instance.eps), col.kappa * self.unit
        self.mass = math.nan
        with np.errstate(over="ignore", invalid="ignore"):
            self._scale_points()
        self.f, self.g = (potentials / self.unit for potentials in start(self.inner))
        self.momentum = Momentum() if momentum else None
        self.before = self.f
        self.error = self.stale = math.nan
        if math.isfinite(self.rounding):
            self.measure()

    def _scale_points(self) -> None:
        """Centre both clouds by one common vector and include scale and eps in the coordinates."""
        cost, kind, form = self.inner.cost, self.inner.cost.kind, self.inner.cost.kind.distances
        factor = cost.scale / self.unit * form.factor
        x, y = to_numpy(self.inner.x).astype(np.float64), to_numpy(self.inner.y).astype(np.float64)
        if form.directions:
            x, y = unit_rows(x), unit_rows(y)
        (middle,), (far,) = extent(np.ascontiguousarray(x)[None], np.ascontiguousarray(y)[None])
        self.root = form.root
        scale = factor if self.root else math.sqrt(factor)
        raw = cost_rounding(STREAMED, kind, x.shape[1], kind.largest(float(far)))
        self.rounding = 2 * raw * cost.scale / self.inner.eps
        a, b = to_numpy(self.inner.a), to_numpy(self.inner.b)
        self.x, self.y = _Side(scale * (x - middle), a), _Side(scale * (y - middle), b)

    def log_ratios(self, rows: _Side, cols: _Side, f: Vector, g: Vector) -> Vector:
        """Log marginal ratios of one side in nats: `numerics.update.log_ratios`."""
        points, others = rows.rows[self.dtype], cols.columns[self.dtype]
        size = len(points)
        f_high, f_low = np.zeros(size, dtype=self.dtype), np.ones(size)
        g_high, w = np.empty(cols.size, dtype=self.dtype), np.empty(cols.size, dtype=self.dtype)
        s.split(f, rows.weights, f_high, f_low, np.empty(rows.size))
        s.split(g, cols.weights, g_high, np.empty(cols.size), w)
        out = np.empty(size)

        def work(block: int) -> None:
            first, last = block * BLOCK, min(size, (block + 1) * BLOCK)
            s.ratio_rows(points, others, self.root, f_high, f_low, g_high, w, first, last, out)
            self._exact(rows, cols, f, g, True, first, min(last, rows.size), out)

        each(self.threads, work, -(-size // BLOCK))
        return out[: rows.size]

    def _exact(
        self, rows: _Side, cols: _Side, f: Vector, g: Vector, only_outside: bool, first: int, last: int, out: Vector
    ) -> None:
        """Log marginal ratios of some rows in float64; see `exact_rows`."""
        points, others = rows.rows[FLOAT64], cols.columns[FLOAT64]
        s.exact_rows(points, others, self.root, f, g, cols.weights, only_outside, first, last, out)

    def measured_bound(self, rows: _Side, cols: _Side, f: Vector, g: Vector, log_ratios: Vector) -> float:
        """Return a rounding bound of measured ratios.

        It is SAFETY times the largest error of sampled rows against float64, plus the bound of float64 itself and, in
        float32, a bound for large potentials of points that were not sampled.
        """
        out = np.empty(rows.size)
        for i in rows.samples:
            self._exact(rows, cols, f, g, False, int(i), int(i) + 1, out)
        errors = np.abs(np.expm1(log_ratios[rows.samples] - out[rows.samples]))
        bound = SAFETY * float(errors.max()) + self.float64_bound(f, g)
        if self.dtype == FLOAT32:
            sides = ((rows, f), (cols, g))
            bound += (
                UNSAMPLED * LN2 * sum(float(unsampled_size(np, side.weights, p, side.samples)) for side, p in sides)
            )
        return bound

    def float64_bound(self, f: Vector, g: Vector) -> float:
        """Rounding bound of what float64 measures."""
        return self.rounding + 8 * UNIT * (float(np.abs(f).max()) + float(np.abs(g).max()) + self.x.size + self.y.size)

    def measure(self) -> None:
        """Measure the next f-leg; switch to float64 for good where float32 is not accurate enough to decide."""
        self.pending = self.log_ratios(self.x, self.y, self.f, self.g)
        error, bound = self.row_residual(self.pending)
        if self.is_soft:
            self.mass = self._deviation(self.x, self.pending, self.f, self.kappa).log_mass
        stop = self.instance.tol
        # The translation of a soft lane balances two masses, so that its residual cannot fall below rounding.
        near = max(4 * stop, bound) if self.is_soft else 4 * stop
        if self.may_switch and self.dtype == FLOAT32 and error <= near and bound > stop / 10:
            self.dtype = FLOAT64
            self.measure()
        else:
            self.error, self.stale = error, error + bound

    def row_residual(self, log_ratios: Vector) -> tuple[float, float]:
        """Row residual of the state, and its rounding bound."""
        bound = self.measured_bound(self.x, self.y, self.f, self.g, log_ratios)
        if self.is_soft:
            error = self._deviation(self.x, log_ratios, self.f, self.kappa).residual
            return error, self._soft_bound(bound, self.f, self.g, error)
        return residual(self.x.weights, log_ratios), bound

    def _deviation(self, side: _Side, log_ratios: Vector, potentials: Vector, kappa: float) -> Deviation:
        """Residual and mass of a lane with a soft marginal: `numerics.soft.soft_residual`, in bits."""
        return soft_residual(side.weights, log_ratios, potentials, kappa)

    def _soft_bound(self, bound: float, f: Vector, g: Vector, error: float) -> float:
        sides = (self.kappa, f), (self.col_kappa, g)
        exponents = max(soft_exponents(kappa, float(np.abs(side).max())) for kappa, side in sides)
        return float(soft_bound(bound, exponents, error))

    def _col_residual(self, log_ratios: Vector, g: Vector) -> float:
        if self.is_soft:
            return self._deviation(self.y, log_ratios, g, self.col_kappa).residual
        return residual(self.y.weights, log_ratios)

    def _translation(self) -> float:
        """The translation of the pending f-leg in bits, `numerics.soft.translation`."""
        if not self.is_soft or self.momentum is None:
            return 0.0
        own, other = (math.log(mass) for mass in self.instance.masses)
        if self.kappa > 0:
            plain, _ = update_rule.py_func(
                self.f, self.f, self.pending, *PLAIN, self.damping, self.kappa, LN2
            )  # fmt: skip
            own = log_total(self.x.weights, -self.kappa * plain)
        if self.col_kappa > 0:
            # At the first leg columns are not exact.
            other = self.mass if self.depth > 1 else log_total(self.y.weights, -self.col_kappa * self.g)
        return translation(own, other, self.kappa, self.damping, self.col_kappa, 1 / LN2)

    def screen(self) -> float:
        """The row residual in a pass of its own, with its rounding bound."""
        if math.isnan(self.stale):
            return math.nan
        return sum(self.row_residual(self.log_ratios(self.x, self.y, self.f, self.g)))

    def _stride(self) -> Stride:
        if self.momentum is None:
            return PLAIN
        leg = log_deviations(self.pending, self.f, self.kappa)
        return self.momentum.stride(self.error, alignment(self.x.weights, leg, self.f, self.before))

    def cycle(self) -> None:
        """Apply the pending f-leg, run the g-leg, measure the next f-leg: `numerics.update.update`, in bits."""
        self.depth += 1
        if math.isnan(self.stale):
            return
        rule = update_rule.py_func
        f, x = rule(self.f, self.before, self.pending, *self._stride(), self.damping, self.kappa, LN2)
        g = self.g
        if self.is_soft:
            shift = self._translation()
            f, x, g = f + self.damping * shift, x + self.damping * shift, g - shift
        log_ratios = self.log_ratios(self.y, self.x, g, f)
        if self.momentum is not None and self.momentum.rows_exact:
            self.momentum.measured_columns(self._col_residual(log_ratios, g))
        g, _ = rule(g, g, log_ratios, *PLAIN, self.col_damping, self.col_kappa, LN2)
        if np.isfinite(f).all() and np.isfinite(g).all():
            self.f, self.g, self.before = f, g, x
            self.measure()
        else:
            self.stale = math.nan

    def discarded_cycle(self) -> None:
        """Do the work of a cycle, its rounding bound included, and discard its outcome."""
        self.log_ratios(self.y, self.x, self.g, self.f)
        self.row_residual(self.log_ratios(self.x, self.y, self.f, self.g))

    def round_state(self) -> Rounded:
        """The state as it will be emitted, in units of the cost."""
        return round_state(self.instance, self.unit * self.f, self.unit * self.g)

    def emit(self) -> Emission:
        """Copies for the caller."""
        couple = partial(compiled_couplings, threads=self.threads)
        return emission(self.instance, self.round_state(), self.support, couple)

    def verify(self, *, exact: bool) -> Residual:
        """Both residuals of the state as it will be emitted; `exact` certifies them from the caller's own arrays."""
        if math.isnan(self.stale):
            return UNKNOWN
        if exact:
            sweep = partial(compiled_sweep, threads=self.threads)
            return certify(self.instance, self.emit().potentials(0), sweep)
        state = self.round_state()
        f, g = state.f / self.unit, state.g / self.unit
        row, col = self.log_ratios(self.x, self.y, f, g), self.log_ratios(self.y, self.x, g, f)
        bound = max(self.measured_bound(self.x, self.y, f, g, row), self.measured_bound(self.y, self.x, g, f, col))
        if self.is_soft:
            errors = self._deviation(self.x, row, f, self.kappa).residual, self._col_residual(col, g)
            return Residual(*errors, self._soft_bound(bound, f, g, max(errors)))
        return Residual(residual(self.x.weights, row), residual(self.y.weights, col), bound)


class StreamingPack(LanePack[StreamingLane]):
    """A list of lanes, each of which uses all threads."""

    def __init__(
        self, instances: Sequence[Instance[Any]], arithmetic: CpuArithmetic, threads: int, *, momentum: bool = False
    ) -> None:
        super().__init__(instances, lambda instance: StreamingLane(instance, arithmetic, threads, momentum=momentum))
