"""From problems to numbers on the device: lanes of one shape are laid out and filled as whole tensors."""

# pyright: basic, reportOptionalMemberAccess=false, reportCallIssue=false, reportArgumentType=false
# Kernels are called through Triton, arrays through torch, which is loaded when this backend is.

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch

from drainsinkhorn.backends.triton import kernels as k
from drainsinkhorn.backends.triton.arena import Arena, aligned
from drainsinkhorn.backends.triton.launching import upload
from drainsinkhorn.backends.triton.layout import (
    absorbed,
    clouds,
    extents,
    framed,
    gaussian,
    placed,
    stack,
    stored,
    unit_rows,
)
from drainsinkhorn.backends.triton.tiles import LARGEST, options, splits
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.numerics.weights import uniform

NARROW = {k.DIRECT.value: 16, k.ROOT.value: 16, k.PRODUCT.value: 32, k.STORED.value: 32, k.PACK.value: 32}
"""Columns of a tile where the largest term is taken out: few, so that registers stay free, by kind of scores."""
DIRECT_COLUMNS = 64
"""Columns of a tile of direct differences where other lanes of the pack take one product."""
FOLDED_BITS = 2.0**15
"""Largest score and start, in bits, with which potentials may enter the product: halves hold no more than 2^16."""
BLUR, MOST_BLUR = 1.4e-4, 1.0
"""Bits by which leading halves blur a score, over the largest score by the root of the coordinates; and too many."""


@dataclass(frozen=True, slots=True)
class How:
    """How scores of a lane are computed, and with which tiles. A function of the problem alone.

    Attributes:
        kind: DIRECT, ROOT, PRODUCT or STORED of the kernels.
        dp: Coordinates of a chunk, padded.
        chunks: Chunks of coordinates.
        dense: The cost is a matrix.
        rooted: The cost is the root of a squared distance.
        slot: Coordinates of a point with places for the potential; 0 where there are none.
        leads: Leading halves alone make scores as long as the residual is large.
        bm: Rows of a tile.
        bn: Columns of a tile.
        warps: Warps of a program.
        stages: Stages of its pipeline.
        least: Blocks of columns that are worth a program.
        registers: What a thread may have of them; 0 leaves that to the compiler.
        resident: Programs that fit on a multiprocessor.
    """

    kind: int
    dp: int
    chunks: int
    dense: bool
    rooted: bool
    slot: int
    leads: bool
    bm: int
    bn: int
    warps: int
    stages: int
    least: int
    registers: int
    resident: int

    @property
    def program(self) -> dict[str, int]:
        """Options of a launch."""
        return options(self.warps, self.stages, self.registers)

    @property
    def packed(self) -> bool:
        """True if coordinates are so few that a product of sixteen holds them and both potentials."""
        return self.kind == k.DIRECT.value and self.slot > 0

    def scores(self, folded: bool) -> dict[str, int]:
        """What tells a leg how to compute scores, with potentials in the product or not."""
        kind, dp, bn = self.kind, self.dp, self.bn
        if self.packed:
            kind, dp, bn = (k.PACK.value, 16, bn) if folded else (kind, dp, min(bn, DIRECT_COLUMNS))
        narrow = min(NARROW[kind], bn)
        return {"KIND": kind, "DP": dp, "CHUNKS": self.chunks, "BM": self.bm, "BN": bn, "NARROW": narrow}

    def shares(self, size: tuple[int, int]) -> tuple[int, int]:
        """Programs that share a tile of rows, and one of columns."""
        n, m = size
        # Chunks of coordinates take registers.
        tile = (self.bm, self.bn, self.least, self.resident if self.chunks == 1 else min(2, self.resident))
        return splits(n, m, *tile), splits(m, n, *tile)


@dataclass(eq=False)
class Loaded:
    """Lanes that were laid out together.

    Attributes:
        pieces: Their piece of every arena: start and size.
        table: Their rows of the table.
        found: What `layout.extents` found of each, on the device.
        size: Rows and columns.
        programs: Programs of a leg of either side.
        blur: The residual that leading halves leave where rounding errors of points average out, by lane; NaN where
            they are not to be taken.
        lanes: How many of them are still there.
    """

    pieces: dict[str, tuple[int, int]]
    table: Any
    found: Any
    size: tuple[int, int]
    programs: tuple[int, int]
    blur: list[float]
    lanes: int = field(default=0)

    @cached_property
    def extents(self) -> Any:
        """What was found of each lane, for which the device is waited for once."""
        return self.found.cpu().numpy()

    @cached_property
    def band(self) -> list[float]:
        """Rounding of what float64 measures, by lane."""
        return self.extents[0].tolist()

    @cached_property
    def potentials(self) -> list[list[int]]:
        """Where each lane's potentials of rows and columns begin."""
        return self.table[:, k.POTENTIAL.value : k.POTENTIAL.value + 2].tolist()


