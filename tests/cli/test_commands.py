"""Commands that other distributions add to `drain`."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import EntryPoints
from pathlib import Path

import pytest
from typer.testing import CliRunner

from drainsinkhorn.cli import commands
from drainsinkhorn.cli.main import app

MODULE = """
import typer

app = typer.Typer(name="weigh", help="Weigh a plan.")


@app.callback()
def group() -> None:
    pass


@app.command()
def plan(path: str) -> None:
    print(f"{path} weighs one")
"""


@pytest.fixture
def weighing(tmp_path: Path) -> Path:
    """A folder with an installed distribution that registers `drain weigh`."""
    (tmp_path / "weighing.py").write_text(MODULE)
    facts = tmp_path / "weighing-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: weighing\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[drainsinkhorn.commands]\nweigh = weighing:app\n")
    return tmp_path


def drain(folder: Path, *words: str) -> str:
    paths = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    started = [sys.executable, "-m", "drainsinkhorn.cli.main", *words]
    return subprocess.run(
        started, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=True
    ).stdout


def test_an_installed_command_runs_and_is_listed(weighing: Path) -> None:
    assert drain(weighing, "weigh", "plan", "out.npz") == "out.npz weighs one\n"
    listed = drain(weighing, "--help")
    assert "Weigh a plan." in listed
    assert "Solve problems of an .npz file" in listed


def test_an_own_command_is_not_replaced(weighing: Path) -> None:
    (weighing / "weighing-1.0.dist-info/entry_points.txt").write_text(
        "[drainsinkhorn.commands]\nbackends = weighing:app\n"
    )
    assert "auto takes" in drain(weighing, "backends")


@pytest.mark.parametrize("words", [["bench"], ["bench", "--help"], ["bench", "run", "--scale", "full"]], ids=str)
def test_bench_says_what_to_install(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "entry_points", lambda **_: EntryPoints())
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert "error: drain bench is part of drainsinkhorn-bench, which is not installed" in done.output
    assert "pip install drainsinkhorn-bench" in done.output
    assert "bench" not in CliRunner().invoke(app, ["--help"]).output
