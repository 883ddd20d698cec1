"""Stored exponents of stacks of many coordinates.

Split products of hundreds of coordinates, summed in float32, are off by more than consumers allow. As a pack does, a
stack then keeps a float32 matrix instead, whose entries

    M_ij = f_i + g_j - c_ij = log2(P_ij / (a_i b_j))

are made in float64 and rounded last. Where the mass is they are near zero: rounding changes a term by 2^-25 |M| ln 2 of
it at most, a term far below one hardly counts, and none is above one over the smallest weight. Lanes in which that, or
what float64 loses, is too much are in doubt. So no rows are probed.
"""

# pyright: basic, reportAttributeAccessIssue=false, reportCallIssue=false, reportArgumentType=false
# pyright: reportIndexIssue=false, reportOptionalMemberAccess=false
# Kernels are called through Triton, arrays through torch, which is loaded when this backend is.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch

from drainsinkhorn.backends.triton import stacking_kernels as s
from drainsinkhorn.backends.triton.layout import SCRATCH_PAIRS, products

PART_PAIRS, KEPT_PAIRS = 2**28, 2**30
"""Pairs of a stack, and pairs that stacks keep together, 4 GiB: as many as a pack of natural width keeps. If there are
more, each use makes the matrices of a stack anew, which costs a fraction of doing without them."""
SPREAD_ROWS, SPREAD_BLOCK = 16, 64
"""Points of a program that scales them, and coordinates it takes at once."""
FILL_ROWS, FILL_BLOCK = 8, 128
"""Rows of a program that fills matrices, and columns it takes at once."""


@dataclass
class Matrices:
    """How the matrices of a stack are made, and perhaps they.

    Attributes:
        shapes: True sizes of lanes.
        middle: What points are centred on, (L, dim).
        keep: They are kept once they were made.
        made: (L, rows, columns), zero around what is inside.
    """

    shapes: Sequence[tuple[int, int]]
    middle: Any
    keep: bool
    made: Any = None

    def part(self, some: Sequence[int], at: Any) -> Matrices:
        """Those of some lanes; `at` has them on the device."""
        made = None if self.made is None else self.made[at]
        return Matrices([self.shapes[i] for i in some], self.middle[at], self.keep, made)

    def of(self, stack: Any) -> Any:
        """The matrices of a stack; lanes whose points lie so far apart that float64 is not enough are put in doubt."""
        if self.made is not None:
            return self.made
        found = torch.empty((len(self.shapes), *stack.pads), dtype=torch.float32, device=stack.sizes.device)
        dim, (rows, cols) = stack.clouds[0].shape[2], stack.pads
        step = max(1, SCRATCH_PAIRS // max(rows * cols, (rows + cols) * dim))
        for first in range(0, len(self.shapes), step):
            self._fill(stack, range(first, min(len(self.shapes), first + step)), found)
        if self.keep:
            self.made = found
        return found

    def _fill(self, stack: Any, lanes: range, out: Any) -> None:
        """Products of lanes of one shape together, without padding: in other shapes they may be rounded otherwise."""
        (x, y), norms = zip(*(self._spread(stack, lanes, side) for side in (0, 1)), strict=True)
        scores = x.new_empty((len(lanes), stack.pads[0] * stack.pads[1]))
        for (n, m), alike in groupby(range(len(lanes)), key=lambda k: self.shapes[lanes[k]]):
            first, *more = alike
            part = slice(first, first + 1 + len(more))
            products(x[part, :n], y[part, :m], scores[part, : n * m].view(-1, n, m), rooted=stack.rooted)
        s.fill[(stack.pads[0] // FILL_ROWS, len(lanes))](
            scores, *norms, stack.potential(0), stack.potential(1), stack.sizes, out, lanes.start, *stack.pads,
            ROOTED=stack.rooted, ROWS=FILL_ROWS, BLOCK=FILL_BLOCK,
        )  # fmt: skip

    def _spread(self, stack: Any, lanes: range, side: int) -> tuple[Any, Any]:
        """Points of some lanes, centred and scaled, (lanes, pad, dim), and their squared norms, in float64."""
        cloud, pad = stack.clouds[side], stack.pads[side]
        out = torch.empty((len(lanes), pad, cloud.shape[2]), dtype=torch.float64, device=cloud.device)
        norms = torch.empty((len(lanes), pad), dtype=torch.float64, device=cloud.device)
        s.spread[(pad // SPREAD_ROWS, len(lanes))](
            cloud, cloud.stride(0), self.middle, stack.factors, stack.sizes, out, norms, stack.doubt, lanes.start,
            cloud.shape[2], pad, ROOTED=stack.rooted, SIDE=side, ROWS=SPREAD_ROWS, BLOCK=SPREAD_BLOCK,
        )  # fmt: skip
        return out, norms
