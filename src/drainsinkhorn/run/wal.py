"""The write-ahead log (WAL) that SQLite keeps beside a journal."""

from __future__ import annotations

import struct
from pathlib import Path

WAL_HEADER, FRAME_HEADER = 32, 24
"""Bytes of the header of a WAL, and of that of each of its frames."""


def torn_bytes(wal: Path) -> int:
    """Return the number of bytes at the end of a WAL that belong to no complete commit, as a killed run leaves them.

    SQLite ignores such bytes without a message. A frame belongs to the log if it has the salts of the header and
    its checksum goes on from that of the frame before (https://www.sqlite.org/fileformat2.html#walformat).
    """
    raw = wal.read_bytes() if wal.exists() else b""
    if len(raw) < WAL_HEADER:
        return len(raw)
    magic, _, size, _ = struct.unpack(">4I", raw[:16])
    order = ">" if magic & 1 else "<"
    salts, running = raw[16:24], struct.unpack(">2I", raw[24:32])
    if _wal_sum(raw[:24], (0, 0), order) != running:
        return len(raw)
    place = committed = WAL_HEADER
    while place < len(raw):
        header, page = raw[place : place + FRAME_HEADER], raw[place + FRAME_HEADER : place + FRAME_HEADER + size]
        if header[8:16] != salts and len(header) >= 16:
            # This frame is left over from an earlier log in the same file.
            return place - committed
        if len(page) < size:
            return len(raw) - committed
        running = _wal_sum(header[:8] + page, running, order)
        if running != struct.unpack(">2I", header[16:24]):
            return len(raw) - committed
        place += FRAME_HEADER + size
        if header[4:8] != b"\0\0\0\0":
            committed = place
    return place - committed


def _wal_sum(raw: bytes, start: tuple[int, ...], order: str) -> tuple[int, int]:
    """Return the checksum of a WAL after some bytes, from the checksum before them."""
    s0, s1 = start
    words = struct.unpack(f"{order}{len(raw) // 4}I", raw)
    for first, second in zip(words[::2], words[1::2], strict=True):
        s0 = (s0 + first + s1) & 0xFFFFFFFF
        s1 = (s1 + second + s0) & 0xFFFFFFFF
    return s0, s1
