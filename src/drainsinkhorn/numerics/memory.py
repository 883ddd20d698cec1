"""Recognise each library's error for a lack of memory, and free memory that libraries cache."""

from __future__ import annotations

import sys
from contextlib import ContextDecorator

MARKS = ("out of memory", "resource_exhausted", "allocate memory")
"""Parts of the messages of torch, CUDA, XLA and operating systems, in lower case."""


def is_out_of_memory(error: BaseException | None) -> bool:
    """True if an error of any library means that memory has run out, on the host or on a device."""
    if not isinstance(error, RuntimeError):
        return isinstance(error, MemoryError)
    text = str(error).lower()
    return type(error).__name__ == "OutOfMemoryError" or any(mark in text for mark in MARKS)


class memory_errors(ContextDecorator):
    """A context, or a decorator, in which a library's own error for exhausted memory becomes a MemoryError."""

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Raise MemoryError in place of the library's error."""
        if isinstance(error, RuntimeError) and is_out_of_memory(error):
            raise MemoryError(str(error).split(". ")[0].split("\n")[0]) from None


def empty_torch_cache() -> None:
    """Free the CUDA memory that torch caches for later tensors."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
