"""Legs of lanes at tight tolerances on a GPU: errors against float64 on the host, times by tile, and whole solves.

    python benchmarks/gpu_tight.py                       # all of it, in under two minutes
    python benchmarks/gpu_tight.py --parts errors solves --dims 8

First, errors: log ratios of sampled rows in float32, from points in three parts (powers of two by hardware, by a
polynomial, or in two parts) and in float64, against direct differences in float64 on the host. The run ends if one of
them is above what its rounding bound allows. Then, microseconds of a leg of one lane, the mean of both sides, in
float32, from three parts for several tiles, and in float64. Then, whole solves with points in three parts and without.
Kernels of all tiles are compiled side by side first.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
import triton

import drainsinkhorn as ds
from drainsinkhorn.backends.triton import TritonBackend, triples
from drainsinkhorn.backends.triton.kernels import columns as c
from drainsinkhorn.backends.triton.kernels import triple as kernels
from drainsinkhorn.backends.triton.launching import prepared
from drainsinkhorn.backends.triton.pack import TritonPack
from drainsinkhorn.backends.triton.precision import Arithmetic, PrecisionPolicy, beyond_float32
from drainsinkhorn.backends.triton.tiles import TRIPLE_WARPS, options, splits
from drainsinkhorn.numerics.rounding import TRIPLE_COST
from drainsinkhorn.run.validate import validate

DIMS, SIZES = (2, 3, 8, 16, 32, 64), (1024, 4096, 16384)
PAIRS = 2**27
"""Pairs of points of the lanes of a pack whose legs are timed."""
SHARES = (0.2, 0.04)
"""Strengths of the entropic term over the number of coordinates."""
POWERS = {"hardware": 0, "polynomial": 1, "two parts": 2}
ALLOWED = {"float32": 3e-6, "hardware": 1.2e-7, "polynomial": 4e-8, "two parts": 4e-9, "float64": 1e-12}
"""Largest mean error of a marginal ratio, apart from that of costs; that of float32 is not judged."""
TILES = [(64, 64, 2, 0), (64, 64, 2, 168), (128, 32, 2, 168), (64, 32, 2, 0), (64, 64, 3, 168), (128, 64, 2, 0)]
"""Rows, columns, stages, registers of a thread."""
BLOCK = 256
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""Errors and solves also run in Triton's interpreter, which takes long, with few points."""
ARITHMETIC = ("FLOAT32", "TRIPLE", "FLOAT64")


@dataclass(frozen=True, slots=True)
class Forced(PrecisionPolicy):
    """Every lane climbs to one arithmetic."""

    wanted: str = "FLOAT64"

    def accurate_enough(self, errors: Any, tolerances: Any, arithmetic: Arithmetic = Arithmetic.FLOAT32) -> Any:
        return np.full(len(errors), arithmetic.name == self.wanted or self.wanted == "FLOAT32")

    def has_triples(self, form: Any, dims: Any, extents: Any) -> Any:
        return np.full(len(dims), self.wanted != "FLOAT64")


def clouds(n: int, d: int, width: int, eps: float, tol: float) -> list[ds.Problem[Any]]:
    rng = np.random.default_rng([n, d])
    x, y = (rng.normal(size=(width, n, d)).astype(np.float32) for _ in range(2))
    sides = ((torch.tensor(p, device=DEVICE), torch.tensor(q, device=DEVICE)) for p, q in zip(x, y, strict=True))
    return [ds.Problem(x=p, y=q, eps=eps, tol=tol) for p, q in sides]


def packed(problems: list[ds.Problem[Any]], wanted: str) -> TritonPack:
    base = TritonBackend(acceleration="momentum", resident_points=0)
    policy = Forced(float64=wanted == "FLOAT64", momentum=True, cached_bytes=0, wanted=wanted)
    instances = [validate(problem, 1e-3) for problem in problems]
    return TritonPack(instances, base.policy.representation(instances[0]), base._device(), policy=policy)


