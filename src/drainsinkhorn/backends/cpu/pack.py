"""The pack of the CPU backend: a table of lanes whose vectors live in arenas, and threads that share the lanes."""

from __future__ import annotations

import ctypes
import logging
import math
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.backends.arrays import to_numpy
from drainsinkhorn.backends.costs import COSTS, UNIT, unit_rows
from drainsinkhorn.backends.cpu import kernels as k
from drainsinkhorn.backends.cpu.layout import farthest
from drainsinkhorn.backends.cpu.streaming import StreamingPack
from drainsinkhorn.backends.cpu.threads import each
from drainsinkhorn.backends.door import sizes
from drainsinkhorn.backends.emission import Rounded, emission, rounded
from drainsinkhorn.backends.support import restrict
from drainsinkhorn.core.problem import Cost, Problem
from drainsinkhorn.core.protocol import Emission, Progress, Spent, is_held
from drainsinkhorn.core.result import UNKNOWN, Residual

_log = logging.getLogger("drainsinkhorn")

SPLIT_PAIRS = 2**20
"""Pairs from which one lane's sweep is worth sharing among threads."""

ARENA_BYTES = 2**22
"""Small lanes share an arena of about this size; a larger lane has its own, which is freed when it leaves."""


POOL_BYTES = 2**28
"""Memory of retired lanes that is kept for the next ones."""


def type_band(rows: int, cols: int, dtype: np.dtype[Any]) -> float:
    """Rounding of sums in a dtype: errors of n terms add up like sqrt(n) units, taken eightfold; see docs/adr/0007."""
    unit = float(np.finfo(dtype).eps) / 2
    return unit * (8 + 4 * math.sqrt(max(rows, cols)))


class _Lane:
    """A problem and the arenas that hold its vectors."""

    __slots__ = ("frozen", "inner", "keep", "problem", "support")

    def __init__(self, problem: Problem[Any]) -> None:
        self.problem = problem
        self.inner, self.support = restrict(problem)
        self.keep: list[Any] = []
        self.frozen = False


