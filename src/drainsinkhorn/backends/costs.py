"""Costs between points, dense and in float64 with direct differences. One entry of COSTS is one cost."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.backends.arrays import to_numpy
from drainsinkhorn.core.errors import ProblemError
from drainsinkhorn.core.problem import Cost, Problem

Matrix = NDArray[np.float64]

UNIT = 2.0**-53
"""Unit roundoff of float64."""

SMALLEST = 2.0**-1022
"""Smallest normal float64: what underflow can cost at most."""


_PLAIN = re.compile(r"(?:[A-Za-z][A-Za-z0-9]*|[0-9]+|[-+*/|(),\s])+")


def sqeuclidean(x: Matrix, y: Matrix) -> Matrix:
    """`|x_i - y_j|^2`, summed one coordinate at a time so that no (n, m, d) array is built."""
    total = np.zeros((len(x), len(y)))
    for k in range(x.shape[1]):
        difference = x[:, k, None] - y[None, :, k]
        total += difference * difference
    return total


def euclidean(x: Matrix, y: Matrix) -> Matrix:
    """`|x_i - y_j|`, with coordinates scaled by a power of two so that squares neither overflow nor vanish."""
    extent = max(float(np.ptp(np.concatenate([x[:, k], y[:, k]]))) for k in range(x.shape[1]))
    scale = 2.0 ** math.frexp(extent)[1] if 0 < extent < math.inf else 1.0
    return scale * np.sqrt(sqeuclidean(x / scale, y / scale))


def cosine(x: Matrix, y: Matrix) -> Matrix:
    """`1 - cos(x_i, y_j)`, as half the squared distance of the unit vectors, which is exact near zero."""
    return sqeuclidean(unit_rows(x), unit_rows(y)) / 2


def unit_rows(x: Matrix) -> Matrix:
    """Rows scaled to length one; first by their largest entry, so that squares neither overflow nor vanish."""
    x = x / np.abs(x).max(axis=-1, keepdims=True)
    return x / np.sqrt((x * x).sum(axis=-1, keepdims=True))


@dataclass(frozen=True, slots=True)
class PointCost:
    """A cost and how far rounding can carry it.

    Attributes:
        matrix: Points (n, d) and (m, d) to costs (n, m).
        largest: A bound on distances (of unit vectors, for the cosine), or an array of them, to one on costs.
        rounding: Dimension and largest cost (or an array of them) to a bound on the absolute error of a cost, underflow
            included.
    """

    matrix: Callable[[Matrix, Matrix], Matrix]
    largest: Callable[[Any], Any]
    rounding: Callable[[int, Any], Any]


def _rounded_squares(d: int, largest: Any) -> Any:
    # A sum of d squares of rounded differences has relative error below (d + 3) u; each square may underflow.
    return (d + 3) * UNIT * largest + d * SMALLEST


def _rounded_directions(d: int, largest: Any) -> Any:
    # Unit vectors are off by e = (d + 3) u, so a distance r = sqrt(2 C) is off by 2 e, and r^2 / 2 by 2 e r + 2 e^2.
    error = (d + 3) * UNIT
    return 2 * error * (2 * largest) ** 0.5 + error * largest + 2 * error**2


COSTS: dict[str, PointCost] = {
    "sqeuclidean": PointCost(sqeuclidean, lambda far: far * far, _rounded_squares),
    "euclidean": PointCost(euclidean, lambda far: far, lambda d, largest: (d + 3) * UNIT * largest),
    "cosine": PointCost(cosine, lambda far: far * far / 2, _rounded_directions),
}


@dataclass(frozen=True, slots=True)
class Formula:
    """A cost of your own as a KeOps formula in x and y, for example `Formula("Sqrt(SqDist(x, y) + IntCst(1))")`.

    The backend "keops" runs it; the reference evaluates it in float64 first. KeOps reads a formula as Python, so only
    names, whole numbers, brackets, commas and `+ - * / |` are let through.
    """

    text: str

    def __post_init__(self) -> None:
        if not isinstance(cast(object, self.text), str) or not _PLAIN.fullmatch(self.text):
            raise ProblemError(
                f"a formula is made of names, whole numbers, brackets, commas and + - * / |, got {self.text!r}; "
                'for example Formula("Sqrt(SqDist(x, y) + IntCst(1))")'
            )

    @property
    def backend(self) -> str:
        """What computes it."""
        return "keops"

    def __str__(self) -> str:
        return self.text

    def matrix(self, x: Matrix, y: Matrix) -> Matrix:
        """All costs in float64."""
        return importlib.import_module("drainsinkhorn.backends.keops.reduction").formula_matrix(self, x, y)


def as_cost(given: Any) -> Any:
    """A cost between points as a Cost; whatever else, which must be a matrix then, as it is."""
    if isinstance(given, Cost):
        kind = given.kind
        return replace(given, kind=_callers_kind(kind)) if not isinstance(kind, str) else given
    return Cost(_callers_kind(given)) if isinstance(given, (str, Formula)) or _is_ott(given) else given


def _callers_kind(kind: Any) -> Any:
    if not _is_ott(kind):
        return kind
    return importlib.import_module("drainsinkhorn.backends.ottjax.costs").OttCost.of(kind)


def _is_ott(value: Any) -> bool:
    """True for a CostFn of OTT, of which nothing is imported that the caller has not imported."""
    return _is_ott_type(type(value))


@lru_cache(maxsize=256)
def _is_ott_type(kind: type) -> bool:
    return "ott.geometry.costs.CostFn" in {f"{base.__module__}.{base.__name__}" for base in kind.__mro__}


@dataclass(frozen=True, slots=True)
class Turned:
    """A caller's own kind with x and y exchanged, for what looks at a problem from its other side."""

    kind: Any

    @property
    def backend(self) -> str:
        """What computes it."""
        return self.kind.backend

    def matrix(self, x: Matrix, y: Matrix) -> Matrix:
        """All costs in float64."""
        return self.kind.matrix(y, x).T


