"""Triton kernels of lanes: what is decided of them between legs, and how their states are staged, settled and told."""

# pyright: basic, reportIndexIssue=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false, reportGeneralTypeIssues=false
# Triton reads these functions itself; Python's types mean little inside them.

from __future__ import annotations

import triton
import triton.language as tl

from drainsinkhorn.backends.triton.kernels import (
    AGE,
    ALONG,
    BACKOFF,
    BAND,
    BEFORE,
    BEST,
    BUDGET,
    COOLDOWN,
    DEPTH,
    ERRORS,
    FAST,
    FIELDS,
    FROZEN,
    GROWTH,
    HELD,
    LEADING,
    LOGS,
    MAX_BACKOFF,
    NUMBERS,
    OFFSET,
    POTENTIAL,
    ROWS_EXACT,
    SIZES,
    STARTED,
    STEP,
    UNIT,
    WIDE,
    _believed,
    _folds,
    _leading,
    _split,
    _stale,
    _tiles,
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
    lane_table, numbers, then = table + lane * FIELDS, state + lane * NUMBERS, after + lane * NUMBERS
    size = tl.load(lane_table + SIZES).to(tl.int32)
    if tl.program_id(0) * ROWS >= size:
        return
    lead = tl.program_id(0) == 0
    columns = tl.arange(0, NUMBERS)
    all_numbers = tl.load(numbers + columns)
    frozen, was_held = tl.load(numbers + FROZEN) > 0, tl.load(numbers + HELD) > 0
    row_tiles, col_tiles = _tiles(lane_table, BM, WIDE_BM, 0), _tiles(lane_table, BM, WIDE_BM, 1)
    error = _total(wide, tl.load(lane_table + ERRORS), row_tiles, BLOCK)
    other_error = _total(wide, tl.load(lane_table + ERRORS + 1), col_tiles, BLOCK)
    along = _total(wide, tl.load(lane_table + ALONG), row_tiles, BLOCK)
    started = tl.load(numbers + STARTED) > 0
    # Before the first cycle the columns have not been measured.
    error += tl.where(started, other_error * 0.0, 0.0)
    leading, stop = _leading(lane_table, numbers), tl.load(stops + lane)
    stale = _believed(error + tl.load(numbers + BAND), leading)
    leading = tl.where(error > leading, leading, 0.0)
    # The first cycle of a call always runs, so that a lane whose verify was rejected moves on.
    passes = (stop > -float("inf")) & ((stale > stop) == 0)
    held = (was_held | passes) & (FIRST == 0)
    stopped = (tl.load(halted) > 0) | (tl.load(halted + 1) > 0)
    if stopped:
        tl.store(halted, 1)
    if frozen | held | stopped:
        if lead:
            kept = tl.where(columns == HELD, tl.where(held & (frozen == 0), 1.0, 0.0), all_numbers)
            tl.store(then + columns, kept)
        return
    age, best = tl.load(numbers + AGE), tl.load(numbers + BEST)
    cooldown, backoff = tl.load(numbers + COOLDOWN), tl.load(numbers + BACKOFF)
    rows_exact = tl.load(numbers + ROWS_EXACT) > 0
    step, beta = 1.0, 0.0
    if MOMENTUM:
        bad = started & (age > 0) & ((error <= GROWTH * best) == 0)
        best = tl.where(started & (error < best), error, best)
        cooldown = tl.where(bad, tl.exp2(backoff), cooldown)
        backoff = tl.where(bad, tl.minimum(backoff + 1.0, MAX_BACKOFF), backoff)
        fast = rows_exact & (error * error < FAST * other_error * other_error)
        restart = (age > 0) & (along < 0)
        plain = (started == 0) | bad | (cooldown > 0) | fast | restart
        cooldown = tl.where(started & (bad == 0) & (cooldown > 0), cooldown - 1.0, cooldown)
        age = tl.where(plain, 0.0, age + 1.0)
        step = tl.where(plain, 1.0, STEP)
        beta = tl.where(plain, 0.0, age / (age + OFFSET))
        rows_exact = plain
        # All products may find a larger residual at first, which tells nothing of the momentum.
        best = tl.where(leading < tl.load(numbers + LEADING), float("inf"), best)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < size
    logs = tl.load(vectors + tl.load(lane_table + LOGS) + rows, mask=inside, other=0.0).to(tl.float64)
    here = tl.load(wide + tl.load(lane_table + POTENTIAL) + rows, mask=inside, other=0.0)
    before = tl.load(wide + tl.load(lane_table + BEFORE) + rows, mask=inside, other=0.0)
    x = here - step * logs
    value = x + beta * (x - before)
    # Neither is a state that is not finite entered, nor one after it.
    finite = tl.abs(value) + tl.abs(x) + error < float("inf")
    value, x = tl.where(finite, value, here), tl.where(finite, x, before)
    tl.store(wide + tl.load(lane_table + BEFORE) + rows, x, mask=inside)
    tl.store(wide + tl.load(lane_table + POTENTIAL) + rows, value, mask=inside)
    folded = _folds(lane_table, leading)
    _split(half, vectors, wide, lane_table, folded, rows, inside, value, 0, SLOT, PACKED)
    if lead:
        kept = tl.where(columns == DEPTH, all_numbers + 1.0, all_numbers)
        kept = tl.where(columns == AGE, age, kept)
        kept = tl.where(columns == BEST, best, kept)
        kept = tl.where(columns == COOLDOWN, cooldown, kept)
        kept = tl.where(columns == BACKOFF, backoff, kept)
        kept = tl.where(columns == ROWS_EXACT, rows_exact.to(tl.float64), kept) if MOMENTUM else kept
        kept = tl.where(columns == STARTED, 1.0, kept)
        kept = tl.where(columns == LEADING, leading, kept)
        kept = tl.where(columns == HELD, 0.0, kept)
        tl.store(then + columns, kept)


@triton.jit
def look(table, live, state, wide, report, BM: tl.constexpr, WIDE_BM: tl.constexpr, BLOCK: tl.constexpr):
    """Depth and stale residual of every lane into `report`."""
    place = tl.program_id(0)
    lane = tl.load(live + place)
    lane_table, numbers = table + lane * FIELDS, state + lane * NUMBERS
    tl.store(report + 2 * place, tl.load(numbers + DEPTH))
    tl.store(report + 2 * place + 1, _stale(lane_table, numbers, wide, BM, WIDE_BM, BLOCK))


@triton.jit
def stage(table, live, state, potentials, half, vectors, wide, legs, out, SIDE: tl.constexpr, ROWS: tl.constexpr,
          SLOT: tl.constexpr, PACKED: tl.constexpr, AFTER: tl.constexpr):  # fmt: skip
    """Split given potentials (float64, laid out by POTENTIAL) into h, l and w.

    With AFTER those after the f-leg in `legs`, which are kept in `out`.
    """
    lane = tl.load(live + tl.program_id(1))
    lane_table = table + lane * FIELDS
    size = tl.load(lane_table + SIZES + SIDE).to(tl.int32)
    first = tl.program_id(0) * ROWS
    if first >= size:
        return
    rows = first + tl.arange(0, ROWS)
    inside = rows < size
    value = tl.load(potentials + tl.load(lane_table + POTENTIAL + SIDE) + rows, mask=inside, other=0.0)
    if AFTER:
        if SIDE == 0:
            value -= tl.load(legs + tl.load(lane_table + LOGS) + rows, mask=inside, other=0.0).to(tl.float64)
        tl.store(out + tl.load(lane_table + POTENTIAL + SIDE) + rows, value, mask=inside)
    folded = _folds(lane_table, _leading(lane_table, state + lane * NUMBERS))
    _split(half, vectors, wide, lane_table, folded, rows, inside, value, SIDE, SLOT, PACKED)


@triton.jit
def settle(table, live, state, wide, potentials, given, found,
           ROWS: tl.constexpr, BM: tl.constexpr, WIDE_BM: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """The states of lanes as they will be emitted, in units of the cost (`given`) and in bits (`potentials`).

    They are rounded to float32 where that moves them by less than the lane's BUDGET. `found` tells in column 4 whether
    they were, in column 5 whether the lane's residual is no number.
    """
    place = tl.program_id(0)
    lane = tl.load(live + place)
    lane_table, numbers = table + lane * FIELDS, state + lane * NUMBERS
    unit = tl.load(numbers + UNIT)
    moved = 0.0 * unit
    for side in tl.static_range(2):
        size, start = tl.load(lane_table + SIZES + side).to(tl.int32), tl.load(lane_table + POTENTIAL + side)
        farthest = tl.zeros((ROWS,), dtype=tl.float64)
        for first in range(0, size, ROWS):
            rows = first + tl.arange(0, ROWS)
            value = tl.load(wide + start + rows, mask=rows < size, other=0.0) * unit
            farthest = tl.maximum(farthest, tl.abs(value.to(tl.float32).to(tl.float64) - value))
        moved += tl.max(farthest, axis=0)
    single = moved <= tl.load(numbers + BUDGET)
    for side in tl.static_range(2):
        size, start = tl.load(lane_table + SIZES + side).to(tl.int32), tl.load(lane_table + POTENTIAL + side)
        for first in range(0, size, ROWS):
            rows = first + tl.arange(0, ROWS)
            value = tl.load(wide + start + rows, mask=rows < size, other=0.0) * unit
            value = tl.where(single, value.to(tl.float32).to(tl.float64), value)
            tl.store(given + start + rows, value, mask=rows < size)
            tl.store(potentials + start + rows, value / unit, mask=rows < size)
    stale = _stale(lane_table, numbers, wide, BM, WIDE_BM, BLOCK)
    tl.store(found + 6 * place + 4, tl.where(single, 1.0, 0.0).to(tl.float64))
    tl.store(found + 6 * place + 5, tl.where(stale == stale, 0.0, 1.0).to(tl.float64))


@triton.jit
def checked(table, live, errors, vectors, samples, found, count_samples, DOUBLE: tl.constexpr,
            BM: tl.constexpr, WIDE_BM: tl.constexpr, BLOCK: tl.constexpr, COUNT: tl.constexpr):  # fmt: skip
    """Both residuals of checked lanes, and by how much sampled rows of each side are off in the mean.

    The mean over rows bounds what their errors do to the residual.
    """
    place = tl.program_id(0)
    lane_table = table + tl.load(live + place) * FIELDS
    double = (tl.load(lane_table + WIDE) > 0) | DOUBLE
    for side in tl.static_range(2):
        size = tl.load(lane_table + SIZES + side).to(tl.int32)
        tile = tl.where(double, WIDE_BM, BM)
        total = _total(errors, tl.load(lane_table + ERRORS + side), (size + tile - 1) // tile, BLOCK)
        tl.store(found + 6 * place + side, total)
        count = tl.minimum(size, count_samples)
        places = tl.arange(0, COUNT)
        rows = (places.to(tl.int64) * size // count).to(tl.int32)
        inside = places < count
        truth = tl.load(samples + (side * tl.num_programs(0) + place) * count_samples + places, mask=inside, other=0.0)
        said = tl.load(vectors + tl.load(lane_table + LOGS + side) + rows, mask=inside, other=0.0).to(tl.float64)
        off = tl.abs(tl.exp2(said - truth) - 1.0)
        tl.store(found + 6 * place + 2 + side, tl.sum(tl.where(inside, off, 0.0), axis=0) / count)
