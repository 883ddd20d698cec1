"""Derivatives of the optimal value: against differences of the optimum of dense problems, in NumPy alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from drainsinkhorn.model.cost import Cost
from drainsinkhorn.numerics.costs import resolve_cost
from drainsinkhorn.numerics.derivatives import (
    SERIES,
    Motion,
    Optimum,
    exponential,
    price_slope,
    soft_diagonal,
    weight_slope,
)
from tests.conftest import needs

RNG = np.random.default_rng(0)
INF = math.inf
PRICES = [(0.6, 2.0), (INF, 0.7), (0.7, INF)]


@dataclass
class Inputs:
    """A dense problem, solved by plain cycles in the log domain."""

    cost: Any
    a: Any
    b: Any
    eps: float
    rho: tuple[float, float]

    def solve(self) -> tuple[Any, Any, float]:
        """Potentials, and the dual value."""
        kappas = [1 / price for price in self.rho]
        f, g = np.zeros(len(self.a)), np.zeros(len(self.b))
        for _ in range(3000):
            f = -self.eps / (1 + self.eps * kappas[0]) * np.log(np.exp((g - self.cost) / self.eps) @ self.b)
            g = -self.eps / (1 + self.eps * kappas[1]) * np.log(self.a @ np.exp((f[:, None] - self.cost) / self.eps))
        plan = self.a[:, None] * self.b * np.exp((f[:, None] + g - self.cost) / self.eps)
        rewards = [
            float(w @ h) if kappa == 0 else float(w @ (1 - np.exp(-kappa * h))) / kappa
            for w, h, kappa in zip((self.a, self.b), (f, g), kappas, strict=True)
        ]
        return f, g, sum(rewards) - self.eps * float(plan.sum() - self.a.sum() * self.b.sum())

    def moved(self, motion: dict[str, Any], step: float) -> Inputs:
        names = {"cost", "a", "b", "eps"} & motion.keys()
        rho = (self.rho[0] + step * motion.get("rho_a", 0.0), self.rho[1] + step * motion.get("rho_b", 0.0))
        return replace(self, rho=rho, **{name: getattr(self, name) + step * motion[name] for name in names})

    def slopes(self) -> dict[str, Any]:
        """First derivatives by the envelope theorem."""
        f, g, _ = self.solve()
        density = np.exp((f[:, None] + g - self.cost) / self.eps)
        plan = self.a[:, None] * self.b * density
        kappas = [1 / price for price in self.rho]
        return {
            "cost": plan,
            "eps": (plan * np.log(density)).sum() - plan.sum() + self.a.sum() * self.b.sum(),
            "a": weight_slope(f, density @ self.b, kappas[0], self.eps, float(self.b.sum())),
            "b": weight_slope(g, self.a @ density, kappas[1], self.eps, float(self.a.sum())),
            "rho_a": price_slope(self.a, f, kappas[0]),
            "rho_b": price_slope(self.b, g, kappas[1]),
        }


def problem(rho: tuple[float, float]) -> Inputs:
    a, b = RNG.uniform(0.5, 1.5, size=4), RNG.uniform(0.5, 2, size=3)
    return Inputs(RNG.uniform(0, 2, size=(4, 3)), a / a.sum(), b / 3, 0.5, rho)


def motion_of(inputs: Inputs) -> dict[str, Any]:
    motion = {name: RNG.normal(size=np.shape(getattr(inputs, name))) for name in ("cost", "a", "b")}
    prices = {name: 0.3 for name, price in zip(("rho_a", "rho_b"), inputs.rho, strict=True) if price < INF}
    return {**motion, "eps": 0.2, **prices}


@pytest.mark.parametrize("rho", PRICES, ids=str)
def test_first_derivatives_are_differences_of_values(rho: tuple[float, float]) -> None:
    inputs = problem(rho)
    motion, slopes, step = motion_of(inputs), inputs.slopes(), 1e-5
    expected = (inputs.moved(motion, step).solve()[2] - inputs.moved(motion, -step).solve()[2]) / (2 * step)
    assert sum(np.sum(slopes[name] * moved) for name, moved in motion.items()) == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("rho", PRICES, ids=str)
def test_motions_are_differences_of_slopes_and_potentials(rho: tuple[float, float]) -> None:
    inputs, step = problem(rho), 1e-5
    motion = motion_of(inputs)
    f, g, _ = inputs.solve()
    kappas = (1 / rho[0], 1 / rho[1])
    cost = resolve_cost(Cost("sqeuclidean"))
    lane = Motion(Optimum(None, inputs.cost, cost, inputs.eps, (inputs.a, inputs.b), kappas, (f, g)), motion)
    plan = inputs.slopes()["cost"]
    diagonals = [
        plan.sum(axis=1 - k) + soft_diagonal(w, h, kappas[k], inputs.eps)
        for k, (w, h) in enumerate(((inputs.a, f), (inputs.b, g)))
    ]
    matrix = np.block([[np.diag(diagonals[0]), plan], [plan.T, np.diag(diagonals[1])]])
    solved = np.linalg.solve(matrix, np.concatenate(lane.system()[0]))
    d_f, d_g = solved[:4], solved[4:]
    up, down = inputs.moved(motion, step), inputs.moved(motion, -step)
    for ours, above, below in zip((d_f, d_g), up.solve()[:2], down.solve()[:2], strict=True):
        assert np.allclose(ours, (above - below) / (2 * step), rtol=1e-6, atol=1e-7)
    found, above, below = lane.slopes((d_f, d_g)), up.slopes(), down.slopes()
    for name in motion:
        assert np.allclose(found[name], (above[name] - below[name]) / (2 * step), rtol=1e-6, atol=1e-7), name


def test_slopes_in_prices_do_not_cancel() -> None:
    mpmath = needs("mpmath")

    for t in (1e-9, 1e-4, 0.9 * SERIES, -0.9 * SERIES, 1.1 * SERIES, 0.7, -2.0):
        truth = 1 - (1 + mpmath.mpf(t)) * mpmath.exp(-mpmath.mpf(t))
        assert float(price_slope(np.ones(1), np.array([t]), 1.0)) == pytest.approx(float(truth), rel=1e-11)
    assert price_slope(np.ones(2), np.ones(2), 0.0) == 0.0
    assert exponential(np.zeros(1))[0] == 1.0
