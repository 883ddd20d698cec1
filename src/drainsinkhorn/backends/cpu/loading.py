"""From instances to records of the lane table: lanes of one kind are loaded together, whatever their sizes.

Sizes, offsets and addresses are columns; `loading_kernels` loads the lanes one by one.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.backends.cpu import loading_kernels as k
from drainsinkhorn.backends.cpu.lane_table import ADDRESSES, COLD, DENSE32, DENSE64, FRESH, SHORT_VECTORS, words
from drainsinkhorn.backends.cpu.leg_kernels import GROUP_ROWS, GROUPS
from drainsinkhorn.backends.cpu.precision import caches_scores, cost_rounding, score_form, sum_rounding
from drainsinkhorn.backends.cpu.resources import MemoryBlock
from drainsinkhorn.backends.cpu.tiles import EXPANDED, WIDE
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.instances import InstanceStack, each, strengths
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.numerics.costs import UNIT, unit_rows
from drainsinkhorn.numerics.starts import FULL_DIM, WORTH, between, is_negligible

Array = NDArray[np.float64]
Places = NDArray[np.int64]
Memory = tuple[Any, ...]
"""What must stay alive with a lane."""
Share = Callable[..., None]
"""Calls a kernel with a table, places in it and further arguments; threads share the places."""

SHARED_BYTES = 2**16
"""Kernels from this size on are shared by lanes over the same costs."""
BLOCK_BYTES = 2**22
"""Small lanes share a block of about this size; a larger lane has its own, freed when it leaves."""
LOAD_BYTES = 2**26
"""Memory of lanes that are loaded together, about. It bounds what loading needs besides."""


class _Flat(NamedTuple):
    """Arrays of many lanes one after another, and where each lane's begins."""

    values: Array
    at: Places


def _flatten(arrays: Sequence[Any]) -> _Flat:
    """Concatenate arrays in float64; an array that all lanes share is copied once."""
    first, at = arrays[0], np.zeros(len(arrays), dtype=np.int64)
    if all(array is first for array in arrays):
        return _Flat(np.array(first, dtype=np.float64, order="C"), at)
    np.cumsum([len(array) for array in arrays[:-1]], out=at[1:])
    return _Flat(np.concatenate(arrays, dtype=np.float64, casting="unsafe"), at)


def _clouds(instances: Sequence[Instance[Any]]) -> tuple[_Flat, _Flat]:
    """The points of both sides."""
    if isinstance(instances, InstanceStack):
        return _rows_of(instances.x, instances.rows), _rows_of(instances.y, instances.rows)
    return _flatten([to_numpy(p.x) for p in instances]), _flatten([to_numpy(p.y) for p in instances])


def _rows_of(points: Any, rows: Sequence[int]) -> _Flat:
    """The clouds of some rows of a stack (W, n, d); or one cloud (n, d), which all share."""
    if points.ndim == 2:
        return _flatten([to_numpy(points)] * len(rows))
    chosen = points[rows.start : rows.stop] if isinstance(rows, range) and rows.step == 1 else points[list(rows)]
    values = np.array(to_numpy(chosen), dtype=np.float64, order="C")
    lanes, n, dim = values.shape
    return _Flat(values.reshape(-1, dim), np.arange(lanes) * n)


def _weights(instances: Sequence[Instance[Any]]) -> tuple[_Flat, _Flat]:
    """The weights of both sides."""
    if isinstance(instances, InstanceStack):
        a, b = (np.array(side, dtype=np.float64) for side in (instances.shared.a, instances.shared.b))
        shared = np.zeros(len(instances), dtype=np.int64)
        return _Flat(a, shared), _Flat(b, shared)
    return _flatten([p.a for p in instances]), _flatten([p.b for p in instances])


def _sizes(instances: Sequence[Instance[Any]]) -> tuple[Places, Places]:
    """The points of each lane on both sides."""
    n, m = zip(*each(instances, lambda instance: instance.shape), strict=True)
    return np.array(n), np.array(m)


