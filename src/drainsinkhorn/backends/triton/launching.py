"""Launches that are made ready once.

Triton's own way looks at every argument of every launch, which takes longer than a small kernel runs. Arguments of a
pack are always of one kind (tensors that begin where a piece of torch's memory begins), so the kernel and its constants
tell which compiled form is meant.
"""

# pyright: basic

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch

Launch = Callable[[int], None]
"""Launches a kernel in a stream."""

_compiled: dict[Hashable, Any] = {}


def prepared(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> Launch:
    """`kernel[grid](*args, **constants)` to be done as often as one likes; a kernel's constants have one order."""

    def by_triton(_: int) -> None:
        kernel[grid](*args, **constants)

    key = (kernel.__name__, args[0].device, *constants.values())
    if key not in _compiled:
        _compiled[key] = None if args[0].device.type == "cpu" else kernel.warmup(*args, grid=grid, **constants)
    compiled = _compiled[key]
    if compiled is None:
        return by_triton
    run = compiled.run
    function, metadata, (x, y) = compiled.function, compiled.packed_metadata, (*grid, 1)[:2]
    values = [arg.data_ptr() if isinstance(arg, torch.Tensor) else arg for arg in args]
    values += [constants[name] for name in kernel.arg_names[len(args) :]]

    def directly(stream: int) -> None:
        try:
            run(x, y, 1, stream, function, metadata, None, None, None, *values)
        except TypeError:
            # A Triton whose launchers take other arguments says so before anything runs.
            by_triton(stream)

    return directly


def stream_of(device: Any) -> int:
    """The stream in which torch works on a device."""
    return 0 if device.type == "cpu" else torch.cuda.current_stream(device).cuda_stream
