"""A lack of memory in a method of a pack: how a window learns of it, and which lanes have to run again."""

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
    """A method of a pack ran out of memory; the pack must be discarded."""


def call(verb: Callable[..., T], *args: Any, **keywords: Any) -> T:
    """Call a method of a pack, or a function that calls such methods; a MemoryError becomes Exhausted."""
    try:
        return verb(*args, **keywords)
    except MemoryError as error:
        raise Exhausted(error) from None
