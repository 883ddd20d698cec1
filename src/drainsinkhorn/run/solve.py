"""`solve` and `stream`: the door, the sorter, the executor and the rescue, joined."""

from __future__ import annotations

import math
import os
import weakref
from collections import Counter, deque
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Set
from dataclasses import replace
from functools import partial
from typing import Any, Unpack, cast

import numpy as np

from drainsinkhorn.backends import choose, load
from drainsinkhorn.backends.depth import predicted_depth
from drainsinkhorn.backends.gauge import usable_start
from drainsinkhorn.core.events import (
    Chosen,
    Event,
    Finished,
    Observer,
    Rescuing,
    Retired,
    Watch,
    fan_out,
    ignore,
)
from drainsinkhorn.core.executor import execute
from drainsinkhorn.core.ledger import Ledger
from drainsinkhorn.core.options import MODES, Options, Plan, Settings
from drainsinkhorn.core.protocol import Backend
from drainsinkhorn.core.source import Admission, Batch
from drainsinkhorn.core.timed import Timed
from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.errors import (
    ContractError,
    ConvergenceWarning,
    FeedClosed,
    OptionsError,
    OutOfMemory,
    ProblemError,
    warn,
)
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.model.result import UNKNOWN, Result
from drainsinkhorn.model.status import Status
from drainsinkhorn.numerics.arrays import is_array, to_caller, to_numpy
from drainsinkhorn.numerics.costs import as_cost
from drainsinkhorn.numerics.weights import unit_mass
from drainsinkhorn.run.extend import extend_instance
from drainsinkhorn.run.feed import Tap
from drainsinkhorn.run.journal import Entry, Journal
from drainsinkhorn.run.queue import Sorter
from drainsinkhorn.run.recheck import Recheck
from drainsinkhorn.run.solution import Record, Records, Results, Solution
from drainsinkhorn.run.stack import problems, validate_stack
from drainsinkhorn.run.validate import check_arguments, finite_on_device, make_instance, validate

DEFAULTS = Options()
RESCUED = (Status.DEPTH_LIMIT, Status.NONFINITE)
ENDED = (Status.CONVERGED, *RESCUED)
"""What a problem would come to again, and a journal keeps."""
_END = object()
"""Sentinel: marks the end of the caller's iterable."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during `solve`: nothing finished is lost.

    Attributes:
        results: Results by ticket: of finished problems, and of unconverged ones that waited for their rescue.
        unrescued: Tickets of the latter. Their results are those of the first run, and do not count as finished.
        total: Problems in all.
        ledger: The account of the run so far.
    """

    def __init__(
        self, results: dict[int, Result[Any]], total: int, ledger: Ledger, unrescued: Set[int] = frozenset()
    ) -> None:
        waiting = f"; {len(unrescued)} more waited for their rescue" if unrescued else ""
        finished = len(results) - len(unrescued)
        super().__init__(f"interrupted with {finished} of {total} problems finished{waiting}; see .results")
        self.results = results
        self.unrescued = unrescued
        self.total = total
        self.ledger = ledger


