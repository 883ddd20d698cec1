"""Launches that are made ready once.

Triton's own way looks at every argument of every launch, which takes longer than a small kernel runs. Arguments are
always of one kind here (tensors, integers on which kernels do not specialise), so the kernel, its constants and the
dtype of its first argument tell which compiled form is meant. That form counts on tensors that begin at multiples of
sixteen bytes; one that does not, a slice of a caller's perhaps, is launched by Triton itself.
"""

# pyright: basic

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from triton.runtime import driver

Launch = Callable[[int], None]
"""Launches a kernel in a stream."""

_compiled: dict[Hashable, Any] = {}


def prepared(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> Launch:
    """`kernel[grid](*args, **constants)` to be done as often as one likes; a kernel's constants have one order."""

    def by_triton(_: int) -> None:
        kernel[grid](*args, **constants)

    if not all(map(_begins_well, args)):
        return by_triton
    key = (kernel.__name__, args[0].device, args[0].dtype, *constants.values())
    if key not in _compiled:
        _compiled[key] = None if args[0].device.type == "cpu" else kernel.warmup(*args, grid=grid, **constants)
    compiled = _compiled[key]
    if compiled is None:
        return by_triton
    run = compiled.run
    function, metadata, (x, y, z) = compiled.function, compiled.packed_metadata, (*grid, 1, 1)[:3]
    values = [arg.data_ptr() if isinstance(arg, torch.Tensor) else arg for arg in args]
    values += [constants[name] for name in kernel.arg_names[len(args) :]]

    def directly(stream: int) -> None:
        try:
            run(x, y, z, stream, function, metadata, None, None, None, *values)
        except (TypeError, OverflowError):
            # A Triton whose launchers take other arguments, or too large an integer: said before anything runs.
            by_triton(stream)

    return directly


def _begins_well(arg: Any) -> bool:
    return not isinstance(arg, torch.Tensor) or arg.data_ptr() % 16 == 0


def stream_of(device: Any) -> int:
    """The stream in which torch works on a device."""
    if device.type == "cpu":
        return 0
    active: Any = driver.active
    return active.get_current_stream(device.index)


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    """`kernel[grid](*args, **constants)`, once."""
    prepared(kernel, grid, *args, **constants)(stream_of(args[0].device))
