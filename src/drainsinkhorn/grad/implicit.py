"""Implicit differentiation of potentials, batched over finished plans.

With r and c the marginals of P, potentials that keep both marginals satisfy

    r df + P dg  = sum_j P (dC + L deps) - eps P (db / b)
    P' df + c dg = sum_i P (dC + L deps) - eps P' (da / a),    L_ij = log(P_ij / (a_i b_j))

A soft marginal adds `eps kappa a exp(-kappa f)` to the diagonal r, and there is no gauge
(`numerics.derivatives`). A cotangent (u, v) of (f, g), with equal sums if both marginals are hard, is pulled back
through (p, q), the solution of the same symmetric system with (u, v) on the right. Eliminating `q = (v - P' p) / c`
leaves `(r - P c^-1 P') p = u - P (v / c)`, whose matrix is positive definite except along the gauge of two hard
marginals. Conjugate gradients, preconditioned by r, solve this system; each
step applies P and P' once. Arrays are NumPy or torch.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence, Set
from typing import Any

import numpy as np

from drainsinkhorn.model.couplings import Couplings
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.model.result import MAX_PAIRS
from drainsinkhorn.numerics.derivatives import soft_diagonal

MAX_STEPS, RTOL, COARSE = 1000, 1e-10, 1e-3
"""Largest number of steps of conjugate gradients; relative residual at which a lane stops, and above which it warns."""


def pull_back(
    plans: Couplings[Any],
    instances: Sequence[Instance[Any]],
    u: Sequence[Any],
    v: Sequence[Any],
    wanted: Set[str],
    potentials: Sequence[Potentials[Any]],
) -> dict[str, list[Any]]:
    """Return cotangents of inputs from those of the potentials, one for each lane, by the name of the input.

    Args:
        plans: Finished plans.
        instances: Their problems; weights must be positive.
        u: Cotangents of f.
        v: Cotangents of g.
        wanted: Names of inputs: "x", "y", "a", "b", "eps", "cost", "rho_a", "rho_b". "eps" and "cost" need memory for
            the plans.
        potentials: Those of the plans; used where a marginal is soft.
    """
    extra = [
        None if lane.marginals.are_hard else soft_diagonals(lane, _alike(pair, one), (lane.a, lane.b))
        for lane, pair, one in zip(instances, potentials, u, strict=True)
    ]
    p, q = solve_marginals(plans, u, v, extra)
    pulled: dict[str, list[Any]] = {}
    for name, side, own, other in (("x", "row", p, q), ("y", "col", q, p)):
        if name in wanted:
            both = plans.slopes(side), plans.slopes(side, other)
            pulled[name] = [each[:, None] * s + t for each, s, t in zip(own, *both, strict=True)]
    for name, side, other in (("a", "row", q), ("b", "col", p)):
        if name in wanted:
            passed = zip(instances, plans.apply(other, side), strict=True)
            pulled[name] = [-instance.eps * w / getattr(instance, name) for instance, w in passed]
    for k, (name, own) in enumerate((("rho_a", p), ("rho_b", q))):
        if name in wanted:
            # With dkappa = -kappa^2 drho, the right side of the system moves by eps kappa^2 a f exp(-kappa f).
            pulled[name] = [
                one.sum() * 0
                if added is None
                else (one * added[k] * lane.marginals[k].kappa * _alike(pair, one)[k]).sum()
                for lane, pair, one, added in zip(instances, potentials, own, extra, strict=True)
            ]
    if wanted & {"eps", "cost"}:
        dense = plans.plan(MAX_PAIRS)
        moved = [plan * (rows[:, None] + cols) for plan, rows, cols in zip(dense, p, q, strict=True)]
        pulled["cost"] = moved
        pulled["eps"] = [
            (each * _log(plan / (instance.a[:, None] * instance.b) + (plan == 0))).sum()
            for each, plan, instance in zip(moved, dense, instances, strict=True)
        ]
    return pulled


def soft_diagonals(instance: Instance[Any], potentials: Sequence[Any], weights: Sequence[Any]) -> Any:
    """Return what soft marginals add to the diagonals of both sides (`soft_diagonal`); None if both are hard."""
    if instance.marginals.are_hard:
        return None
    return [
        soft_diagonal(w, h, marginal.kappa, instance.eps)
        for w, h, marginal in zip(weights, potentials, instance.marginals, strict=True)
    ]


def _log(array: Any) -> Any:
    return array.log() if hasattr(array, "log") else np.log(array)


def _alike(potentials: Potentials[Any], like: Any) -> list[Any]:
    """Potentials in the library, on the device and in the dtype of an array."""
    if isinstance(like, np.ndarray):
        return [np.asarray(side, like.dtype) for side in potentials]
    import torch

    return [torch.as_tensor(side, dtype=like.dtype, device=like.device) for side in potentials]


def _diagonals(masses: Sequence[Any], extra: Sequence[Any], side: int) -> list[Any]:
    """Diagonals of the system: masses of points, and what soft marginals add; 1 for a point without mass."""
    added = [mass if more is None else mass + more[side] for mass, more in zip(masses, extra, strict=True)]
    return [one + (one == 0) for one in added]


def solve_marginals(
    plans: Couplings[Any], u: Sequence[Any], v: Sequence[Any], extra: Sequence[Any] | None = None
) -> tuple[list[Any], list[Any]]:
    """Return p and q of every lane, by conjugate gradients on all lanes at once; converged lanes are skipped.

    Args:
        plans: Finished plans.
        u: Right sides of the rows.
        v: Right sides of the columns.
        extra: What soft marginals add to the diagonals of both sides (`soft_diagonals`), one entry for each
            lane; None for a lane with two hard marginals.
    """
    extra = [None] * len(u) if extra is None else extra
    r = _diagonals(plans.apply([one * 0 + 1 for one in v], "row"), extra, 0)
    c = _diagonals(plans.apply([one * 0 + 1 for one in u], "col"), extra, 1)

    def schur(p: list[Any]) -> list[Any]:
        passed = [w / mass for w, mass in zip(plans.apply(p, "col"), c, strict=True)]
        back = plans.apply(passed, "row")
        return [mass * one - w for mass, one, w in zip(r, p, back, strict=True)]

    shifted = plans.apply([one / mass for one, mass in zip(v, c, strict=True)], "row")
    residual = [one - w for one, w in zip(u, shifted, strict=True)]
    # Rounding may leave a component along the gauge, which conjugate gradients cannot reduce.
    residual = [
        one - mass * (one.sum() / mass.sum()) if more is None else one
        for one, mass, more in zip(residual, r, extra, strict=True)
    ]
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
