"""What a campaign is made of: arms, units, contrasts, studies. Data and callables; nothing here runs or prints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from drainsinkhorn.core.audit import Audit
from drainsinkhorn.core.ledger import Ledger
from drainsinkhorn.core.options import Mode
from drainsinkhorn.model.errors import OptionsError
from drainsinkhorn.model.problem import Potentials, Problem

SCALES = ("small", "full")
ENDPOINTS = ("e1", "e2", "e3")
"""Potentials after verify; with the consumer; with training."""


def always() -> str | None:
    """Return None: default of `Arm.available`, for an arm that can run everywhere."""
    return None


class Place(NamedTuple):
    """Where a campaign runs.

    Attributes:
        device: "cpu" or "cuda".
        clock: Returns the time in seconds, after it has waited for all work launched on the device.
    """

    device: str
    clock: Callable[[], float]


class Work(NamedTuple):
    """A unit that was loaded, as an arm gets it."""

    unit: Unit
    problems: Sequence[Problem[Any]]
    place: Place
    extra: Any = None


class Loaded(NamedTuple):
    """What `Unit.load` gives: the problems, and whatever else its arms share (a consumer's labels, a training set)."""

    problems: Sequence[Problem[Any]]
    extra: Any = None


class Ran(NamedTuple):
    """How our own solver ran an arm; theory is put beside what this describes.

    Attributes:
        mode: A name of MODES, or a Mode.
        width: Lanes of a pack.
        audit: With `every` as it was in use, never None.
        accelerate: "none" for plain Sinkhorn.
        backend: The Backend, or its name.
    """

    mode: str | Mode
    width: int
    audit: Audit
    accelerate: str
    backend: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What an arm did with a unit once.

    Attributes:
        answers: Potentials by place in the unit's problems, in this library's convention; the gate audits them in
            float64. An arm that had no time for all of them gives some and sets `extrapolated`.
        e1: Seconds to potentials after verify. None if not timed apart from the consumer; set `consumer` then.
        e2: Seconds with the consumer. None without one.
        e3: Seconds with training. None without one.
        consumer: Seconds of the consumer alone, measured in this very run, where `e1` is None; the harness then takes
            `e1 = e2 - consumer` and marks it reconstructed.
        depths: Cycles of every problem; None for a problem of which they are unknown. Empty: unknown for all.
        ledger: The account, where our solver ran.
        ran: Settings of this library's solver, from which theory predicts slots and time; None: no prediction.
        extrapolated: True if seconds were scaled up from a part of the problems.
        arithmetic: Precision and representation, where known.
        note: What a reader must know beside the numbers.
        facts: Values by name for the records, e.g. {"tv": 0.012}; written once, from the gate's run.
    """

    answers: Mapping[int, Potentials[Any]]
    e1: float | None = None
    e2: float | None = None
    e3: float | None = None
    consumer: float | None = None
    depths: Sequence[int | None] = ()
    ledger: Ledger | None = None
    ran: Ran | None = None
    extrapolated: bool = False
    arithmetic: str = ""
    note: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One configuration that is compared with others.

    Attributes:
        name: Short, the key in records and contrasts: "official", "compact".
        label: What a reader sees.
        run: Solve a unit once and say how long it took by `work.place.clock`.
        options: Everything that makes this arm what it is, as JSON; part of the manifest.
        available: Returns the reason why the arm cannot run on this machine, or None if it can.
        slack: An audited residual up to `slack * tol` passes the gate. 1 for our arms; 1.01 for peers, whose own check
            is in float32.
    """

    name: str
    label: str
    run: Callable[[Work], Outcome]
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    available: Callable[[], str | None] = always
    slack: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One paired timing: problems that every arm solves, in turns.

    Attributes:
        name: The key in records.
        load: Make or read the problems; called once when the unit runs. Must give the same ones every time.
        tol: What the gate holds answers to; a problem's own tol comes first.
        options: Everything that makes this unit what it is (n, d, eps, seed, ...), as JSON; part of the manifest.
        arms: Names of the arms that take part; None: all.
        repeats: Timed runs of every arm.
        warmups: Runs before them that are not timed, beside the gate's own.
        theory: Seconds to spend on the width-cost curve of this unit; 0: no prediction of time for it.
        modal: How many of its problems get a modal prediction of depth (small n only).
    """

    name: str
    load: Callable[[], Loaded]
    tol: float = 1e-3
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    arms: tuple[str, ...] | None = None
    repeats: int = 5
    warmups: int = 0
    theory: float = 0.0
    modal: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """A paired ratio of two arms: seconds of `denominator` over seconds of `numerator`; above 1 the latter is faster.

    Attributes:
        name: The key, e.g. "mask / compact".
        numerator: The arm whose gain is asked for.
        denominator: The arm it is compared with.
        endpoint: Which seconds are compared: "e1" (potentials), "e2" (with the consumer) or "e3" (with training); see
            `Outcome`.
        paper: The paper's own number for it and where it stands, e.g. {"value": 2.05, "source": "tab:c66"}; or None.
        units: Names of the units it is taken over; None: all that both arms have.
    """

    name: str
    numerator: str
    denominator: str
    endpoint: str = "e1"
    paper: Mapping[str, Any] | None = None
    units: tuple[str, ...] | None = None


class Finding(NamedTuple):
    """A fact that a study found; becomes a `fact` record."""

    name: str
    value: Any
    unit: str | None = None
    arm: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A part of a campaign that is not a paired timing, such as precision cases, attacks, or kernels' lower bounds.

    A study that was interrupted is run again from its beginning.

    Attributes:
        name: The key in records.
        run: Yields what it finds. Its findings are written together when it ends, so keep one study under two minutes.
        options: Everything that makes it what it is, as JSON; part of the manifest.
    """

    name: str
    run: Callable[[Place], Iterable[Finding]]
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """A frozen experiment.

    Attributes:
        name: The name of its module in `drainsinkhorn_bench.named`, and of its folder.
        title: What a reader sees.
        scale: "small" or "full".
        arms: Configurations.
        units: Paired timings.
        contrasts: Ratios of arms that are computed from the units; may be empty.
        studies: Parts that are not paired timings.
        inputs: sha256 by file name of what is read; empty where all is generated.
        options: Everything else that could change a result, as JSON: data folder or generated, and what differs from
            the paper ("differs": [sentences]).
        seed: Seed of all random numbers, including those of the statistics.
    """

    name: str
    title: str
    scale: str
    arms: Sequence[Arm] = ()
    units: Sequence[Unit] = ()
    contrasts: Sequence[Contrast] = ()
    studies: Sequence[Study] = ()
    inputs: Mapping[str, str] = field(default_factory=dict[str, str])
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    seed: int = 0

    def __post_init__(self) -> None:
        for what, names in (
            ("arm", [arm.name for arm in self.arms]),
            ("unit", [unit.name for unit in self.units]),
            ("contrast", [contrast.name for contrast in self.contrasts]),
            ("study", [study.name for study in self.studies]),
        ):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise OptionsError(f"campaign {self.name}: {what} names must differ, {twice[0]!r} comes twice")
        known = {arm.name for arm in self.arms}
        used = [(unit.name, name) for unit in self.units for name in unit.arms or ()]
        used += [(c.name, name) for c in self.contrasts for name in (c.numerator, c.denominator)]
        for where, name in used:
            if name not in known:
                raise OptionsError(f"campaign {self.name}: {where!r} names the arm {name!r}; there are {sorted(known)}")
        units = {unit.name for unit in self.units}
        for contrast in self.contrasts:
            if contrast.endpoint not in ENDPOINTS:
                raise OptionsError(f"contrast {contrast.name!r}: endpoint must be one of {list(ENDPOINTS)}")
            if missing := [name for name in contrast.units or () if name not in units]:
                raise OptionsError(f"contrast {contrast.name!r} names the unit {missing[0]!r}, which is not there")
        if self.scale not in SCALES:
            raise OptionsError(f"scale must be one of {list(SCALES)}, got {self.scale!r}")

    def arms_of(self, unit: Unit) -> list[Arm]:
        """The arms that take part in a unit, in the campaign's order."""
        return [arm for arm in self.arms if unit.arms is None or arm.name in unit.arms]
