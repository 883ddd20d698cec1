"""A worker of LocalFleet: a process with one end of a socket pair."""

from __future__ import annotations

import json
import mmap
import os
import pickle
import signal
import socket
import struct
import sys
import threading
from typing import Any

from drainsinkhorn.fleet import wire
from drainsinkhorn.fleet.worker_run import Message, WorkerRun
from drainsinkhorn.model.errors import FleetError

MARK = b"drnk"
HEADER = struct.Struct("<4sIQQ")
"""The mark, the format, and the sizes of the JSON and of the bytes that follow it."""


def frame(kind: str, body: Any = None, raw: bytes = b"") -> list[bytes]:
    """A message as bytes."""
    text = json.dumps([kind, body]).encode()
    return [HEADER.pack(MARK, wire.FORMAT, len(text), len(raw)), text, raw]


def sizes(header: bytes | bytearray, start: int = 0) -> tuple[int, int]:
    """Sizes of the JSON and of the bytes of a message; raises FleetError if its format is another one."""
    mark, version, text, raw = HEADER.unpack_from(header, start)
    if (mark, version) != (MARK, wire.FORMAT):
        raise FleetError(wire.other_format(version if mark == MARK else 1))
    return text, raw


def unframe(text: bytes, raw: Any) -> Message:
    """The message of a frame."""
    kind, body = json.loads(text)
    return Message(kind, body, memoryview(raw))


def _exactly(connection: socket.socket, size: int) -> bytearray:
    """Receive exactly `size` bytes; raise EOFError if the other end has closed."""
    raw = bytearray(size)
    view, place = memoryview(raw), 0
    while place < size:
        got = connection.recv_into(view[place:])
        if not got:
            raise EOFError
        place += got
    return raw


def _receive(connection: socket.socket) -> tuple[Message, list[int]]:
    """The next message, and the file descriptors that came with it."""
    header, handles, _, _ = socket.recv_fds(connection, HEADER.size, 1)
    if not header:
        raise EOFError
    header += bytes(_exactly(connection, HEADER.size - len(header)))
    text, raw = (_exactly(connection, size) for size in sizes(header))
    return unframe(bytes(text), raw), handles


def _parcel(message: Message, handles: list[int]) -> wire.Parcel:
    """The parcel of a message; its arrays are views of the shared memory that the fleet has written."""
    tickets, problems, rows, size = message.body
    # Copy on write: a worker cannot modify the fleet's memory, and pages are copied only if it writes to them.
    block = mmap.mmap(handles[0], size, access=mmap.ACCESS_COPY)
    os.close(handles[0])
    return wire.Parcel(tickets, problems, wire.views(block, rows))


class Worker:
    """Reads messages of the fleet in the main thread, and sends messages to it from another."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._run: WorkerRun | None = None

    def run(self) -> None:
        """Handle messages until the fleet closes the connection."""
        while True:
            try:
                message, handles = _receive(self._connection)
            except (EOFError, OSError):
                # Lanes run in another thread, and their results are no longer needed.
                os._exit(0)
            except FleetError as error:
                self._send(Message("failed", str(error)))
                os._exit(1)
            self._take(message, handles)

    def _take(self, message: Message, handles: list[int]) -> None:
        if message.kind == "begin":
            # Unpickling is safe: only the process that started this one has the other end of the socket.
            path, assignment = message.body, message.raw
            sys.path[:] = path
            try:
                self._run = WorkerRun(pickle.loads(assignment))
            except Exception as error:  # noqa: BLE001  reported to the fleet
                self._send(Message("failed", f"it could not begin: {type(error).__name__}: {error}"))
                return
            self._send(Message("ready", wire.FORMAT))
            threading.Thread(target=self._send_messages, args=(self._run,), daemon=True).start()
        elif message.kind == "window" and self._run is not None:
            self._run.push(_parcel(message, handles))
        elif message.kind == "end" and self._run is not None:
            self._run.end()

    def _send_messages(self, run: WorkerRun) -> None:
        for message in run.messages():
            self._send(message)

    def _send(self, message: Message) -> None:
        try:
            self._connection.sendall(b"".join(frame(*message)))
        except OSError:
            os._exit(0)


def main() -> None:
    """Work for the fleet at the other end of the socket whose descriptor is the first argument."""
    # Ctrl-C is handled by the program that started this process, which ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Worker(socket.socket(fileno=int(sys.argv[1]))).run()
