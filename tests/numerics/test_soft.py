"""Formulas of soft marginals against brute force, and what they promise of solved problems."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize

import drainsinkhorn as ds
from drainsinkhorn.numerics.soft import (
    FARTHEST,
    SERIES,
    balanced_gap,
    duality_gap,
    leg_gain,
    log_deviations,
    log_total,
    penalised_mass,
    penalty,
    plan_distance,
    potential_distance,
    soft_dual_value,
    soft_exponents,
    soft_residual,
    translation,
)
from drainsinkhorn.numerics.transforms import SoftTerms, plan_costs
from drainsinkhorn.numerics.update import update
from tests.conftest import needs

Vector = NDArray[np.float64]
PRICES = [(0.5, 2.0), (3.0, 3.0), (math.inf, 0.7), (0.4, math.inf), (20.0, 0.05)]


class State:
    """Potentials of a small problem with soft marginals; `exact` columns unless told otherwise."""

    def __init__(self, rhos: tuple[float, float], seed: int = 0, *, exact: bool = True) -> None:
        rng = np.random.default_rng(seed)
        self.rhos, self.kappas, self.eps = rhos, tuple(1 / rho for rho in rhos), 0.3
        self.cost = rng.uniform(0, 2, size=(7, 5))
        self.a, self.b = rng.uniform(0.2, 1, size=7), 2 * rng.uniform(0.2, 1, size=5)
        self.f, self.g = 0.3 * rng.normal(size=7), 0.3 * rng.normal(size=5)
        if exact:
            self.g = self.leg(1)

    @property
    def lams(self) -> tuple[float, ...]:
        return tuple(1 / (1 + self.eps * kappa) for kappa in self.kappas)

    @property
    def plan(self) -> NDArray[np.float64]:
        scores = (self.f[:, None] + self.g - self.cost) / self.eps
        return self.a[:, None] * self.b * np.exp(scores)

    def logs(self, side: int) -> Vector:
        return np.log(self.plan.sum(axis=1 - side) / (self.a, self.b)[side])

    def leg(self, side: int) -> Vector:
        own = (self.f, self.g)[side]
        deviations = log_deviations(self.logs(side), own, self.kappas[side])
        return update(own, deviations, self.eps, lam=self.lams[side])[0]

    def objective(self, plan: NDArray[np.float64]) -> float:
        def divergence(p: Any, q: Any) -> float:
            return float((p * np.log(p / q) - p + q).sum())

        value = float((self.cost * plan).sum()) + self.eps * divergence(plan, self.a[:, None] * self.b)
        for side, (rho, weights) in enumerate(zip(self.rhos, (self.a, self.b), strict=True)):
            if rho < math.inf:
                value += rho * divergence(plan.sum(axis=1 - side), weights)
        return value

    def dual(self) -> float:
        sides = [
            penalised_mass(weights, own, kappa)
            for weights, own, kappa in zip((self.a, self.b), (self.f, self.g), self.kappas, strict=True)
        ]
        return soft_dual_value(self.eps, *sides, float(self.plan.sum()), (self.a.sum(), self.b.sum()))

    def gap(self) -> float:
        sides = zip((self.a, self.b), (0, 1), (self.f, self.g), self.kappas, strict=True)
        return sum(duality_gap(weights, self.logs(side), own, kappa) for weights, side, own, kappa in sides)

    def solve(self) -> State:
        best = State(self.rhos)
        best.__dict__ |= self.__dict__
        for _ in range(20_000):
            before, best.f = best.f, best.leg(0)
            best.g = best.leg(1)
            if np.abs(best.f - before).max() < 1e-15:
                break
        return best


class TestResidual:
    @pytest.mark.parametrize("rhos", PRICES)
    def test_it_is_the_gradient_of_the_dual_over_the_mass(self, rhos: tuple[float, float]) -> None:
        state, step = State(rhos, exact=False), 1e-6
        slopes = list[float]()
        for i in range(7):
            values = list[float]()
            for sign in (-1, 1):
                state.f[i] += sign * step
                values.append(state.dual())
                state.f[i] -= sign * step
            slopes.append((values[1] - values[0]) / (2 * step))
        found = soft_residual(state.a, state.logs(0), state.f, state.kappas[0])
        assert found.residual == pytest.approx(np.abs(slopes).sum() / state.plan.sum(), rel=1e-6)
        assert found.log_mass == pytest.approx(math.log(state.plan.sum()), abs=1e-13)

    @pytest.mark.parametrize("shift", [-1e4, -800.0, 800.0, 1e4])
    def test_masses_out_of_the_range_of_exp(self, shift: float) -> None:
        rng = np.random.default_rng(1)
        a, logs, f = rng.uniform(size=9), rng.normal(size=9), rng.normal(size=9)
        truth = soft_residual(a, logs, f, 0.7)
        moved = soft_residual(a, logs + shift, f - shift / 0.7, 0.7)
        assert moved.residual == pytest.approx(truth.residual, rel=1e-9)
        assert moved.log_mass == pytest.approx(truth.log_mass + shift, rel=1e-12)

    def test_sums_of_several_parts(self) -> None:
        rng = np.random.default_rng(2)
        a, logs, f = rng.uniform(size=9), rng.normal(size=9), rng.normal(size=9)
        doubled = soft_residual(a, logs, f, 0.7, lambda values: 2 * values.sum(), lambda values: float(values.max()))
        once = soft_residual(a, logs, f, 0.7)
        assert doubled.residual == pytest.approx(once.residual, rel=1e-14)
        assert doubled.log_mass == pytest.approx(once.log_mass + math.log(2), rel=1e-14)

    @pytest.mark.parametrize("kappa", [0.0, 0.3, 40.0])
    def test_a_leg_leaves_at_most_the_residual_that_it_measured(self, kappa: float) -> None:
        """The stale side's residual after a plain leg is at most the measured one, relative to the mass before it."""
        for seed in range(20):
            state = State((1 / kappa if kappa else math.inf, 0.8), seed)
            measured = soft_residual(state.a, state.logs(0), state.f, kappa)
            state.f = state.leg(0)
            after = soft_residual(state.b, state.logs(1), state.g, state.kappas[1])
            missed = after.residual * math.exp(after.log_mass - measured.log_mass)
            assert missed <= measured.residual * (1 + 1e-12)


