"""A pack that is a list of lanes, for backends whose lanes differ only in how they compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from drainsinkhorn.core.protocol import Counted, Emission, Progress, is_held
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.result import Residual, Residuals


class Lane(Protocol):
    """One problem's state, and what can be asked of it. See core.protocol.Pack for what the verbs mean."""

    instance: Instance[Any]
    depth: int
    stale: float
    frozen: bool

    def cycle(self) -> None:
        """Run one cycle."""
        ...

    def discarded_cycle(self) -> None:
        """Do the work of a cycle and forget it: what a lane costs that is finished and still in the kernel."""
        ...

    def screened(self) -> float:
        """The row residual in a pass of its own, band included."""
        ...

    def verify(self, *, exact: bool) -> Residual:
        """Both residuals of the state as it will be emitted."""
        ...

    def emit(self) -> Emission:
        """Copies for the caller: an emission of this lane alone."""
        ...


L = TypeVar("L", bound=Lane)


class LanePack(Counted, Generic[L]):
    """Lanes advanced one after another. Narrower means: the list is shorter.

    Args:
        instances: What to open with.
        open_lane: Makes a lane and measures its first f-leg.
    """

    def __init__(self, instances: Sequence[Instance[Any]], open_lane: Callable[[Instance[Any]], L]) -> None:
        self._open_lane = open_lane
        self._lanes: list[L] = []
        self._slots = 0
        self._legs = 0
        self.repack([], instances)

    @np.errstate(all="ignore")
    def advance(self, cycles: int, stops: Sequence[float], *, lockstep: bool = False) -> Progress:
        """One cycle after the other, for the lanes that are neither frozen nor held."""
        frozen = [lane for lane in self._lanes if lane.frozen]
        moving = [i for i, lane in enumerate(self._lanes) if not lane.frozen]
        for _ in range(cycles):
            if not moving:
                break
            for i in moving:
                self._lanes[i].cycle()
            for lane in frozen:
                lane.discarded_cycle()
            self._slots += len(moving) + len(frozen)
            self._legs += 2 * (len(moving) + len(frozen))
            held = {i for i in moving if is_held(self._lanes[i].stale, stops[i])}
            moving = [] if lockstep and held else [i for i in moving if i not in held]
        return Progress([lane.depth for lane in self._lanes], [lane.stale for lane in self._lanes])

    @np.errstate(all="ignore")
    def screen(self, lanes: Sequence[int]) -> list[float]:
        """The row residual in a pass of its own."""
        self._legs += len(lanes)
        return [self._lanes[i].screened() for i in lanes]

    @np.errstate(all="ignore")
    def verify(self, lanes: Sequence[int], *, exact: bool = False) -> Residuals:
        """Both sides of the states as they will be emitted."""
        self._legs += 2 * len(lanes)
        return Residuals.from_rows(self._lanes[i].verify(exact=exact) for i in lanes)

    def emit(self, lanes: Sequence[int]) -> Emission:
        """Copies for the caller."""
        return Emission.join(self._lanes[i].emit() for i in lanes)

    def freeze(self, lanes: Sequence[int]) -> None:
        """These lanes no longer change."""
        for i in lanes:
            self._lanes[i].frozen = True

    @np.errstate(all="ignore")
    def repack(self, keep: Sequence[int], admit: Sequence[Instance[Any]] = ()) -> None:
        """Keep these lanes, in this order, and append the admitted."""
        admitted = [self._open_lane(instance) for instance in admit]
        self._lanes = [self._lanes[i] for i in keep] + admitted
        self._legs += len(admitted)
