"""From problems to rows of the table: lanes of one shape and cost are laid out and filled as whole arrays."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.backends.cpu import kernels as k
from drainsinkhorn.backends.cpu.layout import EXPANDED_DIM, extent, lay_out
from drainsinkhorn.backends.cpu.memory import Block
from drainsinkhorn.backends.cpu.moments import gaussian_starts
from drainsinkhorn.backends.cpu.tiles import DIRECT, EXPANDED, ROOT
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.numerics.costs import SMALLEST, UNIT, unit_rows
from drainsinkhorn.numerics.starts import worthwhile

SHARED_BYTES = 2**16
"""Kernels from this size on are shared by lanes over the same costs."""

GROUP_BYTES = 2**22
"""Small lanes of one shape share a block of about this size; a larger lane has its own, freed when it leaves."""


KEPT_DIM, KEPT_PAIRS = 128, 2**22
"""From so many coordinates on, and up to so many pairs, a lane keeps its scores in float64 beside its kernel."""


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
    block = Block(int(offsets[-1]))
    views: dict[int, NDArray[Any]] = {}
    steps = np.arange(lanes)
    for (field, size, kind), stride, offset in zip(plan, strides, offsets, strict=False):
        table[:, field] = block.address + int(offset) + stride * steps
        views[field] = block.view(int(offset), lanes, stride, size, kind)
    shared = lanes > 1 and _same_costs(instances)
    stride = -(-n * m * item // 64) * 64
    matrices = Block(stride * (1 if shared else lanes))
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
        scores = Block(step * (1 if shared else lanes))
        table[:, k.SCORES] = scores.address + (0 if shared else step * steps)
    with np.errstate(over="ignore", invalid="ignore"):
        kept = _load_dense if instances[0].is_dense else _load_points
        return [block, matrices, scores, *kept(instances, eps, table, numbers)]


def _load_starts(instances: Sequence[Instance[Any]], eps: NDArray[np.float64], views: dict[int, NDArray[Any]]) -> None:
    """Write the potentials that lanes begin with, in nats."""
    starts = [p.init for p in instances]
    views[k.STATE_F][:], views[k.STATE_G][:] = 0.0, 0.0
    if isinstance(starts[0], Potentials):
        for field, side in ((k.STATE_F, 0), (k.STATE_G, 1)):
            views[field][:] = _stack([to_numpy(pair[side]) for pair in starts]) / eps[:, None]  # type: ignore[index]
    elif starts[0] != "zero":
        x, y = _stack([to_numpy(p.x) for p in instances]), _stack([to_numpy(p.y) for p in instances])
        strength = eps / [p.cost.scale * p.cost.kind.distances.factor for p in instances]
        a, b = np.ascontiguousarray(views[k.EXACT_A]), np.ascontiguousarray(views[k.EXACT_B])
        found = gaussian_starts(np.ascontiguousarray(x), np.ascontiguousarray(y), a, b, strength)
        if starts[0] == "auto":
            found[~worthwhile(found, b)] = 0.0
        views[k.STATE_G][:] = found


def _same_costs(instances: Sequence[Instance[Any]]) -> bool:
    """True if lanes may share a kernel: one matrix, or the very same points, scale and eps, from a cold start."""
    first = instances[0]
    if first.init != "zero" or not all(p.eps == first.eps for p in instances):
        return False
    if first.is_dense:
        return all(p.matrix is first.matrix for p in instances)
    return all(p.x is first.x and p.y is first.y and p.cost == first.cost for p in instances)


def _load_dense(instances: Sequence[Instance[Any]], eps: NDArray[np.float64], table: Any, numbers: Any) -> list[Any]:
    cost = to_numpy(instances[0].matrix)
    single = cost.dtype == np.float32
    cost = np.ascontiguousarray(cost, dtype=np.float32 if single else np.float64)
    table[:, k.X], table[:, k.KIND] = cost.ctypes.data, k.DENSE32 if single else k.DENSE64
    numbers[:, k.FACTOR] = 1 / eps
    numbers[:, k.ROUNDING] = 4 * UNIT * max(float(cost.max()), -float(cost.min())) / eps
    return [cost]


def _load_points(instances: Sequence[Instance[Any]], eps: NDArray[np.float64], table: Any, numbers: Any) -> list[Any]:
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
    laid = lay_out(x, y, middle if expanded else None)
    for field, array in zip((k.X, k.NORMS_X, k.Y, k.NORMS_Y), laid, strict=True):
        step = array[0].nbytes if len(array) == lanes else 0
        table[:, field] = array.ctypes.data + step * np.arange(lanes)
    return [*laid]
