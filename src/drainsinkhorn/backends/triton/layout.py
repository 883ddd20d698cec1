"""Points of lanes on the device: centred and scaled, with Gaussian starts, or as cached scores.

Each step is a few launches for all lanes that are loaded together, whatever their sizes.
"""

# pyright: basic, reportOptionalMemberAccess=false, reportCallIssue=false, reportArgumentType=false
# Kernels are called through Triton, arrays through torch, which is loaded when this backend is.

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from drainsinkhorn.backends.triton.buffers import Buffers
from drainsinkhorn.backends.triton.kernels import layout as kernels
from drainsinkhorn.backends.triton.kernels import starts as start_kernels
from drainsinkhorn.backends.triton.launching import launch, upload
from drainsinkhorn.backends.triton.precision import has_blocks
from drainsinkhorn.backends.triton.representation import Representation
from drainsinkhorn.backends.triton.tiles import STORED
from drainsinkhorn.numerics.starts import FULL_DIM

CHUNK = start_kernels.CHUNK.value
BOX_ROWS, BOX_BLOCK, SUM_BLOCK, START_BLOCK = 16, 64, 256, 1024
"""Rows and coordinates of a tile of a cloud, sums that a program adds up, and starts that it reads at once."""
DEPTH, MOMENT_TILE = 16, 8192
"""Columns of a matrix that a product takes at once, and elements of a tile of a cloud whose squares are summed."""
MOST_LANES = 2**15 - 1
"""Most lanes that are loaded together: the second dimension of a CUDA grid has fewer than 2^16 programs, and some
launches have two for each lane."""
TOGETHER_PAIRS, PRODUCT_TILE = 2**21, 64
"""Most pairs of a lane whose products one launch computes for all lanes, and rows and columns of a program of it."""
CACHE_ROWS, CACHE_BLOCK, SCRATCH_PAIRS = 4, 256, 2**25
"""Rows of a program that caches scores, columns it takes at once, and products of small lanes that are kept at once."""
BLOCK_PAIRS, LEAST_ROWS = 2**26, 16
"""Products of a large lane that are kept at once, and least rows of a block of them. Blocks of rows depend on the lane
alone, since a library rounds products of other shapes differently."""
COPIED_NUMBERS = 2**22
"""Most coordinates of clouds that are copied so that one launch reads those of both sides."""
SCATTER_BLOCK = 1024
"""Numbers that one program of `scatter` writes."""
LARGE_BLOCK, LARGE_WARPS = 1024, 8
"""Columns and warps of a program that caches scores of a large lane: programs are few, so each loads more at once."""


