"""Triton kernels that consume finished plans: means, entropies, best matches and draws, without a plan in memory.

Lanes of a group are stacked and padded: vectors are (L, N), own and other sides told apart by SIDE. As in a leg, terms are

    p_ij = w_j 2^(h_i + h_j - c_ij),    sum_j p_ij = rho_i 2^-l_i

with h the coarse part of a potential in bits and l its rest (see `kernels`). A finished plan has ratios near one, so no
largest term is taken out; a lane whose sums say otherwise is done again by the `exact_` kernels, in float64.
"""

# pyright: basic, reportIndexIssue=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false, reportGeneralTypeIssues=false
# Triton reads these functions itself; Python's types mean little inside them.

from __future__ import annotations

import triton
import triton.language as tl

from drainsinkhorn.backends.triton.kernels import DIRECT, PRODUCT, _apart, _Constant, _own, _padded

SCALE = _Constant(256.0)
"""Terms times this are split into two float16 numbers: what is small against one keeps its digits."""


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
def _scores(half, single, points, own, rows, inside, others, near, dim, pad, other_pad, other_points,
            KIND: tl.constexpr, DP: tl.constexpr, CHUNKS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """Minus the scores of a tile, up to the norms that potentials carry."""
    if KIND == PRODUCT:
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        ks = tl.arange(0, DP)
        for chunk in tl.static_range(CHUNKS):
            # High and low parts of a chunk of coordinates lie side by side: (size, CHUNKS, 2, DP).
            there = half + other_points + chunk * 2 * DP + ks[:, None]
            theirs = there + others[None, :].to(tl.int64) * (2 * DP * CHUNKS)
            yh, yl = tl.load(theirs, mask=near[None, :], other=0.0), tl.load(theirs + DP, mask=near[None, :], other=0.0)
            if CHUNKS == 1:
                xh, xl = own[0], own[1]
            else:
                here = half + points + chunk * 2 * DP + ks[None, :]
                mine = here + rows[:, None].to(tl.int64) * (2 * DP * CHUNKS)
                xh = tl.load(mine, mask=inside[:, None], other=0.0)
                xl = tl.load(mine + DP, mask=inside[:, None], other=0.0)
            acc = tl.dot(xh, yl, acc)
            acc = tl.dot(xl, yh, acc)
            acc = tl.dot(xh, yh, acc)
        return acc
    elif KIND == DIRECT:
        stride = _padded(other_pad)
        apart = _apart(single, other_points, others, near, own[0])
        squares = apart * apart
        if DP > 1:
            apart = _apart(single, other_points + stride, others, near, own[1])
            squares += apart * apart
        if DP > 2:
            apart = _apart(single, other_points + 2 * stride, others, near, own[2])
            squares += apart * apart
        if DP > 3:
            apart = _apart(single, other_points + 3 * stride, others, near, own[3])
            squares += apart * apart
        return -squares
    else:
        squares = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(dim):
            x = tl.load(single + points + k * _padded(pad) + rows, mask=inside, other=0.0)
            apart = _apart(single, other_points + k * _padded(other_pad), others, near, x)
            squares += apart * apart
        return -tl.sqrt(squares)


@triton.jit
def _terms(half, single, points, other_points, own, rows, inside, others, near, dim, pad, other_pad, c, other_coarse,
           other_weight, KIND: tl.constexpr, DP: tl.constexpr, CHUNKS: tl.constexpr, BM: tl.constexpr,
           BN: tl.constexpr):  # fmt: skip
    """Minus the scores of a tile, up to norms, its exponents and its terms."""
    scores = _scores(half, single, points, own, rows, inside, others, near, dim, pad, other_pad, other_points,
                     KIND, DP, CHUNKS, BM, BN)  # fmt: skip
    h = tl.load(other_coarse + others, mask=near, other=-1e30)
    w = tl.load(other_weight + others, mask=near, other=0.0)
    exponent = scores + c[:, None] + h[None, :]
    return scores, exponent, tl.exp2(exponent) * w[None, :]


@triton.jit
def average(half, single, base, other_base, stride, other_stride, dim, sizes, coarse, other_coarse, other_fine,
            other_weight, norm, other_norm, pad, other_pad, values, sums, entropies, prices, out, listed, count,
            KIND: tl.constexpr, DP: tl.constexpr, CHUNKS: tl.constexpr, SIDE: tl.constexpr, CP: tl.constexpr,
            ENTROPY: tl.constexpr, LISTED: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """`sums_i = sum_j p_ij` and `out_i = SCALE sum_j p_ij v_j`; or, if ENTROPY, sums of p log2(p / b) and of p c.

    Values are (L, blocks, M, 2, CP): high and low halves of a block of channels; out is (L, blocks, rows, CP).
    """
    lane, block = tl.program_id(1), tl.program_id(2)
    wide = lane.to(tl.int64)
    size, other_size = tl.load(sizes + 2 * lane + SIDE), tl.load(sizes + 2 * lane + 1 - SIDE)
    rows_out = count if LISTED else pad
    if tl.program_id(0) * BM >= (count if LISTED else size):
        return
    places, rows, inside = _rows(listed, lane, count, size, LISTED, BM)
    points, other_points = base + wide * stride, other_base + wide * other_stride
    points, other_points = tl.multiple_of(points, 64), tl.multiple_of(other_points, 64)
    c = tl.load(coarse + wide * pad + rows, mask=inside, other=0.0)
    own = _own(half, single, points, rows, inside, pad, KIND, DP, CHUNKS)
    total = tl.zeros((BM,), dtype=tl.float32)
    entropy = tl.zeros((BM,), dtype=tl.float32)
    price = tl.zeros((BM,), dtype=tl.float32)
    acc = tl.zeros((BM, CP), dtype=tl.float32)
    channels = tl.arange(0, CP)
    if ENTROPY:
        n = tl.load(norm + wide * pad + rows, mask=inside, other=0.0)
    v = values + (wide * tl.num_programs(2) + block) * other_pad * 2 * CP
    for start in range(0, other_size, BN):
        others = start + tl.arange(0, BN)
        near = others < other_size
        scores, exponent, p = _terms(half, single, points, other_points, own, rows, inside, others, near, dim, pad, other_pad,
                                     c, other_coarse + wide * other_pad, other_weight + wide * other_pad,
                                     KIND, DP, CHUNKS, BM, BN)  # fmt: skip
        total += tl.sum(p, axis=1)
        if ENTROPY:
            m = tl.load(other_norm + wide * other_pad + others, mask=near, other=0.0)
            price += tl.sum(p * (n[:, None] + m[None, :] - scores), axis=1)
            rest = tl.load(other_fine + wide * other_pad + others, mask=near, other=0.0)
            # What is not near has p = 0 and an exponent of -1e30.
            entropy += tl.sum(tl.where(p > 0, p * (exponent + rest[None, :]), 0.0), axis=1)
        else:
            theirs = v + others[:, None] * (2 * CP) + channels[None, :]
            high = tl.load(theirs, mask=near[:, None], other=0.0)
            low = tl.load(theirs + CP, mask=near[:, None], other=0.0)
            scaled = p * SCALE
            ph = scaled.to(tl.float16)
            pl = (scaled - ph.to(tl.float32)).to(tl.float16)
            acc = tl.dot(ph, low, acc)
            acc = tl.dot(pl, high, acc)
            acc = tl.dot(ph, high, acc)
    if block == 0:
        tl.store(sums + wide * rows_out + places, total, mask=inside)
    if ENTROPY:
        tl.store(entropies + wide * rows_out + places, entropy, mask=inside)
        tl.store(prices + wide * rows_out + places, price, mask=inside)
    else:
        mine = (wide * tl.num_programs(2) + block) * rows_out + places
        tl.store(out + mine[:, None] * CP + channels[None, :], acc, mask=inside[:, None])


@triton.jit
def match(half, single, base, other_base, stride, other_stride, dim, sizes, coarse, other_coarse, other_weight, pad,
          other_pad, sums, found, KIND: tl.constexpr, DP: tl.constexpr, CHUNKS: tl.constexpr, SIDE: tl.constexpr,
          BM: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """The place of the largest term of every row, the first of equals; and the sums, which say if it can be trusted."""
    lane = tl.program_id(1)
    wide = lane.to(tl.int64)
    size, other_size = tl.load(sizes + 2 * lane + SIDE), tl.load(sizes + 2 * lane + 1 - SIDE)
    if tl.program_id(0) * BM >= size:
        return
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    inside = rows < size
    points, other_points = base + wide * stride, other_base + wide * other_stride
    points, other_points = tl.multiple_of(points, 64), tl.multiple_of(other_points, 64)
    c = tl.load(coarse + wide * pad + rows, mask=inside, other=0.0)
    own = _own(half, single, points, rows, inside, pad, KIND, DP, CHUNKS)
    total = tl.zeros((BM,), dtype=tl.float32)
    best = tl.full((BM,), -1.0, dtype=tl.float32)
    place = tl.zeros((BM,), dtype=tl.int32)
    for start in range(0, other_size, BN):
        others = start + tl.arange(0, BN)
        near = others < other_size
        _, _, p = _terms(half, single, points, other_points, own, rows, inside, others, near, dim, pad, other_pad, c,
                      other_coarse + wide * other_pad, other_weight + wide * other_pad,
                      KIND, DP, CHUNKS, BM, BN)  # fmt: skip
        total += tl.sum(p, axis=1)
        largest = tl.max(p, axis=1)
        here = start + tl.argmax(p, axis=1, tie_break_left=True).to(tl.int32)
        place = tl.where(largest > best, here, place)
        best = tl.maximum(best, largest)
    tl.store(sums + wide * pad + rows, total, mask=inside)
    tl.store(found + wide * pad + rows, place, mask=inside)


@triton.jit
def draw(half, single, base, other_base, stride, other_stride, dim, sizes, coarse, other_coarse, other_weight, pad,
         other_pad, listed, count, numbers, last, found, KIND: tl.constexpr, DP: tl.constexpr, CHUNKS: tl.constexpr,
         BM: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """For every listed row the first column at which the cumulative sum of its terms passes `numbers` times its sum."""
    lane = tl.program_id(1)
    wide = lane.to(tl.int64)
    size, other_size = tl.load(sizes + 2 * lane), tl.load(sizes + 2 * lane + 1)
    places, rows, inside = _rows(listed, lane, count, size, True, BM)
    points, other_points = base + wide * stride, other_base + wide * other_stride
    points, other_points = tl.multiple_of(points, 64), tl.multiple_of(other_points, 64)
    c = tl.load(coarse + wide * pad + rows, mask=inside, other=0.0)
    own = _own(half, single, points, rows, inside, pad, KIND, DP, CHUNKS)
    total = tl.zeros((BM,), dtype=tl.float32)
    for start in range(0, other_size, BN):
        others = start + tl.arange(0, BN)
        near = others < other_size
        _, _, p = _terms(half, single, points, other_points, own, rows, inside, others, near, dim, pad, other_pad, c,
                      other_coarse + wide * other_pad, other_weight + wide * other_pad,
                      KIND, DP, CHUNKS, BM, BN)  # fmt: skip
        total += tl.sum(p, axis=1)
    target = tl.load(numbers + wide * count + places, mask=inside, other=0.0).to(tl.float32) * total
    passed = tl.zeros((BM,), dtype=tl.int32)
    before = tl.zeros((BM,), dtype=tl.float32)
    for start in range(0, other_size, BN):
        others = start + tl.arange(0, BN)
        near = others < other_size
        _, _, p = _terms(half, single, points, other_points, own, rows, inside, others, near, dim, pad, other_pad, c,
                      other_coarse + wide * other_pad, other_weight + wide * other_pad,
                      KIND, DP, CHUNKS, BM, BN)  # fmt: skip
        below = (before[:, None] + tl.cumsum(p, axis=1)) <= target[:, None]
        passed += tl.sum((below & near[None, :]).to(tl.int32), axis=1)
        before += tl.sum(p, axis=1)
    # Rounding may leave a number at the very end without a column.
    passed = tl.minimum(passed, tl.load(last + lane))
    tl.store(found + wide * count + places, passed, mask=inside)


@triton.jit
def _exact_exponents(exact, base, other_base, potentials, factor, rows, inside, others, near, dim, pad, other_pad,
                     row_stride, col_stride, ROOTED: tl.constexpr, DENSE: tl.constexpr, BM: tl.constexpr,
                     BN: tl.constexpr):  # fmt: skip
    """The other side's potentials minus scores, in bits and float64; and the scores."""
    if DENSE:
        place = rows[:, None].to(tl.int64) * row_stride + others[None, :].to(tl.int64) * col_stride
        scores = tl.load(exact + place, mask=inside[:, None] & near[None, :], other=0.0).to(tl.float64) * factor
    else:
        scores = tl.zeros((BM, BN), dtype=tl.float64)
        for k in range(dim):
            x = tl.load(exact + base + k * pad + rows, mask=inside, other=0.0)
            y = tl.load(exact + other_base + k * other_pad + others, mask=near, other=0.0)
            apart = x[:, None] - y[None, :]
            scores += apart * apart
        if ROOTED:
            scores = tl.sqrt(scores)
    h = tl.load(potentials + others, mask=near, other=-float("inf"))
    return h[None, :] - scores, scores


@triton.jit
def exact_average(exact, base, other_base, stride, other_stride, dim, factor, row_stride, col_stride, sizes, other,
                  other_mass, pad, other_pad, values, channels, logs, entropies, prices, out, listed, count,
                  SIDE: tl.constexpr, CP: tl.constexpr, INVERSE: tl.constexpr, LISTED: tl.constexpr,
                  ROOTED: tl.constexpr, DENSE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """`logs_i = log2 sum_j b_j 2^(g_j - c_ij)`, and means of values, g_j - c_ij and c_ij under the law of i.

    Values are (L, M, channels), means over c_ij instead if INVERSE; out is (L, rows, channels).
    """
    lane, block = tl.program_id(1), tl.program_id(2)
    wide = lane.to(tl.int64)
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
        exponent, scores = _exact_exponents(exact, base + wide * stride, other_base + wide * other_stride,
                                            other + wide * other_pad, factor, rows, inside, others, near, dim, pad,
                                            other_pad, row_stride, col_stride, ROOTED, DENSE, BM, BN)  # fmt: skip
        w = tl.load(other_mass + wide * other_pad + others, mask=near, other=0.0)
        exponent = tl.where(w[None, :] > 0, exponent, -float("inf"))
        new = tl.maximum(largest, tl.max(exponent, axis=1))
        # Until a column with weight is seen there is nothing to rescale.
        keep = tl.where(largest > -float("inf"), tl.exp2(largest - new), 0.0)
        p = tl.where(exponent > -float("inf"), tl.exp2(exponent - new[:, None]), 0.0) * w[None, :]
        total = total * keep + tl.sum(p, axis=1)
        entropy = entropy * keep + tl.sum(tl.where(p > 0, p * exponent, 0.0), axis=1)
        price = price * keep + tl.sum(p * scores, axis=1)
        if INVERSE:
            p = tl.where(scores > 0, p / scores, 0.0)
        v = tl.load(values + (wide * other_pad + others[:, None]) * channels + cs[None, :],
                    mask=near[:, None] & (cs < channels)[None, :], other=0.0)  # fmt: skip
        acc = acc * keep[:, None] + tl.sum(p[:, :, None] * v[None, :, :], axis=1)
        largest = new
    if block == 0:
        tl.store(logs + wide * rows_out + places, tl.log2(total) + largest, mask=inside)
        tl.store(entropies + wide * rows_out + places, entropy / total, mask=inside)
        tl.store(prices + wide * rows_out + places, price / total, mask=inside)
    mine = (wide * rows_out + places)[:, None] * channels + cs[None, :]
    tl.store(out + mine, acc / total[:, None], mask=inside[:, None] & (cs < channels)[None, :])


@triton.jit
def exact_match(exact, base, other_base, stride, other_stride, dim, factor, row_stride, col_stride, sizes, other,
                other_mass, pad, other_pad, found, SIDE: tl.constexpr, ROOTED: tl.constexpr, DENSE: tl.constexpr,
                BM: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """The place of the largest entry of every row, in float64."""
    lane = tl.program_id(1)
    wide = lane.to(tl.int64)
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
        exponent, _ = _exact_exponents(exact, base + wide * stride, other_base + wide * other_stride,
                                       other + wide * other_pad, factor, rows, inside, others, near, dim, pad,
                                       other_pad, row_stride, col_stride, ROOTED, DENSE, BM, BN)  # fmt: skip
        w = tl.load(other_mass + wide * other_pad + others, mask=near, other=0.0)
        level = tl.where(w[None, :] > 0, exponent + tl.log2(tl.maximum(w, 1e-300))[None, :], -float("inf"))
        largest = tl.max(level, axis=1)
        here = start + tl.argmax(level, axis=1, tie_break_left=True).to(tl.int32)
        place = tl.where(largest > best, here, place)
        best = tl.maximum(best, largest)
    tl.store(found + wide * pad + rows, place, mask=inside)


@triton.jit
def exact_draw(exact, base, other_base, stride, other_stride, dim, factor, row_stride, col_stride, sizes, other,
               other_mass, pad, other_pad, logs, listed, count, numbers, last, found, ROOTED: tl.constexpr,
               DENSE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """As `draw`, in float64; `logs` are those of `exact_average`."""
    lane = tl.program_id(1)
    wide = lane.to(tl.int64)
    size, other_size = tl.load(sizes + 2 * lane), tl.load(sizes + 2 * lane + 1)
    places, rows, inside = _rows(listed, lane, count, size, True, BM)
    log = tl.load(logs + wide * pad + rows, mask=inside, other=0.0)
    target = tl.load(numbers + wide * count + places, mask=inside, other=0.0)
    passed = tl.zeros((BM,), dtype=tl.int32)
    before = tl.zeros((BM,), dtype=tl.float64)
    for start in range(0, other_size, BN):
        others = start + tl.arange(0, BN)
        near = others < other_size
        exponent, _ = _exact_exponents(exact, base + wide * stride, other_base + wide * other_stride,
                                       other + wide * other_pad, factor, rows, inside, others, near, dim, pad,
                                       other_pad, row_stride, col_stride, ROOTED, DENSE, BM, BN)  # fmt: skip
        w = tl.load(other_mass + wide * other_pad + others, mask=near, other=0.0)
        p = tl.where(w[None, :] > 0, tl.exp2(exponent - log[:, None]) * w[None, :], 0.0)
        below = (before[:, None] + tl.cumsum(p, axis=1)) <= target[:, None]
        passed += tl.sum((below & near[None, :]).to(tl.int32), axis=1)
        before += tl.sum(p, axis=1)
    passed = tl.minimum(passed, tl.load(last + lane))
    tl.store(found + wide * count + places, passed, mask=inside)
