"""Conditional laws, compiled: direct differences in float64, blocks of rows shared by threads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from drainsinkhorn.backends.arrays import to_numpy
from drainsinkhorn.backends.costs import unit_rows
from drainsinkhorn.backends.couplings import Block, BlockCouplings, Matrix, Places, Side, Vector
from drainsinkhorn.backends.cpu import law_kernels as k
from drainsinkhorn.backends.cpu.layout import box
from drainsinkhorn.backends.cpu.threads import each
from drainsinkhorn.core.problem import Cost, Potentials, Problem


class CompiledLaws:
    """Laws from points that are centred and scaled so that squared distances (or distances) are scores in nats."""

    def __init__(self, side: Side) -> None:
        self._side = side
        cost = side.problem.cost
        if not isinstance(cost, Cost):
            self._dense = to_numpy(cost)
            return
        x, y, factor = side.points, side.others, cost.scale / side.problem.eps
        if cost.kind == "cosine":
            # 1 - cos is half the squared distance of unit vectors.
            x, y, factor = unit_rows(x), unit_rows(y), factor / 2
        # A point without weight may lie anywhere: it has no say in where the middle is.
        low, high = box(x[side.a > 0].T, y.T)
        middle, self._root = low / 2 + high / 2, cost.kind == "euclidean"
        scale = factor if self._root else math.sqrt(factor)
        self._x = np.ascontiguousarray(scale * (x - middle))
        self._y = np.ascontiguousarray((scale * (y - middle)).T)

    def block(self, rows: Places) -> Block:
        """Laws of some rows."""
        side = self._side
        law, logs = np.empty((rows.size, side.b.size)), np.empty(rows.size)
        if isinstance(side.problem.cost, Cost):
            scores = np.empty_like(law)
            k.scores(self._x, self._y, self._root, rows, scores)
        else:
            scores = self._dense[np.ix_(rows, side.cols)].astype(np.float64) / side.problem.eps
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
