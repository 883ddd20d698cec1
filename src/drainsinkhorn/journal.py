"""A journal of finished problems, so that a killed run goes on where it was.

One SQLite file in WAL mode. A problem is recorded before its result is handed out; a run that is given the same
problems again takes what is recorded from the file and solves the rest. Rows hold numbers, texts and raw bytes, each
with a checksum; nothing is pickled.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from drainsinkhorn.backends.arrays import float_name, is_array, to_caller, to_numpy
from drainsinkhorn.backends.costs import as_cost
from drainsinkhorn.core.errors import FileError, OptionsError
from drainsinkhorn.core.events import Resumed
from drainsinkhorn.core.options import MODES, Mode, Options
from drainsinkhorn.core.problem import Cost, Potentials, Problem
from drainsinkhorn.core.result import Residual, Status
from drainsinkhorn.solution import Record

FORMAT = "drainsinkhorn journal 1"
COLUMNS = (
    "ticket INTEGER PRIMARY KEY, problem BLOB NOT NULL, status TEXT NOT NULL, depth INTEGER NOT NULL, row REAL, "
    "col REAL, band REAL, f_dtype TEXT, f BLOB, g_dtype TEXT, g BLOB, widened INTEGER NOT NULL, "
    "rescued INTEGER NOT NULL, arithmetic TEXT NOT NULL, detail TEXT NOT NULL, checksum BLOB NOT NULL"
)
TABLES = {
    "about": "CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "ended": f"CREATE TABLE ended ({COLUMNS})",
}
"""How a journal's tables are made, as SQLite remembers it."""
RESULT_OPTIONS = ("tol", "max_depth", "audit", "certify", "accelerate", "init", "rescue")
"""Options that can change a result; all others may differ when a run goes on."""

Row = tuple[Any, ...]


class Entry(NamedTuple):
    """What the journal knows of a problem."""

    record: Record
    rescued: bool


class Journal:
    """Finished problems in a file, by ticket. One run at a time; it may be used from any one thread at a time.

    Args:
        path: The file; made if it is not there.
        options: Those of the run. A journal of other results is refused.
        backend: Name of the backend, likewise.

    Attributes:
        resumed: What was found.
    """

    def __init__(self, path: str | os.PathLike[str], options: Options, backend: str) -> None:
        if not isinstance(cast(object, path), (str, os.PathLike)):
            raise OptionsError(f"journal must be the path of a file, got {path!r}")
        self.path = Path(path)
        if not self.path.parent.is_dir():
            raise FileError(f"{self.path.parent} is no folder, so the journal {self.path.name} cannot be kept there")
        torn = torn_bytes(self.path.with_name(self.path.name + "-wal"))
        self._database, salvaged = self._open()
        self._agree({"format": FORMAT, **_settings(options), "backend": backend})
        (count,) = self._database.execute("SELECT count(*) FROM ended").fetchone()
        self.resumed = Resumed(str(self.path), count, torn, salvaged)

    def recall(self, ticket: int, problem: Any) -> Entry | None:
        """What is recorded of this problem; None if it is not there, or not whole."""
        row = self._database.execute("SELECT * FROM ended WHERE ticket = ?", (ticket,)).fetchone()
        if row is None or row[-1] != _checksum(row[:-1]):
            return None
        if row[1] != fingerprint(problem):
            raise FileError(
                f"problem {ticket} is not the one that the journal {self.path} has under this number; give the same "
                "problems in the same order to go on, or name another file to start anew"
            )
        return _entry(row, problem)

    def enter(self, problem: Problem[Any], record: Record, *, rescued: bool) -> None:
        """Record a problem that has ended. When this returns it outlives the program."""
        f = g = None
        if record.potentials is not None:
            f, g = (to_numpy(p) for p in record.potentials)
        row: Row = (
            record.ticket,
            fingerprint(problem),
            record.status.name,
            record.depth,
            *(_real(value) for value in record.residual),
            *(part for p in (f, g) for part in ((None, None) if p is None else (p.dtype.str, p.tobytes()))),
            int(record.widened),
            int(rescued),
            record.arithmetic,
            record.detail,
        )
        try:
            # A row that was not whole is replaced.
            self._database.execute(f"REPLACE INTO ended VALUES ({_marks(row)})", (*row, _checksum(row)))
        except sqlite3.Error as error:
            raise FileError(f"the journal {self.path} cannot be written: {error}") from None

    def close(self) -> None:
        """Give the file back."""
        self._database.close()

    def _open(self) -> tuple[sqlite3.Connection, int | None]:
        """The database, and how many rows were saved from a damaged one."""
        try:
            return _connect(self.path), None
        except sqlite3.OperationalError as error:
            raise FileError(_cannot(self.path, error)) from None
        except sqlite3.DatabaseError as error:
            if not _is_sqlite(self.path):
                raise FileError(f"{self.path} is no journal ({error}); name another file") from None
        return _salvage(self.path)

    def _agree(self, wanted: dict[str, str]) -> None:
        """Write what this run is, or check that the journal is of such a run."""
        found = dict(self._database.execute("SELECT key, value FROM about"))
        if not found:
            # All at once: a run that is killed in between must not leave half of it.
            self._database.execute("BEGIN")
            self._database.executemany("INSERT INTO about VALUES (?, ?)", wanted.items())
            self._database.execute("COMMIT")
            return
        for key, value in wanted.items():
            if found.get(key) != value:
                self.close()
                raise FileError(
                    f"the journal {self.path} was kept with {key} = {found.get(key)}, this run has {value}; use the "
                    "same to go on, or name another file to start anew"
                )


