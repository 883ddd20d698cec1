"""Residual of a side, and how far rounding in float64 can change it.

The residual of the rows is the L1 distance of the row marginal from a, `sum_i a_i |rho_i - 1|`, with log marginal
ratios `log rho_i` as in `numerics.update`. If every exponent has a rounding error of at most t nats, each `rho_i` is
wrong by a factor between `exp(-t)` and `exp(t)`, so the residual is wrong by at most about t times the mass of the
plan, which is near 1. Errors of sums and products are bounded as in Higham: Accuracy and stability of numerical
algorithms, 2002, chapters 3 and 4.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.numerics.costs import UNIT

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

SAFETY = 2.0
"""Factor on the worst-case rounding bound of a residual."""


def residual(weights: Vector, log_ratios: Vector, add: Callable[[Vector], float] = np.sum) -> float:
    """`sum_i a_i |rho_i - 1|`: the L1 distance of one marginal of the plan from its weights.

    Args:
        weights: Weights a of the side, (n,).
        log_ratios: Log marginal ratios of the side, (n,).
        add: Sums one value for each point of the side.
    """
    return float(add(weights * np.abs(np.expm1(log_ratios))))


def exponent_rounding(cost_rounding: float, eps: float, scaled_cost: Matrix, log_a: Vector, log_b: Vector) -> float:
    """Bound on the float64 rounding error of a log marginal ratio in nats, apart from that of potentials.

    With the unit roundoff u it is `cost_rounding / eps + u max|C / eps| + u (n + m) + 4 u (max|log a| + max|log b|)`:
    costs, their division by eps, sums of n or m terms in any order, and logarithms of weights.

    Args:
        cost_rounding: Bound on the absolute error of a cost.
        eps: Strength of the entropic term.
        scaled_cost: `C / eps`, (n, m).
        log_a: Logarithms of weights of rows, (n,).
        log_b: Logarithms of weights of columns, (m,).
    """
    rounding = cost_rounding / eps + UNIT * float(np.abs(scaled_cost).max())
    rounding += UNIT * sum(scaled_cost.shape)
    return rounding + 4 * UNIT * (float(np.abs(log_a).max()) + float(np.abs(log_b).max()))


def rounding_bound(rounding: float, f: Vector, g: Vector, eps: float) -> float:
    """Bound on the rounding error of a residual: `SAFETY (rounding + 4 u (max|f| + max|g|) / eps)`.

    Args:
        rounding: `exponent_rounding` of the problem.
        f: Potentials of rows, (n,).
        g: Potentials of columns, (m,).
        eps: Strength of the entropic term.
    """
    potentials = (float(np.abs(f).max()) + float(np.abs(g).max())) / eps
    return SAFETY * (rounding + 4 * UNIT * potentials)
