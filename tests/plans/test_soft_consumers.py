"""Consumers of plans with soft marginals, whose marginals differ from the weights: against dense plans."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.plans.consumers import normalised_entropies
from tests.dense import cost_of
from tests.run.test_soft import SOLVERS as ALL_SOLVERS

INF = math.inf
SOLVERS = [name for name in ALL_SOLVERS if " " not in name]
"""Backends by name; a backend with settings of its own has the same consumers."""
PRICES = [0.3, (2.0, 0.4), (INF, 0.7), (0.7, INF), 40.0]


class Truth:
    """One result and its plan by the formula, in float64."""

    def __init__(self, result: ds.Result[Any]) -> None:
        problem, (f, g) = result.problem, result.potentials
        self.eps, self.rho = float(result.eps), [side.rho for side in result.instance.marginals]
        self.a, self.b, self.cost = np.asarray(problem.a), np.asarray(problem.b), cost_of(problem)
        self.plan = self.a[:, None] * self.b * np.exp((f[:, None] + g - self.cost) / self.eps)
        self.marginals = self.plan.sum(axis=1), self.plan.sum(axis=0)


def kl(p: Any, q: Any) -> float:
    some = p > 0
    return float((p[some] * np.log(p[some] / q[some])).sum() - p.sum() + q.sum())


@pytest.fixture(scope="module", params=SOLVERS)
def solved(request: pytest.FixtureRequest) -> list[tuple[ds.Result[Any], Truth]]:
    rng, problems = np.random.default_rng(0), list[ds.Problem[Any]]()
    for k, rho in enumerate(PRICES):
        a, b = rng.uniform(0.2, 2, size=20 + k), rng.uniform(0.2, 2, size=30)
        a[3] = 0.0
        x, y = rng.normal(size=(20 + k, 2)), rng.normal(size=(30, 2)) + 0.5
        problems.append(ds.Problem(x=x, y=y, a=a / a.sum(), b=1.7 * b / b.sum(), eps=0.2, rho=rho, tol=1e-9))
    solution = ds.solve(problems, backend=request.param, max_depth=20_000)
    solution.raise_for_status()
    return [(result, Truth(result)) for result in solution]


def test_marginals_differ_from_weights_by_what_potentials_ask_for(solved: list[tuple[Any, Truth]]) -> None:
    for result, truth in solved:
        for side, weights, exact, rho, h in zip(
            ("row", "col"), (truth.a, truth.b), truth.marginals, truth.rho, result.potentials, strict=True
        ):
            assert np.allclose(ds.marginal(result, side), exact, rtol=1e-10)
            assert np.allclose(exact, weights * np.exp(-h / rho), rtol=1e-6)
    many = ds.marginal([result for result, _ in solved])
    assert all(np.allclose(one, truth.marginals[0]) for one, (_, truth) in zip(many, solved, strict=True))


def test_costs_have_prices_and_mass(solved: list[tuple[Any, Truth]]) -> None:
    for result, truth in solved:
        costs, plan = result.transport_cost(), truth.plan
        divergence = kl(plan, truth.a[:, None] * truth.b)
        prices = sum(
            rho * kl(own, weights)
            for rho, own, weights in zip(truth.rho, truth.marginals, (truth.a, truth.b), strict=True)
            if rho < INF
        )
        assert costs.mass == pytest.approx(plan.sum(), rel=1e-10)
        assert costs.transport == pytest.approx((plan * truth.cost).sum(), rel=1e-10)
        assert costs.kl == pytest.approx(divergence, rel=1e-9)
        assert costs.penalty == pytest.approx(prices, rel=1e-9)
        assert costs.entropic == pytest.approx(costs.transport + truth.eps * divergence + prices, rel=1e-9)
        assert costs.dual == pytest.approx(costs.entropic, rel=1e-7)


def test_a_balanced_plan_pays_nothing() -> None:
    costs = ds.solve(np.eye(3), np.eye(3) + 1, eps=0.5)[0].transport_cost()
    assert costs.penalty == 0.0
    assert costs.mass == pytest.approx(1.0, abs=2e-3)


def test_products_weigh_and_maps_average(solved: list[tuple[Any, Truth]]) -> None:
    for result, truth in solved:
        plan, values = truth.plan, np.random.default_rng(1).normal(size=(30, 2))
        assert np.allclose(result.apply(values), plan @ values)
        some = truth.a > 0
        images = (plan[some] @ result.problem.y) / plan[some].sum(axis=1, keepdims=True)
        assert np.allclose(result.barycentric_map()[some], images)
        assert np.allclose(result.map(result.problem.x)[some], images)
        back = (plan.T @ result.problem.x) / plan.sum(axis=0)[:, None]
        assert np.allclose(result.barycentric_map("col"), back)
        assert np.array_equal(result.top_match()[some], plan[some].argmax(axis=1))


def test_samples_are_drawn_from_the_plan_over_its_mass(solved: list[tuple[Any, Truth]]) -> None:
    count = 40_000
    for result, truth in solved:
        i, j = result.sample(count, seed=1)
        drawn = np.zeros(truth.plan.shape)
        np.add.at(drawn, (i, j), 1)
        shares = truth.plan / truth.plan.sum()
        for axis in (0, 1):
            expected, seen = count * shares.sum(axis=axis), drawn.sum(axis=axis)
            assert (np.abs(seen - expected) <= 5 * np.sqrt(expected + 1)).all()
        rows = np.repeat(5, 20_000)
        partners = np.bincount(ds.partners(result, rows, seed=2), minlength=30)
        expected = rows.size * truth.plan[5] / truth.plan[5].sum()
        assert (np.abs(partners - expected) <= 5 * np.sqrt(expected + 1)).all()


def test_entropies_are_those_of_the_plan_over_its_mass(solved: list[tuple[Any, Truth]]) -> None:
    for result, truth in solved:
        plan = truth.plan / truth.plan.sum()
        entropies = [-(p[p > 0] * np.log(p[p > 0])).sum() for p in (plan, plan.sum(axis=1), plan.sum(axis=0))]
        expected = (entropies[0] - max(entropies[1:])) / min(entropies[1:])
        assert ds.normalised_entropy(result) == pytest.approx(expected, rel=1e-7)
    (sharp,) = normalised_entropies([solved[0][0]])
    assert 0 < sharp < 1


def test_sparse_plans_leave_out_little(solved: list[tuple[Any, Truth]]) -> None:
    for result, truth in solved:
        sparse = ds.sparse_plan(result, drop=0.05)
        assert np.abs(sparse.to_scipy().toarray() - truth.plan).sum() <= sparse.dropped + 1e-12
        assert sparse.dropped <= 0.05 * truth.plan.sum() * (1 + 1e-12)


@pytest.mark.parametrize("backend", SOLVERS)
def test_a_plan_without_mass_has_no_samples(backend: str) -> None:
    problem = ds.Problem(x=np.zeros((2, 1)), y=np.full((3, 1), 1e3), eps=0.1, rho=0.1)
    result = ds.solve([problem], backend=backend)[0]
    assert result.transport_cost().mass == 0.0
    with pytest.raises(ds.ProblemError, match="the plan has no mass"):
        result.sample(3, seed=0)
