"""The loop of a fleet: it sends windows to workers, collects results, and replaces workers that die.

Every worker runs one `stream` over the problems it gets, so lanes are refilled across windows. A window is the problems
that are sent at once; its size follows from predicted work, so that workers end together. If a worker dies, hangs or
fails, its unanswered problems run again, and no result is lost. The problem that caused the failure is found by
halving: the unanswered problems are sent again in two halves, each alone to a worker, and so on. A problem that is
alone on a worker when the worker is lost has a strike, and after some strikes it is quarantined.
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
from drainsinkhorn.fleet.backlog import Backlog
from drainsinkhorn.fleet.pool import Pool
from drainsinkhorn.fleet.worker_run import Assignment, Message
from drainsinkhorn.model.eps import SharpnessEps
from drainsinkhorn.model.errors import FleetError, ProblemError
from drainsinkhorn.model.outcomes import Outcome, make_rejection
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.model.result import Result
from drainsinkhorn.model.status import Status
from drainsinkhorn.numerics.arrays import to_caller
from drainsinkhorn.run.extend import start_from_predecessor
from drainsinkhorn.run.queue import Chains, Ended
from drainsinkhorn.run.session import Session

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
class WorkerState:
    """A worker as the dispatcher sees it.

    Attributes:
        tickets: Tickets it has not answered.
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

    tickets: set[int] = field(default_factory=set[int])
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
        pool: The workers.
        session: The session. This process writes its journal, workers do not; its observer receives `Reported`, `Lost`
            and `Finished`.
        hang: Seconds without a message after which a worker that has work, or is starting, is replaced.
        strikes: Number of workers lost while they had a problem alone, at which the problem is quarantined.
    """

    def __init__(self, pool: Pool, session: Session, *, hang: float, strikes: int) -> None:
        self.session = session
        self._pool, self._hang, self._allowed = pool, hang, strikes
        # Seconds that a start may take. They double with every start that times out, since the machine may be slow.
        self._start_limit = hang
        self._assignment = Assignment(replace(session.options, warn=False), session.backend, pool.cores)
        self._states = [WorkerState() for _ in range(pool.size)]
        self._backlog = Backlog(session, pool.size)
        self._again: deque[Group] = deque()
        self._strikes: dict[int, int] = {}
        self._chains = Chains[int](session.options.lookahead)
        self._results: deque[Result[Any]] = deque()

    def results(self) -> Generator[Result[Any], None, None]:
        """Yield the result of every problem, once, as it ends."""
        try:
            for worker in range(self._pool.size):
                self._start_worker(worker)
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
            for worker in range(self._pool.size):
                self._pool.kill(worker)
            raise
        finally:
            self.session.close()
        self.session.raise_error()
        self.session.warn(self.session.counts)

    def _patience(self) -> float:
        """Return how many seconds to wait for a message of a worker."""
        return POLL if self.session.feed is not None and not self.session.exhausted else 1.0

    # Workers

    def _start_worker(self, worker: int) -> None:
        before = self._states[worker]
        state = self._states[worker] = WorkerState(heard=time.monotonic(), done=before.done, busy=before.busy)
        state.false_starts = 0 if before.alive else before.false_starts + 1
        self._pool.start(worker, self._assignment)

    def _listen(self, timeout: float) -> None:
        for worker, message in self._pool.wait(timeout):
            self._handle(worker, message)
        current = time.monotonic()
        for worker, state in enumerate(self._states):
            silence = current - state.heard
            if not state.alive and silence > self._start_limit:
                reason = f"it was not ready after {self._start_limit:g} s"
                self._start_limit = min(2 * self._start_limit, max(self._hang, START_SECONDS))
                self._replace_worker(worker, reason)
            elif state.alive and state.tickets and silence > self._hang:
                self._replace_worker(worker, f"it said nothing for {self._hang:g} s")

    def _handle(self, worker: int, message: Message) -> None:
        state, current = self._states[worker], time.monotonic()
        if state.tickets:
            state.busy += current - state.heard
        state.heard = current
        if message.kind == "ready":
            if message.body != wire.FORMAT:
                self._replace_worker(worker, wire.other_format(message.body), by_itself=True)
            state.alive = True
        elif message.kind == "results":
            for outcome in wire.to_outcomes(message.body, message.raw):
                self._accept(state, outcome)
        elif message.kind == "report":
            state.slots, state.legs = message.body["slots"], message.body["legs"]
            self.session.observe(Reported(worker, message.body["live"], len(state.tickets), state.slots))
        elif message.kind == "account":
            self.session.ledger.add(message.body, self.session.backend.width_for)
        elif message.kind == "refused":
            raise ProblemError(message.body)
        else:
            self._replace_worker(worker, str(message.body), by_itself=message.kind == "failed")

    def _replace_worker(self, worker: int, reason: str, *, by_itself: bool = False) -> None:
        """Replace a worker that is lost; its unanswered problems run again, in halves."""
        state = self._states[worker]
        self._pool.kill(worker)
        if not state.alive and (by_itself or state.false_starts == FALSE_STARTS):
            raise FleetError(f"worker {worker} could not start: {reason}")
        unanswered = sorted(state.tickets)
        self.session.ledger.slots += state.slots
        self.session.ledger.legs += state.legs
        self.session.observe(Lost(worker, reason, unanswered))
        if len(unanswered) == 1:
            self._strike(unanswered[0], reason)
        elif unanswered:
            half = -(-len(unanswered) // 2)
            self._again.extend((Group(unanswered[:half], suspect=True), Group(unanswered[half:], suspect=True)))
        self._start_worker(worker)

    def _strike(self, ticket: int, reason: str) -> None:
        strikes = self._strikes[ticket] = self._strikes.get(ticket, 0) + 1
        if strikes < self._allowed:
            self._again.append(Group([ticket], suspect=True))
            return
        detail = f"{strikes} workers were lost while they had this problem and no other; the last one: {reason}"
        self._finish(make_rejection(ticket, detail, Status.QUARANTINED))

    def _close_accounts(self) -> None:
        """Add what every live worker has spent to the ledger."""
        waiting = {worker for worker, state in enumerate(self._states) if state.alive}
        for worker in range(self._pool.size):
            if worker in waiting:
                self._pool.finish(worker)
            else:
                self._pool.kill(worker)
        until = time.monotonic() + self._hang
        while waiting and time.monotonic() < until:
            for worker, message in self._pool.wait(1.0):
                if message.kind == "account":
                    self.session.ledger.add(message.body, self.session.backend.width_for)
                if message.kind in ("account", "died", "failed"):
                    waiting.discard(worker)
        for worker in waiting:
            self._pool.kill(worker)

    # Problems out

    def _send(self) -> None:
        """Send windows to workers that have little work left, the one with least first."""
        while True:
            self._fill()
            for worker in sorted(range(len(self._states)), key=lambda worker: self._states[worker].load):
                group = self._group_for(self._states[worker])
                if group is not None:
                    self._send_group(worker, group)
                    break
            else:
                return

    def _group_for(self, state: WorkerState) -> Group | None:
        if not state.alive or state.alone:
            return None
        if self._again:
            return None if state.tickets else self._again.popleft()
        known = state if state.done else max(self._states, key=lambda other: other.done)
        tickets = self._backlog.window(state.load, len(state.tickets), known.done / max(known.busy, 1e-3))
        return Group(tickets) if tickets else None

    def _send_group(self, worker: int, group: Group) -> None:
        state = self._states[worker]
        if not state.tickets:
            state.heard = time.monotonic()
        state.tickets.update(group.tickets)
        state.load += math.fsum(self._backlog.predicted[ticket] for ticket in group.tickets)
        state.alone = group.suspect
        self._pool.send(worker, wire.send(group.tickets, [self._backlog.problems[ticket] for ticket in group.tickets]))

    def _fill(self) -> None:
        """Read ahead, so that the end is known early. A feed is waited for only if no problem is under way."""
        session = self.session
        while not session.exhausted and len(self._backlog) < session.options.lookahead:
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
                self.session.validate(wire.provisional(plain))
        except Exception as error:  # noqa: BLE001  one odd object must not harm the others
            self._reject(ticket, problem, error)
            return
        self._backlog.add(ticket, plain)
        if plain.chain is None:
            self._start(ticket, None)
        elif self._chains.enter(plain.chain, ticket):
            self._start(ticket, self._chains.take_predecessor(plain.chain))

    def _start(self, ticket: int, predecessor: Ended | None) -> None:
        """Make a problem ready to be sent; it starts where its predecessor in the chain ended.

        A problem with a sharpness starts where its search ends, as in a local run.
        """
        start, problem = None, self._backlog.problems[ticket]
        if predecessor is not None and not isinstance(problem.eps, SharpnessEps):
            # Without memory for the predecessor's potentials it starts as if it were the first of its chain.
            with suppress(MemoryError):
                instance = self.session.validate(problem)
                start = start_from_predecessor(predecessor, instance, self.session.backend)
        self._backlog.queue(ticket, start)

    def _reject(self, ticket: int, problem: Problem[Any], reason: Exception) -> None:
        try:
            self.session.validate(wire.provisional(problem) if isinstance(problem, Problem) else problem)
        except ProblemError as error:
            reason = error
        self._finish(self.session.reject(ticket, reason))

    # Results back

    def _accept(self, state: WorkerState, outcome: Outcome) -> None:
        """Take the outcome of a problem from a worker, and convert its potentials to the caller's library."""
        ticket, problem = outcome.ticket, self.session.problems[outcome.ticket]
        state.tickets.remove(ticket)
        state.alone = state.alone and bool(state.tickets)
        work = self._backlog.predicted[ticket]
        state.load = state.load - work if state.tickets else 0.0
        state.done += work
        if outcome.potentials is not None:
            like: Any = problem.x if problem.x is not None else problem.cost
            potentials = Potentials(*(to_caller(p, like, own=not outcome.widened) for p in outcome.potentials))
            outcome = outcome._replace(potentials=potentials)
        self._finish(outcome)

    def _finish(self, outcome: Outcome, *, recalled: bool = False) -> None:
        """Finish a problem in the session, start its successor, and queue its result."""
        session, ticket = self.session, outcome.ticket
        session.finish(outcome, recalled=recalled)
        ran = self._backlog.remove(ticket)
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
        """Start the next problem of a chain from this outcome.

        Do nothing after a rejected problem, or after a recalled one while another problem of the chain is under way.
        """
        chain = getattr(problem, "chain", None)
        is_passed = not ran and (outcome.status is Status.INVALID or self._chains.is_under_way(chain))
        if chain is None or is_passed:
            return
        ended = Ended(self.session.validate(problem, outcome.eps), outcome)
        successor = self._chains.leave(chain, ended)
        if successor is not None:
            self._start(successor, ended)
