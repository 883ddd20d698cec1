"""Thousands of small problems: whole solves, the share of their cycles, and peers, at equal audited residual.

    python benchmarks/small.py                                  # on the CPU
    python benchmarks/small.py --device cuda                    # on a GPU, with tensors
    python benchmarks/small.py --cases stack64 ragged --laps 9
    python benchmarks/small.py --arms ours --cases one64        # without peers

Before anything is timed, a float64 auditor with direct differences judges the potentials of every arm: an arm whose
worst residual misses tol by more than 1 % is marked failed. Arms are warm and interleaved; times are medians over laps.
`whole / cycles` is the median over laps of the time of `solve` over `ledger.seconds["advance"]` of the same lap. Host
time is the time of `solve` less the time in the backend, for each problem; on the CPU the backend's time contains the
host's part of opening, verification and emission. CPU seconds of all threads stand beside, for busy machines. The flow
loop draws pairs from `CoupledBatches`, and its time is that of one minibatch.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from small_cases import CASES, Case

import drainsinkhorn as ds
from drainsinkhorn.testing import marginal_errors
from drainsinkhorn_bench import peers

TOL = 1e-3
SERIAL = 64
"""Problems that a serial peer solves at most; its time is scaled to all of them."""
Potentials = list[Any]


@dataclass
class Arm:
    """One way to solve a case.

    Attributes:
        run: Solves it once; returns the ledger of our own run, else None.
        found: Its potentials, in our convention, after a run.
        share: Share of the problems that it solves.
    """

    run: Callable[[], Any]
    found: Callable[[], Potentials]
    share: float = 1.0
    walls: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    cycles: list[float] = field(default_factory=list)
    host: list[float] = field(default_factory=list)

    def lap(self) -> None:
        """Solve once and keep the times."""
        wall, spent = time.perf_counter(), time.process_time()
        ledger = self.run()
        wall, spent = time.perf_counter() - wall, time.process_time() - spent
        self.walls.append(wall / self.share)
        self.processor.append(spent / self.share)
        if ledger is not None:
            self.cycles.append(wall / ledger.seconds["advance"])
            self.host.append(wall - sum(ledger.seconds.values()))


def our_arm(case: Case, problems: list[ds.Problem[Any]], device: str) -> Arm:
    """Our default: points of equal size are passed as stacks, others as a list of problems."""
    kept = list[Any]()

    def on_device(array: Any) -> Any:
        if device == "numpy":
            return array
        import torch

        return torch.as_tensor(array, device=device)

    if isinstance(case.points, int):
        x, y = (on_device(np.stack([getattr(p, side) for p in problems])) for side in "xy")
        given: tuple[Any, ...] = x, y
        keywords: dict[str, Any] = {"eps": case.eps}
    else:
        given = ([ds.Problem(x=on_device(p.x), y=on_device(p.y), eps=p.eps) for p in problems],)
        keywords = {}

    def run() -> Any:
        kept[:] = [ds.solve(*given, tol=TOL, **keywords)]
        return kept[0].ledger

    return Arm(run, lambda: [tuple(map(on_host, result.potentials)) for result in kept[0]])


def on_host(array: Any) -> Any:
    """A NumPy array of an array or tensor."""
    return np.asarray(array.cpu() if hasattr(array, "cpu") else array)


def peer_arm(name: str, problems: list[ds.Problem[Any]]) -> Arm:
    """An arm of a peer; a serial one solves some of the problems, evenly spaced."""
    library, way = name.split("-")
    solver: Any = peers.Ott(TOL) if library == "ott" else peers.Pot(TOL)
    picked = problems
    if way == "serial" and len(problems) > SERIAL:
        picked = [problems[i] for i in np.linspace(0, len(problems) - 1, SERIAL).astype(int)]
    kept = list[Any]()

    def run() -> None:
        kept[:] = [getattr(solver, way)(picked)]

    return Arm(run, lambda: [tuple(pair) for pair in kept[0].potentials()], len(picked) / len(problems))


def worst_residual(problems: list[ds.Problem[Any]], arm: Arm) -> float:
    """The largest residual of an arm's potentials, in float64 by direct differences."""
    found = arm.found()
    picked = problems
    if len(found) < len(problems):
        picked = [problems[i] for i in np.linspace(0, len(problems) - 1, len(found)).astype(int)]
    pairs = zip(picked, found, strict=True)
    errors = [max(marginal_errors(problem, ds.Potentials(*map(np.asarray, pair)))) for problem, pair in pairs]
    return float(np.max(np.where(np.isfinite(errors), errors, np.inf)))