class _Block:
    """Memory of an arena. It goes to a pool when the last lane lets go of it: fresh pages cost more than a sweep."""

    idle: ClassVar[dict[int, list[NDArray[np.uint8]]]] = {}
    idle_bytes: ClassVar[int] = 0
    lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, size: int) -> None:
        # Sizes in steps of an eighth, so that unequal lanes can follow one another.
        step = max(4096, 1 << (size.bit_length() - 4))
        self.size = -(-size // step) * step
        with _Block.lock:
            waiting = _Block.idle.get(self.size)
            self.memory = waiting.pop() if waiting else None
            _Block.idle_bytes -= self.size if self.memory is not None else 0
        if self.memory is None:
            self.memory = np.empty(self.size, dtype=np.uint8)
        self.address = self.memory.ctypes.data

    def __del__(self) -> None:
        memory = getattr(self, "memory", None)
        if memory is not None and _Block.idle_bytes + self.size <= POOL_BYTES:
            # No lock: a collection may run this on a thread that holds it. Lists and dicts are safe by themselves.
            _Block.idle.setdefault(self.size, []).append(memory)
            _Block.idle_bytes += self.size


class _Arena:
    """Hands out addresses of vectors, aligned to cache lines, once it knows how much is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, int]] = []
        self.bytes = 0

    def ask(self, lane: int, field: int, size: int, itemsize: int) -> None:
        self.asked.append((lane, field, self.bytes))
        self.bytes += -(-size * itemsize // 64) * 64

    def fill(self, table: NDArray[np.int64]) -> _Block:
        block = _Block(self.bytes + 64)
        base = -(-block.address // 64) * 64
        for lane, field, offset in self.asked:
            table[lane, field] = base + offset
        return block


class CpuPack:
    """Lanes of one precision. Narrower means: fewer rows in the table; nothing is copied."""

    def __init__(self, problems: Sequence[Problem[Any]], dtype: np.dtype[Any], threads: int) -> None:
        self._dtype = dtype
        self._one = dtype.type(1)
        self._threads = threads
        self._lanes: list[_Lane] = []
        self._table = np.empty((0, k.FIELDS), dtype=np.int64)
        self._numbers = np.empty((0, k.NUMBERS))
        self._slots = 0
        self._legs = 0
        self.repack([], problems)

    @property
    def width(self) -> int:
        """The number of lanes."""
        return len(self._lanes)

    @property
    def spent(self) -> Spent:
        """Slots and legs so far."""
        return Spent(self._slots, self._legs)

    def advance(self, cycles: int, stops: Sequence[float], *, lockstep: bool = False) -> list[Progress]:
        """Each lane runs on one thread until it is held or the cycles are over; few large lanes are shared."""
        moving = np.array([i for i, lane in enumerate(self._lanes) if not lane.frozen], dtype=np.int64)
        frozen = np.array([i for i, lane in enumerate(self._lanes) if lane.frozen], dtype=np.int64)
        limits = np.asarray(stops, dtype=np.float64)
        done = 0
        while moving.size and done < cycles:
            span = 1 if lockstep else cycles
            ran = self._run(moving, span, limits)
            longest = int(ran.max())
            self._share(k.discard_lanes, self._table, self._numbers, frozen, longest)
            done += span
            executed = int(ran.sum()) + longest * frozen.size
            self._slots += executed
            self._legs += 2 * executed
            if lockstep and any(is_held(float(self._numbers[i, k.STALE]), float(limits[i])) for i in moving):
                break
        return [
            Progress(int(d), float(s)) for d, s in zip(self._table[:, k.DEPTH], self._numbers[:, k.STALE], strict=True)
        ]

    def screen(self, lanes: Sequence[int]) -> list[float]:
        """The row residual of the state, in a pass of its own."""
        self._legs += len(lanes)
        return [float(k.screen_lane(self._table[i], self._numbers[i], self._one)) for i in lanes]

    def verify(self, lanes: Sequence[int], *, exact: bool = False) -> list[Residual]:
        """Both sides of the state as it will be emitted; `exact` in float64 in the log domain."""
        self._legs += 2 * len(lanes)
        states = [self._rounded(i) for i in lanes]
        found: list[Residual] = [UNKNOWN] * len(lanes)

        def check(place: int) -> None:
            found[place] = self._check(lanes[place], states[place].f, states[place].g, exact=exact)

        each(self._threads, check, len(lanes))
        return found

    def emit(self, lanes: Sequence[int]) -> list[Emission]:
        """Copies for the caller."""
        return [emission(self._lanes[i].problem, self._rounded(i), self._lanes[i].support) for i in lanes]

    def freeze(self, lanes: Sequence[int]) -> None:
        """These lanes no longer change."""
        for i in lanes:
            self._lanes[i].frozen = True

    def repack(self, keep: Sequence[int], admit: Sequence[Problem[Any]] = ()) -> None:
        """Keep these rows of the table, in this order, and append the admitted."""
        table, numbers, lanes = self._open(admit)
        kept = np.asarray(keep, dtype=np.int64)
        self._table = np.concatenate([self._table[kept], table])
        self._numbers = np.concatenate([self._numbers[kept], numbers])
        self._lanes = [self._lanes[i] for i in keep] + lanes
        self._legs += len(lanes)

    def _open(self, problems: Sequence[Problem[Any]]) -> tuple[NDArray[np.int64], NDArray[np.float64], list[_Lane]]:
        """Lanes at depth zero, their first f-leg measured."""
        table = np.zeros((len(problems), k.FIELDS), dtype=np.int64)
        numbers = np.zeros((len(problems), k.NUMBERS))
        lanes = [_Lane(problem) for problem in problems]
        arena, members = _Arena(), list[_Lane]()
        for i, lane in enumerate(lanes):
            self._lay_out(i, lane.inner, arena, table)
            members.append(lane)
            if arena.bytes >= ARENA_BYTES or i == len(lanes) - 1:
                block = arena.fill(table)
                for member in members:
                    member.keep.append(block)
                arena, members = _Arena(), []
        for lane, row, floats in zip(lanes, table, numbers, strict=True):
            lane.keep += self._load(lane.inner, row, floats)
        self._share(k.open_lanes, table, numbers, np.arange(len(problems)))
        return table, numbers, lanes

    def _lay_out(self, i: int, problem: Problem[Any], arena: _Arena, table: Any) -> None:
        """Sizes of a lane, and the memory it asks for."""
        n, m = sizes(problem)
        table[i, k.ROWS], table[i, k.COLS] = n, m
        item = self._dtype.itemsize
        for field, size in ((k.KERNEL, n * m), (k.A, n), (k.B, m), (k.U, n), (k.V, m), (k.W, m), (k.R, n), (k.C, m)):
            arena.ask(i, field, size, item)
        arena.ask(i, k.PARTS, k.groups_of(n) * m, item)
        for field, size in (
            (k.EXACT_A, n),
            (k.EXACT_B, m),
            (k.STATE_F, n),
            (k.STATE_G, m),
            (k.BASE_F, n),
            (k.BASE_G, m),
        ):
            arena.ask(i, field, size, 8)

    def _load(self, problem: Problem[Any], lane: Any, numbers: Any) -> list[Any]:
        """Write weights, start and costs of a problem; returns what must stay alive with the lane."""
        n, m = sizes(problem)
        _view(lane[k.A], n, self._dtype)[:] = _view(lane[k.EXACT_A], n)[:] = problem.a
        _view(lane[k.B], m, self._dtype)[:] = _view(lane[k.EXACT_B], m)[:] = problem.b
        for place, (field, size) in enumerate(((k.STATE_F, n), (k.STATE_G, m))):
            start = 0.0 if problem.init is None else to_numpy(problem.init[place]).astype(np.float64) / problem.eps
            _view(lane[field], size)[:] = start
        numbers[k.SUMS] = type_band(n, m, self._dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            return self._load_cost(problem, lane, numbers)

    def _load_cost(self, problem: Problem[Any], lane: Any, numbers: Any) -> list[Any]:
        """Write where the costs come from, and how far rounding can carry a score."""
        if not isinstance(problem.cost, Cost):
            cost = to_numpy(problem.cost)
            single = cost.dtype == np.float32
            cost = np.ascontiguousarray(cost, dtype=np.float32 if single else np.float64)
            lane[k.X], lane[k.KIND] = cost.ctypes.data, k.DENSE32 if single else k.DENSE64
            numbers[k.FACTOR] = 1 / problem.eps
            numbers[k.ROUNDING] = 4 * UNIT * np.float64(np.abs(cost).max()) / problem.eps
            return [cost]
        x, y = to_numpy(problem.x).astype(np.float64), to_numpy(problem.y).astype(np.float64)
        kind, factor, dim = problem.cost.kind, problem.cost.scale / problem.eps, x.shape[1]
        if kind == "cosine":
            # 1 - cos is half the squared distance of unit vectors.
            x, y = unit_rows(x), unit_rows(y)
        far = farthest(x, y)
        if kind == "euclidean" and 0 < far < math.inf:
            # By a power of two, so that squares neither overflow nor vanish.
            scale = 2.0 ** math.frexp(far)[1]
            x, y, far, factor = x / scale, y / scale, far / scale, factor * scale
        largest = {"sqeuclidean": far * far, "euclidean": far, "cosine": far * far / 2}[kind]
        numbers[k.ROUNDING] = 2 * factor * (COSTS[kind].rounding(dim, largest) + 4 * UNIT * largest)
        numbers[k.FACTOR] = factor / 2 if kind == "cosine" else factor
        lane[k.KIND] = k.EUCLIDEAN if kind == "euclidean" else k.SQEUCLIDEAN
        x, y = np.ascontiguousarray(x), np.ascontiguousarray(y.T)
        lane[k.X], lane[k.Y], lane[k.DIM] = x.ctypes.data, y.ctypes.data, dim
        return [x, y]

    def _state(self, i: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The potentials of a lane, in units of the cost."""
        f, g = np.empty(int(self._table[i, k.ROWS])), np.empty(int(self._table[i, k.COLS]))
        k.state_of(self._table[i], self._one, f, g)
        eps = self._lanes[i].problem.eps
        return eps * f, eps * g

    def _rounded(self, i: int) -> Rounded:
        return rounded(self._lanes[i].problem, *self._state(i))

    def _check(self, i: int, f: NDArray[np.float64], g: NDArray[np.float64], *, exact: bool) -> Residual:
        lane, numbers, problem = self._table[i], self._numbers[i], self._lanes[i].inner
        if lane[k.STATE] == k.POISONED:
            return UNKNOWN
        f, g = f / problem.eps, g / problem.eps
        found: Any
        if exact or lane[k.STATE] == k.FRESH:
            found = k.verify_exact(lane, numbers, f, g)
            return Residual(*found, float(numbers[k.BAND]))
        found = k.verify_absorbed(lane, f, g, self._one)
        return Residual(*found, float(numbers[k.BAND] + numbers[k.SUMS]))

    def _run(self, moving: NDArray[np.int64], cycles: int, stops: NDArray[np.float64]) -> NDArray[np.int64]:
        """Run lanes until they are held or the cycles are over; returns cycles run, by lane."""
        ran = np.zeros(len(self._lanes), dtype=np.int64)
        pairs = self._table[moving, k.ROWS] * self._table[moving, k.COLS]
        if moving.size < self._threads and pairs.max() >= SPLIT_PAIRS:
            for i in moving:
                self._run_split(int(i), cycles, float(stops[i]), ran)
            return ran
        self._share(
            k.run_lanes, self._table, self._numbers, moving[np.argsort(-pairs, kind="stable")], cycles, stops, ran
        )
        return ran

    def _run_split(self, i: int, cycles: int, stop: float, ran: NDArray[np.int64]) -> None:
        """One large lane, its sweep shared among the threads."""
        lane, numbers = self._table[i], self._numbers[i]
        groups = k.groups_of(int(lane[k.ROWS]))
        for _ in range(cycles):
            lane[k.DEPTH] += 1
            if lane[k.STATE] == k.POISONED:
                pass
            elif k.begin_cycle(lane, self._one):
                each(self._threads, lambda group: k.sweep_group(lane, group, self._one), groups)
                if not k.end_sweep(lane, numbers, self._one):
                    k.unfold(lane, self._one)
                    self._absorb_split(lane, numbers, groups)
            else:
                k.log_leg(lane, numbers)
                self._absorb_split(lane, numbers, groups)
            ran[i] += 1
            if is_held(numbers[k.STALE], stop):
                break

    def _absorb_split(self, lane: Any, numbers: Any, groups: int) -> None:
        if lane[k.STATE] != k.POISONED:
            each(self._threads, lambda group: k.absorb_group(lane, numbers, group, self._one), groups)
            k.end_absorb(lane, numbers, self._one)

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


def _view(address: Any, size: int, dtype: Any = np.float64) -> NDArray[Any]:
    """The vector at an address of an arena."""
    memory: Any = (ctypes.c_char * (size * np.dtype(dtype).itemsize)).from_address(int(address))
    return np.frombuffer(memory, dtype=dtype)


@lru_cache(maxsize=4)
def compile_kernels(dtype: np.dtype[Any], *, streaming: bool) -> None:
    """Run every kernel once on a tiny problem. What Numba compiles it keeps on disk; what takes long is announced."""
    what = "streaming" if streaming else dtype.name
    said = threading.Timer(2.0, _log.warning, ["compiling CPU kernels (%s), once for this machine, about 20 s", what])
    said.daemon = True
    said.start()
    try:
        points, weights = np.array([[0.0], [1.0]]), np.array([0.5, 0.5])
        problem = Problem(x=points, y=points, a=weights, b=weights, eps=1.0, tol=1.0, cost=Cost())
        if streaming:
            for precision in ("float32", "float64"):
                StreamingPack([problem], 1, precision).verify([0], exact=True)
        else:
            _touch(CpuPack([problem], dtype, threads=1))
    finally:
        said.cancel()


def _touch(pack: CpuPack) -> None:
    """Call every kernel of a pack of one lane, those that only large lanes need too."""
    pack.advance(2, [-math.inf])
    pack.verify([0])
    pack.verify([0], exact=True)
    pack.freeze([0])
    pack.advance(1, [-math.inf])
    lane, numbers, one = pack._table[0], pack._numbers[0], pack._one
    k.discard_lanes(pack._table, pack._numbers, np.arange(1), 0, 1, 1, one)
    k.unfold(lane, one)
    k.absorb_group(lane, numbers, 0, one)
    k.end_absorb(lane, numbers, one)
    k.log_leg(lane, numbers)
    k.begin_cycle(lane, one)
    k.sweep_group(lane, 0, one)
    k.end_sweep(lane, numbers, one)