class TestTranslation:
    @pytest.mark.parametrize("rhos", PRICES)
    def test_masses_asked_for_agree_after_the_leg(self, rhos: tuple[float, float]) -> None:
        state = State(rhos, 3)
        lam, plain = state.lams[0], state.leg(0)
        own = log_total(state.a, -state.kappas[0] * plain)
        other = log_total(state.b, -state.kappas[1] * state.g)
        shift = translation(own, other, state.kappas[0], lam, state.kappas[1], state.eps)
        state.g = state.g - shift
        # The leg after the translation of g alone is the plain one, translated by lam t.
        assert np.allclose(state.leg(0), plain + lam * shift, rtol=0, atol=1e-13)
        state.f = plain + lam * shift
        asked = [
            np.sum(w * np.exp(-k * p))
            for w, k, p in ((state.a, state.kappas[0], state.f), (state.b, state.kappas[1], state.g))
        ]
        assert asked[0] == pytest.approx(asked[1], rel=1e-12)

    @pytest.mark.parametrize("rhos", PRICES)
    def test_the_dual_is_no_lower_than_after_a_plain_leg(self, rhos: tuple[float, float]) -> None:
        for seed in range(10):
            state = State(rhos, seed)
            plain = state.leg(0)
            own = log_total(state.a, -state.kappas[0] * plain)
            other = log_total(state.b, -state.kappas[1] * state.g)
            shift = translation(own, other, state.kappas[0], state.lams[0], state.kappas[1], state.eps)
            state.f = plain
            before = state.dual()
            state.f, state.g = plain + state.lams[0] * shift, state.g - shift
            assert state.dual() >= before - 1e-12

    def test_none_between_hard_marginals_or_out_of_range(self) -> None:
        assert translation(1.0, 2.0, 0.0, 1.0, 0.0, 0.1) == 0.0
        assert translation(math.nan, 2.0, 1.0, 0.5, 1.0, 0.1) == 0.0
        assert translation(1.0, 0.0, 1 / (2 * FARTHEST), 1.0, 0.0, 1.0) == 0.0
        assert translation(1.0, 0.0, 2 / FARTHEST, 1.0, 0.0, 1.0) == FARTHEST / 2


