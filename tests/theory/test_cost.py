"""The width-cost curve: exact where prices are given, within bounds where they are measured."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import drainsinkhorn as ds
from drainsinkhorn.backends.cpu import CpuBackend
from drainsinkhorn.core.options import MODES
from drainsinkhorn.theory import Price, WidthCost, opportunity, profile_width_cost, slots
from drainsinkhorn.workloads.clouds import problems

FREE = Price(0.0, 0.0)


def priced(cycle: tuple[float, ...] = (1.0, 2.0), widths: tuple[int, ...] = (1, 2), **prices: object) -> WidthCost:
    zeros = (0.0,) * len(widths)
    base: dict[str, object] = {
        "call": zeros,
        "lockstep": zeros,
        "frozen": zeros,
        **dict.fromkeys(("cold", "screen", "verify", "emit", "pack", "repack", "outside", "audit"), FREE),
    }
    return WidthCost(backend="none", shape=(1, 1, 1), widths=widths, cycle=cycle, **{**base, **prices})  # type: ignore[arg-type]


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=30),
    st.integers(1, 9),
    st.sampled_from(sorted(MODES)),
    st.sampled_from([1, 3, 8]),
)
def test_where_a_slot_costs_one_second_the_time_is_the_slots(
    depths: list[int], width: int, mode: str, every: int
) -> None:
    audit = ds.Audit(every=every)
    forecast = priced().predict(depths, mode, width, audit)
    assert forecast.seconds == pytest.approx(slots(depths, mode, width, audit)) == forecast.slots


def test_between_and_beyond_measured_widths() -> None:
    cost = priced(cycle=(1.0, 3.0, 4.0), widths=(1, 3, 8))
    assert [cost.per_cycle(width) for width in (0, 1, 2, 3, 8, 16)] == [0.0, 1.0, 2.0, 3.0, 4.0, 8.0]
    assert cost.per_cycle(4) == pytest.approx(3.2)


def test_parts_by_hand() -> None:
    """Depths 3, 9 and 9 with an audit every 8: cycles of width 3 x 3, 2 x 5; then one of width 2."""
    cost = priced(
        cycle=(1.0, 1.5, 2.0),
        widths=(1, 2, 3),
        call=(10.0, 20.0, 30.0),
        verify=Price(100.0, 1.0),
        emit=Price(7.0, 0.0),
        pack=Price(0.0, 5.0),
        repack=Price(1000.0, 10.0),
        outside=Price(0.5, 0.25),
        audit=Price(0.125, 0.0),
    )
    parts = cost.predict([3, 9, 9], "compact", 3).parts
    assert parts == {
        "advance": 3 * 2.0 + 5 * 1.5 + 1 * 1.5 + 30.0 + 20.0,
        "verify": 2 * 100.0 + 3.0,
        "emit": 14.0,
        "pack": 15.0,
        "repack": 1020.0,
        "outside": 0.5 + 0.75 + 2 * 0.125,
    }
    refilled = cost.predict([3, 9, 9], "stream", 2).parts
    assert refilled["pack"] == 10.0
    assert refilled["repack"] == 1000.0 + 10.0 + 5.0 + 1000.0 + 10.0
    screened = priced(screen=Price(2.0, 1.0)).predict([3, 9], "compact", 2, ds.Audit(screen="row"))
    assert screened.parts["screen"] == 2 * 2.0 + 2 + 1


def test_first_cycles_cost_more_for_every_lane_that_is_opened() -> None:
    cost = priced(cold=Price(10.0, 1.0))
    assert cost.predict([3, 9, 9], "compact", 2).seconds == 21 + 2 * 10.0 + 3.0
    assert cost.predict([3, 9, 9], "stream", 2).seconds == 21 + 1 * 10.0 + 3.0


def test_mask_pays_for_lockstep_and_frozen_lanes() -> None:
    cost = priced(lockstep=(0.0, 10.0), frozen=(0.0, 100.0))
    assert cost.predict([3, 5], "mask", 2).seconds == 10 + 5 * 10.0 + 2 * 100.0


class TestBreakEven:
    def test_by_hand(self) -> None:
        cost = priced(cycle=(1.0, 8.0), widths=(1, 8), repack=Price(20.0, 0.0))
        # Eight cycles save 8 s per lane: three lanes pay for 20 s.
        assert cost.break_even() == 3
        assert cost.break_even(cycles=100) == 1
        assert cost.break_even(cycles=1) == math.inf
        with pytest.raises(ds.OptionsError, match="at least 1"):
            cost.break_even(width=0)

    def test_a_kernel_that_is_as_fast_at_every_width_never_compacts(self) -> None:
        assert priced(cycle=(1.0, 1.0), widths=(1, 8)).break_even() == math.inf

    def test_it_is_a_mode(self) -> None:
        cost = priced(cycle=(1.0, 8.0), widths=(1, 8), repack=Price(20.0, 0.0))
        mode = ds.Mode(name="compact", min_shrink=cost.break_even())
        depths = [8, 16, 24, 32, 40, 48, 56, 64]
        assert cost.predict(depths, mode, 8).repacks < cost.predict(depths, "compact", 8).repacks
        assert cost.predict(depths, mode, 8).seconds < cost.predict(depths, "compact", 8).seconds


def test_opportunity_of_a_measured_curve() -> None:
    cost = priced(cycle=(1.0, 2.0), verify=Price(3.0, 0.0), repack=Price(5.0, 0.0))
    # Compact verifies twice and repacks once; static verifies once, when both lanes may leave.
    assert cost.overhead([3, 30]) == 3.0 + 5.0
    repeated = [[3, 30], [4, 33], [50, 2]]
    found = opportunity(repeated, per_cycle=cost.per_cycle, overhead=cost.overhead)
    assert found.net.mean == pytest.approx((27 + 29 + 48) / 3 - sum(map(cost.overhead, repeated)) / 3)


def test_bad_requests() -> None:
    with pytest.raises(ds.OptionsError, match="widths must be integers"):
        profile_width_cost("cpu", (5, 5, 1), widths=(0, 2))
    with pytest.raises(ds.OptionsError, match="not offered"):
        profile_width_cost("cpu", (5, 5, 1), accelerate="warp")
    with pytest.raises(ds.OptionsError, match="geometric audit"):
        priced().predict([3], "stream", 2, ds.Audit(every=ds.Geometric()))


def test_predicted_time_is_near_the_measured_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread, in seconds of the processor, so that other work does not count (docs/explanation/theory.md)."""
    monkeypatch.setattr(time, "perf_counter", time.process_time)
    backend, given = CpuBackend(threads=1), problems(0, count=12, sizes=(150, 151))
    depths = [result.depth for result in ds.solve(given, backend=backend, accelerate="none")]
    worst = math.inf
    for _ in range(3):
        cost = profile_width_cost(backend, (150, 150, 3), widths=(1, 2, 4, 12), seconds=1.0)
        ratios = []
        for mode, width in (("width-one", 1), ("compact", 12), ("stream", 4)):
            measured = []
            for _ in range(5):
                start = time.perf_counter()
                ds.solve(given, backend=backend, mode=mode, width=width, accelerate="none")
                measured.append(time.perf_counter() - start)
            ratios.append(cost.predict(depths, mode, width).seconds / min(measured))
        worst = min(worst, max(abs(math.log(ratio)) for ratio in ratios))
        if worst < math.log(1.5):
            break
    assert worst < math.log(1.5)
