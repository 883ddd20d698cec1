"""Conditional laws, compiled: in float64, blocks of rows shared by threads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from drainsinkhorn.backends.couplings import Block, BlockCouplings, Matrix, Places, Side, Vector
from drainsinkhorn.backends.cpu import law_kernels as k
from drainsinkhorn.backends.cpu.layout import EXPANDED_DIM, extent, lay_out
from drainsinkhorn.backends.cpu.threads import each
from drainsinkhorn.backends.cpu.tiles import DIRECT, EXPANDED, ROOT
from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.numerics.costs import UNIT, unit_rows

SHARP = 1e-9
"""Nats by which expanding squares may move a score; where it could be more, as with points far out, they are not."""


class CompiledLaws:
    """Laws from points that are centred and scaled so that squared distances (or distances) are scores in nats."""

    def __init__(self, side: Side) -> None:
        self._side = side
        cost = side.problem.cost
        if not isinstance(cost, Cost):
            dense = to_numpy(cost)
            self._dense = dense if side.cols.size == dense.shape[1] else dense[:, side.cols]
            return
        x, y, factor = side.points, side.others, cost.scale / side.problem.eps
        if cost.kind == "cosine":
            # 1 - cos is half the squared distance of unit vectors.
            x, y, factor = unit_rows(x), unit_rows(y), factor / 2
        # A point without weight may lie anywhere: it has no say in where the middle is.
        (middle,), _ = extent(np.ascontiguousarray(x[side.a > 0])[None], np.ascontiguousarray(y)[None])
        root = cost.kind == "euclidean"
        scale = factor if root else math.sqrt(factor)
        x, y = (np.ascontiguousarray(scale * (points - middle))[None] for points in (x, y))
        dim, origin = x.shape[2], np.zeros((1, x.shape[2]))
        laid = lay_out(x, y, origin)
        far = math.sqrt(laid.row_norms.max()) + math.sqrt(laid.panel_norms.max())
        expanded = not root and dim >= EXPANDED_DIM and (dim + 6) * UNIT * far * far <= SHARP
        self._kind = ROOT if root else EXPANDED if expanded else DIRECT
        self._x, self._norms, self._panels, self._others = (array[0] for array in laid)

    def block(self, rows: Places) -> Block:
        """Laws of some rows, in ascending order."""
        side = self._side
        shape = rows.size, side.b.size
        law, logs, scores = np.empty(shape), np.empty(rows.size), np.empty(shape)
        whole = rows[-1] - rows[0] + 1 == rows.size
        some = slice(rows[0], rows[-1] + 1) if whole else rows
        if isinstance(side.problem.cost, Cost):
            k.scores(self._kind, self._x[some], self._norms[some], self._panels, self._others, 1.0, scores)
        else:
            np.divide(self._dense[some], side.problem.eps, out=scores, dtype=np.float64)
        k.soften(scores, side.g, side.b, law, logs)
        return Block(law, logs + side.f[rows], scores)

    def mean(self, weights: Matrix, values: Matrix) -> Matrix:
        """`weights @ values`, on this thread alone."""
        out = np.empty((len(weights), values.shape[1]))
        k.mean(weights, np.ascontiguousarray(values.T), out)
        return out

    def draw(self, law: Matrix, rows: Places, numbers: Vector) -> Places:
        """Columns, by adding up to the number."""
        found = np.empty(rows.size, dtype=np.int64)
        k.draw(law, rows, numbers, found)
        return found


def compiled_couplings(
    problems: Sequence[Problem[Any]], potentials: Sequence[Potentials[Any]], threads: int
) -> BlockCouplings:
    """Finished plans whose rows are shared by threads."""
    return BlockCouplings(problems, potentials, CompiledLaws, lambda work, count: each(threads, work, count))
