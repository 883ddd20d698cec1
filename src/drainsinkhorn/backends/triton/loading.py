"""From problems to numbers on the device: lanes of one shape are laid out and filled as whole tensors."""

# pyright: basic, reportOptionalMemberAccess=false, reportCallIssue=false, reportArgumentType=false
# Kernels are called through Triton, arrays through torch, which is loaded when this backend is.

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from drainsinkhorn.backends.arrays import library, to_numpy
from drainsinkhorn.backends.door import sizes
from drainsinkhorn.backends.starts import FULL_DIM, between, worthwhile
from drainsinkhorn.backends.triton import kernels as k
from drainsinkhorn.backends.triton.arena import Arena, aligned
from drainsinkhorn.backends.triton.tiles import LARGEST, splits
from drainsinkhorn.core.problem import Cost, Potentials, Problem

UNIT = 2.0**-53
FOLDED_BITS = 2.0**15
"""Largest score and start, in bits, with which potentials may enter the product: halves hold no more than 2^16."""
CHUNK, ROWS = 512, 128
"""Rows whose moments one program adds up, and rows whose starts it computes."""
STORED_ROWS, STORED_BLOCK, SCRATCH_PAIRS = 4, 256, 2**25
"""Rows of a program that fills stored matrices, columns it takes at once, and products kept at once."""


@dataclass(frozen=True, slots=True)
class How:
    """How scores of a lane are computed, and with which tiles. A function of the problem alone.

    Attributes:
        kind: DIRECT, ROOT, PRODUCT or STORED of the kernels.
        dp: Coordinates of a chunk, padded.
        chunks: Chunks of coordinates.
        dense: The cost is a matrix.
        rooted: The cost is the root of a squared distance.
        slot: Coordinates of a point where the last is free, so that it can carry the potential; 0 where none is.
        bm: Rows of a tile.
        bn: Columns of a tile.
        warps: Warps of a program.
        stages: Stages of its pipeline.
        least: Blocks of columns that are worth a program.
    """

    kind: int
    dp: int
    chunks: int
    dense: bool
    rooted: bool
    slot: int
    bm: int
    bn: int
    warps: int
    stages: int
    least: int

    def shares(self, size: tuple[int, int]) -> tuple[int, int]:
        """Programs that share a tile of rows, and one of columns."""
        n, m = size
        tile = (self.bm, self.bn, self.warps, self.least)
        return splits(n, m, *tile), splits(m, n, *tile)


@dataclass(eq=False)
class Loaded:
    """Lanes that were laid out together.

    Attributes:
        pieces: Their piece of every arena: start and size.
        table: Their rows of the table.
        size: Rows and columns.
        programs: Programs of a leg of either side.
        band: Rounding of what float64 measures, by lane.
        lanes: How many of them are still there.
    """

    pieces: dict[str, tuple[int, int]]
    table: Any
    size: tuple[int, int]
    programs: tuple[int, int]
    band: Any
    lanes: int = field(default=0)


def same_shape(lanes: Sequence[Any]) -> list[list[Any]]:
    """Lanes grouped by shape, dimension, cost and kind of start, in the order of their first."""
    found: dict[Any, list[Any]] = {}
    for lane in lanes:
        problem = lane.inner
        cost = problem.cost
        kind = (cost.kind, problem.x.shape[1], str(problem.x.dtype)) if isinstance(cost, Cost) else "dense"
        start = "given" if isinstance(problem.init, Potentials) else problem.init
        found.setdefault((sizes(problem), kind, start), []).append(lane)
    return list(found.values())


def on_device(value: Any, device: Any) -> Any:
    """Any array as a torch tensor on the device, copied only if it has to be."""
    kind = library(value)
    if kind == "jax" and device.type == "cuda":
        return torch.from_dlpack(value).to(device)
    if kind != "torch":
        value = torch.from_numpy(np.ascontiguousarray(to_numpy(value)))
    return value.detach().to(device)


def _stacked(values: Sequence[Any], device: Any) -> Any:
    first = values[0]
    if all(value is first for value in values):
        return on_device(first, device).double()[None].expand(len(values), *first.shape)
    if all(library(value) == "numpy" for value in values):
        return torch.from_numpy(np.stack([to_numpy(value) for value in values])).to(device).double()
    return torch.stack([on_device(value, device) for value in values]).double()


