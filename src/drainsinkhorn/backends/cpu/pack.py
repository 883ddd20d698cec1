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
from drainsinkhorn.backends.cpu import leg_kernels as legs
from drainsinkhorn.backends.cpu import update_kernels as k
from drainsinkhorn.backends.cpu.certificate_kernels import compiled_sweep
from drainsinkhorn.backends.cpu.kernel_cache import compiling
from drainsinkhorn.backends.cpu.lane_table import FRESH, NEEDS_KERNEL, NOT_FINITE, new_lanes, records, words
from drainsinkhorn.backends.cpu.loading import groups, load_group
from drainsinkhorn.backends.cpu.plan_kernels import compiled_couplings
from drainsinkhorn.backends.cpu.precision import FLOAT32, FLOAT64, Arithmetic
from drainsinkhorn.backends.cpu.resources import MemoryBlock, each
from drainsinkhorn.backends.cpu.streaming import StreamingPack
from drainsinkhorn.backends.emission import CHOICES, SHORT, Rounded, Vector, budget, emit_states
from drainsinkhorn.backends.support import Couple, Support, restrict
from drainsinkhorn.core.protocol import Emission, Progress, Spent, is_held
from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.errors import ContractError
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.result import Residuals
from drainsinkhorn.numerics.arrays import float_name, round_to
from drainsinkhorn.numerics.costs import COSTS, with_matrix

FORMS = ("distances", "matrix")
"""Forms of costs that it has kernels for."""

CHUNK = 16
"""Lanes that a thread takes at once, at most."""
SPLIT_PAIRS = 2**20
"""Pairs from which one lane's sweep is worth sharing among threads."""


class _Lane:
    """A problem and what holds its vectors.

    Attributes:
        memory: Blocks and arrays to which its record in the lane table refers.
        address: The address of its potentials f. It is unique to the lane, and its record holds the same address, which
            `emit` compares.
    """

    __slots__ = ("address", "frozen", "inner", "instance", "memory", "support")

    def __init__(self, instance: Instance[Any]) -> None:
        self.instance = instance
        inner, self.support = (instance, None) if instance.positive else restrict(instance)
        self.inner = with_matrix(inner, FORMS)
        self.memory: Any = None
        self.address = 0
        self.frozen = False


