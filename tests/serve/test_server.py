"""Start and stop of the service: nothing that was accepted is lost."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.serve import Server, ServerLimits
from tests.conftest import needs
from tests.serve.asking import EASY, HARD, LONG, NPZ, Reply, Slow, ask, connect, metrics, pack, solve, wait_for

needs("uvicorn")


def test_invalid_arguments() -> None:
    for arguments in ({"token": ""}, {"token": "a\n"}, {"grace": -1}, {"mode": "none"}, {"port": 2**16}, {"port": -1}):
        with pytest.raises(ds.OptionsError):
            Server(**arguments)  # type: ignore[arg-type]
    with Server(backend="reference") as server, pytest.raises(ds.OptionsError, match="cannot listen"):
        Server(port=server.port)


def test_a_backend_that_cannot_run_raises_at_the_start() -> None:
    with pytest.raises(ds.OptionsError, match="unknown"), Server(backend="none"):
        pass


@pytest.mark.parametrize(("host", "expected"), [("127.0.0.1", True), ("localhost", True), ("0.0.0.0", False)])
def test_loopback(host: str, expected: bool) -> None:
    with Server(host=host, backend="reference") as server:
        assert server.is_loopback == expected


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ds.BackendUnavailable, match=r"drainsinkhorn\[serve\]"):
        Server()


def test_accepted_problems_are_finished_under_load() -> None:
    server = Server(backend=Slow(), grace=10.0)
    replies: list[Reply | str] = []

    def send() -> None:
        while not (replies and isinstance(replies[-1], str)):
            try:
                replies.append(solve(server, EASY))
            except ConnectionRefusedError:
                replies.append("refused")
            except ConnectionResetError:
                # The connection was in the queue of the closed socket: no byte of it was read.
                replies.append("reset")

    with server:
        senders = [threading.Thread(target=send) for _ in range(8)]
        for sender in senders:
            sender.start()
        wait_for(lambda: len(replies) > 20)
    for sender in senders:
        sender.join()
    answered = [reply for reply in replies if isinstance(reply, Reply)]
    assert {reply.status for reply in answered} <= {200, 503}
    for reply in answered:
        if reply.status == 200:
            assert reply.content["results"][0]["status"] == "CONVERGED"
        else:
            assert reply.content["error"] == "the service is stopping"


def test_problems_are_given_up_after_the_grace() -> None:
    server = Server(backend=Slow(), grace=0.3, max_depth=10**9, rescue=False)
    both = pack(x=np.array([HARD["x"], HARD["x"]]), y=EASY["y"], eps=[0.5, 1e-9])
    with ThreadPoolExecutor(2) as threads, server:
        wait_for(lambda: ask(server, "GET", "/health").status == 200)
        single = threads.submit(solve, server, HARD)
        batch = threads.submit(solve, server, both, Content_Type=NPZ)
        wait_for(lambda: metrics(server)['drain_problems_total{status="CONVERGED"}'] == 1)
        start = time.monotonic()
        server.stop()
        wait_for(lambda: ask(server, "GET", "/health").content["status"] == "stopping")
        refused = solve(server, EASY)
        assert (refused.status, refused.content["error"]) == (503, "the service is stopping")
        reply = single.result()
        assert time.monotonic() - start < 5
        assert reply.status == 503
        assert len(reply.content["results"][0]["f"]) == 3
        # What was finished is not lost.
        arrays = batch.result().arrays
        assert arrays["status"].tolist() == ["CONVERGED", "EXPIRED"]
        assert np.array_equal(
            arrays["f"][0], ds.solve(HARD["x"], EASY["y"], eps=0.5, backend="reference")[0].potentials.f
        )


def test_a_body_that_is_not_complete_does_not_delay_the_end() -> None:
    with Server(backend="reference", limits=ServerLimits(body_timeout=100.0)) as server:
        connection = connect(server)
        connection.putrequest("POST", "/solve")
        for name, text in (("Content-Type", "application/json"), ("Content-Length", "100")):
            connection.putheader(name, text)
        connection.endheaders(b"{")
        wait_for(lambda: metrics(server)["drain_requests_open"] == 2)
        start = time.monotonic()
        server.stop()
        response = connection.getresponse()
        assert (response.status, b"stopping" in response.read()) == (503, True)
        connection.close()
    assert time.monotonic() - start < 5


def test_an_answer_that_is_being_taken_is_sent_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drainsinkhorn.serve.server.FLUSH", 0.1)
    body = pack(x=np.zeros((20_000, 1)), y=np.zeros((1, 1)), eps=np.ones(60))
    with Server(backend="cpu") as server, contextlib.closing(socket.socket()) as plain:
        # A small buffer: a half of the 10 MB is still in the service when it is told to stop.
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**19)
        plain.settimeout(LONG)
        plain.connect((server.host, server.port))
        fields = f"POST /solve HTTP/1.1\r\nHost: h\r\nContent-Type: {NPZ}\r\nContent-Length: {len(body)}\r\n\r\n"
        plain.sendall(fields.encode() + body)
        received = plain.recv(4096)
        server.stop()
        wait_for(lambda: ask(server, "GET", "/health").content["status"] == "stopping")
        time.sleep(1.5)
        while part := plain.recv(2**16):
            received += part
    answer = Reply(200, {}, received.partition(b"\r\n\r\n")[2])
    assert answer.arrays["f"].shape == (60, 20_000)
