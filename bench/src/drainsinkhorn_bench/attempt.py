"""One attempt at a unit: gates, warm-ups, timed runs and theory, each written to the raw file as it comes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from drainsinkhorn.run.journal import fingerprint
from drainsinkhorn_bench import gate, meters, theory
from drainsinkhorn_bench.manifest import digest
from drainsinkhorn_bench.plan import Arm, Outcome, Unit, Work
from drainsinkhorn_bench.records import Log, Record


@dataclass(slots=True)
class Recorder:
    """Writes records of one machine."""

    campaign: str
    facts: dict[str, Any]
    log: Log
    host: str = field(init=False)

    def __post_init__(self) -> None:
        self.host = digest({name: value for name, value in self.facts.items() if name != meters.MEMORY})[:16]

    def introduce(self) -> None:
        """Write the facts of this machine."""
        self.write([{"kind": "host", "unit": None, "arm": None, "attempt": None, "facts": self.facts}])

    def write(self, rows: Sequence[Record]) -> None:
        """Append records."""
        self.log.append({**record, "campaign": self.campaign, "host": self.host} for record in rows)


@dataclass(slots=True)
class Attempt:
    """One attempt at a unit."""

    unit: Unit
    work: Work
    recorder: Recorder
    name: str
    meter: meters.Meter
    first: dict[str, tuple[Arm, Outcome]] = field(default_factory=dict[str, tuple[Arm, Outcome]])
    void: dict[str, str] = field(default_factory=dict[str, str])
    laps: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    fingerprint: str = ""

    def write(self, kind: str, arm: str | None, **values: Any) -> None:
        """Write a record of this attempt."""
        self.recorder.write([{"kind": kind, "unit": self.unit.name, "arm": arm, "attempt": self.name, **values}])

    def fact(self, name: str, value: Any, arm: str | None = None) -> None:
        """Write a fact, of an arm or of the unit."""
        self.write("fact", arm, name=name, value=value)

    def standing(self) -> list[Arm]:
        """Return the arms that passed the gate and have not become void since."""
        return [arm for name, (arm, _) in self.first.items() if name not in self.void]

    def gate(self, arm: Arm) -> None:
        """Run an arm once, audit its potentials, and record the verdict; if it passes, also record its facts."""
        self.fingerprint = self.fingerprint or _hash_problems(self.work)
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
        self._record_gate(arm, outcome, passed, residual, note)
        if outcome is None or not passed:
            return
        self.first[arm.name] = arm, outcome
        for name, value in outcome.facts.items():
            self.fact(name, value, arm.name)
        if outcome.ledger is not None and outcome.ran is not None:
            self.fact("slot_identity", theory.slot_identity(outcome.ledger, outcome.ran), arm.name)

    def _record_gate(self, arm: Arm, outcome: Outcome | None, passed: bool, residual: float | None, note: str) -> None:
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
            fingerprint=self.fingerprint,
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
            self._record_gate(arm, None, False, None, f"a later run failed: {note}")
            return False
        passed = self.first[arm.name][1]
        # A run that had no time for all problems may have run others than the first; those of both must agree.
        both = [(a, b) for a, b in zip(outcome.depths, passed.depths, strict=False) if a is not None and b is not None]
        for what, same in (
            ("depths", len(outcome.depths) == len(passed.depths) and all(a == b for a, b in both)),
            ("arithmetic", outcome.arithmetic == passed.arithmetic),
        ):
            if not same:
                self._record_gate(arm, outcome, False, None, f"a later run had other {what} than the one that passed")
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
        """Record what theory predicts for the arms that were timed."""
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


def _hash_problems(work: Work) -> str:
    """A hash of the problems as they were given to the arms."""
    total = hashlib.sha256()
    for problem in work.problems:
        total.update(fingerprint(problem))
    return total.hexdigest()


def endpoints(outcome: Outcome) -> tuple[dict[str, float | None], bool]:
    """Seconds to every endpoint, and whether E1 is E2 less the consumer's time in the same run."""
    seconds = {"e1": outcome.e1, "e2": outcome.e2, "e3": outcome.e3}
    reconstructed = outcome.e1 is None and outcome.e2 is not None and outcome.consumer is not None
    if reconstructed:
        seconds["e1"] = outcome.e2 - outcome.consumer  # type: ignore[operator]
    return seconds, reconstructed


def _account(outcome: Outcome) -> Record:
    """Return slots, padding and widths from the ledger; None for each if this library's solver did not run."""
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