class TestValues:
    @pytest.mark.parametrize("rhos", PRICES)
    def test_no_plan_is_better_than_the_dual_of_the_optimum(self, rhos: tuple[float, float]) -> None:
        best = State(rhos).solve()
        if min(rhos) < math.inf and max(rhos) < math.inf:
            start = np.log(best.a[:, None] * best.b).ravel()
            truth = minimize(lambda logs: best.objective(np.exp(logs).reshape(7, 5)), start, tol=1e-14).fun
            assert best.dual() == pytest.approx(truth, rel=1e-7)
        assert best.dual() == pytest.approx(best.objective(best.plan), rel=1e-10)

    @pytest.mark.parametrize("exact", [True, False])
    def test_primal_less_dual_is_the_gap(self, exact: bool) -> None:
        for seed in range(10):
            state = State((0.5, 2.0), seed, exact=exact)
            assert state.objective(state.plan) - state.dual() == pytest.approx(state.gap(), rel=1e-9)

    def test_a_hard_price_is_the_limit(self) -> None:
        rng = np.random.default_rng(4)
        a, f = rng.uniform(size=6), rng.normal(size=6)
        assert penalised_mass(a, f, 1e-9) == pytest.approx(penalised_mass(a, f, 0.0), rel=1e-8)
        assert penalty(a, f, 0.0) == 0.0
        # A point that receives nothing costs its whole weight.
        assert penalty(a, np.full(6, -900.0), 2.0) == pytest.approx(a.sum() / 2)

    def test_penalties_and_gaps_point_by_point(self) -> None:
        rng = np.random.default_rng(5)
        a = rng.uniform(size=40)
        logs = np.concatenate([SERIES * rng.uniform(-3, 3, size=20), rng.normal(size=20)])
        exact = [
            math.fsum([math.exp(-x), -1.0, x]) if abs(x) > 0.01 else x * x * (1 / 2 - x / 6 + x * x / 24 - x**3 / 120)
            for x in logs
        ]
        truth = math.fsum(w * math.exp(x) * e for w, x, e in zip(a, logs, exact, strict=True)) / 0.3
        assert penalty(a, logs, 0.3) == pytest.approx(truth, rel=1e-9)
        assert duality_gap(a, logs, np.zeros(40), 0.3) == pytest.approx(truth, rel=1e-9)
        assert duality_gap(a, logs, np.zeros(40), 0.3, rounding=1e-6) > truth

    def test_costs_of_a_plan(self) -> None:
        state = State((0.5, 2.0), 6)
        plan, masses = state.plan, (float(state.a.sum()), float(state.b.sum()))
        sides = [
            (w, state.logs(k), p, state.kappas[k]) for k, (w, p) in enumerate(((state.a, state.f), (state.b, state.g)))
        ]
        penalties, rewards = (
            [f(s) for s in sides]
            for f in (lambda s: penalty(s[0], s[1], s[3]), lambda s: penalised_mass(s[0], s[2], s[3]))
        )
        entropy = float((plan * np.log(plan / (state.a[:, None] * state.b))).sum())
        transport = float((plan * state.cost).sum()) / state.eps
        soft = SoftTerms(masses, (penalties[0], penalties[1]), (rewards[0], rewards[1]))
        costs = plan_costs(state.eps, float(plan.sum()), transport, entropy, math.nan, soft)
        assert costs.entropic == pytest.approx(state.objective(plan), rel=1e-12)
        assert costs.dual == pytest.approx(state.dual(), rel=1e-12)


