"""Campaign C66 of the paper: drift of windows of a compressor's sensor log.

The public serial solver is compared with our solver in several modes; all arms have the same consumer.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from drainsinkhorn.core.protocol import Backend
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.run.couple import couple
from drainsinkhorn_bench import loaders
from drainsinkhorn_bench.arms import default, described, free, ours, public, public_of, versus
from drainsinkhorn_bench.plan import Campaign, Loaded, Unit, Work
from drainsinkhorn_bench.windows import sensor_windows

EPS, WIDTH, PLANS = 0.1, 16, 3


def score(work: Work, backend: Backend[Any], answers: Mapping[int, Potentials[Any]]) -> dict[str, Any]:
    """The consumer: the entropic cost of every window against the reference window, which is its drift."""
    places = sorted(answers)
    costs = couple(backend, [work.problems[k] for k in places], [answers[k] for k in places]).transport_cost()
    return {"drift": [cost.dual for cost in costs]}


def campaign(scale: str, data: Path | None, device: str) -> Campaign:
    """Three plans of sixteen windows."""
    n = 16_384 if scale == "full" else 640
    log = loaders.metropt3(data)
    arm, peer = partial(ours, width=WIDTH, consumer=score), public_of(device)
    return Campaign(
        name="metropt3",
        title="MetroPT-3: drift of sensor windows (C66)",
        scale=scale,
        arms=[
            public(device, consumer=score),
            arm("static", "static", "static"),
            arm("mask", "mask", "mask"),
            arm("compact", "compact", "compact"),
            *free(WIDTH, consumer=score),
            default(WIDTH, consumer=score),
        ],
        units=[
            Unit(
                name=f"plan {plan}",
                load=lambda plan=plan: Loaded(sensor_windows(log, n, WIDTH, EPS, plan, device)),
                options={"n": n, "width": WIDTH, "eps": EPS, "plan": plan},
                repeats=5 if scale == "small" else 3,
                theory=2.0 if plan == 0 else 0.0,
                modal=2 if plan == 0 and n <= 1500 else 0,
            )
            for plan in range(PLANS)
        ],
        contrasts=[
            versus(f"{peer.name} / compact", "compact", peer.name, "metropt3/official-compact"),
            versus("static / compact", "compact", "static", "metropt3/static-compact"),
            versus("mask / compact", "compact", "mask"),
            versus("mask / compact, free screen", "free-compact", "free-mask"),
            versus(f"{peer.name} / default", "default", peer.name),
            versus(
                f"{peer.name} / compact, with the consumer",
                "compact",
                peer.name,
                "metropt3/official-compact-e2",
                endpoint="e2",
            ),
            versus(f"{peer.name} / default, with the consumer", "default", peer.name, endpoint="e2"),
        ],
        inputs=log.source.inputs,
        options=described(
            log.source,
            device,
            *peer.differs,
            "the paper's legacy arms are not defined in it and left out",
            "the consumer is the entropic cost of each window; the paper does not define its own",
        ),
    )
