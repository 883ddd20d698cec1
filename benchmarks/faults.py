"""A soak of faults: kill workers, kill the program, crowd the feed, and see that nothing is lost, doubled or changed.

    python benchmarks/faults.py workers            # kill -9 of a random worker ten times in a stream of 2,000 problems
    python benchmarks/faults.py workers --ray      # the same on a Ray cluster of this machine
    python benchmarks/faults.py program            # kill -9 of the whole program at 20 random moments, with a journal
    python benchmarks/faults.py feed               # 64 asyncio clients with mixed shapes for a minute
    python benchmarks/faults.py rows               # 2 and 4 gloo ranks against one; a rank that dies

Every task ends with an assertion that holds or fails; what it prints is for the record.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

import drainsinkhorn as ds
from drainsinkhorn.core.events import Event, Lost, Opened, Repacked, Resumed
from drainsinkhorn.parallel import LocalFleet, RayFleet, RowShardedBackend

COUNT = 2000


def problems(count: int, seed: int = 0) -> Iterator[ds.Problem[Any]]:
    """Clouds of 100 to 300 points, of depths from ten to a few hundred."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        n, m = rng.integers(100, 300, size=2)
        x, y = rng.normal(size=(n, 3)), 0.5 + rng.normal(size=(m, 3))
        yield ds.Problem(x=x, y=y, eps=float(10 ** rng.uniform(-2, -0.5)))


def check(results: dict[int, ds.Result[Any]], truth: list[ds.Result[Any]]) -> None:
    """To the bit what the undisturbed run has."""
    assert sorted(results) == list(range(len(truth)))
    for ticket, true in enumerate(truth):
        found = results[ticket]
        assert (found.status, found.depth, found.residual) == (true.status, true.depth, true.residual), ticket
        assert all(np.array_equal(p, q) for p, q in zip(found.potentials, true.potentials, strict=True)), ticket


def once(run: Iterator[ds.Result[Any]]) -> dict[int, ds.Result[Any]]:
    results: dict[int, ds.Result[Any]] = {}
    for result in run:
        assert result.ticket not in results, f"problem {result.ticket} was answered twice"
        results[result.ticket] = result
    return results


def workers(kills: int, *, on_ray: bool) -> None:
    truth = list(ds.stream(problems(COUNT)))
    truth.sort(key=lambda r: r.ticket)
    lost: list[Lost] = []
    done, killed, rng = threading.Event(), [0], random.Random()

    def watch(event: Event) -> None:
        if isinstance(event, Lost):
            lost.append(event)

    with RayFleet(workers=2) if on_ray else LocalFleet(2) as fleet:

        def kill() -> None:
            while killed[0] < kills and not done.is_set():
                time.sleep(rng.uniform(0.1, 0.8))
                try:
                    os.kill(fleet.pool.pid(rng.randrange(2)), signal.SIGKILL)  # type: ignore[attr-defined]
                    killed[0] += 1
                except Exception:  # noqa: BLE001  it was dead already
                    continue

        run = fleet.stream(problems(COUNT), observe=watch)
        began = time.perf_counter()
        first = next(run)
        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        results = once(run)
        results[first.ticket] = first
        seconds = time.perf_counter() - began
        done.set()
        killer.join()
    assert killed[0] == kills, f"the stream was over after {killed[0]} kills"
    check(results, truth)
    rerun = sum(len(event.tickets) for event in lost)
    print(
        f"{type(fleet).__name__}: {killed[0]} kills of a random worker in {seconds:.1f} s, {len(lost)} losses seen, "
        f"{rerun} reruns; {len(results)} problems answered once each, to the bit as undisturbed"
    )


PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[3])
import drainsinkhorn as ds
from faults import problems
from drainsinkhorn.core.events import Opened, Repacked, Resumed
log = open(sys.argv[2], "a")
def say(*row):
    log.write(json.dumps(row) + "\\n")
    log.flush()
def watch(event):
    if isinstance(event, Resumed): say("known", event.known, event.torn)
    if isinstance(event, Opened): say("ran", event.tickets)
    if isinstance(event, Repacked): say("ran", event.admitted)
