"""Every public name is on a page of the reference, with an example that prints what the page shows."""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import io
import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import needs

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs/reference").glob("*.md"))
EXAMPLE = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", flags=re.DOTALL | re.MULTILINE)
MODULES = (
    "drainsinkhorn",
    "drainsinkhorn.flow",
    "drainsinkhorn.cells",
    "drainsinkhorn.sensors",
    "drainsinkhorn.plots",
    "drainsinkhorn.ott",
    "drainsinkhorn.pot",
    "drainsinkhorn.geomloss",
    "drainsinkhorn.sklearn",
    "drainsinkhorn.parallel",
    "drainsinkhorn.serve",
    "drainsinkhorn.grad.torch",
    "drainsinkhorn.grad.jax",
    "drainsinkhorn.theory",
    "drainsinkhorn.testing",
)


def exported(module: str) -> list[str]:
    """Names that a public module exports: `import a as a` in packages, functions without underscore in grad."""
    path = ROOT / "src" / module.replace(".", "/")
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    body = ast.parse(source.read_text()).body
    if module.startswith("drainsinkhorn.grad."):
        return [node.name for node in body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    imports = (alias for node in body if isinstance(node, ast.ImportFrom) for alias in node.names)
    return [alias.name for alias in imports if alias.asname == alias.name]


NAMES = [(module, name) for module in MODULES for name in exported(module)]


def test_there_are_public_names() -> None:
    assert len(NAMES) > 90
    assert {module for module, _ in NAMES} == set(MODULES)


@pytest.mark.parametrize(("module", "name"), NAMES, ids=[f"{module}.{name}" for module, name in NAMES])
def test_a_public_name_is_on_one_page_with_an_example(module: str, name: str) -> None:
    pages = [page for page in PAGES if re.search(rf"^::: {module}\.{name}$", page.read_text(), flags=re.MULTILINE)]
    assert len(pages) == 1, f"{module}.{name} is on {len(pages)} pages of docs/reference"
    code = "\n".join(code for code, _ in EXAMPLE.findall(pages[0].read_text()))
    if re.search(rf"\b{name}\b", code):
        return
    needs("jax" if module.endswith("jax") else "numpy")
    thing: Any = getattr(importlib.import_module(module), name)
    assert ">>>" in (inspect.getdoc(thing) or ""), f"{module}.{name} has no example"


def test_the_reference_names_nothing_that_is_not_public() -> None:
    public = {f"{module}.{name}" for module, name in NAMES}
    for page in PAGES:
        assert set(re.findall(r"^::: (\S+)$", page.read_text(), flags=re.MULTILINE)) <= public


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_print_what_is_shown(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if "from ott" in page.read_text():
        needs("ott")
    namespace: dict[str, object] = {}
    for code, shown in EXAMPLE.findall(page.read_text()):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(page), "exec"), namespace)
        assert printed.getvalue() == shown
