"""The pack of the Triton backend: a table of lanes on the device, and when what is launched for them."""

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
from drainsinkhorn.backends.triton import kernels as k
from drainsinkhorn.backends.triton.arena import Arena
from drainsinkhorn.backends.triton.cycles import Crew, Cycles
from drainsinkhorn.backends.triton.emission import emit_lanes
from drainsinkhorn.backends.triton.lane import Lane, largest
from drainsinkhorn.backends.triton.launches import FINDINGS, SAMPLES, WIDE_WARPS
from drainsinkhorn.backends.triton.launching import Download, Launch, upload
from drainsinkhorn.backends.triton.loading import How, Loaded, load_group, same_shape
from drainsinkhorn.core.protocol import Counted, Emission, Progress
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.result import UNKNOWN, Residual, Residuals
from drainsinkhorn.numerics.memory import memory_errors
from drainsinkhorn.numerics.rounding import UNSAMPLED

GIVE_WAY, GIVE_WAY_PLAIN = 10.0, 2.0
"""Leading halves give way at so many times tol or what they blur: earlier where momentum carries on what they did."""
POTENTIALS = 16 * 2.0**-53
"""Relative rounding error of a marginal ratio in float64, per bit of the largest potentials of both sides: both are
divided by eps ln 2, which is rounded itself, and added to a score and to each other."""
HALVES: dict[str | None, int] = {"float16": k.FLOAT16.value, "bfloat16": k.BFLOAT16.value}
"""Codes of the 16-bit dtypes in kernels."""
SMALL = 2048
"""Rows of a lane up to which a cycle is two launches: one program applies its f-leg while others finish theirs."""


class _Screening(NamedTuple):
    """A row screen, made ready for as long as the same lanes are screened.

    Attributes:
        key: Which lanes, and which of the two states.
        launches: What is launched.
        scratch: Where vectors of the state are copied before.
        numbers: What was checked of each lane, then what a look at each says.
        answer: Those on the host.
    """

    key: tuple[Any, ...]
    launches: list[Launch]
    scratch: Any
    numbers: Any
    answer: Download


def _longer(rows: Any, more: int) -> Any:
    """The same rows, and zeros after them."""
    found = rows.new_zeros((len(rows) + more, rows.shape[1]))
    found[: len(rows)] = rows
    return found


