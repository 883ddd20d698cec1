"""The pack of the CPU backend: a table of lanes whose vectors live in blocks, and threads that share the lanes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.backends.certificate import certificates
from drainsinkhorn.backends.cpu import kernels as k
from drainsinkhorn.backends.cpu import momentum_kernels as mk
from drainsinkhorn.backends.cpu.certificate_kernels import compiled_sweep
from drainsinkhorn.backends.cpu.laws import compiled_couplings
from drainsinkhorn.backends.cpu.loading import groups, load_group
from drainsinkhorn.backends.cpu.resources import MemoryBlock, each
from drainsinkhorn.backends.cpu.stored import compiling
from drainsinkhorn.backends.cpu.streaming import StreamingPack
from drainsinkhorn.backends.emission import CHOICES, SHORT, Rounded, Vector, budget, emit_states
from drainsinkhorn.backends.support import Couple, Support, restrict
from drainsinkhorn.core.protocol import Counted, Emission, Progress, is_held
from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.errors import ContractError
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.result import Residuals
from drainsinkhorn.numerics.arrays import float_name, round_to
from drainsinkhorn.numerics.costs import COSTS, with_matrix

FORMS = ("distances", "matrix")
"""Forms of costs that it has kernels for."""

SPLIT_PAIRS = 2**20
"""Pairs from which one lane's sweep is worth sharing among threads."""


class _Lane:
    """A problem and the blocks that hold its vectors.

    Attributes:
        home: The address of its potentials f. It is unique to the lane, and its row of the lane table holds the same
            address, which `emit` compares.
    """

    __slots__ = ("frozen", "home", "inner", "instance", "keep", "support")

    def __init__(self, instance: Instance[Any]) -> None:
        self.instance = instance
        inner, self.support = (instance, None) if instance.positive else restrict(instance)
        self.inner = with_matrix(inner, FORMS)
        self.keep: Any = None
        self.home = 0
        self.frozen = False


class States:
    """States of many lanes, rounded together to what their callers will get; flat vectors, lane after lane.

    Args:
        instances: The lanes' problems.
        f: Potentials of the rows in nats; overwritten.
        f_at: Where each lane's begin, and the end.
        g: Potentials of the columns, likewise.
        g_at: Likewise.
    """

    def __init__(
        self, instances: Sequence[Instance[Any]], f: Vector, f_at: NDArray[np.int64], g: Vector, g_at: NDArray[np.int64]
    ) -> None:
        self.instances = instances
        self.eps = np.array([instance.eps for instance in instances])
        self.f, self.f_at, self.g, self.g_at = f, f_at, g, g_at
        f *= np.repeat(self.eps, np.diff(f_at))
        g *= np.repeat(self.eps, np.diff(g_at))
        self.own = [float_name(instance.like) for instance in instances]
        self.dtypes = ["float64"] * len(instances)
        kinds = {*self.own}
        for name in SHORT:
            callers = {own for own in kinds if name in CHOICES.get(own, ())}
            if callers:
                pairs = zip(self.own, self.dtypes, strict=True)
                self._round(np.array([dtype == "float64" and own in callers for own, dtype in pairs]), name)

    def _round(self, wanted: NDArray[np.bool_], name: str) -> None:
        """Round the potentials of those wanted lanes for which the dtype is accurate enough."""
        f, f_at, g, g_at = self.f, self.f_at, self.g, self.g_at
        with np.errstate(invalid="ignore"):
            moved = _moved(f, f_at, name) + _moved(g, g_at, name)
        # Written so that NaN and inf, which overflow gives, lead to a wider dtype.
        fits = wanted & (moved <= budget(self.eps, np.array([instance.tol for instance in self.instances])))
        for vector, at in ((f, f_at), (g, g_at)):
            short = np.repeat(fits, np.diff(at))
            vector[short] = round_to(vector[short], name)
        self.dtypes = [name if fit else dtype for fit, dtype in zip(fits.tolist(), self.dtypes, strict=True)]

    def emit(self, supports: Sequence[Support | None], couple: Couple | None = None) -> Emission:
        """Copies of all lanes' states for their callers; `supports` and `couple` as in `emit_states`."""
        dtypes = {*self.dtypes}
        rounded_vectors = {name: (round_to(self.f, name), round_to(self.g, name)) for name in dtypes - {"float64"}}
        f_at, g_at = self.f_at.tolist(), self.g_at.tolist()
        widened = [dtype != own for dtype, own in zip(self.dtypes, self.own, strict=True)]
        if len(dtypes) == 1:
            vectors = rounded_vectors.get(self.dtypes[0], (self.f, self.g))
            f, g = (
                [vector[first:last].copy() for first, last in pairwise(at)]
                for vector, at in zip(vectors, (f_at, g_at), strict=True)
            )
        else:
            pairs = [rounded_vectors.get(name, (self.f, self.g)) for name in self.dtypes]
            f = [pair[0][first:last].copy() for pair, (first, last) in zip(pairs, pairwise(f_at), strict=True)]
            g = [pair[1][first:last].copy() for pair, (first, last) in zip(pairs, pairwise(g_at), strict=True)]
        others = [
            place
            for place, (instance, support) in enumerate(zip(self.instances, supports, strict=True))
            if support is not None or type(instance.like) is not np.ndarray
        ]
        if others:
            states = [
                Rounded(self.f[f_at[i] : f_at[i + 1]], self.g[g_at[i] : g_at[i + 1]], self.dtypes[i]) for i in others
            ]
            given, weightless = [self.instances[i] for i in others], [supports[i] for i in others]
            emitted = emit_states(given, states, weightless, couple)
            for place, f_of, g_of, wider in zip(others, emitted.f, emitted.g, emitted.widened, strict=True):
                f[place], g[place], widened[place] = f_of, g_of, wider
        return Emission(f, g, widened, self.instances)


