"""Triton kernels that consume finished plans: means, entropies, best matches and draws, without a plan in memory.

Lanes of a group are stacked and padded to whole tiles: vectors are (L, pad), own and other sides told apart by SIDE.
The terms of a row are

    t_ij = 2^(h_i + k_j - c_ij),    sum_j t_ij w_j = rho_i 2^-l_i

h is the rounded part of a potential in bits and l its rest (see `kernels.leg`). k and log2 w are the rounded part and
the rest of the other side's potential plus log2 of its weight, so w differs from one by a few parts in ten thousand.
Padding has k far below everything and w = 0. If potentials are INSIDE the product, the free coordinate of a point holds
k, and the product adds it. Cached exponents (STORED) are a matrix for each lane, (L, rows, columns), that contains both
potentials: h and l are zero, and k is that of the weight alone.

The marginal ratios of a finished plan are near one, so no largest term is taken out. A lane whose sums are out of range
is marked as `inaccurate`, and is consumed again by the `float64_` kernels.
"""

# pyright: basic, reportIndexIssue=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false, reportGeneralTypeIssues=false
# Triton reads these functions itself; Python's types mean little inside them.

from __future__ import annotations

import triton
import triton.language as tl

from drainsinkhorn.backends.triton.kernels.columns import DIRECT, PRODUCT, STORED, Constant
from drainsinkhorn.backends.triton.kernels.scores import load_own, with_place

SCALE = Constant(256.0)
"""Factor on terms before they are split into two float16 parts, so that small terms keep their digits."""
SCALE_BITS = Constant(8.0)
"""Log2 of SCALE."""
MOST = Constant(100.0)
"""Largest sum of a row that is trusted: float16 holds little more than MOST times SCALE."""
LEAST = Constant(2.0**-60)
"""Smallest sum of a row that is trusted."""
LEAST_SPLIT = Constant(2.0**-10)
"""Smallest sum that is trusted if terms are split: smaller ones are lost among subnormal float16 numbers."""
HIGH_BITS = Constant(-8192)
"""Mask for the eleven digits of a float32 number that a float16 number holds."""


@triton.jit
def _rows(listed, lane, count, size, LISTED: tl.constexpr, BM: tl.constexpr):
    """Return the rows of this program, their places in the output, and which of them exist.

    A launch covers all rows of a lane, or the `count` rows that are LISTED.
    """
    places = tl.program_id(0) * BM + tl.arange(0, BM)
    if LISTED:
        inside = places < count
        rows = tl.load(listed + lane.to(tl.int64) * count + places, mask=inside, other=0)
    else:
        inside = places < size
        rows = places
    return places, rows, inside


@triton.jit
def _load_own(clouds, lane, rows, inside, KIND: tl.constexpr, DP: tl.constexpr, CHUNKS: tl.constexpr,
              INSIDE: tl.constexpr):  # fmt: skip
    """What is loaded of the own points before the loop over the others."""
    points, _, stride, _, _, pad, _ = clouds
    start = tl.multiple_of(lane.to(tl.int64) * stride, 64)
    own = load_own(points, points, start, rows, inside, pad, KIND, DP, CHUNKS, DP)
    if INSIDE:
        own = with_place(own, inside, 1.0, DP)
    return own


@triton.jit
def _products(acc, xh, xl, yh, yl):
    """Add the product of points that are split into high and low parts, the smallest part first."""
    acc = tl.dot(xh, yl, acc)
    acc = tl.dot(xl, yh, acc)
    return tl.dot(xh, yh, acc)


