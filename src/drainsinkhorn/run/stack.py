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
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from drainsinkhorn.core.options import STARTS, is_positive
from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.eps import is_descriptor
from drainsinkhorn.model.errors import ProblemError
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.keywords import explain_keyword
from drainsinkhorn.model.marginal import BALANCED, Marginals
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.numerics.arrays import is_array, library
from drainsinkhorn.numerics.costs import COSTS, DistanceCost, DotProduct, as_cost, resolve_cost
from drainsinkhorn.numerics.memory import memory_errors
from drainsinkhorn.numerics.products import takes_gaussians
from drainsinkhorn.numerics.starts import may_pay
from drainsinkhorn.numerics.weights import uniform
from drainsinkhorn.run.batches import split_by_batch
from drainsinkhorn.run.marginals import parse_marginals, price_column
from drainsinkhorn.run.relative import stack_eps

Column = tuple[Any, int | None]
"""An argument, and the number of problems for which it has an entry; None if all problems share it."""
EPS_HINT = "it is in units of the cost; relative(0.05) takes 5 % of the mean cost"
TOL_HINT = "it bounds the L1 residual, for example 1e-3"
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
    return _split(columns, width, name)


def _width(columns: dict[str, Column]) -> int:
    """The number of problems; ProblemError if columns do not agree on it."""
    counts = {name: count for name, (_, count) in columns.items() if count is not None}
    if len(set(counts.values())) > 1:
        listing = ", ".join(f"{name} for {count}" for name, count in counts.items())
        raise ProblemError(f"inputs do not agree on the number of problems: {listing}")
    return next(iter(counts.values()), 1)


def _split(columns: dict[str, Column], width: int, init: str | None) -> list[Problem[Any]]:
    """One problem for each row of the columns; a ProblemStack unless potentials to start from are given."""

    def rows(name: str) -> Any:
        values, count = columns[name]
        return itertools.repeat(values, width) if count is None else values

    by_name = columns["f"][0] is None and columns["g"][0] is None
    starts = [init] * width if by_name else map(Potentials, rows("f"), rows("g"))
    names = ("x", "y", "a", "b", "eps", "tol", "cost", "chain", "rho", "max_depth")
    split = [
        Problem(x=x, y=y, a=a, b=b, eps=eps, tol=tol, cost=cost, chain=chain, rho=rho, max_depth=depth, init=start)
        for x, y, a, b, eps, tol, cost, chain, rho, depth, start in zip(*map(rows, names), starts, strict=True)
    ]
    return ProblemStack(split, columns, init) if by_name else split


def _check_columns(columns: dict[str, Column], init: str | None) -> None:
    """Raise ProblemError for shared numbers and array shapes that are wrong for every problem."""
    shared = {name: value for name, (value, count) in columns.items() if count is None}
    arrays = {name: columns[name][0] if is_array(columns[name][0]) else None for name in ("x", "y", "a", "b")}
    cost = columns["cost"][0]
    parse_marginals(shared.get("rho"))
    check_arguments(eps=shared.get("eps"), tol=shared.get("tol"), cost=cost, init=init, **arrays)


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


class ProblemStack(list[Problem[Any]]):
    """Problems made from whole arrays, with these arrays, so that all problems can be validated at once.

    Attributes:
        columns: Arguments of `problems` by name.
        init: The start that all problems share; None: that of the run.
        problems: The problems as they were made. The stack itself is a list, which the caller may have changed since.
    """

    def __init__(self, problems: list[Problem[Any]], columns: dict[str, Column], init: str | None) -> None:
        super().__init__(problems)
        self.columns = columns
        self.init = init
        self.problems = tuple(problems)

    @property
    def is_unchanged(self) -> bool:
        """True if the list still holds the problems that were made from the arrays."""
        return len(self) == len(self.problems) and not any(map(operator.is_not, self, self.problems))


@np.errstate(all="ignore")
def validate_stack(problems: Any, tol: float, margin: float, init: str) -> list[Instance[Any]] | None:
    """Return all problems of a stack in normal form, if its arrays are valid as a whole; else None.

    Only plain cases are handled: points of floats, a named cost that is defined for all points, uniform weights. In all
    other cases, and if a check fails, problems are validated one by one, so that messages name what is wrong.
    """
    if not isinstance(problems, ProblemStack) or not problems.is_unchanged:
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
    return build_instances(problems, eps_values, tol=margin * tol, a=a, b=b, cost=cost, init=start)


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
