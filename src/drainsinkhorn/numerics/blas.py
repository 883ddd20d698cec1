"""One BLAS thread for small factorisations.

A threaded BLAS splits even the eigenvalues of a 50 x 50 matrix among its threads, which then wait for each other. If
other processes use the cores, that takes a hundred times as long as one thread alone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

_is_limited = threading.Lock()


@contextmanager
def single_thread() -> Iterator[None]:
    """Let the BLAS libraries of this process use one thread within this block.

    The limit belongs to the process. A thread that enters while another one is inside sets no limit of its own, since
    it would take the other's limit for the number to restore.

    Examples:
        >>> import numpy as np
        >>> with single_thread():
        ...     values = np.linalg.eigvalsh(np.eye(3))
    """
    if not _is_limited.acquire(blocking=False):
        yield
        return
    try:
        with _libraries().limit(limits=1):
            yield
    finally:
        _is_limited.release()


@cache
def _libraries() -> Any:
    """The BLAS libraries that this process has loaded, NumPy's among them. The search takes a millisecond: cached."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")
