"""The Python client: results equal to those of `solve` to the bit, retries, kept connections, errors."""

from __future__ import annotations

import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.serve import Remote, RemoteError, Server, ServerLimits
from drainsinkhorn.serve.client import encode_problems
from tests.serve.asking import EASY, HARD, Slow, ask, metrics, same, wait_for

rng = np.random.default_rng(0)
X, Y = rng.normal(size=(2, 3, 9, 2))
CLOUDS = [X[0], X[1, :4], X[2, :7]]
WEIGHTS = [rng.dirichlet(np.full(len(cloud), 5.0)) for cloud in CLOUDS]
START = ([np.zeros(len(cloud)) for cloud in CLOUDS], [np.zeros(9)] * 3)
CASES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "stacked": ((X, Y), {"eps": 0.5}),
    "float32": ((X.astype("float32"), Y.astype("float32")), {"eps": 0.5, "tol": 1e-6}),
    "float32 widened": ((X.astype("float32"), Y.astype("float32")), {"eps": 0.5, "tol": [1e-9, 1e-2, 1e-9]}),
    "shared": ((X[0], Y[0]), {"eps": [0.5, 0.6, 0.7], "tol": 1e-5}),
    "one": ((X[0], Y[0]), {"eps": 0.5}),
    "lists": ((X[0].tolist(), Y[0].tolist()), {"eps": 0.5}),
    "unequal": ((CLOUDS, Y[0]), {"eps": 0.5, "a": WEIGHTS, "b": np.full(9, 1 / 9)}),
    "unequal on both sides": ((CLOUDS, CLOUDS[::-1]), {"eps": [0.5, 0.6, 0.7]}),
    "starts": ((CLOUDS, Y), {"eps": 0.5, "init": START, "a": WEIGHTS}),
    "named cost": ((X, Y), {"eps": 0.5, "cost": ds.Cost("euclidean", 2.0)}),
    "matrices": ((), {"eps": 0.5, "cost": rng.uniform(size=(2, 4, 5))}),
    "unequal matrices": ((), {"eps": 0.5, "cost": [rng.uniform(size=(4, 5)), rng.uniform(size=(3, 6))]}),
}


@pytest.mark.parametrize("case", CASES)
def test_results_equal_those_of_solve(server: Server, case: str) -> None:
    points, options = CASES[case]
    with Remote(server.address) as remote:
        results = remote.solve(*points, **options)
    expected = ds.solve(*points, **options, backend="cpu", warn=False)
    assert same(results, expected)
    assert [result.ticket for result in results] == list(range(len(expected)))
    assert [result.widened for result in results] == [result.widened for result in expected]
    assert results[0].message == expected[0].message
    assert results[0].converged
    assert results[0].map is results[0].cost is None


@pytest.mark.parametrize("eps", [None, ds.relative(0.0123456789, of="std"), ds.sharpness(0.3)], ids=str)
@pytest.mark.parametrize("is_one", [True, False])
def test_an_eps_that_is_found_from_the_cost(server: Server, eps: Any, is_one: bool) -> None:
    points = (CLOUDS[0], Y) if is_one else (CLOUDS, Y)
    with Remote(server.address) as remote:
        results = remote.solve(*points, eps=eps)
        with pytest.raises(ds.ProblemError, match="a text has no place for within="):
            remote.solve(*points, eps=ds.sharpness(0.3, within=0.3))
    expected = ds.solve(*points, eps=eps, backend="cpu")
    assert [result.eps for result in results] == pytest.approx([result.eps for result in expected], rel=1e-6)


def test_widened_and_plain_potentials_in_one_answer(server: Server) -> None:
    points, options = CASES["float32 widened"]
    with Remote(server.address) as remote:
        results = remote.solve(*points, **options)
    assert [result.potentials.f.dtype.name for result in results] == ["float64", "float32", "float64"]


def test_what_is_wanted(server: Server) -> None:
    with Remote(server.address) as remote:
        results = remote.solve(CLOUDS, Y, eps=[0.5, -1, 0.5], want=["cost", "map", "map_col", "matches", "matches_col"])
    solved = ds.solve(CLOUDS, Y, eps=[0.5, -1, 0.5], backend="cpu", warn=False)
    for place in (0, 2):
        result, expected = results[place], solved[place]
        assert result.cost == expected.transport_cost()
        assert np.array_equal(result.map, expected.barycentric_map())
        assert np.array_equal(result.map_col, expected.barycentric_map("col"))
        assert np.array_equal(result.matches, expected.top_match())
        assert np.array_equal(result.matches_col, expected.top_match("col"))
    invalid = results[1]
    assert invalid.status is ds.Status.INVALID
    assert invalid.cost is invalid.map is invalid.matches is invalid.emitted is None
    with pytest.raises(ds.ProblemError, match="eps must be a positive finite number"):
        _ = invalid.potentials


