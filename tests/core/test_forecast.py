"""Forecasts of depth: fits by hand, what is unknown, bounded memory, and lanes of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pytest

from drainsinkhorn.core import DepthForecast, Forecasts
from drainsinkhorn.core.audit import Audit, Standing
from drainsinkhorn.core.events import Advanced, Event, Retired, fan_out
from drainsinkhorn.core.executor import execute
from drainsinkhorn.core.forecast import SPREAD, Remaining
from drainsinkhorn.core.options import Options
from drainsinkhorn.core.protocol import Spent
from drainsinkhorn.core.source import Admission, Batch
from drainsinkhorn.model.outcomes import Outcomes
from drainsinkhorn.testing.scripted import Script, ScriptedBackend, scripted


def told(points: Iterable[tuple[int, float]]) -> DepthForecast:
    forecast = DepthForecast()
    for depth, stale in points:
        forecast.add(depth, stale)
    return forecast


class TestForecast:
    @pytest.mark.parametrize("every", [1, 3, 8])
    def test_a_constant_rate_is_foretold_exactly(self, every: int) -> None:
        forecast = told((d, 2 * 0.9**d) for d in range(every, 25, every))
        assert forecast.depth(1e-3) == pytest.approx(math.log(1e-3 / 2) / math.log(0.9))

    def test_only_the_later_half_counts(self) -> None:
        # A fast beginning, then a slow mode alone.
        points = [(d, 0.5 * 0.3**d + 0.1 * 0.99**d) for d in range(1, 61)]
        assert told(points).depth(1e-3) == pytest.approx(math.log(1e-2) / math.log(0.99), rel=1e-3)

    def test_too_little_history_is_unknown(self) -> None:
        assert DepthForecast().depth(1e-3) is None
        assert told([(40, 0.5)]).depth(1e-3) is None
        assert told((d, 0.9**d) for d in range(1, 8)).depth(1e-3) is None
        assert told((d, 0.9**d) for d in range(1, 9)).depth(1e-3) is not None
        # Near enough to have shown its rate.
        assert told((d, 0.3**d) for d in range(1, 4)).depth(1e-3) == pytest.approx(math.log(1e-3) / math.log(0.3))

    @pytest.mark.parametrize("rate", [1.0, 1.01, 1 - 1e-6])
    def test_what_does_not_fall_is_unknown(self, rate: float) -> None:
        assert told((d, 0.5 * rate**d) for d in range(1, 40)).depth(1e-3) is None

    def test_a_lane_that_is_there_is_there(self) -> None:
        assert told([(1, 1e-4)]).depth(1e-3) == 1.0
        assert told([(8, 0.5), (16, 1e-3)]).depth(1e-3) == 16.0

    def test_a_forecast_is_never_behind_the_lane(self) -> None:
        points = [(d, 0.5**d) for d in range(1, 20)] + [(20, 2e-3)]
        assert told(points).depth(1e-3) >= 20  # type: ignore[operator]

    @pytest.mark.parametrize("nothing", [math.nan, math.inf, 0.0, -1.0])
    def test_what_is_no_residual_says_nothing(self, nothing: float) -> None:
        points = [(d, nothing if d % 5 == 0 else 0.8**d) for d in range(1, 21)]
        assert told(points).depth(1e-6) == pytest.approx(math.log(1e-6) / math.log(0.8))
        assert told([(d, nothing) for d in range(1, 21)]).depth(1e-6) is None
        assert told([(d, 0.8**d) for d in range(1, 21)]).depth(nothing if nothing != math.inf else -1.0) is None

    def test_a_lane_that_starts_anew_is_forgotten(self) -> None:
        old, new = ((d, 0.99**d) for d in range(1, 500)), [(d, 0.7**d) for d in range(1, 30)]
        assert told([*old, *new]).depth(1e-8) == told(new).depth(1e-8)

    def test_told_twice_is_told_once(self) -> None:
        points = [(d, 0.9**d) for d in range(1, 30)]
        assert told(p for p in points for _ in range(2)).depth(1e-4) == told(points).depth(1e-4)

    @pytest.mark.parametrize("every", [1, 8, 100])
    def test_memory_is_bounded_and_covers_the_later_half(self, every: int) -> None:
        forecast = DepthForecast()
        for depth in range(every, 20_000, every):
            forecast.add(depth, 0.999**depth)
            kept = [d for d, _ in forecast._points]
            assert len(kept) <= SPREAD
            assert kept[-1] == depth
            if depth > 4 * every:
                assert depth / 2 <= kept[0] <= depth / 2 + max(depth / SPREAD, every) + every
        assert forecast.depth(1e-12) == pytest.approx(math.log(1e-12) / math.log(0.999), rel=1e-9)


def run(scripts: list[Script | int], observe: Any, **settings: Any) -> None:
    plan = Options(**{"mode": "compact", "audit": Audit(every=4), **settings}).plan(None)
    waiting = Batch([Admission(ticket, scripted(script)) for ticket, script in enumerate(scripts)])
    for _ in execute(ScriptedBackend(), waiting, plan, observe):
        pass


class TestForecasts:
    def test_lanes_of_a_run_by_hand(self) -> None:
        forecasts, depths = Forecasts(), [20, 60, 100]
        seen: list[tuple[int, Remaining]] = []

        def look(event: Event) -> None:
            forecasts(event)
            if isinstance(event, Advanced):
                clock = next(iter(forecasts.lanes().values())).depth
                seen.append((clock, forecasts.remaining()))
                assert set(forecasts.lanes()) == {t for t, depth in enumerate(depths) if depth > clock - 4}

        run([Script(depth, start=1e3) for depth in depths], look)
        assert seen[0] == (4, Remaining(0.0, 3))
        for clock, remaining in seen[1:]:
            left = [depth - clock for depth in depths if depth >= clock]
            assert remaining.cycles == pytest.approx(sum(left))
            assert remaining.unknown == 0
        assert forecasts.remaining() == Remaining(0.0, 0)

    def test_lanes_that_stand_still_are_counted_apart(self) -> None:
        forecasts, found = Forecasts(), list[Remaining]()
        run([Script(40, start=10.0), 40], fan_out(forecasts, lambda _: found.append(forecasts.remaining())))
        assert any(r.unknown == 1 and r.cycles > 0 for r in found)

    @pytest.mark.parametrize("mode", ["compact", "stream", "mask", "static", "width-one"])
    def test_every_mode_and_refill(self, mode: str) -> None:
        forecasts, live = Forecasts(), list[int]()

        def look(event: Event) -> None:
            forecasts(event)
            if isinstance(event, Advanced):
                live.append(len(forecasts.lanes()) - event.live)

        run([Script(9 + 7 * i % 30, start=5.0) for i in range(40)], look, mode=mode, width=6)
        assert set(live) == {0}
        assert forecasts.lanes() == {}

    def test_retired_lanes_leave_at_once(self) -> None:
        forecasts = Forecasts()
        forecasts(Advanced(1, 2, 2, Spent(0, 0), lambda: [Standing(0, 9, 0.5, 1.0), Standing(1, 9, 5.0, 1.0)]))
        assert set(forecasts.lanes()) == {0, 1}
        forecasts(Retired([], Outcomes(depths=[9], tickets=[0])))
        assert forecasts.remaining() == Remaining(0.0, 1)
