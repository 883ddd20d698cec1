"""The precision policy: which arithmetic an instance gets, and how far rounding can change what its lanes measure.

| arithmetic | scores | exponentials | sums |
| --- | --- | --- | --- |
| float32, cached | float64, by tiles | float64, rounded once | float32 |
| float64, cached | float64, by tiles | float64 | float64 |
| float32, streaming | float32, by differences | float32, base 2 | float32 in a chunk of columns, then float64 |
| float64, streaming | float64, by differences | float64 | float64 |

A further arithmetic is one more case of `choose_arithmetic`, with its own rounding bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from drainsinkhorn.backends.cpu.tiles import DIRECT, EXPANDED, ROOT
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.numerics.costs import SMALLEST, UNIT

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
UNITS = {dtype: float(np.finfo(dtype).eps) / 2 for dtype in (FLOAT32, FLOAT64)}
"""Unit roundoff by dtype."""

SHARE = 10
"""float32 is accurate enough where the rounding bound of its sums is below tol over this."""

EXPANDED_DIM = 16
"""From so many coordinates on squares are expanded; in fewer, differences cost no more than the exponentials after."""

CACHED_DIM, CACHED_PAIRS = 128, 2**22
"""From so many coordinates on, and up to so many pairs, a lane caches its scores in float64 beside its kernel: reading
a score is then much cheaper than computing it again when the kernel is absorbed anew."""

SHARP = 1e-9
"""Nats by which expanded squares may change scores of a finished plan; where they could change them more, as with
points far from the others, scores come from differences."""

STREAMED = -1
"""The form of scores that streaming lanes compute, besides the kinds of tile."""


@dataclass(frozen=True, slots=True)
class CpuArithmetic:
    """How the lanes of an instance compute.

    Attributes:
        dtype: Precision of sums, and of scores and exponentials where they are recomputed.
        is_streaming: True if scores are recomputed from the points in every leg; False if a kernel matrix is cached.
        may_switch: True if a lane switches to float64 once the rounding bound of dtype is too large for its tol.
        description: The text of `result.arithmetic`.
    """

    dtype: np.dtype[Any]
    is_streaming: bool = False
    may_switch: bool = False
    description: str = field(init=False)

    @property
    def kernels(self) -> str:
        """Name of the set of kernels that run lanes of this arithmetic."""
        return "streaming" if self.is_streaming else self.dtype.name

    def __post_init__(self) -> None:
        precision = f"{self.dtype.name}, float64 where needed" if self.may_switch else self.dtype.name
        # Set once, since it is read for every problem.
        object.__setattr__(self, "description", f"{precision}, {'streaming' if self.is_streaming else 'cached'}")


@lru_cache(maxsize=4096)
def choose_arithmetic(
    n: int, m: int, tol: float, has_distances: bool, precision: str, representation: str, cached_pairs: int
) -> CpuArithmetic:
    """The arithmetic of an instance of n x m points; the last three arguments are those of `CpuBackend`."""
    is_large = representation == "streaming" or (representation == "auto" and n * m > cached_pairs)
    if is_large and has_distances:
        dtype = FLOAT64 if precision == "float64" else FLOAT32
        return CpuArithmetic(dtype, is_streaming=True, may_switch=precision == "auto")
    if precision == "auto":
        return CpuArithmetic(FLOAT32 if sum_rounding(n, m, FLOAT32) <= tol / SHARE else FLOAT64)
    return CpuArithmetic(np.dtype(precision))


def sum_rounding(rows: Any, cols: Any, dtype: np.dtype[Any]) -> Any:
    """Rounding bound of a residual from sums in a dtype; sizes are numbers or arrays.

    The errors of n terms are taken to add up to sqrt(n) unit roundoffs, times a safety factor of four; docs/adr/0007.
    """
    return UNITS[dtype] * (8 + 4 * np.sqrt(np.maximum(rows, cols)))


def score_form(instance: Instance[Any]) -> int:
    """The kind of tile that computes scores from points: DIRECT, ROOT or EXPANDED."""
    if instance.cost.kind.distances.root:
        return ROOT
    return EXPANDED if instance.dim >= EXPANDED_DIM else DIRECT


def plan_form(instance: Instance[Any], far: float) -> int:
    """The kind of tile for scores of a finished plan; `far` bounds distances of points scaled to scores in nats."""
    form, dim = score_form(instance), instance.dim
    return form if form != EXPANDED or (dim + 6) * UNIT * far * far <= SHARP else DIRECT


def caches_scores(instance: Instance[Any], pairs: Any) -> Any:
    """True if cached lanes of this cost and dimension keep their scores, too; pairs are a number or an array."""
    has_squares = not instance.is_dense and not instance.cost.kind.distances.root
    return (has_squares and instance.dim >= CACHED_DIM) & (pairs <= CACHED_PAIRS)


def cost_rounding(form: int, kind: Any, dim: int, largest: Any) -> Any:
    """Bound on the rounding error of a cost between points, before it is scaled.

    Args:
        form: A kind of tile, or STREAMED.
        kind: The cost, whose `rounding` bounds the error of its formula.
        dim: Coordinates of a point.
        largest: Bound on costs, a number or an array.
    """
    if form == EXPANDED:
        # Worked out in docs/adr/0016.
        added = (dim + 6) * UNIT * largest + 4 * dim * SMALLEST
    else:
        # Streaming lanes centre and scale every coordinate first.
        added = (16 if form == STREAMED else 4) * UNIT * largest
    return kind.rounding(dim, largest) + added
