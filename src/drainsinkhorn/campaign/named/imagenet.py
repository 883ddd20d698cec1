"""C63 and C35 on images: flow matching with four kinds of couplings, and widths from 1 to 16."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from drainsinkhorn.api import solve
from drainsinkhorn.campaign import loaders
from drainsinkhorn.campaign.arms import (
    MAX_DEPTH,
    PAPER,
    PLAIN,
    answers_of,
    backend_of,
    described,
    jsonable,
    ours,
    public_of,
    versus,
)
from drainsinkhorn.campaign.plan import Arm, Campaign, Finding, Loaded, Outcome, Place, Study, Unit, Work
from drainsinkhorn.campaign.report.paper import WIDTHS
from drainsinkhorn.campaign.training import Lesson, Quality, gates_nine
from drainsinkhorn.campaign.windows import image_slices
from drainsinkhorn.core.audit import Audit
from drainsinkhorn.core.problem import Potentials, Problem

EPS, WINDOW, SEEDS, TOL = 0.03, 8, 3, 1e-3
SWEEP = replace(PAPER, every=5)
Couple = Callable[[Sequence[Problem[Any]]], list[Potentials[Any]]]


def solved(device: str, **settings: Any) -> Couple:
    """Potentials by our solver."""

    def couple(problems: Sequence[Problem[Any]]) -> list[Potentials[Any]]:
        solution = solve(
            list(problems), tol=TOL, backend=backend_of(device), max_depth=MAX_DEPTH, rescue=False, **settings
        )
        answers = answers_of(solution)
        return [answers[k] for k in range(len(problems))]

    return couple


def campaign(scale: str, data: Path | None, device: str) -> Campaign:
    """Three seeds of training with each arm; windows of every width with static and compact."""
    full = scale == "full"
    features = loaders.imagenet(data)
    batch, dim, updates, hidden, repeats = (1024, 500, 128, 1024, 1) if full else (192, 32, 48, 128, 3)
    sweep_n, sweep_eps, windows = (4096, 0.1, 12) if full else (384, 0.03, 3)
    peer = public_of(device)
    held = min(2048, len(features.values) // 4)
    order = np.random.default_rng(0).permutation(len(features.values))
    leading = replace(features, values=np.ascontiguousarray(features.values[order, :dim]))
    values = leading.values

    @cache
    def lesson(seed: int) -> Lesson:
        return Lesson(values[held:], values[:held], batch, WINDOW, updates, EPS, hidden, seed, device)

    @cache
    def public_solver() -> Any:
        return peer.make(PAPER.margin * TOL, PAPER.every)  # type: ignore[arg-type]

    def public_couple(problems: Sequence[Problem[Any]]) -> list[Potentials[Any]]:
        return public_solver().serial(problems).potentials()

    plain: dict[str, Any] = {**PLAIN, "audit": PAPER, "width": WINDOW}
    shipped: dict[str, Any] = {"mode": "compact", "width": WINDOW}
    couples: dict[str, tuple[str, Couple, dict[str, Any]]] = {
        peer.name: (peer.label, public_couple, {"margin": PAPER.margin, "every": PAPER.every}),
        **{
            mode: (mode, solved(device, mode=mode, **plain), {"mode": mode, **plain})
            for mode in ("width-one", "static", "compact")
        },
        "default": ("drainsinkhorn as shipped", solved(device, **shipped), shipped),
    }
    made = dict[tuple[int, str], Quality]()

    def trained(name: str, work: Work) -> Outcome:
        seed, couple = work.unit.options["seed"], couples[name][1]
        answers = couple(work.problems)
        told = lesson(seed).run(couple, work.place)
        if (seed, name) not in made:
            made[seed, name] = lesson(seed).judged(told.model)
        return Outcome(
            answers=dict(enumerate(answers)),
            e1=told.solving,
            e2=told.solving + told.sampling,
            e3=told.solving + told.sampling + told.stepping,
            note="the gate audits the couplings of the first window",
            facts={"quality": jsonable(made[seed, name])},
        )

    def missing(name: str) -> str | None:
        if find_spec("torch") is None:
            return "training needs torch; pip install 'drainsinkhorn[torch]'"
        try:
            public_solver() if name == peer.name else None
        except ImportError as error:
            return f"{peer.label} cannot be loaded: {error}"
        return None

    def quality(place: Place) -> list[Finding]:
        """The nine gates; what an earlier process trained is trained again."""
        if why := missing(peer.name):
            return [Finding("skipped", {"what": "the nine quality gates", "why": why})]
        for seed in range(SEEDS):
            for name in ("compact", peer.name):
                if (seed, name) not in made:
                    made[seed, name] = lesson(seed).judged(lesson(seed).run(couples[name][1], place).model)
        mine, theirs = ([made[seed, name] for seed in range(SEEDS)] for name in ("compact", peer.name))
        return [Finding("gates_nine", {"rows": gates_nine(mine, theirs)})]

    arms = [
        Arm(
            name=name, label=label, run=partial(trained, name), options=jsonable({**options, "trains": True}),
            available=partial(missing, name), slack=1.01 if name == peer.name else 1.0,
        )
        for name, (label, _, options) in couples.items()
    ]  # fmt: skip
    arms += [_sweep("sweep-static", "static"), _sweep("sweep-compact", "compact")]
    units = [
        Unit(
            name=f"seed {seed}",
            load=lambda seed=seed: Loaded(lesson(seed).problems(0, WINDOW)),
            options={"batch": batch, "d": dim, "updates": updates, "hidden": hidden, "eps": EPS, "seed": seed},
            arms=tuple(couples),
            repeats=repeats,
        )
        for seed in range(SEEDS)
    ]
    units += [
        Unit(
            name=f"width {width}, window {k}",
            load=lambda width=width, k=k: Loaded(image_slices(leading, sweep_n, width, sweep_eps, k, device)),
            options={"n": sweep_n, "d": dim, "width": width, "eps": sweep_eps, "window": k},
            arms=("sweep-static", "sweep-compact"),
            repeats=3,
            theory=2.0 if (width, k) == (16, 0) else 0.0,
        )
        for width in WIDTHS
        for k in range(windows)
    ]
    seeds = [f"seed {seed}" for seed in range(SEEDS)]
    contrasts = [
        versus(f"{peer.name} / compact, solver", "compact", peer.name, "imagenet/official-compact", units=seeds),
        versus("width-one / compact, solver", "compact", "width-one", units=seeds),
        versus("static / compact, solver", "compact", "static", units=seeds),
        versus(f"{peer.name} / default, solver", "default", peer.name, units=seeds),
        versus(f"{peer.name} / compact, training", "compact", peer.name, "imagenet/official-compact-e3",
               endpoint="e3", units=seeds),
        versus("width-one / static, training", "static", "width-one", "imagenet/width-one-static-e3",
               endpoint="e3", units=seeds),
        versus("static / compact, training", "compact", "static", "imagenet/static-compact-e3",
               endpoint="e3", units=seeds),
        *(
            versus(f"static / compact, width {width}", "sweep-compact", "sweep-static", f"imagenet/width-{width}",
                   units=[f"width {width}, window {k}" for k in range(windows)])
            for width in WIDTHS
        ),
    ]  # fmt: skip
    return Campaign(
        name="imagenet",
        title="Images: flow matching (C63) and width (C35)",
        scale=scale,
        arms=arms,
        units=units,
        contrasts=contrasts,
        studies=[Study(name="quality", run=quality, options={"arms": ["compact", peer.name], "seeds": SEEDS})],
        inputs=features.source.inputs,
        options=described(
            features.source,
            device,
            *peer.differs,
            f"{updates} updates of a small network in place of 50,000; quality is judged after those",
            f"{windows} windows of each width in place of 40: images against slices of them along the first component",
            *(() if full else (f"the leading {dim} components, and eps {sweep_eps} in the width sweep",)),
        ),
    )


def _sweep(name: str, mode: str) -> Arm:
    """Static or compact at the width of the unit."""

    def run(work: Work) -> Outcome:
        return ours(name, mode, mode, len(work.problems), audit=SWEEP).run(work)

    return Arm(
        name=name,
        label=f"{mode}, width sweep",
        run=run,
        options=jsonable({"mode": mode, "audit": _told(SWEEP), **PLAIN}),
    )


def _told(audit: Audit) -> dict[str, Any]:
    return {"every": audit.every, "first_passage": audit.first_passage, "screen": audit.screen, "margin": audit.margin}
