"""Launches: a kernel compiled for given constants is kept, so that the next launch costs a few microseconds.

Triton looks at every argument of every launch to find the kernel that was compiled for arguments of its kind. Arguments
of a pack are always of one kind (tensors that begin where torch's allocator, or an aligned piece of it, begins), so its
constants tell which kernel that is.
"""

# pyright: basic

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

_known: dict[Hashable, tuple[Any, tuple[Any, ...]]] = {}


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    """`kernel[grid](*args, **constants)`, all tensors first; a kernel's constants are named in one order everywhere."""
    key = (kernel.__name__, args[0].device, *constants.values())
    known = _known.get(key)
    if known is None:
        # None under the interpreter; what was compiled otherwise.
        compiled = kernel[grid](*args, **constants)
        if hasattr(compiled, "packed_metadata"):
            _known[key] = compiled, tuple(constants[name] for name in kernel.arg_names[len(args) :])
        return
    compiled, tail = known
    try:
        compiled[(*grid, 1, 1)[:3]](*args, *tail)
    except TypeError:
        # A Triton whose launchers take other arguments says so before anything runs.
        kernel[grid](*args, **constants)