def solve(
    x: Any = None,
    y: Any = None,
    *,
    eps: Any = None,
    a: Any = None,
    b: Any = None,
    init: Any = None,
    cost: Any = "sqeuclidean",
    chain: Any = None,
    tol: Any = None,
    backend: str | Backend[Any] = "auto",
    options: Options = DEFAULTS,
    observe: Observer = ignore,
    journal: str | os.PathLike[str] | None = None,
    **settings: Unpack[Settings],
) -> Solution[Any]:
    """Solve many entropic optimal transport problems, each to a verified accuracy.

    Args:
        x: Problems, or points: see `problems` for what stacked, shared and ragged inputs look like.
        y: Points.
        eps: Entropic strength, a number or one per problem.
        a: Source weights.
        b: Target weights.
        init: Where to start: "auto", "gaussian" or "zero" for every problem without a start of its own, or potentials.
        cost: A name, a Cost, a PointCost, a Formula, a CostFn of OTT, or dense matrices.
        chain: Keys: problems of one chain run in order, each from its predecessor's potentials.
        tol: Bound on the larger L1 marginal residual: a number, or one per problem.
        backend: "auto", a name, or a Backend.
        options: All options at once; keywords below change single ones.
        observe: Called with every event of the run; of a rescue, only with its begin and its finished problems. If it
            raises, it is not called again; the run continues, and an ObserverWarning names the exception at the end.
        journal: Path of a file in which finished problems are recorded, so that a killed run can be resumed.
        **settings: Fields of Options: mode, width, max_depth, audit, certify, accelerate, rescue, strict, lookahead,
            recheck, warn.

    Returns:
        One Result per problem in the order of submission, and the ledger. A problem that cannot be solved has a status
        that says why; only `strict=True` raises. One ConvergenceWarning counts those that did not converge.

    Raises:
        ProblemError: If arrays are passed, and an argument is wrong for every problem: see `problems`.
        ContractError: If a lane was emitted with another lane's state, or a recheck refuted a CONVERGED result. The
            error's `results` holds the results finished before.
        OutOfMemory: If memory ran out outside of any lane. Its `results` holds the finished results.

    Examples:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> solution = solve(rng.normal(size=(4, 20, 2)), rng.normal(size=(4, 30, 2)), eps=0.5)
        >>> solution.converged, solution[3].residual.worst <= 1e-3
        (True, True)
    """
    if not isinstance(options, Options):
        raise OptionsError(f"options must be an Options, got {options!r}")
    each = isinstance(tol, (list, tuple)) or getattr(tol, "ndim", 0) > 0
    options = options.changed(None if each else tol, settings)
    if isinstance(init, str):
        options, init = options if init == "auto" else replace(options, init=init), None
    columns = {"eps": eps, "a": a, "b": b, "init": init, "tol": tol if each else None, "chain": chain}
    given = _as_problems(x, y, cost=cost, **columns)
    given = given if isinstance(given, list) else list(given)
    from_arrays = y is not None or x is None
    if from_arrays and given:
        check_arguments(eps=None, tol=None, cost=given[0].cost, init=options.init, x=None, y=None, a=None, b=None)
    run = _Run(given, len(given), backend, options, observe, journal)
    run.alike = from_arrays and not any(isinstance(column, (list, tuple)) for column in (x, y, cost))
    records = Records(len(given))
    with np.errstate(all="ignore"):
        try:
            for record in run.ends():
                records.enter(record)
        except KeyboardInterrupt:
            waiting = run.waiting
            raise Interrupted(run.finished(records), len(given), run.ledger, waiting) from None
        except ContractError as error:
            error.results = run.finished(records)
            raise
        except MemoryError as error:
            raise run.out_of_memory(error, records.entered()) from error
    solution = Solution(Results(records, run.result), run.ledger)
    run.warn(solution.counts, solution)
    return solution


def stream(
    problems: Iterable[Problem[Any]],
    *,
    tol: float | None = None,
    init: str = "auto",
    backend: str | Backend[Any] = "auto",
    options: Options = DEFAULTS,
    observe: Observer = ignore,
    journal: str | os.PathLike[str] | None = None,
    **settings: Unpack[Settings],
) -> Stream:
    """Solve problems as they come and yield results as they drain, not in order; `result.ticket` tells which.

    Problems are read as lanes fall vacant, at most `lookahead` ahead. What was yielded stays valid whatever follows. If
    the iterable raises, what was read is finished first. Do not write to a problem's arrays before you have its result.

    Args:
        problems: Any iterable of Problem; it may be endless. A Feed can be pushed to while the stream runs.
        tol: Bound on the larger L1 marginal residual, for problems that bring none of their own.
        init: Where problems start that bring no start of their own: "auto", "gaussian" or "zero".
        backend: "auto", a name, or a Backend.
        options: All options at once; keywords below change single ones.
        observe: Told every event of the run.
        journal: A file that keeps what is finished, so that a run that was killed can go on from there.
        **settings: Fields of Options.

    Examples:
        >>> import numpy as np
        >>> clouds = (np.random.default_rng(i).normal(size=(8 + i, 2)) for i in range(5))
        >>> sorted(result.ticket for result in stream(Problem(x=c, y=c + 1, eps=1.0) for c in clouds))
        [0, 1, 2, 3, 4]
    """
    options = options.changed(tol, settings)
    options = options if init == "auto" else replace(options, init=init)
    return Stream(_Run(_as_problems(problems, None), None, backend, options, observe, journal))


