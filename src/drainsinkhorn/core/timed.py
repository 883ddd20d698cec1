"""A backend that times its pack's verbs. It wraps; the loop and the backend know nothing of it."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from typing import Any, Generic

from drainsinkhorn.core.protocol import Backend, Emission, Pack, Progress, Spent
from drainsinkhorn.model.couplings import Couplings
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import A, Potentials
from drainsinkhorn.model.result import Residual


class Timed(Generic[A]):
    """Adds the wall time of every verb to `seconds`.

    Args:
        backend: The backend to run.
        seconds: Where to add up, by verb: prepare, pack, advance, screen, verify, emit, repack.
    """

    def __init__(self, backend: Backend[A], seconds: dict[str, float]) -> None:
        self._backend = backend
        self._seconds = seconds
        self.name = backend.name
        self.stride = backend.stride
        self.bitwise = backend.bitwise
        self.accelerations = backend.accelerations

    def signature(self, instance: Instance[A]) -> Hashable:
        return self._backend.signature(instance)

    def width_for(self, lanes: int) -> int:
        return self._backend.width_for(lanes)

    def natural_width(self, instance: Instance[A]) -> int:
        return self._backend.natural_width(instance)

    def natural_spacing(self, instance: Instance[A], *, refills: bool, holds: bool) -> int:
        return self._backend.natural_spacing(instance, refills=refills, holds=holds)

    def prepare(self, instances: Sequence[Instance[A]]) -> None:
        with _Lap(self._seconds, "prepare"):
            self._backend.prepare(instances)

    def pack(self, instances: Sequence[Instance[A]]) -> Pack[A]:
        with _Lap(self._seconds, "pack"):
            return _TimedPack(self._backend.pack(instances), self._seconds)

    def couple(self, instances: Sequence[Instance[A]], potentials: Sequence[Potentials[A]]) -> Couplings[A]:
        return self._backend.couple(instances, potentials)

    def using(self, acceleration: str) -> Backend[A]:
        return Timed(self._backend.using(acceleration), self._seconds)

    def describe(self, instance: Instance[A]) -> str:
        return self._backend.describe(instance)

    def precise(self) -> Backend[A]:
        return Timed(self._backend.precise(), self._seconds)

    def frugal(self) -> Backend[A]:
        return Timed(self._backend.frugal(), self._seconds)

    def release(self) -> None:
        self._backend.release()


class _Lap:
    def __init__(self, seconds: dict[str, float], verb: str) -> None:
        self._seconds, self._verb = seconds, verb

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._seconds[self._verb] = self._seconds.get(self._verb, 0.0) + time.perf_counter() - self._start


class _TimedPack(Generic[A]):
    def __init__(self, pack: Pack[A], seconds: dict[str, float]) -> None:
        self._pack = pack
        self._seconds = seconds

    @property
    def width(self) -> int:
        return self._pack.width

    @property
    def spent(self) -> Spent:
        return self._pack.spent

    def advance(self, cycles: int, stops: Sequence[float], *, lockstep: bool = False) -> Sequence[Progress]:
        with _Lap(self._seconds, "advance"):
            return self._pack.advance(cycles, stops, lockstep=lockstep)

    def screen(self, lanes: Sequence[int]) -> Sequence[float]:
        with _Lap(self._seconds, "screen"):
            return self._pack.screen(lanes)

    def verify(self, lanes: Sequence[int], *, exact: bool = False) -> Sequence[Residual]:
        with _Lap(self._seconds, "verify"):
            return self._pack.verify(lanes, exact=exact)

    def emit(self, lanes: Sequence[int]) -> Sequence[Emission]:
        with _Lap(self._seconds, "emit"):
            return self._pack.emit(lanes)

    def freeze(self, lanes: Sequence[int]) -> None:
        self._pack.freeze(lanes)

    def repack(self, keep: Sequence[int], admit: Sequence[Instance[Any]] = ()) -> None:
        with _Lap(self._seconds, "repack"):
            self._pack.repack(keep, admit)
