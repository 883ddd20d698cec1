"""The contract between the executor and a backend.

Between calls a lane has potentials (f, g) and its next f-leg, *measured but not applied*. Every leg measures the
residual of its own side at the state it starts from, so the measured leg is the screen, for free.
`drainsinkhorn.testing.check_backend` tests whether a backend keeps this contract.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from drainsinkhorn.core.audit import EVERY
from drainsinkhorn.model.couplings import Couplings
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import A, Potentials
from drainsinkhorn.model.result import Residuals


class Progress(NamedTuple):
    """State of the lanes of a pack as columns, with one Python number for each occupied lane.

    Attributes:
        depths: Cycles that were run.
        stale: Residual of the side that the last leg left stale, rounding band included.
    """

    depths: Sequence[int]
    stale: Sequence[float]


def is_held(stale: float, stop: float) -> bool:
    """True if a lane is skipped for the rest of an advance: its residual is not above the stop. -inf holds no lane."""
    return stop > -math.inf and not stale > stop


class Spent(NamedTuple):
    """Work a pack has executed since it was built: slots (one lane, one cycle) and legs (one lane, one reduction)."""

    slots: int
    legs: int


class Emission(NamedTuple):
    """Final states of several lanes as columns, with one entry for each lane.

    Attributes:
        f: Potentials of the rows as the caller gets them: a list, or one array with a row for each lane.
        g: Potentials of the columns, likewise.
        widened: True if the potentials are wider than the caller's dtype.
        instances: The problem, as it was packed, whose state these potentials are. A pack reads it where it keeps the
            state, and the executor compares it with the problem of the lane, so that a state returned for a wrong lane
            is noticed.
    """

    f: Sequence[Any]
    g: Sequence[Any]
    widened: Sequence[bool]
    instances: Sequence[Instance[Any]]

    @classmethod
    def join(cls, parts: Iterable[Emission]) -> Emission:
        """Return one emission of the lanes of all parts, in their order."""
        joined: tuple[list[Any], ...] = ([], [], [], [])
        for part in parts:
            for column, values in zip(joined, part, strict=True):
                column.extend(values)
        return cls(*joined)

    def potentials(self, place: int) -> Potentials[Any]:
        """Return both potentials of one lane."""
        return Potentials(self.f[place], self.g[place])


class Pack(Protocol[A]):
    """Live state of some lanes. A pack owns every array; its methods take and return lane numbers and Python numbers.

    If memory runs out, a method raises MemoryError, never an error of its library. If `repack` raises it, the pack must
    be as it was before. If another method raises it, the pack is discarded, and its live lanes run again from their
    starts in a narrower pack; so a pack may allocate the buffers of any method when the method is called.
    """

    @property
    def width(self) -> int:
        """Lanes that the kernel executes: the occupied ones, which have numbers, and more on a width ladder."""
        ...

    @property
    def spent(self) -> Spent:
        """Slots and legs executed since the pack was built."""
        ...

    def advance(self, cycles: int, stops: Sequence[float], *, lockstep: bool = False) -> Progress:
        """Run up to `cycles` cycles on every lane that is not frozen, and return the progress of all occupied lanes.

        A cycle applies the pending f-leg, runs the g-leg and measures the next f-leg. The first cycle of a call always
        runs, so a lane whose verify was rejected moves on. A lane whose newly measured residual is not greater than its
        stop (`is_held`) is held for the rest of the call: skipped, at no slot. The call ends early when every lane that
        is not frozen is held; in lockstep it ends when the first one is, so that every lane moves in every cycle.
        Frozen lanes are executed for as many cycles as the call runs, and their results discarded: they cost slots.
        """
        ...

    def screen(self, lanes: Sequence[int]) -> Sequence[float]:
        """The stale side's residual in a pass of its own (the paper's row screen); one leg per lane."""
        ...

    def verify(self, lanes: Sequence[int], *, exact: bool = False) -> Residuals:
        """Both marginals, recomputed from the potentials exactly as `emit` would return them; two legs per lane.

        With `exact` the residual is a certificate: float64 from the caller's own arrays, with a rigorous rounding bound
        (`backends.certificate`). It may allocate a block of the plan.
        """
        ...

    def emit(self, lanes: Sequence[int]) -> Emission:
        """Return the last finite potentials, copied to the caller's library, device and dtype, with their problem."""
        ...

    def freeze(self, lanes: Sequence[int]) -> None:
        """Keep these lanes in the kernel, but never change them again."""
        ...

    def repack(self, keep: Sequence[int], admit: Sequence[Instance[A]] = ()) -> None:
        """Keep some lanes (`keep[j]` becomes lane j) and append the admitted problems: compaction and refill."""
        ...


