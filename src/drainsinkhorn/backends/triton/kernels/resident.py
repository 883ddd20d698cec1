"""Triton kernel that runs all cycles of a small lane in one program: no launch and no host between two cycles.

It is another way to run what `kernels.update.apply` and `kernels.leg.leg` run for lanes with cached scores: the same
formulas, decisions and guards. A program reads the state of its lane, runs cycles until the lane is held or the launch
has no more, and writes the state back; then the scheduler of the GPU gives its place to the next lane.

What one cycle hands to the next has the precision that memory has between two launches: potentials, their last update
and the three sums of a decision are float64, the measured leg is float32. So k launches of one cycle and one launch of k
cycles give the same bits.

Cached scores of a lane of up to `N x M` points stay in registers if they are one tile; otherwise every leg reads them
from memory, CHUNK rows at a time. Lanes in float64 recompute scores from coordinates in every leg.
"""

# pyright: basic, reportIndexIssue=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false, reportGeneralTypeIssues=false
# Triton reads these functions itself; Python's types mean little inside them.

from __future__ import annotations

import triton
import triton.language as tl

from drainsinkhorn.backends.triton.kernels.columns import (
    AGE,
    ALIGNMENT,
    ALL,
    ASKED,
    BACKOFF,
    BAND,
    BEFORE,
    BEST,
    COOLDOWN,
    DEPTH,
    DIM,
    ERRORS,
    FIELDS,
    FROZEN,
    HELD,
    LOG_MASSES,
    LOG_RATIOS,
    MASS,
    MATRIX,
    NORM,
    NUMBERS,
    POINTS64,
    POTENTIAL,
    RANGE,
    REST,
    ROUNDED,
    ROWS_EXACT,
    SIZE,
    STARTED,
    WEIGHT,
    Constant,
)
from drainsinkhorn.backends.triton.kernels.scores import padded
from drainsinkhorn.backends.triton.kernels.soft import (
    log_add,
    log_asked,
    log_missed,
    log_sum,
    relative_residual,
    soft_shift,
)
from drainsinkhorn.backends.triton.kernels.update import (
    choose_stride,
    deviations,
    is_held,
    leg_prices,
    log_deviations,
    rest_of,
    round_to_grid,
    store_potential,
    update_rule,
)

PARTS = Constant(32)
"""Most parts of a sum that other kernels add up: one for every sixteen points of a side of 512."""


@triton.jit
def _load_scores(points32, points64, fields, rows, inside, cols, near, size, other_size, FLOAT64: tl.constexpr,
                 DENSE: tl.constexpr, ROOTED: tl.constexpr, ROWS: tl.constexpr, M: tl.constexpr):  # fmt: skip
    """Cached log-kernel entries of some rows, zero in padding; with FLOAT64 negative scaled costs, as `float64_leg`."""
    valid = inside[:, None] & near[None, :]
    if FLOAT64:
        if DENSE:
            place = points64 + tl.load(fields + POINTS64) + rows[:, None].to(tl.int64) * other_size + cols[None, :]
            return -tl.load(place, mask=valid, other=0.0)
        else:
            acc = tl.zeros((ROWS, M), dtype=tl.float64)
            own, other = points64 + tl.load(fields + POINTS64), points64 + tl.load(fields + POINTS64 + 1)
            for k in range(tl.load(fields + DIM).to(tl.int32)):
                x = tl.load(own + tl.cast(k, tl.int64) * size + rows, mask=inside, other=0.0)
                y = tl.load(other + tl.cast(k, tl.int64) * other_size + cols, mask=near, other=0.0)
                apart = x[:, None] - y[None, :]
                acc -= apart * apart
            if ROOTED:
                acc = -tl.sqrt(-acc)
            return acc
    else:
        matrix = points32 + tl.multiple_of(tl.load(fields + MATRIX), 64)
        return tl.load(matrix + rows[:, None].to(tl.int64) * padded(other_size) + cols[None, :], mask=valid, other=0.0)


