"""When converged results are recomputed from the caller's own arrays: a small share of the time of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from drainsinkhorn.model.errors import ContractError
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.instances import InstanceStack
from drainsinkhorn.model.outcomes import Outcome, Outcomes
from drainsinkhorn.model.status import Status
from drainsinkhorn.run.refutation import device_or_host, price_of, refute

FIRST, SHARE = 0.02, 0.005
"""Share of the predicted time of a run that may be spent on the recheck of its first result, and on all later ones.

The predicted time is that of the fastest runs. Most runs take twice as long, so the actual shares are half of these.
"""

DEPTH = 30
"""Cycles of a typical problem, from which the time of a run is predicted."""

PAIR = {"host": 8e-11, "device": 1e-12}
"""Processor seconds for one pair of points in one cycle of the fastest lanes: plain Sinkhorn on a cached matrix."""

ON_DEVICE = ("triton", "keops", "ott")
"""Backends that may compute on a GPU; their time is always predicted as on a GPU."""

LONGEST_WAIT = 16
"""Largest number of results in a row that are not considered; the next one has the time credit of all of them."""


class Recheck:
    """Rechecks converged results of a run as they end.

    Args:
        mode: "sampled": some rows and columns of the first result, then of as many as SHARE of the run's time allows;
            "all": all rows and columns of every result; "none": no result.
        margin: Share of tol at which lanes stop; the recheck compares with tol itself.
        backend: Name of the backend, for error messages.
        count: Number of problems of the run; None: unknown. If a recheck takes longer than the share FIRST of the
            predicted time of the run, the first result is rechecked only in a fraction of such runs; a hash of ticket
            and residual decides.
    """

    def __init__(self, mode: str, margin: float, backend: str, count: int | None) -> None:
        self._mode, self._margin, self._backend = mode, margin, backend
        self._count = math.inf if count is None else count
        self._is_first = True
        # Seconds that may be spent, cycles not yet credited, and number of results until one is considered again.
        self._credit, self._cycles, self._wait = 0.0, 0, 1

    def select(self, instances: Sequence[Instance[Any]], outcomes: Outcomes) -> list[int]:
        """Return the rows of the outcomes to be checked now.

        Args:
            instances: Problems that have ended, in the order in which they ended.
            outcomes: How they ended.
        """
        if self._mode != "sampled":
            converged = [status is Status.CONVERGED for status in outcomes.statuses]
            return [place for place, ok in enumerate(converged) if ok and self._mode == "all"]
        due, place = list[int](), -1
        statuses, depths = outcomes.statuses, outcomes.depths
        # A stack has one price, so no other instance of it is made.
        prices = [self._price(instances[0])] if isinstance(instances, InstanceStack) else []
        while (step := max(self._wait, 1)) < len(outcomes) - place:
            self._cycles += sum(depths[place + 1 : place + 1 + step])
            self._wait -= step
            place += step
            if statuses[place] is Status.CONVERGED:
                price, cycle = prices[0] if prices else self._price(instances[place])
                if self._is_due(price, cycle, outcomes, place):
                    due.append(place)
        self._cycles += sum(depths[place + 1 :])
        self._wait -= len(outcomes) - 1 - place
        return due

    def _is_due(self, price: float, cycle: float, outcomes: Outcomes, place: int) -> bool:
        """Return True if the time credit of the run pays for a check of this result.

        Args:
            price: Predicted seconds of the check.
            cycle: Predicted seconds of one cycle of the problem.
            outcomes: How problems ended.
            place: Which of them.
        """
        if self._is_first:
            due = _fraction(outcomes[place]) * price <= FIRST * cycle * DEPTH * self._count
        else:
            self._credit += SHARE * cycle * self._cycles
            due = self._credit >= price
            self._credit -= price * due
        # This bookkeeping takes time as well, so results that cannot be due are not considered.
        cycles = 1 + outcomes.depths[place]
        self._wait = min(1 + int(max(price - self._credit, 0.0) / (SHARE * cycle * cycles)), LONGEST_WAIT)
        self._is_first, self._cycles = False, 0
        return due

    def check(self, instance: Instance[Any], outcome: Outcome) -> None:
        """Recompute a converged result; raises ContractError if it is refuted.

        In mode "all" every row and column is recomputed, else some of them.
        """
        assert outcome.potentials is not None, "a converged result has potentials"
        tol, check_all = instance.tol / self._margin, self._mode == "all"
        refutation = refute(instance, outcome.potentials, tol, ticket=outcome.ticket, check_all=check_all)
        if refutation is not None:
            side, checked, total, least = refutation
            count = "all" if checked == total else f"{checked} of"
            raise ContractError(
                f"backend {self._backend!r}: problem {outcome.ticket} was reported as CONVERGED with residual "
                f"{outcome.residual.worst:.3g}, but recomputed from its own arrays in float64 the residual of {count} "
                f"{total} {side} is {least:.3g}, above tol = {tol:.3g}. The result is "
                "withheld; the backend or the machine is at fault. Solve again with another backend, for example "
                'backend="reference"'
            )

    def _price(self, instance: Instance[Any]) -> tuple[float, float]:
        """Predict the seconds of a check, and those that a fast backend needs for one cycle of a problem."""
        rows, cols = instance.shape
        return price_of(instance), rows * cols * PAIR[
            "device" if self._backend in ON_DEVICE else device_or_host(instance)
        ]


def _fraction(outcome: Outcome) -> float:
    """Return a hash of ticket and residual, uniform in [0, 1)."""
    return hash((outcome.ticket, outcome.residual.row, outcome.residual.col)) % 2**32 / 2**32
