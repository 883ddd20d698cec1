"""Derivatives of the optimal value in everything that a problem consists of, of first and second order.

Let `D(theta; f, g)` be the dual objective (`numerics.soft.soft_dual_value`) as a function of the inputs theta (points
or costs, weights, eps, prices) and of the potentials. At the optimum its derivative in the potentials vanishes, so

    dV/dtheta = dD/dtheta                                      at fixed potentials (envelope theorem)
    (d^2 V/dtheta^2) w = d/dt (dD/dtheta)(theta + t w; f + t df, g + t dg)

where df and dg are what the optimality conditions `exp(-kappa f_i) = r_i` demand, for a motion w of the inputs. With
`R_ij = exp(E_ij)`, `E_ij = (f_i + g_j - C_ij) / eps` and `P = a b' R` they are

    a (r + eps kappa exp(-kappa f)) df + P dg = -eps a (dkappa f exp(-kappa f) + sum_j R_ij (db_j + b_j E0_ij))

and the same of the columns, with `E0 = -(dC + E deps) / eps` the motion of E at fixed potentials. The matrix on the
left is symmetric, and positive definite but for the gauge of two hard marginals (`grad.implicit` solves it).

Arrays are NumPy or torch, in float64. Names that begin with `d_` are motions, that is derivatives in t.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from drainsinkhorn.model.cost import Cost
from drainsinkhorn.numerics.costs import DotProduct

BLOCK_PAIRS = 2**20
"""Entries of a plan that are held at a time."""
SERIES = 1e-2
"""Below this `1 - (1 + t) exp(-t)` is its series up to t^7, above it a difference: both are right to twelve digits."""


def exponential(array: Any) -> Any:
    """`exp` of a NumPy array or a tensor."""
    return array.exp() if hasattr(array, "exp") else np.exp(array)


def weight_slope(potentials: Any, ratios: Any, kappa: float, eps: float, other_mass: float) -> Any:
    """`dV/da_i = rho (1 - exp(-kappa f_i)) - eps (r_i - m_b)`, (n,); f_i takes the place of the first term at kappa 0.

    Args:
        potentials: Potentials f of the side, (n,).
        ratios: Marginal ratios r of the side, (n,).
        kappa: The marginal's kappa.
        eps: Strength of the entropic term.
        other_mass: Mass of the other side's weights.
    """
    reward = potentials
    if kappa != 0.0:
        exponents = -kappa * potentials
        reward = -(exponents.expm1() if hasattr(exponents, "expm1") else np.expm1(exponents)) / kappa
    return reward - eps * (ratios - other_mass)


def price_slope(weights: Any, potentials: Any, kappa: float) -> Any:
    """`dV/drho = sum_i a_i (1 - (1 + kappa f_i) exp(-kappa f_i))`, which is `KL(P 1 | a)` at the optimum; 0 if hard.

    Args:
        weights: Weights a of the side, (n,).
        potentials: Potentials f of the side, (n,).
        kappa: The marginal's kappa.
    """
    t = kappa * potentials
    small = (abs(t) < SERIES) * 1.0
    series = t * t * (1 / 2 - t * (1 / 3 - t * (1 / 8 - t * (1 / 30 - t * (1 / 144 - t / 840)))))
    return (weights * (small * series + (1 - small) * (1 - (1 + t) * exponential(-t)))).sum()


def soft_diagonal(weights: Any, potentials: Any, kappa: float, eps: float) -> Any:
    """`eps kappa a_i exp(-kappa f_i)`, what a soft marginal adds to the diagonal of the system of potentials, (n,).

    Args:
        weights: Weights a of the side, (n,).
        potentials: Potentials f of the side, (n,).
        kappa: The marginal's kappa.
        eps: Strength of the entropic term.
    """
    return eps * kappa * weights * exponential(-kappa * potentials)


class Optimum(NamedTuple):
    """A problem and its optimal potentials, in float64.

    Attributes:
        points: Both clouds, (n, d) and (m, d); None with a matrix.
        matrix: Costs, (n, m); None with points.
        cost: The cost between points.
        eps: Strength of the entropic term.
        weights: a and b.
        kappas: Those of both marginals.
        potentials: f and g.
    """

    points: tuple[Any, Any] | None
    matrix: Any
    cost: Cost
    eps: float
    weights: tuple[Any, Any]
    kappas: tuple[float, float]
    potentials: tuple[Any, Any]


class _Block(NamedTuple):
    """Some rows of the plan: its density R, E, the motion of costs, and `1 / |x - y|` and its motion over it."""

    rows: slice
    density: Any
    exponents: Any
    d_cost: Any
    inverse: Any
    d_length: Any


class Motion:
    """A motion of the inputs of one problem, and with it that of its potentials and of the first derivatives.

    Args:
        at: The problem at its optimum.
        moved: Motions of inputs by their names: "x", "y", "cost", "a", "b", "eps", "rho_a", "rho_b". Others rest.
    """

    def __init__(self, at: Optimum, moved: Mapping[str, Any]) -> None:
        self._at = at
        self._d_eps = moved.get("eps", 0.0)
        self._d_weights = [moved.get(name, w * 0) for name, w in zip("ab", at.weights, strict=True)]
        prices = zip(at.kappas, ("rho_a", "rho_b"), strict=True)
        self._d_kappas = [-kappa * kappa * moved.get(name, 0.0) for kappa, name in prices]
        self._targets = [exponential(-k * h) for k, h in zip(at.kappas, at.potentials, strict=True)]
        self._d_matrix = moved.get("cost")
        self._form = None if at.points is None else at.cost.kind.distances
        if at.points is not None:
            self._d_points = [moved.get(name, p * 0) for name, p in zip("xy", at.points, strict=True)]
            # Coordinates of which the cost is a function: the points, or their directions.
            self._coordinates, self._d_coordinates = list(at.points), self._d_points
            if self._form is not None and self._form.directions:
                pairs = [_directions(p, d) for p, d in zip(at.points, self._d_points, strict=True)]
                self._coordinates, self._d_coordinates = [u for u, _ in pairs], [d for _, d in pairs]

    def _blocks(self) -> Iterator[_Block]:
        at, (f, g) = self._at, self._at.potentials
        step = max(1, BLOCK_PAIRS // len(g))
        for first in range(0, len(f), step):
            rows = slice(first, first + step)
            costs, d_cost, inverse, d_length = self._costs(rows)
            exponents = (f[rows, None] + g - costs) / at.eps
            yield _Block(rows, exponential(exponents), exponents, d_cost, inverse, d_length)

    def _costs(self, rows: slice) -> tuple[Any, Any, Any, Any]:
        """Costs of some rows, their motion, and for distances the two last fields of a block."""
        at = self._at
        if at.points is None:
            costs = at.matrix[rows]
            return costs, costs * 0 if self._d_matrix is None else self._d_matrix[rows], None, None
        (x, y), (d_x, d_y) = self._coordinates, self._d_coordinates
        x, d_x = x[rows], d_x[rows]
        if self._form is None:
            sign = self._factor
            return sign * (x @ y.T), sign * (d_x @ y.T + x @ d_y.T), None, None
        squares = products = x[:, :1] * 0 * y[None, :, 0]
        for k in range(x.shape[1]):
            difference = x[:, k, None] - y[None, :, k]
            squares = squares + difference * difference
            products = products + difference * (d_x[:, k, None] - d_y[None, :, k])
        if not self._form.root:
            return self._factor * squares, 2 * self._factor * products, None, None
        lengths = squares**0.5
        inverse = (lengths > 0) / (lengths + (lengths == 0))
        return self._factor * lengths, self._factor * products * inverse, inverse, products * inverse

    @property
    def _factor(self) -> float:
        """What multiplies dot products, distances or their squares."""
        kind = self._at.cost.kind
        return self._at.cost.scale * (kind.sign if isinstance(kind, DotProduct) else kind.distances.factor)

    def _own_motion(self, block: _Block) -> Any:
        """E0: the motion of E at fixed potentials."""
        return -(block.d_cost + block.exponents * self._d_eps) / self._at.eps

    def system(self) -> tuple[list[Any], list[Any]]:
        """Return the right sides of the system of potentials, and the sums over R in them, of rows and columns."""
        at, (a, b), (d_a, d_b) = self._at, self._at.weights, self._d_weights
        sums = [a * 0, b * 0]
        for block in self._blocks():
            moved = self._own_motion(block)
            sums[0][block.rows] = (block.density * (d_b + b * moved)).sum(1)
            sums[1] += (block.density * (d_a[block.rows, None] + a[block.rows, None] * moved)).sum(0)
        self._sums = [
            d_kappa * h * target + total
            for d_kappa, h, target, total in zip(self._d_kappas, at.potentials, self._targets, sums, strict=True)
        ]
        return [-at.eps * w * total for w, total in zip(at.weights, self._sums, strict=True)], sums

    def fill(self, d_potentials: tuple[Any, Any]) -> tuple[Any, Any]:
        """Return motions of potentials with those of points without weight, which the system leaves out."""
        at, (a, b), (d_f, d_g) = self._at, self._at.weights, d_potentials
        if bool((a > 0).all()) and bool((b > 0).all()):
            return d_potentials
        ratios, passed = [a * 0, b * 0], [a * 0, b * 0]
        for block in self._blocks():
            own = a[block.rows]
            ratios[0][block.rows], passed[0][block.rows] = block.density @ b, block.density @ (b * d_g)
            ratios[1] += own @ block.density
            passed[1] += (own * d_f[block.rows]) @ block.density
        filled: list[Any] = []
        for k, (w, d_own) in enumerate(zip(at.weights, d_potentials, strict=True)):
            diagonal = ratios[k] + at.eps * at.kappas[k] * self._targets[k]
            value = -(at.eps * self._sums[k] + passed[k]) / diagonal
            filled.append((w > 0) * d_own + (w == 0) * value)
        return filled[0], filled[1]

    def slopes(self, d_potentials: tuple[Any, Any]) -> dict[str, Any]:
        """Return motions of the first derivatives of the value, by the names of inputs.

        Args:
            d_potentials: Motions of f and g, from the system.
        """
        at, (a, b), (d_a, d_b) = self._at, self._at.weights, self._d_weights
        d_f, d_g = d_potentials
        motions = self._of_weights_and_prices(d_potentials)
        d_eps = (d_a.sum() * b.sum() + a.sum() * d_b.sum()) + 0.0
        clouds = None if at.points is None else _Gathering(self._coordinates, self._d_coordinates)
        d_plans: list[Any] = []
        for block in self._blocks():
            rows = block.rows
            moved = (d_f[rows, None] + d_g) / at.eps + self._own_motion(block)
            plan = a[rows, None] * b * block.density
            d_plan = block.density * (d_a[rows, None] * b + a[rows, None] * d_b) + plan * moved
            d_eps = d_eps + (d_plan * (block.exponents - 1) + plan * moved).sum()
            if clouds is None:
                d_plans.append(d_plan)
            elif self._form is None:
                clouds.add_products(rows, plan, d_plan)
            elif block.inverse is None:
                clouds.add_differences(rows, 2 * plan, 2 * d_plan)
            else:
                near = plan * block.inverse
                clouds.add_differences(rows, near, (d_plan - near * block.d_length) * block.inverse)
        motions["eps"] = d_eps
        if clouds is None:
            motions["cost"] = np.concatenate(d_plans) if isinstance(a, np.ndarray) else _concatenate(d_plans)
        else:
            motions |= dict(zip("xy", self._of_points(clouds), strict=True))
        return motions

    def _of_weights_and_prices(self, d_potentials: tuple[Any, Any]) -> dict[str, Any]:
        at, motions = self._at, dict[str, Any]()
        for k, name in enumerate("ab"):
            h, d_h, kappa, target = at.potentials[k], d_potentials[k], at.kappas[k], self._targets[k]
            # d(kappa f); and that of r, which is exp(-kappa f).
            d_t = kappa * d_h + self._d_kappas[k] * h
            d_ratios = -target * d_t
            motions[f"rho_{name}"] = at.weights[k].sum() * 0
            motions[name] = target * d_h
            if kappa > 0:
                motions[f"rho_{name}"] = (
                    self._d_weights[k] * (1 - (1 + kappa * h) * target) + at.weights[k] * kappa * h * target * d_t
                ).sum()
                # With drho = -dkappa / kappa^2.
                motions[name] = target * d_h - self._d_kappas[k] / kappa**2 * (1 - (1 + kappa * h) * target)
            other, d_other = at.weights[1 - k].sum(), self._d_weights[1 - k].sum()
            motions[name] = motions[name] - self._d_eps * (target - other) - at.eps * (d_ratios - d_other)
        return motions

    def _of_points(self, clouds: _Gathering) -> list[Any]:
        factor, motions = self._factor, list[Any]()
        for k in (0, 1):
            d_slope = factor * clouds.d_slopes[k]
            if self._form is not None and self._form.directions:
                # The slope J s of the points, with J = (I - u u') / |x|, and its motion.
                assert self._at.points is not None
                points, unit, d_unit = self._at.points[k], self._coordinates[k], self._d_coordinates[k]
                length, slope = (points * points).sum(1)[:, None] ** 0.5, factor * clouds.slopes[k]
                d_length = (unit * self._d_points[k]).sum(1)[:, None]
                along = (unit * slope).sum(1)[:, None]
                d_along = (d_unit * slope + unit * d_slope).sum(1)[:, None]
                tangent = slope - unit * along
                d_slope = (d_slope - d_unit * along - unit * d_along - tangent * d_length / length) / length
            motions.append(d_slope)
        return motions


class _Gathering:
    """Slopes of points, up to the factor of the cost, and their motions, added up block by block."""

    def __init__(self, points: list[Any], d_points: list[Any]) -> None:
        self._points, self._d_points = points, d_points
        self.slopes, self.d_slopes = [p * 0 for p in points], [p * 0 for p in points]

    def add_differences(self, rows: slice, weights: Any, d_weights: Any) -> None:
        """Add `sum_j W_ij (x_i - y_j)` and the same of columns, and their motions."""
        (x, y), (d_x, d_y) = self._points, self._d_points
        x, d_x = x[rows], d_x[rows]
        own, d_own = weights.sum(1)[:, None], d_weights.sum(1)[:, None]
        self.slopes[0][rows] = x * own - weights @ y
        self.d_slopes[0][rows] = d_x * own + x * d_own - weights @ d_y - d_weights @ y
        own, d_own = weights.sum(0)[:, None], d_weights.sum(0)[:, None]
        self.slopes[1] += y * own - weights.T @ x
        self.d_slopes[1] += d_y * own + y * d_own - weights.T @ d_x - d_weights.T @ x

    def add_products(self, rows: slice, weights: Any, d_weights: Any) -> None:
        """Add motions of `sum_j P_ij y_j` and of the same of columns."""
        (x, y), (d_x, d_y) = self._points, self._d_points
        self.d_slopes[0][rows] = d_weights @ y + weights @ d_y
        self.d_slopes[1] += d_weights.T @ x[rows] + weights.T @ d_x[rows]


def _directions(points: Any, d_points: Any) -> tuple[Any, Any]:
    """Directions of points, and their motions."""
    length = (points * points).sum(1)[:, None] ** 0.5
    unit = points / length
    return unit, (d_points - unit * (unit * d_points).sum(1)[:, None]) / length


def _concatenate(tensors: list[Any]) -> Any:
    """One tensor of several, one below the other."""
    joined = tensors[0].new_zeros((sum(len(tensor) for tensor in tensors), tensors[0].shape[1]))
    first = 0
    for tensor in tensors:
        joined[first : first + len(tensor)] = tensor
        first += len(tensor)
    return joined
