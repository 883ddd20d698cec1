"""Measure the width-cost curve of a backend, mostly in runs of `solve`, where the executor calls it as usual."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from drainsinkhorn.backends import choose, load
from drainsinkhorn.backends.wrapped import WrappedBackend, WrappedPack
from drainsinkhorn.core.audit import Audit
from drainsinkhorn.core.options import MODES
from drainsinkhorn.core.protocol import Backend, Progress
from drainsinkhorn.model.errors import OptionsError
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Problem
from drainsinkhorn.run.solve import solve
from drainsinkhorn.run.validate import validate
from drainsinkhorn.theory.cost import Price, WidthCost

ROUNDS = 5
SETTLED = 32
"""Cycles after which a lane's cycles cost what they cost from then on."""
OFTEN = 8
"""Cycles between audits where calls are short; the default of Audit."""


def typical(seconds: Iterable[float]) -> float:
    """The lower quartile."""
    ordered = sorted(seconds)
    return ordered[(len(ordered) - 1) // 4]


def clouds(shape: tuple[int, int, int], count: int, eps: float, seed: int = 0) -> list[Problem[Any]]:
    """Gaussian clouds of a shape (n, m, d), no two alike."""
    n, m, d = shape
    rng = np.random.default_rng(seed)
    return [Problem(x=rng.normal(size=(n, d)), y=rng.normal(size=(m, d)), eps=eps) for _ in range(count)]


def profile_width_cost(
    backend: str | Backend[Any],
    shape: tuple[int, int, int],
    *,
    widths: Sequence[int] = (1, 2, 3, 4, 6, 8, 12, 16),
    seconds: float = 4.0,
    eps: float = 0.1,
    tol: float = 1e-3,
    accelerate: str = "none",
    problems: Sequence[Problem[Any]] | None = None,
) -> WidthCost:
    """Measure what a cycle costs at each width, and what a screen, a verify, a repack and an opening cost.

    Widths are measured in turns and lower quartiles are taken: what else runs on the machine can only add time.

    Args:
        backend: "auto", a name, or a Backend.
        shape: (n, m, d) of the problems.
        widths: Widths to measure.
        seconds: How long to measure, about.
        eps: Entropic strength of the problems; it decides how often a backend must take care of its range.
        tol: Accuracy they are solved to; it decides the precision a backend takes.
        accelerate: The acceleration to measure with.
        problems: Problems of that shape to measure with; None: Gaussian clouds. Where costs are large against eps a
            cycle can take a third longer, so problems like those asked about predict best.

    Examples:
        >>> cost = profile_width_cost("cpu", (40, 50, 2), widths=(1, 2, 4), seconds=0.2)
        >>> cost.predict([30, 60, 90, 300], "compact", 4).slots
        480
    """
    ladder = tuple(sorted(set(widths)))
    if not ladder or not all(isinstance(w, int) and w >= 1 for w in ladder) or not seconds > 0:
        raise OptionsError(f"widths must be integers of at least 1 and seconds positive, got {widths}, {seconds}")
    chosen = _choose(backend, accelerate)
    kinds = list(problems or clouds(shape, ladder[-1], eps))
    measured = [kinds[place % len(kinds)] for place in range(ladder[-1])]
    lanes = [validate(problem, tol) for problem in measured]
    chosen.prepare(lanes)
    trials = _Trials(chosen, _with_later_starts(chosen, measured, lanes), tol, accelerate, ladder)
    trials.repeat(0.65 * seconds)
    cycle, call, lockstep = trials.curves()
    pack, cold = _openings(chosen, lanes, ladder, [b + SETTLED * c for b, c in zip(call, cycle, strict=True)], seconds)
    outside, audit = trials.outside()
    frozen = _frozen(chosen, lanes, ladder, 0.1 * seconds)
    screen, repack = _pack_prices(chosen, lanes, 0.05 * seconds)
    return WidthCost(
        backend=chosen.name, shape=shape, widths=ladder, cycle=cycle, call=call, lockstep=lockstep, frozen=frozen,
        cold=cold, screen=screen, verify=trials.price("verify"), emit=trials.price("emit"), pack=pack, repack=repack,
        outside=outside, audit=audit, hints=chosen.hints(lanes[0]),
    )  # fmt: skip


def _choose(backend: str | Backend[Any], accelerate: str) -> Backend[Any]:
    chosen = choose()[0] if backend == "auto" else load(backend) if isinstance(backend, str) else backend
    if accelerate not in chosen.accelerations:
        raise OptionsError(f"accelerate={accelerate!r} is not offered by {chosen.name!r}: {list(chosen.accelerations)}")
    return chosen.using(accelerate)


class _Endless(WrappedBackend):
    """A backend whose lanes never pass before their depth limit, so that a run has exactly the cycles asked for."""

    def pack(self, instances: Sequence[Instance[Any]]) -> _EndlessPack:
        return _EndlessPack(self.inner.pack(instances))


class _EndlessPack(WrappedPack):
    def advance(self, cycles: int, stops: Sequence[float], *, lockstep: bool = False) -> Progress:
        progress = self.inner.advance(cycles, [-math.inf] * len(stops), lockstep=lockstep)
        return Progress(progress.depths, [math.inf] * len(stops))


@dataclass(frozen=True, slots=True)
class _Trial:
    """A run at one width, ended by a depth limit.

    Attributes:
        seconds: Seconds in each method of the backend.
        outside: Seconds outside these methods.
        audits: Number of audits.
        screened: Lanes screened, summed over audits.
    """

    seconds: dict[str, float]
    outside: float
    audits: int
    screened: int


class _Trials:
    """Runs at every width: with short calls, with one long call, and in lockstep."""

    def __init__(
        self,
        backend: Backend[Any],
        problems: Sequence[Problem[Any]],
        tol: float,
        accelerate: str,
        widths: Sequence[int],
    ) -> None:
        self._backend, self._problems, self._tol, self._accelerate = _Endless(backend), problems, tol, accelerate
        self._widths = widths
        self._trials: dict[tuple[str, int], list[_Trial]] = {}
        self._depth = 4 * OFTEN

    def repeat(self, seconds: float) -> None:
        """Run the trials in turns until the time is over; the time decides how many cycles a run has."""
        start = time.perf_counter()
        self._round()
        once = (time.perf_counter() - start) / self._depth
        self._depth = OFTEN * max(4, min(64, int(seconds / (2 * ROUNDS * once)) // OFTEN))
        self._trials.clear()
        rounds = 0
        while rounds < ROUNDS or time.perf_counter() - start < seconds:
            self._round()
            rounds += 1

    def _round(self) -> None:
        for width in self._widths:
            for kind, mode, every in (
                ("short", "compact", OFTEN),
                ("long", "compact", self._depth),
                ("step", "static", OFTEN),
            ):
                self._trials.setdefault((kind, width), []).append(self._run(width, mode, every))

    def _run(self, width: int, mode: str, every: int) -> _Trial:
        start = time.perf_counter()
        solution = solve(
            list(self._problems[:width]),
            tol=self._tol,
            backend=self._backend,
            mode=MODES[mode],
            width=width,
            audit=Audit(every=every),
            max_depth=self._depth,
            rescue=False,
            warn=False,
            accelerate=self._accelerate,
        )
        ledger = solution.ledger
        outside = time.perf_counter() - start - sum(ledger.seconds.values())
        return _Trial(ledger.seconds, outside, ledger.audits, ledger.screened)

    def _median(self, kind: str, width: int, verb: str) -> float:
        return typical(trial.seconds.get(verb, 0.0) for trial in self._trials[kind, width])

    def curves(self) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
        """Seconds at each width: per cycle, `c(A)`; per call without its cycles; and what lockstep adds to a cycle."""
        calls, cycle, call, lockstep = self._depth // OFTEN, list[float](), list[float](), list[float]()
        for width in self._widths:
            short, long, step = (self._median(kind, width, "advance") for kind in ("short", "long", "step"))
            call.append(max(0.0, short - long) / (calls - 1))
            cycle.append(max(0.0, long - call[-1]) / self._depth)
            lockstep.append(max(0.0, step - short) / self._depth)
        return tuple(cycle), tuple(call), tuple(lockstep)

    def price(self, verb: str) -> Price:
        """Price of a method of the backend that every run calls once with all its lanes."""
        return _fit(self._widths, [self._median("short", width, verb) for width in self._widths])

    def outside(self) -> tuple[Price, Price]:
        """Prices outside the methods of the backend: of a solve and per problem; per audit and per lane screened."""
        rows, seconds = list[tuple[float, ...]](), list[float]()
        for (kind, width), trials in self._trials.items():
            if kind != "step":
                rows.append((1.0, width, trials[0].audits, trials[0].screened))
                seconds.append(typical(trial.outside for trial in trials))
        prices = _nonnegative(np.array(rows), np.array(seconds))
        return Price(prices[0], prices[1]), Price(prices[2], prices[3])


def _nonnegative(rows: Any, seconds: Any) -> list[float]:
    """Least squares; a column whose price would be negative is left out, and the others are fitted again."""
    columns = list(range(rows.shape[1]))
    while True:
        fitted = np.linalg.lstsq(rows[:, columns], seconds, rcond=None)[0]
        nonnegative = [column for column, value in zip(columns, fitted, strict=True) if value >= 0]
        if len(nonnegative) == len(columns):
            prices = [0.0] * rows.shape[1]
            for column, value in zip(columns, fitted, strict=True):
                prices[column] = float(value)
            return prices
        columns = nonnegative


def _fit(lanes: Sequence[int], seconds: Sequence[float]) -> Price:
    """Fit the cost of a call and that of each lane to measured costs, both without a negative value."""
    if len(set(lanes)) < 2:
        return Price(0.0, statistics.fmean(seconds) / lanes[0])
    call, lane = _nonnegative(np.array([(1.0, count) for count in lanes]), np.array(seconds))
    return Price(call, lane)


def _seconds_of(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _price(call: Callable[[int], object], before: Callable[[int], object], widest: int, seconds: float) -> Price:
    """Fit the price of `call`, timed right after `before`, each with one lane, half of the lanes and all lanes."""
    lanes = sorted({1, max(1, widest // 2), widest})
    times: dict[int, list[float]] = {count: [] for count in lanes}
    until = time.perf_counter() + seconds
    while len(times[lanes[0]]) < 3 or time.perf_counter() < until:
        for count in lanes:
            before(count)
            times[count].append(_seconds_of(partial(call, count)))
    return _fit(lanes, [typical(times[count]) for count in lanes])


def _pack_prices(backend: Backend[Any], lanes: Sequence[Instance[Any]], seconds: float) -> tuple[Price, Price]:
    """Prices of a screen and of a repack."""
    pack = backend.pack(lanes)
    # A screen comes after cycles: on lanes that have just been opened it can cost many times as much.
    pack.advance(SETTLED, [-math.inf] * len(lanes))

    def screen(count: int) -> object:
        return pack.screen(range(count))

    # It mostly comes after a screen of the same lanes, for which a backend may have prepared something.
    screens = _price(screen, screen, len(lanes), seconds)
    repacks = _price(lambda count: pack.repack(range(count)), lambda _: pack.repack([], lanes), len(lanes), seconds)
    return screens, repacks


def _with_later_starts(
    backend: Backend[Any], problems: Sequence[Problem[Any]], lanes: Sequence[Instance[Any]]
) -> list[Problem[Any]]:
    """The problems, started from potentials after SETTLED cycles: first cycles cost more and are timed apart."""
    pack = backend.pack(lanes)
    pack.advance(SETTLED, [-math.inf] * len(lanes))
    emitted = pack.emit(range(len(lanes)))
    return [replace(problem, init=emitted.potentials(lane)) for lane, problem in enumerate(problems)]


def _openings(
    backend: Backend[Any],
    lanes: Sequence[Instance[Any]],
    widths: Sequence[int],
    later: Sequence[float],
    seconds: float,
) -> tuple[Price, Price]:
    """The cost of opening a pack, and by how much its first cycles cost more than as many `later` cycles."""
    opening: dict[int, list[float]] = {width: [] for width in widths}
    first: dict[int, list[float]] = {width: [] for width in widths}
    until = time.perf_counter() + 0.1 * seconds
    while len(first[widths[0]]) < 3 or time.perf_counter() < until:
        for width in widths:
            start = time.perf_counter()
            pack = backend.pack(lanes[:width])
            opening[width].append(time.perf_counter() - start)
            first[width].append(_seconds_of(partial(pack.advance, SETTLED, [-math.inf] * width)))
    extra = [max(0.0, typical(first[width]) - cost) for width, cost in zip(widths, later, strict=True)]
    return _fit(widths, [typical(opening[width]) for width in widths]), _fit(widths, extra)


def _frozen(
    backend: Backend[Any], lanes: Sequence[Instance[Any]], widths: Sequence[int], seconds: float
) -> tuple[float, ...]:
    """What a cycle in lockstep costs more once half of the lanes are frozen, at each width."""
    extra = list[float]()
    for width in widths:
        packs = [backend.pack(lanes[:width]) for _ in range(2)]
        packs[1].freeze(range(width // 2))
        until, times = time.perf_counter() + seconds / len(widths), ([], [])
        while len(times[0]) < 3 or time.perf_counter() < until:
            for pack, laps in zip(packs, times, strict=True):
                laps.append(_seconds_of(partial(pack.advance, 4, [-math.inf] * width, lockstep=True)))
        extra.append(max(0.0, typical(times[1]) - typical(times[0])) / 4)
    return tuple(extra)