class States:
    """States of many lanes, rounded together to what their callers will get; flat vectors, lane after lane.

    Args:
        instances: The lanes' problems.
        f: Potentials of the rows in nats; overwritten.
        f_at: Offset of each lane in `f`, and the length of `f`, (lanes + 1,).
        g: Potentials of the columns in nats; overwritten.
        g_at: Offset of each lane in `g`, and the length of `g`, (lanes + 1,).
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


class CpuPack:
    """Cached lanes of one precision. A narrower pack has fewer records in the lane table; nothing else is copied."""

    def __init__(
        self, instances: Sequence[Instance[Any]], dtype: np.dtype[Any], threads: int, *, momentum: bool = False
    ) -> None:
        self._dtype = dtype
        self._momentum = momentum
        self._one = dtype.type(1)
        self._threads = threads
        self._lanes: list[_Lane] = []
        self._table = new_lanes(0)
        self._slots = 0
        self._legs = 0
        self.repack([], instances)

    @property
    def width(self) -> int:
        """The number of lanes."""
        return len(self._lanes)

    @property
    def spent(self) -> Spent:
        """Slots and legs executed since the pack was built."""
        return Spent(self._slots, self._legs)

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
            self._share(legs.discard_lanes, self._table, frozen, longest)
            done += span
            executed = int(ran.sum()) + longest * frozen.size
            self._slots += executed
            self._legs += 2 * executed
            if lockstep and any(self._is_held(i, limits) for i in moving):
                break
        return Progress(self._table["depth"].tolist(), self._table["stale"].tolist())

    def _is_held(self, i: int, stops: NDArray[np.float64]) -> bool:
        return is_held(float(self._table["stale"][i]), float(stops[i]))

    def screen(self, lanes: Sequence[int]) -> list[float]:
        """The row residual of the state, in a pass of its own."""
        self._legs += len(lanes)
        return [float(legs.screen_lane(self._table[i], self._one)) for i in lanes]

    def verify(self, lanes: Sequence[int], *, exact: bool = False) -> Residuals:
        """Return both residuals of the states as they will be emitted; `exact` certifies from the caller's arrays."""
        self._legs += 2 * len(lanes)
        if exact:
            broken = (self._table["state"][list(lanes)] == NOT_FINITE).tolist()
            return certificates(self.emit(lanes), broken, partial(compiled_sweep, threads=self._threads))
        states = self._states(lanes)
        order = np.asarray(lanes, dtype=np.int64)
        residuals = np.empty((len(order), 3))
        where = (states.f, states.f_at, states.g, states.g_at, states.eps)
        self._share(legs.verify_lanes, self._table, order, *where, residuals)
        return Residuals(*residuals.T.tolist())

    def emit(self, lanes: Sequence[int]) -> Emission:
        """Return copies for the caller; raises ContractError if a row of the table holds another lane's state."""
        if not lanes:
            return Emission([], [], [], [])
        for i, address in zip(lanes, self._table["f"][np.asarray(lanes, dtype=np.int64)].tolist(), strict=True):
            if address != self._lanes[i].address:
                raise ContractError(f"backend 'cpu': row {i} of the lane table does not hold the state of lane {i}")
        couple = partial(compiled_couplings, threads=self._threads)
        return self._states(lanes).emit([self._lanes[i].support for i in lanes], couple)

    def _states(self, lanes: Sequence[int]) -> States:
        """The states of lanes as they will be emitted, one after another in flat vectors."""
        order = np.asarray(lanes, dtype=np.int64)
        instances = [self._lanes[i].instance for i in lanes]
        f_at = np.concatenate([[0], np.cumsum(self._table["rows"][order])])
        g_at = np.concatenate([[0], np.cumsum(self._table["cols"][order])])
        f, g = np.empty(int(f_at[-1])), np.empty(int(g_at[-1]))
        legs.write_states(self._table, order, f, f_at, g, g_at, self._one)
        return States(instances, f, f_at, g, g_at)

    def freeze(self, lanes: Sequence[int]) -> None:
        """These lanes no longer change."""
        for i in lanes:
            self._lanes[i].frozen = True

    def repack(self, keep: Sequence[int], admit: Sequence[Instance[Any]] = ()) -> None:
        """Keep these records of the table, in this order, and append lanes of new instances."""
        table, lanes = self._open(admit)
        # All memory is allocated before anything is changed.
        rows = np.concatenate([words(self._table)[np.asarray(keep, dtype=np.int64)], words(table)])
        self._table, self._lanes = records(rows), [self._lanes[i] for i in keep] + lanes
        self._legs += len(lanes)

    def _open(self, instances: Sequence[Instance[Any]]) -> tuple[NDArray[Any], list[_Lane]]:
        """Lanes at depth zero, their first f-leg measured."""
        table, lanes = new_lanes(len(instances)), [_Lane(instance) for instance in instances]
        inner = [lane.inner for lane in lanes]
        # On one thread: small decompositions of several threads at once make BLAS libraries wait for one another.
        for places in groups(inner, self._dtype.itemsize):
            group = records(words(table)[places])
            memory = load_group([inner[i] for i in places], self._dtype, group, momentum=self._momentum)
            words(table)[places] = words(group)
            for i in places:
                lanes[i].memory = memory
            if group["is_shared"][0]:
                self._fill_shared(table, places)
        self._share(k.open_lanes, table, np.arange(len(instances)))
        for lane, address in zip(lanes, table["f"].tolist(), strict=True):
            lane.address = address
        for i in np.flatnonzero(table["state"] == NEEDS_KERNEL):
            self._add_kernel(lanes[i], table[i])
        return table, lanes

    def _fill_shared(self, table: NDArray[Any], places: list[int]) -> None:
        """Compute a kernel that several lanes share, and give each a copy of F, the row potentials absorbed in it."""
        lane = table[places[0]]
        if not math.isfinite(lane["score_rounding"]):
            return
        rows = int(lane["rows"])
        parts = legs.groups_of(rows)
        bounds = [rows * part // parts for part in range(parts + 1)]
        each(self._threads, lambda part: k.fill_cold_rows(lane, bounds[part], bounds[part + 1], self._one), parts)
        k.copy_base(table, np.asarray(places, dtype=np.int64))

    def _add_kernel(self, owner: _Lane, lane: Any) -> None:
        """Give a lane that shared its kernel one of its own, and absorb it there."""
        block = MemoryBlock(int(lane["rows"] * lane["cols"]) * self._dtype.itemsize)
        owner.memory = [*owner.memory, block]
        lane["kernel"], lane["is_shared"], lane["state"] = block.address, 0, FRESH
        k.run_phases(lane, k.ABSORB, self._one)

    def _run(self, moving: NDArray[np.int64], cycles: int, stops: NDArray[np.float64]) -> NDArray[np.int64]:
        """Run lanes until they are held or the cycles are over; returns cycles run, by lane."""
        ran = np.zeros(len(self._lanes), dtype=np.int64)
        pairs = self._table["rows"][moving] * self._table["cols"][moving]
        if moving.size < self._threads and pairs.max() >= SPLIT_PAIRS:
            for i in moving:
                self._run_split(int(i), cycles, stops, ran)
            return ran
        order = moving[np.argsort(-pairs, kind="stable")]
        self._share(k.run_lanes, self._table, order, cycles, stops, ran)
        while (waiting := order[self._table["state"][order] == NEEDS_KERNEL]).size:
            for i in waiting:
                self._add_kernel(self._lanes[i], self._table[i])
            again = [i for i in waiting if ran[i] < cycles and not self._is_held(i, stops)]
            for left in sorted({int(cycles - ran[i]) for i in again}):
                some = np.array([i for i in again if cycles - ran[i] == left], dtype=np.int64)
                self._share(k.run_lanes, self._table, some, left, stops, ran)
        return ran

    def _run_split(self, i: int, cycles: int, stops: NDArray[np.float64], ran: NDArray[np.int64]) -> None:
        """`run_lanes` for one large lane: the groups of each phase are shared among the threads."""
        table, one = self._table, self._one
        groups, states = legs.groups_of(int(table["rows"][i])), table["state"]
        for _ in range(cycles):
            phase = k.begin_row(table, i, one)
            while phase != k.DONE:
                each(self._threads, lambda group, phase=phase: k.run_row_group(table, i, phase, group, one), groups)
                phase = k.end_row_phase(table, i, phase, one)
            if states[i] == NEEDS_KERNEL:
                self._add_kernel(self._lanes[i], table[i])
            ran[i] += 1
            if self._is_held(i, stops):
                break

    def touch(self) -> None:
        """Call every kernel on the first lane, those that only large lanes need too, so that they are compiled."""
        self.advance(1, [-math.inf] * self.width)
        self._run_split(0, 1, np.array([-math.inf]), np.zeros(1, dtype=np.int64))
        self.verify([0])
        self.verify([0], exact=True)
        self.screen([0])
        k.fill_cold_rows(self._table[0], 0, 0, self._one)
        k.copy_base(self._table, np.zeros(1, dtype=np.int64))
        k.run_phases(self._table[0], k.DONE, self._one)
        legs.discard_lanes(self._table, np.arange(1), 0, 1, 1, self._one)

    def _share(self, kernel: Callable[..., None], table: Any, order: NDArray[np.int64], *rest: Any) -> None:
        """Let the threads take lanes in this order, a few at a time, so that a deep lane keeps few others waiting."""
        chunk = max(1, min(CHUNK, order.size // (16 * self._threads)))
        firsts = range(0, order.size, chunk)
        each(
            self._threads,
            lambda part: kernel(table, order, firsts[part], min(order.size, firsts[part] + chunk), *rest, self._one),
            len(firsts),
        )


@lru_cache(maxsize=8)
def compile_kernels(kernels: str) -> None:
    """Run a set of kernels once on a tiny problem, so that they are compiled, or loaded from the kernel cache.

    Args:
        kernels: "float32" or "float64" for cached lanes of that precision, or "streaming".
    """
    with compiling(kernels):
        points, weights = np.array([[0.0], [1.0]]), np.array([0.5, 0.5])
        instance = Instance(x=points, y=points, a=weights, b=weights, eps=1.0, tol=1.0, cost=Cost(COSTS["sqeuclidean"]))
        if kernels == "streaming":
            for dtype in (FLOAT32, FLOAT64):
                StreamingPack([instance], Arithmetic(dtype, is_streaming=True), 1).verify([0], exact=True)
        else:
            for start in ("zero", "gaussian"):
                CpuPack([replace(instance, init=start)], np.dtype(kernels), threads=1, momentum=True).touch()
