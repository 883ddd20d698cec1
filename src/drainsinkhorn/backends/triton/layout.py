"""Clouds on their way into a pack: a stack of them is framed, started and placed by a few launches."""

# pyright: basic, reportOptionalMemberAccess=false, reportCallIssue=false, reportArgumentType=false
# Kernels are called through Triton, arrays through torch, which is loaded when this backend is.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from drainsinkhorn.backends.arrays import library, to_numpy
from drainsinkhorn.backends.starts import FULL_DIM
from drainsinkhorn.backends.triton import kernels as k
from drainsinkhorn.backends.triton import layout_kernels as lay
from drainsinkhorn.backends.triton.launching import launch

CHUNK, CHUNKS = 128, 128
"""Rows of a cloud that one program looks at, at least, and programs that share a cloud, at most."""
BOX_ROWS, BOX_BLOCK, ADDED, JUDGED = 16, 64, 256, 1024
"""Rows and coordinates of a tile of a cloud, sums that a program adds up, starts that it looks at together."""
DEPTH, SUMMED = 16, 8192
"""Columns of a matrix that a product takes at once, and coordinates of a tile of a cloud whose squares are summed."""
STORED_ROWS, STORED_BLOCK, SCRATCH_PAIRS = 4, 256, 2**25
"""Rows of a program that fills stored matrices, columns it takes at once, and products kept at once."""


def on_device(value: Any, device: Any) -> Any:
    """Any array as a torch tensor on the device, copied only if it has to be."""
    kind = library(value)
    if kind == "jax" and device.type == "cuda":
        return torch.from_dlpack(value).to(device)
    if kind != "torch":
        value = torch.from_numpy(np.ascontiguousarray(_native(to_numpy(value))))
    return value.detach().to(device)


def _native(array: Any) -> Any:
    """In a dtype that torch knows: it has neither long doubles nor the other order of bytes. The door lets both in."""
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        return array.astype(np.float64)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def stack(values: Sequence[Any], device: Any) -> Any:
    """Arrays of one shape as one tensor of float32 or float64; one that all share is there once."""
    first = values[0]
    if all(value is first for value in values):
        found = on_device(first, device)[None].contiguous().expand(len(values), *first.shape)
    elif all(library(value) == "numpy" for value in values):
        found = torch.from_numpy(_native(np.stack([to_numpy(value) for value in values]))).to(device)
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
    boxes, counts = [], []
    for points in (x, y):
        rows, chunks = _chunks(points.shape[1])
        boxes.append(torch.empty((lanes, chunks, 2, dim), dtype=torch.float64, device=x.device))
        counts.append(chunks)
        launch(
            lay.bounds, (chunks, lanes, -(-dim // BOX_BLOCK)),
            points, boxes[-1], points.shape[1], dim, rows, points.stride(0), ROWS=BOX_ROWS, BLOCK=BOX_BLOCK,
        )  # fmt: skip
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
    sums = []
    for side, (points, weights) in enumerate(((x, a), (y, b))):
        rows, chunks = _chunks(points.shape[1])
        parts = torch.empty((lanes, chunks, count), dtype=torch.float64, device=device)
        launch(
            lay.moments, (chunks, lanes),
            points, weights, middles, parts, points.shape[1], dim, rows, points.stride(0), weights.stride(0),
            SIDE=side, DP=padded, FULL=full, ROWS=tile, num_warps=warps,
        )  # fmt: skip
        sums.append(torch.empty((lanes, count), dtype=torch.float64, device=device))
        launch(lay.added, (-(-count // ADDED), lanes), parts, sums[-1], chunks, count, ROWS=8, BLOCK=ADDED)
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


def placed(points: Any, middles: Any, scales: Any, side: int, how: Any, views: Mapping[str, Any]) -> tuple[Any, Any]:
    """Write a cloud where legs read it; of stored scores the scaled cloud and its squared norms are returned."""
    lanes, size, dim = points.shape
    exact = views[f"EXACT{side}"]
    # What a kind of scores does not have is not written; a kernel wants a pointer all the same.
    half = views.get(f"SPLIT{side}", exact)
    if how.kind == k.STORED.value:
        out, norms = exact.new_empty(lanes, size * dim), exact.new_empty(lanes, size)
    else:
        out, norms = views.get(f"COORDS{side}", exact), views[f"NORM{side}"]
    rows, block = (32, 16) if dim <= 16 else (16, 64)
    launch(
        lay.place, (-(-size // rows), lanes),
        points, middles, scales, exact, out, half, norms, size, dim, points.stride(0), exact.stride(0), out.stride(0),
        half.stride(0), norms.stride(0), KIND=how.kind, SLOT=how.slot, SIDE=side, WIDTH=how.dp, ROWS=rows, BLOCK=block,
    )  # fmt: skip
    return out.view(lanes, size, dim) if how.kind == k.STORED.value else out, norms


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


def product(x: Any, y: Any, out: Any, *, rooted: bool) -> None:
    """Products of the points of two clouds; distances, if `rooted`."""
    if rooted:
        out[:] = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")
    else:
        torch.mm(x, y.T, out=out)


def stored(x: Any, y: Any, norms: tuple[Any, Any], views: Mapping[str, Any], *, rooted: bool) -> None:
    """Matrices of clouds: products by one call for each lane, since those of a whole stack may be rounded otherwise."""
    lanes, n, m = len(x), x.shape[1], y.shape[1]
    step = max(1, SCRATCH_PAIRS // (n * m))
    for first in range(0, lanes, step):
        part = slice(first, min(lanes, first + step))
        scratch = torch.empty((part.stop - first, n, m), dtype=torch.float64, device=x.device)
        for out, lane in zip(scratch, range(first, part.stop), strict=True):
            product(x[lane], y[lane], out, rooted=rooted)
        absorbed(scratch, views, part, None if rooted else (norms[0][part], norms[1][part]))
