"""Consumers on a CUDA device: what they cost in legs, and how far they are from float64.

python benchmarks/gpu_consumers.py                      # n = 16384, d = 15, W = 16, and others
python benchmarks/gpu_consumers.py --shapes 4           # n = 1024, d = 500, W = 64: a window of flow matching
python benchmarks/gpu_consumers.py --tune --shapes 0    # a few tiles for apply
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np
import torch
import triton

import drainsinkhorn as ds
from drainsinkhorn.backends.triton import TritonBackend, tiles
from drainsinkhorn.backends.triton.pack import TritonPack
from drainsinkhorn.run.validate import validate

TILE = ("bm", "bn", "warps", "stages", "registers")
SHAPES = [(16384, 15, 16), (16384, 50, 8), (8192, 3, 8), (4096, 50, 16), (1024, 500, 64), (128, 16, 512)]


def solved(n: int, d: int, width: int) -> ds.Solution[Any]:
    rng = np.random.default_rng(0)
    x, y = (torch.tensor(rng.normal(size=(width, n, d)).astype(np.float32)).cuda() for _ in range(2))
    solution = ds.solve(x, y, eps=0.1 * 2 * d)
    solution.raise_for_status()
    return solution


def microseconds(run: Any, width: int) -> float:
    """Median for each lane."""
    return 1000 * triton.testing.do_bench(run, warmup=30, rep=100, return_mode="median") / width


def leg(solution: ds.Solution[Any]) -> float:
    backend = TritonBackend(acceleration="momentum")
    problems = [validate(r.problem, 1e-3) for r in solution]
    pack = backend.pack(problems)
    assert isinstance(pack, TritonPack)
    # At the start sums leave float32, and rows are done again.
    pack.advance(2, [-1.0] * pack.width)
    return sum(microseconds(lambda side=side: pack.run_leg(side), pack.width) for side in (0, 1)) / 2


def error(solution: ds.Solution[Any], values: Any) -> float:
    """Largest error of `apply` in the first lane, over the largest entry of float64's answer."""
    r = solution[0]
    f, g = (p.double() for p in r.potentials)
    x, y = r.problem.x.double(), r.problem.y.double()
    out = torch.empty((len(f), values.shape[1]), dtype=torch.float64, device=f.device)
    for rows in torch.arange(len(f), device=f.device).split(512):
        cost = torch.cdist(x[rows], y, compute_mode="donot_use_mm_for_euclid_dist").square()
        plan = torch.exp((f[rows, None] + g - cost) / r.problem.eps) / (len(f) * len(g))
        out[rows] = plan @ values.double()
    return float((r.apply(values).double() - out).abs().max() / out.abs().max())


def measure(n: int, d: int, width: int) -> None:
    solution = solved(n, d, width)
    one_leg = leg(solution)
    row: dict[str, Any] = {"n": n, "d": d, "W": width, "leg_us": round(one_leg, 1)}
    plans = TritonBackend().couple([r.instance for r in solution], [r.potentials for r in solution])
    plans.log_ratios()
    row["float64_lanes"] = sum(len(s.lanes) for s in plans._sides[0] if s.float64)
    for channels in (1, 16, 64):
        values = torch.randn(width, n, channels, device="cuda")
        row[f"error_{channels}"] = float(f"{error(solution, values[0]):.2g}")
        for name, run in (
            ("laid_out", lambda v=values: plans.apply(v)),
            ("whole", lambda v=values: ds.apply(solution, v)),
        ):
            took = microseconds(run, width)
            row[f"apply_{channels}_{name}_us"] = round(took, 1)
            row[f"apply_{channels}_{name}_legs"] = round(took / one_leg, 2)
    for name, run in (
        ("map", lambda: ds.barycentric_map(solution)),
        ("top_match", lambda: ds.top_match(solution)),
        ("sample_n", lambda: ds.sample(solution, n, seed=0)),
        ("sample_n_laid_out", lambda: plans.sample(n, [(0, r.ticket) for r in solution])),
        ("transport_cost", lambda: ds.transport_cost(solution)),
    ):
        took = microseconds(run, width)
        row[f"{name}_us"], row[f"{name}_legs"] = round(took, 1), round(took / one_leg, 2)
    print(json.dumps(row), flush=True)


CANDIDATES = [
    (128, 64, 4, 2, 0), (128, 64, 4, 3, 168), (64, 128, 4, 2, 0), (64, 128, 4, 3, 168), (64, 64, 4, 2, 0),
    (64, 64, 4, 3, 0), (128, 32, 4, 3, 0), (128, 64, 8, 3, 0),
]  # fmt: skip
"""Rows, columns, warps, stages and most registers (0: any) of tiles that compile well for an H200."""


def tune(n: int, d: int, width: int) -> None:
    solution = solved(n, d, width)
    plans = TritonBackend().couple([r.instance for r in solution], [r.potentials for r in solution])
    form = plans._stacks[0].form
    assert form is not None
    values, rows = torch.randn(width, n, 16, device="cuda"), []
    for tile in CANDIDATES:
        tiles.CONSUMER_TILES[form.kind, form.dp] = dict(zip(TILE, tile, strict=True))  # type: ignore[assignment]
        try:
            rows.append((microseconds(lambda: plans.apply(values), width), tile))
        except Exception as problem:  # noqa: BLE001  a tile that does not fit
            print(n, d, tile, type(problem).__name__, str(problem)[:80], flush=True)
    for took, tile in sorted(rows):
        row = {"n": n, "d": d, **dict(zip(TILE, tile, strict=True)), "apply_16_us": round(took, 1)}
        print(json.dumps(row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--shapes", nargs="*", type=int, default=list(range(len(SHAPES))))
    args = parser.parse_args()
    for shape in (SHAPES[i] for i in args.shapes):
        (tune if args.tune else measure)(*shape)


if __name__ == "__main__":
    main()
