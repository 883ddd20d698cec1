"""The forms in which callers hand in problems: arrays, Problems, or pairs of clouds, one by one or in an iterable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.errors import ProblemError
from drainsinkhorn.model.problem import Problem
from drainsinkhorn.numerics.arrays import is_array
from drainsinkhorn.numerics.costs import as_cost
from drainsinkhorn.run.feed import Tap
from drainsinkhorn.run.stack import ProblemStack, split_arrays

SHARED = ("eps", "cost", "rho")
"""Fields of a problem that all pairs of an iterable may share; all others differ with the number of points."""

COLUMNS = ("eps", "a", "b", "tol", "init", "chain", "rho", "max_depth")
"""Arguments of `problems` that are None unless they are given."""


def as_problems(
    x: Any, y: Any, cost: Any = "sqeuclidean", batch: Any = None, **columns: Any
) -> Iterable[Problem[Any]] | ProblemStack:
    """Return the caller's problems, or make problems from the caller's arrays or pairs of arrays."""
    resolved = as_cost(cost)
    if not isinstance(resolved, Cost) or y is not None:
        return split_arrays(x, y, cost=cost, batch=batch, **{**dict.fromkeys(COLUMNS), **columns})
    if isinstance(x, Problem):
        x = [x]
    first = next(iter(x), None) if isinstance(x, (list, tuple)) else None
    if is_array(x) or is_array(first) or not isinstance(x, Iterable) or isinstance(x, (str, bytes, dict)):
        raise ProblemError(f"expected problems, or points x and y; got x of type {type(x).__name__} and no y")
    if batch is not None:
        raise ProblemError("batch names the problem of each point of arrays x and y; problems passed as such have none")
    stated = {name: value for name, value in columns.items() if value is not None}
    return read_pairs(x, stated if resolved == Cost() else {**stated, "cost": cost})


def make_problem(x: Any, y: Any = None, **fields: Any) -> Problem[Any]:
    """Return a Problem: x as it is if it is one, else the problem with points x and y and these fields.

    Args:
        x: A Problem, or source points (n, d).
        y: Target points (m, d), if x holds points.
        **fields: Other fields of the problem by name; None stands for a field that was left out.
    """
    stated = {name: value for name, value in fields.items() if value is not None}
    if not isinstance(x, Problem):
        if y is None and x is not None:
            raise ProblemError(f"expected a Problem, or points x and y; got x of type {type(x).__name__} and no y")
        return Problem(x=x, y=y, **stated)
    if y is not None:
        stated = {"y": y, **stated}
    _refuse_fields(stated)
    return x


def read_pairs(source: Iterable[Any], given: Mapping[str, Any]) -> Iterable[Problem[Any]]:
    """Return the problems of an iterable in which a pair (x, y) stands for the problem between two clouds.

    Args:
        source: Problems and pairs; it is read lazily unless it is a list.
        given: Fields of the problems of pairs.
    """
    if isinstance(source, Tap):
        _refuse_fields(given)
        return source
    if isinstance(source, list):
        if not any(map(_is_pair, source)):
            _refuse_fields(given if source else {})
            return source
        return [_from_item(item, given) for item in source]
    return map(partial(_from_item, given=given), source)


def _is_pair(item: Any) -> bool:
    return isinstance(item, (tuple, list)) and len(item) == 2


def _from_item(item: Any, given: Mapping[str, Any]) -> Any:
    """Return the problem of a pair; anything else as it is, so that a run reports it as one INVALID problem."""
    if not _is_pair(item):
        _refuse_fields(given)
        return item
    _refuse_fields({name: value for name, value in given.items() if name not in SHARED})
    return Problem(x=item[0], y=item[1], **given)


def _refuse_fields(given: Mapping[str, Any]) -> None:
    """Raise ProblemError if fields are given for problems that have their own."""
    for name in given:
        raise ProblemError(f"{name} belongs to each Problem when problems are passed: Problem({name}=...)")
