"""Time the first solve on a machine where no kernel has been compiled, in fresh processes.

    python benchmarks/cold_start.py
    python benchmarks/cold_start.py --device cuda
    python benchmarks/cold_start.py --old ../old/src

Each row is a solve in a fresh process: with empty folders of compiled kernels, and again with those that the first
process filled. After its first solve, a process solves problems in another number of coordinates. Imports and the
creation of the CUDA context are not counted. Every result is checked against a float64 reference in NumPy; the exit
status is 1 if one is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

SOURCE = Path(__file__).parent.parent / "src"
TOL = 1e-3
CASES = {
    "cpu": {"300 points": (300, 3, 10)},
    "cuda": {"100 points": (100, 3, 10), "2000 points": (2000, 3, 50)},
}
"""Points of a problem, coordinates of the first solve, and of the second."""
PROCESS = """
import json, sys, time
import numpy as np
import drainsinkhorn as ds

device, points, *dims = sys.argv[1], *map(int, sys.argv[2:])
backend = "cpu"
if device == "cuda":
    import torch
    from drainsinkhorn.backends.triton import TritonBackend
    torch.zeros(1, device="cuda").item()
    backend = TritonBackend()
else:
    import drainsinkhorn.backends.cpu
answers = []
for dim in dims:
    rng = np.random.default_rng(dim)
    x, y = rng.normal(size=(2, points, dim)), rng.normal(size=(2, points, dim)) + 0.2
    begun = time.perf_counter()
    solution = ds.solve(x, y, eps=0.5 * dim, tol=1e-3, backend=backend)
    seconds = time.perf_counter() - begun
    begun = time.perf_counter()
    ds.solve(x, y, eps=0.5 * dim, tol=1e-3, backend=backend)
    answers.append({
        "seconds": seconds, "again": time.perf_counter() - begun,
        "f": [np.asarray(r.potentials.f, dtype=float).tolist() for r in solution],
        "g": [np.asarray(r.potentials.g, dtype=float).tolist() for r in solution],
        "converged": all(r.converged for r in solution),
    })
print(json.dumps(answers))
"""


def residual(points: int, dim: int, lane: int, f: Any, g: Any) -> float:
    """Largest total error of a marginal at these potentials, in float64."""
    rng = np.random.default_rng(dim)
    x, y = rng.normal(size=(2, points, dim)), rng.normal(size=(2, points, dim)) + 0.2
    cost = ((x[lane][:, None] - y[lane][None]) ** 2).sum(2)
    plan = np.exp((np.asarray(f)[:, None] + np.asarray(g)[None] - cost) / (0.5 * dim)) / points**2
    return max(float(np.abs(plan.sum(axis) - 1 / points).sum()) for axis in (0, 1))


def solve(device: str, case: tuple[int, int, int], source: str, folder: str) -> list[Any]:
    """Solve in a fresh process whose kernels are in this folder; exits if the process fails."""
    known = os.environ | {"NUMBA_CACHE_DIR": f"{folder}/numba", "TRITON_CACHE_DIR": f"{folder}/triton"}
    # Also the driver's cache of machine code, and no interpreter.
    known |= {"CUDA_CACHE_PATH": f"{folder}/cuda", "TRITON_INTERPRET": "0", "PYTHONPATH": source}
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, device, *map(str, case)], env=known, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        sys.exit(f"a process failed with status {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=sorted(CASES), default="cpu")
    parser.add_argument("--old", help="folder with the package of another state, which is measured first")
    asked = parser.parse_args()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    print(f"{asked.device}, {cores} cores; seconds, and of the same solve again")
    print(f"{'':24}{'first solve':>20}{'other coordinates':>20}{'second process':>20}{'its other':>20}")
    wrong = 0
    for label, source in (("old", asked.old), ("", str(SOURCE))):
        if source is None:
            continue
        for name, case in CASES[asked.device].items():
            with tempfile.TemporaryDirectory() as folder:
                answers = [*solve(asked.device, case, source, folder), *solve(asked.device, case, source, folder)]
            cells = "".join(f"{one['seconds']:12.2f}{one['again']:8.3f}" for one in answers)
            print(f"{f'{label} {name}'.strip():24}{cells}", flush=True)
            for one, dim in zip(answers, case[1:] * 2, strict=True):
                errors = [residual(case[0], dim, lane, one["f"][lane], one["g"][lane]) for lane in (0, 1)]
                if not (one["converged"] and max(errors) <= 1.01 * TOL):
                    wrong += 1
                    print(f"WRONG: {name}, {dim} coordinates: residuals {errors}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
