"""Scores `S = C / eps` in float64: the layout of points that tiles read, and kernels that compute, cache and load them.

The formulas of costs are in `numerics.costs`.
"""

# pyright: reportCallIssue=false, reportPrivateImportUsage=false, reportGeneralTypeIssues=false
# Numba gives intrinsics another signature than Python sees.

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numba import carray
from numpy.typing import NDArray

from drainsinkhorn.backends.cpu.lane_table import DENSE32, DENSE64
from drainsinkhorn.backends.cpu.primitives import copy, dot, double, float32_at, ordered
from drainsinkhorn.backends.cpu.tiles import DIRECT, EXPANDED, WIDE, padded_width, squares

Array = NDArray[np.float64]

BLOCK = 16
"""Rows whose scores are computed together: some tiles."""


@ordered
def direct_form(lane):
    """Return the form that computes scores of a lane without expanding squares: DIRECT in place of EXPANDED."""
    return DIRECT if lane.form == EXPANDED else lane.form


@ordered
def load_scores(lane, form, first, last, out):
    """Write `S_ij` of rows first .. last - 1 of a lane to a block; implements `numerics.costs.cost_matrix` over eps.

    `form` is that of the lane, or its `direct_form`; cached scores are read only in the former.
    """
    cols, factor = lane.cols, lane.factor
    if form == DENSE32:
        for i in range(first, last):
            row32 = carray(float32_at(lane.x + 4 * i * cols), (cols,))
            for j in range(cols):
                out[i - first, j] = row32[j] * factor
    elif form == DENSE64:
        for i in range(first, last):
            row64 = double(lane.x + 8 * i * cols, cols)
            for j in range(cols):
                out[i - first, j] = row64[j] * factor
    elif lane.scores and form == lane.form:
        for i in range(first, last):
            copy(out[i - first, :cols], double(lane.scores + 8 * i * cols, cols))
    else:
        squares(form, lane.x, lane.norms_x, lane.y, lane.norms_y, lane.dim, cols, factor, first, last, out)


@ordered
def cache_scores(lane, first, last):
    """Store the scores of rows first .. last - 1, `numerics.costs.cost_matrix` over eps, for `load_scores` to read."""
    cols, factor = lane.cols, lane.factor
    block = np.empty((BLOCK, padded_width(cols)))
    for start in range(first, last, BLOCK):
        end = min(last, start + BLOCK)
        squares(lane.form, lane.x, lane.norms_x, lane.y, lane.norms_y, lane.dim, cols, factor, start, end, block)
        for i in range(start, end):
            copy(double(lane.scores + 8 * i * cols, cols), block[i - start, :cols])


@ordered
def score_matrix(form, x, norms_x, panels, norms_y, factor, out):
    """Write `factor` times squared distances (ROOT: distances) of rows x, (n, d), to all columns of panels, (n, m).

    Implements `numerics.costs.cost_matrix` for squared and plain distances.
    """
    size, cols, dim = x.shape[0], out.shape[1], x.shape[1]
    block, rows, columns = np.empty((BLOCK, padded_width(cols))), x.ctypes.data, panels.ctypes.data
    for first in range(0, size, BLOCK):
        last = min(size, first + BLOCK)
        squares(form, rows, norms_x.ctypes.data, columns, norms_y.ctypes.data, dim, cols, factor, first, last, block)
        for k in range(first, last):
            for j in range(cols):
                # Rounding can make an expanded square negative.
                out[k, j] = max(block[k - first, j], 0.0)


class Extent(NamedTuple):
    """Where pairs of clouds lie: the middles of their common boxes, (L, d), and bounds on all distances, (L,)."""

    middle: Array
    far: Array


def extent(x: Array, y: Array) -> Extent:
    """The extent of stacks of clouds, (L, n, d) and (L, m, d); far is measured through the middle of the common box."""
    extents = Extent(np.empty((len(x), x.shape[2])), np.empty(len(x)))
    _extents(x, y, extents.middle, extents.far)
    return extents


