"""Compiled kernels of the cached representation: one matrix per lane, read once per cycle.

Potentials are in nats here (f / eps). Let `K_ij = exp(F_i + G_j - S_ij)` be the kernel absorbed at the base (F, G),
with scores `S = C / eps`, and let the state be `f = F + log u`, `g = G + log v`. With `w = b v` the marginal ratio of
a row is `u_i r_i`, `r_i = sum_j K_ij w_j`, and a plain f-leg sets `u_i = 1 / r_i`. So one sweep over K measures the
next f-leg (r) and, while a row is in cache, adds up what the g-leg after it needs: `c_j = sum_i K_ij a_i / r_i`. A
cycle is: u = 1 / r, v = 1 / c, one sweep.

K underflows where u or v drift far from 1. Then it is absorbed anew at the f-leg that is pending, in float64 from the
points: `F_i = -log sum_j b_j exp(g_j - S_ij)`, `G = g`, which makes all row sums 1. A lane in
that state is FRESH: its state is kept as explicit potentials, its pending leg is the base. Which of the two a lane is
depends on its own numbers alone.

Sums have a fixed order: a row as the loop over it was compiled (a function of m), a column over blocks of four rows,
then over groups of rows. Threads share lanes or groups, never a sum, so results depend neither on threads nor on
neighbours.
"""

# pyright: reportCallIssue=false, reportPrivateImportUsage=false, reportGeneralTypeIssues=false
# Numba gives intrinsics another signature than Python sees.

from __future__ import annotations

import math

import numpy as np
from numba import carray

from drainsinkhorn.backends.cpu.primitives import (
    all_finite,
    dot,
    double,
    exp,
    float32_at,
    largest_of,
    log,
    maximum,
    ordered,
    reordered,
    vector,
)
from drainsinkhorn.backends.cpu.tiles import DIRECT, EXPANDED, padded, squares

# Columns of the integer table of a lane: addresses of its vectors and matrices, its sizes, its state.
KERNEL, A, B, EXACT_A, EXACT_B, U, V, W, R, C, PARTS, STATE_F, STATE_G, BASE_F, BASE_G, X, Y = range(17)
ROWS, COLS, DIM, KIND, DEPTH, STATE, SHARED = range(17, 24)
# With momentum: the point from which it goes on, what the pending leg makes of it and of f, the measured leg itself.
BEFORE, NEXT_F, NEXT_X, LOGS, MOMENTUM = range(24, 29)
# Squared norms of the points, where squares are expanded; a matrix of scores in float64, where they are kept.
NORMS_X, NORMS_Y, SCORES = range(29, 32)
FIELDS = 32
# Columns of its float table. FACTOR turns a raw cost into a score. BAND is the rounding of what float64 measured, SUMS
# what a sweep in the lane's precision adds; ROUNDING is that of a score.
FACTOR, STALE, BAND, SUMS, ROUNDING = range(5)
# The state of `numerics.update.Momentum`, the stride of the pending leg, and whether it is decided or only expected.
AGE, BEST, COLUMNS, COOLDOWN, BACKOFF, ROWS_EXACT, WAS_FAST, STRIDE, BETA, DECIDED, STARTED = range(5, 16)
NUMBERS = 16
# Kinds of cost: those of a tile, with the other points in panels at Y; or X is a dense matrix.
DENSE32, DENSE64 = range(3, 5)
# States of a lane. COLD: at its start, the kernel absorbed at a base that no weight enters, so that lanes over the same
# costs can share it. FRESH: explicit potentials, the kernel absorbed at its pending leg. ABSORBED: potentials are base
# and scalings. HOMELESS: FRESH, but its kernel is shared and has to be absorbed: it waits for memory of its own.
COLD, FRESH, ABSORBED, HOMELESS, POISONED = range(5)

