"""The kernel cache: compiled kernels on disk, in a folder for each version, state of the sources, and machine.

Numba recompiles a function only if its own file has changed. A kernel that calls kernels of other files would be loaded
with old versions of those. So the name of a folder contains a digest of all sources.

Processes share a folder by locks of the operating system, which end with the process that holds them. A process that
uses a folder holds IN_USE shared; a process that removes the folder must hold it exclusively. A process that compiles
holds COMPILING; others wait for it, then load its kernels. Its workers (`compile_worker`) hold SAVING while they save a
kernel. Without locks (Windows, some network file systems) no folder is removed, and processes that start together each
compile their own kernels.
"""

# pyright: basic, reportAttributeAccessIssue=false

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding
import numba
from numba import config, njit
from numba.core.caching import FunctionCache
from numba.misc.appdirs import AppDirs

from drainsinkhorn.model.errors import KernelCacheWarning

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_log = logging.getLogger("drainsinkhorn")

HERE = Path(__file__).parent
PREFIX = "drainsinkhorn-"
"""Prefix of the names of our folders; the cache may hold folders of other packages."""
IN_USE, COMPILING, SAVING = "in-use.lock", "compiling.lock", "saving.lock"
"""Files in each folder that processes lock."""
STALE = 14 * 86400.0
"""Seconds without use after which a folder is removed, if no process is using it."""
PATIENCE = 900.0
"""Seconds that a process waits for another's kernels before it compiles its own: many times what compilation takes."""
CLAIMS = 10
"""Attempts to make a folder that other processes may remove at the same time."""
POLL = 0.05
"""Seconds between two attempts to get a lock."""

_compiling: set[int] = set()
"""Descriptors through which this process holds COMPILING."""
_unsaved: list[str] = []
"""Why kernels of this process are not kept on disk."""


def kernel_compiler(**options: Any) -> Callable[[Any], Any]:
    """Return Numba's decorator: no GIL, division by zero as in NumPy, and kernels cached on disk if possible."""
    decorate = njit(nogil=True, error_model="numpy", **options)

    def keep(function: Any) -> Any:
        kernel, folder = decorate(function), kernel_folder(config.CACHE_DIR)
        if folder is not None:
            # Numba chooses the folder of a function when its cache is made.
            before, config.CACHE_DIR = config.CACHE_DIR, str(folder)
            try:
                kernel._cache = _Cache(function)
            except RuntimeError as error:
                _unsaved.append(str(error))
            finally:
                config.CACHE_DIR = before
        return kernel

    return keep


class _Cache(FunctionCache):
    """Numba's cache of one function; on a full or read-only disk the kernel is not saved, and no error is raised."""

    is_read = True
    """False in workers, which load no kernels: compiled code must not depend on what other processes have saved."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load a kernel from disk; None if there is none."""
        return super().load_overload(sig, target_context) if self.is_read else None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save a kernel, or note why it could not be saved."""
        try:
            # Numba numbers the saved kernels of a function. Two processes that save at once could take the same number,
            # and one kernel would be loaded in place of the other.
            with _saving(Path(self._impl.locator.get_cache_path()).parent / SAVING):
                super().save_overload(sig, data)
        except OSError as error:
            _unsaved.append(str(error))


@contextmanager
def _saving(path: Path) -> Iterator[None]:
    """A context for one process at a time, where there are locks."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if fcntl is not None:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def compiling(what: str) -> Iterator[bool]:
    """A context in which kernels are called, and so compiled or loaded; of several processes one compiles, others wait.

    Its value is true if this process has to compile kernels, false if it loads all of them from disk.

    Long compilation and waiting are logged. If kernels cannot be saved on disk, one KernelCacheWarning is issued.

    Args:
        what: Name of this set of kernels, for messages and for the file that marks the set as complete on disk.
    """
    folder = kernel_folder(config.CACHE_DIR)
    note = None if folder is None else folder / f"{what.replace(', ', '-')}.complete"
    with ExitStack() as stack:
        if note is not None and not note.exists():
            stack.enter_context(_one_process(note.with_name(COMPILING), note, what))
        # Another process may have compiled while this one waited; then kernels only have to be loaded.
        complete = note is not None and note.exists()
        if not complete:
            stack.enter_context(_announce_compilation(what, "process" if folder is None else "machine"))
        yield not complete
        if note is not None and not complete and not _unsaved:
            with suppress(OSError):
                note.touch()
    if _unsaved:
        _warn_unsaved()


@contextmanager
def _announce_compilation(what: str, whom: str) -> Iterator[None]:
    """Log after two seconds that kernels are being compiled, and whether for this process or this machine."""
    message = "compiling CPU kernels (%s), once for this %s, about 20 s"
    said = threading.Timer(2.0, _log.warning, [message, what, whom])
    said.daemon = True
    said.start()
    try:
        yield
    finally:
        said.cancel()


