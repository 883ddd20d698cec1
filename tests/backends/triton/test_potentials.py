"""Potentials of any size: what rounding does to them is part of what verify says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.backends.triton import TritonBackend
from drainsinkhorn.run.validate import validate
from drainsinkhorn.testing.auditor import marginal_errors
from tests.device import DEVICE


def shifted(problem: ds.Problem[Any], shift: float) -> tuple[Any, float]:
    """What verify says of the solution moved along its gauge, and what is true of it."""
    f, g = ds.solve([problem], backend="reference")[0].potentials
    start = ds.Potentials(f + shift, g - shift)
    pack = TritonBackend(device=DEVICE).pack([replace(validate(problem, 1e-2), init=start)])
    (found,), emitted = pack.verify([0]).rows(), pack.emit([0])
    return found, max(marginal_errors(problem, ds.Potentials(*(np.asarray(p) for p in emitted.potentials(0)))))


@pytest.mark.parametrize("shift", [0.0, 1e10, 1e13, 1e14, 3e14])
@pytest.mark.parametrize("seed", range(3))
def test_the_rounding_of_large_potentials_is_reported(shift: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = ds.Problem(cost=rng.random((6, 7)), eps=0.5, tol=1e-2)
    found, truth = shifted(problem, shift)
    assert truth <= max(found.row, found.col) + found.band
    if shift >= 1e14:
        assert found.band > 1e-2


@pytest.mark.filterwarnings("ignore:overflow", "ignore:divide")
@pytest.mark.parametrize("light", [1e-35, 1e-60, 1e-300])
def test_light_points_with_large_ratios_count(light: float) -> None:
    # The costs of light rows are so low that rows of no weight to speak of take much mass at first.
    cost = np.where(np.arange(8)[:, None] < 5, 0.0, 1000.0) * np.ones((8, 31))
    a = np.where(np.arange(8) < 5, light, 1.0)
    problem = ds.Problem(cost=cost, a=a / a.sum(), eps=1.0, tol=0.5, init="zero")
    pack = TritonBackend(device=DEVICE).pack([validate(problem, 0.5)])
    for _ in range(3):
        (said,), (certified,) = pack.verify([0]).rows(), pack.verify([0], exact=True).rows()
        assert abs(said.row - certified.row) <= said.band + certified.band
        assert abs(said.col - certified.col) <= said.band + certified.band
        pack.advance(1, [-1.0])


def test_arrays_of_one_row_turned_around_are_read() -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 1, 3))
    (result,) = ds.solve([ds.Problem(x=x[::-1], y=y[:, ::-1], eps=1.0)], backend=TritonBackend(device=DEVICE))
    assert result.converged


def test_directions_that_nearly_agree_are_known_only_to_rounding() -> None:
    rng = np.random.default_rng(4)
    x, y = (
        np.outer(rng.uniform(1, 3, size=size), [0.3, -0.7, 0.2]) + 1e-8 * rng.normal(size=(size, 3)) for size in (6, 7)
    )
    problem = ds.Problem(x=x, y=y, eps=1e-15, tol=1e-3, cost="cosine")
    pack = TritonBackend(device=DEVICE).pack([validate(problem, 1e-3)])
    pack.advance(2, [-1.0])
    (said,), (certified,) = pack.verify([0]).rows(), pack.verify([0], exact=True).rows()
    assert certified.band > 1e-9
    assert said.band > certified.band / 8
    assert abs(said.row - certified.row) <= said.band + certified.band


@pytest.mark.filterwarnings("ignore:overflow", "ignore:divide")
@pytest.mark.parametrize("seed", [1, 2])
def test_bands_cover_points_that_no_sample_has(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(80, 3)), rng.normal(size=(80, 3))
    # A place that is not among the 32 sampled rows.
    place, direction = int(rng.integers(1, 79)), rng.normal(size=3)
    y[place] = direction / np.linalg.norm(direction) * np.sqrt(1e5)
    pack = TritonBackend(device=DEVICE).pack([validate(ds.Problem(x=x, y=y, eps=1.0), 1e-2)])
    for _ in range(3):
        pack.advance(3, [-1.0])
        (said,), (certified,) = pack.verify([0]).rows(), pack.verify([0], exact=True).rows()
        error = max(abs(said.row - certified.row), abs(said.col - certified.col))
        assert error <= said.band + certified.band, (said, certified)
