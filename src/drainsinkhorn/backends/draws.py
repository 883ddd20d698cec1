"""Random draws of places in proportion to mass."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.model.errors import ProblemError

Vector = NDArray[np.float64]
Places = NDArray[np.int64]


def draw_by_mass(mass: Vector, numbers: Vector) -> Places:
    """Draw rows in proportion to their mass; ProblemError if the mass is not finite."""
    if not np.isfinite(mass).all():
        raise ProblemError("the plan is not finite, so nothing can be drawn from it; see the result's message")
    if not mass.any():
        raise ProblemError(
            "the plan has no mass, so nothing can be drawn from it: its points are too far apart for the price rho; "
            "raise rho or eps"
        )
    return invert(mass, numbers)


def invert(mass: Vector, numbers: Vector) -> Places:
    """The places at which cumulative sums of `mass` pass numbers in [0, 1) times its total."""
    sums = np.cumsum(mass)
    last = int(np.flatnonzero(mass)[-1])
    return np.minimum(np.searchsorted(sums, numbers * sums[-1], side="right"), last)
