"""Implicit differentiation of potentials, batched over finished plans.

With r and c the marginals of P, potentials that keep both marginals satisfy

    r df + P dg  = sum_j P dC - eps P (db / b)
    P' df + c dg = sum_i P dC - eps P' (da / a)

so a cotangent (u, v) of (f, g) with equal sums is pulled back through (p, q), the solution of the same symmetric system
with (u, v) on the right. Eliminating `q = (v - P' p) / c` leaves `(r - P c^-1 P') p = u - P (v / c)`, positive but for
the gauge: conjugate gradients, preconditioned by r, each step one `apply` of either side. Arrays are NumPy or torch.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from drainsinkhorn.model.couplings import Couplings
from drainsinkhorn.model.instance import Instance

MAX_STEPS, RTOL, COARSE = 1000, 1e-10, 1e-3
"""Largest number of steps of conjugate gradients; relative residual at which a lane stops, and above which it warns."""


class Pulled(NamedTuple):
    """Cotangents of the inputs of every lane, each of the shape of its input."""

    x: list[Any]
    y: list[Any]
    a: list[Any]
    b: list[Any]


def pull_back(plans: Couplings[Any], instances: Sequence[Instance[Any]], u: Sequence[Any], v: Sequence[Any]) -> Pulled:
    """Return cotangents of points and weights from those of f, `u`, and g, `v`; weights must be positive."""
    p, q = solve_marginals(plans, u, v)
    rows, cols = plans.slopes("row"), plans.slopes("col")
    x = [own[:, None] * s + t for own, s, t in zip(p, rows, plans.slopes("row", q), strict=True)]
    y = [own[:, None] * s + t for own, s, t in zip(q, cols, plans.slopes("col", p), strict=True)]
    a = [-instance.eps * w / instance.a for instance, w in zip(instances, plans.apply(q), strict=True)]
    b = [-instance.eps * w / instance.b for instance, w in zip(instances, plans.apply(p, "col"), strict=True)]
    return Pulled(x, y, a, b)


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
