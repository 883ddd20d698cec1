"""Time one sweep of a kernel matrix in one pass and in two: `leg_kernels.sweep` over `sum_rows` and `add_rows`.

    python benchmarks/sweep.py

Processor time of one thread, the smallest of many laps; both arms take turns.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np

from drainsinkhorn.backends.cpu import leg_kernels

PAIRS = 2 * 10**7
"""Pairs of points that a lap sweeps."""


def seconds(sweep: Callable[[], None], repeats: int) -> float:
    """Processor seconds of one sweep."""
    begun = time.thread_time()
    for _ in range(repeats):
        sweep()
    return (time.thread_time() - begun) / repeats


def main() -> None:
    """Print a row for each size."""
    print("| n | one pass, us | two passes, us | two / one |\n| --- | --- | --- | --- |")
    for n in (256, 512, 1024, 2048):
        kernel = np.random.default_rng(0).uniform(0.5, 1.0, n * n).astype(np.float32)
        weights, row_sums, col_sums = (np.full(n, 1 / n, dtype=np.float32) for _ in range(3))

        def one_pass(kernel=kernel, weights=weights, row_sums=row_sums, col_sums=col_sums, n=n) -> None:
            leg_kernels.sweep(kernel, n, weights, weights, True, row_sums, col_sums, 0, n)

        def two_passes(kernel=kernel, weights=weights, row_sums=row_sums, col_sums=col_sums, n=n) -> None:
            col_sums[:] = 0
            leg_kernels.sum_rows(kernel, n, weights, row_sums, 0, n)
            leg_kernels.add_rows(kernel, n, weights, col_sums, 0, n)

        arms, best = (one_pass, two_passes), [math.inf, math.inf]
        for _ in range(40):
            best = [min(b, seconds(arm, max(3, PAIRS // n**2))) for b, arm in zip(best, arms, strict=True)]
        print(f"| {n} | {best[0] * 1e6:.1f} | {best[1] * 1e6:.1f} | {best[1] / best[0]:.2f} |")


if __name__ == "__main__":
    main()
