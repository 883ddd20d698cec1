"""Audits: when lanes are screened and verified, and which of them may leave."""

from __future__ import annotations

import math
import numbers
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

from drainsinkhorn.core.protocol import Pack, Progress
from drainsinkhorn.model.errors import OptionsError
from drainsinkhorn.model.result import Residual
from drainsinkhorn.model.status import Status


def is_count(value: object) -> bool:
    """True for an integer of at least 1 (not a bool)."""
    return not isinstance(value, bool) and isinstance(value, numbers.Integral) and int(value) >= 1


Screen = Literal["free", "row", "none"]

EVERY = 8
"""Cycles between audits where neither the caller nor the backend says otherwise."""
EARLY = 1.1
"""A lane that is not held is verified once its screen is at most this multiple of its stop. The screen includes a band,
which is at most a tenth of tol (otherwise the lane computes in float64), so a verify could pass no lane whose screen is
larger."""
ESCALATE = 0.1
"""Share of a stop. If only the rounding estimate keeps a lane from passing, and the estimate exceeds this share, a
certificate replaces it. Without one the lane would have to reduce its residual by that share, which may take tens of
cycles; docs/benchmarks/rounding.md has the cost of a certificate."""
BACK_OFF = 0.95
"""Smallest factor by which a rejected verify lowers the screen at which the lane is held next."""


