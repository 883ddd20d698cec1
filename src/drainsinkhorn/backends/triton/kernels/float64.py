"""Triton kernel of legs in float64, by direct differences or from a matrix, and of rows that are sampled in float64."""

# pyright: basic, reportIndexIssue=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false, reportGeneralTypeIssues=false
# Triton reads these functions itself; Python's types mean little inside them.

from __future__ import annotations

import triton
import triton.language as tl

from drainsinkhorn.backends.triton.kernels.columns import (
    ALL,
    APPLIED,
    BOTH,
    CHECKED,
    DIM,
    FIELDS,
    FLOAT64,
    FROZEN,
    HELD,
    MASS,
    MEASURED,
    NUMBERS,
    POINTS64,
    POTENTIAL,
    RANGE64,
    SAMPLED,
    SIZE,
)
from drainsinkhorn.backends.triton.kernels.leg import finish_tile


@triton.jit
def _float64_scores(points64, fields, own_points, other_points, rows, inside, others, near, size, other_size, dim, side,
                    ROOTED: tl.constexpr, DENSE: tl.constexpr, TOGETHER: tl.constexpr, BM: tl.constexpr,
                    BN: tl.constexpr, AT_ONCE: tl.constexpr):  # fmt: skip
    """Negative scaled costs of a tile in float64, by direct differences or from a matrix.

    TOGETHER: AT_ONCE coordinates are loaded together, since a program of one row waits for every load.
    """
    acc = tl.zeros((BM, BN), dtype=tl.float64)
    if DENSE:
        if side == 0:
            place = rows[:, None].to(tl.int64) * other_size + others[None, :]
        else:
            place = others[None, :].to(tl.int64) * size + rows[:, None]
        acc = -tl.load(points64 + tl.load(fields + POINTS64) + place, mask=inside[:, None] & near[None, :], other=0.0)
    else:
        if TOGETHER:
            for first_k in range(0, dim, AT_ONCE):
                ks = first_k + tl.arange(0, AT_ONCE)
                x = tl.load(own_points + ks[None, :].to(tl.int64) * size + rows[:, None],
                            mask=(ks[None, :] < dim) & inside[:, None], other=0.0)  # fmt: skip
                y = tl.load(other_points + ks[:, None].to(tl.int64) * other_size + others[None, :],
                            mask=(ks[:, None] < dim) & near[None, :], other=0.0)  # fmt: skip
                apart = x[:, :, None] - y[None, :, :]
                acc -= tl.sum(apart * apart, axis=1)
        else:
            for k in range(dim):
                wide_k = tl.cast(k, tl.int64)
                x = tl.load(own_points + wide_k * size + rows, mask=inside, other=0.0)
                y = tl.load(other_points + wide_k * other_size + others, mask=near, other=0.0)
                apart = x[:, None] - y[None, :]
                acc -= apart * apart
        if ROOTED:
            acc = -tl.sqrt(-acc)
    return acc


@triton.jit
def _scaled_logs(points64, vectors64, fields, own, own_points, other_points, other_potential, other_mass, rows, inside,
                 size, other_size, dim, side, ROOTED: tl.constexpr, DENSE: tl.constexpr, TOGETHER: tl.constexpr,
                 BM: tl.constexpr, BN: tl.constexpr, AT_ONCE: tl.constexpr):  # fmt: skip
    """Log2 of marginal ratios of rows in float64, with the largest term of each row taken out: in range, but slow."""
    largest = tl.full((BM,), -float("inf"), dtype=tl.float64)
    total = tl.zeros((BM,), dtype=tl.float64)
    for start in range(0, other_size, BN):
        others = start + tl.arange(0, BN)
        near = others < other_size
        acc = _float64_scores(points64, fields, own_points, other_points, rows, inside, others, near, size, other_size,
                              dim, side, ROOTED, DENSE, TOGETHER, BM, BN, AT_ONCE)  # fmt: skip
        h = tl.load(other_potential + others, mask=near, other=-float("inf"))
        w = tl.load(other_mass + others, mask=near, other=0.0)
        exponent = acc + h[None, :]
        new = tl.maximum(largest, tl.max(exponent, axis=1))
        total = total * tl.exp2(largest - new) + tl.sum(tl.exp2(exponent - new[:, None]) * w[None, :], axis=1)
        largest = new
    return tl.log2(total) + (largest + own)


