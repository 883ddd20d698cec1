"""The stream behind the service: many clients at once, and streams that follow one another."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.serve import Server
from tests.serve.asking import EASY, LONG, metrics, solve, total, wait_for


async def send_all(server: Server, bodies: list[bytes], connections: int) -> list[list[float]]:
    """Send each body as one request, over so many connections at once; return f of each."""
    waiting, received = list(enumerate(bodies)), dict[int, list[float]]()

    async def work() -> None:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        while waiting:
            place, body = waiting.pop()
            fields = f"POST /solve HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
            writer.write(f"{fields}\r\n\r\n".encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200 "), answer
            length = next(line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            content = json.loads(await reader.readexactly(int(length.partition(b":")[2])))
            received[place] = content["results"][0]["f"]
        writer.close()
        await writer.wait_closed()

    async with asyncio.timeout(2 * LONG):
        await asyncio.gather(*(work() for _ in range(connections)))
    return [received[place] for place in range(len(bodies))]


def test_a_thousand_requests_from_many_connections(server: Server) -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 1000, 8, 2))
    bodies = [json.dumps({"x": p.tolist(), "y": q.tolist(), "eps": 0.5}).encode() for p, q in zip(x, y, strict=True)]
    before = metrics(server)
    received = asyncio.run(send_all(server, bodies, 25))
    expected = ds.solve(x, y, eps=0.5, backend="cpu")
    assert received == [result.potentials.f.tolist() for result in expected]
    after = metrics(server)
    for name, status in (("requests", "200"), ("problems", "CONVERGED")):
        key = f'drain_{name}_total{{status="{status}"}}'
        assert after[key] - before[key] == 1000 + (name == "requests")
    assert after["drain_depth_count"] - before["drain_depth_count"] == 1000
    assert after["drain_depth_sum"] - before["drain_depth_sum"] == sum(result.depth for result in expected)


def test_streams_follow_one_another(slow: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drainsinkhorn.serve.engine.PROBLEMS", 3)
    slots = [metrics(slow)["drain_slots_total"]]
    for _ in range(9):
        assert solve(slow, EASY).status == 200
        slots.append(metrics(slow)["drain_slots_total"])
    assert slots == sorted(slots)
    wait_for(lambda: metrics(slow)["drain_slots_total"] > slots[0])
    assert total(metrics(slow), "drain_problems_total") == 9
