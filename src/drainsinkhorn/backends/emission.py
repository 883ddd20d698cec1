"""How potentials reach the caller: in the caller's dtype while that costs less than a tenth of tol, else in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.backends.arrays import float_dtype, is_single, to_caller
from drainsinkhorn.backends.door import caller_array
from drainsinkhorn.backends.support import Couple, Support, extended
from drainsinkhorn.core.problem import Potentials, Problem
from drainsinkhorn.core.protocol import Emission

Vector = NDArray[np.float64]
_SINGLE, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)


class Rounded(NamedTuple):
    """Potentials as they will be emitted, held in float64, and the dtype they will be emitted in."""

    f: Vector
    g: Vector
    dtype: np.dtype[Any]


def _budget(eps: Any, tol: Any) -> Any:
    """How far rounding may move potentials: a tenth of tol."""
    return eps * tol / 10


def rounded(problem: Problem[Any], f: Vector, g: Vector) -> Rounded:
    """Round a state to what its caller will get."""
    dtype = float_dtype(caller_array(problem))
    if dtype is not None and dtype.itemsize < 8:
        with np.errstate(over="ignore", invalid="ignore"):
            short_f, short_g = f.astype(dtype).astype(np.float64), g.astype(dtype).astype(np.float64)
            moved = float(np.abs(short_f - f).max()) + float(np.abs(short_g - g).max())
        # Written so that what overflowed, and is NaN or inf here, stays in float64.
        if moved <= _budget(problem.eps, problem.tol):
            return Rounded(short_f, short_g, dtype)
    return Rounded(f, g, np.dtype(np.float64))


def emission(
    problem: Problem[Any], state: Rounded, support: Support | None = None, couple: Couple | None = None
) -> Emission:
    """Copies of a rounded state in the caller's library and on the caller's device, for all points."""
    return emissions([problem], [state], [support], couple)[0]


def emissions(
    problems: Sequence[Problem[Any]],
    states: Sequence[Rounded],
    supports: Sequence[Support | None],
    couple: Couple | None = None,
) -> list[Emission]:
    """Of many lanes together. `couple` computes potentials of points without weight, where those are many."""
    some = {place: support for place, support in enumerate(supports) if support is not None}
    whole = extended(list(some.values()), [(states[place].f, states[place].g) for place in some], couple)
    known = dict(zip(some, whole, strict=True))
    return [
        _emission(problem, Rounded(*known[place], state.dtype), idle=True)
        if place in known
        else _emission(problem, state)
        for place, (problem, state) in enumerate(zip(problems, states, strict=True))
    ]


def _emission(problem: Problem[Any], state: Rounded, *, idle: bool = False) -> Emission:
    like, dtype = caller_array(problem), state.dtype
    own = float_dtype(like)
    f, g = state.f, state.g
    if idle and dtype.itemsize < 8:
        # A point without weight may lie beyond the range of the dtype; its potential is of no account.
        largest = float(np.finfo(dtype).max)
        f, g = np.clip(f, -largest, largest), np.clip(g, -largest, largest)
    potentials = Potentials(to_caller(f.astype(dtype), like), to_caller(g.astype(dtype), like))
    # Not a comparison of dtypes alone: NumPy takes None for float64.
    return Emission(potentials, own is None or own != dtype, problem)


class States:
    """States of many lanes, rounded together to what their callers will get; flat vectors, lane after lane.

    Args:
        problems: The lanes' problems.
        f: Potentials of the rows in nats; overwritten.
        f_at: Where each lane's begin, and the end.
        g: Potentials of the columns, likewise.
        g_at: Likewise.
    """

    def __init__(
        self, problems: Sequence[Problem[Any]], f: Vector, f_at: NDArray[np.int64], g: Vector, g_at: NDArray[np.int64]
    ) -> None:
        self.problems = problems
        self.eps = np.array([problem.eps for problem in problems])
        self.f, self.f_at, self.g, self.g_at = f, f_at, g, g_at
        f *= np.repeat(self.eps, np.diff(f_at))
        g *= np.repeat(self.eps, np.diff(g_at))
        wanted = np.array([is_single(caller_array(problem)) for problem in problems], dtype=bool)
        self.single = wanted
        if wanted.any():
            with np.errstate(over="ignore", invalid="ignore"):
                moved = _moved(f, f_at) + _moved(g, g_at)
            # Written so that what overflowed, and is NaN or inf here, stays in float64.
            self.single = wanted & (moved <= _budget(self.eps, np.array([problem.tol for problem in problems])))
            for vector, at in ((f, f_at), (g, g_at)):
                short = np.repeat(self.single, np.diff(at))
                vector[short] = vector[short].astype(np.float32)

    def emissions(self, supports: Sequence[Support | None], couple: Couple | None = None) -> list[Emission]:
        """Copies of all lanes' states for their callers."""
        short = (self.f.astype(np.float32), self.g.astype(np.float32)) if self.single.any() else (self.f, self.g)
        f_at, g_at = self.f_at.tolist(), self.g_at.tolist()
        emitted: list[Any] = []
        others: dict[int, Rounded] = {}
        for place, (problem, single, support) in enumerate(zip(self.problems, self.single, supports, strict=True)):
            rows, cols = slice(f_at[place], f_at[place + 1]), slice(g_at[place], g_at[place + 1])
            like = caller_array(problem)
            if support is None and type(like) is np.ndarray:
                f, g = short if single else (self.f, self.g)
                potentials = Potentials(f[rows].copy(), g[cols].copy())
                emitted.append(Emission(potentials, potentials.f.dtype != like.dtype, problem))
            else:
                others[place] = Rounded(self.f[rows], self.g[cols], _SINGLE if single else _DOUBLE)
                emitted.append(None)
        given, idle = [self.problems[place] for place in others], [supports[place] for place in others]
        for place, found in zip(others, emissions(given, list(others.values()), idle, couple), strict=True):
            emitted[place] = found
        return emitted


def _moved(vector: Vector, at: NDArray[np.int64]) -> Vector:
    """How far rounding to float32 would move each lane's potentials at most."""
    return np.maximum.reduceat(np.abs(vector.astype(np.float32) - vector), at[:-1])
