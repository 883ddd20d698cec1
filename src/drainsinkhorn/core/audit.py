"""Audits: when lanes are screened and verified, and which of them may leave."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

from drainsinkhorn.core.source import pick
from drainsinkhorn.model.errors import OptionsError
from drainsinkhorn.model.result import Residuals
from drainsinkhorn.model.status import Status


def is_count(value: object) -> bool:
    """True for an integer of at least 1 (not a bool)."""
    return not isinstance(value, bool) and isinstance(value, numbers.Integral) and int(value) >= 1


Screen = Literal["free", "row", "none"]

EVERY = 8
"""Cycles between audits where neither the caller nor the backend says otherwise."""
EARLY = 1.1
"""A lane that is not held is verified once its screen is at most this multiple of its stop: a verify of a lane whose
screen is larger would rarely pass. The screen includes a rounding bound that may be larger than that of the verify."""
ESCALATE, CERTIFICATE_CYCLES = 0.1, 16
"""A certificate replaces the rounding estimate of a lane if only the estimate keeps the lane from passing, if the
estimate exceeds ESCALATE times the stop, and if the lane is predicted to need more than CERTIFICATE_CYCLES further
cycles to pass with the estimate. docs/benchmarks/rounding.md has the cost of a certificate."""
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
                f"ratio={self.ratio}; Geometric(8, 1.5) audits after 8, 12, 18, ... cycles"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """When and how lanes are checked. An audit is data, so that two arms of an experiment differ in one line.

    Attributes:
        every: Cycles between audits, or a `Geometric` grid. None: the backend chooses, 8 where an audit is cheap.
        first_passage: True: a lane is held at its first state whose screen passes, so audit times change no result.
            False: a lane runs on and may leave only on the audit grid (the paper's depth).
        screen: "free" reads the residual that the last leg measured anyway; "row" pays a separate row pass;
            "none" verifies every live lane.
        batched: True: verify all candidates in one call. False: verify them one by one.
        margin: Lanes pass at a residual of `margin * tol`, in (0, 1].
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
    """A live lane at one moment: cycles run, residual of its stale side, and the stop it must not exceed."""

    ticket: int
    depth: int
    stale: float
    stop: float


class Counts(NamedTuple):
    """Numbers of lanes in one audit. `ready` of the `shadowed` lanes would have passed although their screen failed."""

    screened: int
    verified: int
    passed: int
    rejected: int
    shadowed: int
    ready: int


class Limits(NamedTuple):
    """The residuals that an audit compares with their limits: columns with one entry for each lane of a pack.

    Attributes:
        depths: Cycles that the lanes have run.
        stale: Residual of the stale side, from the last advance.
        stops: Largest residual at which a lane passes.
        holds: Largest screen at which a lane is held; -inf if it is not held. `judge` lowers it for rejected lanes.
        final: Lanes at their last state, which are verified whatever the screen says, and how each of them ends if it
            does not pass: DEPTH_LIMIT or EXPIRED.
    """

    depths: Sequence[int]
    stale: Sequence[float]
    stops: Sequence[float]
    holds: list[float]
    final: Mapping[int, Status]


Verify = Callable[[Sequence[int], bool], Residuals]
"""Measures both residuals of lanes; certifies them if the second argument is true."""


def last_states(
    live: Sequence[int], depths: Sequence[int], depth_limits: Sequence[int], tickets: Sequence[int],
    expired: Container[int],
) -> dict[int, Status]:  # fmt: skip
    """Lanes at their depth limit or past their deadline, and how they end unless they pass.

    Args:
        live: Numbers of the live lanes, ascending.
        depths: Cycles run, by lane.
        depth_limits: Largest number of cycles, by lane.
        tickets: Tickets, by lane.
        expired: Tickets whose deadline has come.
    """
    final = dict[int, Status]()
    if expired == () and not any(map(operator.ge, pick(depths, live), pick(depth_limits, live))):
        return final
    for lane in live:
        if depths[lane] >= depth_limits[lane]:
            final[lane] = Status.DEPTH_LIMIT
        elif tickets[lane] in expired:
            final[lane] = Status.EXPIRED
    return final


def judge(
    limits: Limits,
    due: Sequence[int],
    audit: Audit,
    screen: Callable[[Sequence[int]], Sequence[float]],
    verify: Verify,
    *,
    exact: bool,
    quorum: int = 0,
) -> tuple[list[int], Residuals, list[Status], Counts]:
    """Screen the lanes that are due, verify the candidates, and return those that are decided and may leave.

    Only verify can pass a lane. A lane that is verified but not decided is rejected and continues. If it had been held,
    its hold is lowered: to the stop less the difference between verify and screen, but to no less than BACK_OFF times
    the old hold.

    Args:
        limits: Residuals and screens, and what they must not exceed.
        due: Lanes to audit now.
        audit: The rules.
        screen: Measures the stale side of lanes in a pass of its own.
        verify: Measures both sides.
        exact: Certify every candidate.
        quorum: With fewer candidates none is verified, and with fewer decided lanes none leaves: the number of live
            lanes if all lanes leave together, else 0.

    Returns:
        Lanes that leave, their residuals and statuses, and the numbers of lanes in this audit.
    """
    candidates = _passed_screen(limits, due, audit, screen)
    if limits.final:
        candidates = sorted({*candidates, *limits.final})
    shadow_lanes = sorted({*due}.difference(candidates)) if audit.shadow else []
    if len(candidates) < quorum:
        candidates = []
    residuals = _verify(candidates, audit, verify, exact)
    worst = residuals.worst()
    if not exact and not all(map(operator.le, worst, pick(limits.stops, candidates))):
        residuals = _certify_undecided(limits, candidates, residuals, verify)
        worst = residuals.worst()
    statuses = _statuses(limits, audit, candidates, worst)
    shadowed = _verify(shadow_lanes, audit, verify, exact).worst()
    ready = sum(map(operator.le, shadowed, pick(limits.stops, shadow_lanes)))
    passed, rejected = statuses.count(Status.CONVERGED), statuses.count(None)
    counts = Counts(len(due), len(candidates), passed, rejected, len(shadow_lanes), ready)
    if len(candidates) - rejected < quorum:
        return [], Residuals([], [], []), [], counts
    if rejected == 0:
        return list(candidates), residuals, [status for status in statuses if status is not None], counts
    decided = [place for place, status in enumerate(statuses) if status is not None]
    residuals = Residuals(*([column[place] for place in decided] for column in residuals))
    leaving = [candidates[place] for place in decided]
    return leaving, residuals, [status for status in statuses if status is not None], counts


def _statuses(limits: Limits, audit: Audit, lanes: Sequence[int], worst: Sequence[float]) -> Sequence[Status | None]:
    """How verified lanes end; None: a lane continues, and its hold is lowered."""
    stops, holds = pick(limits.stops, lanes), pick(limits.holds, lanes)
    # Holds are at most stops. A hold of -inf means that the lane is never held; its stop takes the place of the hold.
    bounds = stops if min(holds, default=0.0) == -math.inf else holds
    if all(map(operator.le, worst, stops)) and not any(map(operator.gt, pick(limits.stale, lanes), bounds)):
        return [Status.CONVERGED] * len(lanes)
    statuses = [_status(limits, audit, lane, value) for lane, value in zip(lanes, worst, strict=True)]
    for lane, value, status in zip(lanes, worst, statuses, strict=True):
        if status is None and limits.stale[lane] <= limits.holds[lane] and value < math.inf:
            limits.holds[lane] = max(limits.stops[lane] - (value - limits.stale[lane]), BACK_OFF * limits.holds[lane])
    return statuses


def _passed_screen(
    limits: Limits, due: Sequence[int], audit: Audit, screen: Callable[[Sequence[int]], Sequence[float]]
) -> Sequence[int]:
    """Lanes that are due and whose screen calls for a verify: it is small, or NaN."""
    if audit.screen == "none":
        return due
    values = screen(due) if audit.screen == "row" else pick(limits.stale, due)
    bounds = pick(limits.holds, due)
    if min(bounds, default=0.0) == -math.inf:
        bounds = [
            EARLY * limits.stops[lane] if hold == -math.inf else hold for lane, hold in zip(due, bounds, strict=True)
        ]
    # Written so that NaN leads to a verify.
    if not any(map(operator.gt, values, bounds)):
        return due
    return [lane for lane, value, bound in zip(due, values, bounds, strict=True) if not value > bound]


def _verify(lanes: Sequence[int], audit: Audit, verify: Verify, exact: bool) -> Residuals:
    """Residuals of lanes, measured in one call or one by one."""
    if not lanes:
        return Residuals([], [], [])
    if audit.batched:
        return verify(lanes, exact)
    return Residuals.from_rows(verify([lane], exact).rows()[0] for lane in lanes)


def _certify_undecided(limits: Limits, lanes: Sequence[int], residuals: Residuals, verify: Verify) -> Residuals:
    """Residuals, with those of lanes replaced by certificates where the rounding estimate alone would decide.

    That is so for a lane at its last state, if the stop lies within the estimate of the measured residual; for any
    other lane, if the measured residual is within the stop, the estimate exceeds ESCALATE times the stop, and the lane
    is predicted to need more than CERTIFICATE_CYCLES further cycles. Both rules depend only on the state of the lane
    and its depth.
    """
    undecided = list[int]()
    for place, (lane, row, col, band) in enumerate(zip(lanes, *residuals, strict=True)):
        measured, stop = max(row, col), limits.stops[lane]
        if stop < measured + band:
            if lane in limits.final:
                is_undecided = measured - band <= stop
            else:
                is_undecided = measured <= stop and ESCALATE * stop < band < math.inf
                is_undecided &= _cycles_to_pass(limits.depths[lane], measured, stop - band) > CERTIFICATE_CYCLES
            if is_undecided:
                undecided.append(place)
    if not undecided:
        return residuals
    rows = residuals.rows()
    for place, certificate in zip(undecided, verify([lanes[place] for place in undecided], True).rows(), strict=True):
        if certificate.worst < math.inf:
            rows[place] = certificate
    return Residuals.from_rows(rows)


def _cycles_to_pass(depth: int, measured: float, needed: float) -> float:
    """Predict in how many cycles a residual falls to the one needed, at the rate at which it fell from 1 so far."""
    if not (needed > 0 and measured < 1):
        return math.inf
    return depth * math.log(measured / needed) / -math.log(measured)


def _status(limits: Limits, audit: Audit, lane: int, worst: float) -> Status | None:
    """How a verified lane ends; None: it continues."""
    # Under first passage a lane that was not held has not passed its screen, whatever a verify without screen says.
    hold = limits.stops[lane] if limits.holds[lane] == -math.inf else limits.holds[lane]
    if worst <= limits.stops[lane] and (
        not audit.first_passage or lane in limits.final or not limits.stale[lane] > hold
    ):
        return Status.CONVERGED
    if math.isnan(worst):
        return Status.NONFINITE
    return limits.final.get(lane)
