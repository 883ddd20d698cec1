"""Is mode="auto" ever slower than the best fixed mode?

    python benchmarks/auto_mode.py [--rounds 21] [--batches one equal unequal small]

Arms take turns in a random order within each round, after a gate: potentials must equal those of auto to the bit
(static excepted, which stops elsewhere). The ratio is that of lower quartiles, since what else runs on the machine
can only add time; the arm "again" is auto once more and shows what noise is left. Modes that the gate shows to be over
twice as slow as the best get every seventh round. Exit code 1 if auto loses more than 5 % beyond that noise.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from typing import Any

import numpy as np

import drainsinkhorn as ds

MODES = ("auto", "again", "width-one", "compact", "stream", "mask", "static")


def clouds(count: int, size: int, eps: Any, seed: int = 0) -> list[ds.Problem[Any]]:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(2, count, size, 3))
    return ds.problems(x, y, eps=eps)


BATCHES = {
    "one": lambda: clouds(1, 400, 0.05),
    "equal": lambda: clouds(8, 300, 0.1),
    "unequal": lambda: clouds(8, 300, np.geomspace(0.02, 2.0, 8)),
    "small": lambda: clouds(1000, 24, 0.1),
}


def timed(problems: list[ds.Problem[Any]], mode: str, accelerate: str) -> tuple[float, ds.Solution[Any]]:
    start = time.perf_counter()
    solution = ds.solve(problems, mode="auto" if mode == "again" else mode, accelerate=accelerate)
    return time.perf_counter() - start, solution


def gate(problems: list[ds.Problem[Any]], accelerate: str) -> dict[str, float]:
    """First times of all arms; raises unless all but static agree to the bit."""
    ds.solve(problems, accelerate=accelerate)
    first, truth = dict[str, float](), timed(problems, "auto", accelerate)[1]
    for mode in MODES:
        first[mode], solution = timed(problems, mode, accelerate)
        solution.raise_for_status()
        if mode != "static":
            for mine, other in zip(solution, truth, strict=True):
                same = np.array_equal(mine.potentials.f, other.potentials.f) and mine.depth == other.depth
                assert same, f"{mode} and auto differ on problem {mine.ticket}"
    return first


def quartile(seconds: list[float]) -> float:
    return sorted(seconds)[(len(seconds) - 1) // 4]


def measure(name: str, rounds: int, accelerate: str) -> float:
    problems = BATCHES[name]()
    first = gate(problems, accelerate)
    solution = ds.solve(problems, accelerate=accelerate)
    times: dict[str, dict[int, float]] = {mode: {} for mode in MODES}
    best = min(first.values())
    for turn in range(rounds):
        arms = [mode for mode in MODES if first[mode] < 2 * best or turn % 7 == 0]
        random.shuffle(arms)
        for mode in arms:
            times[mode][turn] = timed(problems, mode, accelerate)[0]
    depths = [result.depth for result in solution]
    chosen = next(choice for choice in solution.ledger.choices if choice.what == "mode")
    print(f"\n{name}: {len(problems)} problems, depths {min(depths)} to {max(depths)}")
    print(f"auto took {chosen.picked}: {chosen.reason}")
    print("| mode | lower quartile ms | median ms | auto / mode |\n| --- | --- | --- | --- |")
    low = {mode: quartile(list(seconds.values())) for mode, seconds in times.items()}
    low["auto"] = quartile([*times["auto"].values(), *times["again"].values()])
    for mode in MODES:
        middle = statistics.median(times[mode].values())
        print(f"| {mode} | {1e3 * low[mode]:.2f} | {1e3 * middle:.2f} | {low['auto'] / low[mode]:.3f} |")
    return low["auto"] / min(low[mode] for mode in MODES if mode not in ("auto", "again"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--batches", nargs="+", default=list(BATCHES), choices=list(BATCHES))
    parser.add_argument("--accelerate", default="none", help="As in solve.")
    asked = parser.parse_args()
    random.seed(0)
    worst = {name: measure(name, asked.rounds, asked.accelerate) for name in asked.batches}
    print("\nauto against the best fixed mode: " + ", ".join(f"{name} {ratio:.3f}" for name, ratio in worst.items()))
    sys.exit(max(worst.values()) > 1.05)


if __name__ == "__main__":
    main()
