"""Potentials of many lanes, in the library, on the device and in the dtype of their callers."""

# pyright: basic
# torch is loaded when this backend is.

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from drainsinkhorn.backends.emission import Rounded, emit_states
from drainsinkhorn.backends.support import Couple
from drainsinkhorn.backends.triton.lanes import Lane
from drainsinkhorn.backends.triton.launching import upload
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
    alike: dict[Any, list[int]] = defaultdict(list)
    by_host: dict[int, Rounded] = {}
    for number, lane in enumerate(lanes):
        like = lane.instance.like
        kind = library(like)
        if lane.support is not None or kind == "jax":
            f_of, g_of = (_copies(rounded, [lane], side, torch.float64, None)[0] for side in (0, 1))
            by_host[number] = Rounded(f_of, g_of, lane.dtype)
        else:
            alike[like.device if kind == "torch" else None, lane.dtype].append(number)
    on_host = [lanes[number] for number in by_host]
    instances, supports = [lane.instance for lane in on_host], [lane.support for lane in on_host]
    emitted = emit_states(instances, list(by_host.values()), supports, couple)
    for place, number in enumerate(by_host):
        f[number], g[number], widened[number] = emitted.f[place], emitted.g[place], emitted.widened[place]
    for (device, name), numbers in alike.items():
        # NumPy holds bfloat16 in float32.
        dtype = torch.float32 if device is None and name == "bfloat16" else getattr(torch, name)
        both = (_copies(rounded, [lanes[number] for number in numbers], side, dtype, device) for side in (0, 1))
        for number, f_of, g_of in zip(numbers, *both, strict=True):
            f[number], g[number] = f_of, g_of
    return Emission(f, g, widened, [lane.instance for lane in lanes])


def _copies(rounded: Any, lanes: Sequence[Lane], side: int, dtype: Any, device: Any) -> list[Any]:
    """Return copies of the potentials of one side of lanes, parts of one array; in NumPy if the device is None."""
    sizes, offsets = [lane.size[side] for lane in lanes], [lane.offsets[side] for lane in lanes]
    numbers = _pieces(rounded, np.array(offsets), np.array(sizes)).to(dtype, copy=True)
    numbers = numbers.cpu().numpy() if device is None else numbers.to(device)
    if min(sizes) == max(sizes):
        return list(numbers.reshape(len(lanes), sizes[0]))
    return np.split(numbers, np.cumsum(sizes[:-1])) if device is None else list(numbers.split(sizes))


def _pieces(rounded: Any, offsets: Any, sizes: Any) -> Any:
    """Return pieces of a vector, one behind the other; a view, (pieces, size), if they are equal and equally spaced."""
    size, steps = int(sizes[0]), set(np.diff(offsets).tolist()) or {int(sizes[0])}
    if len(steps) == 1 and min(steps) >= size and (sizes == size).all():
        return rounded.as_strided((len(offsets), size), (*steps, 1), int(offsets[0]))
    begins = np.cumsum(sizes) - sizes
    return rounded[upload(np.repeat(offsets - begins, sizes) + np.arange(sizes.sum()), torch.int64, rounded.device)]
