"""Points of lanes on the device: stacked, centred and scaled, with Gaussian starts, or as cached scores.

Each step is a few launches for all lanes of a stack, (lanes, size, dim).
"""

# pyright: basic, reportOptionalMemberAccess=false, reportCallIssue=false, reportArgumentType=false
# Kernels are called through Triton, arrays through torch, which is loaded when this backend is.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from drainsinkhorn.backends.triton.buffers import aligned
from drainsinkhorn.backends.triton.kernels import layout as kernels
from drainsinkhorn.backends.triton.kernels import starts as start_kernels
from drainsinkhorn.backends.triton.launching import launch
from drainsinkhorn.backends.triton.precision import has_blocks
from drainsinkhorn.backends.triton.representation import Representation
from drainsinkhorn.backends.triton.tiles import STORED
from drainsinkhorn.numerics.arrays import library, to_numpy
from drainsinkhorn.numerics.starts import FULL_DIM

CHUNK, CHUNKS = 128, 128
"""Least rows of a cloud for one program, and most programs for one cloud."""
BOX_ROWS, BOX_BLOCK, SUM_BLOCK, START_BLOCK = 16, 64, 256, 1024
"""Rows and coordinates of a tile of a cloud, sums that a program adds up, and starts that it reads at once."""
DEPTH, MOMENT_TILE = 16, 8192
"""Columns of a matrix that a product takes at once, and elements of a tile of a cloud whose squares are summed."""
MOST_LANES = 2**16 - 1
"""Most lanes of a launch: the second dimension of a CUDA grid has no more programs."""
TOGETHER_PAIRS, PRODUCT_TILE = 2**21, 64
"""Most pairs of a lane whose products one launch computes for all lanes, and rows and columns of a program of it."""
CACHE_ROWS, CACHE_BLOCK, SCRATCH_PAIRS = 4, 256, 2**25
"""Rows of a program that caches scores, columns it takes at once, and products of small lanes that are kept at once."""
BLOCK_PAIRS, LEAST_ROWS = 2**26, 16
"""Products of a large lane that are kept at once, and least rows of a block of them. Blocks of rows depend on the lane
alone, since a library rounds products of other shapes differently."""
LARGE_BLOCK, LARGE_WARPS = 1024, 8
"""Columns and warps of a program that caches scores of a large lane: programs are few, so each loads more at once."""


def on_device(value: Any, device: Any) -> Any:
    """Return an array as a torch tensor on the device, copied only if it has to be."""
    kind = library(value)
    if kind == "jax" and device.type == "cuda":
        return torch.from_dlpack(value).to(device)
    if kind != "torch":
        value = np.ascontiguousarray(_native(to_numpy(value)))
        # To NumPy an array is contiguous whatever the stride of an axis of length 1; torch rejects negative strides.
        # Torch also warns of read-only arrays, although nothing here writes to them.
        is_accepted = value.flags.writeable and min(value.strides, default=0) >= 0
        value = torch.from_numpy(value if is_accepted else value.copy())
    return value.detach().to(device)


def _native(array: Any) -> Any:
    """Return an array in a dtype that torch has: neither a long double nor in another order of bytes."""
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        return array.astype(np.float64)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def together(first: Any, second: Any) -> Any:
    """Return two stacks as one, if the second follows the first in memory and one launch takes both; else None."""
    distance = len(first) * first.stride(0) * first.element_size()
    alike = first.shape == second.shape and first.stride() == second.stride() and first.dtype == second.dtype
    if not alike or second.data_ptr() - first.data_ptr() != distance or 2 * len(first) > MOST_LANES:
        return None
    if second.untyped_storage().data_ptr() != first.untyped_storage().data_ptr():
        return None
    return first.as_strided((2 * len(first), *first.shape[1:]), first.stride())


def clouds(xs: Sequence[Any], ys: Sequence[Any], device: Any) -> tuple[Any, Any]:
    """Return both clouds of lanes as stacks; the second follows the first in memory if shapes and dtypes are equal."""
    kinds = {(tuple(value.shape), value.dtype) for value in (*xs, *ys)}
    shared = len(xs) > 1 and (xs[0] is xs[1] or ys[0] is ys[1])
    # The second stack must begin at a multiple of 16 bytes.
    if len(kinds) > 1 or shared or len(xs) * len(xs[0]) % 4:
        return stack(xs, device), stack(ys, device)
    both = stack([*xs, *ys], device)
    return both[: len(xs)], both[len(xs) :]


