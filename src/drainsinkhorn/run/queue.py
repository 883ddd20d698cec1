"""The queue: problems sorted by signature, with a bounded look ahead."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Generic

from drainsinkhorn.core.events import Retired
from drainsinkhorn.core.source import Admission, Batch, Source
from drainsinkhorn.model.errors import ProblemError
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import A, Problem


def ordered(
    line: Sequence[Admission], depth: Callable[[Instance[Any]], float], order: str, width: int
) -> list[Admission]:
    """A line by predicted depth: deepest first ("grouped"), or so that every window is a cross-section ("mixed")."""
    deepest = sorted(line, key=lambda admission: -depth(admission.instance))
    windows = -(-len(deepest) // width)
    return deepest if order == "grouped" else [lane for start in range(windows) for lane in deepest[start::windows]]


class Sorter(Generic[A]):
    """Reads problems in order, turns bad ones away, and forms one line per signature.

    At most `lookahead` problems wait. A line is not served past the oldest problem of another line by more than
    `lookahead` tickets, so no problem waits forever behind a flood of another shape.

    Args:
        problems: What the caller submitted, in order.
        admit: Validates: returns the problem in normal form, or raises ProblemError.
        signature: The backend's; may raise ProblemError too.
        refuse: Told ticket, problem and reason of every problem turned away.
        carry: Returns an instance with the start that its predecessor in the chain gives it, from the predecessor, the
            instance and its ticket.
        lookahead: See above; `inf` reads everything at once.
        paused: While it says True nothing more is handed out, so that packs run empty.
        ready: Says whether the next problem can be read without waiting for it; else only an idle sorter reads.
        overdue: Says of a ticket whether it has waited so long that no other line may be served before it.
        order: One of ORDERS. Any but "given" reads ahead and orders what was read, block after block, within each line.
        depth: Predicts the depth of an instance, for that.
        recall: Says whether a problem ended in an earlier run, which is not run again.

    Attributes:
        error: What the iterable raised, if it did: nothing more is read, and what was read is still served.
    """

    def __init__(
        self,
        problems: Iterable[Problem[A]],
        *,
        admit: Callable[[Problem[A]], Instance[A]],
        signature: Callable[[Instance[A]], Hashable],
        refuse: Callable[[int, Problem[A], ProblemError], None],
        lookahead: float,
        carry: Callable[[Retired, Instance[A], int], Instance[A]] = lambda _, instance, ticket: instance,
        paused: Callable[[], bool] = lambda: False,
        ready: Callable[[], bool] = lambda: True,
        overdue: Callable[[int], bool] = lambda ticket: False,
        order: str = "given",
        depth: Callable[[Instance[A]], float] = lambda instance: 1.0,
        recall: Callable[[int, Problem[A]], bool] = lambda ticket, problem: False,
    ) -> None:
        self._problems = iter(problems)
        self._admit = admit
        self._signature = signature
        self._refuse = refuse
        self._lookahead = lookahead
        self._carry = carry
        self._paused = paused
        self._ready = ready
        self._overdue = overdue
        self._order = order
        self._depth = depth
        self._recall = recall
        # Problems at the front of each line that are in order already.
        self._in_order: dict[Hashable, int] = {}
        self._lines: dict[Hashable, deque[Admission]] = {}
        # Successors of the problem of each chain that is under way.
        self._chains: dict[Hashable, deque[Admission]] = {}
        # How chains ended of which no successor is known yet, the latest ones.
        self._ended: dict[Hashable, Retired] = {}
        self._next = 0
        self.error: Exception | None = None
        self._exhausted = False

    def fill(self) -> None:
        """Read ahead as far as allowed."""
        while self._may_read():
            self._read()

    def enter(self, ready: Iterable[Instance[A]]) -> None:
        """Put instances in line that were validated already."""
        for ticket, instance in enumerate(ready, self._next):
            self._line(self._signature(instance)).append(Admission(ticket, instance))
            self._next = ticket + 1

    def finished(self, retired: Retired) -> None:
        """Let the successor of a problem in its chain go."""
        chain = retired.instance.chain
        if chain is None:
            return
        successors = self._chains.get(chain)
        if not successors:
            self._chains.pop(chain, None)
            self._ended[chain] = retired
            if len(self._ended) > self._lookahead:
                del self._ended[next(iter(self._ended))]
            return
        ticket, instance = successors.popleft()
        instance = self._carry(retired, instance, ticket)
        self._line(self._signature(instance)).append(Admission(ticket, instance))

    def recalled(self, retired: Retired) -> None:
        """Note that a problem of a chain had ended in an earlier run; its successor goes, unless one is under way."""
        if retired.instance.chain not in self._chains:
            self.finished(retired)

    def lines(self) -> Iterator[tuple[Instance[A] | None, Source]]:
        """One Source after another, with its first problem, always for the signature that has waited longest.

        After a refusal with nobody waiting the Source is empty, so that the caller can hand the refusal on; likewise
        before the next problem must be waited for.
        """
        while self._lines or not self._exhausted:
            if self.idle:
                yield None, Batch([])
            if not self._lines:
                self._read()
            if self._lines:
                signature = min(self._lines, key=lambda signature: self._lines[signature][0].ticket)
                yield self._lines[signature][0].instance, _Line(self, signature)
            else:
                yield None, Batch([])

    @property
    def idle(self) -> bool:
        """True if nothing is there to be served, and the next problem must be waited for."""
        return not self._lines and not self._exhausted and not self._ready()

    def take(self, signature: Hashable, count: int) -> list[Admission]:
        """Up to `count` problems of a signature."""
        if self._paused():
            return []
        if self._order != "given":
            self._put_in_order(signature, count)
        # A refusal ends the reading, so that the caller can hand it on.
        while len(self._lines.get(signature, ())) < count and self._may_read() and self._ready() and self._read():
            pass
        line = self._lines.get(signature, deque[Admission]())
        others = [other[0].ticket for other in self._lines.values() if other is not line]
        oldest = min(others, default=self._next)
        if others and self._overdue(oldest):
            # Unless this line has the oldest of all.
            count = sum(admission.ticket < oldest for admission in list(line)[:count])
        horizon = oldest + self._lookahead
        taken: list[Admission] = []
        while line and len(taken) < count and line[0].ticket <= horizon:
            taken.append(line.popleft())
        if not line:
            self._lines.pop(signature, None)
        self._in_order[signature] = self._in_order.get(signature, 0) - len(taken)
        return taken

    def _put_in_order(self, signature: Hashable, width: int) -> None:
        """Read the next block and order it, once the last one has gone."""
        if self._in_order.get(signature, 0) > 0:
            return
        while self._may_read() and self._ready():
            self._read()
        line = self._lines.get(signature)
        if line:
            self._lines[signature] = deque(ordered(line, self._depth, self._order, width))
            self._in_order[signature] = len(line)

    def give_back(self, signature: Hashable, admissions: Sequence[Admission]) -> None:
        """Put these back in front of their line."""
        self._lines.setdefault(signature, deque()).extendleft(reversed(admissions))
        self._in_order[signature] = self._in_order.get(signature, 0) + len(admissions)

    def _may_read(self) -> bool:
        return not self._exhausted and (
            self._lookahead == math.inf
            or sum(map(len, (*self._lines.values(), *self._chains.values()))) < self._lookahead
        )

    def _read(self) -> bool:
        """Read one problem; False if it was refused or recalled, or there is none."""
        try:
            problem = next(self._problems)
        except StopIteration:
            self._exhausted = True
            return False
        except Exception as error:  # noqa: BLE001  the caller's own code; raised again once what was read has drained
            self.error = error
            self._exhausted = True
            return False
        ticket = self._next
        self._next += 1
        if self._recall(ticket, problem):
            return False
        try:
            admitted = self._admit(problem)
            signature = self._signature(admitted)
        except ProblemError as error:
            self._refuse(ticket, problem, error)
            return False
        except MemoryError as error:
            short = f"there is not enough memory to check this problem ({error}); free memory, or use fewer points"
            self._refuse(ticket, problem, ProblemError(short))
            return False
        chain = admitted.chain
        if chain in self._chains:
            self._chains[chain].append(Admission(ticket, admitted))
            return True
        if chain is not None:
            self._chains[chain] = deque()
            if chain in self._ended:
                admitted = self._carry(self._ended.pop(chain), admitted, ticket)
                signature = self._signature(admitted)
        self._line(signature).append(Admission(ticket, admitted))
        return True

    def _line(self, signature: Hashable) -> deque[Admission]:
        line = self._lines.get(signature)
        if line is None:
            line = self._lines[signature] = deque()
        return line


class _Line:
    """A Sorter seen by the executor: one signature."""

    def __init__(self, sorter: Sorter[Any], signature: Hashable) -> None:
        self._sorter = sorter
        self._signature = signature

    def take(self, count: int) -> Sequence[Admission]:
        return self._sorter.take(self._signature, count)

    def give_back(self, admissions: Sequence[Admission]) -> None:
        self._sorter.give_back(self._signature, admissions)
