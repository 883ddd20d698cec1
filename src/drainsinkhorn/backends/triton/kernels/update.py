"""Triton kernels between legs: step and beta of each lane, the update of f, and reports to the host.

Potentials are in bits, f / (eps ln 2). Legs read a potential as a multiple of 1 / GRID, such that the sum of two is
exact in float32, and its rest, which goes into the weights of the other side and into the measured log ratios (see
`kernels.leg`).

A cycle is three launches for all lanes: `apply` (adds up the residual of the measured f-leg, holds lanes that passed,
decides step and beta, updates f), `leg` on the columns (measures and applies) and `leg` on the rows (measures). For
small lanes legs on the rows are fused: their last program does what `apply` would do next, and a cycle is two launches.
Kernels find lanes by their rows of the lane table, so a narrower pack is a narrower grid, and nothing is moved.
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
    AUGMENTED,
    BACKOFF,
    BAND,
    BEFORE,
    BEST,
    COOLDOWN,
    DAMPING,
    DEPTH,
    ERRORS,
    FAST,
    FIELDS,
    FLOAT16_MOST,
    FLOAT64,
    FROZEN,
    GRID,
    GROWTH,
    HELD,
    KAPPA,
    LOG_RATIOS,
    MASS,
    MAX_BACKOFF,
    NORM,
    NUMBERS,
    OFFSET,
    ONLY_AUGMENTED,
    POINTS16,
    POTENTIAL,
    REPORT,
    REPORT_BAND,
    REPORT_DEPTH,
    REPORT_HELD,
    REPORT_STALE,
    REST,
    ROOMY,
    ROUNDED,
    ROWS_EXACT,
    SIZE,
    STARTED,
    STEP,
    SWITCH,
    TRIPLE_ROWS,
    WEIGHT,
)
from drainsinkhorn.backends.triton.kernels.scores import high_low
from drainsinkhorn.backends.triton.kernels.soft import is_soft, log_sum_parts, price, soft_residual, soft_shift


@triton.jit
def sum_parts(vectors64, start, count, BLOCK: tl.constexpr):
    """The sum of `count` partial sums from `start` on, always in the same order."""
    total = tl.zeros((BLOCK,), dtype=tl.float64)
    for first in range(0, count, BLOCK):
        places = first + tl.arange(0, BLOCK)
        # Programs of the same launch may have written them: the L1 cache does not see that.
        total += tl.load(vectors64 + start + places, mask=places < count, other=0.0, cache_modifier=".cg")
    return tl.sum(total, axis=0)


@triton.jit
def rows_of_tile(fields, BM: tl.constexpr, BM64: tl.constexpr):
    """Rows of a tile of a lane."""
    arithmetic = tl.load(fields + FLOAT64)
    return tl.where(arithmetic > 1, TRIPLE_ROWS, tl.where(arithmetic > 0, BM64, BM))


@triton.jit
def count_tiles(fields, BM: tl.constexpr, BM64: tl.constexpr, SIDE: tl.constexpr):
    """Number of tiles of rows of a side: of BM rows in float32, of BM64 in float64, of TRIPLE_ROWS in three parts."""
    size = tl.load(fields + SIZE + SIDE).to(tl.int32)
    tile = rows_of_tile(fields, BM, BM64)
    return (size + tile - 1) // tile


@triton.jit
def switch_residual(fields, numbers):
    """The residual at which a lane switches from float16 high parts to all products; 0 if it has switched."""
    return tl.where(tl.load(fields + FLOAT64) > 0, 0.0, tl.load(numbers + SWITCH))


@triton.jit
def is_augmented(fields, switch):
    """Whether potentials are inside the product: for some lanes always, for others as long as they use high parts."""
    return (tl.load(fields + AUGMENTED) > 0) | (switch > 0)


@triton.jit
def at_least_switch(stale, switch):
    """A stale residual; high parts do not measure residuals below the one at which the lane switches."""
    return tl.where(stale < switch, switch, stale)


@triton.jit
def is_held(stale, stop):
    """Whether a lane is held at a stale residual (`core.protocol.is_held`): NaN is; with a stop of -inf no lane is."""
    return (stop > -float("inf")) & ((stale > stop) == 0)


@triton.jit
def side_residual(errors, fields, side, tiles, SOFT: tl.constexpr, BLOCK: tl.constexpr):
    """The residual of a side from the parts that its leg has written; with SOFT lanes may have soft marginals."""
    if SOFT:
        if is_soft(fields):
            residual, _ = soft_residual(errors, fields, side, tiles, BLOCK)
        else:
            residual = sum_parts(errors, tl.load(fields + ERRORS + side), tiles, BLOCK)
        return residual
    else:
        return sum_parts(errors, tl.load(fields + ERRORS + side), tiles, BLOCK)


@triton.jit
def stale_residual(fields, numbers, vectors64, SOFT: tl.constexpr, BM: tl.constexpr, BM64: tl.constexpr,
                   BLOCK: tl.constexpr):  # fmt: skip
    """The stale residual of a lane, its band included; NaN if the column residual is not finite."""
    error = side_residual(vectors64, fields, 0, count_tiles(fields, BM, BM64, 0), SOFT, BLOCK)
    if tl.load(numbers + STARTED) > 0:
        error += 0.0 * side_residual(vectors64, fields, 1, count_tiles(fields, BM, BM64, 1), SOFT, BLOCK)
    return at_least_switch(error + tl.load(numbers + BAND), switch_residual(fields, numbers))


@triton.jit
def update_rule(potentials, deviations, before, step, beta, lam, PLAIN: tl.constexpr, SOFT: tl.constexpr):
    """Implements `numerics.update.update` in bits: x = f - step lam L, f <- x + beta (x - before).

    Returns the new f, and x. PLAIN is step 1 and beta 0. The deviations are L (`log_deviations`); without SOFT lam is 1.
    """
    if SOFT:
        deviations = lam * deviations
    if PLAIN:
        x = potentials - deviations
        return x, x
    else:
        x = potentials - step * deviations
        return x + beta * (x - before), x


@triton.jit
def leg_prices(vectors64, fields, side, SOFT: tl.constexpr):
    """Kappa in bits, and lam, of a side of a lane."""
    if SOFT:
        return price(vectors64, fields, KAPPA + side), price(vectors64, fields, DAMPING + side)
    else:
        return 0.0, 1.0


@triton.jit
def log_deviations(logs, potentials, kappa, SOFT: tl.constexpr):
    """Implements `numerics.soft.log_deviations` in bits, from log2 of ratios: `L = log r + kappa f` with SOFT.

    At the optimum the log ratios of soft lanes are `-kappa f`, and L is zero. So float32 holds L to a small part of the
    residual, as it holds the log ratios of hard lanes.
    """
    if SOFT:
        return logs.to(tl.float64) + kappa * potentials
    else:
        return logs


@triton.jit
def choose_stride(started, age, best, cooldown, backoff, rows_exact, error, other_error, alignment):
    """Implements `numerics.update.Momentum.stride`: the numbers of a lane after its measured f-leg, step and beta."""
    bad = started & (age > 0) & ((error <= best * GROWTH) == 0)
    best = tl.where(started & (error < best), error, best)
    cooldown = tl.where(bad, tl.exp2(backoff), cooldown)
    backoff = tl.where(bad, tl.minimum(backoff + 1.0, MAX_BACKOFF), backoff)
    fast = rows_exact & (error * error < other_error * FAST * other_error)
    restart = (age > 0) & (alignment < 0)
    plain = (started == 0) | bad | (cooldown > 0) | fast | restart
    cooldown = tl.where(started & (bad == 0) & (cooldown > 0), cooldown - 1.0, cooldown)
    age = tl.where(plain, 0.0, age + 1.0)
    step = tl.where(plain, 1.0, STEP)
    beta = tl.where(plain, 0.0, age / (age + OFFSET))
    return age, best, cooldown, backoff, plain, step, beta


@triton.jit
def deviations(logs, mass, inside):
    """Return `a_i |rho_i - 1|` (`numerics.residual.residual`) from log2 of marginal ratios, zero for rows not inside.

    Ratios beyond float32 count as 1e30; written so that NaN stays NaN.
    """
    off = mass * tl.abs(tl.where(logs > 99.0, 1e30, tl.exp2(logs) - 1.0))
    if logs.dtype == tl.float64:
        # Only float64 lanes have weights so small that such a ratio still contributes little to the residual.
        part = tl.exp2(tl.minimum(tl.log2(tl.where(inside, mass, 1.0)) + logs, 99.0))
        off = tl.where(logs > 99.0, part, off)
    return tl.where(inside, off, 0.0)


@triton.jit
def decide(fields, numbers, vectors64, stop, stopped, FIRST: tl.constexpr, MOMENTUM: tl.constexpr, SOFT: tl.constexpr,
           BM: tl.constexpr, BM64: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Decide whether a lane whose f-leg is measured is idle, and with which step and beta the leg is applied.

    Returns whether the lane is idle (frozen, held or stopped), its row residual, step, beta, the translation of SOFT
    lanes, the residual at which it switches precision, and its numbers after the leg. In the FIRST cycle of a call no
    lane is held, so that a lane whose verify was rejected moves on.
    """
    columns = tl.arange(0, NUMBERS)
    known = tl.load(numbers + columns)
    frozen, was_held = tl.load(numbers + FROZEN) > 0, tl.load(numbers + HELD) > 0
    row_tiles, col_tiles = count_tiles(fields, BM, BM64, 0), count_tiles(fields, BM, BM64, 1)
    if SOFT:
        error, log_mass = soft_residual(vectors64, fields, 0, row_tiles, BLOCK)
        other_error, _ = soft_residual(vectors64, fields, 1, col_tiles, BLOCK)
    else:
        error = sum_parts(vectors64, tl.load(fields + ERRORS), row_tiles, BLOCK)
        other_error = sum_parts(vectors64, tl.load(fields + ERRORS + 1), col_tiles, BLOCK)
    alignment = sum_parts(vectors64, tl.load(fields + ALIGNMENT), row_tiles, BLOCK)
    started = tl.load(numbers + STARTED) > 0
    # Before the first cycle the columns have not been measured.
    error += tl.where(started, other_error * 0.0, 0.0)
    switch = switch_residual(fields, numbers)
    stale = at_least_switch(error + tl.load(numbers + BAND), switch)
    switch = tl.where(error > switch, switch, 0.0)
    held = (was_held | is_held(stale, stop)) & (FIRST == 0)
    is_idle = frozen | held | stopped
    age, best = tl.load(numbers + AGE), tl.load(numbers + BEST)
    cooldown, backoff = tl.load(numbers + COOLDOWN), tl.load(numbers + BACKOFF)
    rows_exact = tl.load(numbers + ROWS_EXACT) > 0
    step, beta = tl.cast(1.0, tl.float64), tl.cast(0.0, tl.float64)
    shift = 0.0
    if SOFT & MOMENTUM:
        requested_mass = log_sum_parts(vectors64, tl.load(fields + ASKED), row_tiles, BLOCK)
        shift = soft_shift(vectors64, fields, requested_mass, log_mass, started)
    if MOMENTUM:
        age, best, cooldown, backoff, rows_exact, step, beta = choose_stride(
            started, age, best, cooldown, backoff, rows_exact, error, other_error, alignment
        )
        # All products may find a larger residual at first, which tells nothing of the momentum.
        best = tl.where(switch < tl.load(numbers + SWITCH), float("inf"), best)
    after = tl.where(columns == DEPTH, known + 1.0, known)
    after = tl.where(columns == AGE, age, after)
    after = tl.where(columns == BEST, best, after)
    after = tl.where(columns == COOLDOWN, cooldown, after)
    after = tl.where(columns == BACKOFF, backoff, after)
    after = tl.where(columns == ROWS_EXACT, rows_exact.to(tl.float64), after)
    after = tl.where(columns == STARTED, 1.0, after)
    after = tl.where(columns == SWITCH, switch, after)
    after = tl.where(is_idle, known, after)
    after = tl.where(columns == HELD, tl.where(held & (frozen == 0), 1.0, 0.0), after)
    return is_idle, error, step, beta, shift, switch, after


