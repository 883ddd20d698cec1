"""The journal: what was finished outlives the program, is never solved twice, and damage is recovered and said."""

from __future__ import annotations

import gc
import random
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import drainsinkhorn as ds
from drainsinkhorn.cli.main import app
from drainsinkhorn.core.events import Event, Opened, Repacked, Resumed
from drainsinkhorn.model.errors import FileError
from drainsinkhorn.run.journal import fingerprint
from tests.conftest import needs
from tests.faulty import assert_same, batch, same

ROOT = Path(__file__).parents[2]


class Watch:
    """Keeps which tickets really ran, and what the journal said."""

    def __init__(self) -> None:
        self.ran: list[int] = []
        self.resumed: Resumed | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, Opened):
            self.ran += event.tickets
        elif isinstance(event, Repacked):
            self.ran += event.admitted
        elif isinstance(event, Resumed):
            self.resumed = event


def stopped_after(count: int, problems: list[ds.Problem[Any]], path: Path, **settings: Any) -> list[int]:
    """Tickets handed out before the consumer went away."""
    run = ds.stream(iter(problems), journal=path, width=8, **settings)
    seen = [next(run).ticket for _ in range(count)]
    run.close()
    return seen


@pytest.mark.parametrize("count", [0, 1, 17, 60])
def test_a_run_goes_on_where_it_was(count: int, tmp_path: Path) -> None:
    problems, watch = batch(60), Watch()
    truth = list(ds.solve(problems))
    seen = stopped_after(count, problems, tmp_path / "run.journal")
    results = list(ds.stream(iter(problems), journal=tmp_path / "run.journal", width=8, observe=watch))
    assert_same(results, truth)
    assert watch.resumed is not None
    assert watch.resumed.known >= count
    assert watch.resumed.torn == 0
    assert len(watch.ran) == len(set(watch.ran)) == 60 - watch.resumed.known
    assert not set(seen) & set(watch.ran)


def test_costs_of_the_callers_own_are_told_apart() -> None:
    needs("jax")
    costs = needs("ott").geometry.costs
    x = np.zeros((3, 2))

    def digest(cost: Any) -> bytes:
        return fingerprint(ds.Problem(x=x, y=x, eps=1.0, cost=cost))

    assert digest(costs.PNormP(1.5)) == digest(costs.PNormP(1.5)) == digest(ds.Cost(costs.PNormP(1.5)))
    assert digest(costs.PNormP(1.5)) != digest(costs.PNormP(2.5))
    assert digest(ds.Formula("SqDist(x, y)")) != digest(ds.Formula("Norm2(x - y)"))


def test_solve_keeps_one_too(tmp_path: Path) -> None:
    problems, watch = batch(20), Watch()
    stopped_after(7, problems, tmp_path / "run.journal")
    solution = ds.solve(problems, journal=tmp_path / "run.journal", observe=watch)
    assert_same(list(solution), list(ds.solve(problems)))
    assert len(watch.ran) < 14


def test_every_status_and_start(tmp_path: Path) -> None:
    problems = batch(9)
    hard = ds.Problem(x=problems[0].x, y=problems[0].y, eps=1e-3)
    bad = ds.Problem(x=np.array([[np.nan]]), y=np.zeros((1, 1)), eps=1.0)
    problems = [bad, hard, *problems, "no problem"]  # type: ignore[list-item]
    first = list(ds.stream(iter(problems), journal=tmp_path / "j", max_depth=20, warn=False))
    again = list(ds.stream(iter(problems), journal=tmp_path / "j", max_depth=20, warn=False))
    first, again = (sorted(run, key=lambda r: r.ticket) for run in (first, again))
    assert [r.message for r in first] == [r.message for r in again]
    assert {r.status for r in first} == {ds.Status.INVALID, ds.Status.DEPTH_LIMIT, ds.Status.CONVERGED}
    assert all(same(r, s) for r, s in zip(first[1:-1], again[1:-1], strict=True))
    assert [r.rescued for r in again] == [r.rescued for r in first]
    assert any(r.rescued for r in again)


def test_chains_go_on_from_what_is_recorded(tmp_path: Path) -> None:
    problems = [ds.Problem(x=p.x, y=p.y, eps=p.eps, chain=i % 3) for i, p in enumerate(batch(24))]
    truth = sorted(ds.stream(iter(problems)), key=lambda r: r.ticket)
    stopped_after(10, problems, tmp_path / "j")
    assert_same(list(ds.stream(iter(problems), journal=tmp_path / "j")), truth)


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_results_come_back_in_the_callers_library(library: str, tmp_path: Path) -> None:
    module = needs(library)
    make = module.tensor if library == "torch" else module.numpy.asarray
    problems = [ds.Problem(x=make(np.float32(p.x)), y=make(np.float32(p.y)), eps=p.eps) for p in batch(4)]
    first, again = (list(ds.stream(iter(problems), journal=tmp_path / "j")) for _ in range(2))
    for r, s in zip(sorted(first, key=lambda r: r.ticket), sorted(again, key=lambda r: r.ticket), strict=True):
        assert same(r, s)
        s.transport_cost()


