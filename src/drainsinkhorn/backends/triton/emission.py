"""Potentials of many lanes on their way to the caller: rounded together, handed out in the caller's library."""

# pyright: basic
# torch is loaded when this backend is.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from drainsinkhorn.backends.arrays import is_single, library
from drainsinkhorn.backends.door import caller_array
from drainsinkhorn.backends.emission import Rounded, emission
from drainsinkhorn.backends.triton import kernels as k
from drainsinkhorn.core.problem import Potentials
from drainsinkhorn.core.protocol import Emission


class Part(NamedTuple):
    """Lanes of one size: where their potentials lie, the potentials rounded to what is emitted (float64), and how."""

    lanes: list[int]
    places: tuple[Any, Any]
    f: Any
    g: Any
    unit: Any
    single: list[bool]


def _by_size(pack: Any, lanes: Sequence[Any]) -> Iterator[tuple[Any, list[int], Any]]:
    """Lanes of each size, and their rows of the table."""
    found: dict[Any, list[int]] = {}
    for number, lane in enumerate(lanes):
        found.setdefault(tuple(pack._sizes[lane.place]), []).append(number)
    for size, numbers in found.items():
        yield size, numbers, pack._table[torch.tensor([lanes[i].place for i in numbers], device=pack.device)]


def first_legs(pack: Any, lanes: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Where the potentials of rows lie, and the legs measured for them."""
    for size, _, rows in _by_size(pack, lanes):
        steps = torch.arange(int(size[0]), device=pack.device)[None, :]
        yield rows[:, k.POTENTIAL.value, None] + steps, rows[:, k.LOGS.value, None] + steps


def rounded(pack: Any, lanes: Sequence[Any]) -> list[Part]:
    """The states of lanes in units of the cost, rounded to float32 where the caller has it and tol can bear it."""
    parts: list[Part] = []
    for size, numbers, rows in _by_size(pack, lanes):
        some = [lanes[i] for i in numbers]
        places = tuple(
            rows[:, k.POTENTIAL.value + side, None] + torch.arange(int(size[side]), device=pack.device)[None, :]
            for side in (0, 1)
        )
        unit = torch.tensor([lane.unit for lane in some], dtype=torch.float64, device=pack.device)
        f, g = (pack.potentials(place) * unit[:, None] for place in places)
        wanted = [is_single(caller_array(lane.problem)) for lane in some]
        single = torch.zeros(len(some), dtype=torch.bool)
        if any(wanted):
            short_f, short_g = f.float().double(), g.float().double()
            moved = ((short_f - f).abs().amax(1) + (short_g - g).abs().amax(1)).cpu()
            budget = torch.tensor([lane.problem.eps * lane.problem.tol / 10 for lane in some], dtype=torch.float64)
            single = torch.tensor(wanted) & (moved <= budget)
            take = single.to(pack.device)[:, None]
            f, g = torch.where(take, short_f, f), torch.where(take, short_g, g)
        parts.append(Part(numbers, places, f, g, unit, single.tolist()))
    return parts


def emissions(pack: Any, lanes: Sequence[Any]) -> list[Emission]:
    """Copies of the states of lanes for their callers."""
    found: list[Any] = [None] * len(lanes)
    for part in rounded(pack, lanes):
        forms: dict[Any, tuple[Any, Any]] = {}
        for row, number in enumerate(part.lanes):
            lane, single = lanes[number], part.single[row]
            like = caller_array(lane.problem)
            kind = library(like)
            if lane.support is not None or kind == "jax":
                dtype = np.dtype(np.float32 if single else np.float64)
                state = Rounded(part.f[row].cpu().numpy(), part.g[row].cpu().numpy(), dtype)
                found[number] = emission(lane.problem, state, lane.support)
                continue
            where = like.device if kind == "torch" else "numpy"
            if (where, single) not in forms:
                dtype = torch.float32 if single else torch.float64
                both = tuple(p.to(dtype) if kind == "torch" else p.to(dtype).cpu().numpy() for p in (part.f, part.g))
                forms[where, single] = tuple(p.to(where) for p in both) if kind == "torch" else both
            f, g = forms[where, single]
            pair = Potentials(f[row], g[row])
            found[number] = Emission(pair, pair.f.dtype != like.dtype)
    return found
