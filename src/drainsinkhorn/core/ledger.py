"""The account of a run: slots and legs spent, slots removed, the survival curve and the width trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from drainsinkhorn.core.events import (
    Advanced,
    Audited,
    Chosen,
    Event,
    Finished,
    Frozen,
    Lost,
    Lowered,
    Narrowed,
    Opened,
    Repacked,
    Reported,
    Rescuing,
    Resumed,
    Retired,
)
from drainsinkhorn.model.brief import call, count_of, html_curve, html_table


def survival(depths: Sequence[int]) -> list[int]:
    """`A_k = #{t : depth_t >= k}` for k = 1 .. max depth: lanes that cycle k really needs."""
    curve = [0] * max(depths, default=0)
    for depth in depths:
        if depth > 0:
            curve[depth - 1] += 1
    for k in range(len(curve) - 2, -1, -1):
        curve[k] += curve[k + 1]
    return curve


COUNTED = (
    "slots",
    "legs",
    "audits",
    "screened",
    "verified",
    "rejected",
    "shadowed",
    "shadow_ready",
    "repacks",
    "refills",
    "frozen",
    "narrowed",
)
"""Fields of a ledger that are sums; `Ledger.add` adds those of another ledger."""

_Admitted = tuple[int, Callable[[int], int], dict[int, None]]
"""Capacity of a pack, the physical width of a number of lanes, and tickets in the order of admission as keys."""


@dataclass
class Ledger:
    """An observer that adds up what a run spent.

    Attributes:
        slots: Lanes times cycles that the kernels executed.
        legs: Reductions executed: two per cycle, one to measure a lane's first leg, two per verify.
        audits: Number of audits.
        screened: Lanes screened, summed over audits; a lane counts once in each.
        verified: Lanes verified.
        rejected: Lanes that were verified and did not pass.
        shadowed: Lanes verified although their screen did not pass (`Audit.shadow`).
        shadow_ready: Shadowed lanes that would have passed.
        repacks: Number of repacks.
        refills: Problems admitted by repacks.
        frozen: Lanes frozen.
        narrowed: Times that memory ran out.
        depths: Depth of every problem that ran, by ticket, in the order in which they retired.
        widths: Runs of (width, cycles), in the order of execution.
        executed: Slots of each run of `widths`: width times cycles, less the cycles for which lanes were held.
        choices: Choices that were left to "auto".
        seconds: Wall time in seconds of each method of the backend, by its name.
        rescue: The account of the rescue run, kept apart.
    """

    slots: int = 0
    legs: int = 0
    audits: int = 0
    screened: int = 0
    verified: int = 0
    rejected: int = 0
    shadowed: int = 0
    shadow_ready: int = 0
    repacks: int = 0
    refills: int = 0
    frozen: int = 0
    narrowed: int = 0
    depths: dict[int, int] = field(default_factory=dict[int, int])
    widths: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    executed: list[int] = field(default_factory=list[int])
    choices: list[Chosen] = field(default_factory=list[Chosen])
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    rescue: Ledger | None = None
    _queues: list[_Admitted] = field(default_factory=list[_Admitted], repr=False)

    def __call__(self, event: Event) -> None:
        """Add an event to the account."""
        match event:
            case Retired(_, outcomes):
                self.depths.update(zip(outcomes.tickets, outcomes.depths, strict=True))
            case Opened(tickets, capacity, width_for, spent):
                self.legs += spent.legs
                self._queues.append((capacity, width_for, dict.fromkeys(tickets)))
            case Advanced(cycles, width, _, spent):
                self.slots += spent.slots
                self.legs += spent.legs
                slots = spent.slots
                if self.widths and self.widths[-1][0] == width:
                    cycles += self.widths.pop()[1]
                    slots += self.executed.pop()
                self.widths.append((width, cycles))
                self.executed.append(slots)
            case Audited(counts, spent):
                self.audits += 1
                self.legs += spent.legs
                self.screened += counts.screened
                self.verified += counts.verified
                self.rejected += counts.rejected
                self.shadowed += counts.shadowed
                self.shadow_ready += counts.ready
            case Repacked(_, admitted, _, spent):
                self.legs += spent.legs
                self.repacks += 1
                self.refills += len(admitted)
                self._queues[-1][2].update(dict.fromkeys(admitted))
            case Frozen(lanes):
                self.frozen += lanes
            case Narrowed(_, again):
                self.narrowed += 1
                self._withdraw(again)
            case Lowered(tickets):
                self._withdraw(tickets)
            case Chosen():
                self.choices.append(event)
            case Rescuing() | Finished() | Resumed() | Reported() | Lost():
                pass

    def _withdraw(self, tickets: Sequence[int]) -> None:
        """Take back the admission of problems that are admitted once more; their slots and legs remain counted."""
        if self._queues:
            for ticket in tickets:
                self._queues[-1][2].pop(ticket, None)

    def account(self) -> dict[str, Any]:
        """Return this ledger as plain numbers, for `add` in another process."""
        return {
            **{name: getattr(self, name) for name in COUNTED},
            "widths": self.widths,
            "executed": self.executed,
            "seconds": self.seconds,
            "queues": [(capacity, list(tickets)) for capacity, _, tickets in self._queues],
            "choices": [(choice.what, choice.picked, choice.reason) for choice in self.choices],
            "rescue": None if self.rescue is None else self.rescue.account(),
        }

    def add(self, account: dict[str, Any], width_for: Callable[[int], int]) -> None:
        """Add the account of a worker, whose ticket t is `account["tickets"][t]` here."""
        tickets: Sequence[int] = account["tickets"]
        for name in COUNTED:
            setattr(self, name, getattr(self, name) + account[name])
        self.widths += [(width, cycles) for width, cycles in account["widths"]]
        self.executed += account["executed"]
        for verb, seconds in account["seconds"].items():
            self.seconds[verb] = self.seconds.get(verb, 0.0) + seconds
        for capacity, local in account["queues"]:
            self._queues.append((capacity, width_for, {tickets[t]: None for t in local}))
        self.choices += [choice for row in account["choices"] if (choice := Chosen(*row)) not in self.choices]
        if account["rescue"] is not None:
            self.rescue = self.rescue or Ledger()
            self.rescue.add({**account["rescue"], "tickets": tickets}, width_for)

    def save(self) -> dict[str, Any]:
        """Return all of this ledger as plain numbers and texts, for `restore`."""
        lanes = [range(min(capacity, len(tickets)) + 1) for capacity, _, tickets in self._queues]
        return {
            **self.account(),
            "depths": list(self.depths.items()),
            "physical": [[q[1](k) for k in counts] for q, counts in zip(self._queues, lanes, strict=True)],
            "rescue": None if self.rescue is None else self.rescue.save(),
        }

    @classmethod
    def restore(cls, saved: dict[str, Any]) -> Ledger:
        """Return the ledger that `save` described."""
        ledger = cls()
        for name in COUNTED:
            setattr(ledger, name, int(saved[name]))
        ledger.depths = {int(ticket): int(depth) for ticket, depth in saved["depths"]}
        ledger.widths = [(int(width), int(cycles)) for width, cycles in saved["widths"]]
        ledger.executed = list(map(int, saved["executed"]))
        ledger.choices = [Chosen(*map(str, choice)) for choice in saved["choices"]]
        ledger.seconds = {str(verb): float(seconds) for verb, seconds in saved["seconds"].items()}
        ledger.rescue = None if saved["rescue"] is None else cls.restore(saved["rescue"])
        for (capacity, tickets), widths in zip(saved["queues"], saved["physical"], strict=True):
            lanes = dict.fromkeys(map(int, tickets))
            ledger._queues.append((int(capacity), list(map(int, widths)).__getitem__, lanes))
        return ledger

    @property
    def static_slots(self) -> int:
        """Slots of static batches of the same width, with the problems in the order in which they were admitted."""
        return sum(width * cycles for width, cycles in self.static_widths)

    @property
    def static_widths(self) -> list[tuple[int, int]]:
        """The width trace of those static batches: runs of (width, cycles)."""
        runs: list[tuple[int, int]] = []
        for capacity, width_for, admitted in self._queues:
            tickets = list(admitted)
            for start in range(0, len(tickets), capacity):
                window = [self.depths[t] for t in tickets[start : start + capacity] if t in self.depths]
                if window:
                    runs.append((width_for(len(window)), max(window)))
        return runs

    @property
    def removed_slots(self) -> int:
        """Slots that static batches would have spent and this run did not."""
        return self.static_slots - self.slots

    @property
    def padding(self) -> float:
        """Static slots over needed slots (the sum of depths), minus one: the share that compaction can remove."""
        needed = sum(self.depths.values())
        return self.static_slots / needed - 1 if needed else 0.0

    @property
    def survival(self) -> list[int]:
        """The survival curve of all depths."""
        return survival(list(self.depths.values()))

    def __repr__(self) -> str:
        counts = {"slots": self.slots, "static": self.static_slots, "removed": self.removed_slots}
        rescued = None if self.rescue is None else self.rescue.slots
        return call("Ledger", count_of(len(self.depths), "problem"), **counts, audits=self.audits, rescue=rescued)

    def _repr_html_(self) -> str:
        share = f" ({self.removed_slots / self.static_slots:.0%})" if self.static_slots else ""
        rows: list[tuple[str, Any]] = [
            ("slots executed", self.slots),
            ("slots of static batches", self.static_slots),
            ("slots removed", f"{self.removed_slots:,}{share}"),
            ("slots needed (sum of depths)", sum(self.depths.values())),
            ("largest depth", max(self.depths.values(), default=0)),
            ("audits", self.audits),
            ("repacks, refills", f"{self.repacks:,}, {self.refills:,}"),
            ("seconds in the backend", sum(self.seconds.values())),
            *((f"chosen {choice.what}", f"{choice.picked} ({choice.reason})") for choice in self.choices),
        ]
        if self.rescue is not None:
            rows.append(("slots of the rescue", self.rescue.slots))
        curve = html_curve(self.survival, "problems still at work, by cycle")
        return html_table(f"Work of {count_of(len(self.depths), 'problem')}", (), rows) + curve
