"""Finished plans of similar size, stacked and padded on the device, and the launches that consume them."""

# pyright: basic, reportAttributeAccessIssue=false, reportCallIssue=false, reportArgumentType=false
# pyright: reportIndexIssue=false, reportOptionalMemberAccess=false
# Kernels are called through Triton, arrays through torch, which is loaded when this backend is.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from drainsinkhorn.backends.triton.kernels import columns as c
from drainsinkhorn.backends.triton.kernels import plan as kernels
from drainsinkhorn.backends.triton.kernels.layout import split_values
from drainsinkhorn.backends.triton.matrices import PART_PAIRS, SLAB_PAIRS, Matrices
from drainsinkhorn.backends.triton.plan_blocks import averages, centred
from drainsinkhorn.backends.triton.precision import has_blocks
from drainsinkhorn.backends.triton.representation import Representation
from drainsinkhorn.backends.triton.tiles import LARGEST, PRODUCT, consumer_tile, options

BM64, BN64, CP64, WARPS64 = 16, 32, 4, 4
"""Rows, columns, channels and warps of a tile in float64."""
LISTED_BN = 256
"""Columns of a tile of one listed row."""
PROBE_STAGES = 4
"""Stages of a probe."""
ACCURACY, PROBES = 1e-5, 32
"""Largest error of probed rows of a lane that is consumed in float32, and how many rows are probed."""
SPLIT_ROWS = 128
"""Rows of values that one program splits."""


def is_inside(form: Representation) -> bool:
    """Return whether potentials of the other side are inside the product; with the widest points that saves no time."""
    return form.kind == PRODUCT and 0 < form.places < c.ROOMY.value


