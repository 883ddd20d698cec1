"""Triton kernels of legs: one reduction for both sides, in float32 from several kinds of scores, or in float64.

For a side the log ratio of a row is

    L_i = log2 sum_j w_j 2^(h_i + h_j - c_ij) + l_i,    h + l = the potential

h is the potential rounded to a grid on which h_i + h_j is exact in float32, the rest l goes into the weights of the
other side, `w_j = b_j 2^l_j`, and into L. Scores c_ij come from direct differences, from three products of coordinates
split into two float16 numbers (norms are then part of the potential), or from a stored matrix. Of up to four
coordinates all three products and both potentials fit into one product of sixteen (PACK). Of many coordinates the
product of leading halves alone makes scores as long as the residual is above the lane's LEADING: what it blurs is small
against what is missing then, and later cycles mend it.
Terms are summed against the lane's own potential; a tile of rows whose sums leave the range of float32 is done again
with its largest term taken out. So that one lane can fill the device, several programs share the columns of a tile of
rows; the last of them adds their sums up. Every sum has a fixed order, and tiles and shares depend on the problem
alone, so lanes are independent to the bit.
"""

# pyright: basic, reportIndexIssue=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false, reportGeneralTypeIssues=false
# Triton reads these functions itself; Python's types mean little inside them.

from __future__ import annotations

import triton
import triton.language as tl

from drainsinkhorn.backends.triton.kernels import (
    ALL,
    ALONG,
    APART,
    APPLIED,
    ARRIVED,
    AT_A_TIME,
    BEFORE,
    BOTH,
    CHECKED,
    COARSE,
    COORDS,
    COUNTS,
    DIM,
    DIRECT,
    ERRORS,
    EXACT,
    FIELDS,
    FINE,
    FROZEN,
    HELD,
    KEPT,
    LOGS,
    MASS,
    MATRIX,
    NUMBERS,
    PACK,
    PARTIAL,
    POTENTIAL,
    PRODUCT,
    ROOMY,
    SAMPLED,
    SIZES,
    SPLIT,
    SPLITS,
    STORED,
    WEIGHT,
    WIDE,
    _decided,
    _folds,
    _halves,
    _leading,
    _moved,
    _padded,
    _passes,
    _split,
    _stale,
    _tiles,
)


@triton.jit
def _up_to_four(cloud, places, inside, size, DP: tl.constexpr):
    """The first DP coordinates of points of a cloud of `size`, one of them again where there are fewer than four."""
    stride = _padded(size)
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
def _own(half, single, points, rows, inside, size, KIND: tl.constexpr, DP: tl.constexpr, CHUNKS: tl.constexpr,
         MOST: tl.constexpr):  # fmt: skip
    """What of the own points is loaded once, before the sweep over the others: two halves, or up to four coordinates.

    Of high halves the first MOST: others are zero.
    """
    if (KIND == PRODUCT) & (CHUNKS == 1):
        ks = tl.arange(0, DP)[None, :]
        mine = half + points + rows[:, None].to(tl.int64) * (2 * DP) + ks
        if MOST < DP:
            high = tl.load(mine, mask=inside[:, None] & (ks < MOST), other=0.0)
        else:
            high = tl.load(mine, mask=inside[:, None], other=0.0)
        low = tl.load(mine + DP, mask=inside[:, None], other=0.0)
        return high, low, rows, rows
    elif KIND == DIRECT:
        return _up_to_four(single + points, rows, inside, size, DP)
    else:
        return rows, rows, rows, rows


@triton.jit
def _theirs(single, points, coarse, weight, others, size, DP: tl.constexpr):
    """Up to four coordinates of other points, their potentials and their weights."""
    near = others < size
    h = tl.load(coarse + others, mask=near, other=-1e30)
    w = tl.load(weight + others, mask=near, other=0.0)
    y0, y1, y2, y3 = _up_to_four(single + points, others, near, size, DP)
    return y0, y1, y2, y3, h, w


@triton.jit
def _direct(own, level, theirs, DP: tl.constexpr):
    """`level_i + h_j` minus the scores of a tile by direct differences."""
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
def _apart(single, place, others, near, x):
    y = tl.load(single + place + others, mask=near, other=0.0)
    return x[:, None] - y[None, :]


