"""Throughput of fleets: two processes against one, and Ray against processes. For a quiet machine of two cores.

    python benchmarks/fleet.py                          # about five minutes: streams of at least 30 s, in turns
    python benchmarks/fleet.py --seconds 5 --rounds 1   # to see that it works

Arms: `one` is the stream of this process with one thread; `local 1` and `local 2` are LocalFleets; `ray 2` is a
RayFleet. All have single-threaded kernels, solve the same problems, and are warm: workers have run a short stream
before. Arms take turns, so that whatever else the machine does hits all of them. Potentials of all arms are compared to
the bit. CPU seconds of a fleet (this process and its workers) bound what it can reach on two cores, on a busy
machine too.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import drainsinkhorn as ds
from drainsinkhorn.backends.cpu import CpuBackend
from drainsinkhorn.parallel import LocalFleet, RayFleet

Stream = Callable[..., Iterator[ds.Result[Any]]]


def problems(count: int, seed: int = 0) -> list[ds.Problem[Any]]:
    """Clouds of 300 to 600 points, of depths from ten to a few hundred."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        n, m = rng.integers(300, 600, size=2)
        x, y = rng.normal(size=(n, 3)), 0.5 + rng.normal(size=(m, 3))
        made.append(ds.Problem(x=x, y=y, eps=float(10 ** rng.uniform(-2, -0.5))))
    return made


def cpu_seconds(fleet: Any) -> float:
    """CPU time of this process, and of a local fleet's workers."""
    total = time.process_time()
    for worker in range(fleet.crew.size) if isinstance(fleet, LocalFleet) else ():
        fields = Path(f"/proc/{fleet.crew.pid(worker)}/stat").read_text().rsplit(")", 1)[1].split()  # type: ignore[attr-defined]
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def timed(stream: Stream, batch: list[ds.Problem[Any]]) -> tuple[float, float]:
    """Seconds, and the sum of all potentials and depths, which tells whether two arms agree."""
    began = time.perf_counter()
    results = list(stream(iter(batch), backend=CpuBackend(threads=1)))
    seconds = time.perf_counter() - began
    assert len(results) == len(batch)
    assert all(result.converged for result in results)
    results.sort(key=lambda result: result.ticket)
    return seconds, float(np.sum([result.potentials.f.sum() + result.depth for result in results]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=32.0, help="length of a stream on one process")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--arms", nargs="*", default=["one", "local 1", "local 2", "ray 2"])
    asked = parser.parse_args()
    fleets = {"local 1": lambda: LocalFleet(1), "local 2": lambda: LocalFleet(2), "ray 2": lambda: RayFleet(workers=2)}
    opened = {name: make() for name, make in fleets.items() if name in asked.arms}
    arms: dict[str, Stream] = {"one": ds.stream} if "one" in asked.arms else {}
    arms |= {name: fleet.stream for name, fleet in opened.items()}
    sample = problems(200)
    for stream in arms.values():
        timed(stream, sample)
    pace = min(timed(ds.stream, sample)[0] for _ in range(2)) / len(sample)
    batch = problems(max(len(sample), round(asked.seconds / pace)), seed=1)
    print(f"{len(batch)} problems, {pace * 1e3:.2f} ms each on one thread; load before: {os.getloadavg()[0]:.2f}")
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    cpu: dict[str, list[float]] = {name: [] for name in arms}
    sums: set[float] = set()
    for _ in range(asked.rounds):
        for name, stream in arms.items():
            before = cpu_seconds(opened.get(name))
            took, found = timed(stream, batch)
            seconds[name].append(took)
            cpu[name].append(cpu_seconds(opened.get(name)) - before)
            sums.add(found)
    assert len(sums) == 1, f"arms disagree: {sums}"
    for name, took in seconds.items():
        shown = ", ".join(f"{s:.2f}" for s in took)
        print(f"{name:8s} {len(batch) / statistics.median(took):8.1f} problems/s   seconds: {shown}")

    def ratio(slow: str, fast: str) -> str:
        if slow not in seconds or fast not in seconds:
            return "not measured"
        each = [s / f for s, f in zip(seconds[slow], seconds[fast], strict=True)]
        return f"{statistics.median(each):.3f} (rounds: {', '.join(f'{r:.3f}' for r in each)})"

    print(f"two processes over one: {ratio('one', 'local 2')}; wanted at least 1.9")
    if "one" in cpu and "local 2" in cpu:
        bound = 2 * min(cpu["one"]) / min(cpu["local 2"])
        print(f"CPU seconds: one {min(cpu['one']):.2f}, local 2 {min(cpu['local 2']):.2f}; two cores allow {bound:.3f}")
    print(f"a fleet of one against the stream of this process: {ratio('one', 'local 1')}")
    print(f"time on Ray over time on LocalFleet: {ratio('ray 2', 'local 2')}; wanted at most 1.05")
    for fleet in opened.values():
        fleet.close()


if __name__ == "__main__":
    main()