@triton.jit
def round_to_grid(level):
    """Potentials in bits, rounded to multiples of 1 / GRID."""
    return tl.floor(level * GRID + 0.5) * (1.0 / GRID)


@triton.jit
def rest_of(level, rounded, mass):
    """What rounding took from potentials, and the weights with which their points enter sums of the other side."""
    rest = (level - rounded).to(tl.float32)
    return rest, mass.to(tl.float32) * tl.exp2(rest)


@triton.jit
def store_potential(points16, vectors32, vectors64, fields, augmented, rows, inside, value, side, PLACES: tl.constexpr,
                    NORMS: tl.constexpr):  # fmt: skip
    """Store what legs read of potentials: their rounded parts, the rests, and the weights in sums of the other side.

    PLACES is the number of coordinates of a chunk that has places for potentials, else 0; rounded parts of augmented
    lanes are stored there as well. NORMS says whose potentials carry the norms of points.
    """
    mass = tl.load(vectors64 + tl.load(fields + MASS + side) + rows, mask=inside, other=0.0)
    norm = tl.load(vectors64 + tl.load(fields + NORM + side) + rows, mask=inside, other=0.0)
    if NORMS != ALL:
        carried = tl.load(fields + FLOAT64) > 1
        if NORMS == ONLY_AUGMENTED:
            carried = carried | augmented
        norm = tl.where(carried, norm, 0.0)
    level = value - norm
    rounded = round_to_grid(level)
    if (NORMS == ONLY_AUGMENTED) | (PLACES > 0):
        if augmented:
            # Two float16 parts hold a rounded potential below 2^13 exactly; what they lose of a larger one goes to the
            # rest.
            high, low = high_low(tl.minimum(tl.maximum(rounded, -FLOAT16_MOST), FLOAT16_MOST).to(tl.float32))
            rounded = (high.to(tl.float32) + low.to(tl.float32)).to(tl.float64)
            if PLACES > 0:
                place = points16 + tl.load(fields + POINTS16 + side)
                if NORMS == ONLY_AUGMENTED:
                    place += rows.to(tl.int64) * 16 + (12 + 2 * side)
                    beside = place + 1
                elif PLACES == ROOMY:
                    place += rows.to(tl.int64) * (2 * PLACES) + (PLACES - 4 + 2 * side)
                    beside = place + 1
                else:
                    place += rows.to(tl.int64) * (2 * PLACES) + (PLACES - 1)
                    beside = place + PLACES
                tl.store(place, high, mask=inside)
                tl.store(beside, low, mask=inside)
    rest, weight = rest_of(level, rounded, mass)
    tl.store(vectors32 + tl.load(fields + ROUNDED + side) + rows, rounded.to(tl.float32), mask=inside)
    tl.store(vectors32 + tl.load(fields + REST + side) + rows, rest, mask=inside)
    tl.store(vectors32 + tl.load(fields + WEIGHT + side) + rows, weight, mask=inside)


