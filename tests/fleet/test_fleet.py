"""Fleets: the same results to the bit as one stream, whatever happens to their workers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.backends import load
from drainsinkhorn.core.events import Event, Finished, Lost, Reported
from drainsinkhorn.fleet import wire, worker
from drainsinkhorn.fleet.fleet import Fleet
from drainsinkhorn.fleet.worker_run import Assignment, Windows
from drainsinkhorn.model.errors import FleetError
from drainsinkhorn.parallel import LocalFleet, RayFleet
from tests.conftest import needs
from tests.faulty import FILLS, HANGS, KILLS, RAISES, Harmful, assert_same, batch

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def local() -> Iterator[Fleet]:
    with LocalFleet(2) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def on_ray() -> Iterator[Fleet]:
    needs("ray")
    with RayFleet(workers=2) as fleet:
        yield fleet


@pytest.fixture(params=["local", "on_ray"])
def fleet(request: pytest.FixtureRequest) -> Fleet:
    return request.getfixturevalue(request.param)


class Watch:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def mixed() -> list[ds.Problem[Any]]:
    """One of each kind that a problem can be."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(12, 3)), rng.normal(size=(15, 3))
    weights = rng.uniform(size=12)
    return [
        ds.Problem(x=x, y=y, eps=0.5),
        ds.Problem(x=np.float32(x), y=np.float32(y), eps=np.float32(0.5)),
        ds.Problem(x=x.tolist(), y=y.tolist(), eps=1),  # type: ignore[arg-type]
        ds.Problem(x=x, y=y, eps=0.5, a=weights, b=np.full(15, weights.sum() / 15)),
        ds.Problem(x=x, y=y, eps=0.5, tol=1e-6, cost="euclidean", init="zero"),
        ds.Problem(x=x, y=y, eps=0.5, cost=ds.Cost("cosine", 2.0)),
        ds.Problem(cost=rng.uniform(size=(9, 11)), eps=0.1),
        ds.Problem(x=x, y=y, eps=0.5, init=ds.Potentials(np.zeros(12), np.ones(15))),
        ds.Problem(x=x, y=y, eps=np.array(0.5)),  # type: ignore[arg-type]
        ds.Problem(x=x, y=y, eps=1e-5),
        ds.Problem(x=x, y=y, eps=-1.0),
        ds.Problem(x=x, y=y, eps="no"),  # type: ignore[arg-type]
        ds.Problem(x=np.ma.masked_array(x, x > 1), y=y, eps=0.5),
        ds.Problem(x=x, y=y[:, :2], eps=0.5),
        ds.Problem(x=x + 1j, y=y, eps=0.5),
        ds.Problem(x=x, y=y, eps=0.5, init={1}),  # type: ignore[arg-type]
        ds.Problem(x=x, y=y, eps=0.5, chain=[1]),  # type: ignore[arg-type]
        ds.Problem(x=x[0], y=y, eps=0.5),
        ds.Problem(eps=0.5),
        "no problem at all",  # type: ignore[list-item]
    ]


