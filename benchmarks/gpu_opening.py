"""Where a solve's time goes beside its cycles: by verb, by kernel on the device, and by function on the host.

    python benchmarks/gpu_opening.py w3 m50 s500

Verbs are medians of repeats. The device's part is that of one solve as torch's profiler sees it, the host's is Python's
own profile, which makes what it looks at slower: read it for shares.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import pstats
import statistics
import time
from typing import Any

import torch
from gpu_peers import TOL, WORKLOADS, ours
from torch.profiler import ProfilerActivity, profile

from drainsinkhorn_bench.meters import heap_at_rest

VERBS = ("pack", "advance", "verify", "emit", "repack")


def laps(run: Any, problems: list[Any], repeats: int) -> list[dict[str, float]]:
    found = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        _, ledger = run(problems, 0.0)
        torch.cuda.synchronize()
        whole = time.perf_counter() - begun
        verbs = {verb: ledger.seconds.get(verb, 0.0) for verb in VERBS}
        found.append({**verbs, "beside": whole - sum(verbs.values()), "whole": whole})
    return found


def kernels(run: Any, problems: list[Any], most: int) -> str:
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        run(problems, 0.0)
        torch.cuda.synchronize()
    return seen.key_averages().table(sort_by="self_cuda_time_total", row_limit=most, max_name_column_width=40)


def functions(run: Any, problems: list[Any], repeats: int, most: int) -> str:
    watch, text = cProfile.Profile(), io.StringIO()
    watch.enable()
    for _ in range(repeats):
        run(problems, 0.0)
    watch.disable()
    pstats.Stats(watch, stream=text).sort_stats("cumulative").print_stats("drainsinkhorn", most)
    return text.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="+", choices=list(WORKLOADS))
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--rows", type=int, default=25, help="kernels and functions to show")
    args = parser.parse_args()
    for name in args.workloads:
        problems, run = WORKLOADS[name](), ours()
        laps(run, problems, 3)
        with heap_at_rest():
            found = laps(run, problems, args.repeats)
        told = {key: statistics.median(lap[key] for lap in found) for key in found[0]}
        print(f"\n{name}, tol {TOL}, milliseconds: " + ", ".join(f"{k} {1e3 * v:.2f}" for k, v in told.items()))
        print(kernels(run, problems, args.rows))
        print(functions(run, problems, args.repeats, args.rows))


if __name__ == "__main__":
    main()
