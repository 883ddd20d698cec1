"""Predicted against measured time of whole solves on the CPU.

    python benchmarks/predicted_time.py [--sizes 100 200 400] [--threads 1] [--rounds 5]

Each round profiles the backend, then times every mode and width on clouds of that size; prediction and measurement are
compared as lower quartiles over rounds, since what else runs on the machine can only add time. The profile is
measured with other clouds of the same kind. Depths are given, so this judges the cost model alone.
"""

from __future__ import annotations

import argparse
import time

import drainsinkhorn as ds
from drainsinkhorn.backends.cpu import CpuBackend
from drainsinkhorn.theory import profile_width_cost
from drainsinkhorn.workloads.clouds import problems

ARMS = [("width-one", 1), ("compact", 16), ("stream", 4), ("compact", 4), ("static", 16), ("mask", 16)]


def quartile(seconds: list[float]) -> float:
    return sorted(seconds)[(len(seconds) - 1) // 4]


def measure(size: int, backend: CpuBackend, rounds: int, eps: float) -> dict[tuple[str, int], float]:
    given, others = (
        [ds.Problem(x=p.x, y=p.y, eps=eps) for p in problems(seed, count=16, sizes=(size, size + 1))] for seed in (0, 1)
    )
    solution = ds.solve(given, backend=backend, accelerate="none")
    solution.raise_for_status()
    depths = [result.depth for result in solution]
    predicted: dict[tuple[str, int], list[float]] = {arm: [] for arm in ARMS}
    measured: dict[tuple[str, int], list[float]] = {arm: [] for arm in ARMS}
    for _ in range(rounds):
        cost = profile_width_cost(backend, (size, size, 3), seconds=2.0, problems=others)
        for mode, width in ARMS:
            predicted[mode, width].append(cost.predict(depths, mode, width).seconds)
            for _ in range(3):
                start = time.perf_counter()
                ds.solve(given, backend=backend, mode=mode, width=width, accelerate="none")
                measured[mode, width].append(time.perf_counter() - start)
    ratios = dict[tuple[str, int], float]()
    for arm in ARMS:
        ours, truth = quartile(predicted[arm]), quartile(measured[arm])
        ratios[arm] = ours / truth
        print(f"| {size} | {arm[0]} | {arm[1]} | {1e3 * truth:.1f} | {1e3 * ours:.1f} | {ours / truth - 1:+.0%} |")
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 200, 400])
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--eps", type=float, default=0.2)
    asked = parser.parse_args()
    print("| n | mode | width | measured ms | predicted ms | error |\n| --- | --- | --- | --- | --- | --- |")
    backend = CpuBackend(threads=asked.threads)
    found = [measure(size, backend, asked.rounds, asked.eps) for size in asked.sizes]
    errors = sorted(abs(ratio - 1) for ratios in found for ratio in ratios.values())
    print(f"median error {errors[len(errors) // 2]:.0%}, largest {errors[-1]:.0%}")


if __name__ == "__main__":
    main()
