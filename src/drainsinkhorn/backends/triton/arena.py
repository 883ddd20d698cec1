"""Memory of a pack on its device: a few growing buffers from which lanes take pieces."""

from __future__ import annotations

from typing import Any

ALIGN = 64
"""Pieces begin at multiples of so many elements, so that loads are wide."""


def aligned(count: int) -> int:
    """The size of a piece, rounded up."""
    return -(-count // ALIGN) * ALIGN


class Arena:
    """A buffer of one dtype with a list of free pieces. It grows by a copy; pieces stay.

    Pieces are zeros when taken, unless those who take them write them whole (`blank` False).
    """

    def __init__(self, torch: Any, dtype: Any, device: Any, *, blank: bool = True) -> None:
        self._torch, self._blank = torch, blank
        self.buffer = torch.empty(0, dtype=dtype, device=device)
        self._free: list[tuple[int, int]] = []
        self._end = self._used = 0

    def take(self, count: int) -> int:
        """The place of a piece of `count` elements."""
        count = aligned(count)
        start = self._place(count)
        # Beyond what was ever used a blank arena is zeros.
        if self._blank and start < self._used:
            self.buffer[start : min(start + count, self._used)].zero_()
        self._used = max(self._used, start + count)
        return start

    def _place(self, count: int) -> int:
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

    def mark(self) -> tuple[list[tuple[int, int]], int]:
        """What is free now, for `restore`."""
        return list(self._free), self._end

    def restore(self, mark: tuple[list[tuple[int, int]], int]) -> None:
        """Give back whatever was taken since the mark; nothing may have been given back meanwhile."""
        self._free, self._end = list(mark[0]), mark[1]

    def _grow(self, size: int) -> None:
        made = self._torch.zeros if self._blank else self._torch.empty
        larger = made(size, dtype=self.buffer.dtype, device=self.buffer.device)
        if self._used:
            larger[: self._used] = self.buffer[: self._used]
        self.buffer = larger