class TestRefusals:
    def test_other_problems(self, tmp_path: Path) -> None:
        stopped_after(9, batch(9), tmp_path / "j")
        with pytest.raises(FileError, match=r"problem 0 is not the one.*same problems in the same order"):
            list(ds.stream(iter(batch(9, seed=1)), journal=tmp_path / "j"))

    def test_other_options(self, tmp_path: Path) -> None:
        stopped_after(1, batch(3), tmp_path / "j")
        with pytest.raises(FileError, match=r"tol = 0.001, this run has 0.01"):
            ds.stream(iter(batch(3)), journal=tmp_path / "j", tol=0.01)
        # Width and mode change no result.
        assert len(list(ds.stream(iter(batch(3)), journal=tmp_path / "j", width=2, mode="compact"))) == 3

    def test_another_backend(self, tmp_path: Path) -> None:
        stopped_after(1, batch(3), tmp_path / "j")
        with pytest.raises(FileError, match="backend = cpu, this run has reference"):
            ds.stream(iter(batch(3)), journal=tmp_path / "j", backend="reference")

    def test_two_runs_at_once(self, tmp_path: Path) -> None:
        first = ds.stream(iter(batch(9)), journal=tmp_path / "j")
        next(first)
        with pytest.raises(FileError, match="in use by another run"):
            ds.stream(iter(batch(9)), journal=tmp_path / "j")
        first.close()
        assert len(list(ds.stream(iter(batch(9)), journal=tmp_path / "j"))) == 9

    def test_a_stream_that_is_dropped_before_it_was_read_gives_the_file_back(self, tmp_path: Path) -> None:
        gc.collect()
        gc.disable()
        try:
            ds.stream(batch(2), journal=tmp_path / "j")
            assert ds.solve(batch(2), journal=tmp_path / "j").converged
        finally:
            gc.enable()

    def test_what_is_no_journal(self, tmp_path: Path) -> None:
        (tmp_path / "text").write_text("not a journal, " * 100)
        with pytest.raises(FileError, match="is no journal"):
            ds.stream(iter(batch(1)), journal=tmp_path / "text")
        assert (tmp_path / "text").read_text().startswith("not a journal")
        with pytest.raises(FileError, match="is no folder"):
            ds.stream(iter(batch(1)), journal=tmp_path / "nowhere" / "j")
        with pytest.raises(FileError, match="cannot be opened"):
            ds.stream(iter(batch(1)), journal=tmp_path)
        with pytest.raises(ds.OptionsError, match="journal must be the path of a file, got 5"):
            ds.stream(iter(batch(1)), journal=5)  # type: ignore[arg-type]

    @pytest.mark.parametrize("table", ["orders (id INTEGER)", "about (us TEXT)"])
    def test_a_database_of_something_else(self, table: str, tmp_path: Path) -> None:
        database = sqlite3.connect(tmp_path / "shop.db")
        database.execute(f"CREATE TABLE {table}")
        database.close()
        before = (tmp_path / "shop.db").read_bytes()
        with pytest.raises(FileError, match=r"is a database with a table .* that is no journal"):
            ds.stream(iter(batch(1)), journal=tmp_path / "shop.db")
        assert [path.name for path in tmp_path.iterdir()] == ["shop.db"]
        assert (tmp_path / "shop.db").read_bytes() == before


PROGRAM = """
import sys
from pathlib import Path
import drainsinkhorn as ds
from tests.faulty import batch
done = Path(sys.argv[2]).open("a")
for result in ds.stream(iter(batch(int(sys.argv[3]))), journal=sys.argv[1], width=8):
    done.write(f"{result.ticket}\\n")
    done.flush()
"""


def test_kill_nine_of_the_program_loses_nothing(tmp_path: Path) -> None:
    count, rng = 1500, random.Random(0)
    journal, seen = tmp_path / "j", tmp_path / "seen"
    for _ in range(3):
        before = len(seen.read_text().splitlines()) if seen.exists() else 0
        child = subprocess.Popen([sys.executable, "-c", PROGRAM, str(journal), str(seen), str(count)], cwd=ROOT)
        # At work, and then a random moment later.
        while child.poll() is None and (not seen.exists() or len(seen.read_text().splitlines()) <= before):
            time.sleep(0.01)
        time.sleep(0.1 * rng.random())
        child.kill()
        child.wait()
    problems, watch = batch(count), Watch()
    results = list(ds.stream(iter(problems), journal=journal, width=8, observe=watch))
    assert_same(results, list(ds.solve(problems)))
    assert watch.resumed is not None
    handed_out = {int(line) for line in seen.read_text().splitlines()}
    assert watch.resumed.known >= len(handed_out) > 0
    assert not handed_out & set(watch.ran)


