"""Batch vectors: points of many problems in one array, with a vector that names the problem of each point.

This is the form of graph libraries, for example PyTorch Geometric's `batch`: x is (N, d), and entry k of the vector is
the number of the problem to which point k belongs, from 0 to W - 1, in any order.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.model.errors import ProblemError
from drainsinkhorn.numerics.arrays import is_array, library, to_numpy

Places = NDArray[np.intp]


class Grouping(NamedTuple):
    """Where the points of each problem are.

    Attributes:
        order: Indices of all points, sorted by problem, and within a problem as they are; None if they are sorted.
        bounds: Points of problem k are `order[bounds[k]:bounds[k + 1]]`, (W + 1,).
    """

    order: Places | None
    bounds: list[int]

    @property
    def problems(self) -> int:
        """The number of problems."""
        return len(self.bounds) - 1


def split_by_batch(batch: Any, x: Any, y: Any, a: Any, b: Any, init: Any) -> tuple[Any, Any, Any, Any, Any]:
    """Return points, weights and potentials to start from as lists, with one entry for each problem.

    Entries are views of the caller's arrays if a batch vector is sorted; JAX arrays are copied.

    Args:
        batch: A pair of integer vectors, (N,) and (M,): the problem of each point of x, and of y.
        x: Points of all problems, (N, d).
        y: Points of all problems, (M, d).
        a: Weights of x, (N,); None: uniform.
        b: Weights of y, (M,); None: uniform.
        init: A pair (f, g) of potentials, (N,) and (M,); anything else is returned as it is.
    """
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise ProblemError(f"batch must be a pair of vectors, for x and for y, got {type(batch).__name__}")
    points = {name: _as_points(name, value) for name, value in (("x", x), ("y", y))}
    rows, cols = (
        group_points(f"batch of {name}", vector, len(value))
        for vector, (name, value) in zip(batch, points.items(), strict=True)
    )
    if rows.problems != cols.problems:
        raise ProblemError(
            f"batch names {rows.problems} problems for x and {cols.problems} for y; both sides need the same problems"
        )
    pair = isinstance(init, (tuple, list)) and len(init) == 2
    f, g = init if pair else (None, None)
    parts = [(points["x"], rows), (points["y"], cols)]
    parts += [(_as_vector(*arg), arg[2]) for arg in (("a", a, rows), ("b", b, cols), ("f", f, rows), ("g", g, cols))]
    x, y, a, b, f, g = (None if value is None else _cut(value, grouping) for value, grouping in parts)
    return x, y, a, b, (f, g) if pair else init


def concatenate(values: Sequence[Any], batch: Any) -> Any:
    """Join one array for each problem into one array in the order of the points of a batch vector.

    This is the inverse of passing `batch=` to `solve` or `problems`: outputs for each point, such as potentials or
    images, get the order of the points that were passed.

    Args:
        values: One array for each problem, (n_k,) or (n_k, ...), in the order of the problems.
        batch: Integers, (N,): the problem of each point.

    Returns:
        An array (N,) or (N, ...) in the library of the values.

    Examples:
        >>> import numpy as np
        >>> concatenate([np.array([1.0, 2.0]), np.array([3.0])], np.array([0, 1, 0]))
        array([1., 3., 2.])
    """
    values = list(values)
    if not values or not all(is_array(value) and value.ndim > 0 for value in values):
        raise ProblemError("values must be arrays, one for each problem, with one row for each of its points")
    grouping = group_points("batch", batch, sum(len(value) for value in values))
    sizes = [last - first for first, last in pairwise(grouping.bounds)]
    if len(sizes) != len(values):
        raise ProblemError(f"there are {len(values)} values, and batch names {len(sizes)} problems")
    wrong = next((k for k, (value, size) in enumerate(zip(values, sizes, strict=True)) if len(value) != size), None)
    if wrong is not None:
        raise ProblemError(f"values[{wrong}] has {len(values[wrong])} rows, and problem {wrong} {sizes[wrong]} points")
    kind = library(values[0])
    joined = {"torch": _torch_cat, "jax": _jax_cat, "numpy": np.concatenate}[kind](values)
    if grouping.order is None:
        return joined
    inverse = np.empty_like(grouping.order)
    inverse[grouping.order] = np.arange(len(inverse))
    return _take(joined, inverse)


def group_points(name: str, vector: Any, size: int) -> Grouping:
    """Return where the points of each problem are; ProblemError unless problems 0 to W - 1 all have points.

    Args:
        name: Name of the vector in messages.
        vector: The problem of each point.
        size: Number of points.
    """
    try:
        numbers = to_numpy(vector)
    except TypeError as error:
        raise ProblemError(f"{name} must be a vector of integers, but {error}") from None
    if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
        raise ProblemError(f"{name} must be a vector of integers, got {numbers.dtype} of shape {numbers.shape}")
    if len(numbers) != size:
        raise ProblemError(f"{name} has {len(numbers)} entries for {size} points; it needs one for each point")
    if size == 0:
        raise ProblemError(f"{name} is empty; there is no problem to solve")
    lowest, highest = int(numbers.min()), int(numbers.max())
    if lowest < 0:
        raise ProblemError(f"{name} has the entry {lowest}; problems are numbered from 0")
    if highest >= size or not (counts := np.bincount(numbers.astype(np.intp), minlength=highest + 1)).all():
        present = np.unique(numbers)
        missing = int(np.flatnonzero(present != np.arange(len(present)))[0])
        raise ProblemError(
            f"{name} goes up to {highest} and has no point of problem {missing}; number the problems 0, 1, 2, ... "
            "without gaps, since a problem needs at least one point on each side"
        )
    is_sorted = bool((numbers[1:] >= numbers[:-1]).all())
    order = None if is_sorted else np.argsort(numbers, kind="stable")
    return Grouping(order, [0, *np.cumsum(counts).tolist()])


def _as_points(name: str, value: Any) -> Any:
    """Return concatenated points as an array (N, d)."""
    value = np.asarray(value) if isinstance(value, (list, tuple)) else value
    if not is_array(value) or value.ndim != 2:
        shape = tuple(value.shape) if is_array(value) else type(value).__name__
        raise ProblemError(f"with batch, {name} must hold the points of all problems, (N, d), got {shape}")
    return value


def _as_vector(name: str, value: Any, grouping: Grouping) -> Any:
    """Return concatenated weights or potentials as an array (N,), or None."""
    if value is None:
        return None
    value = value if is_array(value) else np.asarray(value)
    if value.ndim != 1 or len(value) != grouping.bounds[-1]:
        raise ProblemError(
            f"with batch, {name} must have one entry for each of {grouping.bounds[-1]} points, "
            f"got shape {tuple(value.shape)}"
        )
    return value


def _cut(array: Any, grouping: Grouping) -> list[Any]:
    """Return the rows of each problem."""
    kind, (order, bounds) = library(array), grouping
    if kind == "jax":
        jax = sys.modules["jax"]
        # One transfer: slices of unequal sizes would compile once for each size.
        return jax.device_put(_cut(np.asarray(array), grouping), next(iter(array.devices())))
    array = array if order is None else _take(array, order)
    if kind == "torch":
        return list(sys.modules["torch"].split(array, [last - first for first, last in pairwise(bounds)]))
    array = array if isinstance(array, np.ndarray) else np.asarray(array)
    return [array[first:last] for first, last in pairwise(bounds)]


def _take(array: Any, places: Places) -> Any:
    """Return the rows at these places, in the library and on the device of the array."""
    if library(array) == "torch":
        return array[sys.modules["torch"].from_numpy(places).to(array.device)]
    return array[places]


def _torch_cat(values: Sequence[Any]) -> Any:
    return sys.modules["torch"].cat(values)


def _jax_cat(values: Sequence[Any]) -> Any:
    return sys.modules["jax"].numpy.concatenate(values)
