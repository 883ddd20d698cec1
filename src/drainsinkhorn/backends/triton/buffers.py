"""Device memory of a pack: growing buffers, one for each kind of number, from which groups of lanes take pieces."""

# pyright: basic

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

ALIGN = 64
"""Pieces begin at multiples of this many elements, so that loads are vectorised."""
DTYPES = {
    "points16": torch.float16,
    "points32": torch.float32,
    "points64": torch.float64,
    "vectors32": torch.float32,
    "vectors64": torch.float64,
    "counters": torch.int32,
}
"""Dtypes of buffers by name. `kernels.columns` says which columns of the lane table are offsets into which buffer."""

Mark = tuple[list[tuple[int, int]], int]


def aligned(count: int) -> int:
    """The size of a piece of `count` elements, rounded up to a multiple of ALIGN."""
    return -(-count // ALIGN) * ALIGN


class Arena:
    """A buffer of one dtype with a list of free pieces. It grows by a copy; pieces keep their offsets.

    Attributes:
        buffer: The tensor, (elements,).

    Args:
        dtype: Dtype of the buffer.
        device: Where it is.
        zeroed: Pieces are zeros when they are taken; otherwise they must be written before they are read.
    """

    def __init__(self, dtype: Any, device: Any, *, zeroed: bool = True) -> None:
        self._zeroed = zeroed
        self.buffer = torch.empty(0, dtype=dtype, device=device)
        self._free: list[tuple[int, int]] = []
        self._end = self._used = 0

    def take(self, count: int) -> int:
        """Return the offset of a new piece of `count` elements."""
        count = aligned(count)
        start = self._find(count)
        # Elements that were never used are zeros already.
        if self._zeroed and start < self._used:
            self.buffer[start : min(start + count, self._used)].zero_()
        self._used = max(self._used, start + count)
        return start

    def _find(self, count: int) -> int:
        for k, (start, length) in enumerate(self._free):
            if length >= count:
                self._free[k : k + 1] = [(start + count, length - count)] if length > count else []
                return start
        start, self._end = self._end, self._end + count
        if self._end > self.buffer.numel():
            self._grow(self._end)
        return start

    def give(self, start: int, count: int) -> None:
        """Give a piece back."""
        count = aligned(count)
        if count == 0:
            return
        pieces = sorted([*self._free, (start, count)])
        self._free = []
        for begin, length in pieces:
            if self._free and sum(self._free[-1]) == begin:
                self._free[-1] = (self._free[-1][0], self._free[-1][1] + length)
            else:
                self._free.append((begin, length))
        if self._free and sum(self._free[-1]) == self._end:
            self._end = self._free.pop()[0]

    def mark(self) -> Mark:
        """Return what is free now, for `restore`."""
        return list(self._free), self._end

    def restore(self, mark: Mark) -> None:
        """Give back all pieces taken since the mark; none may have been given back meanwhile."""
        self._free, self._end = list(mark[0]), mark[1]

    def _grow(self, size: int) -> None:
        allocate = torch.zeros if self._zeroed else torch.empty
        larger = allocate(size, dtype=self.buffer.dtype, device=self.buffer.device)
        if self._used:
            larger[: self._used] = self.buffer[: self._used]
        self.buffer = larger


class Buffers:
    """The buffers of a pack by the names of DTYPES."""

    def __init__(self, device: Any) -> None:
        self._arenas = {name: Arena(dtype, device, zeroed=name != "points64") for name, dtype in DTYPES.items()}

    def __getitem__(self, name: str) -> Any:
        """Return a buffer as it is now; taking pieces may replace it."""
        return self._arenas[name].buffer

    def take(self, name: str, count: int) -> int:
        """Return the offset of a new piece of a buffer."""
        return self._arenas[name].take(count)

    def give(self, pieces: Mapping[str, tuple[int, int]]) -> None:
        """Give back one piece of each of these buffers: its offset and size."""
        for name, (start, count) in pieces.items():
            self._arenas[name].give(start, count)

    def mark(self) -> dict[str, Mark]:
        """Return what is free now in all buffers, for `restore`."""
        return {name: arena.mark() for name, arena in self._arenas.items()}

    def restore(self, marks: Mapping[str, Mark]) -> None:
        """Give back all pieces taken since the marks; none may have been given back meanwhile."""
        for name, mark in marks.items():
            self._arenas[name].restore(mark)
