"""Triton functions of soft marginals, with potentials, ratios and masses as logarithms to base 2 (`numerics.soft`).

A soft lane has numbers of its own in vectors64 (PRICES): `q = eps kappa` and `lam` of both sides, log2 of both masses,
and log2 of what columns ask for at the start. A potential F in bits asks for the ratio `2^(-q F)`, and the leg of a side
is `L = log2 r + q F`. Masses and residuals may be far out of the range of float64, so parts of sums are logarithms, too.
"""

# pyright: basic, reportIndexIssue=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false, reportGeneralTypeIssues=false
# Triton reads these functions itself; Python's types mean little inside them.

from __future__ import annotations

import triton
import triton.language as tl

from drainsinkhorn.backends.triton.kernels.columns import (
    DAMPING,
    ERRORS,
    FARTHEST,
    FIELDS,
    KAPPA,
    LN2,
    LOG_MASS,
    LOG_MASSES,
    MASS,
    MOST_RESIDUAL,
    OPENING,
    POTENTIAL,
    PRICES,
    SIZE,
)


@triton.jit
def is_soft(fields):
    """Whether a lane has a soft marginal; numbers of soft lanes are never the first of a buffer."""
    return tl.load(fields + PRICES) > 0


@triton.jit
def price(vectors64, fields, number):
    """One of the numbers of a soft lane."""
    return tl.load(vectors64 + tl.load(fields + PRICES) + number)


@triton.jit
def log_sum(weights, exponents, inside):
    """`log2 sum_i w_i 2^(e_i)` of the points inside, in range whatever the exponents; NaN stays NaN."""
    top = tl.max(tl.where(inside, exponents, -float("inf")), axis=0)
    top = tl.where(tl.abs(top) < float("inf"), top, 0.0)
    return tl.log2(tl.sum(tl.where(inside, weights * tl.exp2(exponents - top), 0.0), axis=0)) + top


@triton.jit
def log_sum_parts(vectors64, start, count, BLOCK: tl.constexpr):
    """`log2 sum_t 2^(p_t)` of `count` parts from `start` on, always in the same order."""
    largest = tl.full((BLOCK,), -float("inf"), dtype=tl.float64)
    for first in range(0, count, BLOCK):
        places = first + tl.arange(0, BLOCK)
        # Programs of the same launch may have written them: the L1 cache does not see that.
        part = tl.load(vectors64 + start + places, mask=places < count, other=-float("inf"), cache_modifier=".cg")
        largest = tl.maximum(largest, part)
    top = tl.max(largest, axis=0)
    top = tl.where(tl.abs(top) < float("inf"), top, 0.0)
    total = tl.zeros((BLOCK,), dtype=tl.float64)
    for first in range(0, count, BLOCK):
        places = first + tl.arange(0, BLOCK)
        part = tl.load(vectors64 + start + places, mask=places < count, other=-float("inf"), cache_modifier=".cg")
        total += tl.exp2(part - top)
    return tl.log2(tl.sum(total, axis=0)) + top


@triton.jit
def log_missed(logs, potentials, mass, kappa, inside):
    """log2 of `sum_i a_i |r_i - 2^(-q F_i)|`, the numerator of `numerics.soft.soft_residual`."""
    # The larger of both ratios, times one minus their quotient.
    higher = tl.maximum(logs, -kappa * potentials)
    return log_sum(mass * (1.0 - tl.exp2(-tl.abs(logs + kappa * potentials))), higher, inside)


@triton.jit
def log_asked(logs, potentials, mass, kappa, lam, inside):
    """log2 of `sum_i a_i 2^(-q x_i)`, with x the potentials after a plain leg: A of `numerics.soft.translation`."""
    return log_sum(mass, -kappa * (potentials - lam * (logs + kappa * potentials)), inside)


@triton.jit
def relative_residual(missed, log_mass):
    """The residual relative to the mass of the plan, from log2 of both; at most MOST_RESIDUAL, and NaN stays NaN."""
    error = tl.exp2(missed - log_mass)
    return tl.where(error > MOST_RESIDUAL, MOST_RESIDUAL, error)


@triton.jit
def soft_residual(errors, fields, side, tiles, BLOCK: tl.constexpr):
    """`numerics.soft.soft_residual` of a side from the parts that its leg has written: the residual, log2 of the mass.

    The parts of the residual of a soft lane, at ERRORS, are logarithms.
    """
    log_mass = log_sum_parts(errors, tl.load(fields + LOG_MASSES + side), tiles, BLOCK)
    missed = log_sum_parts(errors, tl.load(fields + ERRORS + side), tiles, BLOCK)
    return relative_residual(missed, log_mass), log_mass


@triton.jit
def soft_shift(vectors64, fields, asked, log_mass, started):
    """Implements `numerics.soft.translation` in bits, from log2 of A and of the mass of the plan."""
    kappa, other_kappa = price(vectors64, fields, KAPPA), price(vectors64, fields, KAPPA + 1)
    own = tl.where(kappa > 0, asked, price(vectors64, fields, LOG_MASS))
    # At the first leg columns are not exact, so that the mass of the plan is not what they ask for.
    other = tl.where(started, log_mass, price(vectors64, fields, OPENING))
    other = tl.where(other_kappa > 0, other, price(vectors64, fields, LOG_MASS + 1))
    shift = (own - other) / (kappa * price(vectors64, fields, DAMPING) + other_kappa)
    # Written so that NaN counts as out of range.
    return tl.where(tl.abs(shift) * LN2 <= FARTHEST, shift, 0.0)


@triton.jit
def log_add(left, right):
    """`log2 (2^l + 2^r)` of two numbers; NaN stays NaN."""
    top = tl.maximum(left, right)
    top = tl.where(tl.abs(top) < float("inf"), top, 0.0)
    return tl.log2(tl.exp2(left - top) + tl.exp2(right - top)) + top


@triton.jit
def open_lanes(table, lanes, vectors64, ROWS: tl.constexpr):
    """Write log2 of `sum_j b_j 2^(-q' G_j)`, what columns ask for at the start, among the numbers of soft lanes."""
    fields = table + tl.load(lanes + tl.program_id(0)) * FIELDS
    size, kappa = tl.load(fields + SIZE + 1).to(tl.int32), price(vectors64, fields, KAPPA + 1)
    lowest = tl.full((ROWS,), float("inf"), dtype=tl.float64)
    for first in range(0, size, ROWS):
        rows = first + tl.arange(0, ROWS)
        g = tl.load(vectors64 + tl.load(fields + POTENTIAL + 1) + rows, mask=rows < size, other=float("inf"))
        lowest = tl.minimum(lowest, g)
    least = tl.min(lowest, axis=0)
    total = tl.zeros((ROWS,), dtype=tl.float64)
    for first in range(0, size, ROWS):
        rows = first + tl.arange(0, ROWS)
        g = tl.load(vectors64 + tl.load(fields + POTENTIAL + 1) + rows, mask=rows < size, other=0.0)
        mass = tl.load(vectors64 + tl.load(fields + MASS + 1) + rows, mask=rows < size, other=0.0)
        total += mass * tl.exp2(-kappa * (g - least))
    tl.store(vectors64 + tl.load(fields + PRICES) + OPENING, tl.log2(tl.sum(total, axis=0)) - kappa * least)
