"""Implicit differentiation of potentials, batched over finished plans.

With r and c the marginals of P, potentials that keep both marginals satisfy

    r df + P dg  = sum_j P (dC + L deps) - eps P (db / b)
    P' df + c dg = sum_i P (dC + L deps) - eps P' (da / a),    L_ij = log(P_ij / (a_i b_j))

so a cotangent (u, v) of (f, g) with equal sums is pulled back through (p, q), the solution of the same symmetric system
with (u, v) on the right. Eliminating `q = (v - P' p) / c` leaves `(r - P c^-1 P') p = u - P (v / c)`, whose
matrix is positive definite except along the gauge. Conjugate gradients, preconditioned by r, solve this system; each
step applies P and P' once. Arrays are NumPy or torch.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence, Set
from typing import Any

import numpy as np

from drainsinkhorn.model.couplings import Couplings
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.result import MAX_PAIRS

MAX_STEPS, RTOL, COARSE = 1000, 1e-10, 1e-3
"""Largest number of steps of conjugate gradients; relative residual at which a lane stops, and above which it warns."""


def pull_back(
    plans: Couplings[Any], instances: Sequence[Instance[Any]], u: Sequence[Any], v: Sequence[Any], wanted: Set[str]
) -> dict[str, list[Any]]:
    """Return cotangents of inputs from those of the potentials, one for each lane, by the name of the input.

    Args:
        plans: Finished plans.
        instances: Their problems; weights must be positive.
        u: Cotangents of f.
        v: Cotangents of g.
        wanted: Names of inputs: "x", "y", "a", "b", "eps", "cost". The last two need memory for the plans.
    """
    p, q = solve_marginals(plans, u, v)
    pulled: dict[str, list[Any]] = {}
    for name, side, own, other in (("x", "row", p, q), ("y", "col", q, p)):
        if name in wanted:
            both = plans.slopes(side), plans.slopes(side, other)
            pulled[name] = [each[:, None] * s + t for each, s, t in zip(own, *both, strict=True)]
    for name, side, other in (("a", "row", q), ("b", "col", p)):
        if name in wanted:
            passed = zip(instances, plans.apply(other, side), strict=True)
            pulled[name] = [-instance.eps * w / getattr(instance, name) for instance, w in passed]
    if wanted & {"eps", "cost"}:
        dense = plans.plan(MAX_PAIRS)
        moved = [plan * (rows[:, None] + cols) for plan, rows, cols in zip(dense, p, q, strict=True)]
        pulled["cost"] = moved
        pulled["eps"] = [
            (each * _log(plan / (instance.a[:, None] * instance.b) + (plan == 0))).sum()
            for each, plan, instance in zip(moved, dense, instances, strict=True)
        ]
    return pulled


def _log(array: Any) -> Any:
    return array.log() if hasattr(array, "log") else np.log(array)


def solve_marginals(plans: Couplings[Any], u: Sequence[Any], v: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return p and q of every lane, by conjugate gradients on all lanes at once; converged lanes are skipped."""
    r = plans.apply([one * 0 + 1 for one in v], "row")
    c = plans.apply([one * 0 + 1 for one in u], "col")

    def schur(p: list[Any]) -> list[Any]:
        passed = [w / mass for w, mass in zip(plans.apply(p, "col"), c, strict=True)]
        back = plans.apply(passed, "row")
        return [mass * one - w for mass, one, w in zip(r, p, back, strict=True)]

    shifted = plans.apply([one / mass for one, mass in zip(v, c, strict=True)], "row")
    residual = [one - w for one, w in zip(u, shifted, strict=True)]
    # Rounding may leave a component along the gauge, which conjugate gradients cannot reduce.
    residual = [one - mass * (one.sum() / mass.sum()) for one, mass in zip(residual, r, strict=True)]
    p = [one * 0 for one in residual]
    scaled = [one / mass for one, mass in zip(residual, r, strict=True)]
    direction = list(scaled)
    norms = [float((one * z).sum()) for one, z in zip(residual, scaled, strict=True)]
    firsts = list(norms)
    moving = [k for k, norm in enumerate(norms) if norm > 0]
    for _ in range(MAX_STEPS):
        if not moving:
            break
        image = schur(direction)
        for k in list(moving):
            curvature = float((direction[k] * image[k]).sum())
            if not curvature > 0:
                moving.remove(k)
                continue
            step = norms[k] / curvature
            p[k] = p[k] + step * direction[k]
            residual[k] = residual[k] - step * image[k]
            scaled[k] = residual[k] / r[k]
            norm = float((residual[k] * scaled[k]).sum())
            direction[k] = scaled[k] + (norm / norms[k]) * direction[k]
            norms[k] = norm
            if norm <= RTOL**2 * firsts[k]:
                moving.remove(k)
    # Lanes that reached MAX_STEPS, or stopped because rounding left no direction of descent.
    relative_residuals = [(norm / first) ** 0.5 for norm, first in zip(norms, firsts, strict=True) if first > 0]
    coarse = [relative for relative in relative_residuals if relative > COARSE]
    if coarse:
        warnings.warn(
            f"implicit differentiation: {len(coarse)} of {len(p)} lanes end with a relative residual of up to "
            f"{max(coarse):.2g}; their gradients are as coarse; raise eps or solve to a smaller tol",
            RuntimeWarning,
            stacklevel=2,
        )
    passed = plans.apply(p, "col")
    q = [(one - w) / mass for one, w, mass in zip(v, passed, c, strict=True)]
    return p, q