@triton.jit
def _split(value, norm, mass, inside):
    """What legs read of potentials, as `store_potential` stores it: rounded levels, rests and weights.

    Padding has a level at which its terms vanish.
    """
    level = value - norm
    rounded = round_to_grid(level)
    rest, weight = rest_of(level, rounded, mass)
    return tl.where(inside, rounded, -1e30).to(tl.float32), rest, weight


@triton.jit
def _log_sums_scaled(scores, other, weight, AXIS: tl.constexpr):
    """`log2 sum_j w_j 2^(h_j + s_ij)` of rows (AXIS 1) or columns (AXIS 0), the largest term taken out."""
    exponent = scores + tl.expand_dims(other, 1 - AXIS)
    largest = tl.max(exponent, axis=AXIS)
    terms = tl.exp2(exponent - tl.expand_dims(largest, AXIS)) * tl.expand_dims(weight, 1 - AXIS)
    return tl.log2(tl.sum(terms, axis=AXIS)) + largest


@triton.jit
def _is_wild(logs, inside):
    """Whether sums of float32 terms have left the range in which none of them is lost; NaN has."""
    return inside & (((logs < RANGE) & (logs > -RANGE)) == 0)


@triton.jit
def _log_sums(scores, level, other, weight, inside, AXIS: tl.constexpr):
    """`log2 sum_j w_j 2^(h_i + h_j + s_ij)` of rows (AXIS 1) or columns (AXIS 0), with the guard of `leg`."""
    exponent = scores + (tl.expand_dims(level, AXIS) + tl.expand_dims(other, 1 - AXIS))
    logs = tl.log2(tl.sum(tl.exp2(exponent) * tl.expand_dims(weight, 1 - AXIS), axis=AXIS))
    is_wild = _is_wild(logs, inside)
    if tl.max(is_wild.to(tl.int32), axis=0) > 0:
        logs = tl.where(is_wild, _log_sums_scaled(scores, other, weight, AXIS) + level, logs)
    return logs


@triton.jit
def _load_rows(potentials, vectors64, vectors32, fields, rows, inside, FLOAT64: tl.constexpr):
    """Levels and weights of some rows, as terms of sums over rows read them."""
    if FLOAT64:
        level = tl.load(potentials + tl.load(fields + POTENTIAL) + rows, mask=inside, other=-float("inf"))
        weight = tl.load(vectors64 + tl.load(fields + MASS) + rows, mask=inside, other=0.0)
    else:
        level = tl.load(vectors32 + tl.load(fields + ROUNDED) + rows, mask=inside, other=-1e30)
        weight = tl.load(vectors32 + tl.load(fields + WEIGHT) + rows, mask=inside, other=0.0)
    return level, weight


@triton.jit
def _column_sums_by_chunks(points32, points64, potentials, vectors64, vectors32, fields, level, near, size, other_size,
                           FLOAT64: tl.constexpr, DENSE: tl.constexpr, ROOTED: tl.constexpr, M: tl.constexpr,
                           CHUNK: tl.constexpr):  # fmt: skip
    """`_log_sums` of columns, of scores that are loaded or computed CHUNK rows at a time; in float64 without level."""
    cols = tl.arange(0, M)
    if FLOAT64:
        logs, is_wild = tl.zeros((M,), dtype=tl.float64), near
    else:
        total = tl.zeros((M,), dtype=tl.float32)
        for start in range(0, size, CHUNK):
            rows = start + tl.arange(0, CHUNK)
            inside = rows < size
            own, weight = _load_rows(potentials, vectors64, vectors32, fields, rows, inside, FLOAT64)
            scores = _load_scores(points32, points64, fields, rows, inside, cols, near, size, other_size, FLOAT64,
                                  DENSE, ROOTED, CHUNK, M)  # fmt: skip
            total += tl.sum(tl.exp2(scores + (own[:, None] + level[None, :])) * weight[:, None], axis=0)
        logs = tl.log2(total)
        is_wild = _is_wild(logs, near)
    if tl.max(is_wild.to(tl.int32), axis=0) > 0:
        largest = tl.full((M,), -float("inf"), dtype=level.dtype)
        scaled = tl.zeros((M,), dtype=level.dtype)
        for start in range(0, size, CHUNK):
            rows = start + tl.arange(0, CHUNK)
            inside = rows < size
            own, weight = _load_rows(potentials, vectors64, vectors32, fields, rows, inside, FLOAT64)
            scores = _load_scores(points32, points64, fields, rows, inside, cols, near, size, other_size, FLOAT64,
                                  DENSE, ROOTED, CHUNK, M)  # fmt: skip
            exponent = scores + own[:, None]
            new = tl.maximum(largest, tl.max(exponent, axis=0))
            terms = tl.exp2(exponent - new[None, :]) * weight[:, None]
            scaled = scaled * tl.exp2(largest - new) + tl.sum(terms, axis=0)
            largest = new
        logs = tl.where(is_wild, tl.log2(scaled) + (largest + level), logs)
    return logs


