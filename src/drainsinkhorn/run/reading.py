"""Reads the problems of a session, and finds the numbers for those whose eps is relative or a sharpness."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from drainsinkhorn.model.eps import SharpnessEps, is_descriptor
from drainsinkhorn.model.errors import ProblemError
from drainsinkhorn.model.problem import Problem
from drainsinkhorn.run.relative import find_together
from drainsinkhorn.run.session import Session
from drainsinkhorn.run.sharpness import find_sharpness, trial_options

AHEAD = 64
"""Problems of a stream that are read with one whose eps must be found, so that they are looked at together."""
NOTHING = None, math.nan
Pair = tuple[int, Problem[Any]]


class Reader:
    """Reads problems in order. If an eps must be found, it reads ahead, so that many are found together.

    Args:
        session: The session.
        solve: Solves a list of problems with a backend and options, for the trials of a search.
    """

    def __init__(self, session: Session, solve: Callable[..., Any]) -> None:
        self._session = session
        self._solve = solve
        # Problems that were read ahead; None at the end.
        self._ahead: deque[Pair | None] = deque()
        # For those: the eps of problems in which it is relative, and what a search found, by ticket.
        self._eps: dict[int, float] = {}
        self._answers: dict[int, Problem[Any] | ProblemError] = {}
        # Both for the problem that was read last.
        self._last: tuple[Problem[Any] | ProblemError | None, float] = NOTHING

    def read(self, room: float) -> Pair | None:
        """Return the next problem and its ticket, or None at the end.

        Args:
            room: Number of problems that may be read ahead.
        """
        if not self._ahead:
            self._last, pair = NOTHING, self._session.read_problem()
            if pair is None or not _is_open(pair[1]):
                return pair
            self._read_ahead(pair, room if self._session.count is not None else min(room, AHEAD))
        pair = self._ahead.popleft()
        if pair is not None:
            self._last = self._answers.pop(pair[0], None), self._eps.pop(pair[0], math.nan)
        return pair

    def is_ready(self) -> bool:
        """Whether the next problem can be read without waiting; only a feed may have to be waited for."""
        return bool(self._ahead) or self._session.feed is None or self._session.feed.ready()

    def take(self, problem: Problem[Any]) -> tuple[Problem[Any], float]:
        """Return the problem that was read last as it is to be validated, and its eps if that is relative, else NaN.

        After a search, it has the number that was found and a start. ProblemError says why nothing was found.
        """
        answer, eps = self._last
        if isinstance(answer, ProblemError):
            raise answer
        return problem if answer is None else answer, eps

    def _read_ahead(self, first: Pair, room: float) -> None:
        """Read on while nothing has to be waited for, and find the eps of all these problems together."""
        self._ahead.append(first)
        while len(self._ahead) < room and (self._session.feed is None or self._session.feed.ready()):
            pair = self._session.read_problem()
            self._ahead.append(pair)
            if pair is None:
                break
        pairs = [pair for pair in self._ahead if pair is not None and _is_open(pair[1])]
        self._eps |= find_together(pairs)
        searched = [pair for pair in pairs if isinstance(pair[1].eps, SharpnessEps)]
        searched = [(ticket, problem) for ticket, problem in searched if self._session.recall(ticket, problem) is None]
        if searched:
            begun, seconds = time.perf_counter(), self._session.ledger.seconds
            trials = partial(self._solve, backend=self._session.backend, options=trial_options(self._session.options))
            answers = find_sharpness([problem for _, problem in searched], trials)
            self._answers |= {ticket: answer for (ticket, _), answer in zip(searched, answers, strict=True)}
            seconds["sharpness"] = seconds.get("sharpness", 0.0) + time.perf_counter() - begun


def _is_open(problem: Any) -> bool:
    """True if the eps of a problem must be found."""
    return type(problem) is Problem and type(problem.eps) is not float and is_descriptor(problem.eps)
