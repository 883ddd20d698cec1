"""Plan kernels: conditional distributions of rows of a finished plan, means under them, and samples from them.

All in float64; `compiled_couplings` shares blocks of rows among threads.
"""

# pyright: reportCallIssue=false

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from drainsinkhorn.backends.conditionals import PlainConditionals
from drainsinkhorn.backends.couplings import Block, BlockCouplings, Matrix, Places, Side, Vector
from drainsinkhorn.backends.cpu.precision import plan_form
from drainsinkhorn.backends.cpu.primitives import dot, exp, maximum, ordered
from drainsinkhorn.backends.cpu.resources import each, empty_in_pool
from drainsinkhorn.backends.cpu.scores import extent, lay_out, score_matrix
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.numerics.costs import unit_rows


@ordered
def conditional_rows(scores, g, b, distributions, logs):
    """Write `b_j exp(g_j - s_kj)` over the sum of its row, and the logarithm of that sum.

    Implements `numerics.transforms.conditionals` with own potentials 0.
    """
    for k in range(logs.size):
        s, p = scores[k], distributions[k]
        for j in range(g.size):
            p[j] = g[j] - s[j]
        largest = maximum(p)
        for j in range(g.size):
            p[j] = exp(p[j] - largest)
        total = dot(p, b)
        for j in range(g.size):
            p[j] *= b[j] / total
        logs[k] = np.log(total) + largest


@ordered
def mean_rows(weights, values, out):
    """`out = weights @ values.T`; values are (c, m)."""
    for c in range(values.shape[0]):
        v = values[c]
        for k in range(weights.shape[0]):
            out[k, c] = dot(weights[k], v)


@ordered
def draw_columns(distributions, rows, numbers, out):
    """Write the first column at which the cumulative sum of a row passes its number times the row's sum."""
    cols = distributions.shape[1]
    for k in range(rows.size):
        p = distributions[rows[k]]
        total = 0.0
        for j in range(cols):
            total += p[j]
        target, passed, column = numbers[k] * total, 0.0, -1
        for j in range(cols):
            passed += p[j]
            if passed > target:
                column = j
                break
        if column < 0:
            # By rounding the sum never passed the number: the last column that has any mass.
            column = cols - 1
            while column > 0 and p[column] == 0:
                column -= 1
        out[k] = column


class CompiledConditionals:
    """Conditional distributions from points that are centred and scaled so that (squared) distances are scores."""

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
        # A point without weight may lie anywhere, so the middle does not depend on it.
        (middle,), _ = extent(np.ascontiguousarray(x[side.a > 0])[None], np.ascontiguousarray(y)[None])
        scale = factor if form.root else math.sqrt(factor)
        x, y = (np.ascontiguousarray(scale * (points - middle))[None] for points in (x, y))
        layout = lay_out(x, y, np.zeros((1, x.shape[2])))
        self._form = plan_form(instance, math.sqrt(layout.row_norms.max()) + math.sqrt(layout.panel_norms.max()))
        self._x, self._norms, self._panels, self._others = (array[0] for array in layout)

    def block(self, rows: Places) -> Block:
        """Conditional distributions of some rows, in ascending order."""
        side = self._side
        shape = rows.size, side.b.size
        distributions, logs, scores = empty_in_pool(*shape), np.empty(rows.size), empty_in_pool(*shape)
        is_range = rows[-1] - rows[0] + 1 == rows.size
        places = slice(rows[0], rows[-1] + 1) if is_range else rows
        if not side.instance.is_dense:
            score_matrix(self._form, self._x[places], self._norms[places], self._panels, self._others, 1.0, scores)
        else:
            np.divide(self._dense[places], side.instance.eps, out=scores, dtype=np.float64)
        conditional_rows(scores, side.g, side.b, distributions, logs)
        return Block(distributions, logs + side.f[rows], scores)

    def mean(self, weights: Matrix, values: Matrix) -> Matrix:
        """`weights @ values`, on this thread alone."""
        out = np.empty((len(weights), values.shape[1]))
        mean_rows(weights, np.ascontiguousarray(values.T), out)
        return out

    def draw(self, law: Matrix, rows: Places, numbers: Vector) -> Places:
        """Draw columns by inverting cumulative sums of rows."""
        cols = np.empty(rows.size, dtype=np.int64)
        draw_columns(law, rows, numbers, cols)
        return cols


def _conditionals(side: Side) -> CompiledConditionals | PlainConditionals:
    """Return the conditional distributions of a side: compiled, or in NumPy if the cost is the caller's own."""
    instance = side.instance
    is_own = not instance.is_dense and instance.cost.kind.distances is None
    return PlainConditionals(side) if is_own else CompiledConditionals(side)


def compiled_couplings(
    instances: Sequence[Instance[Any]], potentials: Sequence[Potentials[Any]], threads: int
) -> BlockCouplings:
    """Finished plans whose rows are shared by threads."""
    return BlockCouplings(instances, potentials, _conditionals, lambda work, count: each(threads, work, count))
