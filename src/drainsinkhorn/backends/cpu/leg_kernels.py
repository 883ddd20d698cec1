"""Leg kernels of cached lanes, which measure lanes without changing them: sums, legs, residuals, verification.

`update_kernels` has the notation, and says in which order sums are added up.
"""

# pyright: reportCallIssue=false, reportPrivateImportUsage=false, reportGeneralTypeIssues=false
# Numba gives intrinsics another signature than Python sees.

from __future__ import annotations

import math

import numpy as np

from drainsinkhorn.backends.cpu import soft_kernels as soft
from drainsinkhorn.backends.cpu.lane_table import ABSORBED, NOT_FINITE
from drainsinkhorn.backends.cpu.primitives import (
    copy,
    dot,
    double,
    exp,
    largest_of,
    log,
    maximum,
    ordered,
    reordered,
    vector,
)
from drainsinkhorn.backends.cpu.scores import BLOCK, direct_form, load_scores
from drainsinkhorn.backends.cpu.tiles import padded_width

DRIFT = 25.0
"""Nats by which u and v may leave 1. Entries of K that underflow (below e^-87 in float32) then stay below e^-37."""
LOW, HIGH = math.exp(-DRIFT), math.exp(DRIFT)
DEEP = 60.0
"""Nats by which column sums of a fresh kernel may leave 1 and still be read: what float32 lost is below e^-27."""
DEEP_LOW, DEEP_HIGH = math.exp(-DEEP), math.exp(DEEP)

GROUP_ROWS, GROUPS = 256, 8
"""A lane's rows form at most GROUPS groups of at least GROUP_ROWS rows, which threads may share."""

POTENTIALS = 8 * 2.0**-53
"""Rounding of potentials in nats, relative to their size, with a factor of two for safety."""


