"""Theory beside measurement: slots from depths, time from the width-cost curve, the break-even shrink, modal depth."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from drainsinkhorn.backends import load
from drainsinkhorn.core.audit import Audit
from drainsinkhorn.core.ledger import Ledger, survival
from drainsinkhorn.core.options import MODES
from drainsinkhorn.core.protocol import Backend
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.run.solve import solve
from drainsinkhorn.theory import WidthCost, modal_response, profile_width_cost, slots, windows
from drainsinkhorn.theory.profile import typical
from drainsinkhorn_bench.plan import Outcome, Ran, Work

LADDER = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
MODAL_POINTS = 600
"""Points of the larger side up to which modes are computed."""
NEAR = 1e-3
"""Size of the errors of a near start, in nats."""

Said = tuple[str, Any, str | None]
"""Name and value of a fact, and its arm."""


def slot_identity(ledger: Ledger, ran: Ran) -> dict[str, Any]:
    """Slots that the depths alone demand of a mode, beside those that the kernels counted."""
    backend: Backend[Any] = load(ran.backend) if isinstance(ran.backend, str) else ran.backend
    found = list[int | None]()
    for capacity, tickets in ledger.account()["queues"]:
        depths = [ledger.depths[ticket] for ticket in tickets if ticket in ledger.depths]
        found.append(_demanded(depths, _name(ran), capacity, ran.audit, backend.width_for))
    known = [count for count in found if count is not None]
    if len(known) < len(found):
        return {"predicted": None, "counted": ledger.slots, "equal": None}
    return {"predicted": sum(known), "counted": ledger.slots, "equal": sum(known) == ledger.slots}


def _demanded(
    depths: Sequence[int], mode: str | None, width: int, audit: Audit, width_for: Callable[[int], int]
) -> int | None:
    """Slots of a mode on a backend whose widths may be rungs of a ladder; None where theory has no number."""
    if mode is None:
        return None
    if all(width_for(lanes) == lanes for lanes in range(1, width + 1)):
        return slots(depths, mode, width, audit)
    if mode == "stream" or (mode == "compact" and audit.first_passage):
        return None
    if mode == "compact":
        return sum(width_for(live) for window in windows(depths, width) for live in survival(window))
    if mode == "width-one":
        return sum(depths) * width_for(1)
    return sum(slots(w, mode, width, audit) // len(w) * width_for(len(w)) for w in windows(depths, width))


def _name(ran: Ran) -> str | None:
    """The name of a mode whose slots theory knows; None for one of the caller's own."""
    if isinstance(ran.mode, str):
        return ran.mode
    return next((name for name, mode in MODES.items() if mode == ran.mode), None)


def beside(work: Work, measured: Mapping[str, tuple[Outcome, Sequence[float]]]) -> Iterator[Said]:
    """Yield what theory says of a unit, as facts.

    For arms that this library's solver ran: cost of a cycle by width, break-even of repacks, and predicted time. For
    problems: depths of plain Sinkhorn, measured and predicted by the modal response.

    Args:
        work: The unit.
        measured: By arm: what it did, and the seconds (E1) of its repeats.
    """
    for wanted, what, say in (
        (work.unit.theory, "predicted time", lambda: _times(work, measured)),
        (work.unit.modal, "modal depth", lambda: [("modal", list(_modes(work)), None)]),
    ):
        try:
            yield from list(say()) if wanted else ()
        except Exception as error:  # noqa: BLE001  what was measured stands, whatever becomes of its theory
            yield "skipped", f"no {what}: {type(error).__name__}: {error}", None


def _times(work: Work, measured: Mapping[str, tuple[Outcome, Sequence[float]]]) -> Iterator[Said]:
    known = {name: (o.ran, o, laps) for name, (o, laps) in measured.items() if o.ran is not None and o.depths}
    shapes = {_shape(problem) for problem in work.problems}
    if not known:
        return
    if len(shapes) > 1:
        yield "skipped", f"no predicted time: the unit has problems of {len(shapes)} shapes", None
        return
    (shape,) = shapes
    curves: dict[tuple[Any, str], WidthCost] = {}
    widest = min(len(work.problems), max(ran.width for ran, _, _ in known.values()))
    for name, (ran, outcome, laps) in known.items():
        key = (repr(ran.backend), ran.accelerate)
        if key not in curves:
            curves[key] = cost = _profile(work, ran, shape, widest)
            yield "curve", _curve(cost), name
            yield "break_even", _break_even(cost, ran.audit.every), name
        forecast = curves[key].predict(_depths(ran, outcome, known.values()), ran.mode, ran.width, ran.audit)
        yield (
            "predicted_time",
            {
                "predicted": forecast.seconds,
                # What else runs on the machine can only add time, so the curve and the runs are both lower quartiles.
                "measured": typical(laps),
                "median": statistics.median(laps),
                "parts": forecast.parts,
            },
            name,
        )