DRIFT = 25.0
"""Nats by which u and v may leave 1. What K lost to underflow (below e^-87 in float32) then stays below e^-37."""
LOW, HIGH = math.exp(-DRIFT), math.exp(DRIFT)
DEEP = 60.0
"""Nats by which column sums of a fresh kernel may leave 1 and still be read: what float32 lost is below e^-27."""
DEEP_LOW, DEEP_HIGH = math.exp(-DEEP), math.exp(DEEP)

GROUP_ROWS, GROUPS = 256, 8
"""A lane's rows form at most GROUPS groups of at least GROUP_ROWS rows, which threads may share."""

BLOCK = 16
"""Rows whose scores are computed together: some tiles."""

POTENTIALS = 8 * 2.0**-53
"""Rounding of potentials in nats, relative to their size, with a factor of two for safety."""


@ordered
def in_range(values):
    """True if no value left 1 by more than DRIFT nats."""
    bad = 0
    for k in range(values.size):
        # Written so that NaN is out of range.
        bad += not (values[k] >= LOW and values[k] <= HIGH)
    return bad == 0


@ordered
def groups_of(rows):
    """How many groups the rows of a lane form: a function of the lane alone."""
    return max(1, min(GROUPS, rows // GROUP_ROWS))


@ordered
def bounds(rows, groups, group):
    """First and last row of a group; inner bounds are multiples of four."""
    first = rows * group // groups // 4 * 4
    last = rows if group == groups - 1 else rows * (group + 1) // groups // 4 * 4
    return first, last


@ordered
def _scores(lane, numbers, first, last, out, direct=False):
    """`out_ij = S_ij` in float64 for rows first .. last - 1 of a block; with `direct` from differences of points."""
    cols, kind, factor = lane[COLS], lane[KIND], numbers[FACTOR]
    if kind == DENSE32:
        for i in range(first, last):
            row32 = carray(float32_at(lane[X] + 4 * i * cols), (cols,))
            for j in range(cols):
                out[i - first, j] = row32[j] * factor
    elif kind == DENSE64:
        for i in range(first, last):
            row64 = double(lane[X] + 8 * i * cols, cols)
            for j in range(cols):
                out[i - first, j] = row64[j] * factor
    elif lane[SCORES] and not direct:
        for i in range(first, last):
            out[i - first, :cols] = double(lane[SCORES] + 8 * i * cols, cols)
    else:
        _tiles(lane, numbers, first, last, out, DIRECT if direct and kind == EXPANDED else kind)


@ordered
def _tiles(lane, numbers, first, last, out, kind):
    cols, dim, factor = lane[COLS], lane[DIM], numbers[FACTOR]
    squares(kind, lane[X], lane[NORMS_X], lane[Y], lane[NORMS_Y], dim, cols, factor, first, last, out)


@ordered
def keep_scores(lane, numbers, first, last):
    """Compute and keep the scores of some rows."""
    cols = lane[COLS]
    block = np.empty((BLOCK, padded(cols)))
    for start in range(first, last, BLOCK):
        end = min(last, start + BLOCK)
        _tiles(lane, numbers, start, end, block, lane[KIND])
        for i in range(start, end):
            double(lane[SCORES] + 8 * i * cols, cols)[:] = block[i - start, :cols]


@ordered
def _fresh_row(x, g, weight):
    """The f-leg of a row of scores x in the log domain: its base, and what makes x, now `exp(g - S)`, a row of K."""
    for j in range(x.size):
        x[j] = g[j] - x[j]
    largest = maximum(x)
    for j in range(x.size):
        x[j] = exp(x[j] - largest)
    total = dot(x, weight)
    return -(np.log(total) + largest), 1.0 / total


@ordered
def absorb_group(lane, numbers, group, one):
    """Measure the f-leg at (STATE_F, STATE_G) for a group of rows in float64, and write their K absorbed there."""
    rows, cols = lane[ROWS], lane[COLS]
    groups = groups_of(rows)
    first, last = bounds(rows, groups, group)
    kernel, part = vector(lane[KERNEL], rows * cols, one), vector(lane[PARTS], groups * cols, one)
    part, a = part[group * cols : (group + 1) * cols], vector(lane[A], rows, one)
    base_f, g, weight = double(lane[BASE_F], rows), double(lane[STATE_G], cols), double(lane[EXACT_B], cols)
    block = np.empty((BLOCK, padded(cols)))
    part[:] = 0
    for start in range(first, last, BLOCK):
        end = min(last, start + BLOCK)
        _scores(lane, numbers, start, end, block)
        for i in range(start, end):
            x = block[i - start, :cols]
            base_f[i], scale = _fresh_row(x, g, weight)
            k = kernel[i * cols : (i + 1) * cols]
            for j in range(cols):
                k[j] = x[j] * scale
            ai = a[i]
            for j in range(cols):
                part[j] += k[j] * ai


@reordered
def _sweep_rows(kernel, cols, w, t, given, r, part, first, last):
    """`r_i = sum_j K_ij w_j` and `part_j = sum_i K_ij s_i` for a range of rows, four at a time.

    `s = t` if given, both marginals of a state; else `s = t / r`, what the g-leg after a plain f-leg needs.
    """
    part[:] = 0
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
        if not given:
            s0, s1, s2, s3 = s0 / r0, s1 / r1, s2 / r2, s3 / r3
        for j in range(cols):
            part[j] += (k0[j] * s0 + k1[j] * s1) + (k2[j] * s2 + k3[j] * s3)
        i += 4
    while i < last:
        k0 = kernel[i * cols : (i + 1) * cols]
        r0 = w.dtype.type(0)
        for j in range(cols):
            r0 += k0[j] * w[j]
        r[i] = r0
        s0 = t[i] if given else t[i] / r0
        for j in range(cols):
            part[j] += k0[j] * s0
        i += 1


@ordered
def sweep_group(lane, group, one):
    """The sweep of a cycle over one group of rows."""
    rows, cols = lane[ROWS], lane[COLS]
    groups = groups_of(rows)
    first, last = bounds(rows, groups, group)
    kernel, part = vector(lane[KERNEL], rows * cols, one), vector(lane[PARTS], groups * cols, one)
    w, a, r = vector(lane[W], cols, one), vector(lane[A], rows, one), vector(lane[R], rows, one)
    _sweep_rows(kernel, cols, w, a, False, r, part[group * cols : (group + 1) * cols], first, last)


@ordered
def add_parts(parts, groups, cols, c):
    """Column sums from those of the groups, in their order."""
    for j in range(cols):
        c[j] = parts[j]
    for group in range(1, groups):
        part = parts[group * cols : (group + 1) * cols]
        for j in range(cols):
            c[j] += part[j]


@ordered
def error_of(weights, ratios, scaling):
    """`sum_i w_i |scaling_i ratios_i - 1|` in float64."""
    total = 0.0
    for i in range(weights.size):
        total += np.float64(weights[i]) * abs(np.float64(scaling[i]) * np.float64(ratios[i]) - 1.0)
    return total


@ordered
def state_of(lane, one, f, g):
    """Write the potentials of the state, in nats."""
    rows, cols = lane[ROWS], lane[COLS]
    if lane[STATE] != ABSORBED:
        f[:] = double(lane[STATE_F], rows)
        g[:] = double(lane[STATE_G], cols)
        return
    base_f, base_g = double(lane[BASE_F], rows), double(lane[BASE_G], cols)
    u, v = vector(lane[U], rows, one), vector(lane[V], cols, one)
    if lane[MOMENTUM]:
        f[:] = double(lane[STATE_F], rows)
    else:
        for i in range(rows):
            f[i] = base_f[i] + np.log(np.float64(u[i]))
    for j in range(cols):
        g[j] = base_g[j] + np.log(np.float64(v[j]))


@ordered
def begin_cycle(lane, one):
    """Apply the pending f-leg and the g-leg after it. False if the g-leg needs the log domain."""
    rows, cols = lane[ROWS], lane[COLS]
    u, r, c = vector(lane[U], rows, one), vector(lane[R], rows, one), vector(lane[C], cols, one)
    v, w, b = vector(lane[V], cols, one), vector(lane[W], cols, one), vector(lane[B], cols, one)
    if lane[STATE] == FRESH:
        if not in_range(c):
            return False
        double(lane[BASE_G], cols)[:] = double(lane[STATE_G], cols)
        u[:] = one
    else:
        for i in range(rows):
            u[i] = one / r[i]
    lane[STATE] = ABSORBED
    for j in range(cols):
        v[j] = one / c[j]
        w[j] = b[j] * v[j]
    return True


@ordered
def end_sweep(lane, numbers, one):
    """Read the residual off a sweep. False if the kernel has to be absorbed anew before the next cycle."""
    rows, cols = lane[ROWS], lane[COLS]
    r, c = vector(lane[R], rows, one), vector(lane[C], cols, one)
    add_parts(vector(lane[PARTS], groups_of(rows) * cols, one), groups_of(rows), cols, c)
    error = error_of(vector(lane[A], rows, one), r, vector(lane[U], rows, one))
    numbers[STALE] = error + numbers[BAND] + numbers[SUMS]
    return in_range(r) and in_range(c)


@ordered
def unfold(lane, one):
    """Make the state explicit, so that the kernel can be absorbed at it. False if it has no kernel of its own."""
    rows, cols = lane[ROWS], lane[COLS]
    f, g = np.empty(rows), np.empty(cols)
    state_of(lane, one, f, g)
    double(lane[STATE_F], rows)[:] = f
    double(lane[STATE_G], cols)[:] = g
    lane[STATE] = HOMELESS if lane[SHARED] else FRESH
    return lane[STATE] == FRESH


@ordered
def end_absorb(lane, numbers, one):
    """Read the residual off an absorption: rows of the base sum to 1, so the ratio of a row is exp(f - F)."""
    rows, cols = lane[ROWS], lane[COLS]
    f, g, base_f = double(lane[STATE_F], rows), double(lane[STATE_G], cols), double(lane[BASE_F], rows)
    a = double(lane[EXACT_A], rows)
    add_parts(vector(lane[PARTS], groups_of(rows) * cols, one), groups_of(rows), cols, vector(lane[C], cols, one))
    numbers[BAND] = numbers[ROUNDING] + POTENTIALS * (largest_of(base_f) + largest_of(g))
    total = 0.0
    for i in range(rows):
        total += a[i] * abs(np.expm1(f[i] - base_f[i]))
    # Its columns may have been read off sums in the lane's precision.
    numbers[STALE] = total + numbers[BAND] + numbers[SUMS]
    if not all_finite(base_f):
        lane[STATE] = POISONED
        numbers[STALE] = np.nan


@ordered
def absorb(lane, numbers, one):
    """Measure the next f-leg in the log domain and absorb the kernel there."""
    for group in range(groups_of(lane[ROWS])):
        absorb_group(lane, numbers, group, one)
    end_absorb(lane, numbers, one)


@ordered
def log_columns(lane, numbers, f, out, direct=False):
    """`out_j = -logsumexp_i(log a_i + f_i - S_ij)`: a g-leg in the log domain, largest terms first, then the sums."""
    rows, cols = lane[ROWS], lane[COLS]
    block, largest = np.empty((BLOCK, padded(cols))), np.full(cols, -np.inf)
    for start in range(0, rows, BLOCK):
        end = min(rows, start + BLOCK)
        _scores(lane, numbers, start, end, block, direct)
        for i in range(start, end):
            scores = block[i - start]
            for j in range(cols):
                largest[j] = max(largest[j], f[i] - scores[j])
    out[:] = 0
    for start in range(0, rows, BLOCK):
        end = min(rows, start + BLOCK)
        _scores(lane, numbers, start, end, block, direct)
        for i in range(start, end):
            scores = block[i - start]
            for j in range(cols):
                out[j] += exp(f[i] - scores[j] - largest[j])
    for j in range(cols):
        out[j] = -(np.log(out[j]) + largest[j])


@ordered
def log_leg_to(lane, numbers, f, g, one):
    """Write the g-leg after f to g: off the column sums of the fresh kernel where they can be read, else anew."""
    rows, cols, bad = lane[ROWS], lane[COLS], 0
    c, state_g, a = vector(lane[C], cols, one), double(lane[STATE_G], cols), double(lane[EXACT_A], rows)
    for j in range(cols):
        bad += not (c[j] >= DEEP_LOW and c[j] <= DEEP_HIGH)
    if bad == 0:
        for j in range(cols):
            g[j] = state_g[j] - np.log(np.float64(c[j]))
    else:
        log_columns(lane, numbers, np.log(a) + f, g)


@ordered
def log_leg(lane, numbers, one):
    """The pending f-leg and the g-leg after it, where column sums are out of the range of scalings."""
    rows, cols = lane[ROWS], lane[COLS]
    base_f, g = double(lane[BASE_F], rows), np.empty(cols)
    log_leg_to(lane, numbers, base_f, g, one)
    if not all_finite(g):
        lane[STATE] = POISONED
        numbers[STALE] = np.nan
        return
    double(lane[STATE_F], rows)[:] = base_f
    double(lane[STATE_G], cols)[:] = g


@ordered
def cycle(lane, numbers, one):
    """One cycle of one lane, on one thread."""
    lane[DEPTH] += 1
    if lane[STATE] == POISONED:
        return
    if begin_cycle(lane, one):
        for group in range(groups_of(lane[ROWS])):
            sweep_group(lane, group, one)
        if end_sweep(lane, numbers, one) or not unfold(lane, one):
            return
    else:
        log_leg(lane, numbers, one)
    if lane[STATE] != POISONED:
        absorb(lane, numbers, one)


@ordered
def run_lanes(table, numbers, order, first, last, cycles, stops, ran, one):
    """Run lanes `order[first:last]`, each until it is held or the cycles are over."""
    for place in range(first, last):
        number = order[place]
        lane, mine = table[number], numbers[number]
        for _ in range(cycles):
            cycle(lane, mine, one)
            ran[number] += 1
            if lane[STATE] == HOMELESS:
                break
            # As core.protocol.is_held has it: NaN holds the lane, and nothing does under a stop of -inf.
            if stops[number] > -np.inf and not mine[STALE] > stops[number]:
                break


@ordered
def discard_lanes(table, numbers, order, first, last, cycles, one):
    """Do the work of some cycles of frozen lanes and forget it."""
    for place in range(first, last):
        lane = table[order[place]]
        rows, cols = lane[ROWS], lane[COLS]
        a, w = vector(lane[A], rows, one), vector(lane[W], cols, one)
        r, part = np.empty_like(a), np.empty_like(w)
        for _ in range(cycles):
            _sweep_rows(vector(lane[KERNEL], rows * cols, one), cols, w, a, False, r, part, 0, rows)


@ordered
def fill_cold_rows(lane, numbers, first, last, one):
    """Rows of the kernel of a cold start, `K_ij = exp(F_i - S_ij)` with `F_i = min_j S_ij`; writes F too.

    Scores that go with a shared kernel are kept here, once for all its lanes.
    """
    rows, cols = lane[ROWS], lane[COLS]
    kernel, base = vector(lane[KERNEL], rows * cols, one), double(lane[BASE_F], rows)
    if lane[SCORES] and lane[SHARED]:
        keep_scores(lane, numbers, first, last)
    block = np.empty((BLOCK, padded(cols)))
    for start in range(first, last, BLOCK):
        end = min(last, start + BLOCK)
        _scores(lane, numbers, start, end, block)
        for i in range(start, end):
            x = block[i - start, :cols]
            for j in range(cols):
                x[j] = -x[j]
            largest = maximum(x)
            base[i] = -largest
            k = kernel[i * cols : (i + 1) * cols]
            for j in range(cols):
                k[j] = exp(x[j] - largest)


@ordered
def copy_base(table, places):
    """Hand the base of a shared kernel from the first of its lanes to the others."""
    rows = table[places[0], ROWS]
    base = double(table[places[0], BASE_F], rows)
    for place in places[1:]:
        double(table[place, BASE_F], rows)[:] = base


@ordered
def open_cold(lane, numbers, one):
    """Measure the first f-leg from a cold start: a sweep with u = v = 1 tells row sums and what the g-leg needs."""
    rows, cols = lane[ROWS], lane[COLS]
    base, r, a = double(lane[BASE_F], rows), vector(lane[R], rows, one), double(lane[EXACT_A], rows)
    double(lane[BASE_G], cols)[:] = 0
    vector(lane[U], rows, one)[:] = one
    for group in range(groups_of(rows)):
        sweep_group(lane, group, one)
    numbers[BAND] = numbers[ROUNDING] + POTENTIALS * largest_of(base)
    if not end_sweep(lane, numbers, one):
        lane[STATE] = HOMELESS if lane[SHARED] else FRESH
        return
    # The state is f = g = 0, and the pending leg F - log r.
    total = 0.0
    for i in range(rows):
        total += a[i] * abs(np.expm1(np.log(np.float64(r[i])) - base[i]))
    numbers[STALE] = total + numbers[BAND] + numbers[SUMS]
    lane[STATE] = COLD


@ordered
def open_lane(lane, numbers, one):
    """Begin a lane: a cold one is measured, unless it turns out FRESH or HOMELESS. False if its scores are not finite.

    A shared kernel is there already, and so are the scores that go with it.
    """
    vector(lane[W], lane[COLS], one)[:] = vector(lane[B], lane[COLS], one)
    # The host knows a bound on the scores, and with it whether they are finite.
    if not abs(numbers[ROUNDING]) < np.inf:
        lane[STATE] = POISONED
        numbers[STALE] = np.nan
        return False
    if lane[SCORES] and not lane[SHARED]:
        keep_scores(lane, numbers, 0, lane[ROWS])
    if lane[STATE] == COLD:
        if not lane[SHARED]:
            fill_cold_rows(lane, numbers, 0, lane[ROWS], one)
        open_cold(lane, numbers, one)
    return True


@ordered
def open_lanes(table, numbers, order, first, last, one):
    """Measure the first f-leg of lanes `order[first:last]`."""
    for place in range(first, last):
        lane, mine = table[order[place]], numbers[order[place]]
        if open_lane(lane, mine, one) and lane[STATE] == FRESH:
            absorb(lane, mine, one)


@ordered
def screen_lane(lane, numbers, one):
    """The row residual of the state in a pass of its own, in the same arithmetic as the leg that measured it."""
    rows, cols = lane[ROWS], lane[COLS]
    if lane[STATE] == POISONED:
        return np.nan
    if lane[STATE] != ABSORBED:
        f, g, weight = double(lane[STATE_F], rows), double(lane[STATE_G], cols), double(lane[EXACT_B], cols)
        a, x, total = double(lane[EXACT_A], rows), np.empty((BLOCK, padded(cols))), 0.0
        for i in range(rows):
            _scores(lane, numbers, i, i + 1, x)
            base = _fresh_row(x[0, :cols], g, weight)
            total += a[i] * abs(np.expm1(f[i] - base[0]))
        return total + numbers[BAND] + numbers[SUMS]
    a, w, u = vector(lane[A], rows, one), vector(lane[W], cols, one), vector(lane[U], rows, one)
    r, part, groups = np.empty_like(a), np.empty_like(w), groups_of(rows)
    for group in range(groups):
        first, last = bounds(rows, groups, group)
        _sweep_rows(vector(lane[KERNEL], rows * cols, one), cols, w, a, False, r, part, first, last)
    if lane[MOMENTUM]:
        return _momentum_error(lane, r) + numbers[BAND] + numbers[SUMS]
    return error_of(a, r, u) + numbers[BAND] + numbers[SUMS]


@ordered
def _momentum_error(lane, r):
    """The row residual of a state that is explicit on the f side."""
    rows = lane[ROWS]
    a, f, base = double(lane[EXACT_A], rows), double(lane[STATE_F], rows), double(lane[BASE_F], rows)
    total = 0.0
    for i in range(rows):
        total += a[i] * abs(exp(log(np.float64(r[i])) + (f[i] - base[i])) - 1.0)
    return total


@ordered
def verify_absorbed(lane, f, g, one):
    """Both L1 residuals of given potentials (in nats), from the absorbed kernel and fresh scalings."""
    rows, cols = lane[ROWS], lane[COLS]
    groups = groups_of(rows)
    a, b = vector(lane[A], rows, one), vector(lane[B], cols, one)
    base_f, base_g = double(lane[BASE_F], rows), double(lane[BASE_G], cols)
    u, v, r, c = np.empty_like(a), np.empty_like(b), np.empty_like(a), np.empty_like(b)
    t, w, parts = np.empty_like(a), np.empty_like(b), np.empty(groups * cols, dtype=a.dtype)
    for i in range(rows):
        u[i] = exp(f[i] - base_f[i])
        t[i] = a[i] * u[i]
    for j in range(cols):
        v[j] = exp(g[j] - base_g[j])
        w[j] = b[j] * v[j]
    kernel = vector(lane[KERNEL], rows * cols, one)
    for group in range(groups):
        first, last = bounds(rows, groups, group)
        _sweep_rows(kernel, cols, w, t, True, r, parts[group * cols : (group + 1) * cols], first, last)
    add_parts(parts, groups, cols, c)
    return error_of(a, r, u), error_of(b, c, v)


@ordered
def verify_exact(lane, numbers, f, g):
    """Both L1 residuals of given potentials (in nats) in float64, in the log domain, from direct differences."""
    rows, cols = lane[ROWS], lane[COLS]
    a, b, columns = double(lane[EXACT_A], rows), double(lane[EXACT_B], cols), np.empty(cols)
    block, row, col = np.empty((BLOCK, padded(cols))), 0.0, 0.0
    for start in range(0, rows, BLOCK):
        end = min(rows, start + BLOCK)
        _scores(lane, numbers, start, end, block, True)
        for i in range(start, end):
            base = _fresh_row(block[i - start, :cols], g, b)
            row += a[i] * abs(np.expm1(f[i] - base[0]))
    log_columns(lane, numbers, np.log(a) + f, columns, True)
    for j in range(cols):
        col += b[j] * abs(np.expm1(g[j] - columns[j]))
    return row, col


@ordered
def write_states(table, order, f, f_at, g, g_at, one):
    """The potentials of lanes, in nats, one after another."""
    for place in range(order.size):
        lane = table[order[place]]
        state_of(lane, one, f[f_at[place] : f_at[place + 1]], g[g_at[place] : g_at[place + 1]])


@ordered
def verify_lanes(table, numbers, order, first, last, f, f_at, g, g_at, eps, found, one):
    """Row residual, column residual and band of given potentials, for lanes `order[first:last]`."""
    for place in range(first, last):
        lane, mine = table[order[place]], numbers[order[place]]
        fi, gi = f[f_at[place] : f_at[place + 1]] / eps[place], g[g_at[place] : g_at[place + 1]] / eps[place]
        if lane[STATE] == POISONED:
            found[place] = np.nan
        elif lane[STATE] != ABSORBED:
            found[place, 0], found[place, 1] = verify_exact(lane, mine, fi, gi)
        else:
            found[place, 0], found[place, 1] = verify_absorbed(lane, fi, gi, one)
        # The absorbed potentials are rounded like the current ones, so the bound uses the larger of the two.
        judged = mine[ROUNDING] + POTENTIALS * (largest_of(fi) + largest_of(gi))
        found[place, 2] = max(mine[BAND], judged) + mine[SUMS]
