"""Entropic values, divergences and potentials that JAX can differentiate, batched over problems, inside jit too.

JAX passes the whole batch to the host in one callback, as NumPy arrays, so "auto" takes a backend for the CPU, whatever
the device of the JAX arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from drainsinkhorn.backends import load
from drainsinkhorn.core.options import check_settings
from drainsinkhorn.divergences import duals, with_clouds_themselves
from drainsinkhorn.grad.implicit import pull_back
from drainsinkhorn.grad.lanes import (
    COLUMNS,
    Task,
    fix_gauge,
    is_dense,
    lanes_of,
    make_task,
    plans_of,
    refuse_zeros,
    slopes_of,
)
from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.run.validate import validate

Columns = tuple[list[Any], ...]


def value(
    x: Any = None,
    y: Any = None,
    *,
    eps: Any = None,
    a: Any = None,
    b: Any = None,
    cost: Any = "sqeuclidean",
    **settings: Any,
) -> jax.Array:
    """Entropic values `min_P sum P C + eps KL(P | a b')`, (W,), differentiable in points or costs, weights and eps.

    Derivatives are those of the dual value at the potentials (envelope theorem), of the first order only.

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
    lanes, strengths = _lanes(x, y, a, b, eps, cost)
    if not lanes:
        return _nothing(x, y, cost)
    values: Any = _value(_task(strengths, cost, settings), *_columns(lanes, strengths, cost))
    return values


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
    """Debiased Sinkhorn divergences, (W,), differentiable in points, weights and eps; arguments as for `value`."""
    check_settings(settings, divergence)
    pairs, strengths = _lanes(x, y, a, b, eps, cost)
    if not pairs:
        return _nothing(x, y)
    # Clouds are matched by their eps too, so problems hold the JAX values here.
    named = [replace(pair, eps=own) for pair, own in zip(pairs, strengths, strict=True)]
    lanes, within, sources = with_clouds_themselves(named)
    strengths = [lane.eps for lane in lanes]
    values: Any = _value(_task(strengths, cost, settings, sources), *_columns(lanes, strengths, cost))
    first, second = (values[np.array([pair[side] for pair in within])] for side in (0, 1))
    return values[: len(pairs)] - first / 2 - second / 2


def potentials(
    x: Any = None,
    y: Any = None,
    *,
    eps: Any = None,
    a: Any = None,
    b: Any = None,
    cost: Any = "sqeuclidean",
    **settings: Any,
) -> list[Potentials[jax.Array]]:
    """Potentials of every problem, differentiable in points or costs, weights and eps by implicit differentiation.

    Potentials are shifted so that g has mean zero under b. Solve to a small tol: the error of derivatives is of first
    order in the residual. Arguments as for `value`; weights must be positive. Derivatives with respect to eps need
    memory for the plans.
    """
    check_settings(settings, potentials)
    lanes, strengths = _lanes(x, y, a, b, eps, cost)
    if not lanes:
        return []
    columns = _columns(lanes, strengths, cost)
    sides: Any = _potentials(_task(strengths, cost, settings), *columns)
    fs, gs = sides
    return [fix_gauge(f, g, other, jnp.nan_to_num(g)) for f, g, other in zip(fs, gs, columns[3], strict=True)]


def _nothing(*arrays: Any) -> jax.Array:
    """The values of no problems."""
    known = [jnp.asarray(array) for array in arrays if array is not None and not isinstance(array, (str, Cost))]
    dtypes = [array.dtype for array in known if jnp.issubdtype(array.dtype, jnp.floating)]
    return jnp.zeros(0, jnp.result_type(*dtypes) if dtypes else float)


def _lanes(x: Any, y: Any, a: Any, b: Any, eps: Any, cost: Any) -> tuple[list[Problem[Any]], list[Any]]:
    """Lanes, and the eps of each: a number, a descriptor, or a JAX array without dimensions, which may be traced."""
    if not isinstance(eps, jax.Array):
        lanes = lanes_of(x, y, a, b, eps, cost)
        return lanes, [lane.eps for lane in lanes]
    lanes = lanes_of(x, y, a, b, np.ones(eps.shape) if eps.ndim else 1.0, cost)
    return lanes, list(eps if eps.ndim else [eps] * len(lanes))


def _task(strengths: Sequence[Any], cost: Any, settings: dict[str, Any], sources: Sequence[int] | None = None) -> Task:
    fixed = [None if isinstance(eps, jax.Array) else eps for eps in strengths]
    return make_task(fixed, cost, settings, sources)


def _columns(lanes: Sequence[Problem[Any]], strengths: Sequence[Any], cost: Any) -> Columns:
    """The columns of lanes; weights normalised."""

    def normalise(weights: Any, like: Any, size: int) -> Any:
        dtype = like.dtype if jnp.issubdtype(like.dtype, jnp.floating) else jnp.float32
        weights = jnp.ones(size, dtype) if weights is None else jnp.asarray(weights, dtype)
        # The absolute sum: dividing by a negative one would turn negative weights into valid ones.
        return weights / jnp.abs(weights.sum())

    traced = [eps if isinstance(eps, jax.Array) else None for eps in strengths]
    if is_dense(cost):
        nothing: list[Any] = [None] * len(lanes)
        costs = [jnp.asarray(lane.cost) for lane in lanes]
        weights = [normalise(lane.a, own, own.shape[0]) for lane, own in zip(lanes, costs, strict=True)]
        others = [normalise(lane.b, own, own.shape[1]) for lane, own in zip(lanes, costs, strict=True)]
        return nothing, nothing, weights, others, traced, costs
    xs, ys = ([jnp.asarray(points) for points in column] for column in zip(*((p.x, p.y) for p in lanes), strict=True))
    weights = [normalise(lane.a, own, len(own)) for lane, own in zip(lanes, xs, strict=True)]
    others = [normalise(lane.b, own, len(own)) for lane, own in zip(lanes, ys, strict=True)]
    return xs, ys, weights, others, traced, [None] * len(lanes)


