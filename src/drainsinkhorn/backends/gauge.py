"""The gauge of potentials: `(f + c, g - c)` is the same plan as `(f, g)`, but large potentials have large roundoff."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.numerics.arrays import to_caller, to_numpy
from drainsinkhorn.numerics.costs import UNIT

SINGLE = 2.0**-24
"""Unit roundoff of float32, in which some backends compute."""

DOMINANT = 16.0
"""A shift along the gauge is removed only if the potentials are this many times larger than without it ..."""
HEADROOM = 64.0
"""... and if this multiple of their float32 roundoff exceeds eps tol: backends bound rounding by a few dozen units."""


def usable_start(
    start: Potentials[Any], eps: float, tol: float, a: NDArray[np.float64], b: NDArray[np.float64]
) -> Potentials[Any] | str:
    """Return the start, recentred along the gauge if its size costs digits that tol needs, or "zero" if it is unusable.

    Adding a constant to f and subtracting it from g does not change the plan. The start is returned unchanged unless
    such a shift costs accuracy. If float64 cannot resolve eps in the potentials even after recentring, the start
    contains no information about the plan, and "zero" is returned.

    Args:
        start: Finite potentials, (n,) and (m,).
        eps: Strength of the entropic term.
        tol: Bound on the residual.
        a: Source weights, (n,). Potentials of points without weight are ignored.
        b: Target weights, (m,).
    """
    f, g = to_numpy(start[0]), to_numpy(start[1])
    # A cheap test first: Euclidean norms bound the largest potential. If one overflows to inf, the test fails.
    floats = f.dtype.kind == g.dtype.kind == "f"
    if floats and HEADROOM * SINGLE * math.sqrt(float(f.dot(f)) + float(g.dot(g))) <= eps * min(tol, 1.0):
        return start
    return _recentred(start, f.astype(np.float64), g.astype(np.float64), eps, tol, a, b)


@np.errstate(all="ignore")
def _recentred(
    start: Potentials[Any],
    f: NDArray[np.float64],
    g: NDArray[np.float64],
    eps: float,
    tol: float,
    a: NDArray[np.float64],
    b: NDArray[np.float64],
) -> Potentials[Any] | str:
    """`usable_start` for potentials f and g that are not small."""
    some_f, some_g = f[a > 0], g[b > 0]
    size = _size(some_f, some_g)
    # Halved before they are added: sums of potentials may overflow where the potentials do not.
    middle_f, middle_g = (side.max() / 2 + side.min() / 2 for side in (some_f, some_g))
    shift = middle_f / 2 - middle_g / 2
    rest = _size(some_f - shift, some_g + shift)
    moves = size > DOMINANT * (rest + eps) and HEADROOM * SINGLE * size > eps * tol
    if not UNIT * (rest if moves else size) < eps:
        return "zero"
    if not moves:
        return start
    recentred = (np.where(a > 0, f - shift, 0.0), np.where(b > 0, g + shift, 0.0))
    return Potentials(*(to_caller(side, like) for side, like in zip(recentred, start, strict=True)))


def _size(f: NDArray[np.float64], g: NDArray[np.float64]) -> float:
    return max(float(f.max()), -float(f.min()), float(g.max()), -float(g.min()))
