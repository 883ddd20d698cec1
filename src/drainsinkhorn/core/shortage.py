"""Memory that runs out under a pack: what has to run again, and how a window is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from drainsinkhorn.core.source import Admission

T = TypeVar("T")


class Shortage(NamedTuple):
    """Memory ran out: lanes that have to run again, how many lanes the pack had, and what the backend said."""

    again: Sequence[Admission]
    width: int
    reason: str


class Exhausted(Exception):
    """A verb of a pack ran out of memory; the pack cannot be used any more."""


def call(verb: Callable[..., T], *args: Any, **keywords: Any) -> T:
    """Call a verb of a pack, or a function that calls its verbs; where memory runs out, Exhausted is raised."""
    try:
        return verb(*args, **keywords)
    except MemoryError as error:
        raise Exhausted(error) from None
