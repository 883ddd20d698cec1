"""Checks of the arguments of consumers, and the random numbers of those that sample: the same for every backend."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.core.audit import is_count
from drainsinkhorn.model.errors import ProblemError
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.numerics.arrays import is_array

Vector = NDArray[np.float64]
SIDES = ("row", "col")


def checked_side(side: Any) -> str:
    """Return the side if it is "row" or "col"; raise ProblemError otherwise."""
    if side not in SIDES:
        raise ProblemError(f'side must be "row" or "col", got {side!r}')
    return side


def checked_values(values: Any, size: int) -> Any:
    """Return values over one side as an array with one row per point; ProblemError for any other array."""
    if isinstance(values, (list, tuple)):
        values = np.asarray(values)
    if not is_array(values):
        raise ProblemError(f"values must be an array, one row for each of {size} points, got {type(values).__name__}")
    real = not any(kind in str(values.dtype) for kind in ("complex", "object", "str", "<U", "datetime"))
    if not real or values.ndim == 0 or values.shape[0] != size:
        raise ProblemError(
            f"values must be real numbers, one row for each of the {size} points of the other side, "
            f"got {values.dtype} of shape {tuple(values.shape)}"
        )
    return values


def checked_count(count: Any) -> int:
    """Return the number of pairs to draw; raise ProblemError if it is not a positive integer."""
    if not is_count(count):
        raise ProblemError(f"count must be an integer of at least 1, got {count!r}")
    return int(count)


def checked_rows(rows: Any, size: int) -> Any:
    """Return indices of points of one side, (k,); raise ProblemError if they are no valid indices."""
    rows = rows if is_array(rows) else np.asarray(rows)
    if rows.ndim != 1 or "int" not in str(rows.dtype) or len(rows) == 0:
        raise ProblemError(f"rows must be integers, (k,), got {rows.dtype} of shape {tuple(rows.shape)}")
    low, high = int(rows.min()), int(rows.max())
    if low < 0 or high >= size:
        raise ProblemError(f"rows must lie between 0 and {size - 1}, got {low if low < 0 else high}")
    return rows


def check_pairs(instances: Sequence[Instance[Any]], max_pairs: int) -> None:
    """Raise ProblemError if dense plans would have more than `max_pairs` entries in all."""
    pairs = sum(n * m for n, m in (instance.shape for instance in instances))
    if pairs > max_pairs:
        raise ProblemError(
            f"{len(instances)} dense plan(s) have {pairs} entries, {8e-9 * pairs:.1f} GB in float64, and max_pairs is "
            f"{max_pairs}; use apply, barycentric_map, sample or top_match, which need none, or plan(max_pairs={pairs})"
        )


def uniforms(seed: Any, count: int) -> tuple[Vector, Vector]:
    """Two vectors of numbers in [0, 1) that select the rows and the columns of pairs; the same on every device.

    Args:
        seed: An integer, a generator of torch or NumPy from which one is drawn, or None for numbers that nothing
            determines; or a tuple (one of these, ticket).
        count: Length of the vectors.
    """
    own, *rest = seed if isinstance(seed, tuple) else (seed,)
    try:
        entropy = None if own is None else (_draw_seed(own), *rest)
        rng = np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy)))
    except (TypeError, ValueError):
        raise ProblemError(
            f"seed must be a non-negative integer, a generator of torch or NumPy, or None, got {own!r}"
        ) from None
    return rng.random(count), rng.random(count)


def _draw_seed(seed: Any) -> Any:
    """Return a seed as it is, or an integer drawn from a generator."""
    if isinstance(seed, np.random.Generator):
        return int(seed.integers(2**62))
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(seed, torch.Generator):
        return int(torch.randint(2**62, (), generator=seed, device=seed.device))
    return seed
