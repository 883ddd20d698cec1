"""From problems to numbers on the device: lanes of one shape are packed as whole tensors."""

# pyright: basic, reportOptionalMemberAccess=false, reportCallIssue=false, reportArgumentType=false
# Kernels are called through Triton, arrays through torch, which is loaded when this backend is.

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch

from drainsinkhorn.backends.triton.buffers import Buffers, aligned
from drainsinkhorn.backends.triton.kernels import columns as c
from drainsinkhorn.backends.triton.launching import upload
from drainsinkhorn.backends.triton.layout import (
    cache_products,
    cache_scores,
    centre_clouds,
    clouds,
    extents,
    gaussian_starts,
    pack_points,
    stack,
    unit_rows,
)
from drainsinkhorn.backends.triton.precision import augmented_room, high_part_errors, matrix_size
from drainsinkhorn.backends.triton.representation import Representation
from drainsinkhorn.backends.triton.tiles import PRODUCT, STORED
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.numerics.weights import uniform


@dataclass(eq=False)
class LoadedGroup:
    """Lanes of one shape that were loaded together.

    Attributes:
        pieces: Their piece of every buffer: offset and size.
        fields: Their rows of the lane table.
        device_extents: What `layout.extents` returned, on the device.
        size: Rows and columns.
        programs: Programs of a leg of either side.
        lanes: Number of them that are still in the pack.
        has_room: Lanes that have room for potentials inside the product.
        high_part_errors: Estimated errors of residuals from float16 high parts alone; NaN for lanes that do not use
            these alone.
    """

    pieces: dict[str, tuple[int, int]]
    fields: Any
    device_extents: Any
    size: tuple[int, int]
    programs: tuple[int, int]
    lanes: int
    has_room: list[bool] = field(init=False)
    high_part_errors: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.has_room, self.high_part_errors = [False] * self.lanes, [math.nan] * self.lanes

    @cached_property
    def extents(self) -> Any:
        """What `layout.extents` returned, (5, lanes), on the host; the first access waits for the device."""
        return self.device_extents.cpu().numpy()

    @cached_property
    def band(self) -> list[float]:
        """Rounding bounds of residuals that are measured in float64, by lane."""
        return self.extents[0].tolist()

    @cached_property
    def offsets(self) -> list[list[int]]:
        """Offsets of the potentials of rows and columns of each lane."""
        return self.fields[:, c.POTENTIAL.value : c.POTENTIAL.value + 2].tolist()


class Views:
    """Vectors of lanes that were loaded together by column and side, each a tensor (lanes, size).

    With side None the vectors of both sides are one tensor, (2 lanes, size), if both sides have one size.
    """

    def __init__(self, buffers: Buffers, lanes: int) -> None:
        self._buffers, self._lanes = buffers, lanes
        self._places: dict[tuple[str, int], tuple[str, int, int]] = {}

    def place(self, name: str, side: int, buffer: str, start: int, size: int) -> None:
        """Record the buffer of a vector, its offset for the first lane, and its size."""
        self._places[name, side] = (buffer, start, size)

    def __contains__(self, name: str) -> bool:
        return (name, 0) in self._places

    def __getitem__(self, key: tuple[str, int | None]) -> Any:
        name, side = key
        buffer, start, size = self._places[name, side or 0]
        lanes = self._lanes * (2 if side is None else 1)
        return self._buffers[buffer].as_strided((lanes, size), (aligned(size), 1), start)


def same_shape(lanes: Sequence[Any]) -> list[list[Any]]:
    """Return lanes grouped by shape, dimension, cost, kind of start and of marginals, in the order of the first."""
    groups: dict[Any, list[Any]] = {}
    for lane in lanes:
        instance = lane.inner
        kind = "dense" if instance.is_dense else (instance.cost.kind, instance.dim, str(instance.like.dtype))
        start = "given" if isinstance(instance.init, Potentials) else instance.init
        groups.setdefault((instance.shape, kind, start, instance.marginals.are_hard), []).append(lane)
    return list(groups.values())


