"""Where compiled kernels are kept: a folder for each state of the sources of all of them.

Numba asks only whether the file of a function has changed. A kernel that calls kernels of other files would be loaded
with what those were when it was compiled.
"""

# pyright: basic, reportAttributeAccessIssue=false

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from numba import config, njit

HERE = Path(__file__).parent


def compiled(**options: Any) -> Callable[[Any], Any]:
    """A decorator: Numba's, releasing the lock, with NumPy's errors, kept on disk."""
    decorate = njit(nogil=True, cache=True, error_model="numpy", **options)

    def keep(function: Any) -> Any:
        with _kept():
            return decorate(function)

    return keep


@contextmanager
def _kept() -> Iterator[None]:
    """Numba chooses the folder of a function where it is decorated."""
    before, config.CACHE_DIR = config.CACHE_DIR, _folder(config.CACHE_DIR)
    try:
        yield
    finally:
        config.CACHE_DIR = before


@cache
def _folder(chosen: str) -> str:
    """Below the folder that the user chose, or beside the sources; Numba's own choice where that cannot be written."""
    parent = Path(chosen) if chosen else HERE / "__pycache__"
    folder = parent / f"kernels-{fingerprint(sorted(HERE.glob('*.py')))}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return chosen
    if not os.access(folder, os.W_OK):
        return chosen
    for other in parent.glob("kernels-*"):
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)
    return str(folder)


def fingerprint(files: list[Path]) -> str:
    """The same for the same names and contents."""
    found = hashlib.sha256()
    for file in files:
        found.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return found.hexdigest()[:16]
