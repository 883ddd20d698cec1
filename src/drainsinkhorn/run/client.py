"""A solver for concurrent callers inside one program: their problems share packs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any, Unpack
from weakref import WeakKeyDictionary

from drainsinkhorn.core.events import Observer, ignore
from drainsinkhorn.core.options import Options, Settings
from drainsinkhorn.core.protocol import Backend
from drainsinkhorn.model.errors import DeadlineError
from drainsinkhorn.model.result import Result
from drainsinkhorn.run.feed import Answer, Feed
from drainsinkhorn.run.pairs import make_problem
from drainsinkhorn.run.solve import DEFAULTS
from drainsinkhorn.run.stream import stream


class Client:
    """Takes problems from any number of threads and asyncio tasks and runs them through one stream.

    Args:
        tol: Bound on the larger L1 marginal residual, as for `stream`.
        init: The start of problems that name none, as for `stream`.
        backend: "auto", a name, or a Backend, as for `stream`.
        options: All options at once, as for `stream`.
        observe: Receives every event of the run, in the client's own thread.
        capacity: Largest number of problems that wait, and of unfinished requests of one event loop.
        patience: Seconds after which problems of another signature may no longer overtake a waiting problem.
        through: Function that solves the feed: `stream`, or the `stream` method of a fleet.
        **settings: Fields of Options.

    Examples:
        >>> import asyncio, numpy as np
        >>> async def main():
        ...     points = np.random.default_rng(0).normal(size=(3, 20, 2))
        ...     async with Client(tol=1e-3) as client:
        ...         return await asyncio.gather(*(client.solve(x, x + 1, eps=1.0) for x in points))
        >>> [result.status.name for result in asyncio.run(main())]
        ['CONVERGED', 'CONVERGED', 'CONVERGED']
    """

    def __init__(
        self,
        *,
        tol: float | None = None,
        init: str = "auto",
        backend: str | Backend[Any] = "auto",
        options: Options = DEFAULTS,
        observe: Observer = ignore,
        capacity: int = 1024,
        patience: float = 0.5,
        through: Callable[..., Iterator[Result[Any]]] = stream,
        **settings: Unpack[Settings],
    ) -> None:
        self._feed: Feed[Any] = Feed(capacity, patience=patience)
        self._capacity = capacity
        self._rooms: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
        # Opened in the caller's thread, so that invalid options raise here.
        run = through(self._feed, tol=tol, init=init, backend=backend, options=options, observe=observe, **settings)
        self._thread = threading.Thread(target=self._drain, args=(run,), name="drainsinkhorn-client", daemon=True)
        self._thread.start()

    def submit(
        self,
        problem: Any,
        y: Any = None,
        *,
        deadline: float | None = None,
        timeout: float | None = None,
        **fields: Any,
    ) -> Answer:
        """Hand in one problem from any thread and return its future; waits while the feed is full. See `Feed.push`.

        Args:
            problem: A Problem, or source points (n, d).
            y: Target points (m, d), if source points are passed.
            deadline: Seconds from now; None: no deadline.
            timeout: Seconds to wait for room; None: no limit.
            **fields: Other fields of the Problem, such as eps, a, b and cost, if points are passed.
        """
        return self._feed.push(make_problem(problem, y, **fields), deadline=deadline, timeout=timeout)

    async def solve(self, problem: Any, y: Any = None, *, deadline: float | None = None, **fields: Any) -> Result[Any]:
        """Solve one problem; many may be awaited at once. If the task is cancelled, the lane leaves at the next audit.

        Args:
            problem: A Problem, or source points (n, d).
            y: Target points (m, d), if source points are passed.
            deadline: Seconds from now, time in the queue included; then DeadlineError is raised. None: no deadline.
            **fields: Other fields of the Problem, such as eps, a, b and cost, if points are passed.
        """
        problem = make_problem(problem, y, **fields)
        loop = asyncio.get_running_loop()
        room, until = self._room(loop), None if deadline is None else loop.time() + deadline
        try:
            async with asyncio.timeout_at(until), room:
                remaining = None if until is None else max(1e-9, until - loop.time())
                answer = self._feed.push(problem, deadline=remaining, bounded=False)
                try:
                    return await asyncio.wrap_future(answer)
                except asyncio.CancelledError:
                    self._feed.give_up(answer)
                    raise
        except DeadlineError:
            raise
        except TimeoutError:
            if deadline is None:
                raise
            raise DeadlineError(f"there was no result before the deadline of {deadline:.3g} s", None) from None

    def _room(self, loop: asyncio.AbstractEventLoop) -> asyncio.Semaphore:
        if loop not in self._rooms:
            self._rooms[loop] = asyncio.Semaphore(self._capacity)
        return self._rooms[loop]

    def _drain(self, run: Iterator[Result[Any]]) -> None:
        try:
            for _ in run:
                # The feed has set the result of its future.
                pass
        except Exception:  # noqa: BLE001  every future raises it, and so does the next push
            return

    def close(self) -> None:
        """Accept no further problems, and return when those handed in are solved."""
        self._feed.close()
        self._thread.join()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._feed.close()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)
