"""Time cycles of soft lanes against those of hard ones, in turns, on the CPU backend with cached kernels.

    python benchmarks/soft_cycles.py
    python benchmarks/soft_cycles.py --sizes 32 128 --rounds 40

Packs of hard and of soft lanes of the same points are opened anew in turns, and run in one thread. Timed are the cycles
after the first two until lanes have converged, so that opening is not part of it. The number is the median over rounds
of the ratio of processor times of a cycle.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np

import drainsinkhorn as ds
from drainsinkhorn.backends.cpu import CpuBackend
from drainsinkhorn.run.validate import validate

FIRST, LAST, STOP = 2, 40, 1e-5
"""Cycles that are timed, and the residual at which a lane ends earlier."""
LANES = {16: 512, 32: 256, 64: 128, 128: 32, 512: 4}
"""Lanes of a pack by their number of points."""


def problems(size: int, eps: float, rho: float | None) -> list[Any]:
    """Lanes with the same points for every rho."""
    rng = np.random.default_rng(0)
    clouds = [(rng.normal(size=(size, 2)), rng.normal(size=(size, 2)) + 0.3) for _ in range(LANES.get(size, 8))]
    return [validate(ds.Problem(x=x, y=y, eps=eps, rho=rho, init="zero"), 1e-3) for x, y in clouds]


def seconds(backend: CpuBackend, instances: list[Any]) -> float:
    """Processor time of a cycle of a lane."""
    pack, stops = backend.pack(instances), [STOP] * len(instances)
    before = sum(pack.advance(FIRST, stops).depths)
    begun = time.process_time()
    after = sum(pack.advance(LAST - FIRST, stops).depths)
    return (time.process_time() - begun) / (after - before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[16, 32, 64, 128, 512])
    parser.add_argument("--eps", type=float, nargs="+", default=[0.1, 0.5])
    parser.add_argument("--rho", type=float, nargs="+", default=[1.0, 100.0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--accelerate", default="momentum")
    asked = parser.parse_args()
    backend = CpuBackend(acceleration=asked.accelerate, threads=1)
    for size in asked.sizes:
        for eps in asked.eps:
            made = [problems(size, eps, rho) for rho in (None, *asked.rho)]
            laps = [[seconds(backend, instances) for instances in made] for _ in range(asked.rounds + 2)][2:]
            hard = statistics.median(lap[0] for lap in laps)
            told = f"n {size:4d}  eps {eps:g}  hard {1e6 * hard:8.2f} us per lane and cycle"
            for k, rho in enumerate(asked.rho, 1):
                told += f"  rho {rho:g}: {statistics.median(lap[k] / lap[0] for lap in laps):.3f}"
            print(told, flush=True)


if __name__ == "__main__":
    main()
