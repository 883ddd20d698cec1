"""Residual of a side: how far one marginal of the plan is from its weights. `numerics.rounding` bounds its error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from drainsinkhorn.numerics.update import total


def residual(
    weights: Any, log_ratios: Any, add: Callable[[Any], Any] = total, expm1: Callable[[Any], Any] = np.expm1
) -> Any:
    """`sum_i a_i |rho_i - 1|`: the L1 distance of one marginal of the plan from its weights.

    Args:
        weights: Weights a of the side, (n,).
        log_ratios: Log marginal ratios `log rho` of the side, (n,), see `numerics.update.log_ratios`.
        add: Sums values over the points of the side; for concatenated lanes, over the points of each lane.
        expm1: `exp(L) - 1` of the array library that the arguments belong to.
    """
    return add(weights * abs(expm1(log_ratios)))
