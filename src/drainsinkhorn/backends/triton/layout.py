"""Clouds on their way into a pack: a stack of them is framed, started and placed by a few launches."""

# pyright: basic, reportOptionalMemberAccess=false, reportCallIssue=false, reportArgumentType=false
# Kernels are called through Triton, arrays through torch, which is loaded when this backend is.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from drainsinkhorn.backends.triton import kernels as k
from drainsinkhorn.backends.triton import layout_kernels as lay
from drainsinkhorn.backends.triton.launching import launch
from drainsinkhorn.numerics.arrays import library, to_numpy
from drainsinkhorn.numerics.starts import FULL_DIM

CHUNK, CHUNKS = 128, 128
"""Rows of a cloud that one program looks at, at least, and programs that share a cloud, at most."""
BOX_ROWS, BOX_BLOCK, ADDED, JUDGED = 16, 64, 256, 1024
"""Rows and coordinates of a tile of a cloud, sums that a program adds up, starts that it looks at together."""
DEPTH, SUMMED = 16, 8192
"""Columns of a matrix that a product takes at once, and coordinates of a tile of a cloud whose squares are summed."""
MOST_LANES = 2**16 - 1
"""Lanes of a launch: CUDA's grids have no more programs along their second number."""
TOGETHER_PAIRS, PRODUCT_TILE = 2**21, 64
"""Pairs of a lane up to which one launch makes the products of all lanes, and rows and columns of a program of it."""
STORED_ROWS, STORED_BLOCK, SCRATCH_PAIRS = 4, 256, 2**25
"""Rows of a program that fills stored matrices, columns it takes at once, and products kept at once."""


def on_device(value: Any, device: Any) -> Any:
    """Any array as a torch tensor on the device, copied only if it has to be."""
    kind = library(value)
    if kind == "jax" and device.type == "cuda":
        return torch.from_dlpack(value).to(device)
    if kind != "torch":
        value = np.ascontiguousarray(_native(to_numpy(value)))
        # To NumPy an array is contiguous whatever the stride of an axis of length 1; torch rejects negative strides.
        # Torch also warns of read-only arrays, although nothing here writes to them.
        taken = value.flags.writeable and min(value.strides, default=0) >= 0
        value = torch.from_numpy(value if taken else value.copy())
    return value.detach().to(device)


def _native(array: Any) -> Any:
    """In a dtype that torch knows: it has neither long doubles nor the other order of bytes. The door lets both in."""
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        return array.astype(np.float64)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def together(first: Any, second: Any) -> Any:
    """Two stacks as one of twice the lanes, where the second lies behind the first and a launch takes both; or None."""
    distance = len(first) * first.stride(0) * first.element_size()
    alike = first.shape == second.shape and first.stride() == second.stride() and first.dtype == second.dtype
    if not alike or second.data_ptr() - first.data_ptr() != distance or 2 * len(first) > MOST_LANES:
        return None
    if second.untyped_storage().data_ptr() != first.untyped_storage().data_ptr():
        return None
    return first.as_strided((2 * len(first), *first.shape[1:]), first.stride())


def clouds(xs: Sequence[Any], ys: Sequence[Any], device: Any) -> tuple[Any, Any]:
    """Both clouds of lanes as stacks, one behind the other where they are of one kind."""
    kinds = {(tuple(value.shape), value.dtype) for value in (*xs, *ys)}
    shared = len(xs) > 1 and (xs[0] is xs[1] or ys[0] is ys[1])
    # What begins in the middle of such a stack begins well.
    if len(kinds) > 1 or shared or len(xs) * len(xs[0]) % 4:
        return stack(xs, device), stack(ys, device)
    both = stack([*xs, *ys], device)
    return both[: len(xs)], both[len(xs) :]


def stack(values: Sequence[Any], device: Any) -> Any:
    """Arrays of one shape as one tensor of float32 or float64; one that all share is there once."""
    first = values[0]
    if all(value is first for value in values):
        found = on_device(first, device)[None].contiguous().expand(len(values), *first.shape)
    elif all(library(value) == "numpy" for value in values):
        # NumPy would stack arrays that lie column by column as such a stack; kernels want row after row.
        stacked = np.ascontiguousarray(np.stack([to_numpy(value) for value in values]))
        found = torch.from_numpy(_native(stacked)).to(device)
    else:
        # One by one: torch would stack integers and float32 as float32, which does not hold them all.
        found = torch.stack([_floats(on_device(value, device)) for value in values])
    return _floats(found)


def _floats(found: Any) -> Any:
    return found if found.dtype in (torch.float32, torch.float64) else found.double()


