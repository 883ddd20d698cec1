"""What the documents show runs, and what they link to exists."""

from __future__ import annotations

import ast
import contextlib
import io
import re
from pathlib import Path

import pytest

from tests.conftest import needs

ROOT = Path(__file__).parents[2]
ROOT_PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "bench/README.md")]
PAGES = [*ROOT_PAGES, *sorted((ROOT / "docs").rglob("*.md"))]


RUN_ELSEWHERE = ("coming-from", "explanation", "reference", "tutorials")
"""Folders whose blocks other tests run, which also compare what they print."""


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.parent.name not in RUN_ELSEWHERE], ids=lambda page: page.name
)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if "from ott" in page.read_text():
        # What it warns of while it is imported is not ours to mend.
        needs("ott")
    if "from drainsinkhorn_bench" in page.read_text():
        needs("drainsinkhorn_bench")
    namespace: dict[str, object] = {}
    for block in re.findall(r"^( *)```python\n(.*?)^ *```", page.read_text(), flags=re.DOTALL | re.MULTILINE):
        indent, code = block
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(re.sub(f"^{indent}", "", code, flags=re.MULTILINE), str(page), "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_tests_exist(page: Path) -> None:
    for path in re.findall(r"`(tests/[a-z_/]+\.py)`", page.read_text()):
        assert (ROOT / path).is_file(), path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_are_wrapped(page: Path) -> None:
    """Lines of prose have at most 120 characters; tables and code may be longer."""
    prose = re.sub(r"^( *)```.*?^\1```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert not [line for line in prose.splitlines() if len(line) > 120 and not line.lstrip().startswith("|")]


LOOP = ("execute", "run", "_open", "_advance", "_audit", "_repack")
"""Functions of the executor's loop: windows, and what a window does in every round."""


def test_the_executor_can_be_read_in_one_sitting() -> None:
    source = (ROOT / "src/drainsinkhorn/core/executor.py").read_text()
    functions = {each.name: each for each in ast.walk(ast.parse(source)) if isinstance(each, ast.FunctionDef)}
    assert sum(functions[name].end_lineno - functions[name].lineno + 1 for name in LOOP) <= 120
    lines = source.splitlines()
    assert len(lines) <= 350
    texts = {each.value for each in ast.walk(ast.parse(source)) if isinstance(each, ast.Constant)}
    for mode in ("width-one", "static", "mask", "compact", "stream"):
        assert mode not in texts, f"the executor has a branch for {mode}"


def test_make_help_lists_every_command() -> None:
    text = (ROOT / "Makefile").read_text()
    commands = re.search(r"^\.PHONY: (.*)$", text, flags=re.MULTILINE)
    assert commands
    assert set(re.findall(r"^([a-z-]+):.*## \S", text, flags=re.MULTILINE)) == set(commands[1].split())
