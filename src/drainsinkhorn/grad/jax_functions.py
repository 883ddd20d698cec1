"""Functions that JAX differentiates: values twice, and potentials once. Callbacks pass whole batches to the host."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from drainsinkhorn.backends import load
from drainsinkhorn.divergences import duals
from drainsinkhorn.grad.implicit import pull_back
from drainsinkhorn.grad.lanes import COLUMNS, Task, plans_of, refuse_zeros, slopes_of
from drainsinkhorn.grad.second import hessian_products
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.run.validate import validate

Columns = tuple[list[Any], ...]


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


def _call(host: Any, out: Any, *inputs: Any) -> Any:
    """Call a function of trees of NumPy arrays on the host; under `jax.vmap`, one callback calls it for every element.

    Args:
        host: The function.
        out: Shapes and dtypes of what it returns, a tree.
        *inputs: Its arguments, trees of JAX arrays.
    """
    dims = [leaf.ndim for leaf in jax.tree.leaves(inputs)]

    def mapped(*inputs: Any) -> Any:
        arrays, tree = jax.tree.flatten(inputs)
        arrays = [np.asarray(array) for array in arrays]
        extra = arrays[0].ndim - dims[0]
        if extra == 0:
            return host(*tree.unflatten(arrays))
        # JAX puts axes of length 1 in front of arrays that are not mapped.
        lead = np.broadcast_shapes(*(array.shape[:extra] for array in arrays))
        spread = [np.broadcast_to(array, lead + array.shape[extra:]) for array in arrays]
        results = [host(*tree.unflatten([array[place] for array in spread])) for place in np.ndindex(lead)]
        return jax.tree.map(lambda *parts: np.stack(parts).reshape(lead + parts[0].shape), *results)

    return jax.pure_callback(mapped, out, *inputs, vmap_method="expand_dims")


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def value_of(task: Task, *columns: Any) -> Any:
    """Dual values of lanes; see `COLUMNS`."""
    out = jax.ShapeDtypeStruct((len(columns[2]),), columns[2][0].dtype)

    def host(*arrays: Any) -> Any:
        return np.array(duals(task.solve(_host(arrays))), dtype=out.dtype)

    return _call(host, out, *columns)


def _value_forward(task: Task, *columns: Any) -> Any:
    values, gradients, _ = _value_and_slopes(task, *columns)
    return values, gradients


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _value_and_slopes(task: Task, *columns: Any) -> Any:
    """Values; all derivatives at once, because rounding potentials to float32 first would cost accuracy; the state."""
    shapes = _shapes(columns)
    values = jax.ShapeDtypeStruct((len(columns[2]),), columns[2][0].dtype)

    def host(*arrays: Any) -> Any:
        columns = _host(arrays)
        solution = task.solve(columns)
        exact = _full(shapes, [np.nan] * len(solution))
        for places, plans in plans_of(solution):
            for column, name in enumerate(COLUMNS):
                if any(shapes[column][k] is not None for k in places):
                    for k, slope in zip(places, slopes_of(plans, [solution[k] for k in places], name), strict=True):
                        exact[column][k] = slope
        gradients = [_as(column, shape) for column, shape in zip(exact, shapes, strict=True)]
        return np.array(duals(solution), dtype=values.dtype), gradients, _keep(task, solution, columns)

    return _call(host, (values, shapes, _state_shapes(columns)), *columns)


@_value_and_slopes.defjvp
def _value_and_slopes_jvp(task: Task, columns: Any, motions: Any) -> Any:
    """Return motions (tangents) of values and of slopes: `(G m, H m + G' s)` for motions m of columns, and s = 0.

    G are the slopes and H the Hessians. The map from (s, m) to this pair is linear, and its matrix is symmetric.
    """
    values, gradients, state = _value_and_slopes(task, *columns)
    # JAX gives motions of integers the dtype float0, which has no arithmetic.
    moved = jax.tree.map(lambda d, c: jnp.zeros(c.shape) if d.dtype == jax.dtypes.float0 else d, motions, columns)

    columns, gradients, state = _undifferentiated((columns, gradients, state))

    def apply(vector: Any) -> Any:
        along, moved = vector
        d_values = [
            sum(_times(column[k], moves[k]).sum() for column, moves in zip(gradients, moved, strict=True)
                if column[k] is not None)
            for k in range(len(columns[2]))
        ]  # fmt: skip
        d_columns = [
            [None if h is None else h + _times(g, along[k]) for k, (g, h) in enumerate(zip(*both, strict=True))]
            for both in zip(gradients, _hessian(task, columns, state, moved), strict=True)
        ]
        return jnp.stack(d_values), d_columns

    # JAX transposes a linear solve only if all arrays of its right-hand side depend on what is differentiated, so each
    # array gets a term that depends on it and is always zero.
    total = jnp.stack([one.astype(values.dtype).sum() for one in jax.tree.leaves(moved)]).sum()
    vector = jax.tree.map(
        lambda d: d + jnp.where(jnp.zeros(d.shape, bool), total.astype(d.dtype), 0),
        (jnp.zeros_like(values), [list(column) for column in moved]),
    )
    d_values, d_gradients = _symmetric(apply, vector)
    return (values, gradients, state), (d_values, d_gradients, jax.tree.map(jnp.zeros_like, state))


def _symmetric(apply: Any, vector: Any) -> Any:
    """Return the product of a symmetric matrix with a vector, which JAX can transpose, differentiate and batch.

    The product is computed in a callback, which JAX can neither transpose nor differentiate. So it is stated as the
    solution of a linear system: JAX calls any function as the solver, and uses the solver of a symmetric system for the
    transposed one too. The matrix of the system, which would be the inverse, is called only for derivatives with
    respect to itself. It is constant here, so the identity takes its place.

    Args:
        apply: Multiplies a vector by the matrix.
        vector: A tree of arrays.
    """
    return jax.lax.custom_linear_solve(lambda x: x, vector, lambda _, vector: apply(vector), symmetric=True)


@jax.custom_jvp
def _undifferentiated(tree: Any) -> Any:
    """Return the same arrays; their derivatives, the third ones of a value, raise NotImplementedError."""
    return tree


@_undifferentiated.defjvp
def _undifferentiated_jvp(primals: Any, tangents: Any) -> Any:
    raise NotImplementedError("values and divergences have first and second derivatives here, and no third ones")


def _hessian(task: Task, columns: Any, state: Any, moved: Any) -> Any:
    """Hessians of the values of lanes, times motions of their columns; zero for a lane whose motions are zero."""
    shapes = _shapes(columns)

    def host(columns: Any, state: Any, moved: Any) -> Any:
        motions = _host(moved)
        is_moving = [
            any(column[k] is not None and column[k].any() for column in motions) for k in range(len(shapes[2]))
        ]
        out = _full(shapes, [np.nan if moving else 0.0 for moving in is_moving])
        problems, pairs = _restore(task, columns, state)
        solved = [k for k, pair in enumerate(pairs) if is_moving[k] and np.isfinite(pair.f).all()]
        if solved:
            instances = [validate(problems[k], tol=1.0) for k in solved]
            chosen = [pairs[k] for k in solved]
            named = [
                {n: c[k].astype(np.float64) for n, c in zip(COLUMNS, motions, strict=True) if c[k] is not None}
                for k in solved
            ]
            products = hessian_products(load("cpu").couple(instances, chosen), instances, chosen, named)
            for k, product in zip(solved, products, strict=True):
                for column, name in zip(out, COLUMNS, strict=True):
                    column[k] = None if column[k] is None else product[name]
        return [_as(column, shape) for column, shape in zip(out, shapes, strict=True)]

    return _call(host, shapes, columns, state, moved)


def _times(gradient: Any, cotangent: Any) -> Any:
    """A gradient times a cotangent; 0 where the cotangent is 0, even if the gradient is NaN."""
    return jnp.where(cotangent == 0, 0, gradient * cotangent)


def _value_backward(task: Task, gradients: Any, cotangents: Any) -> Any:
    """Gradients times cotangents; a lane whose cotangent is zero adds zero, even where its gradients are NaN."""
    return tuple(
        [None if gradient is None else _times(gradient, cotangents[k]) for k, gradient in enumerate(column)]
        for column in gradients
    )


value_of.defvjp(_value_forward, _value_backward)


def _state_shapes(columns: Any) -> Any:
    """Shapes of the state of solved lanes: see `_keep`."""
    shapes = _shapes(columns[2:4])
    strengths = jax.ShapeDtypeStruct((len(shapes[0]),), shapes[0][0].dtype)
    return shapes, shapes, (strengths, strengths)


def _keep(task: Task, solution: Any, columns: Any) -> Any:
    """Potentials and eps in their dtype, and the rounding errors of both, because derivatives need them in float64."""
    shapes, _, (strengths, _) = _state_shapes(columns)
    pairs = [
        result.emitted or Potentials(*(np.full(len(w), np.nan) for w in both))
        for result, both in zip(solution, zip(*columns[2:4], strict=True), strict=True)
    ]
    exact = [[np.asarray(pair[side], np.float64) for pair in pairs] for side in (0, 1)]
    rounded = [_as(column, shape) for column, shape in zip(exact, shapes, strict=True)]
    lost = [[e - f for e, f in zip(*both, strict=True)] for both in zip(exact, rounded, strict=True)]
    eps = np.array([result.eps if task.has_descriptors else 0.0 for result in solution])
    with np.errstate(over="ignore"):
        near = eps.astype(strengths.dtype)
    parts = near, (eps - near).astype(strengths.dtype)
    return rounded, [_as(column, shape) for column, shape in zip(lost, shapes, strict=True)], parts


def _restore(task: Task, columns: Any, state: Any) -> tuple[Any, list[Potentials[Any]]]:
    """Problems, and their potentials in float64; numbers that were found before are not looked for again."""
    rounded, lost, eps = state
    near, rest = (np.asarray(part, np.float64) for part in eps)
    problems = task.problems(_host(columns), (near + rest).tolist() if task.has_descriptors else [])
    exact = [
        [f.astype(np.float64) + e for f, e in zip(*both, strict=True)]
        for both in zip(_host(rounded), _host(lost), strict=True)
    ]
    return problems, [Potentials(f, g) for f, g in zip(*exact, strict=True)]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def potentials_of(task: Task, *columns: Any) -> Any:
    """All f, then all g; see `COLUMNS`."""
    return _potentials_forward(task, *columns)[0]


def _potentials_forward(task: Task, *columns: Any) -> Any:

    def host(*inputs: Any) -> Any:
        arrays = _host(inputs)
        refuse_zeros(arrays[2:4])
        return _keep(task, task.solve(arrays), arrays)

    state = _call(host, _state_shapes(columns), *columns)
    return state[0], (columns, state)


def _potentials_backward(task: Task, saved: Any, cotangents: Any) -> Any:
    columns, state = saved
    shapes = _shapes(columns)

    def host(columns: Any, state: Any, cotangents: Any) -> Any:
        moved = _host(cotangents)
        problems, pairs = _restore(task, columns, state)
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
            pulled = pull_back(plans, instances, u, v, wanted, [pairs[k] for k in solved])
            for column, name in zip(out, COLUMNS, strict=True):
                for k, gradient in zip(solved, pulled.get(name, ()), strict=name in pulled):
                    column[k] = None if column[k] is None else gradient
        return tuple(_as(column, shape) for column, shape in zip(out, shapes, strict=True))

    return _call(host, tuple(shapes), columns, state, cotangents)


potentials_of.defvjp(_potentials_forward, _potentials_backward)
