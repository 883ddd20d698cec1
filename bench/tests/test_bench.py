"""`drain bench`, driven as a person would; campaigns are toys unless a test says otherwise."""

from __future__ import annotations

import json
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import toy
from typer.testing import CliRunner

from drainsinkhorn.cli.messages import escape
from drainsinkhorn_bench import named
from drainsinkhorn_bench.cli import app
from drainsinkhorn_bench.plan import Campaign, Study

cli = CliRunner()


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> list[Campaign]:
    """The only campaign there is; a test may put another into the list."""
    plans = [toy.campaign()]
    monkeypatch.setattr(named, "NAMES", ("toy",))
    monkeypatch.setattr(named, "load", lambda *_, **__: plans[0])
    return plans


def bench(*words: Any) -> Any:
    return cli.invoke(app, list(map(str, words)))


@pytest.mark.usefixtures("toys")
def test_run_then_report_twice_to_the_byte(tmp_path: Path):
    out = tmp_path / "bench"
    ran = bench("run", "--out", out, "--device", "cpu")
    assert ran.exit_code == 0, ran.output
    assert "3 of 3 done" in ran.output
    assert "about" in ran.output
    assert bench("report", out).exit_code == 0
    files = {path.name: path.read_bytes() for path in (out / "report").iterdir()}
    assert set(files) == {"index.html", "tables.md", "tables.tex"}
    # From the raw files alone, in another place.
    copy = tmp_path / "copy" / "toy"
    copy.mkdir(parents=True)
    for name in ("manifest.json", "raw.jsonl"):
        (copy / name).write_bytes((out / "toy" / name).read_bytes())
    assert bench("report", copy.parent, "--to", tmp_path / "again").exit_code == 0
    assert {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()} == files


@pytest.mark.usefixtures("toys")
def test_pieces_that_resume(tmp_path: Path):
    codes = [bench("run", "--out", tmp_path, "--seconds", 0, "--device", "cpu", "--json") for _ in range(3)]
    assert [ran.exit_code for ran in codes] == [3, 3, 0]
    assert json.loads(codes[-1].stdout)["campaigns"] == {"toy": {"done": 3, "total": 3}}


def test_void_is_said(tmp_path: Path, toys: list[Campaign]):
    def fail(_: Any) -> Any:
        raise RuntimeError("no kernel")

    toys[0] = toy.campaign(arms=[toy.arm("mask", run=fail), toy.arm("compact")])
    ran = bench("run", "--out", tmp_path, "--device", "cpu")
    assert ran.exit_code == 0
    assert "void: toy/seed0/mask: RuntimeError: no kernel" in ran.output
    assert bench("report", tmp_path).exit_code == 0
    assert "void" in (tmp_path / "report" / "tables.md").read_text()


def test_a_study_that_fails_is_no_success(tmp_path: Path, toys: list[Campaign]):
    def fail(_: Any) -> Any:
        raise RuntimeError("no kernel")

    toys[0] = toy.campaign(studies=[Study(name="bad", run=fail)])
    ran = bench("run", "--out", tmp_path, "--device", "cpu")
    assert ran.exit_code == 1
    assert "void: toy/bad/study: RuntimeError: no kernel" in ran.output


def test_ctrl_c_keeps_what_was_finished(tmp_path: Path, toys: list[Campaign]):
    def interrupt(_: Any) -> Any:
        raise KeyboardInterrupt

    toys[0] = toy.campaign(studies=[Study(name="long", run=interrupt)])
    ran = bench("run", "--out", tmp_path, "--device", "cpu")
    assert ran.exit_code == 130
    assert "interrupted" in ran.output
    toys[0] = toy.campaign(studies=[Study(name="long", run=toy.find)])
    again = bench("run", "--out", tmp_path, "--device", "cpu")
    assert again.exit_code == 0
    assert "repeat" not in again.output


@pytest.mark.usefixtures("toys")
def test_list(tmp_path: Path):
    rows = json.loads(bench("list", "--device", "cpu", "--json").stdout)
    assert rows[0]["arms"] == ["static", "mask", "compact"]
    assert "toy" in bench("list", "--device", "cpu").output


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["run", "nothing"], "there is no campaign 'nothing'"),
        (["run", "grouping", "--scale", "huge"], "scale must be one of"),
        (["run", "grouping", "--data", "/nowhere/at/all"], "must be a folder"),
        (["run", "--device", "tpu"], "device must be auto, cpu or cuda"),
        (["report", "/nowhere/at/all"], "holds no campaign"),
        (["compare", "--base", "HEAD", "--case", "huge"], "there is no case 'huge'"),
    ],
)
def test_bad_input_is_told(words: list[str], reason: str):
    ran = bench(*words)
    assert ran.exit_code == 2
    assert reason in ran.output


def test_another_manifest_is_refused(tmp_path: Path, toys: list[Campaign]):
    assert bench("run", "--out", tmp_path, "--device", "cpu").exit_code == 0
    toys[0] = toy.campaign(seed=1)
    ran = bench("run", "--out", tmp_path, "--device", "cpu")
    assert ran.exit_code == 2
    assert "seed: 0 became 1" in ran.output


def test_names_of_folders_are_escaped(tmp_path: Path):
    folder = tmp_path / "\x1b[31m\x07folder"
    folder.mkdir()
    ran = bench("report", folder)
    assert ran.exit_code == 2
    assert escape(folder) in ran.output
    assert all(c.isprintable() or c == "\n" for c in ran.output)


def test_the_entry_point_is_this_command():
    facts = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    points = facts["entry-points"]["drainsinkhorn.commands"]
    assert points == {"bench": "drainsinkhorn_bench.cli:app"}
    assert EntryPoint("bench", points["bench"], "drainsinkhorn.commands").load() is app