@cache
def _warn_unsaved() -> None:
    warnings.warn(
        f"compiled CPU kernels are not kept on disk, so every process compiles them anew, for about half a minute: "
        f"{_unsaved[0]}; set NUMBA_CACHE_DIR to a folder that can be written",
        KernelCacheWarning,
        stacklevel=2,
    )


@cache
def kernel_folder(chosen: str) -> Path | None:
    """Return the folder for kernels of these sources, held in use from now on; None if no folder is writable.

    It lies below the folder that the user chose for Numba, or beside the sources, or below the user's cache folder:
    the first of them that can be written.
    """
    parents = [HERE / "__pycache__", Path(AppDirs(appname="numba", appauthor=False).user_cache_dir)]
    if chosen:
        parents.insert(0, Path(chosen))
    for parent in parents:
        folder = parent / _folder_name()
        try:
            _claim(folder)
        except OSError:
            continue
        _remove_stale_folders(folder)
        return folder
    _unsaved.append("none of " + ", ".join(map(str, parents)) + " can be written")
    return None


def _folder_name() -> str:
    """Return a name that depends on all that decides which compiled kernels can be loaded."""
    version = sys.modules["drainsinkhorn"].__version__
    machine = (config.CPU_NAME or llvmlite.binding.get_host_cpu_name(), config.CPU_FEATURES, sys.version)
    facts = repr((version, numba.__version__, str(HERE), *machine))
    return f"{PREFIX}{version}-{fingerprint(kernel_sources(), facts)}"


def kernel_sources() -> list[Path]:
    """Return the files on which compiled kernels depend: this folder, and `numerics`, whose constants they contain."""
    return sorted([*HERE.glob("*.py"), *(HERE.parents[1] / "numerics").glob("*.py")])


def fingerprint(files: list[Path], facts: str = "") -> str:
    """Return a digest of the names and contents of files, and of further facts."""
    digest = hashlib.sha256(facts.encode())
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _claim(folder: Path) -> None:
    """Make a folder if it is missing and hold it in use until this process ends; raises OSError if not writable."""
    for _ in range(CLAIMS):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / IN_USE, os.O_RDWR | os.O_CREAT, 0o666)
        with suppress(OSError):
            _lock(descriptor, shared=True, patience=1.0)
        with suppress(FileNotFoundError):
            # Another process may have removed the folder before it was held.
            if os.path.samestat(os.fstat(descriptor), os.stat(folder / IN_USE)):
                os.utime(folder / IN_USE)
                return
        os.close(descriptor)


def _remove_stale_folders(own: Path) -> None:
    """Remove our other folders in the same cache that are stale (see STALE) and that no process is using."""
    for folder in own.parent.glob(f"{PREFIX}*"):
        if folder != own:
            with suppress(OSError):
                _remove_if_stale(folder)


def _remove_if_stale(folder: Path) -> None:
    if time.time() - (folder / IN_USE).stat().st_mtime < STALE:
        return
    removed = folder.with_name(f"{folder.name}-removed-{os.getpid()}")
    descriptor = os.open(folder / IN_USE, os.O_RDWR)
    try:
        if not _lock(descriptor):
            return
        # Renamed while it is locked: a process that needs the folder now makes a new one, which is not deleted.
        folder.rename(removed)
    finally:
        os.close(descriptor)
    shutil.rmtree(removed, ignore_errors=True)


@contextmanager
def _one_process(path: Path, note: Path, what: str) -> Iterator[None]:
    """A context for one process at a time until `note` exists; a process that waited for PATIENCE enters anyway."""
    descriptor = -1
    # If the folder was deleted, or there are no locks, this process does not wait.
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        _compiling.add(descriptor)
        if not _lock(descriptor):
            _log.warning("waiting for another process, which compiles CPU kernels (%s)", what)
            _lock(descriptor, patience=PATIENCE)
    if note.exists():
        _release(descriptor)
    try:
        yield
    finally:
        _release(descriptor)


def _lock(descriptor: int, *, shared: bool = False, patience: float = 0.0) -> bool:
    """Lock an open file; False if others held it for `patience` seconds. Raises OSError where there are no locks."""
    if fcntl is None:
        raise OSError("no locks on this system")
    kind = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, kind)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL)
        else:
            return True


def _release(descriptor: int) -> None:
    """Let others compile."""
    if descriptor in _compiling:
        _compiling.discard(descriptor)
        with suppress(OSError):
            if fcntl is not None:
                # A forked child shares the lock, so closing the file alone would not release it.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def _close_in_child() -> None:
    """Close inherited descriptors in a forked child, so that it does not keep the lock of a parent that dies."""
    while _compiling:
        os.close(_compiling.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
