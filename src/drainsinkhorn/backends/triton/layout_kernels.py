"""Triton kernels that lay problems out on the device: where clouds lie, their Gaussian starts, and what legs read.

Clouds of a stack are (lanes, size, dim), in the caller's float32 or float64; lanes that share a cloud have a lane
stride of zero. All arithmetic is float64, every sum has a fixed order and no program looks at two lanes, so that what a
lane gets does not depend on its neighbours.
"""

# pyright: basic, reportIndexIssue=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false, reportGeneralTypeIssues=false
# Triton reads these functions itself; Python's types mean little inside them.

from __future__ import annotations

import triton
import triton.language as tl

from drainsinkhorn.backends.triton.kernels import DIRECT, PRODUCT, ROOMY, ROOT, STORED, _Constant, _halves, _padded
from drainsinkhorn.numerics.starts import FLOOR as _FLOOR
from drainsinkhorn.numerics.starts import WORTH as _WORTH

FLOOR = _Constant(_FLOOR)
WORTH = _Constant(_WORTH)
ROOT_TWO = _Constant(2.0**0.5)
LN2 = _Constant(0.6931471805599453)
CLOSE = _Constant(1e-10)
"""How near the identity the iteration for a square root ends."""
ROUNDING = _Constant(2.0**-53)
STEPS = _Constant(40)
"""Its steps at most; directions that would need more hardly move a point."""


