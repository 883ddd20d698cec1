"""What is certain of one plan: residuals, the duality gap, and how far the plan is from the optimal one.

The bounds follow from exact marginals on each hard side. Where one side is hard, or both are, its measured leg is
applied first, which gives another plan P' at a known distance from P, `sum_i a_i |r_i - 1|`, and raises the dual value
by a known amount (`numerics.soft.leg_gain`), which is part of the gap. Write R for the residual
of the other side after that, not relative to the mass.

- One hard side: the gap of P' is that of the soft side (`numerics.soft.duality_gap`).
- Two hard sides: the dual is concave, and its gradient at P' is zero for the exact side. With columns that miss b by R
  in all, `D* - D <= R osc(g* - g) / 2 <= R (osc(g*) + osc(g)) / 2`, and optimal potentials vary no more than costs:
  `osc(g*) <= max_i (max_j C_ij - min_j C_ij)`. Both masses are 1, so that `D* - D = eps KL(P* | P')`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.backends.certificate import certify
from drainsinkhorn.backends.cost_sizes import leg_rounding
from drainsinkhorn.model.couplings import Certificate
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.numerics.costs import UNIT
from drainsinkhorn.numerics.residual import residual
from drainsinkhorn.numerics.soft import balanced_gap, duality_gap, leg_gain, plan_distance

Vector = NDArray[np.float64]
LogRatios = Callable[[Potentials[Any], str], Vector]
"""From potentials in float64 and the name of a side to the log marginal ratios of all its points, in float64."""


def certify_plan(
    instance: Instance[Any], potentials: Potentials[Any], log_ratios: LogRatios, spread: Callable[[], float]
) -> Certificate:
    """Return what is certain of the plan of some potentials.

    Args:
        instance: The problem.
        potentials: As they were emitted, over all points.
        log_ratios: Computes log marginal ratios.
        spread: Computes `max_i (max_j C_ij - min_j C_ij)` over points with weight.
    """
    with np.errstate(all="ignore"):
        row, col, band = certify(instance, potentials)
        sides = _Sides(instance, potentials, log_ratios)
        mass, gap, distance = sides.bound(spread)
    if not (math.isfinite(gap) and math.isfinite(distance)):
        gap = distance = math.inf
    return Certificate(row, col, band, mass, gap, distance)


class _Sides:
    """Potentials of one problem in float64 over the points that carry weight, and their log marginal ratios."""

    def __init__(self, instance: Instance[Any], potentials: Potentials[Any], log_ratios: LogRatios) -> None:
        self._instance, self._log_ratios = instance, log_ratios
        self._whole = [to_numpy(side).astype(np.float64) for side in potentials]
        weights = [to_numpy(instance.a), to_numpy(instance.b)]
        self._some = [side > 0 for side in weights]
        self._weights = [side[some] for side, some in zip(weights, self._some, strict=True)]
        self._kappas = [marginal.kappa for marginal in instance.marginals]

    def _logs(self, side: int) -> Vector:
        return self._log_ratios(Potentials(*self._whole), ("row", "col")[side])

    def _make_exact(self, side: int) -> tuple[float, float]:
        """Apply the measured leg of a hard side; return how far it moves the plan, and how much it raises the dual.

        Both include rounding.
        """
        logs = self._logs(side)
        self._whole[side] = np.where(self._some[side], self._whole[side] - self._instance.eps * logs, 0.0)
        weights, logs, rounding = self._weights[side], logs[self._some[side]], self._rounding()
        raised = logs + np.copysign(rounding, logs)
        moved = float(residual(weights, logs)) + rounding * float(weights.sum())
        return moved, leg_gain(weights, raised, self._instance.eps)

    def _rounding(self) -> float:
        """Return a bound on the rounding error of a log ratio, in nats."""
        largest = sum(float(np.abs(side[some]).max()) for side, some in zip(self._whole, self._some, strict=True))
        soft = sum(kappa * float(np.abs(side).max()) for kappa, side in zip(self._kappas, self._whole, strict=True))
        return leg_rounding(self._instance) + 4 * UNIT * (largest / self._instance.eps + soft)

    def bound(self, spread: Callable[[], float]) -> tuple[float, float, float]:
        """Return mass, gap, and distance."""
        instance, hard = self._instance, [side for side in (0, 1) if self._kappas[side] == 0.0]
        moved, gain = self._make_exact(hard[0]) if hard else (0.0, 0.0)
        rounding = self._rounding()
        logs = [self._logs(side)[some] for side, some in zip((0, 1), self._some, strict=True)]
        masses = [float(weights @ np.exp(ratios)) for weights, ratios in zip(self._weights, logs, strict=True)]
        mass = masses[0]
        if len(hard) == 2:
            missed = float(residual(self._weights[1], logs[1])) + rounding
            other = self._whole[1][self._some[1]]
            gap = balanced_gap(missed, spread(), float(other.max() - other.min()))
            distance = min(2.0, moved + plan_distance(gap, 1.0, instance.eps))
            return mass, gain + gap, distance
        gap = 0.0
        for side in (0, 1):
            potentials = self._whole[side][self._some[side]]
            gap += duality_gap(self._weights[side], logs[side], potentials, self._kappas[side], rounding)
        distance = moved + plan_distance(gap, max(masses) * (1 + 4 * rounding), instance.eps)
        return mass, gain + gap, distance
