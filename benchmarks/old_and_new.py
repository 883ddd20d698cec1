"""Two states of the library against each other: the same cells in turns, each state in a process of its own.

    git worktree add ../old COMMIT
    python benchmarks/old_and_new.py --old ../old/src
    python benchmarks/old_and_new.py --old ../old/src --device cuda --cells wide small scores plain

Both processes solve every cell once before anything is timed. Then they take laps in turns, the first one alternating.
A ratio is new over old; its interval is a bootstrap over pairs of laps. Results are compared first: converged problems,
depths, and the largest difference of potentials over eps.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

CELLS: dict[str, dict[str, Any]] = {
    "small": {"lanes": 512, "n": 64, "d": 2, "eps": 0.2},
    "wide": {"lanes": 16, "n": 512, "d": 16, "eps": 1.0},
    "ragged": {"lanes": 128, "n": 128, "d": 3, "eps": 0.2, "ragged": True},
    "scores": {"lanes": 8, "n": 512, "d": 200, "eps": 10.0},
    "plain": {"lanes": 8, "n": 1024, "d": 8, "eps": 0.5, "accelerate": "none"},
    "large": {"lanes": 4, "n": 4096, "d": 15, "eps": 1.0},
    "shared": {"lanes": 64, "n": 256, "d": 3, "eps": 0.3, "shared": True},
}
"""Cells by name: lanes, points, coordinates, eps."""


def problems(cell: dict[str, Any], device: str) -> list[Any]:
    import drainsinkhorn as ds

    rng, n, d = np.random.default_rng(0), cell["n"], cell["d"]
    made = []
    cost = np.random.default_rng(1).random((n, n)) if cell.get("shared") else None
    for _ in range(cell["lanes"]):
        size = int(rng.integers(n // 4, n)) if cell.get("ragged") else n
        if cost is not None:
            a = rng.random(n)
            made.append(ds.Problem(cost=_on(device, cost), a=a / a.sum(), eps=cell["eps"]))
            continue
        centre = rng.normal(size=d)
        x, y = (_on(device, (rng.normal(size=(size, d)) + k * centre).astype(np.float32)) for k in (0, 1))
        made.append(ds.Problem(x=x, y=y, eps=cell["eps"]))
    return made


def _on(device: str, array: Any) -> Any:
    if device == "numpy":
        return array
    import torch

    return torch.as_tensor(array, device=device)


def serve(device: str) -> None:
    """Answer on standard output: for the name of a cell, the seconds of one solve, depths and some potentials."""
    import drainsinkhorn as ds

    known: dict[str, list[Any]] = {}
    for line in sys.stdin:
        name, rich = line.split()
        cell = CELLS[name]
        if name not in known:
            known[name] = problems(cell, device)
        start = time.perf_counter()
        solution = ds.solve(known[name], accelerate=cell.get("accelerate", "auto"))
        if device == "cuda":
            sys.modules["torch"].cuda.synchronize()
        answer: dict[str, Any] = {"seconds": time.perf_counter() - start}
        if rich == "1":
            answer["depths"] = [result.depth for result in solution]
            answer["converged"] = sum(result.converged for result in solution)
            answer["f"] = [
                (np.asarray(r.potentials.f.cpu() if device != "numpy" else r.potentials.f)[:8] / cell["eps"]).tolist()
                for r in solution
            ]
        print(json.dumps(answer), flush=True)


class Side:
    """A process with one state of the library."""

    def __init__(self, source: str, device: str) -> None:
        command = [sys.executable, __file__, "--serve", "--device", device]
        environment = {**os.environ, "PYTHONPATH": str(Path(source).resolve())}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def ask(self, cell: str, *, rich: bool = False) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{cell} {int(rich)}\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def lap(self, cell: str) -> float:
        self.ask(cell)
        return self.answer()["seconds"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--old", help="folder with the other state's package")
    parser.add_argument("--new", default=str(Path(__file__).parent.parent / "src"))
    parser.add_argument("--device", default="numpy", help="numpy, cpu or cuda")
    parser.add_argument("--cells", nargs="+", default=["small", "wide", "ragged", "plain"], choices=sorted(CELLS))
    parser.add_argument("--laps", type=int, default=21)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(asked.device)
        return
    old, new = Side(asked.old, asked.device), Side(asked.new, asked.device)
    print("| cell | equal depths | difference, nats | old, ms | new, ms | new / old | 95 % |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for cell in asked.cells:
        for side in (old, new):
            side.ask(cell, rich=True)
        before, after = old.answer(), new.answer()
        equal = sum(p == q for p, q in zip(before["depths"], after["depths"], strict=True))
        apart = max(np.abs(np.subtract(p, q)).max() for p, q in zip(before["f"], after["f"], strict=True))
        for side in (old, new):
            side.lap(cell)
        pairs = []
        for lap in range(asked.laps):
            first, second = (old, new) if lap % 2 else (new, old)
            times = first.lap(cell), second.lap(cell)
            pairs.append(times if lap % 2 else times[::-1])
        laps = np.array(pairs)
        rng = np.random.default_rng(0)
        drawn = [np.median(np.divide(*laps[rng.integers(0, len(laps), len(laps))].T[::-1])) for _ in range(2000)]
        ratio, low, high = np.median(laps[:, 1] / laps[:, 0]), *np.quantile(drawn, [0.025, 0.975])
        count = len(before["depths"])
        same = f"{equal} of {count} ({before['converged']}, {after['converged']} converged)"
        times = f"{1e3 * np.median(laps[:, 0]):.2f} | {1e3 * np.median(laps[:, 1]):.2f}"
        print(f"| {cell} | {same} | {apart:.2g} | {times} | {ratio:.3f} | [{low:.3f}, {high:.3f}] |", flush=True)


if __name__ == "__main__":
    main()
