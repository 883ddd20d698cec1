"""Problems with numbers in place of descriptors of eps, for callers whose problems share an eps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from drainsinkhorn.core.options import Options
from drainsinkhorn.core.protocol import Backend
from drainsinkhorn.model.eps import FallingEps, SharpnessEps, is_descriptor
from drainsinkhorn.model.errors import ProblemError
from drainsinkhorn.model.problem import Problem
from drainsinkhorn.run.relative import find_together
from drainsinkhorn.run.sharpness import find_sharpness, trial_options
from drainsinkhorn.run.solve import DEFAULTS, solve
from drainsinkhorn.run.validate import validate


def require_fixed(eps: Any) -> None:
    """Raise ProblemError for an eps that falls, where only its target would be used."""
    if isinstance(eps, FallingEps):
        raise ProblemError(f"solve and stream take an eps that falls ({eps}); here pass its last value, {eps.target!r}")


@np.errstate(all="ignore")
def resolve_eps(
    problems: Sequence[Problem[Any]],
    *,
    backend: str | Backend[Any] = "auto",
    options: Options = DEFAULTS,
) -> list[Problem[Any]]:
    """Return the problems with the number that is found for each eps; searches for a sharpness run as one batch.

    A problem whose eps cannot be found is returned as it is, so that its result says why. ProblemError for an eps that
    falls.

    Args:
        problems: The problems.
        backend: The backend of trials, as for `solve`.
        options: Options of trials.
    """
    for problem in problems:
        require_fixed(problem.eps)
    known: dict[int, Any] = find_together(enumerate(problems))
    searched = [place for place, problem in enumerate(problems) if isinstance(problem.eps, SharpnessEps)]
    if searched:
        solve_trials = partial(solve, backend=backend, options=trial_options(options))
        answers = find_sharpness([problems[place] for place in searched], solve_trials)
        answered = zip(searched, answers, strict=True)
        known |= {place: answer.eps for place, answer in answered if isinstance(answer, Problem)}
    for place, problem in enumerate(problems):
        if is_descriptor(problem.eps) and place not in known and place not in searched:
            try:
                known[place] = validate(problem, tol=1.0).eps
            except ProblemError:
                continue
    return [replace(problem, eps=known[place]) if place in known else problem for place, problem in enumerate(problems)]
