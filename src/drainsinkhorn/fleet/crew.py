"""Workers as the dispatcher sees them, wherever they are."""

from __future__ import annotations

from typing import Protocol

from drainsinkhorn.fleet.bench import Assignment, Message
from drainsinkhorn.fleet.wire import Parcel


class Crew(Protocol):
    """A fixed number of workers, by number. A worker that has died says so once, and can be hired anew."""

    @property
    def size(self) -> int:
        """How many workers there are."""
        ...

    @property
    def cores(self) -> int:
        """Threads each worker may use."""
        ...

    def hire(self, worker: int, assignment: Assignment) -> None:
        """Start a worker if it does not live, and tell it how to run; it says "ready"."""
        ...

    def give(self, worker: int, parcel: Parcel) -> None:
        """Send a window."""
        ...

    def end(self, worker: int) -> None:
        """Tell a worker that nothing more comes; it finishes, and says its account."""
        ...

    def dismiss(self, worker: int) -> None:
        """End a worker at once, whatever it does; it says nothing more."""
        ...

    def wait(self, timeout: float) -> list[tuple[int, Message]]:
        """What workers have said; waits for the first word for at most so many seconds."""
        ...

    def close(self) -> None:
        """End all workers."""
        ...
