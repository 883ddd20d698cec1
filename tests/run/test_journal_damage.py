"""Damaged journals: a run on one of them returns true results or refuses it with an error of ours.

CI runs the first seeds; elsewhere seeds vary. DRAIN_SOAK=1 runs all of them, DRAIN_SEED=N begins at seed N.
"""

from __future__ import annotations

import os
import random
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.core.events import Event, Resumed
from drainsinkhorn.model.errors import FileError
from drainsinkhorn.run.journal import FIRST_FORMAT, FORMAT, Journal
from tests.faulty import assert_same

CASES = 1500 if os.environ.get("DRAIN_SOAK") else 60
LOOSE, TIGHT = 1e-2, 1e-5
PAGE = 4096
COLUMNS = (
    "ticket", "settings", "problem", "status", "depth", "row", "col", "band", "eps", "f_dtype", "f", "g_dtype", "g",
    "widened", "rescued", "streamed", "arithmetic", "detail", "checksum",
)  # fmt: skip


def first_seed() -> int:
    """The seed given; 0 in CI; a new one at every run elsewhere."""
    return int(os.environ.get("DRAIN_SEED") or (0 if os.environ.get("DRAIN_CI") else secrets.randbelow(2**31)))


def problems() -> list[ds.Problem[Any]]:
    """Small ones, and two whose potentials are longer than a page."""
    rng = np.random.default_rng(5)
    sizes = [(6, 5), (9, 7), (700, 3), (4, 4), (8, 6), (3, 900), (5, 9), (7, 7)]
    return [ds.Problem(x=rng.normal(size=(n, 2)), y=1 + rng.normal(size=(m, 2)), eps=0.5) for n, m in sizes]


def solve(path: Path | None, tol: float, **settings: Any) -> list[ds.Result[Any]]:
    return list(ds.solve(problems(), tol=tol, backend="reference", journal=path, **settings))


class Journals(NamedTuple):
    """Files of a loose run that ended and of one that was killed, by suffix; rows of a tight run; and true results."""

    ended: dict[str, bytes]
    killed: dict[str, bytes]
    tight_rows: list[tuple[Any, ...]]
    truth: dict[float, list[ds.Result[Any]]]


@pytest.fixture(scope="module")
def journals(tmp_path_factory: pytest.TempPathFactory) -> Journals:
    folder = tmp_path_factory.mktemp("journals")
    solve(folder / "ended", LOOSE)
    solve(folder / "tight", TIGHT)
    run = ds.stream(iter(problems()), tol=LOOSE, backend="reference", journal=folder / "killed")
    for _ in range(6):
        next(run)
    killed = {suffix: (folder / f"killed{suffix}").read_bytes() for suffix in ("", "-wal")}
    run.close()
    with sqlite3.connect(folder / "tight") as database:
        rows = database.execute("SELECT * FROM ended").fetchall()
    database.close()
    truth = {tol: solve(None, tol) for tol in (LOOSE, TIGHT)}
    return Journals({"": (folder / "ended").read_bytes()}, killed, rows, truth)


def place(folder: Path, files: dict[str, bytes]) -> Path:
    for suffix, raw in files.items():
        (folder / f"j{suffix}").write_bytes(raw)
    return folder / "j"


# What can happen to a file


def damage_bytes(raw: bytearray, rng: random.Random) -> bytearray:
    """Single bytes, near each other or anywhere."""
    first, reach = rng.randrange(len(raw)), rng.choice([1, 100, len(raw)])
    for _ in range(rng.choice([1, 1, 4, 64])):
        where = (first + rng.randrange(reach)) % len(raw)
        raw[where] = rng.choice([raw[where] ^ 1 << rng.randrange(8), rng.randrange(256)])
    return raw


def damage_pages(raw: bytearray, rng: random.Random) -> bytearray:
    """A page that is lost, overwritten, or exchanged for another."""
    starts = range(0, max(1, len(raw) - PAGE + 1), PAGE)
    one, other = rng.choice(starts), rng.choice(starts)
    content = rng.choice([bytes(PAGE), b"\xff" * PAGE, rng.randbytes(PAGE), bytes(raw[other : other + PAGE])])
    if rng.random() < 0.3:
        raw[other : other + PAGE] = raw[one : one + PAGE]
    raw[one : one + PAGE] = content
    return raw


def damage_length(raw: bytearray, rng: random.Random) -> bytearray:
    """A file that is cut short, has lost something in between, or goes on after its end."""
    start = rng.choice([rng.randrange(len(raw)), rng.randrange(0, len(raw), PAGE)])
    how = rng.randrange(3)
    if how == 0:
        return raw[:start]
    if how == 1:
        return raw[:start] + raw[start + rng.choice([1, 100, PAGE]) :]
    return raw + rng.randbytes(rng.choice([1, 100, PAGE]))


