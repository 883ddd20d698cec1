"""Potentials of any size: what rounding does to them is part of what verify says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.device import DEVICE

import drainsinkhorn as ds
from drainsinkhorn.backends.door import admit
from drainsinkhorn.backends.triton import TritonBackend
from drainsinkhorn.testing.auditor import marginal_errors


def shifted(problem: ds.Problem[Any], shift: float) -> tuple[Any, float]:
    """What verify says of the solution moved along its gauge, and what is true of it."""
    f, g = ds.solve([problem], backend="reference")[0].potentials
    start = ds.Potentials(f + shift, g - shift)
    pack = TritonBackend(device=DEVICE).pack([replace(admit(problem, 1e-2), init=start)])
    (found,), (emitted,) = pack.verify([0]), pack.emit([0])
    return found, max(marginal_errors(problem, ds.Potentials(*(np.asarray(p) for p in emitted.potentials))))


@pytest.mark.parametrize("shift", [0.0, 1e10, 1e13, 1e14, 3e14])
@pytest.mark.parametrize("seed", range(3))
def test_the_rounding_of_large_potentials_is_reported(shift: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = ds.Problem(cost=rng.random((6, 7)), eps=0.5, tol=1e-2)
    found, truth = shifted(problem, shift)
    assert truth <= max(found.row, found.col) + found.band
    if shift >= 1e14:
        assert found.band > 1e-2
