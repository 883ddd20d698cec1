"""Makes problems and instances from arrays. Arguments that many problems share are checked once.

Every problem becomes an instance in `build_instances`: a stack of plain arrays through `validate_stack`, any other
problem through `run.validate`, which checks it alone and names what is wrong with it.
"""

from __future__ import annotations

import inspect
import itertools
import math
import operator
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, overload

import numpy as np

from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.errors import ProblemError
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.instances import InstanceStack
from drainsinkhorn.model.keywords import explain_keyword
from drainsinkhorn.model.marginal import BALANCED, Marginals
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.numerics.arrays import is_array, library
from drainsinkhorn.numerics.costs import COSTS, as_cost
from drainsinkhorn.numerics.memory import memory_errors
from drainsinkhorn.numerics.starts import may_pay
from drainsinkhorn.numerics.weights import uniform
from drainsinkhorn.run.arguments import check_arguments, cost_of_all_points, start_by_name
from drainsinkhorn.run.batches import split_by_batch
from drainsinkhorn.run.marginals import parse_marginals, price_column
from drainsinkhorn.run.relative import stack_eps

Column = tuple[Any, int | None]
"""An argument, and the number of problems for which it has an entry; None if all problems share it."""
DENSE = Cost(COSTS["sqeuclidean"])
"""The cost of an instance with a matrix, where it has no meaning."""


def problems(
    x: Any = None,
    y: Any = None,
    *,
    eps: Any = None,
    a: Any = None,
    b: Any = None,
    tol: Any = None,
    init: Any = None,
    cost: Any = "sqeuclidean",
    chain: Any = None,
    batch: Any = None,
    rho: Any = None,
    max_depth: Any = None,
    **unknown: Any,
) -> list[Problem[Any]]:
    """Return one Problem per entry of the arrays.

    A list, or an array with one dimension more than a single problem needs, holds one entry per problem; all else is
    shared by all problems. All inputs with one entry per problem must agree on the number of problems.

    Args:
        x: Points (n, d) shared, (W, n, d) stacked, or a list of clouds of any sizes. None with a dense cost.
        y: Target points, in one of the same forms.
        eps: A number, `relative` or `sharpness`, or a list with one of them per problem. None: `relative(0.05)`.
        a: Weights (n,) shared, (W, n) stacked, or a list. None: uniform.
        b: Target weights, in one of the same forms.
        tol: A number, or one per problem. None: that of the run.
        init: "gaussian", "zero", or a pair (f, g), each shared, stacked or a list. None: the start of the run, but zero
            for problems that differ only in weights, eps or tol, because these can then share one matrix.
        cost: A name, Cost, PointCost, Formula or CostFn of OTT; a matrix (n, m) shared, (W, n, m) stacked, or a list of
            them.
        chain: A key for all, or a list with one for each: see `Problem`.
        batch: A pair of integer vectors, (N,) and (M,), that name the problem of each point. Then x is (N, d) and y
            (M, d), with the points of all problems in any order; weights and potentials to start from are (N,) and
            (M,). Problems are numbered from 0 without gaps. `concatenate` puts outputs into this order.
        rho: Price of soft marginals, see `Problem`: a number or a pair (a tuple) for all, or a list or an array (W,) or
            (W, 2) with one entry per problem.
        max_depth: Largest number of cycles: a number, or one per problem. None: that of the run.
        **unknown: Any other keyword raises ProblemError, which says what to write instead.

    Raises:
        ProblemError: If inputs do not agree, or one is wrong for every problem: a shared eps or tol, a cost that no
            backend has, points of unequal dimensions, weights of the wrong size. The numbers in the arrays are checked
            by `solve`, problem by problem.

    Examples:
        >>> import numpy as np
        >>> len(problems(np.zeros((5, 10, 2)), np.ones((12, 2)), eps=[0.1, 0.2, 0.3, 0.4, 0.5]))
        5
    """
    if unknown:
        (name, *_), known = unknown, list(inspect.signature(problems).parameters)[:-1]
        raise ProblemError(f"a problem has no {name!r}; {explain_keyword(name, known)}")
    columns = {"eps": eps, "a": a, "b": b, "tol": tol, "init": init, "cost": cost, "chain": chain, "batch": batch}
    made = split_arrays(x, y, **columns, rho=rho, max_depth=max_depth)
    return ProblemList(made) if isinstance(made, ProblemStack) else made


