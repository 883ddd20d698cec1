"""Compiled functions on lanes of one shape, whose legs are OTT's own updates.

State is kept in OTT's convention, `P_ij = exp((f_i + g_j - C_ij) / eps)`: its f is `f + eps log a` of ours. A point
without weight, and a point that pads a lane to its size, has the potential -inf and adds nothing. Our f-leg is the
update along axis 1 and comes first; OTT's own loop begins with axis 0. So OTT makes the same updates on the transposed
problem.

For costs by distances the points are scaled so that eps is 1; for the cosine cost they are first normalised, since half
the squared distance of unit vectors is that cost. For a caller's own cost the points are not changed.
"""

# pyright: basic

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from ott.geometry import costs, geometry, pointcloud

from drainsinkhorn.backends.ottjax.costs import Flipped
from drainsinkhorn.backends.ottjax.precision import OttArithmetic
from drainsinkhorn.numerics.residual import residual
from drainsinkhorn.numerics.rounding import largest_potentials, sampled_error, soft_bound, unsampled_size
from drainsinkhorn.numerics.soft import deviation_terms, soft_exponents

SAMPLES = 32
"""Rows, and columns, of a lane that are compared with float64."""

Lane = dict[str, Any]
"""Arrays of one lane, or of a stack of them along a first axis."""


class CompiledKernels:
    """The compiled functions for one OttArithmetic. JAX compiles each when a width is first run, and caches it."""

    def __init__(self, arithmetic: OttArithmetic) -> None:
        self.arithmetic = arithmetic
        self.load = jax.jit(partial(_load, arithmetic))
        self.phase = jax.jit(partial(_phase, arithmetic))
        self.screen = jax.jit(lambda stack, i: _measure(arithmetic, _at(stack, i)))
        self.check = jax.jit(partial(_check, arithmetic))
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
def kernels(arithmetic: OttArithmetic) -> CompiledKernels:
    """The functions for one OttArithmetic, built once."""
    return CompiledKernels(arithmetic)


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


def _direct(arithmetic: OttArithmetic, x: Any, y: Any) -> Any:
    """Costs in float64 by direct differences."""
    if not isinstance(arithmetic.kind, str):
        return arithmetic.kind.fn.all_pairs(x, y)
    squares = ((x[:, None, :] - y[None, :, :]) ** 2).sum(-1)
    return jnp.sqrt(squares) if arithmetic.kind == "distances" else squares


def _load(arithmetic: OttArithmetic, given: Lane) -> Lane:
    """Return a lane from the arrays of `loading.load`, with its first f-leg measured."""
    dtype, rows, cols = arithmetic.dtype, given["rows"], given["cols"]
    lane = {key: given[key] for key in ("a", "b", "rows", "cols", "rounding", "owner", "broken", "kappas", "dampings")}
    lane |= {"eps": given["eps"].astype(dtype), "exact_eps": given["eps"]}
    if arithmetic.kind == "dense":
        lane["cost"] = given["cost"].astype(dtype)
        lane["row_costs"], lane["col_costs"] = given["cost"][rows], given["cost"][:, cols].T
    else:
        x, y = (given[side].astype(jnp.float64) for side in ("x", "y"))
        if arithmetic.unit:
            # One vector for both clouds, so that differences do not change.
            x, y = ((points - given["centre"]) * given["factor"] for points in (x, y))
        lane["row_costs"], lane["col_costs"] = _direct(arithmetic, x[rows], y), _direct(arithmetic, x, y[cols]).T
        short_x, short_y = x.astype(dtype), y.astype(dtype)
        if arithmetic.kept:
            cloud = pointcloud.PointCloud(short_x, short_y, cost_fn=cost_fn(arithmetic.kind), epsilon=1.0)
            lane["cost"] = cloud.cost_matrix
        else:
            lane |= {"x": short_x, "y": short_y}
    for side, weights in (("f", "a"), ("g", "b")):
        lane[side] = (given[side] + given["eps"] * jnp.log(given[weights])).astype(dtype)
    parts = [lane[key] for key in ("row_costs", "col_costs", "cost") if key in lane]
    lane["broken"] |= ~jnp.stack([jnp.isfinite(part).all() for part in parts]).all()
    return lane | _measure(arithmetic, lane)