class TestSameResults:
    def test_every_kind_of_problem(self, fleet: Fleet) -> None:
        run = fleet.stream(mixed(), max_depth=300, warn=False)
        assert_same(list(run), list(ds.solve(mixed(), max_depth=300, warn=False)))

    def test_many(self, fleet: Fleet) -> None:
        problems, watch = batch(400), Watch()
        truth = ds.solve(problems)
        run = fleet.stream(iter(problems), observe=watch)
        assert_same(list(run), list(truth))
        assert run.ledger.slots == truth.ledger.slots == sum(truth.ledger.depths.values())
        assert run.ledger.depths == truth.ledger.depths
        assert run.ledger.static_slots >= run.ledger.slots
        assert sorted(event.ticket for event in watch.of(Finished)) == list(range(400))
        assert not watch.of(Lost)

    @pytest.mark.parametrize("library", ["torch", "jax"])
    def test_results_come_back_in_the_callers_library(self, library: str, local: Fleet) -> None:
        module = needs(library)
        make = module.tensor if library == "torch" else module.numpy.asarray
        problems = [ds.Problem(x=make(np.float32(p.x)), y=make(np.float32(p.y)), eps=p.eps) for p in batch(6)]
        if library == "torch":
            problems.append(ds.Problem(x=problems[0].x.bfloat16(), y=problems[0].y.bfloat16(), eps=0.3))
            problems.append(replace(problems[-1], tol=0.3))
            problems.append(ds.Problem(x=problems[0].x, y=np.asarray(problems[0].y), eps=0.3))
        assert_same(list(local.stream(problems, warn=False)), list(ds.solve(problems, warn=False)))

    def test_chains(self, fleet: Fleet) -> None:
        problems = [ds.Problem(x=p.x, y=p.y, eps=p.eps, chain=i % 4) for i, p in enumerate(batch(40))]
        assert_same(list(fleet.stream(problems)), list(ds.solve(problems)))

    def test_a_chain_goes_on_after_a_bad_problem(self, local: Fleet) -> None:
        problems = [ds.Problem(x=p.x, y=p.y, eps=p.eps, chain=i % 2) for i, p in enumerate(batch(12))]
        problems[0] = ds.Problem(x=problems[0].x * np.nan, y=problems[0].y, eps=0.5, chain=0)
        problems[5] = ds.Problem(x=problems[5].x * np.nan, y=problems[5].y, eps=0.5, chain=1)
        assert_same(list(local.stream(problems, warn=False)), list(ds.solve(problems, warn=False)))

    def test_formulas_travel(self, local: Fleet) -> None:
        needs("pykeops")
        formula = ds.Formula("Sqrt(SqDist(x, y) + IntCst(1))")
        costs = (formula, ds.Cost(formula), ds.Cost(formula, 2.0), "sqeuclidean")
        problems = [ds.Problem(x=p.x, y=p.y, eps=0.5, cost=cost) for p, cost in zip(batch(4), costs, strict=True)]
        found = list(local.stream(problems, backend="reference"))
        assert all(result.converged for result in found)
        assert_same(found, list(ds.solve(problems, backend="reference")))

    def test_a_cost_function_of_ott_is_refused(self, local: Fleet) -> None:
        fn = needs("ott.geometry.costs").PNormP(1.5)
        x = np.zeros((4, 2))
        problems = [ds.Problem(x=x, y=x, eps=1.0, cost=cost) for cost in (fn, ds.Cost(fn), "sqeuclidean")]
        *bad, good = sorted(local.stream(problems, backend="cpu", warn=False), key=lambda result: result.ticket)
        for result in bad:
            assert result.status is ds.Status.INVALID
            assert "the cost PNormP does not travel to the workers of a fleet; use solve or stream" in result.message
        assert good.converged

    def test_arrays_that_are_shared_stay_shared(self, local: Fleet) -> None:
        cost = np.random.default_rng(0).uniform(size=(20, 20))
        problems = ds.problems(cost=cost, a=np.random.default_rng(1).uniform(size=(30, 20)), eps=0.1)
        assert_same(list(local.stream(problems)), list(ds.solve(problems)))

    def test_workers_report_where_they_stand(self, local: Fleet) -> None:
        watch = Watch()
        list(local.stream(batch(60), backend=Harmful(pause=0.02), width=4, observe=watch))
        assert {event.worker for event in watch.of(Reported)} == {0, 1}
        assert all(0 < event.live <= 4 for event in watch.of(Reported))

    def test_an_iterable_that_raises_costs_nothing_that_was_read(self, local: Fleet) -> None:
        def failing() -> Iterator[ds.Problem[Any]]:
            yield from batch(10)
            raise KeyError("no more")

        run, seen = local.stream(failing()), list[int]()
        with pytest.raises(KeyError, match="no more"):
            seen.extend(result.ticket for result in run)
        assert sorted(seen) == list(range(10))

    def test_strict(self, local: Fleet) -> None:
        problems = [*batch(5), ds.Problem(x=np.zeros((3, 2)), y=np.ones((3, 2)), eps=-1.0), "none"]
        with pytest.raises(ds.ProblemError, match="eps must be a positive"):
            list(local.stream(problems[:6], strict=True))
        with pytest.raises(ds.ProblemError, match="problem 5: expected a Problem"):
            list(local.stream([*problems[:5], problems[6]], strict=True))
        assert len(list(local.stream(batch(5)))) == 5


