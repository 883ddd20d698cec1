"""Growth rates and soft marginals of `couple_timepoints`, compared with OTT, which moscot calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.cells import couple_timepoints
from drainsinkhorn.numerics.arrays import to_numpy
from tests.conftest import needs

RNG = np.random.default_rng(0)
CLOUDS = {t: RNG.normal(size=(size, 3)) + 0.5 * t for t, size in ((0, 30), (1, 40), (2, 35))}
GROWTH = {t: RNG.uniform(0.2, 3, size=len(CLOUDS[t])) for t in (0, 1)}


@pytest.mark.parametrize("taus", [(0.9, 0.8), (1.0, 0.7), (0.95, 1.0)])
def test_plans_are_those_of_ott(taus: tuple[float, float]) -> None:
    jax = needs("jax")
    needs("ott")
    from ott.geometry import pointcloud
    from ott.problems.linear.linear_problem import LinearProblem
    from ott.solvers.linear.sinkhorn import Sinkhorn

    course = couple_timepoints(CLOUDS, growth=GROWTH, tau_a=taus[0], tau_b=taus[1], tol=1e-11, backend="reference")
    with jax.enable_x64(True):
        for k in (0, 1):
            result, growth = course.result(k), GROWTH[k] / GROWTH[k].sum()
            geom = pointcloud.PointCloud(*map(jax.numpy.asarray, (CLOUDS[k], CLOUDS[k + 1])), epsilon=result.eps)
            problem = LinearProblem(geom, jax.numpy.asarray(growth), None, *taus)
            theirs = Sinkhorn(threshold=1e-11, max_iterations=50_000)(problem)
            np.testing.assert_allclose(to_numpy(result.plan()), np.asarray(theirs.matrix), rtol=1e-5, atol=1e-14)


def test_growth_is_the_marginal_of_the_sources() -> None:
    course = couple_timepoints(CLOUDS, growth=GROWTH, tol=1e-9)
    np.testing.assert_allclose(to_numpy(course.result(0).plan()).sum(1), GROWTH[0] / GROWTH[0].sum(), atol=1e-8)
    np.testing.assert_allclose(to_numpy(course.result(1).plan()).sum(0), 1 / 35, atol=1e-8)
    joined, times = np.concatenate(list(CLOUDS.values())), np.repeat([0, 1, 2], [30, 40, 35])
    # Growth at the last time point is not read.
    values = np.concatenate([*GROWTH.values(), np.full(35, np.nan)])
    same = couple_timepoints(joined, times, growth=values, tol=1e-9)
    assert np.array_equal(same.result(1).potentials.f, course.result(1).potentials.f)


def test_bootstraps_have_growth_and_soft_marginals() -> None:
    course = couple_timepoints(CLOUDS, growth=GROWTH, tau_a=0.9, bootstraps=3)
    assert course.solution.converged
    assert all(result.problem.rho[0] < np.inf and result.problem.rho[1] == np.inf for result in course.solution)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tau_a": 0.0}, "tau_a must be above 0 and at most 1"),
        ({"tau_b": 1.5}, "tau_b must be above 0 and at most 1"),
        ({"growth": {0: np.ones(3)}}, "growth of time point 0 must be 30 numbers"),
        ({"growth": {0: -np.ones(30), 1: np.ones(40)}}, "must be finite, not negative"),
        ({"growth": np.ones(105)}, "growth is a mapping from times"),
    ],
)
def test_bad_arguments(settings: Any, words: str) -> None:
    with pytest.raises(ds.ProblemError, match=words):
        couple_timepoints(CLOUDS, **settings)
