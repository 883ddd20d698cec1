"""Gaussian starts of a stack, by the kernels of the cpu backend."""

from __future__ import annotations

from typing import Any

import numpy as np

from drainsinkhorn.backends.cpu.loading import closed_forms
from drainsinkhorn.backends.cpu.loading_kernels import moments, quadratic
from drainsinkhorn.numerics.starts import FULL_DIM


def gaussian_starts(x: Any, y: Any, a: Any, b: Any, eps: Any, *, always: bool = True) -> Any:
    """Starts g in nats for clouds (L, n, d) and (L, m, d) with weights (L, n) and (L, m), and cost |x - y|^2."""
    lanes, dim = len(eps), x.shape[2]
    full = dim <= FULL_DIM
    means, spreads, starts = np.empty((2, lanes, dim)), np.empty((2, lanes, dim, dim if full else 1)), np.empty(b.shape)
    for side, (clouds, weights) in enumerate(((x, a), (y, b))):
        for lane in range(lanes):
            moments(clouds[lane], weights[lane], means[side, lane], spreads[side, lane], full)
    matrices, slopes, _ = closed_forms(means, spreads if full else spreads[..., 0], eps, always=always)
    for lane in range(lanes):
        matrix = matrices[lane] if full else matrices[lane][:, None]
        quadratic(y[lane], means[1, lane], matrix, slopes[lane], full, starts[lane])
    return starts
