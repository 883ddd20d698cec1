"""Compile Triton kernels before their first launch, several at once, in worker processes.

Triton itself compiles a kernel at its first launch, so kernels are compiled one after another. Here `rehearsal` records
which kernels will be launched, worker processes without a CUDA context (`compile_worker`) compile them into Triton's
cache on disk, and this process loads them from there. If workers cannot be started, or one fails, Triton compiles the
kernel at its first launch.
"""

# pyright: basic

from __future__ import annotations

import atexit
import heapq
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from triton.runtime import driver

from drainsinkhorn.backends.triton import compile_worker, launching
from drainsinkhorn.backends.triton.launching import pending
from drainsinkhorn.backends.triton.precision import interpreted

try:
    from triton import knobs
except ImportError:  # Triton before 3.3 does not say what it would compile.
    knobs: Any = None

_log = logging.getLogger("drainsinkhorn")

MOST_WORKERS = 16
"""Largest number of worker processes: a solve rarely has more kernels to compile at once."""
BEHIND = 0.25
"""Share of the cores for background compilation of kernels that no solve waits for; more would slow down the solve."""
IDLE = 10.0
"""Seconds after which an idle worker process ends. Until then it can compile kernels of further kinds of problems."""
QUIET = 2.0
"""Seconds of waiting for compilation after which a warning is logged."""


class KernelTask(NamedTuple):
    """A form of a kernel that is not in Triton's cache on disk.

    Attributes:
        key: The form, as `launching.form_key` has it.
        module: The module of the kernel.
        name: Its name.
        text: Types, constants and options, as Triton writes them for `JITFunction.preload`.
        target: The GPU: backend, architecture, threads of a warp.
        weight: Grows with the time that compilation takes.
    """

    key: Hashable
    module: str
    name: str
    text: str
    target: tuple[Any, ...]
    weight: int


_hook_lock = threading.Lock()


def collect_tasks(run: Callable[[], object]) -> list[KernelTask]:
    """Call `run` with launches recorded instead of executed; return the recorded kernels that have to be compiled."""
    launches: dict[Hashable, tuple[Any, Any, Any, Any]] = {}

    def note(kernel: Any, grid: Any, args: Any, constants: Any) -> None:
        launches.setdefault(launching.form_key(kernel, args, constants), (kernel, grid, args, constants))

    with launching.noted_by(note):
        run()
    target: Any = driver.active.get_current_target()
    tasks = []
    for key, (kernel, grid, args, constants) in launches.items():
        text = _specialisation(kernel, grid, args, constants) if key not in pending else None
        if text is not None and not _is_on_disk(kernel, text, target):
            weight = len(constants) + 100 * bool(constants.get("FUSED", 0))
            which = (target.backend, target.arch, target.warp_size)
            tasks.append(KernelTask(key, kernel.fn.__module__, kernel.fn.__name__, text, which, weight))
    return tasks


def _specialisation(kernel: Any, grid: Any, args: Any, constants: Any) -> str | None:
    """Return what Triton would compile for a launch; None if this process has compiled it, or Triton does not say."""
    caller, texts = threading.get_ident(), list[str]()
    if knobs is None:
        return None
    with _hook_lock:
        before = knobs.runtime.jit_cache_hook

        def take_text(**stated: Any) -> Any:
            if threading.get_ident() != caller:
                return before(**stated) if before is not None else None
            texts.append(stated["compile"]["specialization_data"])
            return True

        knobs.runtime.jit_cache_hook = take_text
        try:
            kernel.warmup(*args, grid=grid, **constants)
        finally:
            knobs.runtime.jit_cache_hook = before
    return texts[0] if texts else None


def _is_on_disk(kernel: Any, text: str, target: Any) -> bool:
    """Return whether a form is in Triton's cache on disk; False where this version of Triton does not say."""
    try:
        from triton.compiler import compiler

        backend = compiler.make_backend(target)
        source, options = compile_worker.read_specialisation(kernel, text, backend)
        key = compiler.get_cache_key(source, backend, options, compiler.get_cache_invalidating_env_vars())
        cache = compiler.get_cache_manager(compiler.hashlib.sha256(key.encode()).hexdigest())
        name = f"{source.name[:150]}.json"
        return (cache.get_group(name) or {}).get(name) is not None
    except (ImportError, AttributeError, TypeError):
        return False


def compile_tasks(tasks: Sequence[KernelTask], later: Sequence[KernelTask] = ()) -> None:
    """Compile `tasks` and wait for them; compile `later` in the background, so that only a launch waits for them."""
    futures = _workers.submit(tasks, urgency=1)
    _workers.submit(later, urgency=0)
    if tasks:
        with _announcement(len(tasks)):
            wait(futures, launching.PATIENCE)


def finish() -> None:
    """Wait for everything that workers are compiling."""
    wait(list(pending.values()), launching.PATIENCE)


def cache_folder() -> Path | None:
    """Return Triton's cache on disk; None in Triton's interpreter, and for versions that do not say."""
    return None if knobs is None or interpreted() else Path(knobs.cache.dir)


