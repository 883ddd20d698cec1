"""A campaign small enough for tests, over generated clouds, and one whose times are scripted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import drainsinkhorn as ds
from drainsinkhorn_bench.plan import Arm, Campaign, Contrast, Finding, Loaded, Outcome, Place, Ran, Study, Unit, Work

AUDIT = ds.Audit(every=4)
WIDTH = 4


def load(seed: int = 0, n: int = 40) -> Loaded:
    rng = np.random.default_rng(seed)
    spread = np.linspace(0.1, 1.0, WIDTH)
    clouds = [(s * rng.normal(size=(n, 2)), s * rng.normal(size=(n, 2)) + 0.2) for s in spread]
    return Loaded([ds.Problem(x=x, y=y, eps=0.1) for x, y in clouds])


def ours(mode: str, **settings: Any) -> Callable[[Work], Outcome]:
    def run(work: Work) -> Outcome:
        begun = work.place.clock()
        solution = ds.solve(
            list(work.problems),
            tol=work.unit.tol,
            mode=mode,
            width=WIDTH,
            audit=AUDIT,
            accelerate="none",
            init="zero",
            backend="reference",
            **settings,
        )
        seconds = work.place.clock() - begun
        return Outcome(
            answers={r.ticket: r.potentials for r in solution},
            e1=seconds,
            depths=[r.depth for r in solution],
            ledger=solution.ledger,
            ran=Ran(mode, WIDTH, AUDIT, "none", "reference"),
        )

    return run


def arm(mode: str, **changes: Any) -> Arm:
    return Arm(**{"name": mode, "label": mode, "run": ours(mode), "options": {"mode": mode}} | changes)


def find(_: Place) -> Iterator[Finding]:
    yield Finding("h_d", 0.5)


def campaign(
    *,
    arms: Sequence[Arm] | None = None,
    units: Sequence[Unit] | None = None,
    contrasts: Sequence[Contrast] = (Contrast(name="mask / compact", numerator="compact", denominator="mask"),),
    **changes: Any,
) -> Campaign:
    return Campaign(
        **{
            "name": "toy",
            "title": "A toy",
            "scale": "small",
            "arms": arms or [arm("static"), arm("mask"), arm("compact")],
            "units": units or [Unit(name=f"seed{seed}", load=lambda s=seed: load(s), repeats=2) for seed in range(2)],
            "contrasts": contrasts,
            "studies": [Study(name="find", run=find)],
        }
        | changes
    )
