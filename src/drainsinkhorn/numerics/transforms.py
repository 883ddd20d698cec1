"""What follows from potentials: potentials of further points, conditional distributions, and the costs of a plan.

Convention: `P_ij = a_i b_j exp((f_i + g_j - C_ij) / eps)`. The problem and its dual are

    min_P <C, P> + eps KL(P | a b'),        KL(P | Q) = sum_ij P_ij log(P_ij / Q_ij) - P_ij + Q_ij
    max_{f, g} <a, f> + <b, g> - eps (sum_ij P_ij - 1)

(Peyre and Cuturi: Computational optimal transport, 2019, sections 4.1, 4.4 and 5.3). Weights have mass 1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.model.couplings import TransportCost
from drainsinkhorn.numerics.soft import soft_dual_value
from drainsinkhorn.numerics.update import logsumexp

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


@np.errstate(all="ignore")
def c_transform(cost: Matrix, weights: Vector, potentials: Vector, eps: float) -> Vector:
    """The soft c-transform `-eps log sum_j w_j exp((h_j - C_ij) / eps)` of every row, (n,); 0 where it is not finite.

    It is the potential with which a point, new or without weight, has the marginal ratio 1.

    Args:
        cost: Costs of the points against those of the other side, (n, m).
        weights: Weights w of the other side, (m,).
        potentials: Potentials h of the other side, (m,).
        eps: Strength of the entropic term.
    """
    return transform_of_ratios(logsumexp(np.log(weights) + (potentials - cost) / eps), eps)


def transform_of_ratios(log_ratios: Vector, eps: float) -> Vector:
    """The soft c-transforms `-eps L` of points whose own potentials are 0, (n,); 0 where they are not finite.

    Args:
        log_ratios: Log marginal ratios L of the points, (n,).
        eps: Strength of the entropic term.
    """
    values = -eps * log_ratios
    return np.where(np.isfinite(values), values, 0.0)


def times_mass(mass: Vector, rows: Matrix) -> Matrix:
    """Return rows times their masses; zero for a row without mass, even if its values are not finite."""
    with np.errstate(all="ignore"):
        return np.where(mass[:, None] > 0, mass[:, None] * rows, 0.0)


@np.errstate(all="ignore")
def row_masses(weights: Vector, log_ratios: Vector) -> Vector:
    """Masses `sum_j P_ij = a_i rho_i` of rows, (n,); zero where there is no weight, whatever the ratio.

    Args:
        weights: Weights a of the rows, (n,).
        log_ratios: Log marginal ratios `log rho` of the rows, (n,).
    """
    return np.where(weights > 0, weights * np.exp(log_ratios), 0.0)


class SoftTerms(NamedTuple):
    """What soft marginals add to the costs of a plan, for both sides; see `numerics.soft`.

    Attributes:
        masses: Total weights.
        penalties: `penalty` of both sides.
        rewards: `penalised_mass` of both sides.
    """

    masses: tuple[float, float]
    penalties: tuple[float, float]
    rewards: tuple[float, float]


def mutual_information(kl: float, mass: float, masses: tuple[float, float], ratios: tuple[float, float]) -> float:
    """`KL(P / m | p q')` of a plan of mass m whose marginals, over m, are p and q: `H(p) + H(q) - H(P / m)`.

    With `P_ij = a_i b_j R_ij` it is `sum P log R / m + log m - sum p log r - sum q log c`.

    Args:
        kl: `KL(P | a b')`.
        mass: The mass m.
        masses: `m_a` and `m_b`.
        ratios: `sum_i p_i log r_i` and `sum_j q_j log c_j`, with r and c the marginal ratios.
    """
    return (kl + mass - masses[0] * masses[1]) / mass + float(np.log(mass)) - ratios[0] - ratios[1]


class Conditionals(NamedTuple):
    """Conditional distributions of some rows of a plan.

    Attributes:
        distributions: `P_ij / sum_j P_ij`, (k, m).
        log_ratios: Log marginal ratios of the rows, (k,).
    """

    distributions: Matrix
    log_ratios: Vector


def conditionals(own: Vector, other: Vector, weights: Vector, scaled_cost: Matrix) -> Conditionals:
    """Conditional distributions `w_j exp(other_j - C_ij / eps) / sum_j ...`, and log marginal ratios, of some rows.

    Args:
        own: Potentials of the rows over eps, (k,).
        other: Potentials of the other side over eps, (m,).
        weights: Positive weights w of the other side, (m,).
        scaled_cost: `C / eps`, (k, m).
    """
    exponents = other - scaled_cost
    largest = exponents.max(axis=1, keepdims=True)
    terms = weights * np.exp(exponents - largest)
    totals = terms.sum(axis=1, keepdims=True)
    return Conditionals(terms / totals, own + (np.log(totals) + largest)[:, 0])


def dual_value(eps: float, linear: float, mass: float) -> float:
    """The dual objective `<a, f> + <b, g> - eps (sum_ij P_ij - 1)`, never above the minimum of the problem.

    Args:
        eps: Strength of the entropic term.
        linear: `(<a, f> + <b, g>) / eps`.
        mass: `sum_ij P_ij`.
    """
    return eps * (linear - mass + 1)


def plan_costs(
    eps: float, mass: float, transport: float, entropy: float, linear: float, soft: SoftTerms | None = None
) -> TransportCost:
    """All costs of a plan: `<C, P>`, `KL(P | a b')`, the objective `<C, P> + eps KL`, and the dual objective.

    A soft marginal adds its price to the objective.

    Args:
        eps: Strength of the entropic term.
        mass: `sum_ij P_ij`.
        transport: `sum_ij P_ij C_ij / eps`.
        entropy: `sum_ij P_ij log(P_ij / (a_i b_j)) = sum_ij P_ij (f_i + g_j - C_ij) / eps`.
        linear: `(<a, f> + <b, g>) / eps`; not used with a soft marginal.
        soft: What a soft marginal adds.
    """
    if soft is not None:
        kl = entropy - mass + soft.masses[0] * soft.masses[1]
        dual, prices = soft_dual_value(eps, *soft.rewards, mass, soft.masses), sum(soft.penalties)
        return TransportCost(eps * transport, kl, eps * (transport + kl) + prices, dual, mass, prices)
    kl = entropy - mass + 1
    return TransportCost(eps * transport, kl, eps * (transport + kl), dual_value(eps, linear, mass), mass, 0.0)
