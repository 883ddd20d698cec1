"""Tutorials and migration pages print what they show, and save the pictures that they show."""

from __future__ import annotations

import importlib.util
import math
import re
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import needs

ROOT = Path(__file__).parents[2]
TUTORIALS = sorted((ROOT / "docs/tutorials").glob("*.md"))
PAGES = sorted([*TUTORIALS, *(ROOT / "docs/coming-from").glob("*.md")])
LIBRARIES = ("anndata", "geomloss", "jax", "matplotlib", "ot", "ott", "sklearn", "torch", "torchcfm")
"""Optional libraries that pages import."""
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")
MOST_BYTES = 120_000
"""Largest size of a picture, so that pages load quickly on a phone."""


def load_script() -> ModuleType:
    """The script that makes the pictures, as a module."""
    spec = importlib.util.spec_from_file_location("make_pictures", ROOT / "docs/make_pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def python_of(page: Path) -> str:
    """All Python blocks of a page."""
    return "".join(re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE))


def pictures_of(page: Path) -> list[Path]:
    """The pictures that a page shows."""
    return [page.parent / target for target in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text())]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_print_and_save_what_they_show(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("matplotlib")
    for library in LIBRARIES:
        if re.search(rf"^(?:import|from) {library}\b", python_of(page), flags=re.MULTILINE):
            needs(library)
    monkeypatch.chdir(tmp_path)
    printed, shown = load_script().run_page(page), page.read_text()
    assert NUMBER.sub("#", printed) == NUMBER.sub("#", shown)
    for new, old in zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True):
        # Other processors round differently, which may change the last digit of a number.
        assert math.isclose(float(new), float(old), rel_tol=0.05, abs_tol=1e-3), f"{new} is printed, {old} is shown"
    assert {path.name for path in tmp_path.glob("*.png")} == {path.name for path in pictures_of(page)}


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_tutorials_show_a_picture(page: Path) -> None:
    pictures = pictures_of(page)
    assert pictures
    for picture in pictures:
        assert picture.parent.resolve() == ROOT / "docs/assets/tutorials"
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert picture.stat().st_size < MOST_BYTES


def test_every_picture_is_shown() -> None:
    shown = {picture.name for page in TUTORIALS for picture in pictures_of(page)}
    assert {path.name for path in (ROOT / "docs/assets/tutorials").iterdir()} == shown
