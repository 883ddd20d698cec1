"""The pack of the CPU backend: a table of lanes whose vectors live in blocks, and threads that share the lanes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.backends.certificate import certificates
from drainsinkhorn.backends.cpu import leg_kernels as legs
from drainsinkhorn.backends.cpu import update_kernels as k
from drainsinkhorn.backends.cpu.certificate_kernels import compiled_sweep
from drainsinkhorn.backends.cpu.compile_worker import compile_apart
from drainsinkhorn.backends.cpu.kernel_cache import compiling
from drainsinkhorn.backends.cpu.lane_table import FRESH, NEEDS_KERNEL, NOT_FINITE, new_lanes, records, words
from drainsinkhorn.backends.cpu.loading import Memory, groups, load_group
from drainsinkhorn.backends.cpu.plan_kernels import compiled_couplings
from drainsinkhorn.backends.cpu.precision import FLOAT32, FLOAT64, CpuArithmetic
from drainsinkhorn.backends.cpu.resources import MemoryBlock, each
from drainsinkhorn.backends.cpu.streaming import StreamingPack
from drainsinkhorn.backends.emission import CHOICES, SHORT, Rounded, Vector, budget, emit_states, least_damping
from drainsinkhorn.backends.support import Couple, Support, restrict_all
from drainsinkhorn.core.protocol import Emission, Progress, Spent, is_held
from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.errors import ContractError
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.instances import InstanceStack, join, strengths, take
from drainsinkhorn.model.instances import each as for_each
from drainsinkhorn.model.marginal import BALANCED
from drainsinkhorn.model.result import Residuals
from drainsinkhorn.numerics.arrays import float_name, round_to
from drainsinkhorn.numerics.costs import COSTS

FORMS = ("distances", "matrix")
"""Forms of costs that it has kernels for."""

CHUNK = 16
"""Lanes that a thread takes at once to run them, at most, so that deep lanes keep few others waiting."""
SPLIT_PAIRS = 2**20
"""Pairs from which one lane's sweep is worth sharing among threads."""


