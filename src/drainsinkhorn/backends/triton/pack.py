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
from drainsinkhorn.backends.support import Couple, restrict_all
from drainsinkhorn.backends.triton.buffers import Buffers
from drainsinkhorn.backends.triton.cycles import Cycles
from drainsinkhorn.backends.triton.emission import emit_lanes
from drainsinkhorn.backends.triton.kernels import columns as c
from drainsinkhorn.backends.triton.kernels.columns import Findings, Report
from drainsinkhorn.backends.triton.lanes import DTYPES, LaneSet, LaneTable, Places, distinct
from drainsinkhorn.backends.triton.launcher import SAMPLES, Launcher
from drainsinkhorn.backends.triton.launching import Download, Launch, on, upload
from drainsinkhorn.backends.triton.loading import load_group, loaded_together
from drainsinkhorn.backends.triton.precision import Arithmetic, PrecisionPolicy, beyond_float32, in_triples
from drainsinkhorn.backends.triton.records import describe
from drainsinkhorn.backends.triton.representation import Representation
from drainsinkhorn.backends.triton.resident import ResidentCycles, ResidentLauncher
from drainsinkhorn.core.protocol import Emission, Progress, Spent
from drainsinkhorn.model.errors import ContractError
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.instances import join, take
from drainsinkhorn.model.result import Residuals
from drainsinkhorn.numerics.memory import memory_errors