def _connect(path: Path) -> sqlite3.Connection:
    """Open or make a journal, for this program alone."""
    database = sqlite3.connect(path, timeout=0.2, isolation_level=None, check_same_thread=False)
    try:
        # Exclusive: a second run on this journal is turned away. The lock dies with the program.
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        _refuse_others(database, path)
        database.execute("PRAGMA journal_mode = WAL")
        # A commit survives the program; a power cut may cost the last few, which are solved again.
        database.execute("PRAGMA synchronous = NORMAL")
        for made in TABLES.values():
            database.execute(made.replace("TABLE", "TABLE IF NOT EXISTS", 1))
        (state,) = database.execute("PRAGMA quick_check(1)").fetchone()
        if state != "ok":
            raise sqlite3.DatabaseError(state)
        database.execute("SELECT count(*) FROM ended").fetchone()
    except (sqlite3.Error, FileError):
        database.close()
        raise
    return database


def _refuse_others(database: sqlite3.Connection, path: Path) -> None:
    """Raise FileError for a database of something else, before anything is written to it."""
    for name, made in database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'"):
        if made != TABLES.get(name):
            raise FileError(f"{path} is a database with a table {name!r} that no journal has; name another file")


def _cannot(path: Path, error: Exception) -> str:
    if "locked" in str(error):
        return f"the journal {path} is in use by another run; wait for it, or name another file"
    return f"the journal {path} cannot be opened: {error}"


