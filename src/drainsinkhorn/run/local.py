"""The run that drains a session on this machine."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from drainsinkhorn.core.collector import collector_paused
from drainsinkhorn.core.events import Event, Lowered, Rescuing, Retired
from drainsinkhorn.core.executor import execute
from drainsinkhorn.core.ledger import Ledger
from drainsinkhorn.core.options import MODES
from drainsinkhorn.core.source import Admission, Admissions, Batch
from drainsinkhorn.model.eps import FallingEps
from drainsinkhorn.model.errors import ContractError, OutOfMemory, ProblemError
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.instances import InstanceStack, each
from drainsinkhorn.model.outcomes import Outcome, Outcomes
from drainsinkhorn.model.problem import Problem
from drainsinkhorn.model.result import Result
from drainsinkhorn.model.status import Status
from drainsinkhorn.numerics.depth import predicted_depth
from drainsinkhorn.numerics.starts import usable_start
from drainsinkhorn.run import rescue
from drainsinkhorn.run.extend import start_from_predecessor
from drainsinkhorn.run.lists import validate_list
from drainsinkhorn.run.queue import Ended, Policy, Queue
from drainsinkhorn.run.reading import Reader
from drainsinkhorn.run.recheck import Recheck
from drainsinkhorn.run.session import RESCUABLE, Session
from drainsinkhorn.run.solution import Solution
from drainsinkhorn.run.stack import ProblemStack, validate_stack
from drainsinkhorn.run.stages import Stages
from drainsinkhorn.run.validate import finite_on_device, make_instance

COLD_LINK = "it did not start from its predecessor in the chain, for lack of memory"
UNUSED_START = "its start was not used: the potentials are so large that float64 cannot resolve eps in them"


class LocalRun:
    """Drains a session on this machine: hands its problems to the executor and rescues those that do not converge.

    It is the gate of its own queue: see `run.queue.Gate` for these methods.

    Args:
        session: The session.
        problems: Its problems.
        solve: Solves problems at trial values of eps, which a sharpness needs.
        same_shape: True if the problems were made from arrays of one shape. If the backend does not support one of
            them, it supports none, and ProblemError is raised.
    """

    def __init__(
        self,
        session: Session,
        problems: Iterable[Problem[Any]],
        solve: Callable[..., Solution[Any]],
        *,
        same_shape: bool = False,
    ) -> None:
        self.session = session
        self._backend, self._same_shape = session.backend, same_shape
        options = session.options
        # Used until the first line has a plan of its own.
        self._plan = options.plan(session.count)
        self._recheck = Recheck(options.recheck, options.audit.margin, self._backend.name, session.count)
        # Problems that ended without a run, whether the journal recalled them, and the instance if they are rechecked.
        self._without_run: deque[tuple[Outcome, bool, Instance[Any] | None]] = deque()
        # Problems at an eps above their own; made for the first one.
        self._stages: Stages | None = None
        # Problems that wait for their rescue, by ticket.
        self._failed: dict[int, Ended] = {}
        # Tickets of problems whose start was replaced by zero, and remarks for messages.
        self._unused_starts, self._remarks = set[int](), dict[int, list[str]]()
        # Lanes that have retired and were not yielded by `drain` yet; tickets of converged results that were refuted.
        self._unclaimed, self._refuted = list[Retired](), set[int]()
        self._reader = Reader(session, solve)
        self._validation = options.tol, options.audit.margin, options.init
        with collector_paused():
            stacked = None if session.has_journal else validate_stack(problems, *self._validation)
            self._ready = stacked if stacked or session.has_journal else validate_list(problems, *self._validation)
        if self._ready and isinstance(problems, (list, ProblemStack)):
            session.take_all(problems)
        # Arrays on a device are checked together; if one holds NaN or inf, each is checked when its problem is read.
        self._finite = not self._ready and isinstance(problems, list) and finite_on_device(problems)
        momentum = session.acceleration != "none"
        self._lookahead = options.lookahead if session.count is None else math.inf
        self._policy = Policy(
            self._lookahead, options.order, lambda instance: predicted_depth(instance, momentum=momentum)
        )

    def drain(self) -> Generator[Outcomes, None, None]:
        """Run every problem, and yield how problems end, as they end; a journal has recorded what is yielded."""
        session = self.session
        # The queue refers to this run. It exists only while the run does, since a cycle of references would keep the
        # caller's arrays until the garbage collector runs.
        self._queue = Queue(self, self._policy)
        try:
            with collector_paused():
                stack = self._whole_stack()
                if self._ready and stack is None:
                    self._queue.enter(self._ready)
                if session.count is not None:
                    self._queue.fill()
            if session.count is not None:
                yield from self._yield_without_run()
            for first, line in self._queue.lines() if stack is None else [(stack.instances[0], Batch(stack))]:
                if first is not None:
                    self._plan = session.plan_for(first)
                for retired in execute(self._backend, line, self._plan, self._observe, session.ledger.seconds):
                    yield from self._yield_without_run()
                    yield from self._yield(*self._sort_out(retired))
                yield from self._yield_without_run()
                if self.is_paused():
                    yield from self._rescue()
            yield from self._rescue()
            session.raise_error()
        finally:
            # First, since closing the session may raise.
            del self._queue
            session.close()

    def _whole_stack(self) -> Admissions | None:
        """Return the problems of a stack if they need no queue: nothing is read beside them, and they keep their order.

        None also if the backend does not support them: the queue rejects each.
        """
        if not isinstance(self._ready, InstanceStack) or self._lookahead < math.inf or self._policy.order != "given":
            return None
        try:
            self.signature(self._ready[0])
        except (ProblemError, MemoryError):
            return None
        return Admissions(range(len(self._ready)), self._ready)

    # The gate of the queue

    def read_problem(self) -> tuple[int, Problem[Any]] | None:
        """Read the next problem of the session, and find the eps that it does not state as a number."""
        return self._reader.read(self._queue.room)

    def is_ready(self) -> bool:
        """Whether the next problem can be read without waiting; only a feed may have to be waited for."""
        return self._reader.is_ready()

    def is_overdue(self, ticket: int) -> bool:
        """Whether a problem of a feed has waited too long."""
        return self.session.feed is not None and self.session.feed.overdue(ticket)

    def is_paused(self) -> bool:
        """Whether the oldest problem that waits for its rescue has waited long enough to interrupt the others."""
        if not self._failed:
            return False
        oldest, feed = min(self._failed), self.session.feed
        if feed is not None and (self._queue.is_idle or feed.overdue(oldest)):
            return True
        return self.session.read - oldest >= self._lookahead

    def admit(self, ticket: int, problem: Problem[Any]) -> tuple[Instance[Any], Hashable] | None:
        """Recall a problem from the journal, or validate it, or reject it."""
        outcome = self.session.recall(ticket, problem)
        if outcome is not None:
            self._take_recalled(problem, outcome)
            return None
        try:
            stated, eps = self._reader.take(problem)
            instance = make_instance(stated, *self._validation, finite=self._finite, eps=eps)
        except ProblemError as error:
            return self._reject(ticket, error)
        except MemoryError as error:
            return self._reject(ticket, _lacks_memory(error))
        signature = self.sign(ticket, instance)
        if signature is None:
            return None
        if instance.init == "zero" and problem.init is not None and not isinstance(problem.init, str):
            self._unused_starts.add(ticket)
        if isinstance(problem.eps, FallingEps):
            self._stages = self._stages or Stages(self.session.options.max_depth, self._backend.stride)
            instance = self._stages.begin(ticket, instance, problem.eps)
            signature = self.signature(instance)
        return instance, signature

    def signature(self, instance: Instance[Any]) -> Hashable:
        """Return the backend's signature of an instance; ProblemError if it has none."""
        if not (instance.marginals.are_hard or self._backend.soft_marginals):
            raise ProblemError(
                f"backend {self._backend.name!r} solves problems with two hard marginals; use another one for rho, "
                'such as "cpu" or "reference"'
            )
        return self._backend.signature(instance)

    def sign(self, ticket: int, instance: Instance[Any]) -> Hashable:
        """Return the signature of an instance; None if the problem is rejected, since it has none."""
        try:
            return self.signature(instance)
        except ProblemError as error:
            if self._same_shape:
                self.session.reject(ticket, error)
                raise
            return self._reject(ticket, error)
        except MemoryError as error:
            return self._reject(ticket, _lacks_memory(error))

    def _reject(self, ticket: int, error: ProblemError) -> None:
        """Let a problem end as INVALID, without a run."""
        self._without_run.append((self.session.reject(ticket, error), False, None))

    def carry_start(self, ended: Ended, admission: Admission) -> Instance[Any]:
        """Return an instance that starts where its predecessor in the chain ended, if that start is usable."""
        ticket, instance = admission
        try:
            start = start_from_predecessor(ended, instance, self._backend)
        except MemoryError:
            start, self._remarks[ticket] = None, [COLD_LINK]
        if start is None:
            return instance
        has_gauge = instance.marginals.are_hard
        init = usable_start(start, instance.eps, instance.tol, instance.a, instance.b, has_gauge=has_gauge)
        return replace(instance, init=init)

    def _take_recalled(self, problem: Problem[Any], outcome: Outcome) -> None:
        """Take over an outcome that the journal recalled; the successor in the chain starts from it."""
        rechecked = self.session.options.recheck == "all" and outcome.status is Status.CONVERGED
        instance = self.session.validate(problem, outcome.eps) if rechecked or problem.chain is not None else None
        if instance is not None:
            self._queue.recall(Ended(instance, outcome))
        self._without_run.append((outcome, True, instance if rechecked else None))

    # Lanes that have retired

    def _observe(self, event: Event) -> None:
        """Keep retired lanes until they are yielded, and pass the event to the session's observers.

        Of lanes that run on at a smaller eps, observers receive only their tickets.
        """
        if type(event) is Retired:
            if self._stages is not None:
                event, lowered = self._stages.without_intermediate(event)
                if lowered:
                    self.session.observe(Lowered(lowered))
                if not event.instances:
                    return
            self._unclaimed.append(event)
        self.session.observe(event)

    def _sort_out(self, retired: Retired) -> Retired:
        """Start next stages and successors in chains, set aside the problems to be rescued, and return the others."""
        statuses, has_chains = retired.outcomes.statuses, any(each(retired.instances, _has_chain))
        is_converged = statuses.count(Status.CONVERGED) == len(statuses) and self._stages is None
        if is_converged and not self._unused_starts and not has_chains:
            return retired
        instances, outcomes = list[Instance[Any]](), Outcomes()
        for ended in map(Ended, *retired):
            stage = None if self._stages is None else self._stages.follow(ended)
            if stage is not None:
                self._queue.resume(Admission(ended.outcome.ticket, stage))
                continue
            if ended.outcome.status is not Status.CONVERGED:
                ended = ended._replace(outcome=rescue.with_finite_potentials(ended.outcome))
            if ended.instance.init != "zero":
                # Its start was carried over from its predecessor.
                self._unused_starts.discard(ended.outcome.ticket)
            self._queue.finish(ended)
            if self.session.options.rescue and rescue.is_worthwhile(ended, self._backend):
                self._failed[ended.outcome.ticket] = ended
            else:
                instances.append(ended.instance)
                outcomes.append(ended.outcome)
        return Retired(instances, outcomes)

    def _explain(self, ended: Ended) -> Outcome:
        """Return the outcome with its message completed."""
        ticket = ended.outcome.ticket
        remarks = [UNUSED_START] if ticket in self._unused_starts else []
        return rescue.explain(ended, self.session.options.audit.margin, remarks + self._remarks.get(ticket, []))

    def _yield(self, instances: Sequence[Instance[Any]], outcomes: Outcomes) -> Iterator[Outcomes]:
        """Recheck, record and yield ended problems. If a recheck refutes one, yield those before it, then raise."""
        are_converged = outcomes.statuses.count(Status.CONVERGED) == len(outcomes)
        has_failed = not are_converged and any(status in RESCUABLE for status in outcomes.statuses)
        if self._remarks or self._unused_starts or has_failed:
            details = [self._explain(ended).detail for ended in map(Ended, instances, outcomes)]
            outcomes = replace(outcomes, details=details)
        due = set(self._recheck.select(instances, outcomes))
        if self.session.reports_each_problem:
            for place in range(len(outcomes)):
                if place in due:
                    self._check(instances[place], outcomes[place])
                self.session.finish(outcomes[place])
                yield outcomes[place : place + 1]
        else:
            for place in sorted(due):
                try:
                    self._check(instances[place], outcomes[place])
                except ContractError:
                    yield outcomes[:place]
                    raise
            yield outcomes
        # A lane that was rejected for lack of memory retires without an event, so the list may be empty.
        del self._unclaimed[:1]
        if self._remarks or self._unused_starts:
            self._unused_starts.difference_update(outcomes.tickets)
            for ticket in outcomes.tickets:
                self._remarks.pop(ticket, None)

    def _check(self, instance: Instance[Any], outcome: Outcome) -> None:
        """Recheck a converged result. If it is refuted, `results` leaves it out."""
        try:
            self._recheck.check(instance, outcome)
        except ContractError:
            self._refuted.add(outcome.ticket)
            raise

    def _yield_without_run(self) -> Iterator[Outcomes]:
        """Yield problems that ended without a run since the last call."""
        while self._without_run:
            outcome, recalled, instance = self._without_run[0]
            if instance is not None:
                self._check(instance, outcome)
            self.session.finish(outcome, recalled=recalled)
            yield Outcomes.from_rows([outcome])
            self._without_run.popleft()

    def _rescue(self) -> Iterator[Outcomes]:
        """Run unconverged problems once more, in float64, in packs of their own."""
        if not self._failed:
            return
        session, precise = self.session, self._backend.precise()
        session.notify_caller(Rescuing(list(self._failed)))
        session.ledger.rescue = ledger = session.ledger.rescue or Ledger()
        lines: dict[Hashable, list[Admission]] = {}
        for ticket, first in self._failed.items():
            instance = replace(first.instance, init=rescue.choose_restart(first), depth_before=0)
            lines.setdefault(precise.signature(instance), []).append(Admission(ticket, instance))
        for line in lines.values():
            # Lanes leave as they finish, whatever the mode of the run, since depths of problems that failed differ.
            width = max(1, min(len(line), precise.hints(line[0].instance).width, self._plan.width))
            plan = replace(self._plan, mode=MODES["compact"], width=width)
            for event in execute(precise, Batch(line), plan, ledger, ledger.seconds):
                yield from self._yield_rescued(event)

    def _yield_rescued(self, retired: Retired) -> Iterator[Outcomes]:
        """Yield the better one of both results of each problem that was run again."""
        for second in map(Ended, *retired):
            ticket = second.outcome.ticket
            finite = rescue.with_finite_potentials(second.outcome)
            ended, remark = rescue.choose_result(self._failed[ticket], second._replace(outcome=finite))
            if remark:
                self._remarks.setdefault(ticket, []).append(remark)
            outcomes = Outcomes.from_rows([ended.outcome])
            self._unclaimed.append(Retired([ended.instance], outcomes))
            del self._failed[ticket]
            yield from self._yield([ended.instance], outcomes)

    # Runs that end early

    @property
    def unrescued(self) -> set[int]:
        """Tickets of problems that wait for their rescue."""
        return set(self._failed)

    def results(self, claimed: Iterable[Outcome]) -> dict[int, Result[Any]]:
        """Return the results of all problems that have ended, by ticket, after an error ended the run.

        A problem that waits for its rescue has its first result. Results that a recheck refuted are left out.

        Args:
            claimed: The outcomes that `drain` has yielded; those that it had not yielded yet are added.
        """
        ended = {outcome.ticket: outcome for outcome in claimed}
        waiting = [Ended(*pair) for event in self._unclaimed for pair in zip(*event, strict=True)]
        for instance, outcome in [*waiting, *self._failed.values()]:
            ticket = outcome.ticket
            if ticket in self.session.problems and ticket not in ended and ticket not in self._refuted:
                finite = rescue.with_finite_potentials(outcome)
                ended[ticket] = self._explain(Ended(instance, finite))
        for outcome, *_ in self._without_run:
            if outcome.ticket not in self._refuted:
                ended.setdefault(outcome.ticket, outcome)
        return {ticket: self.session.result(ended[ticket]) for ticket in sorted(ended)}

    def out_of_memory(self, error: MemoryError, claimed: Iterable[Outcome]) -> OutOfMemory:
        """Return the error for a lack of memory outside of any lane, with all finished results not yet returned."""
        results = self.results(claimed)
        text = (
            f"memory ran out outside of any lane ({str(error) or type(error).__name__}); the {len(results)} results "
            "that were finished and not yet returned are in .results; free memory, and run the others again"
        )
        return OutOfMemory(text, results, self.session.ledger)


def _has_chain(instance: Instance[Any]) -> bool:
    return instance.chain is not None


def _lacks_memory(error: MemoryError) -> ProblemError:
    """Return the error of a problem for which memory ran out before it had a lane."""
    return ProblemError(f"there is not enough memory to check this problem ({error}); free memory, or use fewer points")
