"""Memory of lanes, reused: on virtual machines a fresh page costs more than several sweeps over it."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

POOL_BYTES = 2**28
"""Memory of retired lanes that is kept for the next ones."""


class Block:
    """A piece of memory, aligned to cache lines. It goes to a pool when the last lane lets go of it."""

    idle: ClassVar[dict[int, list[NDArray[np.uint8]]]] = {}
    idle_bytes: ClassVar[int] = 0
    lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, size: int) -> None:
        size += 64
        # Sizes in steps of an eighth, so that unequal lanes can follow one another.
        step = max(4096, 1 << (size.bit_length() - 4))
        self.size = -(-size // step) * step
        with Block.lock:
            waiting = Block.idle.get(self.size)
            self.memory = waiting.pop() if waiting else None
            Block.idle_bytes -= self.size if self.memory is not None else 0
        if self.memory is None:
            self.memory = np.empty(self.size, dtype=np.uint8)
        self.start = -self.memory.ctypes.data % 64
        self.address = self.memory.ctypes.data + self.start

    @staticmethod
    def release() -> None:
        """Free every piece that no lane holds."""
        with Block.lock:
            for waiting in list(Block.idle.values()):
                while waiting:
                    Block.idle_bytes -= waiting.pop().nbytes

    def view(self, offset: int, lanes: int, stride: int, size: int, dtype: Any) -> NDArray[Any]:
        """A vector of `size` per lane, `stride` bytes apart, as a (lanes, size) array."""
        assert self.memory is not None
        raw = self.memory[self.start + offset : self.start + offset + lanes * stride]
        return raw.view(dtype).reshape(lanes, -1)[:, :size]

    def __del__(self) -> None:
        memory = getattr(self, "memory", None)
        if memory is not None and Block.idle_bytes + self.size <= POOL_BYTES:
            # No lock: a collection may run this on a thread that holds it. Lists and dicts are safe by themselves.
            Block.idle.setdefault(self.size, []).append(memory)
            Block.idle_bytes += self.size