for result in ds.stream(problems(int(sys.argv[4])), journal=sys.argv[1], observe=watch):
    say("out", result.ticket)
say("end")
"""


def program(kills: int) -> None:
    # More than a program can solve between so many kills.
    count = 1000 * kills
    truth = sorted(ds.stream(problems(count)), key=lambda r: r.ticket)
    rng = random.Random()
    with tempfile.TemporaryDirectory() as folder:
        journal, log = Path(folder) / "journal", Path(folder) / "log"
        done = 0
        while done < kills:
            child = subprocess.Popen([sys.executable, "-c", PROGRAM, journal, log, Path(__file__).parent, str(count)])
            time.sleep(rng.uniform(0.2, 3.0))
            assert child.poll() is None, f"the program was over after {done} kills; take more problems"
            child.kill()
            child.wait()
            done += 1
        runs: list[dict[str, Any]] = []
        for line in log.read_text().splitlines():
            what, *rest = json.loads(line)
            if what == "known":
                runs.append({"known": rest[0], "torn": rest[1], "ran": set(), "out": set()})
            else:
                runs[-1][what].update(rest if what == "out" else rest[0])
        ran: set[int] = set()
        resumed: list[Resumed] = []

        def watch(event: Event) -> None:
            if isinstance(event, Resumed):
                resumed.append(event)
            elif isinstance(event, (Opened, Repacked)):
                ran.update(event.tickets if isinstance(event, Opened) else event.admitted)

        results = once(ds.stream(problems(count), journal=journal, observe=watch))
    check(results, truth)
    known = 0
    handed_out: set[int] = set()
    for run in [*runs, {"known": resumed[0].known, "ran": ran, "out": set()}]:
        assert run["known"] >= max(known, len(handed_out)), "the journal has lost something"
        assert not run["ran"] & handed_out, "something finished was solved again"
        known = run["known"]
        handed_out |= run["out"]
    print(
        f"{kills} kills of the program, {len(runs)} of them after the journal was open, {len(handed_out)} results "
        f"handed out before the last run, which knew {resumed[0].known} and solved {len(ran)}; none lost, none solved "
        f"again; torn tails found: {sum(run['torn'] > 0 for run in runs)}"
    )


def feed(clients: int, seconds: float) -> None:
    """Every client asks for one problem after another, each of its own shape, tol and cost."""
    waits: list[list[float]] = [[] for _ in range(clients)]

    async def client(which: int, service: ds.Client, until: float) -> None:
        rng, loop = np.random.default_rng(which), asyncio.get_running_loop()
        while loop.time() < until:
            n, m, d = rng.integers(5, 200), rng.integers(5, 200), rng.integers(1, 6)
            tol, cost = rng.choice([1e-2, 1e-3, 1e-6]), rng.choice(["sqeuclidean", "euclidean"])
            asked = ds.Problem(
                x=rng.normal(size=(n, d)), y=rng.normal(size=(m, d)), eps=0.1, tol=float(tol), cost=str(cost)
            )
            began = loop.time()
            result = await service.solve(asked)
            assert result.converged, result.message
            waits[which].append(loop.time() - began)

    async def main() -> list[int]:
        memory: list[int] = []
        async with ds.Client(capacity=48) as service:
            loop = asyncio.get_running_loop()
            # Compiled before anything is measured.
            await asyncio.gather(*(service.solve(ds.Problem(x=p, y=p, eps=1.0, tol=t)) for p, t in _first()))
            until = loop.time() + seconds
            tasks = [asyncio.create_task(client(which, service, until)) for which in range(clients)]
            while loop.time() < until:
                memory.append(int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() // 2**20)
                await asyncio.sleep(seconds / 12)
            await asyncio.wait_for(asyncio.gather(*tasks), 60)
        return memory

    memory = asyncio.run(main())
    counts, every = [len(own) for own in waits], np.concatenate(waits)
    assert min(counts) > 0
    assert max(memory[3:]) < 1.2 * memory[2] + 32, f"memory grew: {memory} MiB"
    print(
        f"{clients} clients for {seconds:g} s: {sum(counts)} answers, {min(counts)} to {max(counts)} per client; wait: "
        f"median {1e3 * np.median(every):.0f} ms, p99 {1e3 * np.quantile(every, 0.99):.0f} ms, longest "
        f"{1e3 * every.max():.0f} ms; resident memory {memory[2]} MiB after a fifth, then at most {max(memory[3:])} MiB"
    )


def _first() -> list[tuple[Any, float]]:
    points = np.random.default_rng(0).normal(size=(20, 2))
    return [(points, 1e-2), (points, 1e-6)]


def rank(task: str, which: int, size: int, folder: Path) -> None:
    """What one rank does."""
    import torch.distributed as distributed

    distributed.init_process_group("gloo", f"file://{folder}/meeting", timedelta(seconds=60), size, which)
    backend = RowShardedBackend(kernels="dense" if task == "dense" else "streaming")

    def desert(event: Event) -> None:
        if task == "desert" and which == size - 1 and type(event).__name__ == "Audited":
            (folder / "died").write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        began = time.perf_counter()
        solution = ds.solve(list(problems(8, seed=9)), backend=backend, observe=desert)
        arrays = {f"f{r.ticket}": r.potentials.f for r in solution} | {f"g{r.ticket}": r.potentials.g for r in solution}
        seconds = time.perf_counter() - began
        np.savez(folder / f"{which}.npz", depth=[r.depth for r in solution], seconds=seconds, **arrays)
    finally:
        (folder / f"ended{which}").write_text(str(time.time()))
        distributed.destroy_process_group()


def rows() -> None:
    def run(task: str, size: int, folder: Path) -> list[int]:
        folder.mkdir()
        env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        command = [sys.executable, __file__, "rank", "--task", task, "--folder", str(folder), "--size", str(size)]
        quiet = subprocess.DEVNULL if task == "desert" else None
        ranks = [subprocess.Popen([*command, "--rank", str(r)], env=env, stderr=quiet) for r in range(size)]
        return [child.wait(300) for child in ranks]

    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for kernels in ("dense", "streaming"):
            assert run(kernels, 1, folder / f"{kernels}1") == [0]
            alone = np.load(folder / f"{kernels}1" / "0.npz")
            for size in (2, 4):
                assert run(kernels, size, folder / f"{kernels}{size}") == [0] * size
                found = [np.load(folder / f"{kernels}{size}" / f"{r}.npz") for r in range(size)]
                names = [name for name in alone if name != "seconds"]
                assert all(np.array_equal(one[name], found[0][name]) for one in found for name in names)
                assert alone["depth"].tolist() == found[0]["depth"].tolist()
                worst = max(float(np.abs(alone[name] - found[0][name]).max()) for name in names if name != "depth")
                assert worst <= 1e-6
                print(
                    f"{kernels}, {size} ranks: depths {found[0]['depth'].tolist()} as with one rank, potentials within "
                    f"{worst:.1e}, ranks equal to the bit; {float(found[0]['seconds']):.2f} s, one rank "
                    f"{float(alone['seconds']):.2f} s"
                )
        for size in (2, 4):
            codes = run("desert", size, folder / f"desert{size}")
            assert codes[-1] == -signal.SIGKILL
            assert all(codes[:-1])
            died = float((folder / f"desert{size}" / "died").read_text())
            later = [float((folder / f"desert{size}" / f"ended{r}").read_text()) - died for r in range(size - 1)]
            print(f"{size} ranks, one killed: the others ended within {max(later):.2f} s, with an error")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["workers", "program", "feed", "rows", "rank"])
    parser.add_argument("--ray", action="store_true")
    parser.add_argument("--kills", type=int)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    for name in ("task", "folder"):
        parser.add_argument(f"--{name}", default="", help=argparse.SUPPRESS)
    for name in ("rank", "size"):
        parser.add_argument(f"--{name}", type=int, default=0, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.what == "workers":
        workers(asked.kills or 10, on_ray=asked.ray)
    elif asked.what == "program":
        program(asked.kills or 20)
    elif asked.what == "feed":
        feed(asked.clients, asked.seconds)
    elif asked.what == "rows":
        rows()
    else:
        rank(asked.task, asked.rank, asked.size, Path(asked.folder))


if __name__ == "__main__":
    main()
