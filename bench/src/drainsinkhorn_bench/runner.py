"""Runs a campaign: gate first, then arms in turns, every number to the raw file as it comes. Stops between units.

An attempt at a unit runs its gates, warm-ups and interleaved repeats, records what theory predicts, and writes a `done`
record. A unit whose attempt was interrupted is begun again from its gates, so that a pair never spans two attempts. A
run stops only between attempts.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from drainsinkhorn_bench import meters, records
from drainsinkhorn_bench.attempt import Attempt, Recorder
from drainsinkhorn_bench.manifest import freeze, manifest
from drainsinkhorn_bench.plan import Campaign, Place, Study, Unit, Work
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
    """Report nothing."""


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
        tell: Called with the progress of the run (`Tick`).
        only: Run only units and studies whose name begins so.
    """
    frozen = manifest(campaign, place)
    freeze(folder, frozen)
    before = records.read(folder)
    with closing(Log(folder / RAW)) as log:
        recorder = Recorder(campaign.name, meters.host(place.device), log)
        if recorder.host not in before.hosts:
            recorder.introduce()
        return _Runner(campaign, place, recorder, dict(before.closed), seconds, tell).run(only or "")


@dataclass(slots=True)
class _Runner:
    campaign: Campaign
    place: Place
    recorder: Recorder
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
        self.recorder.write([*found, {**base, "kind": "done", "seconds": seconds}])
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
        attempt = Attempt(unit, work, self.recorder, secrets.token_hex(6), meters.Meter(self.place.device))
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