def groups(instances: Sequence[Instance[Any]], itemsize: int) -> Iterator[list[int]]:
    """Places of problems that are loaded together: of one kind of cost, dimension and start, and of bounded memory."""
    if _are_alike(instances):
        n, m = _sizes(instances)
        loads = np.cumsum(_memory(n, m, instances[0].dim, itemsize)) // LOAD_BYTES
        for places in np.split(np.arange(len(n)), np.flatnonzero(np.diff(loads)) + 1):
            yield places.tolist()
        return
    waiting, sizes, latest = dict[Any, list[int]](), dict[Any, int](), (None, None, None)
    for place, instance in enumerate(instances):
        x, matrix, start, dim = instance.x, instance.matrix, instance.init, instance.dim
        kind = id(instance.cost.kind) if matrix is None else None
        key = (kind, dim, "given" if isinstance(start, Potentials) else start, instance.marginals.are_hard)
        waiting.setdefault(key, []).append(place)
        # Lanes over the same costs follow one another and are loaded together, so that they can share a kernel.
        before, latest = latest, (x, instance.y, matrix)
        if all(map(operator.is_, before, latest)):
            continue
        size = sizes.get(key, 0) + _memory(*instance.shape, dim, itemsize)
        if size >= LOAD_BYTES:
            yield waiting.pop(key)
        sizes[key] = size if key in waiting else 0
    yield from waiting.values()


def _are_alike(instances: Sequence[Instance[Any]]) -> bool:
    """True if lanes have one cost between points, one start by name, one dimension, and each its own points."""
    if isinstance(instances, InstanceStack):
        return instances.has_own_points
    if not instances or instances[0].matrix is not None or isinstance(instances[0].init, Potentials):
        return False
    first, dim = instances[0], instances[0].dim
    cost, init, marginals = first.cost, first.init, first.marginals
    for p in instances:
        if p.cost is not cost or p.init is not init or p.marginals is not marginals or p.matrix is not None:
            return False
    sides: tuple[list[Any], list[Any]] = [p.x for p in instances], [p.y for p in instances]
    return {points.shape[1] for points in sides[0]} == {dim} and (
        len({*map(id, sides[0])}) == len(instances) or len({*map(id, sides[1])}) == len(instances)
    )


def _memory(n: Any, m: Any, dim: int, itemsize: int) -> Any:
    """Bytes of a lane and of what loading it needs, about; sizes are numbers or arrays."""
    return n * m * itemsize + 16 * (n + m) * dim + 64 * min(dim, FULL_DIM) ** 2


def load_group(
    instances: Sequence[Instance[Any]], dtype: np.dtype[Any], table: Any, share: Share, *, momentum: bool
) -> list[Memory]:
    """Fill records of the lane table for problems of one group; returns what must stay alive with each lane."""
    first, everyone = instances[0], np.arange(len(instances))
    eps, is_hard = np.array(strengths(instances)), first.marginals.are_hard
    if not is_hard:
        _load_marginals(instances, table)
    table["cooldown"] = 0.0 if momentum else np.inf
    table["is_scaled"] = is_scaled = is_hard and not momentum
    # The first leg from a cold start is not damped.
    is_cold = first.init == "zero" and is_hard
    table["state"] = COLD if is_cold else FRESH
    rows, cols = _sizes(instances)
    table["rows"], table["cols"] = rows, cols
    table["sum_rounding"] = sum_rounding(rows, cols, dtype)
    # Rows of a stack with points of their own share neither.
    are_apart = isinstance(instances, InstanceStack) and instances.has_own_points
    kernels, clouds = everyone, everyone
    if is_cold and not are_apart:
        kernels = _kernel_owners(instances, eps, rows * cols * dtype.itemsize)
    if not (first.is_dense or are_apart):
        clouds = _owners([(id(p.x), id(p.y)) for p in instances])
    table["is_shared"] = np.bincount(kernels, minlength=len(kernels))[kernels] > 1
    memory = _allocate(table, first, dtype, kernels, clouds, is_scaled=is_scaled)
    a, b = _weights(instances)
    share(k.fill_lanes, table, everyone, *a, *b)
    if isinstance(first.init, Potentials):
        starts = [_flatten([to_numpy(getattr(p.init, side)) for p in instances]) for side in "fg"]
        share(k.give_starts, table, everyone, *starts[0], *starts[1], eps)
    with np.errstate(over="ignore", invalid="ignore"):
        if first.is_dense:
            return _load_dense(instances, eps, table, memory)
        x, y = _clouds(instances)
        if first.init in ("gaussian", "auto"):
            if not is_hard:
                a, b = (_flatten([getattr(p, side) / p.masses[i] for p in instances]) for i, side in enumerate("ab"))
            _load_starts(instances, eps, table, share, x, y, a, b)
        _load_points(instances, eps, table, share, x, y, clouds)
    return memory