def split_arrays(
    x: Any, y: Any, *, eps: Any, a: Any, b: Any, tol: Any, init: Any, cost: Any, chain: Any, batch: Any, rho: Any,
    max_depth: Any,
) -> ProblemStack | list[Problem[Any]]:  # fmt: skip
    """Return what `problems` returns for these arguments; a ProblemStack unless potentials to start from are given."""
    if batch is not None:
        x, y, a, b, init = split_by_batch(batch, x, y, a, b, init)
    name, pair = (init, (None, None)) if init is None or isinstance(init, str) else (None, init)
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise ProblemError(f"init must be a name or a pair (f, g) of potentials, got {type(init).__name__}")
    f, g = pair
    named = isinstance(as_cost(cost), Cost)
    numeric = {"x": (x, 2), "y": (y, 2), "a": (a, 1), "b": (b, 1), "eps": (eps, 0), "tol": (tol, 0)}
    columns = {label: _column(label, value, ndim) for label, (value, ndim) in numeric.items()}
    columns |= {
        "f": _column("init f", f, 1),
        "g": _column("init g", g, 1),
        "cost": (cost, None) if named else _column("cost", cost, 2),
        "chain": (chain, len(chain)) if isinstance(chain, (list, np.ndarray)) else (chain, None),
        "rho": price_column(rho),
        "max_depth": _depth_column(max_depth),
    }
    width = _width(columns)
    _check_columns(columns, name)
    if init is None and named and width > 1 and columns["x"][1] is None and columns["y"][1] is None:
        name = "zero"
    stack = ProblemStack(columns, width, name)
    if f is None and g is None:
        return stack
    starts = map(Potentials, stack.column("f"), stack.column("g"))
    return [replace(problem, init=start) for problem, start in zip(stack, starts, strict=True)]


def _width(columns: dict[str, Column]) -> int:
    """The number of problems; ProblemError if columns do not agree on it."""
    counts = {name: count for name, (_, count) in columns.items() if count is not None}
    if len(set(counts.values())) > 1:
        listing = ", ".join(f"{name} for {count}" for name, count in counts.items())
        raise ProblemError(f"inputs do not agree on the number of problems: {listing}")
    return next(iter(counts.values()), 1)


def _check_columns(columns: dict[str, Column], init: str | None) -> None:
    """Raise ProblemError for shared numbers and array shapes that are wrong for every problem."""
    shared = {name: value for name, (value, count) in columns.items() if count is None}
    arrays = {name: columns[name][0] if is_array(columns[name][0]) else None for name in ("x", "y", "a", "b")}
    cost = columns["cost"][0]
    parse_marginals(shared.get("rho"))
    check_arguments(eps=shared.get("eps"), tol=shared.get("tol"), cost=cost, init=init, **arrays)


def build_instances(
    problems: Sequence[Problem[Any]],
    strengths: Sequence[float],
    *,
    tol: float,
    a: Any,
    b: Any,
    cost: Cost | Any,
    init: Potentials[Any] | str,
    marginals: Marginals = BALANCED,
) -> list[Instance[Any]]:
    """Return valid problems in normal form. No other function makes instances from problems.

    Args:
        problems: Problems that differ in their points, eps and chain.
        strengths: The eps of each problem.
        tol: The residual at which a lane may leave.
        a: Source weights in float64, of mass 1 unless a marginal is soft: a vector that all problems share, or a list
            with one for each.
        b: Target weights.
        cost: Known cost between points, or a matrix.
        init: Start in normal form. "auto" is zero with a soft marginal, and where a Gaussian start cannot pay.
        marginals: Their constraints.
    """
    masses = (1.0, 1.0)
    if not marginals.are_hard:
        masses = float(a.sum()), float(b.sum())
        # The Gaussian start is the solution of a balanced problem.
        init = "zero" if isinstance(init, str) and init == "auto" else init
    is_uniform = problems[0].a is None and problems[0].b is None
    # Positive weights may become zero when they are normalised.
    positive = is_uniform or bool(np.count_nonzero(a) == len(a) and np.count_nonzero(b) == len(b))
    weights_a, weights_b = (side if isinstance(side, list) else itertools.repeat(side) for side in (a, b))
    sources = [problem.x if type(problem.x) is np.ndarray else as_array(problem.x) for problem in problems]
    matrix = None if isinstance(cost, Cost) else as_array(cost)
    kind = cost if matrix is None else DENSE
    return [
        Instance(
            eps=eps,
            tol=tol,
            a=own_a,
            b=own_b,
            cost=kind,
            x=x,
            y=problem.y if type(problem.y) is np.ndarray else as_array(problem.y),
            matrix=matrix,
            init=init if init != "auto" or may_pay(len(own_a), len(own_b), x.shape[1]) else "zero",
            chain=problem.chain,
            max_depth=problem.max_depth,
            marginals=marginals,
            masses=masses,
            uniform=is_uniform,
            positive=positive,
        )
        # Shared weights are repeated without end.
        for problem, x, eps, own_a, own_b in zip(problems, sources, strengths, weights_a, weights_b, strict=False)
    ]