@triton.jit
def load_leg(vectors32, fields, rows, inside, side):
    """The leg that was measured last, in float64.

    For points in three parts, WEIGHT holds what rounding LOG_RATIOS to float32 removed; it is added again.
    """
    # Programs of the same launch may have written the ratios: the L1 cache does not see that.
    ratios = vectors32 + tl.load(fields + LOG_RATIOS + side) + rows
    leg = tl.load(ratios, mask=inside, other=0.0, cache_modifier=".cg").to(tl.float64)
    if tl.load(fields + FLOAT64) > 1:
        lost = vectors32 + tl.load(fields + WEIGHT + side) + rows
        leg += tl.load(lost, mask=inside, other=0.0, cache_modifier=".cg").to(tl.float64)
    return leg


@triton.jit
def apply_leg(points16, vectors32, vectors64, fields, rows, size, error, step, beta, shift, switch,
              PLACES: tl.constexpr, NORMS: tl.constexpr, SOFT: tl.constexpr, MOMENTUM: tl.constexpr):  # fmt: skip
    """Apply the measured f-leg to `rows` by the update rule, and store what legs read of their new potentials.

    Lanes that are SOFT are also translated by `shift`: their columns at the same places are stored as well.
    """
    inside = rows < size
    leg = load_leg(vectors32, fields, rows, inside, 0)
    here = tl.load(vectors64 + tl.load(fields + POTENTIAL) + rows, mask=inside, other=0.0)
    before = tl.load(vectors64 + tl.load(fields + BEFORE) + rows, mask=inside, other=0.0)
    _, lam = leg_prices(vectors64, fields, 0, SOFT)
    value, x = update_rule(here, leg, before, step, beta, lam, False, SOFT)
    if SOFT & MOMENTUM:
        value, x = value + lam * shift, x + lam * shift
    # A state that is not finite is not entered, and none after it.
    finite = tl.abs(value) + tl.abs(x) + error < float("inf")
    value, x = tl.where(finite, value, here), tl.where(finite, x, before)
    tl.store(vectors64 + tl.load(fields + BEFORE) + rows, x, mask=inside)
    tl.store(vectors64 + tl.load(fields + POTENTIAL) + rows, value, mask=inside)
    augmented = is_augmented(fields, switch)
    store_potential(points16, vectors32, vectors64, fields, augmented, rows, inside, value, 0, PLACES, NORMS)
    if SOFT & MOMENTUM:
        near = rows < tl.load(fields + SIZE + 1).to(tl.int32)
        columns = vectors64 + tl.load(fields + POTENTIAL + 1) + rows
        other = tl.load(columns, mask=near, other=0.0) - shift
        tl.store(columns, other, mask=near)
        store_potential(points16, vectors32, vectors64, fields, augmented, rows, near, other, 1, PLACES, NORMS)


