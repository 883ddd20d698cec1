"""The routes of the service: bodies in, results or errors out."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from drainsinkhorn.model.status import Status
from drainsinkhorn.model.text import escape
from drainsinkhorn.serve.answers import WANTS, ProblemRow, consume, describe_rows, dump_json, encode, make_row
from drainsinkhorn.serve.bodies import FORMATS, JSON, NPZ, ParsedBody, positive, read_body
from drainsinkhorn.serve.engine import Engine, PendingProblems
from drainsinkhorn.serve.limits import MemoryBudget, MemoryShare, Refusal, ServerLimits
from drainsinkhorn.serve.metrics import CONTENT, Metrics

_log = logging.getLogger("drainsinkhorn")
T = TypeVar("T")
SMALL = 2**15
"""Bytes that are read or written in the event loop itself; more is worth another thread."""
LINGER = 2.0
"""Seconds after a deadline in which lanes may leave with what they have."""
PART = 2**20
"""Bytes of an answer that are handed to the connection together."""
GONE = 499
"""Status in the metrics of requests whose client disconnected."""
ABOUT = f"""drainsinkhorn solves entropic optimal transport problems; all clients share its kernels.

POST /solve    problems as JSON (Content-Type {JSON}) or npz ({NPZ})
GET /health    whether kernels are compiled
GET /metrics   counts, for Prometheus

Keys of a request, as in files of drain solve: x and y (points) or cost (matrices), eps, and if wanted a, b (weights),
tol, rho, f, g (a start), cost (sqeuclidean, euclidean, cosine), scale, x_sizes, y_sizes.
Parameters of the address: deadline (seconds), tol, want ({",".join(WANTS)}).
Results have the format of Accept, {JSON} or {NPZ}.

    curl -H 'Content-Type: {JSON}' -d '{{"x": [[0, 0], [1, 0]], "y": [[0, 1], [2, 2]], "eps": 0.5}}' ADDRESS/solve
"""


@dataclass(slots=True)
class ServiceState:
    """What all requests share.

    Attributes:
        engine: Solves their problems.
        limits: Their limits.
        metrics: Counts them.
        token: What they must send as a bearer token; None: nothing.
        memory: The memory that they hold.
        stopping: Is set when no further request is accepted.
        stopped: Is set when problems that are not solved yet are given up.
        open: Requests whose problems were accepted, and whose answers are not sent yet, by their memory.
        reading: Timeouts of requests whose bodies are being read.
    """

    engine: Engine
    limits: ServerLimits
    metrics: Metrics
    token: str | None
    memory: MemoryBudget
    stopping: asyncio.Event
    stopped: asyncio.Event
    open: set[MemoryShare] = field(default_factory=set[MemoryShare])
    reading: set[asyncio.Timeout] = field(default_factory=set[asyncio.Timeout])

    def stop(self) -> None:
        """Accept no further request; one whose body is not complete is refused at once."""
        self.stopping.set()
        for timeout in self.reading:
            if not timeout.expired():
                timeout.reschedule(asyncio.get_running_loop().time())


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """What a request asks for beside its body.

    Attributes:
        deadline: Seconds from its head.
        tol: Tol of problems that have none; None: that of the service.
        wants: Names of quantities of the plans.
        content: Format of the body.
        accept: Format of the answer.
    """

    deadline: float
    tol: float | None
    wants: tuple[str, ...]
    content: str
    accept: str


class ChunkedResponse(Response):
    """An answer that is sent in parts, so that a client that does not read is detected."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the head, and the body in parts."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        body = memoryview(self.body)
        for start in range(0, max(1, len(body)), PART):
            chunk = bytes(body[start : start + PART])
            await send({"type": "http.response.body", "body": chunk, "more_body": start + PART < len(body)})


class Accounting:
    """Measures each request and releases its memory once it is answered."""

    def __init__(self, app: ASGIApp, state: ServiceState) -> None:
        self._app, self._state = app, state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        with self._state.metrics.request() as statuses, self._state.memory.share() as share:

            async def note(message: Message) -> None:
                if message["type"] == "http.response.start":
                    statuses.append(message["status"])
                await send(message)

            scope["share"] = share
            try:
                await self._app(scope, receive, note)
            finally:
                self._state.open.discard(share)


