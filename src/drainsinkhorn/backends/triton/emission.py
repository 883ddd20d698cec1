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
from drainsinkhorn.backends.triton.lanes import DTYPES, LaneSet
from drainsinkhorn.backends.triton.launching import upload
from drainsinkhorn.core.protocol import Emission
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.instances import each, representatives
from drainsinkhorn.numerics.arrays import library

HOST = ("numpy", "host")
"""Library and device of lanes whose potentials go through NumPy in float64."""


def emit_lanes(
    instances: Sequence[Instance[Any]],
    supports: Sequence[Any] | None,
    lanes: LaneSet,
    rounded: Any,
    couple: Couple | None,
) -> Emission:
    """Return copies of the states of lanes for their callers.

    Args:
        instances: Their problems.
        supports: Which of their points have weight, None for lanes of which all have; None if all have in all lanes.
        lanes: The lanes.
        rounded: Potentials as they are emitted, in units of the cost, at the offsets of the lanes.
        couple: Makes plans of finished problems, from which potentials of points without weight are computed; None:
            NumPy computes these.
    """
    sizes, offsets, names = lanes.column("size"), lanes.column("offsets"), lanes.column("dtype")
    widened = (names != lanes.column("own")).tolist()
    owners = {_owner(instance) for instance in representatives(instances)} if supports is None else {HOST}
    if len(owners) == 1 and HOST not in owners and (names == names[0]).all() and (sizes == sizes[0]).all():
        # One size and one dtype: a block for all lanes.
        ((kind, device),), name = owners, int(names[0])
        f, g = (_copies(rounded, sizes, offsets, side, _dtype(kind, name), device) for side in (0, 1))
        return Emission(f.reshape(len(sizes), -1), g.reshape(len(sizes), -1), widened, instances)
    alike: dict[Any, list[int]] = defaultdict(list)
    supports = [None] * len(sizes) if supports is None else supports
    for number, (owner, name) in enumerate(zip(each(instances, _owner), names.tolist(), strict=True)):
        alike[HOST if supports[number] is not None else owner, name].append(number)
    f, g = list[Any]([None]) * len(sizes), list[Any]([None]) * len(sizes)
    for ((kind, device), name), numbers in alike.items():
        if (kind, device) != HOST:
            both = (
                _split(
                    _copies(rounded, sizes[numbers], offsets[numbers], side, _dtype(kind, name), device),
                    sizes[numbers, side],
                )
                for side in (0, 1)
            )
            for number, f_of, g_of in zip(numbers, *both, strict=True):
                f[number], g[number] = f_of, g_of
            continue
        states = list[Rounded]()
        for number in numbers:
            one = slice(number, number + 1)
            f_of, g_of = (_copies(rounded, sizes[one], offsets[one], side, torch.float64, None) for side in (0, 1))
            states.append(Rounded(f_of, g_of, DTYPES[name]))
        emitted = emit_states([instances[i] for i in numbers], states, [supports[i] for i in numbers], couple)
        for place, number in enumerate(numbers):
            f[number], g[number], widened[number] = emitted.f[place], emitted.g[place], emitted.widened[place]
    return Emission(f, g, widened, instances)


def _owner(instance: Instance[Any]) -> tuple[str, Any]:
    """Return the library and the device of a caller's arrays, None for NumPy; HOST if JAX has them."""
    kind = library(instance.like)
    return HOST if kind == "jax" else (kind, instance.like.device if kind == "torch" else None)


def _dtype(kind: str, name: int) -> Any:
    """Return the dtype of torch in which potentials are copied; NumPy holds bfloat16 in float32."""
    is_held = kind != "torch" and DTYPES[name] == "bfloat16"
    return torch.float32 if is_held else getattr(torch, DTYPES[name])


def _copies(rounded: Any, sizes: Any, offsets: Any, side: int, dtype: Any, device: Any) -> Any:
    """Return a copy of the potentials of one side of lanes, one behind the other; in NumPy if the device is None."""
    numbers = _pieces(rounded, offsets[:, side], sizes[:, side]).to(dtype, copy=True).reshape(-1)
    return numbers.cpu().numpy() if device is None else numbers.to(device)


def _split(numbers: Any, sizes: Any) -> list[Any]:
    """Return the parts of a vector of these sizes."""
    if (sizes == sizes[0]).all():
        return list(numbers.reshape(len(sizes), sizes[0]))
    if type(numbers) is np.ndarray:
        return np.split(numbers, np.cumsum(sizes[:-1]))
    return list(numbers.split(sizes.tolist()))


def _pieces(rounded: Any, offsets: Any, sizes: Any) -> Any:
    """Return pieces of a vector, one behind the other; a view, (pieces, size), if they are equal and equally spaced."""
    size, steps = int(sizes[0]), set(np.diff(offsets).tolist()) or {int(sizes[0])}
    if len(steps) == 1 and min(steps) >= size and (sizes == size).all():
        return rounded.as_strided((len(offsets), size), (*steps, 1), int(offsets[0]))
    begins = np.cumsum(sizes) - sizes
    return rounded[upload(np.repeat(offsets - begins, sizes) + np.arange(sizes.sum()), torch.int64, rounded.device)]
