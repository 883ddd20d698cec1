"""JAX derivatives: against finite differences in float64, inside jit, ragged batches, and against torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from tests.conftest import needs

jax = needs("jax")

from jax import numpy as jnp  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

from drainsinkhorn.grad import jax as grad  # noqa: E402

rng = np.random.default_rng(0)
TIGHT = {"tol": 1e-11, "max_depth": 5000}
X, Y = rng.normal(size=(2, 5, 2)) + 1, rng.normal(size=(2, 4, 2)) + 1
A, B = rng.uniform(0.5, 1.5, size=(2, 5)), rng.uniform(0.5, 1.5, size=4)


def numbers(*arrays: Any) -> Any:
    return [jax.numpy.asarray(array) for array in arrays]


@pytest.mark.parametrize("cost", ["sqeuclidean", "euclidean", "cosine", "negdot"])
@pytest.mark.parametrize("name", ["value", "divergence"])
def test_values(name: str, cost: str) -> None:
    with jax.enable_x64(True):

        def run(x: Any, y: Any, a: Any, b: Any) -> Any:
            return getattr(grad, name)(x, y, a=a, b=b, eps=[0.7, 0.5], cost=cost, **TIGHT)

        check_grads(run, numbers(X, Y, A, B), order=1, modes=["rev"], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("cost", ["sqeuclidean", "euclidean", "cosine", "negdot"])
def test_potentials(cost: str) -> None:
    with jax.enable_x64(True):

        def run(x: Any, y: Any, a: Any, b: Any) -> Any:
            return grad.potentials(x, y, a=a, b=b, eps=[0.7, 0.5], cost=cost, **TIGHT)

        check_grads(run, numbers(X, Y, A, B), order=1, modes=["rev"], atol=1e-5, rtol=1e-5)


def test_jit_and_ragged_lists() -> None:
    clouds = numbers(*(rng.normal(size=(n, 3)).astype("float32") for n in (6, 9)))
    other = jax.numpy.asarray(rng.normal(size=(7, 3)).astype("float32"))

    def loss(clouds: Any) -> Any:
        return grad.divergence(clouds, other, eps=0.5).sum()

    plain, inside = jax.grad(loss)(clouds), jax.jit(jax.grad(loss))(clouds)
    for p, q, cloud in zip(plain, inside, clouds, strict=True):
        assert p.shape == cloud.shape
        assert p.dtype == cloud.dtype
        assert np.allclose(p, q)
    assert float(jax.jit(loss)(clouds)) == pytest.approx(float(loss(clouds)))


def test_the_same_as_torch() -> None:
    torch = needs("torch")
    from drainsinkhorn.grad import torch as other

    x = torch.tensor(X, requires_grad=True)
    other.divergence(x, torch.tensor(Y), eps=0.5, tol=1e-10).sum().backward()
    with jax.enable_x64(True):
        mine = jax.grad(lambda x: grad.divergence(x, Y, eps=0.5, tol=1e-10).sum())(jax.numpy.asarray(X))
        assert np.allclose(mine, x.grad.numpy(), atol=1e-9)


def test_against_ott() -> None:
    needs("ott")
    from ott.geometry import pointcloud
    from ott.tools import sinkhorn_divergence

    with jax.enable_x64(True):
        x, y = numbers(X[0], Y[0])

        def theirs(x: Any) -> Any:
            kwargs = {"threshold": 1e-10, "max_iterations": 5000}
            return sinkhorn_divergence.sinkhorn_divergence(
                pointcloud.PointCloud, x, y, epsilon=0.5, solve_kwargs=kwargs
            )[0]

        mine = jax.grad(lambda x: grad.divergence(x, y, eps=0.5, tol=1e-10)[0])(x)
        assert np.allclose(mine, jax.grad(theirs)(x), atol=1e-6)


def test_a_bad_lane_is_nan_and_harms_nobody() -> None:
    points = X.copy()
    points[1, 0, 0] = np.nan
    found, slope = jax.value_and_grad(lambda x: grad.value(x, Y, eps=0.5)[0])(jax.numpy.asarray(points))
    assert np.isfinite(found)
    assert np.isfinite(slope[0]).all()
    with pytest.raises(ds.ProblemError, match="matrices of costs take the place of the points"):
        grad.value(X, Y, eps=1.0, cost=np.ones((5, 4)))


@pytest.mark.parametrize("name", ["value", "divergence"])
def test_a_bad_lane_does_not_poison_what_it_shares(name: str) -> None:
    points = X.copy()
    points[1, 0, 0] = np.nan

    def loss(y: Any, b: Any) -> Any:
        return getattr(grad, name)(points, y, b=b, eps=0.5)[0]

    assert all(np.isfinite(slope).all() for slope in jax.grad(loss, argnums=(0, 1))(*numbers(Y[0], B)))


def test_negative_weights_are_not_turned_round() -> None:
    assert np.isnan(grad.value(X, Y, a=-np.ones(5), eps=0.5)).all()
    assert all(np.isnan(f).all() for f, _ in grad.potentials(X, Y, a=-np.ones(5), eps=0.5))


def test_potentials_of_a_bad_lane_are_nan_and_harm_nobody() -> None:
    points = X.copy()
    points[1, 0, 0] = np.nan

    def loss(y: Any, b: Any) -> Any:
        good, bad = grad.potentials(points, y, b=b, eps=0.5)
        return (good.f**2).sum(), bad

    slopes, bad = jax.grad(loss, argnums=(0, 1), has_aux=True)(*numbers(Y[0], B))
    assert np.isnan(bad.f).all()
    assert np.isnan(bad.g).all()
    assert all(np.isfinite(slope).all() for slope in slopes)


def test_no_problems_have_no_values() -> None:
    assert grad.value(X[:0], Y[0], eps=1.0).shape == grad.divergence(X[:0], Y[0], eps=1.0).shape == (0,)
    assert grad.potentials(X[:0], Y[0], eps=1.0) == []


def test_an_eps_that_falls_is_refused_outside_of_callbacks() -> None:
    x = jnp.zeros((2, 1))
    with pytest.raises(ds.ProblemError, match=r"its last value, 0\.1"):
        grad.value(x, x, eps=ds.falling([1.0, 0.1]))


def test_unconverged_problems_are_told() -> None:
    x = rng.normal(size=(2, 30, 2))
    with pytest.warns(RuntimeWarning, match="2 of 2 problems did not converge"):
        grad.value(x, rng.normal(size=(20, 2)), eps=1e-4, max_depth=2, rescue=False).block_until_ready()


def test_float32_potentials_are_differentiated_at_full_precision() -> None:
    """Potentials of clouds far apart are large, and rounded to float32 they say little of the plan."""
    own = np.random.default_rng(2)
    x, y = (own.normal(size=(n, 2)).astype("float32") + far for n, far in ((8, 0), (7, 100)))
    slopes = own.normal(size=8).astype("float32")
    slopes -= slopes.mean()

    def loss(x: Any) -> Any:
        ((f, _),) = grad.potentials(x, jax.numpy.asarray(y, x.dtype), eps=0.5, tol=1e-7)
        return (slopes * f).sum()

    found = np.asarray(jax.grad(loss)(jax.numpy.asarray(x)))
    with jax.enable_x64(True):
        truth = np.asarray(jax.grad(loss)(jax.numpy.asarray(x.astype("float64"))))
    assert np.abs(found - truth).max() < 1e-6 * np.abs(truth).max()


@pytest.mark.parametrize("name", ["value", "potentials"])
def test_costs_and_eps_have_derivatives(name: str) -> None:
    with jax.enable_x64(True):
        cost, eps = jnp.asarray(rng.uniform(0, 3, size=(2, 5, 4))), jnp.asarray([0.7, 0.4])

        def run(cost: Any, eps: Any) -> Any:
            answer = getattr(grad, name)(cost=cost, eps=eps, tol=1e-11, max_depth=5000)
            return answer.sum() if name == "value" else sum((f**2).sum() + (g**3).sum() for f, g in answer)

        slopes = jax.jit(jax.grad(run, argnums=(0, 1)))(cost, eps)
        step = 1e-5
        for place in ((0, 1, 2), (1, 4, 3)):
            moved = [run(cost.at[place].add(sign * step), eps) for sign in (1, -1)]
            assert abs((moved[0] - moved[1]) / (2 * step) - slopes[0][place]) < 1e-6
        moved = [run(cost, eps.at[1].add(sign * step)) for sign in (1, -1)]
        assert abs((moved[0] - moved[1]) / (2 * step) - slopes[1][1]) < 1e-6


def test_a_divergence_has_a_derivative_in_eps() -> None:
    with jax.enable_x64(True):
        x, y = jnp.asarray(rng.normal(size=(2, 5, 2))), jnp.asarray(rng.normal(size=(4, 2)))

        def run(eps: Any) -> Any:
            return grad.divergence(x, y, eps=eps, tol=1e-11, max_depth=5000).sum()

        eps, step = jnp.asarray(0.6), 1e-5
        slope = jax.grad(run)(eps)
        assert abs((run(eps + step) - run(eps - step)) / (2 * step) - slope) < 1e-6
