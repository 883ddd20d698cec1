"""Every formula has one place: one function of `numerics`, one link on its page, and kernels that name it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/drainsinkhorn"
PAGE = ROOT / "docs/explanation/numerics.md"
LINK = re.compile(r"\[`([^`]+)`\]\(\.\./\.\./src/drainsinkhorn/([^)]+)\)")
MODULES = sorted((SOURCE / "numerics").glob("[a-z]*.py"))

RULES = {
    "reference.py": {"ReferenceLane.cycle", "ReferenceLane._update_cols"},
    "cpu/update_kernels.py": {"update_rule"},
    "keops/pack.py": {"KeopsPack._cycle"},
    "triton/kernels/update.py": {"update_rule"},
    "ottjax/kernels.py": {"apply_leg"},
}
"""Functions that apply the update rule, by module of `backends`. Every backend with a rule of its own has an entry."""


def functions_of(path: Path) -> dict[str, ast.FunctionDef]:
    """Functions of a module, and methods as `Class.method`."""
    functions = dict[str, ast.FunctionDef]()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            functions[node.name] = node
        if isinstance(node, ast.ClassDef):
            functions |= {f"{node.name}.{each.name}": each for each in node.body if isinstance(each, ast.FunctionDef)}
    return functions


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_the_page_links_every_public_function_once(path: Path) -> None:
    linked = [name for name, target in LINK.findall(PAGE.read_text()) if target == f"numerics/{path.name}"]
    public = [name for name in functions_of(path) if "." not in name and not name.startswith("_")]
    assert {name: linked.count(name) for name in public} == dict.fromkeys(public, 1)


def test_no_public_function_has_the_name_of_another() -> None:
    names = [name for path in MODULES for name in functions_of(path) if "." not in name and name[0] != "_"]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("module", RULES)
def test_functions_that_apply_the_update_rule_name_it(module: str) -> None:
    functions = functions_of(SOURCE / "backends" / module)
    for name in RULES[module]:
        assert "numerics.update" in (ast.get_docstring(functions[name]) or ""), f"{name} does not name its formula"


def test_the_page_names_the_functions_that_apply_the_update_rule() -> None:
    """The section on the update links to every rule above, so that a reader finds it."""
    (section,) = [text for text in PAGE.read_text().split("\n## ") if text.startswith("6. Update\n")]
    linked = {(target.removeprefix("backends/"), name) for name, target in LINK.findall(section)}
    for module, names in RULES.items():
        assert any((module, name) in linked for name in names), module


@pytest.mark.parametrize("folder", ["src/drainsinkhorn", "bench/src"])
def test_no_module_compares_the_name_of_a_cost(folder: str) -> None:
    """A cost is asked for its form; `numerics.costs` alone knows names."""
    compared = list[str]()
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare):
                values = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
                if {"sqeuclidean", "euclidean", "cosine", "dot", "negdot"} & {
                    value for value in values if isinstance(value, str)
                }:
                    compared.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert compared == []
