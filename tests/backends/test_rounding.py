"""Rounding that a sample of points does not show: of a few points far from the others, and of large potentials."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.backends import load
from drainsinkhorn.numerics.rounding import unsampled_size
from drainsinkhorn.run.validate import validate
from drainsinkhorn.testing.auditor import judge, marginal_errors
from tests.conftest import needs


def cpu(representation: str) -> Any:
    needs("numba")
    from drainsinkhorn.backends.cpu import CpuBackend

    return CpuBackend(representation=representation)  # type: ignore[arg-type]


def optional(name: str, module: str) -> Any:
    pytest.importorskip(module)
    return load(name)


BACKENDS: dict[str, Callable[[], Any]] = {
    "reference": lambda: load("reference"),
    "cpu, cached": lambda: cpu("cached"),
    "cpu, streaming": lambda: cpu("streaming"),
    "ott": lambda: optional("ott", "ott"),
    "keops": lambda: optional("keops", "pykeops"),
}


def with_outliers(seed: int, score: float, count: int, *, both: bool, size: int = 150) -> ds.Problem[Any]:
    """Clouds of which a few points are so far off that their scores are of this size; eps is 1."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(size, 3)), rng.normal(size=(size, 3))
    for place in rng.choice(np.arange(1, size - 1), count, replace=False):
        direction = rng.normal(size=3)
        y[place] = direction / np.linalg.norm(direction) * math.sqrt(score)
        if both:
            x[7 * place % size] = -y[place]
    return ds.Problem(x=x, y=y, eps=1.0)


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("score", [1e4, 1e5, 1e6])
@pytest.mark.parametrize("name", BACKENDS)
def test_bands_cover_points_that_no_sample_has(name: str, score: float, both: bool) -> None:
    backend = BACKENDS[name]()
    for seed in range(3):
        problem = with_outliers(seed, score, 1 + seed, both=both)
        pack = backend.pack([validate(problem, 1e-2)])
        for _ in range(5):
            pack.advance(3, [-1.0])
            (said,), (certified,) = pack.verify([0]).rows(), pack.verify([0], exact=True).rows()
            if certified.worst < 0.5:
                error = max(abs(said.row - certified.row), abs(said.col - certified.col))
                assert error <= said.band + certified.band, (seed, said, certified)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_result_whose_rounding_is_that_of_one_point_is_true(name: str) -> None:
    problems = [replace(with_outliers(seed, 1e6, 1, both=True), tol=1e-3) for seed in range(6)]
    for result in ds.solve(problems, backend=BACKENDS[name](), max_depth=300, warn=False, recheck="none"):
        assert result.converged, result
        assert not judge(result.problem, result.potentials, 1e-3).refutes(1e-3), result


@pytest.mark.parametrize("shift", [0.0, 1e8, 1e11, 1e13, 1e14, 3e14])
@pytest.mark.parametrize("precise", [False, True])
@pytest.mark.parametrize("name", BACKENDS)
def test_bands_cover_the_rounding_of_large_potentials(name: str, precise: bool, shift: float) -> None:
    backend = BACKENDS[name]()
    if precise:
        backend = backend.precise()
    for seed in range(3):
        rng = np.random.default_rng(seed)
        problem = ds.Problem(x=rng.normal(size=(6, 2)), y=rng.normal(size=(7, 2)), eps=0.5, tol=1e-2)
        f, g = ds.solve([problem], backend="reference")[0].potentials
        # Validation would remove the shift.
        instance = replace(validate(problem, 1e-2), init=ds.Potentials(f + shift, g - shift))
        pack = backend.pack([instance])
        (said,), emitted = pack.verify([0]).rows(), pack.emit([0])
        potentials = ds.Potentials(*(np.asarray(p) for p in emitted.potentials(0)))
        assert not max(marginal_errors(problem, potentials)) > said.worst, (seed, said)
        if shift >= 1e14:
            assert not said.band <= 1e-2, said


def test_a_sample_accounts_for_points_like_its_own() -> None:
    rng = np.random.default_rng(0)
    weights, places = np.full(1000, 1e-3), np.linspace(0, 999, 32).astype(int)
    potentials = rng.normal(size=1000)
    assert unsampled_size(np, weights, potentials, places) == 0
    assert unsampled_size(np, weights, potentials + 1e6, places) == 0, "the gauge does not count"
    potentials[1] = 1e6
    assert 0.9e3 < unsampled_size(np, weights, potentials, places) < 1e3
