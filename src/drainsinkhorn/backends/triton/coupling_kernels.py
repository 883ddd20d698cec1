"""Triton kernels that consume finished plans: means, entropies, best matches and draws, without a plan in memory.

Lanes of a group are stacked and padded to whole tiles: vectors are (L, pad), own and other sides told apart by SIDE. A
row's terms are

    t_ij = 2^(h_i + k_j - c_ij),    sum_j t_ij w_j = rho_i 2^-l_i

with h the coarse part of a potential in bits and l its rest (see `kernels`), and k and log2 w those of the other side's
potential with the logarithm of its weight: w is one to a few parts in ten thousand. What is padded has k far below
everything and w = 0. With FOLD the free coordinate of a point holds k, and the product adds it. STORED points are one matrix,
(L, rows, columns), which has both potentials in it: h and l are zero, and k is that of the weight alone. A finished plan has
ratios near one, so no largest term is taken out; a lane whose sums say otherwise is put in `doubt`, to be done again by
the `exact_` kernels, in float64.
"""

# pyright: basic, reportIndexIssue=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false, reportGeneralTypeIssues=false
# Triton reads these functions itself; Python's types mean little inside them.

from __future__ import annotations

import triton
import triton.language as tl

from drainsinkhorn.backends.triton.kernels import DIRECT, PRODUCT, STORED, _Constant
from drainsinkhorn.backends.triton.leg_kernels import _own, _with_slot

SCALE = _Constant(256.0)
"""Terms times this are split into two float16 numbers: what is small against one keeps its digits."""
SCALE_BITS = _Constant(8.0)
MOST = _Constant(100.0)
"""Sums of a row above are not trusted: float16 holds no more than MOST times SCALE, and some."""
LEAST = _Constant(2.0**-60)
"""Nor are those below."""
LEAST_SPLIT = _Constant(2.0**-10)
"""Nor those below where terms are split: they would be lost among the smallest float16 numbers."""
HIGH_BITS = _Constant(-8192)
"""A mask for the eleven digits of a float32 number that a float16 number holds."""


@triton.jit
def _rows(listed, lane, count, size, LISTED: tl.constexpr, BM: tl.constexpr):
    """The rows of this program: places 0 .. size of a lane, or `count` rows from a list."""
    places = tl.program_id(0) * BM + tl.arange(0, BM)
    if LISTED:
        inside = places < count
        rows = tl.load(listed + lane.to(tl.int64) * count + places, mask=inside, other=0)
    else:
        inside = places < size
        rows = places
    return places, rows, inside


@triton.jit
def _mine(points, stride, lane, rows, inside, pad, KIND: tl.constexpr, DP: tl.constexpr, CHUNKS: tl.constexpr,
          FOLD: tl.constexpr):  # fmt: skip
    """The own points, as far as they are loaded once."""
    start = tl.multiple_of(lane.to(tl.int64) * stride, 64)
    own = _own(points, points, start, rows, inside, pad, KIND, DP, CHUNKS, DP)
    if FOLD:
        own = _with_slot(own, inside, 1.0, DP)
    return own


@triton.jit
def _products(acc, xh, xl, yh, yl):
    """Products of points that are split into two halves, the smallest first."""
    acc = tl.dot(xh, yl, acc)
    acc = tl.dot(xl, yh, acc)
    return tl.dot(xh, yh, acc)


@triton.jit
def _scores(points, other_points, start, other_start, own, rows, others, dim, pad, other_pad, KIND: tl.constexpr,
            DP: tl.constexpr, CHUNKS: tl.constexpr, SIDE: tl.constexpr, BM: tl.constexpr,
            BN: tl.constexpr):  # fmt: skip
    """Minus the scores of a tile, up to the norms that potentials carry, or to potentials; with k_j added, if it is folded."""
    if KIND == PRODUCT:
        # High and low parts of a chunk of coordinates lie side by side: (size, CHUNKS, 2, DP).
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        step: tl.constexpr = 2 * DP * CHUNKS
        ks = tl.arange(0, DP)
        theirs = other_points + other_start + others[None, :].to(tl.int64) * step + ks[:, None]
        if CHUNKS == 1:
            acc = _products(acc, own[0], own[1], tl.load(theirs), tl.load(theirs + DP))
        else:
            # Not unrolled: all chunks at once do not fit into the memory of a multiprocessor.
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
            x = tl.load(points + start + k * pad + rows)
            y = tl.load(other_points + other_start + k * other_pad + others)
            apart = x[:, None] - y[None, :]
            squares += apart * apart
        return -tl.sqrt(squares)


