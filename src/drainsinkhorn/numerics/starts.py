"""Potentials that a problem starts from: zero, a closed form between Gaussians, or given ones. They change only depth.

For |x - y|^2 between Gaussians with means m_x, m_y and covariances A, B the potential is quadratic:

    T = B^-1/2 (B^1/2 A B^1/2)^1/2 B^-1/2
    g(y) = (y - m_y)' (1 - T) (y - m_y) + 2 (y - m_y)' (m_y - m_x)

(Gelbrich: On a formula for the L2 Wasserstein metric, 1990). The entropic correction of T is left out: it saves no
cycles on clouds of points, and between equal clouds, where zero is nearly the answer, it costs many (docs/adr/0008).
The first f-leg computes f from g, so only g is needed.

Potentials have a gauge: `(f + c, g - c)` is the same plan as `(f, g)`, but large potentials have large roundoff.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.numerics.arrays import ROUNDOFF, to_caller, to_numpy
from drainsinkhorn.numerics.blas import single_thread
from drainsinkhorn.numerics.products import has_products, shifts, squares_to_solve

Array = NDArray[np.float64]

FULL_DIM = 64
"""Up to this dimension covariances are used in full, above it only their diagonals."""
FLOOR = 1e-6
"""Variances are floored at this fraction of the largest one."""
WORTH = 3.0
"""With init "auto" a Gaussian start is replaced by zero if its standard deviation over y is less than this, in nats:
there it saves a cycle or two at best, and where clusters are shifted differently it can cost several (docs/adr/0008).
"""
HEAVY_TAILS = 1.5
"""Factor by which the spread of a start over points may exceed that over a Gaussian of their mean and covariance."""
PAIRS_OF_DECOMPOSITION = 2
"""Decomposing the covariances of d coordinates takes about the time of ten cycles over this many times d^3 pairs of
points, and a Gaussian start saves about ten cycles at best."""
THREADED_DIM = 16
"""Matrices of more rows than this are decomposed by one BLAS thread; threads do not share smaller ones."""
DOMINANT = 16.0
"""A shift along the gauge is removed only if the potentials are this many times larger than without it ..."""
HEADROOM = 64.0
"""... and if this multiple of their float32 roundoff exceeds eps tol: backends bound rounding by a few dozen units."""


class Quadratic(NamedTuple):
    """Starting potentials over eps, `g(y) / eps = (y - m)' M (y - m) + l' (y - m)`, for a stack of problems.

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
    """The matrix T: NaN where a covariance is not finite, the identity where cov_y is zero."""
    eye = np.eye(cov_y.shape[-1])
    cov_x, cov_y = np.broadcast_arrays(cov_x, cov_y)
    bad = ~np.isfinite(cov_x + cov_y).all(axis=(1, 2), keepdims=True)
    cov_x, cov_y = np.where(bad, eye, cov_x), np.where(bad, eye, cov_y)
    values, vectors = _eigh(cov_y)
    largest = values.max(axis=1, keepdims=True)
    values = np.where(largest > 0, np.maximum(values, FLOOR * largest), 1.0)
    root = _function(np.sqrt(values), vectors)
    inverse = _function(1 / np.sqrt(values), vectors)
    middle = root @ cov_x @ root
    # Products of covariances may overflow where the covariances do not.
    overflow = ~np.isfinite(middle).all(axis=(1, 2), keepdims=True)
    middle, bad = np.where(overflow, eye, middle), bad | overflow
    inner, turned = _eigh((middle + middle.swapaxes(1, 2)) / 2)
    inner = np.sqrt(np.maximum(inner, 0.0))
    transport = inverse @ _function(inner, turned) @ inverse
    is_point = ~(largest > 0)[:, :, None]
    return np.where(bad, np.nan, np.where(is_point, eye, transport))


def _eigh(matrices: Array) -> Any:
    """Eigenvalues and eigenvectors of symmetric matrices (L, d, d)."""
    if matrices.shape[1] <= THREADED_DIM:
        return np.linalg.eigh(matrices)
    with single_thread():
        return np.linalg.eigh(matrices)


