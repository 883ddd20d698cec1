"""A backend without arrays: each problem is a script that says at which depth it passes."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from drainsinkhorn.core.protocol import Emission, Hints, Progress, Spent, is_held
from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.couplings import Couplings
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.model.result import Residual, Residuals


@dataclass(frozen=True, slots=True)
class Script:
    """What a scripted lane does.

    Attributes:
        depth: The screen passes from this depth on.
        rejects: Verify rejects the lane for this many cycles after that.
        nan_at: From this depth on every number is NaN.
        shape: Its signature.
        start: Residual at depth 0, which then falls by a constant factor per cycle; None: the residual is constant
            until the screen passes.
    """

    depth: int
    rejects: int = 0
    nan_at: float = math.inf
    shape: Hashable = ()
    start: float | None = None


def scripted(script: Script | int) -> Instance[Any]:
    """A problem that follows a script; an integer is a script of that depth."""
    points = script if isinstance(script, Script) else Script(script)
    return Instance(x=points, eps=1.0, tol=1.0, a=(1.0,), b=(1.0,), cost=Cost())


def _script(instance: Instance[Any]) -> Script:
    assert isinstance(instance.x, Script)
    return instance.x


@dataclass(frozen=True, slots=True)
class ScriptedBackend:
    """Runs scripts, counting every executed lane and cycle one by one.

    Attributes:
        ladder: Physical widths are powers of two.
        stride: Cycles come in multiples of this.
        room: Lanes that fit into memory.
        spare: Lanes that fit if they stream; None: they cannot.
        streams: Whether lanes stream; `frugal` sets it.
    """

    ladder: bool = False
    stride: int = 1
    room: float = math.inf
    spare: float | None = None
    streams: bool = False
    name: str = field(default="scripted", init=False)
    bitwise: bool = field(default=True, init=False)
    accelerations: tuple[str, ...] = field(default=("none",), init=False)
    soft_marginals: bool = field(default=False, init=False)

    def signature(self, instance: Instance[Any]) -> Hashable:
        """The script's shape."""
        return _script(instance).shape

    def width_for(self, lanes: int) -> int:
        """Identity, or the next power of two."""
        return 1 << (lanes - 1).bit_length() if self.ladder and lanes else lanes

    def hints(self, instance: Instance[Any]) -> Hints:
        """Return integers for an arithmetic, and sixteen lanes."""
        return Hints("integers, streaming" if self.streams else "integers", 16)

    def prepare(self, instances: Sequence[Instance[Any]]) -> None:
        """Nothing to do."""

    def pack(self, instances: Sequence[Instance[Any]]) -> ScriptedPack:
        """Lanes at depth zero."""
        return ScriptedPack(self, instances)

    def couple(self, instances: Sequence[Instance[Any]], potentials: Sequence[Potentials[Any]]) -> Couplings[Any]:
        """Scripts have no plan."""
        raise NotImplementedError("a scripted problem has no plan")

    def using(self, acceleration: str) -> ScriptedBackend:
        """Return this backend: scripts have no acceleration."""
        return self

    def precise(self) -> ScriptedBackend:
        """Return this backend: its integers are exact."""
        return self

    def frugal(self) -> ScriptedBackend:
        """Return a backend with streaming lanes and room for `spare` of them; this one if `spare` is None."""
        return self if self.spare is None else replace(self, room=self.spare, streams=True)

    def release(self) -> None:
        """Scripts keep no memory."""


@dataclass(slots=True)
class _Lane:
    instance: Instance[Any]
    depth: int = 0
    frozen: bool = False

    @property
    def script(self) -> Script:
        return _script(self.instance)

    @property
    def stale(self) -> float:
        if self.depth >= self.script.nan_at:
            return math.nan
        if self.depth >= self.script.depth:
            return 0.5
        start = self.script.start
        return 2.0 if start is None else start ** (1 - self.depth / self.script.depth)

    @property
    def residual(self) -> Residual:
        passes = self.depth >= self.script.depth + self.script.rejects
        return Residual(self.stale, self.stale * 0.0 + (0.5 if passes else 3.0), 0.0)


class ScriptedPack:
    """The pack of ScriptedBackend."""

    def __init__(self, backend: ScriptedBackend, instances: Sequence[Instance[Any]]) -> None:
        self._backend = backend
        self._lanes: list[_Lane] = []
        self._slots = 0
        self._legs = 0
        self.width = 0
        self.repack([], instances)

    @property
    def spent(self) -> Spent:
        """Slots and legs so far."""
        return Spent(self._slots, self._legs)

    def advance(self, cycles: int, stops: Sequence[float], *, lockstep: bool = False) -> Progress:
        """See Pack."""
        if cycles % self._backend.stride:
            raise ValueError(f"{cycles} cycles are no multiple of the stride {self._backend.stride}")
        moving = [i for i, lane in enumerate(self._lanes) if not lane.frozen]
        frozen = len(self._lanes) - len(moving)
        for cycle in range(1, cycles + 1):
            if not moving:
                break
            for i in moving:
                self._lanes[i].depth += 1
            self._slots += len(moving) + frozen + self.width - len(self._lanes)
            self._legs += 2 * (len(moving) + frozen)
            # A fixed phase cannot be left half way.
            if cycle % self._backend.stride == 0:
                held = {i for i in moving if is_held(self._lanes[i].stale, stops[i])}
                moving = [] if lockstep and held else [i for i in moving if i not in held]
        return Progress([lane.depth for lane in self._lanes], [lane.stale for lane in self._lanes])

    def screen(self, lanes: Sequence[int]) -> list[float]:
        """See Pack."""
        self._legs += len(lanes)
        return [self._lanes[i].stale for i in lanes]

    def verify(self, lanes: Sequence[int], *, exact: bool = False) -> Residuals:
        """See Pack."""
        self._legs += 2 * len(lanes)
        return Residuals.from_rows(self._lanes[i].residual for i in lanes)

    def emit(self, lanes: Sequence[int]) -> Emission:
        """The lane's depth stands for its potentials."""
        depths = [self._lanes[i].depth for i in lanes]
        return Emission(depths, depths, [False] * len(lanes), [self._lanes[i].instance for i in lanes])

    def freeze(self, lanes: Sequence[int]) -> None:
        """See Pack."""
        for i in lanes:
            self._lanes[i].frozen = True

    def repack(self, keep: Sequence[int], admit: Sequence[Instance[Any]] = ()) -> None:
        """See Pack."""
        if len(keep) + len(admit) > self._backend.room:
            raise MemoryError(f"{len(keep) + len(admit)} lanes, room for {self._backend.room}")
        self._lanes = [self._lanes[i] for i in keep] + [_Lane(instance) for instance in admit]
        self.width = self._backend.width_for(len(self._lanes))
        self._legs += len(admit)
