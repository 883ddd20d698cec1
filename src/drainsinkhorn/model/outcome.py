"""How problems ended: one row for each, in columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.model.result import UNKNOWN, Residual
from drainsinkhorn.model.status import Status


class Outcome(NamedTuple):
    """How one problem ended; `Result` explains the fields that it shares with an outcome.

    Attributes:
        ticket: The problem's number in the order of submission.
        potentials: The emitted potentials; None if the problem did not run.
        residual: Residual of exactly those potentials.
        status: How it ended.
        depth: Cycles of the run that gave the potentials.
        widened: True if the potentials have a wider dtype than the points.
        arithmetic: Precision and representation in which it ran; empty if it did not run.
        detail: Why, where the status alone does not say it.
        streamed: True if it streamed only because memory ran out.
        rescued: True if these are the potentials of the rescue.
    """

    ticket: int
    potentials: Potentials[Any] | None
    residual: Residual
    status: Status
    depth: int
    widened: bool = False
    arithmetic: str = ""
    detail: str = ""
    streamed: bool = False
    rescued: bool = False


def rejected(ticket: int, detail: str, status: Status = Status.INVALID) -> Outcome:
    """Return the outcome of a problem that did not run."""
    return Outcome(ticket, None, UNKNOWN, status, 0, detail=detail)


@dataclass(slots=True)
class Outcomes:
    """Outcomes of many problems as columns, in the order in which the problems ended.

    Columns of numbers cost the garbage collector nothing, however many problems there are. The column `tickets` is
    written last: a row counts once its ticket is there, so an interrupt leaves no half row behind.
    """

    f: list[Any] = field(default_factory=list[Any])
    g: list[Any] = field(default_factory=list[Any])
    row: list[float] = field(default_factory=list[float])
    col: list[float] = field(default_factory=list[float])
    band: list[float] = field(default_factory=list[float])
    statuses: list[Status] = field(default_factory=list[Status])
    depths: list[int] = field(default_factory=list[int])
    widened: list[bool] = field(default_factory=list[bool])
    arithmetic: list[str] = field(default_factory=list[str])
    details: list[str] = field(default_factory=list[str])
    streamed: list[bool] = field(default_factory=list[bool])
    rescued: list[bool] = field(default_factory=list[bool])
    tickets: list[int] = field(default_factory=list[int])

    def append(self, outcome: Outcome) -> None:
        """Add one row."""
        ticket, potentials, (row, col, band), *rest = outcome
        f, g = (None, None) if potentials is None else potentials
        self._drop_half_rows()
        for column, value in zip(self._columns(), (f, g, row, col, band, *rest, ticket), strict=True):
            column.append(value)

    def extend(self, other: Outcomes) -> None:
        """Add the rows of other columns."""
        self._drop_half_rows()
        for column, values in zip(self._columns(), other._columns(), strict=True):
            column.extend(values)

    def first(self, count: int) -> Outcomes:
        """Return the first rows."""
        return Outcomes(*(column[:count] for column in self._columns()))

    def __len__(self) -> int:
        return len(self.tickets)

    def __getitem__(self, place: int) -> Outcome:
        """Return one row."""
        f = self.f[place]
        return Outcome(
            self.tickets[place],
            None if f is None else Potentials(f, self.g[place]),
            Residual(self.row[place], self.col[place], self.band[place]),
            self.statuses[place],
            self.depths[place],
            self.widened[place],
            self.arithmetic[place],
            self.details[place],
            self.streamed[place],
            self.rescued[place],
        )

    def __iter__(self) -> Iterator[Outcome]:
        """Iterate over the rows."""
        return (self[place] for place in range(len(self)))

    def _columns(self) -> list[list[Any]]:
        return [getattr(self, name) for name in _NAMES]

    def _drop_half_rows(self) -> None:
        """Remove what an interrupted `append` or `extend` left behind."""
        count = len(self.tickets)
        if len(self.f) > count:
            for column in self._columns():
                del column[count:]


_NAMES = [each.name for each in fields(Outcomes)]
