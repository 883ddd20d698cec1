"""Many instances as columns: what differs between them is in arrays, and an Instance is made when it is asked for."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar, overload

from drainsinkhorn.model.instance import Instance

T = TypeVar("T")


class InstanceStack(Sequence[Instance[Any]]):
    """Instances that differ in their points and eps alone.

    Args:
        shared: One of them, from which all others have every field but x, y and eps.
        x: Source points of all rows, (W, n, d), or (n, d) if they share them.
        y: Target points, in one of the same forms.
        eps: The eps of each row.

    Attributes:
        shared: As above.
        x: As above.
        y: As above.
        eps: As above.
        rows: Rows of x, y and eps to which the instances belong. A part of a stack has some of the rows, and the arrays
            of the whole.
    """

    def __init__(self, shared: Instance[Any], x: Any, y: Any, eps: list[float]) -> None:
        self.shared, self.x, self.y, self.eps = shared, x, y, eps
        self.rows: Sequence[int] = range(len(eps))
        # Instances by row, for this stack and its parts.
        self._made: dict[int, Instance[Any]] = {}

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, place: int) -> Instance[Any]: ...
    @overload
    def __getitem__(self, place: slice) -> InstanceStack: ...
    def __getitem__(self, place: int | slice) -> Instance[Any] | InstanceStack:
        """Return an instance, the same object at every call; or some of them as columns."""
        if isinstance(place, slice):
            return self.with_rows(self.rows[place])
        row = self.rows[place]
        made = self._made.get(row)
        if made is None:
            x, y = (points if points.ndim == 2 else points[row] for points in (self.x, self.y))
            made = self._made.setdefault(row, replace(self.shared, x=x, y=y, eps=self.eps[row]))
        return made

    def __iter__(self) -> Iterator[Instance[Any]]:
        return map(self.__getitem__, range(len(self)))

    def take(self, places: Sequence[int]) -> InstanceStack:
        """Return the instances at these places as columns."""
        rows = self.rows
        return self.with_rows([rows[place] for place in places])

    def with_rows(self, rows: Sequence[int]) -> InstanceStack:
        """Return the instances of these rows as columns."""
        subset = object.__new__(InstanceStack)
        subset.__dict__.update(self.__dict__, rows=rows)
        return subset

    def shares_arrays(self, other: Sequence[Instance[Any]]) -> bool:
        """Whether the other sequence is a part of the same stack, so that equal rows are the same instance."""
        return isinstance(other, InstanceStack) and other._made is self._made

    @property
    def has_own_points(self) -> bool:
        """Whether at least one side has points of its own in every row."""
        return 3 in (self.x.ndim, self.y.ndim)

    def strengths(self) -> list[float]:
        """Return the eps of each instance."""
        rows, eps = self.rows, self.eps
        return eps if rows == range(len(eps)) else [eps[row] for row in rows]


def each(instances: Sequence[Instance[Any]], value: Callable[[Instance[Any]], T]) -> list[T]:
    """Return `value(instance)` for each instance.

    It must not depend on points or eps, since a stack computes it once for all.
    """
    if isinstance(instances, InstanceStack):
        return [value(instances.shared)] * len(instances)
    return [value(instance) for instance in instances]


def representatives(instances: Sequence[Instance[Any]]) -> Sequence[Instance[Any]]:
    """Return instances with all values of fields other than points and eps: one of a stack, else all."""
    return [instances.shared] if isinstance(instances, InstanceStack) else instances


def strengths(instances: Sequence[Instance[Any]]) -> list[float]:
    """Return the eps of each instance."""
    return instances.strengths() if isinstance(instances, InstanceStack) else [instance.eps for instance in instances]


def take(instances: Sequence[Instance[Any]], places: Sequence[int]) -> Sequence[Instance[Any]]:
    """Return the instances at these places; the sequence itself if these are all, in their order."""
    if len(places) == len(instances) and all(map(operator.eq, places, range(len(instances)))):
        return instances
    return instances.take(places) if isinstance(instances, InstanceStack) else [instances[place] for place in places]


def join(first: Sequence[Instance[Any]], second: Sequence[Instance[Any]]) -> Sequence[Instance[Any]]:
    """Return the instances of both; as columns if both are parts of one stack."""
    if isinstance(first, InstanceStack) and isinstance(second, InstanceStack) and first.shares_arrays(second):
        return first.with_rows([*first.rows, *second.rows])
    return [*first, *second]


def are_same(some: Sequence[Instance[Any]], others: Sequence[Instance[Any]]) -> list[bool]:
    """Return at which places both have the same instance."""
    if isinstance(some, InstanceStack) and isinstance(others, InstanceStack) and some.shares_arrays(others):
        return list(map(operator.eq, some.rows, others.rows))
    return list(map(operator.is_, some, others))
