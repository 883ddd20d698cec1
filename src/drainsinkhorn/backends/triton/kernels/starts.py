"""Triton kernels of Gaussian starts (`numerics.starts`), and of the boxes around clouds.

Lanes may have clouds of any sizes. A cloud is an entry: an array with entries has those of the rows of all lanes first,
then those of the columns. `places` has the offset of the first coordinate of each entry in `points`, the caller's
float32 or float64 numbers; `fields` has the rows of the lane table. All arithmetic is float64, every sum has a fixed
order and no program reads two lanes, so the start of a lane does not depend on its neighbours.
"""

# pyright: basic, reportIndexIssue=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false, reportGeneralTypeIssues=false
# Triton reads these functions itself; Python's types mean little inside them.

from __future__ import annotations

import triton
import triton.language as tl

from drainsinkhorn.backends.triton.kernels.columns import FIELDS, LN2, MASS, POTENTIAL, SIZE, Constant
from drainsinkhorn.numerics import starts

CLOSE = Constant(1e-10)
"""Distance from the identity at which the iteration for a square root ends."""
STEPS = Constant(40)
"""Its largest number of steps; directions that would need more hardly move a point."""
FLOOR = Constant(starts.FLOOR)
WORTH = Constant(starts.WORTH)
CHUNK = Constant(128)
"""Fewest rows of a chunk of a cloud, and most chunks of a cloud."""


