"""Entropic values, divergences and potentials that JAX can differentiate, batched over problems, inside jit too.

JAX passes the whole batch to the host in one callback, as NumPy arrays, so "auto" takes a backend for the CPU, whatever
the device of the JAX arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from drainsinkhorn.backends import load
from drainsinkhorn.core.options import check_settings
from drainsinkhorn.divergences import duals, with_clouds_themselves
from drainsinkhorn.grad.implicit import pull_back
from drainsinkhorn.grad.lanes import Task, fix_gauge, lanes_of, make_task, plans_of, refuse_zeros
from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.run.validate import validate

Columns = tuple[list[Any], list[Any], list[Any], list[Any]]


def value(
    x: Any,
    y: Any,
    *,
    eps: Any = None,
    a: Any = None,
    b: Any = None,
    cost: str | Cost = "sqeuclidean",
    **settings: Any,
) -> jax.Array:
    """Entropic values `min_P sum P C + eps KL(P | a b')`, (W,), differentiable in points and weights.

    Derivatives are those of the dual value at the potentials (envelope theorem), of the first order only.

    Args:
        x: Points: shared (n, d), stacked (W, n, d), or a list of unequal clouds.
        y: Points of the other side, in one of the forms of x.
        eps: A number, `relative`, `sharpness`, or a list with one of them for each problem; not traced, and
            a constant for derivatives.
            None: `relative(0.05)`. In a divergence, all three problems of a pair have the eps of x to y.
        a: Weights of x; normalised here, so that derivatives are those of the normalised problem. None: uniform.
        b: Weights of y, normalised likewise.
        cost: A name or a Cost.
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
    lanes = lanes_of(x, y, a, b, eps, cost)
    return _value(make_task(lanes, cost, settings), *_columns(lanes)) if lanes else _nothing(x, y)


def divergence(
    x: Any,
    y: Any,
    *,
    eps: Any = None,
    a: Any = None,
    b: Any = None,
    cost: str | Cost = "sqeuclidean",
    **settings: Any,
) -> jax.Array:
    """Debiased Sinkhorn divergences, (W,), differentiable in points and weights; arguments as for `value`."""
    check_settings(settings, divergence)
    pairs = lanes_of(x, y, a, b, eps, cost)
    if not pairs:
        return _nothing(x, y)
    lanes, within, sources = with_clouds_themselves(pairs)
    values: Any = _value(make_task(lanes, cost, settings, sources), *_columns(lanes))
    first, second = (values[np.array([pair[side] for pair in within])] for side in (0, 1))
    return values[: len(pairs)] - first / 2 - second / 2


def potentials(
    x: Any,
    y: Any,
    *,
    eps: Any = None,
    a: Any = None,
    b: Any = None,
    cost: str | Cost = "sqeuclidean",
    **settings: Any,
) -> list[Potentials[jax.Array]]:
    """Potentials of every problem, differentiable in points and weights by implicit differentiation.

    They are shifted so that g is zero in the mean under b; solve to a small tol, since derivatives are as good as it.
    Arguments as for `value`; weights must be positive.
    """
    check_settings(settings, potentials)
    lanes = lanes_of(x, y, a, b, eps, cost)
    if not lanes:
        return []
    columns = _columns(lanes)
    sides: Any = _potentials(make_task(lanes, cost, settings), *columns)
    fs, gs = sides
    return [fix_gauge(f, g, other, jnp.nan_to_num(g)) for f, g, other in zip(fs, gs, columns[3], strict=True)]


def _nothing(*points: Any) -> jax.Array:
    """The values of no problems."""
    dtypes = [p.dtype for p in map(jnp.asarray, points) if jnp.issubdtype(p.dtype, jnp.floating)]
    return jnp.zeros(0, jnp.result_type(*dtypes) if dtypes else float)


def _columns(lanes: Sequence[Problem[Any]]) -> Columns:
    """All x, all y, all a and all b; weights normalised."""
    xs, ys = ([jnp.asarray(points) for points in column] for column in zip(*((p.x, p.y) for p in lanes), strict=True))

    def normalise(weights: Any, points: Any) -> Any:
        dtype = points.dtype if jnp.issubdtype(points.dtype, jnp.floating) else jnp.float32
        weights = jnp.ones(points.shape[0], dtype) if weights is None else jnp.asarray(weights, dtype)
        # The absolute sum: dividing by a negative one would turn negative weights into valid ones.
        return weights / jnp.abs(weights.sum())

    return (
        xs,
        ys,
        [normalise(p.a, x) for p, x in zip(lanes, xs, strict=True)],
        [normalise(p.b, y) for p, y in zip(lanes, ys, strict=True)],
    )


def _host(columns: Sequence[Any]) -> list[list[Any]]:
    return [[np.asarray(array) for array in column] for column in columns]


def _shapes(columns: Sequence[Sequence[Any]]) -> Any:
    return [[jax.ShapeDtypeStruct(array.shape, array.dtype) for array in column] for column in columns]


def _as(arrays: Sequence[Any], shapes: Sequence[Any]) -> list[Any]:
    return [np.asarray(array, dtype=shape.dtype) for array, shape in zip(arrays, shapes, strict=True)]