class Hints(NamedTuple):
    """How a backend runs problems like a given one, and what it recommends where the caller leaves a choice open.

    Attributes:
        arithmetic: Precision and representation; equal for problems of equal signature.
        width: Lanes of a pack.
        refilled: Cycles between audits where lanes are refilled: a vacancy waits for the next audit.
        draining: Cycles between audits where lanes are neither refilled nor held.
        held: Cycles between audits where lanes are held and not refilled. An audit may come late: a held lane keeps the
            state that passed, and a call ends when all lanes are held.
        pairs: Pairs of points of all lanes of a pack, unless it has few lanes (`core.options.FEW_LANES`): a bound on
            memory where lanes of unequal sizes share packs.
    """

    arithmetic: str
    width: int
    refilled: int = EVERY
    draining: int = EVERY
    held: int = EVERY
    pairs: float = math.inf


class Backend(Protocol[A]):
    """An implementation of the solver for one kind of hardware, or on one library.

    It consists of frozen, picklable settings and holds no arrays.
    """

    @property
    def name(self) -> str:
        """The name by which users select it."""
        ...

    @property
    def stride(self) -> int:
        """Cycles come in multiples of this; depth limits round up to it."""
        ...

    @property
    def bitwise(self) -> bool:
        """True if a lane's numbers do not depend on its neighbours, the width or its place, to the bit."""
        ...

    @property
    def accelerations(self) -> Sequence[str]:
        """Names it accepts for `accelerate`, best first; the last is always "none"."""
        ...

    @property
    def soft_marginals(self) -> bool:
        """True if it solves problems with soft marginals; if not, a run rejects them before it calls `signature`."""
        ...

    def signature(self, instance: Instance[A]) -> Hashable:
        """Problems of equal signature may share a pack. Raises ProblemError for a problem it does not support."""
        ...

    def width_for(self, lanes: int) -> int:
        """Physical width of a pack of so many lanes, zero included: that number, or the next width it compiles."""
        ...

    def hints(self, instance: Instance[A]) -> Hints:
        """How it runs problems like this one; may raise ProblemError for a problem that has no signature."""
        ...

    def prepare(self, instances: Sequence[Instance[A]]) -> None:
        """Compile or load what a pack of these problems needs. The executor calls it before `pack`."""
        ...

    def pack(self, instances: Sequence[Instance[A]]) -> Pack[A]:
        """Build the state of these lanes and measure their first f-leg."""
        ...

    def couple(self, instances: Sequence[Instance[A]], potentials: Sequence[Potentials[A]]) -> Couplings[A]:
        """The finished plans of some instances with these potentials."""
        ...

    def using(self, acceleration: str) -> Backend[A]:
        """The same backend with one of its accelerations."""
        ...

    def precise(self) -> Backend[A]:
        """The same backend with all arithmetic in float64, for the rescue; itself if it already computes in float64."""
        ...

    def frugal(self) -> Backend[A]:
        """The same backend with every lane in the representation that needs least memory: streaming, where it can.

        A lane for which memory does not suffice alone runs on it, and `Result.streamed` is true. If the hints of both
        backends name the same arithmetic, the frugal one needs no less memory.
        """
        ...

    def release(self) -> None:
        """Free memory that is cached for reuse. Called when memory has run out."""
        ...
