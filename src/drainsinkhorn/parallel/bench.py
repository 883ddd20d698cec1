"""What a worker does, whichever way problems reach it: one `stream` over a feed, results back in batches."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from drainsinkhorn.api import stream
from drainsinkhorn.core.errors import ProblemError
from drainsinkhorn.core.events import Advanced, Event
from drainsinkhorn.core.feed import Feed
from drainsinkhorn.core.ledger import Ledger
from drainsinkhorn.core.options import Options
from drainsinkhorn.parallel import wire

REPORT_EVERY = 0.25
"""Seconds between two reports of a worker that is at work."""
BATCH = 256
"""Results that travel together at most."""


class Message(NamedTuple):
    """What a worker says.

    Kinds: ready; results (facts and bytes); report, where it stands; account, at the end; failed, and why; refused, a
    bad problem under `strict`; and died, which is said of it.
    """

    kind: str
    body: Any = None
    raw: Any = b""


class Assignment(NamedTuple):
    """How a worker runs what it is given."""

    options: Options
    backend: Any
    cores: int


class Bench:
    """A stream in a thread of its own. `push` feeds it, `messages` says what comes out, until `end`."""

    def __init__(self, assignment: Assignment) -> None:
        self._feed: Feed[Any] = Feed()
        self._tickets: list[int] = []
        # A ticket and its problem go in together, whoever else pushes.
        self._pushing = threading.Lock()
        self._outbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._ledger = Ledger()
        self._reported = 0.0
        threading.Thread(target=self._work, args=(assignment,), daemon=True).start()

    def push(self, parcel: wire.Parcel) -> None:
        """Take a window of problems."""
        with self._pushing:
            for ticket, problem in zip(parcel.tickets, wire.receive(parcel), strict=True):
                self._tickets.append(ticket)
                self._feed.push(problem, bounded=False)

    def end(self) -> None:
        """Nothing more comes."""
        self._feed.close()

    def messages(self) -> Iterator[Message]:
        """Everything that is to be said, as soon as it is known; results that are there together go together."""
        results: list[Any] = []
        while True:
            message = self._outbox.get()
            while message is not None and message.kind == "results":
                results.append(message)
                if len(results) == BATCH or self._outbox.empty():
                    break
                message = self._outbox.get()
            if results:
                yield Message("results", [r.body for r in results], [r.raw for r in results])
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
            run = stream(self._feed, options=assignment.options, backend=backend, observe=self._observe)
            self._ledger = run.ledger
            for result in run:
                put(Message("results", *wire.from_result(self._tickets[result.ticket], result)))
            put(Message("account", {**run.ledger.account(), "tickets": self._tickets}))
        except ProblemError as error:
            put(Message("refused", str(error)))
        except BaseException as error:  # noqa: BLE001  whatever it is, the fleet is told and goes on
            put(Message("failed", f"{type(error).__name__}: {error}"))
        put(None)

    def _observe(self, event: Event) -> None:
        if isinstance(event, Advanced) and time.monotonic() > self._reported + REPORT_EVERY:
            self._reported = time.monotonic()
            ledger = self._ledger
            self._outbox.put(Message("report", {"live": event.live, "slots": ledger.slots, "legs": ledger.legs}))
