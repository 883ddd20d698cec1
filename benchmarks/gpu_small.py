"""Small problems on a GPU: one program for all cycles of a lane, against launches for every cycle and OTT-JAX's vmap.

    python benchmarks/gpu_small.py                       # tests, gate, table: less than ten minutes on an H200
    python benchmarks/gpu_small.py --no-tests --json out.json
    python benchmarks/gpu_small.py --no-tests --work "4096 x 64" --arms launches resident registers chunks
    python benchmarks/gpu_small.py --no-tests --curves   # time over points, and over lanes

First come the tests of the resident path. Then every arm solves every workload once, which compiles its kernels, and
its potentials are judged in float64 by code that no solver uses: a residual above tol (a peer's: by more than 1 %) ends
the script. Then laps of all arms are interleaved, in orders in which each follows every other; times are medians. Our
arms get stacks of CUDA tensors, or lists of problems if these are ragged; OTT-JAX gets arrays that are on the device
already, and stops by its own error every ten iterations, in the highest matmul precision.

Arms: `default` is the default backend, and `launches` has no resident lanes. In `resident` lanes of up to 512 points
are resident, with small tiles of scores in registers; `registers` holds tiles up to 128 x 128 there, and `chunks` none.
`ott` and `ott-momentum` are OTT-JAX under jit and vmap.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import numpy as np
import torch

import drainsinkhorn as ds
from drainsinkhorn.backends.triton import TritonBackend, resident
from drainsinkhorn.testing.auditor import judge
from drainsinkhorn.testing.hostile import problem
from drainsinkhorn.testing.settings import SCOPES
from drainsinkhorn_bench.meters import heap_at_rest
from drainsinkhorn_bench.runner import orders

DEVICE = "cuda"
TOL, MOST, HOSTILE_MOST = 1e-3, 20_000, 2_000
"""Tolerance, and depth limits."""
PAIRS_AT_ONCE = 2**26
"""Pairs of points that the auditor holds at once."""
TESTS = ["tests/backends/triton/test_resident.py", "-q", "-x", "-k", "not promise and not hostile"]
CLASSES = {
    "resident": resident.IN_REGISTERS,
    "registers": 128 * 128,
    "chunks": 0,
}
"""Scores that a program holds in registers, by arm."""


class Work(NamedTuple):
    """What arms solve: a stack of clouds, or a list of problems.

    Attributes:
        x: Points, (lanes, n, d) on the device; None for a list.
        y: Points of the other side.
        eps: Strength of the entropic term.
        problems: A list of problems; empty for a stack.
        most: Depth limit.
    """

    x: Any = None
    y: Any = None
    eps: float = 0.0
    problems: Any = ()
    most: int = MOST


Answers = Callable[[], tuple[list[Any], list[Any]]]
Arm = Callable[[Work], tuple[Answers, dict[str, Any]]]


def stack(lanes: int, n: int, d: int, eps: float) -> Work:
    """Pairs of eight-cluster mixtures with growing spread, so that depths differ."""
    rng = np.random.default_rng([17, lanes, n, d])
    spread = np.linspace(0.1, 1.0, lanes)[:, None, None]
    sides = []
    for _ in range(2):
        centres, which = rng.normal(size=(lanes, 8, d)), rng.integers(8, size=(lanes, n))
        points = np.take_along_axis(centres, which[:, :, None], axis=1) + spread * rng.normal(size=(lanes, n, d))
        sides.append(torch.tensor(points.astype(np.float32), device=DEVICE))
    return Work(*sides, eps=eps)


def ragged(lanes: int) -> Work:
    """Normal clouds of 32 to 256 points in three dimensions."""
    rng = np.random.default_rng(19)
    sizes = rng.integers(32, 257, (lanes, 2))
    clouds = [[torch.tensor(rng.normal(size=(k, 3)).astype(np.float32), device=DEVICE) for k in two] for two in sizes]
    return Work(problems=[ds.Problem(x=x, y=y, eps=0.1) for x, y in clouds])


def hostile(lanes: int) -> Work:
    """Problems of the soak, of up to 300 points a side."""
    scope = replace(SCOPES["triton"], largest=300)
    return Work(problems=[problem(23, index, scope) for index in range(lanes)], most=HOSTILE_MOST)


WORK: dict[str, Callable[[], Work]] = {
    "1 x 256, d = 2": lambda: stack(1, 256, 2, 0.02),
    "1 x 64, d = 2": lambda: stack(1, 64, 2, 0.02),
    "16 x 256, d = 2": lambda: stack(16, 256, 2, 0.02),
    "256 x 128, d = 16": lambda: stack(256, 128, 16, 0.5),
    "1024 x 256, d = 8": lambda: stack(1024, 256, 8, 0.1),
    "4096 x 64, d = 2": lambda: stack(4096, 64, 2, 0.02),
    "4096 x 128, d = 16": lambda: stack(4096, 128, 16, 0.5),
    "1024 ragged, d = 3": lambda: ragged(1024),
    "3000 hostile": lambda: hostile(3000),
}


def ours(points: int | None, in_registers: int = resident.IN_REGISTERS, **settings: Any) -> Arm:
    """An arm of this library. Caches that depend on size classes are cleared where classes change."""

    def run(work: Work) -> tuple[Answers, dict[str, Any]]:
        if in_registers != resident.IN_REGISTERS:
            resident.IN_REGISTERS = in_registers
            resident.size_class.cache_clear()
        how = {"tol": TOL} if not work.problems else {}
        given = [list(work.problems)] if work.problems else [work.x, work.y]
        how |= {} if work.problems else {"eps": work.eps}
        solution = ds.solve(
            *given, backend=TritonBackend(resident_points=points), max_depth=work.most, warn=False, **how, **settings
        )
        ended, ledger = solution.outcomes, solution.ledger
        order = np.argsort(ended.tickets)
        told = {"slots": ledger.slots, "parts": {verb: round(value, 5) for verb, value in ledger.seconds.items()}}
        told["converged"] = sum(status is ds.Status.CONVERGED for status in ended.statuses)
        told["statuses"] = [ended.statuses[place] for place in order]
        told["eps"] = [ended.eps[place] for place in order]
        return lambda: ([ended.f[place] for place in order], [ended.g[place] for place in order]), told

    return run


def ott(*, momentum: bool) -> Arm:
    """OTT-JAX under jit and vmap, on arrays of the device."""
    import jax
    from ott.geometry.pointcloud import PointCloud
    from ott.problems.linear.linear_problem import LinearProblem
    from ott.solvers.linear.acceleration import Momentum
    from ott.solvers.linear.sinkhorn import Sinkhorn

    more = {"momentum": Momentum(start=20, value=1.0)} if momentum else {}
    solver: Any = Sinkhorn(threshold=TOL, norm_error=1, inner_iterations=10, max_iterations=MOST, **more)

    def one(x: Any, y: Any, eps: Any) -> Any:
        out = solver(LinearProblem(PointCloud(x, y, epsilon=eps)))
        return out.f, out.g, out.n_iters

    many, arrays = jax.jit(jax.vmap(one, in_axes=(0, 0, None))), dict[int, Any]()

    def run(work: Work) -> tuple[Answers, dict[str, Any]]:
        if id(work.x) not in arrays:
            arrays.clear()
            arrays[id(work.x)] = [jax.dlpack.from_dlpack(side) for side in (work.x, work.y)]
        with jax.default_matmul_precision("highest"):
            f, g, cycles = jax.block_until_ready(many(*arrays[id(work.x)], np.float32(work.eps)))
        sizes = [math.log(side.shape[1]) * work.eps for side in (work.x, work.y)]
        # Its weights are part of its potentials.
        sides = [np.asarray(side, np.float64) + size for side, size in zip((f, g), sizes, strict=True)]
        return lambda: tuple(list(side) for side in sides), {"slots": int(np.max(np.asarray(cycles))) * len(work.x)}  # type: ignore[return-value]

    return run


ARMS: dict[str, Callable[[], Arm]] = {
    "default": lambda: ours(None),
    "launches": lambda: ours(0),
    **{name: lambda held=held: ours(512, held) for name, held in CLASSES.items()},
    "plain": lambda: ours(512, accelerate="none", init="zero"),
    "ott": lambda: ott(momentum=False),
    "ott-momentum": lambda: ott(momentum=True),
}
PEERS = ("ott", "ott-momentum")


def residuals(work: Work, f: list[Any], g: list[Any]) -> float:
    """Return the largest L1 residual of a side of any lane of a stack, in float64."""
    worst, (lanes, n, _), m = 0.0, work.x.shape, work.y.shape[1]
    step = max(1, PAIRS_AT_ONCE // (n * m))
    for first in range(0, lanes, step):
        part = slice(first, min(lanes, first + step))
        x, y = work.x[part].double(), work.y[part].double()
        rows, cols = (
            torch.stack([torch.as_tensor(p, dtype=torch.float64, device=DEVICE) for p in side[part]]) for side in (f, g)
        )
        costs = ((x[:, :, None] - y[:, None]) ** 2).sum(-1)
        plan = torch.exp((rows[:, :, None] + cols[:, None] - costs) / work.eps) / (n * m)
        off = (plan.sum(2) - 1 / n).abs().sum(1), (plan.sum(1) - 1 / m).abs().sum(1)
        worst = max(worst, *(float(side.max()) for side in off))
        if any(bool(side.isnan().any()) for side in off):
            return math.nan
    return worst


def judged(arm: str, work: Work, answers: Answers, told: dict[str, Any]) -> str:
    """Return what is wrong with the answers; empty if nothing is. Of lists, converged problems are judged."""
    f, g = answers()
    if not work.problems:
        worst, bound = residuals(work, f, g), 1.01 * TOL if arm in PEERS else TOL
        told["residual"] = worst
        return "" if worst <= bound else f"residual {worst:.3g} above {bound:.3g}"
    false = [
        place
        for place, (given, status) in enumerate(zip(work.problems, told["statuses"], strict=True))
        if status is ds.Status.CONVERGED
        and judge(replace(given, eps=told["eps"][place]), ds.Potentials(f[place], g[place]), given.tol or TOL).refutes(
            given.tol or TOL
        )
    ]
    return f"CONVERGED and false: problems {false[:10]}" if false else ""


def lap(run: Arm, work: Work) -> float:
    torch.cuda.synchronize()
    begun = time.perf_counter()
    run(work)
    torch.cuda.synchronize()
    return time.perf_counter() - begun


def measure(name: str, work: Work, arms: dict[str, Arm], repeats: int) -> dict[str, Any]:
    """Return medians of interleaved laps by arm; raises SystemExit if an arm's answers are wrong."""
    rows: dict[str, Any] = {}
    for arm, run in arms.items():
        begun = time.perf_counter()
        answers, told = run(work)
        if fault := judged(arm, work, answers, told):
            if arm not in PEERS:
                raise SystemExit(f"{name}, {arm}: {fault}")
            told["failed"] = fault
        told = {name: value for name, value in told.items() if name not in ("statuses", "eps")}
        rows[arm] = {"first_seconds": time.perf_counter() - begun, **told}
    laps: dict[str, list[float]] = {arm: [] for arm in arms}
    with heap_at_rest():
        for order in orders(len(arms), repeats):
            for arm in (list(arms)[place] for place in order):
                laps[arm].append(lap(arms[arm], work))
    for arm, times in laps.items():
        rows[arm] |= {"seconds": statistics.median(times), "spread": max(times) / min(times), "laps": times}
    return {"work": name, "arms": rows}