def _as_problems(x: Any, y: Any, cost: Any = "sqeuclidean", **columns: Any) -> Iterable[Problem[Any]]:
    """Problems as given, or made from arrays."""
    asked = as_cost(cost)
    if not isinstance(asked, Cost) or y is not None:
        if columns["eps"] is None:
            raise ProblemError("eps is missing; pass eps=, in units of the cost (for example 0.05 times its median)")
        return problems(x, y, cost=cost, **columns)
    if isinstance(x, Problem):
        x = [x]
    if isinstance(x, Tap) and columns:
        raise ProblemError("a Feed has no end that solve could wait for; pass it to stream")
    first = next(iter(x), None) if isinstance(x, (list, tuple)) else None
    if is_array(x) or is_array(first) or not isinstance(x, Iterable) or isinstance(x, (str, bytes, dict)):
        raise ProblemError(f"expected problems, or points x and y; got x of type {type(x).__name__} and no y")
    extra = [name for name, value in columns.items() if value is not None] + ["cost"] * (asked != Cost())
    if extra:
        raise ProblemError(f"{extra[0]} belongs to each Problem when problems are passed: Problem({extra[0]}=...)")
    return x


def _scales(instance: Instance[Any]) -> tuple[float, float, Any, Any]:
    """Return eps, tol and both weights of a validated problem, as `usable_start` takes them."""
    return instance.eps, instance.tol, instance.a, instance.b


def restart(retired: Retired) -> Potentials[Any] | str:
    """Return the start of a rescue: the potentials of the first run, recentred if necessary, or "zero".

    It is "zero" if the first run became non-finite from a start other than zero, or if the potentials are so large
    that float64 cannot resolve eps in them (`usable_start`).
    """
    instance, potentials = retired.instance, retired.potentials
    if potentials is None or (retired.status is Status.NONFINITE and instance.init != "zero"):
        return "zero"
    return usable_start(potentials, *_scales(instance))


def with_finite_potentials(retired: Retired) -> Retired:
    """Replace potentials by zeros if they are not finite; a lane whose residual is finite is returned as it is."""
    if retired.potentials is None or math.isfinite(retired.residual.worst):
        return retired
    sides = [to_numpy(side) for side in retired.potentials]
    if all(np.isfinite(side).all() for side in sides):
        return retired
    zeros = (to_caller(np.zeros_like(side), like) for side, like in zip(sides, retired.potentials, strict=True))
    return retired._replace(potentials=Potentials(*zeros))


def warn_of_counts(counts: Mapping[Status, int], solution: Solution[Any] | None = None) -> None:
    """Issue one warning that counts unconverged problems by status and says what to do."""
    failed = {status: count for status, count in counts.items() if count and status is not Status.CONVERGED}
    if failed:
        named = "; ".join(f"{count} {status.name} ({status.value})" for status, count in failed.items())
        text = f"{sum(failed.values())} of {sum(counts.values())} problems did not converge: {named}. "
        if solution is not None:
            statuses = solution.results.records.statuses
            first = next(ticket for ticket, status in enumerate(statuses) if status is not Status.CONVERGED)
            text += f"The first is problem {first} ({solution[first].message}). "
        warn(ConvergenceWarning(f"{text}See each result's message; warn=False silences this warning", solution))


