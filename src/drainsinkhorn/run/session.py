"""One run: its problems by ticket, its journal, its observers, and how each problem ended.

A session does not decide when or where problems run. A local run (`run.local`) drains it on this machine, a fleet
(`fleet.dispatch`) on workers.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np

from drainsinkhorn.backends import choose, load
from drainsinkhorn.core.events import Chosen, Event, Finished, Observer, Watch, fan_out, ignore
from drainsinkhorn.core.ledger import Ledger
from drainsinkhorn.core.options import Options, Plan
from drainsinkhorn.core.protocol import Backend
from drainsinkhorn.model.eps import is_descriptor, stated_eps
from drainsinkhorn.model.errors import ConvergenceWarning, OptionsError, ProblemError, warn
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.outcomes import Outcome, make_rejection
from drainsinkhorn.model.problem import Problem
from drainsinkhorn.model.result import Result
from drainsinkhorn.model.status import Status
from drainsinkhorn.run.feed import Tap
from drainsinkhorn.run.journal import Journal
from drainsinkhorn.run.solution import Solution
from drainsinkhorn.run.stack import NumberedProblems, ProblemStack
from drainsinkhorn.run.validate import validate

RESCUABLE = (Status.DEPTH_LIMIT, Status.NONFINITE)
"""Statuses of problems that a second run may change."""
RECORDED = (Status.CONVERGED, *RESCUABLE)
"""Statuses that a journal records, because the same problem would end with the same status again."""
_END = object()
"""Sentinel: marks the end of the caller's iterable."""