@dataclass(frozen=True, slots=True)
class Geometric:
    """Audit times that spread out: `first`, then each `ratio` times the one before (rounded up)."""

    first: int = 8
    ratio: float = 1.5

    def __post_init__(self) -> None:
        if (
            not is_count(self.first)
            or not isinstance(cast(object, self.ratio), numbers.Real)
            or not 1 < self.ratio < 1e9
        ):
            raise OptionsError(
                f"a geometric audit needs a whole first >= 1 and a ratio > 1, got first={self.first}, "
                f"ratio={self.ratio}; Geometric(8, 1.5) looks after 8, 12, 18, ... cycles"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """When and how lanes are checked. Data, so that two arms of an experiment differ in one line.

    Attributes:
        every: Cycles between audits, or a `Geometric` grid. None: the backend chooses, 8 where an audit is cheap.
        first_passage: True: a lane is held at its first state whose screen passes, so audit times change no result.
            False: a lane runs on and may leave only on the audit grid (the paper's depth).
        screen: "free" reads the residual that the last leg measured anyway; "row" pays a separate row pass;
            "none" verifies every live lane.
        batched: Verify all candidates in one call, or one by one.
        margin: Screen and verify at `margin * tol`.
        shadow: Also verify lanes that did not pass the screen, and count those that would pass; they do not leave.
    """

    every: int | Geometric | None = None
    first_passage: bool = True
    screen: Screen = "free"
    batched: bool = True
    margin: float = 1.0
    shadow: bool = False

    def __post_init__(self) -> None:
        if self.every is not None and not isinstance(self.every, Geometric):
            if not is_count(self.every):
                raise OptionsError(
                    f"audit every must be a whole number of at least 1 cycle, got {self.every!r}; 8 is usual"
                )
            object.__setattr__(self, "every", int(self.every))
        if self.screen not in ("free", "row", "none"):
            raise OptionsError(f'audit screen must be "free", "row" or "none", got {self.screen!r}')
        if not isinstance(cast(object, self.margin), numbers.Real) or not 0 < self.margin <= 1:
            raise OptionsError(
                f"audit margin must lie in (0, 1], got {self.margin}; a larger one would release unfinished lanes"
            )

    def following(self, clock: int) -> int:
        """The first audit after `clock` cycles of a pack."""
        if not isinstance(self.every, Geometric):
            every = self.every or EVERY
            return (clock // every + 1) * every
        when = self.every.first
        while when <= clock:
            when = math.ceil(when * self.every.ratio)
        return when


class Standing(NamedTuple):
    """A live lane as an audit finds it: cycles run, residual of the stale side, and the stop it must come down to."""

    ticket: int
    depth: int
    stale: float
    stop: float


class Verdict(NamedTuple):
    """What verify said of a lane that leaves."""

    residual: Residual
    status: Status


class Counts(NamedTuple):
    """What one audit did. `ready` of the `shadowed` lanes would have passed although the screen said no."""

    screened: int
    verified: int
    passed: int
    rejected: int
    shadowed: int
    ready: int


def last_states(
    live: Mapping[int, tuple[int, Any]], progress: Sequence[Progress], max_depth: int, expired: Container[int]
) -> dict[int, Status]:
    """Lanes at their depth limit or past their deadline, and how they end unless they pass.

    Args:
        live: Ticket and instance of every live lane.
        progress: Result of the last advance, by lane.
        max_depth: The depth limit.
        expired: Tickets whose deadline has come.
    """
    final = dict[int, Status]()
    for lane, (ticket, _) in live.items():
        if progress[lane].depth >= max_depth:
            final[lane] = Status.DEPTH_LIMIT
        elif ticket in expired:
            final[lane] = Status.EXPIRED
    return final


def judge(
    pack: Pack[Any],
    progress: Sequence[Progress],
    due: Sequence[int],
    final: Mapping[int, Status],
    stops: Sequence[float],
    holds: list[float],
    audit: Audit,
    exact: bool,
    quorum: int = 0,
) -> tuple[dict[int, Verdict], Counts]:
    """Screen the lanes that are due, verify the candidates, and return those that are decided and may leave.

    Only verify can pass a lane. A lane that is verified but not decided is rejected and continues. If it had been held,
    its hold is lowered: to the stop less the difference between verify and screen, but to no less than BACK_OFF times
    the old hold.

    A certificate decides where the rounding estimate alone does: for a lane at its last state, if the stop lies within
    the estimate of the measured residual; for any other lane, if the measured residual is within the stop and the
    estimate exceeds ESCALATE times the stop. Both rules depend on the state alone.

    Args:
        pack: The pack.
        progress: Result of the last advance, by lane.
        due: Lanes to audit now.
        final: Lanes at their last state, which are verified whatever the screen says, and how each of them ends if it
            does not pass: DEPTH_LIMIT or EXPIRED.
        stops: What the residual must not exceed, by lane.
        holds: What the screen must not exceed, by lane; -inf where lanes are not held.
        audit: The rules.
        exact: Certify every candidate.
        quorum: With fewer candidates none is verified, and with fewer decided lanes none leaves: the number of live
            lanes if all lanes leave together, else 0.
    """
    if audit.screen == "none":
        candidates = list(due)
    else:
        values = pack.screen(due) if audit.screen == "row" else [progress[lane].stale for lane in due]
        # Written so that NaN asks for a verify.
        bars = [EARLY * stops[lane] if holds[lane] == -math.inf else holds[lane] for lane in due]
        candidates = [lane for lane, value, bar in zip(due, values, bars, strict=True) if not value > bar]
    turned_down = sorted(set(due) - set(candidates) - set(final)) if audit.shadow else []
    candidates = sorted({*candidates, *final})
    if len(candidates) < quorum:
        candidates = []

    def verify(lanes: Sequence[int]) -> list[Residual]:
        if audit.batched:
            return list(pack.verify(lanes, exact=exact)) if lanes else []
        return [pack.verify([lane], exact=exact)[0] for lane in lanes]

    def undecided(lane: int, residual: Residual) -> bool:
        """Whether a certificate must decide: see the rules above."""
        measured, stop = max(residual.row, residual.col), stops[lane]
        if lane in final:
            return measured - residual.band <= stop < measured + residual.band
        return measured <= stop < measured + residual.band and ESCALATE * stop < residual.band < math.inf

    def certified(lanes: Sequence[int], residuals: list[Residual]) -> list[Residual]:
        """Return the residuals, those of undecided lanes replaced by certificates."""
        doubtful = [] if exact else [k for k, lane in enumerate(lanes) if undecided(lane, residuals[k])]
        if doubtful:
            for k, certificate in zip(doubtful, pack.verify([lanes[k] for k in doubtful], exact=True), strict=True):
                if certificate.worst < math.inf:
                    residuals[k] = certificate
        return residuals

    def status_of(lane: int, worst: float) -> Status | None:
        # Under first passage a lane that was not held has not passed its screen, whatever a verify without screen says.
        eligible = not audit.first_passage or lane in final or not progress[lane].stale > stops[lane]
        if worst <= stops[lane] and eligible:
            return Status.CONVERGED
        if math.isnan(worst):
            return Status.NONFINITE
        return final.get(lane)

    decided: dict[int, Verdict] = {}
    for lane, residual in zip(candidates, certified(candidates, verify(candidates)), strict=True):
        status = status_of(lane, residual.worst)
        if status is not None:
            decided[lane] = Verdict(residual, status)
        elif progress[lane].stale <= holds[lane] and residual.worst < math.inf:
            holds[lane] = max(stops[lane] - (residual.worst - progress[lane].stale), BACK_OFF * holds[lane])
    ready = sum(r.worst <= stops[lane] for lane, r in zip(turned_down, verify(turned_down), strict=True))
    passed = sum(verdict.status is Status.CONVERGED for verdict in decided.values())
    counts = Counts(len(due), len(candidates), passed, len(candidates) - len(decided), len(turned_down), ready)
    return decided if len(decided) >= quorum else {}, counts
