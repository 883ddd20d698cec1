"""One BLAS thread for small factorisations.

A threaded BLAS splits even the eigenvalues of a 50 x 50 matrix among its threads, which then wait for each other. If
other processes use the cores, that takes a hundred times as long as one thread alone.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import Any


def single_thread() -> AbstractContextManager[Any]:
    """Return a context in which the BLAS libraries of this process use one thread.

    The limit belongs to the process. If two threads enter at the same time, the second one has no effect.

    Examples:
        >>> import numpy as np
        >>> with single_thread():
        ...     values = np.linalg.eigvalsh(np.eye(3))
    """
    return _libraries().limit(limits=1)


@cache
def _libraries() -> Any:
    """The BLAS libraries of this process. The search takes a millisecond, so it is done once; NumPy's is loaded."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")