@triton.jit(do_not_specialize=["size", "dim", "chunk", "lane_stride"])
def bounds(points, found, size, dim, chunk, lane_stride, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """The smallest and the largest coordinates of a chunk of rows: found is (lanes, chunks, 2, dim)."""
    lane = tl.program_id(1).to(tl.int64)
    ks = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    inside = ks < dim
    low = tl.full((ROWS, BLOCK), float("inf"), dtype=tl.float64)
    high = tl.full((ROWS, BLOCK), -float("inf"), dtype=tl.float64)
    first = tl.program_id(0) * chunk
    last = tl.minimum(size, first + chunk)
    for start in range(first, last, ROWS):
        # Past the end the last row counts again, which changes nothing.
        rows = tl.minimum(start + tl.arange(0, ROWS), last - 1).to(tl.int64)
        place = points + lane * lane_stride + rows[:, None] * dim + ks[None, :]
        x = tl.load(place, mask=inside[None, :], other=0.0).to(tl.float64)
        low, high = tl.minimum(low, x), tl.maximum(high, x)
    out = found + (lane * tl.num_programs(0) + tl.program_id(0)) * 2 * dim + ks
    tl.store(out, tl.min(low, axis=0), mask=inside)
    tl.store(out + dim, tl.max(high, axis=0), mask=inside)


@triton.jit
def _box(found, lane, chunks, dim, ks, inside):
    """The box around a cloud, from those of its chunks."""
    low = tl.load(found + lane * chunks * 2 * dim + ks, mask=inside, other=0.0)
    high = tl.load(found + lane * chunks * 2 * dim + dim + ks, mask=inside, other=0.0)
    for chunk in range(1, chunks):
        here = found + (lane * chunks + chunk) * 2 * dim + ks
        low = tl.minimum(low, tl.load(here, mask=inside, other=0.0))
        high = tl.maximum(high, tl.load(here + dim, mask=inside, other=0.0))
    return low, high


@triton.jit(do_not_specialize=["chunks", "other_chunks", "dim"])
def frame(found, other_found, scales, middles, far, chunks, other_chunks, dim, BLOCK: tl.constexpr):
    """Middles of the boxes around both clouds and around each, (lanes, 3, dim), and the scaled diagonal of the first."""
    lane = tl.program_id(0).to(tl.int64)
    scale = tl.load(scales + lane)
    square = tl.zeros((BLOCK,), dtype=tl.float64)
    for first in range(0, dim, BLOCK):
        ks = first + tl.arange(0, BLOCK)
        inside = ks < dim
        low, high = _box(found, lane, chunks, dim, ks, inside)
        other_low, other_high = _box(other_found, lane, other_chunks, dim, ks, inside)
        out = middles + lane * 3 * dim + ks
        tl.store(out + dim, low / 2 + high / 2, mask=inside)
        tl.store(out + 2 * dim, other_low / 2 + other_high / 2, mask=inside)
        low, high = tl.minimum(low, other_low), tl.maximum(high, other_high)
        tl.store(out, low / 2 + high / 2, mask=inside)
        # Scaled first: squares of the caller's units may not be numbers.
        across = high * scale - low * scale
        square += across * across
    tl.store(far + lane, tl.sqrt(tl.sum(square, axis=0)))


@triton.jit(do_not_specialize=["first_side", "lanes", "size", "dim", "chunk", "lane_stride", "weight_stride"])
def moments(points, weights, middles, found, first_side, lanes, size, dim, chunk, lane_stride, weight_stride,
            DP: tl.constexpr, FULL: tl.constexpr, ROWS: tl.constexpr):  # fmt: skip
    """Weighted sums over a chunk of rows, of coordinates around the cloud's middle and of their products or squares."""
    lane = tl.program_id(1).to(tl.int64)
    ks = tl.arange(0, DP)
    inside = ks < dim
    side = first_side + lane // lanes
    middle = tl.load(middles + (lane % lanes * 3 + 1 + side) * dim + ks, mask=inside, other=0.0)
    # A tile keeps its rows apart until the end, so that no sum is waited for.
    total = tl.zeros((ROWS, DP), dtype=tl.float64)
    if FULL:
        product = tl.zeros((DP, DP), dtype=tl.float64)
    else:
        square = tl.zeros((ROWS, DP), dtype=tl.float64)
    first = tl.program_id(0) * chunk
    last = tl.minimum(size, first + chunk)
    for start in range(first, last, ROWS):
        rows = start + tl.arange(0, ROWS)
        near = rows < last
        place = points + lane * lane_stride + rows[:, None].to(tl.int64) * dim + ks[None, :]
        seen = near[:, None] & inside[None, :]
        x = tl.where(seen, tl.load(place, mask=seen, other=0.0).to(tl.float64) - middle[None, :], 0.0)
        scaled = tl.load(weights + lane * weight_stride + rows, mask=near, other=0.0)[:, None] * x
        total += scaled
        if FULL:
            product = tl.dot(tl.trans(scaled), x, product, out_dtype=tl.float64)
        else:
            square += scaled * x
    out = found + (lane * tl.num_programs(0) + tl.program_id(0)) * (DP + 1 if FULL else 2) * DP
    tl.store(out + ks, tl.sum(total, axis=0))
    if FULL:
        tl.store(out + DP + ks[:, None] * DP + ks[None, :], product)
    else:
        tl.store(out + DP + ks, tl.sum(square, axis=0))


@triton.jit(do_not_specialize=["chunks", "count"])
def added(parts, found, chunks, count, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """(lanes, chunks, count) -> (lanes, count)."""
    lane = tl.program_id(1).to(tl.int64)
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((ROWS, BLOCK), dtype=tl.float64)
    for first in range(0, chunks, ROWS):
        rows = first + tl.arange(0, ROWS)
        seen = (rows < chunks)[:, None] & (places < count)[None, :]
        total += tl.load(parts + (lane * chunks + rows)[:, None] * count + places[None, :], mask=seen, other=0.0)
    tl.store(found + lane * count + places, tl.sum(total, axis=0), mask=places < count)


@triton.jit
def _product(left, right, dim, DP: tl.constexpr, DEPTH: tl.constexpr):
    """A product of matrices in memory, some columns of one and rows of the other at a time."""
    ks, deep = tl.arange(0, DP), tl.arange(0, DEPTH)
    total = tl.zeros((DP, DP), dtype=tl.float64)
    for first in range(0, dim, DEPTH):
        columns = tl.load(left + ks[:, None] * DP + (first + deep)[None, :])
        rows = tl.load(right + (first + deep)[:, None] * DP + ks[None, :])
        total = tl.dot(columns, rows, total, out_dtype=tl.float64)
    return total


@triton.jit(do_not_specialize=["dim"])
def transports(sums, other_sums, middles, factors, scratch, means, matrices, slopes, dim,
               DP: tl.constexpr, FULL: tl.constexpr, DEPTH: tl.constexpr):  # fmt: skip
    """Gaussian starts `(y - m)' M (y - m) + l' (y - m)` in bits, see `numerics.starts`.

    T solves T B T = A, so that T = A (B A)^-1/2; the root comes from products alone (Newton's iteration, the form of
    Schulz). Of a cloud that is one point T is the identity (y) or zero (x).
    """
    lane = tl.program_id(0).to(tl.int64)
    ks = tl.arange(0, DP)
    inside = ks < dim
    rows, factor = DP + 1 if FULL else 2, tl.load(factors + lane)
    mine, theirs = sums + lane * rows * DP, other_sums + lane * rows * DP
    mean, other_mean = tl.load(mine + ks), tl.load(theirs + ks)
    middle = tl.load(middles + (lane * 3 + 1) * dim + ks, mask=inside, other=0.0)
    other_middle = tl.load(middles + (lane * 3 + 2) * dim + ks, mask=inside, other=0.0)
    tl.store(means + lane * dim + ks, other_middle + other_mean, mask=inside)
    tl.store(slopes + lane * dim + ks, 2 * factor * ((other_middle + other_mean) - (middle + mean)), mask=inside)
    if FULL:
        square = ks[:, None] * DP + ks[None, :]
        diagonal = (ks[:, None] == ks[None, :]) & inside[:, None]
        eye = tl.where(diagonal, 1.0, 0.0).to(tl.float64)
        a = tl.load(mine + DP + square) - mean[:, None] * mean[None, :]
        b = tl.load(theirs + DP + square) - other_mean[:, None] * other_mean[None, :]
        size_a, size_b = tl.sum(tl.sum(a * eye, axis=1), axis=0), tl.sum(tl.sum(b * eye, axis=1), axis=0)
        # Of one point the covariance is zero, and stays so.
        a = a / tl.where(size_a > 0, size_a, 1.0)
        b = b / tl.where(size_b > 0, size_b, 1.0) + eye * FLOOR
        # Four matrices in memory: what is computed by all threads is read by all of them after a barrier.
        one, two = scratch + lane * 4 * DP * DP, scratch + (lane * 4 + 1) * DP * DP
        three, four = scratch + (lane * 4 + 2) * DP * DP, scratch + (lane * 4 + 3) * DP * DP
        tl.store(one + square, b)
        tl.store(two + square, a)
        tl.debug_barrier()
        y = _product(one, two, dim, DP, DEPTH)
        norm = tl.sqrt(tl.sum(tl.sum(y * y, axis=1), axis=0))
        norm = tl.where(norm > 0, norm, 1.0)
        # The first step, before which z is the identity.
        y = y * (1.0 / norm)
        z = 1.5 * eye - 0.5 * y
        tl.debug_barrier()
        tl.store(one + square, y)
        tl.store(three + square, z)
        tl.debug_barrier()
        y = _product(one, three, dim, DP, DEPTH)
        step, off = 1, 0.0 * norm + 1.0
        while (step < STEPS) & (off > CLOSE):
            tl.debug_barrier()
            tl.store(one + square, y)
            tl.store(three + square, z)
            tl.debug_barrier()
            w = 1.5 * eye - 0.5 * _product(three, one, dim, DP, DEPTH)
            off = tl.max(tl.max(tl.abs(w - eye), axis=1), axis=0)
            tl.store(four + square, w)
            tl.debug_barrier()
            y, z = _product(one, four, dim, DP, DEPTH), _product(four, three, dim, DP, DEPTH)
            step += 1
        tl.debug_barrier()
        tl.store(three + square, z)
        tl.debug_barrier()
        t = _product(two, three, dim, DP, DEPTH) * tl.sqrt(
            tl.maximum(size_a, 0.0) / (norm * tl.where(size_b > 0, size_b, 1.0))
        )
        tl.debug_barrier()
        tl.store(one + square, t)
        tl.debug_barrier()
        t = (t + tl.load(one + ks[None, :] * DP + ks[:, None])) / 2
        t = tl.where(size_b > 0, t, eye)
        out = matrices + (lane * dim + ks)[:, None] * dim + ks[None, :]
        tl.store(out, factor * (eye - t), mask=inside[:, None] & inside[None, :])
    else:
        variance = tl.maximum(tl.load(mine + DP + ks) - mean * mean, 0.0)
        other_variance = tl.maximum(tl.load(theirs + DP + ks) - other_mean * other_mean, 0.0)
        other_variance = tl.maximum(other_variance, tl.max(other_variance, axis=0) * FLOOR)
        matrix = factor * (1 - tl.sqrt(variance / tl.where(other_variance > 0, other_variance, 1.0)))
        tl.store(matrices + lane * dim + ks, tl.where(other_variance > 0, matrix, 0.0), mask=inside)


@triton.jit(do_not_specialize=["size", "dim", "lane_stride", "out_stride"])
def quadratic(points, means, matrices, slopes, out, size, dim, lane_stride, out_stride,
              FULL: tl.constexpr, ROWS: tl.constexpr, DP: tl.constexpr):  # fmt: skip
    """`(y - m)' M (y - m) + l' (y - m)` for every point of every lane; M is (dim, dim) if FULL, else its diagonal."""
    lane = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < size
    mine, mean, slope = points + lane * lane_stride + rows.to(tl.int64) * dim, means + lane * dim, slopes + lane * dim
    total = tl.zeros((ROWS,), dtype=tl.float64)
    for first in range(0, dim, DP):
        ks = first + tl.arange(0, DP)
        seen = inside[:, None] & (ks < dim)[None, :]
        y = tl.load(mine[:, None] + ks[None, :], mask=seen, other=0.0).to(tl.float64)
        around = tl.where(seen, y - tl.load(mean + ks, mask=ks < dim, other=0.0)[None, :], 0.0)
        bent = around * 0.0 + tl.load(slope + ks, mask=ks < dim, other=0.0)[None, :]
        if FULL:
            here = (ks < dim)[:, None] & (ks < dim)[None, :]
            matrix = tl.load(matrices + (lane * dim + ks)[:, None] * dim + ks[None, :], mask=here, other=0.0)
            bent += tl.dot(around, matrix)
        else:
            bent += around * tl.load(matrices + lane * dim + ks, mask=ks < dim, other=0.0)[None, :]
        total += tl.sum(bent * around, axis=1)
    tl.store(out + lane * out_stride + rows, total, mask=inside)


@triton.jit(do_not_specialize=["size", "start_stride", "weight_stride"])
def judged(starts, weights, size, start_stride, weight_stride, ALWAYS: tl.constexpr, BLOCK: tl.constexpr):
    """Starts that are not finite become zero, and unless ALWAYS those that are not worth it; see `numerics.starts`."""
    lane = tl.program_id(0).to(tl.int64)
    mine, weight = starts + lane * start_stride, weights + lane * weight_stride
    total = tl.zeros((BLOCK,), dtype=tl.float64)
    for first in range(0, size, BLOCK):
        places = first + tl.arange(0, BLOCK)
        start = tl.load(mine + places, mask=places < size, other=0.0)
        total += start * tl.load(weight + places, mask=places < size, other=0.0)
    mean = tl.sum(total, axis=0)
    spread = tl.zeros((BLOCK,), dtype=tl.float64)
    for first in range(0, size, BLOCK):
        places = first + tl.arange(0, BLOCK)
        around = tl.load(mine + places, mask=places < size, other=0.0) - mean
        spread += around * around * tl.load(weight + places, mask=places < size, other=0.0)
    spread = tl.sum(spread, axis=0) * (LN2 * LN2)
    kept = spread < float("inf")
    if not ALWAYS:
        kept = kept & (spread >= WORTH * WORTH)
    if kept == 0:
        for first in range(0, size, BLOCK):
            places = first + tl.arange(0, BLOCK)
            tl.store(mine + places, tl.zeros((BLOCK,), dtype=tl.float64), mask=places < size)


@triton.jit
def _coordinates(cloud, middle, scale, rows, inside, ks, dim):
    """Some coordinates of some points, centred and scaled, in float64."""
    here = ks < dim
    x = tl.load(cloud + rows[:, None].to(tl.int64) * dim + ks[None, :], mask=inside[:, None] & here[None, :], other=0.0)
    m = tl.load(middle + ks, mask=here, other=0.0)
    around = (x.to(tl.float64) - m.to(tl.float64)[None, :]) * scale
    return tl.where(inside[:, None] & here[None, :], around, 0.0)


@triton.jit
def _ones(place, inside, ROWS: tl.constexpr):
    """By which both halves of the other side's potential are multiplied."""
    one = tl.full((ROWS,), 1.0, dtype=tl.float16)
    tl.store(place, one, mask=inside)
    tl.store(place + 1, one, mask=inside)


@triton.jit(
    do_not_specialize=[
        "first_side", "lanes", "size", "dim", "lane_stride", "exact_stride", "out_stride", "norm_stride", "half_stride"
    ]
)  # fmt: skip
def place(points, middles, scales, exact, out, half, norms, first_side, lanes, size, dim, lane_stride, exact_stride,
          out_stride, half_stride, norm_stride, KIND: tl.constexpr, SLOT: tl.constexpr, WIDTH: tl.constexpr,
          ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """A cloud as legs read it: centred and scaled so that minus a squared distance (or its root) is a score in bits.

    `exact` gets it coordinate by coordinate in float64. PRODUCT: `half` gets float16 pairs, (size, chunks, 2, WIDTH),
    and `norms` half the squares of what they hold. DIRECT and ROOT: `out` gets float32 coordinates; with a SLOT `half`
    gets one row of sixteen for a point (see `_packed`). STORED: `out` gets float64 rows, `norms` their squares.
    Clouds of lanes past the first `lanes` are those of the other side, and of the same lanes.
    """
    lane = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside, wide = rows < size, rows.to(tl.int64)
    side, middle = first_side + lane // lanes, middles + lane % lanes * 3 * dim
    scale = tl.load(scales + lane % lanes)
    norm = tl.zeros((ROWS,), dtype=tl.float64)
    for first in range(0, dim, BLOCK):
        ks = first + tl.arange(0, BLOCK)
        seen = inside[:, None] & (ks < dim)[None, :]
        x = _coordinates(points + lane * lane_stride, middle, scale, rows, inside, ks, dim)
        tl.store(exact + lane * exact_stride + ks[None, :].to(tl.int64) * size + rows[:, None], x, mask=seen)
        if (KIND == PRODUCT) | (SLOT > 0):
            # -|x - y|^2 = 2 x.y - |x|^2 - |y|^2, of the points as float16 pairs hold them.
            high, low = _halves(x * ROOT_TWO)
            held = high.to(tl.float64) + low.to(tl.float64)
            norm += tl.sum(held * held, axis=1) / 2
            if KIND == PRODUCT:
                chunk, k = ks // WIDTH, ks % WIDTH
                there = half + lane * half_stride + wide[:, None] * (2 * WIDTH * ((dim + WIDTH - 1) // WIDTH))
                there += (chunk * 2 * WIDTH + k)[None, :]
                tl.store(there, high, mask=seen)
                tl.store(there + WIDTH, low, mask=seen)
                if SLOT == ROOMY:
                    _ones(half + lane * half_stride + wide * (2 * WIDTH) + (WIDTH - 2 - 2 * side), inside, ROWS)
            else:
                there = half + lane * half_stride + wide[:, None] * 16 + ks[None, :]
                tl.store(there, high, mask=seen)
                tl.store(there + 4, tl.where(side == 0, low, high), mask=seen)
                tl.store(there + 8, tl.where(side == 0, high, low), mask=seen)
                _ones(half + lane * half_stride + wide * 16 + (14 - 2 * side), inside, ROWS)
        if (KIND == DIRECT) | (KIND == ROOT):
            tl.store(out + lane * out_stride + ks[None, :].to(tl.int64) * _padded(size) + rows[:, None], x, mask=seen)
        if KIND == STORED:
            norm += tl.sum(x * x, axis=1)
            tl.store(out + lane * out_stride + wide[:, None] * dim + ks[None, :], x, mask=seen)
    if (KIND == PRODUCT) | (KIND == STORED) | (SLOT > 0):
        tl.store(norms + lane * norm_stride + rows, norm, mask=inside)


@triton.jit
def _farthest(values, count, BLOCK: tl.constexpr):
    """The largest size of some numbers; not a number if one of them is not finite."""
    largest, total = tl.zeros((BLOCK,), dtype=tl.float64), tl.zeros((BLOCK,), dtype=tl.float64)
    for first in range(0, count, BLOCK):
        places = first + tl.arange(0, BLOCK)
        here = tl.abs(tl.load(values + places, mask=places < count, other=0.0))
        largest, total = tl.maximum(largest, here), total + 0.0 * here
    return tl.max(largest, axis=0) + tl.sum(total, axis=0)


@triton.jit(
    do_not_specialize=[
        "dim", "size", "other_size", "noise_stride", "norm_stride", "other_norm_stride", "stride", "other_stride"
    ]
)  # fmt: skip
def extents(far, noise, norms, other_norms, starts, other_starts, found, dim, size, other_size, noise_stride,
            norm_stride, other_norm_stride, stride, other_stride, ROOTED: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """(5, lanes): rounding of what float64 measures of a lane, its largest norms of rows and columns, largest starts."""
    lane, lanes = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    # What bounds all scores: the largest, or the diagonal of the box around both clouds.
    across = tl.load(far + lane)
    across = across if ROOTED else across * across
    # Scores are off by (dim + 24) units of the largest one, potentials by a few; in nats, twice for safety.
    off = (2 * ROUNDING * LN2) * (dim + 40) * across + (8 * ROUNDING) * (size + other_size)
    off = tl.where(off < float("inf"), off, float("nan"))
    tl.store(noise + lane * noise_stride, off)
    tl.store(found + lane, off)
    tl.store(found + lanes + lane, _farthest(norms + lane * norm_stride, size, BLOCK))
    tl.store(found + 2 * lanes + lane, _farthest(other_norms + lane * other_norm_stride, other_size, BLOCK))
    tl.store(found + 3 * lanes + lane, _farthest(starts + lane * stride, size, BLOCK))
    tl.store(found + 4 * lanes + lane, _farthest(other_starts + lane * other_stride, other_size, BLOCK))


@triton.jit
def _scores(scores, norms, other_norms, rows, others, seen, size, other_size, lane, PRODUCTS: tl.constexpr):
    """Stored scores, or those that inner products and norms make."""
    found = tl.load(scores + (lane * size + rows)[:, None] * other_size + others[None, :], mask=seen, other=0.0)
    if PRODUCTS:
        nx = tl.load(norms + lane * size + rows, mask=rows < size, other=0.0)
        ny = tl.load(other_norms + lane * other_size + others, mask=others < other_size, other=0.0)
        # In float64, and centred: what cancels is some 1e-16 of the largest score.
        found = tl.maximum(nx[:, None] + ny[None, :] - 2.0 * found, 0.0)
    return found


@triton.jit(do_not_specialize=["size", "other_size", "dim", "stride", "other_stride", "out_stride"])
def products(x, y, out, size, other_size, dim, stride, other_stride, out_stride,
             ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr):  # fmt: skip
    """Products of all points of two clouds of every lane: out is (size, other_size) of each."""
    lane, across = tl.program_id(1).to(tl.int64), tl.cdiv(other_size, COLS)
    rows = tl.program_id(0) // across * ROWS + tl.arange(0, ROWS)
    cols = tl.program_id(0) % across * COLS + tl.arange(0, COLS)
    inside, near, deep = rows < size, cols < other_size, tl.arange(0, DEPTH)
    mine = x + lane * stride + rows[:, None].to(tl.int64) * dim + deep[None, :]
    theirs = y + lane * other_stride + cols[None, :].to(tl.int64) * dim + deep[:, None]
    total = tl.zeros((ROWS, COLS), dtype=tl.float64)
    for first in range(0, dim, DEPTH):
        left = dim - first
        own = tl.load(mine + first, mask=inside[:, None] & (deep < left)[None, :], other=0.0)
        other = tl.load(theirs + first, mask=near[None, :] & (deep < left)[:, None], other=0.0)
        total = tl.dot(own, other, total, out_dtype=tl.float64)
    place = out + lane * out_stride + rows[:, None].to(tl.int64) * other_size + cols[None, :]
    tl.store(place, total, mask=inside[:, None] & near[None, :])


@triton.jit(do_not_specialize=["size", "other_size", "start_stride", "mass_stride", "base_stride", "stride"])
def absorb(scores, norms, other_norms, start, mass, base, matrix, size, other_size, start_stride, mass_stride,
           base_stride, stride, PRODUCTS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """The matrix absorbed at the start of g and the f-leg after it: what matters lies near zero there."""
    lane = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < size
    largest = tl.full((ROWS,), -float("inf"), dtype=tl.float64)
    total = tl.zeros((ROWS,), dtype=tl.float64)
    for first in range(0, other_size, BLOCK):
        others = first + tl.arange(0, BLOCK)
        near = others < other_size
        seen = inside[:, None] & near[None, :]
        g = tl.load(start + lane * start_stride + others, mask=near, other=-float("inf"))
        w = tl.load(mass + lane * mass_stride + others, mask=near, other=0.0)
        found = _scores(scores, norms, other_norms, rows, others, seen, size, other_size, lane, PRODUCTS)
        exponent = g[None, :] - found
        new = tl.maximum(largest, tl.max(exponent, axis=1))
        total = total * tl.exp2(largest - new) + tl.sum(tl.exp2(exponent - new[:, None]) * w[None, :], axis=1)
        largest = new
    level = -(largest + tl.log2(total))
    tl.store(base + lane * base_stride + rows, level, mask=inside)
    for first in range(0, other_size, BLOCK):
        others = first + tl.arange(0, BLOCK)
        near = others < other_size
        seen = inside[:, None] & near[None, :]
        g = tl.load(start + lane * start_stride + others, mask=near, other=0.0)
        found = _scores(scores, norms, other_norms, rows, others, seen, size, other_size, lane, PRODUCTS)
        place = lane * stride + rows[:, None].to(tl.int64) * _padded(other_size) + others[None, :]
        tl.store(matrix + place, (g[None, :] - found + level[:, None]).to(tl.float32), mask=seen)
