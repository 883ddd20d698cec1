"""Sources to which any thread may push problems while `stream` runs; each problem has a future."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Container, Iterator
from concurrent.futures import Future, InvalidStateError
from typing import Any, Generic, Self

from drainsinkhorn.core.audit import is_count
from drainsinkhorn.model.errors import DeadlineError, FeedClosed, FeedFull, OptionsError
from drainsinkhorn.model.problem import A, Problem
from drainsinkhorn.model.result import Result
from drainsinkhorn.model.status import Status

Clock = Callable[[], float]
PRUNING = 0.05
"""Least time between two searches of the queue for problems that need not be solved any more, in seconds."""


class Answer(Future[Result[Any]]):
    """The future of one pushed problem.

    Args:
        problem: The problem; None once the stream has read it.
        since: Time at which it was pushed, in seconds of the clock.
        until: Its deadline, in seconds of the clock; inf: none.
        clock: Returns the time in seconds.
    """

    def __init__(self, problem: Problem[Any], since: float, until: float, clock: Clock) -> None:
        super().__init__()
        self.problem: Problem[Any] | None = problem
        self.since = since
        self.until = until
        self._clock = clock

    @property
    def unwanted(self) -> bool:
        """True if the deadline has come, or the caller has cancelled."""
        return self.until <= self._clock() or self.cancelled()

    def result(self, timeout: float | None = None) -> Result[Any]:
        """Return the Result; waits for it until `timeout` seconds have passed, or until the deadline."""
        remaining = self.until - self._clock()
        if remaining == math.inf or (timeout is not None and timeout < remaining):
            return super().result(timeout)
        try:
            return super().result(max(0.0, remaining))
        except DeadlineError:
            raise
        except TimeoutError:
            raise self.deadline_error() from None

    def fail(self, error: BaseException) -> None:
        """Set this exception unless the future is done; its owner may cancel it at any moment."""
        with contextlib.suppress(InvalidStateError):
            self.set_exception(error)

    def deadline_error(self) -> DeadlineError:
        """Return the error to raise if the deadline has come and there is no result."""
        return DeadlineError(
            f"there was no result before the deadline; pushed {self._clock() - self.since:.3g} s ago", None
        )


class Tap(Iterator[Problem[A]], Generic[A]):
    """Problems that arrive while one `stream` reads them: the interface between the source and the stream."""

    _claimed = False

    def claim(self) -> Self:
        """Return the tap to the one stream that reads it; raises OptionsError if another stream has claimed it."""
        if self._claimed:
            raise OptionsError(f"another stream reads this {type(self).__name__}; make a new one")
        self._claimed = True
        return self

    @abstractmethod
    def ready(self) -> bool:
        """True if the next problem, or the end, is there already."""

    @abstractmethod
    def overdue(self, ticket: int) -> bool:
        """True if this problem has waited so long that no other may overtake it."""

    @property
    def expired(self) -> Container[int]:
        """Tickets whose deadline has come."""
        return ()

    def settle(self, result: Result[Any]) -> None:
        """Receive a result of the stream; every result is passed once."""

    def fail(self, error: BaseException) -> None:
        """Receive the exception that ended the stream; at its regular end that is FeedClosed."""


class Feed(Tap[A]):
    """Problems from many threads for one `stream`.

    `stream` takes waiting problems whenever there are vacancies, never waits while lanes are live, and sleeps when
    there are no problems. So problems of concurrent callers share packs.

    Args:
        capacity: Largest number of problems that wait to be read; `push` waits while there are that many.
        patience: Seconds after which problems of another signature may no longer overtake a waiting problem.
        clock: Function that returns the time in seconds; deadlines and patience are measured by it.
    """

    def __init__(self, capacity: int = 1024, *, patience: float = 0.5, clock: Clock = time.monotonic) -> None:
        if not is_count(capacity):
            raise OptionsError(f"capacity must be an integer of at least 1, got {capacity!r}")
        if not patience >= 0:
            raise OptionsError(f"patience is in seconds and must not be negative, got {patience!r}")
        self._capacity = capacity
        self._patience = patience
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting: deque[Answer] = deque()
        self._flight: dict[int, Answer] = {}
        self._read = 0
        self._pruned = -math.inf
        # Whether any problem pushed so far has a deadline or was cancelled.
        self.has_deadlines = False
        self._closed: Exception | None = None

    def push(
        self,
        problem: Problem[A],
        *,
        deadline: float | None = None,
        timeout: float | None = None,
        bounded: bool = True,
    ) -> Answer:
        """Hand in a problem and return its future, which raises DeadlineError if the deadline passes without a result.

        Args:
            problem: The problem. If it is not valid, its Result has the status INVALID.
            deadline: Seconds from now. A problem that still waits then is not run; one in a lane leaves at the next
                audit. None: no deadline.
            timeout: Seconds to wait for room; then FeedFull is raised. None: no limit.
            bounded: False ignores the capacity, for callers that bound their number of problems themselves.
        """
        if deadline is not None and not deadline > 0:
            raise OptionsError(f"deadline is in seconds from now and must be positive, got {deadline!r}")
        since = self._clock()
        answer = Answer(problem, since, math.inf if deadline is None else since + deadline, self._clock)
        with self._changed:
            room = self._changed.wait_for(lambda: self._closed or not bounded or self._has_room(), timeout)
            if self._closed is not None:
                raise FeedClosed(f"the feed accepts no further problems: {self._closed}")
            if not room:
                raise FeedFull(
                    f"{self._capacity} problems wait and none was read within {timeout} s; push less, or later"
                )
            self.has_deadlines = self.has_deadlines or deadline is not None
            self._waiting.append(answer)
            self._changed.notify_all()
        return answer

    def give_up(self, answer: Answer) -> None:
        """Cancel a problem: if it waits it is not run, if it is in a lane the lane leaves at the next audit."""
        self.has_deadlines, answer.until = True, -math.inf
        answer.cancel()

    def close(self) -> None:
        """Accept no further problems: the stream ends when it has answered those that were pushed."""
        with self._changed:
            self._closed = self._closed or FeedClosed("the feed was closed")
            self._changed.notify_all()

    def __enter__(self) -> Feed[A]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        """Number of problems that wait to be read."""
        return len(self._waiting)

    def __next__(self) -> Problem[A]:
        """Return the next problem that is neither cancelled nor past its deadline; sleeps until there is one."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    raise StopIteration
                answer = self._waiting.popleft()
                self._changed.notify_all()
                if not self._drop_if_unwanted(answer) and answer.set_running_or_notify_cancel():
                    break
            self._flight[self._read] = answer
            self._read += 1
            problem, answer.problem = answer.problem, None
            assert problem is not None
            return problem

    def ready(self) -> bool:
        """True if the next problem, or the end, is there already."""
        with self._changed:
            if self._clock() > self._pruned + PRUNING:
                self._prune()
            while self._waiting and self._drop_if_unwanted(self._waiting[0]):
                self._waiting.popleft()
            return bool(self._waiting) or self._closed is not None

    def overdue(self, ticket: int) -> bool:
        """True if this problem has waited so long that no other may overtake it."""
        answer = self._flight.get(ticket)
        return answer is not None and self._clock() > answer.since + self._patience

    @property
    def expired(self) -> Container[int]:
        """Tickets whose deadline has come."""
        return _Expired(self)

    def is_expired(self, ticket: Any) -> bool:
        """Whether the deadline of a problem under way has come."""
        answer = self._flight.get(ticket)
        return answer is not None and answer.until <= self._clock()

    def settle(self, result: Result[Any]) -> None:
        """Set the future of the problem to its result."""
        answer = self._flight.pop(result.ticket, None)
        if answer is None or answer.done():
            return
        if result.status is Status.EXPIRED:
            answer.set_exception(DeadlineError(f"problem {result.ticket}: {result.message}", result))
        else:
            answer.set_result(result)

    def fail(self, error: BaseException) -> None:
        """Fail all problems without an answer with this error, because the stream has ended."""
        with self._changed:
            self._closed = self._closed or FeedClosed(f"the stream has ended ({type(error).__name__}: {error})")
            unanswered = [*self._flight.values(), *self._waiting]
            self._flight.clear()
            self._waiting.clear()
            self._changed.notify_all()
        for answer in unanswered:
            answer.fail(error)

    def _has_room(self) -> bool:
        if len(self._waiting) >= self._capacity:
            self._prune()
        return len(self._waiting) < self._capacity

    def _prune(self) -> None:
        """Remove problems from the queue that were cancelled or whose deadline has come."""
        self._pruned = self._clock()
        before, self._waiting = self._waiting, deque(answer for answer in self._waiting if not answer.unwanted)
        if len(before) > len(self._waiting):
            self._changed.notify_all()
            for answer in before:
                self._drop_if_unwanted(answer)

    def _drop_if_unwanted(self, answer: Answer) -> bool:
        """Fail the future of a problem whose deadline has come; return True if the future is done."""
        if answer.unwanted:
            answer.fail(answer.deadline_error())
        return answer.done()


class _Expired(Container[int]):
    """Tickets whose deadline has come. The clock is read on every lookup: once per live lane and audit."""

    def __init__(self, feed: Feed[Any]) -> None:
        self._feed = feed

    def __contains__(self, ticket: object) -> bool:
        return self._feed.has_deadlines and self._feed.is_expired(ticket)
