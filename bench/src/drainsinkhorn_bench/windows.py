"""Problems of the named campaigns, made from loaded data. They are centred, and their mean cost is one."""

from __future__ import annotations

from typing import Any

import numpy as np

from drainsinkhorn.model.errors import FileError
from drainsinkhorn.model.problem import Problem
from drainsinkhorn_bench.arms import problem
from drainsinkhorn_bench.loaders import Array, Cells, Features, Scans, Sensors


def sensor_windows(log: Sensors, n: int, count: int, eps: float, seed: int, device: str) -> list[Problem[Any]]:
    """A reference window against `count` others, at random places of the log."""
    if len(log.rows) < n + count:
        raise FileError(f"the sensor log has {len(log.rows)} rows, too few for {count} windows of {n}")
    rng = np.random.default_rng([seed, 3])
    starts = rng.choice(len(log.rows) - n, size=count + 1, replace=False)
    x, *others = (log.rows[start : start + n] for start in starts)
    return [problem(x, y, eps, device) for y in others]


def cell_pairs(cells: Cells, n: int, count: int, seed: int) -> list[tuple[Array, Array]]:
    """Return indices of the cells of `count` pairs of windows, n cells before a cut in time and n cells after it.

    Cells are in the order of time, and the cuts are evenly spaced: cut k has (k + 1) / (count + 1) of all cells before
    it, except that each side has at least n. The n cells of a window are drawn without replacement from those nearest
    to the cut on its side: from 1 / (count + 1) of all cells, but at least n.
    """
    total, rng = len(cells.points), np.random.default_rng([seed, 5])
    if total < 2 * n:
        raise FileError(f"{total} cells are too few for pairs of {n}")
    pairs = list[tuple[Array, Array]]()
    for k in range(count):
        cut = int(np.clip(total * (k + 1) / (count + 1), n, total - n))
        reach = max(n, total // (count + 1))
        early = np.arange(max(0, cut - reach), cut)
        late = np.arange(cut, min(total, cut + reach))
        pairs.append((np.sort(rng.choice(early, n, replace=False)), np.sort(rng.choice(late, n, replace=False))))
    return pairs


def cell_windows(cells: Cells, pairs: list[tuple[Array, Array]], eps: float, device: str) -> list[Problem[Any]]:
    """Return the problems between the cells of each pair that `cell_pairs` returned."""
    return [problem(cells.points[early], cells.points[late], eps, device) for early, late in pairs]


def image_slices(features: Features, n: int, count: int, eps: float, seed: int, device: str) -> list[Problem[Any]]:
    """Images against images of a slice along the leading component: slices differ in how far they lie and spread."""
    order = np.argsort(features.values[:, 0], kind="stable")
    reach = min(4 * n, len(order))
    found = list[Problem[Any]]()
    for k in range(count):
        rng = np.random.default_rng([seed, 13, k])
        x = features.values[rng.choice(len(order), n, replace=False)]
        first = int(rng.integers(len(order) - reach + 1))
        y = features.values[rng.choice(order[first : first + reach], n, replace=False)]
        found.append(problem(x, y, eps, device))
    return found


def scan_pairs(
    scans: Scans, n: int, count: int, eps: float, seed: int, device: str, **columns: Any
) -> list[Problem[Any]]:
    """Return problems between each scan and the next, of n random points each; after the last scan comes the first."""
    found = list[Problem[Any]]()
    for k in range(count):
        rng = np.random.default_rng([seed, 11, k])
        pair = [scans.frames[(seed + k + step) % len(scans.frames)] for step in (0, 1)]
        x, y = (frame[rng.choice(len(frame), n, replace=len(frame) < n)] for frame in pair)
        found.append(problem(x, y, eps, device, **columns))
    return found
