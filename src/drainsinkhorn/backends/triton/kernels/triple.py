"""Triton kernels of lanes whose points are in three float16 parts: legs in float32 that are far more accurate.

Coordinates x are centred and scaled by 2^SCALE, so that no point is longer than 2^12, and split into integers

    x 2^SCALE = X + X' 2^-11 + X'' 2^-22,    |X| <= 2^12,    |X'| <= 2^11,    |X''| <= 2^10

which float16 holds exactly, since X is even beyond 2^11. With t = 2^(1 - 2 SCALE) the product of two points is, in bits,

    2 <x, y> = t <X, Y> + t 2^-11 (<X, Y'> + <X', Y> + <X', Y'> 2^-11 + <X, Y''> 2^-11 + <X'', Y> 2^-11)

The first product is exact in float32, since it is at most 2^24, and so is its sum with potentials, which are rounded
to a grid, where the sum is above -32 bits: smaller terms do not matter. The other products are small, and so is the
error of their sum, `numerics.rounding.TRIPLE_COST`. The exponential takes both parts (`numerics.exponentials`).
Logarithms of weights are part of the potentials of the other side.

A point is a row of CHUNKs of numbers: X, and then, LOWS chunks long, what is multiplied in the second product: of rows
X, X', X', X, X'' and of columns Y', Y, Y' 2^-11, Y'' 2^-11, Y, of which X'' carries its 2^-11 as well.
"""

# pyright: basic, reportIndexIssue=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false, reportGeneralTypeIssues=false
# Triton reads these functions itself; Python's types mean little inside them.

from __future__ import annotations

import triton
import triton.language as tl

from drainsinkhorn.backends.triton.kernels.columns import (
    ALL,
    CHECKED,
    COUNTERS,
    DIM,
    FIELDS,
    FLOAT64,
    FROZEN,
    HELD,
    MASS,
    NORM,
    NUMBERS,
    PARTIAL,
    POINTS16,
    POINTS64,
    POTENTIAL,
    REST,
    ROUNDED,
    SCALE,
    SHARES,
    SIZE,
    TRIPLE_MOST,
    TRIPLE_RANGE,
    Constant,
)
from drainsinkhorn.backends.triton.kernels.leg import finish_tile
from drainsinkhorn.backends.triton.kernels.scores import padded
from drainsinkhorn.backends.triton.kernels.update import round_to_grid
from drainsinkhorn.numerics import exponentials

WHOLE, FINE = Constant(exponentials.WHOLE), Constant(exponentials.FINE)
HIGH, LOW = Constant(exponentials.HIGH), Constant(exponentials.LOW)
P1, P2, P3, P4, P5, P6 = (Constant(value) for value in exponentials.POWER[1:])
Q0, Q1, Q2, Q3, Q4, Q5 = (Constant(value) for value in exponentials.REMAINDER)
PART = Constant(2.0**-11)
"""By how much each part is smaller than the one before."""
BY_HARDWARE, BY_POLYNOMIAL, BY_TWO_PARTS = Constant(0), Constant(1), Constant(2)
"""How a power of two is computed: by the special-function unit, as `power`, or as `compensated_power`."""
AWAY = Constant(-1e30)
"""Potential of columns past the end."""
OFFSET = Constant(2.0)
"""Where compensated sums begin: above the terms of all but the first cycles, as their error terms require."""


@triton.jit
def write_triples(table, lanes, points64, points16, vectors64, CHUNK: tl.constexpr, LOWS: tl.constexpr,
                  ROWS: tl.constexpr):  # fmt: skip
    """Write points in three parts, and their norms less the logarithms of weights, from points in float64."""
    fields, side = table + tl.load(lanes + tl.program_id(1)) * FIELDS, tl.program_id(2)
    size, dim = tl.load(fields + SIZE + side).to(tl.int32), tl.load(fields + DIM).to(tl.int32)
    if tl.program_id(0) * ROWS >= size:
        return
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < size
    cloud = points64 + tl.load(fields + POINTS64 + side)
    mine = points16 + tl.load(fields + POINTS16 + side) + rows.to(tl.int64) * (CHUNK * (1 + LOWS))
    scale = _power_of_two(tl.load(fields + SCALE)).to(tl.float64)
    norm = tl.zeros((ROWS,), dtype=tl.float64)
    for k in range(dim):
        x = tl.load(cloud + tl.cast(k, tl.int64) * size + rows, mask=inside, other=0.0) * scale
        first = tl.where(tl.abs(x) < 2048.0, tl.floor(x + 0.5), 2.0 * tl.floor(x * 0.5 + 0.5))
        x = (x - first) * 2048.0
        second = tl.floor(x + 0.5)
        third = tl.floor((x - second) * 2048.0 + 0.5) * PART
        held = first + (second + third) * PART
        norm += held * held
        # What is multiplied by Y', Y, Y', Y'' and Y, or by X, X', X', X and X''.
        tl.store(mine + k, first.to(tl.float16), mask=inside)
        low = mine + CHUNK + k
        other, scaled = tl.where(side == 0, first, second), second * tl.where(side == 0, 1.0, PART)
        tl.store(low, other.to(tl.float16), mask=inside)
        tl.store(low + dim, tl.where(side == 0, second, first).to(tl.float16), mask=inside)
        tl.store(low + 2 * dim, scaled.to(tl.float16), mask=inside)
        tl.store(low + 3 * dim, tl.where(side == 0, first, third).to(tl.float16), mask=inside)
        tl.store(low + 4 * dim, tl.where(side == 0, third, first).to(tl.float16), mask=inside)
    mass = tl.load(vectors64 + tl.load(fields + MASS + side) + rows, mask=inside, other=1.0)
    norm = norm / (scale * scale) - tl.log2(mass)
    tl.store(vectors64 + tl.load(fields + NORM + side) + rows, norm, mask=inside)


