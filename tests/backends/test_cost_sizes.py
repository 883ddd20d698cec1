"""How large costs are: lengths of points near and far beyond what their squares can hold."""

from __future__ import annotations

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.backends.cost_sizes import cost_sizes
from drainsinkhorn.run.validate import validate


@pytest.mark.parametrize("scale", [1e-200, 1e-150, 1.0, 1e150, 1e200])
def test_lengths_whose_squares_are_no_numbers(scale: float) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3)), rng.normal(size=(50, 3)) + 1
    found = cost_sizes(validate(ds.Problem(x=scale * x, y=scale * y, eps=scale, cost="euclidean"), 1e-3))
    centre = (x.mean(0) + y.mean(0)) / 2
    from_x, from_y = (np.linalg.norm(points - centre, axis=1) for points in (x, y))
    assert found.largest == pytest.approx(from_x.max() + from_y.max())
    assert found.typical == pytest.approx(from_x.mean() + from_y.mean())


def test_one_point_far_away() -> None:
    x = np.array([[0.0, 0.0], [3e200, 4e200]])
    assert cost_sizes(validate(ds.Problem(x=x, y=x, eps=1e200, cost="euclidean"), 1e-3)).largest == pytest.approx(5.0)


def test_points_that_are_all_one() -> None:
    x = np.zeros((4, 2))
    assert cost_sizes(validate(ds.Problem(x=x, y=x, eps=1.0), 1e-3)).largest == 0.0


@pytest.mark.parametrize("cost", ["sqeuclidean", "euclidean"])
def test_points_without_mass_do_not_count(cost: str) -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(6, 2)), rng.normal(size=(5, 2))
    padded = np.r_[x, np.full((2, 2), 1e200)]
    weights = np.r_[np.full(6, 1 / 6), 0, 0]
    found = [ds.Problem(x=x, y=y, eps=0.5, cost=cost), ds.Problem(x=padded, y=y, a=weights, eps=0.5, cost=cost)]
    alone, beside = (cost_sizes(validate(problem, 1e-3)) for problem in found)
    assert beside == pytest.approx(alone)
