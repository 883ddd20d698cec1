"""From a problem to the float64 arrays of a lane, filled up to the sizes of its How."""

# pyright: basic

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.backends.arrays import to_numpy
from drainsinkhorn.backends.costs import point_cost
from drainsinkhorn.backends.door import sizes
from drainsinkhorn.backends.ottjax.kernels import SAMPLES, UNIT, How
from drainsinkhorn.backends.starts import start
from drainsinkhorn.backends.support import Support
from drainsinkhorn.core.problem import Cost, Problem

Vector = NDArray[np.float64]

LIGHT = 1e-3
"""Points lighter than this part of the mean weight are not sampled: together they hold no more of the mass."""


def filled_size(size: int) -> int:
    """Points of a lane: filled up by an eighth at most, and to a multiple of 16, so that unequal clouds share packs."""
    step = max(16, (1 << (size.bit_length() - 1)) // 8)
    return -(-size // step) * step


@dataclass
class Loaded:
    """A lane on the host.

    Attributes:
        problem: The admitted problem.
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

    problem: Problem[Any]
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
        a, b = to_numpy(self.problem.a)[self.rows], to_numpy(self.problem.b)[self.cols]
        return (
            self.unit * (f[self.rows] - self.eps * np.log(a)),
            self.unit * (g[self.cols] - self.eps * np.log(b)),
        )

    def filled(self, f: Vector, g: Vector) -> tuple[Vector, Vector]:
        """Potentials on the support, in units of the cost, as long as the lane and in its unit."""
        long_f, long_g = np.zeros(self.how.n), np.zeros(self.how.m)
        long_f[self.rows], long_g[self.cols] = f / self.unit, g / self.unit
        return long_f, long_g


class Scores(NamedTuple):
    """How large costs are, in units of eps: a typical one, and a bound on all."""

    typical: float
    largest: float


@np.errstate(all="ignore")
def scores(problem: Problem[Any]) -> Scores:
    """How large the costs of a problem are; of a caller's own cost, judged by a sample and twice its largest."""
    cost = problem.cost
    if not isinstance(cost, Cost):
        found = np.abs(to_numpy(cost))
        return Scores(float(found.mean()) / problem.eps, float(found.max()) / problem.eps)
    factor, (x, y) = cost.scale / problem.eps, (to_numpy(points) for points in (problem.x, problem.y))
    if not isinstance(cost.kind, str):
        some = [p[np.linspace(0, len(p) - 1, min(len(p), 64)).astype(int)].astype(np.float64) for p in (x, y)]
        found = np.abs(cost.kind.matrix(*some))
        return Scores(factor * float(found.mean()), 2 * factor * float(found.max()))
    if cost.kind == "cosine":
        return Scores(factor, 2 * factor)
    a, b = to_numpy(problem.a), to_numpy(problem.b)
    x, y = x.astype(np.float64), y.astype(np.float64)
    centre = (a @ x + b @ y) / 2
    from_x, from_y = (_lengths(points - centre) for points in (x, y))
    largest = point_cost(cost).largest
    far = float(largest(float(from_x.max()) + float(from_y.max())))
    return Scores(factor * float(a @ largest(from_x) + b @ largest(from_y)), factor * far)


def _lengths(points: Any) -> Vector:
    """Lengths of vectors whose squares may overflow."""
    extent = np.abs(points).max(axis=1, keepdims=True)
    return np.where(extent[:, 0] > 0, extent[:, 0] * np.sqrt(((points / extent) ** 2).sum(axis=1)), 0.0)


@np.errstate(all="ignore")
def load(problem: Problem[Any], how: How) -> Loaded:
    """A lane's arrays."""
    (n, m), cost = sizes(problem), problem.cost
    a, b = to_numpy(problem.a), to_numpy(problem.b)
    rows, cols = np.flatnonzero(a), np.flatnonzero(b)
    support = Support(problem, rows, cols) if len(rows) < n or len(cols) < m else None
    eps, unit, arrays = 1.0, problem.eps, dict[str, Any]()
    if not isinstance(cost, Cost):
        arrays["cost"] = _filled(to_numpy(cost) / problem.eps, how.n, how.m)
    else:
        x, y = (to_numpy(points).astype(np.float64) for points in (problem.x, problem.y))
        if cost.kind in ("sqeuclidean", "euclidean"):
            ratio = cost.scale / problem.eps
            factor = math.sqrt(ratio) if cost.kind == "sqeuclidean" else ratio
            # One vector for both clouds, so that differences stay what they are.
            centre = (a @ x + b @ y) / 2
            x, y = factor * (x - centre), factor * (y - centre)
        else:
            eps, unit = problem.eps / cost.scale, cost.scale
        # Filled up with a point of the cloud itself, where any cost is defined.
        arrays |= {"x": _repeated(x, how.n), "y": _repeated(y, how.m)}
    f, g = (side / unit for side in start(problem))
    largest = scores(problem).largest
    rounding = 2 * (how.d + 8) * UNIT * largest + 2 * UNIT * (n + m)
    arrays |= {
        "a": _filled(a, how.n), "b": _filled(b, how.m), "f": _filled(f, how.n), "g": _filled(g, how.m),
        "eps": np.float64(eps), "rounding": np.float64(rounding),
        "rows": _samples(a, rows), "cols": _samples(b, cols),
        "broken": np.bool_(not math.isfinite(largest) or not math.isfinite(1 / eps)),
    }  # fmt: skip
    return Loaded(problem, arrays, how, unit, eps, rows, cols, support)


def _filled(array: Any, *shape: int) -> Any:
    full = np.zeros(shape)
    full[tuple(slice(size) for size in array.shape)] = array
    return full


def _repeated(points: Any, size: int) -> Any:
    return points[np.minimum(np.arange(size), len(points) - 1)]


def _samples(weights: Vector, support: NDArray[np.intp]) -> NDArray[np.int32]:
    """Places of points, evenly spread over those that are not light."""
    heavy = support[weights[support] >= LIGHT / len(weights)]
    return heavy[np.linspace(0, len(heavy) - 1, SAMPLES).astype(int)].astype(np.int32)