@triton.jit
def _power_of_two(exponent):
    """Two to the power of an integer, in float32 and exact."""
    return ((exponent.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _load_chunk(place, near, WHOLE_TILE: tl.constexpr):
    if WHOLE_TILE:
        return tl.load(place)
    else:
        return tl.load(place, mask=near, other=0.0)


@triton.jit
def _load_chunks(mine, near, CHUNK: tl.constexpr, LOWS: tl.constexpr, WHOLE_TILE: tl.constexpr):
    """The chunks of points of a tile; the first stands for those that they do not have."""
    first = _load_chunk(mine, near, WHOLE_TILE)
    low0 = _load_chunk(mine + CHUNK, near, WHOLE_TILE)
    low1, low2, low3, low4 = low0, low0, low0, low0
    if LOWS > 1:
        low1 = _load_chunk(mine + 2 * CHUNK, near, WHOLE_TILE)
    if LOWS > 2:
        low2 = _load_chunk(mine + 3 * CHUNK, near, WHOLE_TILE)
    if LOWS > 3:
        low3 = _load_chunk(mine + 4 * CHUNK, near, WHOLE_TILE)
    if LOWS > 4:
        low4 = _load_chunk(mine + 5 * CHUNK, near, WHOLE_TILE)
    return first, low0, low1, low2, low3, low4


@triton.jit
def _exponents(own, theirs, near, step, level, rounded, rest, BM: tl.constexpr, BN: tl.constexpr, CHUNK: tl.constexpr,
               LOWS: tl.constexpr, WHOLE_TILE: tl.constexpr):  # fmt: skip
    """The exponents of a tile of pairs as two float32 numbers: the first is exact, the second is small."""
    none = tl.zeros((BM, BN), dtype=tl.float32)
    first, low0, low1, low2, low3, low4 = _load_chunks(theirs, near[None, :], CHUNK, LOWS, WHOLE_TILE)
    high = tl.dot(own[0], first, none)
    low = tl.dot(own[1], low0, none)
    if LOWS > 1:
        low = tl.dot(own[2], low1, low)
    if LOWS > 2:
        low = tl.dot(own[3], low2, low)
    if LOWS > 3:
        low = tl.dot(own[4], low3, low)
    if LOWS > 4:
        low = tl.dot(own[5], low4, low)
    return high * step + (level[:, None] + rounded[None, :]), low * (step * PART) + rest[None, :]


@triton.jit
def _power(exponent, rest):
    """Implements `numerics.exponentials.power`."""
    shifted = exponent + rest + WHOLE
    r = exponent - (shifted - WHOLE) + rest
    value = (((((r * P6 + P5) * r + P4) * r + P3) * r + P2) * r + P1) * r + 1.0
    # The last bits of `shifted` are the integer, which moves to the exponent bits.
    bits = value.to(tl.int32, bitcast=True) + (shifted.to(tl.int32, bitcast=True) << 23)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _compensated_power(exponent, rest):
    """Implements `numerics.exponentials.compensated_power`."""
    total = exponent + rest
    shifted = total + WHOLE
    whole, near = shifted - WHOLE, (total + FINE) - FINE
    high, low = near - whole, (exponent - near) + rest
    r = high + low
    remainder = (((((r * Q5 + Q4) * r + Q3) * r + Q2) * r + Q1) * r + Q0) * r + LOW
    # 1.0 has the exponent bits 127.
    factor = ((shifted.to(tl.int32, bitcast=True) << 23) + 0x3F800000).to(tl.float32, bitcast=True)
    return (high * HIGH + 1.0) * factor, r * remainder + low * HIGH, factor


@triton.jit
def _add_tile(sums, lost, own, others_points, stride, step, level, rounded, rests, start, other_size, BM: tl.constexpr,
              BN: tl.constexpr, CHUNK: tl.constexpr, LOWS: tl.constexpr, POWER: tl.constexpr,
              WHOLE_TILE: tl.constexpr):  # fmt: skip
    """Add the terms of a tile to sums, and what these lose of compensated ones to `lost`."""
    others = start + tl.arange(0, BN)
    near = others < other_size
    theirs = others_points + others[None, :].to(tl.int64) * stride + tl.arange(0, CHUNK)[:, None]
    if WHOLE_TILE:
        h, rest = tl.load(rounded + others), tl.load(rests + others)
    else:
        h = tl.load(rounded + others, mask=near, other=AWAY)
        rest = tl.load(rests + others, mask=near, other=0.0)
    exponent, low = _exponents(own, theirs, near, step, level, h, rest, BM, BN, CHUNK, LOWS, WHOLE_TILE)
    if POWER == BY_HARDWARE:
        sums += tl.exp2(exponent + low)
    else:
        exponent = tl.minimum(tl.maximum(exponent, -TRIPLE_MOST), TRIPLE_MOST)
        if POWER == BY_TWO_PARTS:
            term, second, factor = _compensated_power(exponent, low)
            # What the sum loses of a term is exact as long as the sum is the larger of both.
            total = sums + term
            lost += term - (total - sums)
            lost += second * factor
            sums = total
        else:
            sums += _power(exponent, low)
    return sums, lost


@triton.jit
def _row_sums(own, others_points, stride, step, level, rounded, rests, other_size, begin, end, BM: tl.constexpr,
              BN: tl.constexpr, CHUNK: tl.constexpr, LOWS: tl.constexpr, POWER: tl.constexpr,
              SPLIT: tl.constexpr):  # fmt: skip
    """Sums of the terms of rows over the columns from `begin` to `end`, float64.

    SPLIT: the last tile, if it is not whole, comes after the loop.
    """
    lost = tl.zeros((BM, BN), dtype=tl.float32)
    if POWER == BY_TWO_PARTS:
        sums = tl.full((BM, BN), OFFSET, dtype=tl.float32)
    else:
        sums = lost
    last = end
    if SPLIT:
        last = tl.minimum(end, other_size // BN * BN)
    for start in range(begin, last, BN):
        sums, lost = _add_tile(sums, lost, own, others_points, stride, step, level, rounded, rests, start, other_size,
                               BM, BN, CHUNK, LOWS, POWER, SPLIT)  # fmt: skip
    if SPLIT:
        if last < end:
            sums, lost = _add_tile(sums, lost, own, others_points, stride, step, level, rounded, rests, last,
                                   other_size, BM, BN, CHUNK, LOWS, POWER, False)  # fmt: skip
    if POWER == BY_TWO_PARTS:
        return tl.sum((sums - OFFSET).to(tl.float64) + lost.to(tl.float64), axis=1)
    else:
        return tl.sum(sums.to(tl.float64), axis=1)


@triton.jit
def triple_leg(table, lanes, state, points16, vectors64, potentials, vectors32, errors, counters, stops, halted,
               SIDE: tl.constexpr, ROLE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CHUNK: tl.constexpr,
               LOWS: tl.constexpr, POWER: tl.constexpr, LOCKSTEP: tl.constexpr, FUSED: tl.constexpr,
               MOMENTUM: tl.constexpr, SOFT: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Measure one side of lanes whose points are in three parts; implements `numerics.update.log_ratios` in bits.

    Roles are MEASURED, APPLIED and CHECKED; `vectors32` has potentials as `store_potential` splits them. Programs are
    tiles of BM rows times shares of the columns.
    """
    lane = tl.load(lanes + tl.program_id(1))
    fields, numbers = table + lane * FIELDS, state + lane * NUMBERS
    size, other_size = (
        tl.load(fields + SIZE + SIDE).to(tl.int32),
        tl.load(fields + SIZE + 1 - SIDE).to(tl.int32),
    )
    splits = tl.load(fields + SHARES + SIDE).to(tl.int32)
    tile = tl.program_id(0) // splits
    share = tl.program_id(0) - tile * splits
    skip = (tile * BM >= size) | (tl.load(fields + FLOAT64) < 2)
    if ROLE != CHECKED:
        skip = skip | (tl.load(halted) > 0) | (tl.load(numbers + HELD) > 0)
    if skip:
        return
    rows = tile * BM + tl.arange(0, BM)
    inside = rows < size
    mass = tl.load(vectors64 + tl.load(fields + MASS + SIDE) + rows, mask=inside, other=1.0)
    own = tl.load(potentials + tl.load(fields + POTENTIAL + SIDE) + rows, mask=inside, other=0.0)
    norm = tl.load(vectors64 + tl.load(fields + NORM + SIDE) + rows, mask=inside, other=0.0)
    rest = own - norm - tl.log2(mass)
    level = round_to_grid(rest)
    rest -= level
    level = level.to(tl.float32)
    stride: tl.constexpr = CHUNK * (1 + LOWS)
    step = _power_of_two(1 - 2 * tl.load(fields + SCALE))
    points = points16 + tl.multiple_of(tl.load(fields + POINTS16 + SIDE), 64)
    other_points = points16 + tl.multiple_of(tl.load(fields + POINTS16 + 1 - SIDE), 64)
    rounded = vectors32 + tl.multiple_of(tl.load(fields + ROUNDED + 1 - SIDE), 64)
    rests = vectors32 + tl.multiple_of(tl.load(fields + REST + 1 - SIDE), 64)
    mine = points + rows[:, None].to(tl.int64) * stride + tl.arange(0, CHUNK)[None, :]
    own_points = _load_chunks(mine, inside[:, None], CHUNK, LOWS, False)
    blocks = (other_size + BN - 1) // BN
    begin, end = blocks * share // splits * BN, blocks * (share + 1) // splits * BN
    total = _row_sums(own_points, other_points, stride, step, level, rounded, rests, other_size, begin, end, BM, BN,
                      CHUNK, LOWS, POWER, True)  # fmt: skip
    # Sums go through memory even if no program shares the tile: in registers every thread would hold whole rows from
    # here.
    partial, distance = vectors64 + tl.load(fields + PARTIAL), padded(size)
    tl.store(partial + share * distance + rows, total, mask=inside)
    tl.debug_barrier()
    arrived = splits - 1
    count = counters + tl.load(fields + COUNTERS) + tile
    if splits > 1:
        arrived = tl.atomic_add(count, 1)
    if arrived != splits - 1:
        return
    # Only the last program of a tile continues. The L1 cache does not see what other multiprocessors wrote.
    log_ratios = tl.load(partial + rows, mask=inside, other=1.0, cache_modifier=".cg")
    if splits > 1:
        for other in range(1, splits):
            log_ratios += tl.load(partial + other * distance + rows, mask=inside, other=0.0, cache_modifier=".cg")
        tl.store(count, 0)
    logs = tl.log2(log_ratios)
    if tl.sum(((logs < TRIPLE_RANGE) & (logs > -TRIPLE_RANGE) == 0).to(tl.int32), axis=0) > 0:
        # The integer next to the largest exponent of each row is taken out, and the sums are computed again.
        top = tl.full((BM,), AWAY, dtype=tl.float32)
        for start in range(0, other_size, BN):
            others = start + tl.arange(0, BN)
            near = others < other_size
            theirs = other_points + others[None, :].to(tl.int64) * stride + tl.arange(0, CHUNK)[:, None]
            h = tl.load(rounded + others, mask=near, other=AWAY)
            exponent, low = _exponents(own_points, theirs, near, step, level, h, tl.zeros((BN,), dtype=tl.float32), BM,
                                       BN, CHUNK, LOWS, False)  # fmt: skip
            top = tl.maximum(top, tl.max(exponent + low, axis=1))
        top = tl.floor(top + 0.5)
        total = _row_sums(own_points, other_points, stride, step, level - top, rounded, rests, other_size, 0,
                          other_size, BM, BN, CHUNK, LOWS, POWER, False)  # fmt: skip
        tl.debug_barrier()
        tl.store(partial + rows, tl.log2(total) + top.to(tl.float64), mask=inside)
        tl.debug_barrier()
        logs = tl.load(partial + rows, mask=inside, other=0.0, cache_modifier=".cg")
    logs += rest
    frozen = (tl.load(numbers + FROZEN) > 0) & (ROLE != CHECKED)
    finish_tile(vectors32, vectors64, vectors32, errors, counters, stops, halted, lane, fields, numbers, tile, rows,
                 inside, own, logs, mass, frozen, SIDE, ROLE, 0, ALL, LOCKSTEP, FUSED, MOMENTUM, SOFT, BM, BM,
                 BLOCK)  # fmt: skip
