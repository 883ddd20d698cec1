"""OTT's soft marginals, whose entropic term counts points, as soft marginals of this library.

OTT minimises `<C, P> + eps KL(P | 1 1') + rho_a KL(P 1 | a) + rho_b KL(P' 1 | b)` with `rho = eps tau / (1 - tau)`. The
terms with log a are `-rho <P 1, log a>` there, and `-(eps + rho) <P 1, log w>` here for weights w. So its plan is the
plan of the same costs and prices with the weights `w = a^tau`, and what both marginals are compared with is equal:
`w exp(-f / rho) = a exp(-F / rho)`, with OTT's potential `F = f + eps tau log a`.
"""

# pyright: basic
# OTT's own types are narrower than what it takes.

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from ott.problems.linear.linear_problem import LinearProblem

from drainsinkhorn.model.errors import ProblemError
from drainsinkhorn.numerics.soft import penalised_mass, soft_dual_value

Vector = NDArray[np.float64]


def weights_of(problem: LinearProblem) -> tuple[Vector, Vector]:
    """Return a and b in float64."""
    a, b = (np.asarray(weights, dtype=np.float64) for weights in (problem.a, problem.b))
    return a, b


def taus_of(problem: LinearProblem, place: int) -> tuple[float, float]:
    """Return `tau_a` and `tau_b`; ProblemError if they are not above 0 and at most 1."""
    taus = float(problem.tau_a), float(problem.tau_b)
    for name, tau in zip(("tau_a", "tau_b"), taus, strict=True):
        if not 0 < tau <= 1:
            raise ProblemError(f"problem {place} has {name}={tau!r}, which must be above 0 and at most 1 (hard)")
    return taus


def price(tau: float, eps: float) -> float:
    """Return `rho = eps tau / (1 - tau)`, infinite for tau = 1."""
    return math.inf if tau == 1 else eps * tau / (1 - tau)


def dual_cost(problem: LinearProblem, f: Vector, g: Vector) -> float:
    """Return OTT's `reg_ot_cost` of a problem with a soft marginal, for its own potentials, rows exact.

    It is the dual value for f - eps log a and g - eps log b. A plan whose rows are exact has the mass
    `sum_i a_i exp(-f_i / rho_a)`, so that no pass over the costs is needed.
    """
    eps, taus, weights = float(problem.epsilon), taus_of(problem, 0), weights_of(problem)
    kappas = [1 / price(tau, eps) for tau in taus]
    rewards = list[float]()
    for side, weight, kappa in zip((f, g), weights, kappas, strict=True):
        held = weight > 0
        rewards.append(penalised_mass(weight[held], side[held] - eps * np.log(weight[held]), kappa))
    held = weights[0] > 0
    mass = float(weights[0][held] @ np.exp(-kappas[0] * f[held]))
    return soft_dual_value(eps, rewards[0], rewards[1], mass, (float(weights[0].sum()), float(weights[1].sum())))
