"""Bounds on what requests may take, and the exceptions for requests that exceed them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields

from drainsinkhorn.core.audit import is_count
from drainsinkhorn.model.errors import OptionsError

MIB = 2**20
JSON_SHARE = 16
"""Memory that parsed JSON takes, over its size, about: a JSON body may have this share of `max_unpacked`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Bounds on what one request, and all requests together, may take.

    Attributes:
        max_body: Bytes of the body of one request.
        max_unpacked: Bytes that the arrays of one request may take once they are unpacked. A JSON body may have a
            sixteenth of it, because parsed JSON takes many times its size.
        max_memory: Bytes that bodies, arrays and results of all requests may take together.
        max_problems: Problems of one request.
        max_pairs: Pairs of points (n times m) of one problem: a kernel cannot be interrupted within a cycle.
        capacity: Problems that are accepted and have not ended.
        max_connections: Open connections.
        deadline: Seconds after which a request is answered that names no deadline of its own.
        max_deadline: Largest deadline that a request may name, in seconds.
        head_timeout: Seconds in which a client must send the head of a request.
        body_timeout: Seconds in which it must send the body.
        write_timeout: Seconds in which it must take a part of an answer (up to 1 MiB).
        idle_timeout: Seconds after which an idle connection is closed.

    Examples:
        >>> ServerLimits(max_problems=64).deadline
        60.0
    """

    max_body: int = 64 * MIB
    max_unpacked: int = 256 * MIB
    max_memory: int = 1024 * MIB
    max_problems: int = 1024
    max_pairs: int = 2**28
    capacity: int = 4096
    max_connections: int = 512
    deadline: float = 60.0
    max_deadline: float = 600.0
    head_timeout: float = 10.0
    body_timeout: float = 60.0
    write_timeout: float = 60.0
    idle_timeout: float = 30.0

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(each.default, int) and not is_count(value):
                raise OptionsError(f"{each.name} must be an integer of at least 1, got {value!r}")
            if isinstance(each.default, float) and not 0 < value < math.inf:
                raise OptionsError(f"{each.name} is in seconds and must be positive and finite, got {value!r}")
        if self.deadline > self.max_deadline:
            raise OptionsError(f"deadline is {self.deadline:g} s and exceeds max_deadline, {self.max_deadline:g} s")

    @property
    def max_json(self) -> int:
        """Bytes of a JSON body."""
        return min(self.max_body, self.max_unpacked // JSON_SHARE)


class Refusal(Exception):
    """A request that is not answered with results.

    Attributes:
        status: The HTTP status.
        error: What is wrong.
        advice: What the client can do.
        headers: Headers of the answer.
        results: Results that there are all the same, as for JSON.
    """

    def __init__(
        self,
        status: int,
        error: str,
        advice: str,
        *,
        headers: dict[str, str] | None = None,
        results: list[dict[str, object]] | None = None,
    ) -> None:
        super().__init__(error)
        self.status, self.error, self.advice = status, error, advice
        self.headers = headers or {}
        self.results = results


def overload_refusal(error: str) -> Refusal:
    """Return the refusal of a request for which there is no room now."""
    return Refusal(429, error, "send the request again later; Retry-After is in seconds", headers={"Retry-After": "1"})


@dataclass(slots=True)
class MemoryBudget:
    """Bytes that requests hold, up to a limit. It is used by one thread.

    Attributes:
        limit: Bytes that all requests may hold together.
        used: Bytes that they hold now.
    """

    limit: int
    used: int = field(default=0, init=False)

    @contextmanager
    def share(self) -> Iterator[MemoryShare]:
        """Open a share that holds nothing yet, and give back what it holds at the end."""
        share = MemoryShare(self)
        try:
            yield share
        finally:
            share.resize(0)


@dataclass(slots=True, eq=False)
class MemoryShare:
    """The memory of one request."""

    memory: MemoryBudget
    size: int = field(default=0, init=False)

    def resize(self, size: int) -> None:
        """Hold so many bytes; raises Refusal if that is too much, now (429) or always (413)."""
        if size > self.memory.limit:
            raise Refusal(
                413,
                f"the request and its results would take {size:,} bytes, and the limit is {self.memory.limit:,}",
                "send fewer or smaller problems in one request",
            )
        if size > self.size and self.memory.used + size - self.size > self.memory.limit:
            raise overload_refusal(f"requests hold {self.memory.used:,} bytes, and the limit is {self.memory.limit:,}")
        self.memory.used += size - self.size
        self.size = size
