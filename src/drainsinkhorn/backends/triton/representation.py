"""How scores of a lane are represented on the device, and with which tiles they are computed."""

# pyright: basic

from __future__ import annotations

from dataclasses import dataclass

from drainsinkhorn.backends.triton.kernels import columns as c
from drainsinkhorn.backends.triton.tiles import DIRECT, PRODUCT, ROOT, STORED, options, splits

PACKED = c.PACKED.value
NARROW = {DIRECT: 16, ROOT: 16, PRODUCT: 32, STORED: 32, PACKED: 32}
"""Columns of a tile when the largest term is taken out, by kind of scores: few, so that registers stay free."""
DIRECT_COLUMNS = 64
"""Most columns of a tile of direct differences if other lanes of the pack compute packed products."""


@dataclass(frozen=True, slots=True)
class Representation:
    """How scores are computed, and with which tiles: a function of the problem and the options alone.

    Attributes:
        kind: DIRECT, ROOT, PRODUCT or STORED.
        dp: Coordinates of a chunk, padded.
        chunks: Number of chunks of coordinates.
        dense: The cost is a matrix.
        rooted: The cost is the root of a squared distance.
        places: Coordinates of a chunk that has places for potentials; 0 if it has none.
        high_parts: Float16 high parts alone make scores as long as the residual is large.
        one_program: One program runs all cycles of a lane (`kernels.resident`).
        bm: Rows of a tile.
        bn: Columns of a tile.
        warps: Warps of a program.
        stages: Stages of its pipeline.
        least: Fewest blocks of columns for each of the programs that share a tile of rows.
        registers: Most registers of a thread; 0 leaves them to the compiler.
        resident: Programs that fit on a multiprocessor.
    """

    kind: int
    dp: int
    chunks: int
    dense: bool
    rooted: bool
    places: int
    high_parts: bool
    one_program: bool
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
        """True if coordinates are so few that a product of sixteen numbers holds them and both potentials."""
        return self.kind == DIRECT and self.places > 0

    @property
    def norms(self) -> int:
        """Whose potentials carry the norms of points, as `store_potential` has it."""
        return (c.ONLY_AUGMENTED if self.packed else c.ALL).value

    def constants(self, inside: bool) -> dict[str, int]:
        """Return constants of a leg, with potentials inside the product or not."""
        kind, dp, bn = self.kind, self.dp, self.bn
        if self.packed:
            kind, dp, bn = (PACKED, 16, bn) if inside else (kind, dp, min(bn, DIRECT_COLUMNS))
        narrow = min(NARROW[kind], bn)
        return {"KIND": kind, "DP": dp, "CHUNKS": self.chunks, "BM": self.bm, "BN": bn, "NARROW": narrow}

    def shares(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the number of programs that share a tile of rows, and a tile of columns."""
        n, m = size
        # Chunks of coordinates take registers.
        tile = (self.bm, self.bn, self.least, self.resident if self.chunks == 1 else min(2, self.resident))
        return splits(n, m, *tile), splits(m, n, *tile)

    def programs(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the number of programs of a leg of rows, and of columns."""
        shares = self.shares(size)
        return -(-size[0] // self.bm) * shares[0], -(-size[1] // self.bm) * shares[1]
