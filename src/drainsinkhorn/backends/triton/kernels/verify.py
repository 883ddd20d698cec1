"""Triton kernels of `verify`, `screen` and `emit`: states as they will be emitted, residuals, and sampled errors."""

# pyright: basic, reportIndexIssue=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false, reportGeneralTypeIssues=false
# Triton reads these functions itself; Python's types mean little inside them.

from __future__ import annotations

import triton
import triton.language as tl

from drainsinkhorn.backends.triton.kernels.columns import (
    BAND,
    BFLOAT16,
    BUDGET,
    CALLER_DTYPE,
    COMPENSATED,
    COMPENSATED_ERROR,
    EMITS_DOUBLE,
    EMITS_HALF,
    EMITS_SINGLE,
    FIELDS,
    FINDINGS,
    FLOAT32_ERROR,
    FLOAT64,
    FLOAT64_BAND,
    FOUND_BROKEN,
    FOUND_EMITTED,
    FOUND_ERROR,
    FOUND_LARGEST,
    FOUND_RESIDUAL,
    FOUND_UNSAMPLED,
    KAPPA,
    LEAST_BAND,
    MASS,
    NUMBERS,
    POTENTIAL,
    SAFETY,
    SCREEN_SAFETY,
    SIZE,
    TRIPLE_ERROR,
    UNIT,
)
from drainsinkhorn.backends.triton.kernels.soft import is_soft, price
from drainsinkhorn.backends.triton.kernels.update import (
    is_augmented,
    leg_prices,
    load_leg,
    rows_of_tile,
    side_residual,
    stale_residual,
    store_potential,
    switch_residual,
    update_rule,
)


@triton.jit
def split_potentials(table, lanes, state, potentials, points16, vectors32, vectors64, legs, out, ROWS: tl.constexpr,
                     PLACES: tl.constexpr, NORMS: tl.constexpr, AFTER: tl.constexpr, SOFT: tl.constexpr):  # fmt: skip
    """Store what legs read of `potentials` (in bits, at the offsets POTENTIAL) of both sides.

    With AFTER the plain f-leg that was measured into `legs` is applied first, and the result is also written to `out`.
    """
    lane = tl.load(lanes + tl.program_id(1))
    fields, side = table + lane * FIELDS, tl.program_id(2)
    size = tl.load(fields + SIZE + side).to(tl.int32)
    first = tl.program_id(0) * ROWS
    if first >= size:
        return
    rows = first + tl.arange(0, ROWS)
    inside = rows < size
    value = tl.load(potentials + tl.load(fields + POTENTIAL + side) + rows, mask=inside, other=0.0)
    if AFTER:
        if side == 0:
            leg = load_leg(legs, fields, rows, inside, 0)
            plain, _ = update_rule(value, leg, value, 1.0, 0.0, 1.0, True, False)
            if SOFT:
                if is_soft(fields):
                    _, lam = leg_prices(vectors64, fields, 0, True)
                    plain, _ = update_rule(value, leg, value, 1.0, 0.0, lam, True, True)
            value = plain
        tl.store(out + tl.load(fields + POTENTIAL + side) + rows, value, mask=inside)
    augmented = is_augmented(fields, switch_residual(fields, state + lane * NUMBERS))
    store_potential(points16, vectors32, vectors64, fields, augmented, rows, inside, value, side, PLACES, NORMS)


