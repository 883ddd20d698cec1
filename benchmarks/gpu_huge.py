"""Single huge problems of many coordinates on a GPU, against OTT-JAX on the same arrays.

    python benchmarks/gpu_huge.py                         # gate, laps, table
    python benchmarks/gpu_huge.py --arms default          # without OTT-JAX
    python benchmarks/gpu_huge.py --work 65536 --all-peers --repeats 2      # with OTT-JAX
    python benchmarks/gpu_huge.py --work 100000 --arms default --repeats 2 --json out.json
    python benchmarks/gpu_huge.py --curve --arms default  # time over work

Data are generated on the device: standard normal noise against a cloud like one of images, of 50 directions with a
decaying spectrum plus noise, of the same total variance. eps is a share of the standard deviation, or of the mean, of
the cost of sampled pairs. Every arm solves every problem once, which compiles its kernels, and its potentials are
judged on the device in float64, in blocks, by code that no solver uses: a residual above tol (of the peer: by more than
1 %) ends the script. Then laps of all arms are interleaved; times are medians. OTT-JAX holds the cost matrix, stops by
its own error every ten iterations, and runs in the highest matmul precision.

Of our arms the table also has the milliseconds of verbs (pack is the opening, advance the cycles), cycles, arithmetic
and the peak of the device memory that torch allocated, the caller's points included.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import numpy as np
import torch

import drainsinkhorn as ds
from drainsinkhorn.backends.triton import TritonBackend
from drainsinkhorn_bench.meters import heap_at_rest
from drainsinkhorn_bench.runner import orders

DEVICE = "cuda"
TOL, MOST = 1e-3, 2000
RANK, SHARE = 50, 0.9
"""Directions of the low-rank part of a cloud like one of images, and its share of the variance."""
BLOCK_PAIRS, SAMPLED = 2**26, 2048
"""Pairs of points that the auditor holds at once, and points of a side whose costs give eps."""
VERBS = ("pack", "advance", "verify", "emit")


class Work(NamedTuple):
    """A problem: standard normal points x, points y like images, both (n, d) in float32 on the device, and eps."""

    x: Any
    y: Any
    eps: float


class Cell(NamedTuple):
    """Points of a side, coordinates, and eps as a share of the standard deviation or of the mean of the cost.

    OTT-JAX runs only where `peer` is true, or with --all-peers.
    """

    n: int
    d: int
    share: float
    of: str = "std"
    peer: bool = True

    @property
    def name(self) -> str:
        """Name of the cell in the table."""
        return f"n = {self.n}, d = {self.d}, eps {self.share} {self.of}"


CELLS = [
    Cell(16384, 3072, 0.25),
    Cell(16384, 3072, 0.063),
    Cell(16384, 500, 0.02, "mean"),
    Cell(65536, 3072, 0.25, peer=False),
    Cell(65536, 3072, 0.063, peer=False),
]
MORE = [Cell(n, 3072, share, peer=False) for n, share in ((100_000, 0.25), (100_000, 0.126), (100_000, 0.063),
                                                         (100_000, 0.032))]  # fmt: skip
"""Cells that run only if --work names them."""
CURVE = [
    Cell(n, d, 0.25, peer=False)
    for d in (64, 65, 128, 500, 1000, 3072)
    for n in (1000, 2000, 4096, 5000, 5792, 5793, 6000, 8192, 16384, 32768)
]
"""Cells of --curve: time over work, on both sides of every change of representation."""


def make(cell: Cell) -> Work:
    """Generate the clouds of a cell on the device."""
    n, d = cell.n, cell.d
    generator = torch.Generator(DEVICE).manual_seed(n + d)

    def normal(*shape: int) -> Any:
        return torch.randn(shape, generator=generator, device=DEVICE)

    x = normal(n, d)
    directions = torch.linalg.qr(normal(d, RANK))[0]
    spectrum = 1 / torch.arange(1, RANK + 1, device=DEVICE)
    spectrum = spectrum * (SHARE * d / spectrum.sum())
    y = normal(n, RANK) * spectrum.sqrt() @ directions.T + math.sqrt(1 - SHARE) * normal(n, d)
    own, other = (cloud[torch.randperm(n, generator=generator, device=DEVICE)[:SAMPLED]].double() for cloud in (x, y))
    costs = (own * own).sum(1)[:, None] + (other * other).sum(1) - 2 * own @ other.T
    return Work(x, y, cell.share * float(costs.std() if cell.of == "std" else costs.mean()))


def residual(work: Work, f: Any, g: Any) -> float:
    """Return the larger L1 residual of both sides in float64, from products of points in blocks of rows."""
    (n, _), m, eps = work.x.shape, len(work.y), work.eps
    middle = work.y.double().mean(0)
    y = work.y.double() - middle
    f, g = (torch.as_tensor(side, device=DEVICE).double() for side in (f, g))
    other = g - (y * y).sum(1)
    step = max(1, BLOCK_PAIRS // m)
    rows, cols = torch.zeros(n, dtype=torch.float64, device=DEVICE), torch.zeros(m, dtype=torch.float64, device=DEVICE)
    for first in range(0, n, step):
        x = work.x[first : first + step].double() - middle
        plan = torch.mm(x, y.T).mul_(2.0).add_(other).add_((f[first : first + step] - (x * x).sum(1))[:, None])
        plan = plan.div_(eps).sub_(math.log(n) + math.log(m)).exp_()
        rows[first : first + step] = plan.sum(1)
        cols += plan.sum(0)
    return max(float((rows - 1 / n).abs().sum()), float((cols - 1 / m).abs().sum()))


Arm = Callable[[Work], tuple[Any, Any, dict[str, Any]]]


def ours(**settings: Any) -> Arm:
    """An arm of this library with settings of its backend."""

    def run(work: Work) -> tuple[Any, Any, dict[str, Any]]:
        given = ds.Problem(x=work.x, y=work.y, eps=work.eps)
        backend = TritonBackend(**settings)
        solution = ds.solve([given], tol=TOL, backend=backend, max_depth=MOST, warn=False, rescue=False)
        result, seconds = solution[0], solution.ledger.seconds
        facts = {
            "status": result.status.name, "cycles": result.depth, "arithmetic": result.arithmetic,
            "band": result.residual.band, "streamed": result.streamed, "cached_bytes": backend.cached_bytes,
            "verbs": {verb: seconds.get(verb, 0.0) for verb in VERBS},
        }  # fmt: skip
        return result.potentials.f, result.potentials.g, facts

    return run


def ott() -> Arm:
    """OTT-JAX under jit, on arrays of the device, with its cost matrix."""
    import jax
    from ott.geometry.pointcloud import PointCloud
    from ott.problems.linear.linear_problem import LinearProblem
    from ott.solvers.linear.sinkhorn import Sinkhorn

    solver: Any = Sinkhorn(threshold=TOL, norm_error=1, inner_iterations=10, max_iterations=MOST)

    @jax.jit
    def one(x: Any, y: Any, eps: Any) -> Any:
        out = solver(LinearProblem(PointCloud(x, y, epsilon=eps)))
        return out.f, out.g, out.n_iters

    def run(work: Work) -> tuple[Any, Any, dict[str, Any]]:
        with jax.default_matmul_precision("highest"):
            sides = [jax.dlpack.from_dlpack(side) for side in (work.x, work.y)]
            f, g, cycles = jax.block_until_ready(one(*sides, np.float32(work.eps)))
        # Its weights are part of its potentials.
        f, g = (
            np.asarray(side, np.float64) + math.log(len(points)) * work.eps
            for side, points in ((f, work.x), (g, work.y))
        )
        return f, g, {"cycles": int(cycles)}

    return run


ARMS: dict[str, Callable[[], Arm]] = {
    "default": lambda: ours(),
    "streaming": lambda: ours(cached_bytes=0),
    "ott": ott,
}


def lap(run: Arm, work: Work) -> tuple[float, dict[str, Any]]:
    torch.cuda.synchronize()
    begun = time.perf_counter()
    _, _, facts = run(work)
    torch.cuda.synchronize()
    return time.perf_counter() - begun, facts


def judge(name: str, arm: str, run: Arm, work: Work) -> dict[str, Any]:
    """Solve once, audit, and return facts; a residual above the bound ends the script."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    begun = time.perf_counter()
    f, g, facts = run(work)
    torch.cuda.synchronize()
    facts |= {"first_seconds": time.perf_counter() - begun, "peak_gib": torch.cuda.max_memory_allocated() / 2**30}
    facts["residual"] = residual(work, f, g)
    bound = 1.01 * TOL if arm == "ott" else TOL
    if not facts["residual"] <= bound:
        raise SystemExit(f"{name}, {arm}: residual {facts['residual']:.3g} above {bound:.3g}; {facts}")
    return facts