class TestTornTail:
    """A copy of the files as a killed run leaves them, cut short."""

    @pytest.fixture
    def torn(self, tmp_path: Path) -> Path:
        problems = batch(60)
        run = ds.stream(iter(problems), journal=tmp_path / "live", width=8)
        for _ in range(40):
            next(run)
        for suffix in ("", "-wal"):
            (tmp_path / f"torn{suffix}").write_bytes((tmp_path / f"live{suffix}").read_bytes())
        run.close()
        return tmp_path / "torn"

    @pytest.mark.parametrize("cut", [1, 100, 5000, 50_000])
    def test_a_wal_cut_short(self, torn: Path, cut: int) -> None:
        wal, watch = torn.with_name("torn-wal"), Watch()
        wal.write_bytes(wal.read_bytes()[:-cut])
        results = list(ds.stream(iter(batch(60)), journal=torn, width=8, observe=watch))
        assert_same(results, list(ds.solve(batch(60))))
        assert watch.resumed is not None
        assert watch.resumed.torn > 0
        assert 0 < watch.resumed.known < 40
        assert len(watch.ran) == 60 - watch.resumed.known

    def test_a_flipped_byte_in_the_wal(self, torn: Path) -> None:
        wal, watch = torn.with_name("torn-wal"), Watch()
        raw = bytearray(wal.read_bytes())
        raw[-5000] ^= 1
        wal.write_bytes(raw)
        assert_same(list(ds.stream(iter(batch(60)), journal=torn, observe=watch)), list(ds.solve(batch(60))))
        assert watch.resumed is not None
        assert watch.resumed.torn > 0

    def test_whole_files_are_not_called_torn(self, torn: Path) -> None:
        watch = Watch()
        assert_same(list(ds.stream(iter(batch(60)), journal=torn, observe=watch)), list(ds.solve(batch(60))))
        assert watch.resumed is not None
        assert (watch.resumed.torn, watch.resumed.known) == (0, 40)

    @pytest.mark.parametrize("kept", [0.5, 0.9])
    def test_the_file_itself_cut_short(self, tmp_path: Path, kept: float) -> None:
        path, watch = tmp_path / "j", Watch()
        list(ds.stream(iter(batch(60)), journal=path))
        raw = path.read_bytes()
        path.write_bytes(raw[: int(kept * len(raw))])
        results = list(ds.stream(iter(batch(60)), journal=path, observe=watch))
        assert_same(results, list(ds.solve(batch(60))))
        assert watch.resumed is not None
        assert watch.resumed.salvaged is not None
        assert (tmp_path / "j.damaged").stat().st_size == int(kept * len(raw))

    def test_a_row_that_is_not_whole_is_solved_again(self, tmp_path: Path) -> None:
        path, watch = tmp_path / "j", Watch()
        list(ds.stream(iter(batch(20)), journal=path))
        database = sqlite3.connect(path)
        database.execute("UPDATE ended SET depth = depth + 1 WHERE ticket = 7")
        database.commit()
        database.close()
        assert_same(list(ds.stream(iter(batch(20)), journal=path, observe=watch)), list(ds.solve(batch(20))))
        assert watch.ran == [7]


def test_the_command_line_says_what_it_found(tmp_path: Path) -> None:
    source, out, journal = tmp_path / "in.npz", tmp_path / "out.npz", tmp_path / "j"
    np.savez(source, x=np.zeros((3, 4, 2)), y=np.ones((3, 5, 2)), eps=1.0)
    command = ["solve", str(source), "-o", str(out), "--journal", str(journal)]
    first, again = (CliRunner().invoke(app, command) for _ in range(2))
    assert (first.exit_code, again.exit_code) == (0, 0)
    assert "already" not in first.stderr
    assert "3 problems are in" in again.stderr


@pytest.mark.skipif(np.dtype(np.longdouble).itemsize != 16, reason="long doubles have no bytes to spare here")
def test_a_fingerprint_does_not_depend_on_bytes_that_belong_to_no_number() -> None:
    """A long double has 10 bytes of 16."""
    values, prints = np.random.default_rng(0).normal(size=(6, 2)).astype(np.longdouble) / 3, set()
    for filling in (0, 255):
        raw = np.frombuffer(bytearray(values.tobytes()), dtype=np.uint8)
        raw.reshape(-1, 16)[:, 10:] = filling
        x = raw.view(np.longdouble).reshape(6, 2)
        assert np.array_equal(x, values)
        prints.add(fingerprint(ds.Problem(x=x, y=np.zeros((3, 2)), eps=1.0)))
    assert len(prints) == 1
    finer = values + values * np.longdouble(2) ** -60
    assert fingerprint(ds.Problem(x=finer, y=np.zeros((3, 2)), eps=1.0)) not in prints
