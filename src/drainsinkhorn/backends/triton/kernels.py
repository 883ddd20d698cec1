"""What Triton's kernels share: the columns of their tables, and what legs and lanes both do to potentials and sums.

Potentials are in bits (f / (eps ln 2)). One of a side is split into h, a multiple of 1 / GRID such that h_i + h_j is exact in
float32, and the rest l, which goes into the weights of the other side and into what is measured (see `leg_kernels`).

A cycle is three launches for all lanes: `apply` (reduces the measured f-leg, holds the lanes that are done, decides the
stride, updates f), `leg` on the columns (measures and applies), `leg` on the rows (measures). Of small lanes the last
program of a leg on the rows does what `apply` would do next, and a cycle is two. Lanes are found through a table of live
lanes, so a narrower pack is a narrower grid and nothing moves.
"""

# pyright: basic, reportIndexIssue=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false, reportGeneralTypeIssues=false
# Triton reads these functions itself; Python's types mean little inside them.

from __future__ import annotations

import triton
import triton.language as tl

from drainsinkhorn.numerics import update as rules


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
NOISE = _Constant(35)
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
HALF = _Constant(13)
NUMBERS = _Constant(16)
# Number of values that a check writes for each lane.
FINDINGS = _Constant(8)
# The caller's 16-bit dtype (HALF of a lane), and the dtypes in which potentials are emitted.
FLOAT16 = _Constant(1)
BFLOAT16 = _Constant(2)
EMITS_DOUBLE = _Constant(0)
EMITS_SINGLE = _Constant(1)
EMITS_HALF = _Constant(2)
# What a leg is for: measured and kept (rows), measured and applied (columns), a check, a sample of rows.
KEPT = _Constant(0)
APPLIED = _Constant(1)
CHECKED = _Constant(2)
SAMPLED = _Constant(3)
# Both sides in one launch, by the last number of a program; otherwise 0 for rows, 1 for columns.
BOTH = _Constant(2)
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
AT_A_TIME = _Constant(512)
"""Rows of a small lane to which the last program of a leg applies it at a time."""
SAFETY = _Constant(3.0)
"""What sampled rows are off is taken so many times."""
SINGLE = _Constant(3e-7)
"""Rounding of sums, exponentials and logarithms in float32, whatever sampled rows say."""
WARY = _Constant(1.5)
"""By how much the screen doubts more than what was sampled when a lane opened: later states round otherwise."""
LEAST_DOUBT = _Constant(2.7e-6)
"""What it doubts at least. A screen that passes what verify rejects costs a call more."""


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
def _split(half, vectors, wide, lane_table, folded, rows, inside, value, side, SLOT: tl.constexpr,
           PACKED: tl.constexpr):  # fmt: skip
    """Store the rounded part of a potential, the rest, and the weight with which it enters sums of the other side.

    SLOT: coordinates of a point if it has places for a potential; there the rounded part is stored as well.
    """
    mass = tl.load(wide + tl.load(lane_table + MASS + side) + rows, mask=inside, other=0.0)
    level = value
    if PACKED != NONE:
        norm = tl.load(wide + tl.load(lane_table + NORM + side) + rows, mask=inside, other=0.0)
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
                place = half + tl.load(lane_table + SPLIT + side)
                if PACKED == FOLDING:
                    place += rows.to(tl.int64) * 16 + (12 + 2 * side)
                    beside = place + 1
                elif SLOT == ROOMY:
                    place += rows.to(tl.int64) * (2 * SLOT) + (SLOT - 4 + 2 * side)
                    beside = place + 1
                else:
                    place += rows.to(tl.int64) * (2 * SLOT) + (SLOT - 1)
                    beside = place + SLOT
                tl.store(place, high, mask=inside)
                tl.store(beside, low, mask=inside)
    fine = (level - coarse).to(tl.float32)
    tl.store(vectors + tl.load(lane_table + COARSE + side) + rows, coarse.to(tl.float32), mask=inside)
    tl.store(vectors + tl.load(lane_table + FINE + side) + rows, fine, mask=inside)
    tl.store(vectors + tl.load(lane_table + WEIGHT + side) + rows, mass.to(tl.float32) * tl.exp2(fine), mask=inside)


@triton.jit
def _total(wide, start, count, BLOCK: tl.constexpr):
    """A sum of partial sums in a fixed order."""
    found = tl.zeros((BLOCK,), dtype=tl.float64)
    for first in range(0, count, BLOCK):
        places = first + tl.arange(0, BLOCK)
        # Programs of the same launch may have written them: the nearer cache does not see that.
        found += tl.load(wide + start + places, mask=places < count, other=0.0, cache_modifier=".cg")
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