def _depths(ran: Ran, outcome: Outcome, known: Iterable[tuple[Ran, Outcome, Sequence[float]]]) -> list[int]:
    """Return depths from which the schedule of an arm can be replayed.

    All lanes of a static batch report the depth at which the last one passed. If another arm, not static, ran the same
    problems with the same audits, acceleration and backend, its depths are returned: they say when each lane passed.
    From these the replay finds the common depth, and how many lanes were verified before it.
    """
    if _name(ran) == "static":
        for other, done, _ in known:
            same = (other.audit, other.accelerate, repr(other.backend)) == (
                ran.audit,
                ran.accelerate,
                repr(ran.backend),
            )
            if same and _name(other) != "static":
                outcome = done
                break
    return [depth for depth in outcome.depths if depth is not None]


def _profile(work: Work, ran: Ran, shape: tuple[int, int, int], widest: int) -> WidthCost:
    ladder = sorted({width for width in LADDER if width < widest} | {widest})
    return profile_width_cost(
        ran.backend,
        shape,
        widths=ladder,
        seconds=work.unit.theory,
        eps=float(work.problems[0].eps),
        tol=work.problems[0].tol or work.unit.tol,
        accelerate=ran.accelerate,
        problems=work.problems,
    )


def _shape(problem: Problem[Any]) -> tuple[int, int, int]:
    if problem.x is None or problem.y is None:
        n, m = problem.cost.shape  # type: ignore[union-attr]
        return n, m, 0
    return len(problem.x), len(problem.y), int(problem.x.shape[1])


def _curve(cost: WidthCost) -> dict[str, Any]:
    """The measured curve: width, seconds per cycle, and what a cycle costs more in lockstep."""
    return {
        "backend": cost.backend,
        "shape": list(cost.shape),
        "widths": list(cost.widths),
        "seconds": list(cost.cycle),
        "lockstep": list(cost.lockstep),
        "repack": [cost.repack.call, cost.repack.lane],
    }


def _break_even(cost: WidthCost, every: Any) -> list[dict[str, Any]]:
    """By width: the smallest shrink that pays for its repack before the next audit; None where none does."""
    cycles = every if isinstance(every, int) else 8
    rows = list[dict[str, Any]]()
    for width in cost.widths[1:]:
        shrink = cost.break_even(width, cycles)
        rows.append({"width": width, "cycles": cycles, "shrink": None if math.isinf(shrink) else int(shrink)})
    return rows


def _modes(work: Work) -> Iterator[dict[str, Any]]:
    """Predicted and measured depths of plain Sinkhorn, from nothing (cold) and from beside the solution (near)."""
    for place, problem in enumerate(work.problems[: work.unit.modal]):
        n, m, _ = _shape(problem)
        if max(n, m) > MODAL_POINTS or problem.x is None:
            yield {"problem": place, "skipped": f"{n} x {m} points; modes are computed up to {MODAL_POINTS}"}
            continue
        tol = problem.tol or work.unit.tol
        cold = _plain(problem)
        tight = solve(cold, tol=1e-9, max_depth=200_000, warn=False)[0]
        if not tight.converged:
            yield {"problem": place, "skipped": f"its solution was not found to 1e-9: {tight.message}"}
            continue
        f, g = tight.potentials
        noise = NEAR * float(problem.eps) * np.random.default_rng(place).normal(size=m)
        near = replace(cold, init=Potentials(f, g + noise))
        for start, begun, goal in (("cold", cold, tol), ("near", near, min(tol, 1e-5))):
            modal = modal_response(begun, tight.potentials)
            ran = solve(begun, tol=goal, accelerate="none", max_depth=200_000, warn=False)[0]
            yield {
                "problem": place,
                "start": start,
                "tol": goal,
                "depth": ran.depth if ran.converged else None,
                "full": _finite(modal.depth(goal)),
                "lambda2": _finite(modal.depth_slowest(goal)),
                "eigenvalue": float(modal.eigenvalues[0]) if modal.eigenvalues.size else None,
            }


def _plain(problem: Problem[Any]) -> Problem[Any]:
    """The problem in float64 NumPy, from zero."""
    sides = {side: getattr(problem, side) for side in ("x", "y", "a", "b")}
    arrays = {side: None if value is None else to_numpy(value).astype(np.float64) for side, value in sides.items()}
    return replace(problem, init="zero", chain=None, **arrays)


def _finite(depth: float) -> int | None:
    return None if math.isinf(depth) else int(depth)
