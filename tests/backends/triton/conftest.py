"""Tests of launches for cycles have small problems, which would be resident lanes on a CUDA device."""

from __future__ import annotations

import pytest

DEFAULT = ("test_soak", "test_streams")
"""Modules whose tests run the backend as users do."""


@pytest.fixture(autouse=True)
def launches_for_cycles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an option of their own, backends have no lanes of which one program runs all cycles."""
    if request.module.__name__.rpartition(".")[2] not in DEFAULT:
        from drainsinkhorn.backends import triton

        monkeypatch.setattr(triton, "RESIDENT_POINTS", 0)