@triton.jit
def _no_sums(SOFT: tl.constexpr):
    """Logarithms of three sums without terms; with SOFT as tensors."""
    if SOFT:
        none = tl.cast(-float("inf"), tl.float64)
        return none, none, none
    else:
        return 0.0, 0.0, 0.0


@triton.jit
def _rows_by_chunks(points32, points64, potentials, vectors64, vectors32, fields, other, other_weight, near, size,
                    other_size, written, FLOAT64: tl.constexpr, DENSE: tl.constexpr, ROOTED: tl.constexpr,
                    SOFT: tl.constexpr, CHECKS: tl.constexpr, M: tl.constexpr, CHUNK: tl.constexpr):  # fmt: skip
    """Measure the rows CHUNK at a time and write their leg (with CHECKS, log ratios).

    Returns the sums that `_measure_rows` returns.
    """
    cols = tl.arange(0, M)
    error = tl.zeros((CHUNK,), dtype=tl.float64)
    missed, log_mass, requested_mass = _no_sums(SOFT)
    kappa, lam = leg_prices(vectors64, fields, 0, SOFT)
    for start in range(0, size, CHUNK):
        rows = start + tl.arange(0, CHUNK)
        inside = rows < size
        level, _ = _load_rows(potentials, vectors64, vectors32, fields, rows, inside, FLOAT64)
        scores = _load_scores(points32, points64, fields, rows, inside, cols, near, size, other_size, FLOAT64, DENSE,
                              ROOTED, CHUNK, M)  # fmt: skip
        if FLOAT64:
            logs = _log_sums_scaled(scores, other, other_weight, 1) + level
        else:
            logs = _log_sums(scores, level, other, other_weight, inside, 1)
            logs += tl.load(vectors32 + tl.load(fields + REST) + rows, mask=inside, other=0.0)
        mass = tl.load(vectors64 + tl.load(fields + MASS) + rows, mask=inside, other=0.0)
        if SOFT:
            ratios = logs.to(tl.float64)
            own = tl.load(potentials + tl.load(fields + POTENTIAL) + rows, mask=inside, other=0.0)
            missed = log_add(missed, log_missed(ratios, own, mass, kappa, inside))
            log_mass = log_add(log_mass, log_sum(mass, ratios, inside))
            requested_mass = log_add(requested_mass, log_asked(ratios, own, mass, kappa, lam, inside))
            if CHECKS == 0:
                logs = log_deviations(logs, own, kappa, SOFT)
        else:
            error += deviations(logs, mass.to(logs.dtype), inside).to(tl.float64)
        tl.store(vectors32 + tl.load(fields + LOG_RATIOS) + rows, logs.to(tl.float32), mask=rows < written)
    if SOFT:
        return missed, log_mass, requested_mass
    else:
        return tl.sum(error, axis=0), log_mass, requested_mass


