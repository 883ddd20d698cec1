"""How potentials reach the caller: in the caller's dtype while that costs less than a tenth of tol, else in float64."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.backends.arrays import float_dtype, to_caller
from drainsinkhorn.backends.door import caller_array
from drainsinkhorn.backends.support import Support
from drainsinkhorn.core.problem import Potentials, Problem
from drainsinkhorn.core.protocol import Emission

Vector = NDArray[np.float64]


class Rounded(NamedTuple):
    """Potentials as they will be emitted, held in float64, and the dtype they will be emitted in."""

    f: Vector
    g: Vector
    dtype: np.dtype[Any]


def rounded(problem: Problem[Any], f: Vector, g: Vector) -> Rounded:
    """Round a state to what its caller will get."""
    dtype = float_dtype(caller_array(problem))
    if dtype is not None and dtype.itemsize < 8:
        with np.errstate(over="ignore", invalid="ignore"):
            short_f, short_g = f.astype(dtype).astype(np.float64), g.astype(dtype).astype(np.float64)
            moved = float(np.abs(short_f - f).max()) + float(np.abs(short_g - g).max())
        # Written so that what overflowed, and is NaN or inf here, stays in float64.
        if moved <= problem.eps * float(problem.tol or 0) / 10:
            return Rounded(short_f, short_g, dtype)
    return Rounded(f, g, np.dtype(np.float64))


def emission(problem: Problem[Any], state: Rounded, support: Support | None = None) -> Emission:
    """Copies of a rounded state in the caller's library and on the caller's device, for all points."""
    like, dtype = caller_array(problem), state.dtype
    own = float_dtype(like)
    f, g = (state.f, state.g) if support is None else support.extend(state.f, state.g)
    if support is not None and dtype.itemsize < 8:
        # A point without weight may lie beyond the range of the dtype; its potential is of no account.
        largest = float(np.finfo(dtype).max)
        f, g = np.clip(f, -largest, largest), np.clip(g, -largest, largest)
    potentials = Potentials(to_caller(f.astype(dtype), like), to_caller(g.astype(dtype), like))
    # Not a comparison of dtypes alone: NumPy takes None for float64.
    return Emission(potentials, widened=own is None or own != dtype)
