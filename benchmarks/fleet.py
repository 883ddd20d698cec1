"""Throughput of fleets: two processes against one, and Ray against processes. For a quiet machine of two cores.

    python benchmarks/fleet.py --log fleet.jsonl        # until every arm has three rounds; about six minutes
    python benchmarks/fleet.py --log fleet.jsonl        # again, after it was interrupted: goes on from there
    python benchmarks/fleet.py --log fleet.jsonl --pieces 2    # two pieces, then stop; one is under two minutes
    python benchmarks/fleet.py --seconds 5 --rounds 1          # to see that it works; nothing is kept

Arms: `one` is the stream of this process with one thread; `apart` is two programs that each stream half of the problems
and know nothing of each other, which is what two cores can do; `local 1` and `local 2` are LocalFleets; `ray 2` is a
RayFleet. All have single-threaded kernels, solve the same problems, and are warm: a short stream ran before. A piece is
one round of one arm, in a process of its own; arms take turns, so that whatever else the machine does hits all of them.
What is known is printed after every piece. Potentials of all arms are compared by digest. CPU seconds are those of a
piece's process and all its descendants during the stream (Ray's servers included); they bound what two cores can
reach, and say more than seconds on a machine that is busy.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import drainsinkhorn as ds
from drainsinkhorn.backends.cpu import CpuBackend
from drainsinkhorn.parallel import LocalFleet, RayFleet

Stream = Callable[..., Iterator[ds.Result[Any]]]
ARMS = ("one", "apart", "local 1", "local 2", "ray 2")
MS_EACH = 3.1
"""Milliseconds of a problem on one thread, on the machine this was written on: for the length of the stream alone."""


class Piece(NamedTuple):
    """One round of one arm."""

    arm: str
    given: int
    seconds: float
    cpu: float
    digest: str
    load: float


def problems(count: int, seed: int = 0) -> list[ds.Problem[Any]]:
    """Clouds of 300 to 600 points, of depths from ten to a few hundred."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        n, m = rng.integers(300, 600, size=2)
        x, y = rng.normal(size=(n, 3)), 0.5 + rng.normal(size=(m, 3))
        made.append(ds.Problem(x=x, y=y, eps=float(10 ** rng.uniform(-2, -0.5))))
    return made


