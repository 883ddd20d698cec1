"""The border between the caller's array library and NumPy. Nothing is imported that the caller has not imported."""

from __future__ import annotations

import contextlib
import sys
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.numerics.memory import memory_errors

Array = NDArray[Any]


_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
_NAMES = {np.dtype(name): name for name in ("float16", "float32", "float64")}
BFLOAT16 = np.dtype(np.float32, metadata={"holds": "bfloat16"})
"""Stands for bfloat16, which NumPy lacks: float32 numbers, each of which bfloat16 represents exactly."""
ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
"""Unit roundoff: the largest relative error of rounding to a dtype, for numbers in its normal range."""
SMALLEST = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 2.0**-1074}
"""The smallest positive number of a dtype, and the distance of its numbers below the smallest normal one."""
LARGEST = {"float16": 65504.0, "bfloat16": (2 - 2.0**-7) * 2.0**127, "float32": float(np.finfo(np.float32).max)}
"""The largest finite number of a dtype."""


def library(value: Any) -> str:
    """Which library an array belongs to: "torch", "jax" or "numpy" (which stands for everything else)."""
    return _library_of(type(value))


@lru_cache(maxsize=256)
def _library_of(kind: type) -> str:
    roots = [base.__module__.partition(".")[0] for base in kind.__mro__]
    return "torch" if "torch" in roots else "jax" if roots[0] in ("jax", "jaxlib") else "numpy"


def is_array(value: Any) -> bool:
    """True for arrays and tensors, False for numbers, strings, lists and the rest."""
    return hasattr(value, "ndim") and hasattr(value, "shape") and hasattr(value, "dtype")


def to_numpy(value: Any) -> Array:
    """A NumPy view or copy of any array; raises TypeError with a reason for what cannot be one."""
    if type(value) is np.ndarray:
        return value
    kind = library(value)
    if kind == "torch":
        if value.layout is not sys.modules["torch"].strided:
            raise TypeError(f"it is a {value.layout} tensor; call .to_dense() first")
        value = value.detach().cpu()
        return (value.float() if value.dtype is sys.modules["torch"].bfloat16 else value).numpy()
    if kind == "jax":
        if isinstance(value, sys.modules["jax"].core.Tracer):
            raise TypeError("it is a JAX tracer; call this outside jit, vmap and grad, or use drainsinkhorn.grad.jax")
        array = np.asarray(value)
        return array.astype(np.float32) if array.dtype.name == "bfloat16" else array
    try:
        return np.asarray(value)
    except ValueError as error:
        raise TypeError(f"it cannot be read as an array ({error})") from None


def float_dtype(value: Any) -> np.dtype[Any] | None:
    """The caller's float dtype if potentials can live in it (float32, float64), else None."""
    if type(value) is np.ndarray:
        return value.dtype if value.dtype in _FLOATS else None
    name = str(value.dtype).removeprefix("torch.")
    return np.dtype(name) if name in ("float32", "float64") else None


def float_name(value: Any) -> str | None:
    """The name of an array's dtype in any library, if it is float16, bfloat16, float32 or float64; else None."""
    if type(value) is np.ndarray:
        dtype = value.dtype
        return _NAMES.get(dtype) if dtype.metadata is None or dtype.metadata != BFLOAT16.metadata else "bfloat16"
    return _float_name_of(value.dtype)


@lru_cache(maxsize=256)
def _float_name_of(dtype: Any) -> str | None:
    """Return the name of a dtype of torch or JAX if it is one of these four floats, else None."""
    name = str(dtype).removeprefix("torch.")
    return name if name in ROUNDOFF else None


def round_to(values: NDArray[np.float64], name: str) -> Array:
    """Round numbers to a dtype, to nearest with ties to even; bfloat16 numbers are returned as float32.

    Numbers beyond the range of the dtype become infinite. A number for bfloat16 is first rounded to float32.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if name != "bfloat16":
            return values.astype(name)
        single = values.astype(np.float32)
        bits = single.view(np.uint32)
        # bfloat16 is the upper half of float32. Add just less than half a unit of its last place, or half if the last
        # bit is odd: this carries into the upper half exactly if rounding goes up.
        upper = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) & np.uint32(0xFFFF0000)
        return np.where(np.isfinite(single), upper.view(np.float32), single)


def is_single(value: Any) -> bool:
    """True if the caller's dtype is float32."""
    return float_dtype(value) == np.float32


def to_caller(array: Array, like: Any, *, own: bool = False) -> Any:
    """Copy a NumPy array to the library and device of `like`, in its own dtype; raises MemoryError if there is no room.

    Args:
        array: The array.
        like: An array of the caller.
        own: True if the copy must have the dtype of `like`. Only bfloat16 needs this: NumPy holds it as float32.
    """
    kind = library(like)
    short = own and float_name(like) == "bfloat16" if kind != "numpy" else False
    if kind == "torch":
        torch = sys.modules["torch"]
        with memory_errors():
            return torch.from_numpy(array.copy()).to(like.device, torch.bfloat16 if short else None)
    if kind == "jax":
        jax = sys.modules["jax"]
        with memory_errors(), x64(jax) if array.dtype.itemsize == 8 else contextlib.nullcontext():
            copy = jax.numpy.array(array, dtype=jax.numpy.bfloat16 if short else None)
            return jax.device_put(copy, next(iter(like.devices())))
    return array.copy()


def x64(jax: Any) -> Any:
    """A context in which JAX may compute in float64."""
    # jax.enable_x64 took the place of jax.experimental.enable_x64 in jax 0.9.
    return jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64()


def stack(arrays: list[Any]) -> Any:
    """Stack equally shaped arrays of one library along a new first axis."""
    widest = np.result_type(*(to_numpy(array) for array in arrays))
    stacked = np.stack([to_numpy(array).astype(widest, copy=False) for array in arrays])
    return to_caller(stacked, arrays[0], own={float_name(array) for array in arrays} == {"bfloat16"})


def on_cuda(array: Any) -> bool:
    """Whether an array is a torch tensor on a CUDA device."""
    return library(array) == "torch" and array.is_cuda
