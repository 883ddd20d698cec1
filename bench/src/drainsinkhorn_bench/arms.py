"""Arms of the named campaigns: our solver with some options, and the peer that a device has. Data in, outcome out."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from drainsinkhorn.backends import load
from drainsinkhorn.core.audit import Audit
from drainsinkhorn.core.options import MODES, Mode
from drainsinkhorn.core.protocol import Backend
from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.run.solution import Solution
from drainsinkhorn.run.solve import solve
from drainsinkhorn.run.validate import validate
from drainsinkhorn_bench import peers
from drainsinkhorn_bench.loaders import Array, Source
from drainsinkhorn_bench.plan import Arm, Contrast, Outcome, Ran, Work
from drainsinkhorn_bench.report.paper import RATIOS

Consumer = Callable[[Work, Backend[Any], Mapping[int, Potentials[Any]]], Mapping[str, Any]]
"""What is done with the couplings of a unit; returns facts. The same one for all arms of a campaign."""

PAPER = Audit(every=4, first_passage=False, screen="row", margin=0.95)
"""The paper's audits: every 4 cycles, lanes leave on that grid, a row screen and a verify at 0.95 tol."""
PLAIN: dict[str, Any] = {"accelerate": "none", "init": "zero"}
MAX_DEPTH = 20_000
PEER_SECONDS = 5.0
"""What a serial peer may take for one run of a unit; beyond it, it runs some of the problems and is scaled up."""


def backend_of(device: str) -> Backend[Any]:
    """Return the backend for a device: `triton` on CUDA, `cpu` otherwise."""
    return _loaded("triton" if device == "cuda" else "cpu")


@cache
def _loaded(name: str) -> Backend[Any]:
    return load(name)


def on(device: str, array: Array) -> Any:
    """Return an array as a contiguous torch tensor on the GPU ("cuda"), or as a contiguous NumPy array ("cpu")."""
    if device != "cuda":
        return np.ascontiguousarray(array)
    import torch

    return torch.as_tensor(np.ascontiguousarray(array), device="cuda")


def problem(x: Array, y: Array, eps: float, device: str, **columns: Any) -> Problem[Any]:
    """A float32 problem, centred and scaled so that its mean cost is one: eps is a share of that."""
    x, y = (points.astype(np.float64) for points in (x, y))
    mean = float(((x.mean(0) - y.mean(0)) ** 2).sum() + x.var(0).sum() + y.var(0).sum())
    middle = (x.mean(0) + y.mean(0)) / 2
    x, y = (((points - middle) / mean**0.5).astype(np.float32) for points in (x, y))
    return Problem(x=on(device, x), y=on(device, y), eps=eps, **columns)


def ours(
    name: str,
    label: str,
    mode: str | Mode,
    width: int,
    *,
    audit: Audit = PAPER,
    backend: Callable[[str], Backend[Any]] = backend_of,
    consumer: Consumer | None = None,
    available: Callable[[], str | None] = lambda: None,
    **settings: Any,
) -> Arm:
    """Our solver: plain Sinkhorn from zero under the paper's audits, unless something else is said.

    Args:
        name: The arm's.
        label: The arm's.
        mode: A name in MODES, or a Mode.
        width: Lanes of a pack.
        audit: When and how lanes are checked.
        backend: Device to backend.
        consumer: What is timed as E2.
        available: Why it cannot run here, or None.
        **settings: Further keywords of `solve`, in place of PLAIN.
    """
    given = {**PLAIN, **settings}

    def run(work: Work) -> Outcome:
        picked, clock = backend(work.place.device), work.place.clock
        begun = clock()
        solution = solve(
            list(work.problems), tol=work.unit.tol, backend=picked, mode=mode, width=width, audit=audit,
            rescue=False, max_depth=MAX_DEPTH, warn=False, **given,
        )  # fmt: skip
        solved = clock()
        answers = answers_of(solution)
        e2, facts = _consumed(work, picked, answers, consumer, begun)
        ran_mode = MODES[mode] if isinstance(mode, str) else mode
        every = ran_mode.spacing(audit, picked.hints(validate(work.problems[0], tol=1.0, finite=True)))
        return Outcome(
            answers=answers,
            e1=solved - begun,
            e2=e2,
            depths=[solution.ledger.depths.get(k) for k in range(len(work.problems))],
            ledger=solution.ledger,
            ran=Ran(mode, ran_mode.width or width, replace(audit, every=every), solution[0].acceleration, picked),
            arithmetic=solution[0].arithmetic,
            facts=facts,
        )

    options = {"mode": mode if isinstance(mode, str) else asdict(mode), "width": width, "audit": asdict(audit), **given}
    return Arm(name=name, label=label, run=run, options=jsonable(options), available=available)


def default(
    width: int, *, backend: Callable[[str], Backend[Any]] = backend_of, consumer: Consumer | None = None
) -> Arm:
    """Our solver with default options: momentum, automatic start, default audits, in mode compact."""
    return ours(
        "default", "drainsinkhorn as shipped (momentum, start, first passage)", "compact", width, audit=Audit(),
        backend=backend, consumer=consumer, accelerate="auto", init="auto",
    )  # fmt: skip


def free(width: int, *, consumer: Consumer | None = None) -> list[Arm]:
    """Return a mask and a compact arm of plain Sinkhorn under the library's default audits.

    These screen lanes by the leg that is measured anyway, and hold a lane at its first state that passes. The paper's
    audits pay a pass over the rows for a screen. That adds the same time to both arms, so their ratio would show less
    of what padding costs.
    """
    more = "free screen, first passage"
    return [
        ours(f"free-{mode}", f"{mode}, {more}", mode, width, audit=Audit(), consumer=consumer)
        for mode in ("mask", "compact")
    ]