@ordered
def groups_of(rows):
    """The number of groups that the rows of a lane form: a function of the lane alone."""
    return max(1, min(GROUPS, rows // GROUP_ROWS))


@ordered
def bounds(rows, groups, group):
    """First and last row of a group; inner bounds are multiples of four."""
    first = rows * group // groups // 4 * 4
    last = rows if group == groups - 1 else rows * (group + 1) // groups // 4 * 4
    return first, last


@ordered
def in_range(values, low, high):
    """True if no value is below `low`, above `high` or NaN."""
    outside = 0
    for k in range(values.size):
        # Written so that NaN is out of range.
        outside += not (values[k] >= low and values[k] <= high)
    return outside == 0


@reordered
def sum_rows(kernel, cols, w, r, first, last):
    """`r_i = sum_j K_ij w_j` for rows first .. last - 1, four at a time: the leg of `numerics.update.log_ratios`."""
    i = first
    while i + 4 <= last:
        k0, k1 = kernel[i * cols : (i + 1) * cols], kernel[(i + 1) * cols : (i + 2) * cols]
        k2, k3 = kernel[(i + 2) * cols : (i + 3) * cols], kernel[(i + 3) * cols : (i + 4) * cols]
        r0 = r1 = r2 = r3 = w.dtype.type(0)
        for j in range(cols):
            r0 += k0[j] * w[j]
            r1 += k1[j] * w[j]
            r2 += k2[j] * w[j]
            r3 += k3[j] * w[j]
        r[i], r[i + 1], r[i + 2], r[i + 3] = r0, r1, r2, r3
        i += 4
    while i < last:
        k0 = kernel[i * cols : (i + 1) * cols]
        r0 = w.dtype.type(0)
        for j in range(cols):
            r0 += k0[j] * w[j]
        r[i] = r0
        i += 1


@reordered
def add_rows(kernel, cols, t, sums, first, last):
    """`sums_j += sum_i K_ij t_i` over some rows, four at a time: `numerics.update.log_ratios` of columns."""
    i = first
    while i + 4 <= last:
        k0, k1 = kernel[i * cols : (i + 1) * cols], kernel[(i + 1) * cols : (i + 2) * cols]
        k2, k3 = kernel[(i + 2) * cols : (i + 3) * cols], kernel[(i + 3) * cols : (i + 4) * cols]
        t0, t1, t2, t3 = t[i], t[i + 1], t[i + 2], t[i + 3]
        for j in range(cols):
            sums[j] += (k0[j] * t0 + k1[j] * t1) + (k2[j] * t2 + k3[j] * t3)
        i += 4
    while i < last:
        k0, t0 = kernel[i * cols : (i + 1) * cols], t[i]
        for j in range(cols):
            sums[j] += k0[j] * t0
        i += 1


@reordered
def sweep(kernel, cols, w, t, has_weights, r, sums, first, last):
    """`sum_rows` and `add_rows` in one pass, with `sums` set to zero first: both legs of `numerics.update.log_ratios`.

    Rows enter column sums with weights t if `has_weights`, else with `t / r`, as after a plain f-leg. The compiler may
    add up otherwise here than in two functions, and one pass is faster, since four rows stay in registers or the first
    cache.
    """
    sums[:] = 0
    i = first
    while i + 4 <= last:
        k0 = kernel[i * cols : (i + 1) * cols]
        k1 = kernel[(i + 1) * cols : (i + 2) * cols]
        k2 = kernel[(i + 2) * cols : (i + 3) * cols]
        k3 = kernel[(i + 3) * cols : (i + 4) * cols]
        r0 = r1 = r2 = r3 = w.dtype.type(0)
        for j in range(cols):
            r0 += k0[j] * w[j]
            r1 += k1[j] * w[j]
            r2 += k2[j] * w[j]
            r3 += k3[j] * w[j]
        r[i], r[i + 1], r[i + 2], r[i + 3] = r0, r1, r2, r3
        s0, s1, s2, s3 = t[i], t[i + 1], t[i + 2], t[i + 3]
        if not has_weights:
            s0, s1, s2, s3 = s0 / r0, s1 / r1, s2 / r2, s3 / r3
        for j in range(cols):
            sums[j] += (k0[j] * s0 + k1[j] * s1) + (k2[j] * s2 + k3[j] * s3)
        i += 4
    while i < last:
        k0 = kernel[i * cols : (i + 1) * cols]
        r0 = w.dtype.type(0)
        for j in range(cols):
            r0 += k0[j] * w[j]
        r[i] = r0
        s0 = t[i] if has_weights else t[i] / r0
        for j in range(cols):
            sums[j] += k0[j] * s0
        i += 1


@ordered
def add_parts(parts, groups, cols, c):
    """`c_j = sum_g parts_gj`, in the order of groups."""
    for j in range(cols):
        c[j] = parts[j]
    for group in range(1, groups):
        sums = parts[group * cols : (group + 1) * cols]
        for j in range(cols):
            c[j] += sums[j]


@ordered
def plain_leg(x, g, weight):
    """The plain f-leg of one row, `F = -log sum_j b_j exp(g_j - S_j)`: `numerics.update.log_ratios` with f = 0.

    The row x of scores becomes `exp(g - S - largest)`; times the second value returned it is a row of K.
    """
    for j in range(x.size):
        x[j] = g[j] - x[j]
    largest = maximum(x)
    for j in range(x.size):
        x[j] = exp(x[j] - largest)
    total = dot(x, weight)
    return -(np.log(total) + largest), 1.0 / total


@ordered
def log_columns(lane, form, f, out):
    """Write `out_j = -logsumexp_i(f_i - S_ij)`, where the argument f is the potential plus log a.

    It is the plain g-leg in the log domain: `numerics.update.log_ratios` of the columns with g = 0. A first pass finds
    the largest term of each column, a second pass sums. `form` is that of `load_scores`.
    """
    rows, cols = lane.rows, lane.cols
    block, largest = np.empty((BLOCK, padded_width(cols))), np.full(cols, -np.inf)
    for start in range(0, rows, BLOCK):
        end = min(rows, start + BLOCK)
        load_scores(lane, form, start, end, block)
        for i in range(start, end):
            scores = block[i - start]
            for j in range(cols):
                largest[j] = max(largest[j], f[i] - scores[j])
    out[:] = 0
    for start in range(0, rows, BLOCK):
        end = min(rows, start + BLOCK)
        load_scores(lane, form, start, end, block)
        for i in range(start, end):
            scores = block[i - start]
            for j in range(cols):
                out[j] += exp(f[i] - scores[j] - largest[j])
    for j in range(cols):
        out[j] = -(np.log(out[j]) + largest[j])


@ordered
def scaled_residual(weights, ratios, scaling):
    """`sum_i w_i |scaling_i ratios_i - 1|` in float64: `numerics.residual.residual`."""
    total = 0.0
    for i in range(weights.size):
        total += np.float64(weights[i]) * abs(np.float64(scaling[i]) * np.float64(ratios[i]) - 1.0)
    return total


@ordered
def log_residual(weights, potentials, plain):
    """`sum_i w_i |exp(f_i - F_i) - 1|`, F being the potentials after a plain leg: `numerics.residual.residual`."""
    total = 0.0
    for i in range(weights.size):
        total += weights[i] * abs(np.expm1(potentials[i] - plain[i]))
    return total


# The states of lanes.


@ordered
def write_state(lane, one, f, g):
    """Write the potentials of the state, in nats."""
    rows, cols = lane.rows, lane.cols
    if lane.state != ABSORBED or lane.is_soft:
        copy(f, double(lane.f, rows))
        copy(g, double(lane.g, cols))
        return
    if lane.is_scaled:
        base_f, u = double(lane.base_f, rows), vector(lane.u, rows, one)
        for i in range(rows):
            f[i] = base_f[i] + np.log(np.float64(u[i]))
    else:
        copy(f, double(lane.f, rows))
    base_g, v = double(lane.base_g, cols), vector(lane.v, cols, one)
    for j in range(cols):
        g[j] = base_g[j] + np.log(np.float64(v[j]))


@ordered
def write_states(table, order, first, last, f, f_at, g, g_at, one):
    """Write the potentials of lanes `order[first:last]` in nats, one lane after another."""
    for place in range(first, last):
        lane = table[order[place]]
        write_state(lane, one, f[f_at[place] : f_at[place + 1]], g[g_at[place] : g_at[place + 1]])


# Residuals of states.


@ordered
def discard_lanes(table, order, first, last, cycles, one):
    """Do the work of some cycles of frozen lanes and discard its outcome."""
    for place in range(first, last):
        lane = table[order[place]]
        rows, cols = lane.rows, lane.cols
        a, w = vector(lane.a, rows, one), vector(lane.w, cols, one)
        r, sums = np.empty_like(a), np.empty_like(w)
        for _ in range(cycles):
            sweep(vector(lane.kernel, rows * cols, one), cols, w, a, False, r, sums, np.int64(0), rows)


@ordered
def log_row_residual(lane, form, f, g):
    """The row residual of potentials in nats, in float64 in the log domain: `numerics.residual.residual`.

    `form` is that of `load_scores`.
    """
    rows, cols = lane.rows, lane.cols
    a, weight, total = double(lane.a64, rows), double(lane.b64, cols), 0.0
    block = np.empty((BLOCK, padded_width(cols)))
    for start in range(0, rows, BLOCK):
        end = min(rows, start + BLOCK)
        load_scores(lane, form, start, end, block)
        for i in range(start, end):
            plain = plain_leg(block[i - start, :cols], g, weight)
            total += a[i] * abs(np.expm1(f[i] - plain[0]))
    return total


@ordered
def soft_log_rows(lane, form, f, g, out):
    """Write log ratios of rows for potentials in nats, in float64 in the log domain: `numerics.update.log_ratios`."""
    rows, cols = lane.rows, lane.cols
    weight, block = double(lane.b64, cols), np.empty((BLOCK, padded_width(cols)))
    for start in range(0, rows, BLOCK):
        end = min(rows, start + BLOCK)
        load_scores(lane, form, start, end, block)
        for i in range(start, end):
            out[i] = f[i] - plain_leg(block[i - start, :cols], g, weight)[0]


@ordered
def screen_soft(lane, one):
    """`screen_lane` of a soft lane."""
    rows, cols = lane.rows, lane.cols
    f, g, logs = double(lane.f, rows), double(lane.g, cols), np.empty(rows)
    if lane.state != ABSORBED:
        soft_log_rows(lane, lane.form, f, g, logs)
    else:
        w, r = vector(lane.w, cols, one), np.empty_like(vector(lane.a, rows, one))
        sum_rows(vector(lane.kernel, rows * cols, one), cols, w, r, np.int64(0), rows)
        soft.log_ratios_of(r, f, double(lane.base_f, rows), logs)
    error = soft.relative_residual(double(lane.a64, rows), logs, f, lane.kappa, np.empty(2 * rows))[0]
    return error + (lane.bound + lane.sum_rounding) * (1 + error)


@ordered
def verify_soft(lane, f, g, one):
    """Both residuals of potentials of a soft lane, in nats: `numerics.soft.soft_residual`.

    They are read off the absorbed kernel, or computed in the log domain where its sums are out of range.
    """
    rows, cols, groups = lane.rows, lane.cols, groups_of(lane.rows)
    logs, columns = np.empty(rows), np.empty(cols)
    near = lane.state == ABSORBED
    if near:
        a, b = vector(lane.a, rows, one), vector(lane.b, cols, one)
        base_f, base_g = double(lane.base_f, rows), double(lane.base_g, cols)
        r, c, t, w = np.empty_like(a), np.empty_like(b), np.empty_like(a), np.empty_like(b)
        parts = np.empty(groups * cols, dtype=a.dtype)
        for i in range(rows):
            t[i] = a[i] * exp(f[i] - base_f[i])
            near &= f[i] - base_f[i] <= DRIFT + 1
        for j in range(cols):
            w[j] = b[j] * exp(g[j] - base_g[j])
        for group in range(groups):
            first, last = bounds(rows, groups, group)
            sums = parts[group * cols : (group + 1) * cols]
            sweep(vector(lane.kernel, rows * cols, one), cols, w, t, True, r, sums, first, last)
        add_parts(parts, groups, cols, c)
        near &= in_range(r, LOW, HIGH) and in_range(c, LOW, HIGH)
        if near:
            soft.log_ratios_of(r, f, base_f, logs)
            soft.log_ratios_of(c, g, base_g, columns)
    if not near:
        form = direct_form(lane)
        log_columns(lane, form, np.log(double(lane.a64, rows)) + f, columns)
        for j in range(cols):
            columns[j] = g[j] - columns[j]
        soft_log_rows(lane, form, f, g, logs)
    work = np.empty(2 * max(rows, cols))
    row = soft.relative_residual(double(lane.a64, rows), logs, f, lane.kappa, work)[0]
    col = soft.relative_residual(double(lane.b64, cols), columns, g, lane.col_kappa, work)[0]
    return row, col


@ordered
def screen_lane(lane, one):
    """The row residual of the state in a pass of its own, in the same arithmetic as the leg that measured it."""
    rows, cols = lane.rows, lane.cols
    if lane.state == NOT_FINITE:
        return np.nan
    if lane.is_soft:
        return screen_soft(lane, one)
    if lane.state != ABSORBED:
        error = log_row_residual(lane, lane.form, double(lane.f, rows), double(lane.g, cols))
        return error + lane.bound + lane.sum_rounding
    a, w, groups = vector(lane.a, rows, one), vector(lane.w, cols, one), groups_of(rows)
    r, sums = np.empty_like(a), np.empty_like(w)
    for group in range(groups):
        first, last = bounds(rows, groups, group)
        sweep(vector(lane.kernel, rows * cols, one), cols, w, a, False, r, sums, first, last)
    if lane.is_scaled:
        return scaled_residual(a, r, vector(lane.u, rows, one)) + lane.bound + lane.sum_rounding
    f, base, weight, error = double(lane.f, rows), double(lane.base_f, rows), double(lane.a64, rows), 0.0
    for i in range(rows):
        error += weight[i] * abs(exp(log(np.float64(r[i])) + (f[i] - base[i])) - 1.0)
    return error + lane.bound + lane.sum_rounding


@ordered
def verify_absorbed(lane, f, g, one):
    """Both residuals of potentials in nats, from the absorbed kernel and scalings: `numerics.residual.residual`."""
    rows, cols = lane.rows, lane.cols
    groups = groups_of(rows)
    a, b = vector(lane.a, rows, one), vector(lane.b, cols, one)
    base_f, base_g = double(lane.base_f, rows), double(lane.base_g, cols)
    u, v, r, c = np.empty_like(a), np.empty_like(b), np.empty_like(a), np.empty_like(b)
    t, w, parts = np.empty_like(a), np.empty_like(b), np.empty(groups * cols, dtype=a.dtype)
    for i in range(rows):
        u[i] = exp(f[i] - base_f[i])
        t[i] = a[i] * u[i]
    for j in range(cols):
        v[j] = exp(g[j] - base_g[j])
        w[j] = b[j] * v[j]
    kernel = vector(lane.kernel, rows * cols, one)
    for group in range(groups):
        first, last = bounds(rows, groups, group)
        sweep(kernel, cols, w, t, True, r, parts[group * cols : (group + 1) * cols], first, last)
    add_parts(parts, groups, cols, c)
    return scaled_residual(a, r, u), scaled_residual(b, c, v)


@ordered
def verify_logs(lane, f, g):
    """Both residuals of potentials in nats, in float64 in the log domain, from differences of points.

    Implements `numerics.residual.residual` of rows and columns.
    """
    columns, form = np.empty(lane.cols), direct_form(lane)
    log_columns(lane, form, np.log(double(lane.a64, lane.rows)) + f, columns)
    return log_row_residual(lane, form, f, g), log_residual(double(lane.b64, lane.cols), g, columns)


@ordered
def verify_lanes(table, order, first, last, f, f_at, g, g_at, eps, residuals, one):
    """Write row residual, column residual and rounding bound of given potentials, for lanes `order[first:last]`.

    Potentials f, g are in units of the cost, lane after lane; `f_at`, `g_at` say where each lane's begin. `residuals`
    is (lanes, 3).
    """
    for place in range(first, last):
        lane, out = table[order[place]], residuals[place]
        fi, gi = f[f_at[place] : f_at[place + 1]] / eps[place], g[g_at[place] : g_at[place + 1]] / eps[place]
        if lane.state == NOT_FINITE:
            out[:] = np.nan
        elif lane.is_soft:
            out[0], out[1] = verify_soft(lane, fi, gi, one)
        elif lane.state != ABSORBED:
            out[0], out[1] = verify_logs(lane, fi, gi)
        else:
            out[0], out[1] = verify_absorbed(lane, fi, gi, one)
        # The absorbed potentials are rounded like the current ones, so the bound uses the larger of the two.
        rounding = lane.score_rounding + POTENTIALS * (largest_of(fi) + largest_of(gi))
        out[2] = max(lane.bound, rounding) + lane.sum_rounding
        if lane.is_soft:
            rounding += soft.target_rounding(lane, fi, gi)
            out[2] = (max(lane.bound, rounding) + lane.sum_rounding) * (1 + max(out[0], out[1]))