class Session:
    """The state of one run.

    Args:
        source: The problems; a Feed is claimed for this run.
        count: Number of problems; None: unknown.
        backend: "auto", a name, or a Backend.
        options: The options of the run.
        observe: The caller's observer.
        journal: Path of the journal; None: none is kept.
        progress: Show a bar from the first problem to `close`.

    Attributes:
        backend: The backend, with the acceleration of the run.
        acceleration: Its name.
        ledger: The account of the run.
        observe: Passes an event to the ledger and to the caller's observer.
        notify_caller: Passes an event to the caller's observer alone.
        feed: The feed that the problems come from; None if they come from elsewhere.
        problems: Problems read so far whose Result the caller does not have yet, by ticket.
        read: Number of problems read so far.
        exhausted: True if there is no further problem.
        error: The exception that the caller's iterable raised, after which nothing is read; None if it did not raise.
        counts: Results by status, for the warning at the end.
    """

    def __init__(
        self,
        source: Iterable[Problem[Any]],
        count: int | None,
        backend: str | Backend[Any],
        options: Options,
        observe: Observer,
        journal: str | os.PathLike[str] | None,
        *,
        progress: bool = False,
    ) -> None:
        self.options, self.count = options, count
        self._bar: Any = None
        if progress:
            # rich is imported only if a bar is wanted.
            from drainsinkhorn.run.progress import make_bar

            self._bar = make_bar(count, options.max_depth)
            observe = self._bar if observe is ignore else fan_out(self._bar, observe)
        self.ledger = Ledger()
        self.feed = source.claim() if isinstance(source, Tap) else None
        # The caller's floating-point settings, for the caller's own code. A run ignores floating-point errors and
        # checks values for NaN and inf instead.
        self._float_settings = np.geterr()
        self.notify_caller = observe if observe is ignore else Watch(self._under_callers_settings(observe))
        self.observe = self.ledger if observe is ignore else fan_out(self.ledger, self.notify_caller)
        picked = pick_backend(backend, source, self.observe)
        self.acceleration = pick_acceleration(options, picked)
        self.backend = picked.using(self.acceleration)
        self.problems: dict[int, Problem[Any]] = {}
        self.read, self.exhausted = 0, False
        self.error: Exception | None = None
        self.counts = Counter[Status]()
        # Iterating over a list runs no code of the caller.
        self._source, self._is_plain = iter(source), isinstance(source, (list, ProblemStack))
        # Instances of finished problems are made again where a consumer needs them; their arrays were checked before.
        self._make_instance = partial(
            validate, tol=options.tol, margin=options.audit.margin, init=options.init, finite=True
        )
        self._journal = None if journal is None else Journal(journal, options, self.backend.name)
        if self._journal is not None:
            self.observe(self._journal.resumed)

    def take_all(self, problems: list[Problem[Any]] | ProblemStack) -> None:
        """Note that all problems were read and validated together."""
        # A stream forgets problems one by one.
        is_lazy = isinstance(problems, ProblemStack) and self.count is not None
        self.problems = NumberedProblems(problems) if is_lazy else dict(enumerate(problems))
        self.read, self.exhausted = len(problems), True

    def read_problem(self) -> tuple[int, Problem[Any]] | None:
        """Return the next problem and its ticket, or None at the end.

        The caller's iterable runs under the caller's settings for floating-point errors. If it raises, that is the end,
        and `error` holds the exception, which is raised again when all problems read before have ended.
        """
        problem: Any = _END
        if self._is_plain and not self.exhausted:
            problem = next(self._source, _END)
        elif not self.exhausted:
            try:
                with np.errstate(**self._float_settings):
                    problem = next(self._source, _END)
            except Exception as error:  # noqa: BLE001  the caller's own code
                self.error = error
        if problem is _END:
            self.exhausted = True
            return None
        ticket, self.read = self.read, self.read + 1
        self.problems[ticket] = problem
        return ticket, problem

    def validate(self, problem: Problem[Any], eps: float = math.nan) -> Instance[Any]:
        """Return a problem in normal form, with the options of the run; raises ProblemError if it is not valid.

        Args:
            problem: The problem.
            eps: The number that was found if its eps is a descriptor; NaN: none was found.
        """
        options = self.options
        if not math.isnan(eps) and is_descriptor(problem.eps):
            problem = replace(problem, eps=eps)
        return validate(problem, options.tol, options.audit.margin, options.init)

    def recall(self, ticket: int, problem: Any) -> Outcome | None:
        """Return how a problem ended in an earlier run, from the journal."""
        if self._journal is None or not isinstance(problem, Problem):
            return None
        return self._journal.recall(ticket, cast(Problem[Any], problem))

    def reject(self, ticket: int, error: Exception) -> Outcome:
        """Return the outcome of a problem that is not valid; raises ProblemError if the options are strict."""
        if self.options.strict:
            raise ProblemError(f"problem {ticket}: {error}") from None
        return make_rejection(ticket, str(error))

    def plan_for(self, instance: Instance[Any]) -> Plan:
        """Return how to run a line of problems like this one. A choice is reported to observers once."""
        hints, feed = self.backend.hints(instance), self.feed
        # The number of problems in a line of chains is unknown, because successors come as predecessors leave.
        count = self.count if instance.chain is None else None
        # A stream returns its first results before it has read much further.
        width = hints.width if self.count is not None else min(hints.width, self.options.lookahead)
        plan = self.options.plan(count, width)
        # Callers of a feed wait for each result, so audits must not be rare.
        every = plan.mode.spacing(plan.audit, hints, polled=feed is not None)
        chosen = Chosen("mode", plan.mode.name, plan.reason)
        if chosen not in self.ledger.choices:
            self.observe(chosen)
        # The tol of an instance contains the margin, so backends compare rounding errors with the limit that decides.
        expired = () if feed is None else feed.expired
        pairs = hints.pairs if self.options.width is None and plan.mode.width is None else math.inf
        return replace(plan, audit=replace(plan.audit, margin=1.0, every=every), expired=expired, pairs=pairs)

    @property
    def has_journal(self) -> bool:
        """True if a journal is kept."""
        return self._journal is not None

    @property
    def reports_each_problem(self) -> bool:
        """True if `finish` must be called for every problem, because there is a journal or an observer."""
        return self._journal is not None or self.notify_caller is not ignore

    def finish(self, outcome: Outcome, *, recalled: bool = False) -> None:
        """Record in the journal how a problem ended, unless it was recalled, and notify the caller's observer."""
        if self._journal is not None and not recalled and outcome.status in RECORDED:
            self._journal.enter(self.problems[outcome.ticket], outcome)
        if self.notify_caller is not ignore:
            self.notify_caller(Finished(outcome.ticket, outcome.status))

    def result(self, outcome: Outcome) -> Result[Any]:
        """Return the Result of a problem that has ended and is not forgotten."""
        backend = self.backend.precise() if outcome.rescued else self.backend
        return Result(
            ticket=outcome.ticket,
            problem=self.problems[outcome.ticket],
            validate=self._make_instance,
            emitted=outcome.potentials,
            residual=outcome.residual,
            status=outcome.status,
            depth=outcome.depth,
            eps=stated_eps(self.problems[outcome.ticket]) if math.isnan(outcome.eps) else outcome.eps,
            backend=backend.frugal() if outcome.streamed else backend,
            arithmetic=outcome.arithmetic,
            acceleration=self.acceleration,
            rescued=outcome.rescued,
            widened=outcome.widened,
            detail=outcome.detail,
            streamed=outcome.streamed,
            warns=self.options.warn,
        )

    def forget(self, ticket: int) -> None:
        """Drop a problem whose Result the caller has, so that a long stream does not keep its arrays."""
        del self.problems[ticket]

    def raise_error(self) -> None:
        """Raise the exception of the caller's iterable, if there is one, and keep no reference to it.

        Its traceback refers to the frames of the run, and these to the session: with a reference back, the caller's
        arrays would be kept until the garbage collector runs.
        """
        error, self.error = self.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error

    def warn(self, counts: Mapping[Status, int], solution: Solution[Any] | None = None) -> None:
        """Issue one warning if the observer raised, and one if problems did not converge."""
        if isinstance(self.notify_caller, Watch):
            self.notify_caller.warn(solution)
        if self.options.warn:
            _warn_of_counts(counts, solution)

    def close(self) -> None:
        """Close the journal, and remove the bar."""
        if self._bar is not None:
            self._bar.stop()
        if self._journal is not None:
            self._journal.close()

    def _under_callers_settings(self, observe: Observer) -> Observer:
        """Wrap an observer so that it is called under the caller's settings for floating-point errors."""
        settings = self._float_settings

        def notify(event: Event) -> None:
            with np.errstate(**settings):
                observe(event)

        return notify