def damaged_value(rng: random.Random) -> str:
    """A value of any type, in SQL."""
    return rng.choice(
        ["NULL", "''", "0", "-1", "9223372036854775807", "9e999", "0.5", "x''", "x'00ff'", "zeroblob(9000)",
         "CAST(x'fffe00c3' AS TEXT)", "CAST(x'434f4e564552474544' AS BLOB)", "'CONVERGED'", "'drain'", "char(0, 7, 27)"]
    )  # fmt: skip


def damage_rows(database: sqlite3.Connection, rng: random.Random, tight_rows: list[tuple[Any, ...]]) -> None:
    """Rows or fields that have changed places, and true rows of another run."""
    one, other = (ticket for (ticket,) in database.execute("SELECT ticket FROM ended ORDER BY random() LIMIT 2"))
    how, column = rng.randrange(4), rng.choice(COLUMNS[1:])
    if how == 0:
        for before, after in ((one, -1), (other, one), (-1, other)):
            database.execute("UPDATE ended SET ticket = ? WHERE ticket = ?", (after, before))
    elif how == 1:
        columns = ", ".join(COLUMNS[1:])
        database.execute(
            f"UPDATE ended SET ({columns}) = (SELECT {columns} FROM ended WHERE ticket = ?) WHERE ticket = ?",
            (one, other),
        )
    elif how == 2:
        database.execute(
            f"UPDATE ended SET {column} = (SELECT {column} FROM ended WHERE ticket = ?) WHERE ticket = ?", (one, other)
        )
    else:
        rows = rng.sample(tight_rows, rng.choice([1, len(tight_rows)]))
        database.executemany(f"REPLACE INTO ended VALUES ({', '.join('?' * len(COLUMNS))})", rows)


def damage_fields(database: sqlite3.Connection, rng: random.Random, _: object) -> None:
    """Any value in any field, of one row or of all."""
    column, rows = rng.choice(COLUMNS[1:]), rng.choice(["", " WHERE ticket = 2", " WHERE ticket % 2 = 0"])
    database.execute(f"UPDATE ended SET {column} = {damaged_value(rng)}{rows}")


def damage_settings(database: sqlite3.Connection, rng: random.Random, tight_rows: list[tuple[Any, ...]]) -> None:
    """Settings of another run, or none; another format; another table."""
    how = rng.randrange(5)
    if how == 0:
        database.execute("UPDATE ended SET settings = ?", (tight_rows[0][1],))
    elif how == 1:
        database.execute("UPDATE ended SET settings = replace(settings, '0.01', '1e-05')")
    elif how == 2:
        database.execute(f"UPDATE ended SET settings = {damaged_value(rng)}")
    elif how == 3:
        database.execute(f"PRAGMA {rng.choice(['user_version', 'application_id'])} = {rng.randrange(-5, 2**31)}")
    else:
        database.execute("PRAGMA writable_schema = ON")
        column = rng.choice(["type", "name", "tbl_name", "rootpage", "sql"])
        database.execute(f"UPDATE sqlite_master SET {column} = {damaged_value(rng)}")


IN_FILES: list[Callable[[bytearray, random.Random], bytearray]] = [damage_bytes, damage_pages, damage_length]
IN_TABLES: list[Callable[[sqlite3.Connection, random.Random, Any], None]] = [
    damage_rows,
    damage_fields,
    damage_settings,
]


def damaged(folder: Path, journals: Journals, rng: random.Random) -> Path:
    """A journal to which something has happened."""
    files = rng.choice([journals.ended, journals.killed])
    kind = rng.randrange(len(IN_FILES) + len(IN_TABLES))
    if kind < len(IN_FILES):
        suffix = rng.choice(list(files))
        return place(folder, {**files, suffix: bytes(IN_FILES[kind](bytearray(files[suffix]), rng))})
    path = place(folder, files)
    database = sqlite3.connect(path, isolation_level=None)
    try:
        IN_TABLES[kind - len(IN_FILES)](database, rng, journals.tight_rows)
    except sqlite3.IntegrityError:
        # SQLite refuses NULL in most columns: then nothing has happened.
        pass
    finally:
        database.close()
    return path


def outcomes(path: Path, journals: Journals, rng: random.Random) -> Iterator[str]:
    """Run with one tolerance after another on one journal: results must be true, and errors ours."""
    for tol in rng.sample([LOOSE, LOOSE, TIGHT, TIGHT], 3):
        resumed = list[Event]()
        try:
            results = solve(path, tol, observe=resumed.append)
        except FileError:
            yield "refused"
            continue
        assert_same(results, journals.truth[tol])
        (event,) = (event for event in resumed if isinstance(event, Resumed))
        yield "solved" if event.salvaged is None else "salvaged"