@triton.jit
def float64_leg(table, lanes, state, points64, vectors64, potentials, vectors32, errors, counters, stops, halted,
                samples, count_samples, ROOTED: tl.constexpr, DENSE: tl.constexpr, SIDE: tl.constexpr,
                ROLE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, AT_ONCE: tl.constexpr, LOCKSTEP: tl.constexpr,
                FUSED: tl.constexpr, MOMENTUM: tl.constexpr, SOFT: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Measure one side in float64 by direct differences; implements `numerics.update.log_ratios` in bits.

    MEASURED and APPLIED: legs of FLOAT64 lanes. CHECKED: legs of other `potentials` (at the offsets POTENTIAL).
    SAMPLED: log ratios of `count_samples` rows spread evenly over the side, or over BOTH, by place in `lanes`; AT_ONCE
    coordinates are loaded together.
    """
    lane = tl.load(lanes + tl.program_id(1))
    fields, numbers = table + lane * FIELDS, state + lane * NUMBERS
    side = tl.program_id(2) if SIDE == BOTH else SIDE
    size, other_size = (
        tl.load(fields + SIZE + side).to(tl.int32),
        tl.load(fields + SIZE + 1 - side).to(tl.int32),
    )
    count = size
    if ROLE == SAMPLED:
        count = tl.minimum(size, count_samples)
    first = tl.program_id(0) * BM
    skip = first >= count
    if (ROLE == MEASURED) | (ROLE == APPLIED):
        skip = skip | (tl.load(halted) > 0) | (tl.load(numbers + HELD) > 0) | (tl.load(fields + FLOAT64) != 1)
    if skip:
        return
    places = first + tl.arange(0, BM)
    inside = places < count
    rows = places
    if ROLE == SAMPLED:
        rows = (places.to(tl.int64) * size // count).to(tl.int32)
    own = tl.load(potentials + tl.load(fields + POTENTIAL + side) + rows, mask=inside, other=0.0)
    other_potential = potentials + tl.load(fields + POTENTIAL + 1 - side)
    other_mass = vectors64 + tl.load(fields + MASS + 1 - side)
    dim = tl.load(fields + DIM).to(tl.int32)
    own_points, other_points = (
        points64 + tl.load(fields + POINTS64 + side),
        points64 + tl.load(fields + POINTS64 + 1 - side),
    )
    if ROLE == SAMPLED:
        # A program of one row has no other sums to compute meanwhile, so it can as well take its largest term out.
        logs = _scaled_logs(points64, vectors64, fields, own, own_points, other_points, other_potential, other_mass, rows,
                            inside, size, other_size, dim, side, ROOTED, DENSE, True, BM, BN, AT_ONCE)  # fmt: skip
    else:
        # Terms are relative to the own potential, so that no tile waits for the largest one of its rows.
        sums = tl.zeros((BM, BN), dtype=tl.float64)
        for start in range(0, other_size, BN):
            others = start + tl.arange(0, BN)
            near = others < other_size
            exponent = _float64_scores(points64, fields, own_points, other_points, rows, inside, others, near, size,
                                       other_size, dim, side, ROOTED, DENSE, False, BM, BN, AT_ONCE)  # fmt: skip
            h = tl.load(other_potential + others, mask=near, other=-float("inf"))
            w = tl.load(other_mass + others, mask=near, other=0.0)
            sums += tl.exp2(exponent + (own[:, None] + h[None, :])) * w[None, :]
        logs = tl.log2(tl.where(inside, tl.sum(sums, axis=1), 1.0))
        if tl.sum(((logs < RANGE64) & (logs > -RANGE64) == 0).to(tl.int32), axis=0) > 0:
            logs = _scaled_logs(points64, vectors64, fields, own, own_points, other_points, other_potential, other_mass,
                                rows, inside, size, other_size, dim, side, ROOTED, DENSE, False, BM, BN,
                                AT_ONCE)  # fmt: skip
    if ROLE == SAMPLED:
        at = (side * tl.num_programs(1) + tl.program_id(1)) * count_samples
        tl.store(samples + at + places, logs, mask=inside)
    else:
        mass = tl.load(vectors64 + tl.load(fields + MASS + SIDE) + rows, mask=inside, other=0.0)
        frozen = (tl.load(numbers + FROZEN) > 0) & (ROLE != CHECKED)
        finish_tile(vectors32, vectors64, vectors32, errors, counters, stops, halted, lane, fields, numbers,
                     tl.program_id(0), rows, inside, own, logs, mass, frozen, SIDE, ROLE, 0, ALL, LOCKSTEP, FUSED,
                     MOMENTUM, SOFT, BM, BM, BLOCK)  # fmt: skip