@dataclass(frozen=True)
class Stack:
    """Lanes of one kind of scores, padded to one size. Pairs are (rows, columns).

    Attributes:
        lanes: Their places among the problems.
        form: How scores are computed; None for a dense cost.
        float64: Consumed in float64.
        rooted: The cost is the root of a squared distance.
        shapes: True sizes on the host.
        sizes: The same on the device, (L, 2).
        pads: Padded sizes.
        clouds: Points as the caller has them, (L, size, dim), or the caller's matrix twice.
        factors: From squared distances, distances, or entries of the matrix, to bits; (L,).
        inaccurate: Not zero for lanes that float16 cannot hold, (L,).
        soft: True for lanes with a soft marginal, (L,).
        points: Coordinates as float32 kernels read them, (L, ...); float16 parts or float32.
        vectors32: Vectors of a side that float32 kernels read, (VECTORS, L, pad); see `kernels.columns`.
        vectors64: Potentials in bits and masses, (2, L, pad).
        matrices: Cached exponents in place of points, or None.
    """

    lanes: list[int]
    form: Representation | None
    float64: bool
    rooted: bool
    shapes: list[tuple[int, int]]
    sizes: Any
    pads: tuple[int, int]
    clouds: tuple[Any, Any]
    factors: Any
    inaccurate: Any
    soft: Any
    points: tuple[Any, Any]
    vectors32: tuple[Any, Any]
    vectors64: tuple[Any, Any]
    matrices: Matrices | None = None

    @property
    def dense(self) -> bool:
        """True if the cost is a matrix."""
        return self.form is None

    def potential(self, side: int) -> Any:
        """Potentials in bits, (L, pad)."""
        return self.vectors64[side][0]

    def mass(self, side: int) -> Any:
        """Weights, (L, pad)."""
        return self.vectors64[side][1]

    def rest(self, side: int) -> Any:
        """Rests of potentials, which are added to log2 of float32 sums, (L, pad), in float64."""
        return self.vectors32[side][c.LEVEL_REST.value].double()

    def part(self, some: Sequence[int], *, float64: bool) -> Stack:
        """Return a stack of some of the lanes."""
        if len(some) == len(self.lanes):
            return replace(self, float64=float64, matrices=None if float64 else self.matrices)
        at = torch.tensor(list(some), device=self.sizes.device)
        first = {name: tuple(side[at] for side in getattr(self, name)) for name in ("clouds", "points")}
        second = {name: tuple(side[:, at] for side in getattr(self, name)) for name in ("vectors32", "vectors64")}
        each = {name: getattr(self, name)[at] for name in ("sizes", "factors", "inaccurate", "soft")}
        matrices = None if float64 or self.matrices is None else self.matrices.part(some, at)
        lanes, shapes = ([own[i] for i in some] for own in (self.lanes, self.shapes))
        return replace(self, lanes=lanes, shapes=shapes, float64=float64, matrices=matrices, **first, **second, **each)

    def slabs(self, side: int) -> list[Stack]:
        """Return stacks that have some points of a side each, so that matrices are small; itself if no lane is huge."""
        pad, other = self.pads[side], self.pads[1 - side]
        if self.matrices is None or pad * other <= PART_PAIRS:
            return [self]
        size, step = self.shapes[0][side], _slab_rows(other)
        return [
            self._slab(side, slice(first, min(pad, first + step)), min(size - first, step))
            for first in range(0, pad, step)
        ]

    def _slab(self, side: int, points: Any, count: int) -> Stack:
        """Return a stack of the only lane, with some points of a side.

        Args:
            side: 0 for rows, 1 for columns.
            points: Which points: a slice, or their numbers. With padding their count is a multiple of the largest tile.
            count: Number of points without padding, which comes last.
        """
        pads, sizes, shape = list(self.pads), self.sizes.clone(), list(self.shapes[0])
        clouds, vectors32, vectors64 = list(self.clouds), list(self.vectors32), list(self.vectors64)
        sizes[:, side] = shape[side] = count
        clouds[side] = clouds[side][:, points][:, :count].contiguous()
        vectors32[side], vectors64[side] = vectors32[side][:, :, points], vectors64[side][:, :, points]
        pads[side], shapes = vectors64[side].shape[2], [(shape[0], shape[1])]
        return replace(
            self, shapes=shapes, sizes=sizes, pads=(pads[0], pads[1]), clouds=tuple(clouds), vectors32=tuple(vectors32),
            vectors64=tuple(vectors64), matrices=Matrices(shapes, self.matrices.middle, keep=False),
        )  # fmt: skip

    def masses(self, side: int, logs: Any) -> Any:
        """Return `a_i rho_i` from logs of `float64_averages`; zero for points without weight."""
        mass = self.mass(side)
        return torch.where(mass > 0, mass * torch.exp2(logs + self.potential(side)), 0.0)

    def _launch32(
        self, kernel: Any, side: int, count: int, *more: Any, marks: bool = True, channels: int = 0,
        blocks: tuple[int, ...] = (), **constants: Any,
    ) -> Any:  # fmt: skip
        """Launch a float32 kernel for `count` rows of each lane, and return which lanes are inaccurate.

        `more` are its arguments after those that all have. If it `marks` lanes, the first of them is where.
        """
        assert self.form is not None
        form, own, other = self.form, self.vectors32[side], self.vectors32[1 - side]
        points, others = self.points[:: 1 - 2 * side] if self.matrices is None else [self.matrices.of(self)] * 2
        # Computing matrices may mark lanes, so that marks are copied after it.
        inaccurate = self.inaccurate.clone()
        tile = consumer_tile(form.kind, form.dp, channels)
        program = options(tile["warps"], tile["stages"], tile["registers"]) | constants
        kernel[(-(-count // tile["bm"]), len(self.lanes), *blocks)](
            points, others, points.stride(0), others.stride(0), self.clouds[0].shape[2], self.sizes,
            own[c.LEVEL.value], other[c.OTHER_LEVEL.value], other[c.OTHER_WEIGHT.value], self.pads[side],
            self.pads[1 - side], *((inaccurate,) if marks else ()), *more, KIND=form.kind, DP=form.dp,
            CHUNKS=form.chunks, INSIDE=is_inside(form), BM=tile["bm"], BN=tile["bn"], **program,
        )  # fmt: skip
        return inaccurate

    def _launch64(self, kernel: Any, side: int, grid: tuple[int, ...], *more: Any, **constants: Any) -> None:
        """Launch a float64 kernel; `more` are its arguments after those that all have."""
        cloud, others = self.clouds[:: 1 - 2 * side]
        strides = (cloud.stride()[1 + side], cloud.stride()[2 - side]) if self.dense else (0, 0)
        lanes = (0, 0) if self.dense else (cloud.stride(0), others.stride(0))
        tile = {"BM": BM64, "BN": BN64} | constants
        kernel[grid](
            cloud, others, *lanes, cloud.shape[2], self.factors, *strides, self.sizes, self.potential(1 - side),
            self.mass(1 - side), self.pads[side], self.pads[1 - side], *more, ROOTED=self.rooted, DENSE=self.dense,
            num_warps=WARPS64, **tile,
        )  # fmt: skip

    def averages(self, side: int, values: Any, *, weighted: bool) -> tuple[Any, Any]:
        """Return means of values (L, M, c), (L, rows, c), times masses of rows if `weighted`; and inaccurate lanes."""
        pad, channels = self.pads[side], values.shape[2]
        cp = 16 if channels <= 16 else 32 if channels <= 32 else 64
        blocks = -(-channels // cp)
        scales, parts = self._split(1 - side, values, cp, blocks)
        out = torch.empty((len(self.lanes), pad, channels), dtype=torch.float32, device=self.sizes.device)
        inaccurate = self._launch32(
            kernels.average, side, pad, self.vectors32[side][c.LEVEL_REST.value], self.mass(side), parts, scales,
            channels, out, channels=cp, blocks=(blocks,), SIDE=side, CP=cp, WEIGHTED=weighted,
        )  # fmt: skip
        return out, inaccurate

    def _split(self, side: int, values: Any, cp: int, blocks: int) -> tuple[Any, Any]:
        """Return the largest value of each channel, (L, c), and values over it as float16 high and low parts."""
        lanes, pad, channels = len(self.lanes), self.pads[side], values.shape[2]
        largest = torch.linalg.vector_norm(values, torch.inf, dim=1)
        parts = torch.empty((lanes, blocks, pad, 2, cp), dtype=torch.float16, device=values.device)
        split_values[(pad // SPLIT_ROWS, lanes, blocks)](
            values, values.stride(0), largest, self.vectors32[side][c.OTHER_WEIGHT.value], self.sizes, parts, channels,
            pad, SIDE=side, CP=cp, ROWS=SPLIT_ROWS,
        )  # fmt: skip
        return largest.float(), parts

    def totals(self, side: int, *, costs: bool = False) -> tuple[Any, Any, Any]:
        """Return sums over the terms p of each row, (L, rows), sums for its costs, and which lanes are inaccurate.

        The sums for costs, (2, L, rows), are computed if `costs`: of p log2(p / b), and of p times the scaled cost. The
        rest l of the row's own potential is left out of p and of the logarithm; see `kernels.plan`.
        """
        lanes, pad = len(self.lanes), self.pads[side]
        sums = torch.ones((lanes, pad), dtype=torch.float32, device=self.sizes.device)
        more, extra = sums, (sums, sums, sums)
        if costs:
            more = torch.zeros((2, lanes, pad), dtype=torch.float32, device=self.sizes.device)
            rest = self.vectors32[1 - side][c.OTHER_REST.value]
            row_offset, col_offset = self.potential(side) - self.rest(side), self.potential(1 - side) - rest
            # Both offsets are made equally large, so that neither loses digits in float32.
            shift = (self._highest(side, row_offset) - self._highest(1 - side, col_offset)) / 2
            extra = (row_offset - shift).float(), rest, (col_offset + shift).float()
        inaccurate = self._launch32(kernels.total, side, pad, sums, *extra, more, SIDE=side, COSTS=costs)
        return sums, more, inaccurate

    def _highest(self, side: int, values: Any) -> Any:
        """Return the largest value of each lane among points with weight, (L, 1)."""
        return torch.where(self.mass(side) > 0, values, -torch.inf).amax(1, keepdim=True)

    def float64_averages(
        self, side: int, values: Any, rows: Any = None, *, inverse: bool = False
    ) -> tuple[Any, Any, Any]:
        """Return log2 of sums without the own potential, means of values, and means of exponents and of scaled costs.

        `rows` lists some rows of each lane, (L, count).
        """
        lanes, count = len(self.lanes), self.pads[side] if rows is None else rows.shape[1]
        device = self.sizes.device
        if values is None:
            values = torch.zeros((1, self.pads[1 - side], 1), dtype=torch.float64, device=device).expand(lanes, -1, -1)
        values, channels = values.double(), values.shape[2]
        logs, *means = torch.zeros((3, lanes, count), dtype=torch.float64, device=device)
        out = torch.zeros((lanes, count, channels), dtype=torch.float64, device=device)
        if self.has_blocks and self._averages_in_blocks(side, values, rows, logs, means, out):
            return logs, out, means
        # Listed rows are few: one program for each, except in the interpreter.
        bm, bn = (BM64, BN64) if rows is None or device.type == "cpu" else (1, LISTED_BN)
        self._launch64(
            kernels.float64_average, side, (-(-count // bm), lanes, -(-channels // CP64)),
            values, values.stride(0), channels, logs, *means, out, rows if rows is not None else self.sizes, count,
            SIDE=side, CP=CP64, INVERSE=inverse, LISTED=rows is not None, BM=bm, BN=bn,
        )  # fmt: skip
        return logs, out, means

    @property
    def has_blocks(self) -> bool:
        """True if float64 sums come from products in blocks of rows: all lanes of a stack are alike in that."""
        return not self.dense and not self.rooted and has_blocks(self.shapes[0], self.clouds[0].shape[2])

    def _averages_in_blocks(self, side: int, values: Any, rows: Any, logs: Any, means: Any, out: Any) -> bool:
        """Write what `float64_averages` returns; return False if products of a lane are not accurate enough."""
        for lane, shape in enumerate(self.shapes):
            size, others = shape[side], shape[1 - side]
            clouds = [cloud[lane, :count] for cloud, count in zip(self.clouds, shape, strict=True)][:: 1 - 2 * side]
            points = centred(*clouds, self.factors[lane])
            if points is None:
                return False
            own = points[0] if rows is None else points[0][rows[lane].long()]
            potential, mass = self.potential(1 - side)[lane, :others], self.mass(1 - side)[lane, :others]
            found = averages(own, points[1], potential, mass, values[lane, :others])
            count = size if rows is None else len(own)
            for whole, part in zip((logs, *means, out), found, strict=True):
                whole[lane, :count] = part
        return True

    def probe(self, side: int) -> Any:
        """Return which lanes have mean errors of probed rows above ACCURACY, or above thrice that in one row, (L,).

        Errors are those of marginal ratios, and of means of random signs. A single row may have a larger error than the
        mean, if few rows carry most of the cost.
        """
        rows = torch.arange(PROBES, device=self.sizes.device, dtype=torch.int64)[None, :]
        rows = rows * self.sizes[:, side : side + 1] // PROBES
        listed, signs = rows.int(), _signs(self.pads[1 - side], self.sizes.device)
        sums, signed = torch.zeros((2, *rows.shape), dtype=torch.float32, device=rows.device)
        # Few programs wait for memory: more stages, if shared memory has room for them.
        stages = {"num_stages": PROBE_STAGES} if self.form is not None and self.form.chunks == 1 else {}
        self._launch32(kernels.probe, side, PROBES, listed, PROBES, signs, sums, marks=False, SIDE=side, **stages)
        logs, truth, _ = self.float64_averages(side, signs[None, :, None].expand(len(self.lanes), -1, -1), listed)
        rest, own = self.rest(side).gather(1, rows), self.potential(side).gather(1, rows)
        ratio = torch.exp2(logs + own)
        errors = (sums * torch.exp2(rest) - ratio).abs() + ratio * (signed / sums - truth[:, :, 0]).abs()
        # Marginal ratios of soft lanes may be far from one.
        errors = torch.where(self.soft[:, None], errors / ratio, errors)
        # Written so that NaN counts as an error.
        return (~(torch.maximum(errors.mean(1), errors.amax(1) / 3) <= ACCURACY)).int()

    def match(self, side: int) -> tuple[Any, Any]:
        """Return columns of the largest terms, and inaccurate lanes."""
        out = torch.zeros((len(self.lanes), self.pads[side]), dtype=torch.int32, device=self.sizes.device)
        return out, self._launch32(kernels.match, side, self.pads[side], out, SIDE=side)

    def float64_match(self, side: int) -> Any:
        """Return columns of the largest entries, in float64."""
        out = torch.zeros((len(self.lanes), self.pads[side]), dtype=torch.int32, device=self.sizes.device)
        self._launch64(kernels.float64_match, side, (-(-self.pads[side] // BM64), len(self.lanes)), out, SIDE=side)
        return out

    def draw(self, rows: Any, numbers: Any, logs: Any) -> Any:
        """Return drawn columns for listed rows; in float64 if there is no memory for cached exponents.

        Args:
            rows: Rows of each lane, (L, count).
            numbers: Numbers in [0, 1), (L, count).
            logs: Log2 of the marginal ratios of all rows, (L, pad).
        """
        count, out = rows.shape[1], torch.zeros_like(rows)
        # The last column with weight of each lane.
        last = (self.pads[1] - 1 - (self.mass(1) > 0).int().flip(1).argmax(1)).int()
        if not self.float64:
            try:
                if len(self.slabs(0)) == 1:
                    self._launch32(kernels.draw, 0, count, rows, count, numbers, last, out, marks=False)
                    return out
                return self._draw_slabs(rows, numbers, last)
            except torch.OutOfMemoryError:
                if self.matrices is None:
                    raise
        logs = (logs - self.potential(0)).contiguous()
        self._launch64(
            kernels.float64_draw, 0, (-(-count // BM64), len(self.lanes)), logs, rows, count, numbers, last, out
        )
        return out

    def _draw_slabs(self, rows: Any, numbers: Any, last: Any) -> Any:
        """Return `draw` of a huge lane, slab by slab: a slab has the listed rows alone."""
        drawn, step = [], _slab_rows(self.pads[1])
        for listed, chosen in zip(rows.split(step, 1), numbers.split(step, 1), strict=True):
            count = listed.shape[1]
            # Padding repeats the first row.
            points = torch.cat([listed[0], listed[0, :1].expand(-count % LARGEST)]).long()
            order, out = torch.arange(count, dtype=torch.int32, device=rows.device)[None], torch.zeros_like(listed)
            self._slab(0, points, count)._launch32(
                kernels.draw, 0, count, order, count, chosen.contiguous(), last, out, marks=False
            )
            drawn.append(out)
        return torch.cat(drawn, 1)

    def plan(self, lane: int, n: int, m: int) -> Any:
        """Return the dense plan of a lane, (n, m), float64."""
        f, g = self.potential(0)[lane, :n], self.potential(1)[lane, :m]
        plan = torch.exp2(f[:, None] + g[None, :] - self._scaled_costs(lane, n, m))
        a, b = self.mass(0)[lane, :n], self.mass(1)[lane, :m]
        return torch.where((a[:, None] > 0) & (b > 0), a[:, None] * b * plan, 0.0)

    def _scaled_costs(self, lane: int, n: int, m: int) -> Any:
        """Return the scaled costs of a lane in bits, (n, m), float64."""
        if self.dense:
            return self.clouds[0][0].double() * self.factors[0]
        x, y = self.clouds[0][lane, :n].double(), self.clouds[1][lane, :m].double()
        scale = self.factors[lane] if self.rooted else self.factors[lane].sqrt()
        total = torch.zeros((n, m), dtype=torch.float64, device=x.device)
        for coordinate in range(x.shape[1]):
            total += ((x[:, coordinate, None] - y[None, :, coordinate]) * scale).square()
        return total.sqrt() if self.rooted else total


def _slab_rows(others: int) -> int:
    """Return the number of rows of a slab of so many columns, a multiple of the largest tile."""
    return max(LARGEST, SLAB_PAIRS // others // LARGEST * LARGEST)


@lru_cache(maxsize=8)
def _signs(size: int, device: Any) -> Any:
    """Return random signs, the same every time."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 2, (size,), generator=generator).double().mul(2).sub(1).float().to(device)
