"""48 pairs of generated clouds, 60 to 260 points each, with clusters of growing spread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from drainsinkhorn.model.problem import Problem
from drainsinkhorn.model.result import Result
from drainsinkhorn.plans.pictures import matches


def problems(seed: int, count: int = 48, sizes: tuple[int, int] = (60, 260), dimension: int = 3) -> list[Problem[Any]]:
    """Mixtures of eight clusters; the spread of the centres grows from pair to pair, and with it the depth."""
    rng = np.random.default_rng(seed)
    pairs: list[Problem[Any]] = []
    for spread in np.linspace(0.3, 3.0, count):
        n, m = rng.integers(*sizes, size=2)
        x, y = (_mixture(rng, int(size), dimension, float(spread)) for size in (n, m))
        pairs.append(Problem(x=x, y=y, eps=0.1))
    order = rng.permutation(count)
    return [pairs[i] for i in order]


def _mixture(rng: np.random.Generator, size: int, dimension: int, spread: float) -> Any:
    centres = spread * rng.normal(size=(8, dimension))
    return centres[rng.integers(8, size=size)] + 0.3 * rng.normal(size=(size, dimension))


def draw(ax: Any, results: Sequence[Result[Any]]) -> None:
    """Draw the top matches of the pair that took most cycles."""
    result = max(results, key=lambda each: each.depth)
    matches(result, ax=ax)
    ax.set_title(f"Top matches of one of {len(results)} pairs (depth {result.depth:,})", pad=22)
