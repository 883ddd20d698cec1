"""A client of a service, without any library but NumPy."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import math
import random
import ssl
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

import numpy as np

from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.couplings import TransportCost
from drainsinkhorn.model.eps import DEFAULT_EPS, FallingEps, RelativeEps, SharpnessEps
from drainsinkhorn.model.errors import DrainError, FileError, OptionsError, ProblemError
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.model.result import Residual
from drainsinkhorn.model.status import Status
from drainsinkhorn.model.text import escape
from drainsinkhorn.numerics.arrays import is_array, to_numpy
from drainsinkhorn.run.archives import unpack_arrays
from drainsinkhorn.run.eps_text import format_eps
from drainsinkhorn.run.marginals import prices_to_array
from drainsinkhorn.run.problem_arrays import is_batch
from drainsinkhorn.serve.answers import ARRAYS
from drainsinkhorn.serve.bodies import NPZ

Array = np.ndarray[Any, Any]
BACK_OFF = 0.05, 5.0
"""Shortest and longest pause before a request is sent again, in seconds."""
BUSY = 429
BROKEN = (http.client.RemoteDisconnected, http.client.CannotSendRequest, ConnectionError)
"""What an idle connection raises that the service has closed."""


class RemoteError(DrainError, RuntimeError):
    """A service could not be reached, or answered with an error that is not about the problems.

    Attributes:
        status: The HTTP status; None if there was no answer.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with the status."""
        return type(self), (self.args[0], self.status)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RemoteResult:
    """The answer of a service to one problem; `Result` explains the fields that it shares with it.

    Attributes:
        ticket: The problem's number in the request.
        status: How it ended.
        message: Status, advice and detail in one line.
        depth: Cycles of the run that gave the result.
        residual: Residual of exactly these potentials.
        emitted: The potentials; None if the problem is INVALID, or did not run before its deadline.
        rescued: True if a second run, in float64, gave the result.
        widened: True if potentials have a wider dtype than the points.
        streamed: True if memory ran out, so that costs were computed anew in every cycle.
        eps: Strength of the entropic term: the number that was found if a share or a sharpness was asked for.
        tol: The tol that was asked for.
        cost: `Result.transport_cost`, if it was wanted.
        map: `Result.barycentric_map`, if it was wanted.
        map_col: `Result.barycentric_map("col")`, if it was wanted.
        matches: `Result.top_match`, if it was wanted.
        matches_col: `Result.top_match("col")`, if it was wanted.
    """

    ticket: int
    status: Status
    message: str
    depth: int
    residual: Residual
    emitted: Potentials[Array] | None
    rescued: bool
    widened: bool
    streamed: bool
    eps: float
    tol: float
    cost: TransportCost | None = None
    map: Array | None = None
    map_col: Array | None = None
    matches: Array | None = None
    matches_col: Array | None = None

    @property
    def converged(self) -> bool:
        """True if the two-sided check passed."""
        return self.status is Status.CONVERGED

    @property
    def potentials(self) -> Potentials[Array]:
        """The potentials f and g; raises ProblemError if there are none."""
        if self.emitted is None:
            raise ProblemError(f"problem {self.ticket} has no potentials: {self.message}")
        return self.emitted


class Remote:
    """A client of a service. It keeps its connections, and may be used by many threads.

    Args:
        address: Where the service is, as it prints it: "http://127.0.0.1:8417", or the address of a reverse proxy.
        token: The token of the service; None: it has none.
        timeout: Seconds after which a call raises RemoteError, repeated requests included.

    Examples:
        >>> import numpy as np
        >>> from drainsinkhorn.serve import Remote, Server
        >>> x, y = np.random.default_rng(0).normal(size=(2, 4, 20, 2))
        >>> with Server() as server, Remote(server.address) as remote:
        ...     results = remote.solve(x, y, eps=0.5, want=["cost"])
        >>> [result.converged for result in results]
        [True, True, True, True]
    """

    def __init__(self, address: str, *, token: str | None = None, timeout: float = 600.0) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise OptionsError(f"address must be like http://127.0.0.1:8417, got {address!r}")
        if not 0 < timeout < math.inf:
            raise OptionsError(f"timeout is in seconds and must be positive and finite, got {timeout!r}")
        self._host, self._port, self._path = parts.hostname, parts.port, parts.path.rstrip("/")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._timeout = timeout
        self._idle: deque[http.client.HTTPConnection] = deque()
        self._keeps = True

    def solve(
        self,
        x: Any = None,
        y: Any = None,
        *,
        eps: Any = None,
        a: Any = None,
        b: Any = None,
        init: tuple[Any, Any] | None = None,
        cost: Any = "sqeuclidean",
        tol: Any = None,
        rho: Any = None,
        deadline: float | None = None,
        want: Sequence[str] = (),
    ) -> list[RemoteResult]:
        """Solve problems on the service, and return one result for each; raises ProblemError if none can be solved.

        Args:
            x: Source points, arrays or objects that NumPy can convert: stacked, shared, or a list of unequal clouds.
            y: Target points.
            eps: Strength of the entropic term: a number or one per problem, or `relative` or `sharpness` for all
                problems. None: `relative(0.05)`.
            a: Source weights; None: uniform.
            b: Target weights; None: uniform.
            init: Potentials (f, g) to start from; None: the start of the service.
            cost: A name, a Cost with a name and a scale, or dense matrices in place of points.
            tol: Bound on the larger L1 marginal residual: a number or one per problem; None: that of the service.
            rho: Price of soft marginals: a number, a pair, or one per problem; None: both marginals are hard.
            deadline: Seconds from now, after which unfinished problems have the status EXPIRED. None: the service's.
            want: Quantities that the service is to compute from the plans: "cost", "map", "map_col", "matches",
                "matches_col".
        """
        arrays = encode_problems(x, y, eps=eps, a=a, b=b, init=init, cost=cost, tol=tol, rho=rho)
        body = io.BytesIO()
        np.savez(body, allow_pickle=False, **arrays)
        parameters = {"deadline": None if deadline is None else repr(float(deadline)), "want": ",".join(want) or None}
        query = urlencode({name: text for name, text in parameters.items() if text is not None})
        headers = {"Content-Type": NPZ, "Accept": NPZ}
        status, answer = self._send("POST", f"/solve?{query}", body.getvalue(), headers)
        if status != 200:
            raise _error(status, answer)
        return _decode(answer)

    def health(self) -> dict[str, Any]:
        """Return what the service says of itself: "status" is ready, starting, stopping or failed."""
        status, answer = self._send("GET", "/health", None, {})
        content = _read_json(answer)
        if "status" not in content:
            raise _error(status, answer)
        return content

    def close(self) -> None:
        """Close idle connections; those in use are closed after their answers."""
        self._keeps = False
        while self._idle:
            self._idle.pop().close()

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, bytes]:
        """Return status and body of the answer; waits and sends again while the service is too busy."""
        end, pause = time.monotonic() + self._timeout, BACK_OFF[0]
        while True:
            status, answer, retry_after = self._send_once(method, path, body, headers, end)
            # Clients that were refused together must not come back together.
            wait = max(pause, retry_after) * random.uniform(0.5, 1.0)
            if status != BUSY or time.monotonic() + wait >= end:
                return status, answer
            time.sleep(wait)
            pause = min(2 * pause, BACK_OFF[1])

    def _send_once(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], end: float
    ) -> tuple[int, bytes, float]:
        """Return status, body and Retry-After of one answer."""
        while True:
            connection = self._connection()
            is_fresh = connection.sock is None
            connection.timeout = max(1e-3, end - time.monotonic())
            if connection.sock is not None:
                connection.sock.settimeout(connection.timeout)
            try:
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    # A service that refuses a body closes the connection before it has read all of it.
                    connection.request(method, self._path + path, body, {**self._headers, **headers})
                response = connection.getresponse()
                answer = response.read()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                # The service closes idle connections. A problem may be solved twice without harm.
                if isinstance(error, BROKEN) and not is_fresh:
                    continue
                reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
                raise RemoteError(f"the service at {self._host}:{self._port} gave no answer ({reason})") from error
            if self._keeps and not response.will_close:
                self._idle.append(connection)
            else:
                connection.close()
            after = response.getheader("Retry-After", "")
            return response.status, answer, float(after) if after.isdecimal() else 0.0

    def _connection(self) -> http.client.HTTPConnection:
        try:
            return self._idle.pop()
        except IndexError:
            if self._tls is not None:
                return http.client.HTTPSConnection(self._host, self._port, context=self._tls)
            return http.client.HTTPConnection(self._host, self._port)


def encode_problems(
    x: Any, y: Any, *, eps: Any, a: Any, b: Any, init: tuple[Any, Any] | None, cost: Any, tol: Any, rho: Any = None
) -> dict[str, Any]:
    """Return problems as arrays by the keys of files of problems; there is always an axis of problems.

    With this axis, problems that are invalid or late have results that say so, and do not fail the request.
    """
    f, g = (None, None) if init is None else init
    if isinstance(eps, (RelativeEps, SharpnessEps, FallingEps)):
        eps = np.array(format_eps(eps))
    columns = {"x": x, "y": y, "a": a, "b": b, "f": f, "g": g, "eps": eps, "tol": tol}
    arrays: dict[str, Any] = {"format": np.array(1)}
    if rho is not None:
        arrays["rho"] = prices_to_array(rho)
    if isinstance(cost, (str, Cost)):
        kind = cost if isinstance(cost, Cost) else Cost(cost)
        if not isinstance(kind.kind, str):
            raise ProblemError("a service takes costs by name, or as matrices; compute the matrix of this cost")
        arrays |= {"cost": np.array(kind.kind), "scale": np.array(float(kind.scale))}
    else:
        columns["cost"] = cost
    ragged: dict[str, list[Array]] = {}
    for name, value in columns.items():
        if value is not None:
            plain = _as_array(name, value)
            if isinstance(plain, list):
                ragged[name] = plain
            else:
                arrays[name] = plain
    _join(arrays, ragged)
    if not is_batch(arrays):
        arrays["eps"] = np.atleast_1d(arrays.get("eps", format_eps(DEFAULT_EPS)))
    return arrays


def _as_array(name: str, value: Any) -> Array | list[Array]:
    """Return a value as an array, or as a list of arrays if its entries have unequal sizes."""
    if not isinstance(value, (list, tuple)):
        return to_numpy(value)
    parts = [to_numpy(part) for part in value if is_array(part)]
    if len({part.dtype for part in parts}) > 1:
        raise ProblemError(f"{name} has arrays of several dtypes; one request needs one dtype")
    try:
        return np.asarray([to_numpy(part) for part in value] if parts else value)
    except ValueError:
        return [np.asarray(to_numpy(part)) for part in value]


def _join(arrays: dict[str, Any], ragged: dict[str, list[Array]]) -> None:
    """Add each list of arrays of unequal sizes as one joined array, and their sizes."""
    if "cost" in ragged:
        for axis, name in enumerate(("x_sizes", "y_sizes")):
            arrays[name] = np.array([matrix.shape[axis] for matrix in ragged["cost"]])
        ragged["cost"] = [matrix.ravel() for matrix in ragged["cost"]]
    for names in (("x", "a", "f"), ("y", "b", "g")):
        for name in filter(ragged.__contains__, names):
            arrays.setdefault(f"{names[0]}_sizes", np.array([len(part) for part in ragged[name]]))
        if f"{names[0]}_sizes" in arrays:
            # Stacked weights and potentials of the same side are joined too.
            for name in filter(arrays.__contains__, names[1:]):
                arrays[name] = arrays[name].ravel()
    try:
        arrays |= {name: np.concatenate(parts) for name, parts in ragged.items()}
    except ValueError as error:
        raise ProblemError(f"the entries of a list do not fit together: {error}") from None


def _error(status: int, answer: bytes) -> DrainError:
    """Return the exception for an answer that has no results."""
    content = _read_json(answer)
    error, advice = (escape(content.get(name, ""))[:1000] for name in ("error", "what_to_do"))
    message = f"{error}; {advice}" if error else f"the service answered with HTTP status {status}"
    return ProblemError(message) if status in (400, 413, 415, 422) else RemoteError(message, status)


def _read_json(answer: bytes) -> dict[str, Any]:
    try:
        content = json.loads(answer)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _decode(answer: bytes) -> list[RemoteResult]:
    """Return the results that an npz answer holds."""
    try:
        arrays = unpack_arrays(answer, "the answer of the service", lambda size: None)
        return _results(arrays)
    except (FileError, KeyError, ValueError) as error:
        raise RemoteError(f"the answer of the service cannot be read ({error}); check its version", 200) from None


def _results(arrays: dict[str, Array]) -> list[RemoteResult]:
    count = len(arrays["ticket"])
    split = {name: _split(arrays, name) for name in ("f", "g", *ARRAYS)}
    results: list[RemoteResult] = []
    for place in range(count):
        f, g = split["f"][place], split["g"][place]
        emitted = None
        if f is not None and g is not None:
            dtype = str(arrays["dtype"][place])
            emitted = Potentials(f.astype(dtype, copy=False), g.astype(dtype, copy=False))
        has_cost = emitted is not None and "transport" in arrays
        costs = (float(arrays[name][place]) for name in TransportCost._fields) if has_cost else None
        results.append(
            RemoteResult(
                ticket=int(arrays["ticket"][place]),
                status=Status[str(arrays["status"][place])],
                message=escape(arrays["message"][place]),
                depth=int(arrays["depth"][place]),
                residual=Residual(*(float(arrays[name][place]) for name in Residual._fields)),
                emitted=emitted,
                rescued=bool(arrays["rescued"][place]),
                widened=bool(arrays["widened"][place]),
                streamed=bool(arrays["streamed"][place]),
                eps=float(arrays["eps"][place]),
                tol=float(arrays["tol"][place]),
                cost=None if costs is None else TransportCost(*costs),
                **{name: split[name][place] for name in ARRAYS},
            )
        )
    return results


def _split(arrays: dict[str, Array], name: str) -> list[Array | None]:
    """Return the entry of each problem; None where a problem has none."""
    if name not in arrays:
        return [None] * len(arrays["ticket"])
    if f"{name}_sizes" not in arrays:
        return list(arrays[name])
    sizes = arrays[f"{name}_sizes"]
    parts = np.split(arrays[name], np.cumsum(sizes)[:-1]) if len(sizes) else []
    return [part if size else None for part, size in zip(parts, sizes, strict=True)]