def show(report: dict[str, Any]) -> None:
    print(f"\n{report['work']}")
    for arm, row in report["arms"].items():
        advance = row.get("parts", {}).get("advance")
        cycles = "" if advance is None else f", cycles {1e3 * advance:.2f} ms"
        failed = f"  FAILED: {row['failed']}" if "failed" in row else ""
        print(f"  {arm:<14} {1e3 * row['seconds']:9.2f} ms, {row['slots']} slots{cycles}{failed}", flush=True)


def curves(repeats: int) -> list[dict[str, Any]]:
    """Times over the points of a problem and over the number of lanes, with both ways to run cycles."""
    found, arms = [], {name: ARMS[name]() for name in ("default", "launches")}
    cases = {f"{max(1, 2**22 // n**2)} x {n}": (max(1, 2**22 // n**2), n) for n in (16, 32, 64, 128, 256, 512, 1024)}
    cases |= {f"{lanes} x 64": (lanes, 64) for lanes in (1, 4, 16, 64, 256, 1024, 4096, 16384)}
    for name, (lanes, n) in cases.items():
        found.append(measure(name, stack(lanes, n, 3, 0.05), arms, repeats))
        show(found[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", nargs="*", default=[""], metavar="TEXT", help="workloads whose name contains this")
    parser.add_argument("--arms", nargs="*", choices=list(ARMS), default=["default", "launches", *PEERS])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tests", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--curves", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("gpu_small.py measures a CUDA device, and torch sees none")
    begun = time.perf_counter()
    if asked.tests:
        subprocess.run([sys.executable, "-m", "pytest", *TESTS], cwd=Path(__file__).parent.parent, check=True)
        print(f"tests passed ({time.perf_counter() - begun:.0f} s)", flush=True)
    reports: list[dict[str, Any]] = []
    if asked.curves:
        reports += curves(asked.repeats)
    else:
        arms = {name: ARMS[name]() for name in asked.arms}
        for name, make in WORK.items():
            if not any(text in name for text in asked.work):
                continue
            work = make()
            fit = {arm: run for arm, run in arms.items() if arm not in PEERS or not work.problems}
            reports.append(measure(name, work, fit, asked.repeats))
            show(reports[-1])
    print(f"\n{torch.cuda.get_device_name()}, {time.perf_counter() - begun:.0f} s")
    if asked.json:
        Path(asked.json).write_text(json.dumps({"device": torch.cuda.get_device_name(), "reports": reports}, indent=1))


if __name__ == "__main__":
    main()
