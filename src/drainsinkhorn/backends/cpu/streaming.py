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
from drainsinkhorn.backends.cpu.laws import compiled_couplings
from drainsinkhorn.backends.cpu.loading import extent
from drainsinkhorn.backends.cpu.resources import each
from drainsinkhorn.backends.emission import Rounded, emission, rounded
from drainsinkhorn.backends.lanes import LanePack
from drainsinkhorn.backends.support import restrict
from drainsinkhorn.core.protocol import Emission
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.result import UNKNOWN, Residual
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.numerics.costs import UNIT, unit_rows
from drainsinkhorn.numerics.rounding import UNSAMPLED, unsampled
from drainsinkhorn.numerics.starts import start
from drainsinkhorn.numerics.update import PLAIN, Momentum, Stride

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
        self.rows = {np.float64: padded, np.float32: padded.astype(np.float32)}
        columns = np.ascontiguousarray(points.T)
        self.columns = {np.float64: columns, np.float32: columns.astype(np.float32)}
        self.weights = weights
        self.samples = np.unique(np.linspace(0, self.size - 1, SAMPLES).astype(np.int64))


class StreamingLane:
    """One problem's state in bits: potentials, and the next f-leg (log ratios in nats), measured but not applied."""

    def __init__(self, instance: Instance[Any], threads: int, precision: str, *, momentum: bool = False) -> None:
        self.instance = instance
        self.inner, self.support = (instance, None) if instance.positive else restrict(instance)
        self.threads = threads
        self.frozen = False
        self.depth = 0
        self.dtype: Any = np.float64 if precision == "float64" else np.float32
        self.climbs = precision == "auto"
        self.unit = instance.eps * LN2
        with np.errstate(over="ignore", invalid="ignore"):
            self._scale_points()
        self.f, self.g = (potentials / self.unit for potentials in start(self.inner))
        self.momentum = Momentum() if momentum else None
        self.before = self.f
        self.error = self.stale = math.nan
        if math.isfinite(self.rounding):
            self.measure()

    def _scale_points(self) -> None:
        """Centre both clouds by one common vector and fold scale and eps into the coordinates."""
        kind, form = self.inner.cost.kind, self.inner.cost.kind.distances
        factor = self.inner.cost.scale / self.unit * form.factor
        x, y = to_numpy(self.inner.x).astype(np.float64), to_numpy(self.inner.y).astype(np.float64)
        if form.directions:
            x, y = unit_rows(x), unit_rows(y)
        (middle,), (far,) = extent(np.ascontiguousarray(x)[None], np.ascontiguousarray(y)[None])
        self.root = form.root
        scale = factor if self.root else math.sqrt(factor)
        largest = kind.largest(float(far))
        # Centring and scaling round every coordinate twice more.
        raw = kind.rounding(x.shape[1], largest) + 16 * UNIT * largest
        self.rounding = 2 * raw * self.inner.cost.scale / self.inner.eps
        a, b = to_numpy(self.inner.a), to_numpy(self.inner.b)
        self.x, self.y = _Side(scale * (x - middle), a), _Side(scale * (y - middle), b)

    def ratios(self, rows: _Side, cols: _Side, f: Vector, g: Vector, dtype: Any) -> Vector:
        """Log marginal ratios of one side, in nats."""
        padded = len(rows.rows[dtype])
        f_high, f_low = np.zeros(padded, dtype=dtype), np.ones(padded)
        g_high, w = np.empty(cols.size, dtype=dtype), np.empty(cols.size, dtype=dtype)
        s.split(f, rows.weights, f_high, f_low, np.empty(rows.size))
        s.split(g, cols.weights, g_high, np.empty(cols.size), w)
        out = np.empty(padded)
        blocks = -(-padded // BLOCK)

        def work(block: int) -> None:
            first, last = block * BLOCK, min(padded, (block + 1) * BLOCK)
            s.ratio_rows(rows.rows[dtype], cols.columns[dtype], self.root, f_high, f_low, g_high, w, first, last, out)
            end = min(last, rows.size)
            self._exact(rows, cols, f, g, True, first, end, out)

        each(self.threads, work, blocks)
        return out[: rows.size]

    def _exact(
        self, rows: _Side, cols: _Side, f: Vector, g: Vector, some: bool, first: int, last: int, out: Vector
    ) -> None:
        points, others = rows.rows[np.float64], cols.columns[np.float64]
        s.exact_rows(points, others, self.root, f, g, cols.weights, some, first, last, out)

    def measured_band(self, rows: _Side, cols: _Side, f: Vector, g: Vector, found: Vector) -> float:
        """Rounding of measured ratios: sampled rows against float64, times a safety factor; and points far off."""
        out = np.empty(rows.size)
        for i in rows.samples:
            self._exact(rows, cols, f, g, False, int(i), int(i) + 1, out)
        errors = np.abs(np.expm1(found[rows.samples] - out[rows.samples]))
        band = SAFETY * float(errors.max()) + self.double_band(f, g)
        if self.dtype is np.float32:
            sides = ((rows, f), (cols, g))
            band += UNSAMPLED * LN2 * sum(float(unsampled(np, side.weights, p, side.samples)) for side, p in sides)
        return band

    def double_band(self, f: Vector, g: Vector) -> float:
        """Rounding of what float64 measures."""
        return self.rounding + 8 * UNIT * (float(np.abs(f).max()) + float(np.abs(g).max()) + self.x.size + self.y.size)

    def measure(self) -> None:
        """Measure the next f-leg; climb to float64 for good where float32 is not honest enough to decide."""
        self.pending = self.ratios(self.x, self.y, self.f, self.g, self.dtype)
        error, band = self.row_error(self.pending)
        stop = self.instance.tol
        if self.climbs and self.dtype is np.float32 and error <= 4 * stop and band > stop / 10:
            self.dtype = np.float64
            self.measure()
        else:
            self.error, self.stale = error, error + band

    def row_error(self, ratios: Vector) -> tuple[float, float]:
        """Row residual of the state from its ratios, and its band."""
        error = float(np.sum(self.x.weights * np.abs(np.expm1(ratios))))
        return error, self.measured_band(self.x, self.y, self.f, self.g, ratios)

    def screened(self) -> float:
        """The row residual in a pass of its own, band included."""
        if math.isnan(self.stale):
            return math.nan
        return sum(self.row_error(self.ratios(self.x, self.y, self.f, self.g, self.dtype)))

    def _stride(self) -> Stride:
        if self.momentum is None:
            return PLAIN
        along = -float(np.sum(self.x.weights * self.pending * (self.f - self.before)))
        return self.momentum.stride(self.error, along)

    def cycle(self) -> None:
        """Apply the pending f-leg, run the g-leg, measure the next f-leg."""
        self.depth += 1
        if math.isnan(self.stale):
            return
        stride = self._stride()
        x = self.f - (stride.step * self.pending if stride.beta else self.pending) / LN2
        f = x + stride.beta * (x - self.before) if stride.beta else x
        ratios = self.ratios(self.y, self.x, self.g, f, self.dtype)
        if self.momentum is not None and self.momentum.rows_exact:
            self.momentum.measured_columns(float(np.sum(self.y.weights * np.abs(np.expm1(ratios)))))
        g = self.g - ratios / LN2
        if np.isfinite(f).all() and np.isfinite(g).all():
            self.f, self.g, self.before = f, g, x
            self.measure()
        else:
            self.stale = math.nan

    def discarded_cycle(self) -> None:
        """Do the work of a cycle, its band included, and forget it."""
        self.ratios(self.y, self.x, self.g, self.f, self.dtype)
        self.row_error(self.ratios(self.x, self.y, self.f, self.g, self.dtype))

    def rounded(self) -> Rounded:
        """The state as it will be emitted, in units of the cost."""
        return rounded(self.instance, self.unit * self.f, self.unit * self.g)

    def emit(self) -> Emission:
        """Copies for the caller."""
        couple = partial(compiled_couplings, threads=self.threads)
        return emission(self.instance, self.rounded(), self.support, couple)

    def verify(self, *, exact: bool) -> Residual:
        """Both residuals of the state as it will be emitted; `exact` certifies them from the caller's own arrays."""
        if math.isnan(self.stale):
            return UNKNOWN
        if exact:
            sweep = partial(compiled_sweep, threads=self.threads)
            return certify(self.instance, self.emit().potentials(0), sweep)
        state = self.rounded()
        f, g = state.f / self.unit, state.g / self.unit
        row, col = self.ratios(self.x, self.y, f, g, self.dtype), self.ratios(self.y, self.x, g, f, self.dtype)
        band = max(self.measured_band(self.x, self.y, f, g, row), self.measured_band(self.y, self.x, g, f, col))
        rows = float(np.sum(self.x.weights * np.abs(np.expm1(row))))
        cols = float(np.sum(self.y.weights * np.abs(np.expm1(col))))
        return Residual(rows, cols, band)


class StreamingPack(LanePack[StreamingLane]):
    """A list of lanes, each of which uses all threads."""

    def __init__(
        self, instances: Sequence[Instance[Any]], threads: int, precision: str, *, momentum: bool = False
    ) -> None:
        super().__init__(instances, lambda instance: StreamingLane(instance, threads, precision, momentum=momentum))
