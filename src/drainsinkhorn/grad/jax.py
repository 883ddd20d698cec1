"""Entropic values, divergences and potentials that JAX can differentiate, batched over problems, inside jit too.

JAX passes the whole batch to the host in one callback, as NumPy arrays, so "auto" takes a backend for the CPU, whatever
the device of the JAX arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from drainsinkhorn.core.options import check_settings
from drainsinkhorn.divergences import with_clouds_themselves
from drainsinkhorn.grad.jax_functions import Columns, potentials_of, value_of
from drainsinkhorn.grad.lanes import (
    Task,
    fix_gauge,
    is_dense,
    lanes_of,
    make_task,
)
from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.numerics.soft import debiasing_mass


def value(
    x: Any = None,
    y: Any = None,
    *,
    eps: Any = None,
    a: Any = None,
    b: Any = None,
    cost: Any = "sqeuclidean",
    rho: Any = None,
    **settings: Any,
) -> jax.Array:
    """Optimal values, (W,), twice differentiable in points or costs, weights, eps and prices of soft marginals.

    The value is `min_P sum P C + eps KL(P | a b')`, and with soft marginals the prices `rho KL(P 1 | a)` are added.
    First derivatives are those of the dual value at the potentials (envelope theorem). Second derivatives follow from
    implicit derivatives of the potentials: `jax.grad` of `jax.grad`, `jax.jvp` of `jax.grad`, or `jax.hessian`, which
    computes one Hessian product for each coordinate. There are no third derivatives.

    Args:
        x: Points: shared (n, d), stacked (W, n, d), or a list of unequal clouds. None with matrices of costs.
        y: Points of the other side, in one of the forms of x.
        eps: A number or a JAX array of one, `relative`, `sharpness`, or a list with one of them for each problem. Only
            JAX arrays have derivatives.
            None: `relative(0.05)`. In a divergence, all three problems of a pair have the eps of x to y.
        a: Weights of x; normalised here, so that derivatives are those of the normalised problem. None: uniform.
        b: Weights of y, normalised likewise.
        cost: A name or a Cost; or JAX arrays of costs, shared (n, m), stacked (W, n, m), or a list of them, whose
            derivatives are the plans.
        rho: Price of soft marginals: a number, a JAX array of one, a pair (a tuple) of them, a list of these with one
            entry for each problem, or a JAX array (W,) or (W, 2). Only JAX arrays have derivatives, and they must be
            finite. With a soft marginal, weights keep their masses.
        **settings: Keywords of `solve`: tol, accelerate, ...

    Returns:
        One value for each problem; NaN for one that is INVALID.

    Examples:
        >>> x, y = jnp.zeros((4, 20, 2)), jnp.ones((30, 2))
        >>> slope = jax.jit(jax.grad(lambda x: value(x, y, eps=0.5).sum()))(x)
        >>> slope.shape
        (4, 20, 2)
    """
    check_settings(settings, value)
    lanes, strengths = _lanes(x, y, a, b, eps, cost, rho)
    if not lanes:
        return _nothing(x, y, cost)
    values: Any = value_of(_task(lanes, strengths, cost, settings), *_columns(lanes, strengths, cost))
    return values


def divergence(
    x: Any,
    y: Any,
    *,
    eps: Any = None,
    a: Any = None,
    b: Any = None,
    cost: str | Cost = "sqeuclidean",
    rho: Any = None,
    **settings: Any,
) -> jax.Array:
    """Debiased Sinkhorn divergences, (W,), twice differentiable; arguments as for `value`, with one price a pair."""
    check_settings(settings, divergence)
    pairs, strengths = _lanes(x, y, a, b, eps, cost, rho)
    if not pairs:
        return _nothing(x, y)
    # Clouds are matched by their eps too, so problems hold the JAX values here.
    named = [replace(pair, eps=own) for pair, own in zip(pairs, strengths, strict=True)]
    lanes, within, sources = with_clouds_themselves(named)
    strengths = [lane.eps for lane in lanes]
    values: Any = value_of(_task(lanes, strengths, cost, settings, sources), *_columns(lanes, strengths, cost))
    first, second = (values[np.array([pair[side] for pair in within])] for side in (0, 1))
    debiased = values[: len(pairs)] - first / 2 - second / 2
    if all(pair.rho is None for pair in pairs):
        return debiased
    terms = [0.0 if pair.rho is None else debiasing_mass(jnp.asarray(pair.eps), _masses(pair)) for pair in named]
    return debiased + jnp.stack([jnp.asarray(term, values.dtype) for term in terms])


def _masses(pair: Problem[Any]) -> tuple[Any, Any]:
    """The masses of both sides of a pair."""
    first, second = (1.0 if w is None else jnp.asarray(w).sum() for w in (pair.a, pair.b))
    return first, second


def _is_live(value: Any) -> bool:
    """Whether a price is an array that may be differentiated."""
    return isinstance(value, jax.Array)


def potentials(
    x: Any = None,
    y: Any = None,
    *,
    eps: Any = None,
    a: Any = None,
    b: Any = None,
    cost: Any = "sqeuclidean",
    rho: Any = None,
    **settings: Any,
) -> list[Potentials[jax.Array]]:
    """Potentials of every problem, differentiable once in points or costs, weights, eps and prices, implicitly.

    Potentials between two hard marginals are shifted so that g has mean zero under b. Solve to a small tol: the error
    of derivatives is of first order in the residual. Arguments as for `value`; weights must be positive. Derivatives
    with respect to eps need memory for the plans.
    """
    check_settings(settings, potentials)
    lanes, strengths = _lanes(x, y, a, b, eps, cost, rho)
    if not lanes:
        return []
    columns = _columns(lanes, strengths, cost)
    sides: Any = potentials_of(_task(lanes, strengths, cost, settings), *columns)
    fs, gs = sides
    return [
        fix_gauge(f, g, other, jnp.nan_to_num(g)) if lane.rho is None else Potentials(f, g)
        for f, g, other, lane in zip(fs, gs, columns[3], lanes, strict=True)
    ]


def _nothing(*arrays: Any) -> jax.Array:
    """The values of no problems."""
    known = [jnp.asarray(array) for array in arrays if array is not None and not isinstance(array, (str, Cost))]
    dtypes = [array.dtype for array in known if jnp.issubdtype(array.dtype, jnp.floating)]
    return jnp.zeros(0, jnp.result_type(*dtypes) if dtypes else float)


def _lanes(x: Any, y: Any, a: Any, b: Any, eps: Any, cost: Any, rho: Any) -> tuple[list[Problem[Any]], list[Any]]:
    """Lanes, and the eps of each: a number, a descriptor, or a JAX array without dimensions, which may be traced."""
    if not isinstance(eps, jax.Array):
        lanes = lanes_of(x, y, a, b, eps, cost, rho, _is_live)
        return lanes, [lane.eps for lane in lanes]
    lanes = lanes_of(x, y, a, b, np.ones(eps.shape) if eps.ndim else 1.0, cost, rho, _is_live)
    return lanes, list(eps if eps.ndim else [eps] * len(lanes))


def _task(
    lanes: Sequence[Problem[Any]],
    strengths: Sequence[Any],
    cost: Any,
    settings: dict[str, Any],
    sources: Sequence[int] | None = None,
) -> Task:
    fixed = [None if isinstance(eps, jax.Array) else eps for eps in strengths]
    rhos: list[Any] = [lane.rho for lane in lanes]
    prices = [rho and tuple(None if _is_live(price) else price for price in rho) for rho in rhos]
    return make_task(fixed, cost, settings, sources, prices)


def _columns(lanes: Sequence[Problem[Any]], strengths: Sequence[Any], cost: Any) -> Columns:
    """The columns of lanes; weights between hard marginals normalised."""

    def normalise(weights: Any, like: Any, size: int, rho: Any) -> Any:
        dtype = like.dtype if jnp.issubdtype(like.dtype, jnp.floating) else jnp.float32
        is_given = weights is not None
        weights = jnp.ones(size, dtype) if weights is None else jnp.asarray(weights, dtype)
        if rho is not None and is_given:
            return weights
        # The absolute sum: dividing by a negative one would turn negative weights into valid ones.
        return weights / jnp.abs(weights.sum())

    rhos: list[Any] = [lane.rho for lane in lanes]
    prices = [[rho[side] if rho and _is_live(rho[side]) else None for rho in rhos] for side in (0, 1)]
    traced = [eps if isinstance(eps, jax.Array) else None for eps in strengths]
    if is_dense(cost):
        nothing: list[Any] = [None] * len(lanes)
        costs = [jnp.asarray(lane.cost) for lane in lanes]
        weights = [normalise(lane.a, own, own.shape[0], lane.rho) for lane, own in zip(lanes, costs, strict=True)]
        others = [normalise(lane.b, own, own.shape[1], lane.rho) for lane, own in zip(lanes, costs, strict=True)]
        return nothing, nothing, weights, others, traced, costs, *prices
    xs, ys = ([jnp.asarray(points) for points in column] for column in zip(*((p.x, p.y) for p in lanes), strict=True))
    weights = [normalise(lane.a, own, len(own), lane.rho) for lane, own in zip(lanes, xs, strict=True)]
    others = [normalise(lane.b, own, len(own), lane.rho) for lane, own in zip(lanes, ys, strict=True)]
    return xs, ys, weights, others, traced, [None] * len(lanes), *prices