@triton.jit
def _measure_rows(scores, points32, points64, potentials, vectors64, vectors32, fields, rows, inside, near, size,
                  other_size, value, norm, mass, other_value, other_norm, other_mass, written, FLOAT64: tl.constexpr,
                  DENSE: tl.constexpr, ROOTED: tl.constexpr, WHOLE: tl.constexpr, SOFT: tl.constexpr, CHECKS: tl.constexpr,
                  M: tl.constexpr, CHUNK: tl.constexpr):  # fmt: skip
    """Measure the rows: return their leg in float32, zero in padding, and the row residual, followed by two numbers.

    For SOFT lanes the last three numbers are those of `log_missed`, the log2 of the mass of the plan, and `log_asked`.
    Unless scores are WHOLE, the potentials and weights of the rows are read from memory (`_publish_rows`), and the leg
    is written there. With CHECKS, log ratios take the place of the leg.
    """
    if FLOAT64:
        other, weight = tl.where(near, other_value, -float("inf")), other_mass
    else:
        other, _, weight = _split(other_value, other_norm, other_mass, near)
    if WHOLE:
        level, rest, _ = _split(value, norm, mass, inside)
        logs = tl.where(inside, _log_sums(scores, level, other, weight, inside, 1) + rest, 0.0)
        _, log_mass, requested_mass = _no_sums(False)
        if SOFT:
            kappa, lam = leg_prices(vectors64, fields, 0, SOFT)
            ratios = logs.to(tl.float64)
            error = log_missed(ratios, value, mass, kappa, inside)
            log_mass = log_sum(mass, ratios, inside)
            requested_mass = log_asked(ratios, value, mass, kappa, lam, inside)
            if CHECKS == 0:
                logs = tl.where(inside, log_deviations(logs, value, kappa, SOFT), 0.0).to(tl.float32)
        else:
            error = tl.sum(deviations(logs, mass.to(tl.float32), inside).to(tl.float64), axis=0)
    else:
        error, log_mass, requested_mass = _rows_by_chunks(points32, points64, potentials, vectors64, vectors32, fields, other, weight, near, size,
                                other_size, written, FLOAT64, DENSE, ROOTED, SOFT, CHECKS, M, CHUNK)  # fmt: skip
        # The leg was written by other threads of the program than will read them.
        tl.debug_barrier()
        logs = tl.load(vectors32 + tl.load(fields + LOG_RATIOS) + rows, mask=inside, other=0.0)
    return logs, error, log_mass, requested_mass


@triton.jit
def _publish_rows(potentials, vectors64, vectors32, fields, rows, inside, value, FLOAT64: tl.constexpr,
                  SOFT: tl.constexpr):  # fmt: skip
    """Write what legs read of the rows where all threads of the program find it."""
    tl.debug_barrier()
    if FLOAT64 | SOFT:
        tl.store(potentials + tl.load(fields + POTENTIAL) + rows, value, mask=inside)
    if FLOAT64 == 0:
        store_potential(vectors32, vectors32, vectors64, fields, False, rows, inside, value, 0, 0, ALL)
    tl.debug_barrier()


@triton.jit
def _store_sum(vectors64, start, size, total, none):
    """Write a sum of the lane as the first of the parts that other kernels add up, and `none` as the others."""
    parts = tl.arange(0, PARTS)
    tl.store(vectors64 + start + parts, tl.where(parts == 0, total, none), mask=parts * 16 < size)


@triton.jit
def _store_residual(vectors64, fields, side, size, error, log_mass, SOFT: tl.constexpr):
    """Write the residual of a side; of SOFT lanes log2 of what it misses, and of the mass of the plan."""
    start = tl.load(fields + ERRORS + side)
    if SOFT:
        _store_sum(vectors64, start, size, error, -float("inf"))
        _store_sum(vectors64, tl.load(fields + LOG_MASSES + side), size, log_mass, -float("inf"))
    else:
        _store_sum(vectors64, start, size, error, 0.0)


