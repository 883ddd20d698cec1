"""Launches that are made ready once.

Triton's own way looks at every argument of every launch, which takes longer than a small kernel runs. Arguments are
always of one kind here (tensors, integers on which kernels do not specialise), so the kernel, its constants and the
dtype of its first argument tell which compiled form is meant. That form counts on tensors that begin at multiples of
sixteen bytes; one that does not, a slice of a caller's perhaps, is launched by Triton itself. CUDA's driver launches
the form, with arguments that were laid out when the launch was made ready; Triton's launcher does where there is none.
"""

# pyright: basic, reportAttributeAccessIssue=false

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable
from functools import cache
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
        types: C types of the arguments, as the driver reads them; None if the driver alone cannot launch the form.
        threads: Threads of a program.
        shared: Bytes of memory that they share.
    """

    run: Callable[..., None]
    function: Any
    metadata: Any
    constants: list[Any]
    types: list[Any] | None
    threads: int
    shared: int


INTEGERS = {"i32": ctypes.c_int32, "i64": ctypes.c_int64}
SCRATCH = 4
"""More pointers than any Triton's kernels have after their arguments."""

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
    x, y, z = (*grid, 1, 1)[:3]
    by_driver, function, threads, shared = _driver(), form.function, form.threads, form.shared
    arguments = _laid_out(values, form.types) if by_driver is not None else None
    if by_driver is not None and arguments is not None:

        def directly(stream: int) -> None:
            if by_driver(function, x, y, z, threads, 1, 1, shared, stream, arguments, None):
                # Triton says what is wrong, if something is.
                by_triton(stream)

        return directly

    def by_launcher(stream: int) -> None:
        try:
            form.run(x, y, z, stream, function, form.metadata, None, None, None, *values, *form.constants)
        except (TypeError, OverflowError):
            # A Triton whose launchers take other arguments, or too large an integer: said before anything runs.
            by_triton(stream)

    return by_launcher


def _form(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], constants: dict[str, Any]) -> _Form:
    compiled = kernel.warmup(*args, grid=grid, **constants)
    last = [constants[name] for name in kernel.arg_names[len(args) :]]
    told = compiled.metadata
    return _Form(compiled.run, compiled.function, compiled.packed_metadata, last, _types(compiled, len(args)),
                 32 * told.num_warps, told.shared)  # fmt: skip


def _types(compiled: Any, count: int) -> list[Any] | None:
    """C types of the first `count` arguments; None if the form wants more than a plain launch."""
    unlike = ("launch_cooperative_grid", "launch_pdl", "global_scratch_size", "profile_scratch_size")
    if getattr(compiled.metadata, "num_ctas", 1) != 1 or any(getattr(compiled.metadata, name, 0) for name in unlike):
        return None
    names = list(getattr(compiled.src, "signature", {}).values())[:count]
    found = [ctypes.c_void_p if name.startswith("*") else INTEGERS.get(name) for name in names]
    return found if len(found) == count and None not in found else None


def _laid_out(values: list[int], types: list[Any] | None) -> Any:
    """An array of places of arguments, as the driver wants it; None if an integer does not fit its type."""
    if types is None or any(
        kind is ctypes.c_int32 and not -(2**31) <= v < 2**31 for v, kind in zip(values, types, strict=True)
    ):
        return None
    # After the arguments come places for scratch memory, which our kernels do not use; how many, depends on Triton.
    held = [
        *(kind(value) for kind, value in zip(types, values, strict=True)),
        *(ctypes.c_void_p() for _ in range(SCRATCH)),
    ]
    found = (ctypes.c_void_p * len(held))(*map(ctypes.addressof, held))
    # Places do not keep what lies there.
    found.held = held
    return found


@cache
def _driver() -> Any:
    """`cuLaunchKernel`; None where there is no such thing."""
    try:
        found = ctypes.CDLL("libcuda.so.1").cuLaunchKernel
    except (OSError, AttributeError):
        return None
    found.argtypes = [ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3]
    found.restype = ctypes.c_int
    return found


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
    return active.get_current_stream(device.index)


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
        self._values = values.to("cpu", non_blocking=True)
        self._there = torch.cuda.Event() if values.device.type == "cuda" else None
        if self._there is not None:
            self._there.record(torch.cuda.current_stream(values.device))

    def read(self) -> Any:
        """A NumPy array."""
        if self._there is not None:
            self._there.synchronize()
        return self._values.numpy()