def measure(cell: Cell, arms: dict[str, Arm], repeats: int) -> dict[str, Any]:
    """Return facts and medians of interleaved laps by arm."""
    work = make(cell)
    rows = {arm: judge(cell.name, arm, run, work) for arm, run in arms.items()}
    laps: dict[str, list[float]] = {arm: [] for arm in arms}
    verbs: dict[str, list[dict[str, float]]] = {arm: [] for arm in arms}
    with heap_at_rest():
        for order in orders(len(arms), repeats):
            for arm in (list(arms)[place] for place in order):
                seconds, facts = lap(arms[arm], work)
                laps[arm].append(seconds)
                verbs[arm].append(facts.get("verbs", {}))
    for arm, row in rows.items():
        row |= {"seconds": statistics.median(laps[arm]), "laps": laps[arm]}
        if "verbs" in row:
            row["verbs"] = {verb: statistics.median(one[verb] for one in verbs[arm]) for verb in VERBS}
    return {"cell": cell.name, "eps": work.eps, "arms": rows}


def show(report: dict[str, Any]) -> None:
    print(f"\n{report['cell']} ({report['eps']:.4g})")
    for arm, row in report["arms"].items():
        line = f"  {arm:<10} {1e3 * row['seconds']:9.2f} ms, {row['cycles']} cycles, residual {row['residual']:.2e}"
        if "verbs" in row:
            parts = ", ".join(f"{verb} {1e3 * seconds:.2f}" for verb, seconds in row["verbs"].items())
            line += f", band {row['band']:.1e}, peak {row['peak_gib']:.1f} GiB\n{'':13}{parts}; {row['arithmetic']}"
            line += "; STREAMED for lack of memory" * row["streamed"]
        print(line, flush=True)
    times = {arm: row["seconds"] for arm, row in report["arms"].items()}
    if {"default", "ott"} <= set(times):
        print(f"  ott / default: {times['ott'] / times['default']:.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", nargs="*", default=[], metavar="TEXT", help="cells whose name contains one of these")
    parser.add_argument("--arms", nargs="*", choices=list(ARMS), default=["default", "ott"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--all-peers", action="store_true", help="run OTT-JAX on huge cells too")
    parser.add_argument("--curve", action="store_true", help="time over work instead, of our arms")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("gpu_huge.py measures a CUDA device, and torch sees none")
    begun, reports = time.perf_counter(), list[dict[str, Any]]()
    arms = {name: ARMS[name]() for name in args.arms}
    cells = CURVE if args.curve else CELLS + MORE if args.work else CELLS
    for cell in cells:
        if not args.work or any(text in cell.name for text in args.work):
            chosen = {arm: run for arm, run in arms.items() if arm != "ott" or cell.peer or args.all_peers}
            reports.append(measure(cell, chosen, args.repeats))
            show(reports[-1])
    print(f"\n{torch.cuda.get_device_name()}, {time.perf_counter() - begun:.0f} s")
    if args.json:
        Path(args.json).write_text(json.dumps({"device": torch.cuda.get_device_name(), "reports": reports}, indent=1))


if __name__ == "__main__":
    main()
