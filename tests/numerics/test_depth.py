"""The correlation behind predicted depths against Sinkhorn between two Gaussians on a grid."""

from __future__ import annotations

import math

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.numerics.depth import correlation, predicted_depth
from drainsinkhorn.numerics.residual import residual
from drainsinkhorn.numerics.update import log_ratios, update
from drainsinkhorn.run.validate import validate


@pytest.mark.parametrize(("sigma", "tau", "eps"), [(1.0, 1.0, 1.0), (1.0, 0.5, 0.5), (0.7, 1.5, 3.0)])
def test_a_cycle_multiplies_the_error_by_the_squared_correlation(sigma: float, tau: float, eps: float) -> None:
    x, y = (np.linspace(-6 * s, 6 * s, 161) for s in (sigma, tau))
    a, b = np.exp(-((x / sigma) ** 2) / 2), np.exp(-((y / tau) ** 2) / 2)
    a, b = a / a.sum(), b / b.sum()
    scaled = (x[:, None] - y) ** 2 / eps
    # An asymmetric start, since the slowest mode is odd.
    f, g, errors = np.zeros(161), 0.3 * y, list[float]()
    while not errors or errors[-1] > 1e-9:
        logs = log_ratios(f, g, np.log(b), scaled, eps)
        errors.append(residual(a, logs))
        f = update(f, logs, eps)[0]
        g = update(g, log_ratios(g, f, np.log(a), scaled.T, eps), eps)[0]
    plan = a[:, None] * b * np.exp((f[:, None] + g) / eps - scaled)
    expected = correlation(sigma * tau, eps)
    assert x @ plan @ y / (sigma * tau) == pytest.approx(expected, rel=1e-5)
    assert errors[-1] / errors[-2] == pytest.approx(expected**2, rel=1e-3)
    covariance = math.sqrt(4 * (sigma * tau) ** 2 + (eps / 2) ** 2) / 2 - eps / 4
    assert expected == pytest.approx(covariance / (sigma * tau), rel=1e-13)


def test_predicted_depths_follow_the_rate() -> None:
    """Two points at distance 1 on the line have variance 1/4."""
    points = np.array([[0.0], [1.0]])
    rate = -2 * math.log(correlation(0.25, 0.1))
    for tol in (1e-2, 1e-4):
        instance = validate(ds.Problem(x=points, y=points + 3, eps=0.1), tol)
        assert predicted_depth(instance, momentum=False) == pytest.approx(-math.log(tol) / rate, rel=1e-12)
        assert predicted_depth(instance, momentum=True) == pytest.approx(math.sqrt(-math.log(tol) / rate), rel=1e-12)


def test_of_other_costs_half_the_standard_deviation_is_the_spread() -> None:
    matrix = np.array([[0.0, 1.0], [1.0, 0.0]])
    instance = validate(ds.Problem(cost=matrix, eps=0.1), 1e-3)
    expected = -math.log(1e-3) / (-2 * math.log(correlation(0.25, 0.1)))
    assert predicted_depth(instance, momentum=False) == pytest.approx(expected, rel=1e-12)
    points = np.array([[0.0], [1.0]])
    distances = validate(ds.Problem(x=points, y=points, cost="euclidean", eps=0.1), 1e-3)
    assert predicted_depth(distances, momentum=False) == pytest.approx(expected, rel=1e-12)
