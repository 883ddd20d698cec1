"""Point clouds of PCD files, ASCII or binary, without compression."""

from __future__ import annotations

from collections.abc import Callable
from typing import IO, Any

import numpy as np

Array = np.ndarray[Any, Any]
LINE, LINES = 4096, 64
"""Longest line of a header in bytes, and most lines."""
KINDS = {"F": "f", "I": "i", "U": "u"}


def read_pcd(file: IO[bytes], take: Callable[[int], None]) -> Array:
    """Return x, y and z of all points that have finite coordinates, (n, 3); raise ValueError for a damaged file.

    Args:
        file: The file, at its beginning.
        take: Called with the bytes that the points will take, before they are read.
    """
    header = _read_header(file)
    record = _record_of(header)
    count = _count(header, "POINTS") if "POINTS" in header else _count(header, "WIDTH") * _count(header, "HEIGHT")
    begin = file.tell()
    stored = file.seek(0, 2) - begin
    file.seek(begin)
    form = header.get("DATA", [""])[0].lower()
    if form == "binary":
        if count * record.itemsize > stored:
            raise ValueError(f"its header declares {count:,} points, but it has {stored:,} bytes of them")
        take(2 * count * record.itemsize)
        records = np.frombuffer(file.read(count * record.itemsize), dtype=record)
        points = np.stack([records[name] for name in "xyz"], axis=1)
    elif form == "ascii":
        # A number takes at least two characters with its separator.
        if 2 * count > stored + 1:
            raise ValueError(f"its header declares {count:,} points, but it has {stored:,} bytes of them")
        take(24 * count + stored)
        names = list(record.names or ())
        columns = [_place(record, names, name) for name in "xyz"]
        points = (
            np.loadtxt(file, usecols=columns, ndmin=2, max_rows=count, comments=None) if count else np.empty((0, 3))
        )
        if len(points) != count:
            raise ValueError(f"its header declares {count:,} points, but it has {len(points):,}")
    else:
        advice = "; convert it with pcl_convert_pcd_ascii_binary IN OUT 1" if form == "binary_compressed" else ""
        raise ValueError(f"its data are {form[:40]!r}, not ascii or binary{advice}")
    # Invalid returns of an organised cloud are NaN.
    return np.ascontiguousarray(points[np.isfinite(points).all(axis=1)])


def _read_header(file: IO[bytes]) -> dict[str, list[str]]:
    header: dict[str, list[str]] = {}
    for _ in range(LINES):
        line = file.readline(LINE)
        if not line.endswith(b"\n"):
            break
        words = line.decode("ascii").partition("#")[0].split()
        if words:
            header[words[0].upper()] = words[1:]
            if words[0].upper() == "DATA":
                return header
    raise ValueError("it has no header that ends with a line DATA")


def _record_of(header: dict[str, list[str]]) -> np.dtype[Any]:
    """Return the dtype of one point."""
    names, sizes, kinds = (header.get(key, []) for key in ("FIELDS", "SIZE", "TYPE"))
    counts = header.get("COUNT", ["1"] * len(names))
    if not names or not len(names) == len(sizes) == len(kinds) == len(counts):
        raise ValueError("FIELDS, SIZE, TYPE and COUNT of its header differ in length")
    if not {"x", "y", "z"} <= set(names):
        raise ValueError(f"its fields are {names}; x, y and z are needed")
    fields: list[tuple[str, str, tuple[int, ...]]] = []
    for place, (name, size, kind, count) in enumerate(zip(names, sizes, kinds, counts, strict=True)):
        form = f"<{KINDS.get(kind, '?')}{size}"
        if kind not in KINDS or form[1:] not in (
            "f4",
            "f8",
            *(f"{sign}{width}" for sign in "iu" for width in (1, 2, 4, 8)),
        ):
            raise ValueError(f"its field {name!r} has type {kind} of size {size}, which PCD does not have")
        if not count.isdigit() or not 1 <= int(count) <= 2**16 or (name in "xyz" and int(count) != 1):
            raise ValueError(f"its field {name!r} has the count {count}")
        # Names may repeat (padding is "_").
        unique = name if name in "xyz" else f"{name}:{place}"
        fields.append((unique, form, () if count == "1" else (int(count),)))
    return np.dtype(fields)


def _place(record: np.dtype[Any], names: list[str], name: str) -> int:
    """The first column of a field in an ASCII file, where a field with count k has k columns."""
    fields: Any = record.fields
    widths = [int(np.prod(fields[each][0].shape, dtype=int)) for each in names]
    return sum(widths[: names.index(name)])


def _count(header: dict[str, list[str]], key: str) -> int:
    words = header.get(key, [])
    if len(words) != 1 or not words[0].isdigit() or len(words[0]) > 18:
        raise ValueError(f"its header has no valid {key}")
    return int(words[0])
