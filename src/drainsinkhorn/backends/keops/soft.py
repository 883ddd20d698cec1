"""Soft marginals of lanes that lie end to end: what each lane needs beside its marginal ratios."""

# pyright: basic

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from drainsinkhorn.model.instance import Instance
from drainsinkhorn.numerics.soft import deviation_terms, soft_exponents, translation


def segment(values: Any, how: str, lengths: Any) -> Any:
    """Return one sum ("sum") or one largest value ("max") for each lane, in an order that other lanes do not change."""
    return torch.segment_reduce(values, how, lengths=lengths, unsafe=True)


def log_totals(weights: Any, exponents: Any, lengths: Any) -> Any:
    """Return `log sum_i w_i exp(e_i)` of every lane: `numerics.soft.log_total`."""
    top = segment(exponents, "max", lengths)
    sums = segment(weights * torch.exp(exponents - torch.repeat_interleave(top, lengths)), "sum", lengths)
    return top + torch.log(sums)


def relative_residuals(weights: Any, log_ratios: Any, potentials: Any, kappa: Any, lengths: Any) -> tuple[Any, Any]:
    """Return the residual and the log mass of every lane: `numerics.soft.soft_residual`.

    Args:
        weights: Weights of the side, of all lanes.
        log_ratios: Log marginal ratios of the side.
        potentials: Potentials of the side in nats.
        kappa: kappa times eps of every point.
        lengths: Number of points of every lane.
    """
    top = segment(log_ratios, "max", lengths)
    each = torch.repeat_interleave(top, lengths)
    terms = deviation_terms(torch, weights, log_ratios, potentials, kappa, each)
    missed, mass = (segment(part, "sum", lengths) for part in terms)
    return missed / mass, top + torch.log(mass)


@dataclass
class SoftState:
    """The soft marginals of one lane, with potentials in nats.

    Attributes:
        kappas: kappa times eps of both sides; 0 where a marginal is hard.
        damping: lambda of the rows.
        log_masses: Logarithms of the total weights of both sides.
        log_own: `log A` of the next f-leg, where the marginal of the rows is soft (`numerics.soft.translation`).
        log_other: `log B` of that leg, where the marginal of the columns is soft.
        exponents: `largest_exponents` of the state for which the lane's band was computed.
    """

    kappas: tuple[float, float]
    damping: float
    log_masses: tuple[float, float]
    log_own: float = math.nan
    log_other: float = math.nan
    exponents: float = 0.0

    @classmethod
    def of(cls, instance: Instance[Any]) -> SoftState | None:
        """Return the state of a problem; None if both marginals are hard."""
        if instance.marginals.are_hard:
            return None
        row, col = instance.marginals
        kappas = instance.eps * row.kappa, instance.eps * col.kappa
        return cls(kappas, row.damping(instance.eps), (math.log(instance.masses[0]), math.log(instance.masses[1])))

    def shift(self) -> float:
        """Return the translation of the next f-leg in nats."""
        own, other = (
            log if kappa > 0 else mass
            for log, kappa, mass in zip((self.log_own, self.log_other), self.kappas, self.log_masses, strict=True)
        )
        return translation(own, other, self.kappas[0], self.damping, self.kappas[1], 1.0)

    def largest_exponents(self, f: Any, g: Any) -> float:
        """Return the larger `soft_exponents` of both sides for potentials in nats."""
        largest = (float(side.abs().max()) for side in (f, g))
        return max(map(soft_exponents, self.kappas, largest))
