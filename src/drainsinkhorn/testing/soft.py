"""Soft marginals of hostile problems: prices, masses, and plain iterations for starts and tolerances."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Prices = tuple[float, float]
HARD: Prices = (math.inf, math.inf)
"""Prices of two hard marginals."""
INVALID = (0.0, -1.0, math.nan, "soft", (1.0,), (1.0, 0.0), (1.0, 2.0, 3.0), True)
"""Prices that are rejected."""


def draw_prices(rng: np.random.Generator, cost: Vector) -> tuple[Any, Prices]:
    """Return a rho and its prices: 1e-3 to 1e3 of the median cost, for both sides or one for each, some infinite."""
    sizes = np.abs(cost[np.isfinite(cost) & (cost != 0)])
    unit = float(np.median(sizes)) if sizes.size else 1.0
    prices = np.clip(unit * 10 ** rng.uniform(-3, 3, size=2), 1e-300, 1e300)
    if rng.random() < 0.4:
        return float(prices[0]), (float(prices[0]), float(prices[0]))
    if rng.random() < 0.5:
        prices[rng.integers(2)] = math.inf
    pair = float(prices[0]), float(prices[1])
    kind = rng.random()
    if kind < 0.3:
        return np.array(pair), pair
    return tuple(None if price == math.inf and kind < 0.6 else price for price in pair), pair


def draw_mass(rng: np.random.Generator, weights: Any) -> Any:
    """Return weights with a mass between 1e-3 and 1e3; most weights that are None stay None, of mass 1."""
    if weights is None:
        return None
    plain = weights.detach().cpu().double().numpy() if hasattr(weights, "detach") else np.asarray(weights, np.float64)
    scaled = plain * (10 ** rng.uniform(-3, 3) / math.fsum(plain))
    short = scaled.astype(np.float32)
    return short if rng.random() < 0.3 and short.any() else scaled


def sinkhorn(cost: Vector, a: Vector, b: Vector, eps: float, cycles: int, rhos: Prices) -> tuple[Vector, Vector]:
    """Plain Sinkhorn in the log domain, with damped legs where marginals are soft; zero where that is not finite."""
    f, g = np.zeros(len(a)), np.zeros(len(b))
    row, col = (1 / (1 + eps / rho) for rho in rhos)
    for _ in range(cycles):
        f = -eps * row * _soft_max((g - cost) / eps, b)
        g = -eps * col * _soft_max((f - cost.T) / eps, a)
    return np.nan_to_num(f, posinf=0.0, neginf=0.0), np.nan_to_num(g, posinf=0.0, neginf=0.0)


def residual_of(cost: Vector, a: Vector, b: Vector, eps: float, rhos: Prices, f: Vector, g: Vector) -> float:
    """The larger residual; with a soft marginal relative to the mass of the plan, and NaN if it has none."""
    plan = a[:, None] * b * np.exp((f[:, None] + g - cost) / eps)
    wanted = a * np.exp(-f / rhos[0]), b * np.exp(-g / rhos[1])
    missed = np.abs(plan.sum(1) - wanted[0]).sum(), np.abs(plan.sum(0) - wanted[1]).sum()
    return float(max(missed) / (1.0 if rhos == HARD else plan.sum()))


def _soft_max(scores: Vector, weights: Vector) -> Vector:
    highest = scores.max(axis=1, where=weights > 0, initial=-np.inf)
    return highest + np.log(np.exp(scores - highest[:, None]) @ weights)