@triton.jit
def _size_of_entry(fields, entry, lanes):
    """The number of points of an entry, and the rows of one of its chunks: functions of the cloud alone."""
    size = tl.load(fields + (entry % lanes) * FIELDS + SIZE + entry // lanes).to(tl.int32)
    return size, tl.maximum(CHUNK, tl.cdiv(size, CHUNK))


@triton.jit(do_not_specialize=["first_entry", "lanes", "dim"])
def chunk_boxes(points, places, fields, boxes, first_entry, lanes, dim, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Write the smallest and the largest coordinates of each chunk of rows, (entries, chunks, 2, dim)."""
    entry = (first_entry + tl.program_id(1)).to(tl.int64)
    size, chunk = _size_of_entry(fields, entry, lanes)
    cloud = points + tl.load(places + entry)
    ks = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    inside = ks < dim
    low = tl.full((ROWS, BLOCK), float("inf"), dtype=tl.float64)
    high = tl.full((ROWS, BLOCK), -float("inf"), dtype=tl.float64)
    first = tl.program_id(0) * chunk
    last = tl.minimum(size, first + chunk)
    for start in range(first, last, ROWS):
        # Past the end the last row counts again, which changes nothing.
        rows = tl.minimum(start + tl.arange(0, ROWS), last - 1).to(tl.int64)
        x = tl.load(cloud + rows[:, None] * dim + ks[None, :], mask=inside[None, :], other=0.0).to(tl.float64)
        low, high = tl.minimum(low, x), tl.maximum(high, x)
    out = boxes + (entry * tl.num_programs(0) + tl.program_id(0)) * 2 * dim + ks
    tl.store(out, tl.min(low, axis=0), mask=inside)
    tl.store(out + dim, tl.max(high, axis=0), mask=inside)


@triton.jit
def _box_of_cloud(boxes, fields, entry, lanes, most, dim, ks, inside):
    """The smallest and the largest coordinates of a cloud, from those of its `most` or fewer chunks."""
    size, chunk = _size_of_entry(fields, entry, lanes)
    low = tl.load(boxes + entry * most * 2 * dim + ks, mask=inside, other=0.0)
    high = tl.load(boxes + entry * most * 2 * dim + dim + ks, mask=inside, other=0.0)
    for k in range(1, tl.cdiv(size, chunk)):
        here = boxes + (entry * most + k) * 2 * dim + ks
        low = tl.minimum(low, tl.load(here, mask=inside, other=0.0))
        high = tl.maximum(high, tl.load(here + dim, mask=inside, other=0.0))
    return low, high


@triton.jit(do_not_specialize=["most", "dim"])
def centres(boxes, fields, scales, middles, diagonals, most, dim, BLOCK: tl.constexpr):
    """Write middles of the boxes around both clouds and around each, (lanes, 3, dim), and diagonals of the first.

    Diagonals are scaled by the `scales` of lanes. `boxes` has room for `most` chunks of each cloud.
    """
    lane, lanes = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    scale = tl.load(scales + lane)
    square = tl.zeros((BLOCK,), dtype=tl.float64)
    for first in range(0, dim, BLOCK):
        ks = first + tl.arange(0, BLOCK)
        inside = ks < dim
        low, high = _box_of_cloud(boxes, fields, lane, lanes, most, dim, ks, inside)
        other_low, other_high = _box_of_cloud(boxes, fields, lanes + lane, lanes, most, dim, ks, inside)
        out = middles + lane * 3 * dim + ks
        tl.store(out + dim, low / 2 + high / 2, mask=inside)
        tl.store(out + 2 * dim, other_low / 2 + other_high / 2, mask=inside)
        low, high = tl.minimum(low, other_low), tl.maximum(high, other_high)
        tl.store(out, low / 2 + high / 2, mask=inside)
        # Scaled first: squares of the caller's units may not be numbers.
        across = high * scale - low * scale
        square += across * across
    tl.store(diagonals + lane, tl.sqrt(tl.sum(square, axis=0)))


@triton.jit(do_not_specialize=["first_entry", "lanes", "dim"])
def chunk_moments(points, places, fields, vectors64, middles, sums, first_entry, lanes, dim,
                  DP: tl.constexpr, FULL: tl.constexpr, ROWS: tl.constexpr):  # fmt: skip
    """Write weighted sums over chunks of rows: coordinates around the middle of a cloud, and products or squares."""
    entry = (first_entry + tl.program_id(1)).to(tl.int64)
    lane, side = entry % lanes, entry // lanes
    size, chunk = _size_of_entry(fields, entry, lanes)
    cloud = points + tl.load(places + entry)
    weights = vectors64 + tl.load(fields + lane * FIELDS + MASS + side)
    ks = tl.arange(0, DP)
    inside = ks < dim
    middle = tl.load(middles + (lane * 3 + 1 + side) * dim + ks, mask=inside, other=0.0)
    # Rows of a tile are added up after the loop, so that no iteration waits for a sum.
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
        valid = near[:, None] & inside[None, :]
        here = cloud + rows[:, None].to(tl.int64) * dim + ks[None, :]
        x = tl.where(valid, tl.load(here, mask=valid, other=0.0).to(tl.float64) - middle[None, :], 0.0)
        scaled = tl.load(weights + rows, mask=near, other=0.0)[:, None] * x
        total += scaled
        if FULL:
            product = tl.dot(tl.trans(scaled), x, product, out_dtype=tl.float64)
        else:
            square += scaled * x
    out = sums + (entry * tl.num_programs(0) + tl.program_id(0)) * (DP + 1 if FULL else 2) * DP
    tl.store(out + ks, tl.sum(total, axis=0))
    if FULL:
        tl.store(out + DP + ks[:, None] * DP + ks[None, :], product)
    else:
        tl.store(out + DP + ks, tl.sum(square, axis=0))


@triton.jit(do_not_specialize=["lanes", "most", "count"])
def sum_chunks(parts, fields, sums, lanes, most, count, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Add up sums of chunks: (entries, chunks, count) -> (entries, count); `parts` has room for `most` chunks."""
    entry = tl.program_id(1).to(tl.int64)
    size, chunk = _size_of_entry(fields, entry, lanes)
    chunks = tl.cdiv(size, chunk)
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((ROWS, BLOCK), dtype=tl.float64)
    for first in range(0, chunks, ROWS):
        rows = first + tl.arange(0, ROWS)
        valid = (rows < chunks)[:, None] & (places < count)[None, :]
        total += tl.load(parts + (entry * most + rows)[:, None] * count + places[None, :], mask=valid, other=0.0)
    tl.store(sums + entry * count + places, tl.sum(total, axis=0), mask=places < count)


@triton.jit
def _matrix_product(left, right, dim, DP: tl.constexpr, DEPTH: tl.constexpr):
    """The product of two matrices in memory, DEPTH columns of one and rows of the other at a time."""
    ks, deep = tl.arange(0, DP), tl.arange(0, DEPTH)
    total = tl.zeros((DP, DP), dtype=tl.float64)
    for first in range(0, dim, DEPTH):
        columns = tl.load(left + ks[:, None] * DP + (first + deep)[None, :])
        rows = tl.load(right + (first + deep)[:, None] * DP + ks[None, :])
        total = tl.dot(columns, rows, total, out_dtype=tl.float64)
    return total


@triton.jit(do_not_specialize=["dim"])
def gaussian_maps(sums, other_sums, middles, factors, scratch, means, matrices, slopes, dim,
                  DP: tl.constexpr, FULL: tl.constexpr, DEPTH: tl.constexpr):  # fmt: skip
    """Write m, M, l of Gaussian starts `(y - m)' M (y - m) + l' (y - m)` in bits, as `numerics.starts.between`.

    T solves T B T = A, so that T = A (B A)^-1/2; the root comes from products alone (Newton's iteration, the form of
    Schulz). T is the identity if all points of y are equal, and zero if all points of x are.
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
        # The covariance of equal points is zero, and stays zero.
        a = a / tl.where(size_a > 0, size_a, 1.0)
        b = b / tl.where(size_b > 0, size_b, 1.0) + eye * FLOOR
        # Four matrices in memory, since all threads read what each has computed, after a barrier.
        one, two = scratch + lane * 4 * DP * DP, scratch + (lane * 4 + 1) * DP * DP
        three, four = scratch + (lane * 4 + 2) * DP * DP, scratch + (lane * 4 + 3) * DP * DP
        tl.store(one + square, b)
        tl.store(two + square, a)
        tl.debug_barrier()
        y = _matrix_product(one, two, dim, DP, DEPTH)
        norm = tl.sqrt(tl.sum(tl.sum(y * y, axis=1), axis=0))
        norm = tl.where(norm > 0, norm, 1.0)
        # The first step; z is the identity before it.
        y = y * (1.0 / norm)
        z = 1.5 * eye - 0.5 * y
        tl.debug_barrier()
        tl.store(one + square, y)
        tl.store(three + square, z)
        tl.debug_barrier()
        y = _matrix_product(one, three, dim, DP, DEPTH)
        step, distance = 1, 0.0 * norm + 1.0
        while (step < STEPS) & (distance > CLOSE):
            tl.debug_barrier()
            tl.store(one + square, y)
            tl.store(three + square, z)
            tl.debug_barrier()
            w = 1.5 * eye - 0.5 * _matrix_product(three, one, dim, DP, DEPTH)
            distance = tl.max(tl.max(tl.abs(w - eye), axis=1), axis=0)
            tl.store(four + square, w)
            tl.debug_barrier()
            y, z = _matrix_product(one, four, dim, DP, DEPTH), _matrix_product(four, three, dim, DP, DEPTH)
            step += 1
        tl.debug_barrier()
        tl.store(three + square, z)
        tl.debug_barrier()
        t = _matrix_product(two, three, dim, DP, DEPTH) * tl.sqrt(
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


@triton.jit(do_not_specialize=["lanes", "dim"])
def gaussian_potentials(points, places, fields, means, matrices, slopes, vectors64, lanes, dim,
                        FULL: tl.constexpr, ROWS: tl.constexpr, DP: tl.constexpr):  # fmt: skip
    """Write `(y - m)' M (y - m) + l' (y - m)` for every column of every lane, the start of `numerics.starts.start`.

    M is (dim, dim) if FULL, else its diagonal.
    """
    lane = tl.program_id(1).to(tl.int64)
    size, _ = _size_of_entry(fields, lanes + lane, lanes)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    if tl.program_id(0) * ROWS >= size:
        return
    inside = rows < size
    mine = points + tl.load(places + lanes + lane) + rows.to(tl.int64) * dim
    mean, slope = means + lane * dim, slopes + lane * dim
    out = vectors64 + tl.load(fields + lane * FIELDS + POTENTIAL + 1)
    total = tl.zeros((ROWS,), dtype=tl.float64)
    for first in range(0, dim, DP):
        ks = first + tl.arange(0, DP)
        valid = inside[:, None] & (ks < dim)[None, :]
        y = tl.load(mine[:, None] + ks[None, :], mask=valid, other=0.0).to(tl.float64)
        around = tl.where(valid, y - tl.load(mean + ks, mask=ks < dim, other=0.0)[None, :], 0.0)
        bent = around * 0.0 + tl.load(slope + ks, mask=ks < dim, other=0.0)[None, :]
        if FULL:
            here = (ks < dim)[:, None] & (ks < dim)[None, :]
            matrix = tl.load(matrices + (lane * dim + ks)[:, None] * dim + ks[None, :], mask=here, other=0.0)
            bent += tl.dot(around, matrix)
        else:
            bent += around * tl.load(matrices + lane * dim + ks, mask=ks < dim, other=0.0)[None, :]
        total += tl.sum(bent * around, axis=1)
    tl.store(out + rows, total, mask=inside)


@triton.jit
def keep_worthwhile(fields, vectors64, ALWAYS: tl.constexpr, BLOCK: tl.constexpr):
    """Set starts of columns to zero if they are not finite, or `numerics.starts.worthwhile` rejects them.

    ALWAYS keeps all finite starts.
    """
    lane, lanes = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    size, _ = _size_of_entry(fields, lanes + lane, lanes)
    mine = vectors64 + tl.load(fields + lane * FIELDS + POTENTIAL + 1)
    weight = vectors64 + tl.load(fields + lane * FIELDS + MASS + 1)
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
    is_kept = spread < float("inf")
    if not ALWAYS:
        is_kept = is_kept & (spread >= WORTH * WORTH)
    if is_kept == 0:
        for first in range(0, size, BLOCK):
            places = first + tl.arange(0, BLOCK)
            tl.store(mine + places, tl.zeros((BLOCK,), dtype=tl.float64), mask=places < size)
