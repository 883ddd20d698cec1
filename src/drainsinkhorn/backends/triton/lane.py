"""A lane of the Triton backend: a problem, and where its numbers lie on the device."""

# pyright: basic

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from drainsinkhorn.backends.emission import CHOICES, budget
from drainsinkhorn.backends.support import restrict
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.numerics.arrays import float_name, to_numpy
from drainsinkhorn.numerics.costs import with_matrix

FORMS = ("distances", "matrix")
"""Forms of costs that it has kernels for."""

LIGHTEST = 2.0**-90
"""Smallest weight for which a lane may run in float32. Such a weight does not underflow in sums, even times the factors
of potentials; and times 1e30, which stands for a ratio beyond float32, it still shows in the residual."""


class Lane:
    """A problem, and the place of its numbers in the table."""

    __slots__ = (
        "broken", "budget", "depth", "dtype", "folded", "frozen", "group", "inner", "instance", "light", "own", "place",
        "row", "support", "unit", "wide",
    )  # fmt: skip

    def __init__(self, instance: Instance[Any], least: dict[int, float]) -> None:
        self.instance = instance
        inner, self.support = (instance, None) if instance.positive else restrict(instance)
        self.inner = with_matrix(inner, FORMS)
        self.unit = instance.eps * math.log(2)
        # By how much rounding to the caller's dtype may move potentials; those of float64 and integers are not rounded.
        self.own = float_name(instance.like)
        self.budget = budget(instance.eps, instance.tol) if self.own in CHOICES else -1.0
        self.dtype = "float64"
        self.broken = self.frozen = self.wide = self.folded = False
        # Smaller weights underflow in float32, and with them their contribution to the other side's sums.
        self.light = min(_least(weights, least) for weights in (self.inner.a, self.inner.b)) < LIGHTEST
        self.depth = 0
        self.place = self.row = -1
        self.group: Any = None

    @property
    def band(self) -> float:
        """Rounding of what float64 measures."""
        return self.group.band[self.row]

    @property
    def blur(self) -> float:
        """The residual that leading halves leave; NaN if they never make its scores."""
        return self.group.blur[self.row]

    @property
    def potentials(self) -> list[int]:
        """Where its potentials of rows and columns begin."""
        return self.group.potentials[self.row]


def _least(weights: Any, known: dict[int, float]) -> float:
    """Return the least weight; `known` caches it by identity, since many problems of a pack share weights."""
    if id(weights) not in known:
        known[id(weights)] = float(to_numpy(weights).min())
    return known[id(weights)]


def largest(lanes: Sequence[Lane], side: int) -> tuple[int, int]:
    """Points and programs of the largest lane."""
    groups = {lane.group for lane in lanes}
    return max((g.size[side] for g in groups), default=0), max((g.programs[side] for g in groups), default=0)
