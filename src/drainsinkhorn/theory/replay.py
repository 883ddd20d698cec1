"""Replay the schedule of a run from the depths of its problems: the executor drives lanes that only count cycles."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from drainsinkhorn.core.audit import EVERY, Audit, Geometric
from drainsinkhorn.core.events import Observer
from drainsinkhorn.core.executor import execute
from drainsinkhorn.core.ledger import Ledger
from drainsinkhorn.core.options import MODES, Mode, Options, Plan
from drainsinkhorn.core.protocol import Emission, Hints, Progress, Spent
from drainsinkhorn.core.source import Admission, Batch
from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.model.result import Residuals

PASSED, UNFINISHED = 0.5, 2.0
"""Residuals of a replayed lane; its tol is 1."""


class Meter(Protocol):
    """Receives every call of a pack."""

    def count(self, verb: str, lanes: int) -> None:
        """One call of "pack", "screen", "verify", "emit" or "repack"; the lanes of a repack are those it keeps."""
        ...

    def refill(self, lanes: int) -> None:
        """A repack admitted this number of lanes."""
        ...

    def advance(self, widths: Sequence[tuple[int, int]], lanes: int, frozen: int, *, lockstep: bool) -> None:
        """One call of advance.

        Args:
            widths: Runs of (lanes executed, cycles), in the order of execution.
            lanes: Lanes of the pack.
            frozen: Those of them that are frozen.
            lockstep: Whether all lanes move in lockstep.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _PassageAudit(Audit):
    """An audit without the times at which no lane could leave. Slots, widths and repacks are those of all times.

    Attributes:
        together: Whether lanes leave together.
        opened: The latest pack of the run, once there is one.
    """

    together: bool
    opened: list[_ReplayPack]

    def following(self, clock: int) -> int:
        """The first audit after `clock` cycles at which a lane, or all lanes together, may leave."""
        passage = clock + (self.opened[-1].cycles_left(together=self.together) if self.opened else 1)
        if not isinstance(self.every, Geometric):
            every = self.every or EVERY
            return -(-passage // every) * every
        return Audit.following(self, passage - 1)


def replay(
    depths: Sequence[int],
    mode: str | Mode,
    width: int,
    audit: Audit,
    meter: Meter | None = None,
    observe: Observer | None = None,
) -> Ledger:
    """Run problems of given depths in a mode.

    Args:
        depths: Cycles of each problem until its first passage, at least 1.
        mode: The mode.
        width: Largest width of a pack.
        audit: The audit times.
        meter: Receives every call of a pack. None: audits at which no lane could leave are left out, so that the time
            of a replay depends on the number of problems and not on their depths; the ledger does not count these.
        observe: Receives every event.
    """
    ledger, opened = Ledger(), list[_ReplayPack]()
    limit = 2 * max(depths, default=1) + 2 * audit.following(0)
    chosen = MODES[mode] if isinstance(mode, str) else mode
    if meter is None:
        fields = {name: getattr(audit, name) for name in Audit.__dataclass_fields__}
        audit = _PassageAudit(**fields, together=chosen.together, opened=opened)
    plan = Plan(chosen, chosen.width or width, audit, limit, exact=False, reason="replayed")
    Options(mode=chosen, width=width, audit=audit)  # refuses what the options would refuse
    shared = {"eps": 1.0, "tol": 1.0, "a": (1.0,), "b": (1.0,), "cost": Cost()}
    waiting = Batch([Admission(t, Instance(x=max(1, depth), **shared)) for t, depth in enumerate(depths)])

    def tell(event: Any) -> None:
        ledger(event)
        if observe is not None:
            observe(event)

    for _ in execute(_ReplayBackend(meter or _Silent(), opened), waiting, plan, tell):
        pass
    return ledger


class _Silent:
    """A meter that counts nothing."""

    def count(self, verb: str, lanes: int) -> None:
        pass

    def refill(self, lanes: int) -> None:
        pass

    def advance(self, widths: Sequence[tuple[int, int]], lanes: int, frozen: int, *, lockstep: bool) -> None:
        pass


@dataclass(frozen=True, slots=True)
class _ReplayBackend:
    meter: Meter
    opened: list[_ReplayPack]
    name: str = field(default="replay", init=False)
    stride: int = field(default=1, init=False)
    bitwise: bool = field(default=True, init=False)
    accelerations: tuple[str, ...] = field(default=("none",), init=False)
    soft_marginals: bool = field(default=False, init=False)

    def signature(self, instance: Instance[Any]) -> Hashable:
        return ()

    def width_for(self, lanes: int) -> int:
        return lanes

    def hints(self, instance: Instance[Any]) -> Hints:
        """Return sixteen lanes."""
        return Hints("depths", 16)

    def prepare(self, instances: Sequence[Instance[Any]]) -> None:
        pass

    def pack(self, instances: Sequence[Instance[Any]]) -> _ReplayPack:
        pack = _ReplayPack(self.meter, instances)
        self.opened[:] = [pack]
        return pack

    def couple(self, instances: Sequence[Instance[Any]], potentials: Sequence[Potentials[Any]]) -> Any:
        raise NotImplementedError("a replayed problem has no plan")

    def using(self, acceleration: str) -> _ReplayBackend:
        return self

    def precise(self) -> _ReplayBackend:
        return self

    def frugal(self) -> _ReplayBackend:
        return self

    def release(self) -> None:
        pass


def _depth(instance: Instance[Any]) -> int:
    assert isinstance(instance.x, int), "a replayed problem has its depth for points"
    return instance.x


class _ReplayPack:
    def __init__(self, meter: Meter, instances: Sequence[Instance[Any]]) -> None:
        self._meter = meter
        self._slots = 0
        self._instances = list(instances)
        self._target = [_depth(instance) for instance in instances]
        self._depth = [0] * len(instances)
        self._frozen: set[int] = set()
        meter.count("pack", len(instances))

    @property
    def width(self) -> int:
        return len(self._target)

    @property
    def spent(self) -> Spent:
        return Spent(self._slots, 2 * self._slots)

    def cycles_left(self, *, together: bool) -> int:
        """Cycles until the next lane that is not frozen passes, or until all have passed; at least 1."""
        remaining = [self._target[lane] - self._depth[lane] for lane in range(self.width) if lane not in self._frozen]
        return max(1, (max if together else min)(remaining, default=1))

    def _stale(self, lane: int) -> float:
        return PASSED if self._depth[lane] >= self._target[lane] else UNFINISHED

    def advance(self, cycles: int, stops: Sequence[float], *, lockstep: bool = False) -> Progress:
        moving = [lane for lane in range(self.width) if lane not in self._frozen]
        # A lane whose stop is -inf is never held; one that has passed moves one cycle more, as the contract says.
        allowed = {
            lane: cycles if stops[lane] == -math.inf else min(cycles, max(1, self._target[lane] - self._depth[lane]))
            for lane in moving
        }
        span = min(allowed.values()) if lockstep else max(allowed.values())
        ran = dict.fromkeys(moving, span) if lockstep else allowed
        for lane in moving:
            self._depth[lane] += ran[lane]
        # Lanes that are held leave a narrower run behind.
        widths, before = list[tuple[int, int]](), 0
        for last in sorted({*ran.values()}):
            active = sum(cycles >= last for cycles in ran.values())
            widths.append((active + len(self._frozen), last - before))
            before = last
        self._slots += sum(width * cycles for width, cycles in widths)
        self._meter.advance(widths, self.width, len(self._frozen), lockstep=lockstep)
        return Progress(list(self._depth), [self._stale(lane) for lane in range(self.width)])

    def screen(self, lanes: Sequence[int]) -> list[float]:
        self._meter.count("screen", len(lanes))
        return [self._stale(lane) for lane in lanes]

    def verify(self, lanes: Sequence[int], *, exact: bool = False) -> Residuals:
        if lanes:
            self._meter.count("verify", len(lanes))
        stale = [self._stale(lane) for lane in lanes]
        return Residuals(stale, stale, [0.0] * len(lanes))

    def emit(self, lanes: Sequence[int]) -> Emission:
        if lanes:
            self._meter.count("emit", len(lanes))
        zeros = [0] * len(lanes)
        return Emission(zeros, zeros, [False] * len(lanes), [self._instances[lane] for lane in lanes])

    def freeze(self, lanes: Sequence[int]) -> None:
        self._frozen.update(lanes)

    def repack(self, keep: Sequence[int], admit: Sequence[Instance[Any]] = ()) -> None:
        self._instances = [self._instances[lane] for lane in keep] + list(admit)
        self._target = [self._target[lane] for lane in keep] + [_depth(instance) for instance in admit]
        self._depth = [self._depth[lane] for lane in keep] + [0] * len(admit)
        self._frozen = set()
        self._meter.count("repack", len(keep))
        self._meter.refill(len(admit))