@triton.jit
def _scores(clouds, lane, own, rows, others, KIND: tl.constexpr, DP: tl.constexpr, CHUNKS: tl.constexpr,
            SIDE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """Return minus the scaled costs of a tile.

    PRODUCT: without the squared norms of points, which are part of the potentials h and k; if these are inside the
    product, it has added k_j. STORED: with all potentials and norms.
    """
    points, other_points, stride, other_stride, dim, pad, other_pad = clouds
    at = lane.to(tl.int64)
    start, other_start = tl.multiple_of(at * stride, 64), tl.multiple_of(at * other_stride, 64)
    if KIND == PRODUCT:
        # High and low parts of a chunk of coordinates are neighbours: (size, CHUNKS, 2, DP).
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        step: tl.constexpr = 2 * DP * CHUNKS
        ks = tl.arange(0, DP)
        theirs = other_points + other_start + others[None, :].to(tl.int64) * step + ks[:, None]
        if CHUNKS == 1:
            acc = _products(acc, own[0], own[1], tl.load(theirs), tl.load(theirs + DP))
        else:
            # Not unrolled: shared memory holds a few chunks, not all.
            mine = points + start + rows[:, None].to(tl.int64) * step + ks[None, :]
            for first in range(0, step, 2 * DP):
                xh, xl = tl.load(mine + first), tl.load(mine + first + DP)
                acc = _products(acc, xh, xl, tl.load(theirs + first), tl.load(theirs + first + DP))
        return acc
    elif KIND == DIRECT:
        there = other_points + other_start + others
        apart = own[0][:, None] - tl.load(there)[None, :]
        squares = apart * apart
        if DP > 1:
            apart = own[1][:, None] - tl.load(there + other_pad)[None, :]
            squares += apart * apart
        if DP > 2:
            apart = own[2][:, None] - tl.load(there + 2 * other_pad)[None, :]
            squares += apart * apart
        if DP > 3:
            apart = own[3][:, None] - tl.load(there + 3 * other_pad)[None, :]
            squares += apart * apart
        return -squares
    elif KIND == STORED:
        if SIDE == 0:
            place = rows[:, None].to(tl.int64) * other_pad + others[None, :]
        else:
            place = others[None, :].to(tl.int64) * pad + rows[:, None]
        return tl.load(points + start + place)
    else:
        squares = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(dim):
            wide_k = tl.cast(k, tl.int64)
            x = tl.load(points + start + wide_k * pad + rows)
            y = tl.load(other_points + other_start + wide_k * other_pad + others)
            apart = x[:, None] - y[None, :]
            squares += apart * apart
        return -tl.sqrt(squares)


@triton.jit
def _exponents(clouds, lane, own, rows, others, level, other_level, KIND: tl.constexpr, DP: tl.constexpr,
               CHUNKS: tl.constexpr, INSIDE: tl.constexpr, SIDE: tl.constexpr, BM: tl.constexpr,
               BN: tl.constexpr):  # fmt: skip
    """The exponents of a tile, h_i being `level`."""
    scores = _scores(clouds, lane, own, rows, others, KIND, DP, CHUNKS, SIDE, BM, BN)
    if INSIDE:
        return scores + level[:, None]
    h = tl.load(other_level + lane.to(tl.int64) * clouds[6] + others)
    return scores + level[:, None] + h[None, :]


@triton.jit
def _mark_inaccurate(inaccurate, lane, sums, inside, least, most):
    """Mark a lane if one of its sums is not between `least` and `most`."""
    wrong = inside & ~((sums > least) & (sums < most))
    if tl.max(wrong.to(tl.int32), axis=0) > 0:
        tl.store(inaccurate + lane, 1)


@triton.jit(do_not_specialize=["dim", "channels"])
def average(points, other_points, stride, other_stride, dim, sizes, level, other_level, other_weight, pad, other_pad,
            inaccurate, fine, mass, values, scales, channels, out, KIND: tl.constexpr, DP: tl.constexpr,
            CHUNKS: tl.constexpr, INSIDE: tl.constexpr, SIDE: tl.constexpr, CP: tl.constexpr, WEIGHTED: tl.constexpr,
            BM: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """Write means of values under the conditional distributions of rows, (L, pad, channels); if WEIGHTED, `P @ values`.

    Implements the product of `numerics.transforms.conditionals` with values, which are (L, blocks, M, 2, CP): high and
    low parts of a block of channels, times w and over `scales`, (L, channels).
    """
    lane, block = tl.program_id(1), tl.program_id(2)
    at = lane.to(tl.int64)
    size, other_size = tl.load(sizes + 2 * lane + SIDE), tl.load(sizes + 2 * lane + 1 - SIDE)
    if tl.program_id(0) * BM >= size:
        return
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    inside = rows < size
    clouds = points, other_points, stride, other_stride, dim, pad, other_pad
    own = _load_own(clouds, lane, rows, inside, KIND, DP, CHUNKS, INSIDE)
    h = tl.load(level + at * pad + rows) + SCALE_BITS
    total = tl.zeros((BM,), dtype=tl.float32)
    acc = tl.zeros((BM, CP), dtype=tl.float32)
    cs = tl.arange(0, CP)
    v = values + (at * tl.num_programs(2) + block) * other_pad * 2 * CP
    for start in range(0, other_size, BN):
        others = start + tl.arange(0, BN)
        terms = tl.exp2(
            _exponents(clouds, lane, own, rows, others, h, other_level, KIND, DP, CHUNKS, INSIDE, SIDE, BM, BN)
        )
        if WEIGHTED:
            total += tl.sum(terms, axis=1)
        else:
            w = tl.load(other_weight + at * other_pad + others)
            total += tl.sum(terms * w[None, :], axis=1)
        theirs = v + others[:, None] * (2 * CP) + cs[None, :]
        high, low = tl.load(theirs), tl.load(theirs + CP)
        # Digits are cut off, not rounded: that saves an instruction, and the rest still fits.
        cut = (terms.to(tl.int32, bitcast=True) & HIGH_BITS).to(tl.float32, bitcast=True)
        th, rest = cut.to(tl.float16), (terms - cut).to(tl.float16)
        acc = tl.dot(th, low, acc)
        acc = tl.dot(rest, high, acc)
        acc = tl.dot(th, high, acc)
    _mark_inaccurate(inaccurate, lane, total, inside, LEAST_SPLIT * SCALE, MOST * SCALE)
    if WEIGHTED:
        share = tl.load(mass + at * pad + rows).to(tl.float32)
        share = tl.where(share > 0, share * tl.exp2(tl.load(fine + at * pad + rows)) / SCALE, 0.0)
    else:
        share = 1 / total
    cs += block * CP
    scale = tl.load(scales + at * channels + cs, mask=cs < channels, other=0.0)
    means = acc * share[:, None] * scale[None, :]
    if WEIGHTED:
        # Zero without mass, however far away the point lies.
        means = tl.where(share[:, None] > 0, means, 0.0)
    mine = (at * pad + rows)[:, None] * channels + cs[None, :]
    tl.store(out + mine, means, mask=inside[:, None] & (cs < channels)[None, :])


@triton.jit(do_not_specialize=["dim"])
def total(points, other_points, stride, other_stride, dim, sizes, level, other_level, other_weight, pad, other_pad,
          inaccurate, sums, row_offset, rest, col_offset, more, KIND: tl.constexpr, DP: tl.constexpr,
          CHUNKS: tl.constexpr, INSIDE: tl.constexpr, SIDE: tl.constexpr, COSTS: tl.constexpr, BM: tl.constexpr,
          BN: tl.constexpr):  # fmt: skip
    """Write `sums_i = sum_j p_ij`, p = t w; if COSTS also sums of p log2(p / b) and of p c to `more`, (2, L, pad).

    They are the sums of `numerics.transforms.plan_costs`. log2(p / b) is the exponent plus l_i and `rest`; the exponent
    plus c is `row_offset` of i and `col_offset` of j.
    """
    lane = tl.program_id(1)
    at = lane.to(tl.int64)
    size, other_size = tl.load(sizes + 2 * lane + SIDE), tl.load(sizes + 2 * lane + 1 - SIDE)
    if tl.program_id(0) * BM >= size:
        return
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    inside = rows < size
    clouds = points, other_points, stride, other_stride, dim, pad, other_pad
    own = _load_own(clouds, lane, rows, inside, KIND, DP, CHUNKS, INSIDE)
    h = tl.load(level + at * pad + rows)
    sums_of_rows = tl.zeros((BM,), dtype=tl.float32)
    bits = tl.zeros((BM,), dtype=tl.float32)
    price = tl.zeros((BM,), dtype=tl.float32)
    if COSTS:
        mine = tl.load(row_offset + at * pad + rows)
    for start in range(0, other_size, BN):
        others = start + tl.arange(0, BN)
        theirs = at * other_pad + others
        exponent = _exponents(clouds, lane, own, rows, others, h, other_level, KIND, DP, CHUNKS, INSIDE, SIDE, BM, BN)
        p = tl.exp2(exponent) * tl.load(other_weight + theirs)[None, :]
        sums_of_rows += tl.sum(p, axis=1)
        if COSTS:
            # Where there is no weight exponents are finite, if far below everything, and p is zero.
            bits += tl.sum(p * (exponent + tl.load(rest + theirs)[None, :]), axis=1)
            price += tl.sum(p * (mine[:, None] + tl.load(col_offset + theirs)[None, :] - exponent), axis=1)
    _mark_inaccurate(inaccurate, lane, sums_of_rows, inside, LEAST, MOST)
    tl.store(sums + at * pad + rows, sums_of_rows, mask=inside)
    if COSTS:
        out = more + at * pad + rows
        tl.store(out, bits, mask=inside)
        tl.store(out + tl.num_programs(1).to(tl.int64) * pad, price, mask=inside)


@triton.jit(do_not_specialize=["dim", "count"])
def probe(points, other_points, stride, other_stride, dim, sizes, level, other_level, other_weight, pad, other_pad,
          listed, count, signs, found, KIND: tl.constexpr, DP: tl.constexpr, CHUNKS: tl.constexpr, INSIDE: tl.constexpr,
          SIDE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """Write sums of p and of p times signs for listed rows, (2, L, count), from a tile of sums."""
    lane = tl.program_id(1)
    at = lane.to(tl.int64)
    size, other_size = tl.load(sizes + 2 * lane + SIDE), tl.load(sizes + 2 * lane + 1 - SIDE)
    places, rows, inside = _rows(listed, lane, count, size, True, BM)
    clouds = points, other_points, stride, other_stride, dim, pad, other_pad
    own = _load_own(clouds, lane, rows, inside, KIND, DP, CHUNKS, INSIDE)
    h = tl.load(level + at * pad + rows)
    sums = tl.zeros((BM, BN), dtype=tl.float32)
    signed = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, other_size, BN):
        others = start + tl.arange(0, BN)
        exponent = _exponents(clouds, lane, own, rows, others, h, other_level, KIND, DP, CHUNKS, INSIDE, SIDE, BM, BN)
        p = tl.exp2(exponent) * tl.load(other_weight + at * other_pad + others)[None, :]
        sums += p
        signed += p * tl.load(signs + others)[None, :]
    out = found + at * count + places
    tl.store(out, tl.sum(sums, axis=1), mask=inside)
    tl.store(out + tl.num_programs(1).to(tl.int64) * count, tl.sum(signed, axis=1), mask=inside)


@triton.jit(do_not_specialize=["dim"])
def match(points, other_points, stride, other_stride, dim, sizes, level, other_level, other_weight, pad, other_pad,
          inaccurate, found, KIND: tl.constexpr, DP: tl.constexpr, CHUNKS: tl.constexpr, INSIDE: tl.constexpr,
          SIDE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """Write the column of the largest term of every row, the first of equals."""
    lane = tl.program_id(1)
    at = lane.to(tl.int64)
    size, other_size = tl.load(sizes + 2 * lane + SIDE), tl.load(sizes + 2 * lane + 1 - SIDE)
    if tl.program_id(0) * BM >= size:
        return
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    inside = rows < size
    clouds = points, other_points, stride, other_stride, dim, pad, other_pad
    own = _load_own(clouds, lane, rows, inside, KIND, DP, CHUNKS, INSIDE)
    h = tl.load(level + at * pad + rows)
    sums = tl.zeros((BM,), dtype=tl.float32)
    best = tl.full((BM,), -1.0, dtype=tl.float32)
    place = tl.zeros((BM,), dtype=tl.int32)
    for start in range(0, other_size, BN):
        others = start + tl.arange(0, BN)
        exponent = _exponents(clouds, lane, own, rows, others, h, other_level, KIND, DP, CHUNKS, INSIDE, SIDE, BM, BN)
        p = tl.exp2(exponent) * tl.load(other_weight + at * other_pad + others)[None, :]
        sums += tl.sum(p, axis=1)
        largest = tl.max(p, axis=1)
        here = start + tl.argmax(p, axis=1, tie_break_left=True).to(tl.int32)
        place = tl.where(largest > best, here, place)
        best = tl.maximum(best, largest)
    _mark_inaccurate(inaccurate, lane, sums, inside, LEAST, MOST)
    tl.store(found + at * pad + rows, place, mask=inside)


@triton.jit(do_not_specialize=["dim", "count"])
def draw(points, other_points, stride, other_stride, dim, sizes, level, other_level, other_weight, pad, other_pad,
         listed, count, numbers, last, found, KIND: tl.constexpr, DP: tl.constexpr, CHUNKS: tl.constexpr,
         INSIDE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """Write the first columns at which cumulative sums of terms of listed rows pass `numbers` times their sums."""
    lane = tl.program_id(1)
    at = lane.to(tl.int64)
    size, other_size = tl.load(sizes + 2 * lane), tl.load(sizes + 2 * lane + 1)
    places, rows, inside = _rows(listed, lane, count, size, True, BM)
    clouds = points, other_points, stride, other_stride, dim, pad, other_pad
    own = _load_own(clouds, lane, rows, inside, KIND, DP, CHUNKS, INSIDE)
    h = tl.load(level + at * pad + rows)
    sums = tl.zeros((BM,), dtype=tl.float32)
    for start in range(0, other_size, BN):
        others = start + tl.arange(0, BN)
        exponent = _exponents(clouds, lane, own, rows, others, h, other_level, KIND, DP, CHUNKS, INSIDE, 0, BM, BN)
        p = tl.exp2(exponent) * tl.load(other_weight + at * other_pad + others)[None, :]
        sums += tl.sum(p, axis=1)
    target = tl.load(numbers + at * count + places, mask=inside, other=0.0).to(tl.float32) * sums
    passed = tl.zeros((BM,), dtype=tl.int32)
    before = tl.zeros((BM,), dtype=tl.float32)
    for start in range(0, other_size, BN):
        others = start + tl.arange(0, BN)
        near = others < other_size
        exponent = _exponents(clouds, lane, own, rows, others, h, other_level, KIND, DP, CHUNKS, INSIDE, 0, BM, BN)
        p = tl.exp2(exponent) * tl.load(other_weight + at * other_pad + others)[None, :]
        below = (before[:, None] + tl.cumsum(p, axis=1)) <= target[:, None]
        passed += tl.sum((below & near[None, :]).to(tl.int32), axis=1)
        before += tl.sum(p, axis=1)
    # Rounding may leave a number close to 1 without a column.
    passed = tl.minimum(passed, tl.load(last + lane))
    tl.store(found + at * count + places, passed, mask=inside)


@triton.jit
def _float64_exponents(cloud, other_cloud, potentials, factor, rows, inside, others, near, dim, row_stride, col_stride,
                     ROOTED: tl.constexpr, DENSE: tl.constexpr, BM: tl.constexpr,
                     BN: tl.constexpr):  # fmt: skip
    """Potentials of the other side minus scaled costs, and the scaled costs (`numerics.costs`), in bits and float64."""
    if DENSE:
        place = rows[:, None].to(tl.int64) * row_stride + others[None, :].to(tl.int64) * col_stride
        scores = tl.load(cloud + place, mask=inside[:, None] & near[None, :], other=0.0).to(tl.float64)
    else:
        mine, theirs = cloud + rows.to(tl.int64) * dim, other_cloud + others.to(tl.int64) * dim
        scores = tl.zeros((BM, BN), dtype=tl.float64)
        for k in range(dim):
            x = tl.load(mine + k, mask=inside, other=0.0).to(tl.float64)
            y = tl.load(theirs + k, mask=near, other=0.0).to(tl.float64)
            apart = x[:, None] - y[None, :]
            if ROOTED:
                # Scaled first: squares of the units of the caller may underflow.
                apart *= factor
            scores += apart * apart
        if ROOTED:
            scores = tl.sqrt(scores)
    if not ROOTED:
        scores *= factor
    h = tl.load(potentials + others, mask=near, other=-float("inf"))
    return h[None, :] - scores, scores


@triton.jit(do_not_specialize=["dim", "row_stride", "col_stride", "value_stride", "channels", "count"])
def float64_average(cloud, other_cloud, stride, other_stride, dim, factors, row_stride, col_stride, sizes, other,
                  other_mass, pad, other_pad, values, value_stride, channels, logs, entropies, prices, out, listed,
                  count, SIDE: tl.constexpr, CP: tl.constexpr, INVERSE: tl.constexpr, LISTED: tl.constexpr,
                  ROOTED: tl.constexpr, DENSE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """Write `logs_i = log2 sum_j b_j 2^(g_j - c_ij)`, and conditional means of values, g_j - c_ij and c_ij.

    Implements `numerics.transforms.conditionals` in float64. Values are (M, channels) for each lane, divided by c_ij if
    INVERSE; out is (L, rows, channels).
    """
    lane, block = tl.program_id(1), tl.program_id(2)
    at = lane.to(tl.int64)
    factor = tl.load(factors + lane)
    size, other_size = tl.load(sizes + 2 * lane + SIDE), tl.load(sizes + 2 * lane + 1 - SIDE)
    rows_out = count if LISTED else pad
    if tl.program_id(0) * BM >= (count if LISTED else size):
        return
    places, rows, inside = _rows(listed, lane, count, size, LISTED, BM)
    largest = tl.full((BM,), -float("inf"), dtype=tl.float64)
    total = tl.zeros((BM,), dtype=tl.float64)
    entropy = tl.zeros((BM,), dtype=tl.float64)
    price = tl.zeros((BM,), dtype=tl.float64)
    acc = tl.zeros((BM, CP), dtype=tl.float64)
    cs = block * CP + tl.arange(0, CP)
    for start in range(0, other_size, BN):
        others = start + tl.arange(0, BN)
        near = others < other_size
        exponent, scores = _float64_exponents(cloud + at * stride, other_cloud + at * other_stride,
                                            other + at * other_pad, factor, rows, inside, others, near, dim,
                                            row_stride, col_stride, ROOTED, DENSE, BM, BN)  # fmt: skip
        w = tl.load(other_mass + at * other_pad + others, mask=near, other=0.0)
        exponent = tl.where(w[None, :] > 0, exponent, -float("inf"))
        new = tl.maximum(largest, tl.max(exponent, axis=1))
        # Before the first column with weight there is nothing to rescale.
        keep = tl.where(largest > -float("inf"), tl.exp2(largest - new), 0.0)
        # Written so that NaN stays NaN.
        p = tl.where(exponent == -float("inf"), 0.0, tl.exp2(exponent - new[:, None])) * w[None, :]
        total = total * keep + tl.sum(p, axis=1)
        entropy = entropy * keep + tl.sum(tl.where(p > 0, p * exponent, 0.0), axis=1)
        price = price * keep + tl.sum(p * scores, axis=1)
        if INVERSE:
            p = tl.where(scores > 0, p / scores, 0.0)
        v = tl.load(values + at * value_stride + others[:, None].to(tl.int64) * channels + cs[None, :],
                    mask=near[:, None] & (cs < channels)[None, :], other=0.0)  # fmt: skip
        acc = acc * keep[:, None] + tl.sum(p[:, :, None] * v[None, :, :], axis=1)
        largest = new
    if block == 0:
        tl.store(logs + at * rows_out + places, tl.log2(total) + largest, mask=inside)
        tl.store(entropies + at * rows_out + places, entropy / total, mask=inside)
        tl.store(prices + at * rows_out + places, price / total, mask=inside)
    mine = (at * rows_out + places)[:, None] * channels + cs[None, :]
    tl.store(out + mine, acc / total[:, None], mask=inside[:, None] & (cs < channels)[None, :])


@triton.jit(do_not_specialize=["dim", "row_stride", "col_stride"])
def float64_match(cloud, other_cloud, stride, other_stride, dim, factors, row_stride, col_stride, sizes, other,
                other_mass, pad, other_pad, found, SIDE: tl.constexpr, ROOTED: tl.constexpr, DENSE: tl.constexpr,
                BM: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """Write the column of the largest entry of every row, in float64."""
    lane = tl.program_id(1)
    at = lane.to(tl.int64)
    factor = tl.load(factors + lane)
    size, other_size = tl.load(sizes + 2 * lane + SIDE), tl.load(sizes + 2 * lane + 1 - SIDE)
    if tl.program_id(0) * BM >= size:
        return
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    inside = rows < size
    best = tl.full((BM,), -float("inf"), dtype=tl.float64)
    place = tl.zeros((BM,), dtype=tl.int32)
    for start in range(0, other_size, BN):
        others = start + tl.arange(0, BN)
        near = others < other_size
        exponent, _ = _float64_exponents(cloud + at * stride, other_cloud + at * other_stride,
                                       other + at * other_pad, factor, rows, inside, others, near, dim,
                                       row_stride, col_stride, ROOTED, DENSE, BM, BN)  # fmt: skip
        w = tl.load(other_mass + at * other_pad + others, mask=near, other=0.0)
        level = tl.where(w[None, :] > 0, exponent + tl.log2(tl.maximum(w, 1e-300))[None, :], -float("inf"))
        largest = tl.max(level, axis=1)
        here = start + tl.argmax(level, axis=1, tie_break_left=True).to(tl.int32)
        place = tl.where(largest > best, here, place)
        best = tl.maximum(best, largest)
    tl.store(found + at * pad + rows, place, mask=inside)


@triton.jit(do_not_specialize=["dim", "row_stride", "col_stride", "count"])
def float64_draw(cloud, other_cloud, stride, other_stride, dim, factors, row_stride, col_stride, sizes, other,
               other_mass, pad, other_pad, logs, listed, count, numbers, last, found, ROOTED: tl.constexpr,
               DENSE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """As `draw`, in float64; `logs` are those of `float64_average`."""
    lane = tl.program_id(1)
    at = lane.to(tl.int64)
    factor = tl.load(factors + lane)
    size, other_size = tl.load(sizes + 2 * lane), tl.load(sizes + 2 * lane + 1)
    places, rows, inside = _rows(listed, lane, count, size, True, BM)
    log = tl.load(logs + at * pad + rows, mask=inside, other=0.0)
    target = tl.load(numbers + at * count + places, mask=inside, other=0.0)
    passed = tl.zeros((BM,), dtype=tl.int32)
    before = tl.zeros((BM,), dtype=tl.float64)
    for start in range(0, other_size, BN):
        others = start + tl.arange(0, BN)
        near = others < other_size
        exponent, _ = _float64_exponents(cloud + at * stride, other_cloud + at * other_stride,
                                       other + at * other_pad, factor, rows, inside, others, near, dim,
                                       row_stride, col_stride, ROOTED, DENSE, BM, BN)  # fmt: skip
        w = tl.load(other_mass + at * other_pad + others, mask=near, other=0.0)
        p = tl.where(w[None, :] > 0, tl.exp2(exponent - log[:, None]) * w[None, :], 0.0)
        below = (before[:, None] + tl.cumsum(p, axis=1)) <= target[:, None]
        passed += tl.sum((below & near[None, :]).to(tl.int32), axis=1)
        before += tl.sum(p, axis=1)
    passed = tl.minimum(passed, tl.load(last + lane))
    tl.store(found + at * count + places, passed, mask=inside)