def stack(values: Sequence[Any], device: Any) -> Any:
    """Return arrays of one shape as one tensor of float32 or float64; an array that all share is stored once."""
    first = values[0]
    if all(value is first for value in values):
        stacked = on_device(first, device)[None].contiguous().expand(len(values), *first.shape)
    elif all(library(value) == "numpy" for value in values):
        # NumPy stacks arrays in column-major order in that order; kernels need rows.
        stacked = np.ascontiguousarray(np.stack([to_numpy(value) for value in values]))
        stacked = torch.from_numpy(_native(stacked)).to(device)
    else:
        # Converted one by one: torch would stack integers and float32 as float32, which does not hold all integers.
        stacked = torch.stack([_as_float(on_device(value, device)) for value in values])
    return _as_float(stacked)


def _as_float(values: Any) -> Any:
    return values if values.dtype in (torch.float32, torch.float64) else values.double()


def unit_rows(x: Any) -> Any:
    """Return rows scaled to length one; first by their largest entry, so that squares neither overflow nor vanish."""
    x = x.double() / x.abs().amax(2, keepdim=True)
    # Coordinate by coordinate: torch may sum a stack in another order than one cloud.
    norm = x[:, :, 0].square()
    for coordinate in range(1, x.shape[2]):
        norm = norm + x[:, :, coordinate].square()
    return (x / norm.sqrt()[:, :, None]).contiguous()


