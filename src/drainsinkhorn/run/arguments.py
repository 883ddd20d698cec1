"""Checks of the arguments of problems that do not depend on the numbers in their arrays."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from drainsinkhorn.core.options import STARTS, is_positive
from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.eps import is_descriptor
from drainsinkhorn.model.errors import ProblemError
from drainsinkhorn.numerics.arrays import is_array
from drainsinkhorn.numerics.costs import DistanceCost, DotProduct, as_cost, resolve_cost
from drainsinkhorn.numerics.products import takes_gaussians

EPS_HINT = "it is in units of the cost; relative(0.05) takes 5 % of the mean cost"
TOL_HINT = "it bounds the L1 residual, for example 1e-3"


def check_arguments(*, eps: Any, tol: Any, cost: Any, init: str | None, **arrays: Any) -> None:
    """Raise ProblemError for arguments that make every problem of a batch invalid, whatever numbers its arrays hold.

    None stands for an argument that was left out, or that differs between problems. An eps that is relative or a
    sharpness is checked when it is made.

    Args:
        eps: Shared by all problems.
        tol: Shared by all problems.
        cost: Shared by all problems; of an array of costs only the shape is checked.
        init: Name of the start, shared by all problems.
        **arrays: x, y, a and b, each shared or stacked.
    """
    if not is_descriptor(eps):
        positive_number("eps", eps, EPS_HINT)
    if tol is not None:
        positive_number("tol", tol, TOL_HINT)
    x, y = arrays["x"], arrays["y"]
    known = known_cost(cost)
    if init is not None:
        start_by_name(init, known)
    if x is not None and y is not None:
        require_same_space(x, y)
    sides = [None if points is None else points.shape[-2] for points in (x, y)]
    if not isinstance(known, Cost) and is_array(known):
        sides = list(known.shape[-2:])
    for name, size in zip("ab", sides, strict=True):
        weights = arrays[name]
        if weights is not None and size is not None and weights.shape[-1] != size:
            raise ProblemError(f"{name} must have one weight for each of {size} points, got {weights.shape[-1]}")


def positive_number(name: str, value: Any, hint: str) -> float:
    """Return a positive finite number as a float; anything else raises ProblemError, whose text ends with the hint."""
    if type(value) is not float and is_array(value) and value.ndim == 0:
        value = value.item()
    if type(value) is float and 0 < value < math.inf:
        return value
    if isinstance(value, int) and value.bit_length() > 1024:
        value = math.inf
    if not is_positive(value):
        raise ProblemError(f"{name} must be a positive finite number, got {describe(value)}; {hint}")
    return float(value)


def describe(value: Any) -> str:
    """A value and its type for messages, in at most some 80 characters."""
    text = f"an array of shape {tuple(value.shape)}" if is_array(value) else repr(value)
    return f"{text if len(text) < 60 else text[:57] + '...'} ({type(value).__name__})"


def known_cost(value: Any) -> Cost | Any:
    """Return a cost between points with a PointCost as its kind and a float as its scale; a matrix as it is."""
    cost = as_cost(value)
    if not isinstance(cost, Cost):
        return cost
    cost = resolve_cost(cost)
    scale = positive_number("the scale of the cost", cost.scale, "1.0 is the default")
    return cost if scale is cost.scale else replace(cost, scale=scale)


def cost_of_all_points(cost: Any) -> Cost | None:
    """Return a cost in normal form if it is defined for all finite points, so that only arrays need a check; else None.

    A PointCost of the caller may reject some points, and directions of zero vectors are not defined.
    """
    try:
        known = known_cost(cost)
    except ProblemError:
        return None
    kind = known.kind if isinstance(known, Cost) else None
    is_defined = isinstance(kind, DotProduct) or (isinstance(kind, DistanceCost) and not kind.form.directions)
    return known if is_defined else None


def start_by_name(init: str, cost: Cost | Any) -> str:
    """The start in normal form: "gaussian", "zero", or "auto" where a backend chooses between these two."""
    has_closed_form = isinstance(cost, Cost) and takes_gaussians(cost)
    if init not in STARTS:
        raise ProblemError(f"init {init!r} is unknown; use one of {list(STARTS)} or a pair (f, g) of potentials")
    if init == "gaussian" and not has_closed_form:
        kind = cost.kind if isinstance(cost, Cost) else "a dense matrix"
        raise ProblemError(
            f'init "gaussian" needs the cost sqeuclidean or a dot product, this one is {kind}; use "auto" or "zero"'
        )
    return init if has_closed_form else "zero"


def require_same_space(x: Any, y: Any) -> None:
    """Raise ProblemError unless the points of both sides have equally many coordinates."""
    if x.shape[-1] != y.shape[-1]:
        raise ProblemError(f"x has dimension {x.shape[-1]} and y has {y.shape[-1]}; both need the same")
