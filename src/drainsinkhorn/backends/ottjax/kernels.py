"""Lanes of one shape on OTT's own update: what is compiled, and nothing of what is decided.

State is kept in OTT's convention, `P_ij = exp((f_i + g_j - C_ij) / eps)`, so that `Geometry.update_potential` is the
leg: `f + eps log a` of ours is its f. A point without weight has potential -inf and takes no part; so have points that
only fill a lane up to its size. Our f-leg is the update along axis 1 and comes first, OTT's own loop begins with axis
0: the same updates as OTT makes on the transposed problem.

Points come scaled so that eps is 1, directions as points (half their squared distance is the cosine cost), and for a
caller's own cost as they are.
"""

# pyright: basic

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from ott.geometry import costs, geometry, pointcloud

from drainsinkhorn.backends.ottjax.costs import Flipped
from drainsinkhorn.backends.scores import UNSAMPLED, unsampled

SAMPLES = 32
"""Rows, and columns, of a lane that are compared with float64."""
SAFETY = 4.0
"""Factor on the mean error of the rows compared, which bounds what they do to an L1 residual."""
UNIT = 2.0**-53
LEAST = {True: 2.0**-22, False: 2.0**-50}
"""Band below which no comparison is trusted, in float32 and in float64."""

Lane = dict[str, Any]
"""Arrays of one lane, or of a stack of them along a first axis."""


@dataclass(frozen=True, slots=True)
class How:
    """How lanes are computed. A function of the problem and the settings alone; lanes that share it share packs.

    Attributes:
        kind: "squares" or "distances" of points or directions, "dense" for a matrix, or the caller's own cost.
        n: Rows, filled up.
        m: Columns, filled up.
        d: Coordinates; 0 for a matrix.
        single: float32, else float64.
        batch: Rows at a time of an online point cloud; 0: the cost matrix is kept.
        stride: Cycles of a phase.
    """

    kind: Any
    n: int
    m: int
    d: int
    single: bool
    batch: int
    stride: int

    @property
    def dtype(self) -> Any:
        """Of state and scores."""
        return jnp.float32 if self.single else jnp.float64

    @property
    def unit(self) -> bool:
        """Whether lanes come in units of eps."""
        return isinstance(self.kind, str)

    @property
    def kept(self) -> bool:
        """Whether the matrix of costs is kept."""
        return self.kind == "dense" or not self.batch


class Kernels:
    """The compiled functions for one How. jax compiles each the first time it meets a width, and keeps it."""

    def __init__(self, how: How) -> None:
        self.how = how
        self.load = jax.jit(partial(_load, how))
        self.phase = jax.jit(partial(_phase, how))
        self.screen = jax.jit(lambda stack, i: _measured(how, _at(stack, i)))
        self.check = jax.jit(partial(_check, how))
        self.pick = jax.jit(_at)
        self.stack = jax.jit(lambda lanes: jax.tree.map(lambda *parts: jnp.stack(parts), *lanes))
        self.take = jax.jit(_take)
        self.join = jax.jit(lambda old, new, places: _take(_end_to_end(old, new), places))
        self.put = jax.jit(
            lambda stack, places, part: {k: stack[k].at[places].set(part[k], mode="drop") for k in STATE}
        )


STATE = ("f", "g", "next", "error", "band", "broken")
"""What a cycle changes; everything else of a lane stays."""


@lru_cache(maxsize=256)
def kernels(how: How) -> Kernels:
    """The functions for one How, made once."""
    return Kernels(how)


def cost_fn(kind: Any) -> Any:
    """OTT's cost of that kind."""
    named = {"squares": costs.SqEuclidean, "distances": costs.Euclidean}
    return named[kind]() if isinstance(kind, str) else kind.fn


def _at(stack: Lane, place: Any) -> Lane:
    return jax.tree.map(lambda part: part[place], stack)


def _take(stack: Lane, places: Any) -> Lane:
    return jax.tree.map(lambda part: jnp.take(part, places, axis=0), stack)


def _end_to_end(old: Lane, new: Lane) -> Lane:
    return jax.tree.map(lambda one, two: jnp.concatenate([one, two]), old, new)