class _Lanes(NamedTuple):
    """Lanes as columns.

    Attributes:
        instances: Their problems.
        supports: Which points carry weight; None: all of them.
        memory: Blocks and arrays to which each record of the lane table refers.
        addresses: The address of each lane's potentials f, (lanes,). It is unique to the lane, and its record holds the
            same address, which `emit` compares.
        frozen: Which lanes are frozen, (lanes,).
    """

    instances: Sequence[Instance[Any]]
    supports: list[Support | None]
    memory: list[Memory]
    addresses: NDArray[np.int64]
    frozen: NDArray[np.bool_]

    def followed_by(self, lanes: _Lanes, keep: Sequence[int]) -> _Lanes:
        """Return the lanes `keep`, in this order, and other lanes after them."""
        places = np.asarray(keep, dtype=np.int64)
        return _Lanes(
            join(take(self.instances, keep), lanes.instances) if keep else lanes.instances,
            [self.supports[i] for i in keep] + lanes.supports,
            [self.memory[i] for i in keep] + lanes.memory,
            np.concatenate([self.addresses[places], lanes.addresses]),
            np.concatenate([self.frozen[places], lanes.frozen]),
        )


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
        self.eps = np.array(strengths(instances))
        self.f, self.f_at, self.g, self.g_at = f, f_at, g, g_at
        f *= np.repeat(self.eps, np.diff(f_at))
        g *= np.repeat(self.eps, np.diff(g_at))
        self._are_plain = for_each(instances, _is_plain)
        names = dict[Any, str | None]()
        kinds = for_each(instances, lambda instance: (type(instance.like), instance.like.dtype))
        for place, kind in enumerate(kinds):
            if kind not in names:
                names[kind] = float_name(instances[place].like)
        self.own = [names[kind] for kind in kinds]
        self.dtypes = ["float64"] * len(instances)
        # Potentials in each dtype that some lanes get, for all lanes.
        self._rounded = {"float64": (f, g)}
        for name in SHORT:
            callers = {own for own in {*self.own} if name in CHOICES.get(own, ())}
            if callers:
                pairs = zip(self.own, self.dtypes, strict=True)
                self._round(np.array([dtype == "float64" and own in callers for own, dtype in pairs]), name)

    def _round(self, wanted: NDArray[np.bool_], name: str) -> None:
        """Round the potentials of those wanted lanes for which the dtype is accurate enough."""
        short = [round_to(vector, name) for vector in (self.f, self.g)]
        with np.errstate(invalid="ignore"):
            moved = _rounding_changes(self.f, short[0], self.f_at) + _rounding_changes(self.g, short[1], self.g_at)
        # Written so that NaN and inf, which overflow gives, lead to a wider dtype.
        tols = np.array(for_each(self.instances, lambda instance: instance.tol))
        # Of most lanes both marginals are hard, and many lanes are rounded at once.
        balanced = for_each(self.instances, lambda instance: instance.marginals is BALANCED)
        dampings = np.array(
            [1.0 if hard else least_damping(self.instances[place]) for place, hard in enumerate(balanced)]
        )
        fits = wanted & (moved <= budget(self.eps, tols, dampings))
        for vector, rounded, at in ((self.f, short[0], self.f_at), (self.g, short[1], self.g_at)):
            np.copyto(vector, rounded, where=True if fits.all() else np.repeat(fits, np.diff(at)))
        self._rounded[name] = short[0], short[1]
        self.dtypes = [name if fit else dtype for fit, dtype in zip(fits.tolist(), self.dtypes, strict=True)]

    def emit(self, places: Sequence[int], supports: Sequence[Support | None], couple: Couple | None = None) -> Emission:
        """Copies of some lanes' states for their callers; `supports` and `couple` as in `emit_states`.

        Args:
            places: Places of these lanes among all lanes here.
            supports: Which points carry weight, of each lane that is emitted.
            couple: Computes potentials of points without weight.
        """
        f_at, g_at = self.f_at.tolist(), self.g_at.tolist()
        instances = take(self.instances, places)
        widened = [self.dtypes[i] != self.own[i] for i in places]
        names = {self.dtypes[i] for i in places}
        if isinstance(instances, InstanceStack) and len(names) == 1 and all(for_each(instances, _is_plain)):
            # One size and one dtype: a block for all lanes.
            blocks: Any = (each.reshape(len(self.instances), -1) for each in self._rounded[names.pop()])
            f_rows, g_rows = (block[list(places)] for block in blocks)
            return Emission(f_rows, g_rows, widened, instances)
        pairs = [self._rounded[self.dtypes[i]] for i in places]
        f = [pair[0][f_at[i] : f_at[i + 1]].copy() for pair, i in zip(pairs, places, strict=True)]
        g = [pair[1][g_at[i] : g_at[i + 1]].copy() for pair, i in zip(pairs, places, strict=True)]
        emission = Emission(f, g, widened, instances)
        chosen = zip(places, supports, strict=True)
        others = [at for at, (i, support) in enumerate(chosen) if support is not None or not self._are_plain[i]]
        if others:
            states = [
                Rounded(self.f[f_at[i] : f_at[i + 1]], self.g[g_at[i] : g_at[i + 1]], self.dtypes[i])
                for i in (places[at] for at in others)
            ]
            instances, weightless = [emission.instances[at] for at in others], [supports[at] for at in others]
            emitted = emit_states(instances, states, weightless, couple)
            for at, f_of, g_of, wider in zip(others, emitted.f, emitted.g, emitted.widened, strict=True):
                f[at], g[at], widened[at] = f_of, g_of, wider
        return emission


def _rounding_changes(vector: Vector, rounded: NDArray[Any], at: NDArray[np.int64]) -> Vector:
    """Return the largest change of each lane's potentials by rounding to a dtype."""
    return np.maximum.reduceat(np.abs(rounded - vector), at[:-1])


