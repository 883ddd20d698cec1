"""Files of any origin: outputs that are inputs, links, archives that unpack to too much, control characters."""

from __future__ import annotations

import contextlib
import io
import json
import os
import stat
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib import format as npy
from typer.testing import CliRunner

from drainsinkhorn.cli import files
from drainsinkhorn.cli.main import app
from drainsinkhorn.cli.messages import escape
from drainsinkhorn.model.errors import FileError
from drainsinkhorn.run import archives
from drainsinkhorn.run.saved import replace_file

rng = np.random.default_rng(0)
X, Y = rng.normal(size=(3, 6, 2)), rng.normal(size=(3, 5, 2))
EVIL = "\x1b[31m\x07\x9b2J\u202e\n"


def drain(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "200"})


def solve(*arguments: str | Path) -> Any:
    return drain("solve", *arguments, "--backend", "reference")


def is_refused(done: Any) -> bool:
    return done.exit_code == 2 and done.output.startswith("error: ") and isinstance(done.exception, SystemExit)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    np.savez(tmp_path / "in.npz", x=X, y=Y, eps=1.0)
    return tmp_path / "in.npz"


@pytest.fixture
def solution(source: Path, tmp_path: Path) -> Path:
    assert solve(source, "-o", tmp_path / "out.npz").exit_code == 0
    return tmp_path / "out.npz"