def _direct(how: How, x: Any, y: Any) -> Any:
    """Costs in float64 by direct differences."""
    if not isinstance(how.kind, str):
        return how.kind.fn.all_pairs(x, y)
    squares = ((x[:, None, :] - y[None, :, :]) ** 2).sum(-1)
    return jnp.sqrt(squares) if how.kind == "distances" else squares


def _load(how: How, given: Lane) -> Lane:
    """A lane from arrays: points or costs, weights, start, eps, places of the samples, its own rounding."""
    dtype, rows, cols = how.dtype, given["rows"], given["cols"]
    lane = {key: given[key] for key in ("a", "b", "rows", "cols", "rounding", "owner", "broken")}
    lane |= {"eps": given["eps"].astype(dtype), "exact_eps": given["eps"]}
    if how.kind == "dense":
        lane["cost"] = given["cost"].astype(dtype)
        lane["row_costs"], lane["col_costs"] = given["cost"][rows], given["cost"][:, cols].T
    else:
        x, y = (given[side].astype(jnp.float64) for side in ("x", "y"))
        if how.unit:
            # One vector for both clouds, so that differences stay what they are.
            x, y = ((points - given["centre"]) * given["factor"] for points in (x, y))
        lane["row_costs"], lane["col_costs"] = _direct(how, x[rows], y), _direct(how, x, y[cols]).T
        short_x, short_y = x.astype(dtype), y.astype(dtype)
        if how.kept:
            lane["cost"] = pointcloud.PointCloud(short_x, short_y, cost_fn=cost_fn(how.kind), epsilon=1.0).cost_matrix
        else:
            lane |= {"x": short_x, "y": short_y}
    for side, weights in (("f", "a"), ("g", "b")):
        lane[side] = (given[side] + given["eps"] * jnp.log(given[weights])).astype(dtype)
    parts = [lane[key] for key in ("row_costs", "col_costs", "cost") if key in lane]
    lane["broken"] |= ~jnp.stack([jnp.isfinite(part).all() for part in parts]).all()
    return lane | _measured(how, lane)


def _leg(how: How, lane: Lane, f: Any, g: Any, axis: int) -> Any:
    """OTT's update of f (axis 1) or g (axis 0)."""
    weights = jnp.log(lane["a" if axis == 1 else "b"]).astype(how.dtype)
    # By a constant 1 nothing is divided; by a number of the lane, every pair in every pass.
    eps = 1.0 if how.unit else lane["eps"]
    if how.kept:
        kept = geometry.Geometry(cost_matrix=lane["cost"], epsilon=eps)
        return kept.update_potential(f, g, weights, axis=axis)
    cost = cost_fn(how.kind)
    own, other, points, others = (f, g, lane["x"], lane["y"]) if axis == 1 else (g, f, lane["y"], lane["x"])
    if axis == 0 and not isinstance(how.kind, str):
        cost = Flipped(cost)

    # Point by point, `batch` of them at a time: OTT's own online cloud does the same, but not on jax 0.10 and newer.
    # Columns are rows of the transposed problem: along a contiguous axis a leg is many times faster.
    def one(part: tuple[Any, Any, Any]) -> Any:
        point, before, weight = (value[None] for value in part)
        cloud = pointcloud.PointCloud(point, others, cost_fn=cost, epsilon=eps)
        return cloud.update_potential(before, other, weight, axis=1)[0]

    return jax.lax.map(one, (points, own, weights), batch_size=how.batch)


