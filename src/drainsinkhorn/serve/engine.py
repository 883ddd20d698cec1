"""The stream that solves the problems of all requests, and its account."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any

import numpy as np

from drainsinkhorn.model.errors import DeadlineError, FeedClosed, FeedFull
from drainsinkhorn.model.problem import Problem
from drainsinkhorn.model.result import Result
from drainsinkhorn.run.client import Client
from drainsinkhorn.run.feed import Answer, Feed
from drainsinkhorn.run.solve import DEFAULTS
from drainsinkhorn.run.stream import Stream, stream
from drainsinkhorn.serve.limits import Refusal, ServerLimits, overload_refusal

_log = logging.getLogger("drainsinkhorn")
PROBLEMS = 100_000
"""Problems of one stream, after which a new one is opened: the ledger of a stream grows with every problem."""
Ended = Result[Any] | BaseException
OnEnd = Callable[[Ended], None]


class OpenStream:
    """One stream and the feed through which it receives its problems.

    Args:
        **how: Arguments of Client.

    Attributes:
        feed: The feed.
        stream: The stream.
        pushed: Number of problems pushed so far.
    """

    feed: Feed[Any]
    stream: Stream

    def __init__(self, **how: Any) -> None:
        self.pushed = 0
        # Errors of options and backends are raised here, in the caller's thread.
        self._client = Client(through=self._open, **how)

    def _open(self, feed: Feed[Any], **how: Any) -> Iterator[Result[Any]]:
        self.feed, self.stream = feed, stream(feed, **how)
        return self.stream

    def push(self, problem: Problem[Any], deadline: float) -> Answer:
        """Hand in a problem; raises FeedFull or FeedClosed, and never waits."""
        answer = self._client.submit(problem, deadline=deadline, timeout=0.0)
        self.pushed += 1
        return answer

    @property
    def slots(self) -> int:
        """Lanes times cycles that the stream has run so far."""
        rescue = self.stream.ledger.rescue
        return self.stream.ledger.slots + (0 if rescue is None else rescue.slots)

    def close(self) -> None:
        """Accept no further problems, and return when those handed in are solved."""
        self._client.close()


class PendingProblems:
    """The problems of one request, while they are solved.

    Args:
        count: Number of problems.

    Attributes:
        answers: Their futures.
        done: Is set when all have ended.
        abandoned: True if nobody waits for the results any more.
    """

    def __init__(self, count: int) -> None:
        self.answers: list[Answer] = []
        self.done = asyncio.Event()
        self.abandoned = False
        self._loop = asyncio.get_running_loop()
        self._left, self._lock = count, threading.Lock()
        if not count:
            self.done.set()

    def note_end(self) -> None:
        """Count one problem that has ended; called in any thread."""
        with self._lock:
            self._left -= 1
            is_last = self._left == 0
        if is_last:
            # After the shutdown nothing waits any more.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self.done.set)

    def outcomes(self) -> list[Ended | None]:
        """Return how each problem ended: a result, an exception, or None if it has not ended."""
        return [_outcome_of(answer) if answer.done() else None for answer in self.answers]


class Engine:
    """Solves the problems of all requests in one stream. Its methods are called in one thread, that of the event loop.

    Args:
        limits: The limits of the service.
        on_end: Called with each problem's result or exception, in any thread.
        **how: Arguments of Client.

    Attributes:
        failure: Why the first problem could not be solved; empty if it could.
    """

    def __init__(self, limits: ServerLimits, on_end: OnEnd, **how: Any) -> None:
        self._limits, self._on_end = limits, on_end
        # Two more for the warm-up.
        self._how = {**how, "capacity": limits.capacity + 2}
        self._current = OpenStream(**self._how)
        self._lock = threading.Lock()
        self._unfinished, self._past_slots = 0, 0
        self._closing: list[OpenStream] = []
        self._ready, self.failure = threading.Event(), ""
        self._warm_up()

    @property
    def backend(self) -> str:
        """The name of the backend."""
        choices = self._current.stream.ledger.choices
        setting = self._how.get("backend", "auto")
        return next((each.picked for each in choices if each.what == "backend"), getattr(setting, "name", setting))

    @property
    def tol(self) -> float:
        """The tol of problems that have none."""
        return float(self._how.get("tol") or self._how.get("options", DEFAULTS).tol)

    @property
    def is_ready(self) -> bool:
        """True if the kernels for float32 and float64 are compiled."""
        return self._ready.is_set()

    @property
    def unfinished(self) -> int:
        """Number of problems that are accepted and have not ended."""
        return self._unfinished

    @property
    def waiting(self) -> int:
        """Number of problems that the stream has not read yet."""
        return len(self._current.feed) + sum(len(opened.feed) for opened in self._closing)

    @property
    def slots(self) -> int:
        """Lanes times cycles that were run so far."""
        with self._lock:
            return self._past_slots + sum(opened.slots for opened in [self._current, *self._closing])

    def accept(self, problems: Sequence[Problem[Any]], deadline: float) -> PendingProblems:
        """Hand in the problems of a request, all or none; raises Refusal if there is no room.

        Args:
            problems: The problems.
            deadline: Seconds from now.
        """
        if self._unfinished + len(problems) > self._limits.capacity:
            raise overload_refusal(
                f"{self._unfinished:,} problems wait or run, and the limit is {self._limits.capacity:,}"
            )
        if self._current.pushed > PROBLEMS:
            self._replace_current()
        pending = PendingProblems(len(problems))
        try:
            for problem in problems:
                pending.answers.append(self._push(problem, max(1e-9, deadline)))
        except (FeedFull, FeedClosed, Refusal) as error:
            self.give_up(pending)
            raise error if isinstance(error, Refusal) else overload_refusal(str(error)) from None
        finally:
            with self._lock:
                self._unfinished += len(pending.answers)
            for answer in pending.answers:
                answer.add_done_callback(lambda answer: self._note_end(answer, pending))
        return pending

    def give_up(self, pending: PendingProblems) -> None:
        """Cancel the problems of a request that have not ended: waiting ones do not run, others leave at an audit."""
        for answer in pending.answers:
            if not answer.done():
                # It may have been pushed to an older feed: a feed whose problems have deadlines watches all of them.
                self._current.feed.give_up(answer)

    def close(self) -> None:
        """Accept no further problems, and return when those handed in have ended."""
        for opened in [self._current, *self._closing]:
            opened.close()

    def _push(self, problem: Problem[Any], deadline: float) -> Answer:
        try:
            return self._current.push(problem, deadline)
        except FeedClosed as error:
            _log.error("the stream has ended and a new one is opened: %s", error)
            self._replace_current()
            return self._current.push(problem, deadline)

    def _replace_current(self) -> None:
        """Open a new stream for further problems; the old one finishes its own."""
        try:
            opened = OpenStream(**self._how)
        except Exception as error:
            _log.exception("a new stream cannot be opened")
            advice = "try again later, and look at the log of the service"
            raise Refusal(503, f"problems cannot be solved now ({type(error).__name__})", advice) from error
        with self._lock:
            old, self._current = self._current, opened
            self._closing.append(old)
        threading.Thread(target=self._finish, args=(old,), name="drainsinkhorn-serve-close", daemon=True).start()

    def _finish(self, opened: OpenStream) -> None:
        opened.close()
        with self._lock:
            self._closing.remove(opened)
            self._past_slots += opened.slots

    def _note_end(self, answer: Future[Result[Any]], pending: PendingProblems) -> None:
        with self._lock:
            self._unfinished -= 1
        ended = _outcome_of(answer)
        if isinstance(ended, DeadlineError) and pending.abandoned:
            ended = CancelledError()
        elif isinstance(ended, CancelledError) and not pending.abandoned:
            ended = DeadlineError("it did not run before its deadline", None)
        self._on_end(ended)
        pending.note_end()

    def _warm_up(self) -> None:
        """Solve one tiny problem of each dtype, so that kernels are compiled before the first request."""
        points = np.linspace(0.0, 1.0, 16).reshape(8, 2)
        problems = [Problem(x=points.astype(d), y=points.astype(d) + 1, eps=1.0) for d in (np.float32, np.float64)]
        answers = [self._current.push(problem, math.inf) for problem in problems]

        def wait() -> None:
            start = time.perf_counter()
            for answer in answers:
                error = answer.exception()
                if error is not None:
                    self.failure = f"the first problem failed ({type(error).__name__}: {error})"
                    _log.error(self.failure)
                    return
            _log.info("kernels are ready after %.1f s", time.perf_counter() - start)
            self._ready.set()

        threading.Thread(target=wait, name="drainsinkhorn-serve-warm-up", daemon=True).start()


def _outcome_of(answer: Future[Result[Any]]) -> Ended:
    """Return how the problem of a finished future ended."""
    if answer.cancelled():
        return CancelledError()
    return answer.exception() or answer.result()
