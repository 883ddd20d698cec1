"""The eps of problems that state it as a share of their own cost: of one problem, or of many alike together."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.eps import DEFAULT_EPS, FallingEps, RelativeEps, target_eps
from drainsinkhorn.model.errors import ProblemError
from drainsinkhorn.model.problem import Problem
from drainsinkhorn.numerics.arrays import Array, on_cuda, to_numpy
from drainsinkhorn.numerics.cost_statistics import matrix_statistic, own_cost_statistic, point_statistics
from drainsinkhorn.numerics.costs import DistanceCost, as_cost, resolve_cost
from drainsinkhorn.numerics.memory import memory_errors

STACKED = 2**22
"""Numbers of problems of a list that are stacked at a time, so that their statistics are computed together."""
FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
TENSORS = ("torch.float32", "torch.float64")
WHY_ZERO = {
    "mean": "all points are equal, or so near each other that float64 cannot hold their costs",
    "median": 'at least half of all pairs of points coincide, so that a share of="mean" may suit',
    "std": "all costs are equal, so every eps gives the same plan",
}
"""Why a statistic of the cost is 0."""


def as_relative(eps: Any) -> RelativeEps | None:
    """Return a relative eps, or the target of one that falls; the default for None, and None for everything else."""
    target = target_eps(eps)
    return DEFAULT_EPS if target is None else target if isinstance(target, RelativeEps) else None


def relative_eps(eps: RelativeEps, problem: Problem[Any], cost: Cost | Any, a: Array, b: Array) -> float:
    """Return the eps of one problem; ProblemError if its statistic is no positive finite number.

    Args:
        eps: The share, and the statistic.
        problem: The problem, whose points or matrix are valid.
        cost: Its cost between points with a PointCost as its kind, or its matrix.
        a: Its source weights, valid, of any mass.
        b: Its target weights.
    """
    rows, columns = (None if (weights > 0).all() else np.flatnonzero(weights > 0) for weights in (a, b))
    with memory_errors():
        if not isinstance(cost, Cost):
            matrix = _readable(cost)
            matrix = matrix if rows is None else matrix[_places(rows, matrix)]
            matrix = matrix if columns is None else matrix[:, _places(columns, matrix)]
            return _share(eps, matrix_statistic(matrix, eps.of))
        x, y = (_readable(points) for points in (problem.x, problem.y))
        x = x if rows is None else x[_places(rows, x)]
        y = y if columns is None else y[_places(columns, y)]
        if cost.kind.distances is None:
            return _share(eps, own_cost_statistic(cost, x, y, eps.of))
        if not (on_cuda(x) and on_cuda(y)):
            x, y = to_numpy(x), to_numpy(y)
        return _share(eps, point_statistics(cost, x[None], y[None], eps.of)[0])


def _readable(values: Any) -> Any:
    """The same array if it lies on a CUDA device, where it is reduced; else a NumPy array."""
    return values if on_cuda(values) else to_numpy(values)


def _places(indices: Array, like: Any) -> Any:
    """Indices on the device of an array."""
    return indices if type(like) is np.ndarray else sys.modules["torch"].from_numpy(indices).to(like.device)


def _share(eps: RelativeEps, value: float) -> float:
    """Return a share of a statistic; ProblemError says what is wrong if the result is no eps."""
    strength = eps.share * value
    if 0 < strength < math.inf and value > 0:
        return strength
    if value == 0:
        why = f"{WHY_ZERO[eps.of]}; pass a number as eps"
    elif value < 0:
        why = 'pass a share of="std", or a number as eps'
    else:
        why = "costs, or the share of them, leave the range of float64; rescale the points"
    raise ProblemError(f"eps is {eps.share:.6g} times the {eps.of} of the cost, which is {value:.6g}: {why}")


def stack_eps(column: Any, count: int | None, x: Any, y: Any, cost: Cost, width: int) -> list[float] | None:
    """Return the eps of each problem of a stack; None if one is neither a number nor relative, or cannot be found.

    Args:
        column: The eps that all problems share, or a list with one for each.
        count: Number of its entries; None: it is shared.
        x: Source points, (W, n, d) or (n, d), of floats.
        y: Target points.
        cost: A cost with the form "distances".
        width: Number of problems, W.
    """
    each = [column] * width if count is None else list(column)
    statistics: dict[str, list[float]] = {}
    clouds = [points if points.ndim == 3 else points[None] for points in (x, y)]
    numbers: list[float] = []
    for place, eps in enumerate(each):
        if isinstance(eps, FallingEps):
            return None
        relative = as_relative(eps)
        if relative is None:
            if not isinstance(eps, (float, np.floating)) and not (type(eps) is int and eps < 2**53):
                return None
            numbers.append(float(eps))
            continue
        if relative.of not in statistics:
            try:
                with memory_errors():
                    statistics[relative.of] = point_statistics(cost, clouds[0], clouds[1], relative.of)
            except MemoryError:
                return None
        values = statistics[relative.of]
        numbers.append(relative.share * values[place if len(values) > 1 else 0])
    return numbers if all(0 < eps < math.inf for eps in numbers) else None


def find_together(problems: Iterable[tuple[int, Any]]) -> dict[int, float]:
    """Return the eps, by ticket, of problems whose eps is relative; problems of equal shapes are computed together.

    Problems that are not plain, and those whose eps cannot be found, are left out: their normal form says why.

    Args:
        problems: Problems with their tickets.
    """
    groups: dict[tuple[Any, ...], list[tuple[int, Problem[Any]]]] = {}
    for ticket, problem in problems:
        key = _group(problem)
        if key is not None:
            groups.setdefault(key, []).append((ticket, problem))
    eps_of: dict[int, float] = {}
    for (of, cost, *_), members in groups.items():
        if len(members) > 1:
            eps_of |= _find_group(of, cost, members)
    return {ticket: eps for ticket, eps in eps_of.items() if 0 < eps < math.inf}


def _find_group(of: str, given: Any, members: list[tuple[int, Problem[Any]]]) -> dict[int, float]:
    """The eps of problems of equal shapes and costs by ticket; each pair of clouds is read once."""
    places: dict[tuple[int, int], int] = {}
    clouds: list[tuple[Any, Any]] = []
    for _, problem in members:
        key = id(problem.x), id(problem.y)
        if key not in places:
            places[key] = len(clouds)
            clouds.append((problem.x, problem.y))
    step = max(1, STACKED // sum(points.shape[0] * points.shape[1] for points in clouds[0]))
    values: list[float] = []
    try:
        cost = resolve_cost(as_cost(given))
        if not isinstance(cost.kind, DistanceCost) or type(cost.scale) is not float:
            return {}
        with memory_errors():
            for start in range(0, len(clouds), step):
                x, y = (_stack(side) for side in zip(*clouds[start : start + step], strict=True))
                values += point_statistics(cost, x, y, of)
    except (ProblemError, MemoryError):
        # Each problem is looked at alone, and its message says what is wrong.
        return {}
    return {
        ticket: (as_relative(problem.eps) or DEFAULT_EPS).share * values[places[id(problem.x), id(problem.y)]]
        for ticket, problem in members
    }


def _stack(clouds: Sequence[Any]) -> Any:
    first = clouds[0]
    if type(first) is np.ndarray:
        return np.concatenate(clouds).reshape(len(clouds), *first.shape)
    return sys.modules["torch"].stack([cloud.detach() for cloud in clouds])


def _group(problem: Any) -> tuple[Any, ...] | None:
    """A key that is equal for problems to be computed together; None for one that must be computed alone."""
    if type(problem) is not Problem or type(problem.eps) is float:
        return None
    eps, cost = as_relative(problem.eps), problem.cost
    x: Any = problem.x
    y: Any = problem.y
    if eps is None or not _is_plain(x) or not _is_plain(y) or type(cost) not in (str, Cost):
        return None
    for weights, points in ((problem.a, x), (problem.b, y)):
        if weights is not None and not _is_positive(weights, len(points)):
            return None
    shape = y.shape
    if type(x) is not type(y) or x.shape[1] != shape[1]:
        return None
    key = (eps.of, cost, x.dtype, y.dtype, len(x), shape, getattr(x, "device", None), getattr(y, "device", None))
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _is_plain(points: Any) -> bool:
    """True for a cloud of floats in a NumPy array, or in a tensor on a CUDA device."""
    if type(points) is np.ndarray:
        return points.ndim == 2 and points.dtype in FLOATS and points.size > 0
    return on_cuda(points) and points.ndim == 2 and str(points.dtype) in TENSORS and points.numel() > 0


def _is_positive(weights: Any, size: int) -> bool:
    """True if all weights of a side are known to be positive."""
    plain = type(weights) is np.ndarray and weights.dtype.kind in "fiu" and weights.shape == (size,)
    return plain and bool((weights > 0).all())
