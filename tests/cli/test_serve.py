"""`drain serve` as a process: its address as a line, and a clean end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from urllib.request import urlopen

import numpy as np
import pytest
from typer.testing import CliRunner

import drainsinkhorn as ds
from drainsinkhorn.cli.main import app
from drainsinkhorn.serve import Remote, RemoteError
from tests.conftest import needs

needs("uvicorn")
X, Y = np.random.default_rng(0).normal(size=(2, 3, 8, 2))
LONG = 60.0


@contextmanager
def serving(*options: str, **settings: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running service, and its address."""
    command = [sys.executable, "-m", "drainsinkhorn.cli.main", "serve", "--port", "0", "--backend", "reference"]
    environment = {**os.environ, **settings}
    process = subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    watchdog = threading.Timer(LONG, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        match = re.fullmatch(r"listening on (http://\S+:\d+)\n", line)
        assert match, (line, process.stderr and process.stderr.read())
        yield process, match[1]
    finally:
        process.kill()
        process.communicate()
        watchdog.cancel()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_prints_its_address_and_ends_cleanly(number: signal.Signals) -> None:
    with serving(DRAIN_TOKEN="s3cret") as (process, address):
        with Remote(address, token="s3cret") as remote:
            results = remote.solve(X, Y, eps=0.5)
            expected = ds.solve(X, Y, eps=0.5, backend="reference")
            assert [r.potentials.f.tolist() for r in results] == [e.potentials.f.tolist() for e in expected]
        with Remote(address) as remote, pytest.raises(RemoteError, match="token"):
            remote.solve(X, Y, eps=0.5)
        process.send_signal(number)
        out, err = process.communicate(timeout=LONG)
        assert (process.returncode, out, err) == (0, "", "")


def test_a_second_signal_gives_up_what_is_not_solved() -> None:
    with (
        serving("--max-depth", str(10**9), "--no-rescue", "--grace", "1000") as (process, address),
        Remote(address) as remote,
        ThreadPoolExecutor(1) as threads,
    ):
        call = threads.submit(remote.solve, X[0], Y[0], eps=1e-12, tol=1e-14)
        while b"drain_problems_running 1.0" not in urlopen(f"{address}/metrics", timeout=LONG).read():
            assert not call.done()
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LONG) == 0
        assert [result.status.name for result in call.result()] == ["EXPIRED"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--capacity", "0"], "capacity must be an integer of at least 1"),
        (["--max-body", "-1"], "max_body must be"),
        (["--deadline", "nan"], "deadline is in seconds"),
        (["--port", "70000"], "port must be from 0 to 65535"),
        (["--host", "300.0.0.1\x1b"], "cannot listen on host"),
        (["--mode", "x"], "No such option"),
        (["--backend", "none"], "backend 'none' is unknown"),
        (["--tol", "-1"], "tol must be"),
    ],
    ids=str,
)
def test_invalid_options(options: list[str], text: str) -> None:
    done = CliRunner().invoke(app, ["serve", "--port", "0", *options], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert text in done.output
    assert "\x1b" not in done.output.replace("\x1b[", "")


def test_a_host_that_others_can_reach_is_warned_of() -> None:
    with serving("--host", "0.0.0.0") as (process, address):
        assert address.startswith("http://0.0.0.0:")
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=LONG)
    assert "warning: http://0.0.0.0:" in err
    assert "put a reverse proxy in front of it" in err