def _call(host: Any, out: Any, *columns: Any) -> Any:
    return jax.pure_callback(host, out, *columns, vmap_method="sequential")


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _value(task: Task, xs: Any, ys: Any, weights: Any, others: Any) -> Any:
    out = jax.ShapeDtypeStruct((len(xs),), weights[0].dtype)

    def host(*columns: Any) -> Any:
        return np.array(duals(task.solve(*_host(columns))), dtype=out.dtype)

    return _call(host, out, xs, ys, weights, others)


def _value_forward(task: Task, xs: Any, ys: Any, weights: Any, others: Any) -> Any:
    """Values, and all derivatives at once, because rounding potentials to float32 first would cost accuracy."""
    columns = xs, ys, weights, others
    shapes = _shapes(columns)
    values = jax.ShapeDtypeStruct((len(xs),), weights[0].dtype)

    def host(*arrays: Any) -> Any:
        solution = task.solve(*_host(arrays))
        exact = [[np.full(s.shape, np.nan) for s in column] for column in shapes]
        for places, plans in plans_of(solution):
            for column, side in ((0, "row"), (1, "col")):
                for k, slope in zip(places, plans.slopes(side), strict=True):
                    exact[column][k] = slope
            for k in places:
                exact[2][k], exact[3][k] = solution[k].potentials
        gradients = [_as(column, shape) for column, shape in zip(exact, shapes, strict=True)]
        return np.array(duals(solution), dtype=values.dtype), gradients

    return _call(host, (values, shapes), *columns)


def _value_backward(task: Task, gradients: Any, cotangents: Any) -> Any:
    """Gradients times cotangents; a lane whose cotangent is zero adds zero, even where its gradients are NaN."""

    def scale(gradient: Any, cotangent: Any) -> Any:
        return jnp.where(cotangent == 0, 0, gradient * cotangent)

    return tuple([scale(g, cotangents[k]) for k, g in enumerate(column)] for column in gradients)


_value.defvjp(_value_forward, _value_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _potentials(task: Task, xs: Any, ys: Any, weights: Any, others: Any) -> Any:
    return _potentials_forward(task, xs, ys, weights, others)[0]


def _potentials_forward(task: Task, *columns: Any) -> Any:
    """Potentials and eps in their dtype, and the rounding errors of both, because derivatives need them in float64."""
    shapes = _shapes(columns[2:])
    strengths = jax.ShapeDtypeStruct((len(shapes[0]),), shapes[0][0].dtype)

    def host(*inputs: Any) -> Any:
        arrays = _host(inputs)
        refuse_zeros(arrays[2:])
        solution = task.solve(*arrays)
        pairs = [
            result.emitted or Potentials(*(np.full(len(w), np.nan) for w in both))
            for result, both in zip(solution, zip(*arrays[2:], strict=True), strict=True)
        ]
        exact = [[np.asarray(pair[side], np.float64) for pair in pairs] for side in (0, 1)]
        rounded = [_as(column, shape) for column, shape in zip(exact, shapes, strict=True)]
        lost = [[e - f for e, f in zip(*both, strict=True)] for both in zip(exact, rounded, strict=True)]
        eps = np.array([result.eps if task.has_descriptors else 0.0 for result in solution])
        with np.errstate(over="ignore"):
            near = eps.astype(strengths.dtype)
        parts = near, (eps - near).astype(strengths.dtype)
        return rounded, [_as(column, shape) for column, shape in zip(lost, shapes, strict=True)], parts

    rounded, lost, eps = _call(host, (shapes, shapes, (strengths, strengths)), *columns)
    return rounded, (columns, rounded, lost, eps)


def _potentials_backward(task: Task, saved: Any, cotangents: Any) -> Any:
    columns, rounded, lost, eps = saved
    shapes = _shapes(columns)

    def host(columns: Any, rounded: Any, lost: Any, eps: Any, cotangents: Any) -> Any:
        # Numbers that were found in the forward pass are not looked for again.
        near, rest = (np.asarray(part, np.float64) for part in eps)
        found = (near + rest).tolist() if task.has_descriptors else []
        xs, ys, weights, others = _host(columns)
        problems, moved = task.problems(xs, ys, weights, others, found), _host(cotangents)
        exact = [
            [f.astype(np.float64) + e for f, e in zip(*both, strict=True)]
            for both in zip(_host(rounded), _host(lost), strict=True)
        ]
        pairs = [Potentials(f, g) for f, g in zip(*exact, strict=True)]
        # A lane without potentials has no derivatives: they are NaN, or zero where the cotangent is zero.
        fills = [np.nan if u.any() or v.any() else 0.0 for u, v in zip(*moved, strict=True)]
        out = [[np.full(s.shape, fill) for s, fill in zip(column, fills, strict=True)] for column in shapes]
        solved = [k for k, pair in enumerate(pairs) if np.isfinite(pair.f).all()]
        if solved:
            instances = [validate(problems[k], tol=1.0) for k in solved]
            plans = load("cpu").couple(instances, [pairs[k] for k in solved])
            u, v = ([side[k] for k in solved] for side in moved)
            for column, gradients in zip(out, pull_back(plans, instances, u, v), strict=True):
                for k, gradient in zip(solved, gradients, strict=True):
                    column[k] = gradient
        return tuple(_as(column, shape) for column, shape in zip(out, shapes, strict=True))

    return _call(host, tuple(shapes), columns, rounded, lost, eps, cotangents)


_potentials.defvjp(_potentials_forward, _potentials_backward)