def cpu_seconds() -> float:
    """CPU time of this process and of all its descendants that live."""
    children, spent = dict[int, list[int]](), dict[int, float]()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            pid, fields = int(entry.name), (entry / "stat").read_text().rsplit(")", 1)[1].split()
            children.setdefault(int(fields[1]), []).append(pid)
            spent[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    total, waiting = time.process_time(), list(children.get(os.getpid(), []))
    while waiting:
        pid = waiting.pop()
        total += spent[pid]
        waiting += children.get(pid, [])
    return total


def digests(stream: Stream, batch: list[ds.Problem[Any]]) -> dict[int, str]:
    """What came of every problem, by ticket."""
    found = dict[int, str]()
    for result in stream(iter(batch), backend=CpuBackend(threads=1)):
        assert result.converged, result
        potentials = b"".join(np.asarray(p).tobytes() for p in result.potentials)
        found[result.ticket] = f"{result.depth} {hashlib.blake2b(potentials, digest_size=8).hexdigest()}"
    assert len(found) == len(batch)
    return found


def half(which: int, count: int) -> None:
    """One of the two programs of `apart`: says when it is warm, begins when told, and says what came of it."""
    digests(ds.stream, problems(200))
    batch = problems(count, seed=1)[which::2]
    print("warm", flush=True)
    sys.stdin.readline()
    found = digests(ds.stream, batch)
    print(json.dumps({2 * ticket + which: digest for ticket, digest in found.items()}), flush=True)
    sys.stdin.readline()


def apart(count: int) -> tuple[float, float, dict[int, str]]:
    """Seconds, CPU seconds and digests of two programs."""
    command = [sys.executable, __file__, "--count", str(count), "--half"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    halves = [subprocess.Popen([*command, str(which)], **pipes) for which in range(2)]
    for program in halves:
        assert program.stdout is not None
        assert program.stdout.readline() == "warm\n"

    def tell() -> None:
        for program in halves:
            assert program.stdin is not None
            program.stdin.write("\n")
            program.stdin.flush()

    before, began = cpu_seconds(), time.perf_counter()
    tell()
    found = dict[int, str]()
    for program in halves:
        assert program.stdout is not None
        found |= {int(ticket): digest for ticket, digest in json.loads(program.stdout.readline()).items()}
    seconds, cpu = time.perf_counter() - began, cpu_seconds() - before
    tell()
    for program in halves:
        program.communicate()
    return seconds, cpu, found


def streamed(stream: Stream, count: int) -> tuple[float, float, dict[int, str]]:
    """Seconds, CPU seconds and digests of one stream that is warm."""
    digests(stream, problems(200))
    batch = problems(count, seed=1)
    before, began = cpu_seconds(), time.perf_counter()
    found = digests(stream, batch)
    return time.perf_counter() - began, cpu_seconds() - before, found


def piece(arm: str, count: int) -> Piece:
    """Run one round of one arm."""
    load = os.getloadavg()[0]
    kind, _, workers = arm.partition(" ")
    if kind == "apart":
        seconds, cpu, found = apart(count)
    elif kind == "one":
        seconds, cpu, found = streamed(ds.stream, count)
    else:
        with LocalFleet(int(workers)) if kind == "local" else RayFleet(workers=int(workers)) as fleet:
            seconds, cpu, found = streamed(fleet.stream, count)
    digest = hashlib.blake2b(json.dumps(sorted(found.items())).encode(), digest_size=8).hexdigest()
    return Piece(arm, count, seconds, cpu, digest, load)


def show(done: list[Piece]) -> None:
    """What is known so far."""
    seconds = {arm: [p.seconds for p in done if p.arm == arm] for arm in ARMS}
    cpu = {arm: [p.cpu for p in done if p.arm == arm] for arm in ARMS}

    def ratio(title: str, over: str, under: str, wanted: str = "", times: float = 1.0) -> None:
        if seconds[over] and seconds[under]:
            rounds = [s / f for s, f in zip(seconds[over], seconds[under], strict=False)]
            by_cpu = times * min(cpu[over]) / min(cpu[under])
            print(f"  {title}: {statistics.median(rounds):.3f} in seconds, {by_cpu:.3f} by CPU seconds{wanted}")

    ratio("two processes over one", "one", "local 2", "; wanted: at least 1.9", 2.0)
    ratio("two programs apart over one", "one", "apart", "; what the cores allow", 2.0)
    ratio("time of a fleet of one over time of this process", "local 1", "one")
    ratio("time on Ray over time on LocalFleet", "ray 2", "local 2", "; wanted: at most 1.05")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=32.0, help="length of a stream on one process, roughly")
    parser.add_argument("--count", type=int, help="problems of a stream, instead of seconds")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--arms", nargs="*", default=list(ARMS), choices=ARMS)
    parser.add_argument("--log", type=Path, help="keeps every piece, one line each; a second run goes on from there")
    parser.add_argument("--pieces", type=int, default=10**6, help="stop after so many")
    parser.add_argument("--piece", choices=ARMS, help="run one piece here and print it as JSON")
    parser.add_argument("--half", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    count = asked.count or max(200, round(asked.seconds / MS_EACH * 1e3))
    if asked.half is not None:
        return half(asked.half, count)
    if asked.piece:
        return print(json.dumps(piece(asked.piece, count)))
    kept = asked.log.read_text().splitlines() if asked.log and asked.log.exists() else []
    done = [found for line in kept if (found := Piece(*json.loads(line))).given == count]
    left = [arm for turn in range(asked.rounds) for arm in asked.arms if sum(p.arm == arm for p in done) <= turn]
    print(f"{count} problems; {len(done)} pieces known, {len(left)} to run", flush=True)
    for arm in left[: asked.pieces]:
        command = [sys.executable, __file__, "--count", str(count), "--piece", arm]
        said = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout.splitlines()[-1]
        done.append(Piece(*json.loads(said)))
        if asked.log:
            with asked.log.open("a") as log:
                log.write(said + "\n")
        last = done[-1]
        print(f"{arm:8s} {last.seconds:7.2f} s, {last.cpu:7.2f} CPU s, load before {last.load:.2f}", flush=True)
        assert len({p.digest for p in done}) == 1, "arms disagree"
        show(done)
    return None


if __name__ == "__main__":
    main()
