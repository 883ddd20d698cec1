"""Time of one leg of the Triton backend by tile, against the floor of the special-function units.

Of stored scores also how fast they are read, as a share of what a copy of as many bytes reads and writes.

python benchmarks/gpu_legs.py                  # the tiles in use
python benchmarks/gpu_legs.py --tune           # a grid of tiles; slow
"""

from __future__ import annotations

import argparse
import itertools
import json
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import triton

import drainsinkhorn as ds
from drainsinkhorn.backends.triton import TritonBackend
from drainsinkhorn.backends.triton.pack import TritonPack
from drainsinkhorn.backends.triton.tiles import STORED
from drainsinkhorn.run.validate import validate

SHAPES = [
    (16384, 15, 16),
    (16384, 50, 8),
    (8192, 3, 8),
    (4096, 50, 16),
    (1024, 500, 8),
    (4096, 500, 8),
    (128, 16, 2048),
]
EX2_PER_CLOCK = 16
"""Exponentials that a multiprocessor of Hopper finishes per clock."""


def clouds(n: int, d: int, width: int) -> list[Any]:
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(width, n, d)).astype(np.float32) for _ in range(2))
    eps = 0.1 * 2 * d
    return [
        validate(ds.Problem(x=torch.tensor(p).cuda(), y=torch.tensor(q).cuda(), eps=eps), 1e-3)
        for p, q in zip(x, y, strict=True)
    ]


def floor_us(n: int) -> float:
    device = torch.cuda.get_device_properties(0)
    clock = torch.cuda.clock_rate() * 1e6 if hasattr(torch.cuda, "clock_rate") else 1.98e9
    return n * n / (device.multi_processor_count * EX2_PER_CLOCK * max(clock, 1.98e9)) * 1e6


def time_leg(pack: TritonPack, side: int) -> float:
    """Microseconds per lane."""
    time = triton.testing.do_bench(lambda: pack.run_leg(side), warmup=20, rep=60, return_mode="median")
    return 1000 * time / pack.width


def share_of_copy(us: float, pairs: int, width: int) -> float:
    """Bytes that a leg of so many microseconds a lane reads in a second, over those that a copy moves."""
    scores = torch.empty(width * pairs, dtype=torch.float32, device="cuda")
    there = torch.empty_like(scores)
    ms = triton.testing.do_bench(lambda: there.copy_(scores), warmup=20, rep=60, return_mode="median")
    return (ms * 1e-3 / 2) / (us * 1e-6 * width)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--shapes", nargs="*", type=int, default=list(range(len(SHAPES))))
    args = parser.parse_args()
    backend = TritonBackend(acceleration="momentum")
    for n, d, width in (SHAPES[i] for i in args.shapes):
        problems = clouds(n, d, width)
        form = backend.policy.representation(problems[0])
        tiles = [(form.bm, form.bn, form.warps, form.stages)]
        if args.tune:
            tiles += [
                t
                for t in itertools.product((16, 32, 64, 128), (64, 128, 256), (4, 8), (2, 3))
                if 4096 <= t[0] * t[1] <= 8192
            ]
        rows = []
        for bm, bn, warps, stages in tiles:
            try:
                pack = TritonPack(
                    problems,
                    replace(form, bm=bm, bn=bn, warps=warps, stages=stages),
                    torch.device("cuda"),
                    policy=backend.policy,
                )
                times = time_leg(pack, 0), time_leg(pack, 1)
            except Exception as error:  # noqa: BLE001  a tile that does not fit
                print(n, d, (bm, bn, warps, stages), type(error).__name__, str(error)[:80], flush=True)
                continue
            rows.append((sum(times) / 2, *times, (bm, bn, warps, stages)))
        rows.sort()
        for mean, row, col, t in rows[: 4 if args.tune else 1]:
            over = {"floor_us": round(floor_us(n), 2), "over_floor": round(mean / floor_us(n), 2)}
            if form.kind == STORED:
                over["of_copy"] = round(share_of_copy(mean, n * n, width), 2)
            found = {"n": n, "d": d, "W": width, "tile": t, "row_us": round(row, 2), "col_us": round(col, 2), **over}
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
