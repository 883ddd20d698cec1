"""Facts about a problem's points that decide how its numbers are laid out."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def farthest(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """A bound on all distances between two clouds: through the middle of their common box."""
    low, high = np.minimum(x.min(axis=0), y.min(axis=0)), np.maximum(x.max(axis=0), y.max(axis=0))
    middle = low / 2 + high / 2
    # The diagonal of the box where squares overflow or vanish.
    radii = [float(np.sqrt(((points - middle) ** 2).sum(axis=1).max())) for points in (x, y)]
    diagonal = float((high - low).max()) * math.sqrt(x.shape[1])
    return sum(radii) if 1e-140 < diagonal < 1e140 else diagonal
