"""Arrays of callers as tensors on the device; many of them as one tensor, without a copy where memory allows it."""

# pyright: basic

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from drainsinkhorn.numerics.arrays import library, to_numpy

FLOATS = (torch.float32, torch.float64)
"""Dtypes that kernels read."""


def on_device(value: Any, device: Any) -> Any:
    """Return an array as a torch tensor on the device, copied only if it has to be."""
    kind = library(value)
    if kind == "jax" and device.type == "cuda":
        return torch.from_dlpack(value).to(device)
    if kind != "torch":
        value = np.ascontiguousarray(_native(to_numpy(value)))
        # To NumPy an array is contiguous whatever the stride of an axis of length 1; torch rejects negative strides.
        # Torch also warns of read-only arrays, although nothing here writes to them.
        is_accepted = value.flags.writeable and min(value.strides, default=0) >= 0
        value = torch.from_numpy(value if is_accepted else value.copy())
    return value.detach().to(device)


def concatenate(values: Sequence[Any], device: Any, *, compact: bool = False) -> tuple[Any, list[int]]:
    """Return a vector of float32 or float64 on the device that holds arrays, and the offset of each, row by row.

    An array that all share is stored once. Tensors on the device that share memory are not copied, and the vector is
    that memory, unless it has to be `compact`: then it holds nothing else.
    """
    first = values[0]
    if all(value is first for value in values):
        return _as_float(on_device(first, device).contiguous()).reshape(-1), [0] * len(values)
    if not compact and all(library(value) == "torch" for value in values):
        shared = _in_one_storage(values, device)
        if shared is not None:
            return shared
    if all(library(value) == "numpy" for value in values):
        numbers = np.concatenate([_native(to_numpy(value)).reshape(-1) for value in values])
        flat = _as_float(torch.from_numpy(numbers).to(device))
        sizes = [value.size if type(value) is np.ndarray else np.size(value) for value in values]
    else:
        # Converted one by one: torch would promote integers and float32 to float32, which does not hold all integers.
        parts = [_as_float(on_device(value, device)).reshape(-1) for value in values]
        flat, sizes = torch.cat(parts), [part.numel() for part in parts]
    return flat, np.cumsum([0, *sizes[:-1]]).tolist()


def concatenate_rows(
    points: Any, rows: Sequence[int], device: Any, *, compact: bool = False
) -> tuple[Any, Sequence[int] | Any]:
    """Return a vector on the device that holds some clouds of a stack (W, n, d), and the offset of each.

    A cloud (n, d) belongs to all rows. A tensor on the device is not copied, unless the vector has to be `compact`.
    """
    if points.ndim == 2:
        return concatenate([points] * len(rows), device)
    is_whole, size = rows == range(len(points)), points.shape[1] * points.shape[2]
    if library(points) == "torch" and (is_whole or not compact):
        shared = _in_one_storage([points], device)
        if shared is not None and (not compact or shared[0].numel() == points.numel()):
            return shared[0], shared[1][0] + np.asarray(rows, dtype=np.int64) * size
    if not is_whole:
        points = points[rows.start : rows.stop] if isinstance(rows, range) and rows.step == 1 else points[list(rows)]
    return _as_float(on_device(points, device).contiguous()).reshape(-1), np.arange(len(rows)) * size


def _in_one_storage(tensors: Sequence[Any], device: Any) -> tuple[Any, list[int]] | None:
    """Return the memory that contiguous tensors share as a vector, and their offsets in it; None if they do not."""
    first = tensors[0].detach()
    if first.dtype not in FLOATS or first.device != device:
        return None
    storage, dtype, bytes_each = first.untyped_storage(), first.dtype, first.element_size()
    begin = storage.data_ptr()
    end = begin + storage.nbytes()
    pointers = [tensor.data_ptr() for tensor in tensors]
    # Memory of different storages does not overlap, so a tensor that begins in this one lies in it.
    if begin % 16 or not all(begin <= pointer < end for pointer in pointers):
        return None
    if not all(tensor.dtype is dtype and tensor.is_contiguous() for tensor in tensors):
        return None
    whole = torch.empty(0, dtype=dtype, device=device).set_(storage)
    return whole, [(pointer - begin) // bytes_each for pointer in pointers]


def _as_float(values: Any) -> Any:
    return values if values.dtype in FLOATS else values.double()


def _native(array: Any) -> Any:
    """Return an array in a dtype that torch has: neither a long double nor in another order of bytes."""
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        return array.astype(np.float64)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
