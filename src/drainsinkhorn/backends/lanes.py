"""Packs that run one cycle of their lanes after another, and a pack that is a list of lanes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from drainsinkhorn.core.protocol import Emission, Progress, Spent, is_held
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.result import Residual, Residuals


class CycledLane(Protocol):
    """What a pack must know of a lane to run its cycles; core.protocol says what the attributes mean."""

    depth: int
    frozen: bool

    @property
    def stale(self) -> float:
        """The residual that the last leg left stale, rounding included."""
        ...


class SingleLane(CycledLane, Protocol):
    """The state of one problem. core.protocol.Pack says what its methods mean."""

    instance: Instance[Any]

    def cycle(self) -> None:
        """Run one cycle."""
        ...

    def discarded_cycle(self) -> None:
        """Do the work of a cycle and discard its outcome: the cost of a finished lane that is still in the pack."""
        ...

    def screen(self) -> float:
        """The row residual in a pass of its own, with its rounding bound."""
        ...

    def verify(self, *, exact: bool) -> Residual:
        """Both residuals of the state as it will be emitted."""
        ...

    def emit(self) -> Emission:
        """Copies for the caller: an emission of this lane alone."""
        ...


C = TypeVar("C", bound=CycledLane)
L = TypeVar("L", bound=SingleLane)


class CyclePack(Generic[C]):
    """A pack that runs one cycle of its lanes after another; it begins without lanes."""

    def __init__(self) -> None:
        self._lanes: list[C] = []
        self._slots = 0
        self._legs = 0

    def _cycle(self, moving: Sequence[int], frozen: Sequence[int]) -> None:
        """Run one cycle of the lanes `moving`, and the work of one for the lanes `frozen`, which do not change."""
        raise NotImplementedError

    @property
    def width(self) -> int:
        """The number of lanes."""
        return len(self._lanes)

    @property
    def spent(self) -> Spent:
        """Slots and legs executed since the pack was built."""
        return Spent(self._slots, self._legs)

    def advance(self, cycles: int, stops: Sequence[float], *, lockstep: bool = False) -> Progress:
        """Run cycles one after another, for the lanes that are neither frozen nor held."""
        frozen = [i for i, lane in enumerate(self._lanes) if lane.frozen]
        moving = [i for i, lane in enumerate(self._lanes) if not lane.frozen]
        for _ in range(cycles):
            if not moving:
                break
            self._cycle(moving, frozen)
            self._slots += len(moving) + len(frozen)
            self._legs += 2 * (len(moving) + len(frozen))
            held = {i for i in moving if is_held(self._lanes[i].stale, stops[i])}
            moving = [] if lockstep and held else [i for i in moving if i not in held]
        return Progress([lane.depth for lane in self._lanes], [lane.stale for lane in self._lanes])

    def freeze(self, lanes: Sequence[int]) -> None:
        """These lanes no longer change."""
        for i in lanes:
            self._lanes[i].frozen = True


class LanePack(CyclePack[L], Generic[L]):
    """A pack whose lanes are objects in a list; `open_lane` decides how a lane computes.

    Args:
        instances: The problems of the first lanes.
        open_lane: Builds a lane and measures its first f-leg.
    """

    def __init__(self, instances: Sequence[Instance[Any]], open_lane: Callable[[Instance[Any]], L]) -> None:
        super().__init__()
        self._open_lane = open_lane
        self.repack([], instances)

    @np.errstate(all="ignore")
    def advance(self, cycles: int, stops: Sequence[float], *, lockstep: bool = False) -> Progress:
        """Run cycles one after another, for the lanes that are neither frozen nor held."""
        return super().advance(cycles, stops, lockstep=lockstep)

    def _cycle(self, moving: Sequence[int], frozen: Sequence[int]) -> None:
        for i in moving:
            self._lanes[i].cycle()
        for i in frozen:
            self._lanes[i].discarded_cycle()

    @np.errstate(all="ignore")
    def screen(self, lanes: Sequence[int]) -> list[float]:
        """The row residual in a pass of its own."""
        self._legs += len(lanes)
        return [self._lanes[i].screen() for i in lanes]

    @np.errstate(all="ignore")
    def verify(self, lanes: Sequence[int], *, exact: bool = False) -> Residuals:
        """Return both residuals of the states as they will be emitted."""
        self._legs += 2 * len(lanes)
        return Residuals.from_rows(self._lanes[i].verify(exact=exact) for i in lanes)

    def emit(self, lanes: Sequence[int]) -> Emission:
        """Copies for the caller."""
        return Emission.join(self._lanes[i].emit() for i in lanes)

    @np.errstate(all="ignore")
    def repack(self, keep: Sequence[int], admit: Sequence[Instance[Any]] = ()) -> None:
        """Keep these lanes, in this order, and append the admitted."""
        admitted = [self._open_lane(instance) for instance in admit]
        self._lanes = [self._lanes[i] for i in keep] + admitted
        self._legs += len(admitted)
