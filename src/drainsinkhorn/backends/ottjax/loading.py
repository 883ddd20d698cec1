"""From a problem to the arrays of a lane, filled up to the sizes of its How."""

# pyright: basic

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.backends.ottjax.kernels import SAMPLES, UNIT, How
from drainsinkhorn.backends.scores import middle, native, samples, scores
from drainsinkhorn.backends.support import Support
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.numerics.costs import cost_matrix, unit_rows
from drainsinkhorn.numerics.starts import start

Vector = NDArray[np.float64]
_numbers = itertools.count()


def filled_size(size: int) -> int:
    """Points of a lane: filled up by an eighth at most, and to a multiple of 16, so that unequal clouds share packs."""
    step = max(16, (1 << (size.bit_length() - 1)) // 8)
    return -(-size // step) * step


@dataclass
class Loaded:
    """A lane on the host.

    Attributes:
        instance: The admitted problem.
        number: A number of its own, which is among its arrays and moves with them.
        arrays: What `Kernels.load` takes; empty once it is on the device.
        how: How it is computed.
        unit: One unit of the lane's potentials in units of the cost.
        eps: eps in units of the lane.
        rows: Points of positive weight.
        cols: Likewise.
        support: Set if there are points without weight.
        depth: Cycles run.
        stale: Residual of the rows, band included.
        frozen: Whether it changes no more.
    """

    instance: Instance[Any]
    number: int
    arrays: dict[str, Any]
    how: How
    unit: float
    eps: float
    rows: NDArray[np.intp]
    cols: NDArray[np.intp]
    support: Support | None
    depth: int = 0
    stale: float = math.inf
    frozen: bool = False

    def emptied(self, f: Vector, g: Vector) -> tuple[Vector, Vector]:
        """From OTT's convention and the lane's sizes and unit to ours, on the support, in units of the cost."""
        a, b = to_numpy(self.instance.a)[self.rows], to_numpy(self.instance.b)[self.cols]
        return (
            self.unit * (f[self.rows] - self.eps * np.log(a)),
            self.unit * (g[self.cols] - self.eps * np.log(b)),
        )

    def filled(self, f: Vector, g: Vector) -> tuple[Vector, Vector]:
        """Potentials on the support, in units of the cost, as long as the lane and in its unit."""
        long_f, long_g = np.zeros(self.how.n), np.zeros(self.how.m)
        long_f[self.rows], long_g[self.cols] = f / self.unit, g / self.unit
        return long_f, long_g


@np.errstate(all="ignore")
def load(instance: Instance[Any], how: How) -> Loaded:
    """A lane's arrays."""
    n, m = instance.shape
    a, b = to_numpy(instance.a), to_numpy(instance.b)
    rows, cols = np.flatnonzero(a), np.flatnonzero(b)
    support = Support(instance, rows, cols) if len(rows) < n or len(cols) < m else None
    eps, unit, arrays = 1.0, instance.eps, dict[str, Any]()
    if how.kind == "dense":
        # In float64 whatever the caller's dtype: what is rounded here no check would find.
        costs = cost_matrix(instance)[0]
        if not instance.is_dense:
            # Points without mass may lie where a caller's own cost is no number.
            costs[a == 0], costs[:, b == 0] = 0.0, 0.0
        arrays["cost"] = _filled(np.divide(costs, instance.eps, dtype=np.float64), how.n, how.m)
    else:
        # As they are, where jax knows their dtype, so that little travels.
        x, y = (native(to_numpy(points)) for points in (instance.x, instance.y))
        if support is not None:
            # Where points without mass lie must not matter, and may be so far away that costs are no numbers.
            x, y = x.copy(), y.copy()
            x[a == 0], y[b == 0] = x[rows[0]], y[cols[0]]
        if how.unit:
            form = instance.cost.kind.distances
            ratio = instance.cost.scale / instance.eps * form.factor
            if form.directions:
                x, y = unit_rows(x.astype(np.float64)), unit_rows(y.astype(np.float64))
            # The device takes all points there, in float64.
            arrays["centre"] = middle(a, b, x, y)
            arrays["factor"] = np.float64(ratio if form.root else math.sqrt(ratio))
        else:
            eps, unit = instance.eps / instance.cost.scale, instance.cost.scale
        # Filled up with a point of the cloud itself, where any cost is defined.
        arrays |= {"x": _repeated(x, how.n), "y": _repeated(y, how.m)}
    f, g = (side / unit for side in start(instance))
    _, largest, rounding = scores(instance)
    rounding = 2 * (rounding + UNIT * (8 * largest + n + m))
    arrays |= {
        "a": _filled(a, how.n), "b": _filled(b, how.m), "f": _filled(f, how.n), "g": _filled(g, how.m),
        "eps": np.float64(eps), "rounding": np.float64(rounding),
        "rows": samples(a, SAMPLES), "cols": samples(b, SAMPLES),
        "owner": np.int64(number := next(_numbers)),
        "broken": np.bool_(not math.isfinite(largest) or not math.isfinite(1 / eps)),
    }  # fmt: skip
    return Loaded(instance, number, arrays, how, unit, eps, rows, cols, support)


def _filled(array: Any, *shape: int) -> Any:
    full = np.zeros(shape)
    full[tuple(slice(size) for size in array.shape)] = array
    return full


def _repeated(points: Any, size: int) -> Any:
    return points if len(points) == size else points[np.minimum(np.arange(size), len(points) - 1)]
