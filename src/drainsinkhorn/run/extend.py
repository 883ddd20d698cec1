"""Starting potentials of a problem, computed from the potentials of another problem."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from drainsinkhorn.backends import choose
from drainsinkhorn.backends.support import c_transforms
from drainsinkhorn.core.protocol import Backend
from drainsinkhorn.model.errors import ProblemError
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.numerics.arrays import to_caller, to_numpy
from drainsinkhorn.numerics.exchange import exchange_cost
from drainsinkhorn.numerics.weights import unit_mass
from drainsinkhorn.run.queue import Ended
from drainsinkhorn.run.validate import validate


@np.errstate(all="ignore")
def extend(
    known: Problem[Any], potentials: Potentials[Any], problem: Problem[Any], backend: Backend[Any] | None = None
) -> Potentials[Any]:
    """Return potentials to start a problem with, from those of a problem over other points or weights.

    The paper calls them proposals. A side whose points are the same keeps its potentials; on the other side each point
    gets its soft c-transform against the known problem, `f(x) = -eps log sum_j b_j exp((g_j - C(x, y_j)) / eps)`.

    Args:
        known: The problem whose potentials are known.
        potentials: Its potentials.
        problem: The problem to start.
        backend: The backend that computes c-transforms; None: the one that "auto" takes for the problem.

    Returns:
        A start to pass as `Problem(init=...)`.

    Raises:
        ProblemError: If a problem has a dense cost and the shapes differ, or if costs or dimensions of points differ.
    """
    old, new = validate(known, tol=1.0), validate(problem, tol=1.0)
    return extend_instance(old, potentials, new, choose(problem)[0] if backend is None else backend)


@np.errstate(all="ignore")
def extend_instance(
    old: Instance[Any], potentials: Potentials[Any], new: Instance[Any], backend: Backend[Any]
) -> Potentials[Any]:
    """`extend` for problems in normal form."""
    if old.is_dense or new.is_dense:
        if old.shape != new.shape:
            raise ProblemError(f"potentials of a {old.shape} cost matrix cannot start one of shape {new.shape}")
        return potentials
    if old.cost.kind != new.cost.kind or old.dim != new.dim:
        raise ProblemError("potentials can be extended only within one cost and one dimension")
    f, g = (to_numpy(p).astype(np.float64) for p in potentials)
    row_problem, col_problem = (
        replace(old, x=new.x, cost=new.cost),
        replace(old, x=new.y, y=old.x, b=old.a, cost=exchange_cost(new.cost), marginals=old.marginals.exchanged),
    )
    fresh_f = f if _same(old.x, new.x) else c_transforms([row_problem], [g], backend.couple)[0]
    fresh_g = g if _same(old.y, new.y) else c_transforms([col_problem], [f], backend.couple)[0]
    return Potentials(to_caller(fresh_f, new.like), to_caller(fresh_g, new.like))


@np.errstate(all="ignore")
def start_from_predecessor(ended: Ended, instance: Instance[Any], backend: Backend[Any]) -> Potentials[Any] | None:
    """Return the potentials from which an instance starts after its predecessor in a chain.

    None if the instance has a start of its own, or if the predecessor's potentials cannot be extended to it. Raises
    MemoryError if memory does not suffice to extend the potentials.
    """
    before, (_, potentials, residual, *_) = ended
    if isinstance(instance.init, Potentials) or potentials is None or math.isnan(residual.worst):
        return None
    # The rounding error of a sum of normalised weights may be a unit in the last place.
    if before.marginals.are_hard:
        before = replace(before, a=unit_mass(before.a), b=unit_mass(before.b))
    try:
        return extend_instance(before, potentials, instance, backend)
    except ProblemError:
        return None


def _same(p: Any, q: Any) -> bool:
    return p is q or np.array_equal(to_numpy(p), to_numpy(q))
