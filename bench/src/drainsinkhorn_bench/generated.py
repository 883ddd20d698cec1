"""Generated data, for campaigns without the public data sets. A seed always gives the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def sensor_log(seed: int, count: int = 40_000, sensors: int = 7) -> Array:
    """Return a sensor log (count, sensors) that switches between twelve regimes of unequal spread and drifts slowly.

    Windows of the log differ from one another, as those of a real machine do.
    """
    rng = np.random.default_rng([seed, 41])
    mixing = rng.normal(size=(sensors, sensors)) / sensors**0.5
    centres, spreads = 2 * rng.normal(size=(12, sensors)), rng.uniform(0.05, 0.8, size=12)
    regimes = np.repeat(rng.integers(12, size=count // 80), 80)
    drift = np.cumsum(rng.normal(size=(count, sensors)), axis=0) * (0.5 / count**0.5)
    noise = rng.normal(size=(count, sensors)) * spreads[regimes][:, None]
    return centres[regimes] + noise @ mixing + drift


def cells(seed: int, per_time: int, dim: int = 50) -> tuple[Array, Array, Array]:
    """Points, times and names of cells of a tree: twelve fates leave a common progenitor one after another, in time."""
    rng = np.random.default_rng([seed, 43])
    count = max(1800, 3 * per_time)
    times = np.sort(rng.uniform(0, 1, size=count))
    spectrum = np.arange(1, dim + 1) ** -0.5
    directions, leaving = 6 * rng.normal(size=(12, dim)) * spectrum, rng.uniform(0, 0.8, size=12)
    fate = rng.integers(12, size=count)
    gone = np.clip(times - leaving[fate], 0, None)[:, None]
    points = gone * directions[fate] + 2 * times[:, None] * directions[0] + rng.normal(size=(count, dim)) * spectrum
    names = np.where(gone[:, 0] > 0, np.char.add("fate ", fate.astype(str)), "progenitor")
    return points, times, names


def features(seed: int, dim: int, count: int = 8192) -> Array:
    """Clusters whose coordinates fade like those of photographs: half of the variance in the first ten."""
    rng = np.random.default_rng([seed, 47])
    spectrum = np.arange(1, dim + 1) ** -0.75
    centres = rng.normal(size=(40, dim))
    return (centres[rng.integers(40, size=count)] + rng.standard_t(6, size=(count, dim))) * spectrum


def street(seed: int, frames: int = 12, count: int = 32_768) -> list[Array]:
    """Ground, two rows of houses, and cars, seen from a car that moves 0.55 m a frame; scans share no points."""
    rng = np.random.default_rng([seed, 53])
    cars = np.column_stack([rng.uniform(-30, 40, 14), rng.choice([-4.0, 4.0], 14) + rng.normal(0, 0.3, 14)])
    scans = list[Array]()
    for frame in range(frames):
        kind = rng.choice(3, size=count, p=[0.6, 0.25, 0.15])
        reach = 3 * np.exp(rng.uniform(0, 2.6, size=count))
        angle = rng.uniform(0, 2 * np.pi, size=count)
        ground = np.column_stack([reach * np.cos(angle), reach * np.sin(angle), rng.normal(-1.7, 0.02, count)])
        side = rng.choice([-9.0, 9.0], count) + rng.normal(0, 0.15, count)
        house = np.column_stack([rng.uniform(-40, 40, count), side, rng.uniform(-1.7, 6, count)])
        near = cars[rng.integers(14, size=count)] - [0.55 * frame, 0.0]
        car = np.column_stack([near + rng.uniform(-1, 1, (count, 2)) * [2.1, 0.9], rng.uniform(-1.7, -0.2, count)])
        scans.append(np.choose(kind[:, None], [ground, house, car]).astype(np.float32))
    return scans