@ordered
def _widen(points, low, high):
    for i in range(points.shape[0]):
        point = points[i]
        for c in range(point.size):
            low[c] = min(low[c], point[c])
            high[c] = max(high[c], point[c])


@ordered
def _radius(points, middle, around):
    """The largest distance from a middle."""
    largest = 0.0
    for i in range(points.shape[0]):
        point = points[i]
        for c in range(point.size):
            around[c] = point[c] - middle[c]
        largest = max(largest, dot(around, around))
    return np.sqrt(largest)


@ordered
def extent_of(x, y, middle):
    """Write the middle of the common box of clouds (n, d) and (m, d); return a bound on all distances."""
    dim = x.shape[1]
    low, high, around, diagonal = np.empty(dim), np.empty(dim), np.empty(dim), 0.0
    copy(low, x[0])
    copy(high, x[0])
    _widen(x, low, high)
    _widen(y, low, high)
    for c in range(dim):
        middle[c] = low[c] / 2 + high[c] / 2
        diagonal = max(diagonal, high[c] - low[c])
    diagonal *= np.sqrt(np.float64(dim))
    # The diagonal of the box where squares overflow or vanish.
    if diagonal > 1e-140 and diagonal < 1e140:
        return _radius(x, middle, around) + _radius(y, middle, around)
    return diagonal


@ordered
def _extents(x, y, middles, far):
    for lane in range(x.shape[0]):
        far[lane] = extent_of(x[lane], y[lane], middles[lane])


class PointLayout(NamedTuple):
    """Stacks of clouds as tiles read them: rows (L, n, d), panels (L, p, d, WIDE), and the squared norms of both."""

    rows: Array
    row_norms: Array
    panels: Array
    panel_norms: Array


def empty(*shape: int) -> Array:
    """An array with any content."""
    return np.empty(shape)


def lay_out(x: Array, y: Array, middle: Array | None, allocate: Callable[..., Array] = empty) -> PointLayout:
    """Return clouds x and y, both (L, points, d), as tiles read them: rows of x, and panels of WIDE points of y.

    Points are centred on `middle`, (L, d), if it is given; otherwise rows are x itself. `allocate` returns an array of
    a shape, with any content.
    """
    (lanes, n, dim), panels = x.shape, -(-y.shape[1] // WIDE)
    centred = middle is not None
    shift = np.zeros((lanes, dim)) if middle is None else middle
    layout = PointLayout(
        allocate(*x.shape) if centred else x,
        np.empty((lanes, n if centred else 1)),
        allocate(lanes, panels, dim, WIDE),
        np.empty((lanes, panels * WIDE)),
    )
    if centred:
        _lay_rows(x, shift, layout.rows, layout.row_norms)
    _lay_panels(y, shift, layout.panels, layout.panel_norms)
    return layout


@ordered
def lay_rows(points, middle, rows, norms):
    """Write centred points (n, d) and their squared norms."""
    for i in range(points.shape[0]):
        point, row = points[i], rows[i]
        for c in range(point.size):
            row[c] = point[c] - middle[c]
        norms[i] = dot(row, row)


@ordered
def lay_panels(points, middle, panels, norms):
    """Write centred points (m, d) as panels (p, d, WIDE), with zeros behind the last, and their squared norms."""
    size, dim = points.shape
    rows = np.empty((WIDE, dim))
    for p in range(panels.shape[0]):
        panel, first = panels[p], p * WIDE
        for j in range(WIDE):
            row = rows[j]
            if first + j < size:
                point = points[first + j]
                for c in range(dim):
                    row[c] = point[c] - middle[c]
            else:
                row[:] = 0
            norms[first + j] = dot(row, row)
        for c in range(dim):
            for j in range(WIDE):
                panel[c, j] = rows[j, c]


@ordered
def _lay_rows(points, middles, rows, norms):
    for lane in range(points.shape[0]):
        lay_rows(points[lane], middles[lane], rows[lane], norms[lane])


@ordered
def _lay_panels(points, middles, panels, norms):
    for lane in range(points.shape[0]):
        lay_panels(points[lane], middles[lane], panels[lane], norms[lane])
