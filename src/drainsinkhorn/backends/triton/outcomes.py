"""Outcomes of stacks: selected, weighted, repeated in float64 where float32 was inaccurate, and inverted for draws."""

# pyright: basic
# torch is loaded when this backend is.

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from drainsinkhorn.backends.triton.stacks import Stack
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.numerics.soft import penalised_mass, penalty
from drainsinkhorn.numerics.transforms import SoftTerms


def select_lanes(stack: Stack, tensor: Any) -> Any:
    """Return the part of (k, lanes, ...) for the lanes of a stack."""
    if stack.lanes == list(range(tensor.shape[1])):
        return tensor
    return tensor[:, torch.tensor(stack.lanes, device=tensor.device)]


def times_mass(mass: Any, rows: Any) -> Any:
    """Return rows times their masses; zero for points without mass, however far away they are."""
    return torch.where(mass[:, :, None] > 0, mass[:, :, None] * rows, 0.0)


def soft_terms(instance: Instance[Any], potentials: Potentials[Any], logs: Sequence[Any]) -> SoftTerms | None:
    """Return what soft marginals add to the costs of a plan; None if both are hard.

    Args:
        instance: The problem.
        potentials: Its potentials.
        logs: Log2 of the marginal ratios of rows and of columns.
    """
    if instance.marginals.are_hard:
        return None
    penalties, rewards = list[float](), list[float]()
    sides = zip(logs, (instance.a, instance.b), potentials, instance.marginals, strict=True)
    for log2_ratios, weights, values, marginal in sides:
        weights = to_numpy(weights)
        some = weights > 0
        log_ratios, values = math.log(2) * log2_ratios.cpu().numpy(), to_numpy(values).astype(np.float64)
        penalties.append(penalty(weights[some], log_ratios[some], marginal.kappa))
        rewards.append(penalised_mass(weights[some], values[some], marginal.kappa))
    return SoftTerms(instance.masses, (penalties[0], penalties[1]), (rewards[0], rewards[1]))


def repeat_marked(
    stack: Stack, outcome: Any, marked: Iterator[int], float64_verb: Callable[[Stack], Any]
) -> list[tuple[Stack, Any]]:
    """Return the accurate lanes of a float32 stack with their outcomes, and the marked ones with those of float64."""
    if stack.float64:
        return [(stack, outcome)]
    marks = [bool(next(marked)) for _ in stack.lanes]
    if not any(marks):
        return [(stack, outcome)]
    accurate, rest = ([k for k, mark in enumerate(marks) if mark is flag] for flag in (False, True))
    again = stack.part(rest, float64=True)
    kept = [(stack.part(accurate, float64=False), outcome[accurate])] if accurate else []
    return [*kept, (again, float64_verb(again))]


def invert_totals(mass: Any, numbers: Any) -> Any:
    """Return places at which cumulative sums of rows of `mass` pass numbers in [0, 1) times their totals."""
    totals = torch.cumsum(mass, dim=1)
    last = mass.shape[1] - 1 - (mass > 0).int().flip(1).argmax(1, keepdim=True)
    places = torch.searchsorted(totals, numbers * totals[:, -1:], right=True)
    return torch.minimum(places, last).int().contiguous()
