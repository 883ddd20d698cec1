"""`stream`: yields results as problems end."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from typing import Any, Unpack

import numpy as np

from drainsinkhorn.core.events import Observer, ignore
from drainsinkhorn.core.options import Options, Settings
from drainsinkhorn.core.protocol import Backend
from drainsinkhorn.model.errors import FeedClosed, OutOfMemory
from drainsinkhorn.model.outcomes import Outcomes
from drainsinkhorn.model.result import Result
from drainsinkhorn.run.local import LocalRun
from drainsinkhorn.run.pairs import as_problems
from drainsinkhorn.run.session import Session
from drainsinkhorn.run.solve import DEFAULTS, solve


def stream(
    problems: Any,
    y: Any = None,
    *,
    eps: Any = None,
    a: Any = None,
    b: Any = None,
    cost: Any = "sqeuclidean",
    rho: Any = None,
    tol: float | None = None,
    init: str = "auto",
    backend: str | Backend[Any] = "auto",
    options: Options = DEFAULTS,
    observe: Observer = ignore,
    journal: str | os.PathLike[str] | None = None,
    progress: bool = False,
    **settings: Unpack[Settings],
) -> Stream:
    """Solve problems as they come and yield results as they end, in any order; `result.ticket` identifies the problem.

    Problems are read as lanes become vacant, at most `lookahead` ahead. If the iterable raises, the problems read so
    far are finished first, and then the exception is raised. Do not write to a problem's arrays before you have
    its result.

    Args:
        problems: Any iterable of Problem, or of pairs (x, y) of clouds; it may be endless. A Feed can be pushed to
            while the stream runs. Or points x, as for `solve`.
        y: Target points, if source points are passed.
        eps: The eps of pairs and points: a number, `relative`, `sharpness` or `falling`. None: `relative(0.05)`.
        a: Source weights, if points are passed.
        b: Target weights, if points are passed.
        cost: The cost of pairs and points.
        rho: The price of soft marginals of pairs and points, see `Problem`. None: both marginals are hard.
        tol: Bound on the larger L1 marginal residual, for problems that have none of their own.
        init: Where problems without a start of their own start: "auto", "gaussian" or "zero".
        backend: "auto", a name, or a Backend.
        options: All options at once; keywords below change single ones.
        observe: Called with every event of the run.
        journal: Path of a file in which finished problems are recorded, so that a killed run can be resumed.
        progress: Show a bar on stderr, if it is a terminal or a notebook.
        **settings: Fields of Options.

    Examples:
        >>> import numpy as np
        >>> clouds = (np.random.default_rng(i).normal(size=(8 + i, 2)) for i in range(5))
        >>> sorted(result.ticket for result in stream(((c, c + 1) for c in clouds), eps=1.0))
        [0, 1, 2, 3, 4]
    """
    options = options.with_settings(tol, settings, init)
    waiting = as_problems(problems, y, cost=cost, eps=eps, a=a, b=b, rho=rho)
    session = Session(waiting, None, backend, options, observe, journal, progress=progress)
    return Stream(LocalRun(session, waiting, solve))


class Stream(Iterator[Result[Any]]):
    """An iterator over results, as problems end.

    Attributes:
        ledger: The account of the run so far.
    """

    def __init__(self, run: LocalRun) -> None:
        self.ledger = run.session.ledger
        self._run, self._session, self._feed = run, run.session, run.session.feed
        self._drained = run.drain()
        # Outcomes that were drained together, and the place of the first one whose result was not returned yet.
        self._outcomes, self._place = Outcomes(), 0
        self._warned = False
        if self._feed is not None:
            # If the stream is garbage collected, the futures of the feed must raise instead of waiting for ever.
            weakref.finalize(self, self._feed.fail, FeedClosed("the stream is no longer read"))

    def __next__(self) -> Result[Any]:
        try:
            with np.errstate(all="ignore"):
                while self._place == len(self._outcomes):
                    self._outcomes, self._place = next(self._drained), 0
                result = self._session.result(self._outcomes[self._place])
                # An interrupt before this line returns no result, and the next call returns this one.
                self._place += 1
                self._session.forget(result.ticket)
        except MemoryError as error:
            raise self._fail_for_memory(error) from error
        except BaseException as error:
            if self._feed is not None:
                self._feed.fail(error if not isinstance(error, StopIteration) else FeedClosed("the stream has ended"))
            if isinstance(error, StopIteration) and not self._warned:
                self._warned = True
                self._session.warn(self._session.counts)
            raise
        if self._feed is not None:
            self._feed.settle(result)
        else:
            # Results of a feed are awaited one by one, each with its status, so they are not counted for the warning.
            self._session.counts[result.status] += 1
        return result

    def _fail_for_memory(self, error: MemoryError) -> OutOfMemory:
        """Return the error with all finished results that were not returned; a feed gets them as well."""
        short = self._run.out_of_memory(error, self._outcomes[self._place :])
        self._outcomes, self._place = Outcomes(), 0
        for result in short.results.values():
            self._session.forget(result.ticket)
            if self._feed is not None:
                self._feed.settle(result)
        if self._feed is not None:
            self._feed.fail(short)
        return short

    def close(self) -> None:
        """End the run: discard unfinished problems, and results that were not returned."""
        self._drained.close()
        self._outcomes, self._place = Outcomes(), 0
        self._session.close()
        if self._feed is not None:
            self._feed.fail(FeedClosed("the stream was closed"))