def answers_of(solution: Solution[Any]) -> dict[int, Potentials[Any]]:
    """Return potentials by the index of the problem; problems that have none are left out."""
    ended = solution.outcomes
    rows = zip(ended.tickets, ended.f, ended.g, strict=True)
    return {ticket: Potentials(f, g) for ticket, f, g in sorted(rows, key=lambda row: row[0]) if f is not None}


def _consumed(
    work: Work, backend: Backend[Any], answers: Mapping[int, Potentials[Any]], consumer: Consumer | None, begun: float
) -> tuple[float | None, Mapping[str, Any]]:
    if consumer is None:
        return None, {}
    facts = consumer(work, backend, answers)
    return work.place.clock() - begun, facts


class Public(NamedTuple):
    """The published solver with which arms are compared on a device; it runs one problem at a time.

    Attributes:
        name: Name of its arm.
        label: Label of its arm in the report.
        differs: How the arm differs from the paper's, as sentences.
        make: Makes the solver, a class of `peers`, from its stop and the number of cycles between its checks.
    """

    name: str
    label: str
    differs: tuple[str, ...]
    make: Callable[[float, int], Any]


def public_of(device: str) -> Public:
    """Return the public solver that runs one problem at a time: FlashSinkhorn on CUDA, OTT-JAX on a CPU.

    FlashSinkhorn has no CPU path. The label of the OTT-JAX arm says that it replaces FlashSinkhorn.
    """
    if device == "cuda":
        return Public(
            "official", "FlashSinkhorn serial, two-sided check", (), lambda stop, every: peers.Flash(stop, every)
        )
    differs = ("FlashSinkhorn needs CUDA: the public serial arm is OTT-JAX on this CPU",)
    return Public(
        "ott", "OTT-JAX serial (CPU; in place of FlashSinkhorn)", differs, lambda stop, every: peers.Ott(stop, every)
    )


def public(
    device: str, *, audit: Audit = PAPER, consumer: Consumer | None = None, seconds: float = PEER_SECONDS
) -> Arm:
    """The public serial arm under the same stop and the same grid of checks as ours."""
    known = public_of(device)
    assert isinstance(audit.every, int)
    every = audit.every

    @cache
    def peer(stop: float) -> Any:
        return known.make(stop, every)

    def available() -> str | None:
        try:
            peer(1e-3)
        except ImportError as error:
            return f"{known.label} cannot be loaded: {error}"
        return None

    def run(work: Work) -> Outcome:
        return run_serial(work, lambda some: peer(audit.margin * work.unit.tol).serial(some), consumer, seconds)

    options = {"every": every, "margin": audit.margin, "seconds": seconds}
    return Arm(name=known.name, label=known.label, run=run, options=options, available=available, slack=1.01)


def run_serial(
    work: Work, serial: Callable[[Sequence[Problem[Any]]], peers.Found], consumer: Consumer | None, seconds: float
) -> Outcome:
    """A peer on the problems of a unit one after another, until its seconds are over."""
    clock, count = work.place.clock, len(work.problems)
    # What it has time for is spread over the unit, since depths may grow along it.
    step = next(k for k in range(max(1, count // 3), count + 1) if math.gcd(k, count) == 1)
    order = [(step * place) % count for place in range(count)]
    found, begun = dict[int, peers.Found](), clock()
    for place in order:
        found[place] = serial([work.problems[place]])
        if clock() - begun > seconds:
            break
    spent, share = clock() - begun, len(found) / count
    answers = {place: each.potentials()[0] for place, each in found.items()}
    e2: float | None = None
    facts: Mapping[str, Any] = {}
    if consumer is not None:
        answers = {place: _like(work.problems[place], answer) for place, answer in answers.items()}
        start = clock()
        facts = consumer(work, backend_of(work.place.device), answers)
        e2 = spent / share + (clock() - start) / share
    return Outcome(
        answers=answers,
        e1=spent / share,
        e2=e2,
        depths=[found[place].depths[0] if place in found else None for place in range(count)],
        extrapolated=share < 1,
        note=f"{len(found)} of {count} problems were run and seconds scaled" if share < 1 else "",
        facts=facts,
    )


def _like(problem: Problem[Any], answer: Potentials[Any]) -> Potentials[Any]:
    """Potentials where the problem's points lie."""
    device = "cuda" if getattr(problem.x, "is_cuda", False) else "cpu"
    return Potentials(*(side if hasattr(side, "is_cuda") else on(device, side) for side in answer))


@contextlib.contextmanager
def one_thread(device: str) -> Iterator[None]:
    """On a CPU, run torch and what shares its thread pool with one thread: small operations gain nothing from more.

    On a busy machine threads that wait for one another cost ten times what they compute.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1 if device == "cpu" else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def versus(
    name: str,
    numerator: str,
    denominator: str,
    key: str = "",
    *,
    endpoint: str = "e1",
    units: Sequence[str] | None = None,
) -> Contrast:
    """Return a contrast; `key` names the paper's ratio in RATIOS, and is empty if the paper has none."""
    told = {"key": key, "value": RATIOS[key].value, "source": RATIOS[key].source} if key else None
    return Contrast(
        name=name, numerator=numerator, denominator=denominator, endpoint=endpoint, paper=told,
        units=None if units is None else tuple(units),
    )  # fmt: skip


def described(source: Source, device: str, *differs: str, **options: Any) -> dict[str, Any]:
    """Options of a campaign: its data, and all that differs from the paper."""
    where = () if device == "cuda" else ("sizes are reduced for a CPU",)
    return {**options, "data": source.text, "differs": [*source.differs, *where, *differs]}


def jsonable(value: Any) -> Any:
    """Options as JSON: infinity has no number there."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, (Cost, Path)):
        return str(value)
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
