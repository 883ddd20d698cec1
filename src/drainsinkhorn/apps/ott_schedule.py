"""OTT's schedules of epsilon as chains: one run for each stage, which continues from the potentials of the one before.

OTT lowers epsilon at every update; here it changes at the end of every `inner_iterations`, to OTT's value at that
update. Both end at the same target, whose solution does not depend on the way.
"""

# pyright: basic
# OTT's own types are narrower than what it takes.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ott.problems.linear.linear_problem import LinearProblem
from ott.solvers.linear.sinkhorn import Sinkhorn

from drainsinkhorn.apps.ott_history import History
from drainsinkhorn.backends.ottjax import OttBackend
from drainsinkhorn.core.audit import Audit
from drainsinkhorn.core.options import Settings
from drainsinkhorn.model.errors import ProblemError
from drainsinkhorn.model.problem import Problem
from drainsinkhorn.run import solve as api


def multiples_of(problem: LinearProblem, solver: Sinkhorn, place: int) -> tuple[float, ...]:
    """Return by what the target is multiplied in each stage of the schedule; empty if epsilon is fixed."""
    schedule, every = problem.geom.epsilon_scheduler, solver.inner_iterations
    first, decay = float(schedule.init), float(schedule.decay)
    if first <= 1.0:
        return ()
    if not 0 < decay < 1:
        raise ProblemError(
            f"problem {place} has a schedule of epsilon that does not reach its target ({schedule!r}); pass decay "
            "below 1, or the epsilon that you want"
        )
    multiples = list[float]()
    while (multiple := first * decay ** (every * len(multiples))) > 1.0 and len(multiples) < solver.outer_iterations:
        multiples.append(multiple)
    if len(multiples) == solver.outer_iterations:
        raise ProblemError(
            f"problem {place} has a schedule of epsilon that does not reach its target within max_iterations="
            f"{solver.max_iterations} ({schedule!r}); raise max_iterations, or lower decay or init"
        )
    return tuple(multiples)


def run_stages(
    batch: list[Problem[Any]],
    multiples: Sequence[tuple[float, ...]],
    backend: OttBackend,
    history: History,
    options: Settings,
) -> list[Problem[Any]]:
    """Run `stride` updates at each eps of a schedule; return the problems with the last potentials as their start.

    Args:
        batch: Problems with the target as eps.
        multiples: `multiples_of` each; all of the same length.
        backend: The backend; its stride is the solver's `inner_iterations`.
        history: Receives the errors, at their place among all updates.
        options: Settings of the run.
    """
    every = backend.stride
    stage: Settings = {
        **options,
        "max_depth": every,
        "audit": Audit(every=every, first_passage=False),
        "rescue": False,
        "warn": False,
    }
    for k in range(len(multiples[0])):
        history.resume(range(len(batch)), k * every)
        warmer = [_multiplied(problem, factors[k]) for problem, factors in zip(batch, multiples, strict=True)]
        results = api.solve(warmer, backend=backend, observe=history.note, **stage)
        batch = [
            problem if result.emitted is None else replace(problem, init=result.emitted)
            for problem, result in zip(batch, results, strict=True)
        ]
    history.resume(range(len(batch)), len(multiples[0]) * every)
    return batch


def _multiplied(problem: Problem[Any], factor: float) -> Problem[Any]:
    """Return the problem at a larger eps; with fixed tau, prices of soft marginals are multiplied as well."""
    eps: Any = problem.eps
    rho: Any = problem.rho
    return replace(problem, eps=factor * eps, rho=None if rho is None else tuple(factor * price for price in rho))