@np.errstate(all="ignore")
def carried_start(retired: Retired, instance: Instance[Any], backend: Backend[Any]) -> Potentials[Any] | None:
    """Where an instance starts after its predecessor in the chain; None if the predecessor's potentials are of no use.

    An instance with a start of its own keeps it. Raises MemoryError if memory does not suffice to extend potentials.
    """
    if isinstance(instance.init, Potentials) or retired.potentials is None or math.isnan(retired.residual.worst):
        return None
    # A sum of normalised weights may be off by a unit in the last place.
    before = replace(retired.instance, a=unit_mass(retired.instance.a), b=unit_mass(retired.instance.b))
    try:
        return extend_instance(before, retired.potentials, instance, backend)
    except ProblemError:
        return None


class Stream(Iterator[Result[Any]]):
    """Results as they drain.

    Attributes:
        ledger: The account of the run so far.
    """

    def __init__(self, run: _Run) -> None:
        self.ledger = run.ledger
        self._ends = run.ends()
        self._run = run
        self._feed = run.feed
        self._counts, self._ended = Counter[Status](), False
        if run.feed is not None:
            # Nobody waits for a stream that is forgotten.
            weakref.finalize(self, run.feed.fail, FeedClosed("nobody reads the stream any more"))

    def __next__(self) -> Result[Any]:
        try:
            with np.errstate(all="ignore"):
                result = self._run.result(next(self._ends))
        except MemoryError as error:
            short = self._run.out_of_memory(error)
            if self._feed is not None:
                for result in short.results.values():
                    self._feed.settle(result)
                self._feed.fail(short)
            raise short from error
        except BaseException as error:
            if self._feed is not None:
                self._feed.fail(error if not isinstance(error, StopIteration) else FeedClosed("the stream has ended"))
            if isinstance(error, StopIteration) and not self._ended:
                self._ended = True
                self._run.warn(self._counts)
            raise
        if self._feed is not None:
            self._feed.settle(result)
        else:
            # Results of a feed are awaited one by one, each with its status, so they are not counted for the warning.
            self._counts[result.status] += 1
        return result

    def close(self) -> None:
        """Give up what is unfinished."""
        self._ends.close()
        self._run.close()
        if self._feed is not None:
            self._feed.fail(FeedClosed("the stream was closed"))


