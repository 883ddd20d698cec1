"""Converts a problem to the arrays of a lane, padded to the sizes of its arithmetic."""

# pyright: basic

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.backends.cost_sizes import cost_sizes, leg_rounding, middle, native, samples, unit_weights
from drainsinkhorn.backends.ottjax.kernels import SAMPLES
from drainsinkhorn.backends.ottjax.precision import OttArithmetic
from drainsinkhorn.backends.support import Support
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.numerics.costs import coordinate_factor, cost_matrix, unit_rows
from drainsinkhorn.numerics.starts import start

Vector = NDArray[np.float64]
_numbers = itertools.count()


@dataclass
class Loaded:
    """A lane on the host.

    Attributes:
        instance: The problem.
        number: Its unique number. A copy, "owner", moves with its arrays; `emit` compares both.
        arrays: Arguments of `CompiledKernels.load`; empty once they are on the device.
        arithmetic: How it is computed.
        unit: One unit of the lane's potentials in units of the cost.
        eps: eps in units of the lane.
        rows: Points of positive weight.
        cols: Points of positive weight of the other side.
        support: Set if there are points without weight.
        depth: Cycles run.
        stale: Row residual with its rounding bound.
        frozen: True if it no longer changes.
    """

    instance: Instance[Any]
    number: int
    arrays: dict[str, Any]
    arithmetic: OttArithmetic
    unit: float
    eps: float
    rows: NDArray[np.intp]
    cols: NDArray[np.intp]
    support: Support | None
    depth: int = 0
    stale: float = math.inf
    frozen: bool = False

    @property
    def is_soft(self) -> bool:
        """True if a marginal is soft."""
        return not self.instance.marginals.are_hard

    def to_support(self, f: Vector, g: Vector) -> tuple[Vector, Vector]:
        """Potentials on the support, in our convention and in units of the cost, from those of the lane."""
        a, b = to_numpy(self.instance.a)[self.rows], to_numpy(self.instance.b)[self.cols]
        return (
            self.unit * (f[self.rows] - self.eps * np.log(a)),
            self.unit * (g[self.cols] - self.eps * np.log(b)),
        )

    def from_support(self, f: Vector, g: Vector) -> tuple[Vector, Vector]:
        """Padded potentials in the unit of the lane, from those on the support in units of the cost."""
        long_f, long_g = np.zeros(self.arithmetic.n), np.zeros(self.arithmetic.m)
        long_f[self.rows], long_g[self.cols] = f / self.unit, g / self.unit
        return long_f, long_g


@np.errstate(all="ignore")
def load(instance: Instance[Any], arithmetic: OttArithmetic) -> Loaded:
    """Return a lane with its arrays on the host."""
    n, m = instance.shape
    a, b = to_numpy(instance.a), to_numpy(instance.b)
    shares = unit_weights(instance)
    rows, cols = np.flatnonzero(a), np.flatnonzero(b)
    support = Support(instance, rows, cols) if len(rows) < n or len(cols) < m else None
    eps, unit, arrays = 1.0, instance.eps, dict[str, Any]()
    if arithmetic.kind == "dense":
        # In float64 whatever the caller's dtype: no check would find a rounding error made here.
        costs = cost_matrix(instance)[0]
        if not instance.is_dense:
            # A caller's own cost need not be finite at points without weight.
            costs[a == 0], costs[:, b == 0] = 0.0, 0.0
        arrays["cost"] = _pad(np.divide(costs, instance.eps, dtype=np.float64), arithmetic.n, arithmetic.m)
    else:
        # In their own dtype where JAX has it, so that fewer bytes are uploaded.
        x, y = (native(to_numpy(points)) for points in (instance.x, instance.y))
        if support is not None:
            # Points without weight must change nothing, and may be so far away that costs are not finite.
            x, y = x.copy(), y.copy()
            x[a == 0], y[b == 0] = x[rows[0]], y[cols[0]]
        if arithmetic.unit:
            form = instance.cost.kind.distances
            if form.directions:
                x, y = unit_rows(x.astype(np.float64)), unit_rows(y.astype(np.float64))
            # The device centres and scales all points, in float64.
            arrays["centre"] = middle(*shares, x, y)
            arrays["factor"] = np.float64(coordinate_factor(instance.cost, instance.eps))
        else:
            eps, unit = instance.eps / instance.cost.scale, instance.cost.scale
        # Padded with a point of the cloud itself, where any cost is defined.
        arrays |= {"x": _repeat_last(x, arithmetic.n), "y": _repeat_last(y, arithmetic.m)}
    f, g = (side / unit for side in start(instance))
    arrays |= {name: _pad(values, arithmetic.n) for name, values in (("a", a), ("f", f))}
    arrays |= {name: _pad(values, arithmetic.m) for name, values in (("b", b), ("g", g))}
    arrays |= {
        "eps": np.float64(eps), "rounding": np.float64(leg_rounding(instance)),
        "rows": samples(shares[0], SAMPLES), "cols": samples(shares[1], SAMPLES),
        "kappas": np.array([unit * marginal.kappa for marginal in instance.marginals]),
        "dampings": np.array([marginal.damping(instance.eps) for marginal in instance.marginals]),
        "owner": np.int64(number := next(_numbers)),
        "broken": np.bool_(not math.isfinite(cost_sizes(instance).largest) or not math.isfinite(1 / eps)),
    }  # fmt: skip
    return Loaded(instance, number, arrays, arithmetic, unit, eps, rows, cols, support)


def _pad(array: Any, *shape: int) -> Any:
    full = np.zeros(shape)
    full[tuple(slice(size) for size in array.shape)] = array
    return full


def _repeat_last(points: Any, size: int) -> Any:
    return points if len(points) == size else points[np.minimum(np.arange(size), len(points) - 1)]
