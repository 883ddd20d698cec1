"""Facts about points that decide how numbers are laid out, and points as tiles want them."""

# pyright: reportCallIssue=false, reportPrivateImportUsage=false, reportGeneralTypeIssues=false
# Numba gives intrinsics another signature than Python sees.

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.backends.cpu.primitives import dot, ordered
from drainsinkhorn.backends.cpu.tiles import WIDE

Array = NDArray[np.float64]

EXPANDED_DIM = 16
"""From so many coordinates on squares are expanded; in fewer, differences cost no more than the exponentials after."""


class Extent(NamedTuple):
    """Where pairs of clouds lie: the middles of their common boxes, (L, d), and bounds on all distances, (L,)."""

    middle: Array
    far: Array


def extent(x: Array, y: Array) -> Extent:
    """The extent of stacks of clouds, (L, n, d) and (L, m, d); far is measured through the middle of the common box."""
    found = Extent(np.empty((len(x), x.shape[2])), np.empty(len(x)))
    _extents(x, y, found.middle, found.far)
    return found


@ordered
def _widen(points, low, high):
    for i in range(points.shape[0]):
        point = points[i]
        for k in range(point.size):
            low[k] = min(low[k], point[k])
            high[k] = max(high[k], point[k])


@ordered
def _radius(points, middle, around):
    """The largest distance from a middle."""
    largest = 0.0
    for i in range(points.shape[0]):
        point = points[i]
        for k in range(point.size):
            around[k] = point[k] - middle[k]
        largest = max(largest, dot(around, around))
    return np.sqrt(largest)


@ordered
def _extents(x, y, middles, far):
    dim = x.shape[2]
    low, high, around = np.empty(dim), np.empty(dim), np.empty(dim)
    for lane in range(x.shape[0]):
        middle, diagonal = middles[lane], 0.0
        low[:], high[:] = x[lane, 0], x[lane, 0]
        _widen(x[lane], low, high)
        _widen(y[lane], low, high)
        for k in range(dim):
            middle[k] = low[k] / 2 + high[k] / 2
            diagonal = max(diagonal, high[k] - low[k])
        diagonal *= np.sqrt(np.float64(dim))
        # The diagonal of the box where squares overflow or vanish.
        far[lane] = diagonal
        if diagonal > 1e-140 and diagonal < 1e140:
            far[lane] = _radius(x[lane], middle, around) + _radius(y[lane], middle, around)


class Laid(NamedTuple):
    """Stacks of clouds as tiles want them: rows (L, n, d), their squared norms, panels and theirs."""

    rows: Array
    row_norms: Array
    panels: Array
    panel_norms: Array


def lay_out(x: Array, y: Array, middle: Array | None) -> Laid:
    """Rows and panels of stacks of clouds, centred if `middle` (L, d) is given; else rows are x itself."""
    (lanes, n, dim), panels = x.shape, -(-y.shape[1] // WIDE)
    centred = middle is not None
    shift = np.zeros((lanes, dim)) if middle is None else middle
    found = Laid(
        np.empty_like(x) if centred else x,
        np.empty((lanes, n if centred else 1)),
        np.empty((lanes, panels, dim, WIDE)),
        np.empty((lanes, panels * WIDE)),
    )
    if centred:
        _lay_rows(x, shift, found.rows, found.row_norms)
    _lay_panels(y, shift, found.panels, found.panel_norms)
    return found


@ordered
def _lay_rows(points, middles, rows, norms):
    for lane in range(points.shape[0]):
        middle = middles[lane]
        for i in range(points.shape[1]):
            point, row = points[lane, i], rows[lane, i]
            for k in range(point.size):
                row[k] = point[k] - middle[k]
            norms[lane, i] = dot(row, row)


@ordered
def _lay_panels(points, middles, panels, norms):
    """Zeros stand behind the last point."""
    size, dim = points.shape[1], points.shape[2]
    some = np.empty((WIDE, dim))
    for lane in range(points.shape[0]):
        middle = middles[lane]
        for p in range(panels.shape[1]):
            panel, first = panels[lane, p], p * WIDE
            for j in range(WIDE):
                row = some[j]
                if first + j < size:
                    point = points[lane, first + j]
                    for k in range(dim):
                        row[k] = point[k] - middle[k]
                else:
                    row[:] = 0
                norms[lane, first + j] = dot(row, row)
            for k in range(dim):
                for j in range(WIDE):
                    panel[k, j] = some[j, k]
