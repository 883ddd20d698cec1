"""Dot products as squared distances.

A plan for the cost `C = -s <x, y>` is one for `D = (s / 2) |x - y|^2`, since they differ by functions of one side:

    C_ij = D_ij - phi_i - psi_j,    phi_i = (s / 2) |x_i|^2,    psi_j = (s / 2) |y_j|^2

So potentials (f, g) under C are (f + phi, g + psi) under D. For `C = s <x, y>` the same holds with -y in place of y.
Squared distances do not change if both clouds are shifted by one vector, so backends centre them; dot products are then
computed as accurately as distances, and phi and psi carry everything that depends on the origin.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.numerics.arrays import library, on_cuda, to_numpy
from drainsinkhorn.numerics.costs import COSTS, UNIT, DotProduct, is_squares

_known: WeakKeyDictionary[Instance[Any], Instance[Any]] = WeakKeyDictionary()
"""Instances that are in use, as squared distances: signature, hints and pack of a problem share one."""


def has_products(instance: Instance[Any]) -> bool:
    """True if costs are dot products of points."""
    return instance.matrix is None and isinstance(instance.cost.kind, DotProduct)


def takes_gaussians(cost: Cost) -> bool:
    """True if a cost between points has plans between Gaussians in closed form: squared distances and dot products."""
    return is_squares(cost) or isinstance(cost.kind, DotProduct)


def as_squares(instance: Instance[Any]) -> Instance[Any]:
    """Return an instance of dot products as one of squared distances with the same plan; any other as it is.

    Given starting potentials are shifted; starts by name are those of the squared distances.
    """
    if not has_products(instance):
        return instance
    squares = _known.get(instance)
    if squares is None:
        cost, y = Cost(COSTS["sqeuclidean"], instance.cost.scale / 2), instance.y
        y = _negate(y) if instance.cost.kind.sign > 0 else y
        init = instance.init
        if isinstance(init, Potentials):
            init = shift_potentials(instance, init)
        squares = _known[instance] = replace(instance, y=y, cost=cost, init=init)
    return squares


def shift_potentials(instance: Instance[Any], potentials: Potentials[Any]) -> Potentials[Any]:
    """Return potentials of dot products as those of the squared distances, in float64; of other costs as they are."""
    if not has_products(instance):
        return potentials
    return Potentials(*(_add(side, shift) for side, shift in zip(potentials, shifts(instance), strict=True)))


def _negate(points: Any) -> Any:
    """Return -y: in its own dtype if that is a float, since the most negative integer has no opposite."""
    if library(points) == "torch":
        return -points.detach() if points.dtype.is_floating_point else -points.detach().double()
    if library(points) == "jax" and "float" in str(points.dtype):
        return -points
    array = to_numpy(points)
    return -array if array.dtype.kind == "f" else -array.astype(np.float64)


@np.errstate(all="ignore")
def shifts(instance: Instance[Any]) -> tuple[Any, Any]:
    """Return phi (n,) and psi (m,) in float64, `s / 2` times squared lengths: torch tensors if the points are on CUDA.

    Their relative error is at most `shift_rounding`.
    """
    half = instance.cost.scale / 2
    phi, psi = (half * _squared_lengths(points) for points in instance.points)
    return phi, psi


def _squared_lengths(points: Any) -> Any:
    if on_cuda(points):
        torch, points = sys.modules["torch"], points.detach()
        points = points if points.dtype.is_floating_point else points.double()
        return torch.linalg.vector_norm(points, dim=1, dtype=torch.float64).square()
    points = to_numpy(points).astype(np.float64, copy=False)
    return np.einsum("ij,ij->i", points, points)


def shift_rounding(dim: int) -> float:
    """Bound on the relative error of a squared length in `dim` coordinates, times a factor: `(d + 8) u`."""
    return (dim + 8) * UNIT


def _add(side: Any, shift: Any) -> Any:
    """Return potentials plus a shift in float64, where the shift lies."""
    if library(shift) != "torch":
        return to_numpy(side).astype(np.float64) + shift
    torch = sys.modules["torch"]
    side = side.detach() if library(side) == "torch" else to_numpy(side)
    return torch.as_tensor(side, device=shift.device).double() + shift
