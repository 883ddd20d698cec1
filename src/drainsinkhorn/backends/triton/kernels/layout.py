"""Triton kernels that write points and matrices as legs and consumers read them: centred, scaled, split or cached.

Lanes that are loaded may have any sizes: `fields` has their rows of the lane table, with sizes and offsets. An entry
is a side of a lane: an array with entries has those of the rows of all lanes first, then those of the columns. Points
are in the caller's float32 or float64. All arithmetic is float64, every sum has a fixed order and no program reads two
lanes, so the points of a lane do not depend on its neighbours.
"""

# pyright: basic, reportIndexIssue=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false, reportGeneralTypeIssues=false
# Triton reads these functions itself; Python's types mean little inside them.

from __future__ import annotations

import triton
import triton.language as tl

from drainsinkhorn.backends.triton.kernels.columns import (
    DIRECT,
    FIELDS,
    FLOAT16_MOST,
    FLOAT64_BAND,
    GRID,
    LEVEL,
    LEVEL_REST,
    LN2,
    MASS,
    MATRIX,
    NORM,
    OTHER_LEVEL,
    OTHER_REST,
    OTHER_WEIGHT,
    POINTS16,
    POINTS32,
    POINTS64,
    POTENTIAL,
    PRODUCT,
    ROOMY,
    ROOT,
    ROOT_TWO,
    SIZE,
    STORED,
    Constant,
)
from drainsinkhorn.backends.triton.kernels.scores import high_low, padded

ROUNDING = Constant(2.0**-53)
"""Unit roundoff of float64."""
AWAY = Constant(-1e30)
"""Level, in bits, of points that have no weight."""
ROUGH = Constant(0.5)
"""Bits beyond which the rest of a level says that float16 cannot hold it."""
LIGHTEST = Constant(-128.0)
"""Log2 of the smallest weight with which cached exponents, as large as they may then be, are accurate to 5e-6."""
PRODUCT_ROUNDING = Constant(2.0**-51)
"""Largest relative rounding error of a scaled cost from inner products in float64, for each coordinate."""
MOST_ERROR = Constant(1e-6)
"""Largest error of a cached exponent, in bits, before it is rounded to float32."""


@triton.jit
def _centred_points(cloud, middle, scale, rows, inside, ks, dim):
    """Coordinates `ks` of points `rows`, centred and scaled, in float64."""
    here = ks < dim
    x = tl.load(cloud + rows[:, None].to(tl.int64) * dim + ks[None, :], mask=inside[:, None] & here[None, :], other=0.0)
    m = tl.load(middle + ks, mask=here, other=0.0)
    around = (x.to(tl.float64) - m.to(tl.float64)[None, :]) * scale
    return tl.where(inside[:, None] & here[None, :], around, 0.0)


@triton.jit
def _store_ones(place, inside, ROWS: tl.constexpr):
    """Store the two ones by which both parts of the potential of another point are multiplied."""
    one = tl.full((ROWS,), 1.0, dtype=tl.float16)
    tl.store(place, one, mask=inside)
    tl.store(place + 1, one, mask=inside)


