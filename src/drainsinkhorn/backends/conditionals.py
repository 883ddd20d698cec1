"""Conditional distributions in plain NumPy: those of the reference backend, and of backends without compiled ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from drainsinkhorn.backends.couplings import Block, BlockCouplings, Matrix, Places, Side, Vector
from drainsinkhorn.backends.draws import invert
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.numerics.costs import cost_matrix
from drainsinkhorn.numerics.transforms import conditionals


class PlainConditionals:
    """Conditional distributions from costs by direct differences, in float64."""

    def __init__(self, side: Side) -> None:
        self._side = side
        instance = side.instance
        if not instance.is_dense:
            self._x = to_numpy(instance.x)
            self._instance = replace(instance, y=side.others)
        else:
            self._dense = to_numpy(instance.matrix)

    def block(self, rows: Places) -> Block:
        """The block of these rows."""
        side = self._side
        if not side.instance.is_dense:
            scaled_costs = cost_matrix(replace(self._instance, x=self._x[rows]))[0] / side.instance.eps
        else:
            scaled_costs = self._dense[np.ix_(rows, side.cols)].astype(np.float64) / side.instance.eps
        return Block(*conditionals(side.f[rows], side.g, side.b, scaled_costs), scaled_costs)

    def mean(self, weights: Matrix, values: Matrix) -> Matrix:
        """`weights @ values`."""
        return weights @ values

    def draw(self, conditionals: Matrix, rows: Places, numbers: Vector) -> Places:
        """Draw columns, row by row."""
        columns = np.empty(rows.size, dtype=np.int64)
        for row in np.unique(rows):
            mine = rows == row
            columns[mine] = invert(conditionals[row], numbers[mine])
        return columns


def plain_couplings(instances: Sequence[Instance[Any]], potentials: Sequence[Potentials[Any]]) -> BlockCouplings:
    """Finished plans in plain NumPy."""
    return BlockCouplings(instances, potentials, PlainConditionals)
