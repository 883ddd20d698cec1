"""Where a problem starts: zero, the Gaussian closed form, or another problem's potentials. A start changes only depth.

For |x - y|^2 between Gaussians with means m_x, m_y and covariances A, B the potential is quadratic:

    T = B^-1/2 (B^1/2 A B^1/2)^1/2 B^-1/2
    g(y) = (y - m_y)' (1 - T) (y - m_y) + 2 (y - m_y)' (m_y - m_x)

(Gelbrich: On a formula for the L2 Wasserstein metric, 1990). The entropic correction of T is left out: it saves no
cycles on clouds of points, and between equal clouds, where zero is nearly the answer, it costs many (docs/adr/0008).
The first f-leg turns g into a pair, so g is all that is needed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.numerics.arrays import to_numpy

Array = NDArray[np.float64]

FULL_DIM = 64
"""Up to this dimension covariances are used in full, above it only their diagonals."""
FLOOR = 1e-6
"""Variances are floored at this fraction of the largest one."""
WORTH = 3.0
"""A Gaussian start whose potentials spread less than this over y, in nats, is left for zero when init is "auto": there
it saves a cycle or two at best, and where clusters are shifted differently it can cost several (docs/adr/0008)."""


class Quadratic(NamedTuple):
    """Starting potentials `g(y) = (y - m)' M (y - m) + l' (y - m)` in nats, for a stack of problems.

    Attributes:
        mean: m, (L, d).
        matrix: M, (L, d, d), or its diagonal, (L, d).
        slope: l, (L, d).
    """

    mean: Array
    matrix: Array
    slope: Array


@np.errstate(all="ignore")
def between(mean_x: Array, cov_x: Array, mean_y: Array, cov_y: Array, eps: Array) -> Quadratic:
    """The closed form between Gaussians with cost |x - y|^2: means (L, d), covariances (L, d, d) or variances (L, d).

    Decompositions go matrix by matrix, so a problem's start does not depend on its neighbours.
    """
    strength = eps[:, None]
    if cov_y.ndim == 3:
        matrix = (np.eye(cov_y.shape[1]) - _transport(cov_x, cov_y)) / strength[:, None]
    else:
        variance = np.maximum(cov_y, FLOOR * cov_y.max(axis=1, keepdims=True))
        matrix = (1 - np.sqrt(cov_x / variance)) / strength
        matrix = np.where(variance > 0, matrix, 0.0)
    return Quadratic(mean_y, matrix, 2 * (mean_y - mean_x) / strength)


def _transport(cov_x: Array, cov_y: Array) -> Array:
    """The matrix T; a covariance that is not finite or zero gives what is not finite, or the identity."""
    eye = np.eye(cov_y.shape[-1])
    cov_x, cov_y = np.broadcast_arrays(cov_x, cov_y)
    bad = ~np.isfinite(cov_x + cov_y).all(axis=(1, 2), keepdims=True)
    cov_x, cov_y = np.where(bad, eye, cov_x), np.where(bad, eye, cov_y)
    values, vectors = np.linalg.eigh(cov_y)
    largest = values.max(axis=1, keepdims=True)
    values = np.where(largest > 0, np.maximum(values, FLOOR * largest), 1.0)
    root = _function(np.sqrt(values), vectors)
    inverse = _function(1 / np.sqrt(values), vectors)
    middle = root @ cov_x @ root
    # Products of covariances may leave float64 where those do not.
    lost = ~np.isfinite(middle).all(axis=(1, 2), keepdims=True)
    middle, bad = np.where(lost, eye, middle), bad | lost
    inner, turned = np.linalg.eigh((middle + middle.swapaxes(1, 2)) / 2)
    inner = np.sqrt(np.maximum(inner, 0.0))
    found = inverse @ _function(inner, turned) @ inverse
    point = ~(largest > 0)[:, :, None]
    return np.where(bad, np.nan, np.where(point, eye, found))


def _function(values: Array, vectors: Array) -> Array:
    return (vectors * values[:, None, :]) @ vectors.swapaxes(1, 2)


def start(instance: Instance[Any]) -> tuple[Array, Array]:
    """Starting potentials (f, g) of one admitted problem on its support, in units of the cost."""
    n, m = instance.shape
    if isinstance(instance.init, Potentials):
        return to_numpy(instance.init.f).astype(np.float64), to_numpy(instance.init.g).astype(np.float64)
    if instance.init == "zero":
        return np.zeros(n), np.zeros(m)
    found = _gaussian(instance)
    if instance.init == "auto" and not worthwhile(found[None], to_numpy(instance.b)[None])[0]:
        found = np.zeros(m)
    return np.zeros(n), instance.eps * found


def worthwhile(starts: Any, weights: Any) -> Any:
    """Which Gaussian starts, (L, m) in nats, "auto" takes."""
    centred = starts - (weights * starts).sum(1)[:, None]
    return (weights * centred * centred).sum(1) >= WORTH**2


@np.errstate(all="ignore")
def _gaussian(instance: Instance[Any]) -> Array:
    """The Gaussian start of one problem in nats; zero if it is not finite."""
    full = to_numpy(instance.x).shape[1] <= FULL_DIM
    moments = list[Array]()
    for points, weights in ((instance.x, to_numpy(instance.a)), (instance.y, to_numpy(instance.b))):
        around = to_numpy(points).astype(np.float64)
        mean = weights @ around
        around = around - mean
        spread = (around * weights[:, None]).T @ around if full else weights @ around**2
        moments += [mean[None], spread[None]]
    strength = np.array([instance.eps / (instance.cost.scale * instance.cost.kind.distances.factor)])
    (mean,), (matrix,), (slope,) = between(*moments, strength)  # type: ignore[call-arg]
    around = to_numpy(instance.y).astype(np.float64) - mean
    found = ((around @ matrix if full else around * matrix) * around).sum(axis=1) + around @ slope
    return found if np.isfinite(found).all() else np.zeros(len(found))
