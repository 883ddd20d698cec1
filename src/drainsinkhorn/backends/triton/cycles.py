"""Cycles of a pack: which launches run for which lanes, and when the host polls whether lanes still move."""

# pyright: basic

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from drainsinkhorn.backends.triton.kernels import columns as c
from drainsinkhorn.backends.triton.kernels.columns import Report
from drainsinkhorn.backends.triton.lanes import Flags, LaneSet, LaneTable
from drainsinkhorn.backends.triton.launcher import WARPS64, Launcher
from drainsinkhorn.backends.triton.launching import Download, Launch, stream_of
from drainsinkhorn.backends.triton.precision import in_float64
from drainsinkhorn.backends.triton.tiles import MULTIPROCESSORS
from drainsinkhorn.core.protocol import Progress

POLL, POLL_SOON = 8, 2
"""Cycles between two polls; the second if a call soon ends and its legs are large. A poll is read at the next one."""
WAVES = 2.0
"""Programs of a leg, over those that the device runs at once, from which on idle cycles after the end of a call take
time."""
IDLE = 0.9
"""Waves of programs that held lanes may have before nothing is launched for them any more."""
SMALL = 2048
"""Most rows of a lane whose legs on the rows are fused: the last program of a lane applies the leg."""


def has_ended(report: Report, frozen: Flags, lockstep: bool) -> bool:
    """Return whether a call has ended: all lanes that are not frozen are held; in lockstep, one of them is."""
    held = report.held[~frozen] > 0
    return bool(held.any() if lockstep else held.all())


def will_pass(depth: float, stale: float, next_depth: float, next_stale: float, stop: float) -> bool:
    """Whether a residual that falls at the rate of the last two polls will have passed its stop two polls from now."""
    if not next_stale > stop:
        # With a stop of -inf no lane is held, even at NaN.
        return stop > -math.inf
    falls = next_depth > depth and 0 < next_stale < stale
    return falls and next_stale * (next_stale / stale) ** (2 * POLL / (next_depth - depth)) <= stop


def to_report(download: Download) -> Report:
    """Return a report that was read back; its memory is used again by later ones."""
    return Report(*download.read().T.copy())


def to_progress(report: Report) -> Progress:
    """Return depths and stale residuals of a report."""
    return Progress(report.depth.astype(np.int64).tolist(), report.stale.tolist())


