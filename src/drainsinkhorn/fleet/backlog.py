"""Problems that have no result yet: their predicted work, and the windows that are cut from those that wait."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

from drainsinkhorn.fleet import wire
from drainsinkhorn.model.errors import ProblemError
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.numerics.depth import predicted_depth
from drainsinkhorn.run.session import Session

WINDOW_SECONDS = 0.5
"""Work of a window, as predicted."""
FIRST_WINDOW = 64
"""Problems of a window before it is known how fast workers are."""
LARGEST_WINDOW = 4096
SMALL_PAIRS, SMALL_DEPTH = 2**21, 16
"""Problems with fewer pairs are assumed to have this depth: a window has many, and to predict each takes too long."""


class Backlog:
    """Problems without a result, some of which wait to be sent.

    Args:
        session: The session of the run.
        workers: Number of workers.

    Attributes:
        problems: All problems by ticket, as they are sent to workers: with NumPy arrays. `queue` gives a problem of a
            chain the start that follows from its predecessor.
        predicted: Predicted work of each, by ticket.
    """

    def __init__(self, session: Session, workers: int) -> None:
        self.problems: dict[int, Problem[Any]] = {}
        self.predicted: dict[int, float] = {}
        self._session, self._workers = session, workers
        self._waiting: deque[int] = deque()
        self._waiting_work = 0.0
        # Widths that the backend recommends, by number of pairs to a factor of two: each takes a validation.
        self._widths: dict[int, int] = {}

    def __len__(self) -> int:
        """Number of problems that wait to be sent."""
        return len(self._waiting)

    def add(self, ticket: int, problem: Problem[Any]) -> None:
        """Add a problem, which does not wait to be sent before `queue` is called."""
        self.problems[ticket] = problem
        self.predicted[ticket] = self._predict(problem)

    def queue(self, ticket: int, start: Potentials[Any] | None) -> None:
        """Append a problem to those that wait to be sent; unless `start` is None, it replaces the problem's `init`."""
        if start is not None:
            self.problems[ticket] = replace(self.problems[ticket], init=start)
        self._waiting.append(ticket)
        self._waiting_work += self.predicted[ticket]

    def remove(self, ticket: int) -> bool:
        """Remove a problem that has a result; False if it was never added."""
        self.predicted.pop(ticket, None)
        return self.problems.pop(ticket, None) is not None

    def window(self, load: float, count: int, rate: float) -> list[int]:
        """Cut a window for a worker; it is empty if no problem waits or the worker has enough work.

        Args:
            load: Predicted work of the problems that the worker has.
            count: Number of those problems.
            rate: Predicted work that a worker does in a second; 0: not known yet.
        """
        if not self._waiting:
            return []
        goal, least = self._goal(rate), self._least()
        if load > goal / 2 and count >= 1.5 * least:
            return []
        tickets, work = list[int](), 0.0
        while self._waiting and len(tickets) < LARGEST_WINDOW and (work < goal or len(tickets) < least):
            tickets.append(self._waiting.popleft())
            work += self.predicted[tickets[-1]]
        self._waiting_work -= work
        return tickets

    def _goal(self, rate: float) -> float:
        """Return the predicted work that a window gets: that of WINDOW_SECONDS; near the end, half a worker's share."""
        goal = WINDOW_SECONDS * rate or FIRST_WINDOW * self.predicted[self._waiting[0]]
        return min(goal, self._waiting_work / (2 * self._workers)) if self._session.exhausted else goal

    def _least(self) -> int:
        """Return the least size of a window: the width of a pack; near the end, at most half a worker's share."""
        width = self._session.options.width or self._recommended_width(self.problems[self._waiting[0]])
        return min(width, -(-len(self._waiting) // (2 * self._workers))) if self._session.exhausted else width

    def _recommended_width(self, problem: Problem[Any]) -> int:
        size = int(wire.pairs(problem)).bit_length()
        if size not in self._widths:
            try:
                instance = self._session.validate(wire.provisional(problem))
                self._widths[size] = self._session.backend.hints(instance).width
            except ProblemError:
                return 1
        return self._widths[size]

    def _predict(self, problem: Problem[Any]) -> float:
        """Return pairs of points times predicted depth; of small or invalid problems the depth is not predicted."""
        pairs = wire.pairs(problem)
        if pairs < SMALL_PAIRS:
            return pairs * SMALL_DEPTH
        try:
            momentum = self._session.acceleration != "none"
            return pairs * predicted_depth(self._session.validate(wire.provisional(problem)), momentum=momentum)
        except (ProblemError, ArithmeticError):
            return pairs * SMALL_DEPTH
