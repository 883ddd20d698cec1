"""Triton kernels of lanes: what is decided of them between legs, and how their states are staged, settled and told."""

# pyright: basic, reportIndexIssue=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false, reportGeneralTypeIssues=false
# Triton reads these functions itself; Python's types mean little inside them.

from __future__ import annotations

import triton
import triton.language as tl

from drainsinkhorn.backends.triton.kernels import (
    BAND,
    BFLOAT16,
    BUDGET,
    DEPTH,
    EMITS_DOUBLE,
    EMITS_HALF,
    EMITS_SINGLE,
    ERRORS,
    FIELDS,
    FINDINGS,
    HALF,
    HELD,
    LEAST_DOUBT,
    LOGS,
    MASS,
    NOISE,
    NUMBERS,
    POTENTIAL,
    SAFETY,
    SINGLE,
    SIZES,
    UNIT,
    WARY,
    WIDE,
    _decided,
    _folds,
    _leading,
    _moved,
    _passes,
    _split,
    _stale,
    _total,
)


@triton.jit
def apply(table, live, state, after, half, vectors, wide, stops, halted,
          FIRST: tl.constexpr, MOMENTUM: tl.constexpr, BM: tl.constexpr, WIDE_BM: tl.constexpr,
          BLOCK: tl.constexpr, ROWS: tl.constexpr, SLOT: tl.constexpr, PACKED: tl.constexpr):  # fmt: skip
    """Hold the lanes that are done, decide the stride of the others, and apply their measured f-leg.

    Reads the lane's numbers from `state` and writes them to `after`; every program of a lane decides alike.
    """
    lane = tl.load(live + tl.program_id(1))
    lane_table, numbers = table + lane * FIELDS, state + lane * NUMBERS
    size = tl.load(lane_table + SIZES).to(tl.int32)
    if tl.program_id(0) * ROWS >= size:
        return
    stopped = (tl.load(halted) > 0) | (tl.load(halted + 1) > 0)
    if stopped:
        tl.store(halted, 1)
    rests, error, step, beta, leading, numbers_then = _decided(
        lane_table, numbers, wide, tl.load(stops + lane), stopped, FIRST, MOMENTUM, BM, WIDE_BM, BLOCK
    )
    if tl.program_id(0) == 0:
        tl.store(after + lane * NUMBERS + tl.arange(0, NUMBERS), numbers_then)
    if rests == 0:
        rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        _moved(half, vectors, wide, lane_table, rows, size, error, step, beta, leading, SLOT, PACKED)


@triton.jit
def look(table, live, state, wide, stops, report, DECIDED: tl.constexpr, BM: tl.constexpr, WIDE_BM: tl.constexpr,
         BLOCK: tl.constexpr):  # fmt: skip
    """Depth and stale residual of every lane into `report`, whether it is held or will be, and its band.

    Where the last leg was DECIDED upon by itself, the numbers of a lane are those after it: what is not held has gone on.
    """
    place = tl.program_id(0)
    lane = tl.load(live + place)
    lane_table, numbers = table + lane * FIELDS, state + lane * NUMBERS
    stale = _stale(lane_table, numbers, wide, BM, WIDE_BM, BLOCK)
    held = tl.load(numbers + HELD) > 0
    if not DECIDED:
        held = held | _passes(stale, tl.load(stops + lane))
    tl.store(report + 4 * place, tl.load(numbers + DEPTH))
    tl.store(report + 4 * place + 1, stale)
    tl.store(report + 4 * place + 2, tl.where(held, 1.0, 0.0).to(tl.float64))
    tl.store(report + 4 * place + 3, tl.load(numbers + BAND))


