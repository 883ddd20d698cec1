"""Counts of requests and problems, in the text format of Prometheus."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily

from drainsinkhorn.model.errors import DeadlineError
from drainsinkhorn.model.result import Result
from drainsinkhorn.model.status import Status

if TYPE_CHECKING:
    from drainsinkhorn.serve.engine import Ended, Engine

CONTENT = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)
DEPTHS = tuple(2**power for power in range(3, 15))


class Metrics:
    """What a service counts. Counters may be changed in any thread."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        registry = self._registry
        self.requests = Counter("drain_requests", "Requests answered, by HTTP status", ["status"], registry=registry)
        self.problems = Counter("drain_problems", "Problems that ended, by status", ["status"], registry=registry)
        self.open = Gauge("drain_requests_open", "Requests that are not answered yet", registry=registry)
        self.seconds = Histogram(
            "drain_request_seconds", "Seconds from the head of a request to its answer", buckets=SECONDS,
            registry=registry,
        )  # fmt: skip
        self.depths = Histogram("drain_depth", "Cycles of problems that ran", buckets=DEPTHS, registry=registry)
        for status in Status:
            self.problems.labels(status.name)

    def watch(self, engine: Engine) -> None:
        """Report the queue and the slots of an engine too, as they are when metrics are read."""
        waiting = Gauge("drain_problems_waiting", "Problems that wait in the queue", registry=self._registry)
        waiting.set_function(lambda: engine.waiting)
        running = Gauge("drain_problems_running", "Problems that run or were read ahead", registry=self._registry)
        running.set_function(lambda: max(0, engine.unfinished - engine.waiting))
        ready = Gauge("drain_ready", "1 if kernels are compiled", registry=self._registry)
        ready.set_function(lambda: float(engine.is_ready))
        self._registry.register(_Slots(engine))

    def note_end(self, ended: Ended) -> None:
        """Count one problem that has ended, with its result or exception."""
        if isinstance(ended, DeadlineError):
            result = ended.result if isinstance(ended.result, Result) else None
            status = Status.EXPIRED.name
        else:
            result = ended if isinstance(ended, Result) else None
            status = "CANCELLED" if isinstance(ended, CancelledError) else "FAILED"
        if isinstance(result, Result):
            status = result.status.name
            self.depths.observe(result.depth)
        self.problems.labels(status).inc()

    @contextmanager
    def request(self) -> Iterator[list[int]]:
        """Measure one request; the status is appended to the list that this yields."""
        start, statuses = time.perf_counter(), list[int]()
        self.open.inc()
        try:
            yield statuses
        finally:
            self.open.dec()
            self.requests.labels(str(statuses[0] if statuses else 500)).inc()
            self.seconds.observe(time.perf_counter() - start)

    def text(self) -> bytes:
        """Return all metrics in the text format."""
        return generate_latest(self._registry)


class _Slots:
    """The slots of an engine, as a counter."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[CounterMetricFamily]:
        yield CounterMetricFamily("drain_slots", "Lanes times cycles that kernels executed", self._engine.slots)
