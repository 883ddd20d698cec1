"""Launches that are prepared once, and copies between host and device.

Triton inspects every argument of every launch, which takes longer than a small kernel runs. Here arguments are tensors,
or integers on which kernels do not specialise, so the kernel, its constants and the dtype of its first argument
determine the compiled form. That form assumes tensors that begin at multiples of sixteen bytes, and integers of 32
bits. Triton itself launches kernels with other tensors, for example slices of the caller's, and with larger integers.
"""

# pyright: basic, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
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
        metadata: Metadata that the launcher takes.
        constants: Constants that it takes after the arguments.
    """

    run: Callable[..., None]
    function: Any
    metadata: Any
    constants: list[Any]


MOST_INTEGER = 2**31 - 1
"""Largest integer that a compiled form takes: its launcher may cut off digits of a larger one without an error."""

_forms: dict[Hashable, _Form | None] = {}
"""By kernel, device, dtype and constants; None where Triton's interpreter runs."""

Note = Callable[[Any, tuple[int, ...], tuple[Any, ...], dict[str, Any]], None]
"""Receives kernel, grid, arguments and constants of a launch."""
_note: ContextVar[Note | None] = ContextVar("note", default=None)
"""Receives the launches of this thread in place of the device."""
pending: dict[Hashable, Future[bool]] = {}
"""Forms that other processes are compiling (`compiling`), by `form_key`."""
PATIENCE = 300.0
"""Seconds after which this process no longer waits for others and compiles a form itself."""


def prepared(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> Launch:
    """Return a function that calls `kernel[grid](*args, **constants)`; constants of a kernel always have one order."""
    note = _note.get()
    if note is not None:
        note(kernel, grid, args, constants)
        return _launch_nothing

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
    arguments = (form.function, form.metadata, None, None, None, *values, *form.constants)

    def by_launcher(stream: int) -> None:
        try:
            run(x, y, z, stream, *arguments)
        except (TypeError, OverflowError):
            # Launchers of this Triton take other arguments, or an integer is too large; nothing has run yet.
            by_triton(stream)

    return by_launcher


def form_key(kernel: Any, args: tuple[Any, ...], constants: dict[str, Any]) -> Hashable:
    """Return what determines a compiled form on one kind of device."""
    return (kernel.__name__, args[0].dtype, *constants.values())


@contextmanager
def noted_by(note: Note) -> Iterator[None]:
    """A context in which launches of this thread are noted and not executed."""
    token = _note.set(note)
    try:
        yield
    finally:
        _note.reset(token)


def _launch_nothing(_: int) -> None:
    """Launch nothing."""


def _form(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], constants: dict[str, Any]) -> _Form:
    future = pending.get(form_key(kernel, args, constants))
    # What another process has not begun is compiled here.
    if future is not None and not future.cancel():
        wait([future], PATIENCE)
    with on(args[0].device):
        compiled = kernel.warmup(*args, grid=grid, **constants)
    last = [constants[name] for name in kernel.arg_names[len(args) :]]
    return _Form(compiled.run, compiled.function, compiled.packed_metadata, last)


def _values(args: tuple[Any, ...]) -> list[int] | None:
    """Return integers and addresses; None if one is above MOST_INTEGER, or not a multiple of sixteen bytes."""
    values: list[int] = []
    for arg in args:
        value = arg if type(arg) is int else arg.data_ptr()
        if value > MOST_INTEGER if value is arg else value % 16:
            return None
        values.append(value)
    return values


def stream_of(device: Any) -> int:
    """Return the current stream of torch on a device."""
    if device.type == "cpu":
        return 0
    active: Any = driver.active
    return active.get_current_stream(torch.cuda.current_device() if device.index is None else device.index)


def on(device: Any) -> AbstractContextManager[Any]:
    """Return a context in which a device is the current one: Triton compiles and launches for no other."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    """Call `kernel[grid](*args, **constants)` once, in the current stream of the device of its first argument."""
    device = args[0].device
    with on(device):
        prepared(kernel, grid, *args, **constants)(stream_of(device))


def upload(values: Any, dtype: Any, device: Any) -> Any:
    """Return numbers of the host as a tensor on the device, without waiting for earlier work of the device.

    Memory that is not pinned has been read when the copy returns, so it may be freed at once.
    """
    return torch.as_tensor(values, dtype=dtype).to(device, non_blocking=True)


class Download:
    """A copy from the device to the host that is under way; reading it waits until it is complete."""

    def __init__(self, values: Any) -> None:
        self._there = torch.cuda.Event() if values.device.type == "cuda" else None
        self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=self._there is not None)
        self.again(values)

    def again(self, values: Any) -> Download:
        """Copy other numbers of the same shape in place of these."""
        self._values.copy_(values, non_blocking=True)
        if self._there is not None:
            self._there.record(torch.cuda.current_stream(values.device))
        return self

    def read(self) -> Any:
        """Return the numbers as a NumPy array."""
        if self._there is not None:
            self._there.synchronize()
        return self._values.numpy()
