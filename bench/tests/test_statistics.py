from __future__ import annotations

import math
import random

import pytest
from scipy import stats

from drainsinkhorn_bench import statistics as st
from drainsinkhorn_bench.records import Run
from drainsinkhorn_bench.statistics import Pair, bootstrap, student_quantile, summary


def timing(unit: str, arm: str, repeat: int, e1: float | None, **more: object) -> dict[str, object]:
    seconds = {"e1": e1, "e2": more.pop("e2", None), "e3": None}
    return {
        "kind": "timing", "campaign": "toy", "unit": unit, "arm": arm, "host": "h", "attempt": "0", "repeat": repeat,
        "position": 0, "seconds": seconds, "reconstructed": False, "extrapolated": False,
    } | more  # fmt: skip


def gate(unit: str, arm: str, *, passed: bool = True) -> dict[str, object]:
    return {"kind": "gate", "unit": unit, "arm": arm, "host": "h", "attempt": "0", "passed": passed}


CONTRAST = {"name": "slow / fast", "numerator": "fast", "denominator": "slow", "endpoint": "e1", "units": None}


def run(*records: dict[str, object]) -> Run:
    return Run({"seed": 0, "campaign": "toy"}, list(records))


def test_a_ratio_by_hand():
    found = st.summarise(
        run(
            timing("u", "fast", 0, 1.0), timing("u", "slow", 0, 2.0),
            timing("u", "fast", 1, 2.0), timing("u", "slow", 1, 16.0),
            timing("v", "fast", 0, 4.0), timing("v", "slow", 0, 2.0),
        ),
        CONTRAST,
    )  # fmt: skip
    # Unit u: sqrt(2 * 8) = 4, unit v: 1/2; together sqrt(4 / 2).
    assert found.units == pytest.approx({("h", "u"): 4.0, ("h", "v"): 0.5})
    assert found.ratio == pytest.approx(math.sqrt(2))
    assert (found.wins, found.pairs, found.unit_wins) == (2, 3, 1)
    assert found.interval is not None
    assert found.interval.level == "unit"


def test_only_repeats_that_both_arms_ran_are_pairs():
    found = st.summarise(
        run(timing("u", "fast", 0, 1.0), timing("u", "slow", 1, 2.0), timing("u", "fast", 1, None)), CONTRAST
    )
    assert (found.ratio, found.interval, found.pairs) == (None, None, 0)


def test_attempts_and_hosts_are_never_paired_across():
    found = st.summarise(run(timing("u", "fast", 0, 1.0), timing("u", "slow", 0, 2.0, host="other")), CONTRAST)
    assert found.pairs == 0
    found = st.summarise(run(timing("u", "fast", 0, 1.0), timing("u", "slow", 0, 2.0, attempt="1")), CONTRAST)
    assert found.pairs == 0


def test_void_units_are_left_out_and_named():
    records = [timing(u, arm, 0, s) for u in "uv" for arm, s in (("fast", 1.0), ("slow", 3.0))]
    found = st.summarise(run(gate("u", "slow", passed=False), gate("v", "slow"), *records), CONTRAST)
    assert found.void == ("u",)
    assert list(found.units) == [("h", "v")]


def test_every_host_counts_the_same():
    pairs = [Pair(f"u{i}", "many", 0, 1.0) for i in range(9)] + [Pair("u0", "few", 0, 4.0)]
    found = summary("x", pairs)
    assert found.hosts == pytest.approx({"many": 1.0, "few": 4.0})
    assert found.ratio == pytest.approx(2.0)


def test_marks_are_carried():
    records = [timing("u", "fast", 0, 1.0, reconstructed=True), timing("u", "slow", 0, 2.0, extrapolated=True)]
    found = st.summarise(run(*records), CONTRAST)
    assert found.reconstructed
    assert found.extrapolated


def test_all_equal_pairs_have_an_interval_without_width():
    found = bootstrap([Pair(f"u{i}", "h", r, 2.0) for i in range(4) for r in range(3)])
    assert (found.low, found.high) == pytest.approx((2.0, 2.0))
    assert (found.level, found.drawn) == ("unit", 4)


def test_one_unit_draws_its_repeats_and_one_pair_tells_nothing():
    found = bootstrap([Pair("u", "h", r, ratio) for r, ratio in enumerate((1.0, 2.0, 4.0))])
    assert found.level == "repeat"
    # Three values are never enough for more than their range.
    assert (found.low, found.high) == pytest.approx((1.0, 4.0))
    assert bootstrap([Pair("u", "h", 0, 3.0)]).level == "none"


def test_an_interval_of_two_units_by_hand():
    # Two units 1 and 4: redrawn means are 0, log 2, log 4 with chances 1/4, 1/2, 1/4, and the tails lie beyond.
    found = bootstrap([Pair("u", "h", 0, 1.0), Pair("v", "h", 0, 4.0)])
    assert (found.low, found.high) == pytest.approx((1.0, 4.0))


def test_the_seed_alone_decides():
    pairs = [Pair(f"u{i}", "h", 0, 1 + i / 7) for i in range(8)]
    assert bootstrap(pairs, seed="a") == bootstrap(list(reversed(pairs)), seed="a")
    assert bootstrap(pairs, seed="a") != bootstrap(pairs, seed="b")


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 12, 23, 60])
def test_student_quantiles_are_those_of_scipy(freedom: int):
    for share in (0.9, 0.975, 0.995):
        assert student_quantile(share, freedom) == pytest.approx(stats.t.ppf(share, freedom), rel=1e-9)


@pytest.mark.parametrize(
    ("hosts", "units", "least", "most"),
    [(1, 8, 0.91, 0.99), (1, 20, 0.92, 0.98), (2, 6, 0.91, 0.99), (1, 3, 0.65, 0.85)],
)
def test_simulated_coverage(hosts: int, units: int, least: float, most: float):
    """Of 400 intervals, as many as promised hold the truth: ratios are lognormal, repeats add noise of their own."""
    truth, hits, trials = 1.3, 0, 400
    for trial in range(trials):
        rng = random.Random(trial)
        pairs = list[Pair]()
        for host in range(hosts):
            for unit in range(units):
                own = rng.gauss(math.log(truth), 0.1)
                pairs += [Pair(f"u{unit}", f"h{host}", r, math.exp(own + rng.gauss(0, 0.02))) for r in range(2)]
        found = bootstrap(pairs, seed=str(trial), resamples=799)
        hits += found.low <= truth <= found.high
    assert least <= hits / trials <= most
