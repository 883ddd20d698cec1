"""A gate for queues of scripted problems."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from drainsinkhorn.core.source import Admission
from drainsinkhorn.model.problem import Problem
from drainsinkhorn.run.queue import Ended, Policy, Queue

BAD = "bad"


class ScriptedGate:
    """A gate whose problems have a shape, by which they share lines; those of the shape BAD are rejected."""

    def __init__(self, problems: Iterable[Any], policy: Policy) -> None:
        self.read = 0
        self.refused: list[int] = []
        self._problems = iter(problems)
        self.queue = Queue(self, policy)

    def read_problem(self) -> tuple[int, Problem[Any]] | None:
        problem = next(self._problems, None)
        if problem is None:
            return None
        ticket, self.read = self.read, self.read + 1
        return ticket, problem

    def is_ready(self) -> bool:
        return True

    def is_overdue(self, ticket: int) -> bool:
        return False

    def is_paused(self) -> bool:
        return False

    def admit(self, ticket: int, problem: Any) -> Any:
        if problem.x.shape == BAD:
            self.refused.append(ticket)
            return None
        return problem, self.sign(ticket, problem)

    def sign(self, ticket: int, instance: Any) -> Any:
        return self.signature(instance)

    def signature(self, instance: Any) -> Any:
        return instance.x.shape

    def carry_start(self, ended: Ended, admission: Admission) -> Any:
        return admission.instance