def constants(dim: int, side: int, role: Any, power: int, tile: tuple[int, int, int, int]) -> dict[str, Any]:
    """Constants and options of a leg in three parts with a tile."""
    bm, bn, stages, registers = tile
    stored = triples.chunks(dim)
    return {
        "SIDE": side, "ROLE": role.value, "BM": bm, "BN": bn, "CHUNK": stored.size, "LOWS": stored.lows,
        "POWER": power, "LOCKSTEP": False, "FUSED": False, "MOMENTUM": False, "SOFT": False, "BLOCK": BLOCK,
        **options(TRIPLE_WARPS, stages, registers),
    }  # fmt: skip


def launch(pack: TritonPack, power: int, tile: tuple[int, int, int, int]) -> list[Any]:
    """Launches that measure the rows of lanes in three parts with another tile."""
    table, buffers, lanes = pack._table, pack._buffers, pack._lanes
    shares = int(table.fields[lanes.places[0], c.SHARES.value])
    programs = -(-lanes.largest(0)[0] // tile[0]) * shares
    args = (
        table.fields, lanes.rows, table.state, buffers["points16"], buffers["vectors64"], buffers["vectors64"],
        buffers["vectors32"], buffers["vectors64"], buffers["counters"], table.limits, table.halted,
    )  # fmt: skip
    own = constants(int(lanes.column("dim")[0]), 0, c.MEASURED, power, tile)
    return [prepared(kernels.triple_leg, (programs, len(lanes)), *args, **own)]


def set_shares(pack: TritonPack, tile: tuple[int, int, int, int], resident: int, least: int = 8) -> None:
    """Choose the programs that share a tile of rows as the library would for this tile, within the memory taken."""
    fit, dim = (tile[0], tile[1], least, resident), int(pack._lanes.column("dim")[0])
    for place, size in zip(pack._lanes.places, pack._lanes.column("size").tolist(), strict=True):
        found = [splits(*size, *fit), splits(*size[::-1], *fit)]
        taken = max(max(triples.shares(tuple(size), dim, rung)) for rung in (Arithmetic.TRIPLE, Arithmetic.COMPENSATED))
        values = torch.tensor([min(taken, share) for share in found], device=pack._device)
        pack._table.fields[place, c.SHARES.value : c.SHARES.value + 2] = values


def compile_tile(job: tuple[int, int, tuple[int, int, int, int]]) -> tuple[Any, Any]:
    """Compile one tile; return the registers of a thread and the shared memory of a program."""
    dim, power, tile = job
    dtypes = (torch.int64, torch.int64, torch.float64, torch.float16, torch.float64, torch.float64,
              torch.float32, torch.float64, torch.int32, torch.float64, torch.int32)  # fmt: skip
    args = [torch.empty(64, dtype=dtype, device=DEVICE) for dtype in dtypes]
    try:
        compiled = kernels.triple_leg.warmup(*args, grid=(1, 1), **constants(dim, 0, c.MEASURED, power, tile))
        # Registers are known once it is loaded.
        loaded = compiled.run is not None
        return job, ((getattr(compiled, "n_regs", None) if loaded else None) or 168, compiled.metadata.shared)
    except Exception as error:  # noqa: BLE001  a tile that does not fit
        return job, f"{type(error).__name__}: {str(error)[:80]}"


def warm(dim: int) -> int:
    """Compile all other kernels for points of so many coordinates."""
    for wanted in ARITHMETIC:
        pack = packed(clouds(64, dim, 1, 0.2 * dim, 1e-6), wanted)
        pack.advance(3, [-math.inf])
        lanes = pack._lanes
        for side, role in ((0, c.MEASURED), (1, c.APPLIED)):
            pack._launcher.run(*pack._launcher.side(lanes, side, role))
    torch.cuda.synchronize()
    return dim


def warm_solves(eps: float) -> None:
    """Compile all kernels of the solves."""
    solves(eps, 2100, width=1, says=False)


def exact_ratios(pack: TritonPack, problem: ds.Problem[Any], eps: float, rows: Any) -> Any:
    """Log2 of the marginal ratios of some rows, in float64 on the host."""
    (place,), table, buffers = pack._lanes.places, pack._table, pack._buffers
    starts = table.fields[place, c.POTENTIAL.value : c.POTENTIAL.value + 2].tolist()
    vectors, (n, m) = buffers["vectors64"].cpu().numpy(), table.host["size"][place].tolist()
    f, g = vectors[starts[0] : starts[0] + n], vectors[starts[1] : starts[1] + m]
    x, y = (side.cpu().numpy().astype(np.float64) for side in (problem.x, problem.y))
    scaled = ((x[rows, None] - y[None]) ** 2).sum(-1) / (eps * math.log(2))
    exponents = f[rows, None] + g - scaled
    return np.log2(np.exp2(exponents).sum(1) / m)


def found_ratios(pack: TritonPack, rows: Any) -> Any:
    """Log2 of the same ratios as the last leg measured them; of precise lanes WEIGHT has what float32 took."""
    (place,), found = pack._lanes.places, 0.0
    for column in (c.LOG_RATIOS, c.WEIGHT) if beyond_float32(pack._lanes).all() else (c.LOG_RATIOS,):
        start = int(pack._table.fields[place, column.value])
        found += (
            pack._buffers["vectors32"][start : start + pack._table.host["size"][place, 0]]
            .cpu()
            .numpy()
            .astype(float)[rows]
        )
    return found


def errors(dims: list[int], n: int) -> bool:
    """Errors of marginal ratios near one; true if all are within what is allowed."""
    passed, rows = True, np.arange(0, n, 8)
    for d, share in itertools.product(dims, SHARES):
        eps = share * d
        (problem,) = clouds(n, d, 1, eps, 1e-6)
        bits = 4 * float(problem.x.square().sum(1).max()) / (eps * math.log(2))
        for wanted in ARITHMETIC:
            pack = packed([problem], wanted)
            pack.advance(60, [-math.inf])
            names = {"FLOAT32": ["float32"], "TRIPLE": list(POWERS), "FLOAT64": ["float64"]}[wanted]
            for name in names:
                if wanted == "TRIPLE":
                    pack._launcher.run(*launch(pack, POWERS[name], TILES[0]))
                truth = exact_ratios(pack, problem, eps, rows)
                off = np.exp2(found_ratios(pack, rows) - truth) - 1
                mean = float(np.abs(off).mean())
                allowed = ALLOWED[name] + (name != "float64") * bits * TRIPLE_COST
                good = mean <= allowed or name == "float32"
                passed &= good
                said = {
                    "mean": mean,
                    "bias": off.mean(),
                    "largest": np.abs(off).max(),
                    "allowed": allowed,
                }
                found = {"part": "errors", "d": d, "eps/d": share, "bits": round(bits), "arithmetic": name}
                found |= {key: f"{value:.1e}" for key, value in said.items()}
                print(json.dumps({**found, "good": bool(good)}), flush=True)
    return passed


def time_of(pack: TritonPack, launches: list[list[Any]]) -> float:
    """Microseconds of a lane and leg, the mean of these launches."""
    times = [
        triton.testing.do_bench(lambda own=own: pack._launcher.run(*own), warmup=3, rep=12, return_mode="median")
        for own in launches
    ]
    return 1000 * sum(times) / len(times) / pack.width


def legs(dims: list[int], sizes: list[int], compiled: dict[Any, Any]) -> None:
    for d, n in itertools.product(dims, sizes):
        width = max(1, PAIRS // n**2)
        problems, row = clouds(n, d, width, 0.2 * d, 1e-6), {"part": "legs", "d": d, "n": n, "W": width}
        for name in ("FLOAT32", "FLOAT64"):
            pack = packed(problems, name)
            lanes, roles = pack._lanes, (c.MEASURED, c.APPLIED)
            own = [pack._launcher.side(lanes, side, roles[side]) for side in (0, 1)]
            row[name.lower()] = round(time_of(pack, own), 1)
        pack = packed(problems, "TRIPLE")
        for name, power in POWERS.items():
            found = {}
            for tile in TILES[:1] if name == "polynomial" else TILES:
                resources = compiled.get((d, power, tile))
                if not isinstance(resources, tuple):
                    found[str(tile)] = resources
                    continue
                registers, shared = resources
                fit = max(1, min(65536 // (128 * max(1, -(-registers // 8) * 8)), 232448 // (shared + 1024), 16))
                try:
                    set_shares(pack, tile, fit)
                    own = [launch(pack, power, tile)]
                    found[str(tile)] = (round(time_of(pack, own), 1), registers, fit)
                except Exception as error:  # noqa: BLE001  a tile that does not fit
                    found[str(tile)] = f"{type(error).__name__}: {str(error)[:60]}"
            row[name] = found
        print(json.dumps(row), flush=True)


def solves(eps: float, n: int, *, d: int = 8, width: int = 8, says: bool = True) -> None:
    own = PrecisionPolicy.has_triples
    for tol in (1e-6, 1e-8):
        problems = clouds(n, d, width, eps, tol)
        for name, chosen in (
            ("float64", lambda self, form, dims, extents: np.zeros(len(dims), bool)),
            ("three parts", own),
        ):
            PrecisionPolicy.has_triples = chosen
            times, solution = [], None
            for _ in range(3 if says else 1):
                began = time.perf_counter()
                solution = ds.solve(problems, backend="triton", accelerate="momentum", max_depth=20000)
                times.append(time.perf_counter() - began)
            depths = [result.depth for result in solution]
            found = {"part": "solves", "tol": tol, "arithmetic": name, "eps": eps, "ms": round(1000 * min(times), 1),
                     "cycles": max(depths), "converged": all(result.converged for result in solution),
                     "us a cycle": round(1e6 * min(times) / max(depths), 1)}  # fmt: skip
            if says:
                print(json.dumps(found), flush=True)
        PrecisionPolicy.has_triples = own


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="*", default=["errors", "solves", "legs"])
    parser.add_argument("--dims", nargs="*", type=int, default=list(DIMS))
    parser.add_argument("--sizes", nargs="*", type=int, default=list(SIZES))
    parser.add_argument("--eps", type=float, default=1.6, help="strength of the entropic term of solves")
    parser.add_argument("--points", nargs=2, type=int, default=[2048, 4096], help="points of errors, and of solves")
    parser.add_argument("--workers", type=int, default=min(15, os.cpu_count() or 1))
    args = parser.parse_args()
    began, compiled = time.perf_counter(), {}
    if DEVICE == "cuda":
        shapes = {triples.chunks(d): d for d in reversed(args.dims)}
        jobs = [(d, power, tile) for d in shapes.values() for power in POWERS.values() for tile in TILES
                if ("legs" in args.parts and power != POWERS["polynomial"]) or tile == TILES[0]]  # fmt: skip
        with ProcessPoolExecutor(args.workers, mp_context=get_context("spawn")) as pool:
            # The longest jobs come first.
            waiting = [pool.submit(warm_solves, args.eps)] if "solves" in args.parts else []
            waiting += [pool.submit(warm, d) for d in args.dims]
            found = dict(pool.map(compile_tile, jobs))
            for job in waiting:
                job.result()
        # A compiled form serves all dims of one shape.
        compiled = {(d, *job[1:]): found[job] for d in args.dims for job in jobs if job[0] == shapes[triples.chunks(d)]}
        print(f"# compiled {len(jobs)} tiles in {time.perf_counter() - began:.0f} s", flush=True)
        print(f"# {torch.cuda.get_device_name()}, powers {triples.POWERS}", flush=True)
    if "errors" in args.parts and not errors(args.dims, args.points[0]):
        sys.exit("an error is above what its rounding bound allows")
    if "solves" in args.parts:
        solves(args.eps, args.points[1])
    if "legs" in args.parts:
        legs(args.dims, args.sizes, compiled)
    print(f"# {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
