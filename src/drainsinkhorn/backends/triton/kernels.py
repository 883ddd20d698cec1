"""What Triton's kernels share: the columns of their tables, and what legs and lanes both do to potentials and sums.

Potentials are in bits (f / (eps ln 2)). One of a side is split into h, a multiple of 1 / GRID such that h_i + h_j is exact in
float32, and the rest l, which goes into the weights of the other side and into what is measured (see `leg_kernels`).

A cycle is three launches for all lanes: `apply` (reduces the measured f-leg, holds the lanes that are done, decides the
stride, updates f), `leg` on the columns (measures and applies), `leg` on the rows (measures). Lanes are found through a
table of live lanes, so a narrower pack is a narrower grid and nothing moves.
"""

# pyright: basic, reportIndexIssue=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false, reportGeneralTypeIssues=false
# Triton reads these functions itself; Python's types mean little inside them.

from __future__ import annotations

import triton
import triton.language as tl

from drainsinkhorn.backends import momentum as rules


class _Constant(tl.constexpr):
    """A constexpr that is compared fast with a copy of itself, as Triton does for every one of them at every launch."""

    def __ne__(self, other):
        return self.value != other.value if isinstance(other, _Constant) else super().__ne__(other)

    __hash__ = tl.constexpr.__hash__


# Columns of the integer table. Pairs are (rows, columns): column + SIDE. Offsets count elements of an arena.
SIZES = _Constant(0)
SPLIT = _Constant(2)
COORDS = _Constant(4)
EXACT = _Constant(6)
COARSE = _Constant(8)
FINE = _Constant(10)
WEIGHT = _Constant(12)
POTENTIAL = _Constant(14)
NORM = _Constant(16)
MASS = _Constant(18)
LOGS = _Constant(20)
ERRORS = _Constant(22)
BEFORE = _Constant(24)
ALONG = _Constant(25)
MATRIX = _Constant(26)
WIDE = _Constant(27)
DIM = _Constant(28)
SPLITS = _Constant(29)
PARTIAL = _Constant(31)
COUNTS = _Constant(32)
FOLDED = _Constant(33)
ARRIVED = _Constant(34)
FIELDS = _Constant(40)
# Columns of the float64 state of a lane.
DEPTH = _Constant(0)
BAND = _Constant(1)
AGE = _Constant(2)
BEST = _Constant(3)
COOLDOWN = _Constant(4)
BACKOFF = _Constant(5)
ROWS_EXACT = _Constant(6)
STARTED = _Constant(7)
HELD = _Constant(8)
FROZEN = _Constant(9)
UNIT = _Constant(10)
BUDGET = _Constant(11)
LEADING = _Constant(12)
NUMBERS = _Constant(16)
# What a leg is for: measured and kept (rows), measured and applied (columns), a check, a sample of rows.
KEPT = _Constant(0)
APPLIED = _Constant(1)
CHECKED = _Constant(2)
SAMPLED = _Constant(3)
# Kinds of scores.
DIRECT = _Constant(0)
ROOT = _Constant(1)
PRODUCT = _Constant(2)
STORED = _Constant(3)
PACK = _Constant(4)
# Whose potentials carry the norms of points (PACKED): those of all lanes, of lanes that fold, of none.
ALL = _Constant(0)
FOLDING = _Constant(1)
NONE = _Constant(2)

STEP = _Constant(rules.STEP)
OFFSET = _Constant(rules.OFFSET)
FAST = _Constant(rules.FAST)
GROWTH = _Constant(rules.GROWTH)
MAX_BACKOFF = _Constant(rules.MAX_BACKOFF)

GRID = _Constant(1024.0)
"""Potentials are rounded to multiples of 1 / GRID: two of them below 2^12 add up exactly in float32."""
MOST_HALF = _Constant(6e4)
"""What a float16 holds, or nearly."""
APART = _Constant(80.0)
"""Bits by which a sum may leave 1 before it is done again with its largest term taken out."""


ROOMY = _Constant(64)
"""Coordinates of a point whose last four are places for potentials: two halves of its own, and two ones for another's.

A point of fewer coordinates has one place, and the low half of its potential is among its low halves.
"""
AT_ONCE = _Constant(16)
"""Coordinates of a sampled row that are loaded together."""


@triton.jit
def _halves(x):
    """Two float16 numbers whose sum is nearly x."""
    high = x.to(tl.float16)
    return high, (x - high.to(x.dtype)).to(tl.float16)


