"""Memory and threads of this process that lanes share."""

from __future__ import annotations

import itertools
import math
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

POOL_BYTES = 2**28
"""Memory of retired lanes that is kept for the next ones."""


class MemoryBlock:
    """A piece of memory, aligned to cache lines. When no lane refers to it any more, its memory goes to a pool.

    Memory is reused because on virtual machines a fresh page costs more than several sweeps over it.

    The pool changes only under its lock. A finaliser may run in any thread at any time, also in a thread that holds the
    lock, so it never waits: memory that is given up while the lock is held is freed instead of kept.
    """

    idle: ClassVar[dict[int, list[NDArray[np.uint8]]]] = {}
    idle_bytes: ClassVar[int] = 0
    lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, size: int) -> None:
        size += 64
        # Sizes in steps of an eighth, so that unequal lanes can follow one another.
        step = max(4096, 1 << (size.bit_length() - 4))
        self.size = -(-size // step) * step
        with MemoryBlock.lock:
            waiting = MemoryBlock.idle.get(self.size)
            self.memory = waiting.pop() if waiting else None
            MemoryBlock.idle_bytes -= self.size if self.memory is not None else 0
        if self.memory is None:
            self.memory = np.empty(self.size, dtype=np.uint8)
        self.start = -self.memory.ctypes.data % 64
        self.address = self.memory.ctypes.data + self.start

    @staticmethod
    def release() -> None:
        """Free every piece that no lane holds."""
        with MemoryBlock.lock:
            for waiting in list(MemoryBlock.idle.values()):
                while waiting:
                    MemoryBlock.idle_bytes -= waiting.pop().nbytes

    def view(self, offset: int, lanes: int, stride: int, size: int, dtype: Any) -> NDArray[Any]:
        """A vector of `size` per lane, `stride` bytes apart, as a (lanes, size) array."""
        assert self.memory is not None
        raw = self.memory[self.start + offset : self.start + offset + lanes * stride]
        return raw.view(dtype).reshape(lanes, -1)[:, :size]

    def __del__(self) -> None:
        # The constructor may have run out of memory.
        memory = getattr(self, "memory", None)
        if memory is None or not MemoryBlock.lock.acquire(blocking=False):
            return
        try:
            if MemoryBlock.idle_bytes + self.size <= POOL_BYTES:
                MemoryBlock.idle.setdefault(self.size, []).append(memory)
                MemoryBlock.idle_bytes += self.size
        finally:
            MemoryBlock.lock.release()


class _Pooled:
    """Owner of an array in memory of the pool; NumPy reads `__array_interface__` and refers to the owner."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._block = MemoryBlock(8 * math.prod(shape))
        address = self._block.address
        self.__array_interface__ = {"shape": shape, "typestr": "<f8", "data": (address, False), "version": 3}


def empty_in_pool(*shape: int) -> NDArray[np.float64]:
    """An array with any content in memory of the pool, which has the memory back once the array is forgotten."""
    return np.asarray(_Pooled(shape))


def default_threads() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@lru_cache(maxsize=8)
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Threads of this process: a fork has none of its parent's."""
    return ThreadPoolExecutor(threads, thread_name_prefix="drainsinkhorn")


def each(threads: int, work: Callable[[int], None], count: int) -> None:
    """Do `work(0) .. work(count - 1)`: each thread takes the next number until none is left.

    Kernels release the GIL, so that pieces of work run side by side. After an exception, which may be
    KeyboardInterrupt, no thread takes another number.
    """
    helpers = min(threads, count) - 1
    numbers = itertools.count()
    ended = False

    def take() -> None:
        while not ended and (number := next(numbers)) < count:
            work(number)

    waiting = [_pool(threads, os.getpid()).submit(take) for _ in range(helpers)]
    try:
        take()
    finally:
        # Set after the last number was taken, or because of an exception.
        ended = True
        for future in waiting:
            future.result()