@np.errstate(all="ignore")
def is_negligible(mean_x: Array, cov_x: Array, mean_y: Array, cov_y: Array, eps: Array) -> Any:
    """Which starts `worthwhile` would reject, (L,), found by one product instead of two decompositions.

    Over a Gaussian y with covariance B, the quadratic part of the start has standard deviation
    `2^1/2 |B - (B^1/2 A B^1/2)^1/2|_F / eps`, and the linear part `2 (d' B d)^1/2 / eps`, with d = m_y - m_x. With
    D = B - A, the norm is at most `(d^1/2 |B^1/2 D B^1/2|_F)^1/2`, where d is the dimension (Powers and Stormer: Free
    states of the canonical anticommutation relations, 1970), and `|B^1/2 D B^1/2|_F^2 = tr(D B D B)`. The sum of both,
    times HEAVY_TAILS, is compared with WORTH. Starts of variances alone (L, d) need no decomposition, so none of them
    is rejected here.

    Args:
        mean_x: Means of x, (L, d).
        cov_x: Covariances A of x, (L, d, d), or variances (L, d).
        mean_y: Means of y, (L, d).
        cov_y: Covariances B of y, or variances.
        eps: Strength of the entropic term for the cost `|x - y|^2`, (L,).
    """
    if cov_y.ndim == 2:
        return np.zeros(len(eps), dtype=bool)
    product = (cov_y - cov_x) @ cov_y
    trace = np.maximum((product * product.swapaxes(1, 2)).sum(axis=(1, 2)), 0.0)
    shift = mean_y - mean_x
    linear = (shift[:, None, :] @ cov_y @ shift[:, :, None])[:, 0, 0]
    bound = np.sqrt(2 * math.sqrt(cov_y.shape[1]) * np.sqrt(trace)) + 2 * np.sqrt(np.maximum(linear, 0.0))
    return HEAVY_TAILS * bound < WORTH * eps


def _function(values: Array, vectors: Array) -> Array:
    """A function of symmetric matrices, from its values at their eigenvalues and from their eigenvectors."""
    return (vectors * values[:, None, :]) @ vectors.swapaxes(1, 2)


def start(instance: Instance[Any]) -> tuple[Array, Array]:
    """Starting potentials (f, g) of one instance, in units of the cost.

    For dot products a start by name is that of the squared distances with the same plan.
    """
    if has_products(instance) and not isinstance(instance.init, Potentials):
        f, g = (
            side - to_numpy(shift)
            for side, shift in zip(start(squares_to_solve(instance)), shifts(instance), strict=True)
        )
        return f, g
    n, m = instance.shape
    if isinstance(instance.init, Potentials):
        return to_numpy(instance.init.f).astype(np.float64), to_numpy(instance.init.g).astype(np.float64)
    if instance.init == "zero":
        return np.zeros(n), np.zeros(m)
    nats = _gaussian(instance)
    if instance.init == "auto" and not worthwhile(nats[None], to_numpy(instance.b)[None])[0]:
        nats = np.zeros(m)
    return np.zeros(n), instance.eps * nats


def may_pay(n: int, m: int, dim: int) -> bool:
    """Return False if decomposing covariances takes longer than the cycles that a Gaussian start may save.

    Matrices of up to THREADED_DIM rows take little time, and variances alone need no decomposition.
    """
    return not THREADED_DIM < dim <= FULL_DIM or n * m >= PAIRS_OF_DECOMPOSITION * dim**3


def worthwhile(starts: Any, weights: Any) -> Any:
    """Which Gaussian starts, (L, m) in nats, are used with init "auto"; see WORTH. Weights are (L, m)."""
    centred = starts - (weights * starts).sum(1)[:, None]
    return (weights * centred * centred).sum(1) >= WORTH**2