def _is_sqlite(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(16) == b"SQLite format 3\0"


def _salvage(path: Path) -> tuple[sqlite3.Connection, int]:
    """A new journal with every whole row of a damaged one, which is kept beside it."""
    damaged = path.with_name(path.name + ".damaged")
    for suffix in ("", "-wal", "-shm"):
        old = path.with_name(path.name + suffix)
        if old.exists():
            os.replace(old, damaged.with_name(damaged.name + suffix))
    database, saved = _connect(path), 0
    source = sqlite3.connect(damaged)
    try:
        for table, rows in (("about", _rows(source, "about")), ("ended", _rows(source, "ended"))):
            for row in rows:
                if table == "about" or row[-1] == _checksum(row[:-1]):
                    database.execute(f"REPLACE INTO {table} VALUES ({_marks(row[1:])})", row)
                    saved += table == "ended"
    finally:
        source.close()
    return database, saved


def _rows(source: sqlite3.Connection, table: str) -> Iterator[Row]:
    """Rows of a damaged table from both ends, as far as they can be read."""
    for order in ("", " DESC"):
        try:
            yield from source.execute(f"SELECT * FROM {table} ORDER BY rowid{order}")
        except sqlite3.DatabaseError:
            continue
        return


def _marks(row: Row) -> str:
    """Placeholders for a row and its checksum."""
    return ", ".join("?" * (len(row) + 1))


def _settings(options: Options) -> dict[str, str]:
    mode = options.mode if isinstance(options.mode, Mode) else MODES.get(options.mode)
    together = mode is not None and mode.together
    return {**{name: repr(getattr(options, name)) for name in RESULT_OPTIONS}, "together": repr(together)}


def _real(value: float) -> float | None:
    # SQLite has no NaN.
    return None if value != value else float(value)


def _entry(row: Row, problem: Problem[Any]) -> Entry:
    ticket, _, status, depth, *residual, f_dtype, f, g_dtype, g, widened, rescued, arithmetic, detail, _ = row
    potentials = None
    if f is not None:
        like = problem.x if problem.x is not None else problem.cost
        potentials = Potentials(
            *(
                to_caller(np.frombuffer(raw, dtype=dtype), like, own=not widened)
                for raw, dtype in ((f, f_dtype), (g, g_dtype))
            )
        )
    numbers = Residual(*(float("nan") if value is None else value for value in residual))
    record = Record(ticket, potentials, numbers, Status[status], depth, bool(widened), arithmetic, detail)
    return Entry(record, bool(rescued))


def _checksum(row: Row) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for value in row:
        raw = value if isinstance(value, bytes) else repr(value).encode()
        digest.update(struct.pack("<q", len(raw)) + raw)
    return digest.digest()


def fingerprint(problem: Any) -> bytes:
    """A digest of all that a problem is made of; equal for equal problems, whatever library holds their arrays."""
    digest = hashlib.blake2b(digest_size=16)
    init = problem.init
    f, g = init if isinstance(init, (tuple, list)) and len(init) == 2 else (init, None)
    cost: Any = problem.cost if isinstance(problem.cost, str) else as_cost(problem.cost)
    if isinstance(cost, Cost):
        # The key of an OTT cost holds its parameters, and not where it lies in memory.
        cost = f"{getattr(cost.kind, 'key', cost.kind)} {cost.scale!r}"
    for value in (problem.x, problem.y, problem.a, problem.b, problem.eps, problem.tol, f, g, cost, problem.chain):
        if is_array(value):
            array = np.ascontiguousarray(to_numpy(value))
            # NumPy holds bfloat16 in float32, but results are rounded to the caller's own dtype.
            dtype = "bfloat16" if float_name(value) == "bfloat16" else array.dtype.str
            digest.update(f"{dtype} {array.shape};".encode())
            digest.update(array.data if array.size else b"")
        else:
            digest.update(f"{value!r};".encode())
    return digest.digest()


WAL_HEADER, FRAME_HEADER = 32, 24


def torn_bytes(wal: Path) -> int:
    """Bytes at the end of a WAL that belong to no whole commit: what a run that was killed had not finished writing.

    SQLite leaves them out by itself and says nothing. A frame belongs to the log if it has the salts of the header and
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
            # Left over from before the log began anew.
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
    s0, s1 = start
    words = struct.unpack(f"{order}{len(raw) // 4}I", raw)
    for first, second in zip(words[::2], words[1::2], strict=True):
        s0 = (s0 + first + s1) & 0xFFFFFFFF
        s1 = (s1 + second + s0) & 0xFFFFFFFF
    return s0, s1
