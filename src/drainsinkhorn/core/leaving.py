"""Lanes that leave: their potentials are copied out, and each must be the state of its own problem."""

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
        decided: Those that leave, and how they were judged.
        progress: Where each lane stands.
        streamed: Whether memory alone made these lanes stream.

    Returns:
        The lanes that left, by lane number, and which lane was emitted with a state that is not its own ("": none).
        Such a lane is not among those that left.
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
    """In words, whose state was emitted in place of a lane's own."""
    tickets = [ticket for ticket, instance in lanes.values() if instance is owner]
    return f"the state of problem {tickets[0]}" if tickets else "the state of a lane that has left, or was never there"
