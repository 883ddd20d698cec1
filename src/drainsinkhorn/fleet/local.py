"""A fleet of processes on this machine."""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from drainsinkhorn.fleet import wire
from drainsinkhorn.fleet.fleet import Fleet, check_counts
from drainsinkhorn.fleet.worker import HEADER, frame, sizes, unframe
from drainsinkhorn.fleet.worker_run import Assignment, Message
from drainsinkhorn.model.errors import FleetError, OptionsError

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
SEND_SECONDS = 30.0
"""Longest time in seconds for which a worker may take nothing of what is sent to it, unless `hang` is shorter."""
CHUNK = 2**20


def cores_here() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LocalFleet(Fleet):
    """Processes on this machine, one per group of cores or one per GPU.

    Problems travel through anonymous shared memory, which the system frees when the last process that maps it ends,
    even if that process is killed.

    Args:
        workers: Number of workers; None: as many groups of `cores` as there are cores, or one per device.
        cores: Number of threads of each worker.
        devices: One GPU for each worker, by number or by CUDA's name for it.
        hang: Seconds without a message after which a worker that has work, or is starting, is replaced.
        strikes: Number of workers lost while they had a problem alone, at which the problem is quarantined.

    Examples:
        >>> import numpy as np
        >>> import drainsinkhorn as ds
        >>> clouds = [np.random.default_rng(i).normal(size=(8 + i, 2)) for i in range(5)]
        >>> with LocalFleet(workers=1) as fleet:
        ...     results = list(fleet.stream(ds.Problem(x=c, y=c + 1, eps=1.0) for c in clouds))
        >>> sorted(result.ticket for result in results)
        [0, 1, 2, 3, 4]
    """

    def __init__(
        self,
        workers: int | None = None,
        *,
        cores: int = 1,
        devices: Sequence[int | str] | None = None,
        hang: float = 300.0,
        strikes: int = 3,
    ) -> None:
        if not hasattr(socket, "send_fds"):
            raise FleetError("LocalFleet needs Unix sockets, which this system has not; use RayFleet")
        check_counts(workers, cores)
        if devices is not None and (not devices or (workers or len(devices)) != len(devices)):
            raise OptionsError(f"devices names one GPU for each worker, got {devices!r} for workers={workers}")
        count = workers or (len(devices) if devices else max(1, cores_here() // cores))
        super().__init__(LocalPool(count, cores, devices, min(hang, SEND_SECONDS)), hang=hang, strikes=strikes)


@dataclass
class _Process:
    """A worker process, the fleet's end of its socket, and the bytes that have arrived of its next message."""

    process: subprocess.Popen[bytes]
    connection: socket.socket
    arrived: bytearray = field(default_factory=bytearray)


class LocalPool:
    """Worker processes, each connected by a socket pair of its own.

    Args:
        size: Number of workers.
        cores: Threads of each worker.
        devices: GPUs, one per worker; None: all workers see all of them.
        send_seconds: Seconds after which a worker that takes nothing of what is sent to it counts as dead.
    """

    def __init__(self, size: int, cores: int, devices: Sequence[int | str] | None, send_seconds: float) -> None:
        self.size = size
        self.cores = cores
        self._devices = devices
        self._send_seconds = send_seconds
        self._processes: dict[int, _Process] = {}
        self._selector = selectors.DefaultSelector()
        self._chunk = bytearray(CHUNK)
        # Messages about workers that ended, noticed while something was sent to them.
        self._noticed: list[tuple[int, Message]] = []

    def pid(self, worker: int) -> int:
        """The process id of a worker."""
        return self._processes[worker].process.pid

    def start(self, worker: int, assignment: Assignment) -> None:
        """Start the process, or use the one that lives, and send the assignment."""
        if worker not in self._processes:
            self._processes[worker] = self._open(worker)
        try:
            settings = pickle.dumps(assignment)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise OptionsError(f"options and backend must be picklable to reach another process: {error}") from None
        path = [entry or os.getcwd() for entry in sys.path]
        self._write(worker, frame("begin", path, settings))

    def _open(self, worker: int) -> _Process:
        ours, theirs = socket.socketpair()
        env = os.environ | dict.fromkeys(THREADS, str(self.cores))
        # A worker solves in a thread. Memory that is freed in a thread's own arena, glibc gives back to the system page
        # by page; so all threads share one arena.
        env.setdefault("MALLOC_ARENA_MAX", "1")
        env["PYTHONPATH"] = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        if self._devices is not None:
            env["CUDA_VISIBLE_DEVICES"] = str(self._devices[worker])
        command = [sys.executable, "-c", "from drainsinkhorn.fleet.worker import main; main()", str(theirs.fileno())]
        with theirs:
            process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=env, stdin=subprocess.DEVNULL)
        ours.settimeout(self._send_seconds)
        self._selector.register(ours, selectors.EVENT_READ, worker)
        return _Process(process, ours)

    def send(self, worker: int, parcel: wire.Parcel) -> None:
        """Put the arrays into shared memory and send its handle."""
        rows, size = wire.layout(parcel.arrays)
        with _anonymous(size) as handle:
            wire.write(handle, wire.pieces(parcel.arrays))
            self._write(worker, frame("window", [parcel.tickets, parcel.problems, rows, size]), handle)

    def finish(self, worker: int) -> None:
        """Send the message that no further window comes."""
        self._write(worker, frame("end"))

    def _write(self, worker: int, parts: list[bytes], *handles: int) -> None:
        connection = self._processes[worker].connection
        try:
            sent = socket.send_fds(connection, [parts[0]], handles)
            connection.sendall(parts[0][sent:] + b"".join(parts[1:]))
        except OSError as error:
            # A worker that has ended may have left messages to read; one that hangs has none, so its end is noted here.
            if isinstance(error, TimeoutError):
                self._noticed.append((worker, Message("died", f"it took nothing for {self._send_seconds:g} s")))

    def kill(self, worker: int) -> None:
        """Kill the process."""
        gone = self._processes.pop(worker, None)
        if gone is None:
            return
        self._selector.unregister(gone.connection)
        gone.connection.close()
        gone.process.kill()
        gone.process.wait()
        self._noticed = [(other, message) for other, message in self._noticed if other != worker]

    def wait(self, timeout: float) -> list[tuple[int, Message]]:
        """Return the complete messages that have arrived."""
        heard = list[tuple[int, Message]]()
        for key, _ in self._selector.select(0.0 if self._noticed else timeout):
            heard += self._read(key.data)
        # The message that a worker ended is its last one, and there is only one of them.
        ended = {worker for worker, message in heard if message.kind in ("died", "failed")}
        heard += [(worker, message) for worker, message in self._noticed if worker not in ended]
        self._noticed = []
        return heard

    def _read(self, worker: int) -> list[tuple[int, Message]]:
        mine = self._processes[worker]
        try:
            size = mine.connection.recv_into(self._chunk)
        except OSError:
            size = 0
        mine.arrived += memoryview(self._chunk)[:size]
        try:
            heard = [(worker, message) for message in _messages(mine.arrived)]
        except FleetError as error:
            return [(worker, Message("failed", str(error)))]
        return heard if size else [*heard, (worker, _last_message(mine.process))]

    def close(self) -> None:
        """End all processes."""
        for mine in self._processes.values():
            # A worker exits when its socket is closed. The socket of one that has exited raises OSError.
            with contextlib.suppress(OSError):
                mine.connection.shutdown(socket.SHUT_RDWR)
        for worker, mine in list(self._processes.items()):
            with contextlib.suppress(subprocess.TimeoutExpired):
                mine.process.wait(1.0)
            self.kill(worker)
        self._selector.close()


def _messages(arrived: bytearray) -> list[Message]:
    """Remove complete messages from the bytes that have arrived, and return them."""
    messages, place = list[Message](), 0
    while len(arrived) >= place + HEADER.size:
        text, raw = sizes(arrived, place)
        start, end = place + HEADER.size, place + HEADER.size + text + raw
        if len(arrived) < end:
            break
        messages.append(unframe(bytes(arrived[start : start + text]), bytes(arrived[start + text : end])))
        place = end
    del arrived[:place]
    return messages


def _last_message(process: subprocess.Popen[bytes]) -> Message:
    """The message that says how a process ended: killed by a signal, or with an exit code."""
    try:
        code = process.wait(1.0)
    except subprocess.TimeoutExpired:
        return Message("died", "its connection closed")
    if code >= 0:
        return Message("failed", f"its process ended with code {code}")
    name = signal.Signals(-code).name
    return Message("died", f"its process was ended by {name}" + (" (out of memory, perhaps)" * (name == "SIGKILL")))


@contextlib.contextmanager
def _anonymous(size: int) -> Any:
    """Yield the file descriptor of anonymous memory of this size."""
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("drainsinkhorn", os.MFD_CLOEXEC)
        try:
            os.ftruncate(handle, size)
            yield handle
        finally:
            os.close(handle)
    else:
        with tempfile.TemporaryFile() as file:
            file.truncate(size)
            yield file.fileno()
