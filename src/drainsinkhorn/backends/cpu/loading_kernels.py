"""Kernels that load lanes one by one from the concatenated arrays of all of them: moments, extents, starts, layout.

Every kernel takes lanes `order[first:last]` of the lane table. `x_at[lane]` is the first row of a lane's points in `x`;
`y_at`, `a_at` and the like are used in the same way.
"""

# pyright: reportCallIssue=false, reportPrivateImportUsage=false, reportGeneralTypeIssues=false
# Numba gives intrinsics another signature than Python sees.

from __future__ import annotations

import numpy as np
from numba import carray

from drainsinkhorn.backends.cpu.primitives import dot, double, float64_at, ordered, vector
from drainsinkhorn.backends.cpu.scores import extent_of, lay_panels, lay_rows
from drainsinkhorn.backends.cpu.tiles import WIDE


@ordered
def measure_extents(table, order, first, last, x, x_at, y, y_at, middles, far, one):
    """Write the middle of the common box of both clouds and a bound on their distances, as `scores.extent`."""
    for place in range(first, last):
        number = order[place]
        lane = table[number]
        cloud_x, cloud_y = x[x_at[number] : x_at[number] + lane.rows], y[y_at[number] : y_at[number] + lane.cols]
        far[number] = extent_of(cloud_x, cloud_y, middles[number])


@ordered
def moments(cloud, w, mean, spread, full):
    """Write the weighted mean (d,) and covariance (d, d), or variances (d, 1), of a cloud (n, d)."""
    size, dim = cloud.shape
    around = np.empty(dim)
    mean[:] = 0
    for i in range(size):
        for c in range(dim):
            mean[c] += w[i] * cloud[i, c]
    spread[:] = 0
    for i in range(size):
        for c in range(dim):
            around[c] = cloud[i, c] - mean[c]
        for c in range(dim):
            scaled = w[i] * around[c]
            if full:
                row = spread[c]
                for q in range(dim):
                    row[q] += scaled * around[q]
            else:
                spread[c, 0] += scaled * around[c]


@ordered
def measure_moments(table, order, first, last, x, x_at, y, y_at, a, a_at, b, b_at, means, spreads, full, one):
    """Write the moments of both clouds: means (2, L, d), and covariances (2, L, d, d) or variances (2, L, d, 1)."""
    for place in range(first, last):
        number = order[place]
        rows, cols = table[number].rows, table[number].cols
        ix, iy, ia, ib = x_at[number], y_at[number], a_at[number], b_at[number]
        moments(x[ix : ix + rows], a[ia : ia + rows], means[0, number], spreads[0, number], full)
        moments(y[iy : iy + cols], b[ib : ib + cols], means[1, number], spreads[1, number], full)


@ordered
def quadratic(cloud, mean, matrix, slope, full, values):
    """`numerics.starts.Quadratic` at points (m, d); zero where that is not finite."""
    size, dim = cloud.shape
    around, bent, finite = np.empty(dim), np.empty(dim), True
    for j in range(size):
        for c in range(dim):
            around[c] = cloud[j, c] - mean[c]
        for c in range(dim):
            bent[c] = slope[c] + (dot(matrix[c], around) if full else matrix[c, 0] * around[c])
        total = dot(bent, around)
        values[j] = total
        finite &= abs(total) < np.inf
    if not finite:
        values[:] = 0


@ordered
def spread_of(values, weights):
    """The weighted sum of squares of values around their mean, which `numerics.starts.worthwhile` compares."""
    mean = total = 0.0
    for j in range(values.size):
        mean += weights[j] * values[j]
    for j in range(values.size):
        total += weights[j] * (values[j] - mean) * (values[j] - mean)
    return total


@ordered
def start_lanes(table, order, first, last, y, y_at, mean, matrix, slope, full, needed, least, one):
    """Write Gaussian starts g in nats, zero where `needed` is False or where `spread_of` is less than `least`."""
    for place in range(first, last):
        number = order[place]
        cols, i = table[number].cols, y_at[number]
        g = double(table[number].g, cols)
        g[:] = 0
        if needed[number]:
            quadratic(y[i : i + cols], mean[number], matrix[number], slope[number], full, g)
            if least > -np.inf and not spread_of(g, double(table[number].b64, cols)) >= least:
                g[:] = 0


@ordered
def fill_lanes(table, order, first, last, a, a_at, b, b_at, one):
    """Write weights, in both precisions, and potentials of zero."""
    for place in range(first, last):
        number = order[place]
        rows, cols = table[number].rows, table[number].cols
        short_a, a64, f = (
            vector(table[number].a, rows, one),
            double(table[number].a64, rows),
            double(table[number].f, rows),
        )
        for i in range(rows):
            a64[i] = a[a_at[number] + i]
            short_a[i] = a64[i]
            f[i] = 0.0
        short_b, b64, g = (
            vector(table[number].b, cols, one),
            double(table[number].b64, cols),
            double(table[number].g, cols),
        )
        for j in range(cols):
            b64[j] = b[b_at[number] + j]
            short_b[j] = b64[j]
            g[j] = 0.0


@ordered
def give_starts(table, order, first, last, f, f_at, g, g_at, eps, one):
    """Write given potentials over eps."""
    for place in range(first, last):
        number = order[place]
        rows, cols = table[number].rows, table[number].cols
        own_f, own_g = double(table[number].f, rows), double(table[number].g, cols)
        for i in range(rows):
            own_f[i] = f[f_at[number] + i] / eps[number]
        for j in range(cols):
            own_g[j] = g[g_at[number] + j] / eps[number]


@ordered
def lay_lanes(table, order, first, last, x, x_at, y, y_at, middles, scales, one):
    """Write scaled and centred points as tiles read them: rows of x, panels of y, and the squared norms of both."""
    dim = x.shape[1]
    for place in range(first, last):
        number = order[place]
        lane = table[number]
        rows, cols, ix, iy, scale = lane.rows, lane.cols, x_at[number], y_at[number], scales[number]
        cloud_x, cloud_y = x[ix : ix + rows], y[iy : iy + cols]
        if scale != 1.0:
            cloud_x, cloud_y = cloud_x / scale, cloud_y / scale
        panels = (cols + WIDE - 1) // WIDE
        laid = carray(float64_at(lane.x), (rows, dim))
        lay_rows(cloud_x, middles[number], laid, double(lane.norms_x, rows))
        laid_panels = carray(float64_at(lane.y), (panels, dim, WIDE))
        lay_panels(cloud_y, middles[number], laid_panels, double(lane.norms_y, panels * WIDE))