def as_array(value: Any) -> Any:
    """The caller's own array, or None; a list, a DataFrame or the like becomes a NumPy array."""
    if value is None or isinstance(value, np.ndarray) or library(value) != "numpy":
        return value
    return np.asarray(value)


class ProblemStack(Sequence[Problem[Any]]):
    """Problems made from whole arrays. A Problem is made when it is asked for, the same object at every call.

    Attributes:
        columns: Arguments of `problems` by name.
        width: The number of problems.
        init: The start that all problems share; None: that of the run.
    """

    def __init__(self, columns: dict[str, Column], width: int, init: str | None) -> None:
        self.columns, self.width, self.init = columns, width, init
        self._made: dict[int, Problem[Any]] = {}

    def __len__(self) -> int:
        return self.width

    @overload
    def __getitem__(self, place: int) -> Problem[Any]: ...
    @overload
    def __getitem__(self, place: slice) -> list[Problem[Any]]: ...
    def __getitem__(self, place: int | slice) -> Problem[Any] | list[Problem[Any]]:
        """Return one problem, or some of them."""
        if isinstance(place, slice):
            return [self[each] for each in range(self.width)[place]]
        row = range(self.width)[place]
        if row not in self._made:
            values = {name: value if count is None else value[row] for name, (value, count) in self._given.items()}
            self._made.setdefault(row, Problem(**values, init=self.init))
        return self._made[row]

    def __iter__(self) -> Iterator[Problem[Any]]:
        return map(self.__getitem__, range(self.width))

    @cached_property
    def _given(self) -> dict[str, Column]:
        """The columns that are fields of a problem and were given."""
        named = {name: column for name, column in self.columns.items() if name not in ("f", "g")}
        return {name: column for name, column in named.items() if column[0] is not None}

    def column(self, name: str) -> Iterable[Any]:
        """Return the entries of all problems of one column."""
        values, count = self.columns[name]
        return itertools.repeat(values, self.width) if count is None else values


class NumberedProblems(dict[int, Problem[Any]]):
    """The problems of a stack by ticket, each made when it is accessed.

    Only `[ticket]`, `in` and `len` are supported: the dict itself is empty, so it must not be iterated over, and `get`,
    `pop` and `del` do not find a ticket.
    """

    def __init__(self, stack: Sequence[Problem[Any]]) -> None:
        super().__init__()
        self._stack = stack

    def __missing__(self, ticket: int) -> Problem[Any]:
        return self._stack[ticket]

    def __contains__(self, ticket: object) -> bool:
        return ticket in range(len(self._stack))

    def __len__(self) -> int:
        return len(self._stack)


class ProblemList(list[Problem[Any]]):
    """The problems of a stack as a list, which the caller may change.

    Attributes:
        stack: The stack; None if the list no longer holds its problems.
    """

    def __init__(self, stack: ProblemStack) -> None:
        super().__init__(stack)
        self._stack = stack

    @property
    def stack(self) -> ProblemStack | None:
        """The stack; None if the list no longer holds its problems."""
        is_changed = len(self) != self._stack.width or any(map(operator.is_not, self, self._stack))
        return None if is_changed else self._stack


