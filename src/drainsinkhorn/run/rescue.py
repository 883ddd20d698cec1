"""The rescue: problems that did not converge run a second time, together and in float64.

These functions decide which problems run again, from which start, and which of both runs is the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from drainsinkhorn.core.protocol import Backend
from drainsinkhorn.model.outcomes import Outcome
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.model.status import Status
from drainsinkhorn.numerics.arrays import to_caller, to_numpy
from drainsinkhorn.numerics.starts import usable_start
from drainsinkhorn.run.queue import Ended
from drainsinkhorn.run.session import RESCUABLE


def choose_restart(first: Ended) -> Potentials[Any] | str:
    """Return the start of a rescue: the potentials of the first run, recentred if necessary, or "zero".

    It is "zero" if the first run became non-finite from a start other than zero, or if the potentials are so large
    that float64 cannot resolve eps in them (`usable_start`).
    """
    instance, potentials = first.instance, first.outcome.potentials
    if potentials is None or (first.outcome.status is Status.NONFINITE and instance.init != "zero"):
        return "zero"
    has_gauge = instance.marginals.are_hard
    return usable_start(potentials, instance.eps, instance.tol, instance.a, instance.b, has_gauge=has_gauge)


def is_worthwhile(first: Ended, backend: Backend[Any]) -> bool:
    """Return True if a problem did not converge and a rescue might."""
    instance, outcome = first
    if outcome.status not in RESCUABLE:
        return False
    start_is_suspect = outcome.status is Status.NONFINITE or isinstance(instance.init, Potentials)
    if start_is_suspect and choose_restart(first) is not outcome.potentials:
        return True
    # In the same arithmetic, rounding that exceeds tol would do so again.
    hints, precise = backend.hints(instance), backend.precise().hints(instance)
    is_same = hints.arithmetic == precise.arithmetic
    return not (is_same and outcome.residual.band >= instance.tol)


def choose_result(first: Ended, second: Ended) -> tuple[Ended, str]:
    """Return the rescue if it converged or came nearer to tol than the first run, else the first run.

    Also return a remark for the result's message; empty if there is none.
    """
    before, after = first.outcome.residual.worst, second.outcome.residual.worst
    status = second.outcome.status
    if status is Status.CONVERGED or after < before or (math.isnan(before) and not math.isnan(after)):
        streamed = first.outcome.streamed or second.outcome.streamed
        chosen = second._replace(outcome=second.outcome._replace(streamed=streamed, rescued=True))
        if status is not Status.CONVERGED:
            return chosen, f"this is a second run, in float64; the first ended at residual {before:.3g}"
        if second.instance.init == "zero" and isinstance(first.instance.init, Potentials):
            return chosen, "the run from its start failed, and a second one from zero converged"
        return chosen, ""
    if status is Status.INVALID:
        return first, ""
    if status is Status.EXPIRED:
        first = first._replace(outcome=first.outcome._replace(status=Status.EXPIRED))
    return first, "a second run, in float64, did not help"


def explain(ended: Ended, margin: float, remarks: Sequence[str]) -> Outcome:
    """Return the outcome of a problem with a message that says why it did not converge, and the remarks.

    Args:
        ended: The problem, and how it ended.
        margin: Share of tol at which lanes leave; the instance's tol has it as a factor.
        remarks: Appended to the message.
    """
    outcome = ended.outcome
    reason = _find_reason(ended, margin) if outcome.status in RESCUABLE else ""
    detail = reason or outcome.detail
    if remarks:
        detail = "; ".join([detail or outcome.status.value, *remarks])
    return outcome if detail == outcome.detail else outcome._replace(detail=detail)


def _find_reason(ended: Ended, margin: float) -> str:
    """Return why a problem did not converge; empty if its status alone explains it."""
    instance, outcome = ended
    rounding_exceeds_tol = outcome.residual.band >= instance.tol
    failed = outcome.status is Status.NONFINITE
    from_start = isinstance(instance.init, Potentials)
    if from_start and (failed or rounding_exceeds_tol) and choose_restart(ended) is not outcome.potentials:
        trouble = "a number left the range of floating point" if failed else "rounding exceeds tol"
        return f"{trouble} in the run from its start: pass potentials of the size of the costs, or no start"
    if failed or not rounding_exceeds_tol:
        return ""
    stop = "tol" if margin == 1 else "margin * tol"
    return (
        f"{stop} = {instance.tol:.3g} is below the rounding error of this problem's residual "
        f"({outcome.residual.band:.2g}), so no check can confirm it; raise tol or eps"
    )


def with_finite_potentials(outcome: Outcome) -> Outcome:
    """Replace potentials by zeros if they are not finite; an outcome with a finite residual is returned as it is."""
    if outcome.potentials is None or math.isfinite(outcome.residual.worst):
        return outcome
    sides = [to_numpy(side) for side in outcome.potentials]
    if all(np.isfinite(side).all() for side in sides):
        return outcome
    zeros = (to_caller(np.zeros_like(side), like) for side, like in zip(sides, outcome.potentials, strict=True))
    return outcome._replace(potentials=Potentials(*zeros))
