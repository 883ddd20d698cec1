"""Validation of one problem: it is checked here once and becomes an Instance, which is not checked again.

A message shows the value, says what is wrong with it, and what to do.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from drainsinkhorn.core.options import STARTS
from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.eps import SharpnessEps, target_eps
from drainsinkhorn.model.errors import ProblemError
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.numerics.arrays import ROUNDOFF, SMALLEST, Array, float_name, is_array, library, to_numpy
from drainsinkhorn.numerics.costs import DotProduct, evaluate
from drainsinkhorn.numerics.starts import usable_start
from drainsinkhorn.numerics.weights import uniform, unit_mass, without_denormals
from drainsinkhorn.run.arguments import (
    EPS_HINT,
    TOL_HINT,
    describe,
    known_cost,
    positive_number,
    require_same_space,
    start_by_name,
)
from drainsinkhorn.run.marginals import parse_marginals
from drainsinkhorn.run.relative import as_relative, relative_eps
from drainsinkhorn.run.stack import as_array, build_instances

UNEQUAL_MASS = 1e-5
"""Relative difference of total masses above which a problem is unbalanced, unless rounding of weights explains it."""
TOGETHER = 2**24
"""Entries on a device that are concatenated and checked by one call: 64 MB of float32."""


@np.errstate(all="ignore")
def validate(
    problem: Any, tol: float, margin: float = 1.0, init: str = "auto", *, finite: bool = False
) -> Instance[Any]:
    """Return the problem in normal form under any settings of NumPy for floating-point errors; see `make_instance`."""
    return make_instance(problem, tol, margin, init, finite=finite)


def make_instance(
    problem: Any, tol: float, margin: float, init: str, *, finite: bool = False, eps: float = math.nan
) -> Instance[Any]:
    """Return the problem in normal form. Raises ProblemError, also if the caller's object raises another exception.

    NumPy must ignore floating-point errors here, as it does in a run.

    Args:
        problem: The caller's object.
        tol: The tol of a problem that has none.
        margin: Share of tol at which a lane may leave.
        init: Name of the start of a problem that has none.
        finite: Whether arrays on a device are known to be finite.
        eps: The number for a relative eps, if it was found before; NaN: it is found here.
    """
    try:
        return _make_instance(problem, tol, margin, init, finite, eps)
    except ProblemError:
        raise
    except Exception as error:  # One problem that cannot be read must not end the whole batch.
        raise ProblemError(f"the problem cannot be read: {type(error).__name__}: {error}") from error


def _make_instance(problem: Any, tol: float, margin: float, init: Any, finite: bool, eps: float) -> Instance[Any]:
    if not isinstance(problem, Problem):
        raise ProblemError(f"expected a Problem, got {describe(problem)}; build one with Problem(x=, y=, eps=)")
    relative = as_relative(problem.eps)
    if isinstance(problem.eps, SharpnessEps):
        raise ProblemError(
            f"the eps for {problem.eps} is found by solve and stream; where no problem is solved, pass the number that "
            "they found, result.eps"
        )
    if relative is None:
        eps = positive_number("eps", target_eps(problem.eps), EPS_HINT)
    tol = positive_number("tol", tol if problem.tol is None else problem.tol, TOL_HINT)
    cost = known_cost(problem.cost)
    n, m = _sizes(problem, cost, finite)
    a, b = _weights("a", problem.a, n), _weights("b", problem.b, m)
    marginals = parse_marginals(problem.rho)
    if marginals.are_hard:
        _same_mass(problem, a, b)
    if relative is not None and math.isnan(eps):
        eps = relative_eps(relative, problem, cost, a, b)
    init = _init(init if problem.init is None else problem.init, cost, n, m)
    if isinstance(init, Potentials):
        init = usable_start(init, eps, margin * tol, a, b, has_gauge=marginals.are_hard)
    _chain(problem.chain)
    _depth_limit(problem.max_depth)
    normal_form = unit_mass if marginals.are_hard else without_denormals
    a = a if problem.a is None else normal_form(a)
    b = b if problem.b is None else normal_form(b)
    common = {"a": a, "b": b, "cost": cost, "init": init, "marginals": marginals}
    return build_instances([problem], [eps], tol=margin * tol, **common)[0]


def _numbers(name: str, value: Any, ndim: int, shape: str) -> Array:
    """Return a real, finite array of `ndim` dimensions as a NumPy array; else raise ProblemError."""
    if isinstance(value, np.ma.MaskedArray):
        raise ProblemError(f"{name} is a masked array; fill or drop masked entries first")
    if value is None or isinstance(value, (str, bytes)):
        raise ProblemError(f"{name} must be a numeric array of shape {shape}, got {describe(value)}")
    try:
        array = to_numpy(value)
    except TypeError as error:
        raise ProblemError(f"{name} must be a numeric array of shape {shape}, but {error}") from None
    if array.dtype.kind not in "fiub":
        is_complex = array.dtype.kind == "c"
        entries = "complex numbers; pass the real part" if is_complex else "no numbers; convert the entries to floats"
        raise ProblemError(f"{name} has dtype {array.dtype}, which holds {entries}")
    if array.ndim != ndim:
        hint = f"; write {name}[:, None] for points on a line" if (array.ndim, ndim) == (1, 2) else ""
        raise ProblemError(f"{name} must have shape {shape}, got {array.shape}{hint}")
    if array.size == 0:
        raise ProblemError(f"{name} is empty (shape {array.shape}); a problem needs at least one point on each side")
    if array.dtype.kind == "f" and not _all_finite(array):
        place = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise ProblemError(f"{name}{list(place)} is {array[place]}; remove or replace entries that are not finite")
    return array


def _all_finite(array: Array) -> bool:
    """True if every number is finite; a finite sum of squares proves it at less cost."""
    return (array.ndim == 1 and math.isfinite(float(array.dot(array)))) or bool(np.isfinite(array).all())


def is_on_device(value: Any) -> bool:
    """True for a matrix of floats on a CUDA device, which is checked there and not copied to the host."""
    if library(value) != "torch" or not value.is_cuda:
        return False
    torch = sys.modules["torch"]
    floats = value.dtype in (torch.float32, torch.float64) and value.layout is torch.strided
    return floats and value.ndim == 2 and value.numel() > 0


def finite_on_device(problems: Sequence[Any]) -> bool:
    """Return True if some arrays of these problems lie on a device, and all of those are finite."""
    arrays = (value for p in problems if isinstance(p, Problem) for value in (p.x, p.y, p.cost))
    values = [value for value in arrays if is_on_device(value)]
    return bool(values) and all_finite(values)


def all_finite(values: Sequence[Any]) -> bool:
    """Return True if all entries of matrices on devices are finite; False also for lack of memory to check them.

    The host reads back one number for every TOGETHER entries of a dtype.
    """
    torch = sys.modules["torch"]
    try:
        with torch.no_grad():
            largest = [torch.linalg.vector_norm(_concatenate(block), math.inf) for block in _blocks(values)]
    except torch.OutOfMemoryError:
        # There is no memory for a copy: problems are checked one by one.
        return False
    return all(math.isfinite(float(norm)) for norm in largest)


def _blocks(values: Sequence[Any]) -> list[list[Any]]:
    """Group matrices into blocks of one device and dtype: at most TOGETHER entries, or one larger matrix."""
    blocks: list[list[Any]] = []
    latest: dict[Any, list[Any]] = {}
    room: dict[Any, int] = {}
    for value in values:
        kind, size = (value.device, value.dtype), value.numel()
        room[kind] = room.get(kind, 0) - size
        if room[kind] < 0:
            latest[kind], room[kind] = [], TOGETHER - size
            blocks.append(latest[kind])
        latest[kind].append(value)
    return blocks


def _concatenate(block: list[Any]) -> Any:
    """Return all entries in one tensor. A copy costs the device less than a call for each matrix costs the host."""
    if len(block) == 1:
        return block[0]
    width = block[0].shape[1]
    alike = all(value.shape[1] == width for value in block)
    return sys.modules["torch"].cat(block if alike else [value.flatten() for value in block])


def _fine_on_device(*values: Any, finite: bool) -> bool:
    """True for matrices on a device that are known to be finite, or are checked here and are finite."""
    if not all(map(is_on_device, values)):
        return False
    # A sum in float64 is finite if all entries are (a sum of large float64 entries may overflow; then each entry is
    # checked on the host). The device is waited for once.
    torch = sys.modules["torch"]
    return finite or math.isfinite(float(sum(value.detach().sum(dtype=torch.float64) for value in values)))


def _points(name: str, value: Any, shape: str, finite: bool) -> Any:
    """Return points or costs; raise ProblemError unless float64 represents them exactly."""
    if _fine_on_device(value, finite=finite):
        return value
    array = _numbers(name, value, 2, shape)
    if array.dtype.itemsize >= 8 and array.dtype != np.float64 and not _survives_float64(array):
        raise ProblemError(
            f"{name} has dtype {array.dtype} and values that float64 cannot hold; subtract a common offset first"
        )
    return array


def _survives_float64(array: Array) -> bool:
    with np.errstate(over="ignore"):
        # Compared in the array's own dtype, since a comparison with float64 would round first.
        if array.dtype.kind in "iu":
            return bool((np.abs(array.astype(np.float64)) <= 2.0**53).all())
        return bool((array.astype(np.float64).astype(array.dtype) == array).all())


def _sizes(problem: Problem[Any], cost: Cost | Any, finite: bool) -> tuple[int, int]:
    if not isinstance(cost, Cost):
        if not is_array(as_array(cost)) or as_array(cost).ndim == 0:
            raise ProblemError(f"cost must be a name, a Cost or a numeric array of shape (n, m), got {describe(cost)}")
        if problem.x is not None or problem.y is not None:
            raise ProblemError("a dense cost matrix takes the place of the points; leave x and y out")
        matrix = _points("cost", cost, "(n, m)", finite)
        return matrix.shape[0], matrix.shape[1]
    x: Any = problem.x
    y: Any = problem.y
    if not _fine_on_device(x, y, finite=finite):
        x, y = _points("x", x, "(n, d)", finite), _points("y", y, "(m, d)", finite)
    require_same_space(x, y)
    if library(problem.x) != library(problem.y):
        raise ProblemError(f"x is a {library(problem.x)} array and y a {library(problem.y)} array; use one library")
    cost.kind.check("x", x)
    cost.kind.check("y", y)
    if "matrix" in cost.kind.forms and not isinstance(cost.kind, DotProduct):
        # A PointCost of the caller is tried on a few points, because its errors in a pack would end the whole run.
        evaluate(cost.kind, *(to_numpy(points[:3]).astype(np.float64) for points in (x, y[:2])))
    return x.shape[0], y.shape[0]


def _weights(name: str, value: Any, size: int) -> Array:
    if value is None:
        return uniform(size)
    weights = _numbers(name, value, 1, f"({size},)").astype(np.float64)
    if weights.shape != (size,):
        raise ProblemError(f"{name} must have shape ({size},), one weight per point, got {weights.shape}")
    if (weights < 0).any():
        place = int(np.argmax(weights < 0))
        raise ProblemError(f"{name}[{place}] is {weights[place]}; weights cannot be negative")
    if not weights.any():
        raise ProblemError(f"{name} is zero everywhere; at least one weight must be positive")
    with np.errstate(over="ignore"):
        total = weights.sum()
        if not np.isfinite(total) or not np.isfinite(1 / total):
            raise ProblemError(f"{name} sums to {total}, which cannot be normalised; rescale the weights")
    return weights


def _same_mass(problem: Problem[Any], a: Array, b: Array) -> None:
    if problem.a is None or problem.b is None:
        return
    mass, other = float(a.sum()), float(b.sum())
    rounding = _mass_rounding(problem.a, mass, a.size) + _mass_rounding(problem.b, other, b.size)
    if not math.isclose(mass, other, rel_tol=UNEQUAL_MASS, abs_tol=rounding):
        raise ProblemError(
            f"a has total mass {mass:.6g} and b {other:.6g}; balanced transport needs equal masses: "
            "normalise both if only their shapes matter, or pass rho for soft marginals"
        )


def _mass_rounding(weights: Any, mass: float, size: int) -> float:
    """Bound how far the sum of weights may be from 1 if they were normalised in their own dtype, relative to `mass`.

    Each weight was divided by a total that was rounded once (a factor of at most 1 + u, with unit roundoff u). Rounding
    the quotients changes the mass by at most u times itself, or by half a spacing per weight below the normal range.
    """
    name = float_name(weights) if is_array(weights) else None
    return 0.0 if name is None else 2 * ROUNDOFF[name] * mass + size * SMALLEST[name] / 2


def _init(init: Any, cost: Any, n: int, m: int) -> Potentials[Any] | str:
    """Return the start in normal form: Potentials, or the name that `start_by_name` returns."""
    if isinstance(init, str):
        return start_by_name(init, cost)
    if not isinstance(init, (tuple, list)) or len(init) != 2:
        raise ProblemError(f"init must be one of {list(STARTS)} or a pair (f, g) of potentials, got {describe(init)}")
    for name, value, size in (("init.f", init[0], n), ("init.g", init[1], m)):
        shape = _numbers(name, value, 1, f"({size},)").shape
        if shape != (size,):
            raise ProblemError(f"{name} must have shape ({size},), one potential per point, got {shape}")
    return Potentials(*init)


def _depth_limit(cycles: Any) -> None:
    is_integer = isinstance(cycles, (int, np.integer)) and not isinstance(cycles, bool)
    if cycles is not None and not (is_integer and cycles > 0):
        raise ProblemError(f"max_depth must be a positive integer, a number of cycles, got {describe(cycles)}")


def _chain(key: Any) -> None:
    try:
        hash(key)
    except TypeError:
        raise ProblemError(f"chain must be hashable, a name or a number, got {describe(key)}") from None
