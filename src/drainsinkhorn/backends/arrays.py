"""The border between the caller's array library and NumPy. Nothing is imported that the caller has not imported."""

from __future__ import annotations

import contextlib
import sys
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


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
            raise TypeError("it is a JAX tracer; call solve outside jit, vmap and grad")
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


def is_single(value: Any) -> bool:
    """True if the caller's dtype is float32."""
    return float_dtype(value) == np.float32


def to_caller(array: Array, like: Any) -> Any:
    """A fresh copy of a NumPy array in the library and on the device of `like`, dtype kept."""
    kind = library(like)
    if kind == "torch":
        return sys.modules["torch"].from_numpy(array.copy()).to(like.device)
    if kind == "jax":
        jax = sys.modules["jax"]
        with x64(jax) if array.dtype.itemsize == 8 else contextlib.nullcontext():
            return jax.device_put(jax.numpy.array(array), next(iter(like.devices())))
    return array.copy()


def x64(jax: Any) -> Any:
    """A context in which JAX may compute in float64."""
    # jax.enable_x64 took the place of jax.experimental.enable_x64 in jax 0.9.
    return jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64()


def stack(arrays: list[Any]) -> Any:
    """Stack equally shaped arrays of one library along a new first axis."""
    widest = np.result_type(*(to_numpy(array) for array in arrays))
    return to_caller(np.stack([to_numpy(array).astype(widest, copy=False) for array in arrays]), arrays[0])
