"""All results of a solve, in the order of submission."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, overload

from drainsinkhorn.backends.arrays import stack
from drainsinkhorn.core.errors import NotConverged, ProblemError
from drainsinkhorn.core.events import Retired
from drainsinkhorn.core.ledger import Ledger
from drainsinkhorn.core.problem import A, Potentials
from drainsinkhorn.core.result import Result, Status


class Results(Sequence[Result[A]], Generic[A]):
    """Results that are made when they are looked at.

    Args:
        records: How each problem ended, in the order of submission.
        make: Makes the Result of a place; called once for each.
    """

    def __init__(self, records: Sequence[Retired], make: Callable[[int], Result[A]]) -> None:
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
            self._made[place] = self._make(place)
        return self._made[place]

    def __len__(self) -> int:
        """The number of problems."""
        return len(self.records)


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
        for place, record in enumerate(self.results.records):
            if record.potentials is None:
                return self[place].potentials
        pairs: list[Any] = [record.potentials for record in self.results.records]
        shapes = {(tuple(pair.f.shape), tuple(pair.g.shape)) for pair in pairs}
        if len(shapes) > 1:
            raise ProblemError(
                f"potentials have {len(shapes)} different shapes and cannot be stacked; take solution[i].potentials"
            )
        return Potentials(stack([pair.f for pair in pairs]), stack([pair.g for pair in pairs]))

    @property
    def counts(self) -> dict[Status, int]:
        """How many problems ended in each status."""
        return dict(Counter(record.status for record in self.results.records))

    @property
    def converged(self) -> bool:
        """True if every problem converged."""
        return all(record.status is Status.CONVERGED for record in self.results.records)

    def raise_for_status(self) -> None:
        """Raise NotConverged, naming the first few, unless every problem converged."""
        failed = [i for i, record in enumerate(self.results.records) if record.status is not Status.CONVERGED]
        if failed:
            named = "; ".join(f"problem {self[i].ticket}: {self[i].message}" for i in failed[:3])
            more = f"; and {len(failed) - 3} more" if len(failed) > 3 else ""
            raise NotConverged(f"{len(failed)} of {len(self)} problems did not converge: {named}{more}")

    def plot(self, path: str | None = None) -> Any:
        """Draw survival curve, width trace and removed area; returns the figure, saved to `path` if given."""
        from drainsinkhorn.plots import plot_ledger

        return plot_ledger(self.ledger, path)

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {status.name}" for status, count in self.counts.items()) or "empty"
        ledger = self.ledger
        return f"Solution({counts}; slots={ledger.slots}, static={ledger.static_slots}, removed={ledger.removed_slots})"
