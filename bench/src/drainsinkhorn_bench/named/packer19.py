"""Campaign EXP-PACKER19 of the paper: five tolerances, the deviation of the output, and FlashSinkhorn's stopping rule.

The deviation is from a reference with a tight tolerance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.run.validate import validate
from drainsinkhorn_bench import loaders, peers
from drainsinkhorn_bench.arms import backend_of, default, described, free, ours, public, public_of, versus
from drainsinkhorn_bench.gate import residual
from drainsinkhorn_bench.loaders import Array
from drainsinkhorn_bench.plan import Campaign, Contrast, Finding, Loaded, Place, Study, Unit
from drainsinkhorn_bench.report.paper import NATIVE, PARETO
from drainsinkhorn_bench.transitions import Transitions, consume, deviation, tables, transitions
from drainsinkhorn_bench.windows import cell_pairs, cell_windows

EPS, WIDTH = 0.1, 8
THRESHOLDS = tuple(row[0] for row in NATIVE)
CHECK, CAP = 5, 1000
"""Cycles between checks of FlashSinkhorn's own rule, which is its default, and its limit here."""

State = tuple[Potentials[Any], int, float]
"""Potentials, cycles, seconds."""


def replayed(problem: Problem[Any], place: Place) -> dict[float, State]:
    """Run plain cycles of this library and stop them by FlashSinkhorn's own rule; return the state by threshold.

    The rule stops at the first check at which no potential has changed by the threshold or more since the last check.
    """
    wide = replace(
        problem, x=to_numpy(problem.x).astype(np.float64), y=to_numpy(problem.y).astype(np.float64), init="zero"
    )
    pack = backend_of(place.device).using("none").pack([validate(wide, 1e-8)])
    open_, found, before = sorted(THRESHOLDS, reverse=True), dict[float, State](), None
    begun = place.clock()
    for cycles in range(CHECK, CAP + 1, CHECK):
        pack.advance(CHECK, [-np.inf])
        state: Potentials[Any] = pack.emit([0]).potentials(0)
        change = np.inf if before is None else max(_change(a, b) for a, b in zip(state, before, strict=True))
        seconds = place.clock() - begun
        while open_ and (change < open_[0] or cycles == CAP):
            found[open_.pop(0)] = (state, cycles, seconds)
        if not open_:
            break
        before = state
    return found


def _change(new: Array, old: Array) -> float:
    return float(np.abs(to_numpy(new) - to_numpy(old)).max())


def official(problem: Problem[Any], place: Place) -> dict[float, State]:
    """Run FlashSinkhorn with its own stopping rule; return the state by threshold."""
    flash, found = peers.Flash(1e-3), dict[float, State]()
    flash.native(problem, 1.0, 2 * CHECK)
    for threshold in THRESHOLDS:
        begun = place.clock()
        state, cycles = flash.native(problem, threshold, CAP)
        found[threshold] = (state, cycles, place.clock() - begun)
    return found


def native(problems: list[Problem[Any]], known: Transitions, place: Place) -> Iterator[Finding]:
    """Stop by FlashSinkhorn's own rule at every threshold; yield depth, residual and deviation of the output."""
    states = [(official if place.device == "cuda" else replayed)(problem, place) for problem in problems]
    for threshold in THRESHOLDS:
        answers = {k: state[threshold][0] for k, state in enumerate(states)}
        cycles = [state[threshold][1] for state in states]
        residuals = [residual(problems[k], answer) for k, answer in answers.items()]
        yield Finding(
            "native_threshold",
            {
                "threshold": threshold,
                "depth": max(cycles),
                "capped": sum(cycle >= CAP for cycle in cycles),
                "residual": max(residuals),
                "tv": deviation(known, tables(known, problems, backend_of(place.device), answers)),
                "seconds": sum(state[threshold][2] for state in states),
                "by": "FlashSinkhorn" if place.device == "cuda" else "its rule on this library's plain cycles",
            },
        )


def contrasts_at(tol: float, peer: str) -> list[Contrast]:
    """Return the contrasts of the unit that solves to `tol`; `peer` is the arm of the public solver."""
    name, at = f"tol {tol:.0e}", f"@{tol:.0e}".replace("e-0", "e-")
    contrast = partial(versus, units=[name])
    return [
        contrast(f"width-one / static, {name}", "static", "width-one", f"packer19/width-one-static{at}"),
        contrast(f"{peer} / compact, {name}", "compact", peer, f"packer19/official-compact{at}"),
        contrast(f"mask / compact, {name}", "compact", "mask", f"packer19/mask-compact{at}"),
        contrast(f"mask / compact, free screen, {name}", "free-compact", "free-mask"),
        contrast(f"{peer} / default, {name}", "default", peer),
    ]


def campaign(scale: str, data: Path | None, device: str) -> Campaign:
    """Width-one, static, mask, compact, the public serial solver, and ours as shipped, at five tolerances."""
    n = 16_384 if scale == "full" else 512
    # Of the subset only the two-dimensional cells are many enough for windows of the paper's size.
    per_time = 14_336 if scale == "full" else n
    n = min(n, per_time)
    cells = loaders.packer19(data, per_time)

    @cache
    def loaded() -> tuple[list[Problem[Any]], Transitions]:
        pairs = cell_pairs(cells, n, WIDTH, 0)
        problems = cell_windows(cells, pairs, EPS, device)
        return problems, transitions(cells, pairs, problems, device)

    arm, peer = partial(ours, width=WIDTH, consumer=consume), public_of(device)
    options = {"n": n, "width": WIDTH, "eps": EPS}
    units = [
        Unit(
            name=f"tol {tol:.0e}", load=lambda: Loaded(*loaded()), tol=tol, repeats=5,
            options={**options, "tol": tol, "reference": 1e-6},
            theory=2.0 if tol == 1e-3 else 0.0, modal=2 if tol == 1e-3 and n <= 1500 else 0,
        )
        for tol in PARETO
    ]  # fmt: skip
    return Campaign(
        name="packer19",
        title="Packer19: five tolerances under one controller (EXP-PACKER19)",
        scale=scale,
        arms=[
            arm("width-one", "width-one", "width-one"),
            arm("static", "static", "static"),
            public(device, consumer=consume),
            arm("mask", "mask", "mask"),
            arm("compact", "compact", "compact"),
            *free(WIDTH, consumer=consume),
            default(WIDTH, consumer=consume),
        ],
        units=units,
        contrasts=[contrast for tol in PARETO for contrast in contrasts_at(tol, peer.name)],
        studies=[
            Study(
                name="native stopping",
                run=lambda place: native(*loaded(), place),
                options={"check": CHECK, "cap": CAP, "thresholds": list(THRESHOLDS)},
            )
        ],
        inputs=cells.source.inputs,
        options=described(cells.source, device, *peer.differs, **options),
    )