@triton.jit
def _exponents(points, other_points, stride, other_stride, lane, own, rows, others, dim, pad, other_pad, level,
               other_level, KIND: tl.constexpr, DP: tl.constexpr, CHUNKS: tl.constexpr, FOLD: tl.constexpr,
               SIDE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """The exponents of a tile, h_i being `level`."""
    wide = lane.to(tl.int64)
    start, other_start = tl.multiple_of(wide * stride, 64), tl.multiple_of(wide * other_stride, 64)
    scores = _scores(points, other_points, start, other_start, own, rows, others, dim, pad, other_pad, KIND, DP, CHUNKS,
                     SIDE, BM, BN)  # fmt: skip
    if FOLD:
        return scores + level[:, None]
    h = tl.load(other_level + wide * other_pad + others)
    return scores + level[:, None] + h[None, :]


@triton.jit
def _doubt(doubt, lane, sums, inside, least, most):
    """Note a lane one of whose sums is not to be trusted, or no number."""
    wrong = inside & ~((sums > least) & (sums < most))
    if tl.max(wrong.to(tl.int32), axis=0) > 0:
        tl.store(doubt + lane, 1)


@triton.jit(do_not_specialize=["dim", "channels"])
def average(points, other_points, stride, other_stride, dim, sizes, level, other_level, other_weight, pad, other_pad,
            doubt, fine, mass, values, scales, channels, out, KIND: tl.constexpr, DP: tl.constexpr,
            CHUNKS: tl.constexpr, FOLD: tl.constexpr, SIDE: tl.constexpr, CP: tl.constexpr, WEIGHTED: tl.constexpr,
            BM: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """Means of values, (L, pad, channels); if WEIGHTED times the masses of rows, whose sums are not needed but for doubt.

    Values are (L, blocks, M, 2, CP): high and low halves of a block of channels, times w and over `scales`, (L, channels).
    """
    lane, block = tl.program_id(1), tl.program_id(2)
    wide = lane.to(tl.int64)
    size, other_size = tl.load(sizes + 2 * lane + SIDE), tl.load(sizes + 2 * lane + 1 - SIDE)
    if tl.program_id(0) * BM >= size:
        return
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    inside = rows < size
    own = _mine(points, stride, lane, rows, inside, pad, KIND, DP, CHUNKS, FOLD)
    h = tl.load(level + wide * pad + rows) + SCALE_BITS
    total = tl.zeros((BM,), dtype=tl.float32)
    acc = tl.zeros((BM, CP), dtype=tl.float32)
    cs = tl.arange(0, CP)
    v = values + (wide * tl.num_programs(2) + block) * other_pad * 2 * CP
    for start in range(0, other_size, BN):
        others = start + tl.arange(0, BN)
        terms = tl.exp2(_exponents(points, other_points, stride, other_stride, lane, own, rows, others, dim, pad,
                                   other_pad, h, other_level, KIND, DP, CHUNKS, FOLD, SIDE, BM, BN))  # fmt: skip
        if WEIGHTED:
            total += tl.sum(terms, axis=1)
        else:
            w = tl.load(other_weight + wide * other_pad + others)
            total += tl.sum(terms * w[None, :], axis=1)
        theirs = v + others[:, None] * (2 * CP) + cs[None, :]
        high, low = tl.load(theirs), tl.load(theirs + CP)
        # Digits are cut off, not rounded: one instruction less, and the rest still fits.
        cut = (terms.to(tl.int32, bitcast=True) & HIGH_BITS).to(tl.float32, bitcast=True)
        th, rest = cut.to(tl.float16), (terms - cut).to(tl.float16)
        acc = tl.dot(th, low, acc)
        acc = tl.dot(rest, high, acc)
        acc = tl.dot(th, high, acc)
    _doubt(doubt, lane, total, inside, LEAST_SPLIT * SCALE, MOST * SCALE)
    if WEIGHTED:
        share = tl.load(mass + wide * pad + rows).to(tl.float32)
        share = tl.where(share > 0, share * tl.exp2(tl.load(fine + wide * pad + rows)) / SCALE, 0.0)
    else:
        share = 1 / total
    cs += block * CP
    scale = tl.load(scales + wide * channels + cs, mask=cs < channels, other=0.0)
    found = acc * share[:, None] * scale[None, :]
    if WEIGHTED:
        # Zero without mass, however far away the point lies.
        found = tl.where(share[:, None] > 0, found, 0.0)
    mine = (wide * pad + rows)[:, None] * channels + cs[None, :]
    tl.store(out + mine, found, mask=inside[:, None] & (cs < channels)[None, :])


@triton.jit(do_not_specialize=["dim"])
def total(points, other_points, stride, other_stride, dim, sizes, level, other_level, other_weight, pad, other_pad,
          doubt, sums, gross, rest, toll, more, KIND: tl.constexpr, DP: tl.constexpr, CHUNKS: tl.constexpr,
          FOLD: tl.constexpr, SIDE: tl.constexpr, COSTS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """`sums_i = sum_j p_ij`, p = t w; and if COSTS sums of p log2(p / b) and of p c in `more`, (2, L, pad).

    What exponents lack of log2(p / b) is l_i and `rest`; what they are above -c is `gross` of i and `toll` of j.
    """
    lane = tl.program_id(1)
    wide = lane.to(tl.int64)
    size, other_size = tl.load(sizes + 2 * lane + SIDE), tl.load(sizes + 2 * lane + 1 - SIDE)
    if tl.program_id(0) * BM >= size:
        return
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    inside = rows < size
    own = _mine(points, stride, lane, rows, inside, pad, KIND, DP, CHUNKS, FOLD)
    h = tl.load(level + wide * pad + rows)
    found = tl.zeros((BM,), dtype=tl.float32)
    bits = tl.zeros((BM,), dtype=tl.float32)
    price = tl.zeros((BM,), dtype=tl.float32)
    if COSTS:
        mine = tl.load(gross + wide * pad + rows)
    for start in range(0, other_size, BN):
        others = start + tl.arange(0, BN)
        theirs = wide * other_pad + others
        exponent = _exponents(points, other_points, stride, other_stride, lane, own, rows, others, dim, pad, other_pad,
                              h, other_level, KIND, DP, CHUNKS, FOLD, SIDE, BM, BN)  # fmt: skip
        p = tl.exp2(exponent) * tl.load(other_weight + theirs)[None, :]
        found += tl.sum(p, axis=1)
        if COSTS:
            # Where there is no weight exponents are finite, if far below everything, and p is zero.
            bits += tl.sum(p * (exponent + tl.load(rest + theirs)[None, :]), axis=1)
            price += tl.sum(p * (mine[:, None] + tl.load(toll + theirs)[None, :] - exponent), axis=1)
    _doubt(doubt, lane, found, inside, LEAST, MOST)
    tl.store(sums + wide * pad + rows, found, mask=inside)
    if COSTS:
        out = more + wide * pad + rows
        tl.store(out, bits, mask=inside)
        tl.store(out + tl.num_programs(1).to(tl.int64) * pad, price, mask=inside)


@triton.jit(do_not_specialize=["dim", "count"])
def probe(points, other_points, stride, other_stride, dim, sizes, level, other_level, other_weight, pad, other_pad,
          listed, count, signs, found, KIND: tl.constexpr, DP: tl.constexpr, CHUNKS: tl.constexpr, FOLD: tl.constexpr,
          SIDE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """Sums of p and of p times signs for listed rows, (2, L, count); a tile of sums, since there are few programs."""
    lane = tl.program_id(1)
    wide = lane.to(tl.int64)
    size, other_size = tl.load(sizes + 2 * lane + SIDE), tl.load(sizes + 2 * lane + 1 - SIDE)
    places, rows, inside = _rows(listed, lane, count, size, True, BM)
    own = _mine(points, stride, lane, rows, inside, pad, KIND, DP, CHUNKS, FOLD)
    h = tl.load(level + wide * pad + rows)
    sums = tl.zeros((BM, BN), dtype=tl.float32)
    signed = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, other_size, BN):
        others = start + tl.arange(0, BN)
        exponent = _exponents(points, other_points, stride, other_stride, lane, own, rows, others, dim, pad, other_pad,
                              h, other_level, KIND, DP, CHUNKS, FOLD, SIDE, BM, BN)  # fmt: skip
        p = tl.exp2(exponent) * tl.load(other_weight + wide * other_pad + others)[None, :]
        sums += p
        signed += p * tl.load(signs + others)[None, :]
    out = found + wide * count + places
    tl.store(out, tl.sum(sums, axis=1), mask=inside)
    tl.store(out + tl.num_programs(1).to(tl.int64) * count, tl.sum(signed, axis=1), mask=inside)


@triton.jit(do_not_specialize=["dim"])
def match(points, other_points, stride, other_stride, dim, sizes, level, other_level, other_weight, pad, other_pad,
          doubt, found, KIND: tl.constexpr, DP: tl.constexpr, CHUNKS: tl.constexpr, FOLD: tl.constexpr,
          SIDE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """The place of the largest term of every row, the first of equals."""
    lane = tl.program_id(1)
    wide = lane.to(tl.int64)
    size, other_size = tl.load(sizes + 2 * lane + SIDE), tl.load(sizes + 2 * lane + 1 - SIDE)
    if tl.program_id(0) * BM >= size:
        return
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    inside = rows < size
    own = _mine(points, stride, lane, rows, inside, pad, KIND, DP, CHUNKS, FOLD)
    h = tl.load(level + wide * pad + rows)
    sums = tl.zeros((BM,), dtype=tl.float32)
    best = tl.full((BM,), -1.0, dtype=tl.float32)
    place = tl.zeros((BM,), dtype=tl.int32)
    for start in range(0, other_size, BN):
        others = start + tl.arange(0, BN)
        exponent = _exponents(points, other_points, stride, other_stride, lane, own, rows, others, dim, pad, other_pad,
                              h, other_level, KIND, DP, CHUNKS, FOLD, SIDE, BM, BN)  # fmt: skip
        p = tl.exp2(exponent) * tl.load(other_weight + wide * other_pad + others)[None, :]
        sums += tl.sum(p, axis=1)
        largest = tl.max(p, axis=1)
        here = start + tl.argmax(p, axis=1, tie_break_left=True).to(tl.int32)
        place = tl.where(largest > best, here, place)
        best = tl.maximum(best, largest)
    _doubt(doubt, lane, sums, inside, LEAST, MOST)
    tl.store(found + wide * pad + rows, place, mask=inside)


@triton.jit(do_not_specialize=["dim", "count"])
def draw(points, other_points, stride, other_stride, dim, sizes, level, other_level, other_weight, pad, other_pad,
         listed, count, numbers, last, found, KIND: tl.constexpr, DP: tl.constexpr, CHUNKS: tl.constexpr,
         FOLD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """For every listed row the first column at which the cumulative sum of its terms passes `numbers` times its sum."""
    lane = tl.program_id(1)
    wide = lane.to(tl.int64)
    size, other_size = tl.load(sizes + 2 * lane), tl.load(sizes + 2 * lane + 1)
    places, rows, inside = _rows(listed, lane, count, size, True, BM)
    own = _mine(points, stride, lane, rows, inside, pad, KIND, DP, CHUNKS, FOLD)
    h = tl.load(level + wide * pad + rows)
    sums = tl.zeros((BM,), dtype=tl.float32)
    for start in range(0, other_size, BN):
        others = start + tl.arange(0, BN)
        exponent = _exponents(points, other_points, stride, other_stride, lane, own, rows, others, dim, pad, other_pad,
                              h, other_level, KIND, DP, CHUNKS, FOLD, 0, BM, BN)  # fmt: skip
        p = tl.exp2(exponent) * tl.load(other_weight + wide * other_pad + others)[None, :]
        sums += tl.sum(p, axis=1)
    target = tl.load(numbers + wide * count + places, mask=inside, other=0.0).to(tl.float32) * sums
    passed = tl.zeros((BM,), dtype=tl.int32)
    before = tl.zeros((BM,), dtype=tl.float32)
    for start in range(0, other_size, BN):
        others = start + tl.arange(0, BN)
        near = others < other_size
        exponent = _exponents(points, other_points, stride, other_stride, lane, own, rows, others, dim, pad, other_pad,
                              h, other_level, KIND, DP, CHUNKS, FOLD, 0, BM, BN)  # fmt: skip
        p = tl.exp2(exponent) * tl.load(other_weight + wide * other_pad + others)[None, :]
        below = (before[:, None] + tl.cumsum(p, axis=1)) <= target[:, None]
        passed += tl.sum((below & near[None, :]).to(tl.int32), axis=1)
        before += tl.sum(p, axis=1)
    # Rounding may leave a number at the very end without a column.
    passed = tl.minimum(passed, tl.load(last + lane))
    tl.store(found + wide * count + places, passed, mask=inside)


@triton.jit
def _exact_exponents(cloud, other_cloud, potentials, factor, rows, inside, others, near, dim, row_stride, col_stride,
                     ROOTED: tl.constexpr, DENSE: tl.constexpr, BM: tl.constexpr,
                     BN: tl.constexpr):  # fmt: skip
    """The other side's potentials minus scores, in bits and float64; and the scores."""
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
                # Squares of what is in units of the cost may vanish.
                apart *= factor
            scores += apart * apart
        if ROOTED:
            scores = tl.sqrt(scores)
    if not ROOTED:
        scores *= factor
    h = tl.load(potentials + others, mask=near, other=-float("inf"))
    return h[None, :] - scores, scores


@triton.jit(do_not_specialize=["dim", "row_stride", "col_stride", "value_stride", "channels", "count"])
def exact_average(cloud, other_cloud, stride, other_stride, dim, factors, row_stride, col_stride, sizes, other,
                  other_mass, pad, other_pad, values, value_stride, channels, logs, entropies, prices, out, listed,
                  count, SIDE: tl.constexpr, CP: tl.constexpr, INVERSE: tl.constexpr, LISTED: tl.constexpr,
                  ROOTED: tl.constexpr, DENSE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """`logs_i = log2 sum_j b_j 2^(g_j - c_ij)`, and means of values, g_j - c_ij and c_ij under the law of i.

    Values are (M, channels) for each lane, means over c_ij instead if INVERSE; out is (L, rows, channels).
    """
    lane, block = tl.program_id(1), tl.program_id(2)
    wide = lane.to(tl.int64)
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
        exponent, scores = _exact_exponents(cloud + wide * stride, other_cloud + wide * other_stride,
                                            other + wide * other_pad, factor, rows, inside, others, near, dim,
                                            row_stride, col_stride, ROOTED, DENSE, BM, BN)  # fmt: skip
        w = tl.load(other_mass + wide * other_pad + others, mask=near, other=0.0)
        exponent = tl.where(w[None, :] > 0, exponent, -float("inf"))
        new = tl.maximum(largest, tl.max(exponent, axis=1))
        # Until a column with weight is seen there is nothing to rescale.
        keep = tl.where(largest > -float("inf"), tl.exp2(largest - new), 0.0)
        # Written so that what is no number stays none.
        p = tl.where(exponent == -float("inf"), 0.0, tl.exp2(exponent - new[:, None])) * w[None, :]
        total = total * keep + tl.sum(p, axis=1)
        entropy = entropy * keep + tl.sum(tl.where(p > 0, p * exponent, 0.0), axis=1)
        price = price * keep + tl.sum(p * scores, axis=1)
        if INVERSE:
            p = tl.where(scores > 0, p / scores, 0.0)
        v = tl.load(values + wide * value_stride + others[:, None] * channels + cs[None, :],
                    mask=near[:, None] & (cs < channels)[None, :], other=0.0)  # fmt: skip
        acc = acc * keep[:, None] + tl.sum(p[:, :, None] * v[None, :, :], axis=1)
        largest = new
    if block == 0:
        tl.store(logs + wide * rows_out + places, tl.log2(total) + largest, mask=inside)
        tl.store(entropies + wide * rows_out + places, entropy / total, mask=inside)
        tl.store(prices + wide * rows_out + places, price / total, mask=inside)
    mine = (wide * rows_out + places)[:, None] * channels + cs[None, :]
    tl.store(out + mine, acc / total[:, None], mask=inside[:, None] & (cs < channels)[None, :])


@triton.jit(do_not_specialize=["dim", "row_stride", "col_stride"])
def exact_match(cloud, other_cloud, stride, other_stride, dim, factors, row_stride, col_stride, sizes, other,
                other_mass, pad, other_pad, found, SIDE: tl.constexpr, ROOTED: tl.constexpr, DENSE: tl.constexpr,
                BM: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """The place of the largest entry of every row, in float64."""
    lane = tl.program_id(1)
    wide = lane.to(tl.int64)
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
        exponent, _ = _exact_exponents(cloud + wide * stride, other_cloud + wide * other_stride,
                                       other + wide * other_pad, factor, rows, inside, others, near, dim,
                                       row_stride, col_stride, ROOTED, DENSE, BM, BN)  # fmt: skip
        w = tl.load(other_mass + wide * other_pad + others, mask=near, other=0.0)
        level = tl.where(w[None, :] > 0, exponent + tl.log2(tl.maximum(w, 1e-300))[None, :], -float("inf"))
        largest = tl.max(level, axis=1)
        here = start + tl.argmax(level, axis=1, tie_break_left=True).to(tl.int32)
        place = tl.where(largest > best, here, place)
        best = tl.maximum(best, largest)
    tl.store(found + wide * pad + rows, place, mask=inside)


@triton.jit(do_not_specialize=["dim", "row_stride", "col_stride", "count"])
def exact_draw(cloud, other_cloud, stride, other_stride, dim, factors, row_stride, col_stride, sizes, other,
               other_mass, pad, other_pad, logs, listed, count, numbers, last, found, ROOTED: tl.constexpr,
               DENSE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """As `draw`, in float64; `logs` are those of `exact_average`."""
    lane = tl.program_id(1)
    wide = lane.to(tl.int64)
    factor = tl.load(factors + lane)
    size, other_size = tl.load(sizes + 2 * lane), tl.load(sizes + 2 * lane + 1)
    places, rows, inside = _rows(listed, lane, count, size, True, BM)
    log = tl.load(logs + wide * pad + rows, mask=inside, other=0.0)
    target = tl.load(numbers + wide * count + places, mask=inside, other=0.0)
    passed = tl.zeros((BM,), dtype=tl.int32)
    before = tl.zeros((BM,), dtype=tl.float64)
    for start in range(0, other_size, BN):
        others = start + tl.arange(0, BN)
        near = others < other_size
        exponent, _ = _exact_exponents(cloud + wide * stride, other_cloud + wide * other_stride,
                                       other + wide * other_pad, factor, rows, inside, others, near, dim,
                                       row_stride, col_stride, ROOTED, DENSE, BM, BN)  # fmt: skip
        w = tl.load(other_mass + wide * other_pad + others, mask=near, other=0.0)
        p = tl.where(w[None, :] > 0, tl.exp2(exponent - log[:, None]) * w[None, :], 0.0)
        below = (before[:, None] + tl.cumsum(p, axis=1)) <= target[:, None]
        passed += tl.sum((below & near[None, :]).to(tl.int32), axis=1)
        before += tl.sum(p, axis=1)
    passed = tl.minimum(passed, tl.load(last + lane))
    tl.store(found + wide * count + places, passed, mask=inside)
