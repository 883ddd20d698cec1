"""Makes problems from arrays by name, as files and requests hold them; the keys are in docs/guides/command-line.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.eps import Eps
from drainsinkhorn.model.errors import FileError
from drainsinkhorn.model.keywords import ADVICE
from drainsinkhorn.model.problem import Problem
from drainsinkhorn.run.eps_text import eps_from_array
from drainsinkhorn.run.stack import problems

Arrays = Mapping[str, Any]
"""NumPy arrays by key. One entry per problem may also be a list of arrays of unequal size."""
KEYS = ("x", "y", "a", "b", "eps", "tol", "rho", "f", "g", "cost", "scale", "x_sizes", "y_sizes", "format")
STACKED = {"x": 3, "y": 3, "a": 2, "b": 2, "eps": 1, "tol": 1, "f": 2, "g": 2, "cost": 3, "x_sizes": 1, "y_sizes": 1}
"""Number of dimensions with which an array has one entry for each problem; `rho` has 1, or 2 for several
pairs."""


def count_problems(arrays: Arrays) -> int:
    """Return the number of problems that the arrays hold, if they agree on it."""
    return max((len(arrays[key]) for key in (*STACKED, "rho") if _is_stacked(arrays, key)), default=1)


def is_batch(arrays: Arrays) -> bool:
    """Return True if some array has one entry for each problem; False: the arrays describe a single problem."""
    return any(_is_stacked(arrays, key) for key in (*STACKED, "rho"))


def problems_from_arrays(arrays: Arrays, source: str, eps: Eps = None, rho: Any = None) -> list[Problem[Any]]:
    """Return the problems; raises FileError for keys that do not fit together.

    Args:
        arrays: See `Arrays`.
        source: Where the arrays come from, for messages.
        eps: The eps of problems, if it is not that of the arrays. None: that of the arrays, or `relative(0.05)`.
        rho: The price of soft marginals of problems whose arrays have none, see `Problem`.
    """
    unknown = sorted(set(arrays) - set(KEYS))
    if unknown:
        advice = f"; {ADVICE[unknown[0]]}" if unknown[0] in ADVICE else ""
        raise FileError(f"{source} has an unknown key {unknown[0]!r}; known keys are {', '.join(KEYS)}{advice}")
    strengths = eps_from_array(arrays["eps"]) if eps is None and "eps" in arrays else eps
    rows, cols = _sizes(arrays, "x_sizes"), _sizes(arrays, "y_sizes")
    start = ("f" in arrays) + ("g" in arrays)
    if start == 1:
        raise FileError(f"{source} has only one of f and g; a start needs both potentials")
    init = (_split(arrays, "f", rows), _split(arrays, "g", cols)) if start else None
    columns = {
        name: _split(arrays, name, sizes) for name, sizes in (("x", rows), ("a", rows), ("y", cols), ("b", cols))
    }
    numbers = {"eps": strengths, "tol": arrays.get("tol"), "rho": _prices(arrays, rho)}
    return problems(**columns, **numbers, init=init, cost=_cost(arrays, rows, cols))


def _prices(arrays: Arrays, rho: Any) -> Any:
    """Return the price of soft marginals: that of the arrays, or the given one; one pair is shared by all problems."""
    prices = arrays.get("rho", rho)
    if isinstance(prices, np.ndarray) and prices.ndim == 0:
        return prices.item()
    return tuple(prices[0].tolist()) if _is_pair(prices) else prices


def _is_pair(prices: Any) -> bool:
    return isinstance(prices, np.ndarray) and prices.shape == (1, 2)


def _is_stacked(arrays: Arrays, key: str) -> bool:
    if key == "rho":
        return key in arrays and arrays[key].ndim > 0 and not _is_pair(arrays[key])
    return key in arrays and (isinstance(arrays[key], list) or arrays[key].ndim == STACKED[key])


def _sizes(arrays: Arrays, key: str) -> list[int] | None:
    if key not in arrays:
        return None
    sizes = arrays[key]
    if sizes.ndim != 1 or sizes.dtype.kind not in "iu" or (sizes < 0).any():
        raise FileError(f"{key} must be a vector of counts, one per problem, got {sizes.dtype} of shape {sizes.shape}")
    return [int(size) for size in sizes]


def _split(arrays: Arrays, key: str, sizes: list[int] | None) -> Any:
    if key not in arrays or sizes is None:
        return arrays.get(key)
    return _cut(arrays[key], sizes, key)


def _cut(array: Any, sizes: list[int], key: str) -> list[np.ndarray[Any, Any]]:
    if isinstance(array, list):
        raise FileError(f"{key} is a list with one entry per problem already; leave the sizes out")
    if array.ndim == 0 or sum(sizes) != len(array):
        raise FileError(f"{key} has shape {array.shape}, but its sizes add up to {sum(sizes)} rows")
    return np.split(array, np.cumsum(sizes)[:-1]) if sizes else []


def _cost(arrays: Arrays, rows: list[int] | None, cols: list[int] | None) -> Any:
    cost = arrays.get("cost", np.array("sqeuclidean"))
    scale = arrays.get("scale", np.array(1.0))
    if scale.ndim != 0:
        raise FileError(f"scale must be one number, got shape {scale.shape}")
    if not isinstance(cost, list) and cost.dtype.kind == "U" and cost.ndim == 0:
        return Cost(str(cost), scale.item())
    if "scale" in arrays:
        raise FileError("scale belongs to a named cost; multiply dense costs yourself")
    if isinstance(cost, list):
        return cost
    if cost.ndim == 0:
        raise FileError(f"cost must be a text or matrices, got {cost.dtype} of shape ()")
    if cost.ndim == 1 and cost.dtype.kind in "fiu" and rows is not None and cols is not None:
        if len(rows) != len(cols):
            raise FileError(f"x_sizes is for {len(rows)} problems and y_sizes for {len(cols)}")
        matrices = _cut(cost, [n * m for n, m in zip(rows, cols, strict=True)], "cost")
        return [matrix.reshape(n, m) for matrix, n, m in zip(matrices, rows, cols, strict=True)]
    return cost