def apply_leg(arithmetic: OttArithmetic, lane: Lane, f: Any, g: Any, axis: int) -> Any:
    """Return f after its leg (axis 1), or g (axis 0): `numerics.update.update` of an undamped plain leg, by OTT.

    In OTT's convention `f - eps L` is `eps log a_i - eps logsumexp_j((g_j - C_ij) / eps)`, and L is not computed.
    """
    weights = jnp.log(lane["a" if axis == 1 else "b"]).astype(arithmetic.dtype)
    # A division by the constant 1 is compiled away; one by a number of the lane costs a division for every pair.
    eps = 1.0 if arithmetic.unit else lane["eps"]
    if arithmetic.kept:
        dense_geometry = geometry.Geometry(cost_matrix=lane["cost"], epsilon=eps)
        return dense_geometry.update_potential(f, g, weights, axis=axis)
    cost = cost_fn(arithmetic.kind)
    own, other, points, others = (f, g, lane["x"], lane["y"]) if axis == 1 else (g, f, lane["y"], lane["x"])
    if axis == 0 and not isinstance(arithmetic.kind, str):
        cost = Flipped(cost)

    # Point by point, `batch` of them at a time: OTT's own online cloud does the same, but not on jax 0.10 and newer.
    # Columns are rows of the transposed problem: along a contiguous axis a leg is many times faster.
    def one(part: tuple[Any, Any, Any]) -> Any:
        point, before, weight = (value[None] for value in part)
        cloud = pointcloud.PointCloud(point, others, cost_fn=cost, epsilon=eps)
        return cloud.update_potential(before, other, weight, axis=1)[0]

    return jax.lax.map(one, (points, own, weights), batch_size=arithmetic.batch)


def damp(arithmetic: OttArithmetic, lane: Lane, after: Any, axis: int) -> Any:
    """Return f (axis 1) or g (axis 0) after the damped leg, from that after the undamped one; equal if lambda is 1.

    Where `f - eps log r` is the undamped leg, `f - lam eps L` (`numerics.update.update`) is lam times it, because
    `1 - lam eps kappa = lam`. In OTT's convention both differ from f by `eps log a`.
    """
    if not arithmetic.soft:
        return after
    place, weights = (0, "a") if axis == 1 else (1, "b")
    lam = lane["dampings"][place].astype(after.dtype)
    own = (lane["eps"] * jnp.log(lane[weights])).astype(after.dtype)
    return jnp.where(lam == 1, after, lam * after + (1 - lam) * own)


def _error(
    arithmetic: OttArithmetic, lane: Lane, state: tuple[Any, Any], exact: tuple[Any, Any], axis: int, after: Any,
    far: Any = 0.0,
) -> tuple[Any, Any]:  # fmt: skip
    """L1 residual of one side (`numerics.residual.residual`) from its next leg, and the bound on its rounding error.

    Args:
        arithmetic: How the lane is computed.
        lane: The lane.
        state: (f, g) in the precision of the lane.
        exact: (f, g) in float64.
        axis: 1 for rows, 0 for columns.
        after: Potentials of the side after the undamped leg.
        far: By how much potentials exceed those of the sample, in nats (`numerics.rounding.unsampled_size`).
    """
    weights, places, costs = ("a", "rows", "row_costs") if axis == 1 else ("b", "cols", "col_costs")
    mass, sampled, eps = lane[weights], lane[places], lane["exact_eps"]
    before, own, other = (state[0], *exact) if axis == 1 else (state[1], *exact[::-1])
    # In float64, where expm1 overflows only if the state is useless.
    log_ratios = jnp.where(mass > 0, (before - after) / lane["eps"], 0).astype(jnp.float64)
    truth = own[sampled] / eps - jnp.log(mass[sampled]) + jax.nn.logsumexp((other - lane[costs]) / eps, axis=1)
    error, unit, exponents = residual(mass, log_ratios, jnp.sum, jnp.expm1), 0.0, 0.0
    if arithmetic.soft:
        is_soft, soft = (lane["kappas"] > 0).any(), _soft_side(lane, own, log_ratios, axis)
        error, unit, exponents = (jnp.where(is_soft, *pair) for pair in zip(soft, (error, 0.0, 0.0), strict=True))
    # Errors of marginal ratios over their mean, which is 1 where both marginals are hard.
    errors = jnp.abs(jnp.expm1(log_ratios - unit)[sampled] - jnp.expm1(truth - unit))
    potentials = largest_potentials(*(jnp.where(jnp.isfinite(side), side, 0) for side in exact)) / eps
    bound = arithmetic.bound(lane["rounding"], potentials, sampled_error(jnp, mass[sampled], errors), far)
    if arithmetic.soft:
        bound = jnp.where(is_soft, soft_bound(bound, exponents, error), bound)
    return error, jnp.where(jnp.isnan(bound), jnp.inf, bound)