def unit_rows(x: Any) -> Any:
    """Rows scaled to length one; first by their largest entry, so that squares neither overflow nor vanish."""
    x = x.double() / x.abs().amax(2, keepdim=True)
    # Coordinate by coordinate: torch may add up a stack in another order than one cloud.
    norm = x[:, :, 0].square()
    for coordinate in range(1, x.shape[2]):
        norm = norm + x[:, :, coordinate].square()
    return (x / norm.sqrt()[:, :, None]).contiguous()


def _chunks(size: int) -> tuple[int, int]:
    """Rows of a chunk, and chunks: functions of the cloud alone, since sums are made chunk by chunk."""
    rows = max(CHUNK, -(-size // CHUNKS))
    return rows, -(-size // rows)


def framed(x: Any, y: Any, scales: Any) -> tuple[Any, Any]:
    """Middles of the boxes around both clouds and around each, (lanes, 3, dim); scaled diagonals of the first."""
    lanes, _, dim = x.shape
    boxes, counts, both = [], [], together(x, y)
    for points in (x, y) if both is None else (both,):
        rows, chunks = _chunks(points.shape[1])
        found = torch.empty((len(points), chunks, 2, dim), dtype=torch.float64, device=x.device)
        launch(
            lay.bounds, (chunks, len(points), -(-dim // BOX_BLOCK)),
            points, found, points.shape[1], dim, rows, points.stride(0), ROWS=BOX_ROWS, BLOCK=BOX_BLOCK,
        )  # fmt: skip
        boxes += found.split(lanes)
        counts += [chunks] * (len(points) // lanes)
    middles = torch.empty((lanes, 3, dim), dtype=torch.float64, device=x.device)
    far = torch.empty(lanes, dtype=torch.float64, device=x.device)
    launch(lay.frame, (lanes,), *boxes, scales, middles, far, *counts, dim, BLOCK=BOX_BLOCK)
    return middles, far


def gaussian(x: Any, y: Any, a: Any, b: Any, middles: Any, factors: Any, starts: Any, *, always: bool) -> None:
    """Write Gaussian starts of g in bits; zero where they are not finite and, unless `always`, where not worth it."""
    lanes, size, dim = y.shape
    full, device = dim <= FULL_DIM, y.device
    padded = max(16, 1 << (dim - 1).bit_length())
    count = (padded + 1 if full else 2) * padded
    # Tiles such that nothing has to leave registers.
    tile, warps = (min(32, 1024 // padded), max(4, padded // 8)) if full else (min(16, max(1, SUMMED // padded)), 16)
    sums, both, masses = [], together(x, y), together(a, b)
    sides = ((x, a), (y, b)) if both is None or masses is None else ((both, masses),)
    for side, (points, weights) in enumerate(sides):
        rows, chunks = _chunks(points.shape[1])
        parts = torch.empty((len(points), chunks, count), dtype=torch.float64, device=device)
        launch(
            lay.moments, (chunks, len(points)),
            points, weights, middles, parts, side, lanes, points.shape[1], dim, rows, points.stride(0),
            weights.stride(0), DP=padded, FULL=full, ROWS=tile, num_warps=warps,
        )  # fmt: skip
        found = torch.empty((len(points), count), dtype=torch.float64, device=device)
        launch(lay.added, (-(-count // ADDED), len(points)), parts, found, chunks, count, ROWS=8, BLOCK=ADDED)
        sums += found.split(lanes)
    mean, slope = (torch.empty((lanes, dim), dtype=torch.float64, device=device) for _ in range(2))
    matrix = torch.empty((lanes, dim, dim) if full else (lanes, dim), dtype=torch.float64, device=device)
    scratch = torch.empty((lanes, 4 * padded * padded if full else 1), dtype=torch.float64, device=device)
    launch(
        lay.transports, (lanes,),
        *sums, middles, factors, scratch, mean, matrix, slope, dim, DP=padded, FULL=full, DEPTH=DEPTH,
        num_warps=padded // 8 if full else 4,
    )  # fmt: skip
    rows = max(32, 1024 // padded) if full else 4
    launch(
        lay.quadratic, (-(-size // rows), lanes),
        y, mean, matrix, slope, starts, size, dim, y.stride(0), starts.stride(0),
        FULL=full, ROWS=rows, DP=padded if full else 256, num_stages=1,
    )  # fmt: skip
    launch(lay.judged, (lanes,), starts, b, size, starts.stride(0), b.stride(0), ALWAYS=always, BLOCK=JUDGED)


def placed(
    x: Any, y: Any, middles: Any, scales: Any, how: Any, views: Mapping[str, Any]
) -> tuple[list[Any], list[Any]]:
    """Write clouds where legs read them; of stored scores the scaled clouds and their squared norms are returned."""
    both = together(x, y)
    found, norms = list[Any](), list[Any]()
    for side, points in enumerate((x, y) if both is None else (both,)):
        # Fields of one side, or of both.
        out, squares = _placed(points, side, len(x), middles, scales, how, views, str(side) if both is None else "")
        if how.kind == k.STORED.value:
            found += out.view(points.shape).split(len(x))
            norms += squares.split(len(x))
    return found, norms


def _placed(
    points: Any, side: int, lanes: int, middles: Any, scales: Any, how: Any, views: Mapping[str, Any], which: str
) -> tuple[Any, Any]:
    """Write clouds of so many lanes, of this side and perhaps of the next, to their fields, which have this suffix."""
    count, size, dim = points.shape
    exact = views[f"EXACT{which}"]
    # What a kind of scores does not have is not written; a kernel wants a pointer all the same.
    half = views.get(f"SPLIT{which}", exact)
    if how.kind == k.STORED.value:
        out, norms = exact.new_empty(count, size * dim), exact.new_empty(count, size)
    else:
        out, norms = views.get(f"COORDS{which}", exact), views[f"NORM{which}"]
    rows, block = (32, 16) if dim <= 16 else (16, 64)
    launch(
        lay.place, (-(-size // rows), count),
        points, middles, scales, exact, out, half, norms, side, lanes, size, dim, points.stride(0), exact.stride(0),
        out.stride(0), half.stride(0), norms.stride(0),
        KIND=how.kind, SLOT=how.slot, WIDTH=how.dp, ROWS=rows, BLOCK=block,
    )  # fmt: skip
    return out, norms


def extents(far: Any, dim: int, views: Mapping[str, Any], *, rooted: bool) -> Any:
    """(5, lanes): rounding of what float64 measures, largest norms of rows and of columns, and largest starts of both.

    The first also goes to where lanes read it. What bounds the scores of a lane is `far`; its square, unless `rooted`.
    """
    fields = [views[name] for name in ("NOISE0", "NORM0", "NORM1", "POTENTIAL0", "POTENTIAL1")]
    found = torch.empty((5, len(far)), dtype=torch.float64, device=far.device)
    sizes, strides = [field.shape[1] for field in fields[3:]], [field.stride(0) for field in fields]
    launch(
        lay.extents, (len(far),),
        far, *fields, found, dim, *sizes, *strides, ROOTED=rooted, BLOCK=JUDGED, num_warps=8,
    )  # fmt: skip
    return found


def absorbed(scores: Any, views: Mapping[str, Any], lanes: slice, norms: tuple[Any, Any] | None = None) -> None:
    """Absorb the scores of some lanes, or the products from which they are made with norms, into their matrices."""
    count, n, m = scores.shape
    start, mass, base, matrix = (views[key][lanes] for key in ("POTENTIAL1", "MASS1", "NORM0", "MATRIX0"))
    own, other = (scores, scores) if norms is None else norms
    launch(
        lay.absorb, (-(-n // STORED_ROWS), count),
        scores, own, other, start, mass, base, matrix, n, m, start.stride(0), mass.stride(0), base.stride(0),
        matrix.stride(0), PRODUCTS=norms is not None, ROWS=STORED_ROWS, BLOCK=STORED_BLOCK,
    )  # fmt: skip


def products(x: Any, y: Any, out: Any, *, rooted: bool) -> None:
    """Products of the points of two clouds of every lane, (lanes, n, m); distances, if `rooted`.

    A library's product of a whole stack may be rounded otherwise than that of one lane. So small lanes have a kernel of
    their own, and large ones, of which each fills the device, a call each.
    """
    (lanes, n, dim), m = x.shape, y.shape[1]
    if not rooted and n * m <= TOGETHER_PAIRS:
        launch(
            lay.products, (-(-n // PRODUCT_TILE) * -(-m // PRODUCT_TILE), lanes),
            x, y, out, n, m, dim, x.stride(0), y.stride(0), out.stride(0),
            ROWS=PRODUCT_TILE, COLS=PRODUCT_TILE, DEPTH=DEPTH, num_warps=4, num_stages=3,
        )  # fmt: skip
        return
    for own, other, found in zip(x, y, out, strict=True):
        if rooted:
            found[:] = torch.cdist(own, other, compute_mode="donot_use_mm_for_euclid_dist")
        else:
            torch.mm(own, other.T, out=found)


def stored(x: Any, y: Any, norms: tuple[Any, Any], views: Mapping[str, Any], *, rooted: bool) -> None:
    """Matrices of clouds."""
    lanes, n, m = len(x), x.shape[1], y.shape[1]
    step = max(1, SCRATCH_PAIRS // (n * m))
    for first in range(0, lanes, step):
        part = slice(first, min(lanes, first + step))
        scratch = torch.empty((part.stop - first, n, m), dtype=torch.float64, device=x.device)
        products(x[part], y[part], scratch, rooted=rooted)
        absorbed(scratch, views, part, None if rooted else (norms[0][part], norms[1][part]))