class Cycles:
    """Runs cycles of the lanes of a pack.

    Attributes:
        fused: The kernel that measures the f-leg also applies it, except for the last f-leg of a call. Sums are the
            same to the bit as those of `apply`, since as many threads compute them.
        active: Lanes for which cycles are launched: all, or those that are not held.
    """

    def __init__(self, launcher: Launcher, table: LaneTable, lanes: LaneSet) -> None:
        self._launcher, self._table, self._lanes = launcher, table, lanes
        self._report = torch.empty((len(lanes), c.REPORT.value), dtype=torch.float64, device=launcher.device)
        self._polls: list[Download] = []
        self.active = lanes
        form = launcher.representation
        self.fused = lanes.largest(0)[0] <= SMALL and form.warps == WARPS64
        # Products are computed for held lanes, too, so a call has to end soon after its last lane is held.
        self._spacing = 1 if (in_float64(lanes) & lanes.column("in_blocks")).any() else POLL
        self._capacity = form.resident * MULTIPROCESSORS

    def run(self, cycles: int, stops: Sequence[float], *, lockstep: bool) -> Progress:
        """Launch cycles until all have run or all lanes are held, and return the progress of all lanes.

        The device is always some cycles behind, so that it never waits for the host; cycles launched for held lanes do
        nothing. In lockstep no lane is skipped: the first lane that passes its stop halts all.
        """
        stream, frozen = stream_of(self._launcher.device), self._lanes.column("frozen")
        may_be_held = max(stops) > -math.inf
        last: Download | None = None
        report: Report | None = None
        self.active, next_poll = self._lanes, self._spacing
        for cycle in range(0 if frozen.all() else cycles):
            for launch in self._cycle(first=cycle == 0, last=cycle == cycles - 1, lockstep=lockstep):
                launch(stream)
            if may_be_held and cycle + 1 == next_poll and cycle < cycles - 1:
                before, last = last, self._poll(stream, decided=self.fused and not lockstep)
                earlier, report = report, None if before is None else to_report(before)
                if report and has_ended(report, frozen, lockstep):
                    return to_progress(report)
                if report and not lockstep:
                    self._skip_held(report)
                is_soon = report and earlier and self._ends_soon(earlier, report, stops, frozen, lockstep)
                next_poll += min(POLL_SOON, self._spacing) if is_soon else self._spacing
        return to_progress(to_report(self._poll(stream)))

    def forget_launches(self) -> None:
        """Forget prepared launches, because buffers may have been replaced."""
        self._lanes.launches.clear()
        self.active = self._lanes

    def _waves(self, lanes: int) -> float:
        return lanes * self._lanes.largest(0)[1] / self._capacity

    def _ends_soon(
        self, earlier: Report, report: Report, stops: Sequence[float], frozen: Flags, lockstep: bool
    ) -> bool:
        """Whether to poll more often, because the call will end within two polls and cycles after its end take time.

        The end is predicted from the rate at which residuals fall. The cycles launched after it are idle; they take
        time if a leg has many programs (WAVES).
        """
        if self._waves(len(self.active)) < WAVES:
            return False
        columns = zip(earlier.depth, earlier.stale, report.depth, report.stale, stops, frozen, strict=True)
        passes = (will_pass(*numbers) for *numbers, is_frozen in columns if not is_frozen)
        return any(passes) if lockstep else all(passes)

    def _cycle(self, *, first: bool, last: bool, lockstep: bool) -> list[Launch]:
        """Return the launches of a cycle: apply the pending f-leg, run the g-leg, measure the next f-leg.

        If f-legs are fused, only the first cycle of a call launches `apply`.
        """
        fused = self.fused and not lockstep
        applies = first or not fused
        key = ("cycle", first, applies, last or not fused, lockstep, self._table.parity)
        if applies:
            self._table.flip()
        launches = self.active.launches
        if key not in launches:
            launches[key] = self._prepare(first, applies, lockstep, fused and not last)
        return launches[key]

    def _prepare(self, first: bool, applies: bool, lockstep: bool, fused: bool) -> list[Launch]:
        lanes, launcher, parity = self.active, self._launcher, self._table.parity
        apply = lanes.prepared(("apply", first, parity), lambda: launcher.apply(lanes, first=first)) if applies else []
        columns = lanes.prepared(("columns", parity), lambda: launcher.side(lanes, 1, c.APPLIED))
        rows = lanes.prepared(
            ("rows", parity, lockstep, fused),
            lambda: launcher.side(lanes, 0, c.MEASURED, lockstep=lockstep, fused=fused),
        )
        return [*apply, *columns, *rows]

    def _poll(self, stream: int, *, decided: bool = False) -> Download:
        """Start to read a report on all lanes as they are after all launches. `decided`: the last leg was fused."""
        key = ("report", self._table.parity, decided)
        for launch in self._lanes.prepared(
            key, lambda: [self._launcher.report(self._lanes, self._report, decided=decided)]
        ):
            launch(stream)
        # At most two are under way at a time.
        if len(self._polls) < 2:
            self._polls.append(Download(self._report))
        else:
            self._polls.append(self._polls.pop(0).again(self._report))
        return self._polls[-1]

    def _skip_held(self, report: Report) -> None:
        """Launch nothing more for held lanes, if their programs take the device as long as a wave of others.

        The report is some cycles old: since then `apply` has written both states of a held lane. Lanes whose legs are
        fused have one state, which nothing has changed.
        """
        held = self._lanes.places[(report.held > 0) & ~self._lanes.column("frozen")]
        moving = ~np.isin(self.active.places, held)
        if moving.any() and self._waves(int((~moving).sum())) >= IDLE:
            self.active = self.active.part(moving)
