"""Throughput of the service: many small problems as requests of one problem, as batches, and in one `solve`.

    python benchmarks/serve.py                # 1,000 problems of 64 x 64 points
    python benchmarks/serve.py --points 8

The service runs in a process of its own, the clients in this one. All arms solve the same problems in each round, in
another order; times are the medians of the rounds. Before that, results of all arms are compared to the bit.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import drainsinkhorn as ds
from drainsinkhorn.serve import Remote

Arm = Callable[[], list[Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--points", type=int, default=64)
    parser.add_argument("--eps", type=float, default=0.1)
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    x, y = np.random.default_rng(0).normal(size=(2, asked.problems, asked.points, 2))
    command = [sys.executable, "-m", "drainsinkhorn.cli.main", "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            address = process.stdout.readline().split()[-1]
            with Remote(address) as remote:
                while remote.health()["status"] != "ready":
                    time.sleep(0.1)
                measure(arms(remote, x, y, asked), asked)
        finally:
            process.terminate()


def arms(remote: Remote, x: Any, y: Any, asked: argparse.Namespace) -> dict[str, Arm]:
    """Ways to solve all problems, by name."""
    problems = range(len(x))

    def by_requests(clients: int, size: int) -> list[Any]:
        with ThreadPoolExecutor(clients) as threads:
            parts = (slice(start, start + size) for start in problems[::size])
            batches = threads.map(lambda part: remote.solve(x[part], y[part], eps=asked.eps), parts)
            return [result for batch in batches for result in batch]

    named: dict[str, Arm] = {"one solve in this process": lambda: list(ds.solve(x, y, eps=asked.eps))}
    for size in (1, 100):
        for clients in asked.clients:
            named[f"{clients} clients, requests of {size}"] = lambda c=clients, s=size: by_requests(c, s)
    return named


def measure(named: dict[str, Arm], asked: argparse.Namespace) -> None:
    """Compare the results of all arms, then time them, and print a line for each."""
    expected, *others = (arm() for arm in named.values())
    for results in others:
        for one, other in zip(expected, results, strict=True):
            assert all(map(np.array_equal, one.potentials, other.potentials))
    seconds: dict[str, list[float]] = {name: [] for name in named}
    for _ in range(asked.rounds):
        for name in random.sample(list(named), len(named)):
            start = time.perf_counter()
            named[name]()
            seconds[name].append(time.perf_counter() - start)
    alone = statistics.median(next(iter(seconds.values())))
    print(f"{asked.problems} problems of {asked.points} x {asked.points} points, eps {asked.eps:g}")
    for name, times in seconds.items():
        median = statistics.median(times)
        print(
            f"{name:28s} {1e3 * median:8.0f} ms {asked.problems / median:8.0f} problems/s  {median / alone:6.1f} times"
        )


if __name__ == "__main__":
    main()