@triton.jit
def apply(table, lanes, state, after, points16, vectors32, vectors64, stops, halted,
          FIRST: tl.constexpr, MOMENTUM: tl.constexpr, BM: tl.constexpr, BM64: tl.constexpr,
          BLOCK: tl.constexpr, ROWS: tl.constexpr, PLACES: tl.constexpr, NORMS: tl.constexpr,
          SOFT: tl.constexpr):  # fmt: skip
    """Hold the lanes that have passed their stop, decide step and beta of the others, and apply their measured f-leg.

    Reads the numbers of a lane from `state` and writes them to `after`; every program of a lane decides alike.
    """
    lane = tl.load(lanes + tl.program_id(1))
    fields, numbers = table + lane * FIELDS, state + lane * NUMBERS
    size = tl.load(fields + SIZE).to(tl.int32)
    most = size
    if SOFT & MOMENTUM:
        most = tl.maximum(size, tl.load(fields + SIZE + 1).to(tl.int32))
    if tl.program_id(0) * ROWS >= most:
        return
    stopped = (tl.load(halted) > 0) | (tl.load(halted + 1) > 0)
    if stopped:
        tl.store(halted, 1)
    is_idle, error, step, beta, shift, switch, numbers_after = decide(
        fields, numbers, vectors64, tl.load(stops + lane), stopped, FIRST, MOMENTUM, SOFT, BM, BM64, BLOCK
    )
    if tl.program_id(0) == 0:
        tl.store(after + lane * NUMBERS + tl.arange(0, NUMBERS), numbers_after)
    if is_idle == 0:
        rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        apply_leg(points16, vectors32, vectors64, fields, rows, size, error, step, beta, shift, switch, PLACES, NORMS,
                  SOFT, MOMENTUM)  # fmt: skip


@triton.jit
def report_lanes(table, lanes, state, vectors64, stops, report, DECIDED: tl.constexpr, SOFT: tl.constexpr,
                 BM: tl.constexpr, BM64: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Write the columns of `Report` for every lane.

    If the last leg was fused, it has DECIDED whether the lane is held; otherwise the next `apply` would.
    """
    place = tl.program_id(0)
    lane = tl.load(lanes + place)
    fields, numbers = table + lane * FIELDS, state + lane * NUMBERS
    stale = stale_residual(fields, numbers, vectors64, SOFT, BM, BM64, BLOCK)
    held = tl.load(numbers + HELD) > 0
    if not DECIDED:
        held = held | is_held(stale, tl.load(stops + lane))
    row = report + REPORT * place
    tl.store(row + REPORT_DEPTH, tl.load(numbers + DEPTH))
    tl.store(row + REPORT_STALE, stale)
    tl.store(row + REPORT_HELD, tl.where(held, 1.0, 0.0).to(tl.float64))
    tl.store(row + REPORT_BAND, tl.load(numbers + BAND))
