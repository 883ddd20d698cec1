"""Lanes whose points are in three float16 parts: their memory, their points, and launches of their legs."""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
# Kernels are called through Triton, arrays through torch, which is loaded when this backend is.

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np
import torch

from drainsinkhorn.backends.triton.buffers import Buffers, aligned
from drainsinkhorn.backends.triton.kernels import columns as c
from drainsinkhorn.backends.triton.kernels import triple as kernels
from drainsinkhorn.backends.triton.lanes import LaneSet, LaneTable, Places, distinct
from drainsinkhorn.backends.triton.launching import Launch, prepared, upload
from drainsinkhorn.backends.triton.loading import LoadedGroup
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


@np.errstate(divide="ignore")
def log_scales(norms: Any) -> Any:
    """Return log2 of the factors of points, from the largest squared norms of both sides, (2, lanes)."""
    return np.minimum(MOST_SCALE, np.floor(np.log2(LONGEST / np.sqrt(norms.max(0))))).astype(np.int64)


class TripleLegs:
    """Legs of lanes whose arithmetic is TRIPLE or COMPENSATED."""

    def __init__(self, table: LaneTable, buffers: Buffers, *, momentum: bool) -> None:
        self._table, self._buffers, self._momentum = table, buffers, momentum

    def take_memory(self, group: LoadedGroup, rows: Places) -> None:
        """Take memory for the points and sums of some lanes of a group, which gives it back."""
        host, rungs = self._table.host, (Arithmetic.TRIPLE, Arithmetic.COMPENSATED)
        numbers, dim = host["number"][rows], int(host["dim"][rows[0]])
        width, counts = chunks(dim).width, list[tuple[int, int, int, int]]()
        sizes, which = distinct(host["size"][rows])
        for n, m in sizes:
            most = [max(shares((n, m), dim, rung)[side] for rung in rungs) for side in (0, 1)]
            sums = max(most[0] * aligned(n), most[1] * aligned(m))
            counts.append((aligned(n * width), aligned(m * width), sums, aligned(-(-max(n, m) // c.TRIPLE_ROWS.value))))
        own, other, partial, counters = np.array(counts)[which].T
        fields, pieces = group.fields[numbers], dict[str, tuple[int, int]]()
        for name, column, needed in (
            ("points16", c.POINTS16, own + other), ("vectors64", c.PARTIAL, partial), ("counters", c.COUNTERS, counters)
        ):  # fmt: skip
            ends = np.cumsum(needed)
            pieces[name] = self._buffers.take(name, int(ends[-1])), int(ends[-1])
            fields[:, column.value] = pieces[name][0] + ends - needed
        fields[:, c.POINTS16.value + 1] = fields[:, c.POINTS16.value] + own
        fields[:, c.SCALE.value], fields[:, c.AUGMENTED.value] = log_scales(group.extents[1:3, numbers]), 0
        group.fields[numbers] = fields
        group.more_pieces.append(pieces)

    def open(self, lanes: LaneSet, arithmetic: Arithmetic) -> list[Launch]:
        """Give lanes, which have memory, their arithmetic; return launches that write their points."""
        table = self._table
        for group, rows in table.groups(lanes.places):
            numbers, dim = table.host["number"][rows], int(table.host["dim"][rows[0]])
            sizes, which = distinct(table.host["size"][rows])
            fields = group.fields[numbers]
            fields[:, c.FLOAT64.value] = CODES[arithmetic]
            fields[:, c.SHARES.value : c.SHARES.value + 2] = np.array(
                [shares((n, m), dim, arithmetic) for n, m in sizes]
            )[which]
            group.fields[numbers] = fields
            table.fields[table.select(rows).rows] = upload(fields, torch.int64, table.fields.device)
        return [
            prepared(
                kernels.write_triples, (-(-max(part.largest(side)[0] for side in (0, 1)) // ROWS), len(part), 2),
                table.fields, part.rows, self._buffers["points64"], self._buffers["points16"],
                self._buffers["vectors64"], CHUNK=stored.size, LOWS=stored.lows, ROWS=ROWS,
            )
            for (stored, _), part in self._parts(lanes)
        ]  # fmt: skip

    def _parts(self, lanes: LaneSet) -> list[tuple[tuple[Chunks, Arithmetic], LaneSet]]:
        """Lanes by how their points are stored and by arithmetic."""
        kinds, which = distinct(np.column_stack([lanes.column("dim"), lanes.column("arithmetic")]))
        parts: dict[tuple[Chunks, Arithmetic], list[int]] = defaultdict(list)
        for kind, (dim, rung) in enumerate(kinds):
            parts[chunks(dim), Arithmetic(rung)].append(kind)
        return [(key, lanes.part(np.isin(which, some))) for key, some in parts.items()]

    def legs(
        self, lanes: LaneSet, side: int, role: Any, potentials: Any, vectors: Any, errors: Any, *, lockstep: bool,
        fused: bool, block: int,
    ) -> list[Launch]:  # fmt: skip
        """Return launches of a leg; arguments are those of `Launcher.float64_leg`.

        `vectors` has potentials of the other side as `Launcher.split` writes them.
        """
        launches = []
        for part in lanes.by_softness():
            for (stored, arithmetic), alike in self._parts(part):
                shapes, _ = distinct(np.column_stack([alike.column("size"), alike.column("dim")]))
                chosen = tile(shapes[0][2], arithmetic)
                programs = max(
                    -(-shape[side] // c.TRIPLE_ROWS.value) * shares(shape[:2], shape[2], arithmetic)[side]
                    for shape in shapes
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
