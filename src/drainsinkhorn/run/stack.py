"""From arrays to problems: stacked, shared, or lists of unequal clouds."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from drainsinkhorn.core.options import STARTS, is_positive
from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.errors import ProblemError
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.numerics.arrays import is_array
from drainsinkhorn.numerics.costs import DistanceCost, as_cost, is_squares, resolve_cost
from drainsinkhorn.numerics.memory import memory_errors
from drainsinkhorn.numerics.weights import uniform
from drainsinkhorn.run.validate import check_arguments


def problems(
    x: Any = None,
    y: Any = None,
    *,
    eps: Any,
    a: Any = None,
    b: Any = None,
    tol: Any = None,
    init: Any = None,
    cost: Any = "sqeuclidean",
    chain: Any = None,
) -> list[Problem[Any]]:
    """One Problem per lane of the arrays.

    A list, or an array with one dimension more than a single problem needs, holds one entry per problem; all else is
    shared by all problems. All inputs with one entry per problem must agree on the number of problems.

    Args:
        x: Points (n, d) shared, (W, n, d) stacked, or a list of clouds of any sizes. None with a dense cost.
        y: Likewise.
        eps: A number, or one per problem.
        a: Weights (n,) shared, (W, n) stacked, or a list. None: uniform.
        b: Likewise.
        tol: A number, or one per problem. None: the solve's.
        init: "gaussian", "zero", or a pair (f, g), each shared, stacked or a list. None: what suits the cost, but zero
            for problems that differ only in weights, eps or tol: over the same points they share one matrix then.
        cost: A name, Cost, PointCost, Formula or CostFn of OTT; a matrix (n, m) shared, (W, n, m) stacked, or a list of
            them.
        chain: A key for all, or a list with one for each: see `Problem`.

    Raises:
        ProblemError: If inputs do not agree, or one is wrong for every problem: a shared eps or tol, a cost that no
            backend has, points of unequal dimensions, weights of the wrong size. The numbers in the arrays are checked
            by `solve`, problem by problem.

    Examples:
        >>> import numpy as np
        >>> len(problems(np.zeros((5, 10, 2)), np.ones((12, 2)), eps=[0.1, 0.2, 0.3, 0.4, 0.5]))
        5
    """
    name, pair = (init, (None, None)) if init is None or isinstance(init, str) else (None, init)
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise ProblemError(f"init must be a name or a pair (f, g) of potentials, got {type(init).__name__}")
    f, g = pair
    named = isinstance(as_cost(cost), Cost)
    columns = {
        "x": _column("x", x, 2),
        "y": _column("y", y, 2),
        "a": _column("a", a, 1),
        "b": _column("b", b, 1),
        "eps": _column("eps", eps, 0),
        "tol": _column("tol", tol, 0),
        "f": _column("init f", f, 1),
        "g": _column("init g", g, 1),
        "cost": (cost, None) if named else _column("cost", cost, 2),
        "chain": (chain, len(chain)) if isinstance(chain, (list, np.ndarray)) else (chain, None),
    }
    counts = {name: count for name, (_, count) in columns.items() if count is not None}
    if len(set(counts.values())) > 1:
        said = ", ".join(f"{name} for {count}" for name, count in counts.items())
        raise ProblemError(f"inputs do not agree on the number of problems: {said}")
    width = next(iter(counts.values()), 1)
    _check_arguments(columns, name)

    def of(name: str, lane: int) -> Any:
        values, count = columns[name]
        return values if count is None else values[lane]

    if init is None and named and width > 1 and columns["x"][1] is None and columns["y"][1] is None:
        name = "zero"
    by_name = f is None and g is None
    starts = [name] * width if by_name else [Potentials(of("f", lane), of("g", lane)) for lane in range(width)]
    names = ("x", "y", "a", "b", "eps", "tol", "cost", "chain")
    rows = zip(*(_rows(columns[name], width) for name in names), strict=True)
    made = [
        Problem(x=x, y=y, a=a, b=b, eps=eps, tol=tol, cost=cost, chain=chain, init=start)
        for (x, y, a, b, eps, tol, cost, chain), start in zip(rows, starts, strict=True)
    ]
    return Stack(made, columns, name) if by_name else made


def _check_arguments(columns: dict[str, tuple[Any, int | None]], init: str | None) -> None:
    """Raise ProblemError for shared numbers and array shapes that are wrong for every problem."""
    shared = {name: value for name, (value, count) in columns.items() if count is None}
    arrays = {name: columns[name][0] if is_array(columns[name][0]) else None for name in ("x", "y", "a", "b")}
    cost = columns["cost"][0]
    check_arguments(eps=shared.get("eps"), tol=shared.get("tol"), cost=cost, init=init, **arrays)


def _rows(column: tuple[Any, int | None], width: int) -> Any:
    values, count = column
    return itertools.repeat(values, width) if count is None else values


class Stack(list[Problem[Any]]):
    """Problems made from whole arrays, which it remembers so that the door can look at them all at once."""

    def __init__(self, made: list[Problem[Any]], columns: dict[str, tuple[Any, int | None]], init: str | None) -> None:
        super().__init__(made)
        self.columns = columns
        self.init = init
        self.made = tuple(made)


@np.errstate(all="ignore")
def validate_stack(given: Any, tol: float, margin: float, init: str) -> list[Instance[Any]] | None:
    """All problems of a stack in normal form, if its arrays are found to be valid as a whole; else None.

    Only plain cases: points of floats, a cost by distances of any points, uniform weights. All others, and a stack that
    is bad anywhere, are validated problem by problem, which finds the right words.
    """
    if not isinstance(given, Stack) or len(given) != len(given.made) or any(map(operator.is_not, given, given.made)):
        return None
    x, y, eps, tols, cost = (given.columns[name][0] for name in ("x", "y", "eps", "tol", "cost"))
    plain = all(_is_plain(p) for p in (x, y))
    weighted = given.columns["a"][0] is not None or given.columns["b"][0] is not None
    if not plain or weighted or tols is not None or given.columns["chain"][0] is not None:
        return None
    init = given.init or init
    cost = _plain_cost(cost)
    if cost is None or init not in STARTS or x.shape[-1] != y.shape[-1]:
        return None
    start = "zero" if init == "auto" and not is_squares(cost) else init
    if start == "gaussian" and not is_squares(cost):
        return None
    strengths = np.asarray(eps)
    if strengths.dtype.kind not in "fiu" or not (np.isfinite(strengths) & (strengths > 0)).all():
        return None
    if not (_is_finite(x) and _is_finite(y)):
        return None
    a, b = (uniform(p.shape[-2]) for p in (x, y))
    each = np.broadcast_to(strengths.astype(np.float64), (len(given),)).tolist()
    return [
        Instance(eps=e, tol=margin * tol, a=a, b=b, cost=cost, x=p.x, y=p.y, init=start, uniform=True)
        for p, e in zip(given, each, strict=True)
    ]


def _plain_cost(given: Any) -> Cost | None:
    """A cost by distances that every point has, ready for instances; None for another."""
    cost = as_cost(given)
    if not isinstance(cost, Cost) or not is_positive(cost.scale):
        return None
    try:
        cost = resolve_cost(cost)
    except ProblemError:
        return None
    kind = cost.kind
    # A class of the caller's own may refuse points of which it has no costs.
    return cost if isinstance(kind, DistanceCost) and not kind.form.directions else None


def _is_finite(points: Any) -> bool:
    """True if all points are finite; False also if there is not enough memory to check them together."""
    try:
        if type(points) is np.ndarray:
            return bool(np.isfinite(points).all())
        with memory_errors():
            return bool(points.detach().isfinite().all())
    except MemoryError:
        return False


def _is_plain(points: Any) -> bool:
    """True for floats in a NumPy array, or in a tensor on a CUDA device."""
    if type(points) is np.ndarray:
        return points.dtype in (np.float32, np.float64) and points.size > 0
    floats = str(getattr(points, "dtype", "")) in ("torch.float32", "torch.float64")
    return floats and bool(getattr(points, "is_cuda", False)) and points.numel() > 0


def _column(name: str, value: Any, ndim: int) -> tuple[Any, int | None]:
    """The value and how many problems it is for; None if it is shared."""
    if isinstance(value, (list, tuple)):
        return (value, len(value)) if _is_list_of_arrays(value, ndim) else (_nested(name, value, ndim))
    if not is_array(value):
        return value, None
    if value.ndim == ndim + 1:
        return value, int(value.shape[0])
    if value.ndim == ndim:
        return value, None
    points = "(n, m) or (W, n, m)" if name == "cost" else "(n, d) or (W, n, d)"
    wanted = {0: "a number or one per problem", 1: "(n,) or (W, n)", 2: points}[ndim]
    hint = ""
    if (value.ndim, ndim) == (1, 2) and name != "cost":
        objects = str(value.dtype) == "object"
        hint = "; pass clouds of unequal size as a list" if objects else f"; write {name}[:, None] for points on a line"
    raise ProblemError(f"{name} has shape {tuple(value.shape)}, expected {wanted}{hint}")


def _is_list_of_arrays(values: Sequence[Any], ndim: int) -> bool:
    return ndim == 0 or any(is_array(value) and value.ndim > 0 for value in values)


def _nested(name: str, value: Any, ndim: int) -> tuple[Any, int | None]:
    """Nested Python lists of numbers: read as an array where they are regular, as a list of problems otherwise."""
    try:
        array = np.asarray(value)
    except ValueError:
        return value, len(value)
    return _column(name, array, ndim) if array.dtype.kind in "fiub" and array.size else (value, len(value))