@triton.jit
def _with_slot(own, inside, value, DP: tl.constexpr):
    """The own points with `value` where the others carry their potential: one adds it to the product, zero does not."""
    slot = (tl.arange(0, DP) == DP - 1)[None, :] & inside[:, None]
    return (
        tl.where(slot, value, own[0]).to(tl.float16),
        tl.where(slot, 0.0, own[1]).to(tl.float16),
        own[2],
        own[3],
    )


@triton.jit
def _with_level(own, level, SIDE: tl.constexpr, DP: tl.constexpr):
    """Own points of a ROOMY kind with `level` in the place of their potential."""
    ks = tl.arange(0, DP)[None, :]
    high, low = _halves(level)
    first = tl.where(ks == DP - 4 + 2 * SIDE, high[:, None], own[0])
    return tl.where(ks == DP - 3 + 2 * SIDE, low[:, None], first), own[1], own[2], own[3]


@triton.jit
def _packed(half, points, rows, inside, level, SIDE: tl.constexpr):
    """Own points as sixteen numbers each whose products with the others' are whole exponents, with `level` in them.

    A point of the rows is (high, low, high, potential, 1, 1), one of the columns (high, high, low, 1, 1, potential);
    highs and lows have four places, a potential two.
    """
    ks = tl.arange(0, 16)[None, :]
    own = tl.load(half + points + rows[:, None].to(tl.int64) * 16 + ks, mask=inside[:, None], other=0.0)
    high, low = _halves(level)
    own = tl.where(ks == 12 + 2 * SIDE, high[:, None], own)
    return tl.where(ks == 13 + 2 * SIDE, low[:, None], own)


@triton.jit
def _columns(place, near, WHOLE: tl.constexpr):
    if WHOLE:
        return tl.load(place)
    else:
        return tl.load(place, mask=near[None, :], other=0.0)


@triton.jit
def _exponents(half, single, points, own, rows, inside, others, near, dim, other_size, size, other_points, level, h,
               KIND: tl.constexpr, DP: tl.constexpr, CHUNKS: tl.constexpr, SIDE: tl.constexpr,
               BM: tl.constexpr, BN: tl.constexpr, FOLD: tl.constexpr, LEADS: tl.constexpr,
               WHOLE: tl.constexpr):  # fmt: skip
    """`level_i + h_j` minus the scores of a tile, up to the norms that potentials carry.

    With FOLD the product has added h_j already; that of a PACK or of ROOMY points has level_i as well. With LEADS leading
    halves make the product. A WHOLE tile of products has no column past the end.
    """
    if KIND == PACK:
        theirs = half + other_points + others[None, :].to(tl.int64) * 16 + tl.arange(0, 16)[:, None]
        return tl.dot(own[0], _columns(theirs, near, WHOLE))
    elif KIND == PRODUCT:
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        ks = tl.arange(0, DP)
        # High and low parts of a chunk of coordinates lie side by side: (size, CHUNKS, 2, DP).
        theirs = half + other_points + others[None, :].to(tl.int64) * (2 * DP * CHUNKS) + ks[:, None]
        if CHUNKS == 1:
            yh = _columns(theirs, near, WHOLE)
            if not LEADS:
                yl = _columns(theirs + DP, near, WHOLE)
                acc = tl.dot(own[0], yl, acc)
                acc = tl.dot(own[1], yh, acc)
            acc = tl.dot(own[0], yh, acc)
        else:
            mine = half + points + rows[:, None].to(tl.int64) * (2 * DP * CHUNKS) + ks[None, :]
            # A loop that is not unrolled: memory that programs share holds a few chunks, not all.
            for chunk in range(CHUNKS):
                at = chunk * 2 * DP
                xh = tl.load(mine + at, mask=inside[:, None], other=0.0)
                yh = _columns(theirs + at, near, WHOLE)
                if not LEADS:
                    xl = tl.load(mine + at + DP, mask=inside[:, None], other=0.0)
                    yl = _columns(theirs + at + DP, near, WHOLE)
                    acc = tl.dot(xh, yl, acc)
                    acc = tl.dot(xl, yh, acc)
                acc = tl.dot(xh, yh, acc)
        if FOLD:
            if DP == ROOMY:
                return acc
            else:
                return acc + level[:, None]
        return acc + level[:, None] + h[None, :]
    elif KIND == STORED:
        # The matrix is padded by whole tiles: what is read beyond its end is zero, and does not count.
        if SIDE == 0:
            place = rows[:, None].to(tl.int64) * _padded(other_size) + others[None, :]
        else:
            place = others[None, :].to(tl.int64) * _padded(size) + rows[:, None]
        return tl.load(single + points + place) + level[:, None] + h[None, :]
    else:
        squares = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(dim):
            x = tl.load(single + points + k * _padded(size) + rows, mask=inside, other=0.0)
            apart = _apart(single, other_points + k * _padded(other_size), others, near, x)
            squares += apart * apart
        return level[:, None] + h[None, :] - tl.sqrt(squares)


