"""Dot products as squared distances: the same plan, from potentials that differ by functions of one side."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.numerics.costs import cost_matrix
from drainsinkhorn.numerics.products import (
    as_squares,
    has_products,
    shift_potentials,
    shift_rounding,
    shifts,
    takes_gaussians,
)
from drainsinkhorn.numerics.starts import start
from drainsinkhorn.run.arguments import known_cost
from drainsinkhorn.run.validate import validate
from drainsinkhorn.testing.auditor import judge
from tests.conftest import needs

CLOUDS = np.random.default_rng(0).normal(size=(2, 12, 3)) + 2


def instance(cost: Any, dtype: str = "float64", **more: Any) -> Any:
    x, y = CLOUDS
    return validate(ds.Problem(x=x.astype(dtype), y=y[:9].astype(dtype), eps=0.7, cost=cost, **more), 1e-3)


@pytest.mark.parametrize("cost", [ds.Cost("dot", 3.0), ds.Cost("negdot", 0.5)], ids=str)
def test_costs_differ_by_the_shifts(cost: ds.Cost) -> None:
    given = instance(cost)
    squares = as_squares(given)
    phi, psi = shifts(given)
    assert has_products(given)
    assert not has_products(squares)
    difference = cost_matrix(squares)[0] - phi[:, None] - psi - cost_matrix(given)[0]
    assert np.abs(difference).max() <= 1e-13
    expected = (-1) ** (cost.kind == "negdot") * cost.scale * given.x @ given.y.T
    assert np.allclose(cost_matrix(given)[0], expected, rtol=1e-14)


def test_an_instance_is_converted_once_and_others_not_at_all() -> None:
    given, other = instance("dot"), instance("sqeuclidean")
    assert as_squares(given) is as_squares(given)
    assert as_squares(other) is other
    pair = ds.Potentials(np.zeros(12), np.zeros(9))
    assert shift_potentials(other, pair) is pair


def test_starts_are_shifted() -> None:
    f, g = np.arange(12.0), np.arange(9.0)
    given = instance("negdot", init=ds.Potentials(f, g))
    phi, psi = shifts(given)
    assert np.array_equal(as_squares(given).init.f, f + phi)
    assert np.array_equal(as_squares(given).init.g, g + psi)
    assert start(given)[0] is not None
    assert np.array_equal(start(given)[0], f)
    for name in ("zero", "gaussian"):
        by_name = start(instance("negdot", init=name))
        squares = start(as_squares(instance("negdot", init=name)))
        assert np.allclose(by_name[1], squares[1] - psi)
        assert np.allclose(by_name[0], squares[0] - phi)


def test_the_most_negative_integer_has_an_opposite() -> None:
    x = np.array([[-128], [3]], dtype=np.int8)
    given = validate(ds.Problem(x=x, y=x, eps=1.0, cost="dot"), 1e-3)
    assert as_squares(given).y.tolist() == [[128.0], [-3.0]]


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_libraries_keep_their_arrays(library: str) -> None:
    convert = needs("torch").as_tensor if library == "torch" else needs("jax").numpy.asarray
    given = instance("dot", "float32")
    given = replace(given, x=convert(given.x), y=convert(given.y))
    squares = as_squares(given)
    assert squares.x is given.x
    assert type(squares.y) is type(given.y)
    assert np.array_equal(np.asarray(squares.y), -np.asarray(given.y))


def test_the_rounding_of_a_shift_is_bounded() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(50, 40)) * 10 ** rng.uniform(-3, 3, size=(50, 1))
    given = validate(ds.Problem(x=x, y=x, eps=1.0, cost=ds.Cost("negdot", 2.0)), 1e-3)
    exact = (x.astype(np.longdouble) ** 2).sum(axis=1)
    assert (np.abs(shifts(given)[0] - exact) <= shift_rounding(40) * exact).all()


def test_gaussian_starts_are_for_squares_and_products() -> None:
    assert [takes_gaussians(known_cost(name)) for name in ("sqeuclidean", "euclidean", "cosine", "dot", "negdot")] == [
        True, False, False, True, True,
    ]  # fmt: skip


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_weights_that_would_lose_digits_are_not_changed(backend: str) -> None:
    """The smallest normal number, by which denormal weights are replaced, would become denormal again."""
    x, y = np.array([[1.0], [-500.0]]), np.array([[-47.0], [-38.0]])
    problem = ds.Problem(x=x, y=y, a=[1e-323, 0.4], b=[1.3, 5.8], eps=0.1, rho=2000.0, cost="dot", tol=1e-6)
    result = ds.solve([problem], backend=backend, warn=False)[0]
    if backend == "cpu":
        assert result.status is ds.Status.INVALID
        assert "weights are so small" in result.message
    else:
        assert not result.converged or not judge(problem, result.potentials, 1e-6).refutes(1e-6)
