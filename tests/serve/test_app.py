"""The routes: every status, limits of sizes, hostile bodies, deadlines, a full queue."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.serve import Server, ServerLimits
from tests.serve.asking import (
    EASY,
    HARD,
    JSON,
    NPZ,
    Reply,
    Slow,
    ask,
    metrics,
    pack,
    problem_of,
    solve,
    total,
    wait_for,
)

rng = np.random.default_rng(0)
X, Y = rng.normal(size=(2, 3, 8, 2))


def is_refused(reply: Reply, status: int, text: str) -> bool:
    """True for an error of this status whose JSON object says what is wrong and what to do."""
    content = reply.content
    assert (reply.status, reply.headers["content-type"]) == (status, JSON), reply
    assert text in content["error"], content
    assert content["what_to_do"]
    assert b"Traceback" not in reply.body
    assert all(32 <= byte < 127 or byte == 10 for byte in reply.body)
    assert all(text.isprintable() for text in (content["error"], content["what_to_do"]))
    return True


class TestResults:
    def test_json(self, server: Server) -> None:
        reply = solve(server, EASY, "?tol=1e-6&want=cost,map,matches,map_col,matches_col")
        [expected] = ds.solve([problem_of(EASY)], tol=1e-6, backend="cpu")
        assert reply.status == 200
        [result] = reply.content["results"]
        assert result["f"] == expected.potentials.f.tolist()
        assert result["g"] == expected.potentials.g.tolist()
        assert (result["status"], result["depth"], result["tol"]) == ("CONVERGED", expected.depth, 1e-6)
        assert [result["row"], result["col"], result["band"]] == list(expected.residual)
        assert result["message"] == expected.message
        assert result["cost"] == expected.transport_cost()._asdict()
        assert result["map"] == expected.barycentric_map().tolist()
        assert result["map_col"] == expected.barycentric_map("col").tolist()
        assert result["matches"] == expected.top_match().tolist()
        assert result["matches_col"] == expected.top_match("col").tolist()

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_npz_equals_solve_to_the_bit(self, server: Server, dtype: str) -> None:
        x, y = X.astype(dtype), Y.astype(dtype)
        reply = solve(server, pack(x=x, y=y, eps=[0.2, 0.5, 1.0]), "?want=map,cost", Content_Type=NPZ)
        expected = ds.solve(x, y, eps=np.array([0.2, 0.5, 1.0]), backend="cpu")
        assert (reply.status, reply.headers["content-type"]) == (200, NPZ)
        arrays = reply.arrays
        assert arrays["f"].dtype == dtype
        assert np.array_equal(arrays["f"], expected.potentials.f)
        assert np.array_equal(arrays["g"], expected.potentials.g)
        assert np.array_equal(arrays["map"], np.stack([result.barycentric_map() for result in expected]))
        assert arrays["transport"].tolist() == [result.transport_cost().transport for result in expected]
        assert arrays["row"].tolist() == [result.residual.row for result in expected]

    def test_unequal_sizes_in_json(self, server: Server) -> None:
        x, a = [X[0, :5].tolist(), X[1].tolist()], [[1.0] * 5, [2.0] * 8]
        results = solve(server, {"x": x, "y": Y[0].tolist(), "a": a, "eps": [0.5, 0.6]}).content["results"]
        expected = ds.solve([X[0, :5], X[1]], Y[0], a=[np.ones(5), np.ones(8)], eps=[0.5, 0.6], backend="cpu")
        assert [result["f"] for result in results] == [each.potentials.f.tolist() for each in expected]

    def test_matrices(self, server: Server) -> None:
        cost = rng.uniform(size=(2, 4, 5))
        ragged = {"cost": [cost[0].tolist(), cost[1, :3].tolist()], "eps": 0.5}
        results = solve(server, ragged).content["results"]
        expected = ds.solve(cost=[cost[0], cost[1, :3]], eps=0.5, backend="cpu")
        assert [result["g"] for result in results] == [each.potentials.g.tolist() for each in expected]
        assert is_refused(solve(server, ragged, "?want=map"), 422, "want=map")

    @pytest.mark.parametrize(
        ("sent", "accept", "got"),
        [(JSON, "*/*", JSON), (NPZ, "*/*", NPZ), (JSON, NPZ, NPZ), (NPZ, JSON, JSON), (NPZ, "text/html", JSON)],
    )
    def test_accept(self, server: Server, sent: str, accept: str, got: str) -> None:
        body = json.dumps(EASY).encode() if sent == JSON else pack(**EASY)
        reply = solve(server, body, Content_Type=sent, Accept=accept)
        assert (reply.status, reply.headers["content-type"]) == (200, got)

    def test_a_batch_has_a_result_for_each_problem_and_a_single_invalid_one_is_refused(self, server: Server) -> None:
        bad = X.copy()
        bad[1, 2, 0] = np.nan
        reply = solve(server, pack(x=bad, y=Y, eps=0.5), "?want=cost,map,matches", Content_Type=NPZ, Accept=JSON)
        results = reply.content["results"]
        assert [result["status"] for result in results] == ["CONVERGED", "INVALID", "CONVERGED"]
        assert "x[2, 0] is nan" in results[1]["message"]
        assert results[1]["f"] is results[1]["row"] is results[1]["cost"] is results[1]["map"] is None
        assert results[2]["f"] == ds.solve(X, Y, eps=0.5, backend="cpu")[2].potentials.f.tolist()
        arrays = solve(server, pack(x=bad, y=Y, eps=0.5), "?want=map", Content_Type=NPZ).arrays
        assert arrays["f_sizes"].tolist() == arrays["map_sizes"].tolist() == [8, 0, 8]
        assert is_refused(solve(server, pack(x=bad[1], y=Y[1], eps=0.5), Content_Type=NPZ), 422, "x[2, 0] is nan")
        assert is_refused(solve(server, {**EASY, "eps": -1}), 422, "eps must be a positive finite number")

    def test_no_problems(self, server: Server) -> None:
        assert solve(server, pack(x=X[:0], y=Y[:0], eps=0.5), Content_Type=NPZ).arrays["ticket"].tolist() == []


class TestRefusals:
    def test_pages(self, server: Server) -> None:
        assert b"POST /solve" in ask(server, "GET", "/").body
        health = ask(server, "GET", "/health")
        assert (health.status, health.content) == (200, {"status": "ready", "backend": "cpu"})
        assert ask(server, "GET", "/metrics").headers["content-type"].startswith("text/plain; version=0.0.4")

    def test_paths_and_methods(self, server: Server) -> None:
        assert is_refused(ask(server, "GET", "/nowhere%1b[31m"), 404, "GET /nowhere\\x1b[31m is not there")
        assert is_refused(ask(server, "POST", "/solve/", EASY), 404, "/solve/")
        for method, path in (("GET", "/solve"), ("DELETE", "/solve"), ("POST", "/health"), ("OPTIONS", "/")):
            reply = ask(server, method, path)
            assert is_refused(reply, 405, f"does not take {method}")
            assert reply.headers["allow"]

    @pytest.mark.parametrize(
        "query",
        [
            "?deadline=0", "?deadline=-1", "?deadline=nan", "?deadline=1e9", "?deadline=", "?tol=x%1b", "?tol=inf",
            "?want=cost,plan", "?depth=3", "?tol=1&tol=2",
        ],
    )  # fmt: skip
    def test_parameters(self, server: Server, query: str) -> None:
        assert is_refused(solve(server, EASY, query), 400, query[1:].partition("=")[0])

    @pytest.mark.parametrize("headers", [{}, {"Content_Type": "text/plain"}, {"Content_Encoding": "gzip"}], ids=str)
    def test_types(self, server: Server, headers: dict[str, str]) -> None:
        given = {"Content_Type": JSON, **headers} if "Content_Encoding" in headers else headers
        assert is_refused(solve(server, json.dumps(EASY).encode(), **given), 415, "JSON or npz")

    @pytest.mark.parametrize(
        ("body", "text"),
        [
            (b"", "JSON"),
            (b"{", "JSON"),
            (b"[1, 2]", "must be a JSON object, got list"),
            (b"\xff\xfe\xfa", "JSON"),
            (b"[" * 60_000, "JSON"),
            (b'{"x": [[NaN]], "y": [[1]], "eps": 1}', "NaN is not JSON"),
            (b'{"x": [[-Infinity]], "y": [[1]], "eps": 1}', "Infinity is not JSON"),
            (b'{"x": [[%s]], "y": [[1]], "eps": 1}' % (b"9" * 5000), "digits"),
            (b'{"x": [[%s]], "y": [[1]], "eps": 1}' % (b"9" * 400), "x must hold numbers"),
            (b'{"x": [[9007199254740993]], "y": [[1]], "eps": 1}', "above 2^53"),
            (b'{"x": [[1], [2, 3]], "y": [[1]], "eps": 1}', "x"),
            (b'{"x": [[1], ["a"]], "y": [[1]], "eps": 1}', "x must hold numbers"),
            (b'{"x": %s1%s, "y": [[1]], "eps": 1}' % (b"[" * 200, b"]" * 200), ""),
            (b'{"x": {"a": 1}, "y": [[1]], "eps": 1}', "x must hold numbers"),
            (b'{"x": [[true]], "y": [[1]], "eps": 1}', "x must hold numbers"),
            (b'{"x": null, "y": [[1]], "eps": 1}', "x must hold numbers"),
            (b'{"x": [[1]], "y": [[1]], "epsilon": 1}', "it is eps here"),
            (b'{"x": [[1]], "y": [[1]], "eps": 1, "\\u001b[31m\\ud800": 1}', "unknown key"),
            (b'{"x": [[1]], "y": [[1]], "eps": 1, "format": 2}', "format"),
            (b'{"x": [[1]], "y": [[1]], "eps": 1, "x_sizes": [1.5]}', "x_sizes must hold integers"),
            (b'{"x": [[1]], "y": [[1]], "eps": 1, "x_sizes": [7]}', "sizes add up to 7"),
            (b'{"x": [[[1]], [[1], [2]]], "y": [[1]], "eps": 1, "x_sizes": [1, 2]}', "leave the sizes out"),
            (b'{"x": [[1]], "y": [[1]], "eps": 1, "scale": [[1], [1, 2]]}', "body"),
        ],
        ids=range(23),
    )
    def test_hostile_json(self, server: Server, body: bytes, text: str) -> None:
        assert is_refused(solve(server, body, Content_Type=JSON), 400, text)

    @pytest.mark.parametrize(
        ("body", "text"),
        [
            (b"", "npz"),
            (b"PK\x03\x04 and no more", "npz"),
            (pack(**EASY)[:-30], "npz"),
            (pack(x=np.array([object()]), eps=1.0), "pickle"),
            (pack(**EASY, z=1), "unknown key 'z'"),
            (pack(**{f"k{i}": 0 for i in range(65)}), "more than 64 arrays"),
        ],
        ids=range(6),
    )
    def test_hostile_npz(self, server: Server, body: bytes, text: str) -> None:
        assert is_refused(solve(server, body, Content_Type=NPZ), 400, text)

    def test_wrong_dtypes_are_invalid_problems(self, server: Server) -> None:
        for points in (np.zeros((4, 2), complex), np.full((4, 2), "a"), np.zeros((4, 2), "M8[s]"), np.zeros(4)):
            reply = solve(server, pack(x=points, y=np.zeros((4, 2)), eps=1.0), Content_Type=NPZ)
            assert is_refused(reply, 422, "")

    def test_sizes(self, server: Server) -> None:
        def chunks() -> Iterator[bytes]:
            for _ in range(40):
                yield bytes(2**16)

        assert is_refused(solve(server, bytes(2**20 + 1), Content_Type=NPZ), 413, "the limit is 1,048,576")
        assert is_refused(solve(server, chunks(), Content_Type=NPZ), 413, "the limit is 1,048,576")
        assert is_refused(solve(server, bytes(2**18 + 1), Content_Type=JSON), 413, "the limit is 262,144")
        many = pack(x=X[0], y=Y[0], eps=np.ones(65))
        assert is_refused(solve(server, many, Content_Type=NPZ), 413, "65 problems, and the limit is 64")
        large = pack(x=np.zeros((101, 1)), y=np.zeros((100, 1)), eps=1.0)
        assert is_refused(solve(server, large, Content_Type=NPZ), 413, "101 x 100 pairs")
        uneven = {"x": [[[0.0]] * (1 + i % 2) for i in range(65)], "y": [[0.0]], "eps": 1}
        assert is_refused(solve(server, uneven), 413, "65 entries of unequal sizes")

    def test_zip_bombs(self, server: Server, tmp_path: Any) -> None:
        np.savez_compressed(tmp_path / "bomb.npz", x=np.zeros((2**19, 2)), y=Y[0], eps=1.0)
        bomb = (tmp_path / "bomb.npz").read_bytes()
        assert len(bomb) < 2**16
        assert is_refused(solve(server, bomb, Content_Type=NPZ), 413, "unpacks to 8,3")

    def test_memory_of_results(self, server: Server) -> None:
        # A body of 64 KiB whose results would take 64 times as much, in two copies.
        wide = pack(x=np.zeros((9000, 1)), y=np.zeros((1, 1)), eps=np.ones(64))
        assert is_refused(solve(server, wide, "?want=map", Content_Type=NPZ), 413, "the request and its results")


class TestDeadlines:
    def test_a_late_problem_has_what_was_reached(self, slow: Server) -> None:
        reply = solve(slow, HARD, "?deadline=0.3")
        assert is_refused(reply, 504, "EXPIRED: ")
        [result] = reply.content["results"]
        assert (result["status"], len(result["f"])) == ("EXPIRED", 3)
        assert result["depth"] > 0
        assert result["row"] > 0

    def test_a_batch_says_which_problems_were_late(self, slow: Server) -> None:
        body = {"x": [HARD["x"], EASY["x"]], "y": EASY["y"], "eps": [1e-9, 0.5]}
        reply = solve(slow, body, "?deadline=0.5")
        assert reply.status == 200
        assert [result["status"] for result in reply.content["results"]] == ["EXPIRED", "CONVERGED"]

    def test_a_full_queue(self, slow: Server) -> None:
        with ThreadPoolExecutor(4) as threads:
            late = [threads.submit(solve, slow, HARD, "?deadline=1") for _ in range(4)]
            wait_for(lambda: metrics(slow)["drain_requests_open"] == 5)
            wait_for(lambda: metrics(slow)["drain_problems_running"] + metrics(slow)["drain_problems_waiting"] == 4)
            reply = solve(slow, EASY)
            assert is_refused(reply, 429, "the limit is 4")
            assert float(reply.headers["retry-after"]) > 0
            assert [each.result().status for each in late] == [504] * 4
        assert solve(slow, EASY).status == 200


class TestFailures:
    def test_a_stream_that_fails_is_replaced(self, slow: Server, caplog: pytest.LogCaptureFixture) -> None:
        reply = solve(slow, {**EASY, "x": [[0.0, 1.0]] * 13})
        assert is_refused(reply, 500, "RuntimeError: 13 points\\x1b[31m")
        assert solve(slow, EASY).status == 200
        assert "a new one is opened" in caplog.text
        counted = metrics(slow)
        assert counted['drain_problems_total{status="FAILED"}'] == 1
        assert counted['drain_problems_total{status="CONVERGED"}'] == 1

    def test_an_error_of_the_service_has_no_traceback(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("drainsinkhorn.serve.app.encode", lambda *_: 1 / 0)
        assert is_refused(solve(server, EASY), 500, "ZeroDivisionError")


class TestToken:
    def test_the_token_is_required(self) -> None:
        with Server(backend="reference", token="s3cret") as server:
            assert ask(server, "GET", "/health").status in (200, 503)
            for headers in ({}, {"Authorization": "Bearer s3cre"}, {"Authorization": "Bearer s3cret\xff"}):
                reply = solve(server, EASY, **headers)
                assert is_refused(reply, 401, "token")
                assert reply.headers["www-authenticate"] == "Bearer"
                assert ask(server, "GET", "/metrics", **headers).status == 401
            assert solve(server, EASY, Authorization="Bearer s3cret").status == 200


class TestMetrics:
    def test_they_add_up(self) -> None:
        with Server(backend="reference", limits=ServerLimits(max_problems=8)) as server:
            wait_for(lambda: ask(server, "GET", "/health").status == 200)
            before = metrics(server)
            sent = [solve(server, EASY) for _ in range(5)]
            sent.append(solve(server, pack(x=X, y=Y, eps=[0.5, -1.0, 0.5]), Content_Type=NPZ))
            sent += [solve(server, {"z": 1}), ask(server, "GET", "/nowhere"), solve(server, {**EASY, "eps": 0})]
            after = metrics(server)

        def change(name: str) -> float:
            return total(after, name) - total(before, name)

        assert change("drain_requests_total") == len(sent) + 1
        assert change("drain_request_seconds_count") == len(sent) + 1
        for status in {reply.status for reply in sent}:
            expected = sum(reply.status == status for reply in sent) + (status == 200)
            key = f'drain_requests_total{{status="{status}"}}'
            assert after[key] - before.get(key, 0) == expected
        assert change("drain_problems_total") == 5 + 3
        assert after['drain_problems_total{status="INVALID"}'] == 1
        assert after["drain_depth_count"] == 8
        assert change("drain_slots_total") > 0
        assert total(after, "drain_problems_running") == total(after, "drain_problems_waiting") == 0

    def test_starting(self) -> None:
        gate = threading.Event()

        class Gated(Slow):
            def pack(self, problems: Any) -> Any:
                gate.wait()
                return super(Slow, self).pack(problems)

        with Server(backend=Gated()) as server:
            reply = ask(server, "GET", "/health")
            assert (reply.status, reply.content["status"]) == (503, "starting")
            assert metrics(server)["drain_ready"] == 0
            gate.set()
            wait_for(lambda: ask(server, "GET", "/health").status == 200)
            assert metrics(server)["drain_ready"] == 1
