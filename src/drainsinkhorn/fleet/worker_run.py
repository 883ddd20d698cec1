"""The work of a worker, local or on a cluster: one `stream` over its windows, whose results it sends in batches."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from drainsinkhorn.core.events import Advanced, Event
from drainsinkhorn.core.ledger import Ledger
from drainsinkhorn.core.options import Options
from drainsinkhorn.fleet import wire
from drainsinkhorn.model.errors import ProblemError
from drainsinkhorn.model.problem import Problem
from drainsinkhorn.run.feed import Tap
from drainsinkhorn.run.stream import stream

REPORT_EVERY = 0.25
"""Least time between two progress reports of a worker, in seconds."""
BATCH = 256
"""Largest number of results in one message."""
GATHER = 0.002
"""Time for which a result waits for others of the same audit, to be sent with them, in seconds."""
PATIENCE = 0.5
"""Seconds after which a problem may no longer be passed over by problems of another signature."""


class Message(NamedTuple):
    """A message from a worker.

    Kinds: ready, with its message format; results (facts of each, and the bytes of all); report, its progress;
    account, its ledger at the end; failed, with the reason; refused, an invalid problem under `strict`; and died, which
    the fleet adds for a worker that ended.
    """

    kind: str
    body: Any = None
    raw: Any = b""


class Assignment(NamedTuple):
    """How a worker solves its problems: options, backend, and number of threads."""

    options: Options
    backend: Any
    cores: int


class Windows(Tap[Any]):
    """Problems of a worker. They arrive in windows; there is one queue operation per window, none per problem.

    Attributes:
        tickets: The fleet's ticket of every problem that was read, in the order of reading.
    """

    def __init__(self) -> None:
        self.tickets: list[int] = []
        self._came: list[float] = []
        self._problems: deque[Problem[Any]] = deque()
        self._arrived: queue.SimpleQueue[tuple[float, wire.Parcel] | None] = queue.SimpleQueue()
        self._ended = False

    def push(self, parcel: wire.Parcel) -> None:
        """Take a window, from any thread."""
        self._arrived.put((time.monotonic(), parcel))

    def close(self) -> None:
        """Record that no further window comes."""
        self._arrived.put(None)

    def __next__(self) -> Problem[Any]:
        """The next problem; sleeps until there is one."""
        while not self._problems:
            if self._ended:
                raise StopIteration
            self._open(self._arrived.get())
        return self._problems.popleft()

    def ready(self) -> bool:
        """True if the next problem, or the end, is there already."""
        while not self._problems and not self._ended:
            try:
                self._open(self._arrived.get_nowait())
            except queue.Empty:
                return False
        return True

    def overdue(self, ticket: int) -> bool:
        """True if this problem has waited longer than PATIENCE, so that no other may overtake it."""
        return time.monotonic() > self._came[ticket] + PATIENCE

    def _open(self, window: tuple[float, wire.Parcel] | None) -> None:
        if window is None:
            self._ended = True
            return
        came, parcel = window
        self._problems.extend(wire.receive(parcel))
        self.tickets += parcel.tickets
        self._came += [came] * len(parcel.tickets)


class WorkerRun:
    """A stream in a thread of its own: `push` adds windows, `messages` yields its messages, `end` ends the windows."""

    def __init__(self, assignment: Assignment) -> None:
        self._windows = Windows()
        self.push, self.end = self._windows.push, self._windows.close
        self._outbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._ledger = Ledger()
        self._reported = 0.0
        threading.Thread(target=self._work, args=(assignment,), daemon=True).start()

    def messages(self) -> Iterator[Message]:
        """Yield messages as soon as there are any; results that arrive together are joined into one message."""
        results: list[Message] = []
        while True:
            message = self._outbox.get()
            if message is not None and message.kind == "results":
                if not results:
                    time.sleep(GATHER)
                results.append(message)
                if len(results) < BATCH and not self._outbox.empty():
                    continue
            if results:
                yield Message("results", [result.body for result in results], b"".join(r.raw for r in results))
                results = []
            if message is None:
                return
            if message.kind != "results":
                yield message

    def _work(self, assignment: Assignment) -> None:
        put = self._outbox.put
        try:
            backend = assignment.backend
            if getattr(backend, "threads", 1) is None:
                backend = replace(backend, threads=assignment.cores)
            run = stream(self._windows, options=assignment.options, backend=backend, observe=self._observe)
            self._ledger = run.ledger
            for result in run:
                put(Message("results", *wire.from_result(self._windows.tickets[result.ticket], result)))
            put(Message("account", {**run.ledger.account(), "tickets": self._windows.tickets}))
        except ProblemError as error:
            put(Message("refused", str(error)))
        except BaseException as error:  # noqa: BLE001  reported to the fleet, which continues with other workers
            put(Message("failed", f"{type(error).__name__}: {error}"))
        put(None)

    def _observe(self, event: Event) -> None:
        if isinstance(event, Advanced) and time.monotonic() > self._reported + REPORT_EVERY:
            self._reported = time.monotonic()
            ledger = self._ledger
            self._outbox.put(Message("report", {"live": event.live, "slots": ledger.slots, "legs": ledger.legs}))
