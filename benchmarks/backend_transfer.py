"""The drain over OTT-JAX and over PyKeOps against what each does by itself, one float64 auditor for everyone.

    python benchmarks/backend_transfer.py --out F.jsonl                    # CPU, reduced sizes, generated windows
    python benchmarks/backend_transfer.py --out F.jsonl --data DIR         # and images and LiDAR from DIR
    python benchmarks/backend_transfer.py --out F.jsonl --data DIR --full  # a GPU, the paper's sizes
    python benchmarks/backend_transfer.py --out F.jsonl --table            # what was measured so far

A piece is one workload with one backend; it takes some minutes and appends one line of JSON. Pieces that the file
holds already are skipped, so an interrupted run goes on where it stopped (`--piece NAME` runs one). Within a piece arms
are warmed, then interleaved; times are medians of repeats, compilation is outside. Native OTT checks every STRIDE
updates, as the others do. DIR holds `imagenet200_32px_pca500.npz` and `kitti_0005_lidar.npz`.

Padding is what a static window runs beyond the sum of depths, as part of that sum. Slots are what each arm really
executed, the ladder's rounding included. Under an arm of ours stands where the last repeat spent its time, by verb;
what is missing from the sum is the door.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import drainsinkhorn as ds
from drainsinkhorn_bench import gate, meters

TOL = 1e-3
STRIDE = 20
MOST = 10_000
Window = list[ds.Problem[Any]]
Found = list[tuple[Any, Any]]
"""Potentials in our convention, as NumPy arrays, by problem."""


def mixtures(n: int, d: int, width: int, eps: float, seed: int = 0) -> Window:
    """Pairs of eight-cluster mixtures with growing spread, so with unequal depths."""
    found = []
    for lane in range(width):
        rng = np.random.default_rng([17, seed, n, d, lane])
        spread = 0.1 + 0.9 * lane / max(1, width - 1)
        x, y = (rng.normal(size=(8, d))[rng.integers(8, size=n)] + spread * rng.normal(size=(n, d)) for _ in range(2))
        found.append(problem(x, y, eps))
    return found


def problem(x: Any, y: Any, eps: float) -> ds.Problem[Any]:
    """A float32 problem from the zero start; eps is in units of the mean cost."""
    x, y = x.astype(np.float32), y.astype(np.float32)
    wide_x, wide_y = x.astype(np.float64), y.astype(np.float64)
    mean = float((wide_x**2).sum(1).mean() + (wide_y**2).sum(1).mean() - 2 * wide_x.mean(0) @ wide_y.mean(0))
    return ds.Problem(x=x, y=y, eps=eps, cost=ds.Cost("sqeuclidean", 1 / mean), init="zero")


def images(folder: Path, n: int, width: int, eps: float) -> Window:
    """Principal scores of photographs against Gaussian noise of their covariance, as flow matching couples them."""
    data = np.load(folder / "imagenet200_32px_pca500.npz", allow_pickle=False)
    scores = data["scores_q"].astype(np.float32) * data["step"]
    found = []
    for lane in range(width):
        rng = np.random.default_rng([23, lane])
        x = scores[rng.choice(len(scores), size=n, replace=False)]
        # Noise of growing scale makes unequal lanes of equal data.
        scale = 0.25 + 0.75 * lane / max(1, width - 1)
        found.append(problem(scale * rng.normal(size=x.shape) * scores.std(0), x, eps))
    return found


def lidar(folder: Path, n: int, width: int, eps: float) -> Window:
    """Consecutive scans, thinned: each against the next ones."""
    xyz = np.load(folder / "kitti_0005_lidar.npz", allow_pickle=False)["xyz"]
    found = []
    for lane in range(width):
        rng = np.random.default_rng([29, lane])
        first, second = xyz[0], xyz[1 + lane]
        picks = [rng.choice(first.shape[0], size=n, replace=False) for _ in range(2)]
        found.append(problem(first[picks[0]], second[picks[1]], eps))
    return found


def workloads(folder: Path | None, full: bool) -> dict[str, tuple[str, Callable[[], Window]]]:
    """Piece by name: which library, and its window."""
    n4, n8, n16 = (4096, 8192, 16384) if full else (512, 256, 512)
    pieces: dict[str, tuple[str, Callable[[], Window]]] = {
        "ott-mixtures": ("ott", lambda: mixtures(n4, 15, 16, 0.02)),
        "ott-mixtures-2": ("ott", lambda: mixtures(n4, 3, 16, 0.01, seed=1)),
        "keops-mixtures": ("keops", lambda: mixtures(n8, 3, 8, 0.02)),
    }
    if folder is not None:
        pieces |= {
            "ott-images": ("ott", lambda: images(folder, n4, 16, 0.03)),
            "keops-lidar": ("keops", lambda: lidar(folder, n8, 8, 0.01)),
            "keops-images": ("keops", lambda: images(folder, n16, 4, 0.05)),
        }
    return pieces


def audit(given: ds.Problem[Any], f: Any, g: Any) -> float:
    """The larger L1 residual in float64, costs by direct differences; on a GPU if there is one."""
    x, y = (np.asarray(points, np.float64) * math.sqrt(given.cost.scale) for points in (given.x, given.y))
    return gate.residual(ds.Problem(x=x, y=y, eps=given.eps), ds.Potentials(f, g), meters.place("auto").device)


def ours(backend: Any, mode: str, audits: ds.Audit, *, chained: bool = False) -> Callable[[Window], tuple[Found, Any]]:
    def run(window: Window) -> tuple[Found, Any]:
        keys = {"chain": 0} if chained else {}
        given = [ds.Problem(x=p.x, y=p.y, eps=p.eps, cost=p.cost, init=p.init, **keys) for p in window]
        width = 1 if mode == "width-one" else len(window)
        solution = ds.solve(
            given, tol=TOL, backend=backend, mode=mode, width=width, audit=audits, accelerate="none", max_depth=MOST
        )
        return [tuple(np.asarray(side) for side in result.potentials) for result in solution], solution.ledger

    return run


def ott_arms() -> dict[str, Callable[[Window], tuple[Found, Any]]]:
    """OTT by itself, and the drain over it."""
    import jax
    import jax.numpy as jnp
    from ott.geometry import pointcloud
    from ott.problems.linear.linear_problem import LinearProblem
    from ott.solvers.linear.sinkhorn import Sinkhorn

    from drainsinkhorn.backends.ottjax import OttBackend

    solver = Sinkhorn(threshold=TOL, inner_iterations=STRIDE, max_iterations=MOST)

    def one(x: Any, y: Any, eps: Any) -> tuple[Any, Any, Any]:
        out = solver(LinearProblem(pointcloud.PointCloud(x, y, epsilon=eps)))
        return out.f, out.g, out.n_iters

    # A cost's scale is folded into eps: an argument, so that one compilation serves all lanes.
    serial, batched = jax.jit(one), jax.jit(jax.vmap(one))

    def back(window: Window, fs: Any, gs: Any) -> Found:
        return [
            (p.cost.scale * np.asarray(f, np.float64) + p.eps * np.log(len(f)),
             p.cost.scale * np.asarray(g, np.float64) + p.eps * np.log(len(g)))
            for p, f, g in zip(window, fs, gs, strict=True)
        ]  # fmt: skip

    def native(window: Window) -> tuple[Found, Any]:
        with jax.default_matmul_precision("highest"):
            x, y = (jnp.stack([getattr(p, side) for p in window]) for side in ("x", "y"))
            f, g, depths = jax.block_until_ready(batched(x, y, jnp.array([p.eps / p.cost.scale for p in window])))
        return back(window, f, g), [int(d) for d in depths]

    def one_by_one(window: Window) -> tuple[Found, Any]:
        with jax.default_matmul_precision("highest"):
            outs = [jax.block_until_ready(serial(p.x, p.y, p.eps / p.cost.scale)) for p in window]
        return back(window, [o[0] for o in outs], [o[1] for o in outs]), [int(o[2]) for o in outs]

    grid, backend = ds.Audit(every=STRIDE), OttBackend(stride=STRIDE)
    return {
        "native vmap": native,
        "native serial": one_by_one,
        "static": ours(backend, "static", grid),
        "active": ours(backend, "compact", grid),
    }


def keops_arms() -> dict[str, Callable[[Window], tuple[Found, Any]]]:
    """The same symbolic reduction, one problem at a time, static, and drained."""
    from drainsinkhorn.backends.keops import KeopsBackend

    try:
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
    except ImportError:
        device = "cpu"
    backend, audits = KeopsBackend(device=device), ds.Audit(every=ds.Geometric(8, 1.25))
    return {
        "sequential": ours(backend, "width-one", audits),
        "sequential carry": ours(backend, "width-one", audits, chained=True),
        "static": ours(backend, "static", audits),
        "active": ours(backend, "compact", audits),
    }


def measure(name: str, library: str, window: Window, repeats: int, seconds: float) -> dict[str, Any]:
    """One piece: warm every arm, then interleave them."""
    arms = (ott_arms if library == "ott" else keops_arms)()
    outcome, verbs, times = {}, dict[str, Any](), {arm: list[float]() for arm in arms}
    for arm, run in arms.items():
        outcome[arm] = run(window)
    began = time.perf_counter()
    for _ in range(repeats):
        for arm, run in arms.items():
            start = time.perf_counter()
            _, ledger = run(window)
            times[arm].append(time.perf_counter() - start)
            verbs[arm] = getattr(ledger, "seconds", {})
        if time.perf_counter() - began > seconds:
            break
    active = outcome["active"][1]
    depths = [active.depths[ticket] for ticket in sorted(active.depths)]
    row: dict[str, Any] = {
        "piece": name, "command": " ".join(sys.argv), "n": len(window[0].x), "d": window[0].x.shape[1],
        "width": len(window), "depths": depths, "padding": len(depths) * max(depths) / sum(depths) - 1, "arms": {},
    }  # fmt: skip
    for arm, (found, ledger) in outcome.items():
        slots = getattr(ledger, "slots", None)
        row["arms"][arm] = {
            "seconds": statistics.median(times[arm]), "all_seconds": times[arm], "verbs": verbs[arm],
            "residual": max(audit(p, *potentials) for p, potentials in zip(window, found, strict=True)),
            "slots": slots if slots is not None else (sum(ledger) if "serial" in arm else len(ledger) * max(ledger)),
        }  # fmt: skip
    return row


def show(path: Path) -> None:
    """The table of a file."""
    for line in path.read_text().splitlines():
        row = json.loads(line)
        shape = f"n={row['n']} d={row['d']} W={row['width']}"
        print(f"\n{row['piece']}: {shape}, padding {row['padding']:.2f}, depths {row['depths']}")
        active = row["arms"]["active"]
        for arm, told in row["arms"].items():
            print(
                f"  {arm:17} {told['seconds']:9.3f} s   active is {told['seconds'] / active['seconds']:5.2f}x   "
                f"slots {told['slots']:7d} ({told['slots'] / active['slots']:4.2f}x)   residual {told['residual']:.2e}"
            )
            if told.get("verbs"):
                laps = sorted(told["verbs"].items(), key=lambda lap: -lap[1])
                print(" " * 20 + ", ".join(f"{verb} {seconds:.3f}" for verb, seconds in laps))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--piece", action="append")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    done = {json.loads(line)["piece"] for line in args.out.read_text().splitlines()} if args.out.exists() else set()
    for name, (library, make) in {} if args.table else workloads(args.data, args.full).items():
        if name in done or (args.piece and name not in args.piece):
            continue
        try:
            row = measure(name, library, make(), args.repeats, args.seconds)
        except ds.BackendUnavailable as error:
            print(f"{name}: {error}")
            continue
        with args.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
    show(args.out)


if __name__ == "__main__":
    main()
