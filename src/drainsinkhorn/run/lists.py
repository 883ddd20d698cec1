"""Validates a plain list of problems at once: checks that concern all arrays are made on their concatenation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.errors import ProblemError
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Problem
from drainsinkhorn.numerics.weights import uniform
from drainsinkhorn.run.arguments import cost_of_all_points, start_by_name
from drainsinkhorn.run.stack import build_instances
from drainsinkhorn.run.validate import all_finite, is_on_device

FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


@np.errstate(all="ignore")
def validate_list(problems: Any, tol: float, margin: float, init: str) -> list[Instance[Any]] | None:
    """Return all problems of a list in normal form, if all are plain and valid; else None.

    Plain problems have points of floats in NumPy arrays or on a CUDA device, uniform weights, a number as their eps, no
    other field of their own, and one named cost that is defined for all points. If one problem is not plain or not
    valid, problems are validated one by one, so that messages name what is wrong.
    """
    if type(problems) is not list or len(problems) < 2 or not all(type(problem) is Problem for problem in problems):
        return None
    first: Problem[Any] = problems[0]
    if not isinstance(first.cost, (str, Cost)) or not all(_is_plain(problem, first) for problem in problems):
        return None
    cost = cost_of_all_points(first.cost)
    if cost is None:
        return None
    try:
        start = start_by_name(first.init if isinstance(first.init, str) else init, cost)
    except ProblemError:
        return None
    if not (_are_valid_clouds([p.x for p in problems]) and _are_valid_clouds([p.y for p in problems])):
        return None
    if any(p.x.shape[1] != p.y.shape[1] for p in problems):
        return None
    weights = {size: uniform(size) for size in {len(side) for p in problems for side in (p.x, p.y)}}
    a, b = [weights[len(p.x)] for p in problems], [weights[len(p.y)] for p in problems]
    return build_instances(problems, [p.eps for p in problems], tol=margin * tol, a=a, b=b, cost=cost, init=start)


def _is_plain(problem: Problem[Any], first: Problem[Any]) -> bool:
    """True if a problem has a number as eps, the first problem's cost and start, and else only points."""
    return (
        problem.a is None
        and problem.b is None
        and problem.tol is None
        and problem.chain is None
        and problem.rho is None
        and problem.max_depth is None
        and type(problem.eps) is float
        and 0 < problem.eps < math.inf
        and problem.cost is first.cost
        and (problem.init is None if first.init is None else problem.init is first.init and type(first.init) is str)
    )


def _are_valid_clouds(clouds: Sequence[Any]) -> bool:
    """True if all clouds are finite matrices of floats with points, all in NumPy arrays or all on CUDA devices."""
    if type(clouds[0]) is not np.ndarray:
        return all(map(is_on_device, clouds)) and all_finite(clouds)
    for points in clouds:
        if type(points) is not np.ndarray or points.ndim != 2 or points.size == 0 or points.dtype not in FLOATS:
            return False
    try:
        return bool(np.isfinite(np.concatenate([points.reshape(-1) for points in clouds])).all())
    except MemoryError:
        return False
