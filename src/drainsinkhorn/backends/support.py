"""Points without weight take no part in a problem: they are left out, and get their potentials at the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.backends.door import sizes, uniform
from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.couplings import Couplings
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.numerics.costs import cost_matrix, turned

Vector = NDArray[np.float64]
Places = NDArray[np.intp]
Couple = Callable[[Sequence[Problem[Any]], Sequence[Potentials[Any]]], Couplings[Any]]
"""What a backend's `couple` does."""

FEW_PAIRS, CHUNK_PAIRS = 2**15, 2**22
"""Pairs of points up to which NumPy computes c-transforms as fast as anybody, and costs that it holds at once."""


class _Idle(NamedTuple):
    """Points of one side without weight.

    Attributes:
        into: Potentials of the whole side, to be completed.
        places: Where those of these points belong.
        problem: They as x, points of the other side that have weight as y.
        known: Potentials over y.
    """

    into: Vector
    places: Places
    problem: Problem[Any]
    known: Vector


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

    def idle(self, f: Vector, g: Vector) -> tuple[Vector, Vector, list[_Idle]]:
        """Potentials with room for all points, and the points that have none yet."""
        n, m = sizes(self.problem)
        full_f, full_g = np.zeros(n), np.zeros(m)
        full_f[self.rows], full_g[self.cols] = f, g
        rows, cols = np.setdiff1d(np.arange(n), self.rows), np.setdiff1d(np.arange(m), self.cols)
        found = list[_Idle]()
        if rows.size:
            found.append(_Idle(full_f, rows, part(self.problem, rows, self.cols), g))
        if cols.size:
            found.append(_Idle(full_g, cols, _turned(part(self.problem, self.rows, cols)), f))
        return full_f, full_g, found


def _turned(problem: Problem[Any]) -> Problem[Any]:
    """The problem from y to x."""
    cost: Any = problem.cost
    other = turned(cost) if isinstance(cost, Cost) else cost.T
    return replace(problem, x=problem.y, y=problem.x, a=problem.b, b=problem.a, cost=other, init=None)


def extended(
    supports: Sequence[Support], states: Sequence[tuple[Vector, Vector]], couple: Couple | None = None
) -> list[tuple[Vector, Vector]]:
    """Potentials for all points of problems: a point without weight gets its soft c-transform, 0 if that is not finite.

    Args:
        supports: Of each problem.
        states: Potentials of the points that have weight.
        couple: See `c_transforms`.
    """
    found, idle = list[tuple[Vector, Vector]](), list[_Idle]()
    for support, state in zip(supports, states, strict=True):
        f, g, more = support.idle(*state)
        found.append((f, g))
        idle += more
    values = c_transforms([one.problem for one in idle], [one.known for one in idle], couple)
    for one, value in zip(idle, values, strict=True):
        one.into[one.places] = value
    return found


def c_transforms(
    problems: Sequence[Problem[Any]], potentials: Sequence[Vector], couple: Couple | None = None
) -> list[Vector]:
    """Soft c-transforms of potentials over y for every point x of problems; 0 where they are not finite.

    Args:
        problems: Admitted, but that neither their start nor the weights of x are of any account.
        potentials: Over the y of each.
        couple: Computes those of many pairs, for all problems together. NumPy computes the others, or all.
    """
    problems = [replace(p, a=uniform(sizes(p)[0]), init=None) for p in problems]
    # Judged one by one: what a problem gets must not depend on its neighbours.
    few = {k for k, p in enumerate(problems) if couple is None or math.prod(sizes(p)) <= FEW_PAIRS}
    found = {k: _by_chunks(problems[k], potentials[k]) for k in few}
    many = [k for k in range(len(problems)) if k not in few]
    if many and couple is not None:
        given = [Potentials(np.zeros(sizes(problems[k])[0]), potentials[k]) for k in many]
        logs = couple([problems[k] for k in many], given).log_ratios("row")
        # With f zero, `log (P 1)_i / a_i` is minus the transform over eps, whatever a is.
        values = [-problems[k].eps * to_numpy(log).astype(np.float64) for k, log in zip(many, logs, strict=True)]
        found |= {k: np.where(np.isfinite(v), v, 0.0) for k, v in zip(many, values, strict=True)}
    return [found[k] for k in range(len(problems))]


def _by_chunks(problem: Problem[Any], potentials: Vector) -> Vector:
    """The same by NumPy for one problem, some points at a time."""
    rows, cols = (np.arange(size) for size in sizes(problem))
    step = max(1, CHUNK_PAIRS // cols.size)
    chunks = [part(problem, rows[first : first + step], cols) for first in range(0, rows.size, step)]
    weights = to_numpy(problem.b)
    return np.concatenate([c_transform(cost_matrix(some)[0], weights, potentials, problem.eps) for some in chunks])


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
