"""Reads .npz archives of any origin: the size of every array is checked before anything is unpacked."""

from __future__ import annotations

import io
import lzma
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from drainsinkhorn.model.errors import FileError

Array = np.ndarray[Any, Any]
GIB = 2**30
MEMORY_SHARE = 0.5
"""Share of the available memory that the arrays of a file may take, if no limit is given."""
EXPANSION, EXPANDED = 100, GIB
"""A file that unpacks to more than `EXPANSION` times its size may take `EXPANDED` bytes, if no limit is given."""
UNKNOWN_MEMORY = 8 * GIB
"""Bytes that are taken as available where the system does not say."""
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def available_memory() -> int:
    """Return the bytes that this process can allocate: free memory, limited by its container and its ulimit."""
    bounds: list[int] = []
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        bounds += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    except (OSError, ValueError):
        pass
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            # A group without a limit says "max".
            bounds.append(int((Path("/sys/fs/cgroup") / name).read_text()))
        except (OSError, ValueError):
            continue
    try:
        import resource
    except ImportError:  # Not on Windows.
        return min(bounds, default=UNKNOWN_MEMORY)
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    bounds += [soft] * (soft != resource.RLIM_INFINITY)
    return min(bounds, default=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def read_limit(limit: int | None) -> int:
    """Bytes that the contents of a file may take: the limit that was given, or a share of the available memory."""
    return int(MEMORY_SHARE * available_memory()) if limit is None else limit


def read_arrays(path: Path, limit: int | None = None) -> dict[str, Array]:
    """All arrays of an .npz file, read without pickle.

    Args:
        path: The file.
        limit: Bytes that its arrays may take together. None: half of the available memory, and 1 GiB where the file
            unpacks to more than 100 times its size.
    """
    with _damage_reported(str(path)):
        if path.exists() and not path.is_file():
            raise FileError(f"{path} is no regular file; expected an .npz archive, as numpy.savez writes it")
        with path.open("rb") as file:
            packed = os.fstat(file.fileno()).st_size
            return _read(file, str(path), lambda size: _require_room(path, size, packed, limit))


def unpack_arrays(body: bytes, source: str, require_room: Callable[[int], None]) -> dict[str, Array]:
    """All arrays of an .npz archive in memory, read without pickle; raises FileError if it is damaged.

    Args:
        body: The archive.
        source: Its name in messages.
        require_room: Called with the bytes that the arrays take together, before any is unpacked; raises if they are
            too many.
    """
    with _damage_reported(source):
        return _read(io.BytesIO(body), source, require_room)


@contextmanager
def _damage_reported(source: str) -> Iterator[None]:
    """Turn everything that a damaged archive raises into a FileError."""
    try:
        yield
    except FileNotFoundError:
        raise FileError(f"{source} does not exist") from None
    except FileError:
        raise
    except MemoryError:
        raise FileError(f"{source} does not fit into memory") from None
    # For damaged archives zipfile also raises NotImplementedError, RuntimeError and errors of its decompressors.
    except (
        OSError,
        ValueError,
        EOFError,
        KeyError,
        RuntimeError,
        OverflowError,
        struct.error,
        zipfile.BadZipFile,
        zlib.error,
        lzma.LZMAError,
    ) as error:
        raise FileError(f"{source} cannot be read as an .npz of plain arrays: {str(error)[:300]}") from None


def _read(file: IO[bytes], source: str, require_room: Callable[[int], None]) -> dict[str, Array]:
    if file.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX:
        raise FileError(f"{source} holds a single array; expected an .npz archive, as numpy.savez writes it")
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        require_room(sum(_unpacked_size(source, archive, member) for member in members))
        return {member.filename.removesuffix(".npy"): _unpack(archive, member) for member in members}


def _unpacked_size(source: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> int:
    """Return the unpacked size of a member in bytes, from its header alone; raises FileError for an invalid header.

    Dimensions of length 0 count as 1: an array of shape (10**12, 0) has no bytes, but objects made for its rows do.
    """
    with archive.open(member) as stream:
        try:
            version = npy.read_magic(stream)
        except ValueError:
            raise FileError(f"{source} has a member {member.filename!r} that is no array") from None
        if version not in HEADERS:
            raise ValueError(f"member {member.filename!r} has version {version} of the npy format, not 1 or 2")
        try:
            shape, _, dtype = HEADERS[version](stream)
        except Exception as error:  # NumPy parses headers as Python, and lets errors of tokenize and ast through.
            raise ValueError(f"the header of member {member.filename!r} cannot be parsed: {error}") from error
        stored = member.file_size - stream.tell()
    if dtype.hasobject:
        raise ValueError(
            f"member {member.filename!r} holds objects. Object arrays need pickle, which is never read: store numbers."
        )
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > stored:
        raise ValueError(
            f"member {member.filename!r} declares {dtype} of shape {shape}, but has {stored:,} bytes; it is damaged"
        )
    return max(member.file_size, math.prod(max(1, length) for length in shape) * max(1, dtype.itemsize))


def _require_room(path: Path, size: int, packed: int, limit: int | None) -> None:
    advice = "give the size with --read-limit if the file is trusted"
    if limit is None and size > max(EXPANDED, EXPANSION * packed):
        raise FileError(
            f"{path} has {packed:,} bytes and unpacks to {size:,}, more than {EXPANSION} times as many and more than "
            f"{EXPANDED / GIB:g} GiB; {advice}"
        )
    if size > read_limit(limit):
        raise FileError(
            f"{path} unpacks to {size / GIB:.3g} GiB, more than the limit of {read_limit(limit) / GIB:.3g} GiB "
            f"({'half of the available memory' if limit is None else '--read-limit'}); {advice}, or split the file"
        )


def _unpack(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    with archive.open(member) as stream:
        return npy.read_array(stream, allow_pickle=False)
