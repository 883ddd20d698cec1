"""Outcomes of stacks: selected, weighted, repeated in float64 where float32 was inaccurate, and inverted for draws."""

# pyright: basic
# torch is loaded when this backend is.

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from drainsinkhorn.backends.triton.stacks import Stack


def over_slabs(stack: Stack, side: int, verb: Callable[[Stack], tuple[Any, Any]]) -> tuple[Any, Any]:
    """Return outcomes of the rows of a side, and which lanes are inaccurate, slab by slab if a lane is huge."""
    slabs = stack.slabs(side)
    if len(slabs) == 1:
        return verb(slabs[0])
    outcomes, marks = zip(*map(verb, slabs), strict=True)
    return torch.cat(outcomes, 1), torch.stack(marks).amax(0)


def select_lanes(stack: Stack, tensor: Any) -> Any:
    """Return the part of (k, lanes, ...) for the lanes of a stack."""
    if stack.lanes == list(range(tensor.shape[1])):
        return tensor
    return tensor[:, torch.tensor(stack.lanes, device=tensor.device)]


def times_mass(mass: Any, rows: Any) -> Any:
    """Return rows times their masses; zero for points without mass, however far away they are."""
    return torch.where(mass[:, :, None] > 0, mass[:, :, None] * rows, 0.0)


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
