"""Launches that are made ready once.

Triton's own way looks at every argument of every launch, which takes longer than a small kernel runs. Arguments are
always of one kind here (tensors, integers on which kernels do not specialise), so the kernel, its constants and the
dtype of its first argument tell which compiled form is meant. That form counts on tensors that begin at multiples of
sixteen bytes; one that does not, a slice of a caller's perhaps, is launched by Triton itself.
"""

# pyright: basic, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch
from triton.runtime import driver

Launch = Callable[[int], None]
"""Launches a kernel in a stream."""


class _Form(NamedTuple):
    """A compiled form of a kernel.

    Attributes:
        run: Triton's launcher.
        function: The driver's handle.
        metadata: What the launcher wants to be told.
        constants: What it wants after the arguments.
    """

    run: Callable[..., None]
    function: Any
    metadata: Any
    constants: list[Any]


_forms: dict[Hashable, _Form | None] = {}
"""By kernel, device, dtype and constants; None where Triton's interpreter runs."""


def prepared(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> Launch:
    """`kernel[grid](*args, **constants)` to be done as often as one likes; a kernel's constants have one order."""

    def by_triton(_: int) -> None:
        kernel[grid](*args, **constants)

    values = _values(args)
    if values is None:
        return by_triton
    key = (kernel.__name__, args[0].device, args[0].dtype, *constants.values())
    if key not in _forms:
        _forms[key] = None if args[0].device.type == "cpu" else _form(kernel, grid, args, constants)
    form = _forms[key]
    if form is None:
        return by_triton
    run, (x, y, z) = form.run, (*grid, 1, 1)[:3]
    told = (form.function, form.metadata, None, None, None, *values, *form.constants)

    def by_launcher(stream: int) -> None:
        try:
            run(x, y, z, stream, *told)
        except (TypeError, OverflowError):
            # A Triton whose launchers take other arguments, or too large an integer: said before anything runs.
            by_triton(stream)

    return by_launcher


def _form(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], constants: dict[str, Any]) -> _Form:
    compiled = kernel.warmup(*args, grid=grid, **constants)
    last = [constants[name] for name in kernel.arg_names[len(args) :]]
    return _Form(compiled.run, compiled.function, compiled.packed_metadata, last)


def _values(args: tuple[Any, ...]) -> list[int] | None:
    """Integers, and where tensors begin; None if one of them does not begin well."""
    values: list[int] = []
    for arg in args:
        value = arg if type(arg) is int else arg.data_ptr()
        if value is not arg and value % 16:
            return None
        values.append(value)
    return values


def stream_of(device: Any) -> int:
    """The stream in which torch works on a device."""
    if device.type == "cpu":
        return 0
    active: Any = driver.active
    return active.get_current_stream(torch.cuda.current_device() if device.index is None else device.index)


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    """`kernel[grid](*args, **constants)`, once."""
    prepared(kernel, grid, *args, **constants)(stream_of(args[0].device))


def upload(values: Any, dtype: Any, device: Any) -> Any:
    """Numbers of the host on the device, without waiting for what the device has to do before it gets them.

    Memory that is not pinned has been read when the copy returns, so it may be forgotten at once.
    """
    return torch.as_tensor(values, dtype=dtype).to(device, non_blocking=True)


class Download:
    """Numbers of the device on their way to the host, which waits for them when it reads them."""

    def __init__(self, values: Any) -> None:
        self._there = torch.cuda.Event() if values.device.type == "cuda" else None
        self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=self._there is not None)
        self.again(values)

    def again(self, values: Any) -> Download:
        """Other numbers, of the same shape, in place of these, which nobody will read any more."""
        self._values.copy_(values, non_blocking=True)
        if self._there is not None:
            self._there.record(torch.cuda.current_stream(values.device))
        return self

    def read(self) -> Any:
        """A NumPy array."""
        if self._there is not None:
            self._there.synchronize()
        return self._values.numpy()
