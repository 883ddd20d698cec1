"""A lane of the Triton backend: a problem, and where its numbers lie on the device."""

# pyright: basic

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from drainsinkhorn.backends.arrays import is_single
from drainsinkhorn.backends.door import caller_array
from drainsinkhorn.backends.support import restrict
from drainsinkhorn.core.problem import Problem


class Lane:
    """A problem, and the place of its numbers in the table."""

    __slots__ = (
        "broken", "budget", "depth", "folded", "frozen", "group", "inner", "place", "problem", "row", "single",
        "support", "unit", "wide",
    )  # fmt: skip

    def __init__(self, problem: Problem[Any], full: dict[int, bool]) -> None:
        self.problem = problem
        self.inner, self.support = restrict(problem, full)
        self.unit = problem.eps * math.log(2)
        # By how much rounding for a caller in float32 may move potentials; nobody else's are rounded.
        self.budget = problem.eps * float(problem.tol or 0) / 10 if is_single(caller_array(problem)) else -1.0
        self.broken = self.frozen = self.wide = self.single = self.folded = False
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


def largest(lanes: Sequence[Lane], side: int) -> tuple[int, int]:
    """Points and programs of the largest lane."""
    groups = {lane.group for lane in lanes}
    return max((g.size[side] for g in groups), default=0), max((g.programs[side] for g in groups), default=0)