def turned(cost: Cost) -> Cost:
    """The cost from y to x. Costs by name are symmetric; a caller's own need not be."""
    return cost if isinstance(cost.kind, str) else replace(cost, kind=Turned(cost.kind))


def point_cost(cost: Cost) -> PointCost:
    """Return the bounds known of a cost between points; the float64 value of a caller's own cost counts as exact.

    Raises ProblemError for a name that is not in COSTS.
    """
    if isinstance(cost.kind, str):
        if cost.kind not in COSTS:
            raise ProblemError(f"cost {cost.kind!r} is unknown; use one of {sorted(COSTS)}")
        return COSTS[cost.kind]
    return PointCost(cost.kind.matrix, lambda far: far, _rounded_squares)


def refuse_unknown_cost(problem: Problem[Any], backend: str) -> None:
    """Raise ProblemError for a cost not in COSTS, on behalf of a backend whose kernels know costs by name only."""
    kind = problem.cost.kind if isinstance(problem.cost, Cost) else None
    if kind is None or (isinstance(kind, str) and kind in COSTS):
        return
    if isinstance(kind, str):
        raise ProblemError(f"backend {backend!r} has no cost {kind!r}; use one of {sorted(COSTS)}")
    raise ProblemError(f'backend {backend!r} cannot compute the cost {kind}; use backend="{kind.backend}" or "auto"')


def cost_matrix(problem: Problem[Any]) -> tuple[Matrix, float]:
    """Costs of an admitted problem in float64 by direct differences, and a bound on their absolute error."""
    if not isinstance(problem.cost, Cost):
        return np.ascontiguousarray(to_numpy(problem.cost), dtype=np.float64), 0.0
    x, y = to_numpy(problem.x).astype(np.float64), to_numpy(problem.y).astype(np.float64)
    kind, scale = point_cost(problem.cost), problem.cost.scale
    with np.errstate(over="ignore", invalid="ignore"):
        cost = kind.matrix(x, y)
        return scale * cost, scale * kind.rounding(x.shape[1], float(cost.max()))