@triton.jit
def stage(table, live, state, potentials, half, vectors, wide, legs, out, ROWS: tl.constexpr,
          SLOT: tl.constexpr, PACKED: tl.constexpr, AFTER: tl.constexpr):  # fmt: skip
    """Split given potentials (float64, laid out by POTENTIAL) of both sides into h, l and w.

    With AFTER those after the f-leg in `legs`, which are kept in `out`.
    """
    lane = tl.load(live + tl.program_id(1))
    lane_table, side = table + lane * FIELDS, tl.program_id(2)
    size = tl.load(lane_table + SIZES + side).to(tl.int32)
    first = tl.program_id(0) * ROWS
    if first >= size:
        return
    rows = first + tl.arange(0, ROWS)
    inside = rows < size
    value = tl.load(potentials + tl.load(lane_table + POTENTIAL + side) + rows, mask=inside, other=0.0)
    if AFTER:
        if side == 0:
            value -= tl.load(legs + tl.load(lane_table + LOGS) + rows, mask=inside, other=0.0).to(tl.float64)
        tl.store(out + tl.load(lane_table + POTENTIAL + side) + rows, value, mask=inside)
    folded = _folds(lane_table, _leading(lane_table, state + lane * NUMBERS))
    _split(half, vectors, wide, lane_table, folded, rows, inside, value, side, SLOT, PACKED)