def _owners(keys: Iterable[Hashable]) -> Places:
    """The first place of a key equal to that of each place."""
    first = dict[Hashable, int]()
    return np.array([first.setdefault(key, place) for place, key in enumerate(keys)], dtype=np.int64)


def _kernel_owners(instances: Sequence[Instance[Any]], eps: Array, sizes: Places) -> Places:
    """The first lane over the same costs, with whose kernel each lane from a cold start begins.

    Nothing in a lane's numbers depends on whether it shares a kernel.
    """
    if instances[0].is_dense:
        return _owners((id(p.matrix), p.eps) for p in instances)
    keys = enumerate(zip(instances, sizes.tolist(), strict=True))
    return _owners(
        (id(p.x), id(p.y), p.cost.scale, p.eps) if size >= SHARED_BYTES else place for place, (p, size) in keys
    )


def _load_marginals(instances: Sequence[Instance[Any]], table: Any) -> None:
    """Write kappa, damping and mass of both sides of lanes with a soft marginal."""
    table["is_soft"] = 1
    for place, instance in enumerate(instances):
        (row, col), eps, lane = instance.marginals, instance.eps, table[place]
        lane["kappa"], lane["damping"] = eps * row.kappa, row.damping(eps)
        lane["col_kappa"], lane["col_damping"] = eps * col.kappa, col.damping(eps)
        lane["log_row_mass"], lane["log_col_mass"] = map(math.log, instance.masses)


