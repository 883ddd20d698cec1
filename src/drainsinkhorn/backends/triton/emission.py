"""Potentials of many lanes on their way to the caller, in the caller's library."""

# pyright: basic
# torch is loaded when this backend is.

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from drainsinkhorn.backends.emission import Rounded, emit_states
from drainsinkhorn.core.protocol import Emission
from drainsinkhorn.numerics.arrays import library


def emit_lanes(pack: Any, lanes: Sequence[Any]) -> Emission:
    """Copies of the states of lanes for their callers, as they were verified."""
    f: list[Any] = [None] * len(lanes)
    g = f.copy()
    # This decides the dtype of each lane, where verify has not.
    given = pack.given(lanes)
    widened = [lane.dtype != lane.own for lane in lanes]
    alike: dict[Any, list[int]] = {}
    by_host: dict[int, Rounded] = {}
    for number, lane in enumerate(lanes):
        like = lane.instance.like
        kind = library(like)
        if lane.support is not None or kind == "jax":
            f_of, g_of = (part[0].cpu().numpy() for part in _both(given, [lane], torch.float64))
            by_host[number] = Rounded(f_of, g_of, lane.dtype)
        else:
            where = like.device if kind == "torch" else None
            alike.setdefault((lane.group.size, where, lane.dtype), []).append(number)
    some = [lanes[number] for number in by_host]
    instances, supports = [lane.instance for lane in some], [lane.support for lane in some]
    emitted = emit_states(instances, list(by_host.values()), supports, pack.couple)
    for place, number in enumerate(by_host):
        f[number], g[number], widened[number] = emitted.f[place], emitted.g[place], emitted.widened[place]
    for (_, where, name), numbers in alike.items():
        # NumPy holds bfloat16 in float32.
        dtype = torch.float32 if where is None and name == "bfloat16" else getattr(torch, name)
        both = _both(given, [lanes[number] for number in numbers], dtype)
        both = [part.cpu().numpy() if where is None else part.to(where) for part in both]
        for number, f_of, g_of in zip(numbers, *both, strict=True):
            f[number], g[number] = f_of, g_of
    return Emission(f, g, widened, [lane.instance for lane in lanes])


def _both(given: Any, lanes: Sequence[Any], dtype: Any) -> list[Any]:
    """Potentials of both sides of lanes of one size, each a tensor (lanes, size) of its own."""
    return [
        _side(given, [lane.potentials[side] for lane in lanes], size).to(dtype, copy=True)
        for side, size in enumerate(lanes[0].group.size)
    ]


def _side(given: Any, places: Sequence[int], size: int) -> Any:
    """Pieces of one size that begin at these places: seen where they are if they are equally far from each other."""
    apart = {later - place for place, later in pairwise(places)} or {size}
    if len(apart) == 1 and min(apart) >= size:
        return given.as_strided((len(places), size), (*apart, 1), places[0])
    return torch.stack([given[at : at + size] for at in places])
