"""The depth at which a lane will reach its stop, predicted from its residuals so far.

Near its end a lane's residual falls by a nearly constant factor per cycle, so a straight line through the logarithm of
the residual over depth, fitted to the later half of the history, shows where the residual will meet the stop. Early
fits predict too small a depth, since the fast modes decay first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from drainsinkhorn.core.audit import Standing
from drainsinkhorn.core.events import Advanced, Event, Lowered, Narrowed, Retired

EARLY_DEPTH, EARLY_RESIDUAL = 8, 0.1
"""Before this depth, and while the residual exceeds this value, the rate of a lane is not known yet."""
SPREAD = 32
"""Largest number of points of its history that a lane keeps; they are about 1 / SPREAD of its depth apart."""
FLAT = 1e-3
"""If the residual fell by less than this share over the fitted part, the lane has no forecast."""


class DepthForecast:
    """Predicts the depth at which one lane will reach its stop."""

    def __init__(self) -> None:
        # Depth and log residual of the later half of the history, up to the last residual.
        self._points: list[tuple[int, float]] = []

    def add(self, depth: int, stale: float) -> None:
        """Add the residual of the stale side after `depth` cycles; one that is zero or not finite is ignored."""
        points = self._points
        while points and points[-1][0] >= depth:
            # The same depth again, or the lane has started again.
            points.pop()
        if not 0 < stale < math.inf:
            return
        if len(points) > 1 and SPREAD * (points[-1][0] - points[-2][0]) < depth:
            points.pop()
        points.append((depth, math.log(stale)))
        # A point that has left the later half never belongs to it again. A line needs two points.
        while len(points) > 2 and 2 * points[0][0] < depth:
            points.pop(0)

    def depth(self, stop: float) -> float | None:
        """Depth at which the residual will not exceed `stop`; None if that is unknown: too early, or not falling."""
        if not self._points or not stop > 0:
            return None
        depth, last = self._points[-1]
        goal = math.log(stop)
        if last <= goal:
            return float(depth)
        if len(self._points) < 2 or (depth < EARLY_DEPTH and last > math.log(EARLY_RESIDUAL)):
            return None
        middle, level, slope = _line(self._points)
        if slope * (depth - self._points[0][0]) > -FLAT:
            return None
        return max(float(depth), middle + (goal - level) / slope)


def _line(points: list[tuple[int, float]]) -> tuple[float, float, float]:
    """The least-squares line through points: the mean depth, the value there, and the slope."""
    x = math.fsum(p[0] for p in points) / len(points)
    y = math.fsum(p[1] for p in points) / len(points)
    square = math.fsum((p[0] - x) ** 2 for p in points)
    return x, y, math.fsum((p[0] - x) * (p[1] - y) for p in points) / square


class PredictedLane(NamedTuple):
    """A live lane: cycles it has run, and its predicted depth; None if that is unknown."""

    depth: int
    predicted_depth: float | None


class Remaining(NamedTuple):
    """Cycles that live lanes still need: the sum over those with a forecast, and how many have none."""

    cycles: float
    unknown: int


class Forecasts:
    """An observer that keeps a forecast for every live lane of a run.

    It reads the standing of every live lane at each `Advanced` event that it receives.
    """

    def __init__(self) -> None:
        self._lanes: dict[int, tuple[DepthForecast, Standing]] = {}

    def __call__(self, event: Event) -> None:
        """Receive an event."""
        if isinstance(event, Advanced):
            self._update(event.standings())
        elif isinstance(event, Retired):
            for ticket in event.outcomes.tickets:
                self._lanes.pop(ticket, None)
        elif isinstance(event, (Narrowed, Lowered)):
            for ticket in event.again if isinstance(event, Narrowed) else event.tickets:
                self._lanes.pop(ticket, None)

    def lanes(self) -> dict[int, PredictedLane]:
        """Return every live lane with its forecast, by ticket."""
        return {
            ticket: PredictedLane(standing.depth, forecast.depth(standing.stop))
            for ticket, (forecast, standing) in self._lanes.items()
        }

    def remaining(self) -> Remaining:
        """Return how many cycles the live lanes still need."""
        lanes = self.lanes().values()
        known = [lane.predicted_depth - lane.depth for lane in lanes if lane.predicted_depth is not None]
        return Remaining(math.fsum(known), len(lanes) - len(known))

    def _update(self, standings: Iterable[Standing]) -> None:
        before, self._lanes = self._lanes, {}
        for standing in standings:
            forecast = before[standing.ticket][0] if standing.ticket in before else DepthForecast()
            forecast.add(standing.depth, standing.stale)
            self._lanes[standing.ticket] = forecast, standing