def _host(columns: Sequence[Any]) -> list[list[Any]]:
    return [[None if array is None else np.asarray(array) for array in column] for column in columns]


def _shapes(columns: Sequence[Sequence[Any]]) -> Any:
    return [
        [None if array is None else jax.ShapeDtypeStruct(array.shape, array.dtype) for array in column]
        for column in columns
    ]


def _as(arrays: Sequence[Any], shapes: Sequence[Any]) -> list[Any]:
    return [
        None if shape is None else np.asarray(array, dtype=shape.dtype)
        for array, shape in zip(arrays, shapes, strict=True)
    ]


def _full(shapes: Any, fills: Sequence[float]) -> list[list[Any]]:
    """Columns of arrays filled with one number for each lane; None where a shape is None."""
    return [
        [None if shape is None else np.full(shape.shape, fill) for shape, fill in zip(column, fills, strict=True)]
        for column in shapes
    ]


def _call(host: Any, out: Any, *columns: Any) -> Any:
    return jax.pure_callback(host, out, *columns, vmap_method="sequential")


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _value(task: Task, *columns: Any) -> Any:
    out = jax.ShapeDtypeStruct((len(columns[2]),), columns[2][0].dtype)

    def host(*arrays: Any) -> Any:
        return np.array(duals(task.solve(_host(arrays))), dtype=out.dtype)

    return _call(host, out, *columns)


def _value_forward(task: Task, *columns: Any) -> Any:
    """Values, and all derivatives at once, because rounding potentials to float32 first would cost accuracy."""
    shapes = _shapes(columns)
    values = jax.ShapeDtypeStruct((len(columns[2]),), columns[2][0].dtype)

    def host(*arrays: Any) -> Any:
        columns = _host(arrays)
        solution = task.solve(columns)
        exact = _full(shapes, [np.nan] * len(solution))
        for places, plans in plans_of(solution):
            for column, name in enumerate(COLUMNS):
                own = [columns[column][k] for k in places]
                if name not in "ab" and any(array is not None for array in own):
                    for k, slope in zip(places, slopes_of(plans, own, name), strict=True):
                        exact[column][k] = slope
            for k in places:
                exact[2][k], exact[3][k] = solution[k].potentials
        gradients = [_as(column, shape) for column, shape in zip(exact, shapes, strict=True)]
        return np.array(duals(solution), dtype=values.dtype), gradients

    return _call(host, (values, shapes), *columns)


def _value_backward(task: Task, gradients: Any, cotangents: Any) -> Any:
    """Gradients times cotangents; a lane whose cotangent is zero adds zero, even where its gradients are NaN."""

    def scale(gradient: Any, cotangent: Any) -> Any:
        return None if gradient is None else jnp.where(cotangent == 0, 0, gradient * cotangent)

    return tuple([scale(g, cotangents[k]) for k, g in enumerate(column)] for column in gradients)


_value.defvjp(_value_forward, _value_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _potentials(task: Task, *columns: Any) -> Any:
    return _potentials_forward(task, *columns)[0]


def _potentials_forward(task: Task, *columns: Any) -> Any:
    """Potentials and eps in their dtype, and the rounding errors of both, because derivatives need them in float64."""
    shapes = _shapes(columns[2:4])
    strengths = jax.ShapeDtypeStruct((len(shapes[0]),), shapes[0][0].dtype)

    def host(*inputs: Any) -> Any:
        arrays = _host(inputs)
        refuse_zeros(arrays[2:4])
        solution = task.solve(arrays)
        pairs = [
            result.emitted or Potentials(*(np.full(len(w), np.nan) for w in both))
            for result, both in zip(solution, zip(*arrays[2:4], strict=True), strict=True)
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
        eps_values = (near + rest).tolist() if task.has_descriptors else []
        problems, moved = task.problems(_host(columns), eps_values), _host(cotangents)
        exact = [
            [f.astype(np.float64) + e for f, e in zip(*both, strict=True)]
            for both in zip(_host(rounded), _host(lost), strict=True)
        ]
        pairs = [Potentials(f, g) for f, g in zip(*exact, strict=True)]
        # A lane without potentials has no derivatives: they are NaN, or zero where the cotangent is zero.
        fills = [np.nan if u.any() or v.any() else 0.0 for u, v in zip(*moved, strict=True)]
        out = _full(shapes, fills)
        solved = [k for k, pair in enumerate(pairs) if np.isfinite(pair.f).all()]
        if solved:
            instances = [validate(problems[k], tol=1.0) for k in solved]
            plans = load("cpu").couple(instances, [pairs[k] for k in solved])
            u, v = ([side[k] for k in solved] for side in moved)
            wanted = {
                name for name, column in zip(COLUMNS, shapes, strict=True) if any(shape is not None for shape in column)
            }
            pulled = pull_back(plans, instances, u, v, wanted)
            for column, name in zip(out, COLUMNS, strict=True):
                for k, gradient in zip(solved, pulled.get(name, ()), strict=name in pulled):
                    column[k] = None if column[k] is None else gradient
        return tuple(_as(column, shape) for column, shape in zip(out, shapes, strict=True))

    return _call(host, tuple(shapes), columns, rounded, lost, eps, cotangents)


_potentials.defvjp(_potentials_forward, _potentials_backward)
