"""M3: one fixed set of MetroPT problems in five groupings. The work is the same; only who shares a window differs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from drainsinkhorn.model.problem import Problem
from drainsinkhorn.run.solve import solve
from drainsinkhorn.theory import padding
from drainsinkhorn_bench import loaders
from drainsinkhorn_bench.arms import MAX_DEPTH, PAPER, PLAIN, backend_of, described, ours, versus
from drainsinkhorn_bench.plan import Campaign, Finding, Loaded, Study, Unit
from drainsinkhorn_bench.report.paper import GROUPING
from drainsinkhorn_bench.windows import sensor_windows

EPS = 0.1


def layout(name: str, depths: Sequence[int], width: int) -> list[int]:
    """The order in which problems of these depths are given, so that windows of `width` are as the layout says."""
    by_depth = [int(k) for k in np.argsort(depths, kind="stable")]
    if name == "homogeneous":
        return by_depth
    if name == "heterogeneous":
        # Dealt out like cards: every window gets one of each stratum of depth.
        hands = len(by_depth) // width
        return [by_depth[k] for first in range(hands) for k in range(first, len(by_depth), hands)]
    return [int(k) for k in np.random.default_rng(int(name.split()[1])).permutation(len(depths))]


def heterogeneity(depths: Sequence[int], width: int) -> float:
    """`H_D`: standard deviation over mean of depths within a window, averaged over windows."""
    windows = [np.array(depths[k : k + width], dtype=float) for k in range(0, len(depths), width)]
    return float(np.mean([window.std() / window.mean() for window in windows]))


def depths_of(problems: list[Problem[Any]], width: int, device: str) -> list[int]:
    """Depths on the paper's grid, from which layouts are made; they are measured once, outside of any timing."""
    solution = solve(
        problems,
        backend=backend_of(device),
        mode="compact",
        width=width,
        audit=PAPER,
        max_depth=MAX_DEPTH,
        rescue=False,
        **PLAIN,
    )
    solution.raise_for_status()
    return [result.depth for result in solution]


def layouts(depths: Sequence[int], width: int) -> Iterator[Finding]:
    """Padding, share of active slots and heterogeneity of every layout."""
    for name in GROUPING:
        grouped = [depths[k] for k in layout(name, depths, width)]
        pad = padding(grouped, width)
        value = {"layout": name, "padding": pad, "active_slots": 1 / (1 + pad)}
        yield Finding("layout", {**value, "h_d": heterogeneity(grouped, width)}, name)


def campaign(scale: str, data: Path | None, device: str) -> Campaign:
    """Five layouts of 32 problems; static against compact."""
    n, count, width = (16_384, 32, 8) if scale == "full" else (384, 32, 8)
    log = loaders.metropt3(data)

    @cache
    def multiset() -> list[Problem[Any]]:
        return sensor_windows(log, n, count, EPS, 0, device)

    @cache
    def depths() -> list[int]:
        return depths_of(multiset(), width, device)

    def load(name: str) -> Loaded:
        return Loaded([multiset()[k] for k in layout(name, depths(), width)])

    return Campaign(
        name="grouping",
        title="Grouping: one set of problems, five layouts (M3)",
        scale=scale,
        arms=[ours("static", "static", "static", width), ours("compact", "compact", "compact", width)],
        units=[
            Unit(
                name=name,
                load=lambda name=name: load(name),
                options={"n": n, "problems": count, "width": width, "eps": EPS, "layout": name},
                repeats=5,
                theory=2.0 if name == "random 1" else 0.0,
                modal=2 if name == "random 1" and n <= 1500 else 0,
            )
            for name in GROUPING
        ],
        contrasts=[
            versus(f"static / compact, {name}", "compact", "static", f"grouping/{name.replace(' ', '-')}", units=[name])
            for name in GROUPING
        ],
        studies=[Study(name="layouts", run=lambda _: layouts(depths(), width), options={"width": width})],
        inputs=log.source.inputs,
        options=described(
            log.source,
            device,
            "windows begin at random places of the log; the paper does not say which 32 it took",
            n=n,
            width=width,
            eps=EPS,
        ),
    )
