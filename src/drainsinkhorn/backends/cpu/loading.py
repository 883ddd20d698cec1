"""From instances to rows of the lane table: lanes of one shape and cost are loaded together, as whole arrays.

`load_group` fills the rows. Below it stand the compiled functions that it calls on stacks of clouds: moments for the
Gaussian start, the extent of clouds, and the layout of points that tiles read.
"""

# pyright: reportCallIssue=false, reportPrivateImportUsage=false, reportGeneralTypeIssues=false
# Numba gives intrinsics another signature than Python sees.

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.backends.cpu import kernels as k
from drainsinkhorn.backends.cpu.primitives import dot, ordered
from drainsinkhorn.backends.cpu.resources import MemoryBlock
from drainsinkhorn.backends.cpu.tiles import DIRECT, EXPANDED, ROOT, WIDE
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.numerics.costs import SMALLEST, UNIT, unit_rows
from drainsinkhorn.numerics.starts import FULL_DIM, between, worthwhile

Array = NDArray[np.float64]

SHARED_BYTES = 2**16
"""Kernels from this size on are shared by lanes over the same costs."""

GROUP_BYTES = 2**22
"""Small lanes of one shape share a block of about this size; a larger lane has its own, freed when it leaves."""

KEPT_DIM, KEPT_PAIRS = 128, 2**22
"""From so many coordinates on, and up to so many pairs, a lane keeps its scores in float64 beside its kernel."""

EXPANDED_DIM = 16
"""From so many coordinates on squares are expanded; in fewer, differences cost no more than the exponentials after."""


@cache
def unit_roundoff(dtype: np.dtype[Any]) -> float:
    """Unit roundoff of a dtype."""
    return float(np.finfo(dtype).eps) / 2


def type_band(rows: int, cols: int, dtype: np.dtype[Any]) -> float:
    """Rounding of sums in a dtype: errors of n terms add up like sqrt(n) units, taken four times; docs/adr/0007."""
    return unit_roundoff(dtype) * (8 + 4 * math.sqrt(max(rows, cols)))


def groups(instances: Sequence[Instance[Any]], itemsize: int) -> Iterator[list[int]]:
    """Places of problems that can be filled together: the same costs, or the same shape and not too much memory."""
    waiting: dict[Any, list[int]] = {}
    for place, instance in enumerate(instances):
        n, m = instance.shape
        cost, x, y, from_points = instance.cost, instance.x, instance.y, not instance.is_dense
        kind = (cost.kind, instance.dim) if from_points else ("dense", id(instance.matrix), instance.eps)
        # Large lanes over the very same costs share a kernel; nothing in a lane's numbers depends on whether they do.
        same = (id(x), id(y), cost.scale, instance.eps) if from_points and n * m * itemsize >= SHARED_BYTES else None
        start = "given" if isinstance(instance.init, Potentials) else instance.init
        key = (n, m, kind, same, start)
        group = waiting.setdefault(key, [])
        group.append(place)
        sharing = instance.init == "zero" and (not from_points or same is not None)
        if not sharing and len(group) * n * m * itemsize >= GROUP_BYTES:
            yield waiting.pop(key)
    yield from waiting.values()


def _keeps_scores(instance: Instance[Any], pairs: int) -> bool:
    """True if looking a score up is much cheaper than computing it again when the kernel is absorbed anew."""
    squares = not instance.is_dense and not instance.cost.kind.distances.root
    return squares and instance.dim >= KEPT_DIM and pairs <= KEPT_PAIRS


def _stack(arrays: list[Any], dtype: Any = np.float64) -> NDArray[Any]:
    if len(arrays) == 1 or all(array is arrays[0] for array in arrays):
        return np.asarray(arrays[0], dtype=dtype)[None]
    return np.stack(arrays, dtype=dtype, casting="unsafe")