@triton.jit
def _to_half(value, brain):
    """Round float64 numbers to float16, or to bfloat16 where `brain`, by way of float32 as `round_to` does."""
    bits = value.to(tl.float32).to(tl.int32, bitcast=True)
    upper = (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000
    return tl.where(brain, upper.to(tl.float32, bitcast=True).to(tl.float64), value.to(tl.float16).to(tl.float64))


@triton.jit
def settle(table, live, state, wide, potentials, given, found, count_samples,
           ROWS: tl.constexpr, BM: tl.constexpr, WIDE_BM: tl.constexpr, BLOCK: tl.constexpr,
           COUNT: tl.constexpr):  # fmt: skip
    """Write the states of lanes as they will be emitted, in units of the cost (`given`) and in bits (`potentials`).

    They are rounded to the lane's HALF (float16 or bfloat16), else to float32, if that changes them by no more than the
    lane's BUDGET. In `found` it writes column 4 (the dtype), 5 (whether the lane's residual is NaN), 6 (the sum of the
    largest potentials of both sides, in bits) and 7 (by how much their mean sizes exceed twice those of sampled rows,
    in bits: as `scores.unsampled`, with means in place of medians).
    """
    place = tl.program_id(0)
    lane = tl.load(live + place)
    lane_table, numbers = table + lane * FIELDS, state + lane * NUMBERS
    unit = tl.load(numbers + UNIT)
    half = tl.load(numbers + HALF)
    brain = half == BFLOAT16
    moved, moved_half, reach, unsampled = 0.0 * unit, 0.0 * unit, 0.0 * unit, 0.0 * unit
    for side in tl.static_range(2):
        size, start = tl.load(lane_table + SIZES + side).to(tl.int32), tl.load(lane_table + POTENTIAL + side)
        farthest, farthest_half = tl.zeros((ROWS,), dtype=tl.float64), tl.zeros((ROWS,), dtype=tl.float64)
        largest, sizes = tl.zeros((ROWS,), dtype=tl.float64), tl.zeros((ROWS,), dtype=tl.float64)
        mass, count = tl.load(lane_table + MASS + side), tl.minimum(size, count_samples)
        places = tl.arange(0, COUNT)
        sampled = (places.to(tl.int64) * size // count).to(tl.int32)
        sampled = tl.load(wide + start + sampled, mask=places < count, other=0.0)
        centre = tl.sum(sampled, axis=0) / count
        sampled = tl.where(places < count, tl.abs(sampled - centre), 0.0)
        for first in range(0, size, ROWS):
            rows = first + tl.arange(0, ROWS)
            value = tl.load(wide + start + rows, mask=rows < size, other=0.0)
            sizes += tl.load(wide + mass + rows, mask=rows < size, other=0.0) * tl.abs(value - centre)
            value *= unit
            farthest = tl.maximum(farthest, tl.abs(value.to(tl.float32).to(tl.float64) - value))
            largest = tl.maximum(largest, tl.abs(value))
            if half > 0:
                farthest_half = tl.maximum(farthest_half, tl.abs(_to_half(value, brain) - value))
        moved += tl.max(farthest, axis=0)
        moved_half += tl.max(farthest_half, axis=0)
        reach += tl.max(largest, axis=0) / unit
        unsampled += tl.maximum(tl.sum(sizes, axis=0) - 2.0 * tl.sum(sampled, axis=0) / count, 0.0)
    budget = tl.load(numbers + BUDGET)
    short = (half > 0) & (moved_half <= budget)
    single = (moved <= budget) & ~short
    for side in tl.static_range(2):
        size, start = tl.load(lane_table + SIZES + side).to(tl.int32), tl.load(lane_table + POTENTIAL + side)
        for first in range(0, size, ROWS):
            rows = first + tl.arange(0, ROWS)
            value = tl.load(wide + start + rows, mask=rows < size, other=0.0) * unit
            value = tl.where(single, value.to(tl.float32).to(tl.float64), value)
            if short:
                value = _to_half(value, brain)
            tl.store(given + start + rows, value, mask=rows < size)
            tl.store(potentials + start + rows, value / unit, mask=rows < size)
    stale = _stale(lane_table, numbers, wide, BM, WIDE_BM, BLOCK)
    emitted = tl.where(short, EMITS_HALF, tl.where(single, EMITS_SINGLE, EMITS_DOUBLE))
    tl.store(found + FINDINGS * place + 4, emitted.to(tl.float64))
    tl.store(found + FINDINGS * place + 5, tl.where(stale == stale, 0.0, 1.0).to(tl.float64))
    tl.store(found + FINDINGS * place + 6, reach)
    tl.store(found + FINDINGS * place + 7, unsampled)


@triton.jit
def checked(table, live, state, wide, errors, vectors, samples, found, count_samples, OPENS: tl.constexpr,
            BM: tl.constexpr, WIDE_BM: tl.constexpr, BLOCK: tl.constexpr,
            COUNT: tl.constexpr):  # fmt: skip
    """Both residuals of checked lanes, and the mean relative error of sampled rows of each side.

    The larger of two means is taken: over the samples, and weighted by their mass. It estimates the rounding error of a
    residual, which is the mass-weighted mean of the errors of all rows. When a lane OPENS only rows are sampled, and
    their error becomes the lane's BAND, which its screen adds to the residual.
    """
    place = tl.program_id(0)
    lane = tl.load(live + place)
    lane_table, numbers = table + lane * FIELDS, state + lane * NUMBERS
    double = tl.load(lane_table + WIDE) > 0
    for side in tl.static_range(2):
        size = tl.load(lane_table + SIZES + side).to(tl.int32)
        tile = tl.where(double, WIDE_BM, BM)
        total = _total(errors, tl.load(lane_table + ERRORS + side), (size + tile - 1) // tile, BLOCK)
        tl.store(found + FINDINGS * place + side, total)
        count = tl.minimum(size, count_samples)
        places = tl.arange(0, COUNT)
        rows = (places.to(tl.int64) * size // count).to(tl.int32)
        inside = places < count
        if (OPENS == 0) | (side == 0):
            at = (side * tl.num_programs(0) + place) * count_samples
            truth = tl.load(samples + at + places, mask=inside, other=0.0)
            said = tl.load(vectors + tl.load(lane_table + LOGS + side) + rows, mask=inside, other=0.0).to(tl.float64)
            missed = tl.where(inside, tl.abs(tl.exp2(said - truth) - 1.0), 0.0)
            mass = tl.load(wide + tl.load(lane_table + MASS + side) + rows, mask=inside, other=0.0)
            off = tl.sum(missed, axis=0) / count
            # Written so that NaN stays NaN, and so that samples of negligible mass alone contribute nothing.
            by_mass = tl.sum(tl.where(mass > 0, mass * missed, 0.0), axis=0) / tl.sum(mass, axis=0)
            off = tl.where(by_mass > off, by_mass, off)
            tl.store(found + FINDINGS * place + 2 + side, off)
            if OPENS:
                doubt = tl.where(off < SINGLE, SINGLE, off) * (WARY * SAFETY)
                doubt = tl.where(doubt < LEAST_DOUBT, LEAST_DOUBT, doubt)
                tl.store(numbers + BAND, tl.load(wide + tl.load(lane_table + NOISE)) + doubt)
