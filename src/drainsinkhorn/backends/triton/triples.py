"""Lanes whose points are in three float16 parts: their memory, their points, and launches of their legs."""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
# Kernels are called through Triton, arrays through torch, which is loaded when this backend is.

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from drainsinkhorn.backends.triton.buffers import Buffers, aligned
from drainsinkhorn.backends.triton.kernels import columns as c
from drainsinkhorn.backends.triton.kernels import triple as kernels
from drainsinkhorn.backends.triton.lanes import Lane, LaneSet, LaneTable
from drainsinkhorn.backends.triton.launching import Launch, prepared, upload
from drainsinkhorn.backends.triton.precision import CODES, Arithmetic
from drainsinkhorn.backends.triton.tiles import TRIPLE_TILES, TRIPLE_WARPS, TripleTile, options, splits

ROWS = 128
"""Rows of a program that writes points."""
LONGEST, MOST_SCALE = 2.0**12 - 16, 10
"""Length below which scaled points stay, less by what rounding may add, and the largest log2 of their scale: with it
exponents above -32 bits are exact in float32."""
POWERS = {
    Arithmetic.TRIPLE: kernels.BY_HARDWARE.value,
    Arithmetic.COMPENSATED: kernels.BY_TWO_PARTS.value,
}
"""How powers of two are computed."""


class Chunks(NamedTuple):
    """How points are stored: coordinates of a chunk, and chunks of the second product."""

    size: int
    lows: int

    @property
    def width(self) -> int:
        """Numbers of a point."""
        return self.size * (1 + self.lows)


def chunks(dim: int) -> Chunks:
    """Return how points of so many coordinates are stored."""
    size = 16 if dim <= 16 else 32 if dim <= 32 else 64
    return Chunks(size, -(-5 * dim // size))


def tile(dim: int, arithmetic: Arithmetic) -> TripleTile:
    """Return the tile of lanes of so many coordinates."""
    return TRIPLE_TILES[chunks(dim).size, arithmetic is Arithmetic.COMPENSATED]


def shares(size: tuple[int, int], dim: int, arithmetic: Arithmetic) -> tuple[int, int]:
    """Return the number of programs that share a tile of rows, and a tile of columns."""
    chosen = tile(dim, arithmetic)
    fit = (c.TRIPLE_ROWS.value, chosen["bn"], chosen["least"], chosen["resident"])
    return splits(*size, *fit), splits(*size[::-1], *fit)


def log_scale(norms: tuple[float, float]) -> int:
    """Return log2 of the factor by which points are multiplied, from the largest squared norms of both sides."""
    return min(MOST_SCALE, math.floor(math.log2(LONGEST / math.sqrt(max(norms)))))


class TripleLegs:
    """Legs of lanes whose arithmetic is TRIPLE or COMPENSATED."""

    def __init__(self, table: LaneTable, buffers: Buffers, *, momentum: bool) -> None:
        self._table, self._buffers, self._momentum = table, buffers, momentum

    def take_memory(self, lanes: Sequence[Lane]) -> None:
        """Take memory for the points and sums of lanes; their groups give it back."""
        rungs = (Arithmetic.TRIPLE, Arithmetic.COMPENSATED)
        for lane in lanes:
            (n, m), dim, group = lane.size, lane.inner.dim, lane.group
            width = chunks(dim).width
            most = [max(shares(lane.size, dim, rung)[side] for rung in rungs) for side in (0, 1)]
            sums = max(count * aligned(size) for count, size in zip(most, lane.size, strict=True))
            counts = {
                "points16": aligned(n * width) + aligned(m * width),
                "vectors64": sums,
                "counters": -(-max(n, m) // c.TRIPLE_ROWS.value),
            }
            pieces = {name: (self._buffers.take(name, count), count) for name, count in counts.items()}
            group.more_pieces.append(pieces)
            first = pieces["points16"][0]
            fields = group.fields[lane.row]
            fields[c.POINTS16.value : c.POINTS16.value + 2] = first, first + aligned(n * width)
            fields[c.PARTIAL.value], fields[c.COUNTERS.value] = pieces["vectors64"][0], pieces["counters"][0]
            fields[c.SCALE.value], fields[c.AUGMENTED.value] = log_scale(group.extents[1:3, lane.row]), 0

    def open(self, lanes: LaneSet, arithmetic: Arithmetic) -> list[Launch]:
        """Give lanes, which have memory, their arithmetic; return launches that write their points."""
        for lane in lanes.lanes:
            fields = lane.group.fields[lane.row]
            fields[c.FLOAT64.value] = CODES[arithmetic]
            fields[c.SHARES.value : c.SHARES.value + 2] = shares(lane.size, lane.inner.dim, arithmetic)
        rows = np.stack([lane.group.fields[lane.row] for lane in lanes.lanes])
        self._table.fields[lanes.rows] = upload(rows, torch.int64, self._table.fields.device)
        return [
            prepared(
                kernels.write_triples, (-(-max(part.largest(side)[0] for side in (0, 1)) // ROWS), len(part), 2),
                self._table.fields, part.rows, self._buffers["points64"], self._buffers["points16"],
                self._buffers["vectors64"], CHUNK=stored.size, LOWS=stored.lows, ROWS=ROWS,
            )
            for (stored, _), part in self._parts(lanes)
        ]  # fmt: skip

    def _parts(self, lanes: LaneSet) -> list[tuple[tuple[Chunks, Arithmetic], LaneSet]]:
        """Lanes by how their points are stored and by arithmetic."""
        parts: dict[tuple[Chunks, Arithmetic], list[Lane]] = defaultdict(list)
        for lane in lanes.lanes:
            parts[chunks(lane.inner.dim), lane.arithmetic].append(lane)
        if len(parts) == 1:
            return [(key, lanes) for key in parts]
        return [(key, self._table.select(part)) for key, part in parts.items()]

    def legs(
        self, lanes: LaneSet, side: int, role: Any, potentials: Any, vectors: Any, errors: Any, *, lockstep: bool,
        fused: bool, block: int,
    ) -> list[Launch]:  # fmt: skip
        """Return launches of a leg; arguments are those of `Launcher.float64_leg`.

        `vectors` has potentials of the other side as `Launcher.split` writes them.
        """
        launches = []
        for part in self._table.by_softness(lanes):
            for (stored, arithmetic), alike in self._parts(part):
                chosen = tile(alike.lanes[0].inner.dim, arithmetic)
                programs = max(
                    -(-lane.size[side] // c.TRIPLE_ROWS.value) * shares(lane.size, lane.inner.dim, arithmetic)[side]
                    for lane in alike.lanes
                )
                launches.append(
                    prepared(
                        kernels.triple_leg, (programs, len(alike)),
                        self._table.fields, alike.rows, self._table.state, self._buffers["points16"],
                        self._buffers["vectors64"], potentials, vectors, errors, self._buffers["counters"],
                        self._table.limits, self._table.halted,
                        SIDE=side, ROLE=role.value, BM=c.TRIPLE_ROWS.value, BN=chosen["bn"], CHUNK=stored.size,
                        LOWS=stored.lows, POWER=POWERS[arithmetic], LOCKSTEP=lockstep,
                        FUSED=fused, MOMENTUM=fused and self._momentum, SOFT=alike.any_soft, BLOCK=block,
                        **options(TRIPLE_WARPS, chosen["stages"], chosen["registers"]),
                    )
                )  # fmt: skip
        return launches
