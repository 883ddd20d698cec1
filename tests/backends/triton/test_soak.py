"""Hostile problems on a CUDA device; a new seed every time, which a failure names."""

from __future__ import annotations

import secrets

import pytest

from drainsinkhorn.testing.soak import soak
from tests.device import CUDA

pytestmark = pytest.mark.skipif(not CUDA, reason="tests/testing runs Triton's interpreter")

PARTS, EACH = 6, 500


@pytest.mark.parametrize("part", range(PARTS))
def test_no_result_on_the_device_is_false(part: int) -> None:
    tally = soak("triton", EACH, secrets.randbelow(2**31))
    assert not tally.findings, "\n".join(["", str(tally), *map(str, tally.findings)])
    assert tally.judged >= tally.problems // 5, f"{tally}: too few converge to say anything"
