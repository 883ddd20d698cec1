"""Sides and lanes of a pack: where their points lie, and how far a lane is."""

# pyright: basic

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from drainsinkhorn.backends.keops.soft import SoftState
from drainsinkhorn.backends.support import Support
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.numerics.rounding import soft_bound
from drainsinkhorn.numerics.update import PLAIN, Momentum, Stride

SAMPLES = 32
"""Rows, and columns, of a lane that are compared with float64."""

Span = tuple[int, int]


class SideArrays(NamedTuple):
    """One side of all lanes.

    Attributes:
        axis: 1 for rows, 0 for columns: the axis over which KeOps sums.
        span: "rows" or "cols": the attribute of a lane that holds the range of its points; also a key of `_lengths`.
        points: Name of its points in float64.
        weights: Name of its weights.
        potentials: Name of its potentials.
        scale: Name of the factors of a Formula's costs.
        vectors: Names of all arrays with one row per point.
    """

    axis: int
    span: str
    points: str
    weights: str
    potentials: str
    scale: str
    vectors: tuple[str, ...]


_ROW_VECTORS = ("short_x", "x", "a", "f", "next", "before", "scale_x", "owner", "kappa_f", "lam_f")
ROWS = SideArrays(1, "rows", "x", "a", "f", "scale_x", _ROW_VECTORS)
COLS = SideArrays(0, "cols", "y", "b", "g", "scale_y", ("short_y", "y", "b", "g", "scale_y", "kappa_g", "lam_g"))
SIDES = (ROWS, COLS)
"""Both sides. "next" are the log marginal ratios of the next f-leg, "before" the x of the last update of f; in "owner"
every row of a lane has the lane's number. Potentials are in nats, and "kappa_f" is kappa times eps, "lam_f" lambda."""


@dataclass
class KeopsLane:
    """One problem and its progress.

    Attributes:
        instance: The problem.
        number: Its unique number. A copy, "owner", moves with its arrays; `emit` compares both.
        inner: The problem on the points that carry weight.
        support: Which points carry weight; None: all.
        rounding: `leg_rounding` of the problem.
        momentum: Decides its strides; None: all are plain.
        samples: Indices of its sampled points, under "rows" and "cols".
        soft: Its soft marginals; None: both are hard.
        rows: Range of its rows in the arrays.
        cols: Range of its columns.
        depth: Cycles that were run.
        error: Row residual, without its rounding bound.
        band: Rounding bound of the row residual, of hard marginals.
        along: `alignment` of the next f-leg.
        broken: True once a state was not finite.
        frozen: True if it no longer changes.
    """

    instance: Instance[Any]
    number: int
    inner: Instance[Any]
    support: Support | None
    rounding: float
    momentum: Momentum | None
    samples: dict[str, Any]
    soft: SoftState | None = None
    rows: Span = (0, 0)
    cols: Span = (0, 0)
    depth: int = 0
    error: float = math.inf
    band: float = math.inf
    along: float = 0.0
    broken: bool = False
    frozen: bool = False

    @property
    def stale(self) -> float:
        """Row residual with its rounding bound."""
        return math.nan if self.broken else self.error + self.bound(self.error)

    def bound(self, residual: float) -> float:
        """The bound on the rounding error of a residual of the rows."""
        return self.band if self.soft is None else soft_bound(self.band, self.soft.exponents, residual)

    def stride(self) -> Stride:
        """Step and beta of the next f-leg."""
        return PLAIN if self.momentum is None else self.momentum.stride(self.error, self.along)
