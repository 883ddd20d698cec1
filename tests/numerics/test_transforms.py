"""c-transforms, conditional distributions and costs of a plan against a dense plan."""

from __future__ import annotations

import math

import numpy as np
import pytest

from drainsinkhorn.numerics.transforms import c_transform, conditionals, dual_value, plan_costs
from drainsinkhorn.numerics.update import log_ratios, update

EPS = 0.4


class Plan:
    """A random problem, its potentials after some cycles, and its dense plan."""

    def __init__(self, cycles: int, n: int = 8, m: int = 6) -> None:
        rng = np.random.default_rng(n + m)
        self.cost = rng.uniform(0, 3, size=(n, m))
        self.a, self.b = rng.dirichlet(np.ones(n)), rng.dirichlet(np.ones(m))
        self.f, self.g = 0.2 * rng.normal(size=n), 0.2 * rng.normal(size=m)
        log_a, log_b, scaled = np.log(self.a), np.log(self.b), self.cost / EPS
        for _ in range(cycles):
            self.f = update(self.f, log_ratios(self.f, self.g, log_b, scaled, EPS), EPS)[0]
            self.g = update(self.g, log_ratios(self.g, self.f, log_a, scaled.T, EPS), EPS)[0]
        self.dense = self.a[:, None] * self.b * np.exp((self.f[:, None] + self.g - self.cost) / EPS)

    def objective(self, plan: np.ndarray) -> float:
        """`<C, P> + eps KL(P | a b')`, entry by entry."""
        total = 0.0
        for i, j in np.ndindex(*plan.shape):
            p, q = plan[i, j], self.a[i] * self.b[j]
            total += p * self.cost[i, j] + EPS * (p * math.log(p / q) - p + q)
        return total

    def costs(self):
        exponents = (self.f[:, None] + self.g - self.cost) / EPS
        linear = (self.a @ self.f + self.b @ self.g) / EPS
        sums = (self.dense.sum(), (self.dense * self.cost).sum() / EPS, (self.dense * exponents).sum())
        return plan_costs(EPS, *map(float, sums), float(linear))


class TestTransform:
    def test_entry_by_entry(self) -> None:
        rng = np.random.default_rng(0)
        cost, weights, h = rng.uniform(size=(5, 4)), rng.dirichlet(np.ones(4)), rng.normal(size=4)
        values = c_transform(cost, weights, h, EPS)
        for i in range(5):
            total = math.fsum(weights[j] * math.exp((h[j] - cost[i, j]) / EPS) for j in range(4))
            assert values[i] == pytest.approx(-EPS * math.log(total), rel=1e-13, abs=1e-14)

    def test_a_new_point_with_it_has_the_marginal_ratio_one(self) -> None:
        plan = Plan(3)
        cost = np.random.default_rng(1).uniform(0, 3, size=(4, 6))
        f = c_transform(cost, plan.b, plan.g, EPS)
        assert np.abs(log_ratios(f, plan.g, np.log(plan.b), cost / EPS, EPS)).max() < 1e-14

    def test_points_infinitely_far_away_get_zero(self) -> None:
        cost = np.array([[1.0, 2.0], [np.inf, np.inf], [1e308, 1e308], [np.nan, 1.0]])
        values = c_transform(cost, np.array([0.5, 0.5]), np.zeros(2), 1e-3)
        assert values[[1, 2, 3]].tolist() == [0.0, 0.0, 0.0]
        assert values[0] == pytest.approx(1 + 1e-3 * math.log(2))
        weightless = c_transform(cost[:1], np.array([0.0, 1.0]), np.zeros(2), 1e-3)
        assert weightless[0] == pytest.approx(2.0)


def test_conditional_distributions_are_rows_of_the_plan_over_their_mass() -> None:
    plan = Plan(2)
    rows = np.array([0, 5, 3])
    distributions, logs = conditionals(plan.f[rows] / EPS, plan.g / EPS, plan.b, plan.cost[rows] / EPS)
    mass = plan.dense[rows].sum(axis=1)
    assert np.allclose(distributions, plan.dense[rows] / mass[:, None], rtol=1e-13)
    assert np.allclose(logs, np.log(mass / plan.a[rows]), rtol=0, atol=1e-13)
    far = conditionals(plan.f[:1] / EPS, plan.g / EPS, plan.b, plan.cost[:1] / EPS + 1e6)
    assert np.allclose(far.distributions, distributions[:1], rtol=1e-9)
    assert far.log_ratios[0] == pytest.approx(logs[0] - 1e6)


class TestCosts:
    @pytest.mark.parametrize("cycles", [0, 1, 200])
    def test_entry_by_entry(self, cycles: int) -> None:
        plan = Plan(cycles)
        costs = plan.costs()
        transport = math.fsum((plan.dense * plan.cost).ravel())
        assert costs.transport == pytest.approx(transport, rel=1e-13)
        assert costs.entropic == pytest.approx(plan.objective(plan.dense), rel=1e-12)
        assert costs.kl == pytest.approx((plan.objective(plan.dense) - transport) / EPS, rel=1e-11)
        linear = math.fsum(plan.a * plan.f) + math.fsum(plan.b * plan.g)
        assert costs.dual == pytest.approx(linear - EPS * (plan.dense.sum() - 1), rel=1e-12)

    def test_the_dual_is_below_every_plan_with_the_right_marginals_and_meets_the_best(self) -> None:
        early, late = Plan(1), Plan(500)
        assert late.costs().dual == pytest.approx(late.costs().entropic, rel=1e-12)
        assert early.costs().dual < late.costs().dual < late.objective(late.a[:, None] * late.b)

    def test_its_gradient_is_the_error_of_the_marginals(self) -> None:
        plan, step = Plan(1), 1e-6

        def value(f: np.ndarray) -> float:
            dense = plan.a[:, None] * plan.b * np.exp((f[:, None] + plan.g - plan.cost) / EPS)
            return dual_value(EPS, float(plan.a @ f + plan.b @ plan.g) / EPS, float(dense.sum()))

        for i, row in enumerate(plan.dense):
            move = step * np.eye(len(plan.f))[i]
            slope = (value(plan.f + move) - value(plan.f - move)) / (2 * step)
            assert slope == pytest.approx(plan.a[i] - row.sum(), abs=1e-8)
