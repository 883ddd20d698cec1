"""A cost function of OTT as a kind of cost."""

# pyright: basic

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import numpy as np
from ott.geometry import costs

from drainsinkhorn.numerics.arrays import x64
from drainsinkhorn.numerics.costs import PointCost


@dataclass(frozen=True, slots=True)
class OttCost(PointCost):
    """Any `CostFn` of OTT. Equal where type and parameters are, so that problems with equal costs share packs."""

    fn: Any = field(compare=False)
    key: Hashable
    backend: ClassVar[str] = "ott"

    @property
    def forms(self) -> tuple[str, ...]:
        """Forms in which backends can compute this cost: only as a CostFn of OTT."""
        return ("cost_fn",)

    @classmethod
    def of(cls, fn: Any) -> OttCost:
        """A kind from a cost function."""
        leaves, tree = jax.tree.flatten(fn)
        plain = all(hasattr(leaf, "dtype") or isinstance(leaf, (int, float)) for leaf in leaves)
        values = tuple((np.shape(leaf), np.asarray(leaf).tobytes()) for leaf in leaves) if plain else id(fn)
        return cls(fn, (type(fn), str(tree), values))

    def pairwise(self, x: Any, y: Any) -> Any:
        """All costs in float64."""
        with x64(jax), jax.default_matmul_precision("highest"):
            return np.asarray(self.fn.all_pairs(jax.numpy.asarray(x), jax.numpy.asarray(y)), dtype=np.float64)

    def __str__(self) -> str:
        return type(self.fn).__name__


@jax.tree_util.register_pytree_node_class
class Flipped(costs.CostFn):
    """A cost with its arguments exchanged."""

    def __init__(self, fn: costs.CostFn) -> None:
        self.fn = fn

    def __call__(self, x: Any, y: Any) -> Any:
        """The cost from y to x."""
        return self.fn(y, x)

    def all_pairs(self, x: Any, y: Any) -> Any:
        """All costs at once."""
        return self.fn.all_pairs(y, x).T

    def tree_flatten(self) -> Any:
        """As a tree."""
        return (self.fn,), None


@jax.tree_util.register_pytree_node_class
class SumOverAxes(costs.CostFn):
    """The sum over coordinates of one cost per coordinate, as OTT's grids have it."""

    def __init__(self, each: Sequence[costs.CostFn]) -> None:
        self.each = tuple(each)

    def __call__(self, x: Any, y: Any) -> Any:
        """The cost from x to y."""
        return sum(fn(x[axis : axis + 1], y[axis : axis + 1]) for axis, fn in enumerate(self.each))

    def tree_flatten(self) -> Any:
        """As a tree."""
        return self.each, None

    @classmethod
    def tree_unflatten(cls, aux_data: Any, children: Any) -> SumOverAxes:
        """From a tree."""
        return cls(children)
