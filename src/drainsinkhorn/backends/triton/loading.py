"""From problems to numbers on the device: lanes are loaded together by a constant number of launches."""

# pyright: basic, reportOptionalMemberAccess=false, reportCallIssue=false, reportArgumentType=false
# Kernels are called through Triton, arrays through torch, which is loaded when this backend is.

from __future__ import annotations

import math
import operator
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch

from drainsinkhorn.backends.triton.buffers import ALIGN, Buffers, aligned
from drainsinkhorn.backends.triton.kernels import columns as c
from drainsinkhorn.backends.triton.lanes import distinct
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
from drainsinkhorn.backends.triton.records import column
from drainsinkhorn.backends.triton.representation import Representation
from drainsinkhorn.backends.triton.tiles import PRODUCT, STORED
from drainsinkhorn.backends.triton.transfer import concatenate, concatenate_rows
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.instances import InstanceStack, each, representatives, strengths
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
        lanes: Number of them that are still in the pack.
        has_room: Lanes that have room for potentials inside the product, (lanes,).
        high_part_errors: Estimated errors of residuals from float16 high parts alone, (lanes,); NaN for lanes that do
            not use these alone.
        more_pieces: Pieces of lanes whose points are in three parts.
    """

    pieces: dict[str, tuple[int, int]]
    fields: Any
    device_extents: Any
    lanes: int
    has_room: Any = False
    high_part_errors: Any = math.nan
    more_pieces: list[dict[str, tuple[int, int]]] = field(default_factory=list)

    @cached_property
    def extents(self) -> Any:
        """What `layout.extents` returned, (5, lanes), on the host; the first access waits for the device."""
        return self.device_extents.cpu().numpy()

    @property
    def bands(self) -> Any:
        """Rounding bounds of residuals that are measured in float64, (lanes,)."""
        return self.extents[0]


def loaded_together(instances: Sequence[Instance[Any]]) -> list[list[int]]:
    """Return places of problems by groups that `load_group` can load, in the order of their first problems.

    Problems of a group agree in coordinates, cost, kind of start and of marginals. Large ones also have one shape, so
    that lanes that hold much memory give it back earlier.
    """
    groups: dict[Any, list[int]] = defaultdict(list)
    if isinstance(instances, InstanceStack):
        groups[0] = list(range(len(instances)))
    else:
        for place, instance in enumerate(instances):
            # Kinds of costs are compared by identity: equal ones may be loaded apart.
            dim = 0 if instance.matrix is not None else instance.x.shape[1]
            start = instance.init if type(instance.init) is str else "given"
            shape, is_hard = instance.shape, instance.marginals.are_hard
            shape = None if shape[0] * shape[1] <= SMALL_PAIRS else shape
            groups[shape, dim, id(instance.cost.kind), start, is_hard].append(place)
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
    lanes, first, sizes = len(instances), instances[0], column(instances, operator.attrgetter("shape"))
    dim = first.dim
    fields, pieces = _take_memory(sizes, form, dim, buffers, is_soft=not first.marginals.are_hard)
    table, first_cost = upload(fields, torch.int64, device), int(fields[0, c.POINTS64.value])
    loading = _Loading(instances, form, buffers, device, table, sizes, dim, first_cost)
    loading.fill_masses()
    if not first.marginals.are_hard:
        loading.fill_prices(fields[:, c.PRICES.value])
    largest = loading.fill_costs() if form.dense else loading.fill_points()
    bounds = extents(largest, dim, loading.fields, buffers["vectors64"], rooted=form.rooted or form.dense)
    if not form.dense and first.cost.kind.distances.directions:
        # The rounding error of unit vectors does not decrease with their distance.
        bounds[0] += _direction_rounding(instances, dim, largest)
        buffers["vectors64"][loading.fields[:, c.FLOAT64_BAND.value]] = bounds[0]
    group = LoadedGroup(pieces, fields, bounds, lanes)
    if form.places or form.high_parts:
        norm, other_norm, start, other_start = group.extents[1:]
        norms, starts = (norm, other_norm), (start, other_start)
        fields[:, c.AUGMENTED.value] = group.has_room = augmented_room(form, norms, starts)
        # A given start may be near the end, from where errors of high parts would lead away.
        if not isinstance(first.init, Potentials):
            group.high_part_errors = high_part_errors(form, sizes, dim, norms, starts)
    return group


def _take_memory(
    sizes: Any, form: Representation, dim: int, buffers: Buffers, *, is_soft: bool
) -> tuple[Any, dict[str, tuple[int, int]]]:
    """Take memory for lanes of these sizes; return their rows of the lane table, and their piece of every buffer.

    In a buffer, a vector of all lanes comes before the next vector of all lanes.
    """
    shapes, which = distinct(sizes)
    first = np.zeros((len(shapes), c.FIELDS.value), dtype=np.int64)
    for place, (n, m) in enumerate(shapes):
        first[place, c.SIZE.value : c.SIZE.value + 2] = n, m
        first[place, c.SHARES.value : c.SHARES.value + 2] = form.shares((n, m))
    first[:, c.DIM.value] = dim
    fields, pieces = first[which], dict[str, tuple[int, int]]()
    columns = [_columns(form, *shape, dim, is_soft) for shape in shapes]
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
    scale = torch.sqrt(upload(_factors(instances), torch.float64, largest.device))
    error = (dim + 3) * 2.0**-53 * scale
    if instances[0].cost.kind.distances.root:
        return 4 * math.log(2) * error * scale
    return 2 * math.log(2) * (4 * error * largest + 4 * error * error)


def _factors(instances: Sequence[Instance[Any]]) -> Any:
    """Return the factor of each problem from squared distances, or distances, to costs in bits."""
    scales = column(instances, lambda instance: instance.cost.scale)
    return scales / (np.array(strengths(instances)) * math.log(2)) * instances[0].cost.kind.distances.factor


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
        sizes = self.sizes.T.reshape(-1)
        kinds, which = np.unique(sizes, return_inverse=True)
        equal = np.array([float(uniform(size)[0]) for size in kinds.tolist()])[which]
        if all(instance.uniform for instance in representatives(self.instances)):
            self._scatter((self._upload([1.0]), np.full(len(sizes), -1)), equal, c.MASS.value)
            return
        # None for weights that are one number; those of several problems are stored once.
        a, b = (
            each(
                self.instances, lambda instance, side=side: None if instance.uniform else (instance.a, instance.b)[side]
            )
            for side in (0, 1)
        )
        stored = [*a, *b]
        factors = [weight if own is None else 1.0 for weight, own in zip(equal.tolist(), stored, strict=True)]
        known = {id(own): own for own in stored if own is not None}
        numbers, offsets = concatenate([*known.values()], self.device)
        place_of = dict(zip(known, offsets, strict=True))
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
        directions, factor = distances.directions, _factors(instances)
        clouds = gather_clouds(
            *self._concatenate_clouds(compact=directions), self.fields, self.sizes, self.dim, directions=directions
        )
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

    def _concatenate_clouds(self, *, compact: bool) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        """Return the points of both sides as vectors, with the offset of each lane's; see `concatenate`."""
        instances = self.instances
        if isinstance(instances, InstanceStack):
            x, y = (
                concatenate_rows(points, instances.rows, self.device, compact=compact)
                for points in (instances.x, instances.y)
            )
        else:
            sides = [p.x for p in instances], [p.y for p in instances]
            x, y = (concatenate(side, self.device, compact=compact) for side in sides)
        return x, y

    def _fill_starts(self) -> bool:
        """Write given starts; return whether there are any."""
        if not isinstance(self.instances[0].init, Potentials):
            return False
        bits, lanes = self._bits(), len(self.instances)
        numbers, places = concatenate([p.init[side] for side in (0, 1) for p in self.instances], self.device)
        self._scatter((numbers, places), bits * 2, c.POTENTIAL.value)
        self._scatter((numbers, places[:lanes]), bits, c.BEFORE.value)
        return True

    def _scatter(self, values: tuple[Any, Any], factors: Any, column: int) -> None:
        """Write numbers of points, times factors, to a column of float64 vectors."""
        most = int(self.sizes.max())
        scatter(values, self._upload(factors), self.fields, self.buffers["vectors64"], most, column)

    def _bits(self) -> list[float]:
        """Return the factors from costs and potentials of each lane to bits."""
        return [1 / (eps * math.log(2)) for eps in strengths(self.instances)]

    def _upload(self, numbers: Any) -> Any:
        return upload(numbers, torch.float64, self.device)


def _prices(instance: Instance[Any]) -> list[float]:
    """Return the numbers of a soft lane; that of the opening is computed on the device."""
    eps, sides = instance.eps, instance.marginals
    log_masses = [math.log2(mass) for mass in instance.masses]
    return [*(eps * side.kappa for side in sides), *(side.damping(eps) for side in sides), *log_masses, 0.0]
