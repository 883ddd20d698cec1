"""Costs between points, as descriptions: their formulas are in `numerics.costs`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from drainsinkhorn.model.errors import ProblemError


@dataclass(frozen=True, slots=True)
class Cost:
    """A cost between points: `scale * kind(x, y)`.

    Kinds by name are `sqeuclidean` (`|x-y|^2`, no half), `euclidean` (`|x-y|`), `cosine` (`1 - cos(x, y)`), `dot`
    (`<x, y>`) and `negdot` (`-<x, y>`, whose plan between hard marginals is that of half the squared distance). A kind
    of your own is a `PointCost`, a `Formula`, or an OTT `CostFn`. In an Instance the kind is always a `PointCost`.
    """

    kind: Any = "sqeuclidean"
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Distances:
    """Costs that are distances: `factor |u - v|^2` or `factor |u - v|`. Every backend has kernels for them.

    Attributes:
        factor: A positive number by which the squared distance, or the distance, is multiplied.
        root: True if the cost is the distance itself, False if it is its square.
        directions: True if u and v are the points scaled to length one, False if they are the points.
    """

    factor: float = 1.0
    root: bool = False
    directions: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.factor < math.inf:
            raise ProblemError(f"the factor of distances must be a positive finite number, got {self.factor!r}")
