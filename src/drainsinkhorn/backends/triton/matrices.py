"""Cached exponents of stacked plans of many coordinates.

Split products of hundreds of coordinates, summed in float32, have larger errors than consumers allow. As a pack does, a
stack then keeps a float32 matrix instead, whose entries

    M_ij = f_i + g_j - C_ij / (eps ln 2) = log2(P_ij / (a_i b_j))

are computed in float64 and rounded last. Entries that carry mass are near zero: rounding changes a term by at most
2^-25 |M| ln 2 of it, a term far below one hardly counts, and none is above one over the smallest weight. Lanes whose
smallest weight is too small for this bound, or whose float64 inner products may have too large errors, are marked as
inaccurate. So no rows are probed.
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

from drainsinkhorn.backends.triton.kernels import layout as kernels
from drainsinkhorn.backends.triton.layout import SCRATCH_PAIRS, products

PART_PAIRS, KEPT_PAIRS, SLAB_PAIRS = 2**28, 2**30, 2**27
"""Most pairs of a stack, and most pairs that stacks keep together, 4 GiB. If there are more, each use computes the
matrices of a stack anew, which costs a fraction of doing without them. A single lane may have more than PART_PAIRS:
each use then computes its matrix in slabs of SLAB_PAIRS, one after another."""
CENTRE_ROWS, CENTRE_BLOCK = 16, 64
"""Points of a program that centres them, and coordinates it takes at once."""
FILL_ROWS, FILL_BLOCK = 8, 128
"""Rows of a program that fills matrices, and columns it takes at once."""


@dataclass
class Matrices:
    """Cached exponents of a stack, computed when they are first used.

    Attributes:
        shapes: True sizes of lanes.
        middle: Points on which clouds are centred, (L, dim).
        keep: Keep the matrices once they are computed.
        kept: (L, rows, columns), padded with zeros; None before they are computed.
    """

    shapes: Sequence[tuple[int, int]]
    middle: Any
    keep: bool
    kept: Any = None

    def part(self, some: Sequence[int], at: Any) -> Matrices:
        """Return the matrices of some lanes; `at` has their numbers on the device."""
        kept = None if self.kept is None else self.kept[at]
        return Matrices([self.shapes[i] for i in some], self.middle[at], self.keep, kept)

    def of(self, stack: Any) -> Any:
        """Return the matrices of a stack; mark lanes whose points are too far apart for float64."""
        if self.kept is not None:
            return self.kept
        matrices = torch.empty((len(self.shapes), *stack.pads), dtype=torch.float32, device=stack.sizes.device)
        dim, (rows, cols) = stack.clouds[0].shape[2], stack.pads
        step = max(1, SCRATCH_PAIRS // max(rows * cols, (rows + cols) * dim))
        for first in range(0, len(self.shapes), step):
            self._fill(stack, range(first, min(len(self.shapes), first + step)), matrices)
        if self.keep:
            self.kept = matrices
        return matrices

    def _fill(self, stack: Any, lanes: range, out: Any) -> None:
        """Compute products of lanes of one shape together, without padding, which may change their rounding."""
        (x, y), norms = zip(*(self._centre(stack, lanes, side) for side in (0, 1)), strict=True)
        scores = x.new_empty((len(lanes), stack.pads[0] * stack.pads[1]))
        for (n, m), alike in groupby(range(len(lanes)), key=lambda k: self.shapes[lanes[k]]):
            first, *more = alike
            part = slice(first, first + 1 + len(more))
            products(x[part, :n], y[part, :m], scores[part, : n * m].view(-1, n, m), rooted=stack.rooted)
        kernels.fill_exponents[(stack.pads[0] // FILL_ROWS, len(lanes))](
            scores, *norms, stack.potential(0), stack.potential(1), stack.sizes, out, lanes.start, *stack.pads,
            ROOTED=stack.rooted, ROWS=FILL_ROWS, BLOCK=FILL_BLOCK,
        )  # fmt: skip

    def _centre(self, stack: Any, lanes: range, side: int) -> tuple[Any, Any]:
        """Return points of some lanes, centred and scaled, (lanes, pad, dim), and their squared norms, in float64."""
        cloud, pad = stack.clouds[side], stack.pads[side]
        out = torch.empty((len(lanes), pad, cloud.shape[2]), dtype=torch.float64, device=cloud.device)
        norms = torch.empty((len(lanes), pad), dtype=torch.float64, device=cloud.device)
        kernels.centre_points[(pad // CENTRE_ROWS, len(lanes))](
            cloud, cloud.stride(0), self.middle, stack.factors, stack.sizes, out, norms, stack.inaccurate, lanes.start,
            cloud.shape[2], pad, ROOTED=stack.rooted, SIDE=side, ROWS=CENTRE_ROWS, BLOCK=CENTRE_BLOCK,
        )  # fmt: skip
        return out, norms
