"""The stages of problems whose eps falls (`FallingEps`): each starts from the potentials of the one before.

A stage is an instance of its own, with a larger eps and a depth limit, which runs like any other problem. Only the last
one, at the problem's own eps, has a result; its depth counts the cycles of all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from drainsinkhorn.core.events import Retired
from drainsinkhorn.model.eps import FallingEps
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.marginal import Marginal, Marginals
from drainsinkhorn.model.outcomes import Outcomes
from drainsinkhorn.model.status import Status
from drainsinkhorn.run import rescue
from drainsinkhorn.run.queue import Ended

CONTINUED = (Status.CONVERGED, Status.DEPTH_LIMIT, Status.NONFINITE, Status.EXPIRED)
"""Statuses of a stage after which the problem continues with the next stage."""


@dataclass(slots=True)
class _Descent:
    """A problem whose last stage does not run yet: its instance at the last eps, and the number of the next stage."""

    last: Instance[Any]
    eps: FallingEps
    following: int = 0


class Stages:
    """Problems of a run whose eps falls and has not reached its last value.

    Args:
        max_depth: The depth limit of problems without their own.
        stride: Cycles of the backend come in multiples of this.
    """

    def __init__(self, max_depth: int, stride: int) -> None:
        self._max_depth, self._stride = max_depth, stride
        self._descents: dict[int, _Descent] = {}

    def begin(self, ticket: int, instance: Instance[Any], eps: FallingEps) -> Instance[Any]:
        """Return the first stage of a problem.

        Args:
            ticket: The ticket of the problem.
            instance: The problem with its last eps.
            eps: The falling eps, whose target the instance has.
        """
        self._descents[ticket] = descent = _Descent(instance, eps)
        return self._next(ticket, descent, 0, instance.init)

    def follow(self, ended: Ended) -> Instance[Any] | None:
        """Return the stage that follows one that has ended; None if it was the last, or the problem was rejected."""
        outcome = ended.outcome
        descent = self._descents.get(outcome.ticket)
        if descent is None or outcome.status not in CONTINUED:
            self._descents.pop(outcome.ticket, None)
            return None
        if outcome.status is Status.EXPIRED:
            # The result of a problem that is out of time is measured at its own eps.
            descent.following = len(descent.eps.multiples)
        ended = Ended(descent.last, rescue.with_finite_potentials(outcome))
        return self._next(outcome.ticket, descent, outcome.depth, rescue.choose_restart(ended))

    def without_intermediate(self, event: Retired) -> tuple[Retired, Sequence[int]]:
        """Return the event with the lanes whose problems end, and the tickets of those that run on."""
        places, tickets = list[int](), list[int]()
        for place, (ticket, status) in enumerate(zip(event.outcomes.tickets, event.outcomes.statuses, strict=True)):
            if ticket in self._descents and status in CONTINUED:
                tickets.append(ticket)
            else:
                places.append(place)
        if not tickets:
            return event, ()
        ended = Outcomes.from_rows(event.outcomes[place] for place in places)
        return Retired([event.instances[place] for place in places], ended), tickets

    def _next(self, ticket: int, descent: _Descent, depth: int, init: Any) -> Instance[Any]:
        """Return the next stage, which starts from `init` after `depth` cycles.

        It is the last one if any other could use up the depth limit.
        """
        last, falling = descent.last, descent.eps
        cycles = -(-falling.cycles // self._stride) * self._stride
        while descent.following < len(falling.multiples) and depth + cycles < (last.max_depth or self._max_depth):
            multiple = falling.multiples[descent.following]
            descent.following += 1
            eps = multiple * last.eps
            if math.isfinite(eps):
                marginals = last.marginals
                if falling.scale_rho:
                    marginals = Marginals(*(Marginal(side.kappa / multiple) for side in marginals))
                limit = depth + cycles
                return replace(last, eps=eps, marginals=marginals, max_depth=limit, depth_before=depth, init=init)
        del self._descents[ticket]
        return replace(last, depth_before=depth, init=init)
