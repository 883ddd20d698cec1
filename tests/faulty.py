"""Backends that do harm, and helpers that see whether it was contained. Imported by workers too."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import drainsinkhorn as ds
from drainsinkhorn.backends.reference import ReferenceBackend, ReferencePack
from drainsinkhorn.numerics.arrays import to_numpy

KILLS, HANGS, RAISES, FILLS = 0.111, 0.222, 0.333, 0.444
"""Values of eps at which a problem does harm."""


@dataclass(frozen=True, slots=True)
class Harmful(ReferenceBackend):
    """The reference, except for problems that do harm to the process that packs them.

    Attributes:
        pause: Seconds that every call of advance takes longer.
    """

    pause: float = 0.0

    def pack(self, problems: Sequence[ds.Problem[Any]]) -> ReferencePack:
        return HarmfulPack(problems, self.pause, momentum=self.acceleration == "momentum")


class HarmfulPack(ReferencePack):
    def __init__(self, problems: Sequence[ds.Problem[Any]], pause: float, *, momentum: bool) -> None:
        self._pause = pause
        super().__init__(problems, momentum=momentum)

    def repack(self, keep: Sequence[int], admit: Sequence[ds.Problem[Any]] = ()) -> None:
        for problem in admit:
            if problem.eps == KILLS:
                os.kill(os.getpid(), signal.SIGKILL)
            elif problem.eps == HANGS:
                time.sleep(1e6)
            elif problem.eps == RAISES:
                raise RuntimeError("kernel panic")
            elif problem.eps == FILLS:
                # Not in pack or repack alone, where it would narrow the width.
                raise OSError("cannot allocate memory")
        super().repack(keep, admit)

    def advance(self, *args: Any, **keywords: Any) -> Any:
        time.sleep(self._pause)
        return super().advance(*args, **keywords)


def batch(count: int, seed: int = 0, largest: int = 40) -> list[ds.Problem[Any]]:
    """Problems of many sizes."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(5, largest, size=(count, 2))
    return [
        ds.Problem(x=rng.normal(size=(n, 2)), y=1 + rng.normal(size=(m, 2)), eps=0.05 + 0.2 * rng.random())
        for n, m in sizes
    ]


def same(r: ds.Result[Any], s: ds.Result[Any]) -> bool:
    """Whether two results are equal to the bit."""
    facts = [
        (q.ticket, q.status, q.depth, q.residual, q.widened, q.rescued, q.streamed, q.arithmetic, q.detail)
        for q in (r, s)
    ]
    if r.emitted is None or s.emitted is None:
        return repr(facts[0]) == repr(facts[1]) and r.emitted is s.emitted
    equal = all(
        type(p) is type(q) and p.dtype == q.dtype and np.array_equal(to_numpy(p), to_numpy(q))
        for p, q in zip(r.potentials, s.potentials, strict=True)
    )
    return facts[0] == facts[1] and equal


def assert_same(results: list[ds.Result[Any]], truth: list[ds.Result[Any]]) -> None:
    """Each of them once, and to the bit what the undisturbed run has."""
    assert sorted(r.ticket for r in results) == [r.ticket for r in truth]
    different = [
        (r, r.message, truth[r.ticket], truth[r.ticket].message) for r in results if not same(r, truth[r.ticket])
    ]
    assert not different
