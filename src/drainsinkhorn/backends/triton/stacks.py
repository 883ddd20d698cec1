"""Lanes of like size, stacked and padded on the device, and the launches that consume them."""

# pyright: basic, reportAttributeAccessIssue=false, reportCallIssue=false, reportArgumentType=false
# pyright: reportIndexIssue=false, reportOptionalMemberAccess=false
# Kernels are called through Triton, arrays through torch, which is loaded when this backend is.

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch

from drainsinkhorn.backends.door import sizes
from drainsinkhorn.backends.triton import coupling_kernels as c
from drainsinkhorn.backends.triton import kernels as k
from drainsinkhorn.backends.triton.arena import aligned
from drainsinkhorn.backends.triton.layout import on_device
from drainsinkhorn.backends.triton.loading import How
from drainsinkhorn.backends.triton.tiles import consumer_tile
from drainsinkhorn.core.problem import Cost, Potentials, Problem

EXACT_BM, EXACT_BN, EXACT_CP, EXACT_WARPS = 16, 32, 4, 4
LISTED_BN = 256
"""Columns of a tile of one listed row."""


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
        dim: Coordinates.
        potential: In bits, float64, (L, pad).
        mass: Weights, float64, (L, pad).
        coarse: Potentials less norms, on a grid, float32, (L, pad).
        fine: The rest.
        weight: Weights times two to the rest.
        norm: Norms that go into coarse, float32; zero where scores need none.
        away: `coarse`, far below everything where there is no weight.
        points: Coordinates as kernels want them, (L, ...) of each side; float16 pairs or float32.
        exact_points: Coordinates (L, dim, pad) in float64, or the caller's matrix.
        factor: From costs to bits, for a dense cost.
    """

    lanes: list[int]
    how: How | None
    exact: bool
    rooted: bool
    sizes: Any
    pads: tuple[int, int]
    dim: int
    potential: tuple[Any, Any]
    mass: tuple[Any, Any]
    coarse: tuple[Any, Any]
    fine: tuple[Any, Any]
    weight: tuple[Any, Any]
    norm: tuple[Any, Any]
    away: tuple[Any, Any]
    points: tuple[Any, Any]
    exact_points: tuple[Any, Any]
    factor: float = 1.0

    @property
    def dense(self) -> bool:
        """The cost is a matrix."""
        return self.how is None

    def part(self, some: Sequence[int], *, exact: bool) -> Stack:
        """Some of the lanes."""
        if len(some) == len(self.lanes):
            return replace(self, exact=exact)
        at = torch.tensor(list(some), device=self.sizes.device)
        pairs = ("potential", "mass", "coarse", "fine", "weight", "norm", "away", "points", "exact_points")
        parts = {name: tuple(side[at] for side in getattr(self, name)) for name in pairs}
        return replace(self, lanes=[self.lanes[i] for i in some], exact=exact, sizes=self.sizes[at], **parts)

    def at(self, name: str, side: int, rows: Any) -> Any:
        """Entries of a vector at listed rows."""
        return getattr(self, name)[side].gather(1, rows.long())

    def masses(self, side: int, logs: Any) -> Any:
        """`a_i rho_i` from logs of `exact_averages`; zero where there is no weight."""
        mass = self.mass[side]
        return torch.where(mass > 0, mass * torch.exp2(logs + self.potential[side]), 0.0)

    def _places(self, points: tuple[Any, Any], side: int) -> tuple[Any, int, int, int, int]:
        """Both sides' coordinates in one buffer, where each begins, and the distance of lanes."""
        flat = [p.reshape(-1) for p in points]
        buffer, starts = torch.cat(flat), (0, flat[0].numel())
        strides = [p[0].numel() for p in points]
        return buffer, starts[side], starts[1 - side], strides[side], strides[1 - side]

    def _narrow(self, side: int) -> tuple[list[Any], dict[str, Any]]:
        """What the float32 kernels are told first, and their kind."""
        assert self.how is not None
        buffer, *places = self._places(self.points, side)
        arguments = [buffer, buffer, *places, self.dim, self.sizes]
        return arguments, {"KIND": self.how.kind, "DP": self.how.dp, "CHUNKS": self.how.chunks}

    def _wide(self, side: int) -> tuple[list[Any], dict[str, Any]]:
        """Likewise for the float64 kernels."""
        if self.dense:
            matrix = self.exact_points[0]
            strides = matrix.stride()[1 + side], matrix.stride()[2 - side]
            arguments = [matrix, 0, 0, 0, 0, 0, self.factor, *strides, self.sizes]
        else:
            buffer, *places = self._places(self.exact_points, side)
            arguments = [buffer, *places, self.dim, self.factor, 0, 0, self.sizes]
        arguments += [self.potential[1 - side], self.mass[1 - side], self.pads[side], self.pads[1 - side]]
        return arguments, {"ROOTED": self.rooted, "DENSE": self.dense}

    def averages(self, side: int, values: Any, rows: Any = None) -> tuple[Any, Any]:
        """Sums of terms (L, rows), and means of values (L, rows, c); or without values entropies and prices.

        All in float32. `rows` lists some rows of each lane, (L, count).
        """
        lanes, count = len(self.lanes), self.pads[side] if rows is None else rows.shape[1]
        blank = torch.empty(1, dtype=torch.float32, device=self.sizes.device)
        sums = torch.ones((lanes, count), dtype=torch.float32, device=self.sizes.device)
        found, out, halves, cp, blocks = torch.zeros((2, lanes, count), device=blank.device), blank, blank, 16, 1
        if values is not None:
            channels = values.shape[2]
            cp = 16 if channels <= 16 else 32 if channels <= 32 else 64
            blocks = -(-channels // cp)
            halves, scale = _split_values(values, cp, blocks)
            out = torch.zeros((lanes, blocks, count, cp), dtype=torch.float32, device=self.sizes.device)
        arguments, kind = self._narrow(side)
        tile = consumer_tile(self.how.kind, self.how.dp, cp)
        listed = rows if rows is not None else self.sizes
        c.average[(-(-count // tile["bm"]), lanes, blocks)](
            *arguments, self.coarse[side], self.away[1 - side], self.fine[1 - side], self.weight[1 - side],
            self.norm[side], self.norm[1 - side], self.pads[side], self.pads[1 - side], halves, sums,
            found[0], found[1], out, listed, count, **kind,
            SIDE=side, CP=cp, ENTROPY=values is None, LISTED=rows is not None, BM=tile["bm"], BN=tile["bn"],
            num_warps=tile["warps"], num_stages=tile["stages"],
        )  # fmt: skip
        if values is None:
            return sums, found
        means = out.transpose(1, 2).reshape(lanes, count, blocks * cp)[:, :, : values.shape[2]]
        return sums, means * (scale / c.SCALE.value) / sums[:, :, None]

    def exact_averages(
        self, side: int, values: Any, rows: Any = None, *, inverse: bool = False
    ) -> tuple[Any, Any, Any]:
        """Log2 of sums without the own potential, means of values, and means of exponents and of scores, in float64."""
        lanes, count = len(self.lanes), self.pads[side] if rows is None else rows.shape[1]
        device = self.sizes.device
        if values is None:
            values = torch.zeros((lanes, self.pads[1 - side], 1), dtype=torch.float64, device=device)
        values = values.double().contiguous()
        channels = values.shape[2]
        logs, *means = torch.zeros((3, lanes, count), dtype=torch.float64, device=device)
        out = torch.zeros((lanes, count, channels), dtype=torch.float64, device=device)
        arguments, kind = self._wide(side)
        # Listed rows are few: one program for each, but where programs run one after another.
        bm, bn = (EXACT_BM, EXACT_BN) if rows is None or device.type == "cpu" else (1, LISTED_BN)
        c.exact_average[(-(-count // bm), lanes, -(-channels // EXACT_CP))](
            *arguments, values, channels, logs, *means, out, rows if rows is not None else self.sizes, count, **kind,
            SIDE=side, CP=EXACT_CP, INVERSE=inverse, LISTED=rows is not None, BM=bm, BN=bn, num_warps=EXACT_WARPS,
        )  # fmt: skip
        return logs, out, means

    def match(self, side: int) -> tuple[Any, Any]:
        """Sums of terms and places of the largest ones."""
        arguments, kind = self._narrow(side)
        sums = torch.ones((len(self.lanes), self.pads[side]), dtype=torch.float32, device=self.sizes.device)
        found, tile = torch.zeros_like(sums, dtype=torch.int32), consumer_tile(self.how.kind, self.how.dp, 0)
        c.match[(-(-self.pads[side] // tile["bm"]), len(self.lanes))](
            *arguments, self.coarse[side], self.away[1 - side], self.weight[1 - side], self.pads[side],
            self.pads[1 - side], sums, found, **kind, SIDE=side, BM=tile["bm"], BN=tile["bn"],
            num_warps=tile["warps"], num_stages=tile["stages"],
        )  # fmt: skip
        return sums, found

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
        return (self.pads[1] - 1 - (self.mass[1] > 0).int().flip(1).argmax(1)).int()

    def draw(self, rows: Any, numbers: Any) -> Any:
        """Columns for listed rows."""
        arguments, kind = self._narrow(0)
        found, tile = torch.zeros_like(rows), consumer_tile(self.how.kind, self.how.dp, 0)
        c.draw[(-(-rows.shape[1] // tile["bm"]), len(self.lanes))](
            *arguments, self.coarse[0], self.away[1], self.weight[1], *self.pads, rows, rows.shape[1], numbers,
            self._last(), found, **kind, BM=tile["bm"], BN=tile["bn"], num_warps=tile["warps"],
            num_stages=tile["stages"],
        )  # fmt: skip
        return found

    def exact_draw(self, rows: Any, numbers: Any, logs: Any) -> Any:
        """Columns for listed rows, whose log ratios are known."""
        arguments, kind = self._wide(0)
        found = torch.zeros_like(rows)
        c.exact_draw[(-(-rows.shape[1] // EXACT_BM), len(self.lanes))](
            *arguments, (logs - self.potential[0]).contiguous(), rows, rows.shape[1], numbers, self._last(), found,
            **kind, BM=EXACT_BM, BN=EXACT_BN, num_warps=EXACT_WARPS,
        )  # fmt: skip
        return found

    def scores(self, lane: int, n: int, m: int) -> Any:
        """All scores of a lane in bits, (n, m), float64."""
        if self.dense:
            return self.exact_points[0][0].double() * self.factor
        x, y = self.exact_points[0][lane, :, :n], self.exact_points[1][lane, :, :m]
        total = torch.zeros((n, m), dtype=torch.float64, device=x.device)
        for coordinate in range(self.dim):
            total += (x[coordinate, :, None] - y[coordinate, None, :]).square()
        return total.sqrt() if self.rooted else total


def _split_values(values: Any, cp: int, blocks: int) -> tuple[Any, Any]:
    """Values over the largest of their channel as float16 pairs, (L, blocks, M, 2, cp); and those, (L, 1, c)."""
    scale = values.abs().amax(1, keepdim=True)
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    padded = torch.nn.functional.pad(values / scale, (0, blocks * cp - values.shape[2]))
    high = padded.to(torch.float16)
    low = (padded - high.to(padded.dtype)).to(torch.float16)
    both = torch.stack([high, low], dim=2).unflatten(3, (blocks, cp))
    return both.permute(0, 3, 1, 2, 4).contiguous(), scale.float()


def stacked(values: Sequence[Any], pad: int, device: Any) -> Any:
    """Arrays (size,) or (size, channels), sizes and channels unequal, as one padded tensor in their widest dtype."""
    if len(values) > 1 and all(value is values[0] for value in values):
        one = stacked(values[:1], pad, device)
        return one.expand(len(values), *one.shape[1:])
    tensors = [on_device(value, device) for value in values]
    dtype = reduce(torch.promote_types, (t.dtype for t in tensors), torch.float32)
    shapes = {t.shape for t in tensors}
    if len(shapes) == 1 and len(tensors[0]) == pad:
        return torch.stack([t.to(dtype) for t in tensors])
    channels = [max(t.shape[1] for t in tensors)] if tensors[0].ndim > 1 else []
    out = torch.zeros((len(tensors), pad, *channels), dtype=dtype, device=device)
    for lane, t in enumerate(tensors):
        out[(lane, *map(slice, t.shape))] = t
    return out


def unit_rows(x: Any) -> Any:
    """Rows scaled to length one; first by their largest entry, so that squares neither overflow nor vanish."""
    x = x / x.abs().amax(-1, keepdim=True)
    return x / x.square().sum(-1, keepdim=True).sqrt()


def stack_lanes(
    lanes: list[int], problems: Sequence[Problem[Any]], potentials: Sequence[Potentials[Any]], how: How | None,
    device: Any, *, uniform: bool,
) -> Stack:  # fmt: skip
    """Lay finished problems of one kind out on the device."""
    shapes = [sizes(problem) for problem in problems]
    most = [max(shape[side] for shape in shapes) for side in (0, 1)]
    pads = (most[0], most[1]) if how is None else (aligned(most[0]), aligned(most[1]))
    units = torch.tensor([p.eps * math.log(2) for p in problems], dtype=torch.float64, device=device)
    potential = tuple(
        stacked([pair[side] for pair in potentials], pads[side], device).double() / units[:, None] for side in (0, 1)
    )
    true = torch.tensor(shapes, dtype=torch.int32, device=device)
    mass = tuple(_weights(problems, side, pads[side], true, device, uniform) for side in (0, 1))
    common = {"lanes": lanes, "how": how, "exact": how is None, "sizes": true, "pads": pads}
    common |= {"potential": tuple(p.contiguous() for p in potential), "mass": mass}
    if how is None:
        matrix = on_device(problems[0].cost, device)
        blank = (true, true)
        return Stack(
            **common, rooted=False, dim=0, coarse=blank, fine=blank, weight=blank, norm=blank, away=blank, points=blank,
            exact_points=(matrix[None], blank[0]), factor=float(1 / units[0]),
        )  # fmt: skip
    cost = problems[0].cost
    assert isinstance(cost, Cost)
    clouds = _scaled(problems, cost.kind, pads, true, units, device, mass)
    points, norms = zip(*(_coordinates(cloud, how) for cloud in clouds), strict=True)
    level = [h - norm for h, norm in zip(common["potential"], norms, strict=True)]
    coarse = [torch.floor(v * k.GRID.value + 0.5) / k.GRID.value for v in level]
    fine = [(v - grid).float() for v, grid in zip(level, coarse, strict=True)]
    coarse = [grid.float() for grid in coarse]
    weight = [w.float() * torch.exp2(rest) for w, rest in zip(mass, fine, strict=True)]
    away = [torch.where(w > 0, grid, -1e30) for w, grid in zip(mass, coarse, strict=True)]
    return Stack(
        **common, rooted=how.rooted, dim=clouds[0].shape[2], coarse=tuple(coarse), fine=tuple(fine),
        weight=tuple(weight), norm=tuple(norm.float() for norm in norms), away=tuple(away), points=tuple(points),
        exact_points=tuple(cloud.swapaxes(1, 2).contiguous() for cloud in clouds),
    )  # fmt: skip


def _weights(problems: Sequence[Problem[Any]], side: int, pad: int, true: Any, device: Any, uniform: bool) -> Any:
    if uniform:
        size = true[:, side : side + 1].double()
        return torch.where(torch.arange(pad, device=device)[None, :] < size, 1 / size, 0.0)
    return stacked([(p.a, p.b)[side] for p in problems], pad, device).double().contiguous()


def _scaled(
    problems: Sequence[Problem[Any]], kind: str, pads: tuple[int, int], true: Any, units: Any, device: Any, mass: Any
) -> list[Any]:
    """Both clouds, centred by one vector and scaled so that squared distances (or distances) are scores in bits."""
    clouds = [stacked([(p.x, p.y)[side] for p in problems], pads[side], device).double() for side in (0, 1)]
    factor = torch.tensor([p.cost.scale for p in problems], dtype=torch.float64, device=device) / units
    inside = [
        (torch.arange(pad, device=device)[None, :] < true[:, side : side + 1])[:, :, None]
        for side, pad in enumerate(pads)
    ]
    if kind == "cosine":
        clouds, factor = [torch.where(i, unit_rows(c), 0.0) for c, i in zip(clouds, inside, strict=True)], factor / 2
    # The middle of the box around both; what has no weight may lie anywhere and has no say.
    heavy = [(w > 0)[:, :, None] for w in mass]
    low = torch.minimum(*(torch.where(i, c, math.inf).amin(1) for c, i in zip(clouds, heavy, strict=True)))
    high = torch.maximum(*(torch.where(i, c, -math.inf).amax(1) for c, i in zip(clouds, heavy, strict=True)))
    middle = (low / 2 + high / 2)[:, None, :]
    scale = (factor if kind == "euclidean" else factor.sqrt())[:, None, None]
    return [torch.where(i, (c - middle) * scale, 0.0) for c, i in zip(clouds, inside, strict=True)]


def _coordinates(cloud: Any, how: How) -> tuple[Any, Any]:
    """A scaled cloud as kernels of its kind read it, and the norms that go into its potentials."""
    if how.kind != k.PRODUCT.value:
        return cloud.swapaxes(1, 2).float().contiguous(), torch.zeros_like(cloud[:, :, 0])
    # -|x - y|^2 = 2 x.y - |x|^2 - |y|^2, of the points as float16 pairs hold them.
    padded = torch.nn.functional.pad(cloud * math.sqrt(2), (0, how.dp * how.chunks - cloud.shape[2]))
    high = padded.to(torch.float16)
    low = (padded - high.double()).to(torch.float16)
    both = torch.stack([high, low], dim=2).unflatten(3, (how.chunks, how.dp)).swapaxes(2, 3)
    held = high.double() + low.double()
    return both.contiguous(), held.square().sum(2) / 2