@dataclass(frozen=True)
class Clouds:
    """The points of lanes on the device. A cloud is an entry: those of the rows of all lanes come first.

    Attributes:
        parts: Vectors of coordinates, the first entry of each, and its number of entries.
        places: Offset of each entry in its vector, int64 on the device.
        fields: Rows of the lane table, on the device.
        sizes: Points of rows and columns, (lanes, 2), on the host.
        dim: Number of coordinates.
    """

    parts: list[tuple[Any, int, int]]
    places: Any
    fields: Any
    sizes: Any
    dim: int

    @property
    def lanes(self) -> int:
        """The number of lanes."""
        return len(self.sizes)

    @property
    def columns(self) -> Any:
        """The coordinates of the columns."""
        return self.parts[-1][0]

    @property
    def chunks(self) -> int:
        """The largest number of chunks of a cloud. Sums are by chunks, which are functions of the cloud alone."""
        size = int(self.sizes.max())
        return -(-size // max(CHUNK, -(-size // CHUNK)))


def gather_clouds(
    x_side: tuple[Any, Any], y_side: tuple[Any, Any], fields: Any, sizes: Any, dim: int, *, directions: bool = False
) -> Clouds:
    """Return the clouds of lanes; those of `directions` scaled to length one, in float64.

    Args:
        x_side: A vector of coordinates of the rows of all lanes, and the offset of each lane's.
        y_side: The same of the columns.
        fields: Rows of the lane table, on the device.
        sizes: Points of rows and columns, (lanes, 2), on the host.
        dim: Number of coordinates.
        directions: Scale points to length one.
    """
    (x, x_places), (y, y_places) = x_side, y_side
    if directions:
        x, y = (unit_rows(values.view(1, -1, dim)).view(-1) for values in (x, y))
    lanes, shared = len(sizes), x.data_ptr() == y.data_ptr() and x.dtype == y.dtype
    if not shared and x.dtype == y.dtype and x.numel() + y.numel() <= COPIED_NUMBERS:
        y_places = np.asarray(y_places) + x.numel()
        x, shared = torch.cat([x, y]), True
    parts = [(x, 0, 2 * lanes)] if shared else [(x, 0, lanes), (y, lanes, lanes)]
    places = upload(np.concatenate([x_places, y_places]), torch.int64, fields.device)
    return Clouds(parts, places, fields, sizes, dim)


def unit_rows(x: Any) -> Any:
    """Return rows scaled to length one; first by their largest entry, so that squares neither overflow nor vanish."""
    x = x.double() / x.abs().amax(2, keepdim=True)
    # Coordinate by coordinate: torch may sum a stack in another order than one cloud.
    norm = x[:, :, 0].square()
    for coordinate in range(1, x.shape[2]):
        norm = norm + x[:, :, coordinate].square()
    return (x / norm.sqrt()[:, :, None]).contiguous()


def centre_clouds(clouds: Clouds, scales: Any) -> tuple[Any, Any]:
    """Return middles of the boxes around both clouds and each, (lanes, 3, dim), and scaled diagonals of the first."""
    lanes, dim, chunks, device = clouds.lanes, clouds.dim, clouds.chunks, scales.device
    boxes = torch.empty((2 * lanes, chunks, 2, dim), dtype=torch.float64, device=device)
    for points, first, count in clouds.parts:
        launch(
            start_kernels.chunk_boxes, (chunks, count, -(-dim // BOX_BLOCK)),
            points, clouds.places, clouds.fields, boxes, first, lanes, dim, ROWS=BOX_ROWS, BLOCK=BOX_BLOCK,
        )  # fmt: skip
    middles = torch.empty((lanes, 3, dim), dtype=torch.float64, device=device)
    diagonals = torch.empty(lanes, dtype=torch.float64, device=device)
    launch(
        start_kernels.centres, (lanes,), boxes, clouds.fields, scales, middles, diagonals, chunks, dim, BLOCK=BOX_BLOCK
    )
    return middles, diagonals


def gaussian_starts(clouds: Clouds, vectors64: Any, middles: Any, factors: Any, *, always: bool) -> None:
    """Write Gaussian starts of g in bits; a start that is not finite becomes zero.

    Unless `always`, so does a start that `numerics.starts.worthwhile` rejects.
    """
    lanes, dim, chunks, device = clouds.lanes, clouds.dim, clouds.chunks, vectors64.device
    full = dim <= FULL_DIM
    padded = max(16, 1 << (dim - 1).bit_length())
    count = (padded + 1 if full else 2) * padded
    # Tiles that fit into registers.
    tile, warps = (
        (min(32, 1024 // padded), max(4, padded // 8)) if full else (min(16, max(1, MOMENT_TILE // padded)), 16)
    )
    parts = torch.empty((2 * lanes, chunks, count), dtype=torch.float64, device=device)
    for points, first, entries in clouds.parts:
        launch(
            start_kernels.chunk_moments, (chunks, entries),
            points, clouds.places, clouds.fields, vectors64, middles, parts, first, lanes, dim,
            DP=padded, FULL=full, ROWS=tile, num_warps=warps,
        )  # fmt: skip
    sums = torch.empty((2 * lanes, count), dtype=torch.float64, device=device)
    grid = (-(-count // SUM_BLOCK), 2 * lanes)
    launch(start_kernels.sum_chunks, grid, parts, clouds.fields, sums, lanes, chunks, count, ROWS=8, BLOCK=SUM_BLOCK)
    mean, slope = (torch.empty((lanes, dim), dtype=torch.float64, device=device) for _ in range(2))
    matrix = torch.empty((lanes, dim, dim) if full else (lanes, dim), dtype=torch.float64, device=device)
    scratch = torch.empty((lanes, 4 * padded * padded if full else 1), dtype=torch.float64, device=device)
    launch(
        start_kernels.gaussian_maps, (lanes,),
        sums, sums[lanes:], middles, factors, scratch, mean, matrix, slope, dim, DP=padded, FULL=full, DEPTH=DEPTH,
        num_warps=padded // 8 if full else 4,
    )  # fmt: skip
    rows, most = max(32, 1024 // padded) if full else 4, int(clouds.sizes[:, 1].max())
    launch(
        start_kernels.gaussian_potentials, (-(-most // rows), lanes),
        clouds.columns, clouds.places, clouds.fields, mean, matrix, slope, vectors64, lanes, dim,
        FULL=full, ROWS=rows, DP=padded if full else 256, num_stages=1,
    )  # fmt: skip
    launch(start_kernels.keep_worthwhile, (lanes,), clouds.fields, vectors64, ALWAYS=always, BLOCK=START_BLOCK)


@dataclass(frozen=True)
class ScaledPoints:
    """Centred and scaled points of lanes in float64, from which scores are cached.

    Attributes:
        points: (points of all entries, dim).
        norms: Their squared norms.
        firsts: Number of the first point of each entry, on the device.
        numbers: The same on the host.
    """

    points: Any
    norms: Any
    firsts: Any
    numbers: list[int]


def pack_points(
    clouds: Clouds, middles: Any, scales: Any, form: Representation, buffers: Buffers
) -> ScaledPoints | None:
    """Write clouds as legs read them. For cached scores, return the scaled clouds; else None."""
    lanes, dim, scaled = clouds.lanes, clouds.dim, None
    vectors64, points64, firsts = buffers["vectors64"], buffers["points64"], clouds.places
    # The kernel takes pointers to all vectors, also to those that it does not write for this kind of scores.
    points16 = buffers["points16"] if buffers["points16"].numel() else points64
    out, norms = buffers["points32"] if buffers["points32"].numel() else points64, vectors64
    if form.kind == STORED:
        counts = clouds.sizes.T.reshape(-1)
        numbers, total = [0, *np.cumsum(counts[:-1]).tolist()], int(counts.sum())
        firsts = upload(numbers, torch.int64, vectors64.device)
        out, norms = points64.new_empty(total, dim), points64.new_empty(total)
        scaled = ScaledPoints(out, norms, firsts, numbers)
    rows, block = (32, 16) if dim <= 16 else (16, 64)
    for points, first, count in clouds.parts:
        launch(
            kernels.pack_points, (-(-int(clouds.sizes.max()) // rows), count),
            points, clouds.places, clouds.fields, firsts, middles, scales, points64, points16, out, norms, first, lanes,
            dim, KIND=form.kind, PLACES=form.places, WIDTH=form.dp, ROWS=rows, BLOCK=block,
        )  # fmt: skip
    return scaled


def extents(largest: Any, dim: int, fields: Any, vectors64: Any, *, rooted: bool) -> Any:
    """Return (5, lanes): rounding bound of float64 legs, largest norms of rows and of columns, largest starts of both.

    The first is also written to FLOAT64_BAND. Scaled costs of a lane are bounded by `largest` or, unless `rooted`, by
    its square.
    """
    bounds = torch.empty((5, len(largest)), dtype=torch.float64, device=largest.device)
    launch(
        kernels.extents, (len(largest),),
        largest, fields, vectors64, bounds, dim, ROOTED=rooted, BLOCK=START_BLOCK, num_warps=8,
    )  # fmt: skip
    return bounds


def scatter(
    values: tuple[Any, list[int]], factors: Any, fields: Any, out: Any, most: int, column: int, *, pairs: bool = False,
    maxima: bool = False,
) -> Any:  # fmt: skip
    """Write numbers of the caller, times factors, to a column of the lane table; see `kernels.layout.scatter`.

    Args:
        values: A vector, and the offset of each entry in it; negative for entries that get their factor everywhere.
        factors: One for each entry: for each lane, or first for all rows and then for all columns.
        fields: Rows of the lane table on the device.
        out: The buffer of the column.
        most: The largest count of an entry.
        column: The column of rows; that of columns is the next one.
        pairs: There is a number for each pair of points, and entries of rows alone.
        maxima: Return the largest absolute value of each lane.
    """
    numbers, places = values
    lanes, entries, blocks = len(fields), len(places), -(-most // SCATTER_BLOCK)
    largest = torch.empty((lanes, blocks), dtype=torch.float64, device=out.device) if maxima else factors
    launch(
        kernels.scatter, (blocks, entries),
        numbers, upload(places, torch.int64, out.device), factors, fields, out, largest, 0, lanes,
        COLUMN=column, PAIRS=pairs, MAXIMA=maxima, BLOCK=SCATTER_BLOCK,
    )  # fmt: skip
    return largest.amax(1) if maxima else None


def block_rows(rows: int, cols: int) -> int:
    """Return the number of rows of a lane whose products are kept at once: a multiple of LEAST_ROWS, or all rows."""
    if rows * cols <= BLOCK_PAIRS:
        return rows
    most = BLOCK_PAIRS // cols
    step = LEAST_ROWS if most < PRODUCT_TILE else PRODUCT_TILE
    return min(rows, max(LEAST_ROWS, most // step * step))


def cache_scores(
    scores: Any, places: Any, lanes: range, fields: Any, buffers: Buffers, scaled: ScaledPoints | None = None,
    *, rows: range, is_large: bool = False,
) -> None:  # fmt: skip
    """Write the cached matrices of `lanes` from their scaled costs, or from products of `scaled` points.

    Args:
        scores: Costs or products: those of the first of these lanes at the beginning, others where `places` says.
        places: Offsets of the scores of each lane.
        lanes: Which lanes of the group.
        fields: Rows of the lane table of the group.
        buffers: The buffers of the pack.
        scaled: Points of the products.
        rows: Rows that `scores` has: all rows of the largest of these lanes or, of a single lane, some rows.
        is_large: Compute the f that is absorbed from exponentials in float32; it has to be near the solution only.
    """
    # The kernel takes pointers to norms, also if it does not read them.
    norms, firsts = (buffers["vectors64"], places) if scaled is None else (scaled.norms, scaled.firsts)
    tile = {"BLOCK": LARGE_BLOCK, "num_warps": LARGE_WARPS} if is_large else {"BLOCK": CACHE_BLOCK}
    launch(
        kernels.cache_scores, (-(-len(rows) // CACHE_ROWS), len(lanes)),
        scores, places, norms, firsts, fields, buffers["vectors64"], buffers["points32"], lanes.start,
        0 if scaled is None else len(fields), rows.start, len(rows), PRODUCTS=scaled is not None, ROUGH=is_large,
        ROWS=CACHE_ROWS, **tile,
    )  # fmt: skip


def products(x: Any, y: Any, out: Any, *, rooted: bool) -> None:
    """Write inner products of the points of two clouds of every lane, (lanes, n, m); distances, if `rooted`.

    The product of a whole stack by a library may be rounded differently than that of one lane. So small lanes have a
    kernel of ours, and large ones, of which each fills the device, a call of the library each.
    """
    (lanes, n, _), m = x.shape, y.shape[1]
    if not rooted and n * m <= TOGETHER_PAIRS and all(side.is_contiguous() for side in (x[0], y[0])):
        sizes = upload([(n, m)] * lanes, torch.int64, x.device)
        numbers = torch.arange(lanes, device=x.device)
        firsts = torch.cat([numbers * (side.stride(0) // side.shape[2]) for side in (x, y)])
        _launch_products((x, y), firsts, out, numbers * out.stride(0), sizes, range(lanes), (n, m))
        return
    for own, other, product in zip(x, y, out, strict=True):
        _products_of_lane(own, other, product, rooted=rooted)


def _products_of_lane(x: Any, y: Any, out: Any, *, rooted: bool) -> None:
    """Write the inner products, or distances, of the points of two clouds, (n, m), by the library."""
    if rooted:
        out[:] = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")
    else:
        torch.mm(x, y.T, out=out)


def _launch_products(
    points: tuple[Any, Any], firsts: Any, out: Any, places: Any, sizes: Any, lanes: range, most: tuple[int, int]
) -> None:
    """Write inner products of some lanes of any sizes; see `kernels.layout.inner_products`. `most`: largest sizes."""
    x, y = points
    launch(
        kernels.inner_products, (-(-most[0] // PRODUCT_TILE) * -(-most[1] // PRODUCT_TILE), len(lanes)),
        x, y, firsts, out, places, sizes, sizes.stride(0), lanes.start, len(sizes), x.shape[-1],
        ROWS=PRODUCT_TILE, COLS=PRODUCT_TILE, DEPTH=DEPTH, num_warps=4, num_stages=3,
    )  # fmt: skip


def cache_products(clouds: Clouds, scaled: ScaledPoints, buffers: Buffers, *, rooted: bool) -> None:
    """Write the cached matrices of lanes, whose points are centred and scaled; those of large lanes block by block."""
    sizes, pairs = clouds.sizes, clouds.sizes.prod(1)
    ends = np.cumsum(pairs)
    places = upload(ends - pairs, torch.int64, scaled.points.device)
    first = 0
    while first < clouds.lanes:
        # As many lanes as scratch memory holds, and one at least.
        stop = max(first + 1, int(np.searchsorted(ends, ends[first] - pairs[first] + SCRATCH_PAIRS, side="right")))
        some = range(first, stop)
        most = int(pairs[first:stop].max())
        if rooted or most > TOGETHER_PAIRS or has_blocks((most, 1), clouds.dim):
            for lane in some:
                _cache_lane(clouds, scaled, buffers, places, lane, rooted=rooted)
        else:
            scratch = scaled.points.new_empty(int(pairs[first:stop].sum()))
            n, m = (int(sizes[first:stop, side].max()) for side in (0, 1))
            _launch_products((scaled.points,) * 2, scaled.firsts, scratch, places, clouds.fields, some, (n, m))
            cache_scores(scratch, places, some, clouds.fields, buffers, scaled, rows=range(n))
        first = stop


def _cache_lane(
    clouds: Clouds, scaled: ScaledPoints, buffers: Buffers, places: Any, lane: int, *, rooted: bool
) -> None:
    """Write the cached matrix of one lane, in blocks of rows."""
    n, m = (int(size) for size in clouds.sizes[lane])
    begins = scaled.numbers[lane], scaled.numbers[clouds.lanes + lane]
    x, y = (scaled.points[begin : begin + size] for begin, size in zip(begins, (n, m), strict=True))
    is_large, step = has_blocks((n, m), clouds.dim), block_rows(n, m)
    for row in range(0, n, step):
        rows = range(row, min(n, row + step))
        scratch = x.new_empty(1, len(rows), m)
        products(x[None, row : rows.stop], y[None], scratch, rooted=rooted)
        cache_scores(
            scratch, places, range(lane, lane + 1), clouds.fields, buffers, None if rooted else scaled, rows=rows,
            is_large=is_large,
        )  # fmt: skip
