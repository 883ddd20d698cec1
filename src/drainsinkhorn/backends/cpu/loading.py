"""From instances to records of the lane table: lanes of one shape and cost are loaded together, as whole arrays."""

# pyright: reportCallIssue=false

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.backends.cpu.lane_table import COLD, DENSE32, DENSE64, DOUBLE_VECTORS, FRESH, SHORT_VECTORS, words
from drainsinkhorn.backends.cpu.leg_kernels import groups_of
from drainsinkhorn.backends.cpu.precision import FLOAT64, caches_scores, cost_rounding, score_form, sum_rounding
from drainsinkhorn.backends.cpu.primitives import dot, ordered
from drainsinkhorn.backends.cpu.resources import MemoryBlock
from drainsinkhorn.backends.cpu.scores import extent, lay_out
from drainsinkhorn.backends.cpu.tiles import EXPANDED
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.numerics.costs import UNIT, unit_rows
from drainsinkhorn.numerics.starts import FULL_DIM, between, is_negligible, worthwhile

Array = NDArray[np.float64]

SHARED_BYTES = 2**16
"""Kernels from this size on are shared by lanes over the same costs."""

GROUP_BYTES = 2**22
"""Small lanes of one shape share a block of about this size; a larger lane has its own, freed when it leaves."""


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
        key = (n, m, kind, same, start, instance.marginals.are_hard)
        group = waiting.setdefault(key, [])
        group.append(place)
        sharing = instance.init == "zero" and (not from_points or same is not None)
        if not sharing and len(group) * n * m * itemsize >= GROUP_BYTES:
            yield waiting.pop(key)
    yield from waiting.values()


def _stack(arrays: list[Any], dtype: Any = np.float64) -> NDArray[Any]:
    if len(arrays) == 1 or all(array is arrays[0] for array in arrays):
        return np.asarray(arrays[0], dtype=dtype)[None]
    return np.stack(arrays, dtype=dtype, casting="unsafe")


