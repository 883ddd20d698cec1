"""Depths predicted from the modal response against those that plain Sinkhorn runs.

    python benchmarks/modal_depth.py

Near starts are the solution with Gaussian errors of 1e-3 nats in g; cold ones are zero, where the formula is not meant
to hold.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import drainsinkhorn as ds
from drainsinkhorn.theory import modal_response
from drainsinkhorn.workloads.clouds import problems


def main() -> None:
    print("| start | tol | measured | all modes | lambda_2 alone | lambda_2 |\n| --- | --- | --- | --- | --- | --- |")
    errors: dict[str, list[tuple[float, float]]] = {"near": [], "cold": []}
    for seed in range(4):
        for made in problems(seed, count=3, sizes=(60, 120)):
            problem = replace(made, eps=0.3)
            tight = ds.solve(problem, tol=1e-11, backend="reference", max_depth=200_000)[0]
            f, g = tight.potentials
            noise = 1e-3 * np.random.default_rng(seed).normal(size=g.size)
            near = replace(problem, init=ds.Potentials(f, g + problem.eps * noise))
            for name, start, tols in (("near", near, (1e-5, 1e-6, 1e-7)), ("cold", problem, (1e-3, 1e-6))):
                modal = modal_response(start, tight.potentials)
                for tol in tols:
                    run = ds.solve(start, tol=tol, backend="reference", accelerate="none", max_depth=100_000)[0]
                    full, slowest = modal.depth(tol), modal.depth_slowest(tol)
                    errors[name].append((abs(full / run.depth - 1), slowest / run.depth))
                    print(f"| {name} | {tol:g} | {run.depth} | {full} | {slowest} | {modal.eigenvalues[0]:.4f} |")
    for name, found in errors.items():
        worst, ratio = max(error for error, _ in found), max(ratio for _, ratio in found)
        print(
            f"{name}: {len(found)} runs, all modes off by at most {worst:.0%}; lambda_2 alone up to {ratio:.1f} times"
        )


if __name__ == "__main__":
    main()
