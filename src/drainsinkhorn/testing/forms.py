"""Formulas of costs, and prices of marginals, as the auditor reads them; no backend uses these."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.errors import ProblemError
from drainsinkhorn.model.problem import Problem


class Form(NamedTuple):
    """The formula of a cost between points: `scale |u - v|^2 / divisor`, the distance itself, or `scale dot <x, y>`.

    Attributes:
        root: The cost is the distance, not its square.
        directions: u and v are the points scaled to length one, else the points.
        divisor: Of the squared distance.
        scale: The scale of the cost.
        dot: Sign of the dot product; 0: the cost is a distance.
    """

    root: bool = False
    directions: bool = False
    divisor: int = 1
    scale: float = 1.0
    dot: int = 0


# 1 - cos is half a squared distance; it would lose the digits of nearly parallel vectors.
FORMS = {
    "sqeuclidean": Form(),
    "euclidean": Form(root=True),
    "cosine": Form(directions=True, divisor=2),
    "dot": Form(dot=1),
    "negdot": Form(dot=-1),
}
"""Formulas by name. This table is the auditor's own, since it shares no code with backends."""


def form_of(cost: str | Cost) -> Form:
    """The formula of a cost by name; ProblemError for any other."""
    name, scale = (str(cost.kind), cost.scale) if isinstance(cost, Cost) else (cost, 1.0)
    if name not in FORMS:
        raise ProblemError(f"the auditor knows the costs {list(FORMS)}, not {name!r}; give it the matrix of costs")
    return FORMS[name]._replace(scale=float(scale))


def prices_of(problem: Problem[Any]) -> tuple[float, float]:
    """The prices of both marginals; inf where a marginal is hard."""
    rho = problem.rho
    pair = tuple(rho) if isinstance(rho, (tuple, list, np.ndarray)) else (rho, rho)
    row, col = (math.inf if price is None else float(price) for price in pair)
    return row, col