@triton.jit
def _round_16(value, is_bfloat16):
    """Round float64 numbers to float16 or bfloat16, by way of float32 as `numerics.arrays.round_to` does."""
    bits = value.to(tl.float32).to(tl.int32, bitcast=True)
    upper = (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000
    return tl.where(is_bfloat16, upper.to(tl.float32, bitcast=True).to(tl.float64), value.to(tl.float16).to(tl.float64))


@triton.jit
def _mean_size(vectors64, fields, start, mass, size, centre, side, ROWS: tl.constexpr):
    """The mean of `|F_i - centre|` over the mass that the potentials of a side of a soft lane ask for."""
    kappa = price(vectors64, fields, KAPPA + side)
    lowest = tl.full((ROWS,), float("inf"), dtype=tl.float64)
    for first in range(0, size, ROWS):
        rows = first + tl.arange(0, ROWS)
        lowest = tl.minimum(lowest, tl.load(vectors64 + start + rows, mask=rows < size, other=float("inf")))
    least = tl.min(lowest, axis=0)
    sizes, total = tl.zeros((ROWS,), dtype=tl.float64), tl.zeros((ROWS,), dtype=tl.float64)
    for first in range(0, size, ROWS):
        rows = first + tl.arange(0, ROWS)
        value = tl.load(vectors64 + start + rows, mask=rows < size, other=0.0)
        weight = tl.load(vectors64 + mass + rows, mask=rows < size, other=0.0) * tl.exp2(-kappa * (value - least))
        sizes += weight * tl.abs(value - centre)
        total += weight
    return tl.sum(sizes, axis=0) / tl.sum(total, axis=0)


@triton.jit
def round_states(table, lanes, state, vectors64, potentials, emitted, found, count_samples,
                 ROWS: tl.constexpr, SOFT: tl.constexpr, BM: tl.constexpr, BM64: tl.constexpr, BLOCK: tl.constexpr,
                 COUNT: tl.constexpr):  # fmt: skip
    """Write the states of lanes as they will be emitted, in units of the cost (`emitted`) and in bits (`potentials`).

    They are rounded to the CALLER_DTYPE of the lane (float16 or bfloat16), else to float32, if that changes them by no
    more than its BUDGET. Also writes the columns emitted, broken, largest and unsampled of `Findings`; the last as
    `numerics.rounding.unsampled_size`, but with means in place of medians, and twice in place of four times their mean
    size. Means of SOFT lanes are over the mass that potentials ask for.
    """
    place = tl.program_id(0)
    lane = tl.load(lanes + place)
    fields, numbers = table + lane * FIELDS, state + lane * NUMBERS
    unit = tl.load(numbers + UNIT)
    caller_dtype = tl.load(numbers + CALLER_DTYPE)
    is_bfloat16 = caller_dtype == BFLOAT16
    change_32, change_16, sum_largest, unsampled = 0.0 * unit, 0.0 * unit, 0.0 * unit, 0.0 * unit
    for side in tl.static_range(2):
        size, start = tl.load(fields + SIZE + side).to(tl.int32), tl.load(fields + POTENTIAL + side)
        largest_change_32, largest_change_16 = tl.zeros((ROWS,), dtype=tl.float64), tl.zeros((ROWS,), dtype=tl.float64)
        largest, sizes = tl.zeros((ROWS,), dtype=tl.float64), tl.zeros((ROWS,), dtype=tl.float64)
        mass, count = tl.load(fields + MASS + side), tl.minimum(size, count_samples)
        places = tl.arange(0, COUNT)
        sampled = (places.to(tl.int64) * size // count).to(tl.int32)
        sampled = tl.load(vectors64 + start + sampled, mask=places < count, other=0.0)
        centre = tl.sum(sampled, axis=0) / count
        sampled = tl.where(places < count, tl.abs(sampled - centre), 0.0)
        for first in range(0, size, ROWS):
            rows = first + tl.arange(0, ROWS)
            value = tl.load(vectors64 + start + rows, mask=rows < size, other=0.0)
            sizes += tl.load(vectors64 + mass + rows, mask=rows < size, other=0.0) * tl.abs(value - centre)
            value *= unit
            largest_change_32 = tl.maximum(largest_change_32, tl.abs(value.to(tl.float32).to(tl.float64) - value))
            largest = tl.maximum(largest, tl.abs(value))
            if caller_dtype > 0:
                largest_change_16 = tl.maximum(largest_change_16, tl.abs(_round_16(value, is_bfloat16) - value))
        change_32 += tl.max(largest_change_32, axis=0)
        change_16 += tl.max(largest_change_16, axis=0)
        sum_largest += tl.max(largest, axis=0) / unit
        mean_size = tl.sum(sizes, axis=0)
        if SOFT:
            if is_soft(fields):
                mean_size = _mean_size(vectors64, fields, start, mass, size, centre, side, ROWS)
        unsampled += tl.maximum(mean_size - 2.0 * tl.sum(sampled, axis=0) / count, 0.0)
    budget = tl.load(numbers + BUDGET)
    is_short = (caller_dtype > 0) & (change_16 <= budget)
    is_single = (change_32 <= budget) & ~is_short
    for side in tl.static_range(2):
        size, start = tl.load(fields + SIZE + side).to(tl.int32), tl.load(fields + POTENTIAL + side)
        for first in range(0, size, ROWS):
            rows = first + tl.arange(0, ROWS)
            value = tl.load(vectors64 + start + rows, mask=rows < size, other=0.0) * unit
            value = tl.where(is_single, value.to(tl.float32).to(tl.float64), value)
            if is_short:
                value = _round_16(value, is_bfloat16)
            tl.store(emitted + start + rows, value, mask=rows < size)
            tl.store(potentials + start + rows, value / unit, mask=rows < size)
    stale = stale_residual(fields, numbers, vectors64, SOFT, BM, BM64, BLOCK)
    dtype = tl.where(is_short, EMITS_HALF, tl.where(is_single, EMITS_SINGLE, EMITS_DOUBLE))
    row = found + FINDINGS * place
    tl.store(row + FOUND_EMITTED, dtype.to(tl.float64))
    tl.store(row + FOUND_BROKEN, tl.where(stale == stale, 0.0, 1.0).to(tl.float64))
    tl.store(row + FOUND_LARGEST, sum_largest)
    tl.store(row + FOUND_UNSAMPLED, unsampled)


@triton.jit
def check(table, lanes, state, vectors64, errors, vectors32, samples, found, count_samples, OPENS: tl.constexpr,
          SOFT: tl.constexpr, BM: tl.constexpr, BM64: tl.constexpr, BLOCK: tl.constexpr,
          COUNT: tl.constexpr):  # fmt: skip
    """Write the residuals of both sides (`numerics.residual.residual`) and the mean relative errors of sampled rows.

    The errors are those of `numerics.rounding.sampled_error`, relative to the ratios in float64. When a lane OPENS only
    rows are sampled, and from their error comes its BAND, which the screen adds to residuals.
    """
    place = tl.program_id(0)
    lane = tl.load(lanes + place)
    fields, numbers = table + lane * FIELDS, state + lane * NUMBERS
    arithmetic, tile = tl.load(fields + FLOAT64), rows_of_tile(fields, BM, BM64)
    for side in tl.static_range(2):
        size = tl.load(fields + SIZE + side).to(tl.int32)
        total = side_residual(errors, fields, side, (size + tile - 1) // tile, SOFT, BLOCK)
        tl.store(found + FINDINGS * place + FOUND_RESIDUAL + side, total)
        count = tl.minimum(size, count_samples)
        places = tl.arange(0, COUNT)
        rows = (places.to(tl.int64) * size // count).to(tl.int32)
        inside = places < count
        if (OPENS == 0) | (side == 0):
            at = (side * tl.num_programs(0) + place) * count_samples
            truth = tl.load(samples + at + places, mask=inside, other=0.0)
            log_ratios = load_leg(vectors32, fields, rows, inside, side)
            errors_of_rows = tl.where(inside, tl.abs(tl.exp2(log_ratios - truth) - 1.0), 0.0)
            mass = tl.load(vectors64 + tl.load(fields + MASS + side) + rows, mask=inside, other=0.0)
            error = tl.sum(errors_of_rows, axis=0) / count
            if SOFT:
                if is_soft(fields):
                    # By the mass of the plan in place of the weights.
                    largest = tl.max(tl.where(inside, truth, -float("inf")), axis=0)
                    mass = tl.where(inside, mass * tl.exp2(truth - largest), 0.0)
            # Written so that NaN stays NaN, and so that samples of negligible mass alone contribute nothing.
            by_mass = tl.sum(tl.where(mass > 0, mass * errors_of_rows, 0.0), axis=0) / tl.sum(mass, axis=0)
            error = tl.where(by_mass > error, by_mass, error)
            tl.store(found + FINDINGS * place + FOUND_ERROR + side, error)
            if OPENS:
                band = tl.where(error < FLOAT32_ERROR, FLOAT32_ERROR, error) * (SCREEN_SAFETY * SAFETY)
                band = tl.where(band < LEAST_BAND, LEAST_BAND, band)
                if arithmetic > 1:
                    least = tl.full((1,), TRIPLE_ERROR, dtype=tl.float64)
                    if arithmetic == COMPENSATED:
                        least = tl.full((1,), COMPENSATED_ERROR, dtype=tl.float64)
                    band = tl.max(tl.where(error < least, least, error), axis=0) * (SCREEN_SAFETY * SAFETY)
                tl.store(numbers + BAND, tl.load(vectors64 + tl.load(fields + FLOAT64_BAND)) + band)
