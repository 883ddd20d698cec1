"""OTT-JAX problems solved as one drained batch: OTT's problems and solver in, OTT's outputs out.

    from drainsinkhorn import ott as drained

    outputs = drained.solve(problems, Sinkhorn(threshold=1e-3))        # in place of [solver(p) for p in problems]

Every lane makes the updates that OTT would make, in OTT's order and from OTT's start, and leaves when both marginals
have been verified, at the end of one of the solver's `inner_iterations`.
"""

# pyright: basic
# OTT's own types are narrower than what it takes.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

import jax.numpy as jnp
import numpy as np
from ott.geometry import costs, geometry, pointcloud
from ott.problems.linear.linear_problem import LinearProblem
from ott.solvers.linear.sinkhorn import Sinkhorn, SinkhornOutput

from drainsinkhorn.backends.ottjax import OttBackend
from drainsinkhorn.backends.ottjax.costs import Flipped
from drainsinkhorn.core.audit import Audit
from drainsinkhorn.core.events import Advanced
from drainsinkhorn.core.options import Settings
from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.errors import OptionsError, ProblemError
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.model.result import Result
from drainsinkhorn.run import solve as api

NAMED = {costs.SqEuclidean: "sqeuclidean", costs.Euclidean: "euclidean", costs.Cosine: "cosine"}


def solve(
    problems: LinearProblem | Sequence[LinearProblem],
    solver: Sinkhorn | None = None,
    *,
    backend: OttBackend | None = None,
    **settings: Unpack[Settings],
) -> list[SinkhornOutput]:
    """Solve linear problems of OTT as one batch, which narrows as problems converge.

    Outputs are constants: nothing differentiates through this function, and it cannot be called under jit or vmap.

    Args:
        problems: A list of LinearProblems over PointClouds or dense Geometries, of any sizes; or one whose arrays have
            a leading axis, as `jax.vmap` makes it.
        solver: Its threshold, inner and max iterations and initializer are used. None: OTT's defaults.
        backend: Precision and device; the solver's `inner_iterations` and a cloud's `batch_size` take precedence.
        **settings: Fields of Options: mode, width, rescue and so on. As in OTT, by default no problem is rescued and no
            warning is issued.

    Returns:
        One SinkhornOutput for each problem. `converged` says that both marginals were verified. `errors` are residuals
        plus their rounding bound. An INVALID problem has potentials NaN.

    Raises:
        OptionsError: If the solver uses scalings, momentum, Anderson acceleration or parallel updates.
        ProblemError: If a problem is unbalanced, scheduled, or over a geometry that is neither points nor a matrix.
    """
    solver = Sinkhorn() if solver is None else solver
    _refuse_solver(solver)
    each = _unstack(problems) if isinstance(problems, LinearProblem) else list(problems)
    outputs: dict[int, SinkhornOutput] = {}
    options: Settings = {
        "max_depth": solver.max_iterations,
        "audit": Audit(every=solver.inner_iterations),
        "rescue": False,
        "warn": False,
        **settings,
    }
    # batch_size is a setting of the backend, so problems that differ in it are solved one group after another.
    for batch_size in sorted({_batch_size(problem) for problem in each}):
        places = [place for place, problem in enumerate(each) if _batch_size(problem) == batch_size]
        batch = [_problem(each[place], solver, place) for place in places]
        errors = _Errors(len(batch), solver)
        chosen = replace(backend or OttBackend(), stride=solver.inner_iterations, batch_size=batch_size or None)
        for place, result in zip(places, api.solve(batch, backend=chosen, observe=errors.note, **options), strict=True):
            outputs[place] = _output(each[place], result, solver, errors.of[result.ticket])
    return [outputs[place] for place in range(len(each))]


