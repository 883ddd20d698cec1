"""LiDAR clips: flow from scan to scan, eight pairs at a time, and one after another with carried potentials."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from drainsinkhorn.core.protocol import Backend
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.run.couple import couple
from drainsinkhorn_bench import loaders
from drainsinkhorn_bench.arms import default, described, free, ours, public, public_of, versus
from drainsinkhorn_bench.plan import Arm, Campaign, Loaded, Outcome, Unit, Work
from drainsinkhorn_bench.windows import scan_pairs

EPS, WIDTH, CLIPS = 0.01, 8, 3


def flow(work: Work, backend: Backend[Any], answers: Mapping[int, Potentials[Any]]) -> dict[str, Any]:
    """The consumer: where every point of a scan goes on average."""
    places = sorted(answers)
    images = couple(backend, [work.problems[k] for k in places], [answers[k] for k in places]).barycentric_map()
    moved = [to_numpy(image - work.problems[k].x) for k, image in zip(places, images, strict=True)]
    return {"displacement": [float((step**2).sum(1).mean() ** 0.5) for step in moved]}


def carried(arm: Arm) -> Arm:
    """The same arm on a chain: each pair starts from its predecessor's potentials, so they run in order."""

    def run(work: Work) -> Outcome:
        chained = [replace(problem, chain="clip", init=None) for problem in work.problems]
        # Slots of a chain follow its order, which theory does not know.
        return replace(arm.run(work._replace(problems=chained)), ran=None)

    return replace(arm, run=run, options={**arm.options, "chain": True})


def campaign(scale: str, data: Path | None, device: str) -> Campaign:
    """Three clips of eight pairs."""
    n = 8192 if scale == "full" else 320
    scans = loaders.lidar(data)
    arm, peer = partial(ours, width=WIDTH, consumer=flow), public_of(device)
    clips = CLIPS if len(scans.frames) >= CLIPS else 1
    return Campaign(
        name="lidar",
        title="LiDAR: flow from scan to scan",
        scale=scale,
        arms=[
            public(device, consumer=flow),
            carried(arm("carry", "width-one, carried potentials", "width-one")),
            arm("width-one", "width-one", "width-one"),
            arm("static", "static", "static"),
            arm("mask", "mask", "mask"),
            arm("compact", "compact", "compact"),
            *free(WIDTH, consumer=flow),
            default(WIDTH, consumer=flow),
        ],
        units=[
            Unit(
                name=f"clip {clip}",
                load=lambda clip=clip: Loaded(scan_pairs(scans, n, WIDTH, EPS, clip, device)),
                options={"n": n, "width": WIDTH, "eps": EPS, "clip": clip},
                repeats=3,
                theory=2.0 if clip == 0 else 0.0,
                modal=2 if clip == 0 and n <= 1500 else 0,
            )
            for clip in range(clips)
        ],
        contrasts=[
            versus("carry / compact", "compact", "carry"),
            versus("width-one / compact", "compact", "width-one"),
            versus("static / compact", "compact", "static"),
            versus("mask / compact", "compact", "mask"),
            versus("mask / compact, free screen", "free-compact", "free-mask"),
            versus(f"{peer.name} / compact", "compact", peer.name),
            versus(f"{peer.name} / default", "default", peer.name),
            versus(f"{peer.name} / default, with the flow", "default", peer.name, endpoint="e2"),
        ],
        inputs=scans.source.inputs,
        options=described(
            scans.source,
            device,
            *peer.differs,
            "the paper's LiDAR ratio is of its PyKeOps path, which the campaign transfer has",
        ),
    )