def _moved(vector: Vector, at: NDArray[np.int64], name: str) -> Vector:
    """Return the largest change of each lane's potentials by rounding to a dtype."""
    return np.maximum.reduceat(np.abs(round_to(vector, name) - vector), at[:-1])


class CpuPack(Counted):
    """Lanes of one precision. Narrower means: fewer rows in the table; nothing is copied."""

    def __init__(
        self, instances: Sequence[Instance[Any]], dtype: np.dtype[Any], threads: int, *, momentum: bool = False
    ) -> None:
        self._dtype = dtype
        self._momentum = momentum
        self._kernels: Any = mk if momentum else k
        self._one = dtype.type(1)
        self._threads = threads
        self._lanes: list[_Lane] = []
        self._table = np.empty((0, k.FIELDS), dtype=np.int64)
        self._numbers = np.empty((0, k.NUMBERS))
        self._slots = 0
        self._legs = 0
        self.repack([], instances)

    def advance(self, cycles: int, stops: Sequence[float], *, lockstep: bool = False) -> Progress:
        """Each lane runs on one thread until it is held or the cycles are over; few large lanes are shared."""
        moving = np.array([i for i, lane in enumerate(self._lanes) if not lane.frozen], dtype=np.int64)
        frozen = np.array([i for i, lane in enumerate(self._lanes) if lane.frozen], dtype=np.int64)
        limits = np.asarray(stops, dtype=np.float64)
        # Lanes that cannot be held all run the same cycles anyway.
        span = 1 if lockstep and (limits[moving] > -math.inf).any() else cycles
        done = 0
        while moving.size and done < cycles:
            ran = self._run(moving, span, limits)
            longest = int(ran.max())
            self._share(k.discard_lanes, self._table, self._numbers, frozen, longest)
            done += span
            executed = int(ran.sum()) + longest * frozen.size
            self._slots += executed
            self._legs += 2 * executed
            if lockstep and any(is_held(float(self._numbers[i, k.STALE]), float(limits[i])) for i in moving):
                break
        return Progress(self._table[:, k.DEPTH].tolist(), self._numbers[:, k.STALE].tolist())

    def screen(self, lanes: Sequence[int]) -> list[float]:
        """The row residual of the state, in a pass of its own."""
        self._legs += len(lanes)
        return [float(k.screen_lane(self._table[i], self._numbers[i], self._one)) for i in lanes]

    def verify(self, lanes: Sequence[int], *, exact: bool = False) -> Residuals:
        """Return both residuals of the states as they will be emitted; `exact` certifies from the caller's arrays."""
        self._legs += 2 * len(lanes)
        if exact:
            broken = (self._table[list(lanes), k.STATE] == k.POISONED).tolist()
            return certificates(self.emit(lanes), broken, partial(compiled_sweep, threads=self._threads))
        states = self._states(lanes)
        order = np.asarray(lanes, dtype=np.int64)
        residuals = np.empty((len(order), 3))
        where = (states.f, states.f_at, states.g, states.g_at, states.eps)
        self._share(k.verify_lanes, self._table, self._numbers, order, *where, residuals)
        return Residuals(*residuals.T.tolist())

    def emit(self, lanes: Sequence[int]) -> Emission:
        """Return copies for the caller; raises ContractError if a row of the table holds another lane's state."""
        if not lanes:
            return Emission([], [], [], [])
        for i, home in zip(lanes, self._table[np.asarray(lanes, dtype=np.int64), k.STATE_F].tolist(), strict=True):
            if home != self._lanes[i].home:
                raise ContractError(f"backend 'cpu': row {i} of the lane table does not hold the state of lane {i}")
        couple = partial(compiled_couplings, threads=self._threads)
        return self._states(lanes).emit([self._lanes[i].support for i in lanes], couple)

    def _states(self, lanes: Sequence[int]) -> States:
        """The states of lanes as they will be emitted, one after another in flat vectors."""
        order = np.asarray(lanes, dtype=np.int64)
        instances = [self._lanes[i].instance for i in lanes]
        f_at = np.concatenate([[0], np.cumsum(self._table[order, k.ROWS])])
        g_at = np.concatenate([[0], np.cumsum(self._table[order, k.COLS])])
        f, g = np.empty(int(f_at[-1])), np.empty(int(g_at[-1]))
        k.write_states(self._table, order, f, f_at, g, g_at, self._one)
        return States(instances, f, f_at, g, g_at)

    def freeze(self, lanes: Sequence[int]) -> None:
        """These lanes no longer change."""
        for i in lanes:
            self._lanes[i].frozen = True

    def repack(self, keep: Sequence[int], admit: Sequence[Instance[Any]] = ()) -> None:
        """Keep these rows of the table, in this order, and append the admitted."""
        table, numbers, lanes = self._open(admit)
        rows = np.asarray(keep, dtype=np.int64)
        # All memory is allocated before anything is changed.
        table = np.concatenate([self._table[rows], table])
        numbers = np.concatenate([self._numbers[rows], numbers])
        self._table, self._numbers, self._lanes = table, numbers, [self._lanes[i] for i in keep] + lanes
        self._legs += len(lanes)

    def _open(self, instances: Sequence[Instance[Any]]) -> tuple[NDArray[np.int64], NDArray[np.float64], list[_Lane]]:
        """Lanes at depth zero, their first f-leg measured."""
        table = np.zeros((len(instances), k.FIELDS), dtype=np.int64)
        numbers = np.zeros((len(instances), k.NUMBERS))
        lanes = [_Lane(instance) for instance in instances]
        inner = [lane.inner for lane in lanes]
        # On one thread: small decompositions of several threads at once make BLAS libraries wait for one another.
        for places in groups(inner, self._dtype.itemsize):
            rows, floats = table[places], numbers[places]
            memory = load_group([inner[i] for i in places], self._dtype, rows, floats, momentum=self._momentum)
            table[places], numbers[places] = rows, floats
            for i in places:
                lanes[i].keep = memory
            if table[places[0], k.SHARED]:
                self._fill_shared(table, numbers, places)
        self._share(self._kernels.open_lanes, table, numbers, np.arange(len(instances)))
        for lane, home in zip(lanes, table[:, k.STATE_F].tolist(), strict=True):
            lane.home = home
        for i in np.flatnonzero(table[:, k.STATE] == k.HOMELESS):
            self._house(lanes[i], table[i], numbers[i])
        return table, numbers, lanes

    def _fill_shared(self, table: Any, numbers: Any, places: list[int]) -> None:
        """Compute the kernel that some lanes share, and hand its base to all of them."""
        lane, rows = table[places[0]], int(table[places[0], k.ROWS])
        if not math.isfinite(numbers[places[0], k.ROUNDING]):
            return
        parts = k.groups_of(rows)
        bounds = [rows * part // parts for part in range(parts + 1)]
        mine = numbers[places[0]]

        def fill(part: int) -> None:
            k.fill_cold_rows(lane, mine, bounds[part], bounds[part + 1], self._one)

        each(self._threads, fill, parts)
        k.copy_base(table, np.asarray(places, dtype=np.int64))

    def _house(self, lane: _Lane, row: Any, numbers: Any) -> None:
        """Give a lane a kernel of its own and absorb it there."""
        block = MemoryBlock(int(row[k.ROWS] * row[k.COLS]) * self._dtype.itemsize)
        lane.keep = [*lane.keep, block]
        row[k.KERNEL], row[k.SHARED], row[k.STATE] = block.address, 0, k.FRESH
        self._kernels.absorb(row, numbers, self._one)

    def _run(self, moving: NDArray[np.int64], cycles: int, stops: NDArray[np.float64]) -> NDArray[np.int64]:
        """Run lanes until they are held or the cycles are over; returns cycles run, by lane."""
        ran = np.zeros(len(self._lanes), dtype=np.int64)
        pairs = self._table[moving, k.ROWS] * self._table[moving, k.COLS]
        if moving.size < self._threads and pairs.max() >= SPLIT_PAIRS:
            for i in moving:
                self._run_split(int(i), cycles, float(stops[i]), ran)
            return ran
        order = moving[np.argsort(-pairs, kind="stable")]
        self._share(self._kernels.run_lanes, self._table, self._numbers, order, cycles, stops, ran)
        while (homeless := order[self._table[order, k.STATE] == k.HOMELESS]).size:
            for i in homeless:
                self._house(self._lanes[i], self._table[i], self._numbers[i])
            again = [
                i
                for i in homeless
                if ran[i] < cycles and not is_held(float(self._numbers[i, k.STALE]), float(stops[i]))
            ]
            for left in sorted({int(cycles - ran[i]) for i in again}):
                some = np.array([i for i in again if cycles - ran[i] == left], dtype=np.int64)
                self._share(self._kernels.run_lanes, self._table, self._numbers, some, left, stops, ran)
        return ran

    def _run_split(self, i: int, cycles: int, stop: float, ran: NDArray[np.int64]) -> None:
        """One large lane, its sweeps shared among the threads."""
        lane, numbers = self._table[i], self._numbers[i]
        for _ in range(cycles):
            lane[k.DEPTH] += 1
            if lane[k.STATE] != k.POISONED:
                (self._split_momentum if self._momentum else self._split_plain)(self._lanes[i], lane, numbers)
            ran[i] += 1
            if is_held(numbers[k.STALE], stop):
                break

    def _split_plain(self, owner: _Lane, lane: Any, numbers: Any) -> None:
        """`kernels.cycle`, by groups of rows."""
        groups, one = k.groups_of(int(lane[k.ROWS])), self._one
        if k.begin_cycle(lane, one):
            each(self._threads, lambda group: k.sweep_group(lane, group, one), groups)
            if k.end_sweep(lane, numbers, one):
                return None
            if not k.unfold(lane, one):
                return self._house(owner, lane, numbers)
        else:
            k.log_leg(lane, numbers, one)
        if lane[k.STATE] != k.POISONED:
            each(self._threads, lambda group: k.absorb_group(lane, numbers, group, one), groups)
            k.end_absorb(lane, numbers, one)
        return None

    def _split_momentum(self, owner: _Lane, lane: Any, numbers: Any) -> None:
        """`momentum_kernels.cycle`, by groups of rows."""
        groups, one = k.groups_of(int(lane[k.ROWS])), self._one

        def columns() -> int:
            each(self._threads, lambda group: mk.columns_group(lane, group, one), groups)
            return mk.end_columns(lane, one)

        if mk.begin_cycle(lane, numbers, one):
            each(self._threads, lambda group: mk.sweep_group(lane, numbers, group, one), groups)
            todo = mk.end_sweep(lane, numbers, one)
            if todo == mk.COLUMNS:
                todo = columns()
            if todo == mk.DONE:
                return None
            if not k.unfold(lane, one):
                return self._house(owner, lane, numbers)
        else:
            mk.log_leg(lane, numbers, one)
        if lane[k.STATE] != k.POISONED:
            each(self._threads, lambda group: k.absorb_group(lane, numbers, group, one), groups)
            if mk.end_absorb(lane, numbers, one) == mk.COLUMNS:
                columns()
        return None

    def touch(self) -> None:
        """Call every kernel on the first lane, those that only large lanes need too, so that they are compiled."""
        self.advance(2, [-math.inf] * self.width)
        self.verify([0])
        self.verify([0], exact=True)
        self.screen([0])
        k.copy_base(self._table, np.zeros(1, dtype=np.int64))
        k.discard_lanes(self._table, self._numbers, np.arange(1), 0, 1, 1, self._one)
        lane, numbers = self._table[0], self._numbers[0]
        for _ in range(2):
            (self._split_momentum if self._momentum else self._split_plain)(self._lanes[0], lane, numbers)
            k.unfold(lane, self._one)
            k.absorb_group(lane, numbers, 0, self._one)
            self._kernels.end_absorb(lane, numbers, self._one)
            self._kernels.log_leg(lane, numbers, self._one)
            self._kernels.absorb(lane, numbers, self._one)
        if self._momentum:
            mk.columns_group(lane, 0, self._one)
            mk.end_columns(lane, self._one)

    def _share(
        self, kernel: Callable[..., None], table: Any, numbers: Any, order: NDArray[np.int64], *rest: Any
    ) -> None:
        """Let the threads take lanes in this order, a few at a time."""
        chunk = max(1, order.size // (16 * self._threads))
        firsts = range(0, order.size, chunk)
        each(
            self._threads,
            lambda part: kernel(
                table, numbers, order, firsts[part], min(order.size, firsts[part] + chunk), *rest, self._one
            ),
            len(firsts),
        )


@lru_cache(maxsize=8)
def compile_kernels(dtype: np.dtype[Any], *, streaming: bool, momentum: bool) -> None:
    """Run every kernel once on a tiny problem, so that it is compiled, or loaded from the kernel cache."""
    kernels = "streaming" if streaming else f"{dtype.name}, momentum" if momentum else dtype.name
    with compiling(kernels):
        points, weights = np.array([[0.0], [1.0]]), np.array([0.5, 0.5])
        instance = Instance(x=points, y=points, a=weights, b=weights, eps=1.0, tol=1.0, cost=Cost(COSTS["sqeuclidean"]))
        gaussian = replace(instance, init="gaussian")
        if streaming:
            for precision in ("float32", "float64"):
                StreamingPack([instance], 1, precision).verify([0], exact=True)
        else:
            for start in (instance, gaussian):
                CpuPack([start], dtype, threads=1, momentum=momentum).touch()