class TestOutputs:
    def test_a_link_beside_the_output_is_not_followed(self, source: Path, tmp_path: Path) -> None:
        victim, out = tmp_path / "victim", tmp_path / "out.npz"
        victim.write_text("mine")
        (tmp_path / "out.npz.partial").symlink_to(victim)
        before = {path.name for path in tmp_path.iterdir()}
        assert solve(source, "-o", out).exit_code == 0
        assert victim.read_text() == "mine"
        assert {path.name for path in tmp_path.iterdir()} == before | {"out.npz"}

    def test_a_name_that_is_taken_is_not_written_to(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        victim = tmp_path / "victim"
        victim.write_text("mine")
        monkeypatch.setattr("secrets.token_hex", lambda _: "guessed")
        (tmp_path / ".guessed.partial").symlink_to(victim)
        with pytest.raises(FileExistsError), replace_file(tmp_path / "out") as file:
            file.write(b"theirs")
        assert victim.read_text() == "mine"

    def test_the_output_takes_the_permissions_of_a_new_file(self, solution: Path, tmp_path: Path) -> None:
        (tmp_path / "new").touch()
        assert stat.S_IMODE(solution.stat().st_mode) == stat.S_IMODE((tmp_path / "new").stat().st_mode)

    @pytest.mark.parametrize("error", [OSError, MemoryError, KeyboardInterrupt])
    def test_a_failure_leaves_the_old_file_and_nothing_else(self, error: Any, tmp_path: Path) -> None:
        (tmp_path / "out").write_text("old")

        def fail() -> None:
            with replace_file(tmp_path / "out") as file:
                file.write(b"half")
                raise error

        with pytest.raises(error):
            fail()
        assert [path.name for path in tmp_path.iterdir()] == ["out"]
        assert (tmp_path / "out").read_text() == "old"

    def test_the_journal_is_not_written_over(self, source: Path, tmp_path: Path) -> None:
        journal = tmp_path / "journal"
        assert solve(source, "-o", tmp_path / "out.npz", "--journal", journal).exit_code == 0
        before = journal.read_bytes()
        (tmp_path / "soft").symlink_to(journal)
        (tmp_path / "hard").hardlink_to(journal)
        (tmp_path / "folder").symlink_to(tmp_path)
        (tmp_path / "journal.damaged.2").touch()
        for out in (
            "journal",
            "soft",
            "hard",
            "folder/journal",
            "journal-wal",
            "journal-shm",
            "journal.damaged",
            "journal.damaged.2",
        ):
            done = solve(source, "-o", tmp_path / out, "--journal", journal)
            assert is_refused(done), out
            assert f"{out} holds the journal; name another file" in done.output
        assert is_refused(solve(source, "-o", journal, "--journal", tmp_path / "soft"))
        assert journal.read_bytes() == before

    def test_a_journal_that_is_not_there_yet(self, source: Path, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(tmp_path / "new")
        for out, journal in (("new", "new"), ("link", "new"), ("new", "link"), ("new-wal", "new")):
            assert "holds the journal" in solve(source, "-o", tmp_path / out, "--journal", tmp_path / journal).output
        assert not (tmp_path / "new").exists()

    def test_the_input_is_not_written_over(self, source: Path, tmp_path: Path) -> None:
        before = source.read_bytes()
        (tmp_path / "soft").symlink_to(source)
        (tmp_path / "hard").hardlink_to(source)
        (tmp_path / "journal-wal").symlink_to(source)
        for name in ("in.npz", "soft", "hard"):
            assert "holds the problems" in solve(source, "-o", tmp_path / name).output
            done = solve(source, "-o", tmp_path / "out.npz", "--journal", tmp_path / name)
            assert "holds the problems" in done.output
            assert "holds the problems" in drain("explain", source, "--sample", "1", "--plot", tmp_path / name).output
            assert "holds the solution" in drain("explain", source, "--plot", tmp_path / name).output
        done = solve(source, "-o", tmp_path / "out.npz", "--journal", tmp_path / "journal")
        assert "journal-wal holds the problems" in done.output
        assert source.read_bytes() == before

    def test_a_device_is_no_output(self, source: Path) -> None:
        assert "is no regular file" in solve(source, "-o", os.devnull).output
        assert Path(os.devnull).is_char_device()


def member(shape: Any, dtype: str = "<f8", data: bytes = b"", version: tuple[int, int] = (1, 0)) -> bytes:
    """An npy file with any header."""
    out = io.BytesIO()
    header = {"descr": dtype, "fortran_order": False, "shape": shape}
    if version == (1, 0):
        npy.write_array_header_1_0(out, header)
    else:
        npy.write_array_header_2_0(out, header)
    raw = bytearray(out.getvalue())
    raw[6:8] = bytes(version)
    return bytes(raw) + data


def text_header(text: str) -> bytes:
    return npy.MAGIC_PREFIX + b"\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


HEADERS = {
    "more than is stored": (member((10**12,), data=bytes(8)), "declares float64 of shape (1000000000000,), but has 8"),
    "more than can be": (member((10**30,)), "it is damaged"),
    "no rows of many columns": (member((10**12, 0, 2)), "unpacks to 16,000,000,000,000, more than 100 times"),
    "long texts": (member((), "<U100000000"), "but has 0 bytes"),
    "many empty texts": (member((10**12,), "<U0"), "unpacks to"),
    "negative": (member((-1,)), "it is damaged"),
    "no shape": (text_header("{'descr': '<f8', 'fortran_order': False, 'shape': 3}"), "cannot be read"),
    "nested": (text_header("(" * 9000), "cannot be read"),
    "long header": (text_header(" " * 60000), "cannot be read"),
    "torn header": (member((3,))[:40], "cannot be read"),
    "other version": (member((1,), data=bytes(8), version=(3, 0)), "has version (3, 0) of the npy format"),
    "objects": (member((1,), "|O", b"cos\nsystem\n."), "Object arrays need pickle, which is never read"),
    "no array": (b"hello", "has a member 'eps.npy' that is no array"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_headers_are_checked_before_arrays_are_read(case: str, tmp_path: Path) -> None:
    raw, message = HEADERS[case]
    path = tmp_path / "in.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("eps.npy", raw)
    for done in (solve(path, "-o", tmp_path / "out.npz"), drain("explain", path)):
        assert is_refused(done), done.output
        assert message in done.output


def bomb(path: Path, size: int = 2**26) -> Path:
    np.savez_compressed(path, x=np.zeros((3, size // 48, 2)), y=Y, eps=1.0)
    return path


class TestSizes:
    def test_an_archive_that_unpacks_to_too_much(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = bomb(tmp_path / "bomb.npz")
        monkeypatch.setattr(archives, "EXPANDED", 2**20)
        tracemalloc.start()
        try:
            for command in (solve(path, "-o", tmp_path / "out.npz"), drain("explain", path)):
                assert is_refused(command)
                assert "more than 100 times as many and more than 0.000976562 GiB; give the size with" in command.output
            assert tracemalloc.get_traced_memory()[1] < 2**24, "it was unpacked"
        finally:
            tracemalloc.stop()
        # Who gives a limit trusts the file that far.
        assert files.read_problems(path, 2**27)[0].x.shape == (2**26 // 48, 2)
        assert "is no solution" in drain("explain", path, "--read-limit", "0.1").output
        done = solve(path, "-o", tmp_path / "out.npz", "--read-limit", "0.01")
        assert "unpacks to 0.0625 GiB, more than the limit of 0.01 GiB (--read-limit)" in done.output

    def test_a_size_that_the_archive_lies_about(self, tmp_path: Path) -> None:
        path = tmp_path / "in.npz"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", member((10**12,), data=bytes(64)))
            archive.filelist[0].file_size = 8 * 10**12 + 128
        done = solve(path, "-o", tmp_path / "out.npz")
        assert is_refused(done)
        assert "unpacks to 8,000,000,000,128" in done.output
        assert is_refused(solve(path, "-o", tmp_path / "out.npz", "--read-limit", "1e6"))

    def test_half_of_the_memory_is_the_limit(self, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        size = sum(info.file_size for info in zipfile.ZipFile(source).infolist())
        for memory, fits in ((2 * size, True), (2 * size - 2, False)):
            monkeypatch.setattr(archives, "available_memory", lambda memory=memory: memory)
            if fits:
                assert set(archives.read_arrays(source)) == {"x", "y", "eps"}
            else:
                with pytest.raises(FileError, match=r"half of the available memory\); give the size with --read-limit"):
                    archives.read_arrays(source)

    def test_more_problems_than_memory(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "in.npz", x=X[0], y=Y[0], eps=np.ones(10_000))
        done = solve(tmp_path / "in.npz", "-o", tmp_path / "out.npz", "--read-limit", "0.01")
        assert is_refused(done)
        assert "has 10,000 problems, for which there is no memory" in done.output
        assert len(files.read_problems(tmp_path / "in.npz", 10_000 * files.PROBLEM_BYTES)) == 10_000

    def test_more_results_than_memory(self, solution: Path, tmp_path: Path) -> None:
        with np.load(solution) as archive:
            arrays = {
                name: value if value.ndim == 0 else value[np.zeros(10_000, int)] for name, value in archive.items()
            }
        np.savez(tmp_path / "out.npz", **arrays)
        done = drain("explain", tmp_path / "out.npz", "--read-limit", "0.015")
        assert is_refused(done)
        assert "has 10,000 problems, for which there is no memory" in done.output
        assert len(files.read_solution(tmp_path / "out.npz", 10_000 * files.PROBLEM_BYTES)[0]) == 10_000

    def test_memory_is_known(self) -> None:
        assert 2**20 < archives.available_memory() < 2**50
        assert archives.read_limit(None) <= archives.available_memory()

    def test_a_reader_without_memory_says_so(self, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: Any, **__: Any) -> Any:
            raise MemoryError

        monkeypatch.setattr(npy, "read_array", fail)
        assert "does not fit into memory" in solve(source, "-o", source.with_name("out.npz")).output

    @pytest.mark.parametrize("limit", ["0", "-1", "nan", "inf"])
    def test_bad_limits(self, limit: str, source: Path) -> None:
        done = solve(source, "-o", source.with_name("out.npz"), "--read-limit", limit)
        assert is_refused(done)
        assert "read-limit must be a positive number of GiB" in done.output

    def test_a_device_is_no_archive(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "fifo")
        for path in ("/dev/zero", tmp_path / "fifo"):
            assert "is no regular file" in drain("explain", path).output


def test_damaged_archives_are_refused_in_words(solution: Path, tmp_path: Path) -> None:
    whole, path = solution.read_bytes(), tmp_path / "bad.npz"
    draws = np.random.default_rng(1)
    for _ in range(200):
        raw = bytearray(whole)
        # Half of the damage is to the directory at the end, which is where zipfile is delicate.
        start = len(raw) - 1200 if draws.random() < 0.5 else 0
        for place in draws.integers(start, len(raw), size=draws.integers(1, 8)):
            raw[place] = draws.integers(256)
        path.write_bytes(bytes(raw[: draws.integers(1, len(raw))] if draws.random() < 0.1 else raw))
        with contextlib.suppress(FileError):
            files.read_solution(path)


@pytest.mark.parametrize(
    "damage",
    [
        {"slots": "many"},
        {"slots": 10**400},
        {"slots": True},
        {"survival": "abc"},
        {"survival": [1, "a"]},
        {"widths": [3]},
        {"widths": [[1, 2, 3]]},
        {"seconds": [1.0]},
        {"seconds": {"load": "a"}},
        {"seconds": {"load": float("nan")}},
        {"choices": [["mode", "compact"]]},
        {"choices": [["mode", 3, "why"]]},
        {"rescue": {}},
        {"rescue": 3},
    ],
    ids=lambda damage: next(iter(damage)),
)
def test_ledgers_of_another_form(damage: dict[str, Any], solution: Path, tmp_path: Path) -> None:
    with np.load(solution) as archive:
        arrays = dict(archive)
    ledger = json.loads(str(arrays["ledger"])) | damage
    np.savez(tmp_path / "bad.npz", **{**arrays, "ledger": json.dumps(ledger)})
    done = drain("explain", tmp_path / "bad.npz")
    assert is_refused(done), done.output
    assert "is a damaged solution" in done.output


@pytest.mark.parametrize(
    "damage",
    [{"ledger": "[" * 100_000}, {"depth": np.full(3, np.inf)}, {"depth": np.array([b"a"] * 3)}],
    ids=lambda damage: next(iter(damage)),
)
def test_columns_of_another_form(damage: dict[str, Any], solution: Path, tmp_path: Path) -> None:
    with np.load(solution) as archive:
        arrays = dict(archive)
    np.savez(tmp_path / "bad.npz", **{**arrays, **damage})
    assert is_refused(drain("explain", tmp_path / "bad.npz"))


class TestControlCharacters:
    def test_escape(self) -> None:
        assert escape("été [a]\\b") == "été [a]\\b"
        assert escape(EVIL) == r"\x1b[31m\x07\x9b2J\u202e\n"
        assert escape(os.fsdecode(b"\xff")) == r"\udcff"

    @pytest.mark.parametrize("arguments", [[], ["--all"]], ids=str)
    def test_of_a_solution(self, arguments: list[str], solution: Path, tmp_path: Path) -> None:
        with np.load(solution) as archive:
            arrays = dict(archive)
        ledger = json.loads(str(arrays["ledger"]))
        ledger["choices"] = [[EVIL + "what", EVIL + "picked", EVIL + "reason"]]
        ledger["seconds"] = {EVIL + "verb": 1.0}
        evil = {"status": [EVIL + "status"] * 3, "message": [f"a: {EVIL}note"] * 3, "ledger": json.dumps(ledger)}
        np.savez(tmp_path / "evil.npz", **{**arrays, **evil})
        done = drain("explain", tmp_path / "evil.npz", *arguments)
        assert done.exit_code == 0, done.output
        for word in ("status", "note", "what", "picked", "reason", "verb"):
            assert escape(EVIL) + word in done.output
        assert all(c.isprintable() or c == "\n" for c in done.output)
        assert json.loads(drain("explain", tmp_path / "evil.npz", "--json").stdout)["ledger"] == ledger

    def test_of_names_and_problems(self, source: Path, tmp_path: Path) -> None:
        folder = tmp_path / f"{EVIL}folder"
        folder.mkdir()
        evil = folder / "in.npz"
        outputs = [
            solve(source, "-o", folder / "out.npz"),
            drain("explain", folder / "out.npz", "--plot", folder / "out.png"),
            solve(evil, "-o", tmp_path / "out.npz"),
            solve(source, "-o", tmp_path / EVIL / "out.npz"),
            solve(source, "-o", tmp_path / "o.npz", "--journal", folder / "j"),
            solve(source, "-o", tmp_path / "o.npz", "--journal", folder / "j"),
            solve(source, "-o", folder),
        ]
        for arrays in ({EVIL: X}, {"x": X, "y": Y, "eps": 1.0, "cost": EVIL}, {"x": X, "y": Y, "eps": EVIL}):
            np.savez(evil, **arrays)
            outputs.append(solve(evil, "-o", tmp_path / "out.npz"))
        with zipfile.ZipFile(evil, "w") as archive:
            archive.writestr(EVIL, b"hello")
        outputs.append(solve(evil, "-o", tmp_path / "out.npz"))
        for done in outputs:
            assert done.output
            assert all(c.isprintable() or c == "\n" for c in done.output), done.output
        assert f"solution: {escape(folder)}" in outputs[0].output
        assert "3 problems are in" in outputs[5].output
