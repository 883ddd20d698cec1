"""Compiled kernels on disk are those of the sources at hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conftest import needs

numba = needs("numba")

from drainsinkhorn.backends.cpu import stored  # noqa: E402


def test_another_source_is_another_folder(tmp_path: Path) -> None:
    kernel, helper = tmp_path / "kernel.py", tmp_path / "helper.py"
    kernel.write_text("from helper import two\n")
    helper.write_text("def two(): return 2\n")
    before = stored.fingerprint([kernel, helper])
    assert stored.fingerprint([kernel, helper]) == before
    helper.write_text("def two(): return 3\n")
    assert stored.fingerprint([kernel, helper]) != before


def test_kernels_lie_in_the_folder_of_their_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    (tmp_path / "kernels-old").mkdir()

    @stored.compiled()
    def twice(x: float) -> float:
        return 2 * x

    assert twice(2.0) == 4.0
    assert str(tmp_path) == numba.config.CACHE_DIR, "others' functions are kept where they were"
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("kernels-")
    assert list(folder.rglob("*.nbi")), "kept on disk, and what other sources left there is gone"


def test_a_folder_that_cannot_be_written_is_left_to_numba(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert stored._folder(str(tmp_path / "file")) == str(tmp_path / "file")