def _error(how: How, lane: Lane, f: Any, g: Any, after: Any, exact: tuple[Any, Any], axis: int) -> tuple[Any, Any]:
    """L1 residual of one side from the leg that would mend it, and how far rounding may have carried that.

    Args:
        how: How.
        lane: The lane.
        f: The state in its own precision.
        g: Likewise.
        after: The side's potentials after the leg.
        exact: (f, g) in float64.
        axis: 1 for rows, 0 for columns.
    """
    weights, places, costs = ("a", "rows", "row_costs") if axis == 1 else ("b", "cols", "col_costs")
    mass, some, eps = lane[weights], lane[places], lane["exact_eps"]
    own, other = exact if axis == 1 else exact[::-1]
    before = f if axis == 1 else g
    # In float64, where only a state beyond repair overflows.
    found = jnp.expm1(jnp.where(mass > 0, (before - after) / lane["eps"], 0).astype(jnp.float64))
    truth = own[some] / eps - jnp.log(mass[some]) + jax.nn.logsumexp((other - lane[costs]) / eps, axis=1)
    missed = jnp.abs(found[some] - jnp.expm1(truth))
    mean = jnp.maximum(missed.mean(), (mass[some] * missed).sum() / mass[some].sum())
    largest = sum(jnp.abs(jnp.where(jnp.isfinite(side), side, 0)).max() for side in exact) / eps
    band = lane["rounding"] + 16 * UNIT * largest + SAFETY * mean + LEAST[how.single]
    return (mass * jnp.abs(found)).sum(), jnp.where(jnp.isnan(band), jnp.inf, band)


def _measured(how: How, lane: Lane) -> Lane:
    """The next f-leg, measured but not applied, the residual of the rows that it shows, and its band."""
    f, g = lane["f"], lane["g"]
    after = _leg(how, lane, f, g, 1)
    exact = (f.astype(jnp.float64), g.astype(jnp.float64))
    error, band = _error(how, lane, f, g, after, exact, 1)
    return {"next": after, "error": jnp.where(lane["broken"], jnp.nan, error), "band": band}


def _phase(how: How, stack: Lane, moves: Any) -> Lane:
    """One phase of cycles for a stack of lanes; those that do not move come back as they were."""
    return jax.vmap(partial(_phase_of_one, how))(stack, moves)


def _phase_of_one(how: How, lane: Lane, moves: Any) -> Lane:
    def cycle(state: tuple[Any, Any, Any], _: None) -> tuple[tuple[Any, Any, Any], None]:
        _, g, f = state
        g = _leg(how, lane, f, g, 0)
        return (f, g, _leg(how, lane, f, g, 1)), None

    # The last leg of the scan is the one that `_measured` reads: it is not run again.
    (f, g, after), _ = jax.lax.scan(cycle, (lane["f"], lane["g"], lane["next"]), None, length=how.stride)
    exact = (f.astype(jnp.float64), g.astype(jnp.float64))
    error, band = _error(how, lane, f, g, after, exact, 1)
    fine = ~jnp.isnan(error) & _sound(lane["a"], f, after) & _sound(lane["b"], g) & ~lane["broken"]
    new = {"f": f, "g": g, "next": after, "error": error, "band": band, "broken": lane["broken"]}
    new = {key: jnp.where(fine, new[key], lane[key]) for key in STATE}
    new["broken"] = ~fine
    new["error"] = jnp.where(fine, error, jnp.nan)
    return {key: jnp.where(moves, new[key], lane[key]) for key in STATE}


def _sound(weights: Any, *sides: Any) -> Any:
    """Whether potentials are finite wherever there is weight."""
    return jnp.stack([(jnp.isfinite(side) | (weights == 0)).all() for side in sides]).all()


def _check(how: How, lane: Lane, f: Any, g: Any) -> tuple[Any, Any, Any]:
    """Residuals of rows and columns, and the band, of potentials given in float64, in our convention."""
    eps = lane["exact_eps"]
    exact = (f + eps * jnp.log(lane["a"]), g + eps * jnp.log(lane["b"]))
    short_f, short_g = (side.astype(how.dtype) for side in exact)
    (row, row_band), (col, col_band) = (
        _error(how, lane, short_f, short_g, _leg(how, lane, short_f, short_g, axis), exact, axis) for axis in (1, 0)
    )
    band = jnp.maximum(row_band, col_band)
    if how.single:
        sides = (("a", f, "rows"), ("b", g, "cols"))
        far = sum(unsampled(jnp, lane[weights], p, lane[places]) for weights, p, places in sides)
        band += UNSAMPLED * far / eps
    return row, col, band
