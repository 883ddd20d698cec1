"""Runs a campaign: gate first, then arms in turns, every number to the raw file as it comes. Stops between units.

A unit is one attempt: gates, warm-ups, interleaved repeats, theory beside them, and a `done`. One that was interrupted
is begun again from its gates, so that a pair never spans two attempts. A run stops only between attempts.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from drainsinkhorn.run.journal import fingerprint
from drainsinkhorn_bench import gate, meters, records, theory
from drainsinkhorn_bench.manifest import digest, freeze, manifest
from drainsinkhorn_bench.plan import Arm, Campaign, Outcome, Place, Study, Unit, Work
from drainsinkhorn_bench.records import RAW, Log, Record


class Tick(NamedTuple):
    """Where a run stands.

    Attributes:
        campaign: Its name.
        what: What runs now, in words.
        done: Units and studies that are done, earlier runs included.
        total: All of them.
        left: Seconds that the rest will take, from those that are done; None while unknown.
    """

    campaign: str
    what: str
    done: int
    total: int
    left: float | None


class Ended(NamedTuple):
    """How a run ended: units and studies done, and all there are; void (unit, arm) of this run, with the reason."""

    done: int
    total: int
    void: dict[tuple[str, str], str]

    @property
    def complete(self) -> bool:
        """True if nothing is left to run."""
        return self.done == self.total


Tell = Callable[[Tick], None]


def silent(_: Tick) -> None:
    """Tell nobody."""


def orders(count: int, repeats: int, first: int = 0) -> list[list[int]]:
    """The order of so many arms in each repeat: rows of a Williams square.

    Over a whole square every arm comes in every place once and after every other arm equally often, so that neither a
    drift of the machine nor what an arm leaves behind favours any.

    Args:
        count: Arms.
        repeats: Rows to give.
        first: Where in the square to begin.

    Examples:
        >>> orders(4, 4)
        [[0, 1, 3, 2], [1, 2, 0, 3], [2, 3, 1, 0], [3, 0, 2, 1]]
    """
    zigzag = [place // 2 if place % 2 == 0 else count - 1 - place // 2 for place in range(count)]
    zigzag = [(-value) % count for value in zigzag]
    square = [[(value + row) % count for value in zigzag] for row in range(count)]
    if count % 2:
        # An odd square is balanced together with its mirror image.
        square = [order for row in square for order in (row, row[::-1])]
    return [square[(first + repeat) % len(square)] for repeat in range(repeats)]


def run(
    campaign: Campaign,
    folder: Path,
    place: Place,
    *,
    seconds: float | None = None,
    tell: Tell = silent,
    only: str | None = None,
) -> Ended:
    """Run what is not done yet.

    Args:
        campaign: The campaign.
        folder: Where its manifest and raw file are, or will be.
        place: Where it runs.
        seconds: Begin no unit that would end later than this; the first is begun in any case.
        tell: Told where the run stands.
        only: Run only units and studies whose name begins so.
    """
    frozen = manifest(campaign, place)
    freeze(folder, frozen)
    before = records.read(folder)
    with closing(Log(folder / RAW)) as log:
        desk = _Desk(campaign.name, meters.host(place.device), log)
        if desk.host not in before.hosts:
            desk.introduce()
        return _Runner(campaign, place, desk, dict(before.closed), seconds, tell).run(only or "")


@dataclass(slots=True)
class _Desk:
    """Writes records of one machine."""

    campaign: str
    facts: dict[str, Any]
    log: Log
    host: str = field(init=False)

    def __post_init__(self) -> None:
        self.host = digest({name: value for name, value in self.facts.items() if name != meters.MEMORY})[:16]

    def introduce(self) -> None:
        self.write([{"kind": "host", "unit": None, "arm": None, "attempt": None, "facts": self.facts}])

    def write(self, found: Sequence[Record]) -> None:
        self.log.append({**record, "campaign": self.campaign, "host": self.host} for record in found)


@dataclass(slots=True)
class _Runner:
    campaign: Campaign
    place: Place
    desk: _Desk
    closed: dict[tuple[str, str], float]
    seconds: float | None
    tell: Tell
    void: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    begun: float = field(default_factory=time.monotonic)
    worked: bool = False

    def run(self, only: str) -> Ended:
        for turn, unit in enumerate(self.campaign.units):
            if unit.name.startswith(only) and not self._attempt(
                "unit", unit.name, lambda u=unit, t=turn: self._unit(u, t)
            ):
                return self._ended()
        for study in self.campaign.studies:
            if study.name.startswith(only) and not self._attempt("study", study.name, lambda s=study: self._study(s)):
                return self._ended()
        return self._ended()

    def _ended(self) -> Ended:
        self._say("done" if len(self.closed) == self._total else "stopped")
        return Ended(len(self.closed), self._total, self.void)

    @property
    def _total(self) -> int:
        return len(self.campaign.units) + len(self.campaign.studies)

    def _attempt(self, kind: str, name: str, work: Callable[[], None]) -> bool:
        """Do one thing if it is not done and there is time; False if there is none."""
        if (kind, name) in self.closed:
            return True
        spent, longest = time.monotonic() - self.begun, max(self.closed.values(), default=0.0)
        if self.seconds is not None and self.worked and spent + longest > self.seconds:
            return False
        work()
        self.worked = True
        return True

    def _say(self, what: str) -> None:
        known = list(self.closed.values())
        left = (self._total - len(known)) * sum(known) / len(known) if known else None
        self.tell(Tick(self.campaign.name, what, len(known), self._total, left))

    def _study(self, study: Study) -> None:
        begun, attempt = time.monotonic(), secrets.token_hex(6)
        self._say(study.name)
        base = {"unit": None, "arm": None, "attempt": attempt, "study": study.name}
        try:
            findings = list(study.run(self.place))
        except Exception as error:  # noqa: BLE001  whatever it is, it is told, nothing of it is kept and the rest goes on
            self.void[study.name, "study"] = f"{type(error).__name__}: {error}"
            return
        found: list[Record] = [
            {**base, "kind": "fact", "unit": f.unit, "arm": f.arm, "name": f.name, "value": f.value} for f in findings
        ]
        seconds = time.monotonic() - begun
        self.desk.write([*found, {**base, "kind": "done", "seconds": seconds}])
        self.closed["study", study.name] = seconds

    def _unit(self, unit: Unit, turn: int) -> None:
        begun = time.monotonic()
        self._say(f"{unit.name}: loading")
        try:
            loaded = unit.load()
        except Exception as error:  # noqa: BLE001  a unit without its data is told, and the others go on
            self.void[unit.name, "load"] = f"{type(error).__name__}: {error}"
            return
        work = Work(unit, list(loaded.problems), self.place, loaded.extra)
        attempt = _Attempt(unit, work, self.desk, secrets.token_hex(6), meters.Meter(self.place.device))
        for arm in self.campaign.arms_of(unit):
            self._say(f"{unit.name}: gate of {arm.name}")
            attempt.gate(arm)
        for _ in range(unit.warmups):
            for arm in attempt.standing():
                attempt.warm(arm)
        taking_part = attempt.standing()
        with meters.heap_at_rest():
            for repeat, order in enumerate(orders(len(taking_part), unit.repeats, turn * unit.repeats)):
                self._say(f"{unit.name}: repeat {repeat + 1} of {unit.repeats}")
                for position, which in enumerate(order):
                    attempt.time(taking_part[which], repeat, position)
            if unit.theory or unit.modal:
                self._say(f"{unit.name}: theory")
            # What it measures is compared with the repeats, so it is measured as they were.
            attempt.theory()
        self.void |= {(unit.name, arm): reason for arm, reason in attempt.void.items()}
        self.closed["unit", unit.name] = attempt.done(time.monotonic() - begun)


@dataclass(slots=True)
class _Attempt:
    """One attempt at a unit."""

    unit: Unit
    work: Work
    desk: _Desk
    name: str
    meter: meters.Meter
    first: dict[str, tuple[Arm, Outcome]] = field(default_factory=dict[str, tuple[Arm, Outcome]])
    void: dict[str, str] = field(default_factory=dict[str, str])
    laps: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    print: str = ""

    def write(self, kind: str, arm: str | None, **values: Any) -> None:
        self.desk.write([{"kind": kind, "unit": self.unit.name, "arm": arm, "attempt": self.name, **values}])

    def fact(self, name: str, value: Any, arm: str | None = None) -> None:
        self.write("fact", arm, name=name, value=value)

    def standing(self) -> list[Arm]:
        """Arms that passed and are not void since."""
        return [arm for name, (arm, _) in self.first.items() if name not in self.void]

    def gate(self, arm: Arm) -> None:
        """Run an arm once and audit what it says; its facts and slots are written down too."""
        self.print = self.print or _fingerprint(self.work)
        reason = arm.available()
        if reason is not None:
            self.fact("skipped", reason, arm.name)
            return
        outcome, note = self._run(arm)
        if outcome is not None and outcome.extrapolated:
            # The first run also compiles, so it may have solved fewer problems in its time limit than timed runs do.
            outcome, note = self._run(arm)
        passed, residual = False, None
        if outcome is not None:
            passed, residual, note = gate.judge(
                self.work.problems, outcome, self.unit.tol, arm.slack, self.work.place.device
            )
            note = "; ".join(text for text in (note, outcome.note) if text)
        self._judged(arm, outcome, passed, residual, note)
        if outcome is None or not passed:
            return
        self.first[arm.name] = arm, outcome
        for name, value in outcome.facts.items():
            self.fact(name, value, arm.name)
        if outcome.ledger is not None and outcome.ran is not None:
            self.fact("slot_identity", theory.slot_identity(outcome.ledger, outcome.ran), arm.name)

    def _judged(self, arm: Arm, outcome: Outcome | None, passed: bool, residual: float | None, note: str) -> None:
        self.write(
            "gate",
            arm.name,
            passed=passed,
            tol=self.unit.tol,
            residual=residual,
            problems=len(self.work.problems),
            audited=0 if outcome is None else len(outcome.answers),
            depths=None if outcome is None or not outcome.depths else list(outcome.depths),
            arithmetic="" if outcome is None else outcome.arithmetic,
            fingerprint=self.print,
            note=note,
        )
        if not passed:
            self.void[arm.name] = note

    def _run(self, arm: Arm) -> tuple[Outcome | None, str]:
        """Run an arm; one that fails harms no other."""
        try:
            return arm.run(self.work), ""
        except Exception as error:  # noqa: BLE001  whatever it is, the record says so and the other arms go on
            return None, f"{type(error).__name__}: {error}"

    def warm(self, arm: Arm) -> None:
        """A run that is not timed."""
        outcome, note = self._run(arm)
        self._agrees(arm, outcome, note)

    def _agrees(self, arm: Arm, outcome: Outcome | None, note: str) -> bool:
        """Whether a later run is the one that passed the gate; if not the arm is void."""
        if outcome is None:
            self._judged(arm, None, False, None, f"a later run failed: {note}")
            return False
        passed = self.first[arm.name][1]
        # A run that had no time for all problems may have run others than the first; those of both must agree.
        both = [(a, b) for a, b in zip(outcome.depths, passed.depths, strict=False) if a is not None and b is not None]
        for what, same in (
            ("depths", len(outcome.depths) == len(passed.depths) and all(a == b for a, b in both)),
            ("arithmetic", outcome.arithmetic == passed.arithmetic),
        ):
            if not same:
                self._judged(arm, outcome, False, None, f"a later run had other {what} than the one that passed")
                return False
        return True

    def time(self, arm: Arm, repeat: int, position: int) -> None:
        """One timed run."""
        if arm.name in self.void:
            return
        self.meter.begin()
        outcome, note = self._run(arm)
        used = self.meter.end()
        if not self._agrees(arm, outcome, note) or outcome is None:
            return
        seconds, reconstructed = endpoints(outcome)
        if seconds["e1"] is not None:
            self.laps.setdefault(arm.name, []).append(seconds["e1"])
        self.write(
            "timing",
            arm.name,
            repeat=repeat,
            position=position,
            seconds=seconds,
            reconstructed=reconstructed,
            **_account(outcome),
            joules=used.joules if not outcome.extrapolated else None,
            peak_bytes=used.peak_bytes,
            extrapolated=outcome.extrapolated,
            note=outcome.note,
        )

    def theory(self) -> None:
        """What theory says beside what was measured."""
        ran = {
            arm.name: (outcome, self.laps[arm.name])
            for arm, outcome in self.first.values()
            if arm.name in self.laps and arm.name not in self.void
        }
        for name, value, arm in theory.beside(self.work, ran):
            self.fact(name, value, arm)

    def done(self, seconds: float) -> float:
        """Close the attempt."""
        self.write("done", None, seconds=seconds)
        return seconds


def _fingerprint(work: Work) -> str:
    """A hash of the problems as they were given to the arms."""
    whole = hashlib.sha256()
    for problem in work.problems:
        whole.update(fingerprint(problem))
    return whole.hexdigest()


def endpoints(outcome: Outcome) -> tuple[dict[str, float | None], bool]:
    """Seconds to every endpoint, and whether E1 is E2 less the consumer's time in the same run."""
    seconds = {"e1": outcome.e1, "e2": outcome.e2, "e3": outcome.e3}
    reconstructed = outcome.e1 is None and outcome.e2 is not None and outcome.consumer is not None
    if reconstructed:
        seconds["e1"] = outcome.e2 - outcome.consumer  # type: ignore[operator]
    return seconds, reconstructed


def _account(outcome: Outcome) -> Record:
    """Slots and widths, where our solver ran."""
    ledger = outcome.ledger
    if ledger is None:
        return {"slots": None, "active_slots": None, "padding": None, "widths": None}
    return {
        "slots": ledger.slots,
        "active_slots": sum(ledger.depths.values()),
        "padding": ledger.padding,
        "widths": list(_trace(ledger.widths)),
    }


def _trace(widths: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
    """[cycle, width] where the width changes, and the end with width 0."""
    cycle = 0
    for width, cycles in widths:
        yield [cycle, width]
        cycle += cycles
    yield [cycle, 0]
