"""The interface through which the executor takes problems."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from drainsinkhorn.model.instance import Instance


class Admission(NamedTuple):
    """A validated problem, with its ticket."""

    ticket: int
    instance: Instance[Any]


class Source(Protocol):
    """Hands problems of one signature to the executor."""

    def take(self, count: int) -> Sequence[Admission]:
        """Return up to `count` problems; none if no problem is there now."""
        ...

    def give_back(self, admissions: Sequence[Admission]) -> None:
        """Put problems back in front, because memory did not suffice for them."""
        ...


class Batch:
    """A list of admitted problems that may all share packs."""

    def __init__(self, admissions: Sequence[Admission]) -> None:
        self._waiting = deque(admissions)

    def take(self, count: int) -> Sequence[Admission]:
        """Return up to `count` problems."""
        return [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]

    def give_back(self, admissions: Sequence[Admission]) -> None:
        """Put problems back, so that `take` returns them first."""
        self._waiting.extendleft(reversed(admissions))
