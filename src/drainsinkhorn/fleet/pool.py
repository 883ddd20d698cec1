"""The interface of a pool of workers, on this machine or on a cluster."""

from __future__ import annotations

from typing import Protocol

from drainsinkhorn.fleet.wire import Parcel
from drainsinkhorn.fleet.worker_run import Assignment, Message


class Pool(Protocol):
    """A fixed number of workers, numbered from 0. The end of a worker is reported once; it can be started again."""

    @property
    def size(self) -> int:
        """Number of workers."""
        ...

    @property
    def cores(self) -> int:
        """Number of threads of each worker."""
        ...

    def start(self, worker: int, assignment: Assignment) -> None:
        """Start a worker if it does not run, and send it the assignment; it answers "ready"."""
        ...

    def send(self, worker: int, parcel: Parcel) -> None:
        """Send a window."""
        ...

    def finish(self, worker: int) -> None:
        """Tell a worker that no further window comes; it finishes its problems and sends its account."""
        ...

    def kill(self, worker: int) -> None:
        """Kill a worker; no further message of it is returned."""
        ...

    def wait(self, timeout: float) -> list[tuple[int, Message]]:
        """Return messages of workers; wait at most `timeout` seconds for the first one."""
        ...

    def close(self) -> None:
        """End all workers."""
        ...