def test_random_damage_gives_no_false_result_and_no_raw_error(journals: Journals, tmp_path: Path) -> None:
    seen = set[str]()
    for seed in range(begin := first_seed(), begin + CASES):
        rng = random.Random(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        try:
            seen.update(outcomes(damaged(folder, journals, rng), journals, rng))
        except BaseException as error:
            error.add_note(f"this is the case DRAIN_SEED={seed}, in {folder}")
            raise
    assert seen == {"solved", "salvaged", "refused"}, "every way out is taken in so many cases"


# Cases of their own


def test_a_journal_whose_page_of_settings_is_lost_keeps_its_tolerance(journals: Journals, tmp_path: Path) -> None:
    """Zero one page after another: whichever holds the settings, loose results never return as tight ones."""
    raw = journals.ended[""]
    for start in range(0, len(raw), PAGE):
        path = place(tmp_path, {"": raw[:start] + bytes(PAGE) + raw[start + PAGE :]})
        try:
            results = solve(path, TIGHT)
        except FileError:
            continue
        assert_same(results, journals.truth[TIGHT])


@pytest.mark.parametrize("column", COLUMNS[1:])
def test_text_that_is_no_text_in_any_field(column: str, journals: Journals, tmp_path: Path) -> None:
    path = place(tmp_path, journals.ended)
    database = sqlite3.connect(path, isolation_level=None)
    database.execute(f"UPDATE ended SET {column} = CAST(x'fffe00c3' AS TEXT) WHERE ticket = 4")
    database.close()
    assert_same(solve(path, LOOSE), journals.truth[LOOSE])
    assert_same(solve(path, LOOSE), journals.truth[LOOSE])


def test_a_table_whose_description_is_no_text(journals: Journals, tmp_path: Path) -> None:
    """SQLite quotes the description in its error, which Python then cannot decode."""
    raw = journals.ended[""].replace(b"CREATE TABLE ended (ticket INTEGER", b"CREATE TABLE ended (\xff\xfe(((( INTEGER")
    assert raw != journals.ended[""]
    assert_same(solve(place(tmp_path, {"": raw}), LOOSE), journals.truth[LOOSE])
    assert (tmp_path / "j.damaged").read_bytes() == raw


def test_every_damaged_file_is_kept(journals: Journals, tmp_path: Path) -> None:
    kept = list[bytes]()
    for _ in range(3):
        raw = journals.ended[""].replace(b"CREATE TABLE ended (ticket", b"CREATE TABLE ended (%d(((((" % len(kept))
        assert_same(solve(place(tmp_path, {"": raw}), LOOSE), journals.truth[LOOSE])
        kept.append(raw)
        names = ["j.damaged", "j.damaged.2", "j.damaged.3"][: len(kept)]
        assert [(tmp_path / name).read_bytes() for name in names] == kept


def test_recall_asks_what_a_row_was_verified_against(
    journals: Journals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should a whole row of other settings escape the check of the file, its problem is solved again."""
    monkeypatch.setattr(Journal, "_refuse_other_settings", lambda *_: None)
    assert_same(solve(place(tmp_path, journals.ended), TIGHT), journals.truth[TIGHT])


def test_rows_of_another_run_are_refused_by_name(journals: Journals, tmp_path: Path) -> None:
    path = place(tmp_path, journals.ended)
    database = sqlite3.connect(path, isolation_level=None)
    database.execute(f"REPLACE INTO ended VALUES ({', '.join('?' * len(COLUMNS))})", journals.tight_rows[3])
    database.close()
    with pytest.raises(FileError, match=r"written with tol = 1e-05, this run has 0.01"):
        solve(path, LOOSE)


class TestFormats:
    def test_the_first_format_is_refused_and_left_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "j"
        database = sqlite3.connect(path)
        database.execute(FIRST_FORMAT)
        database.execute("CREATE TABLE ended (ticket INTEGER PRIMARY KEY, checksum BLOB NOT NULL)")
        database.execute("INSERT INTO about VALUES ('format', 'drainsinkhorn journal 1')")
        database.commit()
        database.close()
        before = path.read_bytes()
        with pytest.raises(FileError, match=r"format 1.*finish that run with the version.*or name another file"):
            solve(path, LOOSE)
        assert path.read_bytes() == before

    @pytest.mark.parametrize("version", [0, 1, FORMAT + 1, 2**31 - 1])
    @pytest.mark.parametrize("whole", [True, False])
    def test_an_unknown_format_is_refused_and_left_alone(
        self, version: int, whole: bool, journals: Journals, tmp_path: Path
    ) -> None:
        path = place(tmp_path, journals.ended)
        database = sqlite3.connect(path)
        database.execute(f"PRAGMA user_version = {version}")
        database.close()
        if not whole:
            path.write_bytes(path.read_bytes()[:-PAGE])
        before = path.read_bytes()
        reason = f"has format {version}, and this version of drainsinkhorn reads format" if whole else "is no journal"
        with pytest.raises(FileError, match=reason):
            solve(path, LOOSE)
        assert path.read_bytes() == before
        assert not path.with_name("j.damaged").exists()
