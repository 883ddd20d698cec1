"""Pauses of Python's garbage collector while many objects are made that all stay alive."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Generator[None]:
    """Context in which the garbage collector does not run by itself; reference counts still free objects.

    Every few hundred new objects the collector would scan them, and at times every object of the process, although
    objects that were just made for a batch of problems cannot be garbage.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
