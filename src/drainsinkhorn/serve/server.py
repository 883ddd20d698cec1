"""The service: one event loop, one listening socket, one stream."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import ipaddress
import logging
import math
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Unpack

from drainsinkhorn.core.options import Options, Settings
from drainsinkhorn.core.protocol import Backend
from drainsinkhorn.model.errors import BackendUnavailable, OptionsError
from drainsinkhorn.run.solve import DEFAULTS
from drainsinkhorn.serve.limits import MemoryBudget, ServerLimits

_log = logging.getLogger("drainsinkhorn")
SIGNALS = (signal.SIGTERM, signal.SIGINT)
FLUSH = 5.0
"""Seconds at the end in which answers may still be sent."""
HEAD = 2**14
"""Largest size of the head of a request, in bytes."""


class Server:
    """An HTTP service that solves the problems of all its clients in one stream, so that they share one device.

    It has no encryption, and no authentication except for a token: let it listen on loopback, and put a reverse proxy
    in front of it.

    Args:
        host: Address to listen on.
        port: Port to listen on; 0: a free one.
        token: Text that requests must send as `Authorization: Bearer TOKEN`; None: requests need none.
        limits: Bounds on requests.
        grace: Seconds in which accepted problems may be finished when the service stops.
        tol: Tol of problems that name none, as for `solve`.
        init: Start of problems that name none, as for `solve`.
        backend: "auto", a name, or a Backend.
        options: All options at once, as for `solve`.
        **settings: Fields of Options.

    Attributes:
        host: Address that it listens on.
        port: Port that it listens on.

    Examples:
        >>> from drainsinkhorn.serve import Remote, Server
        >>> with Server(tol=1e-3) as server, Remote(server.address) as remote:
        ...     [result] = remote.solve([[0.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [2.0, 2.0]], eps=0.5)
        >>> result.status.name
        'CONVERGED'
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        limits: ServerLimits | None = None,
        grace: float = 30.0,
        tol: float | None = None,
        init: str = "auto",
        backend: str | Backend[Any] = "auto",
        options: Options = DEFAULTS,
        **settings: Unpack[Settings],
    ) -> None:
        _require_libraries()
        if token is not None and (not token or not token.isascii() or not token.isprintable()):
            raise OptionsError("token must be a text of printable ASCII characters that is not empty")
        if not grace >= 0:
            raise OptionsError(f"grace is in seconds and must not be negative, got {grace!r}")
        options = options.with_settings(tol, {**settings, "warn": False}, init)
        self._how = {"options": options, "backend": backend}
        self._limits, self._token, self._grace = limits or ServerLimits(), token, grace
        self._socket = _listen(host, port)
        self.host, self.port = host, int(self._socket.getsockname()[1])
        self._thread: threading.Thread | None = None
        self._started = threading.Event()
        self._error: BaseException | None = None
        # The loop and its event are there while the service runs.
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._stops = 0

    @property
    def address(self) -> str:
        """The address as clients write it."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can reach the service."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def run(self, on_start: Callable[[], None] = lambda: None) -> None:
        """Serve in this thread, which must be the main one, until SIGTERM or SIGINT; a second signal stops at once.

        Args:
            on_start: Called when requests are accepted.
        """

        def stop(signum: int, frame: FrameType | None) -> None:
            self.stop()

        before = {number: signal.signal(number, stop) for number in SIGNALS}
        try:
            asyncio.run(self._serve(on_start))
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def stop(self) -> None:
        """Accept no further requests, and end once accepted problems are solved; a second call gives them up."""
        self._stops += 1
        if self._running is not None:
            loop, stop = self._running
            # The loop may have ended in the meantime.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(stop.set)

    def __enter__(self) -> Server:
        """Serve in a thread of its own."""
        self._thread = threading.Thread(target=self._run_in_thread, name="drainsinkhorn-serve", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            raise self._error
        return self

    def __exit__(self, *_: object) -> None:
        """Stop, and wait until accepted problems are solved."""
        self.stop()
        if self._thread is not None:
            self._thread.join()

    def _run_in_thread(self) -> None:
        try:
            asyncio.run(self._serve(self._started.set))
        except BaseException as error:  # noqa: BLE001  raised in the thread that waits for the start
            self._error = error
            _log.exception("the service has failed")
        finally:
            self._started.set()

    async def _serve(self, on_start: Callable[[], None]) -> None:
        from drainsinkhorn.serve.app import ServiceState, make_app
        from drainsinkhorn.serve.engine import Engine
        from drainsinkhorn.serve.metrics import Metrics

        stop = asyncio.Event()
        self._running = asyncio.get_running_loop(), stop
        with self._socket:
            metrics = Metrics()
            engine = Engine(self._limits, metrics.note_end, **self._how)
            metrics.watch(engine)
            memory = MemoryBudget(self._limits.max_memory)
            state = ServiceState(engine, self._limits, metrics, self._token, memory, asyncio.Event(), asyncio.Event())
            server = _make_server(make_app(state), self._limits)
            serving = asyncio.create_task(server.serve(sockets=[self._socket]))
            await _until(lambda: server.started or serving.done())
            on_start()
            if not self._stops:
                await stop.wait()
            state.stop()
            await _until(lambda: not state.open or self._stops > 1, self._grace)
            state.stopped.set()
            await _until(lambda: not state.open, FLUSH)
            server.should_exit = True
            await serving
            closing = threading.Thread(target=engine.close, name="drainsinkhorn-serve-close", daemon=True)
            closing.start()
            await _until(lambda: not closing.is_alive(), FLUSH)


async def _until(condition: Callable[[], bool], seconds: float = math.inf) -> None:
    """Wait until the condition holds, or so many seconds have passed."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not condition() and loop.time() < end:
        await asyncio.sleep(0.01)


def _require_libraries() -> None:
    for name in ("starlette", "uvicorn", "prometheus_client"):
        if importlib.util.find_spec(name) is None:
            raise BackendUnavailable(f"the service needs {name}; pip install 'drainsinkhorn[serve]'")


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port < 2**16:
        raise OptionsError(f"port must be from 0 to {2**16 - 1}, got {port}")
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, UnicodeError) as error:
        raise OptionsError(f"cannot listen on host {host!r}, port {port} ({error}); name another one") from None


def _make_server(app: Any, limits: ServerLimits) -> Any:
    """Return a server of uvicorn that leaves signals to us, since at its end it would raise them again."""
    import uvicorn

    from drainsinkhorn.serve.protocol import make_protocol

    class QuietServer(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    config = uvicorn.Config(
        app,
        http=make_protocol(limits),
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=math.ceil(limits.idle_timeout),
        timeout_graceful_shutdown=math.ceil(FLUSH),
        h11_max_incomplete_event_size=HEAD,
    )
    return QuietServer(config)
