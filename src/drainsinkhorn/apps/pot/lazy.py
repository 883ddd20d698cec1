"""Plans of which only the indexed entries are computed."""

from __future__ import annotations

from dataclasses import replace
from types import EllipsisType
from typing import Any

import numpy as np

from drainsinkhorn.apps.pot.arguments import export
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.model.result import Result

Index = int | slice | EllipsisType


class LazyPlan:
    """The plan of a finished problem, computed from its potentials where it is indexed: `lazy[3]`, `lazy[:100, 5:9]`.

    Attributes:
        shape: Points on each side, (n, m).
    """

    def __init__(self, result: Result[Any], mass: float, like: Any) -> None:
        self._result, self._mass, self._like = result, mass, like
        self._instance = result.instance
        self.shape = self._instance.shape

    def __len__(self) -> int:
        """The number of rows."""
        return self.shape[0]

    def __getitem__(self, key: Index | tuple[Index, ...]) -> Any:
        """Return the entries of a row, of a slice of rows, or of both rows and columns, as a dense array."""
        keys: list[Any] = list(key) if isinstance(key, tuple) else [key]
        place = keys.index(Ellipsis) if Ellipsis in keys else len(keys)
        indices = [k for k in keys if k is not Ellipsis]
        if len(indices) > 2 or not all(isinstance(k, (int, np.integer, slice)) for k in indices):
            raise IndexError(f"a lazy plan takes one or two integers or slices, got {key!r}")
        keys = indices[:place] + [slice(None)] * (2 - len(indices)) + indices[place:]
        rows, cols = (_as_slice(k, size) for k, size in zip(keys, self.shape, strict=True))
        block = self._block(rows, cols)
        return block[tuple(slice(None) if isinstance(k, slice) else 0 for k in keys)]

    def _block(self, rows: slice, cols: slice) -> Any:
        """The plan between some points of both sides: potentials and weights stay those of the whole problem."""
        instance, (f, g) = self._instance, self._result.potentials
        a, b = instance.a[rows], instance.b[cols]
        if instance.matrix is None:
            x: Any = instance.x
            y: Any = instance.y
            subproblem = replace(instance, x=x[rows], y=y[cols], a=a, b=b, init="zero")
        else:
            matrix: Any = instance.matrix
            subproblem = replace(instance, matrix=matrix[rows, cols], a=a, b=b, init="zero")
        if not (a.any() and b.any()):
            return export(np.zeros(subproblem.shape), self._like)
        plans = self._result.backend.couple([subproblem], [Potentials(f[rows], g[cols])])
        block = plans.plan(max_pairs=a.size * b.size)[0]
        return export(block if self._mass == 1 else block * self._mass, self._like)


def _as_slice(key: Any, size: int) -> slice:
    """Return an integer or a slice as a slice with positive steps; IndexError if it is out of range."""
    if isinstance(key, slice):
        start, stop, step = key.indices(size)
        if step < 1 or stop <= start:
            raise IndexError(f"a lazy plan takes slices with positive steps and at least one entry, got {key}")
        return slice(start, stop, step)
    place = range(size)[key]
    return slice(place, place + 1)
