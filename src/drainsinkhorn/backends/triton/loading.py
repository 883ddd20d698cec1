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

from drainsinkhorn.backends.door import sizes
from drainsinkhorn.backends.triton import kernels as k
from drainsinkhorn.backends.triton.arena import Arena, aligned
from drainsinkhorn.backends.triton.layout import absorbed, framed, gaussian, placed, stack, stored, unit_rows
from drainsinkhorn.backends.triton.tiles import LARGEST, options, splits
from drainsinkhorn.core.problem import Cost, Potentials, Problem

UNIT = 2.0**-53
NARROW = {k.DIRECT.value: 16, k.ROOT.value: 16, k.PRODUCT.value: 32, k.STORED.value: 32, k.PACK.value: 32}
"""Columns of a tile where the largest term is taken out: few, so that registers stay free, by kind of scores."""
DIRECT_COLUMNS = 64
"""Columns of a tile of direct differences where other lanes of the pack take one product."""
FOLDED_BITS = 2.0**15
"""Largest score and start, in bits, with which potentials may enter the product: halves hold no more than 2^16."""
BLUR, MOST_BLUR = 1.4e-4, 1.0
"""Bits by which leading halves blur a score, over the largest score by the root of the coordinates; and too many."""


@dataclass(frozen=True, slots=True)
class How:
    """How scores of a lane are computed, and with which tiles. A function of the problem alone.

    Attributes:
        kind: DIRECT, ROOT, PRODUCT or STORED of the kernels.
        dp: Coordinates of a chunk, padded.
        chunks: Chunks of coordinates.
        dense: The cost is a matrix.
        rooted: The cost is the root of a squared distance.
        slot: Coordinates of a point with places for the potential; 0 where there are none.
        leads: Leading halves alone make scores as long as the residual is large.
        bm: Rows of a tile.
        bn: Columns of a tile.
        warps: Warps of a program.
        stages: Stages of its pipeline.
        least: Blocks of columns that are worth a program.
        registers: What a thread may have of them; 0 leaves that to the compiler.
    """

    kind: int
    dp: int
    chunks: int
    dense: bool
    rooted: bool
    slot: int
    leads: bool
    bm: int
    bn: int
    warps: int
    stages: int
    least: int
    registers: int

    @property
    def program(self) -> dict[str, int]:
        """Options of a launch."""
        return options(self.warps, self.stages, self.registers)

    @property
    def packed(self) -> bool:
        """True if coordinates are so few that a product of sixteen holds them and both potentials."""
        return self.kind == k.DIRECT.value and self.slot > 0

    def scores(self, folded: bool) -> dict[str, int]:
        """What tells a leg how to compute scores, with potentials in the product or not."""
        kind, dp, bn = self.kind, self.dp, self.bn
        if self.packed:
            kind, dp, bn = (k.PACK.value, 16, bn) if folded else (kind, dp, min(bn, DIRECT_COLUMNS))
        narrow = min(NARROW[kind], bn)
        return {"KIND": kind, "DP": dp, "CHUNKS": self.chunks, "BM": self.bm, "BN": bn, "NARROW": narrow}

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
        blur: The residual that leading halves leave where rounding errors of points average out, by lane; NaN where
            they are not to be taken.
        lanes: How many of them are still there.
    """

    pieces: dict[str, tuple[int, int]]
    table: Any
    size: tuple[int, int]
    programs: tuple[int, int]
    band: Any
    blur: Any
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


def load_group(problems: Sequence[Problem[Any]], how: How, arenas: dict[str, Arena], device: Any) -> Loaded:
    """Take memory for lanes of one shape, fill it, and say where everything is."""
    lanes, (n, m) = len(problems), sizes(problems[0])
    dim = 0 if how.dense else int(problems[0].x.shape[1])
    tiles, pair = [-(-size // 16) for size in (n, m)], how.slot if how.packed else 2 * how.dp * how.chunks
    shares, whole = how.shares((n, m)), [-(-size // how.bm) for size in (n, m)]
    fields = {
        "wide": [("POTENTIAL", (n, m)), ("NORM", (n, m)), ("MASS", (n, m)), ("BEFORE", (n,)),
                 ("ERRORS", tiles), ("ALONG", (tiles[0],))],
        "vectors": [("COARSE", (n, m)), ("FINE", (n, m)), ("WEIGHT", (n, m)), ("LOGS", (n, m)),
                    ("PARTIAL", (max(shares[0] * aligned(n), shares[1] * aligned(m)),))],
        "counts": [("COUNTS", (max(whole),)), ("ARRIVED", (1,))],
        "half": [("SPLIT", (n * pair, m * pair))] if how.kind == k.PRODUCT.value or how.packed else [],
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
    views["MASS0"][:] = stack([p.a for p in problems], device)
    views["MASS1"][:] = stack([p.b for p in problems], device)
    bits = torch.from_numpy(np.array([1 / (p.eps * math.log(2)) for p in problems])).to(device)
    largest = (_fill_dense if how.dense else _fill_points)(problems, how, views, bits, device)
    # Potentials stay within a few times the largest score of where they start.
    reach = starts = largest
    if how.slot or how.leads:
        reach = (views["NORM0"].amax(1).sqrt() + views["NORM1"].amax(1).sqrt()).square()
        starts = views["POTENTIAL0"].abs().amax(1) + views["POTENTIAL1"].abs().amax(1)
    largest, reach, starts = torch.stack([largest, reach, starts]).cpu().numpy()
    if how.slot:
        table[:, k.FOLDED.value] = starts + reach <= FOLDED_BITS
    # Scores are off by (dim + 24) units of the largest one, potentials by a few; in nats, twice for safety.
    band = 2 * (dim + 40) * UNIT * math.log(2) * largest + 8 * UNIT * (n + m)
    programs = (whole[0] * shares[0], whole[1] * shares[1])
    blur = BLUR * reach / math.sqrt(max(dim, 1))
    led = how.leads & (blur <= MOST_BLUR) & (starts + reach <= FOLDED_BITS)
    blur = np.where(led, blur * math.log(2) / math.sqrt(min(n, m)), math.nan)
    return Loaded(pieces, table, (n, m), programs, np.where(np.isfinite(band), band, math.nan), blur)


def _matrix(rows: int, cols: int) -> int:
    """Numbers of a stored matrix, zeros around it included, so that tiles may be read whole."""
    return -(-rows // LARGEST) * LARGEST * aligned(cols) + LARGEST


def _starts(problems: Sequence[Problem[Any]], views: dict[str, Any], bits: Any, device: Any) -> bool:
    """Write given starts; True if there were any."""
    if not isinstance(problems[0].init, Potentials):
        return False
    for side in (0, 1):
        values = stack([p.init[side] for p in problems if isinstance(p.init, Potentials)], device)
        views[f"POTENTIAL{side}"][:] = values.double() * bits[:, None]
    views["BEFORE0"][:] = views["POTENTIAL0"]
    return True


def _fill_dense(problems: Sequence[Problem[Any]], how: How, views: dict[str, Any], bits: Any, device: Any) -> Any:
    n, m = sizes(problems[0])
    scores = stack([p.cost for p in problems], device).double() * bits[:, None, None]
    views["EXACT0"][:] = scores.reshape(len(problems), n * m)
    _starts(problems, views, bits, device)
    views["NORM1"][:] = views["POTENTIAL1"]
    absorbed(scores.contiguous(), views, slice(None))
    return scores.abs().amax((1, 2))


def _fill_points(problems: Sequence[Problem[Any]], how: How, views: dict[str, Any], bits: Any, device: Any) -> Any:
    """Coordinates centred and scaled so that minus their squared distance (or its root) is the score in bits."""
    cost = problems[0].cost
    assert isinstance(cost, Cost)
    x, y = stack([p.x for p in problems], device), stack([p.y for p in problems], device)
    factor = np.array([p.cost.scale / (p.eps * math.log(2)) for p in problems])  # type: ignore[union-attr]
    if cost.kind == "cosine":
        x, y, factor = unit_rows(x), unit_rows(y), factor / 2
    factors = torch.from_numpy(factor).to(device)
    scales = factors if how.rooted else factors.sqrt()
    middles, far = framed(x, y, scales)
    if not _starts(problems, views, bits, device) and problems[0].init != "zero":
        always = problems[0].init != "auto"
        gaussian(x, y, views["MASS0"], views["MASS1"], middles, factors, views["POTENTIAL1"], always=always)
    clouds, norms = zip(*(placed(p, middles, scales, side, how, views) for side, p in enumerate((x, y))), strict=True)
    if how.kind == k.STORED.value:
        views["NORM1"][:] = views["POTENTIAL1"]
        stored(*clouds, norms, views, rooted=how.rooted)
    # A bound on all scores: the diagonal of the box.
    return far if how.rooted else far.square()
