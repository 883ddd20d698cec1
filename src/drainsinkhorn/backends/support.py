"""Points without weight take no part in a problem: they are left out, and get their potentials at the end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.backends.arrays import to_numpy
from drainsinkhorn.backends.costs import cost_matrix
from drainsinkhorn.core.problem import Cost, Potentials, Problem

Vector = NDArray[np.float64]
Places = NDArray[np.intp]

CHUNK_PAIRS = 2**22
"""Costs that are held at once where points without weight get their potentials."""


@dataclass(frozen=True, slots=True)
class Support:
    """Which points of an admitted problem carry weight.

    Attributes:
        problem: The problem as admitted.
        rows: Places of positive weight in a.
        cols: Places of positive weight in b.
    """

    problem: Problem[Any]
    rows: Places
    cols: Places

    def extend(self, f: Vector, g: Vector) -> tuple[Vector, Vector]:
        """Potentials for all points: a point without weight gets its soft c-transform, 0 where that is not finite."""
        whole = self.problem
        full_f, full_g = np.zeros(to_numpy(whole.a).size), np.zeros(to_numpy(whole.b).size)
        full_f[self.rows], full_g[self.cols] = f, g
        idle_rows, idle_cols = (
            np.setdiff1d(np.arange(v.size), s) for v, s in ((full_f, self.rows), (full_g, self.cols))
        )
        a, b = to_numpy(whole.a)[self.rows], to_numpy(whole.b)[self.cols]
        for some in _chunks(idle_rows, b.size):
            full_f[some] = c_transform(cost_matrix(part(whole, some, self.cols))[0], b, g, whole.eps)
        for some in _chunks(idle_cols, a.size):
            full_g[some] = c_transform(cost_matrix(part(whole, self.rows, some))[0].T, a, f, whole.eps)
        return full_f, full_g


def _chunks(places: Places, others: int) -> list[Places]:
    """The same, some at a time, each of which meets so many others."""
    step = max(1, CHUNK_PAIRS // others)
    return [places[first : first + step] for first in range(0, len(places), step)]


def restrict(problem: Problem[Any], full: dict[int, bool] | None = None) -> tuple[Problem[Any], Support | None]:
    """The problem on its support, and the Support if any point was left out.

    `full` remembers, by identity, which weights were found to be positive everywhere, since many problems share theirs.
    """
    a, b = to_numpy(problem.a), to_numpy(problem.b)
    full = {} if full is None else full
    for weights in (a, b):
        if id(weights) not in full:
            full[id(weights)] = bool(weights.all())
    if full[id(a)] and full[id(b)]:
        return problem, None
    support = Support(problem, np.flatnonzero(a), np.flatnonzero(b))
    return part(problem, support.rows, support.cols), support


def part(problem: Problem[Any], rows: Places, cols: Places) -> Problem[Any]:
    """The problem on some of its rows and columns."""
    init = problem.init
    if isinstance(init, Potentials):
        init = Potentials(to_numpy(init.f)[rows], to_numpy(init.g)[cols])
    some = replace(problem, a=to_numpy(problem.a)[rows], b=to_numpy(problem.b)[cols], init=init)
    if isinstance(problem.cost, Cost):
        return replace(some, x=to_numpy(problem.x)[rows], y=to_numpy(problem.y)[cols])
    return replace(some, cost=to_numpy(problem.cost)[np.ix_(rows, cols)])


@np.errstate(all="ignore")
def c_transform(cost: NDArray[np.float64], weights: Vector, potentials: Vector, eps: float) -> Vector:
    """`-eps log sum_j w_j exp((h_j - C_ij) / eps)` for every row i; 0 where that is not finite."""
    exponents = np.log(weights) + (potentials - cost) / eps
    largest = exponents.max(axis=1)
    values = -eps * (np.log(np.exp(exponents - largest[:, None]).sum(axis=1)) + largest)
    return np.where(np.isfinite(values), values, 0.0)
