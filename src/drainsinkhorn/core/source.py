"""The interface through which the executor takes problems."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, overload

from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.instances import each, join, take

T = TypeVar("T")


class Admission(NamedTuple):
    """A validated problem, with its ticket."""

    ticket: int
    instance: Instance[Any]


class Admissions(Sequence[Admission]):
    """Many validated problems with their tickets, as columns."""

    def __init__(self, tickets: Sequence[int], instances: Sequence[Instance[Any]]) -> None:
        self.tickets, self.instances = tickets, instances

    @classmethod
    def of(cls, admissions: Iterable[Admission]) -> Admissions:
        """Return these admissions as columns."""
        if isinstance(admissions, Admissions):
            return admissions
        rows = list(admissions)
        return cls([ticket for ticket, _ in rows], [instance for _, instance in rows])

    def __len__(self) -> int:
        return len(self.tickets)

    @overload
    def __getitem__(self, place: int) -> Admission: ...
    @overload
    def __getitem__(self, place: slice) -> Admissions: ...
    def __getitem__(self, place: int | slice) -> Admission | Admissions:
        """Return one admission, or some as columns."""
        if isinstance(place, slice):
            return Admissions(self.tickets[place], self.instances[place])
        return Admission(self.tickets[place], self.instances[place])

    def __iter__(self) -> Iterator[Admission]:
        return map(Admission, self.tickets, self.instances)

    @property
    def pairs(self) -> list[int]:
        """The pairs of points of each problem."""
        return [n * m for n, m in each(self.instances, operator.attrgetter("shape"))]

    @property
    def depths_before(self) -> list[int]:
        """The cycles that each problem ran in earlier packs."""
        return each(self.instances, operator.attrgetter("depth_before"))

    def take(self, places: Sequence[int]) -> Admissions:
        """Return the admissions at these places, which ascend."""
        if len(places) == len(self):
            return self
        return Admissions(pick(self.tickets, places), take(self.instances, places))

    def followed_by(self, other: Admissions) -> Admissions:
        """Return these admissions, followed by others."""
        return Admissions([*self.tickets, *other.tickets], join(self.instances, other.instances)) if other else self


def pick(column: Sequence[T], places: Sequence[int]) -> Sequence[T]:
    """Return the entries of a column at ascending places: the column itself if these are all."""
    return column if len(places) == len(column) else [column[place] for place in places]


class Source(Protocol):
    """Hands problems of one signature to the executor."""

    def take(self, count: int) -> Sequence[Admission]:
        """Return up to `count` problems; none if no problem is there now."""
        ...

    def give_back(self, admissions: Sequence[Admission]) -> None:
        """Put problems back in front, because memory did not suffice for them."""
        ...


class Batch:
    """Admitted problems that may all share packs."""

    def __init__(self, admissions: Sequence[Admission]) -> None:
        self._admissions, self._taken = Admissions.of(admissions), 0

    def take(self, count: int) -> Sequence[Admission]:
        """Return up to `count` problems."""
        first, self._taken = self._taken, min(self._taken + count, len(self._admissions))
        return self._admissions[first : self._taken]

    def give_back(self, admissions: Sequence[Admission]) -> None:
        """Put problems back, so that `take` returns them first."""
        self._admissions, self._taken = Admissions.of(admissions).followed_by(self._admissions[self._taken :]), 0
