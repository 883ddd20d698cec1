"""Problems with x and y exchanged, so that code for rows also computes columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.numerics.costs import DotProduct, Matrix, PointCost, evaluate


@dataclass(frozen=True, slots=True)
class Turned(PointCost):
    """A caller's own kind with x and y exchanged, for problems whose sides are exchanged."""

    kind: PointCost

    def pairwise(self, x: Matrix, y: Matrix) -> Matrix:
        """All costs in float64."""
        return evaluate(self.kind, y, x).T

    def rounding(self, dim: int, largest: Any) -> Any:
        """Return the rounding bound of the caller's own cost."""
        return self.kind.rounding(dim, largest)

    def __str__(self) -> str:
        return str(self.kind)


def exchange_cost(cost: Cost) -> Cost:
    """The cost from y to x. Costs by name are symmetric; a caller's own cost need not be."""
    is_symmetric = cost.kind.distances is not None or isinstance(cost.kind, DotProduct)
    return cost if is_symmetric else replace(cost, kind=Turned(cost.kind))


def exchange_sides(instance: Instance[Any]) -> Instance[Any]:
    """The instance from y to x, started from zero."""
    x, y = instance.points
    sides = {"x": y, "y": x, "a": instance.b, "b": instance.a, "init": "zero"}
    if not instance.marginals.are_hard:
        sides |= {"marginals": instance.marginals.exchanged, "masses": instance.masses[::-1]}
    if instance.is_dense:
        return replace(instance, matrix=to_numpy(instance.matrix).T, **sides)
    return replace(instance, cost=exchange_cost(instance.cost), **sides)
