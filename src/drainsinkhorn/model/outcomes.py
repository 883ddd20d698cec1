"""How problems ended, in columns."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, overload

from drainsinkhorn.model.brief import call, status_counts
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.model.result import UNKNOWN, Residual
from drainsinkhorn.model.status import Status


class Blocks(Sequence[Any]):
    """A sequence of arrays, one per problem. Arrays of equal size may be stored as the rows of one array, a block.

    An entry of a block is a view of its row, so it keeps the whole block in memory.

    Args:
        entries: A list of arrays, or one array with a row for each problem; None: no entries.
    """

    def __init__(self, entries: Any = None) -> None:
        self._parts: list[Any] = []
        # Number of entries up to the end of each part.
        self._ends: list[int] = []
        if entries is not None:
            self._add(entries)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, place: int) -> Any: ...
    @overload
    def __getitem__(self, place: slice) -> Blocks: ...
    def __getitem__(self, place: int | slice) -> Any:
        """Return one entry, or some of them."""
        if not isinstance(place, slice):
            place = range(len(self))[place]
            part = bisect_right(self._ends, place)
            return self._parts[part][place - (self._ends[part - 1] if part else 0)]
        chosen, some = range(*place.indices(len(self))), Blocks()
        if chosen.step != 1:
            return Blocks([self[each] for each in chosen])
        begin = 0
        for part, end in zip(self._parts, self._ends, strict=True):
            if max(begin, chosen.start) < min(end, chosen.stop):
                some._add(part[max(begin, chosen.start) - begin : chosen.stop - begin])
            begin = end
        return some

    def __iter__(self) -> Iterator[Any]:
        return (entry for part in self._parts for entry in part)

    def __eq__(self, other: object) -> bool:
        """Whether the entries are equal, as those of lists."""
        return isinstance(other, Blocks) and list(self) == list(other)

    __hash__ = None  # pyright: ignore[reportAssignmentType, reportIncompatibleVariableOverride]

    def __repr__(self) -> str:
        return call("Blocks", str(len(self)))

    def __delitem__(self, place: slice) -> None:
        """Remove some entries."""
        remaining = Blocks([self[each] for each in sorted({*range(len(self))}.difference(range(len(self))[place]))])
        self._parts, self._ends = remaining._parts, remaining._ends

    def append(self, entry: Any) -> None:
        """Add one entry."""
        self.extend(Blocks([entry]))

    def extend(self, others: Blocks) -> None:
        """Add the entries of others."""
        for part in others._parts:
            self._add(part)

    def whole(self) -> Any:
        """Return the block that holds all entries; None if there is no such block."""
        return self._parts[0] if len(self._parts) == 1 and not isinstance(self._parts[0], list) else None

    def _add(self, entries: Sequence[Any]) -> None:
        """Add a list or a block."""
        is_list = isinstance(entries, list)
        if is_list and self._parts and isinstance(self._parts[-1], list):
            # First the end: entries that an interrupt leaves out make a column longer, which `Outcomes` repairs.
            self._ends[-1] += len(entries)
            self._parts[-1] += entries
        elif len(entries):
            self._ends.append(len(self) + len(entries))
            # A list is copied, since it may grow here.
            self._parts.append([*entries] if is_list else entries)


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
        detail: The reason, if the status alone does not state it.
        streamed: True if it streamed only because memory ran out.
        rescued: True if these are the potentials of the rescue.
        eps: The eps with which it ran; NaN if the problem did not run.
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
    eps: float = math.nan


def make_rejection(ticket: int, detail: str, status: Status = Status.INVALID) -> Outcome:
    """Return the outcome of a problem that did not run."""
    return Outcome(ticket, None, UNKNOWN, status, 0, detail=detail)


@dataclass(slots=True)
class Outcomes:
    """Outcomes of many problems as columns, in the order in which the problems ended.

    Columns of numbers cost the garbage collector less than one object per problem. The column `tickets` is written
    last: a row is valid once its ticket is written, so an interrupted write leaves no incomplete row.
    """

    f: Blocks = field(default_factory=lambda: Blocks())
    g: Blocks = field(default_factory=lambda: Blocks())
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
    eps: list[float] = field(default_factory=list[float])
    tickets: list[int] = field(default_factory=list[int])

    @classmethod
    def from_rows(cls, rows: Iterable[Outcome]) -> Outcomes:
        """Return the columns of these outcomes."""
        outcomes = cls()
        for row in rows:
            outcomes.append(row)
        return outcomes

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

    def __len__(self) -> int:
        return len(self.tickets)

    @overload
    def __getitem__(self, place: int) -> Outcome: ...
    @overload
    def __getitem__(self, place: slice) -> Outcomes: ...
    def __getitem__(self, place: int | slice) -> Outcome | Outcomes:
        """Return one row, or the columns of some rows."""
        if isinstance(place, slice):
            return Outcomes(*(column[place] for column in self._columns()))
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
            self.eps[place],
        )

    def __iter__(self) -> Iterator[Outcome]:
        """Iterate over the rows."""
        return (self[place] for place in range(len(self)))

    def __repr__(self) -> str:
        return call("Outcomes", status_counts(self.statuses[: len(self)]) or "empty")

    def _columns(self) -> list[Any]:
        return [getattr(self, name) for name in _NAMES]

    def _drop_half_rows(self) -> None:
        """Remove what an interrupted `append` or `extend` left behind."""
        count = len(self.tickets)
        if len(self.f) > count:
            for column in self._columns():
                del column[count:]


_NAMES = [each.name for each in fields(Outcomes)]