def pick_backend(backend: str | Backend[Any], source: Iterable[Problem[Any]], observe: Observer) -> Backend[Any]:
    """Return the backend, loaded by name if it is one. For "auto" the observer receives the choice and its reason."""
    if backend == "auto":
        # Reading an iterator here would take its first problem before a lane is free.
        picked, reason = choose(source[0] if isinstance(source, (list, ProblemStack)) and source else None)
        observe(Chosen("backend", picked.name, reason))
        return picked
    if isinstance(backend, str):
        return load(backend)
    if isinstance(backend, type) or not hasattr(backend, "pack"):
        raise OptionsError(f'backend must be "auto", a name or a Backend, got {backend!r}')
    return backend


def pick_acceleration(options: Options, backend: Backend[Any]) -> str:
    """Return the name of the acceleration: that of the options or, for "auto", the best that the backend offers."""
    wanted, offered = options.accelerate, backend.accelerations
    if wanted == "auto":
        return offered[0]
    if wanted not in offered:
        raise OptionsError(
            f"accelerate={wanted!r} is not offered by backend {backend.name!r}, which has {list(offered)}"
        )
    return wanted


def _warn_of_counts(counts: Mapping[Status, int], solution: Solution[Any] | None) -> None:
    """Issue one warning that counts unconverged problems by status and says what to do."""
    failed = {status: count for status, count in counts.items() if count and status is not Status.CONVERGED}
    if failed:
        named = "; ".join(f"{count} {status.name} ({status.value})" for status, count in failed.items())
        text = f"{sum(failed.values())} of {sum(counts.values())} problems did not converge: {named}. "
        if solution is not None:
            first = next(t for t, status in enumerate(solution.statuses) if status is not Status.CONVERGED)
            text += f"The first is problem {first} ({solution[first].message}). "
        warn(ConvergenceWarning(f"{text}See each result's message; warn=False silences this warning", solution))
