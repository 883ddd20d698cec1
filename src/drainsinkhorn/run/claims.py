"""What a result claims of each point: the marginal ratio that its potentials ask for, and how much all may miss it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.numerics.costs import UNIT
from drainsinkhorn.numerics.soft import soft_exponents

Vector = NDArray[np.float64]


class Claim(NamedTuple):
    """The claim that both residuals of some potentials are at most tol.

    Attributes:
        limit: What `sum_i a_i |rho_i - target_i|` of each side cannot exceed if the claim is true.
        targets: For rows and columns, the ratios that are optimal, `exp(-kappa f_i)`: vectors, or 1 where a marginal is
            hard.
        errors: Bounds on the relative rounding errors of both.
    """

    limit: float
    targets: tuple[Any, Any]
    errors: tuple[float, float]


def make_claim(instance: Instance[Any], potentials: Potentials[Any], tol: float) -> Claim:
    """Return what potentials claim.

    With a soft marginal residuals are relative to the mass m of the plan, which takes a whole pass to compute. But if
    the claim is true, the targets of each side have a mass T with `|m - T| <= tol m`, so that `tol m` is at most
    `tol T / (1 - tol)`. At tol >= 1 nothing is refuted.
    """
    if instance.marginals.are_hard:
        return Claim(tol, (1.0, 1.0), (0.0, 0.0))
    targets, errors, masses = list[Any](), list[float](), list[float]()
    for weights, side, marginal in zip((instance.a, instance.b), potentials, instance.marginals, strict=True):
        weights, side = to_numpy(weights), to_numpy(side).astype(np.float64)
        side = np.where(weights > 0, side, 0.0)
        targets.append(1.0 if marginal.is_hard else np.exp(-marginal.kappa * side))
        errors.append(UNIT * soft_exponents(marginal.kappa, float(np.abs(side).max())))
        masses.append(float((weights * targets[-1]).sum()) * (1 + errors[-1] + len(weights) * UNIT))
    limit = tol * min(masses) / (1 - tol) if tol < 1 else math.inf
    return Claim(limit, (targets[0], targets[1]), (errors[0], errors[1]))