class _Run:
    """One solve or stream: hands problems to the executor, line after line, and rescues what did not converge."""

    def __init__(
        self,
        given: Iterable[Problem[Any]],
        count: int | None,
        backend: str | Backend[Any],
        options: Options,
        observe: Observer,
        journal: str | os.PathLike[str] | None,
    ) -> None:
        self.ledger = Ledger()
        self._options = options
        self._count = count
        self.feed = given.claim() if isinstance(given, Tap) else None
        # Until the first line has its own.
        self._plan = options.plan(count)
        # The caller's floating-point settings, for the caller's own code. A run ignores floating-point errors and
        # checks values for NaN and inf instead.
        self._settings = np.geterr()
        self._tell = observe if observe is ignore else Watch(self._under_callers_settings(observe))
        # Retired lanes whose results were not returned yet, by ticket.
        self._unclaimed: dict[int, Retired | Record] = {}
        keep = _keep_in(self.ledger, self._unclaimed)
        self._observe = keep if observe is ignore else fan_out(keep, self._tell)
        self._backend = pick_backend(backend, given, self._observe)
        self._acceleration = pick_acceleration(options, self._backend)
        self._backend = self._backend.using(self._acceleration)
        self._recheck = Recheck(options.recheck, options.audit.margin, self._backend.name, count)
        self._given: dict[int, Problem[Any]] = {}
        self._validate = validation(options)
        # Problems that ended without a run: refused, or recalled from the journal.
        self._refused: deque[Record] = deque()
        # Whether problems were made from arrays of one shape: what the backend cannot take of one, it takes of none.
        self.alike = False
        self._unfit: ProblemError | None = None
        self._failed: dict[int, Retired] = {}
        self._rescued: dict[int, Backend[Any]] = {}
        # Remarks on single problems, appended to their messages.
        self._notes: dict[int, list[str]] = {}
        self._whole = count is not None
        self._lookahead = math.inf if self._whole else options.lookahead
        self._read = 0
        self._arithmetic = ""
        self._recalled: dict[int, Entry] = {}
        self._journal = None if journal is None else Journal(journal, options, self._backend.name)
        if self._journal is not None:
            self._observe(self._journal.resumed)
        self._ready = None if journal else validate_stack(given, options.tol, options.audit.margin, options.init)
        if self._ready:
            self._given, self._read = dict(enumerate(given)), len(self._ready)
        # Problems on a device are all looked at together; if one is bad, each is, at the door.
        finite = not self._ready and isinstance(given, list) and finite_on_device(given)
        self._sorter = Sorter(
            () if self._ready else self._noted(given),
            admit=lambda problem: make_instance(
                problem, options.tol, options.audit.margin, options.init, finite=finite
            ),
            carry=self._carry,
            signature=self._signature,
            refuse=self._refuse,
            lookahead=self._lookahead,
            paused=self._rescue_due,
            recall=self._recall,
            order=options.order,
            depth=lambda instance: predicted_depth(instance, momentum=self._acceleration != "none"),
            **({} if self.feed is None else {"ready": self.feed.ready, "overdue": self.feed.overdue}),
        )

    def ends(self) -> Generator[Record, None, None]:
        """Run everything; each problem once, as it ends. With a journal, what is yielded has been recorded."""
        try:
            for ended in self._ends():
                ticket = ended.ticket
                # What a recheck refutes is not among what is finished.
                self._unclaimed.pop(ticket, None)
                if isinstance(ended, Retired):
                    self._recheck(ended)
                self._unclaimed[ticket] = ended
                record = self.record(ended) if isinstance(ended, Retired) else ended
                if self._journal is not None:
                    self._enter(self._journal, record)
                if self._tell is not ignore:
                    self._tell(Finished(ticket, ended.status))
                yield record
                del self._unclaimed[ticket]
        finally:
            self.close()
            # It asks this run, which would otherwise keep the caller's arrays until the garbage collector came by.
            del self._sorter

    def unclaimed(self) -> Iterator[Record]:
        """Yield retired lanes whose results were not returned: rejected, finished, or waiting for their rescue."""
        yield from self.refusals()
        while self._unclaimed:
            ended = self._unclaimed.pop(min(self._unclaimed))
            is_record = not isinstance(ended, Retired)
            yield ended if is_record else self.record(with_finite_potentials(ended))

    def out_of_memory(self, error: MemoryError, entered: Iterable[Record] = ()) -> OutOfMemory:
        """Return the error for a lack of memory outside of any lane, with all finished results not yet returned."""
        ended = {record.ticket: record for record in (*entered, *self.unclaimed())}
        results = {ticket: self.result(record) for ticket, record in sorted(ended.items())}
        return OutOfMemory(
            f"memory ran out outside of any lane ({str(error) or type(error).__name__}); the {len(results)} results "
            "that were finished and not handed out are in .results; free memory, and run the others again",
            results,
            self.ledger,
        )

    def close(self) -> None:
        """Give the journal back."""
        if self._journal is not None:
            self._journal.close()

    def _recall(self, ticket: int, problem: Problem[Any]) -> bool:
        """Whether the journal knows how the problem ended in an earlier run."""
        if self._journal is None or not isinstance(cast(object, problem), Problem):
            return False
        entry = self._journal.recall(ticket, problem)
        if entry is None:
            return False
        self._recalled[ticket], record = entry, entry.record
        if problem.chain is not None or self._options.recheck == "all":
            instance = validate(problem, self._options.tol, self._options.audit.margin, self._options.init)
            ended = Retired(ticket, instance, record.potentials, record.residual, record.status, record.depth)
            if self._options.recheck == "all":
                self._recheck(ended)
            self._sorter.recalled(ended)
        self._refused.append(record)
        return True

    def _enter(self, journal: Journal, record: Record) -> None:
        # An invalid problem is validated again, at no cost; its arrays may be anything.
        if record.ticket not in self._recalled and record.status in ENDED:
            journal.enter(self._given[record.ticket], record, rescued=record.ticket in self._rescued)

    def _ends(self) -> Iterator[Retired | Record]:
        if self._ready:
            # The door has looked at the whole stack.
            self._sorter.enter(self._ready)
        if self._whole:
            self._sorter.fill()
            yield from self.refusals()
        backend = Timed(self._backend, self.ledger.seconds)
        for first, line in self._sorter.lines():
            if first is not None:
                self._plan, self._arithmetic = self._plan_for(first), self._backend.describe(first)
            for retired in execute(backend, line, self._plan, self._observe):
                yield from self.refusals()
                if retired.status is not Status.CONVERGED:
                    retired = self._sized(with_finite_potentials(retired))
                self._note_start(retired)
                self._sorter.finished(retired)
                if self._worth_rescue(retired):
                    self._failed[retired.ticket] = retired
                else:
                    yield retired
            yield from self.refusals()
            if self._rescue_due():
                yield from self._rescue()
        yield from self._rescue()
        if self._sorter.error is not None:
            raise self._sorter.error

    def _plan_for(self, instance: Instance[Any]) -> Plan:
        """How to run a line of problems like this one; told once for each choice."""
        # Successors come as their predecessors leave.
        count = self._count if instance.chain is None else None
        plan = self._options.plan(count, self._backend.natural_width(instance))
        # Callers of a feed wait for each answer, and not past its deadline: lanes that rest are not left alone.
        refills, holds = plan.mode.refill is not None, plan.holds and self.feed is None
        every = plan.audit.every or self._backend.natural_spacing(instance, refills=refills, holds=holds)
        chosen = Chosen("mode", plan.mode.name, plan.reason)
        if chosen not in self.ledger.choices:
            self._observe(chosen)
        # Backends see the stop itself as tol, so that precision and rounding are judged against what must be met.
        expired = () if self.feed is None else self.feed.expired
        return replace(plan, audit=replace(plan.audit, margin=1.0, every=every), expired=expired)

    def _sized(self, retired: Retired) -> Retired:
        """Add size and advice to the message of a lane that was rejected for lack of memory."""
        if retired.status is not Status.INVALID:
            return retired
        n, m = retired.instance.shape
        advice = "free memory or use fewer points"
        if retired.instance.is_dense:
            advice += "; of points in place of a dense cost no matrix need be kept"
        return retired._replace(detail=f"{retired.detail}; it has {n} x {m} points: {advice}")

    def _worth_rescue(self, retired: Retired) -> bool:
        """Unconverged, and a second run could end otherwise."""
        if not self._options.rescue or retired.status not in RESCUED:
            return False
        blamable = retired.status is Status.NONFINITE or isinstance(retired.instance.init, Potentials)
        if blamable and restart(retired) is not retired.potentials:
            return True
        same = self._backend.precise().describe(retired.instance) == self._backend.describe(retired.instance)
        hopeless = same and retired.residual.band >= self._plan.stop(retired.instance)
        return not hopeless

    def _rescue_due(self) -> bool:
        """True when the oldest problem that waits for rescue has waited long enough to interrupt the others."""
        if not self._failed:
            return False
        oldest = min(self._failed)
        if self.feed is not None and (self._sorter.idle or self.feed.overdue(oldest)):
            return True
        return self._read - oldest >= self._lookahead

    @property
    def waiting(self) -> set[int]:
        """Tickets of problems that wait for their rescue."""
        return set(self._failed)

    def finished(self, records: Records) -> dict[int, Result[Any]]:
        """Return results of an interrupted run by ticket; a problem that waits for its rescue has its first result."""
        for record in self.unclaimed():
            records.enter(record)
        return {record.ticket: self.result(record) for record in records.entered()}

    def _rescue(self) -> Iterator[Retired]:
        """Run unconverged problems once more, alone and in float64, from the start that `restart` returns."""
        if not self._failed:
            return
        self._tell(Rescuing(list(self._failed)))
        self.ledger.rescue = ledger = self.ledger.rescue or Ledger()
        precise = self._backend.precise()
        waiting = [Admission(t, replace(r.instance, init=restart(r))) for t, r in self._failed.items()]
        plan = replace(self._plan, mode=MODES["width-one"], width=1)
        for retired in execute(Timed(precise, ledger.seconds), Batch(waiting), plan, ledger):
            yield self._better(self._failed.pop(retired.ticket), with_finite_potentials(retired))

    def _better(self, first: Retired, second: Retired) -> Retired:
        """Return the rescue if it converged or came nearer to tol than the first run, else the first run."""
        before, after = first.residual.worst, second.residual.worst
        second = second._replace(streamed=first.streamed or second.streamed)
        if second.status is Status.CONVERGED or after < before or (math.isnan(before) and not math.isnan(after)):
            self._rescued[second.ticket] = self._backend.precise()
            if second.status is not Status.CONVERGED:
                self._note(
                    second.ticket, f"this is a second run, alone in float64; the first ended at residual {before:.3g}"
                )
            elif second.instance.init == "zero" and isinstance(first.instance.init, Potentials):
                self._note(second.ticket, "the run from its start failed, and a second one from zero converged")
            return second
        if second.status is Status.INVALID:
            return first
        self._note(first.ticket, "a second run, alone in float64, did not help")
        return first._replace(status=Status.EXPIRED) if second.status is Status.EXPIRED else first

    def _note(self, ticket: int, text: str) -> None:
        self._notes.setdefault(ticket, []).append(text)

    def _note_start(self, retired: Retired) -> None:
        """Add a remark if validation replaced the caller's start by zero."""
        init = self._given[retired.ticket].init
        if init is not None and not isinstance(init, str) and retired.instance.init == "zero":
            self._note(
                retired.ticket,
                "its start was not used: the potentials are so large that float64 cannot resolve eps in them",
            )

    def record(self, retired: Retired) -> Record:
        """What is kept of a problem that has ended."""
        detail = retired.detail
        if retired.status in RESCUED:
            detail = self._why(retired) or detail
        if retired.ticket in self._notes:
            detail = "; ".join([detail or retired.status.value, *self._notes[retired.ticket]])
        ticket, instance, potentials, residual, status, depth, widened, _, streamed = retired
        arithmetic = "" if potentials is None else self._arithmetic
        if (potentials is not None and status is not Status.CONVERGED) or ticket in self._rescued or streamed:
            # self._arithmetic may be that of another signature: the lane may have waited while others ran.
            ran = self._rescued.get(ticket, self._backend)
            arithmetic = (ran.frugal() if streamed else ran).describe(instance)
        return Record(ticket, potentials, residual, status, depth, widened, arithmetic, detail, streamed)

    def _why(self, retired: Retired) -> str:
        """Return why a problem did not converge; empty if its status alone says it."""
        rounds = retired.residual.band >= self._plan.stop(retired.instance)
        failed = retired.status is Status.NONFINITE
        from_start = isinstance(retired.instance.init, Potentials)
        if from_start and (failed or rounds) and restart(retired) is not retired.potentials:
            trouble = "a number left the range of floating point" if failed else "rounding exceeds tol"
            return f"{trouble} in the run from its start: start from potentials of the size of the costs, or from none"
        if failed or not rounds:
            return ""
        stop = "tol" if self._options.audit.margin == 1 else "margin * tol"
        return (
            f"{stop} = {retired.instance.tol:.3g} is below the rounding of this problem's residual "
            f"({retired.residual.band:.2g}), so nothing can verify it; raise tol or eps"
        )

    def warn(self, counts: Mapping[Status, int], solution: Solution[Any] | None = None) -> None:
        """Issue one warning if an observer raised, and one if problems did not converge."""
        if isinstance(self._tell, Watch):
            self._tell.warn(solution)
        if self._options.warn:
            warn_of_counts(counts, solution)

    def _under_callers_settings(self, observe: Observer) -> Observer:
        """Wrap an observer so that it is called under the caller's settings for floating-point errors."""

        def tell(event: Event) -> None:
            with np.errstate(**self._settings):
                observe(event)

        return tell

    def _read_as_caller(self, given: Iterable[Problem[Any]]) -> Iterator[Problem[Any]]:
        """Yield the caller's problems; the iterable runs under the caller's settings for floating-point errors."""
        source = iter(given)
        while True:
            with np.errstate(**self._settings):
                problem = next(source, _END)
            if problem is _END:
                return
            yield cast(Problem[Any], problem)

    def result(self, record: Record) -> Result[Any]:
        """What the caller sees of it; once for each."""
        rescued_by = self._rescued.pop(record.ticket, None)
        self._notes.pop(record.ticket, None)
        recalled = self._recalled.pop(record.ticket, None)
        if recalled is not None and recalled.rescued:
            rescued_by = self._backend.precise()
        ran = rescued_by or self._backend
        return Result(
            ticket=record.ticket,
            problem=self._given.pop(record.ticket),
            validate=self._validate,
            emitted=record.potentials,
            residual=record.residual,
            status=record.status,
            depth=record.depth,
            backend=ran.frugal() if record.streamed else ran,
            arithmetic=record.arithmetic,
            acceleration=self._acceleration,
            rescued=rescued_by is not None,
            widened=record.widened,
            detail=record.detail,
            streamed=record.streamed,
            warns=self._options.warn,
        )

    def _noted(self, given: Iterable[Problem[Any]]) -> Iterator[Problem[Any]]:
        for ticket, problem in enumerate(given if isinstance(given, list) else self._read_as_caller(given)):
            self._given[ticket] = problem
            self._read = ticket + 1
            yield problem

    def _carry(self, retired: Retired, instance: Instance[Any], ticket: int) -> Instance[Any]:
        try:
            start = carried_start(retired, instance, self._backend)
        except MemoryError:
            self._note(ticket, "it did not start from its predecessor in the chain, for lack of memory")
            return instance
        return instance if start is None else replace(instance, init=usable_start(start, *_scales(instance)))

    def _signature(self, instance: Instance[Any]) -> Hashable:
        try:
            return self._backend.signature(instance)
        except ProblemError as error:
            self._unfit = error
            raise

    def _refuse(self, ticket: int, problem: Problem[Any], error: ProblemError) -> None:
        if self._options.strict:
            raise ProblemError(f"problem {ticket}: {error}") from None
        if self.alike and error is self._unfit:
            raise error
        self._refused.append(Record(ticket, None, UNKNOWN, Status.INVALID, 0, False, "", str(error)))

    def refusals(self) -> Iterator[Record]:
        """Problems that ended without a run, as they are found."""
        while self._refused:
            yield self._refused.popleft()


