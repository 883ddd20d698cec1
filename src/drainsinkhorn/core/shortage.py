"""What the executor says when memory runs out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from drainsinkhorn.core.source import Admissions
from drainsinkhorn.model.instance import Instance


class Shortage(NamedTuple):
    """Memory ran out: lanes that have to run again, number of lanes of the pack, and the backend's message."""

    again: Admissions
    width: int
    reason: str


class Exhausted(Exception):
    """A method of a pack ran out of memory; the pack must be discarded."""


def describe_shortage(instance: Instance[Any], arithmetic: Sequence[str], reason: str) -> str:
    """Return the message of a problem for which memory did not suffice in any of these kinds of arithmetic."""
    (n, m), tried = instance.shape, " or ".join(f"as {name!r}" for name in arithmetic)
    advice = "free memory or use fewer points"
    if instance.is_dense:
        advice += "; with points in place of a dense cost no matrix has to be stored"
    return f"there is not enough memory for this problem alone {tried} ({reason}); it has {n} x {m} points: {advice}"
