"""Lanes of like size, stacked and padded on the device, and the launches that consume them."""

# pyright: basic, reportAttributeAccessIssue=false, reportCallIssue=false, reportArgumentType=false
# pyright: reportIndexIssue=false, reportOptionalMemberAccess=false
# Kernels are called through Triton, arrays through torch, which is loaded when this backend is.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from drainsinkhorn.backends.triton import coupling_kernels as c
from drainsinkhorn.backends.triton import kernels as k
from drainsinkhorn.backends.triton import stacking_kernels as s
from drainsinkhorn.backends.triton.loading import How
from drainsinkhorn.backends.triton.matrices import Matrices
from drainsinkhorn.backends.triton.tiles import ConsumerTile, consumer_tile, options

EXACT_BM, EXACT_BN, EXACT_CP, EXACT_WARPS = 16, 32, 4, 4
LISTED_BN = 256
"""Columns of a tile of one listed row."""
LISTED_STAGES = 4
"""Stages of a probe, where they fit: there are few programs, and memory is far."""
SPLIT_ROWS = 128
"""Rows of values that one program splits."""


def folded(how: How) -> bool:
    """Products take the other side's potentials; of the widest points they would not be faster for it."""
    return how.kind == k.PRODUCT.value and 0 < how.slot < k.ROOMY.value