def _keep_in(ledger: Ledger, unclaimed: dict[int, Retired | Record]) -> Observer:
    """Return an observer that fills a ledger and keeps retired lanes. It has no reference to the run: no cycle."""

    def keep(event: Event) -> None:
        if type(event) is Retired:
            unclaimed[event.ticket] = event
        ledger(event)

    return keep


def pick_backend(backend: str | Backend[Any], given: Iterable[Problem[Any]], observe: Observer) -> Backend[Any]:
    """The backend that was asked for; "auto" is told to the observer, with its reason."""
    if backend == "auto":
        # An iterator is not read before its time.
        picked, reason = choose(given[0] if isinstance(given, list) and given else None)
        observe(Chosen("backend", picked.name, reason))
        return picked
    if isinstance(backend, str):
        return load(backend)
    if isinstance(backend, type) or not hasattr(backend, "pack"):
        raise OptionsError(f'backend must be "auto", a name or a Backend, got {backend!r}')
    return backend


def validation(options: Options) -> Callable[[Problem[Any]], Instance[Any]]:
    """Makes normal forms of problems that are known to be valid: arrays on a device are not read to check them."""
    return partial(validate, tol=options.tol, margin=options.audit.margin, init=options.init, finite=True)


def pick_acceleration(options: Options, backend: Backend[Any]) -> str:
    """The acceleration that was asked for, or the best that the backend offers."""
    asked, offered = options.accelerate, backend.accelerations
    if asked == "auto":
        return offered[0]
    if asked not in offered:
        raise OptionsError(
            f"accelerate={asked!r} is not offered by backend {backend.name!r}, which has {list(offered)}"
        )
    return asked