@lru_cache(maxsize=256)
def _columns(form: Representation, n: int, m: int, dim: int, is_soft: bool) -> dict[str, list[tuple[str, int, int]]]:
    """What a lane has in each buffer: column, side, and size."""
    # Tiles of errors are at least those of float64, of 16 rows.
    tiles, pair = [-(-size // 16) for size in (n, m)], form.places if form.packed else 2 * form.dp * form.chunks
    shares, whole = form.shares((n, m)), [-(-size // form.bm) for size in (n, m)]
    wanted = {
        "vectors64": [("POTENTIAL", (n, m)), ("NORM", (n, m)), ("MASS", (n, m)), ("BEFORE", (n,)),
                      ("ERRORS", tiles), ("ALIGNMENT", (tiles[0],)), ("FLOAT64_BAND", (1,))],
        "vectors32": [("ROUNDED", (n, m)), ("REST", (n, m)), ("WEIGHT", (n, m)), ("LOG_RATIOS", (n, m)),
                      ("PARTIAL", (max(shares[0] * aligned(n), shares[1] * aligned(m)),))],
        "counters": [("COUNTERS", (max(whole),)), ("ARRIVED", (1,))],
        "points16": [("POINTS16", (n * pair, m * pair))] if form.kind == PRODUCT or form.packed else [],
        "points32": [("MATRIX", (matrix_size(n, m),))] if form.kind == STORED
        else [("POINTS32", (dim * aligned(n), dim * aligned(m)))] if form.kind != PRODUCT else [],
        "points64": [("POINTS64", (n * m,) if form.dense else (dim * n, dim * m))],
    }  # fmt: skip
    if is_soft:
        wanted["vectors64"] += [("PRICES", (c.SOFT_NUMBERS.value,)), ("LOG_MASSES", tiles), ("ASKED", (tiles[0],))]
    return {
        buffer: [(name, side, size) for name, sizes in vectors for side, size in enumerate(sizes)]
        for buffer, vectors in wanted.items()
        if vectors
    }


def load_group(instances: Sequence[Instance[Any]], form: Representation, buffers: Buffers, device: Any) -> LoadedGroup:
    """Take memory for lanes of one shape, fill it, and return where everything is."""
    lanes, (n, m) = len(instances), instances[0].shape
    dim = 0 if form.dense else int(instances[0].x.shape[1])
    views, shares = Views(buffers, lanes), form.shares((n, m))
    pieces: dict[str, tuple[int, int]] = {}
    # The row of the first lane, and what each lane after it adds.
    first, step = [0] * c.FIELDS.value, [0] * c.FIELDS.value
    first[c.SIZE.value : c.SIZE.value + 2], first[c.SHARES.value : c.SHARES.value + 2] = (n, m), shares
    first[c.DIM.value] = dim
    for buffer, vectors in _columns(form, n, m, dim, not instances[0].marginals.are_hard).items():
        total = lanes * sum(aligned(size) for _, _, size in vectors)
        start = buffers.take(buffer, total)
        pieces[buffer] = (start, total)
        for name, side, size in vectors:
            column = getattr(c, name).value + side
            first[column], step[column] = start, aligned(size)
            views.place(name, side, buffer, start, size)
            start += aligned(size) * lanes
    fields = np.array(first, dtype=np.int64) + np.multiply.outer(np.arange(lanes), np.array(step, dtype=np.int64))
    _fill_masses(instances, views, device)
    if "PRICES" in views:
        views["PRICES", 0][:] = upload([_prices(p) for p in instances], torch.float64, device)
    largest = (_fill_dense if form.dense else _fill_points)(instances, form, views, device)
    found = extents(largest, dim, views, rooted=form.rooted or form.dense)
    if not form.dense and instances[0].cost.kind.distances.directions:
        # The rounding error of unit vectors does not decrease with their distance.
        rounding = _direction_rounding(instances, dim, largest)
        found[0] += rounding
        views["FLOAT64_BAND", 0][:] += rounding[:, None]
    programs = (-(-n // form.bm) * shares[0], -(-m // form.bm) * shares[1])
    group = LoadedGroup(pieces, fields, found, (n, m), programs, lanes)
    if form.places or form.high_parts:
        norm, other_norm, start, other_start = group.extents[1:]
        norms, starts = (norm, other_norm), (start, other_start)
        room = augmented_room(form, norms, starts)
        fields[:, c.AUGMENTED.value], group.has_room = room, room.tolist()
        # A given start may be near the end, from where errors of high parts would lead away.
        if not isinstance(instances[0].init, Potentials):
            group.high_part_errors = high_part_errors(form, (n, m), dim, norms, starts).tolist()
    return group


def _direction_rounding(instances: Sequence[Instance[Any]], dim: int, largest: Any) -> Any:
    """Bound the error of scaled costs, in nats, due to the rounding of unit vectors; doubled for safety.

    Let a squared distance of one be s^2 bits. If each vector has an error of e = (dim + 3) u, a scaled cost `s^2 r^2`
    changes by at most `4 e s (s r) + 4 e^2 s^2`; `largest` bounds s r. If a distance of one is s^2 bits, a scaled cost
    `s^2 r` changes by at most `2 e s^2`.
    """
    factors = [p.cost.scale * p.cost.kind.distances.factor / (p.eps * math.log(2)) for p in instances]
    scale = torch.sqrt(upload(factors, torch.float64, largest.device))
    error = (dim + 3) * 2.0**-53 * scale
    if instances[0].cost.kind.distances.root:
        return 4 * math.log(2) * error * scale
    return 2 * math.log(2) * (4 * error * largest + 4 * error * error)


def _fill_masses(instances: Sequence[Instance[Any]], views: Views, device: Any) -> None:
    """Write weights; uniform weights are one number, which needs no copy."""
    equal = [uniform(size) for size in instances[0].shape]
    if equal[0] is equal[1] and all(p.a is equal[0] and p.b is equal[0] for p in instances):
        views["MASS", None].fill_(float(equal[0][0]))
        return
    for side, weights in enumerate(([p.a for p in instances], [p.b for p in instances])):
        if all(own is equal[side] for own in weights):
            views["MASS", side].fill_(float(equal[side][0]))
        else:
            views["MASS", side][:] = stack(weights, device)


def _prices(instance: Instance[Any]) -> list[float]:
    """Return the numbers of a soft lane; that of the opening is computed on the device."""
    eps, sides = instance.eps, instance.marginals
    log_masses = [math.log2(mass) for mass in instance.masses]
    return [*(eps * side.kappa for side in sides), *(side.damping(eps) for side in sides), *log_masses, 0.0]


def _bits(instances: Sequence[Instance[Any]], device: Any) -> Any:
    """Return the factors from costs and potentials of each lane to bits."""
    return upload([1 / (p.eps * math.log(2)) for p in instances], torch.float64, device)


def _starts(instances: Sequence[Instance[Any]], views: Views, device: Any) -> bool:
    """Write given starts; return whether there are any."""
    if not isinstance(instances[0].init, Potentials):
        return False
    bits = _bits(instances, device)
    for side in (0, 1):
        values = stack([p.init[side] for p in instances if isinstance(p.init, Potentials)], device)
        views["POTENTIAL", side][:] = values.double() * bits[:, None]
    views["BEFORE", 0][:] = views["POTENTIAL", 0]
    return True


def _fill_dense(instances: Sequence[Instance[Any]], form: Representation, views: Views, device: Any) -> Any:
    """Write scaled costs of dense problems, and return the largest of each lane, in bits."""
    n, m = instances[0].shape
    costs = stack([p.matrix for p in instances], device).double() * _bits(instances, device)[:, None, None]
    views["POINTS64", 0][:] = costs.reshape(len(instances), n * m)
    _starts(instances, views, device)
    views["NORM", 1][:] = views["POTENTIAL", 1]
    cache_scores(costs.contiguous(), views, slice(None))
    return costs.abs().amax((1, 2))


def _fill_points(instances: Sequence[Instance[Any]], form: Representation, views: Views, device: Any) -> Any:
    """Write points, centred and scaled so that squared distances (or distances) are scaled costs in bits.

    Returns the diagonal of the box around both clouds of each lane.
    """
    distances = instances[0].cost.kind.distances
    x, y = clouds([p.x for p in instances], [p.y for p in instances], device)
    factor = np.array([p.cost.scale / (p.eps * math.log(2)) for p in instances]) * distances.factor
    if distances.directions:
        x, y = unit_rows(x), unit_rows(y)
    # Rows of one array, each of which begins at a multiple of 16 bytes.
    both = np.zeros((2, aligned(len(instances))))
    both[:, : len(instances)] = factor, factor if form.rooted else np.sqrt(factor)
    factors, scales = upload(both, torch.float64, device)[:, : len(instances)].unbind()
    middles, diagonals = centre_clouds(x, y, scales)
    # "auto" is zero with a soft marginal: Gaussian starts solve the balanced problem.
    zero = ("zero",) if instances[0].marginals.are_hard else ("zero", "auto")
    if not _starts(instances, views, device) and instances[0].init not in zero:
        always = instances[0].init != "auto"
        gaussian_starts(
            x, y, views["MASS", 0], views["MASS", 1], middles, factors, views["POTENTIAL", 1], always=always
        )
    scaled, norms = pack_points(x, y, middles, scales, form, views)
    if form.kind == STORED:
        views["NORM", 1][:] = views["POTENTIAL", 1]
        cache_products(*scaled, norms, views, rooted=form.rooted)
    return diagonals
