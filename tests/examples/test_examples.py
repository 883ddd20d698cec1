"""The examples run without any data at hand, in little time, and draw."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import needs

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    needs("matplotlib")
    out = folder / "out.json"
    given = [name, *arguments, "--out", str(folder / "out.png"), "--json", str(out)]
    monkeypatch.setattr(sys, "argv", given)
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert (folder / "out.png").stat().st_size > 10_000
    return json.loads(out.read_text())


def test_maintenance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (part,) = run("maintenance", tmp_path, monkeypatch)
    assert part["auc"] > 0.99


def test_transitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (one,) = run("transitions", tmp_path, monkeypatch, "--bootstraps", "2")
    assert one["problems"] == 9
    assert max(one["distance"]) < 1e-3


def test_flow_matching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("torchcfm")
    needs("drainsinkhorn_bench")
    needs("sklearn")
    small = ["--updates", "48", "--batch", "96", "--hidden", "64", "--seeds", "1", "--window", "16", "--eps", "0.02"]
    found = run("flow_matching", tmp_path, monkeypatch, *small)
    assert found["residual_drained"] <= 1e-3
    assert found["residual_official"] <= 1e-3
    assert len(found["gates"]) == 9
    # Couplings of any kind straighten paths.
    assert found["drained"]["curvature"]["8"] < found["independent"]["curvature"]["8"]


def test_first_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The picture of the README is made again, and is small enough for a page."""
    needs("matplotlib")
    out = tmp_path / "first-picture.png"
    monkeypatch.setattr(sys, "argv", ["first_picture", "--out", str(out)])
    runpy.run_path(str(EXAMPLES / "first_picture.py"), run_name="__main__")
    assert 10_000 < out.stat().st_size < 150_000
    shown = EXAMPLES.parent / "docs/assets/first-picture.png"
    assert 0.9 < out.stat().st_size / shown.stat().st_size < 1.1
