"""From problems to numbers on the device: lanes are loaded together by a constant number of launches."""

# pyright: basic, reportOptionalMemberAccess=false, reportCallIssue=false, reportArgumentType=false
# Kernels are called through Triton, arrays through torch, which is loaded when this backend is.

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch

from drainsinkhorn.backends.triton.buffers import ALIGN, Buffers, aligned
from drainsinkhorn.backends.triton.kernels import columns as c
from drainsinkhorn.backends.triton.launching import upload
from drainsinkhorn.backends.triton.layout import (
    MOST_LANES,
    cache_products,
    cache_scores,
    centre_clouds,
    extents,
    gather_clouds,
    gaussian_starts,
    pack_points,
    scatter,
)
from drainsinkhorn.backends.triton.precision import augmented_room, high_part_errors, matrix_size
from drainsinkhorn.backends.triton.representation import Representation
from drainsinkhorn.backends.triton.tiles import PRODUCT, STORED
from drainsinkhorn.backends.triton.transfer import concatenate
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.numerics.weights import uniform

SMALL_PAIRS = 2**18
"""Most pairs of points of a lane that is loaded together with lanes of other shapes."""


@dataclass(eq=False)
class LoadedGroup:
    """Lanes that were loaded together. Their memory is given back when the last of them has left the pack.

    Attributes:
        pieces: Their piece of every buffer: offset and size.
        fields: Their rows of the lane table.
        device_extents: What `layout.extents` returned, on the device.
        sizes: Rows and columns of each lane.
        lanes: Number of them that are still in the pack.
        more_pieces: Pieces of lanes whose points are in three parts.
        has_room: Lanes that have room for potentials inside the product.
        high_part_errors: Estimated errors of residuals from float16 high parts alone; NaN for lanes that do not use
            these alone.
    """

    pieces: dict[str, tuple[int, int]]
    fields: Any
    device_extents: Any
    sizes: list[tuple[int, int]]
    lanes: int
    more_pieces: list[dict[str, tuple[int, int]]] = field(default_factory=list)
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


def loaded_together(lanes: Sequence[Any]) -> list[list[Any]]:
    """Return lanes by groups that `load_group` can load, in the order of their first lanes.

    Lanes of a group agree in coordinates, cost, kind of start and of marginals. Large ones also have one shape, so that
    lanes that hold much memory give it back earlier.
    """
    groups: dict[Any, list[Any]] = defaultdict(list)
    for lane in lanes:
        instance = lane.inner
        # Kinds of costs are compared by identity: equal ones may be loaded apart.
        dim = 0 if instance.matrix is not None else instance.x.shape[1]
        start = instance.init if type(instance.init) is str else "given"
        shape = instance.shape
        shape = None if shape[0] * shape[1] <= SMALL_PAIRS else shape
        groups[shape, dim, id(instance.cost.kind), start, lane.is_soft].append(lane)
    return [group[k : k + MOST_LANES] for group in groups.values() for k in range(0, len(group), MOST_LANES)]


@lru_cache(maxsize=4096)
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
    """Take memory for lanes of one kind, fill it, and return where everything is."""
    lanes, shapes = len(instances), [instance.shape for instance in instances]
    dim = 0 if form.dense else int(instances[0].x.shape[1])
    fields, pieces = _take_memory(shapes, form, dim, buffers, is_soft=not instances[0].marginals.are_hard)
    table, first_cost = upload(fields, torch.int64, device), int(fields[0, c.POINTS64.value])
    loading = _Loading(instances, form, buffers, device, table, np.array(shapes), dim, first_cost)
    loading.fill_masses()
    if not instances[0].marginals.are_hard:
        loading.fill_prices(fields[:, c.PRICES.value])
    largest = loading.fill_costs() if form.dense else loading.fill_points()
    found = extents(largest, dim, loading.fields, buffers["vectors64"], rooted=form.rooted or form.dense)
    if not form.dense and instances[0].cost.kind.distances.directions:
        # The rounding error of unit vectors does not decrease with their distance.
        found[0] += _direction_rounding(instances, dim, largest)
        buffers["vectors64"][loading.fields[:, c.FLOAT64_BAND.value]] = found[0]
    group = LoadedGroup(pieces, fields, found, shapes, lanes)
    if form.places or form.high_parts:
        norm, other_norm, start, other_start = group.extents[1:]
        norms, starts = (norm, other_norm), (start, other_start)
        room = augmented_room(form, norms, starts)
        fields[:, c.AUGMENTED.value], group.has_room = room, room.tolist()
        # A given start may be near the end, from where errors of high parts would lead away.
        if not isinstance(instances[0].init, Potentials):
            group.high_part_errors = high_part_errors(form, loading.sizes, dim, norms, starts).tolist()
    return group


