"""Static over mask, and both over compact, where slots are equal and where they are not.

    python benchmarks/static_mask.py                     # the CPU backend on NumPy arrays
    python benchmarks/static_mask.py --device cuda       # the Triton backend on CUDA tensors; Numba is not needed
    python benchmarks/static_mask.py --check             # exit code 1 where the null cell misses its bound

Two cells of plain Sinkhorn from zero under the paper's audits (every 4 cycles, a row screen, lanes leave on that grid).
`null` is one problem in every lane: static, mask and compact spend equal slots and must take equal time. `padded` has
lanes of unequal depth: static and mask spend equal slots again, more than compact. There a static batch screens all its
lanes at every audit and mask only those that have not left, so that static pays up to one leg in nine more.

The arms of a lap run in turns, in orders in which each follows every other equally often, after a lap that is not
timed. A ratio is the geometric mean of the ratios of laps; its interval is a seeded bootstrap over laps. Where other
programs use the machine, `--cpu-seconds` counts the processor time of one thread. In the null cell static / mask must
be within 2 % of 1 on a GPU and within 5 % on a CPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import drainsinkhorn as ds
from drainsinkhorn.backends import load
from drainsinkhorn_bench.runner import orders
from drainsinkhorn_bench.statistics import Pair, bootstrap, geometric_mean

PAPER = ds.Audit(every=4, first_passage=False, screen="row", margin=0.95)
ARMS = ("static", "mask", "compact")
BOUNDS = {"cuda": 0.02, "cpu": 0.05}
SIZES = {"cuda": (4096, 3), "cpu": (256, 3)}
"""Points and coordinates of a cloud."""
WIDTH, EPS = 8, 0.01
Upload = Callable[[Any], Any]


def make_cell(name: str, n: int, d: int, upload: Upload) -> list[ds.Problem[Any]]:
    """Eight pairs of eight-cluster mixtures: one pair eight times ("null"), or pairs whose spread grows ("padded")."""
    problems = list[ds.Problem[Any]]()
    for lane in range(WIDTH):
        lane = lane if name == "padded" else 0
        rng = np.random.default_rng([11, n, d, lane])
        spread = 0.1 + 0.9 * lane / (WIDTH - 1)
        x, y = (rng.normal(size=(8, d))[rng.integers(8, size=n)] + spread * rng.normal(size=(n, d)) for _ in range(2))
        scale = ((x.mean(0) - y.mean(0)) ** 2).sum() + x.var(0).sum() + y.var(0).sum()
        x, y = (upload((points / scale**0.5).astype(np.float32)) for points in (x, y))
        problems.append(ds.Problem(x=x, y=y, eps=EPS))
    return problems


def solve(problems: list[ds.Problem[Any]], mode: str, backend: Any) -> ds.Solution[Any]:
    """One timed run of an arm."""
    return ds.solve(
        problems, mode=mode, width=WIDTH, audit=PAPER, backend=backend, accelerate="none", init="zero", rescue=False
    )


def measure(name: str, problems: list[ds.Problem[Any]], backend: Any, laps: int, clock: Callable[[], float]) -> float:
    """Print the row of a cell and return how far static / mask is from 1."""
    ledgers = dict[str, Any]()
    for arm in ARMS:
        solution = solve(problems, arm, backend)
        solution.raise_for_status()
        ledgers[arm] = solution.ledger
    seconds: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for order in orders(len(ARMS), laps):
        for arm in (ARMS[place] for place in order):
            begun = clock()
            solve(problems, arm, backend)
            seconds[arm].append(clock() - begun)
    cells = [name, *(f"{1e3 * float(np.median(seconds[arm])):.1f}" for arm in ARMS)]
    cells += [", ".join(f"{getattr(ledgers[arm], count):,}" for arm in ARMS) for count in ("slots", "verified")]
    ratios = dict[tuple[str, str], float]()
    for top, bottom in (("static", "mask"), ("static", "compact"), ("mask", "compact")):
        paired = [a / b for a, b in zip(seconds[top], seconds[bottom], strict=True)]
        interval = bootstrap([Pair(name, "here", lap, ratio) for lap, ratio in enumerate(paired)])
        ratios[top, bottom] = geometric_mean(paired)
        cells.append(f"{ratios[top, bottom]:.3f} [{interval.low:.3f}, {interval.high:.3f}]")
    cells.append(f"{ledgers['static'].slots / ledgers['compact'].slots:.3f}")
    print(f"| {' | '.join(cells)} |", flush=True)
    return abs(ratios["static", "mask"] - 1)


def synchronized() -> float:
    """Wall-clock seconds after all work on the GPU has ended."""
    import torch

    torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--laps", type=int, default=24)
    parser.add_argument("--points", type=int, default=None)
    parser.add_argument("--coordinates", type=int, default=None)
    parser.add_argument("--cpu-seconds", action="store_true", help="processor time of one thread (CPU)")
    parser.add_argument("--check", action="store_true", help="exit code 1 where the null cell misses its bound")
    args = parser.parse_args()
    upload, clock = np.ascontiguousarray, time.process_time if args.cpu_seconds else time.perf_counter
    if args.device == "cuda":
        import torch

        upload, clock, backend = lambda points: torch.tensor(points, device="cuda"), synchronized, load("triton")
    else:
        from drainsinkhorn.backends.cpu import CpuBackend

        backend = CpuBackend(threads=1 if args.cpu_seconds else None)
    n, d = (given or usual for given, usual in zip((args.points, args.coordinates), SIZES[args.device], strict=True))
    print(f"n = {n}, d = {d}, width {WIDTH}, {args.laps} laps; slots and verifies: {', '.join(ARMS)}\n")
    print("| cell | static ms | mask ms | compact ms | slots | verifies | static / mask | static / compact | "
          "mask / compact | slots, static / compact |")  # fmt: skip
    print("| --- " * 10 + "|")
    offs = {
        name: measure(name, make_cell(name, n, d, upload), backend, args.laps, clock) for name in ("null", "padded")
    }
    bound = BOUNDS[args.device]
    held = offs["null"] <= bound
    print(
        f"\nnull: static / mask is {offs['null']:.1%} from 1, bound {bound:.0%}: {'holds' if held else 'does not hold'}"
    )
    if args.check and not held:
        sys.exit(1)


if __name__ == "__main__":
    main()