class Views(Mapping[str, Any]):
    """Fields of lanes that were laid out together, each a tensor (lanes, size), made when it is asked for.

    Without its side a field is that of both, (2 lanes, size), if both have one size.
    """

    def __init__(self, arenas: dict[str, Arena], lanes: int) -> None:
        self._arenas, self._lanes = arenas, lanes
        self._places: dict[str, tuple[str, int, int]] = {}

    def place(self, name: str, arena: str, start: int, size: int) -> None:
        """Say where a field is: its arena, where its first lane begins, and its size."""
        self._places[name] = (arena, start, size)

    def __getitem__(self, name: str) -> Any:
        both = not name[-1].isdigit()
        arena, start, size = self._places[f"{name}0" if both else name]
        return self._arenas[arena].buffer.as_strided(((1 + both) * self._lanes, size), (aligned(size), 1), start)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def same_shape(lanes: Sequence[Any]) -> list[list[Any]]:
    """Lanes grouped by shape, dimension, cost and kind of start, in the order of their first."""
    found: dict[Any, list[Any]] = {}
    for lane in lanes:
        instance = lane.inner
        kind = "dense" if instance.is_dense else (instance.cost.kind, instance.dim, str(instance.like.dtype))
        start = "given" if isinstance(instance.init, Potentials) else instance.init
        found.setdefault((instance.shape, kind, start), []).append(lane)
    return list(found.values())


