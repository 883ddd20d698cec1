"""The residuals of every problem over its depth, as an observer of a run."""

from __future__ import annotations

from typing import NamedTuple

from drainsinkhorn.core.events import Advanced, Event, Narrowed, Retired


class Step(NamedTuple):
    """A state that was seen: cycles that had been run, and the residual there, rounding included."""

    depth: int
    residual: float


class ResidualHistory:
    """An observer that keeps the residuals of every problem over its depth: pass it as `observe=`.

    Between audits it receives the residual of the side that the last leg left stale, whenever lanes come to an audit;
    `audit=Audit(every=k)` makes that every k cycles, and changes no result. The last entry of a problem is the verified
    residual of its result (of its first run, if it was rescued).

    Examples:
        >>> import numpy as np
        >>> import drainsinkhorn as ds
        >>> x = np.random.default_rng(0).normal(size=(3, 40, 2))
        >>> history = ResidualHistory()
        >>> solution = ds.solve(x, x + 1, eps=0.05, observe=history, audit=ds.Audit(every=4))
        >>> history[1][-1].depth == solution[1].depth, history[1][-1].residual <= 1e-3
        (True, True)
    """

    def __init__(self) -> None:
        self._steps: dict[int, list[Step]] = {}

    def __call__(self, event: Event) -> None:
        """Receive an event."""
        if isinstance(event, Advanced):
            for standing in event.standings():
                self._steps.setdefault(standing.ticket, []).append(Step(standing.depth, standing.stale))
        elif isinstance(event, Retired):
            for outcome in event.outcomes:
                steps = self._steps.setdefault(outcome.ticket, [])
                if steps and steps[-1].depth == outcome.depth:
                    steps.pop()
                steps.append(Step(outcome.depth, outcome.residual.worst))
        elif isinstance(event, Narrowed):
            # These problems run again from their starts.
            for ticket in event.again:
                self._steps.pop(ticket, None)

    def __getitem__(self, ticket: int) -> list[Step]:
        """The states of a problem, in the order of their depth; empty for a problem that did not run."""
        return list(self._steps.get(ticket, ()))

    def __len__(self) -> int:
        """The number of problems seen so far."""
        return len(self._steps)