@triton.jit
def _load_lane(table, lane, potentials, vectors64, N: tl.constexpr, M: tl.constexpr):
    """Both sides of a lane as (size, which places are inside, potential, norm, mass)."""
    fields = table + lane * FIELDS
    size, other_size = tl.load(fields + SIZE).to(tl.int32), tl.load(fields + SIZE + 1).to(tl.int32)
    rows, cols = tl.arange(0, N), tl.arange(0, M)
    inside, near = rows < size, cols < other_size
    f = tl.load(potentials + tl.load(fields + POTENTIAL) + rows, mask=inside, other=0.0)
    g = tl.load(potentials + tl.load(fields + POTENTIAL + 1) + cols, mask=near, other=0.0)
    norm = tl.load(vectors64 + tl.load(fields + NORM) + rows, mask=inside, other=0.0)
    other_norm = tl.load(vectors64 + tl.load(fields + NORM + 1) + cols, mask=near, other=0.0)
    mass = tl.load(vectors64 + tl.load(fields + MASS) + rows, mask=inside, other=0.0)
    other_mass = tl.load(vectors64 + tl.load(fields + MASS + 1) + cols, mask=near, other=0.0)
    return size, inside, f, norm, mass, other_size, near, g, other_norm, other_mass


@triton.jit
def measure_rows(table, lanes, points32, points64, vectors64, potentials, vectors32, errors, FLOAT64: tl.constexpr,
                 DENSE: tl.constexpr, ROOTED: tl.constexpr, SOFT: tl.constexpr, CHECKS: tl.constexpr,
                 N: tl.constexpr, M: tl.constexpr, CHUNK: tl.constexpr):  # fmt: skip
    """Measure the rows of every lane at `potentials` (at the offsets POTENTIAL), as `resident` does.

    The leg, or with CHECKS log ratios, is written to `vectors32`, row residuals to `errors`.
    """
    lane = tl.load(lanes + tl.program_id(0))
    fields, rows, cols = table + lane * FIELDS, tl.arange(0, N), tl.arange(0, M)
    whole: tl.constexpr = (CHUNK == N) & (FLOAT64 == 0)
    size, inside, f, norm, mass, other_size, near, g, other_norm, other_mass = _load_lane(
        table, lane, potentials, vectors64, N, M
    )
    scores = size
    if whole:
        scores = _load_scores(points32, points64, fields, rows, inside, cols, near, size, other_size, FLOAT64, DENSE,
                              ROOTED, N, M)  # fmt: skip
    elif FLOAT64 == 0:
        _publish_rows(potentials, vectors64, vectors32, fields, rows, inside, f, FLOAT64, SOFT)
    logs, error, log_mass, requested_mass = _measure_rows(scores, points32, points64, potentials, vectors64, vectors32, fields, rows, inside,
                                near, size, other_size, f, norm, mass, g, other_norm, other_mass, size, FLOAT64,
                                DENSE, ROOTED, whole, SOFT, CHECKS, M, CHUNK)  # fmt: skip
    if whole:
        tl.store(vectors32 + tl.load(fields + LOG_RATIOS) + rows, logs, mask=inside)
    _store_residual(errors, fields, 0, size, error, log_mass, SOFT)
    if SOFT:
        _store_sum(errors, tl.load(fields + ASKED), size, requested_mass, -float("inf"))