@triton.jit
def _other_side(coarse, weight, others, near, FOLD: tl.constexpr, WHOLE: tl.constexpr):
    """Potentials and weights of other points; none of the former where the product has them already."""
    h = others
    if WHOLE:
        if not FOLD:
            h = tl.load(coarse + others)
        return h, tl.load(weight + others)
    else:
        if not FOLD:
            h = tl.load(coarse + others, mask=near, other=-1e30)
        return h, tl.load(weight + others, mask=near, other=0.0)


@triton.jit
def _sums(half, single, points, own, rows, inside, dim, other_size, size, other_points, level, other_coarse,
          other_weight, begin, end, KIND: tl.constexpr, DP: tl.constexpr, CHUNKS: tl.constexpr, SIDE: tl.constexpr,
          BM: tl.constexpr, BN: tl.constexpr, FOLD: tl.constexpr, LEADS: tl.constexpr):  # fmt: skip
    """Sums of the terms of rows over a share of the columns."""
    whole: tl.constexpr = (KIND == PRODUCT) | (KIND == PACK)
    # Tensor cores leave a row in few threads, and it is summed at once; elsewhere a tile of sums is cheaper.
    if whole:
        total = tl.zeros((BM,), dtype=tl.float32)
    else:
        sums = tl.zeros((BM, BN), dtype=tl.float32)
    last = end
    if whole:
        # A tile that is not whole comes by itself.
        last = tl.minimum(end, other_size // BN * BN)
    for start in range(begin, last, BN):
        others = start + tl.arange(0, BN)
        near = others < other_size
        h, w = _other_side(other_coarse, other_weight, others, near, FOLD, whole)
        exponent = _exponents(half, single, points, own, rows, inside, others, near, dim, other_size, size,
                              other_points, level, h, KIND, DP, CHUNKS, SIDE, BM, BN, FOLD, LEADS, whole)  # fmt: skip
        terms = tl.exp2(exponent) * w[None, :]
        if whole:
            total += tl.sum(terms, axis=1)
        else:
            sums += terms
    if whole:
        if last < end:
            others = last + tl.arange(0, BN)
            near = others < other_size
            h, w = _other_side(other_coarse, other_weight, others, near, FOLD, False)
            exponent = _exponents(half, single, points, own, rows, inside, others, near, dim, other_size, size,
                                  other_points, level, h, KIND, DP, CHUNKS, SIDE, BM, BN, FOLD, LEADS, False)  # fmt: skip
            if FOLD:
                # Of columns past the end a product holds no potential that would make their terms vanish.
                exponent = tl.where(near[None, :], exponent, -1e30)
            total += tl.sum(tl.exp2(exponent) * w[None, :], axis=1)
    else:
        total = tl.sum(sums, axis=1)
    return total


@triton.jit
def _finish(half, wide, vectors, errors, counts, stops, halted, lane, lane_table, numbers, tile, rows, inside, own,
            logs, mass, frozen, SIDE: tl.constexpr, ROLE: tl.constexpr, SLOT: tl.constexpr, PACKED: tl.constexpr,
            LOCK: tl.constexpr, GOES_ON: tl.constexpr, MOMENTUM: tl.constexpr, BM: tl.constexpr, WIDE_BM: tl.constexpr,
            BLOCK: tl.constexpr):  # fmt: skip
    """What becomes of a measured tile: its part of the residual, then the leg itself, kept or applied.

    With LOCK the last tile of a lane halts the pack if the lane passes its stop. With GOES_ON it holds the lane or applies
    the leg, as `apply` would.
    """
    # Ratios beyond float32 count as 1e30; written so that NaN stays NaN.
    off = mass * tl.abs(tl.where(logs > 99.0, 1e30, tl.exp2(logs) - 1.0))
    if logs.dtype == tl.float64:
        # Only float64 lanes have weights so small that such a ratio still contributes little to the residual.
        part = tl.exp2(tl.minimum(tl.log2(tl.where(inside, mass, 1.0)) + logs, 99.0))
        off = tl.where(logs > 99.0, part, off)
    error = tl.sum(tl.where(inside, off, 0.0), axis=0)
    if frozen == 0:
        tl.store(errors + tl.load(lane_table + ERRORS + SIDE) + tile, error.to(tl.float64))
        if ROLE == APPLIED:
            value = own - logs.to(tl.float64)
            # What is not finite is not entered; the error above tells.
            value = tl.where(tl.abs(value) < float("inf"), value, own)
            tl.store(wide + tl.load(lane_table + POTENTIAL + SIDE) + rows, value, mask=inside)
            folded = _folds(lane_table, _leading(lane_table, numbers))
            _split(half, vectors, wide, lane_table, folded, rows, inside, value, SIDE, SLOT, PACKED)
        else:
            tl.store(vectors + tl.load(lane_table + LOGS + SIDE) + rows, logs.to(tl.float32), mask=inside)
        if ROLE == KEPT:
            before = tl.load(wide + tl.load(lane_table + BEFORE) + rows, mask=inside, other=0.0)
            along = -tl.sum(tl.where(inside, mass * logs * (own - before).to(logs.dtype), 0.0), axis=0)
            tl.store(wide + tl.load(lane_table + ALONG) + tile, along.to(tl.float64))
            if LOCK | GOES_ON:
                tl.debug_barrier()
                count = counts + tl.load(lane_table + ARRIVED)
                if tl.atomic_add(count, 1) == _tiles(lane_table, BM, WIDE_BM, 0) - 1:
                    tl.store(count, 0)
                    stop = tl.load(stops + lane)
                    if GOES_ON:
                        _go_on(
                            half, vectors, wide, lane_table, numbers, stop, SLOT, PACKED, MOMENTUM, BM, WIDE_BM, BLOCK
                        )
                    elif _passes(_stale(lane_table, numbers, wide, BM, WIDE_BM, BLOCK), stop):
                        # Other lanes of this launch read the first flag; `apply` sets it before the next.
                        tl.store(halted + 1, 1)


@triton.jit
def _go_on(half, vectors, wide, lane_table, numbers, stop, SLOT: tl.constexpr, PACKED: tl.constexpr,
           MOMENTUM: tl.constexpr, BM: tl.constexpr, WIDE_BM: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """What `apply` does in a launch of its own, by one program and in place: nobody else reads the lane any more."""
    rests, error, step, beta, leading, after = _decided(
        lane_table, numbers, wide, stop, False, False, MOMENTUM, BM, WIDE_BM, BLOCK
    )
    # All threads have read the numbers.
    tl.debug_barrier()
    tl.store(numbers + tl.arange(0, NUMBERS), after)
    if rests == 0:
        size = tl.load(lane_table + SIZES).to(tl.int32)
        for first in range(0, size, AT_A_TIME):
            rows = first + tl.arange(0, AT_A_TIME)
            _moved(half, vectors, wide, lane_table, rows, size, error, step, beta, leading, SLOT, PACKED)


@triton.jit
def leg(table, live, state, half, single, wide, vectors, errors, counts, stops, halted,
        KIND: tl.constexpr, DP: tl.constexpr, CHUNKS: tl.constexpr, SIDE: tl.constexpr, ROLE: tl.constexpr,
        BM: tl.constexpr, BN: tl.constexpr, NARROW: tl.constexpr, SLOT: tl.constexpr, PACKED: tl.constexpr, FOLD: tl.constexpr,
        LEADS: tl.constexpr, LOCK: tl.constexpr, GOES_ON: tl.constexpr, MOMENTUM: tl.constexpr, WIDE_BM: tl.constexpr,
        BLOCK: tl.constexpr):  # fmt: skip
    """Measure one side of every lane that is not WIDE. `vectors` holds h, l and w.

    Programs are tiles of BM rows times shares of the columns. Where points have a SLOT, legs of lanes whose potentials
    enter the product (FOLD) and of others are separate launches; slots hold the state, so that checks do not fold. With
    LEADS the lane's residual decides which products are taken; checks take them all.
    """
    lane = tl.load(live + tl.program_id(1))
    lane_table, numbers = table + lane * FIELDS, state + lane * NUMBERS
    size, other_size = (
        tl.load(lane_table + SIZES + SIDE).to(tl.int32),
        tl.load(lane_table + SIZES + 1 - SIDE).to(tl.int32),
    )
    splits = tl.load(lane_table + SPLITS + SIDE).to(tl.int32)
    tile = tl.program_id(0) // splits
    share = tl.program_id(0) - tile * splits
    skip = (tile * BM >= size) | (tl.load(lane_table + WIDE) > 0)
    if ROLE != CHECKED:
        skip = skip | (tl.load(halted) > 0) | (tl.load(numbers + HELD) > 0)
        if SLOT > 0:
            skip = skip | (_folds(lane_table, _leading(lane_table, numbers)) != FOLD)
    if skip:
        return
    rows = tile * BM + tl.arange(0, BM)
    inside = rows < size
    if KIND == STORED:
        points = tl.load(lane_table + MATRIX)
        other_points = points
    elif (KIND == PRODUCT) | (KIND == PACK):
        points, other_points = tl.load(lane_table + SPLIT + SIDE), tl.load(lane_table + SPLIT + 1 - SIDE)
    else:
        points, other_points = tl.load(lane_table + COORDS + SIDE), tl.load(lane_table + COORDS + 1 - SIDE)
    points, other_points = tl.multiple_of(points, 64), tl.multiple_of(other_points, 64)
    dim = tl.load(lane_table + DIM).to(tl.int32)
    coarse = tl.load(vectors + tl.multiple_of(tl.load(lane_table + COARSE + SIDE), 64) + rows, mask=inside, other=0.0)
    other_coarse = vectors + tl.multiple_of(tl.load(lane_table + COARSE + 1 - SIDE), 64)
    other_weight = vectors + tl.multiple_of(tl.load(lane_table + WEIGHT + 1 - SIDE), 64)
    # As they lie in memory ROOMY points have the state's potentials in their places.
    most: tl.constexpr = DP if FOLD else DP - 4 if SLOT == ROOMY else DP
    own_points = _own(half, single, points, rows, inside, size, KIND, DP, CHUNKS, most)
    if (KIND == PRODUCT) & (SLOT == ROOMY):
        if FOLD:
            if ROLE == CHECKED:
                own_points = _with_level(own_points, coarse, SIDE, DP)
    elif (KIND == PRODUCT) & (SLOT > 0):
        own_points = _with_slot(own_points, inside, 0.0, DP)
    blocks = (other_size + BN - 1) // BN
    begin, end = blocks * share // splits * BN, blocks * (share + 1) // splits * BN
    if KIND == DIRECT:
        sums = tl.zeros((BM, BN), dtype=tl.float32)
        # What the next tile needs is on its way while this one is computed; Triton does that for products alone.
        theirs = _theirs(single, other_points, other_coarse, other_weight, begin + tl.arange(0, BN), other_size, DP)
        for start in range(begin, end, BN):
            ahead = start + BN + tl.arange(0, BN)
            coming = _theirs(single, other_points, other_coarse, other_weight, ahead, other_size, DP)
            sums += tl.exp2(_direct(own_points, coarse, theirs, DP)) * theirs[5][None, :]
            theirs = coming
        total = tl.sum(sums, axis=1)
    else:
        points_and_slot = own_points
        if KIND == PACK:
            points_and_slot = (_packed(half, points, rows, inside, coarse, SIDE), rows, rows, rows)
        elif FOLD:
            if SLOT != ROOMY:
                points_and_slot = _with_slot(own_points, inside, 1.0, DP)
        leads = False
        # Lanes with places for potentials are led with those in the product, by the launch that folds.
        if LEADS & ((SLOT == 0) | FOLD):
            leads = _leading(lane_table, numbers) > 0
        if leads:
            total = _sums(half, single, points, points_and_slot, rows, inside, dim, other_size, size, other_points,
                          coarse, other_coarse, other_weight, begin, end, KIND, DP, CHUNKS, SIDE, BM, BN, FOLD,
                          True)  # fmt: skip
        else:
            total = _sums(half, single, points, points_and_slot, rows, inside, dim, other_size, size, other_points,
                          coarse, other_coarse, other_weight, begin, end, KIND, DP, CHUNKS, SIDE, BM, BN, FOLD,
                          False)  # fmt: skip
    # Sums go through memory even where nobody shares: in registers every thread would hold whole rows from here on.
    partial, stride = vectors + tl.load(lane_table + PARTIAL), _padded(size)
    tl.store(partial + share * stride + rows, total, mask=inside)
    tl.debug_barrier()
    arrived = splits - 1
    count = counts + tl.load(lane_table + COUNTS) + tile
    if splits > 1:
        arrived = tl.atomic_add(count, 1)
    if arrived != splits - 1:
        return
    # The last of them. The nearer cache does not see what other multiprocessors wrote.
    found = tl.load(partial + rows, mask=inside, other=1.0, cache_modifier=".cg")
    if splits > 1:
        for other in range(1, splits):
            found += tl.load(partial + other * stride + rows, mask=inside, other=0.0, cache_modifier=".cg")
        tl.store(count, 0)
    logs = tl.log2(found)
    if tl.sum(((logs < APART) & (logs > -APART) == 0).to(tl.int32), axis=0) > 0:
        largest = tl.full((BM,), -float("inf"), dtype=tl.float32)
        total = tl.zeros((BM,), dtype=tl.float32)
        none = tl.zeros((BM,), dtype=tl.float32)
        # In narrow tiles, so that this loop does not cost the other one registers.
        for start in range(0, other_size, NARROW):
            others = start + tl.arange(0, NARROW)
            near = others < other_size
            h = tl.load(other_coarse + others, mask=near, other=-1e30)
            w = tl.load(other_weight + others, mask=near, other=0.0)
            # The own potential joins last: only differences of scores matter to what is the largest.
            if KIND == PACK:
                level_free = (_packed(half, points, rows, inside, none, SIDE), rows, rows, rows)
                exponent = _exponents(half, single, points, level_free, rows, inside, others, near, dim, other_size,
                                      size, other_points, none, h, KIND, DP, CHUNKS, SIDE, BM, NARROW, True, False,
                                      False)  # fmt: skip
                exponent = tl.where(near[None, :], exponent, -1e30)
            elif KIND == DIRECT:
                these = _theirs(single, other_points, other_coarse, other_weight, others, other_size, DP)
                exponent = _direct(own_points, none, these, DP)
            else:
                within: tl.constexpr = (SLOT == ROOMY) & FOLD
                exponent = _exponents(half, single, points, own_points, rows, inside, others, near, dim, other_size,
                                      size, other_points, none, h, KIND, DP, CHUNKS, SIDE, BM, NARROW, within, False,
                                      False)  # fmt: skip
                if within:
                    exponent = tl.where(near[None, :], exponent - coarse[:, None], -1e30)
            new = tl.maximum(largest, tl.max(exponent, axis=1))
            total = total * tl.exp2(largest - new) + tl.sum(tl.exp2(exponent - new[:, None]) * w[None, :], axis=1)
            largest = new
        tl.debug_barrier()
        tl.store(partial + rows, tl.log2(total) + (largest + coarse), mask=inside)
        tl.debug_barrier()
        logs = tl.load(partial + rows, mask=inside, other=0.0, cache_modifier=".cg")
    logs += tl.load(vectors + tl.multiple_of(tl.load(lane_table + FINE + SIDE), 64) + rows, mask=inside, other=0.0)
    mass = tl.load(wide + tl.load(lane_table + MASS + SIDE) + rows, mask=inside, other=0.0).to(tl.float32)
    own = tl.load(wide + tl.load(lane_table + POTENTIAL + SIDE) + rows, mask=inside, other=0.0)
    frozen = (tl.load(numbers + FROZEN) > 0) & (ROLE != CHECKED)
    _finish(half, wide, vectors, errors, counts, stops, halted, lane, lane_table, numbers, tile, rows, inside, own, logs,
            mass, frozen, SIDE, ROLE, SLOT, PACKED, LOCK, GOES_ON, MOMENTUM, BM, WIDE_BM, BLOCK)  # fmt: skip


@triton.jit
def exact_leg(table, live, state, exact, wide, potentials, vectors, errors, counts, stops, halted, samples,
              count_samples, ROOTED: tl.constexpr, DENSE: tl.constexpr, SIDE: tl.constexpr, ROLE: tl.constexpr,
              BM: tl.constexpr, BN: tl.constexpr, AT_ONCE: tl.constexpr, LOCK: tl.constexpr, GOES_ON: tl.constexpr,
              MOMENTUM: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """The same in float64 by direct differences, the largest term taken out.

    KEPT and APPLIED: legs of WIDE lanes. CHECKED: of given `potentials` (laid out by POTENTIAL). SAMPLED: log ratios of
    `count_samples` rows spread over the side, or over BOTH, by place in `live`; AT_ONCE coordinates are loaded together.
    """
    lane = tl.load(live + tl.program_id(1))
    lane_table, numbers = table + lane * FIELDS, state + lane * NUMBERS
    side = tl.program_id(2) if SIDE == BOTH else SIDE
    size, other_size = (
        tl.load(lane_table + SIZES + side).to(tl.int32),
        tl.load(lane_table + SIZES + 1 - side).to(tl.int32),
    )
    count = size
    if ROLE == SAMPLED:
        count = tl.minimum(size, count_samples)
    first = tl.program_id(0) * BM
    skip = first >= count
    if (ROLE == KEPT) | (ROLE == APPLIED):
        skip = skip | (tl.load(halted) > 0) | (tl.load(numbers + HELD) > 0) | (tl.load(lane_table + WIDE) == 0)
    if skip:
        return
    places = first + tl.arange(0, BM)
    inside = places < count
    rows = places
    if ROLE == SAMPLED:
        rows = (places.to(tl.int64) * size // count).to(tl.int32)
    own = tl.load(potentials + tl.load(lane_table + POTENTIAL + side) + rows, mask=inside, other=0.0)
    other_potential = potentials + tl.load(lane_table + POTENTIAL + 1 - side)
    other_mass = wide + tl.load(lane_table + MASS + 1 - side)
    dim = tl.load(lane_table + DIM).to(tl.int32)
    mine, theirs = exact + tl.load(lane_table + EXACT + side), exact + tl.load(lane_table + EXACT + 1 - side)
    largest = tl.full((BM,), -float("inf"), dtype=tl.float64)
    total = tl.zeros((BM,), dtype=tl.float64)
    for start in range(0, other_size, BN):
        others = start + tl.arange(0, BN)
        near = others < other_size
        acc = tl.zeros((BM, BN), dtype=tl.float64)
        if DENSE:
            if side == 0:
                place = rows[:, None].to(tl.int64) * other_size + others[None, :]
            else:
                place = others[None, :].to(tl.int64) * size + rows[:, None]
            acc = -tl.load(exact + tl.load(lane_table + EXACT) + place, mask=inside[:, None] & near[None, :], other=0.0)
        else:
            if ROLE == SAMPLED:
                # One row: several coordinates at once, since a program waits for every load.
                for first_k in range(0, dim, AT_ONCE):
                    ks = first_k + tl.arange(0, AT_ONCE)
                    x = tl.load(mine + ks[None, :].to(tl.int64) * size + rows[:, None],
                                mask=(ks[None, :] < dim) & inside[:, None], other=0.0)  # fmt: skip
                    y = tl.load(theirs + ks[:, None].to(tl.int64) * other_size + others[None, :],
                                mask=(ks[:, None] < dim) & near[None, :], other=0.0)  # fmt: skip
                    apart = x[:, :, None] - y[None, :, :]
                    acc -= tl.sum(apart * apart, axis=1)
            else:
                for k in range(dim):
                    wide_k = tl.cast(k, tl.int64)
                    x = tl.load(mine + wide_k * size + rows, mask=inside, other=0.0)
                    y = tl.load(theirs + wide_k * other_size + others, mask=near, other=0.0)
                    apart = x[:, None] - y[None, :]
                    acc -= apart * apart
            if ROOTED:
                acc = -tl.sqrt(-acc)
        h = tl.load(other_potential + others, mask=near, other=-float("inf"))
        w = tl.load(other_mass + others, mask=near, other=0.0)
        exponent = acc + h[None, :]
        new = tl.maximum(largest, tl.max(exponent, axis=1))
        total = total * tl.exp2(largest - new) + tl.sum(tl.exp2(exponent - new[:, None]) * w[None, :], axis=1)
        largest = new
    logs = tl.log2(total) + (largest + own)
    if ROLE == SAMPLED:
        at = (side * tl.num_programs(1) + tl.program_id(1)) * count_samples
        tl.store(samples + at + places, logs, mask=inside)
    else:
        mass = tl.load(wide + tl.load(lane_table + MASS + SIDE) + rows, mask=inside, other=0.0)
        frozen = (tl.load(numbers + FROZEN) > 0) & (ROLE != CHECKED)
        _finish(vectors, wide, vectors, errors, counts, stops, halted, lane, lane_table, numbers, tl.program_id(0), rows,
                inside, own, logs, mass, frozen, SIDE, ROLE, 0, ALL, LOCK, GOES_ON, MOMENTUM, BM, BM, BLOCK)  # fmt: skip