def _chunks(size: int) -> tuple[int, int]:
    """Return rows of a chunk, and chunks: functions of the cloud alone, since sums are computed by chunks."""
    rows = max(CHUNK, -(-size // CHUNKS))
    return rows, -(-size // rows)


def centre_clouds(x: Any, y: Any, scales: Any) -> tuple[Any, Any]:
    """Return middles of the boxes around both clouds and each, (lanes, 3, dim), and scaled diagonals of the first."""
    lanes, _, dim = x.shape
    boxes, counts, both = [], [], together(x, y)
    for points in (x, y) if both is None else (both,):
        rows, chunks = _chunks(points.shape[1])
        part = torch.empty((len(points), chunks, 2, dim), dtype=torch.float64, device=x.device)
        launch(
            start_kernels.chunk_boxes, (chunks, len(points), -(-dim // BOX_BLOCK)),
            points, part, points.shape[1], dim, rows, points.stride(0), ROWS=BOX_ROWS, BLOCK=BOX_BLOCK,
        )  # fmt: skip
        boxes += part.split(lanes)
        counts += [chunks] * (len(points) // lanes)
    middles = torch.empty((lanes, 3, dim), dtype=torch.float64, device=x.device)
    diagonals = torch.empty(lanes, dtype=torch.float64, device=x.device)
    launch(start_kernels.centres, (lanes,), *boxes, scales, middles, diagonals, *counts, dim, BLOCK=BOX_BLOCK)
    return middles, diagonals


def gaussian_starts(x: Any, y: Any, a: Any, b: Any, middles: Any, factors: Any, starts: Any, *, always: bool) -> None:
    """Write Gaussian starts of g in bits; a start that is not finite becomes zero.

    Unless `always`, so does a start that `numerics.starts.worthwhile` rejects.
    """
    lanes, size, dim = y.shape
    full, device = dim <= FULL_DIM, y.device
    padded = max(16, 1 << (dim - 1).bit_length())
    count = (padded + 1 if full else 2) * padded
    # Tiles that fit into registers.
    tile, warps = (
        (min(32, 1024 // padded), max(4, padded // 8)) if full else (min(16, max(1, MOMENT_TILE // padded)), 16)
    )
    sums, both, masses = [], together(x, y), together(a, b)
    sides = ((x, a), (y, b)) if both is None or masses is None else ((both, masses),)
    for side, (points, weights) in enumerate(sides):
        rows, chunks = _chunks(points.shape[1])
        parts = torch.empty((len(points), chunks, count), dtype=torch.float64, device=device)
        launch(
            start_kernels.chunk_moments, (chunks, len(points)),
            points, weights, middles, parts, side, lanes, points.shape[1], dim, rows, points.stride(0),
            weights.stride(0), DP=padded, FULL=full, ROWS=tile, num_warps=warps,
        )  # fmt: skip
        total = torch.empty((len(points), count), dtype=torch.float64, device=device)
        grid = (-(-count // SUM_BLOCK), len(points))
        launch(start_kernels.sum_chunks, grid, parts, total, chunks, count, ROWS=8, BLOCK=SUM_BLOCK)
        sums += total.split(lanes)
    mean, slope = (torch.empty((lanes, dim), dtype=torch.float64, device=device) for _ in range(2))
    matrix = torch.empty((lanes, dim, dim) if full else (lanes, dim), dtype=torch.float64, device=device)
    scratch = torch.empty((lanes, 4 * padded * padded if full else 1), dtype=torch.float64, device=device)
    launch(
        start_kernels.gaussian_maps, (lanes,),
        *sums, middles, factors, scratch, mean, matrix, slope, dim, DP=padded, FULL=full, DEPTH=DEPTH,
        num_warps=padded // 8 if full else 4,
    )  # fmt: skip
    rows = max(32, 1024 // padded) if full else 4
    launch(
        start_kernels.gaussian_potentials, (-(-size // rows), lanes),
        y, mean, matrix, slope, starts, size, dim, y.stride(0), starts.stride(0),
        FULL=full, ROWS=rows, DP=padded if full else 256, num_stages=1,
    )  # fmt: skip
    launch(
        start_kernels.keep_worthwhile, (lanes,),
        starts, b, size, starts.stride(0), b.stride(0), ALWAYS=always, BLOCK=START_BLOCK,
    )  # fmt: skip


def pack_points(
    x: Any, y: Any, middles: Any, scales: Any, form: Representation, views: Any
) -> tuple[list[Any], list[Any]]:
    """Write clouds as legs read them. For cached scores, return the scaled clouds and their squared norms."""
    both = together(x, y)
    scaled, squares = list[Any](), list[Any]()
    for side, points in enumerate((x, y) if both is None else (both,)):
        which = side if both is None else None
        count, size, dim = points.shape
        points64 = views["POINTS64", which]
        # A kernel needs pointers to vectors that it does not write for this kind of scores, too.
        points16 = views["POINTS16", which] if "POINTS16" in views else points64
        if form.kind == STORED:
            out, norms = points64.new_empty(count, size * dim), points64.new_empty(count, size)
            scaled += out.view(points.shape).split(len(x))
            squares += norms.split(len(x))
        else:
            out, norms = views["POINTS32", which] if "POINTS32" in views else points64, views["NORM", which]
        rows, block = (32, 16) if dim <= 16 else (16, 64)
        launch(
            kernels.pack_points, (-(-size // rows), count),
            points, middles, scales, points64, out, points16, norms, side, len(x), size, dim, points.stride(0),
            points64.stride(0), out.stride(0), points16.stride(0), norms.stride(0),
            KIND=form.kind, PLACES=form.places, WIDTH=form.dp, ROWS=rows, BLOCK=block,
        )  # fmt: skip
    return scaled, squares


def extents(largest: Any, dim: int, views: Any, *, rooted: bool) -> Any:
    """Return (5, lanes): rounding bound of float64 legs, largest norms of rows and of columns, largest starts of both.

    The first is also written to FLOAT64_BAND. Scaled costs of a lane are bounded by `largest` or, unless `rooted`, by
    its square.
    """
    pairs = ("FLOAT64_BAND", 0), ("NORM", 0), ("NORM", 1), ("POTENTIAL", 0), ("POTENTIAL", 1)
    vectors = [views[pair] for pair in pairs]
    out = torch.empty((5, len(largest)), dtype=torch.float64, device=largest.device)
    sizes, strides = [vector.shape[1] for vector in vectors[3:]], [vector.stride(0) for vector in vectors]
    launch(
        kernels.extents, (len(largest),),
        largest, *vectors, out, dim, *sizes, *strides, ROOTED=rooted, BLOCK=START_BLOCK, num_warps=8,
    )  # fmt: skip
    return out


def block_rows(rows: int, cols: int) -> int:
    """Return the number of rows of a lane whose products are kept at once: a multiple of LEAST_ROWS, or all rows."""
    if rows * cols <= BLOCK_PAIRS:
        return rows
    most = BLOCK_PAIRS // cols
    step = LEAST_ROWS if most < PRODUCT_TILE else PRODUCT_TILE
    return min(rows, max(LEAST_ROWS, most // step * step))


def cache_scores(
    costs: Any, views: Any, lanes: slice, norms: tuple[Any, Any] | None = None, *, first: int = 0,
    is_large: bool = False,
) -> None:  # fmt: skip
    """Write the cached matrices of `lanes` from their scaled costs, or from inner products if `norms` are given.

    Args:
        costs: Scaled costs or products, (lanes, rows, m).
        views: Vectors of the group of lanes.
        lanes: Which lanes of the group; a single one if `first` is not zero.
        norms: Squared norms of these rows and of columns.
        first: Number of the first of these rows.
        is_large: The f that is absorbed comes from exponentials in float32: it is only a place near the solution.
    """
    count, n, m = costs.shape
    pairs = ("POTENTIAL", 1), ("MASS", 1), ("NORM", 0), ("MATRIX", 0)
    start, mass, base, matrix = (views[pair][lanes] for pair in pairs)
    own, other = (costs, costs) if norms is None else norms
    tile = {"BLOCK": LARGE_BLOCK, "num_warps": LARGE_WARPS} if is_large else {"BLOCK": CACHE_BLOCK}
    # That of a single matrix may exceed 32 bits.
    strides = [view.stride(0) if count > 1 else 0 for view in (start, mass, base, matrix)]
    launch(
        kernels.cache_scores, (-(-n // CACHE_ROWS), count),
        costs, own, other, start, mass, base[:, first:], matrix[:, first * aligned(m) :], n, m, *strides,
        PRODUCTS=norms is not None, ROUGH=is_large, ROWS=CACHE_ROWS, **tile,
    )  # fmt: skip


def products(x: Any, y: Any, out: Any, *, rooted: bool) -> None:
    """Write inner products of the points of two clouds of every lane, (lanes, n, m); distances, if `rooted`.

    The product of a whole stack by a library may be rounded differently than that of one lane. So small lanes have a
    kernel of ours, and large ones, of which each fills the device, a call of the library each.
    """
    (lanes, n, dim), m = x.shape, y.shape[1]
    if not rooted and n * m <= TOGETHER_PAIRS:
        launch(
            kernels.inner_products, (-(-n // PRODUCT_TILE) * -(-m // PRODUCT_TILE), lanes),
            x, y, out, n, m, dim, x.stride(0), y.stride(0), out.stride(0),
            ROWS=PRODUCT_TILE, COLS=PRODUCT_TILE, DEPTH=DEPTH, num_warps=4, num_stages=3,
        )  # fmt: skip
        return
    for own, other, product in zip(x, y, out, strict=True):
        if rooted:
            product[:] = torch.cdist(own, other, compute_mode="donot_use_mm_for_euclid_dist")
        else:
            torch.mm(own, other.T, out=product)


def cache_products(x: Any, y: Any, norms: tuple[Any, Any], views: Any, *, rooted: bool) -> None:
    """Write the cached matrices of clouds, whose points are centred and scaled; those of large lanes block by block."""
    lanes, n, m = len(x), x.shape[1], y.shape[1]
    is_large, rows = has_blocks((n, m), x.shape[2]), block_rows(n, m)
    step = max(1, SCRATCH_PAIRS // (n * m)) if rows == n else 1
    for first in range(0, lanes, step):
        part = slice(first, min(lanes, first + step))
        for row in range(0, n, rows):
            block = slice(row, min(n, row + rows))
            scratch = torch.empty((part.stop - first, block.stop - row, m), dtype=torch.float64, device=x.device)
            products(x[part, block], y[part], scratch, rooted=rooted)
            own = None if rooted else (norms[0][part, block], norms[1][part])
            cache_scores(scratch, views, part, own, first=row, is_large=is_large)
