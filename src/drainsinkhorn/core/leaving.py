"""Emit lanes that leave, and check that each emitted state belongs to the lane's own problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drainsinkhorn.core.audit import Verdict
from drainsinkhorn.core.events import Retired
from drainsinkhorn.core.protocol import Pack, Progress
from drainsinkhorn.core.source import Admission
from drainsinkhorn.model.instance import Instance


def retire(
    pack: Pack[Any],
    lanes: Mapping[int, Admission],
    decided: Mapping[int, Verdict],
    progress: Sequence[Progress],
    *,
    streamed: bool,
) -> tuple[dict[int, Retired], str]:
    """Emit the lanes that are decided.

    Args:
        pack: The pack.
        lanes: Its live lanes, by lane number.
        decided: Lanes that leave, each with its verdict.
        progress: Depth and screen of each lane.
        streamed: Whether these lanes stream only for lack of memory.

    Returns:
        The lanes that left, by lane number, and a message that names the first lane emitted with another lane's state
        (empty if there is none). Such a lane is not among those that left.
    """
    emitted, retired, stray = pack.emit(list(decided)), dict[int, Retired](), ""
    if len(emitted) != len(decided):
        return retired, f"emit was asked for {len(decided)} lanes and returned {len(emitted)}"
    for number, (potentials, widened, owner) in zip(decided, emitted, strict=True):
        (ticket, instance), verdict, depth = lanes[number], decided[number], progress[number].depth
        if owner is instance:
            retired[number] = Retired(ticket, instance, potentials, *verdict, depth, widened, streamed=streamed)
        else:
            stray = stray or f"lane {number} holds problem {ticket}, but emit returned {_whose(owner, lanes)}"
    return retired, stray


def _whose(owner: Instance[Any], lanes: Mapping[int, Admission]) -> str:
    """Describe the owner of the state that was emitted in place of a lane's own."""
    tickets = [ticket for ticket, instance in lanes.values() if instance is owner]
    return f"the state of problem {tickets[0]}" if tickets else "the state of a lane that has left, or was never there"
