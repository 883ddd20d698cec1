"""The width-cost curve of a backend, measured; and what it predicts.

    T = sum_k c(A_k) + H_screen + H_verify + H_repack + H_pack + H_outside

`c(A)` is the cost of one cycle at width A. `profile_width_cost` measures it and every overhead on the real backend
through the pack contract; `WidthCost.predict` runs depths through the real executor and adds up.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from drainsinkhorn.core.audit import Audit
from drainsinkhorn.core.options import MODES, Mode
from drainsinkhorn.core.protocol import Hints
from drainsinkhorn.model.errors import OptionsError
from drainsinkhorn.theory.replay import replay

AUDIT = Audit()
EVERY_FEW = Hints("", 1)
"""Hints of a backend that recommends no times of audits of its own."""


@dataclass(frozen=True, slots=True)
class Price:
    """Seconds that one step of a backend takes: `call + lanes * lane`."""

    call: float
    lane: float

    def __call__(self, lanes: int, calls: int = 1) -> float:
        """Seconds of so many calls with so many lanes in all."""
        return calls * self.call + lanes * self.lane


@dataclass(frozen=True, slots=True)
class Forecast:
    """A predicted run.

    Attributes:
        seconds: Wall time.
        parts: Seconds in each method of the backend, as in `ledger.seconds`, and "outside" for all else.
        slots: Slots spent.
        repacks: Number of repacks.
    """

    seconds: float
    parts: dict[str, float]
    slots: int
    repacks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WidthCost:
    """What a cycle costs at each width, and what everything around it costs. All in seconds.

    Attributes:
        backend: Name of the backend that was measured.
        shape: (n, m, d) of the problems it was measured with.
        widths: Widths that were measured, ascending.
        cycle: `c(A)` at each of them.
        call: Cost of a call of advance beside its cycles, at each of them.
        lockstep: Added cost of a cycle in lockstep (modes static and mask), at each of them.
        frozen: Further cost of a cycle in lockstep if some lanes are frozen, at each of them.
        cold: Added cost of the first cycles of new lanes: per pack that is opened, and per lane.
        screen: Cost of a row screen.
        verify: Cost of a verify.
        emit: Cost of an emit.
        pack: Cost of opening a pack, per lane with its first leg; the lanes of a refill cost as much each.
        repack: Cost of a repack, per lane kept.
        outside: Cost of a solve outside the methods of the backend: fixed, and per problem.
        audit: Cost of the executor's loop outside these methods: per audit, and per lane screened.
        hints: How often the backend recommends to audit lanes of this shape.
    """

    backend: str
    shape: tuple[int, int, int]
    widths: tuple[int, ...]
    cycle: tuple[float, ...]
    call: tuple[float, ...]
    lockstep: tuple[float, ...]
    frozen: tuple[float, ...]
    cold: Price
    screen: Price
    verify: Price
    emit: Price
    pack: Price
    repack: Price
    outside: Price
    audit: Price
    hints: Hints = EVERY_FEW

    def per_cycle(self, width: int) -> float:
        """`c(width)`: linear between measured widths, proportional beyond the last; zero at width zero."""
        return self._at(self.cycle, width) * max(1.0, width / self.widths[-1])

    def _at(self, values: Sequence[float], width: int) -> float:
        """Interpolate `values` linearly between measured widths: constant outside them, zero at width zero."""
        widths = self.widths
        if width <= 0:
            return 0.0
        at = bisect.bisect_left(widths, width)
        if at == len(widths):
            return values[-1]
        if widths[at] == width or at == 0:
            return values[at]
        share = (width - widths[at - 1]) / (widths[at] - widths[at - 1])
        return values[at - 1] + share * (values[at] - values[at - 1])

    def predict(self, depths: Sequence[int], mode: str | Mode, width: int, audit: Audit = AUDIT) -> Forecast:
        """The time of a solve of problems with these depths, in a mode, a width and an audit.

        An audit that names no times has those that the backend recommends.
        """
        chosen = MODES[mode] if isinstance(mode, str) else mode
        audit = replace(audit, every=chosen.spacing(audit, self.hints))
        meter = _Meter(self._advance)
        ledger = replay(depths, chosen, width, audit, meter)
        parts = {
            "advance": meter.advancing + self.cold(meter.lanes["pack"] + meter.refilled, meter.calls["pack"]),
            **{
                verb: getattr(self, verb)(meter.lanes[verb], meter.calls[verb])
                for verb in ("screen", "verify", "emit", "repack", "pack")
                if meter.calls[verb]
            },
            "outside": self.outside(len(depths)) + self.audit(ledger.screened, ledger.audits),
        }
        # A refill opens lanes inside a repack.
        if meter.refilled:
            parts["repack"] += meter.refilled * self.pack.lane
        return Forecast(sum(parts.values()), parts, ledger.slots, ledger.repacks)

    def _advance(self, widths: Sequence[tuple[int, int]], lanes: int, frozen: int, lockstep: bool) -> float:
        """Seconds of one call of advance; `widths` are runs of (lanes executed, cycles)."""
        extra = self._at(self.lockstep, lanes) if lockstep else 0.0
        extra += self._at(self.frozen, lanes) if frozen else 0.0
        return self._at(self.call, lanes) + sum(cycles * (self.per_cycle(width) + extra) for width, cycles in widths)

    def break_even(self, width: int | None = None, cycles: int = 8) -> float:
        """The smallest shrink that pays for its repack within `cycles` cycles, at a width; inf where none does.

        It is the smallest s with `cycles * [c(W) - c(W - s)] > H_repack(W - s)`, to be passed as `Mode(min_shrink=s)`.
        The default of `cycles` is the time between two audits, after which a further repack can follow.
        """
        width = self.widths[-1] if width is None else width
        if width < 1 or cycles < 1:
            raise OptionsError(f"width and cycles must be at least 1, got width={width}, cycles={cycles}")
        for shrink in range(1, width):
            gained = cycles * (self.per_cycle(width) - self.per_cycle(width - shrink))
            if gained > self.repack(width - shrink):
                return float(shrink)
        return math.inf

    def overhead(self, window: Sequence[int], audit: Audit = AUDIT) -> float:
        """`H` of a window of depths: predicted seconds outside `advance` in mode "compact" minus those in "static"."""
        width = len(window)
        drained, static = (self.predict(window, mode, width, audit).parts for mode in ("compact", "static"))
        return sum(drained.values()) - drained["advance"] - sum(static.values()) + static["advance"]


def _zeros() -> dict[str, int]:
    return dict.fromkeys(("pack", "screen", "verify", "emit", "repack"), 0)


@dataclass
class _Meter:
    """Counts calls and lanes of each method of a pack, and sums the predicted seconds of `advance`."""

    price: Callable[[Sequence[tuple[int, int]], int, int, bool], float]
    advancing: float = 0.0
    refilled: int = 0
    calls: dict[str, int] = field(default_factory=_zeros)
    lanes: dict[str, int] = field(default_factory=_zeros)

    def count(self, verb: str, lanes: int) -> None:
        self.calls[verb] += 1
        self.lanes[verb] += lanes

    def refill(self, lanes: int) -> None:
        self.refilled += lanes

    def advance(self, widths: Sequence[tuple[int, int]], lanes: int, frozen: int, *, lockstep: bool) -> None:
        self.advancing += self.price(widths, lanes, frozen, lockstep)
