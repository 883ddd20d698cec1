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
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "bench/README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
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


def test_the_readme_names_tests_that_exist() -> None:
    for path in re.findall(r"`(tests/[a-z_/]+\.py)`", (ROOT / "README.md").read_text()):
        assert (ROOT / path).is_file(), path


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
