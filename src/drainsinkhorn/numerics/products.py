"""Dot products as squared distances.

A plan for the cost `C = -s <x, y>` is one for `D = (s / 2) |x - y|^2`, since they differ by functions of one side:

    C_ij = D_ij - phi_i - psi_j,    phi_i = (s / 2) |x_i|^2,    psi_j = (s / 2) |y_j|^2

So potentials (f, g) under C are (f + phi, g + psi) under D. For `C = s <x, y>` the same holds with -y in place of y.
Squared distances do not change if both clouds are shifted by one vector, so backends centre them; dot products are then
computed as accurately as distances, and phi and psi carry everything that depends on the origin.

If a marginal is soft, `-<P 1, phi>` depends on P. Apart from a constant, the objective contains a only in
`-(eps + rho) <P 1, log a>`, so other weights absorb that term: the plan is the one under D for the same prices and

    a'_i = a_i exp(kappa lam phi_i),    f' = f + lam phi,    kappa lam = 1 / (eps + rho),    lam = rho / (eps + rho)

and likewise for b. At kappa = 0 this is the shift above. The targets of the marginals are equal,
`a' exp(-kappa f') = a exp(-kappa f)`, and so are residuals. All pairs (phi + t, psi - t) give the same plan. The t is
chosen so that the largest exponents of a' / a and of b' / b are equal; if one marginal is hard, both are 0.
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

LARGEST_EXPONENT = 80.0
"""Largest sum of the exponents of both weights: with a larger one, weights may leave the range of float32."""

SMALLEST_NORMAL = 2.0**-1022
"""The smallest positive float64 number that has all digits."""

_known: WeakKeyDictionary[Instance[Any], Instance[Any]] = WeakKeyDictionary()
"""Instances that are in use, as squared distances: signature, hints and pack of a problem share one."""


def has_products(instance: Instance[Any]) -> bool:
    """True if costs are dot products of points."""
    return instance.matrix is None and isinstance(instance.cost.kind, DotProduct)


def takes_gaussians(cost: Cost) -> bool:
    """True if a cost between points has plans between Gaussians in closed form: squared distances and dot products."""
    return is_squares(cost) or isinstance(cost.kind, DotProduct)


def as_squares(instance: Instance[Any]) -> Instance[Any]:
    """Return an instance of dot products as one of squared distances; any other as it is.

    Its plan for potentials shifted by `shift_potentials` is the plan of the dot products for the unshifted ones. Only
    between hard marginals is it the same problem: see `squares_to_solve`. Given starting potentials are shifted.
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


def squares_to_solve(instance: Instance[Any]) -> Instance[Any]:
    """Return the problem of squared distances with the same optimal plan as one of dot products; any other as it is.

    Its potentials are those of the dot products plus `shifts`, and so are given starting potentials; starts by name are
    those of the squared distances.
    """
    squares = as_squares(instance)
    if squares is instance or instance.marginals.are_hard:
        return squares
    solved = _known.get(squares)
    if solved is None:
        init = instance.init
        if isinstance(init, Potentials):
            init = Potentials(*(_add(side, shift) for side, shift in zip(init, shifts(instance), strict=True)))
        solved = _known[squares] = replace(squares, init=init, **_reweight(instance))
    return solved


def has_range(instance: Instance[Any]) -> bool:
    """True if the weights of dot products as squared distances are in range; hard marginals keep their weights.

    Positive weights must stay normal float64 numbers. Smaller ones have few digits, and some kernels read them as zero,
    although their points may carry much of the plan.
    """
    if instance.marginals.are_hard:
        return True
    if sum(_largest_exponents(instance)) > LARGEST_EXPONENT:
        return False
    changed = _reweight(instance)
    sides = ((instance.a, changed["a"]), (instance.b, changed["b"]))
    return all(float(weights[own > 0].min()) >= SMALLEST_NORMAL for own, weights in sides)


def weight_rounding(instance: Instance[Any]) -> float:
    """Bound on the relative rounding errors of both weights of squared distances, added; 0 for hard marginals."""
    return 0.0 if instance.marginals.are_hard else UNIT * (4 * sum(_largest_exponents(instance)) + 8)


@np.errstate(all="ignore")
def _reweight(instance: Instance[Any]) -> dict[str, Any]:
    """Return the weights of squared distances with the same optimal plan, where a marginal is soft."""
    a, b = (
        np.where(own > 0, own * np.exp(exponents), 0.0)
        for own, exponents in zip((instance.a, instance.b), _weight_exponents(instance), strict=True)
    )
    positive = instance.positive and bool(a.all() and b.all())
    return {"a": a, "b": b, "masses": (float(a.sum()), float(b.sum())), "uniform": False, "positive": positive}


def _weight_exponents(instance: Instance[Any]) -> tuple[Any, Any]:
    """Return `kappa lam (phi + t)` and `kappa lam (psi - t)`, NumPy vectors."""
    phi, psi = lengths(instance)
    t, (own, other) = translation_of_lengths(instance, phi, psi), _rates(instance)
    return own * (to_numpy(phi) + t), other * (to_numpy(psi) - t)


def _largest_exponents(instance: Instance[Any]) -> tuple[float, float]:
    """Return the largest absolute exponent of the weights of each side, among points with weight."""
    sides = zip(_weight_exponents(instance), (instance.a, instance.b), strict=True)
    row, col = (float(np.abs(exponents[own > 0]).max()) for exponents, own in sides)
    return row, col


def _rates(instance: Instance[Any]) -> tuple[float, float]:
    """`kappa lam = 1 / (eps + rho)` of both sides."""
    row, col = (side.kappa * side.damping(instance.eps) for side in instance.marginals)
    return row, col


def translation_of_lengths(instance: Instance[Any], phi: Any, psi: Any) -> float:
    """Return t, which is added to phi and subtracted from psi; 0 for hard marginals."""
    own, other = _rates(instance)
    if own + other == 0.0:
        return 0.0
    sides = zip((phi, psi), (instance.a, instance.b), strict=True)
    first, second = (float(to_numpy(length)[own > 0].max()) for length, own in sides)
    return (other * second - own * first) / (own + other)


def shift_potentials(instance: Instance[Any], potentials: Potentials[Any]) -> Potentials[Any]:
    """Return potentials of the same plan for squared distances and the same weights, in float64.

    Potentials for other costs are returned as they are.
    """
    if not has_products(instance):
        return potentials
    return Potentials(*(_add(side, shift) for side, shift in zip(potentials, lengths(instance), strict=True)))


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
    """Return `lam_a (phi + t)` (n,) and `lam_b (psi - t)` (m,), which are added to f and g, in float64.

    They are torch tensors if the points are on CUDA. Their errors are at most `shift_rounding` times the largest
    `phi + |t|` and `psi + |t|`.
    """
    phi, psi = lengths(instance)
    if instance.marginals.are_hard:
        return phi, psi
    t = translation_of_lengths(instance, phi, psi)
    row, col = (side.damping(instance.eps) for side in instance.marginals)
    return row * (phi + t), col * (psi - t)


@np.errstate(all="ignore")
def lengths(instance: Instance[Any]) -> tuple[Any, Any]:
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
