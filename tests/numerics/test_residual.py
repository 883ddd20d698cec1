"""The residual against the marginals of a dense plan."""

from __future__ import annotations

import math

import numpy as np
import pytest

from drainsinkhorn.numerics.residual import residual
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