@triton.jit
def _padded(size):
    """The distance of coordinates, or of rows of a matrix, in memory."""
    return tl.multiple_of((size + 63) // 64 * 64, 64)


@triton.jit
def _leading(lane_table, numbers):
    """The residual above which leading halves make a lane's scores; zero if they no longer do."""
    return tl.where(tl.load(lane_table + WIDE) > 0, 0.0, tl.load(numbers + LEADING))


@triton.jit
def _folds(lane_table, leading):
    """Potentials enter the product: always, or as long as leading halves make it."""
    return (tl.load(lane_table + FOLDED) > 0) | (leading > 0)


@triton.jit
def _believed(stale, leading):
    """A stale residual as far as it is believed: what leading halves say, down to where they give way."""
    return tl.where(stale < leading, leading, stale)


@triton.jit
def _split(half, vectors, wide, lane_table, folded, rows, inside, value, SIDE: tl.constexpr, SLOT: tl.constexpr,
           PACKED: tl.constexpr):  # fmt: skip
    """Store the rounded part of a potential, the rest, and the weight with which it enters sums of the other side.

    SLOT: coordinates of a point if it has places for a potential; there the rounded part is stored as well.
    """
    mass = tl.load(wide + tl.load(lane_table + MASS + SIDE) + rows, mask=inside, other=0.0)
    level = value
    if PACKED != NONE:
        norm = tl.load(wide + tl.load(lane_table + NORM + SIDE) + rows, mask=inside, other=0.0)
        if PACKED == FOLDING:
            norm = tl.where(folded, norm, 0.0)
        level = value - norm
    coarse = tl.floor(level * GRID + 0.5) / GRID
    if (PACKED == FOLDING) | (SLOT > 0):
        if folded:
            # Two halves hold a rounded potential below 2^13 exactly; what they lose of a larger one counts as the rest.
            high, low = _halves(tl.minimum(tl.maximum(coarse, -MOST_HALF), MOST_HALF).to(tl.float32))
            coarse = (high.to(tl.float32) + low.to(tl.float32)).to(tl.float64)
            if SLOT > 0:
                place = half + tl.load(lane_table + SPLIT + SIDE)
                if PACKED == FOLDING:
                    place += rows.to(tl.int64) * 16 + (12 + 2 * SIDE)
                    beside = place + 1
                elif SLOT == ROOMY:
                    place += rows.to(tl.int64) * (2 * SLOT) + (SLOT - 4 + 2 * SIDE)
                    beside = place + 1
                else:
                    place += rows.to(tl.int64) * (2 * SLOT) + (SLOT - 1)
                    beside = place + SLOT
                tl.store(place, high, mask=inside)
                tl.store(beside, low, mask=inside)
    fine = (level - coarse).to(tl.float32)
    tl.store(vectors + tl.load(lane_table + COARSE + SIDE) + rows, coarse.to(tl.float32), mask=inside)
    tl.store(vectors + tl.load(lane_table + FINE + SIDE) + rows, fine, mask=inside)
    tl.store(vectors + tl.load(lane_table + WEIGHT + SIDE) + rows, mass.to(tl.float32) * tl.exp2(fine), mask=inside)


@triton.jit
def _total(wide, start, count, BLOCK: tl.constexpr):
    """A sum of partial sums in a fixed order."""
    found = tl.zeros((BLOCK,), dtype=tl.float64)
    for first in range(0, count, BLOCK):
        places = first + tl.arange(0, BLOCK)
        found += tl.load(wide + start + places, mask=places < count, other=0.0)
    return tl.sum(found, axis=0)


@triton.jit
def _tiles(lane_table, BM: tl.constexpr, WIDE_BM: tl.constexpr, SIDE: tl.constexpr):
    size = tl.load(lane_table + SIZES + SIDE).to(tl.int32)
    tile = tl.where(tl.load(lane_table + WIDE) > 0, WIDE_BM, BM)
    return (size + tile - 1) // tile


@triton.jit
def _stale(lane_table, numbers, wide, BM: tl.constexpr, WIDE_BM: tl.constexpr, BLOCK: tl.constexpr):
    """The stale residual of a lane, band included; not a number if the columns' is none."""
    error = _total(wide, tl.load(lane_table + ERRORS), _tiles(lane_table, BM, WIDE_BM, 0), BLOCK)
    if tl.load(numbers + STARTED) > 0:
        error += 0.0 * _total(wide, tl.load(lane_table + ERRORS + 1), _tiles(lane_table, BM, WIDE_BM, 1), BLOCK)
    return _believed(error + tl.load(numbers + BAND), _leading(lane_table, numbers))