class TritonPack(Cycles, Counted):
    """Lanes of one kind of scores on one device. Narrower means: the table of live lanes is shorter."""

    def __init__(
        self, instances: Sequence[Instance[Any]], how: How, device: Any, *, momentum: bool, precision: str,
        couple: Couple | None = None,
    ) -> None:  # fmt: skip
        self.how, self.device, self.couple = how, device, couple
        self._packed = (k.FOLDING if how.packed else k.ALL).value
        self._momentum, self._precision = momentum, precision
        self._lanes: list[Lane] = []
        dtypes = {"half": torch.float16, "single": torch.float32, "exact": torch.float64}
        dtypes |= {"wide": torch.float64, "vectors": torch.float32, "counts": torch.int32}
        self._arenas = {name: Arena(torch, dtype, device, blank=name != "exact") for name, dtype in dtypes.items()}
        self._table = torch.empty((0, k.FIELDS.value), dtype=torch.int64, device=device)
        self._states = [torch.empty((0, k.NUMBERS.value), dtype=torch.float64, device=device)] * 2
        self._most = [(0, 0), (0, 0)]
        self._vacant: list[int] = []
        self._halted = torch.zeros(2, dtype=torch.int32, device=device)
        self._stops, self._limits = np.zeros(0), torch.empty(0, dtype=torch.float64, device=device)
        self._parity = self._slots = self._legs = 0
        self._may_be_halted = False
        self._seated: dict[tuple[int, ...], Any] = {}
        self._screening: _Screening | None = None
        self._given: Any = None
        self._fresh: set[Lane] = set()
        self._everyone = self._crew = Crew([], None, {})
        self.repack([], instances)

    @memory_errors()
    def repack(self, keep: Sequence[int], admit: Sequence[Instance[Any]] = ()) -> None:
        """Keep these lanes, in this order, and append the admitted; only the table of live lanes changes."""
        kept, least = [self._lanes[i] for i in keep], dict[int, float]()
        admitted = [Lane(instance, least) for instance in admit]
        left, marks = set(self._lanes) - set(kept), {name: arena.mark() for name, arena in self._arenas.items()}
        self._seated.clear()
        try:
            self._open(admitted)
            self._line_up(kept + admitted)
        except (MemoryError, RuntimeError):
            for name, mark in marks.items():
                self._arenas[name].restore(mark)
            self._vacant += [lane.place for lane in admitted if lane.place >= 0]
            # Buffers may have grown: what was made ready for the old ones must not run again.
            self._everyone = self._crew = Crew(self._lanes, self._everyone.live, {})
            self._screening = None
            raise
        for lane in left:
            self._release(lane)
        self._legs += len(admitted)

    def _line_up(self, lanes: list[Lane]) -> None:
        """Make these the lanes of the pack, with table and grids. A MemoryError leaves the pack unchanged."""
        live, report = self._seats(lanes), torch.empty((len(lanes), 4), dtype=torch.float64, device=self.device)
        if len(self._limits) != len(self._table):
            limits = torch.zeros(len(self._table), dtype=torch.float64, device=self.device)
            self._stops, self._limits = np.zeros(len(self._table)), limits
        self._lanes, self._report = lanes, report
        self._most = [largest(self._lanes, side) for side in (0, 1)]
        self._everyone = self._crew = Crew(self._lanes, live, {})
        self._screening = None
        self._glances: list[Download] = []
        # Sums are the same in both ways if as many threads make them.
        self.small = self._most[0][0] <= SMALL and self.how.warps == WIDE_WARPS

    def _release(self, lane: Lane) -> None:
        self._vacant.append(lane.place)
        lane.group.lanes -= 1
        if lane.group.lanes == 0:
            for name, (start, count) in lane.group.pieces.items():
                self._arenas[name].give(start, count)

    def _seat(self, lanes: list[Lane], table: Any, numbers: Any) -> None:
        """Give new lanes rows of the table, those that fell vacant first, and fill them."""
        table, numbers = upload(table, torch.int64, self.device), upload(numbers, torch.float64, self.device)
        rows, short = len(self._table), len(lanes) - len(self._vacant)
        if rows == 0:
            # The first of all: the table is theirs.
            self._table, self._states = table, [torch.empty_like(numbers), torch.empty_like(numbers)]
            self._states[self._parity] = numbers
            for place, lane in enumerate(lanes):
                lane.place = place
            return
        if short > 0:
            more = max(short, rows)
            self._table, *self._states = (_longer(rows, more) for rows in (self._table, *self._states))
            self._vacant += range(rows + more - 1, rows - 1, -1)
        for lane in lanes:
            lane.place = self._vacant.pop()
        places = self._seats(lanes)
        self._table[places], self._states[self._parity][places] = table, numbers

    def _open(self, lanes: list[Lane]) -> None:
        """Put new lanes at depth zero and measure their first f-leg."""
        if not lanes:
            return
        loaded: list[tuple[list[Lane], Loaded]] = []
        for group in same_shape(lanes):
            part = load_group([lane.inner for lane in group], self.how, self._arenas, self.device)
            for row, lane in enumerate(group):
                lane.group, lane.row = part, row
            loaded.append((group, part))
        self._settle_in(lanes, loaded)

    def _settle_in(self, lanes: list[Lane], loaded: list[tuple[list[Lane], Loaded]]) -> None:
        """Rows of the table for lanes that are loaded, and their first f-leg."""
        seated = [lane for group, _ in loaded for lane in group]
        for group, part in loaded:
            part.lanes = len(group)
            for lane, folded in zip(group, part.table[:, k.FOLDED.value].tolist(), strict=True):
                lane.folded = folded > 0
        numbers = np.zeros((len(seated), k.NUMBERS.value))
        numbers[:, k.BEST.value] = math.inf
        numbers[:, k.LEADING.value] = [self._leading(lane) for lane in seated]
        numbers[:, k.UNIT.value : k.BUDGET.value + 1] = [(lane.unit, lane.budget) for lane in seated]
        numbers[:, k.HALF.value] = [HALVES.get(lane.own, 0) for lane in seated]
        self._seat(seated, np.concatenate([part.table for _, part in loaded]), numbers)
        self._measure_first(lanes)

    def _leading(self, lane: Lane) -> float:
        """The residual above which leading halves make its scores; zero if they never do."""
        times = GIVE_WAY if self._momentum else GIVE_WAY_PLAIN
        return 0.0 if math.isnan(lane.blur) else times * max(lane.instance.tol, lane.blur)

    def _measure_first(self, lanes: list[Lane]) -> None:
        """The first f-leg of new lanes, in the fastest arithmetic that is honest enough for tol.

        First with potentials in the product where there is room for them, then with potentials added to it, then in
        float64. A lane leaves at `residual + band <= stop`: a band of half a stop costs some cycles, another arithmetic
        far more time.
        """
        wide, vectors = self._arenas["wide"].buffer, self._arenas["vectors"].buffer
        self._go()
        left = lanes
        for folded in (True, False) if self._precision == "auto" else ():
            some = [lane for lane in left if (lane.folded or not folded) and not lane.light]
            if not some:
                continue
            live = self._seats(some)
            if self.how.slot and not folded:
                self._table[live, k.FOLDED.value] = 0
            self._run(self._stage_of(live, some, wide, vectors, slot=self.how.slot, state=True))
            self._leg(live, some, 0, k.KEPT)
            off = k.SAFETY.value * np.maximum(self._rounding(live, some, folded=folded), k.SINGLE.value)
            fine = off <= np.array([lane.instance.tol / 2 for lane in some])
            done = {lane for lane, enough in zip(some, fine.tolist(), strict=True) if enough}
            left = [lane for lane in left if lane not in done]
            for lane in left:
                lane.folded = False
        if left:
            live = self._seats(left)
            for lane in left:
                lane.wide = True
            self._table[live, k.WIDE.value] = 1
            bands = upload([lane.band for lane in left], torch.float64, self.device)
            self._states[self._parity][live, k.BAND.value] = bands
            self._run(self._stage_of(live, left, wide, vectors))
            self._exact(live, left, 0, k.KEPT)

    def _rounding(self, live: Any, lanes: Sequence[Lane], *, folded: bool) -> Any:
        """By how much float32 is off on rows of the state after the first f-leg, where ratios are near one.

        The device makes bands of it.
        """
        wide, vectors = self._arenas["wide"].buffer, self._arenas["vectors"].buffer
        potentials, scratch, errors = torch.empty_like(wide), torch.empty_like(vectors), torch.empty_like(wide)
        self._run(self._stage_of(live, lanes, wide, scratch, state=True, after=(vectors, potentials)))
        samples = self._sample(live, lanes, 0, potentials)
        # Of the slots only those of columns are read, where the state is still the one in them.
        self._run(*self._legs_of(live, lanes, 0, k.CHECKED, self._parity, scratch, errors, fold=folded))
        found = self._checked(live, lanes, errors, scratch, samples, self._findings(lanes), opens=True)
        return found[:, 2].numpy()

    def _settle(self, live: Any, lanes: Sequence[Lane]) -> tuple[Any, Any]:
        """The states of lanes as they will be emitted: their potentials in bits, and what was found."""
        wide, found = self._arenas["wide"].buffer, self._findings(lanes)
        potentials, self._given = torch.empty_like(wide), torch.empty_like(wide)
        self._run(self._settle_of(live, lanes, potentials, self._given, found))
        self._fresh = set(lanes)
        return potentials, found

    def given(self, lanes: Sequence[Lane]) -> Any:
        """What will be emitted of lanes, in units of the cost and at the places of their potentials."""
        if not self._fresh.issuperset(lanes):
            _, found = self._settle(self._seats(lanes), lanes)
            self._note(lanes, found.cpu())
        return self._given

    def _note(self, lanes: Sequence[Lane], found: Any) -> None:
        for lane, (emitted, broken) in zip(lanes, found[:, 4:6].tolist(), strict=True):
            lane.dtype = {k.EMITS_SINGLE.value: "float32", k.EMITS_HALF.value: lane.own}.get(int(emitted), "float64")
            lane.broken = broken > 0

    # The verbs of the contract.

    @memory_errors()
    def advance(self, cycles: int, stops: Sequence[float], *, lockstep: bool = False) -> Progress:
        """Launch all cycles without waiting for any: lanes that are done hold themselves on the device."""
        self._hold_at(stops)
        self._go()
        self._fresh = set()
        # Where no lane may be held, none ends a call for the others, and legs need not ask.
        held = max(stops) > -math.inf
        self._may_be_halted = lockstep and held
        progress = self._run_cycles(cycles, lockstep=lockstep and held, held=held)
        ran = [depth - lane.depth for lane, depth in zip(self._lanes, progress.depths, strict=True)]
        for lane, depth in zip(self._lanes, progress.depths, strict=True):
            lane.depth = depth
        frozen = sum(lane.frozen for lane in self._lanes)
        executed = sum(ran) + frozen * max(ran, default=0)
        self._slots += executed
        self._legs += 2 * executed
        return progress

    def _go(self) -> None:
        """Let lanes run again that one of them has halted."""
        if self._may_be_halted:
            self._halted.zero_()
            self._may_be_halted = False

    def _hold_at(self, stops: Sequence[float]) -> None:
        """Tell the device where lanes hold, unless it knows."""
        wanted = self._stops.copy()
        wanted[[lane.place for lane in self._lanes]] = stops
        if not np.array_equal(wanted, self._stops):
            self._stops = wanted
            self._limits.copy_(torch.from_numpy(wanted), non_blocking=True)

    @memory_errors()
    def screen(self, lanes: Sequence[int]) -> list[float]:
        """The row residual of the state in a pass of its own, band included."""
        if not lanes:
            return []
        self._legs += len(lanes)
        key = (tuple(lanes), self._parity)
        if self._screening is None or self._screening.key != key:
            self._screening = self._screen_of(key, [self._lanes[i] for i in lanes])
        kept = self._screening
        kept.scratch.copy_(self._arenas["vectors"].buffer)
        self._run(*kept.launches)
        numbers, checked = kept.answer.again(kept.numbers).read(), FINDINGS * len(lanes)
        told = zip(
            numbers[:checked].reshape(-1, FINDINGS).tolist(), numbers[checked:].reshape(-1, 4).tolist(), strict=True
        )
        return [math.nan if math.isnan(stale) else row[0] + band for row, (_, stale, _, band) in told]

    def _screen_of(self, key: tuple[Any, ...], lanes: list[Lane]) -> _Screening:
        live, parity, count = self._seats(lanes), self._parity, len(lanes)
        wide, scratch = self._arenas["wide"].buffer, torch.empty_like(self._arenas["vectors"].buffer)
        errors = torch.empty_like(wide)
        launches = [self._stage_of(live, lanes, wide, scratch)] if self.how.packed else []
        launches += self._legs_of(live, lanes, 0, k.CHECKED, parity, scratch, errors)
        double = [lane for lane in lanes if lane.wide]
        if double:
            seats = self._seats(double)
            launches.append(self._exact_of(seats, double, 0, k.CHECKED, parity, vectors=scratch, errors=errors))
        numbers = torch.empty((FINDINGS + 4) * count, dtype=torch.float64, device=self.device)
        # Nothing is sampled, so nothing is off.
        samples = torch.zeros((2, count, SAMPLES), dtype=torch.float64, device=self.device)
        launches.append(self._checked_of(live, lanes, errors, scratch, samples, numbers[: FINDINGS * count]))
        launches += self._look_of(live, numbers[FINDINGS * count :], parity)
        return _Screening(key, launches, scratch, numbers, Download(numbers))

    @memory_errors()
    def verify(self, lanes: Sequence[int], *, exact: bool = False) -> Residuals:
        """Return both residuals of the states as they will be emitted; sampled rows and columns are checked in float64.

        With `exact` the states are certified from the caller's own arrays.
        """
        if not lanes:
            return Residuals([], [], [])
        self._legs += 2 * len(lanes)
        if exact:
            # The emission kernel records which states are not finite.
            emitted = self.emit(lanes)
            return certificates(emitted, [self._lanes[i].broken for i in lanes])
        # A screen's memory is a verify's as well, so that both together need no more than one.
        self._screening = None
        some = [self._lanes[i] for i in lanes]
        live = self._seats(some)
        potentials, found = self._settle(live, some)
        # What takes longest comes first: it runs while the rest is made ready.
        samples = self._sample(live, some, k.BOTH.value, potentials)
        scratch, errors = torch.empty_like(self._arenas["vectors"].buffer), torch.empty_like(potentials)
        self._run(self._stage_of(live, some, potentials, scratch))
        double = [lane for lane in some if lane.wide]
        single = [lane for lane in some if not lane.wide]
        mixed = bool(single) and bool(double)
        for part, measure in ((single, self._check), (double, self._check_exactly)):
            if part:
                measure(self._seats(part) if mixed else live, part, potentials, scratch, errors)
        found = self._checked(live, some, errors, scratch, samples, found)
        self._note(some, found)
        return Residuals.from_rows(self._residual(lane, *row) for lane, row in zip(some, found.tolist(), strict=True))

    def _check(self, live: Any, lanes: Sequence[Lane], _: Any, vectors: Any, errors: Any) -> None:
        for side in (0, 1):
            self._leg(live, lanes, side, k.CHECKED, vectors=vectors, errors=errors)

    def _check_exactly(self, live: Any, lanes: Sequence[Lane], potentials: Any, vectors: Any, errors: Any) -> None:
        for side in (0, 1):
            self._exact(live, lanes, side, k.CHECKED, potentials, vectors, errors)

    def _residual(
        self, lane: Lane, row: float, col: float, off_rows: float, off_cols: float, _: float, bad: float, size: float,
        unsampled: float,
    ) -> Residual:  # fmt: skip
        if bad:
            return UNKNOWN
        # A maximum that keeps what is not a number.
        off = off_rows if off_rows >= off_cols or math.isnan(off_rows) else off_cols
        off = off if off > k.SINGLE.value or math.isnan(off) else k.SINGLE.value
        band = lane.band + POTENTIALS * size
        if not lane.wide:
            band += k.SAFETY.value * off + UNSAMPLED * math.log(2) * unsampled
        return Residual(row, col, band)

    @memory_errors()
    def emit(self, lanes: Sequence[int]) -> Emission:
        """Copies for the caller."""
        return emit_lanes(self, [self._lanes[i] for i in lanes])

    @memory_errors()
    def freeze(self, lanes: Sequence[int]) -> None:
        """These lanes no longer change."""
        for i in lanes:
            self._lanes[i].frozen = True
        self._states[self._parity][self._seats([self._lanes[i] for i in lanes]), k.FROZEN.value] = 1.0
