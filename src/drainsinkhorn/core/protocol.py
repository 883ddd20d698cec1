"""The contract between the executor and a backend.

Between calls a lane has potentials (f, g) and its next f-leg, *measured but not applied*. Every leg measures the
residual of its own side at the state it starts from, so the measured leg is the screen, for free.
`drainsinkhorn.testing.check_backend` runs these promises as a suite.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, Protocol

from drainsinkhorn.model.couplings import Couplings
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import A, Potentials
from drainsinkhorn.model.result import Residual


class Progress(NamedTuple):
    """Where a lane stands: cycles really run, and the residual of its stale side, rounding band included."""

    depth: int
    stale: float


FRESH = Progress(0, math.inf)
"""Where a lane stands before its first cycle."""


def is_held(stale: float, stop: float) -> bool:
    """Whether a lane rests for the remainder of an advance: NaN does; under a stop of -inf nobody does."""
    return stop > -math.inf and not stale > stop


class Spent(NamedTuple):
    """Work a pack has executed since it was built: slots (one lane, one cycle) and legs (one lane, one reduction)."""

    slots: int
    legs: int


class Emission(NamedTuple):
    """What leaves a pack with a lane.

    Attributes:
        potentials: The potentials as the caller gets them.
        widened: True if they are wider than the caller's dtype.
        instance: The very problem, as it was packed, whose state these potentials are. A pack reads it where it keeps
            the state, so that a state that went astray names its owner; the executor compares it with the lane's.
    """

    potentials: Potentials[Any]
    widened: bool
    instance: Instance[Any]


class Pack(Protocol[A]):
    """Live state of some lanes. Owns every array; speaks in lane numbers and Python floats.

    If a method runs out of memory it raises MemoryError, never an error of its library. After `repack` the pack must
    be as it was before. After any other method the pack is discarded, and its live lanes run again from their starts in
    a narrower one; so a pack may allocate the buffers of a method, those of `verify` too, when the method is called.
    """

    @property
    def width(self) -> int:
        """Lanes the kernel executes; may exceed the occupied ones (a ladder), which alone are addressed."""
        ...

    @property
    def spent(self) -> Spent:
        """Slots and legs executed since the pack was built."""
        ...

    def advance(self, cycles: int, stops: Sequence[float], *, lockstep: bool = False) -> Sequence[Progress]:
        """Run up to `cycles` cycles on every lane that is not frozen, and return every occupied lane's Progress.

        A cycle applies the pending f-leg, runs the g-leg and measures the next f-leg. The first cycle of a call always
        runs, so a lane whose verify was rejected moves on. A lane whose newly measured residual is not greater than its
        stop (`is_held`) is held for the rest of the call: skipped, at no slot. The call ends early when every lane that
        is not frozen is held; in lockstep it ends when the first one is, so that every lane moves in every cycle.
        Frozen lanes are executed and the outcome discarded, for as many cycles as the call runs: they cost slots.
        """
        ...

    def screen(self, lanes: Sequence[int]) -> Sequence[float]:
        """The stale side's residual in a pass of its own (the paper's row screen); one leg per lane."""
        ...

    def verify(self, lanes: Sequence[int], *, exact: bool = False) -> Sequence[Residual]:
        """Both marginals, recomputed from the potentials exactly as `emit` would return them; two legs per lane.

        With `exact` the residual is a certificate: float64 from the caller's own arrays, with a rigorous rounding bound
        (`backends.certificate`). It may allocate a block of the plan.
        """
        ...

    def emit(self, lanes: Sequence[int]) -> Sequence[Emission]:
        """Return the last finite potentials, copied to the caller's library, device and dtype, with their problem."""
        ...

    def freeze(self, lanes: Sequence[int]) -> None:
        """Keep these lanes in the kernel, but never change them again."""
        ...

    def repack(self, keep: Sequence[int], admit: Sequence[Instance[A]] = ()) -> None:
        """Lane j becomes `keep[j]`, then the admitted problems follow in order. Compaction and refill are this verb."""
        ...


class Counted:
    """Width and work of a pack that lists its lanes, for packs to inherit."""

    _lanes: list[Any]
    _slots: int
    _legs: int

    @property
    def width(self) -> int:
        """The number of lanes."""
        return len(self._lanes)

    @property
    def spent(self) -> Spent:
        """Slots and legs so far."""
        return Spent(self._slots, self._legs)


class Backend(Protocol[A]):
    """A way to compute: frozen, picklable settings, never arrays."""

    @property
    def name(self) -> str:
        """The name users ask for it by."""
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
        """Names it accepts for `accelerate`, best first; always ends with "none"."""
        ...

    def signature(self, instance: Instance[A]) -> Hashable:
        """Problems of equal signature may share a pack. Raises ProblemError for one this backend cannot take."""
        ...

    def width_for(self, lanes: int) -> int:
        """Physical width of that many lanes, zero included: identity, or the next rung of a compile ladder."""
        ...

    def natural_width(self, instance: Instance[A]) -> int:
        """Lanes of a pack of such problems, if the caller names no width."""
        ...

    def natural_spacing(self, instance: Instance[A], *, refills: bool, holds: bool) -> int:
        """Cycles between audits of such problems, if the caller names none.

        Where lanes are refilled, a vacancy waits for an audit. Where they are held, an audit may come late: lanes rest
        at the states that passed, and a call ends when all of them do.
        """
        ...

    def prepare(self, instances: Sequence[Instance[A]]) -> None:
        """Compile or load whatever a pack of these will need, so that no timing has it inside."""
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

    def describe(self, instance: Instance[A]) -> str:
        """Precision and representation in which it runs an admitted problem; equal for equal signatures."""
        ...

    def precise(self) -> Backend[A]:
        """The same backend with all arithmetic in float64; itself where it already is. Rescue runs there."""
        ...

    def frugal(self) -> Backend[A]:
        """The same backend with every lane in the representation that needs least memory: streaming, where it can.

        A lane for which memory does not suffice alone runs on it, and `Result.streamed` is true. If `describe` returns
        the same text for both backends, the frugal one needs no less memory.
        """
        ...

    def release(self) -> None:
        """Free memory that is cached for reuse. Called when memory has run out."""
        ...
