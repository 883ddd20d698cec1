"""Points without weight are left out of a problem, and get their potentials at the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.model.couplings import Couplings
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.instances import representatives
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.numerics.costs import cost_matrix, with_matrix
from drainsinkhorn.numerics.exchange import exchange_sides
from drainsinkhorn.numerics.transforms import c_transform, transform_of_ratios
from drainsinkhorn.numerics.weights import uniform, unit_mass

Vector = NDArray[np.float64]
Places = NDArray[np.intp]
Couple = Callable[[Sequence[Instance[Any]], Sequence[Potentials[Any]]], Couplings[Any]]
"""What a backend's `couple` does."""

FEW_PAIRS, CHUNK_PAIRS = 2**15, 2**22
"""Pairs of points up to which NumPy computes c-transforms as fast as any backend, and costs that it holds at once."""


class _Idle(NamedTuple):
    """Points of one side without weight.

    Attributes:
        into: Potentials of the whole side, to be completed.
        places: Indices of these points in `into`.
        instance: These points as x, points of the other side that have weight as y.
        known: Potentials over y.
    """

    into: Vector
    places: Places
    instance: Instance[Any]
    known: Vector


@dataclass(frozen=True, slots=True)
class Support:
    """Which points of an instance have weight.

    Attributes:
        instance: The instance with all its points.
        rows: Places of positive weight in a.
        cols: Places of positive weight in b.
    """

    instance: Instance[Any]
    rows: Places
    cols: Places

    def idle(self, f: Vector, g: Vector) -> tuple[Vector, Vector, list[_Idle]]:
        """Potentials with room for all points, and the points that have none yet."""
        n, m = self.instance.shape
        full_f, full_g = np.zeros(n), np.zeros(m)
        full_f[self.rows], full_g[self.cols] = f, g
        rows, cols = np.setdiff1d(np.arange(n), self.rows), np.setdiff1d(np.arange(m), self.cols)
        idle = list[_Idle]()
        if rows.size:
            idle.append(_Idle(full_f, rows, part(self.instance, rows, self.cols), g))
        if cols.size:
            idle.append(_Idle(full_g, cols, exchange_sides(part(self.instance, self.rows, cols)), f))
        return full_f, full_g, idle


def extend_potentials(
    supports: Sequence[Support], states: Sequence[tuple[Vector, Vector]], couple: Couple | None = None
) -> list[tuple[Vector, Vector]]:
    """Potentials for all points of problems: a point without weight gets its soft c-transform, 0 if that is not finite.

    Args:
        supports: Of each problem.
        states: Potentials of the points that have weight.
        couple: See `c_transforms`.
    """
    potentials, idle = list[tuple[Vector, Vector]](), list[_Idle]()
    for support, state in zip(supports, states, strict=True):
        f, g, idle_sides = support.idle(*state)
        potentials.append((f, g))
        idle += idle_sides
    values = c_transforms([one.instance for one in idle], [one.known for one in idle], couple)
    for one, value in zip(idle, values, strict=True):
        one.into[one.places] = value
    return potentials


def c_transforms(
    instances: Sequence[Instance[Any]], potentials: Sequence[Vector], couple: Couple | None = None
) -> list[Vector]:
    """Soft c-transforms of potentials over y for every point x of problems; 0 where they are not finite.

    Where the marginal of x is soft they are damped: the potential of x then satisfies `r = exp(-kappa f)`.

    Args:
        instances: Instances whose start and weights of x are ignored.
        potentials: Over the y of each.
        couple: Computes the transforms of problems with more than FEW_PAIRS pairs, all in one call. NumPy computes
            those of smaller problems, and of all problems if this is None.
    """
    instances = [replace(p, a=uniform(p.like.shape[0]), init="zero") for p in instances]
    # Judged one by one: what a problem gets must not depend on its neighbours.
    few = {k for k, p in enumerate(instances) if couple is None or math.prod(p.shape) <= FEW_PAIRS}
    transforms = {k: _by_chunks(instances[k], potentials[k]) for k in few}
    many = [k for k in range(len(instances)) if k not in few]
    if many and couple is not None:
        pairs = [Potentials(np.zeros(instances[k].shape[0]), potentials[k]) for k in many]
        # A sum of normalised weights may be off by a unit in the last place.
        normalised = [
            p if not p.marginals.are_hard else replace(p, b=unit_mass(p.b)) for p in map(instances.__getitem__, many)
        ]
        logs = couple(normalised, pairs).log_ratios("row")
        for k, log in zip(many, logs, strict=True):
            transforms[k] = transform_of_ratios(to_numpy(log).astype(np.float64), instances[k].eps)
    dampings = [p.marginals.row.damping(p.eps) for p in instances]
    return [transforms[k] if lam == 1.0 else lam * transforms[k] for k, lam in enumerate(dampings)]


def _by_chunks(instance: Instance[Any], potentials: Vector) -> Vector:
    """Return the soft c-transforms of one problem, computed by NumPy for some points x at a time."""
    rows, cols = (np.arange(size) for size in instance.shape)
    step = max(1, CHUNK_PAIRS // cols.size)
    chunks = [part(instance, rows[first : first + step], cols) for first in range(0, rows.size, step)]
    weights = to_numpy(instance.b)
    return np.concatenate([c_transform(cost_matrix(some)[0], weights, potentials, instance.eps) for some in chunks])


def restrict(instance: Instance[Any]) -> tuple[Instance[Any], Support | None]:
    """The problem on its support, and the Support if any point was left out."""
    a, b = to_numpy(instance.a), to_numpy(instance.b)
    if instance.positive or (a.all() and b.all()):
        return instance, None
    support = Support(instance, np.flatnonzero(a), np.flatnonzero(b))
    return part(instance, support.rows, support.cols), support


def restrict_all(
    instances: Sequence[Instance[Any]], forms: Collection[str]
) -> tuple[Sequence[Instance[Any]], list[Support | None]]:
    """Problems on their supports, with costs in one of these forms; and each Support, None if no point was left out."""
    chosen = representatives(instances)
    kinds = {id(instance.cost): instance.cost.kind for instance in chosen}
    has_forms = all(any(form in forms for form in kind.forms if form != "matrix") for kind in kinds.values())
    if has_forms and all(instance.positive for instance in chosen):
        return instances, [None] * len(instances)
    pairs = [(instance, None) if instance.positive else restrict(instance) for instance in instances]
    return [with_matrix(inner, forms) for inner, _ in pairs], [support for _, support in pairs]


def part(instance: Instance[Any], rows: Places, cols: Places) -> Instance[Any]:
    """The problem on some of its rows and columns."""
    init = instance.init
    if isinstance(init, Potentials):
        init = Potentials(to_numpy(init.f)[rows], to_numpy(init.g)[cols])
    smaller = replace(instance, a=to_numpy(instance.a)[rows], b=to_numpy(instance.b)[cols], init=init)
    if instance.is_dense:
        return replace(smaller, matrix=to_numpy(instance.matrix)[np.ix_(rows, cols)])
    return replace(smaller, x=to_numpy(instance.x)[rows], y=to_numpy(instance.y)[cols])
