"""Plain Sinkhorn against plain Sinkhorn on the CPU, at equal audited residual.

    python benchmarks/cpu_peers.py                       # every generated workload
    python benchmarks/cpu_peers.py --data DIR            # and real windows from the .npz files of a folder
    python benchmarks/cpu_peers.py --workloads clouds3 --arms ours ott-serial --seconds 20

Every arm solves the same inputs to the same L1 tolerance; arms are interleaved, warm (compilation excluded) and
timed as medians; CPU seconds of all threads, the least of all runs, stand beside, for busy machines. One float64
auditor with direct differences judges everybody: an arm whose worst residual misses tol by more than 1 % is marked
failed, not beaten. An arm that would exceed --seconds is run on the first problems
and scaled by their number; such times are marked with ~. Peers are called as their documentation says for this
problem.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import drainsinkhorn as ds
from drainsinkhorn.testing import marginal_errors
from drainsinkhorn_bench import peers

TOL = 1e-3
Problems = list[ds.Problem[Any]]
Potentials = list[tuple[Any, Any]]
Found = Callable[[], Potentials]
"""What an arm returns: its own output, converted to our convention when asked, outside of any timing."""


# Workloads: a seed and a data folder to problems.


def mixture(rng: np.random.Generator, n: int, d: int, spread: float) -> Any:
    centres = spread * rng.normal(size=(8, d))
    return (centres[rng.integers(8, size=n)] + 0.3 * rng.normal(size=(n, d))).astype(np.float32)


def clouds(n: int, d: int, width: int, eps: float) -> Callable[[Path | None], Problems]:
    def make(_: Path | None) -> Problems:
        rng = np.random.default_rng(0)
        spreads = np.linspace(0.3, 1.5, width)
        return [ds.Problem(x=mixture(rng, n, d, s), y=mixture(rng, n, d, s), eps=eps) for s in spreads]

    return make


def ragged(_: Path | None) -> Problems:
    rng = np.random.default_rng(1)
    sizes = rng.integers(100, 1501, size=(64, 2))
    spreads = rng.uniform(0.3, 1.5, size=64)
    return [
        ds.Problem(x=mixture(rng, int(n), 3, s), y=mixture(rng, int(m), 3, s), eps=0.1)
        for (n, m), s in zip(sizes, spreads, strict=True)
    ]


def tiny(_: Path | None) -> Problems:
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(10_000, 32, 2)), rng.normal(size=(10_000, 32, 2)) + 0.5
    return ds.problems(x.astype(np.float32), y.astype(np.float32), eps=0.5)


def shared(_: Path | None) -> Problems:
    rng = np.random.default_rng(3)
    cost = ((rng.uniform(size=(1024, 1, 2)) - rng.uniform(size=(1, 1024, 2))) ** 2).sum(-1).astype(np.float32)
    a, b = rng.dirichlet(np.ones(1024), size=(2, 256))
    return ds.problems(cost=cost, a=a, b=b, eps=0.02)


def windows(pairs: list[tuple[Any, Any]], share: float) -> Problems:
    """Problems of real points: costs scaled by their mean, eps a share of it."""
    made: Problems = []
    for x, y in pairs:
        x, y = np.asarray(x, dtype=np.float32), np.asarray(y, dtype=np.float32)
        mean = float(((x[::7, None].astype(float) - y[None, ::7]) ** 2).sum(-1).mean())
        scale = np.float32(mean**-0.5)
        middle = x.mean(0)
        made.append(ds.Problem(x=(x - middle) * scale, y=(y - middle) * scale, eps=share))
    return made


def lidar(data: Path | None) -> Problems:
    with np.load(folder(data) / "kitti_0005_lidar.npz") as file:
        scans = file["xyz"][:, ::16]
    return windows([(scans[i], scans[i + 1]) for i in range(8)], 0.005)


def metropt(data: Path | None) -> Problems:
    with np.load(folder(data) / "metropt3.npz") as file:
        rows = file["failure_x"]
    rows = (rows - rows.mean(0)) / rows.std(0)
    parts = [rows[i * 1024 : (i + 1) * 1024] for i in range(9)]
    return windows([(parts[0], part) for part in parts[1:]], 0.01)


def umap(data: Path | None) -> Problems:
    with np.load(folder(data) / "packer19.npz") as file:
        points, times = file["umap"], file["umap_time"]
    rng = np.random.default_rng(0)
    early, late = points[times == 300], points[times == 400]
    return windows([(rng.choice(early, 2048, False), rng.choice(late, 2048, False)) for _ in range(4)], 0.01)


def pbmc(data: Path | None) -> Problems:
    with np.load(folder(data) / "pbmc_ifnb.npz") as file:
        points, stimulated = file["pca"], file["stimulated"] > 0
    rng = np.random.default_rng(0)
    before, after = points[~stimulated], points[stimulated]
    return windows([(rng.choice(before, 2048, False), rng.choice(after, 2048, False)) for _ in range(4)], 0.05)


def folder(data: Path | None) -> Path:
    if data is None:
        raise FileNotFoundError("real windows need --data DIR")
    return data


WORKLOADS: dict[str, Callable[[Path | None], Problems]] = {
    "clouds3": clouds(1024, 3, 16, 0.1),
    "clouds50": clouds(2048, 50, 8, 1.0),
    "ragged": ragged,
    "tiny": tiny,
    "shared": shared,
    "lidar": lidar,
    "metropt": metropt,
    "umap": umap,
    "pbmc": pbmc,
}


# Arms: problems to potentials in our convention, P = a b exp((f + g - C) / eps).


def ours(problems: Problems) -> Found:
    """Plain Sinkhorn from zero."""
    solution = ds.solve(problems, tol=TOL, accelerate="none", init="zero")
    return lambda: [tuple(result.potentials) for result in solution]


def ours_default(problems: Problems) -> Found:
    """With momentum and the default start."""
    solution = ds.solve(problems, tol=TOL)
    return lambda: [tuple(result.potentials) for result in solution]


def keops_serial(problems: Problems) -> Found:
    """PyKeOps: alternating log-sum-exp reductions, residual read off the f-leg every 10 cycles."""
    from pykeops.numpy import LazyTensor

    found = []
    for p in problems:
        log_a, log_b = (w.astype(np.float32) for w in peers.log_weights(p))
        x, y = LazyTensor(p.x[:, None, :]), LazyTensor(p.y[None, :, :])
        distance = ((x - y) ** 2).sum(-1) / p.eps
        a, f, g = np.exp(log_a), np.zeros(len(p.x), np.float32), np.zeros(len(p.y), np.float32)
        for cycle in range(20_000):
            new = -(LazyTensor((g + log_b)[None, :, None]) - distance).logsumexp(axis=1).ravel()
            if cycle and cycle % 10 == 0 and np.abs(np.expm1(f - new) * a).sum() <= TOL:
                break
            f = new
            g = -(LazyTensor((f + log_a)[:, None, None]) - distance).logsumexp(axis=0).ravel()
        found.append((p.eps * f.astype(float), p.eps * g.astype(float)))
    return lambda: found


@dataclass
class Arm:
    """A way to solve, and which batches it takes."""

    run: Callable[[Problems], Found]
    stacked: bool = False
    points: bool = False
    joint: bool = False

    def takes(self, problems: Problems) -> str:
        """Empty if it can run them, else why not."""
        shapes = {p.cost.shape if p.x is None else (p.x.shape, p.y.shape) for p in problems}
        if self.stacked and len(shapes) > 1:
            return "needs equal shapes"
        if self.points and problems[0].x is None:
            return "needs points"
        return ""


def peer(make: Callable[[], Callable[[Problems], peers.Found]]) -> Callable[[Problems], Found]:
    """An arm that is a peer of the package."""
    run = make()
    return lambda problems: run(problems).potentials


def arms() -> dict[str, Callable[[], Arm]]:
    """Arms by name, made when asked for, since they import their library."""
    ott: list[peers.Ott] = []

    def the_ott() -> peers.Ott:
        if not ott:
            ott.append(peers.Ott(TOL))
        return ott[0]

    return {
        "ours": lambda: Arm(ours, joint=True),
        "ours-default": lambda: Arm(ours_default, joint=True),
        "ott-serial": lambda: Arm(peer(lambda: the_ott().serial)),
        "ott-momentum": lambda: Arm(peer(lambda: peers.Ott(TOL, momentum=True).serial)),
        "ott-vmap": lambda: Arm(peer(lambda: the_ott().vmap), stacked=True, joint=True),
        "pot-serial": lambda: Arm(peer(lambda: peers.Pot(TOL).serial)),
        "pot-batch": lambda: Arm(peer(lambda: peers.Pot(TOL).batch), stacked=True, joint=True),
        "keops-serial": lambda: Arm(keops_serial, points=True),
    }


@dataclass
class Measured:
    """What an arm did on a workload."""

    seconds: float
    worst: float
    share: float

    @property
    def failed(self) -> bool:
        return not self.worst <= 1.01 * TOL


def measure(arm: Arm, problems: Problems, budget: float, repeats: int) -> Timer:
    """Warm the arm up on what it will run within its budget; returns a timer, with `.share` and `.found`."""
    few = problems[:1] if not arm.joint else problems
    run = Timer(arm, few)
    if not arm.joint:
        run()
        count = max(1, min(len(problems), int(budget / max(run() * (repeats + 1), 1e-9))))
        # A spread of problems, so that shallow and deep ones are both there.
        picked = [problems[i] for i in np.linspace(0, len(problems) - 1, count).astype(int)]
        run = Timer(arm, picked)
        run.share = len(picked) / len(problems)
    first = run()
    if arm.joint and first <= budget < first * repeats:
        # What was slow may have been the loading of kernels.
        first = run()
    # A joint arm cannot be cut short: one that is over its budget keeps its first time, compilation included.
    run.once = first if arm.joint and first * repeats > budget else None
    return run


class Timer:
    """Runs an arm and keeps what it found."""

    def __init__(self, arm: Arm, problems: Problems) -> None:
        self.arm, self.problems, self.share = arm, problems, 1.0
        self.once: float | None = None
        self.found: Found = list
        self.cpu = float("inf")

    def __call__(self) -> float:
        start, spent = time.perf_counter(), time.process_time()
        self.found = self.arm.run(self.problems)
        # The least of all runs: what a busy machine disturbs least.
        self.cpu = min(self.cpu, time.process_time() - spent)
        return time.perf_counter() - start


def audit(problems: Problems, found: Potentials) -> float:
    """The worst residual, by float64 direct differences."""
    worst = 0.0
    with np.errstate(all="ignore"):
        for p, (f, g) in zip(problems, found, strict=True):
            error = max(marginal_errors(p, ds.Potentials(np.asarray(f), np.asarray(g))))
            worst = max(worst, error) if np.isfinite(error) else np.inf
    return worst


def bench(name: str, problems: Problems, wanted: list[str], budget: float, repeats: int) -> dict[str, Any]:
    """All arms on one workload, interleaved."""
    runs, notes = dict[str, Timer](), dict[str, str]()
    makers = arms()
    for arm_name in wanted:
        try:
            arm = makers[arm_name]()
            notes[arm_name] = arm.takes(problems)
            if not notes[arm_name]:
                runs[arm_name] = measure(arm, problems, budget, repeats)
        except Exception as error:  # noqa: BLE001  a peer that cannot run here is said so, not hidden
            notes[arm_name] = f"{type(error).__name__}: {error}"[:100]
    times: dict[str, list[float]] = {arm_name: [] for arm_name in runs}
    for _ in range(repeats):
        for arm_name, run in runs.items():
            times[arm_name].append(run() if run.once is None else run.once)
    rows: dict[str, Any] = {}
    for arm_name in wanted:
        if arm_name not in runs:
            rows[arm_name] = {"note": notes[arm_name]}
            continue
        run = runs[arm_name]
        found = Measured(statistics.median(times[arm_name]) / run.share, audit(run.problems, run.found()), run.share)
        rows[arm_name] = {
            "seconds": found.seconds,
            "cpu_seconds": run.cpu / run.share,
            "spread": max(times[arm_name]) / min(times[arm_name]),
            "worst_residual": found.worst,
            "share_run": found.share,
            "single_cold_run": run.once is not None,
            "failed": found.failed,
        }
    honest = {arm_name: row["seconds"] for arm_name, row in rows.items() if not row.get("failed", True)}
    ratios: dict[str, float] = {}
    for mine, accelerated in (("ours", False), ("ours-default", True)):
        peers = [honest[a] for a in honest if not a.startswith("ours") and (accelerated or a != "ott-momentum")]
        if mine in honest and peers:
            ratios[mine] = min(peers) / honest[mine]
    return {"workload": name, "problems": len(problems), "tol": TOL, "arms": rows, "ratio_to_best_peer": ratios}


def show(report: dict[str, Any]) -> None:
    """One workload as lines of a table."""
    print(f"\n{report['workload']}: {report['problems']} problems, tol {report['tol']}")
    for name, row in report["arms"].items():
        if "note" in row:
            print(f"  {name:<14} {row['note']}")
            continue
        mark = "~" if row["share_run"] < 1 else "1" if row["single_cold_run"] else " "
        verdict = "FAILED" if row["failed"] else ""
        times = f"{row['seconds']:>9.3f} s   CPU {row['cpu_seconds']:>9.3f} s"
        print(f"  {name:<14} {mark}{times}   residual {row['worst_residual']:.2e} {verdict}")
    for mine, ratio in report["ratio_to_best_peer"].items():
        against = "plain peer" if mine == "ours" else "peer, momentum included"
        print(f"  {mine} is {ratio:.1f}x the best {against}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with the .npz files of the real windows")
    parser.add_argument("--workloads", nargs="*", default=None, choices=list(WORKLOADS))
    parser.add_argument("--arms", nargs="*", default=list(arms()), choices=list(arms()))
    parser.add_argument("--seconds", type=float, default=60.0, help="budget of one arm on one workload")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="where to write JSON")
    options = parser.parse_args()
    reports = []
    for name in options.workloads or WORKLOADS:
        try:
            problems = WORKLOADS[name](options.data)
        except FileNotFoundError as error:
            print(f"\n{name}: skipped, {error}")
            continue
        reports.append(bench(name, problems, options.arms, options.seconds, options.repeats))
        show(reports[-1])
    if options.out:
        machine = {"python": sys.version.split()[0], "platform": platform.platform(), "cores": os.cpu_count()}
        command = " ".join(["python", *sys.argv])
        options.out.write_text(json.dumps({"command": command, "machine": machine, "reports": reports}, indent=1))


if __name__ == "__main__":
    main()
