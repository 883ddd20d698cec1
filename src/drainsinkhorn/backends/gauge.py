"""The gauge of potentials: `(f + c, g - c)` is the plan of `(f, g)`, but float64 rounds f and g by their own size."""

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
"""A shift along the gauge is removed only from potentials that exceed what is left of them this many times."""
HEADROOM = 64.0
"""... and whose rounding in float32, this many times, exceeds tol: bounds of backends are at most a few dozen units."""


def usable_start(
    start: Potentials[Any], eps: float, tol: float, a: NDArray[np.float64], b: NDArray[np.float64]
) -> Potentials[Any] | str:
    """The start, recentred along the gauge where its size costs digits that tol needs; "zero" if it has none left.

    Both marginals are fixed, so a constant can move from f to g without a change of the plan. A start is returned as it
    is unless that shift matters. A start whose potentials, recentred, are so large that float64 cannot resolve one eps
    says nothing about the plan; then "zero" is the better start.

    Args:
        start: Finite potentials, (n,) and (m,).
        eps: Strength of the entropic term.
        tol: Bound on the residual.
        a: Source weights, (n,). Potentials of points without weight are not looked at.
        b: Target weights, (m,).
    """
    f, g = to_numpy(start[0]), to_numpy(start[1])
    # Norms bound sizes and cost the least. Those of floats overflow to infinity, which decides nothing.
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
