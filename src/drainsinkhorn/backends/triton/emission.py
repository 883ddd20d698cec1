"""Potentials of many lanes, in the library, on the device and in the dtype of their callers."""

# pyright: basic
# torch is loaded when this backend is.

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from drainsinkhorn.backends.emission import Rounded, emit_states
from drainsinkhorn.backends.support import Couple
from drainsinkhorn.backends.triton.lanes import Lane
from drainsinkhorn.core.protocol import Emission
from drainsinkhorn.numerics.arrays import library


def emit_lanes(lanes: Sequence[Lane], rounded: Any, couple: Couple | None) -> Emission:
    """Return copies of the states of lanes for their callers.

    Args:
        lanes: The lanes.
        rounded: Potentials as they are emitted, in units of the cost, at the offsets of the lanes.
        couple: Makes plans of finished problems, from which potentials of points without weight are computed; None:
            NumPy computes these.
    """
    f: list[Any] = [None] * len(lanes)
    g = f.copy()
    widened = [lane.dtype != lane.own for lane in lanes]
    alike: dict[Any, list[int]] = {}
    by_host: dict[int, Rounded] = {}
    for number, lane in enumerate(lanes):
        like = lane.instance.like
        kind = library(like)
        if lane.support is not None or kind == "jax":
            f_of, g_of = (part[0].cpu().numpy() for part in _both(rounded, [lane], torch.float64))
            by_host[number] = Rounded(f_of, g_of, lane.dtype)
        else:
            device = like.device if kind == "torch" else None
            alike.setdefault((lane.group.size, device, lane.dtype), []).append(number)
    on_host = [lanes[number] for number in by_host]
    instances, supports = [lane.instance for lane in on_host], [lane.support for lane in on_host]
    emitted = emit_states(instances, list(by_host.values()), supports, couple)
    for place, number in enumerate(by_host):
        f[number], g[number], widened[number] = emitted.f[place], emitted.g[place], emitted.widened[place]
    for (_, device, name), numbers in alike.items():
        # NumPy holds bfloat16 in float32.
        dtype = torch.float32 if device is None and name == "bfloat16" else getattr(torch, name)
        both = _both(rounded, [lanes[number] for number in numbers], dtype)
        both = [part.cpu().numpy() if device is None else part.to(device) for part in both]
        for number, f_of, g_of in zip(numbers, *both, strict=True):
            f[number], g[number] = f_of, g_of
    return Emission(f, g, widened, [lane.instance for lane in lanes])


def _both(rounded: Any, lanes: Sequence[Lane], dtype: Any) -> list[Any]:
    """Return copies of the potentials of both sides of lanes of one size, each a tensor (lanes, size)."""
    return [
        _side(rounded, [lane.offsets[side] for lane in lanes], size).to(dtype, copy=True)
        for side, size in enumerate(lanes[0].group.size)
    ]


def _side(rounded: Any, offsets: Sequence[int], size: int) -> Any:
    """Return pieces of one size at these offsets, (lanes, size): a view if offsets are equally spaced."""
    steps = {later - offset for offset, later in pairwise(offsets)} or {size}
    if len(steps) == 1 and min(steps) >= size:
        return rounded.as_strided((len(offsets), size), (*steps, 1), offsets[0])
    return torch.stack([rounded[offset : offset + size] for offset in offsets])
