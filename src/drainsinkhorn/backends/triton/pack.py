"""The pack of the Triton backend: lanes on one device, with the methods of `core.protocol.Pack`."""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
# Kernels are called through Triton, arrays through torch, which is loaded when this backend is.

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from drainsinkhorn.backends.certificate import certificates
from drainsinkhorn.backends.support import Couple
from drainsinkhorn.backends.triton.buffers import Buffers
from drainsinkhorn.backends.triton.cycles import POLL, Cycles
from drainsinkhorn.backends.triton.emission import emit_lanes
from drainsinkhorn.backends.triton.kernels import columns as c
from drainsinkhorn.backends.triton.kernels.columns import Findings, Report
from drainsinkhorn.backends.triton.lanes import Lane, LaneSet, LaneTable
from drainsinkhorn.backends.triton.launcher import SAMPLES, Launcher
from drainsinkhorn.backends.triton.launching import Download, Launch, on, upload
from drainsinkhorn.backends.triton.loading import LoadedGroup, load_group, loaded_together
from drainsinkhorn.backends.triton.precision import Arithmetic, PrecisionPolicy
from drainsinkhorn.backends.triton.representation import Representation
from drainsinkhorn.backends.triton.resident import ResidentCycles, ResidentLauncher
from drainsinkhorn.core.protocol import Emission, Progress, Spent
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.result import Residuals
from drainsinkhorn.numerics.memory import memory_errors

DTYPE_CODES: dict[str | None, int] = {"float16": c.FLOAT16.value, "bfloat16": c.BFLOAT16.value}
"""Codes of the 16-bit dtypes in kernels."""


class _Screen(NamedTuple):
    """A row screen, prepared for as long as the same lanes are screened.

    Attributes:
        key: The lanes, and the parity of the lane table, which says which of its two states is current.
        launches: The launches.
        scratch: A copy of the vectors that legs read and write, so that a screen does not change the state.
        numbers: Results on the device: the columns of `Findings`, then those of `Report`, of all lanes.
        download: Copies `numbers` to the host.
    """

    key: tuple[Any, ...]
    launches: list[Launch]
    scratch: Any
    numbers: Any
    download: Download


