"""How often the rounding estimate of a verify covers its error, and what a certificate costs.

    python benchmarks/rounding.py --backend cpu --problems 2000
    python benchmarks/rounding.py --backend triton --device cuda --problems 2000 --prices

Every lane runs a few cycles, then its verify is compared with a certificate of the same potentials. The error of a
verify is the difference of the two, less the certificate's own bound. Prices are the best of interleaved laps.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from typing import Any

import numpy as np

import drainsinkhorn as ds
from drainsinkhorn.backends import load
from drainsinkhorn.run.validate import validate


def problem(rng: np.random.Generator, device: str) -> Any:
    n, m = np.exp(rng.uniform(0, np.log(400), size=2)).round().astype(int)
    d = int(rng.choice([1, 2, 3, 8, 20, 60, 100]))
    offset, scale = 10.0 ** rng.uniform(-1, 3) * rng.normal(size=d), 10.0 ** rng.uniform(-2, 2)
    x, y = (offset + scale * rng.normal(size=(size, d)) for size in (n, m))
    a, b = (10.0 ** rng.uniform(-rng.integers(0, 12), 0, size=size) for size in (n, m))
    dtype = str(rng.choice(["float32", "float64"]))
    points = [on(device, p.astype(dtype)) for p in (x, y)]
    typical = 2 * d * scale**2
    return ds.Problem(
        x=points[0], y=points[1], a=a / a.sum(), b=b / b.sum(), eps=float(typical * 10.0 ** rng.uniform(-2.5, 1)),
        tol=float(rng.choice([1e-2, 1e-3, 1e-4, 1e-6])), init="zero",
    )  # fmt: skip


def on(device: str, array: Any) -> Any:
    if device == "numpy":
        return array
    import torch

    return torch.as_tensor(array, device=device)


def coverage(backend: Any, count: int, seed: int, device: str) -> None:
    ratios = defaultdict[str, list[float]](list)
    rng = np.random.default_rng(seed)
    for _ in range(count):
        given = validate(problem(rng, device), 1e-3)
        pack = backend.pack([given])
        pack.advance(int(rng.integers(1, 60)), [-np.inf])
        (said,), (certified,) = pack.verify([0]).rows(), pack.verify([0], exact=True).rows()
        if not certified.worst < 10:
            continue
        error = max(abs(said.row - certified.row), abs(said.col - certified.col))
        ratios[backend.hints(given).arithmetic].append(max(0.0, error - certified.band) / said.band)
    print("| arithmetic | states | error <= band | median error / band | largest |\n| --- | --- | --- | --- | --- |")
    for name, found in sorted(ratios.items()):
        values = np.array(found)
        covered = f"{(values <= 1).sum()} of {len(values)}"
        print(f"| {name} | {len(values)} | {covered} | {np.median(values):.2g} | {values.max():.2g} |")


def streaming_pack(backend: Any, device: str, n: int, d: int, lanes: int) -> Any:
    """Lanes of one shape in float64, after two cycles; streaming, since a cached leg computes no costs."""
    from dataclasses import replace

    rng, problems = np.random.default_rng(0), []
    for _ in range(lanes):
        x, y = (on(device, rng.normal(size=(n, d))) for _ in range(2))
        # A tolerance that only float64 can verify.
        problems.append(validate(ds.Problem(x=x, y=y, eps=0.2 * d, tol=1e-11, init="zero"), 1e-11))
    precise = backend.precise().using("none")
    if hasattr(precise, "representation"):
        precise = replace(precise, representation="streaming")
    pack = precise.pack(problems)
    pack.advance(2, [-np.inf] * lanes)
    return pack


def prices(backend: Any, device: str, laps: int) -> None:
    """Certificates of 1, 16 and 64 lanes in one call, in float64 legs of the same lanes by the same backend."""
    import sys

    def lap(run: Any) -> float:
        start = time.perf_counter()
        run()
        if device == "cuda":
            sys.modules["torch"].cuda.synchronize()
        return time.perf_counter() - start

    print("| n = m | d | lanes | float64 leg per lane, ms | certificate per lane, ms | legs |")
    print("| --- | --- | --- | --- | --- | --- |")
    for n, d in ((64, 2), (256, 3), (512, 16), (1024, 3), (1024, 50), (1024, 500), (4096, 3), (4096, 50)):
        for lanes in (1, 16, 64):
            pack, numbers, never = streaming_pack(backend, device, n, d, lanes), list(range(lanes)), [-np.inf] * lanes
            pack.verify(numbers, exact=True)
            legs, certificates = [], []
            for _ in range(laps):
                legs.append(lap(lambda pack=pack, never=never: pack.advance(4, never)) / 8)
                certificates.append(lap(lambda pack=pack, numbers=numbers: pack.verify(numbers, exact=True)))
            leg, certificate = min(legs) / lanes, min(certificates) / lanes
            row = f"| {n} | {d} | {lanes} | {1e3 * leg:.4f} | {1e3 * certificate:.4f} | {certificate / leg:.2f} |"
            print(row, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--device", default="numpy", help="numpy, cpu or cuda: whose arrays problems have")
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--prices", action="store_true")
    parser.add_argument("--laps", type=int, default=7)
    asked = parser.parse_args()
    coverage(load(asked.backend), asked.problems, asked.seed, asked.device)
    if asked.prices:
        prices(load(asked.backend), asked.device, asked.laps)


if __name__ == "__main__":
    main()
