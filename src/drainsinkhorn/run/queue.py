"""The queue: groups problems by signature, keeps chains in order, and bounds how far problems are read ahead."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from drainsinkhorn.core.source import Admission, Batch, Source
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.instances import InstanceStack
from drainsinkhorn.model.outcomes import Outcome
from drainsinkhorn.model.problem import Problem

T = TypeVar("T")


class Ended(NamedTuple):
    """A problem that ran, and how it ended."""

    instance: Instance[Any]
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Policy:
    """The order in which problems are handed out.

    Attributes:
        lookahead: Largest number of problems that wait; inf: all are read at once. A line hands out no problem whose
            ticket exceeds that of the oldest problem of another line by more than this, so that no signature delays the
            others for ever.
        order: One of ORDERS. All but "given" read a block of problems ahead and sort it within each line.
        predict_depth: Predicts the depth of an instance, for orders other than "given".
    """

    lookahead: float = math.inf
    order: str = "given"
    predict_depth: Callable[[Instance[Any]], float] = lambda instance: 1.0

    def arrange(self, line: Sequence[Admission], width: int) -> list[Admission]:
        """Return a line by predicted depth: deepest first ("grouped"), or every window mixed ("mixed")."""
        deepest = sorted(line, key=lambda admission: -self.predict_depth(admission.instance))
        if self.order == "grouped":
            return deepest
        windows = -(-len(deepest) // width)
        return [lane for first in range(windows) for lane in deepest[first::windows]]


class Gate(Protocol):
    """Reads and validates the problems of a queue, and decides what may be handed out. A local run is one."""

    def read_problem(self) -> tuple[int, Problem[Any]] | None:
        """Return the next problem with its ticket, or None at the end; may wait."""
        ...

    def is_ready(self) -> bool:
        """Whether the next problem, or the end, is there without waiting."""
        ...

    def is_overdue(self, ticket: int) -> bool:
        """True if a problem has waited so long that no other line may hand out a younger problem."""
        ...

    def is_paused(self) -> bool:
        """True while no problem is handed out, so that packs become empty."""
        ...

    def admit(self, ticket: int, problem: Problem[Any]) -> tuple[Instance[Any], Hashable] | None:
        """Return the problem in normal form and its signature.

        None if the problem has ended without a run: it was rejected, or recalled from a journal.
        """
        ...

    def signature(self, instance: Instance[Any]) -> Hashable:
        """Return the key of its line: problems of equal signature may share a pack."""
        ...

    def sign(self, ticket: int, instance: Instance[Any]) -> Hashable:
        """Return the signature of a problem that was validated with others; None if it is rejected now."""
        ...

    def carry_start(self, ended: Ended, admission: Admission) -> Instance[Any]:
        """Return the instance of a problem with the start that follows from its predecessor in the chain."""
        ...


class Chains(Generic[T]):
    """Makes problems of equal key run one after another: at most one of each chain runs or waits in line.

    Args:
        memory: Number of ended chains whose last outcome is kept for a later successor; the oldest is dropped first.
    """

    def __init__(self, memory: float) -> None:
        self._memory = memory
        # Successors of the problem of each chain that is under way.
        self._waiting: dict[Hashable, deque[T]] = {}
        self._ended: dict[Hashable, Ended] = {}

    def __len__(self) -> int:
        """The number of problems that wait for their predecessor."""
        return sum(map(len, self._waiting.values()))

    def is_under_way(self, chain: Hashable) -> bool:
        """Whether a problem of the chain runs now, or waits in its line."""
        return chain in self._waiting

    def enter(self, chain: Hashable, problem: T) -> bool:
        """Return True if a problem may run now. Else it waits, and `leave` returns it when its predecessor ends."""
        if chain in self._waiting:
            self._waiting[chain].append(problem)
            return False
        self._waiting[chain] = deque()
        return True

    def take_predecessor(self, chain: Hashable) -> Ended | None:
        """Return how the last problem of a chain ended, if no successor was known then, and forget it; else None."""
        return self._ended.pop(chain, None)

    def leave(self, chain: Hashable, ended: Ended) -> T | None:
        """Return the successor of a problem that has ended; None if none is known yet."""
        successors = self._waiting.get(chain)
        if successors:
            return successors.popleft()
        self._waiting.pop(chain, None)
        self._ended[chain] = ended
        if len(self._ended) > self._memory:
            del self._ended[next(iter(self._ended))]
        return None


class Queue:
    """Reads problems in order and keeps those that wait in one line for each signature.

    Args:
        gate: Reads and validates problems.
        policy: The order in which they are served.
    """

    def __init__(self, gate: Gate, policy: Policy) -> None:
        self._gate, self._policy = gate, policy
        self._lines: dict[Hashable, deque[Admission]] = {}
        # Problems at the front of each line that are in order already.
        self._arranged: dict[Hashable, int] = {}
        self._chains = Chains[Admission](policy.lookahead)
        # The ticket of the next problem, as far as it is known here.
        self._next = 0
        self._exhausted = False

    def enter(self, instances: Sequence[Instance[Any]]) -> None:
        """Append validated instances to their lines, with tickets from zero on.

        Args:
            instances: One problem or more in the order of submission, none of which has a chain. Those of a stack have
                one signature.
        """
        first = self._gate.sign(0, instances[0])
        if isinstance(instances, InstanceStack) and first is not None:
            self._lines[first] = deque(map(Admission, itertools.count(), instances))
        else:
            self._put(Admission(0, instances[0]), first)
            for ticket, instance in enumerate(instances[1:], 1):
                self._put(Admission(ticket, instance), self._gate.sign(ticket, instance))
        self._next = len(instances)

    def fill(self) -> None:
        """Read problems ahead until the lookahead is reached."""
        while self._may_read():
            self._read()

    def finish(self, ended: Ended) -> None:
        """Append the successor of an ended problem, the next of its chain, to its line."""
        chain = ended.instance.chain
        if chain is None:
            return
        successor = self._chains.leave(chain, ended)
        if successor is not None:
            self._start(successor, ended)

    def resume(self, admission: Admission) -> None:
        """Append the next stage of a problem whose eps falls to its line. It keeps its place in its chain."""
        self._put(admission, self._gate.signature(admission.instance))

    def recall(self, ended: Ended) -> None:
        """Note how a problem ended in an earlier run. Its successor starts from there, unless the chain runs."""
        if not self._chains.is_under_way(ended.instance.chain):
            self.finish(ended)

    def lines(self) -> Iterator[tuple[Instance[Any] | None, Source]]:
        """Yield one Source after another, with its first problem, always for the signature that has waited longest.

        An empty Source, with None as its first problem, is yielded in two cases, so that the caller can return results
        in between: if a problem has ended without a run and no other waits, and before the next problem must be waited
        for.
        """
        while self._lines or not self._exhausted:
            if self.is_idle:
                yield None, Batch([])
            if not self._lines:
                self._read()
            if self._lines:
                signature = min(self._lines, key=lambda signature: self._lines[signature][0].ticket)
                yield self._lines[signature][0].instance, _Line(self, signature)
            else:
                yield None, Batch([])

    @property
    def room(self) -> float:
        """Number of problems that may be read ahead now."""
        return self._policy.lookahead - sum(map(len, self._lines.values())) - len(self._chains)

    @property
    def is_idle(self) -> bool:
        """True if no problem waits in line, and the next one must be waited for."""
        return not self._lines and not self._exhausted and not self._gate.is_ready()

    def take(self, signature: Hashable, count: int) -> list[Admission]:
        """Hand out up to `count` problems of a signature."""
        gate = self._gate
        if gate.is_paused():
            return []
        if self._policy.order != "given":
            self._arrange(signature, count)
        # Reading stops at a problem that ended without a run, so that the caller can return its result.
        while len(self._lines.get(signature, ())) < count and self._may_read() and gate.is_ready() and self._read():
            pass
        line = self._lines.get(signature, deque[Admission]())
        others = [other[0].ticket for other in self._lines.values() if other is not line]
        oldest = min(others, default=self._next)
        if others and gate.is_overdue(oldest):
            # The overdue problem is in another line, so only older problems of this line go first.
            count = sum(admission.ticket < oldest for admission in list(line)[:count])
        horizon = oldest + self._policy.lookahead
        taken: list[Admission] = []
        while line and len(taken) < count and line[0].ticket <= horizon:
            taken.append(line.popleft())
        if not line:
            self._lines.pop(signature, None)
        self._arranged[signature] = self._arranged.get(signature, 0) - len(taken)
        return taken

    def give_back(self, signature: Hashable, admissions: Sequence[Admission]) -> None:
        """Put problems back in front of their line."""
        self._lines.setdefault(signature, deque()).extendleft(reversed(admissions))
        self._arranged[signature] = self._arranged.get(signature, 0) + len(admissions)

    def _arrange(self, signature: Hashable, width: int) -> None:
        """Read the next block and sort it, once the previous block was handed out."""
        if self._arranged.get(signature, 0) > 0:
            return
        while self._may_read() and self._gate.is_ready():
            self._read()
        line = self._lines.get(signature)
        if line:
            self._lines[signature] = deque(self._policy.arrange(line, width))
            self._arranged[signature] = len(line)

    def _may_read(self) -> bool:
        if self._exhausted or self._policy.lookahead == math.inf:
            return not self._exhausted
        return self.room > 0

    def _read(self) -> bool:
        """Read one problem; return False if it ended without a run, or there is none."""
        pair = self._gate.read_problem()
        if pair is None:
            self._exhausted = True
            return False
        ticket, problem = pair
        self._next = ticket + 1
        admitted = self._gate.admit(ticket, problem)
        if admitted is None:
            return False
        instance, signature = admitted
        admission, chain = Admission(ticket, instance), instance.chain
        if chain is None:
            self._put(admission, signature)
        elif self._chains.enter(chain, admission):
            predecessor = self._chains.take_predecessor(chain)
            if predecessor is None:
                self._put(admission, signature)
            else:
                self._start(admission, predecessor)
        return True

    def _start(self, admission: Admission, predecessor: Ended) -> None:
        """Append a problem that starts where its predecessor in the chain ended to its line."""
        instance = self._gate.carry_start(predecessor, admission)
        self._put(Admission(admission.ticket, instance), self._gate.signature(instance))

    def _put(self, admission: Admission, signature: Hashable) -> None:
        """Append a problem to the line of its signature; without a signature it has been rejected."""
        if signature is None:
            return
        line = self._lines.get(signature)
        if line is None:
            line = self._lines[signature] = deque()
        line.append(admission)


class _Line:
    """The part of a queue that the executor sees: problems of one signature."""

    def __init__(self, queue: Queue, signature: Hashable) -> None:
        self._queue = queue
        self._signature = signature

    def take(self, count: int) -> Sequence[Admission]:
        return self._queue.take(self._signature, count)

    def give_back(self, admissions: Sequence[Admission]) -> None:
        self._queue.give_back(self._signature, admissions)
