"""Costs of OTT's geometries: points where a geometry has them, else its cost matrix."""

# pyright: basic
# OTT's own types are narrower than what it takes.

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
from ott.geometry import costs, geodesic, geometry, graph, grid, pointcloud

from drainsinkhorn.backends.ottjax.costs import Flipped, SumOverAxes
from drainsinkhorn.model.cost import Cost

NAMED = {costs.SqEuclidean: "sqeuclidean", costs.Euclidean: "euclidean", costs.Cosine: "cosine"}
HEAT_KERNELS = (graph.Graph, geodesic.Geodesic)
"""Geometries that OTT solves with `lse_mode=False` alone, and whose plans it computes from their kernel matrix."""


def side_by_side(geom: geometry.Geometry, *, lse_mode: bool) -> dict[str, Any]:
    """Return `x`, `y` and `cost` of a Problem from a geometry, with x and y exchanged.

    Args:
        geom: Any geometry of OTT. Point clouds and grids stay points; all others are turned into their cost matrix.
        lse_mode: Whether OTT would use costs. Without, it would multiply by the kernel matrix K, and a geometry that is
            defined by K has the costs -eps log K.
    """
    if type(geom) is pointcloud.PointCloud:
        return {"x": geom.y, "y": geom.x, "cost": _exchanged_cost(geom.cost_fn, float(geom.inv_scale_cost))}
    if type(geom) is grid.Grid:
        points = _grid_points(geom)
        return {"x": points, "y": points, "cost": _exchanged_cost(_grid_cost(geom), 1.0)}
    is_kernel = not lse_mode and type(geom) is geometry.Geometry and geom._cost_matrix is None
    with jax.default_matmul_precision("highest"):
        if is_kernel or isinstance(geom, HEAT_KERNELS):
            kernel = jnp.asarray(geom.kernel_matrix)
            return {"cost": (-geom.epsilon * jnp.log(jnp.maximum(kernel, jnp.finfo(kernel.dtype).tiny))).T}
        return {"cost": geom.cost_matrix.T}


def _exchanged_cost(cost_fn: Any, scale: float) -> Cost:
    """The cost of exchanged points as a Cost, by name if it has one."""
    return Cost(NAMED.get(type(cost_fn), Flipped(cost_fn)), scale)


def _grid_points(geom: grid.Grid) -> Any:
    """All points of a grid, (n, d), in the order of OTT's vectors."""
    axes = jnp.meshgrid(*geom.x, indexing="ij")
    return jnp.stack([axis.ravel() for axis in axes], axis=1)


def _grid_cost(geom: grid.Grid) -> Any:
    """The cost between points of a grid: the sum of one cost per axis."""
    pairs = itertools.zip_longest(range(geom.grid_dimension), geom.cost_fns, fillvalue=geom.cost_fns[-1])
    each = [costs.SqEuclidean() if cost_fn is None else cost_fn for _, cost_fn in pairs]
    return each[0] if all(type(fn) is costs.SqEuclidean for fn in each) else SumOverAxes(each)