class TestWindows:
    def test_windows_are_read_in_the_order_in_which_they_came(self) -> None:
        windows, problems = Windows(), batch(5)
        assert not windows.ready()
        windows.push(wire.send([7, 3], problems[:2]))
        windows.push(wire.send([], []))
        windows.push(wire.send([9, 1, 4], problems[2:]))
        assert windows.ready()
        windows.close()
        read = list(windows)
        assert windows.tickets == [7, 3, 9, 1, 4]
        assert all(np.array_equal(got.x, given.x) for got, given in zip(read, problems, strict=True))
        assert windows.ready(), "the end is there"

    def test_a_problem_is_overdue_after_a_while(self, monkeypatch: pytest.MonkeyPatch) -> None:
        windows = Windows()
        windows.push(wire.send([5], batch(1)))
        next(windows)
        assert not windows.overdue(0)
        monkeypatch.setattr("drainsinkhorn.fleet.worker_run.PATIENCE", -1.0)
        assert windows.overdue(0)

    def test_a_window_is_for_one_stream(self) -> None:
        windows = Windows()
        windows.claim()
        with pytest.raises(ds.OptionsError, match="another stream"):
            windows.claim()

    @pytest.mark.parametrize("most", [1000, 10**9])
    def test_arrays_lie_where_their_layout_says(
        self, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        arrays = [np.arange(n).astype(dtype) for n in range(400) for dtype in ("f8", ">f4", "i2", "?")[: 1 + n % 4]]

        def few(handle: int, parts: list[Any]) -> int:
            """A system that takes some bytes of what it is given."""
            assert len(parts) <= wire.PARTS
            return os.write(handle, b"".join(part.tobytes() for part in parts)[:most])

        monkeypatch.setattr(os, "writev", few)
        with (tmp_path / "block").open("w+b") as file:
            wire.write(file.fileno(), wire.pieces(arrays))
        rows, size = wire.layout(arrays)
        found = wire.views((tmp_path / "block").read_bytes(), rows)
        assert (tmp_path / "block").stat().st_size == size
        for array, view in zip(arrays, found, strict=True):
            assert array.dtype == view.dtype
            assert np.array_equal(array, view)


def killer(fleet: Fleet, kills: int, how: signal.Signals, seed: int = 0) -> threading.Thread:
    """Does this to a random worker every now and then."""
    rng = np.random.default_rng(seed)

    def run() -> None:
        for _ in range(kills):
            time.sleep(0.2 + 0.2 * rng.random())
            try:
                os.kill(fleet.pool.pid(int(rng.integers(fleet.pool.size))), how)  # type: ignore[attr-defined]
            except (KeyError, ProcessLookupError):
                continue

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


class TestLoss:
    def test_kill_nine_of_random_workers(self, local: Fleet) -> None:
        problems, watch = batch(600), Watch()
        backend = Harmful(pause=0.002)
        run = local.stream(problems, backend=backend, width=8, observe=watch)
        results = [next(run)]
        thread = killer(local, 3, signal.SIGKILL)
        results += run
        thread.join()
        assert_same(results, list(ds.solve(problems, backend=backend)))
        assert watch.of(Lost)
        assert all("SIGKILL" in event.reason for event in watch.of(Lost))

    def test_kill_nine_of_ray_workers(self, on_ray: Fleet) -> None:
        problems, watch = batch(300), Watch()
        backend = Harmful(pause=0.005)
        run = on_ray.stream(problems, backend=backend, width=8, observe=watch)
        results = [next(run)]
        pid = on_ray.pool.pid(0)  # type: ignore[attr-defined]
        os.kill(pid, signal.SIGKILL)
        results += run
        assert_same(results, list(ds.solve(problems, backend=backend)))
        assert len(watch.of(Lost)) == 1

    def test_a_worker_that_stands_still(self) -> None:
        problems, watch = batch(300), Watch()
        with LocalFleet(2, hang=1.5) as fleet:
            run = fleet.stream(problems, backend=Harmful(pause=0.01), width=4, observe=watch)
            results = [next(run)]
            while all(event.worker != 1 for event in watch.of(Reported)):
                results.append(next(run))
            os.kill(fleet.pool.pid(1), signal.SIGSTOP)  # type: ignore[attr-defined]
            results += run
        assert_same(results, list(ds.solve(problems, backend=Harmful())))
        # A start that is slower than that is given up too, and begins again.
        assert [event.reason for event in watch.of(Lost) if event.tickets] == ["it said nothing for 1.5 s"]

    def test_a_worker_that_is_stopped_before_it_is_ready(self, monkeypatch: pytest.MonkeyPatch) -> None:
        problems, watch, begun = batch(6), Watch(), time.monotonic()
        with LocalFleet(1, hang=2.0) as fleet:
            start = fleet.pool.start

            def start_and_stop(worker: int, assignment: Any) -> None:
                start(worker, assignment)
                os.kill(fleet.pool.pid(worker), signal.SIGSTOP)  # type: ignore[attr-defined]
                monkeypatch.setattr(fleet.pool, "start", start)

            monkeypatch.setattr(fleet.pool, "start", start_and_stop)
            results = list(fleet.stream(problems, backend="reference", observe=watch))
        assert_same(results, list(ds.solve(problems, backend="reference")))
        assert watch.of(Lost)[0].reason == "it was not ready after 2 s"
        assert time.monotonic() - begun < 60

    def test_a_worker_that_takes_nothing(self) -> None:
        with LocalFleet(1, hang=1.0) as fleet:
            pool: Any = fleet.pool
            pool.start(0, Assignment(ds.Options(), load("reference"), 1))
            os.kill(pool.pid(0), signal.SIGSTOP)
            begun = time.monotonic()
            # More than a socket holds.
            pool._write(0, worker.frame("window", "x" * 10**7))
            assert time.monotonic() - begun < 10
            assert [(who, message.kind, message.body) for who, message in pool.wait(5.0)] == [
                (0, "died", "it took nothing for 1 s")
            ]

    @pytest.mark.parametrize(
        ("harm", "reason"),
        [(KILLS, "SIGKILL"), (HANGS, "said nothing for"), (RAISES, "kernel panic"), (FILLS, "cannot allocate")],
    )
    def test_a_problem_that_kills_workers_is_quarantined(self, harm: float, reason: str) -> None:
        problems, watch = batch(24), Watch()
        problems[9] = ds.Problem(x=problems[9].x, y=problems[9].y, eps=harm)
        truth = list(ds.solve([*problems[:9], *problems[10:]], backend="reference"))
        with LocalFleet(2, hang=1.0 if harm == HANGS else 60.0, strikes=2) as fleet:
            run = fleet.stream(problems, backend=Harmful(), observe=watch, warn=False)
            results = sorted(run, key=lambda r: r.ticket)
        assert [r.ticket for r in results] == list(range(24))
        culprit = results.pop(9)
        assert culprit.status is ds.Status.QUARANTINED
        assert "2 workers were lost while they had this problem and no other" in culprit.message
        assert reason in culprit.message
        for found, true in zip(results, truth, strict=True):
            assert np.array_equal(found.potentials.f, true.potentials.f)
        assert len([event for event in watch.of(Lost) if event.tickets]) <= 8

    def test_on_ray_too(self, on_ray: Fleet) -> None:
        problems = batch(6)
        problems[2] = ds.Problem(x=problems[2].x, y=problems[2].y, eps=KILLS)
        with pytest.warns(ds.ConvergenceWarning, match="1 QUARANTINED"):
            results = sorted(on_ray.stream(problems, backend=Harmful()), key=lambda r: r.ticket)
        assert [r.status is ds.Status.QUARANTINED for r in results] == [False, False, True, False, False, False]

    def test_workers_go_when_the_program_is_killed(self, tmp_path: Path) -> None:
        program = (
            "import sys, time; from drainsinkhorn.parallel import LocalFleet; from tests.faulty import *\n"
            "fleet = LocalFleet(2); run = fleet.stream(batch(10**4), backend=Harmful(pause=0.01)); next(run)\n"
            "print(fleet.pool.pid(0), fleet.pool.pid(1), flush=True); list(run)"
        )
        child = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        pids = [int(pid) for pid in child.stdout.readline().split()]
        child.kill()
        child.wait()
        child.stdout.close()
        until = time.monotonic() + 10
        while any(Path(f"/proc/{pid}").exists() for pid in pids):
            assert time.monotonic() < until, "workers outlived their fleet"
            time.sleep(0.05)


class TestFormats:
    """Ends of two versions refuse each other with a sentence, and read nothing of what the other says."""

    @pytest.mark.parametrize("fleet", ["local", "on_ray"], indirect=True)
    def test_a_worker_of_another_version(self, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(wire, "FORMAT", 99)
        with pytest.raises(FleetError, match=r"could not start: messages have format .* install the same one"):
            list(fleet.stream(batch(2), backend="reference"))

    @pytest.mark.parametrize("header", [worker.HEADER.pack(worker.MARK, 99, 2, 0), b"\2" + bytes(23)], ids=["99", "1"])
    def test_a_fleet_of_another_version(self, header: bytes) -> None:
        ours, theirs = socket.socketpair()
        program = "from drainsinkhorn.fleet.worker import main; main()"
        with ours, theirs:
            handle = theirs.fileno()
            child = subprocess.Popen([sys.executable, "-c", program, str(handle)], pass_fds=[handle])
            theirs.close()
            ours.sendall(header)
            with ours.makefile("rb") as file:
                said = file.read()
        assert child.wait(10) == 1
        text, _ = worker.sizes(said)
        message = worker.unframe(said[worker.HEADER.size :][:text], b"")
        assert message.kind == "failed"
        assert f"format {99 if worker.MARK in header else 1} at one end and {wire.FORMAT} at the other" in message.body


class TestUse:
    def test_a_journal_is_kept_by_the_fleet(self, local: Fleet, tmp_path: Path) -> None:
        problems = batch(120)
        run = local.stream(iter(problems), journal=tmp_path / "j", backend=Harmful(pause=0.01), width=4)
        seen = {next(run).ticket for _ in range(30)}
        run.close()
        again = local.stream(iter(problems), journal=tmp_path / "j", backend=Harmful(), width=4)
        assert_same(list(again), list(ds.solve(problems, backend=Harmful())))
        assert not seen & set(again.ledger.depths)
        assert len(again.ledger.depths) <= 90

    def test_a_stream_that_is_never_read_gives_its_journal_back(self, local: Fleet, tmp_path: Path) -> None:
        run = local.stream(batch(3), journal=tmp_path / "j")
        run.close()
        assert_same(list(ds.stream(batch(3), journal=tmp_path / "j")), list(ds.solve(batch(3))))

    def test_a_feed_and_its_futures(self, fleet: Fleet) -> None:
        problems, feed = batch(40), ds.Feed[Any](capacity=8)
        run, seen = fleet.stream(feed), list[Any]()
        thread = threading.Thread(target=lambda: seen.extend(run), daemon=True)
        thread.start()
        answers = [feed.push(problem) for problem in problems]
        # The feed is still open: nobody waits for more.
        assert_same([answer.result(20) for answer in answers], list(ds.solve(problems)))
        feed.close()
        thread.join(20)
        assert len(seen) == 40

    def test_a_client_of_a_fleet(self, local: Fleet) -> None:
        async def main() -> list[ds.Result[Any]]:
            async with ds.Client(through=local.stream) as client:
                return await asyncio.gather(*map(client.solve, batch(20)))

        results = asyncio.run(main())
        truth = ds.solve(batch(20))
        assert all(np.array_equal(r.potentials.f, truth[i].potentials.f) for i, r in enumerate(results))

    def test_a_stream_given_up_leaves_a_fleet_that_works(self, local: Fleet) -> None:
        run = local.stream(batch(200), backend=Harmful(pause=0.01))
        next(run)
        with pytest.raises(FleetError, match="has a stream under way"):
            local.stream(batch(3))
        run.close()
        assert_same(list(local.stream(batch(20))), list(ds.solve(batch(20))))

    def test_a_stream_forgotten_leaves_a_fleet_that_works(self, local: Fleet, tmp_path: Path) -> None:
        for _ in local.stream(batch(200), backend=Harmful(pause=0.01)):
            break
        with contextlib.suppress(ValueError):
            for _ in local.stream(batch(200), backend=Harmful(pause=0.01)):
                raise ValueError("of the caller")
        local.stream(batch(3), journal=tmp_path / "j")
        assert_same(list(local.stream(batch(20), journal=tmp_path / "j")), list(ds.solve(batch(20))))

    def test_a_forgotten_stream_that_refers_to_itself(self, local: Fleet) -> None:
        watch = Watch()
        run = local.stream(batch(20), observe=watch)
        watch.events.append(run)  # type: ignore[arg-type]
        del run, watch
        assert_same(list(local.stream(batch(20))), list(ds.solve(batch(20))))

    def test_a_closed_fleet(self) -> None:
        fleet = LocalFleet(1)
        with fleet:
            run = fleet.stream(batch(3))
        fleet.close()
        assert list(run) == []
        with pytest.raises(FleetError, match="this fleet is closed"):
            fleet.stream(batch(3))

    def test_nothing_to_do(self, fleet: Fleet) -> None:
        assert list(fleet.stream([])) == []

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: LocalFleet(0), "workers must be an integer"),
            (lambda: LocalFleet(1, cores=0), "cores must be an integer"),
            (lambda: LocalFleet(1, hang=0), "hang is in seconds"),
            (lambda: LocalFleet(1, strikes=0), "strikes must be"),
            (lambda: LocalFleet(2, devices=[0]), "one GPU for each worker"),
            (lambda: RayFleet(gpus=-1), "gpus must not be negative"),
        ],
    )
    def test_bad_settings(self, make: Any, message: str) -> None:
        with pytest.raises(ds.OptionsError, match=message):
            make()

    def test_a_backend_that_cannot_travel(self, local: Fleet) -> None:
        class Nowhere(Harmful):
            pass

        with pytest.raises(ds.OptionsError, match="must be picklable"):
            list(local.stream(batch(2), backend=Nowhere()))

    def test_each_worker_has_its_device(self) -> None:
        with LocalFleet(devices=[3, 5]) as fleet:
            run = fleet.stream(batch(4), backend="reference")
            next(run)
            for worker, device in ((0, b"3"), (1, b"5")):
                environment = Path(f"/proc/{fleet.pool.pid(worker)}/environ").read_bytes()  # type: ignore[attr-defined]
                assert b"CUDA_VISIBLE_DEVICES=" + device + b"\0" in environment


