"""Threads that share work: each takes the next piece that is left."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache


def default_threads() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@lru_cache(maxsize=8)
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Threads of this process: a fork has none of its parent's."""
    return ThreadPoolExecutor(threads, thread_name_prefix="drainsinkhorn")


def each(threads: int, work: Callable[[int], None], count: int) -> None:
    """Do `work(0) .. work(count - 1)`; kernels release the GIL, so that pieces run side by side."""
    helpers = min(threads, count) - 1
    tickets = itertools.count()

    def take() -> None:
        while (ticket := next(tickets)) < count:
            work(ticket)

    waiting = [_pool(threads, os.getpid()).submit(take) for _ in range(helpers)]
    try:
        take()
    finally:
        for future in waiting:
            future.result()
