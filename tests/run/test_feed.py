"""The feed and the client: continuous batching of concurrent callers, back-pressure, deadlines, fairness."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.backends.reference import ReferenceBackend, ReferencePack
from drainsinkhorn.core.events import Event, Opened, Repacked
from drainsinkhorn.core.protocol import Hints

LONG = 20.0
"""Seconds after which a test that waits has failed."""


def problem(seed: int = 0, size: int = 20, **changes: Any) -> ds.Problem[Any]:
    rng = np.random.default_rng(seed)
    return ds.Problem(**{"x": rng.normal(size=(size, 2)), "y": rng.normal(size=(size, 2)) + 1, "eps": 0.2} | changes)


HARD = 1e-9
"""An eps at which a lane runs for ever, or to its depth limit."""


@dataclass(frozen=True, slots=True)
class Slow(ReferenceBackend):
    """The reference, a hundredth of a second per call of advance; lines by size."""

    def signature(self, problem: ds.Problem[Any]) -> int:
        return len(problem.x)  # type: ignore[arg-type]

    def pack(self, problems: Sequence[ds.Problem[Any]]) -> ReferencePack:
        return SlowPack(problems)


@dataclass(frozen=True, slots=True)
class Resting(ReferenceBackend):
    """The reference, with audits far apart where lanes that are done rest."""

    def hints(self, instance: Any) -> Hints:
        return ReferenceBackend.hints(self, instance)._replace(held=1000)


class SlowPack(ReferencePack):
    def advance(self, *args: Any, **keywords: Any) -> Any:
        time.sleep(0.01)
        return super().advance(*args, **keywords)


def in_thread(run: Iterator[ds.Result[Any]]) -> tuple[threading.Thread, list[ds.Result[Any]]]:
    seen: list[ds.Result[Any]] = []
    thread = threading.Thread(target=lambda: seen.extend(run), daemon=True)
    thread.start()
    return thread, seen


def test_what_is_pushed_while_the_stream_runs_is_answered_once() -> None:
    feed = ds.Feed[Any](capacity=8)
    thread, seen = in_thread(ds.stream(feed, width=4))
    with ThreadPoolExecutor(6) as pushers:
        answers = list(pushers.map(lambda seed: feed.push(problem(seed, 5 + seed % 7)), range(100)))
    feed.close()
    thread.join(LONG)
    assert not thread.is_alive()
    assert sorted(r.ticket for r in seen) == list(range(100))
    for seed, answer in enumerate(answers):
        result, alone = answer.result(), ds.solve([problem(seed, 5 + seed % 7)])[0]
        assert result in seen
        assert np.array_equal(result.potentials.f, alone.potentials.f)
        assert result.depth == alone.depth


def test_a_stream_does_not_wait_for_more_while_lanes_are_live() -> None:
    feed = ds.Feed[Any]()
    answer = feed.push(problem())
    # Nothing else is pushed and the feed stays open.
    results = ds.stream(feed, width=16)
    assert next(results) is answer.result(0)


def test_problems_join_a_pack_that_is_under_way() -> None:
    events: list[Event] = []
    feed = ds.Feed[Any]()
    slow = feed.push(problem(eps=0.01))
    thread, _ = in_thread(ds.stream(feed, width=4, backend=Slow(), observe=events.append, accelerate="none"))
    while not any(isinstance(event, Opened) for event in events):
        time.sleep(0.001)
    quick = feed.push(problem(1))
    quick.result(LONG)
    assert not slow.done()
    assert [event.admitted for event in events if isinstance(event, Repacked) and event.admitted] == [[1]]
    feed.close()
    thread.join(LONG)
    assert slow.result(0).converged


class TestBackPressure:
    def test_push_waits_for_room(self) -> None:
        feed = ds.Feed[Any](capacity=2)
        feed.push(problem(0))
        feed.push(problem(1))
        with pytest.raises(ds.FeedFull, match="2 problems wait"):
            feed.push(problem(2), timeout=0.05)
        pusher = threading.Thread(target=lambda: feed.push(problem(2)), daemon=True)
        pusher.start()
        time.sleep(0.05)
        assert len(feed) == 2
        results = ds.stream(feed)
        next(results)
        pusher.join(LONG)
        assert not pusher.is_alive()

    def test_an_unread_feed_holds_no_more_than_its_capacity(self) -> None:
        read, feed = [0], ds.Feed[Any](capacity=5)

        def push() -> None:
            with contextlib.suppress(ds.FeedClosed):
                for seed in range(1000):
                    feed.push(problem(seed))
                    read[0] += 1

        pusher = threading.Thread(target=push, daemon=True)
        pusher.start()
        time.sleep(0.1)
        assert read == [5]
        feed.close()
        pusher.join(LONG)
        assert not pusher.is_alive()


class TestEnds:
    def test_closing_answers_what_was_pushed(self) -> None:
        feed = ds.Feed[Any]()
        answers = [feed.push(problem(seed)) for seed in range(3)]
        feed.close()
        assert len(list(ds.stream(feed))) == 3
        assert all(answer.result(0).converged for answer in answers)
        with pytest.raises(ds.FeedClosed, match="was closed"):
            feed.push(problem())

    def test_a_bad_problem_costs_nobody_else_anything(self) -> None:
        with ds.Client() as client:
            bad, good = client.submit(problem(eps=-1.0)), client.submit(problem())
            assert bad.result(LONG).status is ds.Status.INVALID
            assert good.result(LONG).converged

    def test_a_stream_that_fails_fails_every_future(self) -> None:
        client = ds.Client(strict=True)
        answer = client.submit(problem(eps=-1.0))
        with pytest.raises(ds.ProblemError, match="eps must be a positive"):
            answer.result(LONG)
        client._thread.join(LONG)
        with pytest.raises(ds.FeedClosed, match="ProblemError"):
            client.submit(problem())
        client.close()

    @pytest.mark.parametrize("how", ["closed", "forgotten"])
    def test_a_stream_given_up_leaves_nobody_waiting(self, how: str) -> None:
        feed = ds.Feed[Any]()
        answers = [feed.push(problem(seed, eps=0.1 + 0.1 * seed)) for seed in range(4)]
        results = ds.stream(feed, width=1, mode="width-one")
        next(results)
        if how == "closed":
            results.close()
        else:
            del results
        for answer in answers[1:]:
            with pytest.raises(ds.FeedClosed):
                answer.result(LONG)

    def test_one_stream_for_a_feed(self) -> None:
        feed = ds.Feed[Any]()
        ds.stream(feed)
        with pytest.raises(ds.OptionsError, match="another stream reads this Feed"):
            ds.stream(feed)
        with pytest.raises(ds.ProblemError, match="pass it to stream"):
            ds.solve(feed)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ds.Feed(0), "capacity must be an integer"),
        (lambda: ds.Feed(patience=-1), "patience is in seconds"),
        (lambda: ds.Feed[Any]().push(problem(), deadline=0), "deadline is in seconds from now"),
        (lambda: ds.Client(width=0), "width must be"),
    ],
)
def test_bad_settings(make: Any, message: str) -> None:
    with pytest.raises(ds.OptionsError, match=message):
        make()


class TestDeadlines:
    def test_a_lane_leaves_when_its_deadline_comes(self) -> None:
        with ds.Client(backend=Slow(), width=2, max_depth=10**6, accelerate="none") as client:
            endless, good = client.submit(problem(eps=HARD), deadline=0.3), client.submit(problem())
            assert good.result(LONG).converged
            with pytest.raises(ds.DeadlineError):
                endless.result(LONG)
            # The lane is free again: the client can end.
            began = time.monotonic()
        assert time.monotonic() - began < LONG / 2

    def test_its_last_state_is_verified_and_handed_out(self) -> None:
        feed = ds.Feed[Any]()
        answer = feed.push(problem(eps=0.001), deadline=0.05)
        feed.close()
        (result,) = ds.stream(feed, backend=Slow(), max_depth=10**6, accelerate="none", init="zero", warn=False)
        assert result.status is ds.Status.EXPIRED
        assert not result.rescued
        plan = result.plan()
        assert result.residual.row == pytest.approx(np.abs(plan.sum(axis=1) - 1 / 20).sum(), rel=1e-6)
        assert answer.exception().result is result  # type: ignore[union-attr]

    def test_lanes_of_a_feed_are_not_left_alone_for_long(self) -> None:
        seconds = itertools.count()
        feed = ds.Feed[Any](clock=lambda: float(next(seconds)))
        feed.push(problem(eps=HARD), deadline=10)
        quick = feed.push(problem(), deadline=1e9)
        feed.close()
        results = list(ds.stream(feed, backend=Resting(), mode="compact", max_depth=10**6, accelerate="none"))
        assert quick.result(0).converged
        assert all(result.depth < 1000 for result in results)

    def test_what_still_waits_is_never_run(self) -> None:
        feed = ds.Feed[Any]()
        late, good = feed.push(problem(), deadline=0.01), feed.push(problem(1))
        time.sleep(0.02)
        feed.close()
        assert [r.problem for r in ds.stream(feed)] == [good.result(0).problem]
        with pytest.raises(ds.DeadlineError, match="no result before the deadline; pushed"):
            late.result(0)

    def test_waiting_for_a_result_ends_with_the_deadline(self) -> None:
        began = time.monotonic()
        with pytest.raises(ds.DeadlineError):
            ds.Feed[Any]().push(problem(), deadline=0.05).result(LONG)
        with pytest.raises(TimeoutError):
            ds.Feed[Any]().push(problem(), deadline=LONG).result(0.05)
        assert time.monotonic() - began < LONG / 2

    def test_dead_ones_make_room(self) -> None:
        feed = ds.Feed[Any](capacity=1)
        feed.push(problem(), deadline=0.01)
        time.sleep(0.02)
        feed.push(problem(), timeout=0.0)

    def test_cancelled_before_it_was_read(self) -> None:
        feed = ds.Feed[Any]()
        answer = feed.push(problem())
        assert answer.cancel()
        feed.close()
        assert list(ds.stream(feed)) == []
        with pytest.raises(CancelledError):
            answer.result(0)

    def test_cancelled_while_it_is_told_that_it_is_too_late(self, monkeypatch: pytest.MonkeyPatch) -> None:
        feed = ds.Feed[Any]()
        one, other = feed.push(problem()), feed.push(problem())
        deadline_error = type(one).deadline_error

        def cancelled_meanwhile(answer: Any) -> Any:
            answer.cancel()
            return deadline_error(answer)

        monkeypatch.setattr(type(one), "deadline_error", cancelled_meanwhile)
        one.until = -1.0
        feed.close()
        assert [result.ticket for result in ds.stream(feed)] == [0]
        assert one.cancelled()
        assert other.result(LONG).converged


class TestFairness:
    def test_a_trickle_of_one_shape_does_not_starve_another(self) -> None:
        """One shape keeps its pack alive for ever; the other is served within its patience and what was under way."""
        stop = threading.Event()
        with ds.Client(backend=Slow(), width=8, patience=0.1, lookahead=10**6) as client:

            def trickle() -> None:
                seed = 0
                while not stop.is_set():
                    client.submit(problem(seed, 10, eps=1.0))
                    time.sleep(0.005)
                    seed += 1

            pusher = threading.Thread(target=trickle, daemon=True)
            pusher.start()
            time.sleep(0.1)
            began = time.monotonic()
            assert client.submit(problem(0, 21)).result(LONG / 2).converged
            waited = time.monotonic() - began
            stop.set()
            pusher.join(LONG)
        assert waited < 2

    def test_a_failed_problem_is_rescued_though_nothing_else_comes(self) -> None:
        client = ds.Client(max_depth=50, accelerate="none", init="zero", backend="reference")
        result = client.submit(problem(eps=0.02)).result(LONG)
        assert result.rescued
        client.close()


class TestAsyncio:
    def test_concurrent_requests_share_packs(self) -> None:
        events: list[Event] = []

        async def main() -> list[ds.Result[Any]]:
            async with ds.Client(width=8, observe=events.append) as client:
                return await asyncio.gather(*(client.solve(problem(seed, 5 + seed)) for seed in range(24)))

        for seed, result in enumerate(asyncio.run(main())):
            assert result.converged
            assert len(result.potentials.f) == 5 + seed
        assert max(event.width for event in events if hasattr(event, "width")) > 1  # type: ignore[attr-defined]

    def test_deadline(self) -> None:
        async def main() -> None:
            async with ds.Client(backend=Slow(), max_depth=10**6, accelerate="none", width=1) as client:
                with pytest.raises(ds.DeadlineError):
                    await client.solve(problem(eps=HARD), deadline=0.1)
                assert (await client.solve(problem(), deadline=LONG)).converged

        asyncio.run(main())

    def test_a_deadline_while_waiting_for_room(self) -> None:
        async def main() -> None:
            client = ds.Client(backend=Slow(), max_depth=10**6, accelerate="none", width=1, capacity=1)
            async with client:
                first = asyncio.create_task(client.solve(problem(eps=HARD), deadline=0.5))
                await asyncio.sleep(0.01)
                with pytest.raises(ds.DeadlineError, match=r"no result before the deadline of 0\.05 s"):
                    await client.solve(problem(), deadline=0.05)
                with pytest.raises(ds.DeadlineError):
                    await first

        asyncio.run(main())

    def test_a_cancelled_task_frees_its_lane(self) -> None:
        async def main() -> None:
            async with ds.Client(backend=Slow(), max_depth=10**6, accelerate="none", width=1) as client:
                task = asyncio.create_task(client.solve(problem(eps=HARD)))
                await asyncio.sleep(0.1)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert (await client.solve(problem())).converged

        asyncio.run(main())

    def test_many_clients_with_mixed_shapes(self) -> None:
        """The minute-long form is benchmarks/faults.py feed."""

        async def one(client: ds.Client, seed: int, until: float) -> int:
            count, loop = 0, asyncio.get_running_loop()
            while loop.time() < until:
                result = await client.solve(problem(seed, 4 + (seed * 7 + count) % 40))
                assert result.converged
                count += 1
            return count

        async def main() -> list[int]:
            async with ds.Client(capacity=32) as client:
                await client.solve(problem())
                until = asyncio.get_running_loop().time() + 1.0
                return await asyncio.wait_for(asyncio.gather(*(one(client, seed, until) for seed in range(64))), LONG)

        assert min(asyncio.run(main())) >= 1