@dataclass(frozen=True)
class Stack:
    """Lanes of one kind of scores, padded to one size. Pairs are (rows, columns).

    Attributes:
        lanes: Their places among the problems.
        how: How scores are computed; None for a dense cost.
        exact: Consumed in float64.
        rooted: The cost is the root of a squared distance.
        sizes: True sizes, (L, 2).
        pads: Padded sizes.
        clouds: Points as the caller has them, (L, size, dim), or the caller's matrix twice.
        factors: From squared distances, distances, or entries of the matrix, to bits; (L,).
        doubt: Not zero for lanes that float16 cannot hold, (L,).
        points: Coordinates as float32 kernels want them, (L, ...); float16 pairs or float32.
        vectors: What float32 kernels want of a side, (VECTORS, L, pad); see `stacking_kernels`.
        wide: Potentials in bits and masses, float64, (2, L, pad).
        matrices: Stored exponents in place of points; None where there are none.
    """

    lanes: list[int]
    how: How | None
    exact: bool
    rooted: bool
    sizes: Any
    pads: tuple[int, int]
    clouds: tuple[Any, Any]
    factors: Any
    doubt: Any
    points: tuple[Any, Any]
    vectors: tuple[Any, Any]
    wide: tuple[Any, Any]
    matrices: Matrices | None = None

    @property
    def dense(self) -> bool:
        """The cost is a matrix."""
        return self.how is None

    def potential(self, side: int) -> Any:
        """In bits, (L, pad)."""
        return self.wide[side][0]

    def mass(self, side: int) -> Any:
        """Weights, (L, pad)."""
        return self.wide[side][1]

    def fine(self, side: int) -> Any:
        """What is to be added to log2 of float32 sums, (L, pad), in float64."""
        return self.vectors[side][s.FINE.value].double()

    def part(self, some: Sequence[int], *, exact: bool) -> Stack:
        """Some of the lanes."""
        if len(some) == len(self.lanes):
            return replace(self, exact=exact, matrices=None if exact else self.matrices)
        at = torch.tensor(list(some), device=self.sizes.device)
        first = {name: tuple(side[at] for side in getattr(self, name)) for name in ("clouds", "points")}
        second = {name: tuple(side[:, at] for side in getattr(self, name)) for name in ("vectors", "wide")}
        each = {name: getattr(self, name)[at] for name in ("sizes", "factors", "doubt")}
        matrices = None if exact or self.matrices is None else self.matrices.part(some, at)
        lanes = [self.lanes[i] for i in some]
        return replace(self, lanes=lanes, exact=exact, matrices=matrices, **first, **second, **each)

    def masses(self, side: int, logs: Any) -> Any:
        """`a_i rho_i` from logs of `exact_averages`; zero where there is no weight."""
        mass = self.mass(side)
        return torch.where(mass > 0, mass * torch.exp2(logs + self.potential(side)), 0.0)

    def _narrow(self, side: int) -> tuple[list[Any], dict[str, Any]]:
        """What the float32 kernels are told first, and their kind. Doubts are complete only then."""
        assert self.how is not None
        own, other = self.vectors[side], self.vectors[1 - side]
        points, others = self.points[:: 1 - 2 * side] if self.matrices is None else [self.matrices.of(self)] * 2
        arguments = [points, others, points.stride(0), others.stride(0), self.clouds[0].shape[2], self.sizes]
        arguments += [own[s.LEVEL.value], other[s.OTHER_LEVEL.value], other[s.WEIGHT.value]]
        arguments += [self.pads[side], self.pads[1 - side]]
        how = self.how
        return arguments, {"KIND": how.kind, "DP": how.dp, "CHUNKS": how.chunks, "FOLD": folded(how)}

    def _tile(self, channels: int) -> tuple[ConsumerTile, dict[str, Any]]:
        """The tile, and how kernels are told of it."""
        assert self.how is not None
        tile = consumer_tile(self.how.kind, self.how.dp, channels)
        told = {"BM": tile["bm"], "BN": tile["bn"]}
        return tile, told | options(tile["warps"], tile["stages"], tile["registers"])

    def _wide(self, side: int) -> tuple[list[Any], dict[str, Any]]:
        """What the float64 kernels are told first, and their kind."""
        cloud, others = self.clouds[:: 1 - 2 * side]
        strides = (cloud.stride()[1 + side], cloud.stride()[2 - side]) if self.dense else (0, 0)
        lanes = (0, 0) if self.dense else (cloud.stride(0), others.stride(0))
        arguments = [cloud, others, *lanes, cloud.shape[2], self.factors, *strides, self.sizes]
        arguments += [self.potential(1 - side), self.mass(1 - side), self.pads[side], self.pads[1 - side]]
        return arguments, {"ROOTED": self.rooted, "DENSE": self.dense}

    def averages(self, side: int, values: Any, *, weighted: bool) -> tuple[Any, Any]:
        """Means of values (L, M, c), times masses of rows if `weighted`, (L, rows, c) in float32; and doubts."""
        lanes, pad, channels, device = len(self.lanes), self.pads[side], values.shape[2], self.sizes.device
        cp = 16 if channels <= 16 else 32 if channels <= 32 else 64
        blocks = -(-channels // cp)
        scales, halves = self._split(1 - side, values, cp, blocks)
        out = torch.empty((lanes, pad, channels), dtype=torch.float32, device=device)
        arguments, kind = self._narrow(side)
        doubt = self.doubt.clone()
        tile, told = self._tile(cp)
        c.average[(-(-pad // tile["bm"]), lanes, blocks)](
            *arguments, doubt, self.vectors[side][s.FINE.value], self.mass(side), halves, scales, channels, out,
            **kind, SIDE=side, CP=cp, WEIGHTED=weighted, **told,
        )  # fmt: skip
        return out, doubt

    def _split(self, side: int, values: Any, cp: int, blocks: int) -> tuple[Any, Any]:
        """The largest of each channel, (L, c), and what is left of values over a side as float16 pairs."""
        lanes, pad, channels = len(self.lanes), self.pads[side], values.shape[2]
        largest = torch.linalg.vector_norm(values, torch.inf, dim=1)
        halves = torch.empty((lanes, blocks, pad, 2, cp), dtype=torch.float16, device=values.device)
        s.split_values[(pad // SPLIT_ROWS, lanes, blocks)](
            values, values.stride(0), largest, self.vectors[side][s.WEIGHT.value], self.sizes, halves, channels, pad,
            SIDE=side, CP=cp, ROWS=SPLIT_ROWS,
        )  # fmt: skip
        return largest.float(), halves

    def totals(self, side: int, *, costs: bool = False) -> tuple[Any, Any, Any]:
        """Sums of terms, (L, rows); if `costs` of p log2(p / b) without l, and of p c, (2, L, rows); and doubts."""
        arguments, kind = self._narrow(side)
        doubt, lanes, pad = self.doubt.clone(), len(self.lanes), self.pads[side]
        sums = torch.ones((lanes, pad), dtype=torch.float32, device=doubt.device)
        more, extra = sums, (sums, sums, sums)
        if costs:
            more = torch.zeros((2, lanes, pad), dtype=torch.float32, device=doubt.device)
            rest = self.vectors[1 - side][s.REST.value]
            gross, toll = self.potential(side) - self.fine(side), self.potential(1 - side) - rest
            # A constant that one side has more of than the other would cost both digits.
            more_here = (self._highest(side, gross) - self._highest(1 - side, toll)) / 2
            extra = (gross - more_here).float(), rest, (toll + more_here).float()
        tile, told = self._tile(0)
        c.total[(-(-pad // tile["bm"]), lanes)](
            *arguments, doubt, sums, *extra, more, **kind, SIDE=side, COSTS=costs, **told
        )
        return sums, more, doubt

    def _highest(self, side: int, values: Any) -> Any:
        """The largest of each lane where there is weight, (L, 1)."""
        return torch.where(self.mass(side) > 0, values, -torch.inf).amax(1, keepdim=True)

    def signed(self, side: int, rows: Any, signs: Any) -> tuple[Any, Any]:
        """Sums of terms of listed rows (L, count), and means of signs (M,) under their laws, in float32."""
        count = rows.shape[1]
        found = torch.zeros((2, *rows.shape), dtype=torch.float32, device=rows.device)
        arguments, kind = self._narrow(side)
        tile, told = self._tile(0)
        told |= {"num_stages": LISTED_STAGES} if kind["CHUNKS"] == 1 else {}
        c.probe[(-(-count // tile["bm"]), len(self.lanes))](
            *arguments, rows, count, signs, found, **kind, SIDE=side, **told
        )
        return found[0], found[1] / found[0]

    def exact_averages(
        self, side: int, values: Any, rows: Any = None, *, inverse: bool = False
    ) -> tuple[Any, Any, Any]:
        """Log2 of sums without the own potential, means of values, and means of exponents and of scores, in float64.

        `rows` lists some rows of each lane, (L, count).
        """
        lanes, count = len(self.lanes), self.pads[side] if rows is None else rows.shape[1]
        device = self.sizes.device
        if values is None:
            values = torch.zeros((1, self.pads[1 - side], 1), dtype=torch.float64, device=device).expand(lanes, -1, -1)
        values, channels = values.double(), values.shape[2]
        logs, *means = torch.zeros((3, lanes, count), dtype=torch.float64, device=device)
        out = torch.zeros((lanes, count, channels), dtype=torch.float64, device=device)
        arguments, kind = self._wide(side)
        # Listed rows are few: one program for each, but where programs run one after another.
        bm, bn = (EXACT_BM, EXACT_BN) if rows is None or device.type == "cpu" else (1, LISTED_BN)
        c.exact_average[(-(-count // bm), lanes, -(-channels // EXACT_CP))](
            *arguments, values, values.stride(0), channels, logs, *means, out, rows if rows is not None else self.sizes,
            count, **kind, SIDE=side, CP=EXACT_CP, INVERSE=inverse, LISTED=rows is not None, BM=bm, BN=bn,
            num_warps=EXACT_WARPS,
        )  # fmt: skip
        return logs, out, means

    def match(self, side: int) -> tuple[Any, Any]:
        """Places of the largest terms, and doubts."""
        arguments, kind = self._narrow(side)
        found = torch.zeros((len(self.lanes), self.pads[side]), dtype=torch.int32, device=self.sizes.device)
        doubt = self.doubt.clone()
        tile, told = self._tile(0)
        c.match[(-(-self.pads[side] // tile["bm"]), len(self.lanes))](
            *arguments, doubt, found, **kind, SIDE=side, **told
        )
        return found, doubt

    def exact_match(self, side: int) -> Any:
        """Places of the largest entries."""
        arguments, kind = self._wide(side)
        found = torch.zeros((len(self.lanes), self.pads[side]), dtype=torch.int32, device=self.sizes.device)
        c.exact_match[(-(-self.pads[side] // EXACT_BM), len(self.lanes))](
            *arguments, found, **kind, SIDE=side, BM=EXACT_BM, BN=EXACT_BN, num_warps=EXACT_WARPS
        )
        return found

    def _last(self) -> Any:
        """The last column with weight of each lane."""
        return (self.pads[1] - 1 - (self.mass(1) > 0).int().flip(1).argmax(1)).int()

    def draw(self, rows: Any, numbers: Any) -> Any:
        """Columns for listed rows."""
        arguments, kind = self._narrow(0)
        found = torch.zeros_like(rows)
        tile, told = self._tile(0)
        c.draw[(-(-rows.shape[1] // tile["bm"]), len(self.lanes))](
            *arguments, rows, rows.shape[1], numbers, self._last(), found, **kind, **told
        )
        return found

    def exact_draw(self, rows: Any, numbers: Any, logs: Any) -> Any:
        """Columns for listed rows, whose log ratios are known."""
        arguments, kind = self._wide(0)
        found = torch.zeros_like(rows)
        c.exact_draw[(-(-rows.shape[1] // EXACT_BM), len(self.lanes))](
            *arguments, (logs - self.potential(0)).contiguous(), rows, rows.shape[1], numbers, self._last(), found,
            **kind, BM=EXACT_BM, BN=EXACT_BN, num_warps=EXACT_WARPS,
        )  # fmt: skip
        return found

    def scores(self, lane: int, n: int, m: int) -> Any:
        """All scores of a lane in bits, (n, m), float64."""
        if self.dense:
            return self.clouds[0][0].double() * self.factors[0]
        x, y = self.clouds[0][lane, :n].double(), self.clouds[1][lane, :m].double()
        scale = self.factors[lane] if self.rooted else self.factors[lane].sqrt()
        total = torch.zeros((n, m), dtype=torch.float64, device=x.device)
        for coordinate in range(x.shape[1]):
            total += ((x[:, coordinate, None] - y[None, :, coordinate]) * scale).square()
        return total.sqrt() if self.rooted else total