FORMS = ("distances", "matrix")
"""Forms of costs for which there are kernels."""
DTYPE_CODES = np.array(
    [{"float16": c.FLOAT16.value, "bfloat16": c.BFLOAT16.value}.get(name, 0) for name in DTYPES] + [0]
)
"""Codes of the 16-bit dtypes in kernels, by their places in DTYPES; the last is that of other dtypes."""


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
        # Problems of the lanes, by number, and which of their points have weight; None: all points of all lanes.
        self._instances: Sequence[Instance[Any]] = []
        self._supports: list[Any] | None = None
        self._lanes = self._table.select([])
        self._serials = self._lanes.column("serial")
        self._cycles = self._cycles_of(self._lanes)
        self._slots = self._legs = 0
        self._screen: _Screen | None = None
        # States as they will be emitted, of lanes that are marked as rounded.
        self._emitted: Any = None
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
        table, places = self._table, self._lanes.places
        table.set_stops(places, stops)
        # If no lane may be held, none ends a call for the others, and legs need not test that.
        lockstep = lockstep and max(stops) > -math.inf
        table.release(may_halt=lockstep)
        table.host["rounded"] = False
        with on(self._device):
            progress = self._cycles.run(cycles, stops, lockstep=lockstep)
        depths = np.array(progress.depths, dtype=np.int64)
        ran, frozen = depths - self._lanes.column("depth"), int(self._lanes.column("frozen").sum())
        table.host["depth"][places] = depths
        executed = int(ran.sum()) + frozen * int(ran.max(initial=0))
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
            self._screen = self._prepare_screen(key, self._select(lanes))
        screen = self._screen
        screen.scratch.copy_(self._buffers["vectors32"])
        self._launcher.run(*screen.launches)
        numbers, checked = screen.download.again(screen.numbers).read(), c.FINDINGS.value * len(lanes)
        findings = Findings(*numbers[:checked].reshape(-1, c.FINDINGS.value).T)
        report = Report(*numbers[checked:].reshape(-1, c.REPORT.value).T)
        return np.where(np.isnan(report.stale), math.nan, findings.row + report.band).tolist()

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
            return certificates(emitted, self._select(lanes).column("broken").tolist())
        # The screen gives its memory to verify, so that both together need no more than one.
        self._screen = None
        chosen, launcher = self._select(lanes), self._launcher
        potentials, findings = self._round_states(chosen)
        # The longest launch comes first: it runs while the others are prepared.
        samples = launcher.sample(chosen, c.BOTH.value, potentials)
        scratch, errors = torch.empty_like(self._buffers["vectors32"]), torch.empty_like(potentials)
        launcher.run(launcher.split(chosen, potentials, scratch))
        for part in chosen.split(beyond_float32(chosen)):
            for side in (0, 1):
                if beyond_float32(part).any():
                    launcher.run(*launcher.float64_legs(part, side, c.CHECKED, potentials, scratch, errors))
                else:
                    launcher.run(*launcher.legs(part, side, c.CHECKED, scratch, errors, potentials))
        launcher.run(launcher.check(chosen, errors, scratch, samples, findings))
        columns = self._record(chosen, findings)
        residuals = np.stack([columns.row, columns.col, self._policy.bands(chosen, columns)])
        residuals[:, columns.broken > 0] = math.nan
        return Residuals(*residuals.tolist())

    @memory_errors()
    def emit(self, lanes: Sequence[int]) -> Emission:
        """Return copies of the states as they were verified."""
        chosen, numbers = self._select(lanes), np.asarray(lanes, dtype=np.int64)
        if not np.array_equal(chosen.column("serial"), self._serials[numbers]):
            raise ContractError("backend 'triton': a row of the lane table does not hold the state of its lane")
        if not chosen.column("rounded").all():
            # This decides the dtype of each lane.
            self._record(chosen, self._round_states(chosen)[1])
        supports = None if self._supports is None else [self._supports[number] for number in lanes]
        return emit_lanes(take(self._instances, lanes), supports, chosen, self._emitted, self._couple)

    @memory_errors()
    def freeze(self, lanes: Sequence[int]) -> None:
        """Never change these lanes again."""
        chosen = self._select(lanes)
        self._table.host["frozen"][chosen.places] = True
        self._table.state[chosen.rows, c.FROZEN.value] = 1.0

    @memory_errors()
    def repack(self, keep: Sequence[int], admit: Sequence[Instance[Any]] = ()) -> None:
        """Keep these lanes, in this order, and append the admitted; kept lanes are not moved on the device."""
        table, marks, rows = self._table, self._buffers.mark(), self._table.mark()
        numbers = np.asarray(keep, dtype=np.int64)
        kept_places = self._lanes.places[numbers]
        vacated = np.setdiff1d(self._lanes.places, kept_places)
        supports = [None] * len(keep) if self._supports is None else [self._supports[number] for number in keep]
        admitted = np.zeros(0, dtype=np.int64)
        table.forget_rows()
        try:
            if len(admit):
                inner, new_supports = restrict_all(admit, FORMS)
                supports += new_supports
                admitted = self._open(admit, inner)
            self._set_lanes(np.concatenate([kept_places, admitted]))
        except (MemoryError, RuntimeError):
            self._buffers.restore(marks)
            table.restore(rows)
            # Buffers may have been replaced, so launches are prepared anew.
            self._cycles.forget_launches()
            self._screen = None
            raise
        instances = take(self._instances, keep) if len(keep) else []
        self._instances = join(instances, admit) if len(keep) else admit
        self._supports = supports if any(support is not None for support in supports) else None
        self._serials = self._lanes.column("serial")
        for group in table.leave(vacated):
            for pieces in (group.pieces, *group.more_pieces):
                self._buffers.give(pieces)
        table.remove(vacated)
        self._legs += len(admit)

    def run_leg(self, side: int) -> None:
        """Measure one side of all lanes in float32, and apply it if it is that of columns, for measurements of time."""
        self._launcher.run(*self._launcher.legs(self._lanes, side, c.APPLIED if side else c.MEASURED))

    def _select(self, lanes: Sequence[int]) -> LaneSet:
        """Return the lanes with these numbers."""
        return self._table.select(self._lanes.places[np.asarray(lanes, dtype=np.int64)])

    def _set_lanes(self, places: Places) -> None:
        """Make the lanes of these rows those of the pack. A MemoryError leaves the pack unchanged."""
        lanes = self._table.select(places)
        cycles = self._cycles_of(lanes)
        self._table.fit_limits()
        self._lanes, self._cycles, self._screen = lanes, cycles, None

    def _cycles_of(self, lanes: LaneSet) -> Cycles | ResidentCycles:
        if self._resident is None:
            return Cycles(self._launcher, self._table, lanes)
        return ResidentCycles(self._launcher, self._resident, self._table, lanes)

    def _open(self, instances: Sequence[Instance[Any]], inner: Sequence[Instance[Any]]) -> Places:
        """Put new lanes at depth zero, measure their first f-leg, and return their rows.

        Args:
            instances: Their problems.
            inner: The same without points of zero weight.
        """
        representation, policy = self._launcher.representation, self._policy
        records, order, groups = describe(instances, inner), loaded_together(inner), list[tuple[Any, Any]]()
        sizes, which = distinct(records["size"])
        records["programs"] = np.array([representation.programs(size) for size in sizes])[which]
        for numbers in order:
            group = load_group(take(inner, numbers), representation, self._buffers, self._device)
            # A view if these are all lanes, which then have their order already.
            group_records = records if len(order) == 1 else records[numbers]
            group_records["group"], group_records["number"] = self._table.add_group(group), np.arange(len(numbers))
            group_records["offsets"] = group.fields[:, c.POTENTIAL.value : c.POTENTIAL.value + 2]
            group_records["high_part_error"] = group.high_part_errors
            group_records["arithmetic"] = policy.first_arithmetic(group_records["least_weight"], group.has_room)
            groups.append((group_records, group.fields))
        loaded, fields = groups[0] if len(order) == 1 else map(np.concatenate, zip(*groups, strict=True))
        places = self._table.add(loaded, fields, self._first_numbers(loaded))
        if len(order) > 1:
            places = places[np.argsort(np.concatenate(order))]
        self._measure_first(places)
        return places

    def _first_numbers(self, records: Any) -> Any:
        """States of lanes at depth zero, (lanes, NUMBERS)."""
        numbers = np.zeros((len(records), c.NUMBERS.value))
        numbers[:, c.BEST.value] = math.inf
        numbers[:, c.SWITCH.value] = self._policy.switch_residual(records["tol"], records["high_part_error"])
        numbers[:, c.UNIT.value], numbers[:, c.BUDGET.value] = records["unit"], records["budget"]
        numbers[:, c.CALLER_DTYPE.value] = DTYPE_CODES[records["own"]]
        return numbers

    def _measure_first(self, places: Places) -> None:
        """Measure the first f-leg of new lanes, in the fastest arithmetic that is accurate enough for each."""
        launcher, table = self._launcher, self._table
        vectors64, vectors32 = self._buffers["vectors64"], self._buffers["vectors32"]
        table.release()
        host = table.host
        soft = places[host["is_soft"][places]]
        if len(soft):
            launcher.run(launcher.open_soft(table.select(soft)))
        host["arithmetic"][places] = np.maximum(
            host["arithmetic"][places], self._policy.least_rungs(host["tol"][places])
        )
        for arithmetic in (Arithmetic.AUGMENTED, Arithmetic.FLOAT32):
            tried = places[host["arithmetic"][places] == arithmetic.value]
            if not len(tried):
                continue
            chosen, coordinates = table.select(tried), launcher.representation.places
            is_augmented = arithmetic is Arithmetic.AUGMENTED
            if coordinates and not is_augmented:
                table.fields[chosen.rows, c.AUGMENTED.value] = 0
            if self._resident is None:
                launcher.run(launcher.split(chosen, vectors64, vectors32, places=coordinates, state=True))
                launcher.run(*launcher.legs(chosen, 0, c.MEASURED))
            else:
                launcher.run(*self._resident.measure(chosen, vectors64, vectors32, vectors64))
            self._climb(chosen, arithmetic, inside=is_augmented)
        self._measure_triples(places)
        vectors64, vectors32 = self._buffers["vectors64"], self._buffers["vectors32"]
        in_float64 = places[host["arithmetic"][places] == Arithmetic.FLOAT64.value]
        if len(in_float64):
            chosen = table.select(in_float64)
            table.fields[chosen.rows, c.FLOAT64.value] = 1
            table.state[chosen.rows, c.BAND.value] = upload(chosen.bands(), torch.float64, self._device)
            if self._resident is None:
                launcher.run(launcher.split(chosen, vectors64, vectors32))
                launcher.run(*launcher.float64_legs(chosen, 0, c.MEASURED))
            else:
                launcher.run(*self._resident.measure(chosen, vectors64, vectors32, vectors64))

    def _measure_triples(self, places: Places) -> None:
        """Measure the first f-leg of new lanes that float32 is not accurate enough for, from points in three parts."""
        launcher, host = self._launcher, self._table.host
        candidates = self._table.select(places)
        candidates = candidates.places[in_triples(candidates)]
        for group, rows in self._table.groups(candidates):
            extents = group.extents[:, host["number"][rows]]
            has_triples = self._policy.has_triples(launcher.representation, host["dim"][rows], extents)
            host["arithmetic"][rows[~has_triples]] = Arithmetic.FLOAT64.value
            if has_triples.any():
                launcher.triples.take_memory(group, rows[has_triples])
        for arithmetic in (Arithmetic.TRIPLE, Arithmetic.COMPENSATED):
            tried = places[host["arithmetic"][places] == arithmetic.value]
            if not len(tried):
                continue
            chosen = self._table.select(tried)
            launcher.run(*launcher.triples.open(chosen, arithmetic))
            launcher.run(launcher.split(chosen, self._buffers["vectors64"], self._buffers["vectors32"]))
            launcher.run(*launcher.float64_legs(chosen, 0, c.MEASURED))
            self._climb(chosen, arithmetic)

    def _climb(self, lanes: LaneSet, arithmetic: Arithmetic, *, inside: bool = False) -> None:
        """Move lanes for which the arithmetic of their first leg is not accurate enough to the next one."""
        errors = self._first_errors(lanes, inside=inside)
        enough = self._policy.accurate_enough(errors, lanes.column("tol"), arithmetic)
        self._table.host["arithmetic"][lanes.places[~enough]] = arithmetic.next.value

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
            if beyond_float32(lanes).any():
                legs = launcher.float64_legs(lanes, 0, c.CHECKED, potentials, scratch, errors)
            else:
                legs = launcher.legs(lanes, 0, c.CHECKED, scratch, errors, inside=inside)
            launcher.run(*legs)
        else:
            launcher.run(*self._resident.measure(lanes, potentials, scratch, errors, checks=True))
        findings = launcher.findings(lanes)
        launcher.run(launcher.check(lanes, errors, scratch, samples, findings, opens=True))
        return findings.cpu()[:, c.FOUND_ERROR.value].numpy()

    def _round_states(self, lanes: LaneSet) -> tuple[Any, Any]:
        """Round the states of lanes as they will be emitted; return their potentials in bits, and the findings."""
        findings = self._launcher.findings(lanes)
        vectors64 = self._buffers["vectors64"]
        # Checks of soft lanes also read weights and prices beside the potentials.
        potentials = vectors64.clone() if lanes.any_soft else torch.empty_like(vectors64)
        self._emitted = torch.empty_like(vectors64)
        self._launcher.run(self._launcher.round_states(lanes, potentials, self._emitted, findings))
        host = self._table.host
        host["rounded"] = False
        host["rounded"][lanes.places] = True
        return potentials, findings

    def _record(self, lanes: LaneSet, found: Any) -> Findings:
        """Read back the `Findings` of lanes; record in what dtype they are emitted and whether states are finite."""
        columns, host = Findings(*found.cpu().numpy().T), self._table.host
        single, double = DTYPES.index("float32"), DTYPES.index("float64")
        kinds = [columns.emitted == c.EMITS_SINGLE.value, columns.emitted == c.EMITS_HALF.value]
        host["dtype"][lanes.places] = np.select(kinds, [single, lanes.column("own")], double)
        host["broken"][lanes.places] = columns.broken > 0
        return columns

    def _prepare_screen(self, key: tuple[Any, ...], lanes: LaneSet) -> _Screen:
        launcher, count, findings = self._launcher, len(lanes), c.FINDINGS.value * len(lanes)
        vectors64, scratch = self._buffers["vectors64"], torch.empty_like(self._buffers["vectors32"])
        errors = torch.empty_like(vectors64)
        if self._resident is None:
            launches = self._checked_rows(lanes, scratch, errors)
        else:
            launches = self._resident.measure(lanes, vectors64, scratch, errors, checks=True)
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
        if beyond_float32(lanes).any():
            precise_lanes = lanes.part(beyond_float32(lanes))
            launches += launcher.float64_legs(precise_lanes, 0, c.CHECKED, vectors=scratch, errors=errors)
        return launches
