"""What the wheel of the library holds, and how its benchmarks are apart from it."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import Any

import drainsinkhorn
from tests.conftest import needs

ROOT = Path(__file__).parents[2]


def project(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


def wheel_files(folder: Path) -> list[str]:
    """Paths in the wheel that would be built from a folder, without its metadata."""
    needs("hatchling")
    from hatchling.builders.wheel import WheelBuilder

    return sorted(file.distribution_path for file in WheelBuilder(str(folder)).recurse_included_files())


def test_the_wheel_of_the_library_holds_no_benchmarks() -> None:
    files = wheel_files(ROOT)
    assert "drainsinkhorn/core/executor.py" in files
    assert "drainsinkhorn/py.typed" in files
    assert {file.split("/")[0] for file in files} == {"drainsinkhorn"}
    assert not [file for file in files if "campaign" in file or "report" in file]


def test_the_wheel_of_the_benchmarks_holds_nothing_else() -> None:
    files = wheel_files(ROOT / "bench")
    assert "drainsinkhorn_bench/runner.py" in files
    assert "drainsinkhorn_bench/report/page.js" in files
    assert {file.split("/")[0] for file in files} == {"drainsinkhorn_bench"}


def test_no_module_of_the_library_imports_its_benchmarks() -> None:
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.startswith("drainsinkhorn_bench")], path


def test_the_benchmarks_need_this_version_of_the_library() -> None:
    assert f"drainsinkhorn=={drainsinkhorn.__version__}" in project(ROOT / "bench")["dependencies"]


def test_versions_agree_wherever_they_are_written() -> None:
    bench = (ROOT / "bench/src/drainsinkhorn_bench/__init__.py").read_text()
    assert f'__version__ = "{drainsinkhorn.__version__}"' in bench
    assert f"version: {drainsinkhorn.__version__}\n" in (ROOT / "CITATION.cff").read_text()
