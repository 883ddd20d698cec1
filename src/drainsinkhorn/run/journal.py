"""A journal of finished problems, from which a killed run can be resumed.

One SQLite file in WAL mode. A problem is recorded before its result is returned; a run with the same problems reads
recorded results from the file and solves the others. Rows hold numbers, texts and raw bytes; nothing is pickled. A row
also holds the settings under which its result was verified, and one checksum covers all its fields, so an intact row
can be trusted even if other parts of the file are damaged.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import sqlite3
import struct
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np

from drainsinkhorn.core.events import Resumed
from drainsinkhorn.core.options import MODES, Mode, Options
from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.eps import DEFAULT_EPS
from drainsinkhorn.model.errors import FileError, OptionsError
from drainsinkhorn.model.outcomes import Outcome
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.model.result import Residual
from drainsinkhorn.model.status import Status
from drainsinkhorn.numerics.arrays import float_name, is_array, to_caller, to_numpy
from drainsinkhorn.numerics.costs import Formula, as_cost
from drainsinkhorn.run.wal import torn_bytes

FORMAT = 4
"""Version of the table and its checksums. SQLite keeps it in the file's header, as user_version."""
APPLICATION = int.from_bytes(b"drnk")
"""The application_id that marks a SQLite file as a journal."""
TABLE = (
    "CREATE TABLE ended (ticket INTEGER PRIMARY KEY, settings TEXT NOT NULL, problem BLOB NOT NULL, "
    "status TEXT NOT NULL, depth INTEGER NOT NULL, row REAL, col REAL, band REAL, eps REAL, f_dtype TEXT, f BLOB, "
    "g_dtype TEXT, g BLOB, widened INTEGER NOT NULL, rescued INTEGER NOT NULL, streamed INTEGER NOT NULL, "
    "arithmetic TEXT NOT NULL, detail TEXT NOT NULL, checksum BLOB NOT NULL)"
)
"""The statement that makes a journal's only table; SQLite stores it, and it is compared when a file is opened."""
FIRST_FORMAT = "CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL)"
"""The table by which a journal of format 1 is recognised: it held the settings of the run, apart from the rows."""
FAILURES = (sqlite3.Error, UnicodeDecodeError)
"""Exceptions that SQLite raises for a file; the second if the message of the first would quote damaged text."""
RESULT_OPTIONS = ("tol", "max_depth", "audit", "certify", "accelerate", "init", "rescue")
"""Options that can change a result; all others may differ when a run is resumed."""

Row = tuple[Any, ...]


