"""Clouds of points from files of any origin: .npy, .csv, .parquet, KITTI's .bin, .pcd, and time points from .h5ad.

Sizes are checked before anything is read, nothing pickled is ever read, and every fault is a FileError in one line.
"""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from drainsinkhorn.cli.pcd import read_pcd
from drainsinkhorn.model.errors import BackendUnavailable, DrainError, FileError
from drainsinkhorn.run.archives import GIB, HEADERS, read_limit

Array = np.ndarray[Any, Any]
FIRST_LINE = 2**24
"""Longest first line of a .csv file, in characters."""


class Room:
    """Bytes that the files of a command may still take together.

    Args:
        limit: Bytes in all; None: half of the available memory.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit, self._named = read_limit(limit), limit is not None
        self._left = self._limit

    def take(self, path: Path, size: int) -> None:
        """Count the bytes that a file will take; raise FileError if they are more than are left."""
        self._left -= size
        if self._left < 0:
            origin = "--read-limit" if self._named else "half of the available memory"
            raise FileError(
                f"{path} would take {size / GIB:.3g} GiB, and with the files before it more than the limit of "
                f"{self._limit / GIB:.3g} GiB ({origin}); give a larger --read-limit, or fewer points"
            )


@contextmanager
def faults_of(path: Path, kind: str) -> Iterator[None]:
    """Context in which a file is read: whatever goes wrong becomes a FileError that names the file."""
    try:
        yield
    except DrainError:
        raise
    except FileNotFoundError:
        raise FileError(f"{path} does not exist") from None
    except MemoryError:
        raise FileError(f"{path} does not fit into memory") from None
    # Readers of damaged files raise almost anything.
    except Exception as error:  # noqa: BLE001
        raise FileError(f"{path} cannot be read as {kind}: {' '.join(str(error).split())[:300]}") from None


def read_cloud(path: Path, room: Room) -> Array:
    """Return the points of a file, (n, d); of an .npy file with three dimensions a stack of clouds, (W, n, d)."""
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise FileError(f"{path} has an unknown suffix {path.suffix!r}; clouds are read from {', '.join(READERS)}")
    if path.exists() and not path.is_file():
        raise FileError(f"{path} is no regular file")
    with faults_of(path, f"a {path.suffix.lower()} file"), path.open("rb") as file:
        cloud = reader(path, file, room)
    if cloud.size == 0:
        raise FileError(f"{path} has no points")
    return cloud


def _read_npy(path: Path, file: IO[bytes], room: Room) -> Array:
    version = npy.read_magic(file)
    if version not in HEADERS:
        raise ValueError(f"it has version {version} of the npy format, not 1 or 2")
    shape, _, dtype = HEADERS[version](file)
    if dtype.hasobject or dtype.kind not in "fiu":
        raise ValueError(f"it holds {dtype}, and points are numbers; objects need pickle, which is never read")
    if len(shape) not in (2, 3):
        raise ValueError(f"it has shape {shape}; a cloud is (n, d), a stack of clouds (W, n, d)")
    begin = file.tell()
    stored = file.seek(0, 2) - begin
    if min(shape) < 0 or math.prod(shape) * dtype.itemsize > stored:
        raise ValueError(f"it declares {dtype} of shape {shape}, but has {stored:,} bytes; it is damaged")
    room.take(path, math.prod(max(1, length) for length in shape) * dtype.itemsize)
    file.seek(0)
    return npy.read_array(file, allow_pickle=False)


def _read_csv(path: Path, file: IO[bytes], room: Room) -> Array:
    """Read numbers between commas, semicolons, tabs or blanks; a first line that is not all numbers is a header."""
    # A number takes at least two characters with its separator, and eight bytes as float64.
    room.take(path, 4 * file.seek(0, 2))
    file.seek(0)
    first = file.readline(FIRST_LINE).decode("utf-8-sig")
    if len(first) >= FIRST_LINE:
        raise ValueError(f"its first line is longer than {FIRST_LINE:,} characters")
    delimiter = next((sign for sign in ",;\t" if sign in first), None)
    try:
        [float(field.strip(' "\r\n')) for field in first.split(delimiter)]
        skipped = 0
    except ValueError:
        skipped = 1
    file.seek(0)
    with warnings.catch_warnings():
        # NumPy warns of a file without numbers, which is an error here.
        warnings.simplefilter("ignore", UserWarning)
        return np.loadtxt(file, delimiter=delimiter, skiprows=skipped, ndmin=2, quotechar='"', encoding="utf-8-sig")


def _read_parquet(path: Path, file: IO[bytes], room: Room) -> Array:
    """Read all columns of a table, which must be numbers; an index that pandas stored is left out."""
    try:
        pa: Any = importlib.import_module("pyarrow")
        pq: Any = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise BackendUnavailable(f"{path} needs pyarrow ({error}); pip install 'drainsinkhorn[parquet]'") from None
    table = pq.ParquetFile(file)
    kinds = {field.name: field.type for field in table.schema_arrow if not field.name.startswith("__index_level_")}
    for name, kind in kinds.items():
        if not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
            raise ValueError(f"its column {name!r} holds {kind}; all columns must be numbers")
    # Readers of columns may hold the packed, the unpacked and the joined numbers at a time.
    groups = (table.metadata.row_group(k).total_byte_size for k in range(table.metadata.num_row_groups))
    room.take(path, max(8 * table.metadata.num_rows * len(kinds), sum(groups)))
    columns = table.read(columns=list(kinds))
    return np.column_stack([np.asarray(columns[name].to_numpy(), dtype=np.float64) for name in kinds])


def _read_kitti(path: Path, file: IO[bytes], room: Room) -> Array:
    """Read float32 records of x, y, z and intensity; the intensity is left out."""
    size = file.seek(0, 2)
    if size % 16:
        raise ValueError(f"its {size:,} bytes are no records of four float32 (x, y, z, intensity)")
    room.take(path, 2 * size)
    file.seek(0)
    return np.ascontiguousarray(np.frombuffer(file.read(size), dtype="<f4").reshape(-1, 4)[:, :3])


READERS: dict[str, Callable[[Path, IO[bytes], Room], Array]] = {
    ".npy": _read_npy,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
    ".bin": _read_kitti,
    ".pcd": lambda path, file, room: read_pcd(file, lambda size: room.take(path, size)),
}
"""Readers by suffix: each gets the path, the open file, and the room that is left."""
