"""What soft marginals add to the costs of a finished plan, from the log marginal ratios of both sides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.numerics.soft import penalised_mass, penalty
from drainsinkhorn.numerics.transforms import SoftTerms


def soft_terms(instance: Instance[Any], potentials: Potentials[Any], log_ratios: Sequence[Any]) -> SoftTerms:
    """Return the penalties and penalised masses of both sides; points without weight are left out.

    Args:
        instance: A problem with a soft marginal.
        potentials: Its potentials.
        log_ratios: Log marginal ratios of rows and of columns in nats, NumPy vectors over all points.
    """
    penalties, rewards = list[float](), list[float]()
    sides = zip(log_ratios, (instance.a, instance.b), potentials, instance.marginals, strict=True)
    for logs, weights, values, marginal in sides:
        weights = to_numpy(weights)
        held = weights > 0
        penalties.append(penalty(weights[held], logs[held], marginal.kappa))
        rewards.append(penalised_mass(weights[held], to_numpy(values).astype(np.float64)[held], marginal.kappa))
    return SoftTerms(instance.masses, (penalties[0], penalties[1]), (rewards[0], rewards[1]))