def load_group(
    instances: Sequence[Instance[Any]], dtype: np.dtype[Any], table: Any, numbers: Any, *, momentum: bool
) -> list[Any]:
    """Fill rows of the table for problems of one shape; returns what must stay alive with these lanes."""
    lanes, (n, m) = len(instances), instances[0].shape
    item = dtype.itemsize
    own = ((k.A, n), (k.B, m), (k.U, n), (k.V, m), (k.W, m), (k.R, n), (k.C, m), (k.PARTS, k.groups_of(n) * m))
    double = ((k.EXACT_A, n), (k.EXACT_B, m), (k.STATE_F, n), (k.STATE_G, m), (k.BASE_F, n), (k.BASE_G, m))
    if momentum:
        double += ((k.BEFORE, n), (k.NEXT_F, n), (k.NEXT_X, n), (k.LOGS, n))
    plan = [(field, size, dtype) for field, size in own] + [
        (field, size, np.dtype(np.float64)) for field, size in double
    ]
    strides = [-(-size * kind.itemsize // 64) * 64 for _, size, kind in plan]
    offsets = np.cumsum([0, *(stride * lanes for stride in strides)])
    block = MemoryBlock(int(offsets[-1]))
    views: dict[int, NDArray[Any]] = {}
    steps = np.arange(lanes)
    for (field, size, kind), stride, offset in zip(plan, strides, offsets, strict=False):
        table[:, field] = block.address + int(offset) + stride * steps
        views[field] = block.view(int(offset), lanes, stride, size, kind)
    shared = lanes > 1 and _same_costs(instances)
    stride = -(-n * m * item // 64) * 64
    matrices = MemoryBlock(stride * (1 if shared else lanes))
    table[:, k.KERNEL] = matrices.address + (0 if shared else stride * steps)
    table[:, k.SHARED], table[:, k.MOMENTUM] = shared, momentum
    table[:, k.STATE] = k.COLD if instances[0].init == "zero" else k.FRESH
    table[:, k.ROWS], table[:, k.COLS] = n, m
    views[k.A][:] = views[k.EXACT_A][:] = _stack([p.a for p in instances])
    views[k.B][:] = views[k.EXACT_B][:] = _stack([p.b for p in instances])
    eps = np.array([p.eps for p in instances])
    _load_starts(instances, eps, views)
    numbers[:, k.SUMS] = type_band(n, m, dtype)
    table[:, k.SCORES], scores = 0, None
    if _keeps_scores(instances[0], n * m):
        step = 8 * n * m
        scores = MemoryBlock(step * (1 if shared else lanes))
        table[:, k.SCORES] = scores.address + (0 if shared else step * steps)
    with np.errstate(over="ignore", invalid="ignore"):
        load_costs = _load_dense if instances[0].is_dense else _load_points
        return [block, matrices, scores, *load_costs(instances, eps, table, numbers)]


def _load_starts(instances: Sequence[Instance[Any]], eps: Array, views: dict[int, NDArray[Any]]) -> None:
    """Write the potentials that lanes begin with, in nats."""
    first = instances[0].init
    views[k.STATE_F][:], views[k.STATE_G][:] = 0.0, 0.0
    if isinstance(first, Potentials):
        for field, side in ((k.STATE_F, "f"), (k.STATE_G, "g")):
            views[field][:] = _stack([to_numpy(getattr(p.init, side)) for p in instances]) / eps[:, None]
    elif first != "zero":
        x, y = _stack([to_numpy(p.x) for p in instances]), _stack([to_numpy(p.y) for p in instances])
        strength = eps / [p.cost.scale * p.cost.kind.distances.factor for p in instances]
        a, b = np.ascontiguousarray(views[k.EXACT_A]), np.ascontiguousarray(views[k.EXACT_B])
        starts = gaussian_starts(np.ascontiguousarray(x), np.ascontiguousarray(y), a, b, strength)
        if first == "auto":
            starts[~worthwhile(starts, b)] = 0.0
        views[k.STATE_G][:] = starts


def _same_costs(instances: Sequence[Instance[Any]]) -> bool:
    """True if lanes may share a kernel: one matrix, or the very same points, scale and eps, from a cold start."""
    first = instances[0]
    if first.init != "zero" or not all(p.eps == first.eps for p in instances):
        return False
    if first.is_dense:
        return all(p.matrix is first.matrix for p in instances)
    return all(p.x is first.x and p.y is first.y and p.cost == first.cost for p in instances)


def _load_dense(instances: Sequence[Instance[Any]], eps: Array, table: Any, numbers: Any) -> list[Any]:
    cost = to_numpy(instances[0].matrix)
    single = cost.dtype == np.float32
    cost = np.ascontiguousarray(cost, dtype=np.float32 if single else np.float64)
    table[:, k.X], table[:, k.KIND] = cost.ctypes.data, k.DENSE32 if single else k.DENSE64
    numbers[:, k.FACTOR] = 1 / eps
    numbers[:, k.ROUNDING] = 4 * UNIT * max(float(cost.max()), -float(cost.min())) / eps
    return [cost]


def _load_points(instances: Sequence[Instance[Any]], eps: Array, table: Any, numbers: Any) -> list[Any]:
    """Write where the points are, and how far rounding can carry a score."""
    lanes = len(instances)
    kind, form = instances[0].cost.kind, instances[0].cost.kind.distances
    factor = np.array([p.cost.scale for p in instances]) / eps
    x, y = _stack([to_numpy(p.x) for p in instances]), _stack([to_numpy(p.y) for p in instances])
    dim = x.shape[2]
    if form.directions:
        x, y = unit_rows(x), unit_rows(y)
    lengths = max(len(x), len(y))
    x, y = (np.ascontiguousarray(np.broadcast_to(points, (lengths, *points.shape[1:]))) for points in (x, y))
    middle, far = extent(x, y)
    if form.root and not form.directions:
        # By a power of two, so that squares neither overflow nor vanish; those of unit vectors do neither.
        scale = np.where((far > 0) & np.isfinite(far), np.exp2(np.frexp(far)[1]), 1.0)
        x, y, far = x / scale[:, None, None], y / scale[:, None, None], far / scale
        factor = factor * scale
    expanded = not form.root and dim >= EXPANDED_DIM
    largest = kind.largest(far)
    # By differences four roundings come on top; what an expanded square adds is worked out in docs/adr/0016.
    added = (dim + 6) * UNIT * largest + 4 * dim * SMALLEST if expanded else 4 * UNIT * largest
    raw = kind.rounding(dim, largest) + added
    numbers[:, k.ROUNDING] = 2 * factor * raw
    numbers[:, k.FACTOR] = factor * form.factor
    table[:, k.KIND] = ROOT if form.root else EXPANDED if expanded else DIRECT
    table[:, k.DIM] = dim
    layout = lay_out(x, y, middle if expanded else None)
    for field, array in zip((k.X, k.NORMS_X, k.Y, k.NORMS_Y), layout, strict=True):
        step = array[0].nbytes if len(array) == lanes else 0
        table[:, field] = array.ctypes.data + step * np.arange(lanes)
    return [*layout]


def gaussian_starts(x: Array, y: Array, a: Array, b: Array, eps: Array) -> Array:
    """Gaussian starts g in nats for a stack: points (L or 1, n, d), weights (L, n), cost |x - y|^2, eps (L,)."""
    lanes, dim = len(eps), x.shape[2]
    full = dim <= FULL_DIM
    shape = (lanes, dim, dim if full else 1)
    means, spreads, out = np.empty((2, lanes, dim)), np.empty((2, *shape)), np.empty((lanes, y.shape[1]))
    moments(x, a, means[0], spreads[0], full)
    moments(y, b, means[1], spreads[1], full)
    spread_x, spread_y = spreads if full else spreads[..., 0]
    closed = between(means[0], spread_x, means[1], spread_y, eps)
    quadratic(y, closed.mean, np.ascontiguousarray(closed.matrix.reshape(shape)), closed.slope, full, out)
    return out


@ordered
def moments(points, weights, means, spreads, full):
    """Weighted means (L, d) and covariances (L, d, d), or variances (L, d, 1), of clouds (L or 1, n, d)."""
    size, dim = points.shape[1], points.shape[2]
    around = np.empty(dim)
    for lane in range(weights.shape[0]):
        cloud, w, mean, spread = points[lane % points.shape[0]], weights[lane], means[lane], spreads[lane]
        mean[:] = 0
        for i in range(size):
            for c in range(dim):
                mean[c] += w[i] * cloud[i, c]
        spread[:] = 0
        for i in range(size):
            for c in range(dim):
                around[c] = cloud[i, c] - mean[c]
            for c in range(dim):
                scaled = w[i] * around[c]
                if full:
                    row = spread[c]
                    for q in range(dim):
                        row[q] += scaled * around[q]
                else:
                    spread[c, 0] += scaled * around[c]


@ordered
def quadratic(points, means, matrices, slopes, full, out):
    """`(y - m)' M (y - m) + l' (y - m)` at points (L or 1, m, d); zero for a lane where that is not finite."""
    size, dim = points.shape[1], points.shape[2]
    around, bent = np.empty(dim), np.empty(dim)
    for lane in range(out.shape[0]):
        cloud, mean, matrix = points[lane % points.shape[0]], means[lane], matrices[lane]
        slope, values, finite = slopes[lane], out[lane], True
        for j in range(size):
            for c in range(dim):
                around[c] = cloud[j, c] - mean[c]
            for c in range(dim):
                bent[c] = slope[c] + (dot(matrix[c], around) if full else matrix[c, 0] * around[c])
            total = dot(bent, around)
            values[j] = total
            finite &= abs(total) < np.inf
        if not finite:
            values[:] = 0


class Extent(NamedTuple):
    """Where pairs of clouds lie: the middles of their common boxes, (L, d), and bounds on all distances, (L,)."""

    middle: Array
    far: Array


def extent(x: Array, y: Array) -> Extent:
    """The extent of stacks of clouds, (L, n, d) and (L, m, d); far is measured through the middle of the common box."""
    extents = Extent(np.empty((len(x), x.shape[2])), np.empty(len(x)))
    _extents(x, y, extents.middle, extents.far)
    return extents


@ordered
def _widen(points, low, high):
    for i in range(points.shape[0]):
        point = points[i]
        for c in range(point.size):
            low[c] = min(low[c], point[c])
            high[c] = max(high[c], point[c])


@ordered
def _radius(points, middle, around):
    """The largest distance from a middle."""
    largest = 0.0
    for i in range(points.shape[0]):
        point = points[i]
        for c in range(point.size):
            around[c] = point[c] - middle[c]
        largest = max(largest, dot(around, around))
    return np.sqrt(largest)


@ordered
def _extents(x, y, middles, far):
    dim = x.shape[2]
    low, high, around = np.empty(dim), np.empty(dim), np.empty(dim)
    for lane in range(x.shape[0]):
        middle, diagonal = middles[lane], 0.0
        low[:], high[:] = x[lane, 0], x[lane, 0]
        _widen(x[lane], low, high)
        _widen(y[lane], low, high)
        for c in range(dim):
            middle[c] = low[c] / 2 + high[c] / 2
            diagonal = max(diagonal, high[c] - low[c])
        diagonal *= np.sqrt(np.float64(dim))
        # The diagonal of the box where squares overflow or vanish.
        far[lane] = diagonal
        if diagonal > 1e-140 and diagonal < 1e140:
            far[lane] = _radius(x[lane], middle, around) + _radius(y[lane], middle, around)


class PointLayout(NamedTuple):
    """Stacks of clouds as tiles read them: rows (L, n, d), panels (L, p, d, WIDE), and the squared norms of both."""

    rows: Array
    row_norms: Array
    panels: Array
    panel_norms: Array


def lay_out(x: Array, y: Array, middle: Array | None) -> PointLayout:
    """Rows and panels of stacks of clouds, centred if `middle` (L, d) is given; else rows are x itself."""
    (lanes, n, dim), panels = x.shape, -(-y.shape[1] // WIDE)
    centred = middle is not None
    shift = np.zeros((lanes, dim)) if middle is None else middle
    layout = PointLayout(
        np.empty_like(x) if centred else x,
        np.empty((lanes, n if centred else 1)),
        np.empty((lanes, panels, dim, WIDE)),
        np.empty((lanes, panels * WIDE)),
    )
    if centred:
        _lay_rows(x, shift, layout.rows, layout.row_norms)
    _lay_panels(y, shift, layout.panels, layout.panel_norms)
    return layout


@ordered
def _lay_rows(points, middles, rows, norms):
    for lane in range(points.shape[0]):
        middle = middles[lane]
        for i in range(points.shape[1]):
            point, row = points[lane, i], rows[lane, i]
            for c in range(point.size):
                row[c] = point[c] - middle[c]
            norms[lane, i] = dot(row, row)


@ordered
def _lay_panels(points, middles, panels, norms):
    """Zeros stand behind the last point."""
    size, dim = points.shape[1], points.shape[2]
    rows = np.empty((WIDE, dim))
    for lane in range(points.shape[0]):
        middle = middles[lane]
        for p in range(panels.shape[1]):
            panel, first = panels[lane, p], p * WIDE
            for j in range(WIDE):
                row = rows[j]
                if first + j < size:
                    point = points[lane, first + j]
                    for c in range(dim):
                        row[c] = point[c] - middle[c]
                else:
                    row[:] = 0
                norms[lane, first + j] = dot(row, row)
            for c in range(dim):
                for j in range(WIDE):
                    panel[c, j] = rows[j, c]
