"""OTT-JAX problems solved as one drained batch: OTT's problems and solver in, OTT's outputs out.

    from drainsinkhorn import ott as drained

    outputs = drained.solve(problems, Sinkhorn(threshold=1e-3))        # in place of [solver(p) for p in problems]

Every lane makes the plain updates of OTT in the log domain, in OTT's order and from OTT's start, and leaves when both
marginals have been verified, at the end of one of the solver's `inner_iterations`.
"""

# pyright: basic
# OTT's own types are narrower than what it takes.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from ott.geometry import pointcloud
from ott.problems.linear.linear_problem import LinearProblem
from ott.solvers.linear.sinkhorn import Sinkhorn, SinkhornOutput

from drainsinkhorn.apps.ott_geometry import side_by_side
from drainsinkhorn.apps.ott_history import History
from drainsinkhorn.apps.ott_schedule import multiples_of
from drainsinkhorn.apps.ott_soft import dual_cost, price, taus_of, weights_of
from drainsinkhorn.backends.ottjax import OttBackend
from drainsinkhorn.core.audit import Audit
from drainsinkhorn.core.options import Settings
from drainsinkhorn.model.eps import FallingEps
from drainsinkhorn.model.errors import OptionsError, ProblemError, SubstitutionWarning, warn
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.model.result import Result
from drainsinkhorn.model.status import Status
from drainsinkhorn.run import solve as api
from drainsinkhorn.run.validate import UNEQUAL_MASS

Start = tuple[Any, Any]
"""OTT's potentials f and g, or its scalings u and v where the solver has `lse_mode=False`."""


def solve(
    problems: LinearProblem | Sequence[LinearProblem],
    solver: Sinkhorn | None = None,
    *,
    init: Sequence[Start | None] | None = None,
    backend: OttBackend | None = None,
    **settings: Unpack[Settings],
) -> list[SinkhornOutput]:
    """Solve linear problems of OTT as one batch, which narrows as problems converge.

    Whatever the solver's `lse_mode`, `momentum`, `anderson`, `parallel_dual_updates` and `norm_error`, plain updates in
    the log domain run until the L1 residuals of both marginals are at most `threshold`: the solution is the same, and a
    SubstitutionWarning says so. Outputs are constants: nothing differentiates through this function, and it cannot be
    called under jit, vmap or grad.

    Args:
        problems: A list of LinearProblems over any geometries, of any sizes; or one whose arrays have a leading axis,
            as `jax.vmap` makes it. Point clouds and grids are solved from their points, other geometries from their
            cost matrix. Both sides of a problem must have the same mass, which need not be 1, unless `tau_a` or
            `tau_b` is below 1. With such a soft marginal, `threshold` and `errors` are relative to the transported
            mass. A schedule of epsilon changes it at the end of every `inner_iterations`.
        solver: Its threshold, inner, min and max iterations, initializer, recenter_potentials and progress_fn are used.
            The states that progress_fn receives hold errors, but no potentials. None: OTT's defaults.
        init: A start for each problem, as OTT's solvers take it as their second argument; None: the initializer's.
        backend: Precision and device; the solver's `inner_iterations` and a cloud's `batch_size` take precedence.
        **settings: Fields of Options: mode, width, rescue and so on. By default no problem is rescued, and of the
            warnings only SubstitutionWarning is issued; `warn=False` silences that, too.

    Returns:
        One SinkhornOutput for each problem. `converged` says that both marginals were verified. `errors` are L1
        residuals plus their rounding bound. An INVALID problem has potentials NaN.

    Raises:
        OptionsError: If this function is called under jit, vmap or grad, or the number of starts is wrong.
        ProblemError: If a schedule of epsilon does not reach its target, or masses are unequal and no marginal is soft.
    """
    solver = Sinkhorn() if solver is None else solver
    each = _unstack(problems) if isinstance(problems, LinearProblem) else list(problems)
    starts = [None] * len(each) if init is None else list(init)
    _check_call(each, starts, solver)
    if settings.get("warn", True):
        _warn_of_substitutes(solver)
    outputs: dict[int, SinkhornOutput] = {}
    options: Settings = {
        "max_depth": solver.max_iterations,
        "audit": Audit(every=solver.inner_iterations),
        "rescue": False,
        "warn": False,
        **settings,
    }
    multiples = [multiples_of(problem, solver, place) for place, problem in enumerate(each)]
    # batch_size is a setting of the backend, and a first run makes the same number of updates for all of its problems,
    # so problems that differ in batch_size or in the number of their stages are solved one group after another.
    groups = [(_batch_size(problem), len(stages)) for problem, stages in zip(each, multiples, strict=True)]
    for group in sorted(set(groups)):
        places = [place for place, own in enumerate(groups) if own == group]
        batch_size = group[0]
        batch = [_problem(each[place], solver, starts[place], place, multiples[place]) for place in places]
        history = History([_mass(each[place]) for place in places], solver)
        chosen = replace(backend or OttBackend(), stride=solver.inner_iterations, batch_size=batch_size or None)
        results = _run(batch, solver, chosen, history, options, group[1] * solver.inner_iterations)
        for place, result, errors in zip(places, results, history.of, strict=True):
            outputs[place] = _output(each[place], result, solver, errors)
    return [outputs[place] for place in range(len(each))]