@lru_cache(maxsize=256)
def _fields(how: How, n: int, m: int, dim: int) -> dict[str, list[tuple[str, int, int]]]:
    """What a lane keeps in each arena: name, column of the table that says where it is, and size."""
    tiles, pair = [-(-size // 16) for size in (n, m)], how.slot if how.packed else 2 * how.dp * how.chunks
    shares, whole = how.shares((n, m)), [-(-size // how.bm) for size in (n, m)]
    fields = {
        "wide": [("POTENTIAL", (n, m)), ("NORM", (n, m)), ("MASS", (n, m)), ("BEFORE", (n,)),
                 ("ERRORS", tiles), ("ALONG", (tiles[0],)), ("NOISE", (1,))],
        "vectors": [("COARSE", (n, m)), ("FINE", (n, m)), ("WEIGHT", (n, m)), ("LOGS", (n, m)),
                    ("PARTIAL", (max(shares[0] * aligned(n), shares[1] * aligned(m)),))],
        "counts": [("COUNTS", (max(whole),)), ("ARRIVED", (1,))],
        "half": [("SPLIT", (n * pair, m * pair))] if how.kind == k.PRODUCT.value or how.packed else [],
        "single": [("MATRIX", (_matrix(n, m),))] if how.kind == k.STORED.value
        else [("COORDS", (dim * aligned(n), dim * aligned(m)))] if how.kind != k.PRODUCT.value else [],
        "exact": [("EXACT", (n * m,) if how.dense else (dim * n, dim * m))],
    }  # fmt: skip
    return {
        arena: [
            (f"{name}{side}", getattr(k, name).value + side, size)
            for name, parts in wanted
            for side, size in enumerate(parts)
        ]
        for arena, wanted in fields.items()
        if wanted
    }


def load_group(instances: Sequence[Instance[Any]], how: How, arenas: dict[str, Arena], device: Any) -> Loaded:
    """Take memory for lanes of one shape, fill it, and say where everything is."""
    lanes, (n, m) = len(instances), instances[0].shape
    dim = 0 if how.dense else int(instances[0].x.shape[1])
    views, shares = Views(arenas, lanes), how.shares((n, m))
    pieces: dict[str, tuple[int, int]] = {}
    # The table's row of the first lane, and what each lane after it adds.
    first, step = [0] * k.FIELDS.value, [0] * k.FIELDS.value
    first[k.SIZES.value : k.SIZES.value + 2], first[k.SPLITS.value : k.SPLITS.value + 2] = (n, m), shares
    first[k.DIM.value] = dim
    for arena, wanted in _fields(how, n, m, dim).items():
        total = lanes * sum(aligned(size) for _, _, size in wanted)
        start = arenas[arena].take(total)
        pieces[arena] = (start, total)
        for name, column, size in wanted:
            first[column], step[column] = start, aligned(size)
            views.place(name, arena, start, size)
            start += aligned(size) * lanes
    table = np.array(first, dtype=np.int64) + np.multiply.outer(np.arange(lanes), np.array(step, dtype=np.int64))
    _fill_masses(instances, views, device)
    far = (_fill_dense if how.dense else _fill_points)(instances, how, views, device)
    found = extents(far, dim, views, rooted=how.rooted or how.dense)
    if not how.dense and instances[0].cost.kind.distances.directions:
        # The rounding error of unit vectors does not decrease with their distance.
        noise = _directions(instances, dim, far)
        found[0] += noise
        views["NOISE0"][:] += noise[:, None]
    programs = (-(-n // how.bm) * shares[0], -(-m // how.bm) * shares[1])
    loaded = Loaded(pieces, table, found, (n, m), programs, [math.nan] * lanes)
    if how.slot or how.leads:
        table[:, k.FOLDED.value], led = _room(how, (n, m), dim, *loaded.extents[1:])
        # A start that is given may be near the end, from where blurred scores would lead away.
        if not isinstance(instances[0].init, Potentials):
            loaded.blur = led.tolist()
    return loaded


def _directions(instances: Sequence[Instance[Any]], dim: int, far: Any) -> Any:
    """Bound the error of scores, in nats, due to the rounding of unit vectors; doubled for safety.

    Let a squared distance of one be s^2 bits. If each vector has an error of e = (dim + 3) u, a score `s^2 r^2` changes
    by at most `4 e s (s r) + 4 e^2 s^2`; `far` bounds s r. If a distance of one is s^2 bits, a score `s^2 r` changes by
    at most `2 e s^2`.
    """
    factors = [p.cost.scale * p.cost.kind.distances.factor / (p.eps * math.log(2)) for p in instances]
    scale = torch.sqrt(upload(factors, torch.float64, far.device))
    error = (dim + 3) * 2.0**-53 * scale
    if instances[0].cost.kind.distances.root:
        return 4 * math.log(2) * error * scale
    return 2 * math.log(2) * (4 * error * far + 4 * error * error)


@np.errstate(all="ignore")
def _room(
    how: How, size: tuple[int, int], dim: int, norm: Any, other_norm: Any, start: Any, other_start: Any
) -> tuple[Any, Any]:
    """Which lanes have room for potentials in the product, and what leading halves blur."""
    reach = np.square(np.sqrt(norm) + np.sqrt(other_norm))
    # Potentials stay within a few times the largest score of where they start.
    room = start + other_start + reach <= FOLDED_BITS
    blur = BLUR * reach / math.sqrt(max(dim, 1))
    led = how.leads & (blur <= MOST_BLUR) & room
    return room & (how.slot > 0), np.where(led, blur * math.log(2) / math.sqrt(min(size)), math.nan)


def _matrix(rows: int, cols: int) -> int:
    """Numbers of a stored matrix, zeros around it included, so that tiles may be read whole."""
    return -(-rows // LARGEST) * LARGEST * aligned(cols) + LARGEST


def _fill_masses(instances: Sequence[Instance[Any]], views: Views, device: Any) -> None:
    """Write weights; those that are uniform are one number, which needs no copy."""
    equal = [uniform(size) for size in instances[0].shape]
    if equal[0] is equal[1] and all(p.a is equal[0] and p.b is equal[0] for p in instances):
        views["MASS"].fill_(float(equal[0][0]))
        return
    for side, weights in enumerate(([p.a for p in instances], [p.b for p in instances])):
        if all(own is equal[side] for own in weights):
            views[f"MASS{side}"].fill_(float(equal[side][0]))
        else:
            views[f"MASS{side}"][:] = stack(weights, device)


def _bits(instances: Sequence[Instance[Any]], device: Any) -> Any:
    """What turns costs and potentials of each lane into bits."""
    return upload([1 / (p.eps * math.log(2)) for p in instances], torch.float64, device)


def _starts(instances: Sequence[Instance[Any]], views: Views, device: Any) -> bool:
    """Write given starts; True if there were any."""
    if not isinstance(instances[0].init, Potentials):
        return False
    bits = _bits(instances, device)
    for side in (0, 1):
        values = stack([p.init[side] for p in instances if isinstance(p.init, Potentials)], device)
        views[f"POTENTIAL{side}"][:] = values.double() * bits[:, None]
    views["BEFORE0"][:] = views["POTENTIAL0"]
    return True


def _fill_dense(instances: Sequence[Instance[Any]], how: How, views: Views, device: Any) -> Any:
    n, m = instances[0].shape
    scores = stack([p.matrix for p in instances], device).double() * _bits(instances, device)[:, None, None]
    views["EXACT0"][:] = scores.reshape(len(instances), n * m)
    _starts(instances, views, device)
    views["NORM1"][:] = views["POTENTIAL1"]
    absorbed(scores.contiguous(), views, slice(None))
    return scores.abs().amax((1, 2))


def _fill_points(instances: Sequence[Instance[Any]], how: How, views: Views, device: Any) -> Any:
    """Coordinates centred and scaled so that minus their squared distance (or its root) is the score in bits.

    Returns the diagonal of the box around both clouds of each lane.
    """
    form = instances[0].cost.kind.distances
    x, y = clouds([p.x for p in instances], [p.y for p in instances], device)
    factor = np.array([p.cost.scale / (p.eps * math.log(2)) for p in instances]) * form.factor
    if form.directions:
        x, y = unit_rows(x), unit_rows(y)
    # Rows of one array, each beginning well.
    both = np.zeros((2, aligned(len(instances))))
    both[:, : len(instances)] = factor, factor if how.rooted else np.sqrt(factor)
    factors, scales = upload(both, torch.float64, device)[:, : len(instances)].unbind()
    middles, far = framed(x, y, scales)
    if not _starts(instances, views, device) and instances[0].init != "zero":
        always = instances[0].init != "auto"
        gaussian(x, y, views["MASS0"], views["MASS1"], middles, factors, views["POTENTIAL1"], always=always)
    scaled, norms = placed(x, y, middles, scales, how, views)
    if how.kind == k.STORED.value:
        views["NORM1"][:] = views["POTENTIAL1"]
        stored(*scaled, norms, views, rooted=how.rooted)
    return far
