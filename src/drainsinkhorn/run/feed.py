"""A source that any thread may push problems to while `stream` runs, each with a future of its own."""

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
"""Seconds between two looks at everything that waits."""


class Answer(Future[Result[Any]]):
    """The future of one pushed problem."""

    def __init__(self, problem: Problem[Any], since: float, until: float, clock: Clock) -> None:
        super().__init__()
        self.problem: Problem[Any] | None = problem
        self.since = since
        self.until = until
        self._clock = clock

    @property
    def unwanted(self) -> bool:
        """True if its deadline has come, or nobody waits for it."""
        return self.until <= self._clock() or self.cancelled()

    def result(self, timeout: float | None = None) -> Result[Any]:
        """The Result; waits for it, but not past its deadline."""
        left = self.until - self._clock()
        if left == math.inf or (timeout is not None and timeout < left):
            return super().result(timeout)
        try:
            return super().result(max(0.0, left))
        except DeadlineError:
            raise
        except TimeoutError:
            raise self.too_late() from None

    def fail(self, error: BaseException) -> None:
        """Raise this for whoever waits, unless there is an answer already; its owner may cancel it at any moment."""
        with contextlib.suppress(InvalidStateError):
            self.set_exception(error)

    def too_late(self) -> DeadlineError:
        """What to raise when the deadline has come and there is no result."""
        return DeadlineError(f"the deadline came first; it was handed in {self._clock() - self.since:.3g} s ago", None)


class Tap(Iterator[Problem[A]], Generic[A]):
    """Problems that come while one `stream` reads them: what the stream asks of them, and tells them."""

    _claimed = False

    def claim(self) -> Self:
        """The tap itself, for the one stream that reads it."""
        if self._claimed:
            raise OptionsError(f"a {type(self).__name__} is for one stream; make another")
        self._claimed = True
        return self

    @abstractmethod
    def ready(self) -> bool:
        """True if the next problem, or the end, is there already."""

    @abstractmethod
    def overdue(self, ticket: int) -> bool:
        """True if this problem has waited so long that others may not pass it over."""

    @property
    def expired(self) -> Container[int]:
        """Tickets whose deadline has come."""
        return ()

    def settle(self, result: Result[Any]) -> None:
        """Told every result."""

    def fail(self, error: BaseException) -> None:
        """Told that the stream is over."""


class Feed(Tap[A]):
    """Problems from many threads for one `stream`.

    `stream` takes what is there whenever lanes fall vacant, never waits while lanes are live, and sleeps when there is
    nothing to do. So problems of concurrent callers share packs.

    Args:
        capacity: Problems that may wait to be read; `push` waits while there are so many.
        patience: Seconds after which a waiting problem may no longer be passed over by problems of another signature.
        clock: Seconds.
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
        # Whether anything pushed so far may expire.
        self.hurried = False
        self._closed: Exception | None = None

    def push(
        self,
        problem: Problem[A],
        *,
        deadline: float | None = None,
        timeout: float | None = None,
        bounded: bool = True,
    ) -> Answer:
        """Hand in a problem. The future's result is its Result; it raises DeadlineError if the deadline came first.

        Args:
            problem: The problem; bad ones get a Result that says INVALID, like everywhere.
            deadline: Seconds from now. A problem that still waits then is not run; one in a lane leaves at the next
                audit. None: no deadline.
            timeout: Seconds to wait for room; then FeedFull is raised. None: as long as it takes.
            bounded: False goes past the capacity, for callers that bound themselves.
        """
        if deadline is not None and not deadline > 0:
            raise OptionsError(f"deadline is in seconds from now and must be positive, got {deadline!r}")
        since = self._clock()
        answer = Answer(problem, since, math.inf if deadline is None else since + deadline, self._clock)
        with self._changed:
            room = self._changed.wait_for(lambda: self._closed or not bounded or self._has_room(), timeout)
            if self._closed is not None:
                raise FeedClosed(f"nothing can be pushed any more: {self._closed}")
            if not room:
                raise FeedFull(
                    f"{self._capacity} problems wait and none was read within {timeout} s; push less, or later"
                )
            self.hurried = self.hurried or deadline is not None
            self._waiting.append(answer)
            self._changed.notify_all()
        return answer

    def give_up(self, answer: Answer) -> None:
        """Nobody wants this one any more: it is not run, or its lane leaves at the next audit."""
        self.hurried, answer.until = True, -math.inf
        answer.cancel()

    def close(self) -> None:
        """Nothing more comes: the stream ends when it has answered what was pushed."""
        with self._changed:
            self._closed = self._closed or FeedClosed("the feed was closed")
            self._changed.notify_all()

    def __enter__(self) -> Feed[A]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        """Problems that wait to be read."""
        return len(self._waiting)

    def __next__(self) -> Problem[A]:
        """The next problem that somebody still wants; sleeps until there is one."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    raise StopIteration
                answer = self._waiting.popleft()
                self._changed.notify_all()
                if not self._dropped(answer) and answer.set_running_or_notify_cancel():
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
            while self._waiting and self._dropped(self._waiting[0]):
                self._waiting.popleft()
            return bool(self._waiting) or self._closed is not None

    def overdue(self, ticket: int) -> bool:
        """True if this problem has waited so long that others may not pass it over."""
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
        """Answer the problem of a result."""
        answer = self._flight.pop(result.ticket, None)
        if answer is None or answer.done():
            return
        if result.status is Status.EXPIRED:
            answer.set_exception(DeadlineError(f"problem {result.ticket}: {result.message}", result))
        else:
            answer.set_result(result)

    def fail(self, error: BaseException) -> None:
        """The stream is over: whatever has no answer gets this one."""
        with self._changed:
            self._closed = self._closed or FeedClosed(f"the stream has ended ({type(error).__name__}: {error})")
            left = [*self._flight.values(), *self._waiting]
            self._flight.clear()
            self._waiting.clear()
            self._changed.notify_all()
        for answer in left:
            answer.fail(error)

    def _has_room(self) -> bool:
        if len(self._waiting) >= self._capacity:
            self._prune()
        return len(self._waiting) < self._capacity

    def _prune(self) -> None:
        """Forget what waits and nobody wants any more."""
        self._pruned = self._clock()
        whole, self._waiting = self._waiting, deque(answer for answer in self._waiting if not answer.unwanted)
        if len(whole) > len(self._waiting):
            self._changed.notify_all()
            for answer in whole:
                self._dropped(answer)

    def _dropped(self, answer: Answer) -> bool:
        """Whether nobody wants it any more; then it is told so."""
        if answer.unwanted:
            answer.fail(answer.too_late())
        return answer.done()


class _Expired(Container[int]):
    """Tickets under way whose deadline has come, looked up when asked: once for every live lane at every audit."""

    def __init__(self, feed: Feed[Any]) -> None:
        self._feed = feed

    def __contains__(self, ticket: object) -> bool:
        return self._feed.hurried and self._feed.is_expired(ticket)