class Journal:
    """Finished problems in a file, by ticket. One run at a time; it may be used from any one thread at a time.

    Args:
        path: The file; it is created if it does not exist.
        options: Options of the run. A journal with other RESULT_OPTIONS is rejected.
        backend: Name of the backend. A journal of another backend is rejected.

    Attributes:
        resumed: The event that says what the file contained.
    """

    def __init__(self, path: str | os.PathLike[str], options: Options, backend: str) -> None:
        if not isinstance(cast(object, path), (str, os.PathLike)):
            raise OptionsError(f"journal must be the path of a file, got {path!r}")
        self.path = Path(path)
        if not self.path.parent.is_dir():
            raise FileError(f"{self.path.parent} is no folder, so the journal {self.path.name} cannot be created there")
        self._settings = _settings(options, backend)
        torn = torn_bytes(self.path.with_name(self.path.name + "-wal"))
        self._database, known, salvaged = self._open()
        # A connection is part of a reference cycle: without this, a stream that is dropped unread would lock the file
        # until the garbage collector runs.
        weakref.finalize(self, self._database.close)
        self.resumed = Resumed(str(self.path), known, torn, salvaged)

    def recall(self, ticket: int, problem: Any) -> Outcome | None:
        """Return the recorded result of a problem under these settings; None if there is none or its row is damaged."""
        try:
            row = self._database.execute("SELECT * FROM ended WHERE ticket = ?", (ticket,)).fetchone()
        except FAILURES:
            # The file was damaged after it was opened. The problem is solved again, and its row replaced.
            return None
        if row is None or not _is_whole(row) or row[1] != self._settings:
            return None
        if row[2] != fingerprint(problem):
            raise FileError(
                f"problem {ticket} is not the one that the journal {self.path} has under this number; pass the same "
                "problems in the same order to resume, or name another file to start anew"
            )
        return _outcome(row, problem)

    def enter(self, problem: Problem[Any], outcome: Outcome) -> None:
        """Record a problem that has ended. When this returns, the row survives the end of the program."""
        f = g = None
        if outcome.potentials is not None:
            f, g = (to_numpy(p) for p in outcome.potentials)
        row: Row = (
            outcome.ticket,
            self._settings,
            fingerprint(problem),
            outcome.status.name,
            outcome.depth,
            *(_real(value) for value in outcome.residual),
            _real(outcome.eps),
            *(part for p in (f, g) for part in ((None, None) if p is None else (p.dtype.str, p.tobytes()))),
            int(outcome.widened),
            int(outcome.rescued),
            int(outcome.streamed),
            outcome.arithmetic,
            outcome.detail,
        )
        try:
            # A damaged row of this ticket is replaced.
            _write(self._database, (*row, _checksum(row)))
        except FAILURES as error:
            raise FileError(f"the journal {self.path} cannot be written: {error}") from None

    def close(self) -> None:
        """Close the file, so that another run can open it."""
        self._database.close()

    def _open(self) -> tuple[sqlite3.Connection, int, int | None]:
        """Return the database, its number of rows, and how many were copied from a damaged file (None: not damaged)."""
        try:
            return *self._connect(), None
        except sqlite3.OperationalError as error:
            raise FileError(_describe_failure(self.path, error)) from None
        except FAILURES as error:
            if not _has_journal_header(self.path):
                raise FileError(f"{self.path} is no journal of format {FORMAT} ({error}); name another file") from None
        try:
            saved = self._salvage()
            return *self._connect(), saved
        except (*FAILURES, OSError) as error:
            raise FileError(_describe_failure(self.path, error)) from None

    def _connect(self) -> tuple[sqlite3.Connection, int]:
        """Open or make the journal, for this program alone, and count its rows."""
        database = sqlite3.connect(self.path, timeout=0.2, isolation_level=None, check_same_thread=False)
        database.text_factory = _text
        try:
            # Exclusive: a second run on this journal is rejected. The lock ends with the program.
            database.execute("PRAGMA locking_mode = EXCLUSIVE")
            _identify(database, self.path)
            database.execute("PRAGMA journal_mode = WAL")
            # A commit survives the program; a power cut may cost the last few, which are solved again.
            database.execute("PRAGMA synchronous = NORMAL")
            (state,) = database.execute("PRAGMA quick_check(1)").fetchone()
            if state != "ok":
                raise sqlite3.DatabaseError(state)
            self._refuse_other_settings(database)
            (count,) = database.execute("SELECT count(*) FROM ended").fetchone()
        except BaseException:
            database.close()
            raise
        return database, count

    def _refuse_other_settings(self, database: sqlite3.Connection) -> None:
        """Raise FileError if an intact row was verified under other settings than those of this run."""
        for row in database.execute("SELECT * FROM ended WHERE settings IS NOT ?", (self._settings,)):
            if not _is_whole(row):
                continue
            there, here = json.loads(row[1]), json.loads(self._settings)
            key = next(key for key in {**here, **there} if there.get(key) != here.get(key))
            raise FileError(
                f"the journal {self.path} was written with {key} = {there.get(key)}, this run has {here.get(key)}; use "
                "the same value to resume, or name another file to start anew"
            )

    def _salvage(self) -> int:
        """Rename a damaged journal, copy its intact rows into a new one, and return their number."""
        damaged = _unused_name(self.path.with_name(self.path.name + ".damaged"))
        for suffix in ("", "-wal", "-shm", "-journal"):
            old = self.path.with_name(self.path.name + suffix)
            if old.exists():
                os.replace(old, damaged.with_name(damaged.name + suffix))
        source, database = sqlite3.connect(damaged), sqlite3.connect(self.path, isolation_level=None)
        source.text_factory = _text
        try:
            _identify(database, self.path)
            database.execute("BEGIN")
            for row in _rows(source):
                if _is_whole(row):
                    _write(database, row)
            (saved,) = database.execute("SELECT count(*) FROM ended").fetchone()
            database.execute("COMMIT")
        finally:
            source.close()
            database.close()
        return saved


