"""The residual against the marginals of a dense plan, and its rounding bound against forty digits."""

from __future__ import annotations

import math
from decimal import Context, Decimal, localcontext

import numpy as np
import pytest

from drainsinkhorn.numerics.costs import UNIT
from drainsinkhorn.numerics.residual import SAFETY, exponent_rounding, residual, rounding_bound
from drainsinkhorn.numerics.update import log_ratios


def problem(n: int, m: int, seed: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    a, b = rng.dirichlet(np.full(n, 0.5)) + 1e-12, rng.dirichlet(np.ones(m))
    return rng.uniform(0, 3, size=(n, m)), a / a.sum(), b / b.sum(), rng.normal(size=n), rng.normal(size=m)


def test_it_is_the_distance_of_a_marginal_from_its_weights() -> None:
    cost, a, b, f, g = problem(9, 7, 0)
    plan = a[:, None] * b * np.exp((f[:, None] + g - cost) / 0.4)
    rows = math.fsum(abs(sum(plan[i]) - a[i]) for i in range(9))
    cols = math.fsum(abs(sum(plan[:, j]) - b[j]) for j in range(7))
    assert residual(a, log_ratios(f, g, np.log(b), cost / 0.4, 0.4)) == pytest.approx(rows, rel=1e-13)
    assert residual(b, log_ratios(g, f, np.log(a), cost.T / 0.4, 0.4)) == pytest.approx(cols, rel=1e-13)


def test_small_ratios_keep_their_digits() -> None:
    logs = np.array([1e-18, -1e-18])
    assert residual(np.array([0.5, 0.5]), logs) == 1e-18


def test_sums_may_be_taken_elsewhere_and_nan_stays() -> None:
    weights, logs = np.array([0.25, 0.75]), np.log([2.0, 0.5])
    assert residual(weights, logs, add=lambda terms: 10 * terms.sum()) == pytest.approx(10 * (0.25 + 0.375))
    assert math.isnan(residual(weights, np.array([0.0, np.nan])))


def test_the_bound_term_by_term() -> None:
    scaled, log_a, log_b = np.array([[1.0, -8.0, 3.0]]), np.log([1.0]), np.log([0.5, 0.25, 0.25])
    rounding = exponent_rounding(1e-15, 0.5, scaled, log_a, log_b)
    assert rounding == pytest.approx(2e-15 + UNIT * (8 + 1 + 3 + 4 * math.log(4)), rel=1e-12, abs=0)
    bound = rounding_bound(rounding, np.array([-6.0]), np.array([1.0, 2.0, 0.0]), 0.5)
    assert bound == pytest.approx(SAFETY * (rounding + 4 * UNIT * (6 + 2) / 0.5), rel=1e-12, abs=0)


def exact_residual(cost: np.ndarray, a: np.ndarray, b: np.ndarray, f: np.ndarray, g: np.ndarray, eps: float) -> float:
    """The row residual of these float64 numbers, computed with forty digits."""
    with localcontext(Context(prec=40)):
        total = Decimal(0)
        for i, own in enumerate(f):
            terms = (
                Decimal(b[j]) * ((Decimal(own) + Decimal(g[j]) - Decimal(cost[i, j])) / Decimal(eps)).exp()
                for j in range(len(b))
            )
            total += Decimal(a[i]) * abs(sum(terms) - 1)
        return float(total)


@pytest.mark.parametrize("shift", [0.0, 1e3, 1e7])
@pytest.mark.parametrize("eps", [0.5, 0.05, 0.005])
def test_no_residual_is_further_from_the_truth_than_its_bound(eps: float, shift: float) -> None:
    """Potentials after some cycles, moved along their gauge, which changes the plan by rounding alone."""
    worst = 0.0
    for seed in range(5):
        cost, a, b, f, g = problem(30, 20, seed)
        log_a, log_b, scaled = np.log(a), np.log(b), cost / eps
        for _ in range(30):
            f = f - eps * log_ratios(f, g, log_b, scaled, eps)
            g = g - eps * log_ratios(g, f, log_a, scaled.T, eps)
        f, g = f + shift, g - shift
        error = abs(residual(a, log_ratios(f, g, log_b, scaled, eps)) - exact_residual(cost, a, b, f, g, eps))
        bound = rounding_bound(exponent_rounding(0.0, eps, scaled, log_a, log_b), f, g, eps)
        assert error <= bound
        worst = max(worst, error / bound)
    # A bound far above every error would be of no use.
    assert worst > 1e-3
