"""Every promise of the contract on every backend, array type and shape; and proof that the suite can fail."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from drainsinkhorn.backends.cpu import CpuBackend
from drainsinkhorn.backends.reference import ReferenceBackend, ReferencePack
from drainsinkhorn.core.protocol import Spent
from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.errors import ContractError
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.numerics.costs import COSTS
from drainsinkhorn.testing import PROMISES, Bench, check_backend
from tests.conftest import needs

LIKES: dict[str, Callable[[Any], Any]] = {
    "numpy float64": np.asarray,
    "numpy float32": lambda a: np.asarray(a, dtype=np.float32),
    "torch float64": lambda a: needs("torch").as_tensor(a),
    "torch float32": lambda a: needs("torch").as_tensor(a).float(),
    "jax float32": lambda a: needs("jax").numpy.asarray(a, dtype="float32"),
}
SHAPES = [(13, 17, 3), (1, 1, 1), (1, 9, 2), (64, 5, 1), (33, 40, 20)]


BACKENDS: dict[str, Any] = {
    "reference": ReferenceBackend(),
    "cpu float32": CpuBackend(precision="float32"),
    "cpu float64": CpuBackend(precision="float64"),
    "cpu streaming": CpuBackend(representation="streaming"),
    "cpu streaming float64": CpuBackend(representation="streaming", precision="float64"),
    "cpu one thread": CpuBackend(threads=1),
    "cpu three threads": CpuBackend(threads=3),
    "reference momentum": ReferenceBackend(acceleration="momentum"),
    "cpu float32 momentum": CpuBackend(precision="float32", acceleration="momentum"),
    "cpu float64 momentum": CpuBackend(precision="float64", acceleration="momentum"),
    "cpu streaming momentum": CpuBackend(representation="streaming", acceleration="momentum"),
    "cpu three threads momentum": CpuBackend(threads=3, acceleration="momentum"),
}


# Arrays of other libraries become NumPy's as a lane is loaded, whatever its acceleration and the number of threads.
CASES = [
    (like, backend)
    for like in LIKES
    for backend in BACKENDS
    if like.startswith("numpy") or not backend.endswith(("momentum", "thread", "threads"))
]


@pytest.mark.parametrize(("like", "backend"), CASES)
@pytest.mark.parametrize("promise", PROMISES)
def test_promise(promise: str, like: str, backend: str) -> None:
    for shape in SHAPES if like in ("numpy float64", "numpy float32") else SHAPES[:1]:
        PROMISES[promise](Bench(BACKENDS[backend], LIKES[like], shape))


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name.startswith("cpu")])
@pytest.mark.parametrize("promise", ["lanes are independent", "calls add up", "verify tells the truth", "every cost"])
def test_promise_with_rows_in_groups(promise: str, backend: str) -> None:
    PROMISES[promise](Bench(BACKENDS[backend], np.asarray, (700, 1501, 3)))


class Mutant(ReferencePack):
    """A pack that breaks one promise; the suite must notice."""


class Neighbourly(Mutant):
    def advance(self, cycles: int, stops: Sequence[float], *, lockstep: bool = False) -> Any:
        progress = super().advance(cycles, stops, lockstep=lockstep)
        if len(self._lanes) > 1:
            self._lanes[-1].f = self._lanes[-1].f * (1 + 1e-15)
        return progress


class Shuffling(Mutant):
    def repack(self, keep: Sequence[int], admit: Sequence[Instance[Any]] = ()) -> None:
        super().repack(sorted(keep), admit)


class Touching(Mutant):
    def screen(self, lanes: Sequence[int]) -> Any:
        values = super().screen(lanes)
        self._lanes[lanes[0]].cycle()
        return values


class Lazy(Mutant):
    def advance(self, cycles: int, stops: Sequence[float], *, lockstep: bool = False) -> Any:
        for lane, stop in zip(self._lanes, stops, strict=True):
            lane.frozen = lane.frozen or not lane.stale > stop
        return super().advance(cycles, stops, lockstep=lockstep)


class Thawing(Mutant):
    def freeze(self, lanes: Sequence[int]) -> None:
        pass


class Reusing(Mutant):
    def verify(self, lanes: Sequence[int], *, exact: bool = False) -> Any:
        return super().verify(lanes, exact=exact)._replace(col=[0.0] * len(lanes))


class Aliasing(Mutant):
    """Hands out the same arrays every time."""

    def emit(self, lanes: Sequence[int]) -> Any:
        kept = self.__dict__.setdefault("kept", {})
        emission = super().emit(lanes)
        for place, i in enumerate(lanes):
            fresh = emission.potentials(place)
            for mine, theirs in zip(kept.setdefault(id(self._lanes[i]), fresh), fresh, strict=True):
                mine[...] = theirs
        return emission._replace(
            **{side: [getattr(kept[id(self._lanes[i])], side) for i in lanes] for side in ("f", "g")}
        )


class Silent(Mutant):
    def advance(self, cycles: int, stops: Sequence[float], *, lockstep: bool = False) -> Any:
        said = super().advance(cycles, stops, lockstep=lockstep)
        return said._replace(stale=[1.0 if math.isnan(stale) else stale for stale in said.stale])


class Cheap(Mutant):
    @property
    def spent(self) -> Spent:
        return Spent(super().spent.slots // 2, super().spent.legs)


class Inward(Mutant):
    def advance(self, cycles: int, stops: Sequence[float], *, lockstep: bool = False) -> Any:
        said = super().advance(cycles, stops, lockstep=lockstep)
        return said._replace(stale=[0.9 * stale for stale in said.stale])


class Forgetful(Mutant):
    def repack(self, keep: Sequence[int], admit: Sequence[Instance[Any]] = ()) -> None:
        super().repack(keep, [dataclasses.replace(instance, init="zero") for instance in admit])


class OneCost(Mutant):
    def repack(self, keep: Sequence[int], admit: Sequence[Instance[Any]] = ()) -> None:
        cost = Cost(COSTS["sqeuclidean"])
        super().repack(
            keep, [instance if instance.is_dense else dataclasses.replace(instance, cost=cost) for instance in admit]
        )


class Bandless(Mutant):
    def advance(self, cycles: int, stops: Sequence[float], *, lockstep: bool = False) -> Any:
        said = super().advance(cycles, stops, lockstep=lockstep)
        bands = [lane.geometry.band(lane.f, lane.g) for lane in self._lanes]
        return said._replace(stale=[stale - band for stale, band in zip(said.stale, bands, strict=True)])


class Unmarked(Mutant):
    def emit(self, lanes: Sequence[int]) -> Any:
        emission = super().emit(lanes)
        return emission._replace(widened=[not widened for widened in emission.widened])


class Anonymous(Mutant):
    def emit(self, lanes: Sequence[int]) -> Any:
        emission = super().emit(lanes)
        return emission._replace(instances=[dataclasses.replace(instance) for instance in emission.instances])


class Peeking(Mutant):
    def screen(self, lanes: Sequence[int]) -> Any:
        return [0.0 for _ in lanes]


class Stubborn(Mutant):
    def advance(self, cycles: int, stops: Sequence[float], *, lockstep: bool = False) -> Any:
        return super().advance(cycles, stops)


BROKEN = {
    Neighbourly: "lanes are independent",
    Shuffling: "order after repack",
    Touching: "looking changes nothing",
    Lazy: "a held lane rests|a rejected lane moves",
    Thawing: "frozen is frozen|lockstep",
    Reusing: "verify tells the truth",
    Aliasing: "emit copies",
    Silent: "nan speaks",
    Cheap: "a held lane rests|work is counted",
    Inward: "the screen is outward|first passage",
    Stubborn: "lockstep",
    Forgetful: "a start is where a lane starts",
    OneCost: "every cost",
    Bandless: "the screen is outward",
    Unmarked: "emit copies",
    Anonymous: "an emission names its problem",
    Peeking: "the screen is outward",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Broken(ReferenceBackend):
    mutant: type[ReferencePack] = ReferencePack

    def pack(self, problems: Any) -> Any:
        return self.mutant(problems)


@pytest.mark.parametrize("mutant", BROKEN, ids=lambda mutant: mutant.__name__)
def test_the_suite_notices(mutant: type[ReferencePack]) -> None:
    with pytest.raises(ContractError, match=BROKEN[mutant]):
        check_backend(Broken(mutant=mutant))


def test_the_whole_suite_passes_on_the_reference() -> None:
    check_backend(ReferenceBackend())