def _unused_name(path: Path) -> Path:
    """Return the first of path, path.2, path.3, ... at which neither a file nor its WAL exists."""
    names = itertools.chain([path], (path.with_name(f"{path.name}.{k}") for k in itertools.count(2)))
    return next(name for name in names if not name.exists() and not name.with_name(name.name + "-wal").exists())


def _identify(database: sqlite3.Connection, path: Path) -> None:
    """Make the table in a new file. Raise FileError, without writing, if the file is no journal of this format."""
    tables = database.execute("SELECT name, sql FROM sqlite_master").fetchall()
    (application,) = database.execute("PRAGMA application_id").fetchone()
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if not tables and application == version == 0:
        # In one transaction and before WAL mode, so that the header with format and application is in the file itself.
        database.execute("BEGIN")
        database.execute(f"PRAGMA application_id = {APPLICATION}")
        database.execute(f"PRAGMA user_version = {FORMAT}")
        database.execute(TABLE)
        database.execute("COMMIT")
    elif application == 0 and ("about", FIRST_FORMAT) in tables:
        raise FileError(
            f"the journal {path} has format 1, whose rows do not contain the settings of their run, so they cannot "
            "be trusted; finish that run with the version of drainsinkhorn that began it, or name another file to "
            "start anew"
        )
    elif application != APPLICATION:
        table = f" with a table {tables[0][0]!r}" if tables else ""
        raise FileError(f"{path} is a database{table} that is no journal; name another file")
    elif version != FORMAT:
        raise FileError(
            f"the journal {path} has format {version}, and this version of drainsinkhorn reads format {FORMAT} alone; "
            "resume with the version that wrote it, or name another file to start anew"
        )
    elif tables != [("ended", TABLE)]:
        raise sqlite3.DatabaseError("its table is not that of a journal")


def _describe_failure(path: Path, error: Exception) -> str:
    if "locked" in str(error):
        return f"the journal {path} is in use by another run; wait for it, or name another file"
    return f"the journal {path} cannot be opened: {error}"


def _has_journal_header(path: Path) -> bool:
    """Whether the header of a file, which SQLite may be unable to read, is that of a journal of this format."""
    with path.open("rb") as file:
        header = file.read(100)
    # https://www.sqlite.org/fileformat2.html#the_database_header
    marks = struct.pack(">I", FORMAT), struct.pack(">I", APPLICATION)
    return header[:16] == b"SQLite format 3\0" and (header[60:64], header[68:72]) == marks


def _rows(source: sqlite3.Connection) -> Iterator[Row]:
    """Yield the readable rows of a damaged table: forwards up to the damage, then backwards from the end."""
    for order in ("", " DESC"):
        try:
            yield from source.execute(f"SELECT * FROM ended ORDER BY rowid{order}")
        except FAILURES:
            continue
        return


def _write(database: sqlite3.Connection, row: Row) -> None:
    database.execute(f"REPLACE INTO ended VALUES ({', '.join('?' * len(row))})", row)


def _text(raw: bytes) -> str:
    """Decode a text of SQLite. A damaged text raises no error here; its row fails the checksum instead."""
    return raw.decode("utf-8", "surrogateescape")


