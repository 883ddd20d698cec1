"""Conditional laws, compiled: in float64, blocks of rows shared by threads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from drainsinkhorn.backends.conditionals import PlainConditionals
from drainsinkhorn.backends.couplings import Block, BlockCouplings, Matrix, Places, Side, Vector
from drainsinkhorn.backends.cpu import law_kernels as k
from drainsinkhorn.backends.cpu.loading import EXPANDED_DIM, extent, lay_out
from drainsinkhorn.backends.cpu.resources import each
from drainsinkhorn.backends.cpu.tiles import DIRECT, EXPANDED, ROOT
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.numerics.costs import UNIT, unit_rows

SHARP = 1e-9
"""Nats by which expanding squares may move a score; where it could be more, as with points far out, they are not."""


class CompiledLaws:
    """Laws from points that are centred and scaled so that squared distances (or distances) are scores in nats."""

    def __init__(self, side: Side) -> None:
        self._side = side
        instance = side.instance
        if instance.is_dense:
            dense = to_numpy(instance.matrix)
            self._dense = dense if side.cols.size == dense.shape[1] else dense[:, side.cols]
            return
        form = instance.cost.kind.distances
        x, y, factor = side.points, side.others, instance.cost.scale / instance.eps * form.factor
        if form.directions:
            x, y = unit_rows(x), unit_rows(y)
        # A point without weight may lie anywhere: it has no say in where the middle is.
        (middle,), _ = extent(np.ascontiguousarray(x[side.a > 0])[None], np.ascontiguousarray(y)[None])
        root = form.root
        scale = factor if root else math.sqrt(factor)
        x, y = (np.ascontiguousarray(scale * (points - middle))[None] for points in (x, y))
        dim, origin = x.shape[2], np.zeros((1, x.shape[2]))
        layout = lay_out(x, y, origin)
        far = math.sqrt(layout.row_norms.max()) + math.sqrt(layout.panel_norms.max())
        expanded = not root and dim >= EXPANDED_DIM and (dim + 6) * UNIT * far * far <= SHARP
        self._kind = ROOT if root else EXPANDED if expanded else DIRECT
        self._x, self._norms, self._panels, self._others = (array[0] for array in layout)

    def block(self, rows: Places) -> Block:
        """Laws of some rows, in ascending order."""
        side = self._side
        shape = rows.size, side.b.size
        law, logs, scores = np.empty(shape), np.empty(rows.size), np.empty(shape)
        is_range = rows[-1] - rows[0] + 1 == rows.size
        places = slice(rows[0], rows[-1] + 1) if is_range else rows
        if not side.instance.is_dense:
            k.scores(self._kind, self._x[places], self._norms[places], self._panels, self._others, 1.0, scores)
        else:
            np.divide(self._dense[places], side.instance.eps, out=scores, dtype=np.float64)
        k.soften(scores, side.g, side.b, law, logs)
        return Block(law, logs + side.f[rows], scores)

    def mean(self, weights: Matrix, values: Matrix) -> Matrix:
        """`weights @ values`, on this thread alone."""
        out = np.empty((len(weights), values.shape[1]))
        k.mean(weights, np.ascontiguousarray(values.T), out)
        return out

    def draw(self, law: Matrix, rows: Places, numbers: Vector) -> Places:
        """Columns, by adding up to the number."""
        cols = np.empty(rows.size, dtype=np.int64)
        k.draw(law, rows, numbers, cols)
        return cols


def _laws(side: Side) -> CompiledLaws | PlainConditionals:
    """A cost of the caller's own is evaluated by NumPy, some rows at a time."""
    instance = side.instance
    is_own = not instance.is_dense and instance.cost.kind.distances is None
    return PlainConditionals(side) if is_own else CompiledLaws(side)


def compiled_couplings(
    instances: Sequence[Instance[Any]], potentials: Sequence[Potentials[Any]], threads: int
) -> BlockCouplings:
    """Finished plans whose rows are shared by threads."""
    return BlockCouplings(instances, potentials, _laws, lambda work, count: each(threads, work, count))
