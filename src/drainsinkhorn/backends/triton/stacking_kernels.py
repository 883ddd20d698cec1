"""Triton kernels that lay finished problems and values out for the kernels that consume them, one launch for all lanes."""

# pyright: basic, reportIndexIssue=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false, reportGeneralTypeIssues=false
# Triton reads these functions itself; Python's types mean little inside them.

from __future__ import annotations

import triton
import triton.language as tl

from drainsinkhorn.backends.triton.kernels import GRID, MOST_HALF, PRODUCT, STORED, _Constant, _halves
from drainsinkhorn.backends.triton.layout_kernels import ROOT_TWO, _coordinates

# Places of vectors of a side, (VECTORS, L, pad).
LEVEL = _Constant(0)
FINE = _Constant(1)
OTHER_LEVEL = _Constant(2)
WEIGHT = _Constant(3)
REST = _Constant(4)
VECTORS = _Constant(5)

AWAY = _Constant(-1e30)
"""The level of what has no weight."""
ROUGH = _Constant(0.5)
"""Bits beyond which the rest of a potential says that float16 cannot hold it."""
LIGHTEST = _Constant(-128.0)
"""Bits of the smallest weight beside which stored exponents, as large as they may then be, are right to 5e-6."""
ROUNDED = _Constant(2.0**-51)
"""Of a score from products in float64, for each coordinate: what rounding may change, at most."""
OFF = _Constant(1e-6)
"""Bits that a stored exponent may be off, before it is rounded to float32."""


@triton.jit(do_not_specialize=["cloud_stride", "given_stride", "weight_stride", "dim"])
def lay_out(cloud, cloud_stride, middle, units, scales, given, given_stride, weights, weight_stride, sizes, points,
            stride, vectors, wide, doubt, dim, pad, KIND: tl.constexpr, DP: tl.constexpr, CHUNKS: tl.constexpr,
            FOLD: tl.constexpr, SIDE: tl.constexpr, UNIFORM: tl.constexpr, ROWS: tl.constexpr):  # fmt: skip
    """One side of all lanes: its points as kernels of its kind read them, and its vectors, padding included.

    The potential in bits less the norm of the point is LEVEL + FINE, and with the logarithm of the weight OTHER_LEVEL +
    log2 WEIGHT; REST is what OTHER_LEVEL lacks of the former. UNIFORM weights are one number a lane. `wide`, (2, L, pad),
    takes the potential itself and the mass. STORED matrices hold potentials and norms, which count as zero here.
    """
    lane, lanes = tl.program_id(1), tl.num_programs(1)
    at = lane.to(tl.int64)
    size = tl.load(sizes + 2 * lane + SIDE)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < size
    scale = tl.load(scales + lane)
    norm = tl.zeros((ROWS,), dtype=tl.float64)
    for chunk in tl.static_range(CHUNKS):
        ks = chunk * DP + tl.arange(0, DP)
        x = _coordinates(cloud + at * cloud_stride, middle + at * dim, scale, rows, inside, ks, dim)
        if KIND == PRODUCT:
            # -|x - y|^2 = 2 x.y - |x|^2 - |y|^2, of the points as float16 pairs hold them.
            high, low = _halves(x * ROOT_TWO)
            held = high.to(tl.float64) + low.to(tl.float64)
            norm += tl.sum(held * held, axis=1) / 2
            ks = tl.arange(0, DP)
            place = points + at * stride + rows[:, None].to(tl.int64) * (2 * DP * CHUNKS) + chunk * 2 * DP + ks[None, :]
            # The last coordinate is the potential's.
            stored = (ks < DP - 1)[None, :] if FOLD else (ks < DP)[None, :]
            tl.store(place, high, mask=stored)
            tl.store(place + DP, low, mask=stored)
        else:
            place = points + at * stride + ks[None, :].to(tl.int64) * pad + rows[:, None]
            tl.store(place, x.to(tl.float32), mask=(ks < dim)[None, :])
    potential = tl.load(given + at * given_stride + rows, mask=inside, other=0.0).to(tl.float64) / tl.load(units + lane)
    if UNIFORM:
        mass = tl.where(inside, tl.load(weights + lane), 0.0)
    else:
        mass = tl.load(weights + at * weight_stride + rows, mask=inside, other=0.0).to(tl.float64)
    level = norm if KIND == STORED else potential - norm
    coarse = tl.floor(level * GRID + 0.5) / GRID
    heavy = mass > 0
    bits = tl.where(heavy, tl.log2(tl.where(heavy, mass, 1.0)), 0.0)
    other = tl.floor((level + bits) * GRID + 0.5) / GRID
    if FOLD:
        # Two halves hold a rounded level below 2^13 exactly; what they lose of a larger one counts as the rest.
        bound = tl.where(heavy, tl.minimum(tl.maximum(other, -MOST_HALF), MOST_HALF), -MOST_HALF)
        high, low = _halves(bound)
        place = points + at * stride + rows.to(tl.int64) * (2 * DP) + (DP - 1)
        tl.store(place, high)
        tl.store(place + DP, low)
        other = high.to(tl.float64) + low.to(tl.float64)
    rest = level - other
    fine = rest + bits
    rough = heavy & ~(tl.abs(fine) < ROUGH)
    if KIND == STORED:
        rough = rough | (bits < LIGHTEST)
    if tl.max(rough.to(tl.int32), axis=0) > 0:
        tl.store(doubt + lane, 1)
    side = vectors + at * pad + rows
    step = lanes.to(tl.int64) * pad
    tl.store(side + step * LEVEL, tl.where(inside, coarse, AWAY).to(tl.float32))
    tl.store(side + step * FINE, tl.where(inside, level - coarse, 0.0).to(tl.float32))
    tl.store(side + step * OTHER_LEVEL, tl.where(heavy, other, AWAY).to(tl.float32))
    tl.store(side + step * WEIGHT, tl.where(heavy, tl.exp2(fine), 0.0).to(tl.float32))
    tl.store(side + step * REST, tl.where(heavy, rest, 0.0).to(tl.float32))
    tl.store(wide + at * pad + rows, potential)
    tl.store(wide + step + at * pad + rows, mass)