@triton.jit(do_not_specialize=["cycles", "first", "lockstep"])
def resident(table, lanes, state, points32, points64, vectors64, vectors32, stops, halted, cycles, first, lockstep,
             FLOAT64: tl.constexpr, DENSE: tl.constexpr, ROOTED: tl.constexpr, MOMENTUM: tl.constexpr,
             SOFT: tl.constexpr, N: tl.constexpr, M: tl.constexpr, CHUNK: tl.constexpr):  # fmt: skip
    """Run up to `cycles` cycles of every lane: each applies the measured f-leg, runs the g-leg, measures the next one.

    A lane is held at the first measured leg that passes its stop, but for the `first` cycle of a call, which always
    runs. In `lockstep` a launch has one cycle: lanes do nothing if the first flag of `halted` is set, and a lane that
    passes sets the second one. Frozen lanes are computed and not written.
    """
    lane = tl.load(lanes + tl.program_id(0))
    if (lockstep > 0) & (tl.load(halted) > 0):
        return
    fields, numbers, rows, cols = table + lane * FIELDS, state + lane * NUMBERS, tl.arange(0, N), tl.arange(0, M)
    whole: tl.constexpr = (CHUNK == N) & (FLOAT64 == 0)
    size, inside, f, norm, mass, other_size, near, g, other_norm, other_mass = _load_lane(
        table, lane, vectors64, vectors64, N, M
    )
    scores = size
    if whole:
        scores = _load_scores(points32, points64, fields, rows, inside, cols, near, size, other_size, FLOAT64, DENSE,
                              ROOTED, N, M)  # fmt: skip
    before = tl.load(vectors64 + tl.load(fields + BEFORE) + rows, mask=inside, other=0.0)
    logs = tl.load(vectors32 + tl.load(fields + LOG_RATIOS) + rows, mask=inside, other=0.0)
    error, other_error = (
        tl.load(vectors64 + tl.load(fields + ERRORS)),
        tl.load(vectors64 + tl.load(fields + ERRORS + 1)),
    )
    alignment = tl.load(vectors64 + tl.load(fields + ALIGNMENT))
    # A name of its own: a variable of the loop below keeps its type.
    _row_kappa, lam = leg_prices(vectors64, fields, 0, SOFT)
    other_kappa, other_lam = leg_prices(vectors64, fields, 1, SOFT)
    if SOFT:
        # Both residuals are in memory as logarithms.
        missed, other_missed = error, other_error
        log_mass, other_log_mass = (
            tl.load(vectors64 + tl.load(fields + LOG_MASSES)),
            tl.load(vectors64 + tl.load(fields + LOG_MASSES + 1)),
        )
        requested_mass = tl.load(vectors64 + tl.load(fields + ASKED))
        error, other_error = relative_residual(missed, log_mass), relative_residual(other_missed, other_log_mass)
    depth, started = tl.load(numbers + DEPTH), tl.load(numbers + STARTED) > 0
    age, best = tl.load(numbers + AGE), tl.load(numbers + BEST)
    cooldown, backoff = tl.load(numbers + COOLDOWN), tl.load(numbers + BACKOFF)
    rows_exact, frozen = tl.load(numbers + ROWS_EXACT) > 0, tl.load(numbers + FROZEN) > 0
    # Of a frozen lane nothing is written.
    written = tl.where(frozen, 0, size)
    band, stop = tl.load(numbers + BAND), tl.load(stops + lane)
    # Before the first cycle the columns have not been measured, and their residual is zero in memory.
    held = (first == 0) & ((tl.load(numbers + HELD) > 0) | is_held(error + 0.0 * other_error + band, stop))
    done, running = 0 * size, (cycles > 0) & ((held == 0) | frozen)
    while running:
        error += 0.0 * other_error
        step, beta = tl.cast(1.0, tl.float64), tl.cast(0.0, tl.float64)
        if MOMENTUM:
            age, best, cooldown, backoff, rows_exact, step, beta = choose_stride(
                started, age, best, cooldown, backoff, rows_exact, error, other_error, alignment
            )
        value, x = update_rule(f, logs.to(tl.float64), before, step, beta, lam, False, SOFT)
        if SOFT & MOMENTUM:
            shift = soft_shift(vectors64, fields, requested_mass, log_mass, started)
            value, x, g = value + lam * shift, x + lam * shift, g - shift
        # A state that is not finite is not entered, and none after it.
        finite = tl.abs(value) + tl.abs(x) + error < float("inf")
        f, before = tl.where(finite, value, f), tl.where(finite, x, before)
        if FLOAT64:
            _publish_rows(vectors64, vectors64, vectors32, fields, rows, rows < written, f, FLOAT64, SOFT)
            other_logs = _column_sums_by_chunks(
                points32, points64, vectors64, vectors64, vectors32, fields, g, near, size, other_size, FLOAT64,
                DENSE, ROOTED, M, CHUNK,
            )  # fmt: skip
        else:
            other_level, other_rest, _ = _split(g, other_norm, other_mass, near)
            if whole:
                level, _, weight = _split(f, norm, mass, inside)
                other_logs = _log_sums(scores, other_level, level, weight, near, 0)
            else:
                _publish_rows(vectors64, vectors64, vectors32, fields, rows, rows < written, f, FLOAT64, SOFT)
                other_logs = _column_sums_by_chunks(
                    points32, points64, vectors64, vectors64, vectors32, fields, other_level, near, size, other_size,
                    FLOAT64, DENSE, ROOTED, M, CHUNK,
                )  # fmt: skip
            other_logs += other_rest
        other_logs = tl.where(near, other_logs, 0.0)
        if SOFT:
            ratios = other_logs.to(tl.float64)
            other_missed = log_missed(ratios, g, other_mass, other_kappa, near)
            other_log_mass = log_sum(other_mass, ratios, near)
            other_error = relative_residual(other_missed, other_log_mass)
        else:
            off = deviations(other_logs, other_mass.to(other_logs.dtype), near)
            other_error = tl.sum(off.to(tl.float64), axis=0)
        other_leg = log_deviations(other_logs, g, other_kappa, SOFT).to(tl.float64)
        other_value, _ = update_rule(g, other_leg, g, 1.0, 0.0, other_lam, True, SOFT)
        g = tl.where(tl.abs(other_value) < float("inf"), other_value, g)
        logs, error, new_log_mass, new_asked = _measure_rows(
            scores, points32, points64, vectors64, vectors64, vectors32, fields, rows, inside, near, size, other_size, f,
            norm, mass, g, other_norm, other_mass, written, FLOAT64, DENSE, ROOTED, whole, SOFT, False, M, CHUNK,
        )  # fmt: skip
        leg = logs.to(tl.float64)
        if SOFT:
            missed, log_mass, requested_mass = error, new_log_mass, new_asked
            error = relative_residual(missed, log_mass)
        alignment = -tl.sum(tl.where(inside, mass * leg * (f - before), 0.0), axis=0)
        depth += 1.0
        started = started | (done == done)
        done += 1
        held = is_held(error + 0.0 * other_error + band, stop)
        running = (done < cycles) & ((held == 0) | frozen)
    if frozen == 0:
        tl.store(vectors64 + tl.load(fields + POTENTIAL) + rows, f, mask=inside)
        tl.store(vectors64 + tl.load(fields + POTENTIAL + 1) + cols, g, mask=near)
        tl.store(vectors64 + tl.load(fields + BEFORE) + rows, before, mask=inside)
        if whole:
            tl.store(vectors32 + tl.load(fields + LOG_RATIOS) + rows, logs, mask=inside)
        if SOFT:
            _store_residual(vectors64, fields, 0, size, missed, log_mass, SOFT)
            _store_residual(vectors64, fields, 1, other_size, other_missed, other_log_mass, SOFT)
            _store_sum(vectors64, tl.load(fields + ASKED), size, requested_mass, -float("inf"))
        else:
            _store_residual(vectors64, fields, 0, size, error, error, SOFT)
            _store_residual(vectors64, fields, 1, other_size, other_error, other_error, SOFT)
        _store_sum(vectors64, tl.load(fields + ALIGNMENT), size, alignment, 0.0)
        tl.store(numbers + DEPTH, depth)
        tl.store(numbers + AGE, age)
        tl.store(numbers + BEST, best)
        tl.store(numbers + COOLDOWN, cooldown)
        tl.store(numbers + BACKOFF, backoff)
        tl.store(numbers + ROWS_EXACT, rows_exact.to(tl.float64))
        tl.store(numbers + STARTED, started.to(tl.float64))
        tl.store(numbers + HELD, held.to(tl.float64))
        if (lockstep > 0) & held:
            tl.store(halted + 1, 1)
