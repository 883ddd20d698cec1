"""Paired ratios: geometric means, bootstrap intervals, wins; stratified by host. A pure function of raw records.

A pair is one repeat of one unit, in which both arms ran in turns. A unit's ratio is the geometric mean of its pairs, a
host's that of its units, and the summary's that of the hosts, each host counting the same. Repeats only steady a unit;
units are what an interval is about, so the bootstrap draws units anew within each host. Where no host has two units it
draws repeats instead, and the summary says so: such an interval speaks of timing alone.

Intervals are expanded percentile intervals (Hesterberg 2015): with N units on H hosts, percentiles of the bootstrap are
taken at `Phi(-+ sqrt(N / (N - H)) t)` with t the Student quantile of N - H degrees of freedom, since the plain ones are
too narrow for few units. Only the standard library is used, so a seed gives the same interval everywhere.
"""

from __future__ import annotations

import math
import random
import statistics
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from drainsinkhorn_bench.records import Record, Run

RESAMPLES = 9999
CONFIDENCE = 0.95


class Pair(NamedTuple):
    """Seconds of the denominator over seconds of the numerator, in one repeat of one unit."""

    unit: str
    host: str
    repeat: int
    ratio: float


@dataclass(frozen=True, slots=True)
class Interval:
    """A bootstrap interval.

    Attributes:
        low: Its lower end.
        high: Its upper end.
        level: What was drawn anew: "unit", "repeat", or "none" where a single one tells nothing.
        drawn: How many of them there are. No bootstrap reaches beyond the values it draws from, so three cover the
            truth in about 3 of 4 cases and five in about 9 of 10, whatever `confidence` asks for.
        confidence: What was asked for.
    """

    low: float
    high: float
    level: str
    drawn: int
    confidence: float = CONFIDENCE


@dataclass(frozen=True, slots=True)
class Summary:
    """What a contrast found.

    Attributes:
        contrast: Its name.
        ratio: Geometric mean over hosts of their ratios; above 1 the numerator is faster. None if there is no pair.
        interval: Of the ratio. None if there is no pair.
        wins: Pairs above 1.
        pairs: All pairs.
        unit_wins: Units whose ratio is above 1.
        units: Ratio of every unit, by host and name.
        hosts: Ratio of every host.
        void: Units of which an arm did not pass its gate.
        reconstructed: True if seconds of a pair were reconstructed from a longer interval.
        extrapolated: True if seconds of a pair were scaled up from a part of the problems.
    """

    contrast: str
    ratio: float | None
    interval: Interval | None
    wins: int
    pairs: int
    unit_wins: int
    units: dict[tuple[str, str], float]
    hosts: dict[str, float]
    void: tuple[str, ...]
    reconstructed: bool
    extrapolated: bool


def geometric_mean(values: Iterable[float]) -> float:
    """`exp(mean(log))`."""
    return math.exp(statistics.fmean(map(math.log, values)))


def failed(run: Run) -> set[tuple[str, str]]:
    """(unit, arm) that did not pass their gate: void."""
    return {(gate["unit"], gate["arm"]) for gate in run.kind("gate") if not gate["passed"]}


def timings(run: Run, unit: str | None = None, arm: str | None = None) -> list[Record]:
    """Timing records of units and arms that are not void."""
    void = failed(run)
    return [
        record
        for record in run.kind("timing")
        if (record["unit"], record["arm"]) not in void
        and unit in (None, record["unit"])
        and arm in (None, record["arm"])
    ]


def typical(run: Run, unit: str, arm: str, endpoint: str) -> float | None:
    """Median seconds of an arm in a unit; None where there are none."""
    seconds = [s for record in timings(run, unit, arm) if (s := record["seconds"][endpoint]) is not None]
    return statistics.median(seconds) if seconds else None


def summarise(run: Run, contrast: Mapping[str, Any]) -> Summary:
    """What a contrast of the manifest found in the records."""
    top, bottom, endpoint = contrast["numerator"], contrast["denominator"], contrast["endpoint"]
    asked = contrast.get("units")
    both: dict[tuple[str, str, str, int], dict[str, Record]] = {}
    for record in timings(run):
        if record["arm"] in (top, bottom) and (asked is None or record["unit"] in asked):
            key = (record["unit"], record["host"], record["attempt"], record["repeat"])
            both.setdefault(key, {})[record["arm"]] = record
    pairs, used = list[Pair](), list[Record]()
    for (unit, host, _, repeat), found in both.items():
        ours, theirs = (found[arm]["seconds"][endpoint] if arm in found else None for arm in (top, bottom))
        if ours and theirs and min(ours, theirs) > 0:
            pairs.append(Pair(unit, host, repeat, theirs / ours))
            used += [found[top], found[bottom]]
    void = sorted({u for u, arm in failed(run) if arm in (top, bottom) and (asked is None or u in asked)})
    seed = [run.manifest["seed"], zlib.crc32(contrast["name"].encode())]
    return summary(
        contrast["name"],
        pairs,
        seed=f"{seed}",
        void=void,
        reconstructed=endpoint == "e1" and any(record["reconstructed"] for record in used),
        extrapolated=any(record["extrapolated"] for record in used),
    )


