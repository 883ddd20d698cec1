"""Settings of the Triton backend for its tests, where these do not choose their own."""

from __future__ import annotations

import pytest

from tests.device import CUDA

AS_USERS = ("test_soak", "test_streams")
"""Modules whose tests run the backend as users do."""
SAMPLED_TOGETHER = 8
"""Sampled rows of a program in the interpreter, which takes as long for one row; results are equal to the bit."""


@pytest.fixture(autouse=True)
def settings_of_tests(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launch for every cycle: small problems would be resident lanes on a CUDA device. Sample rows some at a time."""
    from drainsinkhorn.backends import triton
    from drainsinkhorn.backends.triton import launcher

    name = request.module.__name__.rpartition(".")[2]
    if name not in AS_USERS:
        monkeypatch.setattr(triton, "RESIDENT_POINTS", 0)
    # One module keeps the programs that run on a device.
    if not CUDA and name != "test_numerics":
        monkeypatch.setattr(launcher, "SAMPLE_BM", SAMPLED_TOGETHER)