@triton.jit
def _decided(lane_table, numbers, wide, stop, stopped, FIRST: tl.constexpr, MOMENTUM: tl.constexpr, BM: tl.constexpr,
             WIDE_BM: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """What becomes of a lane whose f-leg is measured: whether it rests, else how it is applied; and its numbers then.

    The first cycle of a call always runs, so that a lane whose verify was rejected moves on.
    """
    columns = tl.arange(0, NUMBERS)
    known = tl.load(numbers + columns)
    frozen, was_held = tl.load(numbers + FROZEN) > 0, tl.load(numbers + HELD) > 0
    row_tiles, col_tiles = _tiles(lane_table, BM, WIDE_BM, 0), _tiles(lane_table, BM, WIDE_BM, 1)
    error = _total(wide, tl.load(lane_table + ERRORS), row_tiles, BLOCK)
    other_error = _total(wide, tl.load(lane_table + ERRORS + 1), col_tiles, BLOCK)
    along = _total(wide, tl.load(lane_table + ALONG), row_tiles, BLOCK)
    started = tl.load(numbers + STARTED) > 0
    # Before the first cycle the columns have not been measured.
    error += tl.where(started, other_error * 0.0, 0.0)
    leading = _leading(lane_table, numbers)
    stale = _believed(error + tl.load(numbers + BAND), leading)
    leading = tl.where(error > leading, leading, 0.0)
    held = (was_held | _passes(stale, stop)) & (FIRST == 0)
    rests = frozen | held | stopped
    age, best = tl.load(numbers + AGE), tl.load(numbers + BEST)
    cooldown, backoff = tl.load(numbers + COOLDOWN), tl.load(numbers + BACKOFF)
    rows_exact = tl.load(numbers + ROWS_EXACT) > 0
    step, beta = tl.cast(1.0, tl.float64), tl.cast(0.0, tl.float64)
    if MOMENTUM:
        bad = started & (age > 0) & ((error <= best * GROWTH) == 0)
        best = tl.where(started & (error < best), error, best)
        cooldown = tl.where(bad, tl.exp2(backoff), cooldown)
        backoff = tl.where(bad, tl.minimum(backoff + 1.0, MAX_BACKOFF), backoff)
        fast = rows_exact & (error * error < other_error * FAST * other_error)
        restart = (age > 0) & (along < 0)
        plain = (started == 0) | bad | (cooldown > 0) | fast | restart
        cooldown = tl.where(started & (bad == 0) & (cooldown > 0), cooldown - 1.0, cooldown)
        age = tl.where(plain, 0.0, age + 1.0)
        step = tl.where(plain, 1.0, STEP)
        beta = tl.where(plain, 0.0, age / (age + OFFSET))
        rows_exact = plain
        # All products may find a larger residual at first, which tells nothing of the momentum.
        best = tl.where(leading < tl.load(numbers + LEADING), float("inf"), best)
    after = tl.where(columns == DEPTH, known + 1.0, known)
    after = tl.where(columns == AGE, age, after)
    after = tl.where(columns == BEST, best, after)
    after = tl.where(columns == COOLDOWN, cooldown, after)
    after = tl.where(columns == BACKOFF, backoff, after)
    after = tl.where(columns == ROWS_EXACT, rows_exact.to(tl.float64), after)
    after = tl.where(columns == STARTED, 1.0, after)
    after = tl.where(columns == LEADING, leading, after)
    after = tl.where(rests, known, after)
    after = tl.where(columns == HELD, tl.where(held & (frozen == 0), 1.0, 0.0), after)
    return rests, error, step, beta, leading, after


@triton.jit
def _passes(stale, stop):
    """Whether a lane is held at a stale residual: NaN is; under a stop of -inf nobody."""
    return (stop > -float("inf")) & ((stale > stop) == 0)


@triton.jit
def _moved(half, vectors, wide, lane_table, rows, size, error, step, beta, leading, SLOT: tl.constexpr,
           PACKED: tl.constexpr):  # fmt: skip
    """Apply the measured f-leg to some rows, and split their new potentials."""
    inside = rows < size
    # Where programs of the same launch have measured it, the nearer cache does not see what they wrote.
    logs = tl.load(vectors + tl.load(lane_table + LOGS) + rows, mask=inside, other=0.0, cache_modifier=".cg").to(
        tl.float64
    )
    here = tl.load(wide + tl.load(lane_table + POTENTIAL) + rows, mask=inside, other=0.0)
    before = tl.load(wide + tl.load(lane_table + BEFORE) + rows, mask=inside, other=0.0)
    x = here - step * logs
    value = x + beta * (x - before)
    # Neither is a state that is not finite entered, nor one after it.
    finite = tl.abs(value) + tl.abs(x) + error < float("inf")
    value, x = tl.where(finite, value, here), tl.where(finite, x, before)
    tl.store(wide + tl.load(lane_table + BEFORE) + rows, x, mask=inside)
    tl.store(wide + tl.load(lane_table + POTENTIAL) + rows, value, mask=inside)
    _split(half, vectors, wide, lane_table, _folds(lane_table, leading), rows, inside, value, 0, SLOT, PACKED)