@np.errstate(all="ignore")
def _gaussian(instance: Instance[Any]) -> Array:
    """The Gaussian start of one problem in nats; zero if it is not finite."""
    full = to_numpy(instance.x).shape[1] <= FULL_DIM
    sides = (instance.x, instance.a, instance.masses[0]), (instance.y, instance.b, instance.masses[1])
    (mean_x, spread_x), (mean_y, spread_y) = (
        _moments(to_numpy(points).astype(np.float64), to_numpy(weights) / mass, full=full)
        for points, weights, mass in sides
    )
    strength = np.array([instance.eps / (instance.cost.scale * instance.cost.kind.distances.factor)])
    moments = mean_x[None], spread_x[None], mean_y[None], spread_y[None], strength
    if instance.init == "auto" and is_negligible(*moments)[0]:
        return np.zeros(instance.shape[1])
    (mean,), (matrix,), (slope,) = between(*moments)
    around = to_numpy(instance.y).astype(np.float64) - mean
    nats = ((around @ matrix if full else around * matrix) * around).sum(axis=1) + around @ slope
    return nats if np.isfinite(nats).all() else np.zeros(len(nats))


def _moments(points: Array, weights: Array, *, full: bool) -> tuple[Array, Array]:
    """The mean (d,) and covariance (d, d), or variances (d,), of a cloud (n, d)."""
    mean = weights @ points
    around = points - mean
    return mean, (around * weights[:, None]).T @ around if full else weights @ around**2


def usable_start(
    start: Potentials[Any], eps: float, tol: float, a: Array, b: Array, *, has_gauge: bool = True
) -> Potentials[Any] | str:
    """Return the start, recentred along the gauge if its size costs digits that tol needs, or "zero" if it is unusable.

    Adding a constant to f and subtracting it from g changes nothing where both marginals are hard. The start is
    returned unchanged unless such a shift costs accuracy. If float64 cannot resolve eps in the potentials even after
    recentring, the start contains no information about the plan, and "zero" is returned.

    Args:
        start: Finite potentials, (n,) and (m,).
        eps: Strength of the entropic term.
        tol: Bound on the residual.
        a: Source weights, (n,). Potentials of points without weight are ignored.
        b: Target weights, (m,).
        has_gauge: Whether both marginals are hard. If one is soft, potentials are not shifted.
    """
    f, g = to_numpy(start[0]), to_numpy(start[1])
    # A cheap test first: Euclidean norms bound the largest potential. If one overflows to inf, the test fails.
    floats = f.dtype.kind == g.dtype.kind == "f"
    if floats and HEADROOM * ROUNDOFF["float32"] * math.sqrt(float(f.dot(f)) + float(g.dot(g))) <= eps * min(tol, 1.0):
        return start
    if not has_gauge:
        size = _size(f[a > 0].astype(np.float64), g[b > 0].astype(np.float64))
        return start if ROUNDOFF["float64"] * size < eps else "zero"
    return _recentre(start, f.astype(np.float64), g.astype(np.float64), eps, tol, a, b)


@np.errstate(all="ignore")
def _recentre(
    start: Potentials[Any],
    f: Array,
    g: Array,
    eps: float,
    tol: float,
    a: Array,
    b: Array,
) -> Potentials[Any] | str:
    """`usable_start` for potentials f and g that are not small."""
    some_f, some_g = f[a > 0], g[b > 0]
    size = _size(some_f, some_g)
    # Halved before they are added: sums of potentials may overflow where the potentials do not.
    middle_f, middle_g = (side.max() / 2 + side.min() / 2 for side in (some_f, some_g))
    shift = middle_f / 2 - middle_g / 2
    rest = _size(some_f - shift, some_g + shift)
    moves = size > DOMINANT * (rest + eps) and HEADROOM * ROUNDOFF["float32"] * size > eps * tol
    if not ROUNDOFF["float64"] * (rest if moves else size) < eps:
        return "zero"
    if not moves:
        return start
    recentred = (np.where(a > 0, f - shift, 0.0), np.where(b > 0, g + shift, 0.0))
    return Potentials(*(to_caller(side, like) for side, like in zip(recentred, start, strict=True)))


def _size(f: Array, g: Array) -> float:
    """The largest absolute value of both potentials."""
    return max(float(f.max()), -float(f.min()), float(g.max()), -float(g.min()))
