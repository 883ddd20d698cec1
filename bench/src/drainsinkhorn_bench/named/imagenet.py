"""Campaigns C63 and C35 of the paper, on images: flow matching with couplings of each arm, and widths 1 to 16."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from drainsinkhorn.core.audit import Audit
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.numerics.arrays import Array
from drainsinkhorn.run.solve import solve
from drainsinkhorn_bench import loaders
from drainsinkhorn_bench.arms import (
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
from drainsinkhorn_bench.plan import Arm, Campaign, Contrast, Finding, Loaded, Outcome, Place, Study, Unit, Work
from drainsinkhorn_bench.report.paper import WIDTHS
from drainsinkhorn_bench.training import Lesson, Quality, gates_nine
from drainsinkhorn_bench.windows import image_slices

EPS, WINDOW, SEEDS, TOL = 0.03, 8, 3, 1e-3
SWEEP = replace(PAPER, every=5)
Couple = Callable[[Sequence[Problem[Any]]], list[Potentials[Any]]]


def solved(device: str, **settings: Any) -> Couple:
    """Potentials by our solver."""

    def couple(problems: Sequence[Problem[Any]]) -> list[Potentials[Any]]:
        solution = solve(
            list(problems),
            tol=TOL,
            backend=backend_of(device),
            max_depth=MAX_DEPTH,
            rescue=False,
            warn=False,
            **settings,
        )
        answers = answers_of(solution)
        return [answers[k] for k in range(len(problems))]

    return couple


@dataclass(frozen=True)
class Sizes:
    """Sizes of the training and of the width sweep.

    Attributes:
        batch: Points of a minibatch.
        dim: Leading components of the images that are used.
        updates: Training steps.
        hidden: Width of the network.
        repeats: Timed runs of every arm that trains.
        sweep_n: Points of a problem of the width sweep.
        sweep_eps: eps of the width sweep.
        windows: Windows of each width.
    """

    batch: int
    dim: int
    updates: int
    hidden: int
    repeats: int
    sweep_n: int
    sweep_eps: float
    windows: int


SIZES = {
    "full": Sizes(1024, 500, 128, 1024, 1, 4096, 0.1, 12),
    "small": Sizes(192, 32, 48, 128, 3, 384, 0.03, 3),
}


class Training:
    """Flow matching with couplings of every arm. What has been trained is judged once, and kept for the nine gates."""

    def __init__(self, values: Array, sizes: Sizes, device: str) -> None:
        self.peer = public_of(device)
        self._values, self._sizes, self._device = values, sizes, device
        self._lessons = dict[int, Lesson]()
        self._made = dict[tuple[int, str], Quality]()
        self._solver: Any = None
        plain: dict[str, Any] = {**PLAIN, "audit": PAPER, "width": WINDOW}
        shipped: dict[str, Any] = {"mode": "compact", "width": WINDOW}
        self.couples: dict[str, tuple[str, Couple, dict[str, Any]]] = {
            self.peer.name: (self.peer.label, self._by_peer, {"margin": PAPER.margin, "every": PAPER.every}),
            **{
                mode: (mode, solved(device, mode=mode, **plain), {"mode": mode, **plain})
                for mode in ("width-one", "static", "compact")
            },
            "default": ("drainsinkhorn as shipped", solved(device, **shipped), shipped),
        }

    def lesson(self, seed: int) -> Lesson:
        """What is learnt with a seed."""
        if seed not in self._lessons:
            held, s = min(2048, len(self._values) // 4), self._sizes
            self._lessons[seed] = Lesson(
                self._values[held:], self._values[:held], s.batch, WINDOW, s.updates, EPS, s.hidden, seed, self._device
            )
        return self._lessons[seed]

    def _public(self) -> Any:
        if self._solver is None:
            self._solver = self.peer.make(PAPER.margin * TOL, PAPER.every)  # type: ignore[arg-type]
        return self._solver

    def _by_peer(self, problems: Sequence[Problem[Any]]) -> list[Potentials[Any]]:
        return self._public().serial(problems).potentials()

    def missing(self, name: str) -> str | None:
        """Why an arm cannot run here."""
        if find_spec("torch") is None:
            return "training needs torch; pip install 'drainsinkhorn[torch]'"
        try:
            self._public() if name == self.peer.name else None
        except ImportError as error:
            return f"{self.peer.label} cannot be loaded: {error}"
        return None

    def run(self, name: str, work: Work) -> Outcome:
        """Train once with the couplings of an arm."""
        seed, couple = work.unit.options["seed"], self.couples[name][1]
        answers = couple(work.problems)
        told = self.lesson(seed).run(couple, work.place)
        if (seed, name) not in self._made:
            self._made[seed, name] = self.lesson(seed).judged(told.model)
        return Outcome(
            answers=dict(enumerate(answers)),
            e1=told.solving,
            e2=told.solving + told.sampling,
            e3=told.solving + told.sampling + told.stepping,
            note="the gate audits the couplings of the first window",
            facts={"quality": jsonable(self._made[seed, name])},
        )

    def gates(self, place: Place) -> list[Finding]:
        """The nine gates; what an earlier process trained is trained again."""
        if why := self.missing(self.peer.name):
            return [Finding("skipped", {"what": "the nine quality gates", "why": why})]
        both = ("compact", self.peer.name)
        for seed, name in product(range(SEEDS), both):
            if (seed, name) not in self._made:
                told = self.lesson(seed).run(self.couples[name][1], place)
                self._made[seed, name] = self.lesson(seed).judged(told.model)
        mine, theirs = ([self._made[seed, name] for seed in range(SEEDS)] for name in both)
        return [Finding("gates_nine", {"rows": gates_nine(mine, theirs)})]

    def arms(self) -> list[Arm]:
        """Return one arm for each way in `couples` to compute the couplings."""
        return [
            Arm(
                name=name,
                label=label,
                run=partial(self.run, name),
                options=jsonable({**options, "trains": True}),
                available=partial(self.missing, name),
                slack=1.01 if name == self.peer.name else 1.0,
            )
            for name, (label, _, options) in self.couples.items()
        ]

    def units(self) -> list[Unit]:
        """One for each seed."""
        s = self._sizes
        told = {"batch": s.batch, "d": s.dim, "updates": s.updates, "hidden": s.hidden, "eps": EPS}
        return [
            Unit(
                name=f"seed {seed}",
                load=lambda seed=seed: Loaded(self.lesson(seed).problems(0, WINDOW)),
                options={**told, "seed": seed},
                arms=tuple(self.couples),
                repeats=s.repeats,
            )
            for seed in range(SEEDS)
        ]


def campaign(scale: str, data: Path | None, device: str) -> Campaign:
    """Three seeds of training with each arm; windows of every width with static and compact."""
    sizes, features = SIZES[scale], loaders.imagenet(data)
    order = np.random.default_rng(0).permutation(len(features.values))
    leading = replace(features, values=np.ascontiguousarray(features.values[order, : sizes.dim]))
    training = Training(leading.values, sizes, device)
    peer = training.peer
    reduced = () if scale == "full" else (
        f"the leading {sizes.dim} components, and eps {sizes.sweep_eps} in the width sweep",
    )  # fmt: skip
    return Campaign(
        name="imagenet",
        title="Images: flow matching (C63) and width (C35)",
        scale=scale,
        arms=[*training.arms(), _sweep("sweep-static", "static"), _sweep("sweep-compact", "compact")],
        units=[*training.units(), *_swept(leading, sizes, device)],
        contrasts=_contrasts(peer.name, sizes.windows),
        studies=[Study(name="quality", run=training.gates, options={"arms": ["compact", peer.name], "seeds": SEEDS})],
        inputs=features.source.inputs,
        options=described(
            features.source,
            device,
            *peer.differs,
            f"{sizes.updates} updates of a small network in place of 50,000; quality is judged after those",
            f"{sizes.windows} windows of each width in place of 40: images against slices of them along the first "
            "component",
            *reduced,
        ),
    )


def _swept(images: loaders.Features, sizes: Sizes, device: str) -> list[Unit]:
    """Windows of every width."""
    n, eps = sizes.sweep_n, sizes.sweep_eps
    return [
        Unit(
            name=f"width {width}, window {k}",
            load=lambda width=width, k=k: Loaded(image_slices(images, n, width, eps, k, device)),
            options={"n": n, "d": sizes.dim, "width": width, "eps": eps, "window": k},
            arms=("sweep-static", "sweep-compact"),
            repeats=3,
            theory=2.0 if (width, k) == (16, 0) else 0.0,
        )
        for width in WIDTHS
        for k in range(sizes.windows)
    ]


def _contrasts(peer: str, windows: int) -> list[Contrast]:
    seeds = [f"seed {seed}" for seed in range(SEEDS)]
    solver, trained = partial(versus, units=seeds), partial(versus, units=seeds, endpoint="e3")
    return [
        solver(f"{peer} / compact, solver", "compact", peer, "imagenet/official-compact"),
        solver("width-one / compact, solver", "compact", "width-one"),
        solver("static / compact, solver", "compact", "static"),
        solver(f"{peer} / default, solver", "default", peer),
        trained(f"{peer} / compact, training", "compact", peer, "imagenet/official-compact-e3"),
        trained("width-one / static, training", "static", "width-one", "imagenet/width-one-static-e3"),
        trained("static / compact, training", "compact", "static", "imagenet/static-compact-e3"),
        *(
            versus(
                f"static / compact, width {width}",
                "sweep-compact",
                "sweep-static",
                f"imagenet/width-{width}",
                units=[f"width {width}, window {k}" for k in range(windows)],
            )
            for width in WIDTHS
        ),
    ]


def _sweep(name: str, mode: str) -> Arm:
    """Return an arm in mode "static" or "compact" whose width is the number of problems of the unit."""

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