def _settings(options: Options, backend: str) -> str:
    """Return the settings on which results depend as one text; equal texts mean equal results."""
    mode = options.mode if isinstance(options.mode, Mode) else MODES.get(options.mode)
    together = mode is not None and mode.together
    names = {name: repr(getattr(options, name)) for name in RESULT_OPTIONS}
    return json.dumps({**names, "together": repr(together), "backend": backend})


def _real(value: float) -> float | None:
    # SQLite has no NaN.
    return None if value != value else float(value)


def _outcome(row: Row, problem: Problem[Any]) -> Outcome:
    (
        ticket,
        _,
        _,
        status,
        depth,
        *numbers,
        f_dtype,
        f,
        g_dtype,
        g,
        widened,
        rescued,
        streamed,
        arithmetic,
        detail,
        _,
    ) = row
    potentials = None
    if f is not None:
        like = problem.x if problem.x is not None else problem.cost
        potentials = Potentials(
            *(
                to_caller(np.frombuffer(raw, dtype=dtype), like, own=not widened)
                for raw, dtype in ((f, f_dtype), (g, g_dtype))
            )
        )
    *residual, eps = (float("nan") if value is None else value for value in numbers)
    rest = bool(widened), arithmetic, detail, bool(streamed), bool(rescued), eps
    return Outcome(ticket, potentials, Residual(*residual), Status[status], depth, *rest)


def _is_whole(row: Row) -> bool:
    return row[-1] == _checksum(row[:-1])


def _checksum(row: Row) -> bytes:
    """Return a digest of all other fields of a row and of the format, so a row of another format fails the check."""
    # Values of different types have different representations; the lengths of blobs determine where each blob ends.
    shown = [("blob", len(value)) if isinstance(value, bytes) else value for value in row]
    digest = hashlib.blake2b(repr((FORMAT, shown)).encode(), digest_size=16)
    for value in row:
        if isinstance(value, bytes):
            digest.update(value)
    return digest.digest()


def _cost_key(kind: Any) -> str:
    """Return a text that identifies a kind of cost, parameters included."""
    if isinstance(kind, (str, Formula)):
        return str(kind)
    # The key of an OTT cost contains its parameters; its repr contains a memory address.
    return str(getattr(kind, "key", None) or repr(kind))


def fingerprint(problem: Any) -> bytes:
    """Return a digest of all fields of a problem; it does not depend on the library of the arrays."""
    digest = hashlib.blake2b(digest_size=16)
    init = problem.init
    f, g = init if isinstance(init, (tuple, list)) and len(init) == 2 else (init, None)
    cost: Any = problem.cost if isinstance(problem.cost, str) else as_cost(problem.cost)
    if isinstance(cost, Cost):
        cost = f"{_cost_key(cost.kind)} {cost.scale!r}"
    # A problem that states no eps has the default, which another version may change.
    eps = DEFAULT_EPS if problem.eps is None else problem.eps
    numbers = (eps, problem.tol, problem.rho, problem.max_depth)
    for value in (problem.x, problem.y, problem.a, problem.b, *numbers, f, g, cost, problem.chain):
        if is_array(value):
            array = np.ascontiguousarray(to_numpy(value))
            # NumPy holds bfloat16 as float32; results are returned in the caller's dtype.
            dtype = "bfloat16" if float_name(value) == "bfloat16" else array.dtype.str
            digest.update(f"{dtype} {array.shape};".encode())
            if array.dtype.kind == "f" and array.dtype.itemsize > 8:
                # A long double has bytes that belong to no number, and whose values are arbitrary.
                high = array.astype(np.float64)
                array = np.stack([high, (array - high).astype(np.float64)])
            digest.update(array.data if array.size else b"")
        else:
            digest.update(f"{value!r};".encode())
    return digest.digest()
