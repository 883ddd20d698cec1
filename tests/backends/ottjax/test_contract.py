"""Every promise of the contract on the OTT backend; and proof that the looser rules for it can fail."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.conftest import needs

jax = needs("jax")
needs("ott")

from drainsinkhorn.backends.ottjax import OttBackend  # noqa: E402
from drainsinkhorn.backends.reference import ReferenceBackend, ReferencePack  # noqa: E402
from drainsinkhorn.model.errors import ContractError  # noqa: E402
from drainsinkhorn.model.problem import Problem  # noqa: E402
from drainsinkhorn.testing import PROMISES, Bench, check_backend  # noqa: E402

LIKES: dict[str, Callable[[Any], Any]] = {
    "jax float32": lambda a: jax.numpy.asarray(a, dtype="float32"),
    "numpy float64": np.asarray,
}
CASES: dict[str, tuple[Any, str, list[tuple[int, int, int]]]] = {
    "auto": (OttBackend(), "jax float32", [(13, 17, 3), (1, 1, 1), (33, 40, 5)]),
    "numpy": (OttBackend(), "numpy float64", [(13, 17, 3)]),
    "float64": (OttBackend(precision="float64"), "numpy float64", [(13, 17, 3)]),
    "online": (OttBackend(batch_size=7, stride=5), "jax float32", [(13, 17, 3)]),
}


SHAPED = ("answers agree with the reference", "calls add up", "padding is invisible", "verify tells the truth")
"""Promises that are tested for every shape; the others for the first one, and for every shape by make soak."""


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("promise", PROMISES)
def test_promise(promise: str, case: str) -> None:
    backend, like, shapes = CASES[case]
    # JAX compiles everything for every shape.
    for shape in shapes if promise in SHAPED or os.environ.get("DRAIN_SOAK") else shapes[:1]:
        PROMISES[promise](Bench(backend, LIKES[like], shape))


class Neighbourly(ReferencePack):
    """Lanes that move their neighbours by a little more than rounding."""

    def advance(self, cycles: int, stops: Sequence[float], *, lockstep: bool = False) -> Any:
        progress = super().advance(cycles, stops, lockstep=lockstep)
        if len(self._lanes) > 1:
            self._lanes[-1].f = self._lanes[-1].f * (1 + 1e-4)
        return progress


class Late(ReferencePack):
    """Lanes that go on for two strides if they may."""

    def advance(self, cycles: int, stops: Sequence[float], *, lockstep: bool = False) -> Any:
        progress = super().advance(cycles, stops, lockstep=lockstep)
        return super().advance(2, [-np.inf] * len(self._lanes)) if cycles == 50 else progress


@dataclasses.dataclass(frozen=True, slots=True)
class Loose(ReferenceBackend):
    mutant: type[ReferencePack] = ReferencePack
    bitwise: bool = False

    def pack(self, problems: Sequence[Problem[Any]]) -> Any:
        return self.mutant(problems)


@pytest.mark.parametrize(("mutant", "promise"), [(Neighbourly, "independent"), (Late, "first passage")])
def test_the_looser_rules_still_notice(mutant: type[ReferencePack], promise: str) -> None:
    with pytest.raises(ContractError, match=promise):
        check_backend(Loose(mutant=mutant))


def test_the_looser_rules_let_rounding_pass() -> None:
    check_backend(Loose())