class TritonPack:
    """Lanes of one representation on one device. A narrower pack has fewer rows of the lane table in its launches.

    Args:
        instances: The problems.
        representation: How their scores are computed.
        device: A torch device.
        policy: Decides the arithmetic of each lane.
        couple: Makes plans of finished problems, from which potentials of points without weight are computed; None:
            NumPy computes these.
    """

    def __init__(
        self, instances: Sequence[Instance[Any]], representation: Representation, device: Any, *,
        policy: PrecisionPolicy, couple: Couple | None = None,
    ) -> None:  # fmt: skip
        self._policy, self._couple, self._device = policy, couple, device
        self._table, self._buffers = LaneTable(device), Buffers(device)
        self._launcher = Launcher(representation, self._table, self._buffers, device, momentum=policy.momentum)
        self._resident: ResidentLauncher | None = None
        if representation.one_program:
            self._resident = ResidentLauncher(representation, self._table, self._buffers, momentum=policy.momentum)
        self._lanes: list[Lane] = []
        self._cycles = self._cycles_of(LaneSet([], None))
        self._slots = self._legs = 0
        self._screen: _Screen | None = None
        # States as they will be emitted, and the lanes whose states have not changed since they were rounded.
        self._emitted: Any = None
        self._rounded: set[Lane] = set()
        self.repack([], instances)

    @property
    def width(self) -> int:
        """The number of lanes."""
        return len(self._lanes)

    @property
    def spent(self) -> Spent:
        """Slots and legs so far."""
        return Spent(self._slots, self._legs)

    @memory_errors()
    def advance(self, cycles: int, stops: Sequence[float], *, lockstep: bool = False) -> Progress:
        """Launch all cycles without waiting for any: lanes that have passed their stop are held on the device."""
        self._table.set_stops(self._lanes, stops)
        # If no lane may be held, none ends a call for the others, and legs need not test that.
        lockstep = lockstep and max(stops) > -math.inf
        self._table.release(may_halt=lockstep)
        self._rounded = set()
        with on(self._device):
            progress = self._cycles.run(cycles, stops, lockstep=lockstep)
        ran = [depth - lane.depth for lane, depth in zip(self._lanes, progress.depths, strict=True)]
        for lane, depth in zip(self._lanes, progress.depths, strict=True):
            lane.depth = depth
        frozen = sum(lane.frozen for lane in self._lanes)
        executed = sum(ran) + frozen * max(ran, default=0)
        self._slots += executed
        self._legs += 2 * executed
        return progress

    @memory_errors()
    def screen(self, lanes: Sequence[int]) -> list[float]:
        """Return the row residuals of the states in a pass of its own, bands included."""
        if not lanes:
            return []
        self._legs += len(lanes)
        key = (tuple(lanes), self._table.parity)
        if self._screen is None or self._screen.key != key:
            self._screen = self._prepare_screen(key, self._table.select([self._lanes[i] for i in lanes]))
        screen = self._screen
        screen.scratch.copy_(self._buffers["vectors32"])
        self._launcher.run(*screen.launches)
        numbers, checked = screen.download.again(screen.numbers).read(), c.FINDINGS.value * len(lanes)
        found = Findings(*numbers[:checked].reshape(-1, c.FINDINGS.value).T.tolist())
        report = Report(*numbers[checked:].reshape(-1, c.REPORT.value).T.tolist())
        return [
            math.nan if math.isnan(stale) else row + band
            for row, stale, band in zip(found.row, report.stale, report.band, strict=True)
        ]

    @memory_errors()
    def verify(self, lanes: Sequence[int], *, exact: bool = False) -> Residuals:
        """Return both residuals of the states as they will be emitted; sampled rows and columns are checked in float64.

        With `exact` the states are certified from the caller's own arrays.
        """
        if not lanes:
            return Residuals([], [], [])
        self._legs += 2 * len(lanes)
        if exact:
            # Rounding the states records which of them are not finite.
            emitted = self.emit(lanes)
            return certificates(emitted, [self._lanes[i].broken for i in lanes])
        # The screen gives its memory to verify, so that both together need no more than one.
        self._screen = None
        chosen, launcher = self._table.select([self._lanes[i] for i in lanes]), self._launcher
        potentials, found = self._round_states(chosen)
        # The longest launch comes first: it runs while the others are prepared.
        samples = launcher.sample(chosen, c.BOTH.value, potentials)
        scratch, errors = torch.empty_like(self._buffers["vectors32"]), torch.empty_like(potentials)
        launcher.run(launcher.split(chosen, potentials, scratch))
        for part in self._by_precision(chosen):
            for side in (0, 1):
                if part.lanes[0].is_precise:
                    launcher.run(*launcher.float64_legs(part, side, c.CHECKED, potentials, scratch, errors))
                else:
                    launcher.run(*launcher.legs(part, side, c.CHECKED, scratch, errors, potentials))
        launcher.run(launcher.check(chosen, errors, scratch, samples, found))
        columns = self._record(chosen.lanes, found)
        row, col, band = columns.row, columns.col, self._policy.bands(chosen.lanes, columns)
        for place, is_broken in enumerate(columns.broken):
            if is_broken:
                row[place] = col[place] = band[place] = math.nan
        return Residuals(row, col, band)

    @memory_errors()
    def emit(self, lanes: Sequence[int]) -> Emission:
        """Return copies of the states as they were verified."""
        chosen = [self._lanes[i] for i in lanes]
        if not self._rounded.issuperset(chosen):
            # This decides the dtype of each lane.
            self._record(chosen, self._round_states(self._table.select(chosen))[1])
        return emit_lanes(chosen, self._emitted, self._couple)

    @memory_errors()
    def freeze(self, lanes: Sequence[int]) -> None:
        """Never change these lanes again."""
        for i in lanes:
            self._lanes[i].frozen = True
        self._table.state[self._table.select([self._lanes[i] for i in lanes]).rows, c.FROZEN.value] = 1.0

    @memory_errors()
    def repack(self, keep: Sequence[int], admit: Sequence[Instance[Any]] = ()) -> None:
        """Keep these lanes, in this order, and append the admitted; kept lanes are not moved on the device."""
        kept, least_weights = [self._lanes[i] for i in keep], dict[int, float]()
        admitted = [Lane(instance, least_weights) for instance in admit]
        left, marks = set(self._lanes) - set(kept), self._buffers.mark()
        self._table.forget_rows()
        try:
            self._open(admitted)
            self._set_lanes(kept + admitted)
        except (MemoryError, RuntimeError):
            self._buffers.restore(marks)
            self._table.remove(admitted)
            # Buffers may have been replaced, so launches are prepared anew.
            self._cycles.forget_launches()
            self._screen = None
            raise
        self._table.remove(list(left))
        for lane in left:
            lane.group.lanes -= 1
            if lane.group.lanes == 0:
                for pieces in (lane.group.pieces, *lane.group.more_pieces):
                    self._buffers.give(pieces)
        self._legs += len(admitted)

    def compile(self) -> None:
        """Run every kernel that `advance`, `verify` and `screen` launch, so that all are compiled."""
        self._cycles.warm_up(lambda: self.advance(POLL + 2, [-1.0] * self.width))
        self.advance(1, [-1.0] * self.width, lockstep=True)
        lanes = range(self.width)
        self.verify(lanes)
        self.verify(lanes, exact=True)
        self.screen(lanes)

    def run_leg(self, side: int) -> None:
        """Measure one side of all lanes in float32, and apply it if it is that of columns, for measurements of time."""
        lanes = self._table.select(self._lanes)
        self._launcher.run(*self._launcher.legs(lanes, side, c.APPLIED if side else c.MEASURED))

    def _set_lanes(self, lanes: list[Lane]) -> None:
        """Make these the lanes of the pack. A MemoryError leaves the pack unchanged."""
        cycles = self._cycles_of(self._table.select(lanes))
        self._table.fit_limits()
        self._lanes, self._cycles, self._screen = lanes, cycles, None

    def _cycles_of(self, lanes: LaneSet) -> Cycles | ResidentCycles:
        if self._resident is None:
            return Cycles(self._launcher, self._table, lanes)
        return ResidentCycles(self._launcher, self._resident, self._table, lanes)

    def _open(self, lanes: list[Lane]) -> None:
        """Put new lanes at depth zero and measure their first f-leg."""
        if not lanes:
            return
        groups: list[tuple[list[Lane], LoadedGroup]] = []
        representation = self._launcher.representation
        for alike in loaded_together(lanes):
            group = load_group([lane.inner for lane in alike], representation, self._buffers, self._device)
            programs = {size: representation.programs(size) for size in set(group.sizes)}
            for row, (lane, size, has_room) in enumerate(zip(alike, group.sizes, group.has_room, strict=True)):
                lane.group, lane.row, lane.size, lane.programs = group, row, size, programs[size]
                lane.arithmetic = self._policy.first_arithmetic(lane.least_weight, has_room)
            groups.append((alike, group))
        opened = [lane for alike, _ in groups for lane in alike]
        self._table.add(opened, np.concatenate([group.fields for _, group in groups]), self._first_numbers(opened))
        self._measure_first(lanes)

    def _first_numbers(self, lanes: Sequence[Lane]) -> Any:
        """States of lanes at depth zero, (lanes, NUMBERS)."""
        numbers = np.zeros((len(lanes), c.NUMBERS.value))
        numbers[:, c.BEST.value] = math.inf
        switches = [self._policy.switch_residual(lane.instance.tol, lane.high_part_error) for lane in lanes]
        numbers[:, c.SWITCH.value] = switches
        numbers[:, c.UNIT.value] = [lane.unit for lane in lanes]
        numbers[:, c.BUDGET.value] = [lane.budget for lane in lanes]
        numbers[:, c.CALLER_DTYPE.value] = [DTYPE_CODES.get(lane.own, 0) for lane in lanes]
        return numbers

    def _measure_first(self, lanes: list[Lane]) -> None:
        """Measure the first f-leg of new lanes, in the fastest arithmetic that is accurate enough for each."""
        launcher, table = self._launcher, self._table
        vectors64, vectors32 = self._buffers["vectors64"], self._buffers["vectors32"]
        table.release()
        soft = [lane for lane in lanes if lane.is_soft]
        if soft:
            launcher.run(launcher.open_soft(table.select(soft)))
        for lane in lanes:
            while not lane.is_float64 and not self._policy.may_suffice(lane.arithmetic, lane.instance.tol):
                lane.arithmetic = lane.arithmetic.next
        for arithmetic in (Arithmetic.AUGMENTED, Arithmetic.FLOAT32):
            tried = [lane for lane in lanes if lane.arithmetic is arithmetic]
            if not tried:
                continue
            chosen, places = table.select(tried), launcher.representation.places
            is_augmented = arithmetic is Arithmetic.AUGMENTED
            if places and not is_augmented:
                table.fields[chosen.rows, c.AUGMENTED.value] = 0
            if self._resident is None:
                launcher.run(launcher.split(chosen, vectors64, vectors32, places=places, state=True))
                launcher.run(*launcher.legs(chosen, 0, c.MEASURED))
            else:
                launcher.run(*self._resident.measure(chosen, vectors64, vectors32, vectors64))
            self._climb(chosen, arithmetic, inside=is_augmented)
        self._measure_triples(lanes)
        vectors64, vectors32 = self._buffers["vectors64"], self._buffers["vectors32"]
        in_float64 = [lane for lane in lanes if lane.is_float64]
        if in_float64:
            chosen = table.select(in_float64)
            table.fields[chosen.rows, c.FLOAT64.value] = 1
            bands = upload([lane.band for lane in in_float64], torch.float64, self._device)
            table.state[chosen.rows, c.BAND.value] = bands
            if self._resident is None:
                launcher.run(launcher.split(chosen, vectors64, vectors32))
                launcher.run(*launcher.float64_legs(chosen, 0, c.MEASURED))
            else:
                launcher.run(*self._resident.measure(chosen, vectors64, vectors32, vectors64))

    def _measure_triples(self, lanes: list[Lane]) -> None:
        """Measure the first f-leg of new lanes that float32 is not accurate enough for, from points in three parts."""
        launcher, policy = self._launcher, self._policy
        for lane in lanes:
            if lane.arithmetic.has_triples and not policy.has_triples(lane.inner, lane.group.extents[:, lane.row]):
                lane.arithmetic = Arithmetic.FLOAT64
        launcher.triples.take_memory([lane for lane in lanes if lane.arithmetic.has_triples])
        for arithmetic in (Arithmetic.TRIPLE, Arithmetic.COMPENSATED):
            tried = [lane for lane in lanes if lane.arithmetic is arithmetic]
            if not tried:
                continue
            chosen = self._table.select(tried)
            launcher.run(*launcher.triples.open(chosen, arithmetic))
            launcher.run(launcher.split(chosen, self._buffers["vectors64"], self._buffers["vectors32"]))
            launcher.run(*launcher.float64_legs(chosen, 0, c.MEASURED))
            self._climb(chosen, arithmetic)

    def _climb(self, lanes: LaneSet, arithmetic: Arithmetic, *, inside: bool = False) -> None:
        """Move lanes for which the arithmetic of their first leg is not accurate enough to the next one."""
        errors = self._first_errors(lanes, inside=inside)
        enough = self._policy.accurate_enough(errors, [lane.instance.tol for lane in lanes.lanes], arithmetic)
        for lane, is_enough in zip(lanes.lanes, enough.tolist(), strict=True):
            lane.arithmetic = arithmetic if is_enough else arithmetic.next

    def _first_errors(self, lanes: LaneSet, *, inside: bool) -> Any:
        """Mean relative errors of sampled rows of the states after the first f-leg, where ratios are near one.

        The device makes bands of them.
        """
        launcher, vectors64, vectors32 = self._launcher, self._buffers["vectors64"], self._buffers["vectors32"]
        potentials, scratch = torch.empty_like(vectors64), torch.empty_like(vectors32)
        errors = torch.empty_like(vectors64)
        launcher.run(launcher.split(lanes, vectors64, scratch, state=True, after=(vectors32, potentials)))
        samples = launcher.sample(lanes, 0, potentials)
        if self._resident is None:
            # Places of columns alone are read, and their potentials have not changed.
            legs = launcher.legs(lanes, 0, c.CHECKED, scratch, errors, inside=inside)
            if lanes.lanes[0].is_precise:
                legs = launcher.float64_legs(lanes, 0, c.CHECKED, potentials, scratch, errors)
            launcher.run(*legs)
        else:
            launcher.run(*self._resident.measure(lanes, potentials, scratch, errors))
        found = launcher.findings(lanes)
        launcher.run(launcher.check(lanes, errors, scratch, samples, found, opens=True))
        return found.cpu()[:, c.FOUND_ERROR.value].numpy()

    def _round_states(self, lanes: LaneSet) -> tuple[Any, Any]:
        """Round the states of lanes as they will be emitted; return their potentials in bits, and the findings."""
        found = self._launcher.findings(lanes)
        vectors64 = self._buffers["vectors64"]
        # Checks of soft lanes also read weights and prices beside the potentials.
        potentials = vectors64.clone() if lanes.any_soft else torch.empty_like(vectors64)
        self._emitted = torch.empty_like(vectors64)
        self._launcher.run(self._launcher.round_states(lanes, potentials, self._emitted, found))
        self._rounded = set(lanes.lanes)
        return potentials, found

    def _record(self, lanes: Sequence[Lane], found: Any) -> Findings:
        """Read back the `Findings` of lanes; record in what dtype they are emitted and whether states are finite."""
        columns = Findings(*found.cpu().numpy().T.tolist())
        for lane, emitted, broken in zip(lanes, columns.emitted, columns.broken, strict=True):
            lane.dtype = {c.EMITS_SINGLE.value: "float32", c.EMITS_HALF.value: lane.own}.get(int(emitted), "float64")
            lane.broken = broken > 0
        return columns

    def _by_precision(self, lanes: LaneSet) -> list[LaneSet]:
        """Parts of a set in float32 and beyond; the set itself if one of them is empty."""
        parts = [[lane for lane in lanes.lanes if lane.is_precise is flag] for flag in (False, True)]
        return [self._table.select(part) for part in parts] if all(parts) else [lanes]

    def _prepare_screen(self, key: tuple[Any, ...], lanes: LaneSet) -> _Screen:
        launcher, count, findings = self._launcher, len(lanes), c.FINDINGS.value * len(lanes)
        vectors64, scratch = self._buffers["vectors64"], torch.empty_like(self._buffers["vectors32"])
        errors = torch.empty_like(vectors64)
        if self._resident is None:
            launches = self._checked_rows(lanes, scratch, errors)
        else:
            launches = self._resident.measure(lanes, vectors64, scratch, errors)
        numbers = torch.empty(findings + c.REPORT.value * count, dtype=torch.float64, device=self._device)
        # No row is sampled, and errors of zero samples are zero.
        samples = torch.zeros((2, count, SAMPLES), dtype=torch.float64, device=self._device)
        launches.append(launcher.check(lanes, errors, scratch, samples, numbers[:findings]))
        launches.append(launcher.report(lanes, numbers[findings:]))
        return _Screen(key, launches, scratch, numbers, Download(numbers))

    def _checked_rows(self, lanes: LaneSet, scratch: Any, errors: Any) -> list[Launch]:
        """Measure the rows of the state, whatever the arithmetic of lanes, without changing it."""
        launcher, vectors64 = self._launcher, self._buffers["vectors64"]
        launches = [launcher.split(lanes, vectors64, scratch)] if launcher.representation.packed else []
        launches += launcher.legs(lanes, 0, c.CHECKED, scratch, errors)
        precise = [lane for lane in lanes.lanes if lane.is_precise]
        if precise:
            part = self._table.select(precise)
            launches += launcher.float64_legs(part, 0, c.CHECKED, vectors=scratch, errors=errors)
        return launches
