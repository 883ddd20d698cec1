"""Soft marginals: the residual, the translation step, the dual value, and what a state is certain to be near to.

The problem and its dual, with `kappa = 1 / rho` (0 for a hard marginal) and `lam = 1 / (1 + eps kappa)`, are

    min_P <C, P> + eps KL(P | a b') + rho_a KL(P 1 | a) + rho_b KL(P' 1 | b),    KL(p | q) = sum p log(p / q) - p + q
    max_{f, g} rho_a sum_i a_i (1 - exp(-kappa_a f_i)) + rho_b sum_j b_j (1 - exp(-kappa_b g_j)) - eps (m - m_a m_b)

where m is the mass of the plan, `m_a` and `m_b` those of the weights (Chizat, Peyre, Schmitzer, Vialard: Scaling
algorithms for unbalanced optimal transport problems, 2018; Sejourne, Feydy, Vialard, Trouve, Peyre: Sinkhorn
divergences for unbalanced optimal transport, 2019). With the marginal ratios `r_i = (P 1)_i / a_i`, a state is optimal
where `r_i = exp(-kappa f_i)` on both sides. The distance from that, in logarithms, is the L of the update rule:

    L_i = log r_i + kappa f_i,        f <- f - lam eps L            (`numerics.update.update`)

At kappa = 0 these are the formulas of hard marginals. Column ratios are c_j, and L' is that of the columns.

Adding t to f and subtracting it from g changes no plan, but what it costs where a marginal is soft. The slow mode of
the iteration is this translation, and it is known in closed form: `translation` (Sejourne, Vialard, Peyre: Faster
unbalanced optimal transport: translation invariant Sinkhorn and 1-D Frank-Wolfe, 2022).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.numerics.update import total

Vector = NDArray[np.float64]

SERIES = 1e-4
"""Below this `exp(-L) - 1 + L` is its series up to L^4, above it a difference: both are right to twelve digits."""
FARTHEST = 2.0**32
"""Largest translation over eps that is made: beyond it float64 resolves exponents too coarsely."""


def largest(values: Vector) -> float:
    """The largest of one value for each point of a side."""
    return float(np.max(values))


def log_deviations(log_ratios: Any, potentials: Any, kappa: Any) -> Any:
    """`L = log r + kappa f`, the leg of a side, (n,); the log ratios themselves where the marginal is hard.

    Args:
        log_ratios: Log marginal ratios `log r` of the side, (n,).
        potentials: Potentials f of the side, (n,).
        kappa: The marginal's kappa, times the unit of the potentials; or one for each point, (n,).
    """
    return log_ratios if isinstance(kappa, float) and kappa == 0.0 else log_ratios + kappa * potentials


def log_total(
    weights: Vector,
    exponents: Vector,
    add: Callable[[Vector], float] = total,
    most: Callable[[Vector], float] = largest,
) -> float:
    """`log sum_i w_i exp(e_i)`, in range whatever the exponents.

    Args:
        weights: Weights w, (n,).
        exponents: Exponents e, (n,).
        add: Sums one value for each point of the side.
        most: Takes the largest of one value for each point of the side.
    """
    top = most(exponents)
    return top + float(np.log(add(weights * np.exp(exponents - top))))


def deviation_terms(xp: Any, weights: Any, log_ratios: Any, potentials: Any, kappa: Any, top: Any) -> tuple[Any, Any]:
    """`a_i |r_i - exp(-kappa f_i)|` and `a_i r_i` of every point, both over `exp(top)`, (n,): the terms of a residual.

    Args:
        xp: The array library: NumPy, torch or JAX's NumPy.
        weights: Weights a of the side, (n,).
        log_ratios: Log marginal ratios `log r` of the side, (n,).
        potentials: Potentials f of the side, (n,).
        kappa: The marginal's kappa, times the unit of the potentials; or one for each point, (n,).
        top: The largest log ratio of the side, or of each point's lane, (n,).
    """
    deviations = log_deviations(log_ratios, potentials, kappa)
    # The larger of r and exp(-kappa f), times one minus their ratio.
    higher = xp.maximum(log_ratios, -kappa * potentials)
    missed = weights * xp.exp(higher - top) * -xp.expm1(-abs(deviations))
    return missed, weights * xp.exp(log_ratios - top)


class Deviation(NamedTuple):
    """How far a side of a soft problem is from optimal.

    Attributes:
        residual: `sum_i a_i |r_i - exp(-kappa f_i)| / m`, with m the mass of the plan, `sum_i a_i r_i`.
        log_mass: log m.
    """

    residual: float
    log_mass: float


def soft_residual(
    weights: Vector,
    log_ratios: Vector,
    potentials: Vector,
    kappa: float,
    add: Callable[[Vector], float] = total,
    most: Callable[[Vector], float] = largest,
) -> Deviation:
    """The residual of one side relative to the mass of the plan, `sum_i a_i |r_i - exp(-kappa f_i)| / sum_i a_i r_i`.

    The numerator is the L1 norm of the gradient of the dual on this side. The largest ratio is divided out first, so
    that a plan whose mass is out of the range of float64 has a residual too.

    Args:
        weights: Weights a of the side, (n,).
        log_ratios: Log marginal ratios `log r` of the side, (n,).
        potentials: Potentials f of the side, (n,).
        kappa: The marginal's kappa; 0 where it is hard.
        add: Sums one value for each point of the side.
        most: Takes the largest of one value for each point of the side.
    """
    top = most(log_ratios)
    missed, mass = map(add, deviation_terms(np, weights, log_ratios, potentials, kappa, top))
    return Deviation(float(np.divide(missed, mass)), top + float(np.log(mass)))


def translation(log_own: float, log_other: float, kappa: float, lam: float, kappa_other: float, eps: float) -> float:
    """`t = (log A - log B) / (kappa lam + kappa')`: the best translation `f + lam t`, `g - t` at a plain f-leg.

    It makes the masses that both marginals ask for equal after the f-leg that follows it; a leg with momentum takes the
    same t. 0 if both marginals are hard, or if it is out of range.

    Args:
        log_own: `log A`, `A = sum_i a_i exp(-kappa x_i)` with `x = f - lam eps L` after the plain leg; `log sum_i a_i`
            where the marginal is hard.
        log_other: `log B`, `B = sum_j b_j exp(-kappa' g_j)`; the mass of the plan where columns are exact, and
            `log sum_j b_j` where the marginal is hard.
        kappa: That of the rows.
        lam: Damping of the rows.
        kappa_other: That of the columns.
        eps: Strength of the entropic term.
    """
    slope = kappa * lam + kappa_other
    if slope == 0.0:
        return 0.0
    shift = (log_own - log_other) / slope
    # Written so that NaN counts as out of range.
    return shift if abs(shift) <= FARTHEST * eps else 0.0


def penalised_mass(weights: Vector, potentials: Vector, kappa: float) -> float:
    """`rho sum_i a_i (1 - exp(-kappa f_i))`, what a side adds to the dual; its limit `sum_i a_i f_i` if it is hard.

    Args:
        weights: Weights a of the side, (n,).
        potentials: Potentials f of the side, (n,).
        kappa: The marginal's kappa.
    """
    if kappa == 0.0:
        return float(weights @ potentials)
    return float(weights @ -np.expm1(-kappa * potentials)) / kappa


def penalty(weights: Vector, log_ratios: Vector, kappa: float) -> float:
    """`rho KL(P 1 | a) = rho sum_i a_i (r_i log r_i - r_i + 1)`, the price of a marginal; 0 where it is hard.

    Args:
        weights: Positive weights a of the side, (n,).
        log_ratios: Log marginal ratios `log r` of the side, (n,).
        kappa: The marginal's kappa.
    """
    if kappa == 0.0:
        return 0.0
    # r log r - r + 1 = r (exp(-L) - 1 + L) with L = log r.
    return float(weights @ _divergence(log_ratios, log_ratios)) / kappa


def soft_dual_value(eps: float, rows: float, cols: float, mass: float, masses: tuple[float, float]) -> float:
    """The dual objective: `rows + cols - eps (m - m_a m_b)`, never above the minimum of the problem.

    Args:
        eps: Strength of the entropic term.
        rows: `penalised_mass` of the rows.
        cols: `penalised_mass` of the columns.
        mass: The mass m of the plan.
        masses: `m_a` and `m_b`.
    """
    return rows + cols - eps * (mass - masses[0] * masses[1])


def debiasing_mass(eps: Any, masses: tuple[Any, Any]) -> Any:
    """`(eps / 2) (m_a - m_b)^2`, what unequal masses add to a Sinkhorn divergence with soft marginals.

    With it the divergence of a measure from another one is not negative (Sejourne and others, 2019, definition 7).

    Args:
        eps: Strength of the entropic term: a number, or an array of another library.
        masses: `m_a` and `m_b`, in the same form.
    """
    return eps / 2 * (masses[0] - masses[1]) ** 2


def _divergence(log_deviations: Vector, log_ratios: Vector) -> Vector:
    """`r (exp(-L) - 1 + L)`, which is not negative, without cancellation and in range for every L."""
    ratios, distance = np.exp(log_ratios), np.abs(log_deviations)
    series = log_deviations * log_deviations * (0.5 - log_deviations / 6 + log_deviations**2 / 24)
    clipped = np.clip(log_deviations, -1, 1)
    near = ratios * np.where(distance < SERIES, series, np.expm1(-clipped) + clipped)
    far = np.exp(log_ratios - log_deviations) + np.where(ratios > 0, ratios * (log_deviations - 1), 0.0)
    return np.where(distance < 1, near, far)


def duality_gap(weights: Vector, log_ratios: Vector, potentials: Vector, kappa: float, rounding: float = 0.0) -> float:
    """What one soft side adds to the duality gap, `rho sum_i a_i r_i (exp(-L_i) - 1 + L_i)`; every term is >= 0.

    The sum over both sides is the primal objective of the plan less the dual one of its potentials, if every hard
    marginal is exact. It bounds `E(P) - E*`, which is `eps KL(P | P*)` and the same of both soft marginals.

    Args:
        weights: Weights a of the side, (n,).
        log_ratios: Log marginal ratios of the side, (n,).
        potentials: Potentials of the side, (n,).
        kappa: The marginal's kappa; a hard side adds nothing.
        rounding: A bound on the error of each L in nats, by which |L| is raised.
    """
    if kappa == 0.0:
        return 0.0
    deviations = log_deviations(log_ratios, potentials, kappa)
    raised = deviations + np.copysign(rounding, deviations)
    return float(weights @ _divergence(raised, log_ratios + rounding)) / kappa


def leg_gain(weights: Vector, log_ratios: Vector, eps: float) -> float:
    """What a plain leg of a hard side adds to the dual value, `eps sum_i a_i (r_i - 1 - log r_i)`; it is not negative.

    Args:
        weights: Weights a of the side, (n,).
        log_ratios: Log marginal ratios of the side before the leg, (n,).
        eps: Strength of the entropic term.
    """
    return eps * float(weights @ _divergence(-log_ratios, np.zeros_like(log_ratios)))


def balanced_gap(missed: float, spread: float, oscillation: float) -> float:
    """The bound on `D* - D` of two hard marginals where rows are exact: `R (osc(g*) + osc(g)) / 2`.

    The dual is concave, its gradient over the rows is zero, and that over the columns sums to zero with the L1 norm R.

    Args:
        missed: R, `sum_j |(P' 1)_j - b_j|`.
        spread: A bound on osc(g*), the difference of its extremes: `max_i (max_j C_ij - min_j C_ij)`.
        oscillation: osc(g).
    """
    return missed * (spread + oscillation) / 2


def plan_distance(gap: float, mass: float, eps: float) -> float:
    """The bound on `|P - P*|_1` that follows from a gap, `2 G / 3 + sqrt((2 G / 3)^2 + 2 m G)` with `G = gap / eps`.

    A gap bounds `eps KL(P | P*)` or `eps KL(P* | P)`. This is Pinsker's inequality for measures of any mass, which
    follows from `KL(p | q) >= 3 |p - q|^2 / (2 p + 4 q)` for numbers and the inequality of Cauchy and Schwarz.

    Args:
        gap: Bound on the divergence, times eps.
        mass: Mass m of the plan.
        eps: Strength of the entropic term.
    """
    nats = gap / eps
    return 2 * nats / 3 + math.sqrt((2 * nats / 3) ** 2 + 2 * mass * nats)


def potential_distance(log_deviations: Vector, rhos: tuple[float, float], eps: float) -> float:
    """The bound on `max_i |f_i - f*_i|` where columns are exact, `rho_a (rho_b + eps) / (rho_a + rho_b + eps) max|L|`.

    It is the limit where a price is infinite: `rho_a max|L|` for hard columns, `(rho_b + eps) max|L|` for hard rows.
    Infinite if both marginals are hard, where f is determined only up to a constant.

    Args:
        log_deviations: L of the rows, (n,).
        rhos: Prices of both marginals.
        eps: Strength of the entropic term.
    """
    own, other = rhos
    factor = 1 / (1 / own + 1 / (other + eps)) if min(rhos) < math.inf else math.inf
    return factor * float(np.abs(log_deviations).max())


def soft_exponents(kappa: float, potential: float) -> float:
    """A bound on the float64 rounding error of `exp(-kappa f_i)`, relative, over u: `2 kappa max|f| + 4`; 0 if hard.

    Args:
        kappa: The marginal's kappa.
        potential: max|f|.
    """
    return 0.0 if kappa == 0.0 else 2 * kappa * potential + 4
