"""The fleet's loop: windows out, results back, and what to do when a worker dies.

Every worker runs one `stream` over the problems it gets, so lanes are refilled across windows. A window is the problems
that are sent at once; its size follows from predicted work, so that workers end together. If a worker dies, hangs or
fails, its unanswered problems run again, and no result is lost. The problem that caused it is found by halving: the
unanswered problems are sent again in two halves, each alone to a worker, and so on. A problem that is alone on a worker
when the worker is lost has a strike, and after some strikes it is quarantined.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from drainsinkhorn.core.events import Lost, Reported
from drainsinkhorn.fleet import wire
from drainsinkhorn.fleet.bench import Assignment, Message
from drainsinkhorn.fleet.crew import Crew
from drainsinkhorn.model.errors import FleetError, ProblemError
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.model.result import Outcome, Result, rejected
from drainsinkhorn.model.status import Status
from drainsinkhorn.numerics.arrays import to_caller
from drainsinkhorn.numerics.depth import predicted_depth
from drainsinkhorn.run.extend import carried_start
from drainsinkhorn.run.queue import Chains, Ended
from drainsinkhorn.run.session import Session

WINDOW_SECONDS = 0.5
"""Work of a window, as predicted."""
FIRST_WINDOW = 64
"""Problems of a window before it is known how fast workers are."""
LARGEST_WINDOW = 4096
SMALL_PAIRS, SMALL_DEPTH = 2**21, 16
"""Problems with fewer pairs are assumed to have this depth: a window has many, and to predict each takes too long."""
START_SECONDS = 120.0
"""Longest time for the start of a worker in seconds, unless `hang` is longer."""
FALSE_STARTS = 9
"""How often in a row a worker may be lost before it is ready: whatever kills workers may also kill one that starts."""
POLL = 0.01
"""Seconds between two polls of a feed while workers have problems."""


@dataclass
class Group:
    """Problems that are sent together to one worker.

    Attributes:
        tickets: Their tickets.
        suspect: True if a worker was lost with them; the worker that gets them must have no other problems.
    """

    tickets: list[int]
    suspect: bool = False


@dataclass
class Hand:
    """A worker as the dispatcher sees it.

    Attributes:
        has: Tickets it has not answered.
        load: Their predicted work.
        alive: True once it has reported that it is ready.
        alone: True if it has suspects, beside which it gets no other problems.
        heard: Time of its last message, or when it got problems while it had none.
        done: Predicted work of the problems it has answered.
        busy: Seconds in which it had problems.
        slots: Slots it has spent, by its last report.
        legs: Legs it has spent, by its last report.
        false_starts: How often in a row it was lost before it was ready.
    """

    has: set[int] = field(default_factory=set[int])
    load: float = 0.0
    alive: bool = False
    alone: bool = False
    heard: float = 0.0
    done: float = 0.0
    busy: float = 0.0
    slots: int = 0
    legs: int = 0
    false_starts: int = -1


class Dispatch:
    """Drains a session on the workers of a fleet.

    Args:
        crew: The workers.
        session: The session. Its journal is kept here, not by workers; its observer is told `Reported`, `Lost` and
            `Finished`.
        hang: Seconds without a message after which a worker that has work, or is starting, is replaced.
        strikes: Number of workers lost while they had a problem alone, at which the problem is quarantined.
    """

    def __init__(self, crew: Crew, session: Session, *, hang: float, strikes: int) -> None:
        self.session = session
        self._crew, self._hang, self._allowed = crew, hang, strikes
        # Seconds that a start may take. They double with every start that times out, since the machine may be slow.
        self._start_limit = hang
        self._assignment = Assignment(replace(session.options, warn=False), session.backend, crew.cores)
        self._hands = [Hand() for _ in range(crew.size)]
        # Problems without a result as they are sent (carried on in their chain), and their predicted work.
        self._sent: dict[int, Problem[Any]] = {}
        self._weights: dict[int, float] = {}
        self._fresh: deque[int] = deque()
        self._fresh_work = 0.0
        # Widths that the backend recommends, by number of pairs to a factor of two: each takes a validation.
        self._widths: dict[int, int] = {}
        self._again: deque[Group] = deque()
        self._strikes: dict[int, int] = {}
        self._chains = Chains[int](session.options.lookahead)
        self._results: deque[Result[Any]] = deque()

    def results(self) -> Generator[Result[Any], None, None]:
        """Yield the result of every problem, once, as it ends."""
        try:
            for worker in range(self._crew.size):
                self._hire(worker)
            while True:
                self._send()
                while self._results:
                    yield self._results.popleft()
                if self.session.exhausted and not self.session.problems:
                    break
                self._listen(self._patience())
            self._close_accounts()
        except BaseException:
            # Workers may have problems whose results are not needed any more.
            for worker in range(self._crew.size):
                self._crew.dismiss(worker)
            raise
        finally:
            self.session.close()
        self.session.raise_error()
        self.session.warn(self.session.counts)

    def _patience(self) -> float:
        """Return how many seconds to wait for a message of a worker."""
        return POLL if self.session.feed is not None and not self.session.exhausted else 1.0

    # Workers

    def _hire(self, worker: int) -> None:
        before = self._hands[worker]
        hand = self._hands[worker] = Hand(heard=time.monotonic(), done=before.done, busy=before.busy)
        hand.false_starts = 0 if before.alive else before.false_starts + 1
        self._crew.hire(worker, self._assignment)

    def _listen(self, timeout: float) -> None:
        for worker, message in self._crew.wait(timeout):
            self._heed(worker, message)
        now = time.monotonic()
        for worker, hand in enumerate(self._hands):
            silence = now - hand.heard
            if not hand.alive and silence > self._start_limit:
                reason = f"it was not ready after {self._start_limit:g} s"
                self._start_limit = min(2 * self._start_limit, max(self._hang, START_SECONDS))
                self._bury(worker, reason)
            elif hand.alive and hand.has and silence > self._hang:
                self._bury(worker, f"it said nothing for {self._hang:g} s")

    def _heed(self, worker: int, message: Message) -> None:
        hand, now = self._hands[worker], time.monotonic()
        if hand.has:
            hand.busy += now - hand.heard
        hand.heard = now
        if message.kind == "ready":
            if message.body != wire.FORMAT:
                self._bury(worker, wire.other_format(message.body), by_itself=True)
            hand.alive = True
        elif message.kind == "results":
            for outcome in wire.to_outcomes(message.body, message.raw):
                self._take(hand, outcome)
        elif message.kind == "report":
            hand.slots, hand.legs = message.body["slots"], message.body["legs"]
            self.session.observe(Reported(worker, message.body["live"], len(hand.has), hand.slots))
        elif message.kind == "account":
            self.session.ledger.add(message.body, self.session.backend.width_for)
        elif message.kind == "refused":
            raise ProblemError(message.body)
        else:
            self._bury(worker, str(message.body), by_itself=message.kind == "failed")

    def _bury(self, worker: int, reason: str, *, by_itself: bool = False) -> None:
        """Replace a worker that is lost; its unanswered problems run again, in halves."""
        hand = self._hands[worker]
        self._crew.dismiss(worker)
        if not hand.alive and (by_itself or hand.false_starts == FALSE_STARTS):
            raise FleetError(f"worker {worker} could not start: {reason}")
        left = sorted(hand.has)
        self.session.ledger.slots += hand.slots
        self.session.ledger.legs += hand.legs
        self.session.observe(Lost(worker, reason, left))
        if len(left) == 1:
            self._strike(left[0], reason)
        elif left:
            half = -(-len(left) // 2)
            self._again.extend((Group(left[:half], suspect=True), Group(left[half:], suspect=True)))
        self._hire(worker)

    def _strike(self, ticket: int, reason: str) -> None:
        strikes = self._strikes[ticket] = self._strikes.get(ticket, 0) + 1
        if strikes < self._allowed:
            self._again.append(Group([ticket], suspect=True))
            return
        detail = f"{strikes} workers were lost while they had this problem and no other; the last one: {reason}"
        self._finish(rejected(ticket, detail, Status.QUARANTINED))

    def _close_accounts(self) -> None:
        """Add what every live worker has spent to the ledger."""
        waiting = {worker for worker, hand in enumerate(self._hands) if hand.alive}
        for worker in range(self._crew.size):
            if worker in waiting:
                self._crew.end(worker)
            else:
                self._crew.dismiss(worker)
        until = time.monotonic() + self._hang
        while waiting and time.monotonic() < until:
            for worker, message in self._crew.wait(1.0):
                if message.kind == "account":
                    self.session.ledger.add(message.body, self.session.backend.width_for)
                if message.kind in ("account", "died", "failed"):
                    waiting.discard(worker)
        for worker in waiting:
            self._crew.dismiss(worker)

    # Problems out

    def _send(self) -> None:
        """Send windows to workers that have little work left, the one with least first."""
        while True:
            self._fill()
            for worker in sorted(range(len(self._hands)), key=lambda worker: self._hands[worker].load):
                group = self._group_for(self._hands[worker])
                if group is not None:
                    self._give(worker, group)
                    break
            else:
                return

    def _group_for(self, hand: Hand) -> Group | None:
        if not hand.alive or hand.alone:
            return None
        if self._again:
            return self._again.popleft() if not hand.has else None
        if not self._fresh:
            return None
        goal, least = self._goal(hand), self._least()
        if hand.load > goal / 2 and len(hand.has) >= 1.5 * least:
            return None
        tickets, work = list[int](), 0.0
        while self._fresh and len(tickets) < LARGEST_WINDOW and (work < goal or len(tickets) < least):
            tickets.append(self._fresh.popleft())
            work += self._weights[tickets[-1]]
        self._fresh_work -= work
        return Group(tickets)

    def _goal(self, hand: Hand) -> float:
        """Return the predicted work of a window: that of WINDOW_SECONDS, at the end half a fair share of the rest."""
        known = hand if hand.done else max(self._hands, key=lambda other: other.done)
        goal = WINDOW_SECONDS * known.done / max(known.busy, 1e-3)
        if not goal:
            goal = FIRST_WINDOW * self._weights[self._fresh[0]]
        if self.session.exhausted:
            goal = min(goal, self._fresh_work / (2 * len(self._hands)))
        return goal

    def _least(self) -> int:
        """Return the least size of a window: the width of a pack, at the end at most half a fair share of the rest."""
        width = self.session.options.width or self._recommended_width(self._sent[self._fresh[0]])
        return min(width, -(-len(self._fresh) // (2 * len(self._hands)))) if self.session.exhausted else width

    def _recommended_width(self, problem: Problem[Any]) -> int:
        size = int(wire.pairs(problem)).bit_length()
        if size not in self._widths:
            try:
                self._widths[size] = self.session.backend.hints(self.session.validate(problem)).width
            except ProblemError:
                return 1
        return self._widths[size]

    def _give(self, worker: int, group: Group) -> None:
        hand = self._hands[worker]
        if not hand.has:
            hand.heard = time.monotonic()
        hand.has.update(group.tickets)
        hand.load += math.fsum(self._weights[ticket] for ticket in group.tickets)
        hand.alone = group.suspect
        self._crew.give(worker, wire.send(group.tickets, [self._sent[ticket] for ticket in group.tickets]))

    def _fill(self) -> None:
        """Read ahead, so that the end is known early. A feed is waited for only if no problem is under way."""
        session = self.session
        while not session.exhausted and len(self._fresh) < session.options.lookahead:
            if session.feed is not None and not session.feed.ready() and (session.problems or self._results):
                return
            self._read()

    def _read(self) -> None:
        """Read a problem, recall it from the journal, reject it, or make it ready to be sent."""
        pair = self.session.read_problem()
        if pair is None:
            return
        ticket, problem = pair
        outcome = self.session.recall(ticket, problem)
        if outcome is not None:
            self._finish(outcome, recalled=True)
            return
        try:
            plain = wire.plain_problem(problem)
            if plain.chain is not None:
                # A rejected problem takes no place in its chain.
                self.session.validate(plain)
        except Exception as error:  # noqa: BLE001  one odd object must not harm the others
            self._reject(ticket, problem, error)
            return
        self._sent[ticket] = plain
        self._weights[ticket] = self._predicted_work(plain)
        if plain.chain is None:
            self._start(ticket, None)
        elif self._chains.enter(plain.chain, ticket):
            self._start(ticket, self._chains.take_predecessor(plain.chain))

    def _predicted_work(self, problem: Problem[Any]) -> float:
        """Return pairs of points times predicted depth; of small or invalid problems the depth is not predicted."""
        pairs = wire.pairs(problem)
        if pairs < SMALL_PAIRS:
            return pairs * SMALL_DEPTH
        try:
            return pairs * predicted_depth(self.session.validate(problem), momentum=self.session.acceleration != "none")
        except (ProblemError, ArithmeticError):
            return pairs * SMALL_DEPTH

    def _start(self, ticket: int, predecessor: Ended | None) -> None:
        """Make a problem ready to be sent; it starts where its predecessor in the chain ended."""
        if predecessor is not None:
            problem = self._sent[ticket]
            # Without memory for the predecessor's potentials it starts as if it were the first of its chain.
            with suppress(MemoryError):
                start = carried_start(predecessor, self.session.validate(problem), self.session.backend)
                if start is not None:
                    self._sent[ticket] = replace(problem, init=start)
        self._fresh.append(ticket)
        self._fresh_work += self._weights[ticket]

    def _reject(self, ticket: int, problem: Problem[Any], reason: Exception) -> None:
        try:
            self.session.validate(problem)
        except ProblemError as error:
            reason = error
        self._finish(self.session.reject(ticket, reason))

    # Results back

    def _take(self, hand: Hand, outcome: Outcome) -> None:
        """Take the outcome of a problem from a worker, and convert its potentials to the caller's library."""
        ticket, problem = outcome.ticket, self.session.problems[outcome.ticket]
        hand.has.remove(ticket)
        hand.alone = hand.alone and bool(hand.has)
        weight = self._weights[ticket]
        hand.load = hand.load - weight if hand.has else 0.0
        hand.done += weight
        if outcome.potentials is not None:
            like: Any = problem.x if problem.x is not None else problem.cost
            potentials = Potentials(*(to_caller(p, like, own=not outcome.widened) for p in outcome.potentials))
            outcome = outcome._replace(potentials=potentials)
        self._finish(outcome)

    def _finish(self, outcome: Outcome, *, recalled: bool = False) -> None:
        """Finish a problem in the session, start its successor, and queue its result."""
        session, ticket = self.session, outcome.ticket
        session.finish(outcome, recalled=recalled)
        ran = self._sent.pop(ticket, None) is not None
        self._weights.pop(ticket, None)
        self._pass_on(session.problems[ticket], outcome, ran=ran)
        if outcome.depth and not recalled:
            session.ledger.depths[ticket] = outcome.depth
        result = session.result(outcome)
        session.forget(ticket)
        if session.feed is None:
            session.counts[outcome.status] += 1
        else:
            session.feed.settle(result)
        self._results.append(result)

    def _pass_on(self, problem: Any, outcome: Outcome, *, ran: bool) -> None:
        """Start the successor of a problem in its chain, unless it was rejected or, if recalled, one is under way."""
        chain = getattr(problem, "chain", None)
        is_passed = not ran and (outcome.status is Status.INVALID or self._chains.is_under_way(chain))
        if chain is None or is_passed:
            return
        ended = Ended(self.session.validate(problem), outcome)
        successor = self._chains.leave(chain, ended)
        if successor is not None:
            self._start(successor, ended)
