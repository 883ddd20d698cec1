"""The arithmetic of the backend "keops": which precision suffices for a problem, and how far its residuals can be off.

KeOps computes scaled costs anew in every leg, from coordinates that are centred and scaled so that costs come in units
of eps (form "distances"), or by a caller's formula. Exponentials and their sums are those of KeOps' log-sum-exp, which
subtracts the largest exponent. All three are in float32 or in float64; potentials, weights and residuals are float64.
Problems with a soft marginal are always computed in float64: their plan may lie at a few points, of which a sample that
checks float32 would have none.
"""

# pyright: basic

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from drainsinkhorn.backends.cost_sizes import is_single
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.numerics.costs import require_form
from drainsinkhorn.numerics.rounding import rounding_bound, sampled_bound

FORMS = ("distances", "formula")
"""Forms of costs that KeOps computes."""
UNITS = 8.0
"""Rounding error of an exponent per nat of potentials, in units of the last place of float64."""


class KeopsArithmetic(NamedTuple):
    """How lanes are computed; lanes that share it share packs.

    Attributes:
        kind: A cost by distances, or a Formula.
        dim: Coordinates of a point.
        single: True if reductions are in float32, else float64.
        device: The torch device.
    """

    kind: Any
    dim: int
    single: bool
    device: str

    @property
    def name(self) -> str:
        """Name of the dtype of reductions."""
        return "float32" if self.single else "float64"

    @property
    def dtype(self) -> Any:
        """The dtype of reductions in torch."""
        return torch.float32 if self.single else torch.float64

    @property
    def description(self) -> str:
        """What `result.arithmetic` says."""
        return f"{self.name}, streaming by KeOps on {self.device}"

    def bound(self, rounding: float, potentials: float, error: float, far: float = 0.0) -> float:
        """Bound on the rounding error of a residual.

        Args:
            rounding: `cost_sizes.leg_rounding` of the lane.
            potentials: `largest_potentials` of the lane in nats.
            error: `sampled_error` of the lane, if reductions are in float32.
            far: `unsampled_size` potentials of the lane in nats.
        """
        bound = rounding_bound(rounding, potentials, UNITS)
        return sampled_bound(bound, error, self.name, far) if self.single else bound


def choose_arithmetic(instance: Instance[Any], precision: str, device: str) -> KeopsArithmetic:
    """Return the arithmetic of a problem; precision "auto" takes float32 where it suffices for tol."""
    require_form(instance, "keops", FORMS)
    single = instance.marginals.are_hard and is_single(instance, precision)
    return KeopsArithmetic(instance.cost.kind, instance.dim, single, device)