@np.errstate(all="ignore")
def validate_stack(problems: Any, tol: float, margin: float, init: str) -> InstanceStack | None:
    """Return all problems of a stack in normal form, if its arrays are valid as a whole; else None.

    Only plain cases are handled: points of floats, a named cost that is defined for all points, uniform weights. In all
    other cases, and if a check fails, problems are validated one by one, so that messages name what is wrong.
    """
    problems = problems.stack if isinstance(problems, ProblemList) else problems
    if not isinstance(problems, ProblemStack) or not problems:
        return None
    columns = problems.columns
    x, y = columns["x"][0], columns["y"][0]
    is_special = any(columns[name][0] is not None for name in ("a", "b", "tol", "chain", "rho", "max_depth"))
    if is_special or not (_is_plain(x) and _is_plain(y)) or x.shape[-1] != y.shape[-1]:
        return None
    cost = cost_of_all_points(columns["cost"][0])
    if cost is None:
        return None
    try:
        start = start_by_name(problems.init or init, cost)
    except ProblemError:
        return None
    strengths = np.asarray(columns["eps"][0])
    is_numeric = strengths.dtype.kind in "fiu"
    if is_numeric and not (np.isfinite(strengths) & (strengths > 0)).all():
        return None
    if not _are_finite(x, y):
        return None
    if is_numeric:
        eps_values = np.broadcast_to(strengths.astype(np.float64), (len(problems),)).tolist()
    else:
        eps_values = stack_eps(*columns["eps"], x, y, cost, len(problems))
        if eps_values is None:
            return None
    a, b = (uniform(points.shape[-2]) for points in (x, y))
    first = build_instances(problems[:1], eps_values[:1], tol=margin * tol, a=a, b=b, cost=cost, init=start)[0]
    return InstanceStack(first, x, y, eps_values)


def _are_finite(x: Any, y: Any) -> bool:
    """True if all points are finite; False also if there is not enough memory to check them together."""
    on_device = [points.detach() for points in (x, y) if type(points) is not np.ndarray]
    try:
        if not all(np.isfinite(points).all() for points in (x, y) if type(points) is np.ndarray):
            return False
        if not on_device:
            return True
        with memory_errors():
            largest = [sys.modules["torch"].linalg.vector_norm(points, math.inf) for points in on_device]
    except MemoryError:
        return False
    if len(largest) == 2 and largest[0].device == largest[1].device:
        # The host waits for the device once. A maximum is NaN if a number is.
        largest = [largest[0].maximum(largest[1])]
    return all(math.isfinite(float(value)) for value in largest)


def _is_plain(points: Any) -> bool:
    """True for floats in a NumPy array, or in a tensor on a CUDA device."""
    if type(points) is np.ndarray:
        return points.dtype in (np.float32, np.float64) and points.size > 0
    floats = str(getattr(points, "dtype", "")) in ("torch.float32", "torch.float64")
    return floats and bool(getattr(points, "is_cuda", False)) and points.numel() > 0


def is_column(numbers: Any) -> bool:
    """True for a list, a tuple or an array: one number per problem. False for a number that all problems share."""
    return isinstance(numbers, (list, tuple)) or getattr(numbers, "ndim", 0) > 0


def _depth_column(max_depth: Any) -> Column:
    """Return depth limits as a column: a number or None is shared, a list or an array has one entry per problem."""
    limits = max_depth.tolist() if is_array(max_depth) else max_depth
    return limits, len(limits) if is_column(limits) else None


def _column(name: str, value: Any, ndim: int) -> Column:
    """Return a value as a Column; ProblemError if its shape fits neither one problem nor a stack."""
    if isinstance(value, (list, tuple)):
        return (value, len(value)) if _is_list_of_arrays(value, ndim) else (_column_of_lists(name, value, ndim))
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


def _column_of_lists(name: str, value: Any, ndim: int) -> Column:
    """Return nested lists of numbers as a column: an array if they are regular, else one entry per problem."""
    try:
        array = np.asarray(value)
    except ValueError:
        return value, len(value)
    return _column(name, array, ndim) if array.dtype.kind in "fiub" and array.size else (value, len(value))
