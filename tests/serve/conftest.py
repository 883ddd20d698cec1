from __future__ import annotations

from collections.abc import Iterator

import pytest

from drainsinkhorn.serve import Server, ServerLimits
from tests.conftest import needs
from tests.serve.asking import Slow, ask, wait_for


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A service with the CPU backend, and small limits on sizes."""
    needs("uvicorn")
    limits = ServerLimits(
        max_body=2**20, max_unpacked=2**22, max_memory=2**24, max_problems=64, max_pairs=10_000, max_connections=100,
        body_timeout=0.5, head_timeout=0.5, write_timeout=0.5, idle_timeout=1.0,
    )  # fmt: skip
    with Server(limits=limits, backend="cpu") as server:
        wait_for(lambda: ask(server, "GET", "/health").status == 200)
        yield server


@pytest.fixture
def slow() -> Iterator[Server]:
    """A service whose backend is slow, and which has room for four problems."""
    needs("uvicorn")
    limits = ServerLimits(capacity=4, max_problems=3, deadline=10.0, max_deadline=30.0)
    with Server(limits=limits, backend=Slow(), grace=0.0, max_depth=10**9, rescue=False) as server:
        wait_for(lambda: ask(server, "GET", "/health").status == 200)
        yield server
