"""Triton kernels of legs in float32: one reduction for both sides, from several kinds of scores.

A leg measures the log2 of marginal ratios (`numerics.update.log_ratios`); for row i

    L_i = log2 sum_j w_j 2^(h_i + h_j - c_ij) + l_i,    h + l = the potential in bits,    c_ij = C_ij / (eps ln 2)

h is the potential rounded to a grid on which h_i + h_j is exact in float32. The rest l is part of the weights of the
other side, `w_j = b_j 2^l_j`, and of L. For the exponents see `kernels.scores`. As long as the residual of a lane of
many coordinates is above its SWITCH, float16 high parts alone make its scores: their error is small against the
residual, and later cycles correct it.

Terms are summed relative to the potential of their own row. A tile of rows whose sums leave the range of float32 is
computed again with the largest term taken out. Several programs share the columns of a tile of rows, so that one lane
can fill the device; the last of them adds up their sums. Every sum has a fixed order, and tiles and shares depend on
the problem alone, so lanes are independent to the bit.
"""

# pyright: basic, reportIndexIssue=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false, reportGeneralTypeIssues=false
# Triton reads these functions itself; Python's types mean little inside them.

from __future__ import annotations

import triton
import triton.language as tl

from drainsinkhorn.backends.triton.kernels.columns import (
    ALIGNMENT,
    APPLIED,
    APPLY_ROWS,
    ARRIVED,
    ASKED,
    BEFORE,
    CHECKED,
    COUNTERS,
    DIM,
    DIRECT,
    ERRORS,
    FIELDS,
    FLOAT64,
    FROZEN,
    HELD,
    LOG_MASSES,
    LOG_RATIOS,
    MASS,
    MATRIX,
    MEASURED,
    NUMBERS,
    PACKED,
    PARTIAL,
    POINTS16,
    POINTS32,
    POTENTIAL,
    PRODUCT,
    RANGE,
    REST,
    ROOMY,
    ROUNDED,
    SHARES,
    SIZE,
    STORED,
    WEIGHT,
)
from drainsinkhorn.backends.triton.kernels.scores import (
    direct_exponents,
    exponents,
    load_others,
    load_own,
    load_packed,
    padded,
    with_level,
    with_place,
)
from drainsinkhorn.backends.triton.kernels.soft import log_asked, log_missed, log_sum
from drainsinkhorn.backends.triton.kernels.update import (
    apply_leg,
    count_tiles,
    decide,
    deviations,
    is_augmented,
    is_held,
    leg_prices,
    log_deviations,
    stale_residual,
    store_potential,
    switch_residual,
    update_rule,
)


@triton.jit
def _load_other_side(rounded, weight, others, near, INSIDE: tl.constexpr, WHOLE: tl.constexpr):
    """Potentials and weights of other points; no potentials if they are INSIDE the product."""
    h = others
    if WHOLE:
        if not INSIDE:
            h = tl.load(rounded + others)
        return h, tl.load(weight + others)
    else:
        if not INSIDE:
            h = tl.load(rounded + others, mask=near, other=-1e30)
        return h, tl.load(weight + others, mask=near, other=0.0)


