"""Kernels against their floor: the arithmetic with a clock that ticks, the kernels with a real one."""

from __future__ import annotations

import itertools
import time

import pytest

from drainsinkhorn_bench import roofline as module
from drainsinkhorn_bench.plan import Place
from drainsinkhorn_bench.roofline import CYCLES, ROUNDS, Shape, device_floors, roofline

SMALL = (Shape(64, 3, 2, False), Shape(48, 3, 4, True))
MANY = Shape(48, 40, 2, True)


def test_seconds_are_those_of_one_cycle_of_one_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.CPU, "small", SMALL)
    ticks = itertools.count()
    cached, streaming = (found.value for found in roofline("small", Place("cpu", lambda: float(next(ticks)))))
    # Whatever is timed takes one tick.
    assert cached["seconds"] == pytest.approx(1 / (CYCLES * 2))
    assert cached["floor"] == pytest.approx(1 / 2)
    assert streaming["seconds"] == pytest.approx(1 / (CYCLES * 4))
    # 48 rows were timed, and a cycle has two legs of 48 rows.
    assert streaming["floor"] == pytest.approx(2 * 48 / 48)
    assert "reading" in cached["bound"]
    # A kernel and its floor, twice, in some rounds of two looks at the clock.
    assert next(ticks) == 2 * ROUNDS * 4


def test_kernels_of_this_machine_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.CPU, "small", (*SMALL, MANY))
    for found in roofline("small", Place("cpu", time.perf_counter)):
        assert found.name == "roofline"
        assert found.value["seconds"] > 0
        assert found.value["floor"] > 0
        assert found.value["arithmetic"]


def test_floors_of_an_h200() -> None:
    # docs/benchmarks/gpu.md: 64 microseconds a leg for n = 16384, so 128 for a cycle.
    floors = device_floors(Shape(16384, 15, 16, True), 132, 9, 1.98e9)
    assert [round(1e6 * seconds) for seconds in floors.values()] == [128, 48]
    exponentials, products = device_floors(Shape(16384, 50, 8, True), 132, 9, 1.98e9).values()
    assert products > exponentials
    # No products in three dimensions, nor on devices whose tensor cores are not known.
    assert len(device_floors(Shape(8192, 3, 8, True), 132, 9, 1.98e9)) == 1
    assert len(device_floors(Shape(8192, 50, 8, True), 132, 7, 1.98e9)) == 1