class _Errors:
    """Residuals in OTT's format: one entry per `inner_iterations` cycles, -1 for cycles that a lane did not run."""

    def __init__(self, count: int, solver: Sinkhorn) -> None:
        self._every = solver.inner_iterations
        self.of = np.full((count, int(solver.outer_iterations)), -1.0)

    def note(self, event: Any) -> None:
        """Store the residuals of live lanes after an advance."""
        if isinstance(event, Advanced):
            for standing in event.standings():
                place = min(standing.depth // self._every, self.of.shape[1]) - 1
                self.of[standing.ticket, place] = standing.stale


def _refuse_solver(solver: Sinkhorn) -> None:
    """Raise OptionsError unless the solver is plain balanced Sinkhorn in the log domain."""
    wanted = {
        "lse_mode=True": solver.lse_mode,
        "momentum=None": solver.momentum.value == 1.0 and solver.momentum.start == 0,
        "anderson=None": solver.anderson is None,
        "parallel_dual_updates=False": not solver.parallel_dual_updates,
        "recenter_potentials=False": not solver.recenter_potentials,
        "norm_error=1": tuple(solver.norm_error) == (1,),
        "min_iterations=0": solver.min_iterations == 0,
        "progress_fn=None": solver.progress_fn is None,
    }
    for setting, is_met in wanted.items():
        if not is_met:
            raise OptionsError(f"the drain needs a Sinkhorn with {setting}; solve this one with OTT itself")


def _batch_size(problem: LinearProblem) -> int:
    """`batch_size` of a cloud whose costs are computed online; 0 for all others."""
    return int(getattr(problem.geom, "_batch_size", None) or 0)


def _unstack(problem: LinearProblem) -> list[LinearProblem]:
    """Split a problem whose arrays have a leading axis."""
    geom = problem.geom
    points = isinstance(geom, pointcloud.PointCloud)
    arrays: dict[str, Any] = {"x": geom.x, "y": geom.y} if points else {"cost": geom._cost_matrix}
    widths = {array.shape[0] for array in arrays.values() if getattr(array, "ndim", 0) == 3}
    if len(widths) != 1:
        shapes = {name: getattr(array, "shape", None) for name, array in arrays.items()}
        raise ProblemError(
            f"one LinearProblem must have a leading axis, (W, n, d) or (W, n, m); got {shapes}. Pass a list of problems"
        )

    def part(array: Any, ndim: int, lane: int) -> Any:
        return array[lane] if getattr(array, "ndim", 0) == ndim + 1 else array

    def alone(lane: int) -> LinearProblem:
        children, aux = geom.tree_flatten()
        dims = {id(value): 2 for value in arrays.values()}
        parts = [part(child, dims.get(id(child), 0), lane) for child in children]
        a, b = (part(weights, 1, lane) for weights in (problem._a, problem._b))
        return LinearProblem(type(geom).tree_unflatten(aux, parts), a, b, problem.tau_a, problem.tau_b)

    return [alone(lane) for lane in range(widths.pop())]


def _problem(problem: LinearProblem, solver: Sinkhorn, place: int) -> Problem[Any]:
    """The problem with x and y exchanged: OTT updates g first, the lanes of this library update f first."""
    geom = problem.geom
    if not problem.is_balanced:
        raise ProblemError(
            f"problem {place} is unbalanced (tau_a={problem.tau_a}, tau_b={problem.tau_b}); use OTT itself"
        )
    schedule = geom.epsilon_scheduler
    if float(schedule.init) != 1.0:
        raise ProblemError(f"problem {place} has a schedule of epsilon ({schedule!r}); use OTT itself, or a fixed one")
    eps = float(schedule.target)
    a, b = (np.asarray(weights, dtype=np.float64) for weights in (problem.a, problem.b))
    if abs(a.sum() - 1) > 1e-5:
        raise ProblemError(f"problem {place} has mass {a.sum():.6g}; normalise its weights to 1")
    f, g = (np.asarray(side, dtype=np.float64) for side in solver.initializer(problem, lse_mode=True))
    with np.errstate(divide="ignore", invalid="ignore"):
        start = Potentials(*(np.nan_to_num(p - eps * np.log(w), posinf=0, neginf=0) for p, w in ((g, b), (f, a))))
    shared: dict[str, Any] = {"eps": eps, "a": b, "b": a, "tol": float(solver.threshold), "init": start}
    if type(geom) is pointcloud.PointCloud:
        cost = Cost(NAMED.get(type(geom.cost_fn), Flipped(geom.cost_fn)), float(geom.inv_scale_cost))
        return Problem(x=geom.y, y=geom.x, cost=cost, **shared)
    if type(geom) is geometry.Geometry:
        return Problem(cost=geom.cost_matrix.T, **shared)
    raise ProblemError(f"problem {place} is over a {type(geom).__name__}; the drain takes PointCloud and Geometry")


def _output(problem: LinearProblem, result: Result[Any], solver: Sinkhorn, errors: Any) -> SinkhornOutput:
    """The result as an output of OTT, in OTT's convention for potentials."""
    eps, dtype = float(problem.epsilon), problem.dtype
    weights = [np.asarray(side, dtype=np.float64) for side in (problem.a, problem.b)]
    ours = [np.full(side.shape, np.nan) for side in weights]
    if result.emitted is not None:
        ours = [np.asarray(side, dtype=np.float64) for side in (result.emitted.g, result.emitted.f)]
    with np.errstate(divide="ignore"):
        theirs = [side + eps * np.log(mass) for side, mass in zip(ours, weights, strict=True)]
    # OTT adds eps (1 - mass of the plan), which is 0 after an update, and for which it would reduce the geometry again.
    cost = sum(float(side @ mass) for side, mass in zip(ours, weights, strict=True))
    # OTT's type says bool; its solver returns an array.
    converged: Any = jnp.asarray(result.converged)
    return SinkhornOutput(
        tuple(jnp.asarray(side, dtype) for side in theirs),
        errors=jnp.asarray(errors, dtype),
        reg_ot_cost=jnp.asarray(cost, dtype),
        ot_prob=problem,
        threshold=jnp.asarray(solver.threshold),
        converged=converged,
        inner_iterations=solver.inner_iterations,
    )
