"""OTT's schedules of epsilon as an eps that falls in stages.

OTT lowers epsilon at every update; here it changes at the end of every `inner_iterations`, to OTT's value at that
update. Both end at the same target, whose solution does not depend on the way.
"""

# pyright: basic
# OTT's own types are narrower than what it takes.

from __future__ import annotations

from ott.problems.linear.linear_problem import LinearProblem
from ott.solvers.linear.sinkhorn import Sinkhorn

from drainsinkhorn.model.errors import ProblemError


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