def _soft_side(lane: Lane, own: Any, log_ratios: Any, axis: int) -> tuple[Any, Any, Any]:
    """Return the residual of one side of a soft lane (`numerics.soft.soft_residual`), and what its bound needs.

    Args:
        lane: The lane.
        own: Potentials of the side in float64, in OTT's convention.
        log_ratios: Log marginal ratios of the side in float64; 0 at points without weight.
        axis: 1 for rows, 0 for columns.

    Returns:
        The residual; the logarithm of the mean marginal ratio; and `soft_exponents` of the side.
    """
    place, weights = (0, "a") if axis == 1 else (1, "b")
    mass, kappa = lane[weights], lane["kappas"][place]
    logs = jnp.where(mass > 0, lane["exact_eps"] * jnp.log(mass), 0)
    ours = jnp.where(mass > 0, own - logs, 0)
    top = jnp.where(mass > 0, log_ratios, -jnp.inf).max()
    terms = deviation_terms(jnp, mass, log_ratios, ours, kappa, top)
    missed, plan = (jnp.where(mass > 0, each, 0).sum() for each in terms)
    # A hard side has no such error, but 4 u is too little to tell it apart. `eps log a` is rounded in OTT's potentials
    # and in ours.
    exponents = soft_exponents(1.0, kappa * (jnp.abs(ours) + 2 * jnp.abs(logs)).max())
    return missed / plan, top + jnp.log(plan / mass.sum()), exponents


def _measure(arithmetic: OttArithmetic, lane: Lane) -> Lane:
    """F after the next, undamped f-leg, which is not applied yet; the residual of the rows and its rounding bound."""
    f, g = lane["f"], lane["g"]
    after = apply_leg(arithmetic, lane, f, g, 1)
    error, band = _row_error(arithmetic, lane, f, g, after)
    return {"next": after, "error": jnp.where(lane["broken"], jnp.nan, error), "band": band}


def _row_error(arithmetic: OttArithmetic, lane: Lane, f: Any, g: Any, after: Any) -> tuple[Any, Any]:
    """Return the row residual, and its rounding bound, of a state (f, g) in the precision of the lane; see `_error`."""
    exact = (f.astype(jnp.float64), g.astype(jnp.float64))
    return _error(arithmetic, lane, (f, g), exact, 1, after)


def _phase(arithmetic: OttArithmetic, stack: Lane, moves: Any) -> Lane:
    """Run one phase of cycles for a stack of lanes; lanes that do not move are returned unchanged."""
    return jax.vmap(partial(_phase_of_one, arithmetic))(stack, moves)


def _phase_of_one(arithmetic: OttArithmetic, lane: Lane, moves: Any) -> Lane:
    def cycle(state: tuple[Any, Any, Any], _: None) -> tuple[tuple[Any, Any, Any], None]:
        _, g, after = state
        f = damp(arithmetic, lane, after, 1)
        g = damp(arithmetic, lane, apply_leg(arithmetic, lane, f, g, 0), 0)
        return (f, g, apply_leg(arithmetic, lane, f, g, 1)), None

    # The last leg of the scan is the one that `_measure` reads: it is not run again.
    (f, g, after), _ = jax.lax.scan(cycle, (lane["f"], lane["g"], lane["next"]), None, length=arithmetic.stride)
    error, band = _row_error(arithmetic, lane, f, g, after)
    fine = ~jnp.isnan(error) & _sound(lane["a"], f, after) & _sound(lane["b"], g) & ~lane["broken"]
    new = {"f": f, "g": g, "next": after, "error": error, "band": band, "broken": lane["broken"]}
    new = {key: jnp.where(fine, new[key], lane[key]) for key in STATE}
    new["broken"] = ~fine
    new["error"] = jnp.where(fine, error, jnp.nan)
    return {key: jnp.where(moves, new[key], lane[key]) for key in STATE}


def _sound(weights: Any, *sides: Any) -> Any:
    """Whether potentials are finite wherever there is weight."""
    return jnp.stack([(jnp.isfinite(side) | (weights == 0)).all() for side in sides]).all()


def _check(arithmetic: OttArithmetic, lane: Lane, f: Any, g: Any) -> tuple[Any, Any, Any]:
    """Residuals of rows and columns, and their rounding bound, of potentials given in float64, in our convention."""
    eps, far = lane["exact_eps"], 0.0
    exact = (f + eps * jnp.log(lane["a"]), g + eps * jnp.log(lane["b"]))
    state = exact[0].astype(arithmetic.dtype), exact[1].astype(arithmetic.dtype)
    if arithmetic.single:
        sides = (("a", f, "rows"), ("b", g, "cols"))
        far = sum(unsampled_size(jnp, lane[weights], p, lane[places]) for weights, p, places in sides) / eps
    (row, row_band), (col, col_band) = (
        _error(arithmetic, lane, state, exact, axis, apply_leg(arithmetic, lane, *state, axis), far) for axis in (1, 0)
    )
    return row, col, jnp.maximum(row_band, col_band)
