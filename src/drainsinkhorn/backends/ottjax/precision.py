"""The arithmetic of the backend "ott": precision and costs that suit a problem, and a bound on the rounding error.

Costs are kept as a matrix, or computed anew in every leg by an online point cloud of OTT: from coordinates that are
centred and scaled so that costs come in units of eps, or by a caller's cost function. Products of coordinates have the
full precision of their dtype. Exponentials and their sums are those of OTT's log-sum-exp, which subtracts the largest
exponent. State and costs are in float32 or in float64, residuals in float64. Problems with a soft marginal are always
computed in float64: their plan may lie at a few points, of which a sample that checks float32 would have none.
"""

# pyright: basic

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from drainsinkhorn.backends.cost_sizes import is_single
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.numerics.costs import require_form
from drainsinkhorn.numerics.rounding import rounding_bound, sampled_bound

FORMS = ("distances", "cost_fn", "matrix")
"""Forms of costs that OTT computes."""
UNITS = 8.0
"""Rounding error of an exponent per nat of potentials, in units of the last place of float64."""
BATCH_PAIRS = 2**23
"""Costs that an online point cloud computes at a time, if no number of rows is given."""


@dataclass(frozen=True, slots=True)
class OttArithmetic:
    """How lanes are computed. A function of the problem and the settings alone; lanes that share it share packs.

    Attributes:
        kind: "squares" or "distances" of points or directions, "dense" for a matrix, or the caller's own cost.
        n: Rows, padded.
        m: Columns, padded.
        d: Coordinates; 0 for a matrix.
        single: float32, else float64.
        batch: Rows at a time of an online point cloud; 0: the cost matrix is kept.
        stride: Cycles of a phase.
        soft: Whether kernels compute soft marginals too; those of packs without them do not. Lanes that differ in it
            share packs.
    """

    kind: Any
    n: int
    m: int
    d: int
    single: bool
    batch: int
    stride: int
    soft: bool = False

    @property
    def name(self) -> str:
        """Name of the dtype of state and costs."""
        return "float32" if self.single else "float64"

    @property
    def dtype(self) -> Any:
        """The dtype of state and costs in JAX."""
        return jnp.float32 if self.single else jnp.float64

    @property
    def unit(self) -> bool:
        """Whether potentials and costs of lanes are divided by eps: always, unless the cost is the caller's own."""
        return isinstance(self.kind, str)

    @property
    def kept(self) -> bool:
        """Whether the matrix of costs is kept."""
        return self.kind == "dense" or not self.batch

    @property
    def description(self) -> str:
        """What `result.arithmetic` says."""
        costs = "kept costs" if self.kept else f"online costs, {self.batch} rows at a time"
        return f"{self.name}, {costs}, phases of {self.stride}"

    def bound(self, rounding: Any, potentials: Any, error: Any, far: Any = 0.0) -> Any:
        """Bound on the rounding error of a residual, for lanes in float32 and in float64; both compare samples.

        Args:
            rounding: `cost_sizes.leg_rounding` of the lane.
            potentials: `largest_potentials` of the lane in nats.
            error: `sampled_error` of the lane.
            far: By how much potentials exceed what the samples account for, in nats (`unsampled_size`).
        """
        return sampled_bound(rounding_bound(rounding, potentials, UNITS), error, self.name, far)


def choose_arithmetic(
    instance: Instance[Any], precision: str, kept_pairs: int, batch_size: int | None, stride: int
) -> OttArithmetic:
    """Return the arithmetic of a problem; precision "auto" takes float32 where it suffices for tol.

    The other arguments are settings of `OttBackend`.
    """
    require_form(instance, "ott", FORMS)
    n, m = (padded_size(size) for size in instance.shape)
    kind = _kernel_kind(instance)
    d = 0 if kind == "dense" else instance.dim
    single = instance.marginals.are_hard and is_single(instance, precision)
    online = kind != "dense" and (batch_size is not None or n * m > kept_pairs)
    batch = (batch_size or max(1, BATCH_PAIRS // max(n, m))) if online else 0
    return OttArithmetic(kind, n, m, d, single, batch, stride)


def padded_size(size: int) -> int:
    """Points of a lane after padding to a multiple of 16, or of 1/8 of a power of two: unequal clouds share packs."""
    step = max(16, (1 << (size.bit_length() - 1)) // 8)
    return -(-size // step) * step


def _kernel_kind(instance: Instance[Any]) -> Any:
    """Return `OttArithmetic.kind` for a problem."""
    kind = None if instance.is_dense else instance.cost.kind
    if kind is None or not ("cost_fn" in kind.forms or kind.distances is not None):
        return "dense"
    if kind.distances is None:
        return kind
    return "distances" if kind.distances.root else "squares"
