"""Potentials of many lanes on their way to the caller, in the caller's library."""

# pyright: basic
# torch is loaded when this backend is.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from drainsinkhorn.backends.arrays import library
from drainsinkhorn.backends.door import caller_array
from drainsinkhorn.backends.emission import Rounded, emission
from drainsinkhorn.backends.triton import kernels as k
from drainsinkhorn.core.problem import Potentials
from drainsinkhorn.core.protocol import Emission


def _by_size(pack: Any, lanes: Sequence[Any]) -> Iterator[tuple[Any, list[int], Any]]:
    """Lanes of each size, and their rows of the table."""
    found: dict[Any, list[int]] = {}
    for number, lane in enumerate(lanes):
        found.setdefault(lane.group.size, []).append(number)
    for size, numbers in found.items():
        yield size, numbers, pack._table[torch.tensor([lanes[i].place for i in numbers], device=pack.device)]


def emissions(pack: Any, lanes: Sequence[Any]) -> list[Emission]:
    """Copies of the states of lanes for their callers, as they were verified."""
    found: list[Any] = [None] * len(lanes)
    given = pack.given(lanes)
    for size, numbers, rows in _by_size(pack, lanes):
        all_f, all_g = (
            given[rows[:, k.POTENTIAL.value + side, None] + torch.arange(int(size[side]), device=pack.device)[None, :]]
            for side in (0, 1)
        )
        forms: dict[Any, tuple[Any, Any]] = {}
        for row, number in enumerate(numbers):
            lane = lanes[number]
            single = lane.single
            like = caller_array(lane.problem)
            kind = library(like)
            if lane.support is not None or kind == "jax":
                dtype = np.dtype(np.float32 if single else np.float64)
                state = Rounded(all_f[row].cpu().numpy(), all_g[row].cpu().numpy(), dtype)
                found[number] = emission(lane.problem, state, lane.support)
                continue
            where = like.device if kind == "torch" else "numpy"
            if (where, single) not in forms:
                dtype = torch.float32 if single else torch.float64
                both = tuple(p.to(dtype) if kind == "torch" else p.to(dtype).cpu().numpy() for p in (all_f, all_g))
                forms[where, single] = tuple(p.to(where) for p in both) if kind == "torch" else both
            f, g = forms[where, single]
            pair = Potentials(f[row], g[row])
            found[number] = Emission(pair, pair.f.dtype != like.dtype)
    return found
