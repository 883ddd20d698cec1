"""C10: decisions next to tol in several precisions, attacks on a run, shadow replay of what the screen turned down."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from drainsinkhorn.backends import load
from drainsinkhorn.model.problem import Problem
from drainsinkhorn_bench import loaders
from drainsinkhorn_bench.arms import backend_of, described
from drainsinkhorn_bench.attacks import ATTACKS, attacks
from drainsinkhorn_bench.decisions import CLOUDS, DELTAS, decisions
from drainsinkhorn_bench.named.attribution import streaming
from drainsinkhorn_bench.plan import Campaign, Finding, Place, Study
from drainsinkhorn_bench.shadow import shadow
from drainsinkhorn_bench.windows import cell_pairs, cell_windows, sensor_windows

WORKERS = (1, 2)
EPS, TOL, WIDTH = 0.02, 1e-3, 8


def _decisions(seed: int, place: Place) -> Iterator[Finding]:
    for decision in decisions(CLOUDS, seed, streaming(place.device), place.device):
        yield Finding("decision", asdict(decision))


def _attacks(workers: int, place: Place) -> Iterator[Finding]:
    for attack, ended in attacks(workers, backend_of(place.device), load("reference")):
        value = {"attack": attack, "workers": workers, "stopped_by": ATTACKS[attack], **ended._asdict()}
        yield Finding("attack", value)


def campaign(scale: str, data: Path | None, device: str) -> Campaign:
    """No timings: three studies whose findings hold or do not."""
    n, sensor_count, cell_count, seeds = (16_384, 32, 16, 3) if scale == "full" else (256, 96, 48, 1)
    per_time = 14_336 if scale == "full" else n
    log, cells = loaders.metropt3(data), loaders.packer19(data, per_time)

    def shadows(place: Place) -> Iterator[Finding]:
        device, pairs = place.device, cell_pairs(cells, min(n, per_time), cell_count, 0)
        windows: dict[str, list[Problem[Any]]] = {
            "metropt3": sensor_windows(log, n, sensor_count, EPS, 0, device),
            "packer19": cell_windows(cells, pairs, EPS, device),
        }
        for name, problems in windows.items():
            found = shadow(problems, streaming(device), TOL, WIDTH)
            yield Finding("shadow", {**found, "windows": name, "problems": len(problems)})

    return Campaign(
        name="precision",
        title="Finite precision: decisions next to tol, attacks, shadow replay (C10)",
        scale=scale,
        studies=[
            *(
                Study(
                    name=f"decisions, seed {seed}",
                    run=partial(_decisions, seed),
                    options={"clouds": [cloud.name for cloud in CLOUDS], "deltas": list(DELTAS), "seed": seed},
                )
                for seed in range(seeds)
            ),
            *(
                Study(
                    name=f"attacks, {workers} worker{'s' * (workers > 1)}",
                    run=partial(_attacks, workers),
                    options={"attacks": dict(ATTACKS), "workers": workers},
                )
                for workers in WORKERS
            ),
            Study(name="shadow", run=shadows, options={"n": n, "width": WIDTH, "eps": EPS, "tol": TOL}),
        ],
        inputs={**log.source.inputs, **cells.source.inputs},
        options=described(
            log.source,
            device,
            "the paper does not list its 84 candidates and 16 attacks; these are ours, 120 and 27",
            "TF32 products are emulated bit by bit on a CPU and run on tensor cores on a GPU",
        ),
    )  # fmt: skip
