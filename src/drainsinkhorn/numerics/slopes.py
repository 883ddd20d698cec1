"""Derivatives of transport costs with respect to points, at a fixed plan: for NumPy and torch."""

from __future__ import annotations

from typing import Any

from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.errors import ProblemError
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.numerics.costs import DotProduct


def slope(cost: Cost, x: Any, mass: Any, means: Any) -> Any:
    """`sum_j P_ij w_j dC(x_i, y_j)/dx_i` of squared distances and of dot products.

    With C = s |x - y|^2 the sum is `2 s m_i (W_i x_i - Y_i)`. Of directions, u = x / |x| has the derivative
    `(1 - u u') / |x|`, so that the sum is `-2 s m_i / |x_i| (Y_i - (u_i' Y_i) u_i)`. With C = s x'y it is `s m_i Y_i`.

    Args:
        cost: The cost.
        x: Points, (n, d).
        mass: Masses m of the rows of the plan, (n,).
        means: Means of w y and of w under each row's conditional distribution, Y and W: (n, d + 1).
    """
    form, (mean, total) = cost.kind.distances, (means[:, :-1], means[:, -1:])
    if form is None:
        return cost.scale * cost.kind.sign * mass[:, None] * mean
    if not form.directions:
        return 2 * (cost.scale * form.factor) * mass[:, None] * (total * x - mean)
    length = (x * x).sum(axis=1, keepdims=True) ** 0.5
    unit = x / length
    factor = -2 * (cost.scale * form.factor)
    return factor * mass[:, None] / length * (mean - (unit * mean).sum(axis=1, keepdims=True) * unit)


def slope_of_distances(cost: Cost, eps: float, x: Any, mass: Any, near: Any) -> Any:
    """`sum_j P_ij w_j dC(x_i, y_j)/dx_i` of distances, `s sum_j P_ij w_j (x_i - y_j) / |x_i - y_j|`.

    Args:
        cost: The cost.
        eps: What scaled costs were divided by.
        x: Points, (n, d).
        mass: Masses of the rows of the plan, (n,).
        near: Means of w y / c and of w / c, where c is the scaled cost: (n, d + 1).
    """
    factor = (cost.scale * cost.kind.distances.factor) ** 2 / eps
    return factor * mass[:, None] * (x * near[:, -1:] - near[:, :-1])


def require_slope(instance: Instance[Any]) -> None:
    """Raise ProblemError if the derivative of the cost is not known."""
    if instance.is_dense or isinstance(instance.cost.kind, DotProduct):
        return
    form = instance.cost.kind.distances
    if form is None or (form.root and form.directions):
        raise ProblemError(f"the slope of the cost {instance.cost.kind} is not known; gradients need a cost by name")
