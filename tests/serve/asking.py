"""Servers and requests for the tests of the service."""

from __future__ import annotations

import http.client
import io
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import drainsinkhorn as ds
from drainsinkhorn.backends.reference import ReferenceBackend, ReferencePack
from drainsinkhorn.serve import Server

LONG = 20.0
"""Seconds after which a test that waits has failed."""
JSON, NPZ = "application/json", "application/x-npz"
EASY = {"x": [[0.0, 0.0], [1.0, 0.5]], "y": [[0.0, 1.0], [2.0, 2.0]], "eps": 0.5}
HARD = {**EASY, "x": [[0.0, 0.0], [1.0, 0.5], [3.0, 1.0]], "eps": 1e-9}
"""A lane of it runs until its deadline."""


class SlowPack(ReferencePack):
    """The reference, a hundredth of a second per call of advance."""

    def advance(self, *args: Any, **keywords: Any) -> Any:
        time.sleep(0.01)
        return super().advance(*args, **keywords)


@dataclass(frozen=True, slots=True)
class Slow(ReferenceBackend):
    """The reference, slowed down; a problem of 13 source points ends the stream with an error."""

    def pack(self, problems: Sequence[Any]) -> ReferencePack:
        if any(len(problem.a) == 13 for problem in problems):
            raise RuntimeError("13 points\x1b[31m")
        return SlowPack(problems, self.max_bytes, momentum=self.acceleration == "momentum")


class Reply(NamedTuple):
    """The answer to one request."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def content(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body, parse_constant=lambda name: 1 / 0)

    @property
    def arrays(self) -> dict[str, Any]:
        """The body as npz."""
        with np.load(io.BytesIO(self.body), allow_pickle=False) as archive:
            return dict(archive)


def connect(server: Server) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(server.host, server.port, timeout=LONG)


def ask(server: Server, method: str, path: str, body: Any = None, **headers: str) -> Reply:
    """Send one request over a connection of its own; an object is sent as JSON, an iterable of bytes in chunks."""
    if isinstance(body, dict):
        body, headers = json.dumps(body), {"Content-Type": JSON, **headers}
    connection = connect(server)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): text for name, text in headers.items()})
        response = connection.getresponse()
        return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()


def solve(server: Server, body: Any, query: str = "", **headers: str) -> Reply:
    return ask(server, "POST", f"/solve{query}", body, **headers)


def pack(**arrays: Any) -> bytes:
    """An npz body."""
    body = io.BytesIO()
    np.savez(body, **arrays)
    return body.getvalue()


def metrics(server: Server) -> dict[str, float]:
    """The metrics, by name and labels."""
    lines = ask(server, "GET", "/metrics").body.decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def total(values: dict[str, float], name: str) -> float:
    """The sum of a metric over its labels."""
    return sum(value for key, value in values.items() if re.match(rf"{name}($|{{)", key))


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end, "waited for too long"
        time.sleep(0.01)


def same(results: Sequence[Any], solution: Sequence[Any]) -> bool:
    """True if two sequences of results are equal to the bit, dtypes included."""
    return len(results) == len(solution) and all(
        one.status is other.status
        and one.depth == other.depth
        and np.array_equal(one.residual, other.residual)
        and all(
            p.dtype == q.dtype and np.array_equal(p, q) for p, q in zip(one.potentials, other.potentials, strict=True)
        )
        for one, other in zip(results, solution, strict=True)
    )


def problem_of(body: dict[str, Any]) -> ds.Problem[Any]:
    return ds.Problem(x=np.array(body["x"]), y=np.array(body["y"]), eps=body["eps"])
