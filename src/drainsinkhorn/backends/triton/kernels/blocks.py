"""A Triton kernel for legs of large lanes in float64, whose inner products torch computes in blocks of rows."""

# pyright: basic, reportIndexIssue=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false, reportGeneralTypeIssues=false
# Triton reads these functions itself; Python's types mean little inside them.

from __future__ import annotations

import triton
import triton.language as tl

from drainsinkhorn.backends.triton.kernels.columns import (
    ALL,
    CHECKED,
    FIELDS,
    FLOAT64,
    FROZEN,
    HELD,
    MASS,
    NUMBERS,
    POTENTIAL,
    SIZE,
)
from drainsinkhorn.backends.triton.kernels.leg import finish_tile


@triton.jit(do_not_specialize=["first_row", "end_row"])
def block_leg(table, lanes, state, products, norms, other_norms, vectors64, potentials, vectors32, errors, counters,
              stops, halted, first_row, end_row, SIDE: tl.constexpr, ROLE: tl.constexpr, BM: tl.constexpr,
              BN: tl.constexpr, LOCKSTEP: tl.constexpr, FUSED: tl.constexpr, MOMENTUM: tl.constexpr,
              SOFT: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Measure the rows from `first_row` to `end_row` of one lane in float64, as `float64_leg` does.

    Scaled costs are `norms_i + other_norms_j - 2 products_ij`; `products`, (rows, other_size), begin at `first_row`, a
    multiple of BM. Roles are MEASURED, APPLIED and CHECKED.
    """
    lane = tl.load(lanes)
    fields, numbers = table + lane * FIELDS, state + lane * NUMBERS
    other_size = tl.load(fields + SIZE + 1 - SIDE).to(tl.int32)
    skip = other_size == 0
    if ROLE != CHECKED:
        skip = skip | (tl.load(halted) > 0) | (tl.load(numbers + HELD) > 0) | (tl.load(fields + FLOAT64) == 0)
    if skip:
        return
    here = tl.program_id(0) * BM + tl.arange(0, BM)
    rows = first_row + here
    inside = rows < end_row
    own = tl.load(potentials + tl.load(fields + POTENTIAL + SIDE) + rows, mask=inside, other=0.0)
    norm = tl.load(norms + rows, mask=inside, other=0.0)
    other_potential = potentials + tl.load(fields + POTENTIAL + 1 - SIDE)
    other_mass = vectors64 + tl.load(fields + MASS + 1 - SIDE)
    largest = tl.full((BM,), -float("inf"), dtype=tl.float64)
    total = tl.zeros((BM,), dtype=tl.float64)
    for start in range(0, other_size, BN):
        others = start + tl.arange(0, BN)
        near = others < other_size
        place = here[:, None].to(tl.int64) * other_size + others[None, :]
        product = tl.load(products + place, mask=inside[:, None] & near[None, :], other=0.0)
        other_norm = tl.load(other_norms + others, mask=near, other=0.0)
        costs = norm[:, None] + other_norm[None, :] - 2.0 * product
        # Written so that NaN stays NaN.
        costs = tl.where(costs < 0.0, 0.0, costs)
        h = tl.load(other_potential + others, mask=near, other=-float("inf"))
        w = tl.load(other_mass + others, mask=near, other=0.0)
        exponent = h[None, :] - costs
        new = tl.maximum(largest, tl.max(exponent, axis=1))
        total = total * tl.exp2(largest - new) + tl.sum(tl.exp2(exponent - new[:, None]) * w[None, :], axis=1)
        largest = new
    logs = tl.log2(total) + (largest + own)
    mass = tl.load(vectors64 + tl.load(fields + MASS + SIDE) + rows, mask=inside, other=0.0)
    frozen = (tl.load(numbers + FROZEN) > 0) & (ROLE != CHECKED)
    finish_tile(vectors32, vectors64, vectors32, errors, counters, stops, halted, lane, fields, numbers,
                 first_row // BM + tl.program_id(0), rows, inside, own, logs, mass, frozen, SIDE, ROLE, 0, ALL,
                 LOCKSTEP, FUSED, MOMENTUM, SOFT, BM, BM, BLOCK)  # fmt: skip
