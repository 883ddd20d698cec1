"""The queue: lines by signature, a bounded look ahead, fairness, refusals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from hypothesis import given
from hypothesis import strategies as st

from drainsinkhorn.run.queue import Policy
from drainsinkhorn.testing.scripted import Script, scripted
from tests.run.gate import BAD, ScriptedGate


class Door(ScriptedGate):
    def __init__(self, shapes: Iterable[str], lookahead: float = math.inf) -> None:
        super().__init__((scripted(Script(1, shape=shape)) for shape in shapes), Policy(lookahead))

    def served(self, width: int) -> list[list[int]]:
        """Tickets of each line, taken to the end."""
        lines: list[list[int]] = []
        for _, line in self.queue.lines():
            tickets: list[int] = []
            while taken := line.take(width):
                tickets += [admission.ticket for admission in taken]
            if tickets:
                lines.append(tickets)
        return lines


def test_problems_of_one_signature_form_one_line() -> None:
    assert Door(list("abacab")).served(16) == [[0, 2, 4], [1, 5], [3]]


@given(
    st.lists(st.sampled_from(["a", "b", "c", BAD]), max_size=60), st.integers(1, 8), st.sampled_from([1, 3, math.inf])
)
def test_everything_is_served_once_or_refused(shapes: list[str], width: int, lookahead: float) -> None:
    door = Door(shapes, lookahead)
    served = [ticket for line in door.served(width) for ticket in line]
    assert sorted(served + door.refused) == list(range(len(shapes)))
    assert all(shapes[ticket] == BAD for ticket in door.refused)


def test_an_endless_source_is_read_no_further_than_needed() -> None:
    def endless() -> Iterator[str]:
        while True:
            yield "a"

    door = Door(endless(), 100)
    _, line = next(door.queue.lines())
    assert [admission.ticket for admission in line.take(4)] == [0, 1, 2, 3]
    assert door.read == 4


def test_a_flood_of_one_shape_does_not_starve_another() -> None:
    def flood() -> Iterator[str]:
        yield "a"
        yield "b"
        while True:
            yield "a"

    door = Door(flood(), 10)
    lines = door.queue.lines()
    (_, first), served = next(lines), list[int]()
    while taken := first.take(3):
        served += [admission.ticket for admission in taken]
    assert max(served) <= 1 + 10
    assert [admission.ticket for admission in next(lines)[1].take(3)] == [1]


def test_what_is_given_back_comes_first_again() -> None:
    door = Door(list("aaaa"))
    _, line = next(door.queue.lines())
    taken = line.take(3)
    line.give_back(taken[1:])
    assert [admission.ticket for admission in line.take(9)] == [1, 2, 3]


def test_refusals_of_an_endless_bad_source_can_be_handed_on() -> None:
    def bad() -> Iterator[str]:
        while True:
            yield BAD

    door = Door(bad())
    lines = door.queue.lines()
    assert list(next(lines)[1].take(4)) == []
    assert door.refused == [0]
