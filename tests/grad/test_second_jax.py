"""Second derivatives and soft marginals in JAX: against finite differences, against torch, and in every composition."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from tests.conftest import needs

jax = needs("jax")

from jax import numpy as jnp  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

from drainsinkhorn.grad import jax as grad  # noqa: E402

INF = math.inf
TIGHT: dict[str, Any] = {"tol": 1e-12, "max_depth": 20_000, "backend": "reference"}
rng = np.random.default_rng(0)
X, Y = rng.normal(size=(2, 4, 2)) + 1, rng.normal(size=(3, 2)) + 1
A, B = rng.uniform(0.5, 1.5, size=(2, 4)) / 4, 1.4 * rng.uniform(0.5, 1.5, size=3) / 3


@pytest.mark.parametrize("cost", ["sqeuclidean", "euclidean"])
@pytest.mark.parametrize("rho", [None, 0.8, (INF, 0.7)], ids=str)
def test_values(rho: Any, cost: str) -> None:
    with jax.enable_x64(True):
        b = B if rho == 0.8 else B / B.sum()

        def run(x: Any, y: Any, a: Any, b: Any, eps: Any) -> Any:
            return grad.value(x, y, a=a, b=b, eps=eps, cost=cost, rho=rho, **TIGHT)

        arguments = [jnp.asarray(one) for one in (X, Y, A, b, np.array([0.7, 0.5]))]
        check_grads(run, arguments, order=2, modes=["rev"], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["value", "divergence"])
def test_every_composition_is_the_hessian_of_torch(name: str) -> None:
    torch = needs("torch")
    from drainsinkhorn.grad import torch as other

    def ours(x: Any, rho: Any) -> Any:
        return getattr(grad, name)(x, Y, a=A, b=B, eps=0.5, rho=rho, **TIGHT).sum()

    def theirs(x: Any, rho: Any) -> Any:
        y, a, b = (torch.tensor(one) for one in (Y, A, B))
        return getattr(other, name)(x, y, a=a, b=b, eps=0.5, rho=rho, **TIGHT).sum()

    truth = torch.autograd.functional.hessian(theirs, (torch.tensor(X), torch.tensor(0.8, dtype=torch.float64)))
    with jax.enable_x64(True):
        x, rho, move = jnp.asarray(X), jnp.asarray(0.8), jnp.asarray(rng.normal(size=X.shape))
        expected = np.tensordot(truth[0][0].numpy(), np.asarray(move), 3)

        def along(x: Any) -> Any:
            return (jax.grad(ours)(x, rho) * move).sum()

        reverse, forward = jax.grad(along)(x), jax.jvp(lambda x: jax.grad(ours)(x, rho), (x,), (move,))[1]
        inside = jax.jit(jax.grad(along))(x)
        for product in (reverse, forward, inside):
            assert np.allclose(product, expected, atol=1e-8)
        mixed = jax.grad(lambda rho: (jax.grad(ours)(x, rho) * move).sum())(rho)
        assert float(mixed) == pytest.approx(float((truth[0][1].numpy() * np.asarray(move)).sum()), abs=1e-8)
        assert float(jax.grad(jax.grad(ours, 1), 1)(x, rho)) == pytest.approx(float(truth[1][1]), abs=1e-8)


def test_potentials_of_soft_problems() -> None:
    with jax.enable_x64(True):

        def run(x: Any, y: Any, a: Any, b: Any, rho: Any) -> Any:
            return grad.potentials(x, y, a=a, b=b, eps=0.5, rho=(rho, 2.0), **TIGHT)

        arguments = [jnp.asarray(one) for one in (X, Y, A, B, 0.7)]
        check_grads(run, arguments, order=1, modes=["rev"], atol=1e-5, rtol=1e-5)


def test_divergences_are_those_of_arrays() -> None:
    with jax.enable_x64(True):
        mixed = [0.8, None]
        b = B / B.sum()
        a = A / A.sum(axis=1, keepdims=True)
        found = grad.divergence(X, Y, a=a, b=b, eps=[0.5, 0.7], rho=mixed, **TIGHT)
        plain = ds.divergence(X, Y, a=a, b=b, eps=[0.5, 0.7], rho=mixed, **TIGHT)
        assert np.allclose(found, plain.values, atol=1e-10)
        unequal = grad.divergence(X, Y, a=A, b=B, eps=0.5, rho=0.8, **TIGHT)
        assert np.allclose(unequal, ds.divergence(X, Y, a=A, b=B, eps=0.5, rho=0.8, **TIGHT).values, atol=1e-10)


def test_a_bad_lane_harms_no_hessian() -> None:
    points = X.copy()
    points[1, 0, 0] = np.nan

    def loss(y: Any) -> Any:
        return (jax.grad(lambda y: grad.value(points, y, eps=0.5, rho=1.0)[0])(y) ** 2).sum()

    assert np.isfinite(jax.grad(loss)(jnp.asarray(Y))).all()


@pytest.mark.parametrize("name", ["value", "divergence"])
@pytest.mark.parametrize("rho", [None, 0.8], ids=str)
def test_hessians_are_differences_of_gradients(name: str, rho: Any) -> None:
    with jax.enable_x64(True):
        a, b = (A, B) if rho else (A / A.sum(axis=1, keepdims=True), B / B.sum())

        def loss(x: Any, eps: Any) -> Any:
            return getattr(grad, name)(x, Y, a=a, b=b, eps=eps, rho=rho, **TIGHT).sum()

        x, eps, step = jnp.asarray(X), jnp.asarray(0.5), 1e-5
        slope = jax.jit(jax.grad(loss))
        differences = np.zeros((*X.shape, *X.shape))
        for place in np.ndindex(X.shape):
            move = np.zeros(X.shape)
            move[place] = step
            differences[place] = (slope(x + move, eps) - slope(x - move, eps)) / (2 * step)
        hessian = np.asarray(jax.hessian(loss)(x, eps))
        assert np.allclose(hessian, differences, atol=1e-8)
        assert np.abs(hessian).max() > 0.1
        # Problems of a batch are independent.
        assert not hessian[0, :, :, 1].any()
        for other in (jax.jacrev(jax.jacrev(loss)), jax.jacfwd(jax.grad(loss))):
            assert np.allclose(other(x, eps), hessian, atol=1e-10)
        moves = jnp.asarray(rng.normal(size=(5, *X.shape)))
        products = jax.vmap(lambda move: jax.jvp(lambda x: jax.grad(loss)(x, eps), (x,), (move,))[1])(moves)
        assert np.allclose(products, np.tensordot(moves, hessian, 3), atol=1e-8)
        mixed = jax.hessian(loss, argnums=(0, 1))(x, eps)[0][1]
        change = (slope(x, eps + step) - slope(x, eps - step)) / (2 * step)
        assert np.allclose(mixed, change, atol=1e-8)


def test_hessians_inside_jit() -> None:
    points, weights = [np.float32(part) for part in (X, Y)], [np.float32(part) for part in (A, B)]

    def loss(x: Any) -> Any:
        return grad.divergence(x, points[1], a=weights[0], b=weights[1], eps=0.5, rho=0.8, tol=1e-6).sum()

    hessian = jax.hessian(loss)
    assert np.allclose(jax.jit(hessian)(points[0]), hessian(points[0]), atol=1e-5)


def test_third_derivatives_are_refused() -> None:
    def along(t: Any) -> Any:
        return grad.value(jnp.asarray(X) + t, Y, eps=0.5)[0]

    with jax.enable_x64(True), pytest.raises(NotImplementedError, match="first and second derivatives"):
        jax.grad(jax.grad(jax.grad(along)))(0.0)