def test_a_late_problem_is_a_result(slow: Server) -> None:
    with Remote(slow.address) as remote:
        [result] = remote.solve(HARD["x"], HARD["y"], eps=HARD["eps"], deadline=0.3)
    assert result.status is ds.Status.EXPIRED
    assert result.depth > 0
    assert np.isfinite(result.potentials.f).all()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"eps": 0.0, "x": X, "y": Y}, "eps must be a positive finite number"),
        ({"eps": 0.5, "x": X, "y": Y[:2]}, "do not agree on the number of problems"),
        ({"eps": 0.5, "x": X, "y": Y, "want": ["plan"]}, "known are cost"),
        ({"eps": 0.5, "x": X, "y": Y, "deadline": -1}, "deadline must be a positive number"),
        ({"eps": np.ones(65), "x": X[0], "y": Y[0]}, "the limit is 64"),
        ({"eps": 0.5, "x": np.zeros((70_000, 2)), "y": Y[0]}, "the limit is 1,048,576"),
        ({"eps": 0.5, "x": [X[0], X[1].astype("f4")], "y": Y[0]}, "several dtypes"),
        ({"eps": 0.5, "x": X, "y": Y, "cost": ds.Cost(ds.Distances())}, "by name"),
        ({"eps": 0.5, "x": [X[0], X[1, :, :1]], "y": Y[0]}, "do not fit together"),
    ],
    ids=range(9),
)
def test_requests_that_cannot_be_solved(server: Server, arguments: dict[str, Any], text: str) -> None:
    with Remote(server.address) as remote, pytest.raises(ds.ProblemError, match=text):
        remote.solve(**arguments)


def test_one_problem_has_an_axis_of_problems() -> None:
    arrays = encode_problems(X[0], Y[0], eps=0.5, a=None, b=None, init=None, cost="cosine", tol=None)
    assert arrays["eps"].shape == (1,)
    assert set(arrays) == {"format", "x", "y", "eps", "cost", "scale"}


def test_a_full_service_is_asked_again(slow: Server) -> None:
    with Remote(slow.address) as remote, ThreadPoolExecutor(12) as threads:
        calls = [threads.submit(remote.solve, EASY["x"], EASY["y"], eps=0.01, tol=1e-6) for _ in range(12)]
        assert all(call.result()[0].converged for call in calls)
    counted = metrics(slow)
    assert counted['drain_requests_total{status="429"}'] > 0
    assert counted['drain_problems_total{status="CONVERGED"}'] == 12


def test_a_service_that_stays_full_is_given_up(slow: Server) -> None:
    with ThreadPoolExecutor(4) as threads, Remote(slow.address) as patient:
        for _ in range(4):
            threads.submit(patient.solve, HARD["x"], HARD["y"], eps=1e-9, deadline=2.0)
        wait_for(lambda: metrics(slow)["drain_requests_open"] == 5)
        with Remote(slow.address, timeout=0.5) as hasty, pytest.raises(RemoteError, match="wait or run") as caught:
            hasty.solve(EASY["x"], EASY["y"], eps=0.5)
    assert caught.value.status == 429


def test_connections_are_kept_and_renewed() -> None:
    limits = ServerLimits(max_connections=1, idle_timeout=1.0)
    with Server(backend="reference", limits=limits) as server, Remote(server.address, timeout=10.0) as remote:
        for _ in range(5):
            remote.solve(X, Y, eps=0.5)
        # A request over a connection of its own is one too many.
        assert "1 connections are open" in ask(server, "GET", "/health").content["error"]
        time.sleep(1.5)
        assert remote.solve(X, Y, eps=0.5)[0].converged
    with Remote(server.address) as remote, pytest.raises(RemoteError, match="gave no answer") as caught:
        remote.health()
    assert caught.value.status is None


def test_a_connection_in_use_is_closed_after_its_answer(slow: Server) -> None:
    with ThreadPoolExecutor(1) as threads, Remote(slow.address) as remote:
        call = threads.submit(remote.solve, HARD["x"], HARD["y"], eps=1e-9, deadline=0.5)
        wait_for(lambda: metrics(slow)["drain_problems_running"] == 1)
    # An open socket would be a ResourceWarning, which is an error here.
    assert call.result()[0].status is ds.Status.EXPIRED


def test_a_time_out() -> None:
    with Server(backend=Slow(), max_depth=10**9, rescue=False, grace=0.0) as server:
        with Remote(server.address, timeout=0.3) as remote, pytest.raises(RemoteError, match="gave no answer"):
            remote.solve(HARD["x"], HARD["y"], eps=1e-9)
        # The service notices that the client is gone.
        wait_for(lambda: metrics(server).get('drain_problems_total{status="CANCELLED"}') == 1)


def test_token_and_health() -> None:
    with Server(backend="reference", token="s3cret") as server:
        with Remote(server.address, token="s3cret") as remote:
            assert remote.solve(X, Y, eps=0.5)[0].converged
            assert remote.health()["backend"] == "reference"
        with Remote(server.address + "/") as remote, pytest.raises(RemoteError, match="token") as caught:
            remote.solve(X, Y, eps=0.5)
    assert caught.value.status == 401
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.status) == (str(caught.value), 401)


def test_invalid_arguments() -> None:
    for arguments in ({"address": "127.0.0.1:80"}, {"address": "ftp://here"}, {"address": "http://a", "timeout": 0}):
        with pytest.raises(ds.OptionsError):
            Remote(**arguments)
