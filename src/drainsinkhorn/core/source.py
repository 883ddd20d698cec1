"""Where lanes come from, and what goes back when memory runs out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from drainsinkhorn.model.instance import Instance

T = TypeVar("T")


class Admission(NamedTuple):
    """A problem that passed the door, with its ticket."""

    ticket: int
    instance: Instance[Any]


class Source(Protocol):
    """Hands problems of one signature to the executor."""

    def take(self, count: int) -> Sequence[Admission]:
        """Up to `count` problems; empty if there is none now."""
        ...

    def give_back(self, admissions: Sequence[Admission]) -> None:
        """Take these again, to be handed out first (there was no memory for them)."""
        ...


class Batch:
    """A list of admitted problems that may all share packs."""

    def __init__(self, admissions: Sequence[Admission]) -> None:
        self._waiting = deque(admissions)

    def take(self, count: int) -> Sequence[Admission]:
        """Up to `count` problems."""
        return [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]

    def give_back(self, admissions: Sequence[Admission]) -> None:
        """Take these again."""
        self._waiting.extendleft(reversed(admissions))


class Shortage(NamedTuple):
    """Memory ran out: lanes that have to run again, how many lanes the pack had, and what the backend said."""

    again: Sequence[Admission]
    width: int
    reason: str


class Exhausted(Exception):
    """A method of a pack ran out of memory; the pack must be discarded."""


def call(verb: Callable[..., T], *args: Any, **keywords: Any) -> T:
    """Call a method of a pack, or a function that calls such methods; a MemoryError becomes Exhausted."""
    try:
        return verb(*args, **keywords)
    except MemoryError as error:
        raise Exhausted(error) from None