def test_ray_listens_on_loopback_alone(on_ray: Fleet) -> None:
    """Sockets of all processes that this one started, Ray's servers among them."""
    list(on_ray.stream(batch(4)))
    mine = {os.getpid()}
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(status.parent.name)] = int(status.read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
    for _ in range(5):
        mine |= {pid for pid, parent in parents.items() if parent in mine}
    inodes = set()
    for pid in mine:
        for handle in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                target = os.readlink(handle)
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    listening = [
        fields[1]
        for table in ("tcp", "tcp6")
        for fields in map(str.split, Path(f"/proc/net/{table}").read_text().splitlines()[1:])
        if fields[3] == "0A" and fields[9] in inodes
    ]
    assert len(listening) >= 3, "Ray's servers were not found"
    assert all(address.split(":")[0].endswith("0100007F") for address in listening), listening


class OtherRay(ModuleType):
    """Another version of Ray, reduced to what starts a fleet; it listens at `address` unless clusters are ruled out."""

    def __init__(self, address: str, constants: SimpleNamespace | None = None, fails: bool = False) -> None:
        super().__init__("ray")
        self.address, self.constants, self.fails, self.stopped = address, constants, fails, False
        if constants is not None:
            self._private = SimpleNamespace(ray_constants=constants)
        self.util = SimpleNamespace(get_node_ip_address=lambda: self.address)

    def is_initialized(self) -> bool:
        return False

    def init(self, address: str, *, _node_ip_address: str, **_: Any) -> None:
        if not getattr(self.constants, "ENABLE_RAY_CLUSTER", True):
            self.address = _node_ip_address
        if self.fails:
            raise ConnectionError("no cluster")

    def nodes(self) -> list[Any]:
        return [{"Alive": True, "Resources": {"CPU": 2.0}}]

    def remote(self, _: type) -> Any:
        return SimpleNamespace(options=lambda **_: None)

    def shutdown(self) -> None:
        self.stopped = True


class TestOtherVersionsOfRay:
    def test_the_constant_is_set_only_while_ray_starts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        constants = SimpleNamespace(ENABLE_RAY_CLUSTER=True)
        other = OtherRay("192.0.2.7", constants)
        monkeypatch.setitem(sys.modules, "ray", other)
        RayFleet().close()
        assert other.address == "127.0.0.1"
        assert constants.ENABLE_RAY_CLUSTER is True

    def test_the_constant_is_restored_when_ray_does_not_start(self, monkeypatch: pytest.MonkeyPatch) -> None:
        constants = SimpleNamespace(ENABLE_RAY_CLUSTER=1)
        monkeypatch.setitem(sys.modules, "ray", OtherRay("192.0.2.7", constants, fails=True))
        with pytest.raises(FleetError, match="no Ray cluster answers at 'local': no cluster"):
            RayFleet()
        assert constants.ENABLE_RAY_CLUSTER == 1

    @pytest.mark.parametrize("constants", [None, SimpleNamespace()], ids=["no module", "no constant"])
    def test_without_the_constant_the_address_decides(
        self, constants: SimpleNamespace | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "ray", OtherRay("127.0.0.1", constants))
        RayFleet().close()
        other = OtherRay("192.0.2.7", constants)
        monkeypatch.setitem(sys.modules, "ray", other)
        with pytest.raises(FleetError, match=r"listens at 192\.0\.2\.7, and not on loopback alone"):
            RayFleet()
        assert other.stopped


def test_ray_that_is_not_there() -> None:
    needs("ray")
    program = "from drainsinkhorn.parallel import RayFleet; RayFleet('127.0.0.1:1')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "no Ray cluster answers at '127.0.0.1:1'" in done.stderr


@pytest.mark.parametrize("where", [["--workers", "2"], ["--ray", "local", "--workers", "2"]], ids=["local", "ray"])
def test_the_command_line_on_a_fleet(where: list[str], tmp_path: Path) -> None:
    if "--ray" in where:
        needs("ray")
    source, here, there = tmp_path / "in.npz", tmp_path / "here.npz", tmp_path / "there.npz"
    rng = np.random.default_rng(0)
    np.savez(source, x=rng.normal(size=(9, 14, 2)), y=rng.normal(size=(9, 15, 2)), eps=0.1)
    for out, options in ((here, []), (there, where)):
        command = [sys.executable, "-m", "drainsinkhorn.cli.main", "solve", source, "-o", out, *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert "9 of 9 problems converged" in done.stdout
    saved, truth = np.load(there), np.load(here)
    assert np.array_equal(saved["f"], truth["f"])
    assert np.array_equal(saved["depth"], truth["depth"])