def _allocate(
    table: Any, first: Instance[Any], dtype: np.dtype[Any], kernels: Places, clouds: Places, *, is_scaled: bool
) -> list[Memory]:
    """Allocate vectors and matrices of all lanes, and write their addresses.

    Args:
        table: Records with sizes.
        first: The first problem.
        dtype: The lanes' precision.
        kernels: The lane whose kernel and cached scores each lane has.
        clouds: The lane whose laid out points each lane has.
        is_scaled: True if all lanes are scaled.
    """
    n, m, lanes, dim = table["rows"], table["cols"], len(table), first.dim
    is_soft = not first.marginals.are_hard
    own_kernel, own_clouds = kernels == np.arange(lanes), (clouds == np.arange(lanes)) & (not first.is_dense)
    panels = -(-m // WIDE) * WIDE
    sizes = [n, m, n, m, m, n, n, m, np.clip(n // GROUP_ROWS, 1, GROUPS) * m, n, m, n, m, n, m]
    sizes += [n * (not is_scaled)] * 4 + [2 * n * is_soft, 3 * m * is_soft]
    sizes += [n * m * own_kernel, n * m * (own_kernel & caches_scores(first, n * m))]
    sizes += [size * own_clouds for size in (n * dim, panels * dim, n, panels)]
    itemsizes = np.full(len(ADDRESSES), 8)
    itemsizes[: len(SHORT_VECTORS)] = itemsizes[ADDRESSES.index("kernel")] = dtype.itemsize
    # Every vector begins a cache line.
    counts = np.stack(sizes, axis=1)
    ends = np.cumsum(-(-counts * itemsizes // 64) * 64).reshape(counts.shape)
    lane_ends = ends[:, -1]
    addresses, blocks, start, begin = words(table)[:, : len(ADDRESSES)], list[MemoryBlock](), 0, 0
    addresses[:, 0], addresses[:, 1:] = np.concatenate([[0], lane_ends[:-1]]), ends[:, :-1]
    while start < lanes:
        end = max(start + 1, int(np.searchsorted(lane_ends, begin + BLOCK_BYTES, side="right")))
        block = MemoryBlock(int(lane_ends[end - 1]) - begin)
        addresses[start:end] += block.address - begin
        blocks += [block] * (end - start)
        start, begin = end, int(lane_ends[end - 1])
    addresses[counts == 0] = 0
    memory: list[Memory] = [(block,) for block in blocks]
    for fields, owners in ((("kernel", "scores"), kernels), (("x", "y", "norms_x", "norms_y"), clouds)):
        places = np.flatnonzero(owners != np.arange(lanes))
        for field in fields:
            table[field][places] = table[field][owners[places]]
        for place in places.tolist():
            memory[place] = (*memory[place], blocks[owners[place]])
    return memory


def _load_starts(
    instances: Sequence[Instance[Any]], eps: Array, table: Any, share: Share, x: _Flat, y: _Flat, a: _Flat, b: _Flat
) -> None:
    """Write the Gaussian starts of lanes, for the cost |x - y|^2; with init "auto" only where they are worthwhile."""
    lanes, dim, always = len(eps), instances[0].dim, instances[0].init == "gaussian"
    full = dim <= FULL_DIM
    shape, everyone = (lanes, dim, dim if full else 1), np.arange(lanes)
    means, spreads = np.empty((2, lanes, dim)), np.empty((2, *shape))
    share(k.measure_moments, table, everyone, *x, *y, *a, *b, means, spreads, full)
    strength = eps / each(instances, lambda instance: instance.cost.scale * instance.cost.kind.distances.factor)
    matrices, slopes, needed = closed_forms(means, spreads if full else spreads[..., 0], strength, always=always)
    least = -np.inf if always else WORTH**2
    share(k.start_lanes, table, everyone, *y, means[1], matrices.reshape(shape), slopes, full, needed, least)


def closed_forms(
    means: Array, spreads: Array, eps: Array, *, always: bool = True
) -> tuple[Array, Array, NDArray[np.bool_]]:
    """Matrices and slopes of Gaussian starts from the moments of both sides, and which lanes have them.

    Unless `always`, the starts that `numerics.starts.is_negligible` rejects are left out, and no matrix is decomposed
    for them.

    Args:
        means: (2, L, d).
        spreads: Covariances (2, L, d, d), or variances (2, L, d).
        eps: Strength of the entropic term for the cost |x - y|^2, (L,).
        always: Whether all lanes have such starts.
    """
    moments = means[0], spreads[0], means[1], spreads[1], eps
    needed = np.ones(len(eps), dtype=bool) if always else ~is_negligible(*moments)
    matrices, slopes = np.zeros(spreads.shape[1:]), np.zeros(means.shape[1:])
    if needed.any():
        closed = between(*(each[needed] for each in moments))
        matrices[needed], slopes[needed] = closed.matrix, closed.slope
    return matrices, slopes, needed


def _load_dense(instances: Sequence[Instance[Any]], eps: Array, table: Any, memory: list[Memory]) -> list[Memory]:
    """Write addresses of matrices and rounding bounds of their scores; returns memory with the matrices."""
    known = dict[int, tuple[Any, float]]()
    costs = list[Any]()
    largest = np.empty(len(eps))
    for place, instance in enumerate(instances):
        if id(instance.matrix) not in known:
            cost = to_numpy(instance.matrix)
            cost = np.ascontiguousarray(cost, dtype=np.float32 if cost.dtype == np.float32 else np.float64)
            known[id(instance.matrix)] = cost, max(float(cost.max()), -float(cost.min()))
        cost, largest[place] = known[id(instance.matrix)]
        costs.append(cost)
    table["x"] = [cost.ctypes.data for cost in costs]
    table["form"] = [DENSE32 if cost.dtype == np.float32 else DENSE64 for cost in costs]
    table["factor"] = 1 / eps
    table["score_rounding"] = 4 * UNIT * largest / eps
    return [(*blocks, cost) for blocks, cost in zip(memory, costs, strict=True)]


def _load_points(
    instances: Sequence[Instance[Any]], eps: Array, table: Any, share: Share, x: _Flat, y: _Flat, owners: Places
) -> None:
    """Write the points of lanes as tiles read them, and the rounding bounds of their scores."""
    first, kind = instances[0], instances[0].cost.kind
    distances, form, dim, lanes = kind.distances, score_form(first), first.dim, len(eps)
    factor = np.array(each(instances, lambda instance: instance.cost.scale)) / eps
    if distances.directions:
        x, y = x._replace(values=unit_rows(x.values)), y._replace(values=unit_rows(y.values))
    middles, far, scale, own = np.empty((lanes, dim)), np.empty(lanes), np.ones(lanes), np.unique(owners)
    share(k.measure_extents, table, own, *x, *y, middles, far)
    far = far[owners]
    if distances.root and not distances.directions:
        # By a power of two, so that squares neither overflow nor vanish; those of unit vectors do neither.
        scale = np.where((far > 0) & np.isfinite(far), np.exp2(np.frexp(far)[1]), 1.0)
        far, factor = far / scale, factor * scale
    if form != EXPANDED:
        middles[:] = 0
    share(k.lay_lanes, table, own, *x, *y, middles, scale)
    table["score_rounding"] = 2 * factor * cost_rounding(form, kind, dim, kind.largest(far))
    table["factor"] = factor * distances.factor
    table["form"], table["dim"] = form, dim
