"""HTTP connections with time limits, which uvicorn has only for idle ones."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from drainsinkhorn.serve.answers import dump_json
from drainsinkhorn.serve.limits import ServerLimits


def make_protocol(limits: ServerLimits) -> type[asyncio.Protocol]:
    """Return the class of connections with these limits."""

    class LimitedConnection(Connection):
        """A connection of one service."""

    LimitedConnection.limits = limits
    return LimitedConnection


class Connection(H11Protocol):
    """A connection that is cut off if its client sends the head of a request too slowly, or takes no answer.

    Attributes:
        limits: The limits of the service.
    """

    limits = ServerLimits()
    _head_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start the time for the first head, or refuse the connection if there are too many."""
        super().connection_made(transport)
        # An answer is written in two parts; without this the second waits until the client has confirmed the first.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A write that the client does not take at once pauses this protocol, so that `pause_writing` starts the time.
        transport.set_write_buffer_limits(high=0)
        if len(self.connections) > self.limits.max_connections:
            transport.write(_raw_error(503, f"{self.limits.max_connections} connections are open", "try again later"))
            transport.close()
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        """Handle what was received, and start or stop the time for a head."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all time limits."""
        self._head_timer = _stop(self._head_timer)
        self._write_timer = _stop(self._write_timer)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Start the time limit within which the client must read what was written."""
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self.limits.write_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the time limit that `pause_writing` started."""
        super().resume_writing()
        self._write_timer = _stop(self._write_timer)

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are no HTTP request."""
        self.transport.write(_raw_error(400, "this is not a valid HTTP request", "send HTTP/1.1"))
        self.transport.close()

    def _watch_head(self) -> None:
        """Keep the time for a head running while no request is being answered."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._head_timer = _stop(self._head_timer)
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.limits.head_timeout, self.transport.abort)


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def _raw_error(status: int, error: str, advice: str) -> bytes:
    body = dump_json({"error": error, "what_to_do": advice})
    reason = {400: "Bad Request", 503: "Service Unavailable"}[status]
    head = f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode("ascii") + body