def summary(
    name: str,
    pairs: Sequence[Pair],
    *,
    seed: str = "0",
    void: Sequence[str] = (),
    reconstructed: bool = False,
    extrapolated: bool = False,
) -> Summary:
    """Sum up pairs."""
    tree = _tree(pairs)
    units = {
        (host, unit): math.exp(statistics.fmean(logs)) for host, found in tree.items() for unit, logs in found.items()
    }
    hosts = {host: math.exp(_host_mean(found.values())) for host, found in tree.items()}
    return Summary(
        contrast=name,
        ratio=geometric_mean(hosts.values()) if hosts else None,
        interval=bootstrap(pairs, seed=seed) if pairs else None,
        wins=sum(pair.ratio > 1 for pair in pairs),
        pairs=len(pairs),
        unit_wins=sum(ratio > 1 for ratio in units.values()),
        units=units,
        hosts=hosts,
        void=tuple(void),
        reconstructed=reconstructed,
        extrapolated=extrapolated,
    )


_Logs = list[float]


def _tree(pairs: Sequence[Pair]) -> dict[str, dict[str, _Logs]]:
    """Log ratios by host and unit, in a fixed order."""
    tree: dict[str, dict[str, _Logs]] = {}
    for pair in sorted(pairs):
        tree.setdefault(pair.host, {}).setdefault(pair.unit, []).append(math.log(pair.ratio))
    return tree


def _host_mean(units: Iterable[_Logs]) -> float:
    return statistics.fmean(map(statistics.fmean, units))


def bootstrap(
    pairs: Sequence[Pair], *, seed: str = "0", resamples: int = RESAMPLES, confidence: float = CONFIDENCE
) -> Interval:
    """Return a bootstrap interval of the geometric mean of the hosts' ratios, in which each host counts the same.

    Examples:
        >>> pairs = [Pair(f"u{i}", "h", 0, ratio) for i, ratio in enumerate((1.8, 1.9, 2.0, 2.1, 2.2))]
        >>> found = bootstrap(pairs)
        >>> 1.7 < found.low < 2.0 < found.high < 2.3, found.level
        (True, 'unit')
    """
    tree = _tree(pairs)
    # What is drawn: the logs of a host's units; or, where no host has two, the logs of its one unit's repeats.
    strata = [[statistics.fmean(logs) for logs in units.values()] for units in tree.values()]
    level = "unit"
    if all(len(stratum) < 2 for stratum in strata):
        strata = [list(*units.values()) for units in tree.values()]
        level = "repeat"
    drawn = sum(map(len, strata))
    freedom = drawn - len(strata)
    middle = statistics.fmean(map(statistics.fmean, strata))
    if not freedom:
        return Interval(math.exp(middle), math.exp(middle), "none", drawn, confidence)
    uniform = random.Random(seed).random
    means = sorted(statistics.fmean([_redrawn(stratum, uniform) for stratum in strata]) for _ in range(resamples))
    reach = math.sqrt(drawn / freedom) * student_quantile((1 + confidence) / 2, freedom)
    tail = statistics.NormalDist().cdf(-reach)
    return Interval(math.exp(_at(means, tail)), math.exp(_at(means, 1 - tail)), level, drawn, confidence)


def _redrawn(values: _Logs, uniform: Callable[[], float]) -> float:
    """The mean of as many values, drawn with replacement."""
    count = len(values)
    return math.fsum(values[int(uniform() * count)] for _ in range(count)) / count


def _at(ordered: Sequence[float], share: float) -> float:
    """A quantile, linear between order statistics."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def student_cdf(t: float, freedom: int) -> float:
    """`Pr(T <= t)` of Student's law with whole degrees of freedom (finite sums, Abramowitz and Stegun 26.7.3-4)."""
    angle = math.atan2(t, math.sqrt(freedom))
    cos2 = math.cos(angle) ** 2
    term, total = 1.0, 0.0
    if freedom % 2:
        for k in range(3, freedom + 1, 2):
            total += term
            term *= cos2 * (k - 1) / k
        area = (angle + math.sin(angle) * math.cos(angle) * total) * 2 / math.pi
    else:
        for k in range(2, freedom + 1, 2):
            total += term
            term *= cos2 * (k - 1) / k
        area = math.sin(angle) * total
    return (1 + area) / 2


def student_quantile(share: float, freedom: int) -> float:
    """The t with `Pr(T <= t) = share`, for a share of at least a half.

    Examples:
        >>> round(student_quantile(0.975, 4), 3)
        2.776
    """
    low, high = 0.0, 1.0
    while student_cdf(high, freedom) < share:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if student_cdf(middle, freedom) < share else (low, middle)
    return high
