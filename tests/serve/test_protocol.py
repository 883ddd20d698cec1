"""Clients that are slow, broken or gone."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from drainsinkhorn.serve import Server, ServerLimits
from tests.serve.asking import EASY, HARD, LONG, NPZ, ask, metrics, pack, solve, wait_for

BODY = json.dumps(EASY).encode()


def head(length: int, *lines: str) -> bytes:
    fields = ("POST /solve HTTP/1.1", "Host: here", "Content-Type: application/json", f"Content-Length: {length}")
    return "\r\n".join([*fields, *lines, "", ""]).encode()


@contextmanager
def plug(server: Server, *, receive: int | None = None) -> Iterator[socket.socket]:
    """A plain connection; `receive` is the size of its buffer."""
    with socket.socket() as plain:
        if receive is not None:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
        plain.settimeout(LONG)
        plain.connect((server.host, server.port))
        yield plain


def read_all(plain: socket.socket) -> bytes:
    """Everything until the service closes the connection."""
    received = b""
    try:
        while part := plain.recv(2**16):
            received += part
    except ConnectionResetError:
        pass
    return received


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: here\r\nX-A: "], ids=range(3))
def test_a_head_that_does_not_end_is_cut_off(server: Server, sent: bytes) -> None:
    with plug(server) as plain:
        start = time.monotonic()
        plain.sendall(sent)
        assert read_all(plain) == b""
        assert 0.3 < time.monotonic() - start < LONG / 2


def test_a_second_head_that_drips_is_cut_off(server: Server) -> None:
    with plug(server) as plain:
        plain.sendall(head(len(BODY)) + BODY)
        assert plain.recv(12) == b"HTTP/1.1 200"
        start, is_open = time.monotonic(), True
        while is_open and time.monotonic() < start + LONG:
            try:
                plain.sendall(b"X")
                is_open = time.sleep(0.05) is None
            except OSError:
                is_open = False
        assert not is_open


def test_a_body_that_drips_is_refused(server: Server) -> None:
    with plug(server) as plain:
        plain.sendall(head(len(BODY)))
        plain.settimeout(0.05)
        answer, end = b"", time.monotonic() + LONG
        while not answer and time.monotonic() < end:
            try:
                plain.sendall(b" ")
                answer = plain.recv(2**16)
            except TimeoutError:
                pass
        plain.settimeout(LONG)
        answer += read_all(plain)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"did not arrive within 0.5 s" in answer


def test_half_a_body(server: Server) -> None:
    gone = 'drain_requests_total{status="499"}'
    before = metrics(server).get(gone, 0)
    with plug(server) as plain:
        plain.sendall(head(len(BODY)) + BODY[:20])
    wait_for(lambda: metrics(server).get(gone, 0) == before + 1)
    assert solve(server, EASY).status == 200


def test_what_is_no_http(server: Server) -> None:
    for sent in (b"\x16\x03\x01\x02\x00\x01\x00 hello\r\n\r\n", b"POST /solve HTTP/1.1\r\nContent-Length: -1\r\n\r\n"):
        with plug(server) as plain:
            plain.sendall(sent)
            answer = read_all(plain)
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["what_to_do"]


def test_a_body_whose_chunks_are_broken(server: Server) -> None:
    with plug(server) as plain:
        chunked = head(0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        plain.sendall(chunked + b"5\r\nabcdeXX\r\nzz\r\n")
        assert read_all(plain).startswith(b"HTTP/1.1 400 ")
    assert solve(server, EASY).status == 200


def test_a_huge_head(server: Server) -> None:
    with plug(server) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: here\r\nX-A: " + b"a" * 2**15)
        assert read_all(plain).startswith(b"HTTP/1.1 400 ")


def test_a_client_that_takes_no_answer_is_cut_off() -> None:
    limits = ServerLimits(write_timeout=0.3, idle_timeout=1.0)
    # The answer has 10 MB, more than the buffers of the system hold.
    body = pack(x=np.zeros((20_000, 1)), y=np.zeros((1, 1)), eps=np.ones(60))
    with Server(limits=limits, backend="cpu") as server, plug(server, receive=4096) as plain:
        wait_for(lambda: ask(server, "GET", "/health").status == 200)
        fields = head(len(body)).replace(b"application/json", NPZ.encode())
        plain.sendall(fields + body)
        wait_for(lambda: metrics(server)['drain_problems_total{status="CONVERGED"}'] == 60)
        wait_for(lambda: metrics(server)["drain_requests_open"] == 1)
        answer = read_all(plain)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert len(answer) < 9e6


def test_an_early_refusal_reaches_a_client_that_is_still_sending(server: Server) -> None:
    with plug(server) as plain:
        plain.sendall(head(2**21) + bytes(2**21))
        assert plain.recv(2**16).startswith(b"HTTP/1.1 413 ")


def test_a_client_that_asks_before_it_sends(server: Server) -> None:
    with plug(server) as plain:
        plain.sendall(head(2**21, "Expect: 100-continue"))
        assert plain.recv(2**16).startswith(b"HTTP/1.1 413 ")
    with plug(server) as plain:
        plain.sendall(head(len(BODY), "Expect: 100-continue"))
        assert plain.recv(2**16).startswith(b"HTTP/1.1 100 ")
        plain.sendall(BODY)
        assert plain.recv(2**16).startswith(b"HTTP/1.1 200 ")


def test_pipelined_requests(server: Server) -> None:
    with plug(server) as plain:
        plain.sendall(2 * (head(len(BODY)) + BODY) + head(len(BODY), "Connection: close") + BODY)
        assert read_all(plain).count(b"HTTP/1.1 200 ") == 3


def test_problems_of_a_client_that_disconnects_are_cancelled(slow: Server) -> None:
    body = json.dumps(HARD).encode()
    plain = socket.create_connection((slow.host, slow.port))
    plain.sendall(head(len(body)) + body)
    wait_for(lambda: metrics(slow)["drain_problems_running"] == 1)
    plain.close()
    wait_for(lambda: metrics(slow).get('drain_problems_total{status="CANCELLED"}') == 1)
    assert metrics(slow)['drain_requests_total{status="499"}'] == 1
    assert solve(slow, EASY).status == 200


def test_too_many_connections(server: Server) -> None:
    with plug(server) as last:
        others = [socket.create_connection((server.host, server.port)) for _ in range(120)]
        answers = []
        for plain in others:
            plain.settimeout(LONG)
            answers.append(read_all(plain))
        assert read_all(last) == b""
        for plain in others:
            plain.close()
    refused = [answer for answer in answers if answer]
    assert len(refused) >= 20
    assert all(answer.startswith(b"HTTP/1.1 503 ") and b"100 connections are open" in answer for answer in refused)
    assert solve(server, EASY).status == 200
