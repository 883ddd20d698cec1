"""Log-kernel entries of a tile of pairs, `f_i + g_j - C_ij` in bits: formulas of `numerics.costs` in float32.

The scaled cost C_ij / (eps ln 2) comes from direct differences (DIRECT: up to four coordinates; ROOT: distances), from
three products of coordinates split into float16 high and low parts (PRODUCT: |x - y|^2 = |x|^2 + |y|^2 - 2 x y, norms
are part of the potentials), or from a cached matrix (STORED). For up to four coordinates the three products and both
potentials fit into one product of sixteen numbers (PACKED). Where a chunk of coordinates has free places, they hold the
potentials, and the product adds them (augmented coordinates).
"""

# pyright: basic, reportIndexIssue=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false, reportGeneralTypeIssues=false
# Triton reads these functions itself; Python's types mean little inside them.

from __future__ import annotations

import triton
import triton.language as tl

from drainsinkhorn.backends.triton.kernels.columns import DIRECT, PACKED, PRODUCT, ROOMY, STORED


@triton.jit
def high_low(x):
    """Two float16 numbers, a high and a low part, whose sum is x up to a relative error of about 2^-22."""
    high = x.to(tl.float16)
    return high, (x - high.to(x.dtype)).to(tl.float16)


@triton.jit
def padded(size):
    """The distance, in elements, of coordinates of a cloud or of rows of a matrix: `size` rounded up to 64."""
    return tl.multiple_of((size + 63) // 64 * 64, 64)


@triton.jit
def _load_four(cloud, places, inside, size, DP: tl.constexpr):
    """The first DP <= 4 coordinates of points of a cloud of `size`; the first stands for those it does not have."""
    stride = padded(size)
    x0 = tl.load(cloud + places, mask=inside, other=0.0)
    x1, x2, x3 = x0, x0, x0
    if DP > 1:
        x1 = tl.load(cloud + stride + places, mask=inside, other=0.0)
    if DP > 2:
        x2 = tl.load(cloud + 2 * stride + places, mask=inside, other=0.0)
    if DP > 3:
        x3 = tl.load(cloud + 3 * stride + places, mask=inside, other=0.0)
    return x0, x1, x2, x3


@triton.jit
def load_own(points16, points32, points, rows, inside, size, KIND: tl.constexpr, DP: tl.constexpr, CHUNKS: tl.constexpr,
             MOST: tl.constexpr):  # fmt: skip
    """What is loaded of the own points before the loop over the others: high and low parts, or up to four coordinates.

    Of high parts only the first MOST coordinates are loaded; others are zero.
    """
    if (KIND == PRODUCT) & (CHUNKS == 1):
        ks = tl.arange(0, DP)[None, :]
        mine = points16 + points + rows[:, None].to(tl.int64) * (2 * DP) + ks
        if MOST < DP:
            high = tl.load(mine, mask=inside[:, None] & (ks < MOST), other=0.0)
        else:
            high = tl.load(mine, mask=inside[:, None], other=0.0)
        low = tl.load(mine + DP, mask=inside[:, None], other=0.0)
        return high, low, rows, rows
    elif KIND == DIRECT:
        return _load_four(points32 + points, rows, inside, size, DP)
    else:
        return rows, rows, rows, rows


@triton.jit
def load_others(points32, points, rounded, weight, others, size, DP: tl.constexpr):
    """Up to four coordinates of other points, their potentials and their weights."""
    near = others < size
    h = tl.load(rounded + others, mask=near, other=-1e30)
    w = tl.load(weight + others, mask=near, other=0.0)
    y0, y1, y2, y3 = _load_four(points32 + points, others, near, size, DP)
    return y0, y1, y2, y3, h, w


@triton.jit
def direct_exponents(own, level, theirs, DP: tl.constexpr):
    """`level_i + h_j - C_ij / (eps ln 2)` of a tile, the scaled cost by direct differences."""
    exponent = level[:, None] + theirs[4][None, :]
    apart = own[0][:, None] - theirs[0][None, :]
    exponent -= apart * apart
    if DP > 1:
        apart = own[1][:, None] - theirs[1][None, :]
        exponent -= apart * apart
    if DP > 2:
        apart = own[2][:, None] - theirs[2][None, :]
        exponent -= apart * apart
    if DP > 3:
        apart = own[3][:, None] - theirs[3][None, :]
        exponent -= apart * apart
    return exponent


@triton.jit
def with_place(own, inside, value, DP: tl.constexpr):
    """The own points with `value` at the place of the others' potential: 1 adds it to the product, 0 does not."""
    place = (tl.arange(0, DP) == DP - 1)[None, :] & inside[:, None]
    return (
        tl.where(place, value, own[0]).to(tl.float16),
        tl.where(place, 0.0, own[1]).to(tl.float16),
        own[2],
        own[3],
    )


@triton.jit
def with_level(own, level, SIDE: tl.constexpr, DP: tl.constexpr):
    """Own points of ROOMY chunks with `level` at the place of their potential."""
    ks = tl.arange(0, DP)[None, :]
    high, low = high_low(level)
    first = tl.where(ks == DP - 4 + 2 * SIDE, high[:, None], own[0])
    return tl.where(ks == DP - 3 + 2 * SIDE, low[:, None], first), own[1], own[2], own[3]


@triton.jit
def load_packed(points16, points, rows, inside, level, SIDE: tl.constexpr):
    """Own points as sixteen numbers each, `level` included, whose products with those of others are log-kernel entries.

    A point of the rows is (high, low, high, potential, 1, 1), one of the columns (high, high, low, 1, 1, potential);
    highs and lows have four places, a potential two.
    """
    ks = tl.arange(0, 16)[None, :]
    own = tl.load(points16 + points + rows[:, None].to(tl.int64) * 16 + ks, mask=inside[:, None], other=0.0)
    high, low = high_low(level)
    own = tl.where(ks == 12 + 2 * SIDE, high[:, None], own)
    return tl.where(ks == 13 + 2 * SIDE, low[:, None], own)


@triton.jit
def _load_tile(place, near, WHOLE: tl.constexpr):
    """Other points of a tile; one that is not WHOLE has columns past the end."""
    if WHOLE:
        return tl.load(place)
    else:
        return tl.load(place, mask=near[None, :], other=0.0)


@triton.jit
def exponents(points16, points32, points, own, rows, inside, others, near, dim, other_size, size, other_points, level,
              h, KIND: tl.constexpr, DP: tl.constexpr, CHUNKS: tl.constexpr, SIDE: tl.constexpr, BM: tl.constexpr,
              BN: tl.constexpr, INSIDE: tl.constexpr, HIGH_PARTS: tl.constexpr, WHOLE: tl.constexpr):  # fmt: skip
    """`level_i + h_j - C_ij / (eps ln 2)` of a tile, up to the norms that potentials carry.

    With INSIDE potentials are inside the product, which has added h_j. The product of PACKED points, or of points with
    ROOMY chunks, which have places for both potentials, has added level_i as well. With HIGH_PARTS the product is that
    of float16 high parts alone. A WHOLE tile has no column past the end.
    """
    if KIND == PACKED:
        theirs = points16 + other_points + others[None, :].to(tl.int64) * 16 + tl.arange(0, 16)[:, None]
        return tl.dot(own[0], _load_tile(theirs, near, WHOLE))
    elif KIND == PRODUCT:
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        ks = tl.arange(0, DP)
        # High and low parts of a chunk of coordinates are neighbours: (size, CHUNKS, 2, DP).
        theirs = points16 + other_points + others[None, :].to(tl.int64) * (2 * DP * CHUNKS) + ks[:, None]
        if CHUNKS == 1:
            yh = _load_tile(theirs, near, WHOLE)
            if not HIGH_PARTS:
                yl = _load_tile(theirs + DP, near, WHOLE)
                acc = tl.dot(own[0], yl, acc)
                acc = tl.dot(own[1], yh, acc)
            acc = tl.dot(own[0], yh, acc)
        else:
            mine = points16 + points + rows[:, None].to(tl.int64) * (2 * DP * CHUNKS) + ks[None, :]
            # Not unrolled: shared memory holds a few chunks, not all.
            for chunk in range(CHUNKS):
                at = chunk * 2 * DP
                xh = tl.load(mine + at, mask=inside[:, None], other=0.0)
                yh = _load_tile(theirs + at, near, WHOLE)
                if not HIGH_PARTS:
                    xl = tl.load(mine + at + DP, mask=inside[:, None], other=0.0)
                    yl = _load_tile(theirs + at + DP, near, WHOLE)
                    acc = tl.dot(xh, yl, acc)
                    acc = tl.dot(xl, yh, acc)
                acc = tl.dot(xh, yh, acc)
        if INSIDE:
            if DP == ROOMY:
                return acc
            else:
                return acc + level[:, None]
        return acc + level[:, None] + h[None, :]
    elif KIND == STORED:
        # The matrix is padded by zeros to whole tiles, whose columns have no weight.
        if SIDE == 0:
            place = rows[:, None].to(tl.int64) * padded(other_size) + others[None, :]
        else:
            place = others[None, :].to(tl.int64) * padded(size) + rows[:, None]
        return tl.load(points32 + points + place) + level[:, None] + h[None, :]
    else:
        squares = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(dim):
            wide_k = tl.cast(k, tl.int64)
            x = tl.load(points32 + points + wide_k * padded(size) + rows, mask=inside, other=0.0)
            coordinate = other_points + wide_k * padded(other_size)
            y = tl.load(points32 + coordinate + others, mask=near, other=0.0)
            apart = x[:, None] - y[None, :]
            squares += apart * apart
        return level[:, None] + h[None, :] - tl.sqrt(squares)