@triton.jit
def _row_sums(points16, points32, points, own, rows, inside, dim, other_size, size, other_points, level, other_rounded,
              other_weight, begin, end, KIND: tl.constexpr, DP: tl.constexpr, CHUNKS: tl.constexpr, SIDE: tl.constexpr,
              BM: tl.constexpr, BN: tl.constexpr, INSIDE: tl.constexpr, HIGH_PARTS: tl.constexpr):  # fmt: skip
    """Sums of the terms of rows over the columns from `begin` to `end`."""
    whole: tl.constexpr = (KIND == PRODUCT) | (KIND == PACKED)
    # Tensor cores leave a row in few threads, so it is summed at once; elsewhere a tile of sums is cheaper.
    if whole:
        total = tl.zeros((BM,), dtype=tl.float32)
    else:
        sums = tl.zeros((BM, BN), dtype=tl.float32)
    last = end
    if whole:
        # The last tile, if it is not whole, comes after the loop.
        last = tl.minimum(end, other_size // BN * BN)
    for start in range(begin, last, BN):
        others = start + tl.arange(0, BN)
        near = others < other_size
        h, w = _load_other_side(other_rounded, other_weight, others, near, INSIDE, whole)
        exponent = exponents(points16, points32, points, own, rows, inside, others, near, dim, other_size, size,
                             other_points, level, h, KIND, DP, CHUNKS, SIDE, BM, BN, INSIDE, HIGH_PARTS,
                             whole)  # fmt: skip
        terms = tl.exp2(exponent) * w[None, :]
        if whole:
            total += tl.sum(terms, axis=1)
        else:
            sums += terms
    if whole:
        if last < end:
            others = last + tl.arange(0, BN)
            near = others < other_size
            h, w = _load_other_side(other_rounded, other_weight, others, near, INSIDE, False)
            exponent = exponents(points16, points32, points, own, rows, inside, others, near, dim, other_size, size,
                                 other_points, level, h, KIND, DP, CHUNKS, SIDE, BM, BN, INSIDE, HIGH_PARTS,
                                 False)  # fmt: skip
            if INSIDE:
                # Columns past the end have no potential inside the product that would make their terms vanish.
                exponent = tl.where(near[None, :], exponent, -1e30)
            total += tl.sum(tl.exp2(exponent) * w[None, :], axis=1)
    else:
        total = tl.sum(sums, axis=1)
    return total


@triton.jit
def finish_tile(points16, vectors64, vectors32, errors, counters, stops, halted, lane, fields, numbers, tile, rows,
                 inside, own, logs, mass, frozen, SIDE: tl.constexpr, ROLE: tl.constexpr, PLACES: tl.constexpr,
                 NORMS: tl.constexpr, LOCKSTEP: tl.constexpr, FUSED: tl.constexpr, MOMENTUM: tl.constexpr,
                 SOFT: tl.constexpr, BM: tl.constexpr, BM64: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Write what a tile has measured: its part of the residual, and the leg or the potentials after it.

    Implements `numerics.residual.residual` and `numerics.update.alignment` for the rows of the tile; for SOFT lanes
    `numerics.soft.soft_residual` and the sum over rows of `numerics.soft.translation`. MEASURED legs write the
    deviations L of `log_deviations`, CHECKED legs write log ratios. With LOCKSTEP the last tile of a lane halts the
    pack if the lane has passed its stop; with FUSED it holds the lane or applies the leg, as `apply` would.
    """
    kappa, lam = leg_prices(vectors64, fields, SIDE, SOFT)
    deviation = log_deviations(logs, own, kappa, SOFT)
    if SOFT:
        ratios, weights = logs.to(tl.float64), mass.to(tl.float64)
        error = log_missed(ratios, own, weights, kappa, inside)
        log_mass = log_sum(weights, ratios, inside)
    else:
        error = tl.sum(deviations(logs, mass, inside), axis=0)
    if frozen == 0:
        tl.store(errors + tl.load(fields + ERRORS + SIDE) + tile, error.to(tl.float64))
        if SOFT:
            tl.store(errors + tl.load(fields + LOG_MASSES + SIDE) + tile, log_mass)
        if ROLE == APPLIED:
            value, _ = update_rule(own, deviation.to(tl.float64), own, 1.0, 0.0, lam, True, SOFT)
            # A potential that is not finite is not entered; the error above is not finite either.
            value = tl.where(tl.abs(value) < float("inf"), value, own)
            tl.store(vectors64 + tl.load(fields + POTENTIAL + SIDE) + rows, value, mask=inside)
            augmented = is_augmented(fields, switch_residual(fields, numbers))
            store_potential(points16, vectors32, vectors64, fields, augmented, rows, inside, value, SIDE, PLACES, NORMS)
        else:
            # A check compares ratios themselves.
            measured = logs if ROLE == CHECKED else deviation
            kept = measured.to(tl.float32)
            tl.store(vectors32 + tl.load(fields + LOG_RATIOS + SIDE) + rows, kept, mask=inside)
            if logs.dtype == tl.float64:
                # Legs in float64 and from points in three parts read no weights, so there is room for the rest.
                lost = (measured - kept.to(tl.float64)).to(tl.float32)
                tl.store(vectors32 + tl.load(fields + WEIGHT + SIDE) + rows, lost, mask=inside)
        if ROLE == MEASURED:
            before = tl.load(vectors64 + tl.load(fields + BEFORE) + rows, mask=inside, other=0.0)
            if SOFT:
                requested_mass = log_asked(ratios, own, weights, kappa, lam, inside)
                tl.store(vectors64 + tl.load(fields + ASKED) + tile, requested_mass)
                along = weights * deviation * (own - before)
                alignment = -tl.sum(tl.where(inside, along, 0.0), axis=0)
            else:
                alignment = -tl.sum(tl.where(inside, mass * logs * (own - before).to(logs.dtype), 0.0), axis=0)
            tl.store(vectors64 + tl.load(fields + ALIGNMENT) + tile, alignment.to(tl.float64))
            if LOCKSTEP | FUSED:
                tl.debug_barrier()
                count = counters + tl.load(fields + ARRIVED)
                if tl.atomic_add(count, 1) == count_tiles(fields, BM, BM64, 0) - 1:
                    tl.store(count, 0)
                    stop = tl.load(stops + lane)
                    if FUSED:
                        _apply_lane(
                            points16,
                            vectors32,
                            vectors64,
                            fields,
                            numbers,
                            stop,
                            PLACES,
                            NORMS,
                            MOMENTUM,
                            SOFT,
                            BM,
                            BM64,
                            BLOCK,
                        )
                    elif is_held(stale_residual(fields, numbers, vectors64, SOFT, BM, BM64, BLOCK), stop):
                        # Other lanes of this launch read the first flag; `apply` sets it before the next.
                        tl.store(halted + 1, 1)


@triton.jit
def _apply_lane(points16, vectors32, vectors64, fields, numbers, stop, PLACES: tl.constexpr, NORMS: tl.constexpr,
                MOMENTUM: tl.constexpr, SOFT: tl.constexpr, BM: tl.constexpr, BM64: tl.constexpr,
                BLOCK: tl.constexpr):  # fmt: skip
    """Do what `apply` does, by the last program of a lane and in place: no other program reads the lane any more."""
    is_idle, error, step, beta, shift, switch, after = decide(
        fields, numbers, vectors64, stop, False, False, MOMENTUM, SOFT, BM, BM64, BLOCK
    )
    # All threads have read the numbers before one writes them.
    tl.debug_barrier()
    tl.store(numbers + tl.arange(0, NUMBERS), after)
    if is_idle == 0:
        size = tl.load(fields + SIZE).to(tl.int32)
        most = size
        if SOFT & MOMENTUM:
            most = tl.maximum(size, tl.load(fields + SIZE + 1).to(tl.int32))
        for first in range(0, most, APPLY_ROWS):
            rows = first + tl.arange(0, APPLY_ROWS)
            apply_leg(points16, vectors32, vectors64, fields, rows, size, error, step, beta, shift, switch, PLACES,
                      NORMS, SOFT, MOMENTUM)  # fmt: skip


@triton.jit
def leg(table, lanes, state, points16, points32, vectors64, vectors32, errors, counters, stops, halted,
        KIND: tl.constexpr, DP: tl.constexpr, CHUNKS: tl.constexpr, SIDE: tl.constexpr, ROLE: tl.constexpr,
        BM: tl.constexpr, BN: tl.constexpr, NARROW: tl.constexpr, PLACES: tl.constexpr, NORMS: tl.constexpr,
        INSIDE: tl.constexpr, HIGH_PARTS: tl.constexpr, LOCKSTEP: tl.constexpr, FUSED: tl.constexpr,
        MOMENTUM: tl.constexpr, SOFT: tl.constexpr, BM64: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Measure one side of every lane that is not FLOAT64; implements `numerics.update.log_ratios` in bits.

    Programs are tiles of BM rows times shares of the columns. If points have PLACES, lanes whose potentials are INSIDE
    the product and other lanes are separate launches. Places hold the potentials of the state, so checks of other
    potentials add them after the product. With HIGH_PARTS the residual of a lane decides whether one product of high
    parts or all products are computed; checks compute all.
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
    skip = (tile * BM >= size) | (tl.load(fields + FLOAT64) > 0)
    if ROLE != CHECKED:
        skip = skip | (tl.load(halted) > 0) | (tl.load(numbers + HELD) > 0)
        if PLACES > 0:
            skip = skip | (is_augmented(fields, switch_residual(fields, numbers)) != INSIDE)
    if skip:
        return
    rows = tile * BM + tl.arange(0, BM)
    inside = rows < size
    if KIND == STORED:
        points = tl.load(fields + MATRIX)
        other_points = points
    elif (KIND == PRODUCT) | (KIND == PACKED):
        points, other_points = tl.load(fields + POINTS16 + SIDE), tl.load(fields + POINTS16 + 1 - SIDE)
    else:
        points, other_points = tl.load(fields + POINTS32 + SIDE), tl.load(fields + POINTS32 + 1 - SIDE)
    points, other_points = tl.multiple_of(points, 64), tl.multiple_of(other_points, 64)
    dim = tl.load(fields + DIM).to(tl.int32)
    rounded = tl.load(vectors32 + tl.multiple_of(tl.load(fields + ROUNDED + SIDE), 64) + rows, mask=inside, other=0.0)
    other_rounded = vectors32 + tl.multiple_of(tl.load(fields + ROUNDED + 1 - SIDE), 64)
    other_weight = vectors32 + tl.multiple_of(tl.load(fields + WEIGHT + 1 - SIDE), 64)
    # In memory ROOMY points have the potentials of the state in their places.
    most: tl.constexpr = DP if INSIDE else DP - 4 if PLACES == ROOMY else DP
    own_points = load_own(points16, points32, points, rows, inside, size, KIND, DP, CHUNKS, most)
    if (KIND == PRODUCT) & (PLACES == ROOMY):
        if INSIDE:
            if ROLE == CHECKED:
                own_points = with_level(own_points, rounded, SIDE, DP)
    elif (KIND == PRODUCT) & (PLACES > 0):
        own_points = with_place(own_points, inside, 0.0, DP)
    blocks = (other_size + BN - 1) // BN
    begin, end = blocks * share // splits * BN, blocks * (share + 1) // splits * BN
    if KIND == DIRECT:
        sums = tl.zeros((BM, BN), dtype=tl.float32)
        # The next tile is loaded while this one is computed; Triton does that for products alone.
        near_points = load_others(
            points32, other_points, other_rounded, other_weight, begin + tl.arange(0, BN), other_size, DP
        )
        for start in range(begin, end, BN):
            ahead = start + BN + tl.arange(0, BN)
            next_points = load_others(points32, other_points, other_rounded, other_weight, ahead, other_size, DP)
            sums += tl.exp2(direct_exponents(own_points, rounded, near_points, DP)) * near_points[5][None, :]
            near_points = next_points
        total = tl.sum(sums, axis=1)
    else:
        augmented_points = own_points
        if KIND == PACKED:
            augmented_points = (load_packed(points16, points, rows, inside, rounded, SIDE), rows, rows, rows)
        elif INSIDE:
            if PLACES != ROOMY:
                augmented_points = with_place(own_points, inside, 1.0, DP)
        high_parts = False
        # Lanes with places for potentials use high parts with potentials inside the product, in the launch for those.
        if HIGH_PARTS & ((PLACES == 0) | INSIDE):
            high_parts = switch_residual(fields, numbers) > 0
        if high_parts:
            total = _row_sums(points16, points32, points, augmented_points, rows, inside, dim, other_size, size,
                              other_points, rounded, other_rounded, other_weight, begin, end, KIND, DP, CHUNKS, SIDE,
                              BM, BN, INSIDE, True)  # fmt: skip
        else:
            total = _row_sums(points16, points32, points, augmented_points, rows, inside, dim, other_size, size,
                              other_points, rounded, other_rounded, other_weight, begin, end, KIND, DP, CHUNKS, SIDE,
                              BM, BN, INSIDE, False)  # fmt: skip
    # Sums go through memory even if no program shares the tile: in registers every thread would hold whole rows from
    # here.
    partial, stride = vectors32 + tl.load(fields + PARTIAL), padded(size)
    tl.store(partial + share * stride + rows, total, mask=inside)
    tl.debug_barrier()
    arrived = splits - 1
    count = counters + tl.load(fields + COUNTERS) + tile
    if splits > 1:
        arrived = tl.atomic_add(count, 1)
    if arrived != splits - 1:
        return
    # Only the last program of a tile continues. The L1 cache does not see what other multiprocessors wrote.
    found = tl.load(partial + rows, mask=inside, other=1.0, cache_modifier=".cg")
    if splits > 1:
        for other in range(1, splits):
            found += tl.load(partial + other * stride + rows, mask=inside, other=0.0, cache_modifier=".cg")
        tl.store(count, 0)
    logs = tl.log2(found)
    if tl.sum(((logs < RANGE) & (logs > -RANGE) == 0).to(tl.int32), axis=0) > 0:
        largest = tl.full((BM,), -float("inf"), dtype=tl.float32)
        total = tl.zeros((BM,), dtype=tl.float32)
        none = tl.zeros((BM,), dtype=tl.float32)
        # In narrow tiles, so that this loop does not take registers from the other one.
        for start in range(0, other_size, NARROW):
            others = start + tl.arange(0, NARROW)
            near = others < other_size
            h = tl.load(other_rounded + others, mask=near, other=-1e30)
            w = tl.load(other_weight + others, mask=near, other=0.0)
            # The own potential is added last: it is the same in all terms of a row.
            if KIND == PACKED:
                level_free = (load_packed(points16, points, rows, inside, none, SIDE), rows, rows, rows)
                exponent = exponents(points16, points32, points, level_free, rows, inside, others, near, dim,
                                     other_size, size, other_points, none, h, KIND, DP, CHUNKS, SIDE, BM, NARROW, True,
                                     False, False)  # fmt: skip
                exponent = tl.where(near[None, :], exponent, -1e30)
            elif KIND == DIRECT:
                these = load_others(points32, other_points, other_rounded, other_weight, others, other_size, DP)
                exponent = direct_exponents(own_points, none, these, DP)
            else:
                within: tl.constexpr = (PLACES == ROOMY) & INSIDE
                exponent = exponents(points16, points32, points, own_points, rows, inside, others, near, dim,
                                     other_size, size, other_points, none, h, KIND, DP, CHUNKS, SIDE, BM, NARROW,
                                     within, False, False)  # fmt: skip
                if within:
                    exponent = tl.where(near[None, :], exponent - rounded[:, None], -1e30)
            new = tl.maximum(largest, tl.max(exponent, axis=1))
            total = total * tl.exp2(largest - new) + tl.sum(tl.exp2(exponent - new[:, None]) * w[None, :], axis=1)
            largest = new
        tl.debug_barrier()
        tl.store(partial + rows, tl.log2(total) + (largest + rounded), mask=inside)
        tl.debug_barrier()
        logs = tl.load(partial + rows, mask=inside, other=0.0, cache_modifier=".cg")
    logs += tl.load(vectors32 + tl.multiple_of(tl.load(fields + REST + SIDE), 64) + rows, mask=inside, other=0.0)
    mass = tl.load(vectors64 + tl.load(fields + MASS + SIDE) + rows, mask=inside, other=0.0).to(tl.float32)
    own = tl.load(vectors64 + tl.load(fields + POTENTIAL + SIDE) + rows, mask=inside, other=0.0)
    frozen = (tl.load(numbers + FROZEN) > 0) & (ROLE != CHECKED)
    finish_tile(points16, vectors64, vectors32, errors, counters, stops, halted, lane, fields, numbers, tile, rows,
                 inside, own, logs, mass, frozen, SIDE, ROLE, PLACES, NORMS, LOCKSTEP, FUSED, MOMENTUM, SOFT, BM,
                 BM64, BLOCK)  # fmt: skip
