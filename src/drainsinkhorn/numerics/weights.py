"""Weights of points in normal form: float64 vectors, of mass 1 unless a marginal is soft."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


@lru_cache(maxsize=16)
def uniform(size: int) -> Vector:
    """Equal weights, divided by their sum like any others; instances share them, so they must not be written to."""
    weights = np.full(size, 1.0 / size)
    return weights / weights.sum()


def unit_mass(weights: Vector) -> Vector:
    """Weights of mass 1. Denormal ones become the smallest normal number, since some libraries read them as zero."""
    return without_denormals(weights / weights.sum())


def without_denormals(weights: Vector) -> Vector:
    """Weights with the smallest normal number in place of denormal ones: those of problems with a soft marginal."""
    return np.where(weights > 0, np.maximum(weights, np.finfo(np.float64).tiny), 0.0)


def shannon_entropy(weights: Vector) -> float:
    """Return `-sum a_i log a_i` of weights of mass 1; weights of zero add nothing."""
    positive = weights[weights > 0]
    return max(0.0, -float(positive @ np.log(positive)))
