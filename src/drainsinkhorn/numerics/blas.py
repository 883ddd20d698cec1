"""One BLAS thread for small factorisations.

A threaded BLAS splits even the eigenvalues of a 50 x 50 matrix among its threads, which then wait for each other. If
other processes use the cores, that takes a hundred times as long as one thread alone.
"""

from __future__ import annotations

import threading
from typing import Any


class SingleThread:
    """A context in which BLAS uses one thread. Contexts of several threads may overlap; the last one to end restores.

    Examples:
        >>> import numpy as np
        >>> with SINGLE_THREAD:
        ...     values = np.linalg.eigvalsh(np.eye(3))
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._depth = 0
        self._libraries: Any = None
        self._limit: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if self._libraries is None:
                from threadpoolctl import ThreadpoolController

                self._libraries = ThreadpoolController().select(user_api="blas")
            if self._depth == 0:
                self._limit = self._libraries.limit(limits=1)
            self._depth += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth == 0:
                self._limit.restore_original_limits()


SINGLE_THREAD = SingleThread()
"""The context of this process: the number of BLAS threads belongs to the process."""
