"""Compiled parts of the Gaussian start: moments of clouds, and a quadratic form at points. No BLAS, no threads."""

# pyright: reportCallIssue=false, reportPrivateImportUsage=false, reportGeneralTypeIssues=false
# Numba gives intrinsics another signature than Python sees.

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.backends.cpu.primitives import dot, ordered
from drainsinkhorn.numerics.starts import FULL_DIM, between

Array = NDArray[np.float64]


@ordered
def moments(points, weights, means, spreads, full):
    """Weighted means (L, d) and covariances (L, d, d), or variances (L, d, 1), of clouds (L or 1, n, d)."""
    size, dim = points.shape[1], points.shape[2]
    around = np.empty(dim)
    for lane in range(weights.shape[0]):
        cloud, w, mean, spread = points[lane % points.shape[0]], weights[lane], means[lane], spreads[lane]
        mean[:] = 0
        for i in range(size):
            for k in range(dim):
                mean[k] += w[i] * cloud[i, k]
        spread[:] = 0
        for i in range(size):
            for k in range(dim):
                around[k] = cloud[i, k] - mean[k]
            for k in range(dim):
                scaled = w[i] * around[k]
                if full:
                    row = spread[k]
                    for q in range(dim):
                        row[q] += scaled * around[q]
                else:
                    spread[k, 0] += scaled * around[k]


@ordered
def quadratic(points, means, matrices, slopes, full, out):
    """`(y - m)' M (y - m) + l' (y - m)` at points (L or 1, m, d); zero for a lane where that is not finite."""
    size, dim = points.shape[1], points.shape[2]
    around, bent = np.empty(dim), np.empty(dim)
    for lane in range(out.shape[0]):
        cloud, mean, matrix = points[lane % points.shape[0]], means[lane], matrices[lane]
        slope, found, finite = slopes[lane], out[lane], True
        for j in range(size):
            for k in range(dim):
                around[k] = cloud[j, k] - mean[k]
            for k in range(dim):
                bent[k] = slope[k] + (dot(matrix[k], around) if full else matrix[k, 0] * around[k])
            total = dot(bent, around)
            found[j] = total
            finite &= abs(total) < np.inf
        if not finite:
            found[:] = 0


def gaussian_starts(x: Array, y: Array, a: Array, b: Array, eps: Array) -> Array:
    """Gaussian starts g in nats for a stack: points (L or 1, n, d), weights (L, n), cost |x - y|^2, eps (L,)."""
    lanes, dim = len(eps), x.shape[2]
    full = dim <= FULL_DIM
    shape = (lanes, dim, dim if full else 1)
    means, spreads, out = np.empty((2, lanes, dim)), np.empty((2, *shape)), np.empty((lanes, y.shape[1]))
    moments(x, a, means[0], spreads[0], full)
    moments(y, b, means[1], spreads[1], full)
    spread_x, spread_y = spreads if full else spreads[..., 0]
    found = between(means[0], spread_x, means[1], spread_y, eps)
    quadratic(y, found.mean, np.ascontiguousarray(found.matrix.reshape(shape)), found.slope, full, out)
    return out
