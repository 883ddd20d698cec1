"""Float64 log ratios of large lanes of many coordinates: inner products in blocks of rows, in place of differences.

A float64 product of matrices runs on tensor cores, and direct differences do not. Points are centred on the middle of
the box around both clouds, so no norm exceeds half of its diagonal D, and with the unit roundoff u

    C_ij / (eps ln 2) = |x_i|^2 + |y_j|^2 - 2 <x_i, y_j>

has an error of at most `(dim + 3) u (|x_i| + |y_j|)^2 <= (dim + 3) u D^2`, whatever the order of sums. The rounding
bound of direct differences, FLOAT64_BAND, is twice `(dim + 40) u D^2`, so it covers both.

Blocks are functions of the lane alone, and each lane has its own products, so its bits do not depend on its neighbours.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false
# Kernels are called through Triton, arrays through torch, which is loaded when this backend is.

from __future__ import annotations

from typing import Any

import torch

from drainsinkhorn.backends.triton.buffers import Buffers
from drainsinkhorn.backends.triton.kernels import blocks as kernels
from drainsinkhorn.backends.triton.kernels import columns as c
from drainsinkhorn.backends.triton.lanes import LaneSet, LaneTable
from drainsinkhorn.backends.triton.launching import Launch, prepared
from drainsinkhorn.backends.triton.layout import block_rows

COLUMNS, WARPS = 128, 4
"""Columns and warps of a tile of products."""


class BlockLegs:
    """Float64 legs, and log ratios of sampled rows, of lanes whose records have `in_blocks`."""

    def __init__(self, table: LaneTable, buffers: Buffers, *, momentum: bool) -> None:
        self._table, self._buffers, self._momentum = table, buffers, momentum

    def _points(self, place: int, side: int) -> Any:
        """Return centred and scaled points of a side, (dim, size)."""
        record = self._table.host[place]
        size, dim = int(record["size"][side]), int(record["dim"])
        return self._vector(place, "points64", c.POINTS64, side, dim * size).view(dim, size)

    def _vector(self, place: int, buffer: Any, column: Any, side: int, size: int) -> Any:
        start = self._table.offset(place, column.value + side)
        return (self._buffers[buffer] if isinstance(buffer, str) else buffer)[start : start + size]

    def sample(self, place: int, side: int, potentials: Any, out: Any) -> None:
        """Write log ratios of sampled rows to `out`: one for each of its entries, or of all rows if there are fewer.

        Args:
            place: Row of the lane.
            side: 0 for rows, 1 for columns.
            potentials: Potentials in bits, at the offsets POTENTIAL.
            out: A vector.
        """
        sizes = self._table.host["size"][place].tolist()
        count = min(sizes[side], len(out))
        rows = torch.arange(count, device=out.device) * sizes[side] // count
        own, other = self._points(place, side)[:, rows], self._points(place, 1 - side)
        f, g = (self._vector(place, potentials, c.POTENTIAL, which, sizes[which]) for which in (side, 1 - side))
        mass = self._vector(place, "vectors64", c.MASS, 1 - side, sizes[1 - side])
        costs = (_norms(own)[:, None] + _norms(other)).addmm_(own.T, other, alpha=-2.0).clamp_min_(0.0)
        exponents = torch.sub(g, costs, out=costs)
        largest = exponents.amax(1)
        terms = exponents.sub_(largest[:, None]).exp2_().mul_(mass)
        out[:count] = terms.sum(1).log2() + (largest + f[rows])

    def leg(
        self, lanes: LaneSet, side: int, role: Any, potentials: Any, vectors: Any, errors: Any, *, lockstep: bool,
        fused: bool, tile: int, block: int,
    ) -> Launch:  # fmt: skip
        """Return the launch of a leg of one lane; arguments are those of `Launcher.float64_leg`.

        Args:
            lanes: A set of one lane.
            side: 0 for rows, 1 for columns.
            role: MEASURED, APPLIED or CHECKED.
            potentials: Potentials in bits.
            vectors: Where log ratios are written.
            errors: Where parts of residuals are written.
            lockstep: The lane halts all others when it passes its stop.
            fused: The last program of the lane applies the leg.
            tile: Rows of a tile.
            block: Partial sums that are added at once.
        """
        (place,), buffers, table = lanes.places.tolist(), self._buffers, self._table
        own, other = self._points(place, side), self._points(place, 1 - side)
        size, other_size = own.shape[1], other.shape[1]
        step = block_rows(size, other_size)
        constants = {
            "SIDE": side, "ROLE": role.value, "BM": tile, "BN": COLUMNS, "LOCKSTEP": lockstep, "FUSED": fused,
            "MOMENTUM": fused and self._momentum, "SOFT": lanes.any_soft, "BLOCK": block, "num_warps": WARPS,
        }  # fmt: skip
        fixed = (
            buffers["vectors64"], potentials, vectors, errors, buffers["counters"], table.limits, table.halted
        )  # fmt: skip
        fields, rows, state = table.fields, lanes.rows, table.state

        def launch(stream: int) -> None:
            norms, other_norms = _norms(own), _norms(other)
            for first in range(0, size, step):
                end = min(size, first + step)
                products = torch.mm(own[:, first:end].T, other)
                prepared(
                    kernels.block_leg, (-(-(end - first) // tile),),
                    fields, rows, state, products, norms, other_norms, *fixed, first, end, **constants,
                )(stream)  # fmt: skip

        return launch


def _norms(points: Any) -> Any:
    """Return squared norms of points (dim, size)."""
    return torch.linalg.vector_norm(points, dim=0).square_()
