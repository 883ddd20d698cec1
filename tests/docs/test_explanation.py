"""Pages that explain the source link to files that exist, and name functions and classes that are in them."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs/explanation").glob("*.md"))
LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)\)")
EXAMPLE = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", flags=re.DOTALL | re.MULTILINE)


@cache
def names_in(path: Path) -> frozenset[str]:
    """Names that a source file defines at its top level, and members of its classes as `Class.member`."""
    names = set[str]()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{member.name}" for member in node.body if isinstance(member, ast.FunctionDef)}
    return frozenset(names)


def modules_of(page: Path) -> list[str]:
    """Modules in the first column of the tables of a page."""
    rows = re.findall(r"^\| (`[a-z_.`, ]+`) \|", page.read_text(), flags=re.MULTILINE)
    return re.findall(r"`([a-z_.]+)`", " ".join(rows))


def test_there_are_pages() -> None:
    assert PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_resolve(page: Path) -> None:
    for _, target in LINK.findall(page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_functions_exist(page: Path) -> None:
    named = [(text, target) for text, target in LINK.findall(page.read_text()) if target.endswith(".py")]
    for text, target in named:
        path = (page.parent / target).resolve()
        if text.startswith("`"):
            assert text.strip("`") in names_in(path), f"{text} is not defined in {target}"
        else:
            assert text.endswith(path.name) or path.parent == ROOT / "benchmarks", f"{text} is not the name of {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_modules_exist(page: Path) -> None:
    for name in modules_of(page):
        path = ROOT / "src/drainsinkhorn" / name.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__init__.py").is_file(), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_print_what_is_shown(page: Path) -> None:
    namespace: dict[str, object] = {}
    for code, shown in EXAMPLE.findall(page.read_text()):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(page), "exec"), namespace)
        if shown:
            assert printed.getvalue() == shown


def test_the_walk_lists_the_modules_that_run() -> None:
    page = ROOT / "docs/explanation/a-walk.md"
    script = [sys.executable, str(ROOT / "benchmarks/modules_on_the_way.py")]
    printed = subprocess.run(script, check=True, capture_output=True, text=True).stdout
    assert set(modules_of(page)) == set(re.findall(r"^ +\d+  ([a-z_.]+) ", printed, flags=re.MULTILINE))
    numbers = [int(number) for number in re.findall(r"^(\d+) modules;", printed, flags=re.MULTILINE)]
    text = " ".join(page.read_text().split())
    assert f"it reports **{numbers[0]} modules** from the call to the first `Result`" in text
    assert f"The barycentric map uses {numbers[1]} modules" in text


def test_the_page_of_the_numerics_names_every_compiled_backend() -> None:
    """Legs, residuals and updates link to functions of each backend that has its own."""
    sections = (ROOT / "docs/explanation/numerics.md").read_text().split("\n## ")
    for title in ("2. Leg", "3. Residual", "6. Update"):
        (section,) = [text for text in sections if text.startswith(title + "\n")]
        for room in ("reference", "dense"), ("cpu",), ("triton",), ("keops",), ("ottjax",):
            assert any(f"backends/{name}" in section for name in room), f"{title}: {room[0]}"