def load_group(problems: Sequence[Problem[Any]], how: How, arenas: dict[str, Arena], device: Any) -> Loaded:
    """Take memory for lanes of one shape, fill it, and say where everything is."""
    lanes, (n, m) = len(problems), sizes(problems[0])
    dim = 0 if how.dense else int(problems[0].x.shape[1])
    tiles, pair = [-(-size // 16) for size in (n, m)], 2 * how.dp * how.chunks
    shares, whole = how.shares((n, m)), [-(-size // how.bm) for size in (n, m)]
    fields = {
        "wide": [("POTENTIAL", (n, m)), ("NORM", (n, m)), ("MASS", (n, m)), ("BEFORE", (n,)),
                 ("ERRORS", tiles), ("ALONG", (tiles[0],))],
        "vectors": [("COARSE", (n, m)), ("FINE", (n, m)), ("WEIGHT", (n, m)), ("LOGS", (n, m)),
                    ("PARTIAL", (max(shares[0] * aligned(n), shares[1] * aligned(m)),))],
        "counts": [("COUNTS", (max(whole),)), ("ARRIVED", (1,))],
        "half": [("SPLIT", (n * pair, m * pair))] if how.kind == k.PRODUCT.value else [],
        "single": [("MATRIX", (_matrix(n, m),))] if how.kind == k.STORED.value
        else [("COORDS", (dim * aligned(n), dim * aligned(m)))] if how.kind != k.PRODUCT.value else [],
        "exact": [("EXACT", (n * m,) if how.dense else (dim * n, dim * m))],
    }  # fmt: skip
    table = np.zeros((lanes, k.FIELDS.value), dtype=np.int64)
    views: dict[str, Any] = {}
    pieces: dict[str, tuple[int, int]] = {}
    layout: list[tuple[str, str, int, int, int]] = []
    steps = np.arange(lanes)
    for name, wanted in fields.items():
        total = lanes * sum(aligned(size) for _, parts in wanted for size in parts)
        if total == 0:
            continue
        start = arenas[name].take(total)
        arenas[name].buffer[start : start + total].zero_()
        pieces[name] = (start, total)
        for field_name, parts in wanted:
            for side, size in enumerate(parts):
                column = getattr(k, field_name).value + side
                table[:, column] = start + aligned(size) * steps
                layout.append((name, f"{field_name}{side}", start, aligned(size), size))
                start += aligned(size) * lanes
    for name, key, start, stride, size in layout:
        views[key] = arenas[name].buffer[start : start + stride * lanes].view(lanes, stride)[:, :size]
    table[:, k.SIZES.value], table[:, k.SIZES.value + 1], table[:, k.DIM.value] = n, m, dim
    table[:, k.SPLITS.value], table[:, k.SPLITS.value + 1] = shares
    views["MASS0"][:] = _stacked([p.a for p in problems], device)
    views["MASS1"][:] = _stacked([p.b for p in problems], device)
    eps = torch.tensor([p.eps for p in problems], dtype=torch.float64, device=device)
    bits = 1 / (eps * math.log(2))
    largest = (_fill_dense if how.dense else _fill_points)(problems, how, views, bits, device)
    views["BEFORE0"][:] = views["POTENTIAL0"]
    if how.slot:
        # Potentials stay within a few times the largest score of where they start.
        start = views["POTENTIAL0"].abs().amax(1) + views["POTENTIAL1"].abs().amax(1)
        table[:, k.FOLDED.value] = (start + largest / math.log(2) <= FOLDED_BITS).cpu().numpy()
    # Scores are off by (dim + 24) units of the largest one, potentials by a few; in nats, twice for safety.
    band = 2 * (dim + 40) * UNIT * largest + 8 * UNIT * (n + m)
    programs = (whole[0] * shares[0], whole[1] * shares[1])
    return Loaded(pieces, torch.from_numpy(table), (n, m), programs, torch.where(band.isfinite(), band, math.nan))


def _matrix(rows: int, cols: int) -> int:
    """Numbers of a stored matrix, zeros around it included, so that tiles may be read whole."""
    return -(-rows // LARGEST) * LARGEST * aligned(cols) + LARGEST


def _starts(problems: Sequence[Problem[Any]], views: dict[str, Any], bits: Any, device: Any) -> bool:
    """Write given starts; True if there were any."""
    if not isinstance(problems[0].init, Potentials):
        return False
    for side in (0, 1):
        values = _stacked([p.init[side] for p in problems if isinstance(p.init, Potentials)], device)
        views[f"POTENTIAL{side}"][:] = values * bits[:, None]
    return True


def _fill_dense(problems: Sequence[Problem[Any]], how: How, views: dict[str, Any], bits: Any, device: Any) -> Any:
    n, m = sizes(problems[0])
    scores = _stacked([p.cost for p in problems], device) * bits[:, None, None]
    views["EXACT0"][:] = scores.reshape(len(problems), n * m)
    _starts(problems, views, bits, device)
    views["NORM1"][:] = views["POTENTIAL1"]
    _store(scores.contiguous(), views, slice(None))
    return scores.abs().amax((1, 2)) * math.log(2)


def _store(scores: Any, views: dict[str, Any], lanes: slice, norms: tuple[Any, Any] | None = None) -> None:
    """Absorb the scores of some lanes, or the products from which they are made with norms, into their matrices."""
    count, n, m = scores.shape
    start, mass, base, matrix = (views[key][lanes] for key in ("POTENTIAL1", "MASS1", "NORM0", "MATRIX0"))
    own, other = (scores, scores) if norms is None else norms
    k.absorb[(-(-n // STORED_ROWS), count)](
        scores, own, other, start, mass, base, matrix, n, m, start.stride(0), mass.stride(0), base.stride(0),
        matrix.stride(0), PRODUCTS=norms is not None, ROWS=STORED_ROWS, BLOCK=STORED_BLOCK,
    )  # fmt: skip


def _store_points(x: Any, y: Any, views: dict[str, Any], *, rooted: bool) -> None:
    """Matrices of clouds: products by one call for each lane, since those of a whole stack may be rounded otherwise."""
    lanes, n, _ = x.shape
    m = y.shape[1]
    x, y = x.contiguous(), y.contiguous()
    norms = None if rooted else (_squares(x), _squares(y))
    step = max(1, SCRATCH_PAIRS // (n * m))
    for first in range(0, lanes, step):
        part = slice(first, min(lanes, first + step))
        scratch = torch.empty((part.stop - first, n, m), dtype=torch.float64, device=x.device)
        for out, lane in zip(scratch, range(first, part.stop), strict=True):
            if rooted:
                out[:] = torch.cdist(x[lane], y[lane], compute_mode="donot_use_mm_for_euclid_dist")
            else:
                torch.mm(x[lane], y[lane].T, out=out)
        _store(scratch, views, part, None if norms is None else (norms[0][part], norms[1][part]))


def _squares(points: Any) -> Any:
    lanes, size, dim = points.shape
    found = torch.empty((lanes, size), dtype=torch.float64, device=points.device)
    k.squares[(-(-size // 16), lanes)](points, found, size, dim, ROWS=16, BLOCK=64)
    return found


def _fill_points(problems: Sequence[Problem[Any]], how: How, views: dict[str, Any], bits: Any, device: Any) -> Any:
    """Coordinates centred and scaled so that minus their squared distance (or its root) is the score in bits."""
    cost = problems[0].cost
    assert isinstance(cost, Cost)
    x, y = _stacked([p.x for p in problems], device), _stacked([p.y for p in problems], device)
    factor = bits * torch.tensor([p.cost.scale for p in problems], dtype=torch.float64, device=device)  # type: ignore[union-attr]
    if not _starts(problems, views, bits, device) and problems[0].init != "zero":
        found = gaussian(x, y, views["MASS0"], views["MASS1"], factor)
        if problems[0].init == "auto":
            found[~worthwhile(found * math.log(2), views["MASS1"])] = 0.0
        views["POTENTIAL1"][:] = found
    if cost.kind == "cosine":
        x, y, factor = _unit_rows(x), _unit_rows(y), factor / 2
    low = torch.minimum(x.amin(1), y.amin(1))
    high = torch.maximum(x.amax(1), y.amax(1))
    middle = (low / 2 + high / 2)[:, None, :]
    scale = (factor if how.rooted else factor.sqrt())[:, None, None]
    x, y = (x - middle) * scale, (y - middle) * scale
    # A bound on all distances: the diagonal of the box.
    far = torch.linalg.vector_norm((high - low).cpu(), dim=1).to(device) * scale[:, 0, 0]
    for side, points in enumerate((x, y)):
        views[f"EXACT{side}"].unflatten(1, points.shape[:0:-1])[:] = points.swapaxes(1, 2)
    if how.kind == k.STORED.value:
        views["NORM1"][:] = views["POTENTIAL1"]
        _store_points(x, y, views, rooted=how.rooted)
    elif how.kind == k.PRODUCT.value:
        # -|x - y|^2 = 2 x.y - |x|^2 - |y|^2, of the points as float16 pairs hold them.
        for side, points in enumerate((x * math.sqrt(2), y * math.sqrt(2))):
            padded = torch.nn.functional.pad(points, (0, how.dp * how.chunks - points.shape[2]))
            high_part = padded.to(torch.float16)
            low_part = (padded - high_part.double()).to(torch.float16)
            both = torch.stack([high_part, low_part], dim=2).unflatten(3, (how.chunks, how.dp)).swapaxes(2, 3)
            views[f"SPLIT{side}"][:] = both.flatten(1)
            held = high_part.double() + low_part.double()
            # Coordinate by coordinate: torch may add up a stack in another order than one cloud.
            norm = held[:, :, 0].square()
            for coordinate in range(1, points.shape[2]):
                norm = norm + held[:, :, coordinate].square()
            views[f"NORM{side}"][:] = norm / 2
    else:
        for side, points in enumerate((x, y)):
            lanes, size, dim = points.shape
            views[f"COORDS{side}"].view(lanes, dim, aligned(size))[:, :, :size] = points.swapaxes(1, 2).float()
    largest = far if how.rooted else far.square()
    return largest * math.log(2)


def _unit_rows(x: Any) -> Any:
    x = x / x.abs().amax(2, keepdim=True)
    norm = x[:, :, 0].square()
    for coordinate in range(1, x.shape[2]):
        norm = norm + x[:, :, coordinate].square()
    return x / norm.sqrt()[:, :, None]


def gaussian(x: Any, y: Any, a: Any, b: Any, factor: Any) -> Any:
    """Gaussian starts of g in bits; the formula is that of `backends.starts`. Zero where it is not finite."""
    full = x.shape[2] <= FULL_DIM
    means, spreads = zip(*(_moments(points, weights, full) for points, weights in ((x, a), (y, b))), strict=True)
    # The matrices are small: what is made of them is made on the host.
    found = between(means[0], spreads[0], means[1], spreads[1], (1 / factor).cpu().numpy())
    mean, matrix, slope = (torch.from_numpy(np.ascontiguousarray(part)).to(x.device) for part in found)
    y = y.swapaxes(1, 2).contiguous()
    lanes, dim, size = y.shape
    start = torch.zeros((lanes, size), dtype=torch.float64, device=y.device)
    grid = (-(-size // ROWS), lanes)
    k.quadratic[grid](y, mean, matrix, slope, start, size, dim, FULL=full, ROWS=ROWS)
    finite = start.isfinite().all(1, keepdim=True)
    return torch.where(finite, start, torch.zeros_like(start))


def _moments(points: Any, weights: Any, full: bool) -> tuple[Any, Any]:
    """Means (L, d) and covariances (L, d, d), or variances (L, d), of clouds, as NumPy arrays."""
    lanes, size, dim = points.shape
    middle = (points.amin(1) / 2 + points.amax(1) / 2)[:, None, :]
    around = (points - middle).contiguous()
    weights = weights.contiguous()
    padded = max(2, 1 << (dim - 1).bit_length())
    chunks = -(-size // CHUNK)
    kept = padded + 1 if full else 2
    parts = torch.zeros((lanes, chunks, kept, padded), dtype=torch.float64, device=points.device)
    k.moments[(chunks, lanes)](
        around, weights, parts, size, dim, dim, size * dim, size, CHUNK=CHUNK, DP=padded, FULL=full
    )
    total = parts[:, 0]
    for chunk in range(1, chunks):
        total = total + parts[:, chunk]
    found, middle = total.cpu().numpy(), middle[:, 0].cpu().numpy()
    mean = found[:, 0, :dim]
    if full:
        spread = found[:, 1 : dim + 1, :dim] - mean[:, :, None] * mean[:, None, :]
    else:
        spread = np.maximum(found[:, 1, :dim] - mean**2, 0.0)
    return mean + middle, spread
