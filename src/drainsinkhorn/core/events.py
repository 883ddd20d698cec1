"""Events of a run, which observers receive. The ledger, progress bars and traces are observers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from drainsinkhorn.core.audit import Counts, Standing
from drainsinkhorn.core.protocol import Spent
from drainsinkhorn.model.brief import call, count_of, status_counts
from drainsinkhorn.model.errors import ObserverWarning, warn
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.outcomes import Outcomes
from drainsinkhorn.model.status import Status

_log = logging.getLogger("drainsinkhorn")


@dataclass(frozen=True, slots=True)
class Chosen:
    """A choice left to "auto" was made: what was to be chosen, what was picked, and why."""

    what: str
    picked: str
    reason: str


@dataclass(frozen=True, slots=True)
class Opened:
    """A window opened.

    Attributes:
        tickets: Tickets of its lanes.
        capacity: Largest number of lanes that it may hold.
        width_for: Returns the physical width of a pack of a given number of lanes.
        spent: Work of the opening.
    """

    tickets: Sequence[int]
    capacity: int
    width_for: Callable[[int], int]
    spent: Spent


@dataclass(frozen=True, slots=True)
class Advanced:
    """A pack advanced: cycles of the lane that ran longest, width of the kernel, number of live lanes, and the work.

    `standings()` yields the standing of every live lane. Observers call it while they receive the event, and keep what
    it yields, not the event. If no observer calls it, nothing is computed.
    """

    cycles: int
    width: int
    live: int
    spent: Spent
    standings: Callable[[], Iterable[Standing]] = field(default=tuple, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Audited:
    """Lanes were audited: how many were screened, verified and passed, and the work of screens and verifies."""

    counts: Counts
    spent: Spent


class Retired(NamedTuple):
    """Lanes that left a pack at one audit.

    Attributes:
        instances: Their problems.
        outcomes: How they ended, in the same order.
    """

    instances: Sequence[Instance[Any]]
    outcomes: Outcomes

    def __repr__(self) -> str:
        return call("Retired", count_of(len(self.instances), "lane"), status_counts(self.outcomes.statuses))


@dataclass(frozen=True, slots=True)
class Repacked:
    """A pack was rebuilt: number of lanes it kept, tickets it admitted, its new width, and the work."""

    lanes_kept: int
    admitted: Sequence[int]
    width: int
    spent: Spent


@dataclass(frozen=True, slots=True)
class Frozen:
    """Retired lanes stay in the kernel and no longer change; `lanes` is their number."""

    lanes: int


@dataclass(frozen=True, slots=True)
class Narrowed:
    """Memory ran out; from now on packs hold at most `capacity` lanes, and the problems `again` run again."""

    capacity: int
    again: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Lowered:
    """The eps of these problems falls to its next value: they left their pack, and continue in this or another one."""

    tickets: Sequence[int]


@dataclass(frozen=True, slots=True)
class Rescuing:
    """These problems did not converge and are run once more, in float64. That run keeps its own ledger."""

    tickets: Sequence[int]


@dataclass(frozen=True, slots=True)
class Finished:
    """A problem has its final result, rescue included."""

    ticket: int
    status: Status


@dataclass(frozen=True, slots=True)
class Resumed:
    """A journal was opened.

    Attributes:
        path: Its file.
        known: Number of problems it records.
        torn: Bytes at the end of its WAL that belong to no complete commit and were ignored.
        salvaged: Number of rows copied from a damaged file; None if the file was not damaged.
    """

    path: str
    known: int
    torn: int
    salvaged: int | None


@dataclass(frozen=True, slots=True)
class Reported:
    """A worker of a fleet reported its live lanes, its unfinished problems, and the slots it has spent."""

    worker: int
    live: int
    has: int
    slots: int


@dataclass(frozen=True, slots=True)
class Lost:
    """A worker of a fleet died, hung or failed; its unfinished problems, by ticket, run again."""

    worker: int
    reason: str
    tickets: Sequence[int]


Event = (
    Chosen
    | Opened
    | Advanced
    | Audited
    | Retired
    | Repacked
    | Frozen
    | Narrowed
    | Lowered
    | Rescuing
    | Finished
    | Resumed
    | Reported
    | Lost
)
Observer = Callable[[Event], None]


def ignore(event: Event) -> None:
    """An observer that does nothing."""


class Watch:
    """The caller's observer. After it has raised an exception it is not called again; the run continues.

    Attributes:
        error: The exception that the observer raised; None before that, and after `warn`.
    """

    def __init__(self, observe: Observer) -> None:
        self._observe = observe
        self.error: Exception | None = None

    def __call__(self, event: Event) -> None:
        """Call the observer with an event, unless it has raised before."""
        if self.error is not None:
            return
        try:
            self._observe(event)
        except Exception as error:  # noqa: BLE001  the caller's own code: finished results must not be lost to it
            self.error = error
            text = "observer %r raised an exception and gets no more events; the run continues"
            _log.warning(text, self._observe, exc_info=error)

    def warn(self, solution: object = None) -> None:
        """Issue an ObserverWarning if the observer raised, with its exception as the cause."""
        if self.error is not None:
            # The traceback refers to this object, and a reference cycle would keep the caller's arrays.
            error, self.error = self.error, None
            text = f"the observer raised {type(error).__name__} ({error}) and received no further events"
            warn(ObserverWarning(f"{text}; results are complete", solution), cause=error)


def fan_out(*observers: Observer) -> Observer:
    """Return an observer that passes every event to each of several observers."""

    def notify(event: Event) -> None:
        for observer in observers:
            observer(event)

    return notify