class CpuPack:
    """Cached lanes of one precision. A narrower pack has fewer records in the lane table; nothing else is copied."""

    def __init__(
        self, instances: Sequence[Instance[Any]], dtype: np.dtype[Any], threads: int, *, momentum: bool = False
    ) -> None:
        self._dtype = dtype
        self._momentum = momentum
        self._one = dtype.type(1)
        self._threads = threads
        self._lanes = _Lanes([], [], [], np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.bool_))
        self._table = new_lanes(0)
        self._slots = 0
        self._legs = 0
        # The states that were verified last and their places by lane; None once lanes may have moved.
        self._verified: tuple[dict[int, int], States] | None = None
        self.repack([], instances)

    @property
    def width(self) -> int:
        """The number of lanes."""
        return len(self._table)

    @property
    def spent(self) -> Spent:
        """Slots and legs executed since the pack was built."""
        return Spent(self._slots, self._legs)

    def advance(self, cycles: int, stops: Sequence[float], *, lockstep: bool = False) -> Progress:
        """Each lane runs on one thread until it is held or the cycles are over; few large lanes are shared."""
        self._verified = None
        moving, frozen = np.flatnonzero(~self._lanes.frozen), np.flatnonzero(self._lanes.frozen)
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
            if lockstep and any(self._is_held(int(i), limits) for i in moving):
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
        self._verified = {lane: place for place, lane in enumerate(lanes)}, states
        order = np.asarray(lanes, dtype=np.int64)
        residuals = np.empty((len(order), 3))
        where = (states.f, states.f_at, states.g, states.g_at, states.eps)
        self._share(legs.verify_lanes, self._table, order, *where, residuals)
        return Residuals(*residuals.T.tolist())

    def emit(self, lanes: Sequence[int]) -> Emission:
        """Return copies for the caller; raises ContractError if a row of the table holds another lane's state."""
        if not lanes:
            return Emission([], [], [], [])
        order = np.asarray(lanes, dtype=np.int64)
        stray = order[self._table["f"][order] != self._lanes.addresses[order]]
        if stray.size:
            i = int(stray[0])
            raise ContractError(f"backend 'cpu': row {i} of the lane table does not hold the state of lane {i}")
        couple = partial(compiled_couplings, threads=self._threads)
        supports = [self._lanes.supports[i] for i in lanes]
        if self._verified is not None and self._verified[0].keys() >= set(lanes):
            known, states = self._verified
            return states.emit([known[lane] for lane in lanes], supports, couple)
        return self._states(lanes).emit(range(len(lanes)), supports, couple)

    def _states(self, lanes: Sequence[int]) -> States:
        """The states of lanes as they will be emitted, one after another in flat vectors."""
        order = np.asarray(lanes, dtype=np.int64)
        instances = take(self._lanes.instances, lanes)
        f_at = np.concatenate([[0], np.cumsum(self._table["rows"][order])])
        g_at = np.concatenate([[0], np.cumsum(self._table["cols"][order])])
        f, g = np.empty(int(f_at[-1])), np.empty(int(g_at[-1]))
        self._share(legs.write_states, self._table, order, f, f_at, g, g_at)
        return States(instances, f, f_at, g, g_at)

    def freeze(self, lanes: Sequence[int]) -> None:
        """These lanes no longer change."""
        self._lanes.frozen[list(lanes)] = True

    def repack(self, keep: Sequence[int], admit: Sequence[Instance[Any]] = ()) -> None:
        """Keep these records of the table, in this order, and append lanes of new instances."""
        table, lanes = self._open(admit)
        self._verified = None
        # All memory is allocated before anything is changed.
        rows = np.concatenate([words(self._table)[np.asarray(keep, dtype=np.int64)], words(table)])
        self._table, self._lanes = records(rows), self._lanes.followed_by(lanes, keep)
        self._legs += len(admit)

    def _open(self, instances: Sequence[Instance[Any]]) -> tuple[NDArray[Any], _Lanes]:
        """Lanes at depth zero, their first f-leg measured."""
        count, (inner, supports) = len(instances), restrict_all(instances, FORMS)
        table, memory = new_lanes(count), list[Memory]([()]) * count
        for places in groups(inner, self._dtype.itemsize):
            group = records(words(table)[places])
            chosen = take(inner, places)
            blocks = load_group(chosen, self._dtype, group, self._share, momentum=self._momentum)
            words(table)[places] = words(group)
            for i, block in zip(places, blocks, strict=True):
                memory[i] = block
        shared = np.flatnonzero(table["is_shared"])
        for kernel in np.unique(table["kernel"][shared]):
            self._fill_shared(table, shared[table["kernel"][shared] == kernel])
        self._share(k.open_lanes, table, np.arange(count))
        lanes = _Lanes(instances, supports, memory, table["f"].copy(), np.zeros(count, dtype=np.bool_))
        for i in np.flatnonzero(table["state"] == NEEDS_KERNEL):
            self._add_kernel(lanes, table, int(i))
        return table, lanes

    def _fill_shared(self, table: NDArray[Any], places: NDArray[np.int64]) -> None:
        """Compute a kernel that several lanes share, and give each a copy of F, the row potentials absorbed in it."""
        lane = table[places[0]]
        if not math.isfinite(lane["score_rounding"]):
            return
        rows = int(lane["rows"])
        parts = legs.groups_of(rows)
        bounds = [rows * part // parts for part in range(parts + 1)]
        each(self._threads, lambda part: k.fill_cold_rows(lane, bounds[part], bounds[part + 1], self._one), parts)
        k.copy_base(table, places)

    def _add_kernel(self, lanes: _Lanes, table: NDArray[Any], i: int) -> None:
        """Give a lane that shared its kernel one of its own, and absorb it there."""
        lane = table[i]
        block = MemoryBlock(int(lane["rows"] * lane["cols"]) * self._dtype.itemsize)
        lanes.memory[i] = (*lanes.memory[i], block)
        lane["kernel"], lane["is_shared"], lane["state"] = block.address, 0, FRESH
        k.run_phases(lane, k.ABSORB, self._one)

    def _run(self, moving: NDArray[np.int64], cycles: int, stops: NDArray[np.float64]) -> NDArray[np.int64]:
        """Run lanes until they are held or the cycles are over; returns cycles run, by lane."""
        ran = np.zeros(len(self._table), dtype=np.int64)
        pairs = self._table["rows"][moving] * self._table["cols"][moving]
        if moving.size < self._threads and pairs.max() >= SPLIT_PAIRS:
            for i in moving:
                self._run_split(int(i), cycles, stops, ran)
            return ran
        order = moving[np.argsort(-pairs, kind="stable")]
        self._share(k.run_lanes, self._table, order, cycles, stops, ran, chunk=CHUNK)
        while (waiting := order[self._table["state"][order] == NEEDS_KERNEL]).size:
            for i in waiting:
                self._add_kernel(self._lanes, self._table, int(i))
            again = [i for i in waiting if ran[i] < cycles and not self._is_held(i, stops)]
            for rest in sorted({int(cycles - ran[i]) for i in again}):
                group = np.array([i for i in again if cycles - ran[i] == rest], dtype=np.int64)
                self._share(k.run_lanes, self._table, group, rest, stops, ran, chunk=CHUNK)
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
                self._add_kernel(self._lanes, table, i)
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

    def _share(
        self, kernel: Callable[..., None], table: Any, order: NDArray[np.int64], *rest: Any, chunk: int = 2**63
    ) -> None:
        """Let the threads take lanes in this order, at most `chunk` at a time."""
        if order.size == 1:
            kernel(table, order, 0, 1, *rest, self._one)
            return
        chunk = max(1, min(chunk, order.size // (16 * self._threads)))
        firsts = range(0, order.size, chunk)
        each(
            self._threads,
            lambda part: kernel(table, order, firsts[part], min(order.size, firsts[part] + chunk), *rest, self._one),
            len(firsts),
        )


def _is_plain(instance: Instance[Any]) -> bool:
    """True if results are NumPy arrays."""
    return type(instance.like) is np.ndarray


@lru_cache(maxsize=8)
def compile_kernels(kernels: str) -> None:
    """Run a set of kernels once on a tiny problem, so that they are compiled, or loaded from the kernel cache.

    Kernels of cached lanes are compiled by two processes at once, and then loaded here.

    Args:
        kernels: "float32" or "float64" for cached lanes of that precision, or "streaming".
    """
    with compiling(kernels) as is_cold:
        if is_cold and kernels != "streaming":
            compile_apart(kernels)
        points, weights = np.array([[0.0], [1.0]]), np.array([0.5, 0.5])
        instance = Instance(x=points, y=points, a=weights, b=weights, eps=1.0, tol=1.0, cost=Cost(COSTS["sqeuclidean"]))
        if kernels == "streaming":
            for dtype in (FLOAT32, FLOAT64):
                StreamingPack([instance], CpuArithmetic(dtype, is_streaming=True), 1).verify([0], exact=True)
        else:
            for start in ("zero", "gaussian"):
                CpuPack([replace(instance, init=start)], np.dtype(kernels), threads=1, momentum=True).touch()
