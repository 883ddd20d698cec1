"""Facts about points that decide how numbers are laid out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def box(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Lowest and highest coordinates of two clouds, stored coordinate by coordinate."""
    return np.minimum(x.min(axis=-1), y.min(axis=-1)), np.maximum(x.max(axis=-1), y.max(axis=-1))


def farthest(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """A bound on all distances between two clouds, through the middle of their common box.

    Points are stored coordinate by coordinate, (d, n) or stacked (W, d, n); the result is a number or (W,).
    """
    low, high = box(x, y)
    middle = (low / 2 + high / 2)[..., None]
    radii = [np.sqrt(((points - middle) ** 2).sum(axis=-2).max(axis=-1)) for points in (x, y)]
    # The diagonal of the box where squares overflow or vanish.
    diagonal = (high - low).max(axis=-1) * x.shape[-2] ** 0.5
    return np.where((diagonal > 1e-140) & (diagonal < 1e140), radii[0] + radii[1], diagonal)