@contextmanager
def _announcement(count: int) -> Iterator[None]:
    """Log that kernels are being compiled if that takes more than QUIET seconds."""
    said = threading.Timer(QUIET, _log.warning, ["compiling %d GPU kernels, once for this machine", count])
    said.daemon = True
    said.start()
    try:
        yield
    finally:
        said.cancel()


class _Workers:
    """Processes that compile tasks, each served by a thread. They end when there was nothing to do for IDLE seconds."""

    def __init__(self) -> None:
        self._tasks: list[tuple[int, int, int, KernelTask]] = []
        self._changed = threading.Condition()
        self._running = self._idle = self._submitted = self._behind = 0

    def submit(self, tasks: Sequence[KernelTask], *, urgency: int) -> list[Future[bool]]:
        """Start to compile tasks, those of lower urgency later; each future says whether that succeeded."""
        with self._changed:
            for task in tasks:
                if task.key not in pending:
                    pending[task.key] = Future()
                    self._submitted += 1
                    heapq.heappush(self._tasks, (-urgency, -task.weight, self._submitted, task))
            futures = [pending[task.key] for task in tasks]
            urgent = sum(entry[0] < 0 for entry in self._tasks)
            useful = urgent + min(len(self._tasks) - urgent, _most_behind())
            new_workers = max(0, min(useful - self._idle, min(_cores(), MOST_WORKERS) - self._running))
            self._running += new_workers
            self._changed.notify_all()
        for _ in range(new_workers):
            threading.Thread(target=self._work, name="drainsinkhorn-compiles", daemon=True).start()
        return futures

    def _next(self) -> tuple[KernelTask, bool] | None:
        """Wait for a task, and return it and whether it is urgent; None if there was none for some time."""
        with self._changed:
            self._idle += 1
            taken = self._changed.wait_for(self._take, IDLE)
            self._idle -= 1
            return taken or None

    def _take(self) -> tuple[KernelTask, bool] | None:
        """Take the most urgent task that may begin now. A launch has cancelled those that it compiles itself."""
        while self._tasks and (self._tasks[0][0] < 0 or self._behind < _most_behind()):
            urgency, *_, task = heapq.heappop(self._tasks)
            if pending[task.key].set_running_or_notify_cancel():
                self._behind += urgency == 0
                return task, urgency < 0
            pending.pop(task.key)
        return None

    def _work(self) -> None:
        """Start a process and give it tasks until there are none, or until it fails."""
        task: KernelTask | None = None
        is_urgent, process = True, None
        try:
            process = _start()
            while (found := self._next()) is not None:
                task, is_urgent = found
                process.stdin.write(json.dumps(task[1:5]) + "\n")
                process.stdin.flush()
                answer = process.stdout.readline().strip()
                if not answer:
                    break
                _settle(task, succeeded=answer == compile_worker.DONE)
                task = None
                self._finish(is_urgent)
        except (OSError, ValueError) as error:
            _log.debug("a process that compiles kernels failed: %r", error)
        finally:
            if task is not None:
                self._finish(is_urgent)
            with self._changed:
                self._running -= 1
                # The last one to leave settles what nobody compiles.
                abandoned = [entry[-1] for entry in self._tasks] if self._running == 0 else []
                if abandoned:
                    self._tasks.clear()
            if task is not None:
                _settle(task, succeeded=False)
            for one in abandoned:
                if pending[one.key].set_running_or_notify_cancel():
                    _settle(one, succeeded=False)
                else:
                    pending.pop(one.key)
            if process is not None:
                _stop(process)

    def _finish(self, is_urgent: bool) -> None:
        """Let another task begin that no solve waits for."""
        with self._changed:
            self._behind -= not is_urgent
            self._changed.notify_all()


_workers = _Workers()


def _most_behind() -> int:
    """Return the number of tasks that may run at once while no solve waits for them."""
    return max(1, int(BEHIND * min(_cores(), MOST_WORKERS)))


def _settle(task: KernelTask, *, succeeded: bool) -> None:
    """Say that a task is no longer pending."""
    future = pending.pop(task.key, None)
    if future is not None:
        future.set_result(succeeded)


_processes: set[Any] = set()


def _start() -> Any:
    """Start a worker with the environment, the search path and the cache of this process."""
    known = dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path))
    if knobs is not None:
        known["TRITON_CACHE_DIR"] = str(knobs.cache.dir)
    process = subprocess.Popen(
        [sys.executable, "-P", compile_worker.__file__],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=known,
    )  # fmt: skip
    _processes.add(process)
    return process


def _stop(process: Any) -> None:
    """Let a worker end, which has nothing left to do or has failed."""
    with suppress(OSError):
        process.stdin.close()
    process.stdout.close()
    process.wait()
    _processes.discard(process)


def _cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@atexit.register
def _terminate() -> None:
    for process in list(_processes):
        with suppress(OSError):
            process.kill()


def _forget_in_child() -> None:
    """Forget what a parent is compiling: its threads are not in a forked child."""
    global _workers
    _workers = _Workers()
    pending.clear()
    _processes.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