class TestBounds:
    @pytest.mark.parametrize("rhos", [(0.5, 2.0), (20.0, 0.05), (3.0, 3.0)])
    @pytest.mark.parametrize("exact", [True, False])
    def test_the_plan_is_within_its_distance(self, rhos: tuple[float, float], exact: bool) -> None:
        for seed in range(8):
            state = State(rhos, seed, exact=exact)
            state.f = state.leg(0)
            best = state.solve()
            gap, mass = state.gap(), float(state.plan.sum())
            assert state.objective(state.plan) - best.dual() <= gap * (1 + 1e-9)
            distance = plan_distance(gap, mass, state.eps)
            assert np.abs(state.plan - best.plan).sum() <= distance
            # From a state that is near the optimum, the bound is not far from what it bounds.
            for _ in range(6):
                state.g = state.leg(1)
                state.f = state.leg(0)
            near = plan_distance(state.gap(), float(state.plan.sum()), state.eps)
            assert near <= 30 * np.abs(state.plan - best.plan).sum()

    @pytest.mark.parametrize("rhos", PRICES)
    def test_potentials_are_within_their_distance(self, rhos: tuple[float, float]) -> None:
        for seed in range(8):
            state = State(rhos, seed)
            best = state.solve()
            deviations = log_deviations(state.logs(0), state.f, state.kappas[0])
            bound, apart = potential_distance(deviations, rhos, state.eps), np.abs(state.f - best.f).max()
            assert apart <= bound * (1 + 1e-9)
        assert potential_distance(np.ones(2), (math.inf, math.inf), 0.1) == math.inf

    def test_the_gap_of_two_hard_marginals(self) -> None:
        state = State((math.inf, math.inf), 7)
        state.a, state.b = state.a / state.a.sum(), state.b / state.b.sum()
        best = state.solve()
        for _ in range(3):
            state.f = state.leg(0)
            spread = float((state.cost.max(axis=1) - state.cost.min(axis=1)).max())
            missed = float(np.abs(state.plan.sum(axis=0) - state.b).sum())
            before, logs = state.dual(), state.logs(1)
            assert 0 <= best.dual() - state.dual() <= balanced_gap(missed, spread, float(np.ptp(state.g)))
            state.g = state.leg(1)
            assert state.dual() - before == pytest.approx(leg_gain(state.b, logs, state.eps), rel=1e-6, abs=1e-14)

    def test_rounding_of_targets(self) -> None:
        assert soft_exponents(0.0, 1e300) == 0.0
        rng = np.random.default_rng(8)
        f = 20 * rng.normal(size=2000)
        mpmath = needs("mpmath")

        for kappa in (0.3, 7.0):
            truth = [mpmath.exp(-mpmath.mpf(kappa) * mpmath.mpf(value)) for value in f]
            errors = [
                abs(float(mpmath.mpf(found) / exact - 1))
                for found, exact in zip(np.exp(-kappa * f), truth, strict=True)
            ]
            assert max(errors) <= 2.0**-53 * soft_exponents(kappa, float(np.abs(f).max()))


class TestCycles:
    """Cycles to a residual of 1e-4, measured after every cycle."""

    @staticmethod
    def depths(eps: float, rho: tuple[float, float], seed: int, mass: float = 1.3) -> dict[str, int]:
        rng = np.random.default_rng(seed)
        x, y = rng.normal(size=(60, 2)), rng.normal(size=(70, 2)) + 0.5
        a, b = rng.uniform(0.5, 1.5, size=60), rng.uniform(0.5, 1.5, size=70)
        if max(rho) == math.inf:
            mass = 1.0
        problem = ds.Problem(x=x, y=y, a=a / a.sum(), b=mass * b / b.sum(), eps=eps, rho=rho, tol=1e-4)
        audit: dict[str, Any] = {"audit": ds.Audit(every=1, margin=1.0), "backend": "reference", "max_depth": 20_000}
        return {name: ds.solve([problem], accelerate=name, **audit)[0].depth for name in ("momentum", "none")}

    def test_nearly_hard_marginals_take_a_twentieth_of_plain_cycles(self) -> None:
        depths = self.depths(0.1, (100.0, 100.0), 0)
        assert 20 * depths["momentum"] <= depths["none"]

    @pytest.mark.parametrize("eps", [0.05, 0.5, 3.0])
    def test_momentum_is_never_worse_than_plain(self, eps: float) -> None:
        for seed, rho in enumerate(
            [(1.0, 1.0), (0.01, 5.0), (10.0, 10.0), (math.inf, 5.0), (5.0, math.inf), (0.1, 0.1)]
        ):
            depths = self.depths(eps, rho, seed)
            assert depths["momentum"] <= 1.05 * depths["none"] + 1, rho