def load_group(instances: Sequence[Instance[Any]], dtype: np.dtype[Any], table: Any, *, momentum: bool) -> list[Any]:
    """Fill records of the lane table for problems of one shape; returns what must stay alive with these lanes."""
    lanes, (n, m) = len(instances), instances[0].shape
    eps, is_hard = np.array([p.eps for p in instances]), instances[0].marginals.are_hard
    if not is_hard:
        _load_marginals(instances, table)
    table["cooldown"] = 0.0 if momentum else np.inf
    table["is_scaled"] = is_scaled = is_hard and not momentum
    # The first leg from a cold start is not damped.
    table["state"] = COLD if instances[0].init == "zero" and is_hard else FRESH
    table["rows"], table["cols"] = n, m
    block, views = _allocate(table, n, m, dtype, is_scaled=is_scaled, is_soft=not is_hard)
    views["a"][:] = views["a64"][:] = _stack([p.a for p in instances])
    views["b"][:] = views["b64"][:] = _stack([p.b for p in instances])
    _load_starts(instances, eps, views)
    table["sum_rounding"] = sum_rounding(n, m, dtype)
    table["is_shared"] = is_shared = lanes > 1 and is_hard and _same_costs(instances)
    matrices = _allocate_matrices(table["kernel"], -(-n * m * dtype.itemsize // 64) * 64, is_shared)
    scores = _allocate_matrices(table["scores"], 8 * n * m, is_shared) if caches_scores(instances[0]) else None
    with np.errstate(over="ignore", invalid="ignore"):
        load_costs = _load_dense if instances[0].is_dense else _load_points
        return [block, matrices, scores, *load_costs(instances, eps, table)]


def _load_marginals(instances: Sequence[Instance[Any]], table: Any) -> None:
    """Write kappa, damping and mass of both sides of lanes with a soft marginal."""
    table["is_soft"] = 1
    for place, instance in enumerate(instances):
        (row, col), eps, lane = instance.marginals, instance.eps, table[place]
        lane["kappa"], lane["damping"] = eps * row.kappa, row.damping(eps)
        lane["col_kappa"], lane["col_damping"] = eps * col.kappa, col.damping(eps)
        lane["log_row_mass"], lane["log_col_mass"] = map(math.log, instance.masses)


def _allocate(
    table: Any, n: int, m: int, dtype: np.dtype[Any], *, is_scaled: bool, is_soft: bool
) -> tuple[MemoryBlock, dict[str, NDArray[Any]]]:
    """Allocate the vectors of lanes and write their addresses.

    Returns the block, and views (lanes, size) of weights and potentials by field.
    """
    sizes = [n, m, n, m, m, n, n, m, groups_of(n) * m, n, m, n, m, n, m] + ([] if is_scaled else [n] * 4)
    sizes += [2 * n, 3 * m] if is_soft else []
    short, lanes = len(SHORT_VECTORS), len(table)
    strides = [-(-size * (dtype.itemsize if i < short else 8) // 64) * 64 for i, size in enumerate(sizes)]
    offsets = [0, *accumulate(stride * lanes for stride in strides)]
    block = MemoryBlock(offsets[-1])
    addresses = np.array(offsets[:-1]) + block.address
    words(table)[:, : len(sizes)] = addresses + np.arange(lanes)[:, None] * strides
    views: dict[str, NDArray[Any]] = {}
    for i, field in enumerate((*SHORT_VECTORS[:2], *DOUBLE_VECTORS[:4])):
        at, kind = (i, dtype) if i < 2 else (i - 2 + short, FLOAT64)
        views[field] = block.view(offsets[at], lanes, strides[at], sizes[at], kind)
    return block, views


def _allocate_matrices(addresses: NDArray[np.int64], size: int, is_shared: bool) -> MemoryBlock:
    """Allocate a matrix of `size` bytes for each lane, or one for all, and write the addresses."""
    matrices = MemoryBlock(size * (1 if is_shared else len(addresses)))
    addresses[:] = matrices.address + (0 if is_shared else size * np.arange(len(addresses)))
    return matrices


def _load_starts(instances: Sequence[Instance[Any]], eps: Array, views: dict[str, NDArray[Any]]) -> None:
    """Write the potentials that lanes begin with, in nats."""
    first = instances[0].init
    views["f"][:], views["g"][:] = 0.0, 0.0
    if isinstance(first, Potentials):
        for field, side in (("f", "f"), ("g", "g")):
            views[field][:] = _stack([to_numpy(getattr(p.init, side)) for p in instances]) / eps[:, None]
    elif first != "zero":
        x, y = _stack([to_numpy(p.x) for p in instances]), _stack([to_numpy(p.y) for p in instances])
        strength = eps / [p.cost.scale * p.cost.kind.distances.factor for p in instances]
        a, b = np.ascontiguousarray(views["a64"]), np.ascontiguousarray(views["b64"])
        if not instances[0].marginals.are_hard:
            a, b = a / a.sum(axis=1, keepdims=True), b / b.sum(axis=1, keepdims=True)
        is_auto = first == "auto"
        starts = gaussian_starts(np.ascontiguousarray(x), np.ascontiguousarray(y), a, b, strength, always=not is_auto)
        if is_auto:
            starts[~worthwhile(starts, b)] = 0.0
        views["g"][:] = starts


def _same_costs(instances: Sequence[Instance[Any]]) -> bool:
    """True if lanes may share a kernel: one matrix, or the very same points, scale and eps, from a cold start."""
    first = instances[0]
    if first.init != "zero" or not all(p.eps == first.eps for p in instances):
        return False
    if first.is_dense:
        return all(p.matrix is first.matrix for p in instances)
    return all(p.x is first.x and p.y is first.y and p.cost == first.cost for p in instances)


def _load_dense(instances: Sequence[Instance[Any]], eps: Array, table: Any) -> list[Any]:
    """Write the address of the matrix that all these lanes have, and the rounding bound of its scores."""
    cost = to_numpy(instances[0].matrix)
    single = cost.dtype == np.float32
    cost = np.ascontiguousarray(cost, dtype=np.float32 if single else np.float64)
    table["x"], table["form"] = cost.ctypes.data, DENSE32 if single else DENSE64
    table["factor"] = 1 / eps
    table["score_rounding"] = 4 * UNIT * max(float(cost.max()), -float(cost.min())) / eps
    return [cost]


def _load_points(instances: Sequence[Instance[Any]], eps: Array, table: Any) -> list[Any]:
    """Write addresses of the points, and the rounding bound of scores."""
    lanes, kind, distances = len(instances), instances[0].cost.kind, instances[0].cost.kind.distances
    factor = np.array([p.cost.scale for p in instances]) / eps
    x, y = _stack([to_numpy(p.x) for p in instances]), _stack([to_numpy(p.y) for p in instances])
    dim = x.shape[2]
    if distances.directions:
        x, y = unit_rows(x), unit_rows(y)
    lengths = max(len(x), len(y))
    x, y = (np.ascontiguousarray(np.broadcast_to(points, (lengths, *points.shape[1:]))) for points in (x, y))
    middle, far = extent(x, y)
    if distances.root and not distances.directions:
        # By a power of two, so that squares neither overflow nor vanish; those of unit vectors do neither.
        scale = np.where((far > 0) & np.isfinite(far), np.exp2(np.frexp(far)[1]), 1.0)
        x, y, far = x / scale[:, None, None], y / scale[:, None, None], far / scale
        factor = factor * scale
    form = score_form(instances[0])
    table["score_rounding"] = 2 * factor * cost_rounding(form, kind, dim, kind.largest(far))
    table["factor"] = factor * distances.factor
    table["form"], table["dim"] = form, dim
    layout = lay_out(x, y, middle if form == EXPANDED else None)
    for field, array in zip(("x", "norms_x", "y", "norms_y"), layout, strict=True):
        step = array[0].nbytes if len(array) == lanes else 0
        table[field] = array.ctypes.data + step * np.arange(lanes)
    return [*layout]


def gaussian_starts(x: Array, y: Array, a: Array, b: Array, eps: Array, *, always: bool = True) -> Array:
    """Gaussian starts g in nats for a stack: points (L or 1, n, d), weights (L, n), cost |x - y|^2, eps (L,).

    Unless `always`, starts that `numerics.starts.is_negligible` rejects are zero, and no matrix is decomposed for them.
    """
    lanes, dim = len(eps), x.shape[2]
    full = dim <= FULL_DIM
    shape = (lanes, dim, dim if full else 1)
    means, spreads, out = np.empty((2, lanes, dim)), np.empty((2, *shape)), np.empty((lanes, y.shape[1]))
    moments(x, a, means[0], spreads[0], full)
    moments(y, b, means[1], spreads[1], full)
    spread_x, spread_y = spreads if full else spreads[..., 0]
    given = means[0], spread_x, means[1], spread_y, eps
    needed = np.ones(lanes, dtype=bool) if always else ~is_negligible(*given)
    matrices, slopes = np.zeros(shape), np.zeros((lanes, dim))
    if needed.any():
        closed = between(*(each[needed] for each in given))
        matrices[needed], slopes[needed] = closed.matrix.reshape(-1, *shape[1:]), closed.slope
    quadratic(y, means[1], matrices, slopes, full, out)
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
    """`numerics.starts.Quadratic` at points (L or 1, m, d); zero for a lane where that is not finite."""
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