@triton.jit(do_not_specialize=["first_entry", "lanes", "dim"])
def pack_points(points, places, fields, firsts, middles, scales, points64, points16, out, norms, first_entry, lanes,
                dim, KIND: tl.constexpr, PLACES: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
                BLOCK: tl.constexpr):  # fmt: skip
    """Write clouds as legs read them: centred and scaled so that squared distances (or distances) are C / (eps ln 2).

    `points64` gets them coordinate by coordinate. PRODUCT: `points16` gets high and low parts, (size, chunks, 2,
    WIDTH), and `norms` half the squares of what these hold. DIRECT and ROOT: `out` gets float32 coordinates; with
    PLACES `points16` gets sixteen numbers for a point (see `load_packed`). STORED: `out` gets float64 rows, (points of
    all entries, dim), and `norms` their squares; `firsts` has the number of the first point of each entry there.
    """
    entry = (first_entry + tl.program_id(1)).to(tl.int64)
    lane, side = entry % lanes, entry // lanes
    own = fields + lane * FIELDS + side
    size = tl.load(own + SIZE).to(tl.int32)
    if tl.program_id(0) * ROWS >= size:
        return
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside, rows64 = rows < size, rows.to(tl.int64)
    middle, scale = middles + lane * 3 * dim, tl.load(scales + lane)
    mine64, mine16 = points64 + tl.load(own + POINTS64), points16 + tl.load(own + POINTS16)
    if KIND == STORED:
        mine, norm_of = out + tl.load(firsts + entry) * dim, norms + tl.load(firsts + entry)
    else:
        mine, norm_of = out + tl.load(own + POINTS32), norms + tl.load(own + NORM)
    norm = tl.zeros((ROWS,), dtype=tl.float64)
    for first in range(0, dim, BLOCK):
        ks = first + tl.arange(0, BLOCK)
        valid = inside[:, None] & (ks < dim)[None, :]
        x = _centred_points(points + tl.load(places + entry), middle, scale, rows, inside, ks, dim)
        tl.store(mine64 + ks[None, :].to(tl.int64) * size + rows[:, None], x, mask=valid)
        if (KIND == PRODUCT) | (PLACES > 0):
            # -|x - y|^2 = 2 x.y - |x|^2 - |y|^2, of the points as float16 pairs hold them.
            high, low = high_low(x * ROOT_TWO)
            stored = high.to(tl.float64) + low.to(tl.float64)
            norm += tl.sum(stored * stored, axis=1) / 2
            if KIND == PRODUCT:
                chunk, k = ks // WIDTH, ks % WIDTH
                there = mine16 + rows64[:, None] * (2 * WIDTH * ((dim + WIDTH - 1) // WIDTH))
                there += (chunk * 2 * WIDTH + k)[None, :]
                tl.store(there, high, mask=valid)
                tl.store(there + WIDTH, low, mask=valid)
                if PLACES == ROOMY:
                    _store_ones(mine16 + rows64 * (2 * WIDTH) + (WIDTH - 2 - 2 * side), inside, ROWS)
            else:
                there = mine16 + rows64[:, None] * 16 + ks[None, :]
                tl.store(there, high, mask=valid)
                tl.store(there + 4, tl.where(side == 0, low, high), mask=valid)
                tl.store(there + 8, tl.where(side == 0, high, low), mask=valid)
                _store_ones(mine16 + rows64 * 16 + (14 - 2 * side), inside, ROWS)
        if (KIND == DIRECT) | (KIND == ROOT):
            tl.store(mine + ks[None, :].to(tl.int64) * padded(size) + rows[:, None], x, mask=valid)
        if KIND == STORED:
            norm += tl.sum(x * x, axis=1)
            tl.store(mine + rows64[:, None] * dim + ks[None, :], x, mask=valid)
    if (KIND == PRODUCT) | (KIND == STORED) | (PLACES > 0):
        tl.store(norm_of + rows, norm, mask=inside)


@triton.jit
def _largest_size(values, count, BLOCK: tl.constexpr):
    """The largest absolute value; NaN if a value is not finite."""
    largest, total = tl.zeros((BLOCK,), dtype=tl.float64), tl.zeros((BLOCK,), dtype=tl.float64)
    for first in range(0, count, BLOCK):
        places = first + tl.arange(0, BLOCK)
        here = tl.abs(tl.load(values + places, mask=places < count, other=0.0))
        largest, total = tl.maximum(largest, here), total + 0.0 * here
    return tl.max(largest, axis=0) + tl.sum(total, axis=0)


@triton.jit(do_not_specialize=["dim"])
def extents(diagonals, fields, vectors64, found, dim, ROOTED: tl.constexpr, BLOCK: tl.constexpr):
    """Write (5, lanes): rounding bound of float64 legs, largest norms of rows and of columns, largest starts of both.

    The bound is that of `numerics.rounding.streamed_rounding` for legs by direct differences. `diagonals` bound
    distances of points, or scaled costs if ROOTED.
    """
    lane, lanes = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    own = fields + lane * FIELDS
    size, other_size = tl.load(own + SIZE).to(tl.int32), tl.load(own + SIZE + 1).to(tl.int32)
    # Bounds all scaled costs, in bits.
    largest = tl.load(diagonals + lane)
    largest = largest if ROOTED else largest * largest
    # Scaled costs have errors of (dim + 24) unit roundoffs of the largest one, potentials of a few; in nats, doubled.
    bound = (2 * ROUNDING * LN2) * (dim + 40) * largest + (8 * ROUNDING) * (size + other_size)
    bound = tl.where(bound < float("inf"), bound, float("nan"))
    tl.store(vectors64 + tl.load(own + FLOAT64_BAND), bound)
    tl.store(found + lane, bound)
    tl.store(found + lanes + lane, _largest_size(vectors64 + tl.load(own + NORM), size, BLOCK))
    tl.store(found + 2 * lanes + lane, _largest_size(vectors64 + tl.load(own + NORM + 1), other_size, BLOCK))
    tl.store(found + 3 * lanes + lane, _largest_size(vectors64 + tl.load(own + POTENTIAL), size, BLOCK))
    tl.store(found + 4 * lanes + lane, _largest_size(vectors64 + tl.load(own + POTENTIAL + 1), other_size, BLOCK))


@triton.jit(do_not_specialize=["first_entry", "lanes"])
def scatter(values, places, factors, fields, out, largest, first_entry, lanes, COLUMN: tl.constexpr,
            PAIRS: tl.constexpr, MAXIMA: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Write numbers of the caller, times a factor of each entry, to vectors whose offsets are in COLUMN of `fields`.

    The whole vector of an entry whose place is negative gets its factor. PAIRS: a lane has a number for each pair of
    points, not for each point. MAXIMA: `largest` gets the largest absolute value that each program writes, (lanes,
    programs).
    """
    entry = (first_entry + tl.program_id(1)).to(tl.int64)
    lane, side = entry % lanes, entry // lanes
    own = fields + lane * FIELDS
    count = tl.load(own + SIZE + side)
    if PAIRS:
        count = count * tl.load(own + SIZE + 1)
    here = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = here < count
    place, factor = tl.load(places + entry), tl.load(factors + entry)
    # Nothing is read for an entry without a place.
    known = here < tl.where(place < 0, 0, count)
    value = tl.load(values + tl.maximum(place, 0) + here, mask=known, other=1.0).to(tl.float64) * factor
    tl.store(out + tl.load(own + COLUMN + side) + here, value, mask=inside)
    if MAXIMA:
        size = tl.max(tl.where(inside, tl.abs(value), 0.0), axis=0)
        tl.store(largest + lane * tl.num_programs(0) + tl.program_id(0), size)


@triton.jit
def _cached_cost(scores, norms, other_norms, rows, others, valid, size, other_size, PRODUCTS: tl.constexpr):
    """Return scaled costs, read from the `size` rows of `scores` or computed from inner products and norms."""
    costs = tl.load(scores + rows.to(tl.int64)[:, None] * other_size + others[None, :], mask=valid, other=0.0)
    if PRODUCTS:
        nx = tl.load(norms + rows, mask=rows < size, other=0.0)
        ny = tl.load(other_norms + others, mask=others < other_size, other=0.0)
        # In float64, and centred: cancellation costs some 1e-16 of the largest scaled cost.
        costs = tl.maximum(nx[:, None] + ny[None, :] - 2.0 * costs, 0.0)
    return costs


@triton.jit(do_not_specialize=["size_stride", "first_lane", "lanes", "dim"])
def inner_products(x, y, firsts, out, out_places, sizes, size_stride, first_lane, lanes, dim,
                   ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr):  # fmt: skip
    """Write the inner products of all points of two clouds of lanes from the `first_lane` on, (size, other_size) each.

    `firsts` has the number of the first point of each entry. `out_places` has the offset of the products of each lane;
    `out` begins with those of the `first_lane`.
    """
    lane = (first_lane + tl.program_id(1)).to(tl.int64)
    size = tl.load(sizes + lane * size_stride).to(tl.int32)
    other_size = tl.load(sizes + lane * size_stride + 1).to(tl.int32)
    across = tl.cdiv(other_size, COLS)
    if tl.program_id(0) // across * ROWS >= size:
        return
    rows = tl.program_id(0) // across * ROWS + tl.arange(0, ROWS)
    cols = tl.program_id(0) % across * COLS + tl.arange(0, COLS)
    inside, near, deep = rows < size, cols < other_size, tl.arange(0, DEPTH)
    mine = x + (tl.load(firsts + lane) + rows)[:, None] * dim + deep[None, :]
    theirs = y + (tl.load(firsts + lanes + lane) + cols)[None, :] * dim + deep[:, None]
    total = tl.zeros((ROWS, COLS), dtype=tl.float64)
    for first in range(0, dim, DEPTH):
        left = dim - first
        own = tl.load(mine + first, mask=inside[:, None] & (deep < left)[None, :], other=0.0)
        other = tl.load(theirs + first, mask=near[None, :] & (deep < left)[:, None], other=0.0)
        total = tl.dot(own, other, total, out_dtype=tl.float64)
    place = out + tl.load(out_places + lane) - tl.load(out_places + first_lane)
    tl.store(
        place + rows[:, None].to(tl.int64) * other_size + cols[None, :], total, mask=inside[:, None] & near[None, :]
    )


@triton.jit(do_not_specialize=["first_lane", "lanes", "first_row", "count"])
def cache_scores(scores, places, norms, firsts, fields, vectors64, matrices, first_lane, lanes, first_row, count,
                 PRODUCTS: tl.constexpr, ROUGH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Write cached log-kernel entries `f_i + g_j - C_ij` in bits, at the start of g and the f of the f-leg after it.

    Entries that carry mass are near zero there, where float32 is most accurate. The absorbed potentials are written to
    NORM. With ROUGH the exponentials that give f are in float32; entries are computed with this f in float64. Up to
    `count` rows of every lane are written, from `first_row` on; `scores` has these rows alone. `places` has the offset
    of the scaled costs of each lane (PRODUCTS: of its inner products); `scores` begins with those of the `first_lane`.
    `norms` has squared norms of the points of both sides, and `firsts` where those of each entry begin.
    """
    lane = (first_lane + tl.program_id(1)).to(tl.int64)
    own = fields + lane * FIELDS
    size, other_size = tl.load(own + SIZE).to(tl.int32), tl.load(own + SIZE + 1).to(tl.int32)
    size = tl.minimum(size - first_row, count)
    if tl.program_id(0) * ROWS >= size:
        return
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < size
    mine = scores + tl.load(places + lane) - tl.load(places + first_lane)
    norm, other_norm = norms + tl.load(firsts + lane) + first_row, norms + tl.load(firsts + lanes + lane)
    start, mass = vectors64 + tl.load(own + POTENTIAL + 1), vectors64 + tl.load(own + MASS + 1)
    absorbed, matrix = vectors64 + tl.load(own + NORM + 1), matrices + tl.load(own + MATRIX)
    # The first program of a lane writes the absorbed potentials of columns.
    written = tl.where(tl.program_id(0) == 0, other_size, 0)
    largest = tl.full((ROWS,), -float("inf"), dtype=tl.float64)
    total = tl.zeros((ROWS,), dtype=tl.float64)
    for first in range(0, other_size, BLOCK):
        others = first + tl.arange(0, BLOCK)
        near = others < other_size
        valid = inside[:, None] & near[None, :]
        g = tl.load(start + others, mask=near, other=-float("inf"))
        w = tl.load(mass + others, mask=near, other=0.0)
        tl.store(absorbed + others, g, mask=others < written)
        costs = _cached_cost(mine, norm, other_norm, rows, others, valid, size, other_size, PRODUCTS)
        exponent = g[None, :] - costs
        new = tl.maximum(largest, tl.max(exponent, axis=1))
        if ROUGH:
            terms = tl.exp2((exponent - new[:, None]).to(tl.float32)).to(tl.float64)
        else:
            terms = tl.exp2(exponent - new[:, None])
        total = total * tl.exp2(largest - new) + tl.sum(terms * w[None, :], axis=1)
        largest = new
    level = -(largest + tl.log2(total))
    tl.store(vectors64 + tl.load(own + NORM) + first_row + rows, level, mask=inside)
    for first in range(0, other_size, BLOCK):
        others = first + tl.arange(0, BLOCK)
        near = others < other_size
        valid = inside[:, None] & near[None, :]
        g = tl.load(start + others, mask=near, other=0.0)
        costs = _cached_cost(mine, norm, other_norm, rows, others, valid, size, other_size, PRODUCTS)
        place = (first_row + rows)[:, None].to(tl.int64) * padded(other_size) + others[None, :]
        tl.store(matrix + place, (g[None, :] - costs + level[:, None]).to(tl.float32), mask=valid)


@triton.jit(do_not_specialize=["cloud_stride", "potential_stride", "weight_stride", "dim"])
def stack_side(cloud, cloud_stride, middle, units, scales, potentials, potential_stride, weights, weight_stride, sizes,
               points, stride, vectors, vectors64, inaccurate, dim, pad, KIND: tl.constexpr, DP: tl.constexpr,
               CHUNKS: tl.constexpr, INSIDE: tl.constexpr, SIDE: tl.constexpr, UNIFORM: tl.constexpr,
               ROWS: tl.constexpr):  # fmt: skip
    """Write one side of stacked plans: points as kernels of their kind read them, and vectors, padding included.

    UNIFORM weights are one number for each lane. `vectors64`, (2, L, pad), gets potentials in bits and masses. Cached
    exponents (STORED) contain potentials and norms, which are zero in the vectors then. A lane is marked in
    `inaccurate` if two float16 numbers cannot hold the level of a point (its potential less its norm), or if a weight
    is too small for cached exponents.
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
        x = _centred_points(cloud + at * cloud_stride, middle + at * dim, scale, rows, inside, ks, dim)
        if KIND == PRODUCT:
            # -|x - y|^2 = 2 x.y - |x|^2 - |y|^2, of the points as float16 pairs hold them.
            high, low = high_low(x * ROOT_TWO)
            rounded_points = high.to(tl.float64) + low.to(tl.float64)
            norm += tl.sum(rounded_points * rounded_points, axis=1) / 2
            ks = tl.arange(0, DP)
            place = points + at * stride + rows[:, None].to(tl.int64) * (2 * DP * CHUNKS) + chunk * 2 * DP + ks[None, :]
            # The last coordinate is the place of the potential.
            is_coordinate = (ks < DP - 1)[None, :] if INSIDE else (ks < DP)[None, :]
            tl.store(place, high, mask=is_coordinate)
            tl.store(place + DP, low, mask=is_coordinate)
        else:
            place = points + at * stride + ks[None, :].to(tl.int64) * pad + rows[:, None]
            tl.store(place, x.to(tl.float32), mask=(ks < dim)[None, :])
    potential = tl.load(potentials + at * potential_stride + rows, mask=inside, other=0.0).to(tl.float64) / tl.load(
        units + lane
    )
    if UNIFORM:
        mass = tl.where(inside, tl.load(weights + lane), 0.0)
    else:
        mass = tl.load(weights + at * weight_stride + rows, mask=inside, other=0.0).to(tl.float64)
    level = norm if KIND == STORED else potential - norm
    rounded = tl.floor(level * GRID + 0.5) / GRID
    has_mass = mass > 0
    bits = tl.where(has_mass, tl.log2(tl.where(has_mass, mass, 1.0)), 0.0)
    other = tl.floor((level + bits) * GRID + 0.5) / GRID
    if INSIDE:
        # Two float16 parts hold a rounded level below 2^13 exactly; what they lose of a larger one goes to the rest.
        bounded = tl.where(has_mass, tl.minimum(tl.maximum(other, -FLOAT16_MOST), FLOAT16_MOST), -FLOAT16_MOST)
        high, low = high_low(bounded)
        place = points + at * stride + rows.to(tl.int64) * (2 * DP) + (DP - 1)
        tl.store(place, high)
        tl.store(place + DP, low)
        other = high.to(tl.float64) + low.to(tl.float64)
    rest = level - other
    rest_with_weight = rest + bits
    is_rough = has_mass & ~(tl.abs(rest_with_weight) < ROUGH)
    if KIND == STORED:
        is_rough = is_rough | (bits < LIGHTEST)
    if tl.max(is_rough.to(tl.int32), axis=0) > 0:
        tl.store(inaccurate + lane, 1)
    side = vectors + at * pad + rows
    step = lanes.to(tl.int64) * pad
    tl.store(side + step * LEVEL, tl.where(inside, rounded, AWAY).to(tl.float32))
    tl.store(side + step * LEVEL_REST, tl.where(inside, level - rounded, 0.0).to(tl.float32))
    tl.store(side + step * OTHER_LEVEL, tl.where(has_mass, other, AWAY).to(tl.float32))
    tl.store(side + step * OTHER_WEIGHT, tl.where(has_mass, tl.exp2(rest_with_weight), 0.0).to(tl.float32))
    tl.store(side + step * OTHER_REST, tl.where(has_mass, rest, 0.0).to(tl.float32))
    tl.store(vectors64 + at * pad + rows, potential)
    tl.store(vectors64 + step + at * pad + rows, mass)


@triton.jit(do_not_specialize=["cloud_stride", "first", "dim"])
def centre_points(cloud, cloud_stride, middle, factors, sizes, out, norms, inaccurate, first, dim, pad,
                  ROOTED: tl.constexpr, SIDE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Write points of lanes from the `first` on, centred and scaled, in float64, (lanes, pad, dim), and squared norms.

    Squared distances (or distances, if ROOTED) are C / (eps ln 2). A lane is marked in `inaccurate` if inner products
    of its points may have errors above MOST_ERROR.
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
        x = _centred_points(cloud + at * cloud_stride, middle + at * dim, scale, rows, inside, ks, dim)
        norm += tl.sum(x * x, axis=1)
        place = out + (here * pad + rows)[:, None] * dim + ks[None, :]
        tl.store(place, x, mask=inside[:, None] & (ks < dim)[None, :])
    tl.store(norms + here * pad + rows, norm)
    largest = tl.sqrt(norm) if ROOTED else norm
    # Points without weight count too: their rows are consumed as well.
    is_wrong = ~(largest * ((dim + 4) * PRODUCT_ROUNDING) <= MOST_ERROR)
    if tl.max(is_wrong.to(tl.int32), axis=0) > 0:
        tl.store(inaccurate + at, 1)


@triton.jit(do_not_specialize=["first"])
def fill_exponents(scores, norms, other_norms, potentials, other_potentials, sizes, matrix, first, pad, other_pad,
                   ROOTED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Write exponents `f_i + g_j - C_ij` in bits of lanes from the `first` on, rounded last, (L, pad, other_pad).

    Padding is zero. `scores` are inner products of points, or distances if ROOTED, without padding.
    """
    lane = tl.program_id(1)
    at, here = (first + lane).to(tl.int64), lane.to(tl.int64)
    size, other_size = tl.load(sizes + 2 * at), tl.load(sizes + 2 * at + 1)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    f = tl.load(potentials + at * pad + rows)
    norm = tl.load(norms + here * pad + rows)
    rows64 = rows[:, None].to(tl.int64)
    for start in range(0, other_pad, BLOCK):
        others = start + tl.arange(0, BLOCK)
        valid = (rows < size)[:, None] & (others < other_size)[None, :]
        g = tl.load(other_potentials + at * other_pad + others)
        costs = tl.load(scores + here * pad * other_pad + rows64 * other_size + others[None, :], mask=valid, other=0.0)
        if not ROOTED:
            other_norm = tl.load(other_norms + here * other_pad + others)
            costs = tl.maximum(norm[:, None] + other_norm[None, :] - 2.0 * costs, 0.0)
        exponent = f[:, None] + g[None, :] - costs
        # Points without weight may lie anywhere, so exponents are bounded. NaN stays NaN, and its lane is inaccurate.
        exponent = tl.where(exponent < AWAY, AWAY, exponent)
        exponent = tl.where(exponent > -AWAY, -AWAY, exponent)
        place = matrix + at * pad * other_pad + rows64 * other_pad + others[None, :]
        tl.store(place, tl.where(valid, exponent, 0.0).to(tl.float32))


@triton.jit(do_not_specialize=["value_stride", "channels"])
def split_values(values, value_stride, scales, weight, sizes, parts, channels, pad, SIDE: tl.constexpr,
                 CP: tl.constexpr, ROWS: tl.constexpr):  # fmt: skip
    """Write values (M, channels) of each lane, over the largest of their channel and times w, as high and low parts.

    The parts are (L, blocks, pad, 2, CP).
    """
    lane, block = tl.program_id(1), tl.program_id(2)
    at = lane.to(tl.int64)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cs = tl.arange(0, CP)
    channel = block * CP + cs
    inside = (rows < tl.load(sizes + 2 * lane + SIDE))[:, None] & (channel < channels)[None, :]
    v = tl.load(
        values + at * value_stride + rows[:, None].to(tl.int64) * channels + channel[None, :], mask=inside, other=0.0
    )
    scale = tl.load(scales + at * channels + channel, mask=channel < channels, other=1.0)
    w = tl.load(weight + at * pad + rows)
    # A channel of zeros stays a channel of zeros.
    v = v / tl.where(scale > 0, scale, 1.0)[None, :] * w[:, None]
    high, low = high_low(v)
    place = parts + ((at * tl.num_programs(2) + block) * pad + rows)[:, None] * (2 * CP) + cs[None, :]
    tl.store(place, high)
    tl.store(place + CP, low)
