"""Run one `stream` on many workers."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Iterator
from typing import Any, Unpack

from drainsinkhorn.core.audit import is_count
from drainsinkhorn.core.events import Observer, ignore
from drainsinkhorn.core.options import Options, Settings, is_positive
from drainsinkhorn.core.protocol import Backend
from drainsinkhorn.fleet.dispatch import Dispatch
from drainsinkhorn.fleet.pool import Pool
from drainsinkhorn.model.errors import FeedClosed, FleetError, OptionsError
from drainsinkhorn.model.result import Result
from drainsinkhorn.run.pairs import as_problems
from drainsinkhorn.run.session import Session
from drainsinkhorn.run.solution import Solution
from drainsinkhorn.run.solve import DEFAULTS


def check_counts(workers: int | None, cores: int) -> None:
    """Raise OptionsError unless there are at least one worker, or None for a default, and one core for each."""
    for name, value in (("workers", workers), ("cores", cores)):
        if not is_count(value) and not (name == "workers" and value is None):
            raise OptionsError(f"{name} must be an integer of at least 1, got {value!r}")


class Fleet:
    """Workers that solve the problems of one stream: processes (`LocalFleet`) or actors of Ray (`RayFleet`).

    Args:
        pool: The workers.
        hang: Seconds without a message after which a worker that has work, or is starting, is replaced.
        strikes: Number of workers lost while they had a problem alone, at which the problem is quarantined.
    """

    def __init__(self, pool: Pool, *, hang: float, strikes: int) -> None:
        if not is_positive(hang):
            raise OptionsError(f"hang is in seconds and must be positive, got {hang!r}")
        if not is_count(strikes):
            raise OptionsError(f"strikes must be an integer of at least 1, got {strikes!r}")
        self.pool = pool
        self._hang, self._strikes = hang, strikes
        # A stream without a reference to it is closed when it is collected.
        self._run: weakref.ref[FleetStream] | None = None
        self._closed = False

    def stream(
        self,
        problems: Any,
        y: Any = None,
        *,
        eps: Any = None,
        a: Any = None,
        b: Any = None,
        cost: Any = "sqeuclidean",
        tol: float | None = None,
        init: str = "auto",
        backend: str | Backend[Any] = "auto",
        options: Options = DEFAULTS,
        observe: Observer = ignore,
        journal: str | os.PathLike[str] | None = None,
        progress: bool = False,
        **settings: Unpack[Settings],
    ) -> FleetStream:
        """Solve problems as `drainsinkhorn.stream` does, with results equal to the bit, in another order.

        If a worker dies, its problems run again and no result is lost. Observers receive `Reported` from each worker,
        `Lost` when one is lost, and `Finished` for every problem. `lookahead` limits the problems that are read but
        not yet sent to a worker.
        """
        if self._closed:
            raise FleetError("this fleet is closed and its workers are gone; make another one")
        if self._under_way() is not None:
            # Perhaps it is forgotten, and waits for the collector.
            gc.collect()
        if self._under_way() is not None:
            raise FleetError("this fleet has a stream under way; read it to its end or close it, or use another fleet")
        options = options.with_settings(tol, settings, init)
        waiting = as_problems(problems, y, cost=cost, eps=eps, a=a, b=b)
        session = Session(waiting, None, backend, options, observe, journal, progress=progress)
        run = FleetStream(Dispatch(self.pool, session, hang=self._hang, strikes=self._strikes))
        self._run = weakref.ref(run)
        return run

    def solve(
        self,
        x: Any = None,
        y: Any = None,
        *,
        eps: Any = None,
        a: Any = None,
        b: Any = None,
        cost: Any = "sqeuclidean",
        chain: Any = None,
        batch: Any = None,
        rho: Any = None,
        **keywords: Any,
    ) -> Solution[Any]:
        """Solve many problems as `drainsinkhorn.solve` does, with results equal to the bit.

        Args:
            x: Problems, pairs of clouds, or points.
            y: Target points, if x holds source points.
            eps: As for `drainsinkhorn.solve`.
            a: Source weights; None: uniform.
            b: Target weights; None: uniform.
            cost: As for `drainsinkhorn.solve`.
            chain: As for `drainsinkhorn.solve`.
            batch: As for `drainsinkhorn.solve`.
            rho: As for `drainsinkhorn.solve`.
            **keywords: Keywords of `stream`.
        """
        waiting = list(as_problems(x, y, cost=cost, batch=batch, eps=eps, a=a, b=b, chain=chain, rho=rho))
        run = self.stream(waiting, **keywords)
        return Solution.from_results(run, run.ledger)

    def _under_way(self) -> FleetStream | None:
        """The stream that may still be read, or None."""
        run = None if self._run is None else self._run()
        return None if run is None or run.over else run

    def close(self) -> None:
        """End the workers."""
        if self._closed:
            return
        run = self._under_way()
        if run is not None:
            run.close()
        self._closed = True
        self.pool.close()

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FleetStream(Iterator[Result[Any]]):
    """Results in the order in which workers finish them.

    Attributes:
        ledger: The account of all workers, complete at the end. Work of workers that were lost is counted up to
            their last report.
        over: True if no further result follows.
    """

    def __init__(self, dispatch: Dispatch) -> None:
        self.ledger = dispatch.session.ledger
        self.over = False
        self._feed = dispatch.session.feed
        self._results = dispatch.results()
        self._session = dispatch.session

    def __next__(self) -> Result[Any]:
        try:
            return next(self._results)
        except BaseException as error:
            self.over = True
            if self._feed is not None:
                self._feed.fail(FeedClosed("the stream has ended") if isinstance(error, StopIteration) else error)
            raise

    def close(self) -> None:
        """Cancel unfinished problems."""
        self._give_up("the stream was closed")

    def __del__(self) -> None:
        if not self.over:
            self._give_up("nobody reads the stream any more")

    def _give_up(self, why: str) -> None:
        self.over = True
        self._results.close()
        self._session.close()
        if self._feed is not None:
            self._feed.fail(FeedClosed(why))