@triton.jit(do_not_specialize=["cloud_stride", "first", "dim"])
def spread(cloud, cloud_stride, middle, factors, sizes, out, norms, doubt, first, dim, pad, ROOTED: tl.constexpr,
           SIDE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Points of lanes from the `first` on in float64, (lanes, pad, dim): squared distances (or distances) are scores in bits.

    Their squares are `norms`, (lanes, pad). A lane is in doubt if products of its points are not right to OFF.
    """
    lane = tl.program_id(1)
    at, here = (first + lane).to(tl.int64), lane.to(tl.int64)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < tl.load(sizes + 2 * at + SIDE)
    factor = tl.load(factors + at)
    scale = factor if ROOTED else tl.sqrt(factor)
    norm = tl.zeros((ROWS,), dtype=tl.float64)
    for start in range(0, dim, BLOCK):
        ks = start + tl.arange(0, BLOCK)
        x = _coordinates(cloud + at * cloud_stride, middle + at * dim, scale, rows, inside, ks, dim)
        norm += tl.sum(x * x, axis=1)
        place = out + (here * pad + rows)[:, None] * dim + ks[None, :]
        tl.store(place, x, mask=inside[:, None] & (ks < dim)[None, :])
    tl.store(norms + here * pad + rows, norm)
    far = tl.sqrt(norm) if ROOTED else norm
    # What has no weight counts too: its rows are consumed as well.
    wrong = ~(far * ((dim + 4) * ROUNDED) <= OFF)
    if tl.max(wrong.to(tl.int32), axis=0) > 0:
        tl.store(doubt + at, 1)


@triton.jit(do_not_specialize=["first"])
def fill(scores, norms, other_norms, potentials, other_potentials, sizes, matrix, first, pad, other_pad,
         ROOTED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """`f_i + g_j - c_ij` of lanes from the `first` on, rounded last, (L, pad, other_pad); zero around it.

    Scores are inner products of points, or distances if ROOTED; a lane's lie without gaps.
    """
    lane = tl.program_id(1)
    at, here = (first + lane).to(tl.int64), lane.to(tl.int64)
    size, other_size = tl.load(sizes + 2 * at), tl.load(sizes + 2 * at + 1)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    f = tl.load(potentials + at * pad + rows)
    norm = tl.load(norms + here * pad + rows)
    wide = rows[:, None].to(tl.int64)
    for start in range(0, other_pad, BLOCK):
        others = start + tl.arange(0, BLOCK)
        seen = (rows < size)[:, None] & (others < other_size)[None, :]
        g = tl.load(other_potentials + at * other_pad + others)
        found = tl.load(scores + here * pad * other_pad + wide * other_size + others[None, :], mask=seen, other=0.0)
        if not ROOTED:
            other_norm = tl.load(other_norms + here * other_pad + others)
            found = tl.maximum(norm[:, None] + other_norm[None, :] - 2.0 * found, 0.0)
        exponent = f[:, None] + g[None, :] - found
        # What has no weight may lie anywhere: float32 holds this. What is no number stays none, and its lane is in doubt.
        exponent = tl.where(exponent < AWAY, AWAY, exponent)
        exponent = tl.where(exponent > -AWAY, -AWAY, exponent)
        place = matrix + at * pad * other_pad + wide * other_pad + others[None, :]
        tl.store(place, tl.where(seen, exponent, 0.0).to(tl.float32))


@triton.jit(do_not_specialize=["value_stride", "channels"])
def split_values(values, value_stride, scales, weight, sizes, halves, channels, pad, SIDE: tl.constexpr,
                 CP: tl.constexpr, ROWS: tl.constexpr):  # fmt: skip
    """Values (M, channels) of each lane over the largest of their channel and times w, as float16 pairs (L, blocks, pad, 2, CP)."""
    lane, block = tl.program_id(1), tl.program_id(2)
    at = lane.to(tl.int64)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cs = tl.arange(0, CP)
    given = block * CP + cs
    inside = (rows < tl.load(sizes + 2 * lane + SIDE))[:, None] & (given < channels)[None, :]
    v = tl.load(
        values + at * value_stride + rows[:, None].to(tl.int64) * channels + given[None, :], mask=inside, other=0.0
    )
    scale = tl.load(scales + at * channels + given, mask=given < channels, other=1.0)
    w = tl.load(weight + at * pad + rows)
    # A channel of zeros stays one.
    v = v / tl.where(scale > 0, scale, 1.0)[None, :] * w[:, None]
    high, low = _halves(v)
    place = halves + ((at * tl.num_programs(2) + block) * pad + rows)[:, None] * (2 * CP) + cs[None, :]
    tl.store(place, high)
    tl.store(place + CP, low)