def _run(
    batch: list[Problem[Any]],
    solver: Sinkhorn,
    backend: OttBackend,
    history: History,
    options: Settings,
    staged: int,
) -> list[Result[Any]]:
    """Solve a batch in which no problem is checked before `min_iterations` updates.

    The first run ends after that many updates, rounded up to whole phases, and is verified there. Problems that have
    not converged continue from its potentials. Of all updates, the first `staged` are made in the stages of a schedule.
    """
    every, limit = solver.inner_iterations, options.get("max_depth", solver.max_iterations)
    first = min(-(-solver.min_iterations // every) * every, limit)
    if first <= staged + every:
        return list(api.solve(batch, backend=backend, observe=history.note, **options))
    unchecked: Settings = {
        **options,
        "max_depth": first,
        "audit": Audit(every=first, first_passage=False),
        "rescue": False,
    }
    results = list(api.solve(batch, backend=backend, observe=history.note, **unchecked))
    open_places = [place for place, result in enumerate(results) if result.status is Status.DEPTH_LIMIT]
    if open_places and first < limit:
        history.resume(open_places, first)
        again = [replace(batch[place], eps=results[place].eps, init=results[place].emitted) for place in open_places]
        rest: Settings = {**options, "max_depth": limit - first}
        continued = api.solve(again, backend=backend, observe=history.note, **rest)
        for place, result in zip(open_places, continued, strict=True):
            results[place] = result
    return results


def _check_call(problems: Sequence[LinearProblem], starts: Sequence[Start | None], solver: Sinkhorn) -> None:
    """Raise OptionsError under a transformation of JAX, or if there is not one start for each problem."""
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((problems, starts, solver.threshold))):
        raise OptionsError(
            "drainsinkhorn.ott.solve cannot be called under jit, vmap or grad, because problems leave the batch by the "
            "values of their residuals; call it outside, with a list of problems, or use OTT itself"
        )
    if len(starts) != len(problems):
        raise OptionsError(
            f"init must have one start (or None) for each of {len(problems)} problems, got {len(starts)}"
        )


def _warn_of_substitutes(solver: Sinkhorn) -> None:
    """Issue a SubstitutionWarning if the solver asks for another way to the same solution."""
    settings = {
        "lse_mode=False": not solver.lse_mode,
        "momentum": solver.momentum.value != 1.0 or solver.momentum.start != 0,
        "anderson": solver.anderson is not None,
        "parallel_dual_updates": solver.parallel_dual_updates,
        "norm_error": solver.norm_error[0] != 1,
    }
    if replaced := [setting for setting, is_set in settings.items() if is_set]:
        text = (
            f"{', '.join(replaced)} of the Sinkhorn solver: plain updates in the log domain ran in their place, until"
        )
        tail = "the L1 residuals of both marginals were at most threshold. The solution is the same, iterations differ"
        warn(SubstitutionWarning(f"{text} {tail}; pass warn=False to silence this"))


def _batch_size(problem: LinearProblem) -> int:
    """`batch_size` of a cloud whose costs are computed online; 0 for all others."""
    return int(getattr(problem.geom, "_batch_size", None) or 0)


def _unstack(problem: LinearProblem) -> list[LinearProblem]:
    """Split a problem whose arrays have a leading axis."""
    geom = problem.geom
    arrays: dict[str, Any] = {"cost": geom._cost_matrix, "kernel": geom._kernel_matrix}
    if isinstance(geom, pointcloud.PointCloud):
        arrays = {"x": geom.x, "y": geom.y}
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


def _mass(problem: LinearProblem) -> float:
    """Total mass of the weights; exactly 1 if it differs from 1 by rounding, or if weights keep their masses."""
    if not problem.is_balanced:
        return 1.0
    mass = float(np.asarray(problem.a, dtype=np.float64).sum())
    return 1.0 if abs(mass - 1) <= UNEQUAL_MASS else mass


def _problem(
    problem: LinearProblem, solver: Sinkhorn, init: Start | None, place: int, multiples: tuple[float, ...]
) -> Problem[Any]:
    """The problem with x and y exchanged: OTT updates g first, the lanes of this library update f first.

    Args:
        problem: OTT's problem.
        solver: OTT's solver.
        init: Where to start; None: where the solver's initializer says.
        place: Number of the problem, for messages.
        multiples: `multiples_of` the problem.
    """
    geom = problem.geom
    eps, mass = float(geom.epsilon_scheduler.target), _mass(problem)
    a, b = weights_of(problem)
    taus = taus_of(problem, place)
    if problem.is_balanced and abs(a.sum() - b.sum()) > (UNEQUAL_MASS + 2 * _rounding(problem)) * mass:
        raise ProblemError(
            f"problem {place} has unequal masses: a sums to {a.sum():.6g} and b to {b.sum():.6g}; normalise both, or "
            "use soft marginals (tau_a or tau_b below 1)"
        )
    # See `ott_soft`; a hard marginal has tau = 1.
    prices: dict[str, Any] = {} if problem.is_balanced else {"rho": (price(taus[1], eps), price(taus[0], eps))}
    a, b = a ** taus[0], b ** taus[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        f, g = _start(problem, solver, init, eps)
        pairs = ((g, b), (f, a / mass))
        start = Potentials(*(np.nan_to_num(p - eps * np.log(w), posinf=0, neginf=0) for p, w in pairs))
    # OTT's threshold bounds residuals of the caller's weights, tol those of weights of mass 1.
    # With fixed tau, prices of soft marginals are multiplied as epsilon is.
    falling = FallingEps(eps, multiples, solver.inner_iterations, scale_rho=True) if multiples else eps
    shared: dict[str, Any] = {"eps": falling, "a": b, "b": a, "tol": float(solver.threshold) / mass, "init": start}
    return Problem(**side_by_side(geom, lse_mode=solver.lse_mode), **shared, **prices)


def _rounding(problem: LinearProblem) -> float:
    """Unit roundoff of the dtype of a problem."""
    return float(jnp.finfo(problem.dtype).eps)


def _start(problem: LinearProblem, solver: Sinkhorn, init: Start | None, eps: float) -> list[Any]:
    """The potentials f and g from which OTT would start."""
    if init is None:
        return [np.asarray(side, dtype=np.float64) for side in solver.initializer(problem, lse_mode=True)]
    sides = [np.asarray(side, dtype=np.float64) for side in init]
    return sides if solver.lse_mode else [eps * np.log(side) for side in sides]


def _output(problem: LinearProblem, result: Result[Any], solver: Sinkhorn, errors: Any) -> SinkhornOutput:
    """The result as an output of OTT, in OTT's convention for potentials and in the caller's mass."""
    eps, dtype, mass = float(problem.epsilon), problem.dtype, _mass(problem)
    taus = taus_of(problem, 0)
    weights = [side**tau for side, tau in zip(weights_of(problem), taus, strict=True)]
    ours = [np.full(side.shape, np.nan) for side in weights]
    if result.emitted is not None:
        ours = [np.asarray(side, dtype=np.float64) for side in (result.emitted.g, result.emitted.f)]
    with np.errstate(divide="ignore"):
        f, g = (side + eps * np.log(share) for side, share in zip(ours, (weights[0] / mass, weights[1]), strict=True))
    if solver.recenter_potentials and problem.is_balanced:
        shift = f[np.isfinite(f)].mean() if np.isfinite(f).any() else 0.0
        f, g = f - shift, g + shift
    if problem.is_balanced:
        # OTT's value of a plan of the given mass. For mass 1 the last term is 0.
        cost = sum(float(side @ weight) for side, weight in zip(ours, weights, strict=True))
        cost += eps * mass * (mass - 1 - np.log(mass))
    else:
        cost = dual_cost(problem, f, g)
    # OTT's type says bool; its solver returns an array.
    converged: Any = jnp.asarray(result.converged)
    return SinkhornOutput(
        (jnp.asarray(f, dtype), jnp.asarray(g, dtype)),
        errors=jnp.asarray(errors, dtype),
        reg_ot_cost=jnp.asarray(cost, dtype),
        ot_prob=problem,
        threshold=jnp.asarray(solver.threshold),
        converged=converged,
        inner_iterations=solver.inner_iterations,
    )
