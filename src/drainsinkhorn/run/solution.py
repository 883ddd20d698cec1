"""All results of a solve, in the order of submission."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, overload

from drainsinkhorn.core.ledger import Ledger
from drainsinkhorn.model.errors import NotConverged, ProblemError
from drainsinkhorn.model.problem import A, Potentials
from drainsinkhorn.model.result import Residual, Result
from drainsinkhorn.model.status import Status
from drainsinkhorn.numerics.arrays import stack


class Record(NamedTuple):
    """How a problem ended."""

    ticket: int
    potentials: Potentials[Any] | None
    residual: Residual
    status: Status
    depth: int
    widened: bool
    arithmetic: str
    detail: str
    streamed: bool = False


class Records:
    """How many problems ended, by ticket. In columns: the garbage collector would visit every object of many."""

    def __init__(self, count: int) -> None:
        self._f: list[Any] = [None] * count
        self._g: list[Any] = [None] * count
        self._residuals = array("d", bytes(8 * 3 * count))
        self.statuses: list[Status | None] = [None] * count
        self._depths = [0] * count
        self._widened = bytearray(count)
        self._arithmetic = [""] * count
        self._details: dict[int, str] = {}
        self._streamed: set[int] = set()

    def enter(self, record: Record) -> None:
        """Keep a record."""
        ticket, potentials, residual, self.statuses[ticket], depth, widened, arithmetic, detail, streamed = record
        if potentials is not None:
            self._f[ticket], self._g[ticket] = potentials
        self._residuals[3 * ticket], self._residuals[3 * ticket + 1], self._residuals[3 * ticket + 2] = residual
        self._depths[ticket], self._widened[ticket], self._arithmetic[ticket] = depth, widened, arithmetic
        if detail:
            self._details[ticket] = detail
        if streamed:
            self._streamed.add(ticket)

    def __len__(self) -> int:
        return len(self.statuses)

    def __getitem__(self, ticket: int) -> Record:
        """The record of a problem that has ended."""
        status, f = self.statuses[ticket], self._f[ticket]
        if status is None:
            raise KeyError(ticket)
        return Record(
            ticket,
            None if f is None else Potentials(f, self._g[ticket]),
            Residual(*self._residuals[3 * ticket : 3 * ticket + 3]),
            status,
            self._depths[ticket],
            bool(self._widened[ticket]),
            self._arithmetic[ticket],
            self._details.get(ticket, ""),
            ticket in self._streamed,
        )

    def entered(self) -> Iterator[Record]:
        """Records of all problems that have ended."""
        return (self[ticket] for ticket, status in enumerate(self.statuses) if status is not None)

    @property
    def potentials(self) -> list[tuple[Any, Any]]:
        """The potentials f and g of every problem; None where it has none."""
        return list(zip(self._f, self._g, strict=True))


class Results(Sequence[Result[A]], Generic[A]):
    """Results that are made when they are looked at.

    Args:
        records: How each problem ended.
        make: Makes the Result of a record; called once for each.
    """

    def __init__(self, records: Records, make: Callable[[Record], Result[A]]) -> None:
        self.records = records
        self._make = make
        self._made: dict[int, Result[A]] = {}

    @overload
    def __getitem__(self, index: int) -> Result[A]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Result[A]]: ...
    def __getitem__(self, index: int | slice) -> Result[A] | Sequence[Result[A]]:
        """The Result at a place."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = range(len(self.records))[index]
        if place not in self._made:
            self._made[place] = self._make(self.records[place])
        return self._made[place]

    def __len__(self) -> int:
        """The number of problems."""
        return len(self.records)

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle: all results as they are; what made them stays behind."""
        return _made_before, (self.records, list(self))


def _made_before(records: Records, made: list[Result[A]]) -> Results[A]:
    """Results that were made in another process or at another time."""
    return Results(records, lambda record: made[record.ticket])


class Solution(Sequence[Result[A]], Generic[A]):
    """Results in the order of submission, and the account of the run.

    Attributes:
        results: One Result per problem, made when it is looked at.
        ledger: Slots, legs, survival curve, width trace, timings, and what "auto" chose.
    """

    def __init__(self, results: Results[A], ledger: Ledger) -> None:
        self.results = results
        self.ledger = ledger

    @overload
    def __getitem__(self, index: int) -> Result[A]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Result[A]]: ...
    def __getitem__(self, index: int | slice) -> Result[A] | Sequence[Result[A]]:
        """The Result of a problem by its ticket."""
        return self.results[index]

    def __len__(self) -> int:
        """The number of problems."""
        return len(self.results)

    def __iter__(self) -> Iterator[Result[A]]:
        """Results in the order of submission."""
        return iter(self.results)

    @property
    def potentials(self) -> Potentials[A]:
        """Potentials stacked to (W, n) and (W, m); raises ProblemError where shapes differ or a problem is INVALID."""
        if not self.results:
            raise ProblemError("there are no potentials to stack: the solution is empty")
        pairs = self.results.records.potentials
        for place, (f, _) in enumerate(pairs):
            if f is None:
                return self[place].potentials
        shapes = {(tuple(f.shape), tuple(g.shape)) for f, g in pairs}
        if len(shapes) > 1:
            raise ProblemError(
                f"potentials have {len(shapes)} different shapes and cannot be stacked; take solution[i].potentials"
            )
        return Potentials(stack([f for f, _ in pairs]), stack([g for _, g in pairs]))

    @property
    def counts(self) -> dict[Status, int]:
        """How many problems ended in each status."""
        return dict(Counter(status for status in self.results.records.statuses if status is not None))

    @property
    def converged(self) -> bool:
        """True if every problem converged."""
        return all(status is Status.CONVERGED for status in self.results.records.statuses)

    def raise_for_status(self) -> None:
        """Raise NotConverged, naming the first few, unless every problem converged."""
        failed = [i for i, status in enumerate(self.results.records.statuses) if status is not Status.CONVERGED]
        if failed:
            named = "; ".join(f"problem {self[i].ticket}: {self[i].message}" for i in failed[:3])
            more = f"; and {len(failed) - 3} more" if len(failed) > 3 else ""
            raise NotConverged(f"{len(failed)} of {len(self)} problems did not converge: {named}{more}")

    def plot(self, path: str | None = None) -> Any:
        """Draw survival curve, width trace and removed area; returns the figure, saved to `path` if given."""
        from drainsinkhorn.plans.plots import plot_ledger

        return plot_ledger(self.ledger, path)

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {status.name}" for status, count in self.counts.items()) or "empty"
        ledger = self.ledger
        return f"Solution({counts}; slots={ledger.slots}, static={ledger.static_slots}, removed={ledger.removed_slots})"