def make_app(state: ServiceState) -> ASGIApp:
    """Return the ASGI application."""

    async def about(_: Request) -> Response:
        return Response(ABOUT, media_type="text/plain")

    async def health(_: Request) -> Response:
        return _health(state)

    async def metrics(request: Request) -> Response:
        authorize(state, request)
        return Response(state.metrics.text(), media_type=CONTENT)

    routes = [
        Route("/", about, methods=["GET"]),
        Route("/health", health, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
        Route("/solve", SolveRoute(state).answer, methods=["POST"]),
    ]
    handlers: dict[Any, Any] = {Refusal: _refuse, HTTPException: _refuse_route, Exception: _fail}
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return Accounting(app, state)


async def _refuse(_: Request, refusal: Exception) -> Response:
    assert isinstance(refusal, Refusal)
    content: dict[str, object] = {"error": escape(refusal.error), "what_to_do": escape(refusal.advice)}
    if refusal.results is not None:
        content["results"] = refusal.results
    return ChunkedResponse(dump_json(content), refusal.status, refusal.headers, JSON)


async def _refuse_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = escape(request.url.path)[:100]
    reason = f"{request.method} {path} is not there" if error.status_code == 404 else f"{path}: {error.detail}"
    if error.status_code == 405:
        reason = f"{path} does not take {request.method}"
    refusal = Refusal(error.status_code, reason, "GET / lists what is there", headers=dict(error.headers or {}))
    return await _refuse(request, refusal)


async def _fail(request: Request, error: Exception) -> Response:
    """Answer a request that met an error of the service itself; the log has its traceback."""
    reason = f"the service met an error of its own ({type(error).__name__})"
    return await _refuse(request, Refusal(500, reason, "look at the log of the service, and report it"))


def _health(state: ServiceState) -> Response:
    engine = state.engine
    is_ready = engine.is_ready and not state.stopping.is_set()
    status = "stopping" if state.stopping.is_set() else "failed" if engine.failure else "starting"
    content: dict[str, object] = {"status": "ready" if is_ready else status, "backend": engine.backend}
    if engine.failure:
        content["error"] = escape(engine.failure)
    return Response(dump_json(content), 200 if is_ready else 503, media_type=JSON)


def authorize(state: ServiceState, request: Request) -> None:
    """Raise Refusal unless the request has the token of the service."""
    sent = request.headers.get("authorization", "")
    # Compared as bytes in constant time, so that the time of an answer says nothing of the token.
    if state.token is not None and not hmac.compare_digest(sent.encode("latin-1"), f"Bearer {state.token}".encode()):
        advice = "send the header Authorization: Bearer TOKEN"
        raise Refusal(401, "the token is missing or wrong", advice, headers={"WWW-Authenticate": "Bearer"})


def read_options(request: Request, limits: ServerLimits) -> RequestOptions:
    """Return what the head of a request asks for; raises Refusal for what is unknown or invalid."""
    parameters: dict[str, str] = {}
    for name, text in request.query_params.multi_items():
        if name not in ("deadline", "tol", "want") or name in parameters:
            problem = "is given twice" if name in parameters else "is unknown"
            raise Refusal(400, f"the parameter {name[:40]!r} {problem}", "known are deadline, tol and want")
        parameters[name] = text
    wants = tuple(dict.fromkeys(filter(None, parameters.get("want", "").split(","))))
    for name in wants:
        if name not in WANTS:
            raise Refusal(400, f"want has an unknown name {name[:40]!r}", f"known are {', '.join(WANTS)}")
    content = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content not in FORMATS or request.headers.get("content-encoding", "identity") != "identity":
        raise Refusal(415, "the body has another type than JSON or npz", f"send it as {' or '.join(FORMATS)}, as it is")
    accept = request.headers.get("accept", "*/*").lower()
    named = list({form for name, form in FORMATS.items() if name in accept})
    return RequestOptions(
        deadline=positive("deadline", parameters["deadline"], limits.max_deadline)
        if "deadline" in parameters
        else limits.deadline,
        tol=positive("tol", parameters["tol"]) if "tol" in parameters else None,
        wants=wants,
        content=FORMATS[content],
        accept=named[0] if len(named) == 1 else FORMATS[content] if "*/*" in accept else JSON,
    )


class SolveRoute:
    """The route /solve."""

    def __init__(self, state: ServiceState) -> None:
        self._state, self._limits = state, state.limits

    async def answer(self, request: Request) -> Response:
        """Answer a request with the results of its problems."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        self._require_open()
        authorize(self._state, request)
        options = read_options(request, self._limits)
        try:
            parsed = await self._parse(request, options)
        except ClientDisconnect:
            return Response(status_code=GONE)
        self._require_open()
        pending = self._state.engine.accept(parsed.problems, start + options.deadline - loop.time())
        self._state.open.add(request.scope["share"])
        try:
            if not await self._wait(request, pending, start + options.deadline):
                return Response(status_code=GONE)
            return await self._respond(parsed, pending, options)
        finally:
            self._state.engine.give_up(pending)

    async def _parse(self, request: Request, options: RequestOptions) -> ParsedBody:
        """Return the problems of a request; raises Refusal, or ClientDisconnect."""
        share: MemoryShare = request.scope["share"]
        body = await self._read(request, share, options)
        images = any(name.startswith("map") for name in options.wants)
        parsed = await _work(
            len(body), lambda: read_body(body, options.content, self._limits, tol=options.tol, images=images)
        )
        share.resize(parsed.memory)
        return parsed

    def _require_open(self) -> None:
        if self._state.stopping.is_set():
            raise Refusal(503, "the service is stopping", "send the request to another one, or later")

    async def _read(self, request: Request, share: MemoryShare, options: RequestOptions) -> bytes:
        """Return the body; raises Refusal if it is too large or comes too slowly."""
        limit = self._limits.max_json if options.content == JSON else self._limits.max_body
        length = request.headers.get("content-length", "0")
        body = bytearray()
        if length.isdecimal() and int(length) > limit:
            raise _too_large(int(length), limit)
        timeout = asyncio.timeout(self._limits.body_timeout)
        try:
            async with timeout:
                self._state.reading.add(timeout)
                async for part in request.stream():
                    if len(body) + len(part) > limit:
                        raise _too_large(len(body) + len(part), limit)
                    share.resize(len(body) + len(part))
                    body += part
        except TimeoutError:
            self._require_open()
            reason = f"the body did not arrive within {self._limits.body_timeout:g} s"
            raise Refusal(408, reason, "send it faster, or in parts", headers={"Connection": "close"}) from None
        finally:
            self._state.reading.discard(timeout)
        return bytes(body)

    async def _wait(self, request: Request, pending: PendingProblems, until: float) -> bool:
        """Wait until all problems have ended, or the deadline; return False if the client has disconnected."""
        loop = asyncio.get_running_loop()
        done, gone, stopped = (
            asyncio.ensure_future(each)
            for each in (pending.done.wait(), _disconnect(request), self._state.stopped.wait())
        )
        try:
            await asyncio.wait((done, gone, stopped), timeout=until - loop.time(), return_when=asyncio.FIRST_COMPLETED)
            if not done.done() and not gone.done():
                # Waiting problems are cancelled. Lanes leave at their next audit with the potentials so far.
                self._state.engine.give_up(pending)
                await asyncio.wait((done, gone), timeout=LINGER, return_when=asyncio.FIRST_COMPLETED)
            pending.abandoned = gone.done() and not done.done()
            return not pending.abandoned
        finally:
            for task in (done, gone, stopped):
                task.cancel()

    async def _respond(self, parsed: ParsedBody, pending: PendingProblems, options: RequestOptions) -> Response:
        tol = self._state.engine.tol
        ended = zip(parsed.problems, pending.outcomes(), strict=True)
        rows = [make_row(place, problem, each) for place, (problem, each) in enumerate(ended)]
        if not parsed.is_batch and rows[0].status in (Status.INVALID, Status.EXPIRED):
            raise self._failure(rows[0], tol)

        def write() -> bytes:
            return encode(rows, tol, consume(rows, options.wants), options.accept)

        body = await _work(SMALL + 1 if options.wants else parsed.memory, write)
        return ChunkedResponse(body, 200, media_type=options.accept)

    def _failure(self, row: ProblemRow, tol: float) -> Refusal:
        """Return the answer to a request whose only problem has no result that could be used."""
        if row.status is Status.INVALID:
            return Refusal(422, row.message, "correct the problem")
        results = describe_rows([row], tol) if row.has_plan else None
        if self._state.stopped.is_set():
            reason, advice = "the service stopped before the problem converged", "send it to another one, or later"
            return Refusal(503, reason, advice, results=results)
        return Refusal(504, row.message, "name a later deadline, or raise eps or tol", results=results)


def _too_large(size: int, limit: int) -> Refusal:
    reason = f"the body has {size:,} bytes or more, and the limit is {limit:,}"
    return Refusal(413, reason, "send fewer problems in one request, as npz, which is smaller than JSON")


async def _work(size: int, function: Callable[[], T]) -> T:
    """Call a function: here if it handles few bytes, else in a thread, so that other requests do not wait for it."""
    return function() if size <= SMALL else await asyncio.to_thread(function)


async def _disconnect(request: Request) -> None:
    """Return when the client has disconnected."""
    receive: Callable[[], Awaitable[Message]] = request.receive
    while (await receive())["type"] != "http.disconnect":
        pass
