"""Rounding bounds against forty digits, entry by entry, and term by term."""

from __future__ import annotations

import math
from decimal import Context, Decimal, localcontext

import numpy as np
import pytest

from drainsinkhorn.model.cost import Cost, Distances
from drainsinkhorn.numerics.costs import COSTS, UNIT, DistanceCost, PointCost, coordinate_factor
from drainsinkhorn.numerics.residual import residual
from drainsinkhorn.numerics.rounding import (
    LEAST_SAMPLED,
    SAFETY,
    SAMPLE_SAFETY,
    UNSAMPLED,
    CostBound,
    PlanSums,
    bound_costs,
    certified_residual,
    dot_error,
    emission_budget,
    exponent_rounding,
    float32_suffices,
    largest_potentials,
    product_error,
    rounding_bound,
    sampled_bound,
    sampled_error,
    streamed_rounding,
    unsampled_size,
)
from drainsinkhorn.numerics.update import log_ratios

DISTANCES = [kind for kind in COSTS.values() if isinstance(kind, DistanceCost)]


def problem(n: int, m: int, seed: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    a, b = rng.dirichlet(np.full(n, 0.5)) + 1e-12, rng.dirichlet(np.ones(m))
    return rng.uniform(0, 3, size=(n, m)), a / a.sum(), b / b.sum(), rng.normal(size=n), rng.normal(size=m)


def test_the_bound_term_by_term() -> None:
    scaled, log_a, log_b = np.array([[1.0, -8.0, 3.0]]), np.log([1.0]), np.log([0.5, 0.25, 0.25])
    rounding = exponent_rounding(1e-15, 0.5, scaled, log_a, log_b)
    assert rounding == pytest.approx(2e-15 + UNIT * (8 + 1 + 3 + 4 * math.log(4)), rel=1e-12, abs=0)
    bound = rounding_bound(rounding, largest_potentials(np.array([-6.0]), np.array([1.0, 2.0, 0.0])) / 0.5)
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
        potentials = largest_potentials(f, g) / eps
        bound = rounding_bound(exponent_rounding(0.0, eps, scaled, log_a, log_b), potentials)
        assert error <= min(bound, rounding_bound(streamed_rounding(0.0, scaled.max(), 50), potentials, 8))
        worst = max(worst, error / bound)
    # A bound far above every error would be of no use.
    assert worst > 1e-3


@pytest.mark.parametrize("eps", [0.5, 0.01])
@pytest.mark.parametrize("shift", [0.0, 1e6])
def test_a_certificate_covers_the_error_of_its_sums(eps: float, shift: float) -> None:
    for seed in range(3):
        cost, a, b, f, g = problem(12, 9, seed)
        log_a, log_b = np.log(a), np.log(b)
        for _ in range(30):
            f = f - eps * log_ratios(f, g, log_b, cost / eps, eps)
            g = g - eps * log_ratios(g, f, log_a, cost.T / eps, eps)
        f, g = f + shift, g - shift
        own, other = f / eps + log_a, g / eps + log_b
        plan = np.exp(own[:, None] + other - cost / eps)
        size_a, size_b = abs(f) / eps + abs(log_a), abs(g) / eps + abs(log_b)
        mean = (plan.sum(1) * size_a).sum() + (plan.sum(0) * size_b).sum()
        sums = PlanSums(
            eps, 21, abs(plan.sum(1) - a).sum(), abs(plan.sum(0) - b).sum(), plan.sum(), 4 * UNIT * mean,
            4 * UNIT * (size_a.max() + size_b.max()), (plan * cost).sum(), CostBound(1.0, 0.0, 0.0, cost.max()), True,
        )  # fmt: skip
        certified = certified_residual(sums)
        assert abs(certified.row - exact_residual(cost, a, b, f, g, eps)) <= certified.band < 1e-5


def test_a_certificate_says_nothing_of_exponents_that_are_lost() -> None:
    costs = CostBound(1.0, 0.0, 0.0, 1.0)
    sums = PlanSums(1.0, 4, 0.5, 0.25, 1.0, 0.0, 0.05, 1.0, costs, False)
    assert certified_residual(sums).band < 1e-13
    sums.added_most = 0.06
    assert certified_residual(sums) == (0.5, 0.25, math.inf)
    sums.row = math.nan
    assert math.isnan(certified_residual(sums).row)


@pytest.mark.parametrize("dim", [1, 3, 20])
@pytest.mark.parametrize("kind", [*DISTANCES, DistanceCost("three", Distances(3.0))], ids=str)
def test_costs_by_differences_and_products_are_within_their_bounds(kind: DistanceCost, dim: int) -> None:
    rng = np.random.default_rng(dim)
    x, y = 5 + rng.normal(size=(6, dim)), 5 + rng.normal(size=(7, dim))
    cost = Cost(kind, 0.75)
    costs = cost.scale * kind.pairwise(x, y)
    form = kind.distances
    bound = bound_costs(cost, dim, 4.0 if form.directions else dim * 100.0)
    assert bound.largest >= costs.max()
    with localcontext(Context(prec=40)):
        for i, j in np.ndindex(*costs.shape):
            points = [[Decimal(value) for value in p] for p in (x[i], y[j])]
            if form.directions:
                points = [[value / sum(v * v for v in p).sqrt() for value in p] for p in points]
            square = sum((p - q) ** 2 for p, q in zip(*points, strict=True))
            exact = Decimal("0.75") * Decimal(form.factor) * (square.sqrt() if form.root else square)
            assert abs(float(Decimal(costs[i, j]) - exact)) <= bound.relative * costs[i, j] + bound.constant
            if not form.root and not form.directions:
                norms = (x[i] ** 2).sum() + (y[j] ** 2).sum()
                by_products = norms - 2 * (x[i] @ y[j])
                assert abs(float(Decimal(by_products) - square)) <= product_error(dim) * norms


@pytest.mark.parametrize("dim", [1, 3, 20])
@pytest.mark.parametrize("size", [1.0, 1e-160, 1e150])
@pytest.mark.parametrize("kind", [COSTS["dot"], COSTS["negdot"]], ids=str)
def test_dot_products_are_within_their_bounds(kind: PointCost, size: float, dim: int) -> None:
    rng = np.random.default_rng(dim)
    x, y = size * (5 + rng.normal(size=(6, dim))), (5 + rng.normal(size=(7, dim))) / size
    # Products that nearly cancel are as uncertain as large ones.
    x[0, dim // 2 :] *= -1
    costs = kind.pairwise(x, y)
    bound, norms = kind.rounding(dim, kind.magnitude(x, y, costs)), (x / size) ** 2 @ np.ones(dim)
    with localcontext(Context(prec=400)):
        for i, j in np.ndindex(*costs.shape):
            exact = sum((Decimal(p) * Decimal(q) for p, q in zip(x[i], y[j], strict=True)), Decimal(0))
            error = abs(float(Decimal(costs[i, j]) - (exact if str(kind) == "dot" else -exact)))
            assert error <= bound
            assert error + 4 * UNIT * abs(costs[i, j]) <= dot_error(dim) * (norms[i] + ((y[j] * size) ** 2).sum())
    assert bound <= (dim + 3) * UNIT * 36 * 4 * dim


def test_scaled_coordinates_have_costs_over_eps_as_distances() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(4, 3)), rng.normal(size=(5, 3))
    for kind in DISTANCES:
        if not kind.form.directions:
            cost = Cost(kind, 3.0)
            factor = coordinate_factor(cost, 0.2)
            scaled = DistanceCost("plain", Distances(root=kind.form.root)).pairwise(factor * x, factor * y)
            assert np.allclose(scaled, 3.0 * kind.pairwise(x, y) / 0.2, rtol=1e-13)


def test_float32_suffices_for_a_tenth_of_tol() -> None:
    assert float32_suffices(2.0**20, 1.25)
    assert not float32_suffices(2.0**20, 1.24)
    assert not float32_suffices(math.nan, 1.0)
    assert not float32_suffices(math.inf, 1.0)
    assert emission_budget(2.0, 0.5) == 0.1


def test_the_error_of_a_sample_is_the_larger_of_both_means() -> None:
    weights, errors = np.array([[3.0, 1.0], [1.0, 3.0]]), np.array([[4.0, 0.0], [4.0, 0.0]])
    assert sampled_error(np, weights, errors).tolist() == [3.0, 2.0]
    bound = sampled_bound(1e-3, 1e-4, "float32", far=2.0)
    assert bound == pytest.approx(1e-3 + SAMPLE_SAFETY * 1e-4 + LEAST_SAMPLED["float32"] + 2 * UNSAMPLED, rel=1e-14)


def test_potentials_far_from_those_of_the_sample_count() -> None:
    weights, potentials = np.full(8, 0.125), np.array([5.0, 6.0, 7.0, 5.0, 6.0, 7.0, 6.0, 1006.0])
    assert unsampled_size(np, weights, potentials, np.arange(3)) == pytest.approx((4 * 1.0 + 1000.0) / 8 - 4 * 1.0)
    assert unsampled_size(np, weights, potentials, np.array([0, 7])) == 0.0
