"""Every promise of the contract on every backend, array type and shape; and proof that the suite can fail."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from tests.conftest import needs

from drainsinkhorn.backends.reference import ReferenceBackend, ReferencePack
from drainsinkhorn.core.errors import ContractError
from drainsinkhorn.core.problem import Potentials, Problem
from drainsinkhorn.core.protocol import Emission, Spent
from drainsinkhorn.testing import PROMISES, Bench, check_backend

LIKES: dict[str, Callable[[Any], Any]] = {
    "numpy float64": np.asarray,
    "numpy float32": lambda a: np.asarray(a, dtype=np.float32),
    "torch float64": lambda a: needs("torch").as_tensor(a),
    "torch float32": lambda a: needs("torch").as_tensor(a).float(),
    "jax float32": lambda a: needs("jax").numpy.asarray(a, dtype="float32"),
}
SHAPES = [(13, 17, 3), (1, 1, 1), (1, 9, 2), (64, 5, 1), (33, 40, 20)]


@pytest.mark.parametrize("like", LIKES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("promise", PROMISES)
def test_reference_keeps(promise: str, shape: tuple[int, int, int], like: str) -> None:
    PROMISES[promise](Bench(ReferenceBackend(), LIKES[like], shape))


class Mutant(ReferencePack):
    """A pack that breaks one promise; the suite must notice."""


class Neighbourly(Mutant):
    def advance(self, cycles: int, stops: Sequence[float], *, lockstep: bool = False) -> Any:
        progress = super().advance(cycles, stops, lockstep=lockstep)
        if len(self._lanes) > 1:
            self._lanes[-1].f = self._lanes[-1].f * (1 + 1e-15)
        return progress


class Shuffling(Mutant):
    def repack(self, keep: Sequence[int], admit: Sequence[Problem[Any]] = ()) -> None:
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
        said = super().verify(lanes, exact=exact)
        return [r._replace(col=0.0) for r in said]


class Aliasing(Mutant):
    def emit(self, lanes: Sequence[int]) -> Any:
        for lane in (self._lanes[i] for i in lanes):
            lane.alias = getattr(lane, "alias", None) or Potentials(lane.f.copy(), lane.g.copy())  # type: ignore[attr-defined]
            lane.alias.f[:], lane.alias.g[:] = lane.f, lane.g  # type: ignore[attr-defined]
        return [Emission(self._lanes[i].alias, False) for i in lanes]  # type: ignore[attr-defined]


class Silent(Mutant):
    def advance(self, cycles: int, stops: Sequence[float], *, lockstep: bool = False) -> Any:
        said = super().advance(cycles, stops, lockstep=lockstep)
        return [p._replace(stale=1.0 if math.isnan(p.stale) else p.stale) for p in said]


class Cheap(Mutant):
    @property
    def spent(self) -> Spent:
        return Spent(super().spent.slots // 2, super().spent.legs)


class Inward(Mutant):
    def advance(self, cycles: int, stops: Sequence[float], *, lockstep: bool = False) -> Any:
        said = super().advance(cycles, stops, lockstep=lockstep)
        return [p._replace(stale=0.9 * p.stale) for p in said]


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
}


@pytest.mark.parametrize("mutant", BROKEN, ids=lambda mutant: mutant.__name__)
def test_the_suite_notices(mutant: type[ReferencePack]) -> None:
    @dataclasses.dataclass(frozen=True)
    class Broken:
        name: str = "broken"
        stride: int = 1
        bitwise: bool = True
        accelerations: tuple[str, ...] = ("none",)

        def __getattr__(self, attribute: str) -> Any:
            return getattr(ReferenceBackend(), attribute)

        def __reduce__(self) -> Any:
            return ReferenceBackend, (2**26, "broken")

        def pack(self, problems: Any) -> Any:
            return mutant(problems)

    with pytest.raises(ContractError, match=BROKEN[mutant]):
        check_backend(Broken())  # type: ignore[arg-type]


def test_the_whole_suite_passes_on_the_reference() -> None:
    check_backend(ReferenceBackend())