def _take_memory(
    shapes: list[tuple[int, int]], form: Representation, dim: int, buffers: Buffers, *, is_soft: bool
) -> tuple[Any, dict[str, tuple[int, int]]]:
    """Take memory for lanes of these shapes; return their rows of the lane table, and their piece of every buffer.

    In a buffer, a vector of all lanes comes before the next vector of all lanes.
    """
    places = {shape: place for place, shape in enumerate(dict.fromkeys(shapes))}
    which = np.array([places[shape] for shape in shapes])
    first = np.zeros((len(places), c.FIELDS.value), dtype=np.int64)
    for (n, m), place in places.items():
        first[place, c.SIZE.value : c.SIZE.value + 2] = n, m
        first[place, c.SHARES.value : c.SHARES.value + 2] = form.shares((n, m))
    first[:, c.DIM.value] = dim
    fields, pieces = first[which], dict[str, tuple[int, int]]()
    columns = [_columns(form, *shape, dim, is_soft) for shape in places]
    for buffer, vectors in columns[0].items():
        counts = np.array([[size for _, _, size in own[buffer]] for own in columns])[which].T
        counts = -(-counts // ALIGN) * ALIGN
        ends = np.cumsum(counts).reshape(counts.shape)
        pieces[buffer] = (buffers.take(buffer, int(ends[-1, -1])), int(ends[-1, -1]))
        for (name, side, _), offsets in zip(vectors, ends - counts, strict=True):
            fields[:, getattr(c, name).value + side] = pieces[buffer][0] + offsets
    return fields, pieces


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


@dataclass(frozen=True)
class _Loading:
    """Lanes that have memory, which the methods fill.

    Attributes:
        instances: Their problems.
        form: How their scores are computed.
        buffers: The buffers of their pack.
        device: A torch device.
        fields: Their rows of the lane table, on the device.
        sizes: Rows and columns of each lane, on the host.
        dim: Number of coordinates.
        first_cost: Offset of the points or costs of the first lane in float64.
    """

    instances: Sequence[Instance[Any]]
    form: Representation
    buffers: Buffers
    device: Any
    fields: Any
    sizes: Any
    dim: int
    first_cost: int

    def fill_masses(self) -> None:
        """Write weights; uniform weights are one number, which needs no copy."""
        lanes, weights = len(self.instances), [*(p.a for p in self.instances), *(p.b for p in self.instances)]
        equal = {size: float(uniform(size)[0]) for size in set(self.sizes.reshape(-1).tolist())}
        # None for weights that are one number; those of several problems are stored once.
        stored = [None if self.instances[entry % lanes].uniform else own for entry, own in enumerate(weights)]
        factors = [equal[len(own)] if one is None else 1.0 for own, one in zip(weights, stored, strict=True)]
        distinct = {id(own): own for own in stored if own is not None}
        numbers, offsets = concatenate([*distinct.values()], self.device) if distinct else (self._upload([1.0]), [])
        place_of = dict(zip(distinct, offsets, strict=True))
        places = [-1 if own is None else place_of[id(own)] for own in stored]
        self._scatter((numbers, places), factors, c.MASS.value)

    def fill_prices(self, places: Any) -> None:
        """Write `_prices` of soft lanes."""
        numbers = self._upload([_prices(instance) for instance in self.instances])
        places = places[:, None] + np.arange(numbers.shape[1])
        self.buffers["vectors64"][upload(places, torch.int64, self.device)] = numbers

    def fill_costs(self) -> Any:
        """Write scaled costs of dense problems, and return the largest of each lane, in bits."""
        costs = concatenate([p.matrix for p in self.instances], self.device)
        points64, most = self.buffers["points64"], int(self.sizes.prod(1).max())
        factors = self._upload(self._bits())
        largest = scatter(costs, factors, self.fields, points64, most, c.POINTS64.value, pairs=True, maxima=True)
        self._fill_starts()
        places = self.fields[:, c.POINTS64.value].contiguous()
        lanes, rows = range(len(self.instances)), range(int(self.sizes[:, 0].max()))
        cache_scores(points64[self.first_cost :], places, lanes, self.fields, self.buffers, rows=rows)
        return largest

    def fill_points(self) -> Any:
        """Write points, centred and scaled so that squared distances (or distances) are scaled costs in bits.

        Returns the diagonal of the box around both clouds of each lane.
        """
        instances, form = self.instances, self.form
        distances, init = instances[0].cost.kind.distances, instances[0].init
        sides = [p.x for p in instances], [p.y for p in instances]
        clouds = gather_clouds(*sides, self.fields, self.sizes, self.dim, self.device, directions=distances.directions)
        factor = np.array([p.cost.scale / (p.eps * math.log(2)) for p in instances]) * distances.factor
        # Rows of one array, each of which begins at a multiple of 16 bytes.
        both = np.zeros((2, aligned(len(instances))))
        both[:, : len(instances)] = factor, factor if form.rooted else np.sqrt(factor)
        factors, scales = self._upload(both)[:, : len(instances)].unbind()
        middles, diagonals = centre_clouds(clouds, scales)
        # "auto" is zero with a soft marginal: Gaussian starts solve the balanced problem.
        zero = ("zero",) if instances[0].marginals.are_hard else ("zero", "auto")
        if not self._fill_starts() and init not in zero:
            gaussian_starts(clouds, self.buffers["vectors64"], middles, factors, always=init != "auto")
        scaled = pack_points(clouds, middles, scales, form, self.buffers)
        if scaled is not None:
            cache_products(clouds, scaled, self.buffers, rooted=form.rooted)
        return diagonals

    def _fill_starts(self) -> bool:
        """Write given starts; return whether there are any."""
        if not isinstance(self.instances[0].init, Potentials):
            return False
        bits, lanes = self._bits(), len(self.instances)
        numbers, places = concatenate([p.init[side] for side in (0, 1) for p in self.instances], self.device)
        self._scatter((numbers, places), bits * 2, c.POTENTIAL.value)
        self._scatter((numbers, places[:lanes]), bits, c.BEFORE.value)
        return True

    def _scatter(self, values: tuple[Any, list[int]], factors: list[float], column: int) -> None:
        """Write numbers of points, times factors, to a column of float64 vectors."""
        most = int(self.sizes.max())
        scatter(values, self._upload(factors), self.fields, self.buffers["vectors64"], most, column)

    def _bits(self) -> list[float]:
        """Return the factors from costs and potentials of each lane to bits."""
        return [1 / (p.eps * math.log(2)) for p in self.instances]

    def _upload(self, numbers: Any) -> Any:
        return upload(numbers, torch.float64, self.device)


def _prices(instance: Instance[Any]) -> list[float]:
    """Return the numbers of a soft lane; that of the opening is computed on the device."""
    eps, sides = instance.eps, instance.marginals
    log_masses = [math.log2(mass) for mass in instance.masses]
    return [*(eps * side.kappa for side in sides), *(side.damping(eps) for side in sides), *log_masses, 0.0]