def measure(name: str, asked: argparse.Namespace) -> dict[str, Any]:
    """Times of one case."""
    case = CASES[name]
    x, y = case.make()
    problems = [ds.Problem(x=own, y=other, eps=case.eps) for own, other in zip(x, y, strict=True)]
    arms = {"ours": our_arm(case, problems, asked.device)}
    arms |= {arm: peer_arm(arm, problems) for arm in case.peers if arm in asked.arms}
    residuals: dict[str, float] = {}
    for arm_name, arm in arms.items():
        arm.run()
        residuals[arm_name] = worst_residual(problems, arm)
        arm.run()
    for _ in range(asked.laps):
        for arm in arms.values():
            arm.lap()
    ours = arms["ours"]
    row: dict[str, Any] = {"case": name, "lanes": case.lanes, "points": case.points, "dim": case.dim}
    row |= {"whole_over_cycles": statistics.median(ours.cycles)}
    row |= {"host_us_per_problem": 1e6 * statistics.median(ours.host) / case.lanes}
    for arm_name, arm in arms.items():
        row[arm_name] = {
            "ms": 1e3 * statistics.median(arm.walls),
            "cpu_ms": 1e3 * min(arm.processor),
            "worst_residual": residuals[arm_name],
            "failed": not residuals[arm_name] <= 1.01 * TOL,
        }
        if arm_name != "ours":
            pairs = zip(arm.walls, ours.walls, strict=True)
            row[arm_name]["ratio"] = statistics.median(peer / own for peer, own in pairs)
            row[arm_name]["cpu_ratio"] = min(arm.processor) / min(ours.processor)
    return row


def measure_flow(asked: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds per minibatch of 256 pairs in two coordinates, drawn by `CoupledBatches`."""
    import torch

    from drainsinkhorn.flow import CoupledBatches

    generator, count, times = torch.Generator().manual_seed(0), 64, list[float]()
    data = torch.randn(64, 256, 2, generator=generator)
    noise = torch.randn(64, 256, 2, generator=generator)
    minibatches = itertools.cycle(zip(noise, data, strict=True))
    with CoupledBatches(minibatches, eps=0.1, tol=TOL) as coupled:
        for _ in range(count):
            next(coupled)
        for _ in range(asked.laps):
            start = time.perf_counter()
            for _ in range(count):
                next(coupled)
            times.append((time.perf_counter() - start) / count)
    return {"case": "flow", "lanes": count, "points": 256, "dim": 2, "ours": {"ms": 1e3 * statistics.median(times)}}


def show(row: dict[str, Any]) -> None:
    """Print a row of the table."""
    print(f"{row['case']}: {row['lanes']} x {row['points']}, d = {row['dim']}")
    if "whole_over_cycles" in row:
        host = row["host_us_per_problem"]
        print(f"  whole / cycles {row['whole_over_cycles']:.2f}, host outside the backend {host:.2f} us a problem")
    for name, arm in row.items():
        if isinstance(arm, dict) and "worst_residual" in arm:
            against = f", {arm['ratio']:.1f}x our time, {arm['cpu_ratio']:.1f}x CPU" if "ratio" in arm else ""
            verdict = " FAILED" if arm["failed"] else ""
            times = f"{arm['ms']:10.2f} ms, CPU {arm['cpu_ms']:10.2f} ms"
            print(f"  {name:<10} {times}, residual {arm['worst_residual']:.2e}{verdict}{against}", flush=True)
        elif isinstance(arm, dict):
            print(f"  {name:<10} {arm['ms']:10.2f} ms a minibatch", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=[*CASES, "flow"], choices=[*CASES, "flow"])
    parser.add_argument("--arms", nargs="+", default=["ours", "ott-vmap", "ott-serial", "pot-batch"])
    parser.add_argument("--device", default="numpy", choices=["numpy", "cuda"])
    parser.add_argument("--laps", type=int, default=7)
    parser.add_argument("--out", type=Path, help="where to write JSON")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    for name in asked.cases:
        rows.append(measure_flow(asked) if name == "flow" else measure(name, asked))
        show(rows[-1])
    if asked.out:
        asked.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
