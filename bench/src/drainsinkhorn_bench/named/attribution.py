"""How much time each feature of the solver saves on Packer19: the paper's four features, then six that we added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from drainsinkhorn.core.audit import Audit
from drainsinkhorn.core.protocol import Backend
from drainsinkhorn_bench import loaders
from drainsinkhorn_bench.arms import PAPER, backend_of, described, ours, versus
from drainsinkhorn_bench.plan import Arm, Campaign, Contrast, Loaded, Study, Unit
from drainsinkhorn_bench.roofline import roofline, shapes
from drainsinkhorn_bench.windows import cell_pairs, cell_windows

EPS = 0.1
ALIKE = "all lanes alike"


def streaming(device: str) -> Backend[Any]:
    """The backend of a device with scores recomputed in every leg, as the paper's kernels do."""
    if device == "cuda":
        from drainsinkhorn.backends.triton import TritonBackend

        return TritonBackend(cached_bytes=0)
    from drainsinkhorn.backends.cpu import CpuBackend

    return CpuBackend(representation="streaming")


def cached(device: str) -> Backend[Any]:
    """The same with scores kept in memory, where the backend keeps any."""
    if device == "cuda":
        return backend_of(device)
    from drainsinkhorn.backends.cpu import CpuBackend

    return CpuBackend(representation="cached")


def arms_of(width: int) -> list[Arm]:
    """Eleven arms, each one variable away from the one before."""
    looking = Audit(every=4, first_passage=False, screen="none", batched=False, margin=PAPER.margin)
    free, passage = replace(PAPER, screen="free"), replace(PAPER, screen="free", first_passage=True)
    arm = partial(ours, width=width, backend=streaming)
    return [
        arm("serial-verify", "static, verified lane by lane", "static", audit=looking),
        arm("batched-verify", "static, verified together", "static", audit=replace(looking, batched=True)),
        arm("row-screen", "static, row screen", "static"),
        arm("mask", "mask, row screen", "mask"),
        arm("compact", "compact, row screen", "compact"),
        arm("free-screen", "compact, free screen", "compact", audit=free),
        arm("first-passage", "compact, leaves at first passage", "compact", audit=passage),
        arm("refill", "stream: vacancies refilled", "stream", audit=passage),
        arm("cached", "stream, scores cached", "stream", audit=passage, backend=cached),
        arm("momentum", "stream, cached, momentum", "stream", audit=passage, backend=cached, accelerate="momentum"),
        arm("start", "stream, cached, momentum, Gaussian start", "stream", audit=passage, backend=cached,
            accelerate="momentum", init="gaussian"),
    ]  # fmt: skip


def contrasts_of(units: Sequence[str]) -> list[Contrast]:
    """Ratios of every arm to the one before, in these units, and those of lanes that are all alike."""
    row = partial(versus, units=units)
    return [
        row("batched audit", "batched-verify", "serial-verify", "attribution/serial-batched"),
        row("one-sided screen", "row-screen", "batched-verify", "attribution/two-sided-screen"),
        row("logical freeze", "mask", "row-screen", "attribution/static-mask"),
        row("physical compaction", "compact", "mask", "attribution/mask-compact"),
        row("free screen", "free-screen", "compact"),
        row("first passage", "first-passage", "free-screen"),
        row("refill", "refill", "first-passage"),
        row("cached scores", "cached", "refill"),
        row("momentum", "momentum", "cached"),
        row("Gaussian start", "start", "momentum"),
        row("all together", "start", "serial-verify"),
        versus(f"mask / compact, {ALIKE}", "compact", "mask", units=[ALIKE]),
        versus(f"static / mask, {ALIKE}", "mask", "row-screen", units=[ALIKE]),
    ]


def campaign(scale: str, data: Path | None, device: str) -> Campaign:
    """Eleven arms, each one variable away from the one before."""
    n, count, width, seeds = (16_384, 16, 8, 3) if scale == "full" else (320, 16, 8, 3)
    # Of the subset only the two-dimensional cells are many enough for windows of the paper's size.
    per_time = 14_336 if scale == "full" else n
    cells = loaders.packer19(data, per_time)
    n = min(n, per_time)

    def load(seed: int) -> Loaded:
        return Loaded(cell_windows(cells, cell_pairs(cells, n, count, seed), EPS, device))

    keeps_scores = device != "cuda" or cells.points.shape[1] > 64
    notes = ["more problems than lanes, so that lanes can be refilled"]
    if not keeps_scores:
        notes.append("the GPU keeps scores only above 64 dimensions, so that `cached` changes nothing here")
    return Campaign(
        name="attribution",
        title="Attribution: one variable at a time (C80, C80-LM)",
        scale=scale,
        arms=arms_of(width),
        units=[
            Unit(
                name=f"seed {seed}",
                load=lambda seed=seed: load(seed),
                options={"n": n, "problems": count, "width": width, "eps": EPS, "seed": seed},
                repeats=3,
                theory=2.0 if seed == 0 else 0.0,
            )
            for seed in range(seeds)
        ]
        # Lanes that all finish together: compaction has nothing to remove and must cost nothing; static and mask spend
        # equal slots and must take equal time.
        + [
            Unit(
                name=ALIKE,
                load=lambda: Loaded([load(0).problems[0]] * count),
                options={"n": n, "problems": count, "width": width, "eps": EPS},
                arms=("row-screen", "mask", "compact"),
                # A ratio to be told from one to a hundredth, where single runs differ by some.
                repeats=21,
            )
        ],
        contrasts=contrasts_of([f"seed {seed}" for seed in range(seeds)]),
        studies=[Study(name="roofline", run=partial(roofline, scale), options={"shapes": shapes(scale, device)})],
        inputs=cells.source.inputs,
        options=described(cells.source, device, *notes, n=n, width=width, eps=EPS),
    )
