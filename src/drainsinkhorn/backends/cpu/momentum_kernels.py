"""Compiled kernels of the cached representation with momentum on f; the rules are those of `numerics.update`.

One sweep per cycle still does both legs. The column sums need the f-leg's outcome, and that needs the lane's decision,
which is known only once all rows are measured; so a sweep goes ahead with the stride it expects (`_expect`), and the
column sums are added up again only where the decision turns out otherwise: at a restart, mostly.

The state is explicit on the f side: STATE_F is f, BEFORE the point from which momentum goes on, NEXT_F and NEXT_X what
they become when the pending leg is applied, LOGS the measured `L = log rho`. U holds `a exp(next f - F)`.
"""

# pyright: reportCallIssue=false, reportPrivateImportUsage=false, reportGeneralTypeIssues=false
# Numba gives intrinsics another signature than Python sees.

from __future__ import annotations

import numpy as np

from drainsinkhorn.backends.cpu import kernels as k
from drainsinkhorn.backends.cpu.primitives import all_finite, double, exp, log, ordered, reordered, vector
from drainsinkhorn.numerics.update import FAST, GROWTH, MAX_BACKOFF, OFFSET, STEP

# What is to be done after a sweep or an absorption: nothing, add up the columns again, absorb the kernel anew.
DONE, COLUMNS, ABSORB = range(3)

AHEAD_ROWS = 8
"""Rows that are measured before their columns are added up: logarithms and exponentials fill a vector register."""


@ordered
def _expect(numbers):
    """The stride that the next decision is likely to choose."""
    if numbers[k.COOLDOWN] > 0 or numbers[k.WAS_FAST] > 0:
        numbers[k.STRIDE], numbers[k.BETA] = 1.0, 0.0
    else:
        numbers[k.STRIDE] = STEP
        numbers[k.BETA] = (numbers[k.AGE] + 1) / (numbers[k.AGE] + 1 + OFFSET)


@ordered
def decide(numbers, error, along):
    """`Momentum.stride`, compiled: sets STRIDE and BETA. True if they are what was expected."""
    expected, numbers[k.DECIDED] = (numbers[k.STRIDE], numbers[k.BETA]), 1.0
    plain = True
    if numbers[k.STARTED] == 0:
        numbers[k.STARTED] = 1.0
    else:
        bad = numbers[k.AGE] > 0 and not error <= GROWTH * numbers[k.BEST]
        if error < numbers[k.BEST]:
            numbers[k.BEST] = error
        if bad:
            numbers[k.COOLDOWN] = 2.0 ** numbers[k.BACKOFF]
            numbers[k.BACKOFF] = min(numbers[k.BACKOFF] + 1, MAX_BACKOFF)
        fast = numbers[k.ROWS_EXACT] > 0 and error * error < FAST * numbers[k.COLUMNS] * numbers[k.COLUMNS]
        restart = numbers[k.AGE] > 0 and along < 0
        numbers[k.WAS_FAST] = 1.0 if fast else 0.0
        plain = bad or numbers[k.COOLDOWN] > 0 or fast or restart
        if not bad and numbers[k.COOLDOWN] > 0:
            numbers[k.COOLDOWN] -= 1
    if plain:
        numbers[k.AGE], numbers[k.ROWS_EXACT] = 0.0, 1.0
        numbers[k.STRIDE], numbers[k.BETA] = 1.0, 0.0
    else:
        numbers[k.AGE] += 1
        numbers[k.ROWS_EXACT] = 0.0
        numbers[k.STRIDE], numbers[k.BETA] = STEP, numbers[k.AGE] / (numbers[k.AGE] + OFFSET)
    return expected[0] == numbers[k.STRIDE] and expected[1] == numbers[k.BETA]


@ordered
def _propose(lane, numbers, first, last, one):
    """The next state of some rows from their LOGS, and the weights with which they enter the column sums."""
    rows, step, beta = lane[k.ROWS], numbers[k.STRIDE], numbers[k.BETA]
    f, before, base = double(lane[k.STATE_F], rows), double(lane[k.BEFORE], rows), double(lane[k.BASE_F], rows)
    logs, next_f, next_x = double(lane[k.LOGS], rows), double(lane[k.NEXT_F], rows), double(lane[k.NEXT_X], rows)
    a, t = vector(lane[k.A], rows, one), vector(lane[k.U], rows, one)
    for i in range(first, last):
        x = f[i] - step * logs[i]
        y = x + beta * (x - before[i])
        next_x[i], next_f[i] = x, y
        t[i] = a[i] * exp(y - base[i])


@reordered
def _row_sums(kernel, cols, w, r, first, last):
    """`r_i = sum_j K_ij w_j`, four rows at a time."""
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
def _add_rows(kernel, cols, t, part, first, last):
    """`part_j += sum_i K_ij t_i`, four rows at a time."""
    i = first
    while i + 4 <= last:
        k0, k1 = kernel[i * cols : (i + 1) * cols], kernel[(i + 1) * cols : (i + 2) * cols]
        k2, k3 = kernel[(i + 2) * cols : (i + 3) * cols], kernel[(i + 3) * cols : (i + 4) * cols]
        t0, t1, t2, t3 = t[i], t[i + 1], t[i + 2], t[i + 3]
        for j in range(cols):
            part[j] += (k0[j] * t0 + k1[j] * t1) + (k2[j] * t2 + k3[j] * t3)
        i += 4
    while i < last:
        k0, t0 = kernel[i * cols : (i + 1) * cols], t[i]
        for j in range(cols):
            part[j] += k0[j] * t0
        i += 1


@ordered
def sweep_group(lane, numbers, group, one):
    """The sweep of a cycle over one group of rows, with the stride that is expected."""
    rows, cols = lane[k.ROWS], lane[k.COLS]
    groups = k.groups_of(rows)
    first, last = k.bounds(rows, groups, group)
    kernel, part = vector(lane[k.KERNEL], rows * cols, one), vector(lane[k.PARTS], groups * cols, one)
    part = part[group * cols : (group + 1) * cols]
    w, t, r = vector(lane[k.W], cols, one), vector(lane[k.U], rows, one), vector(lane[k.R], rows, one)
    f, base, logs = double(lane[k.STATE_F], rows), double(lane[k.BASE_F], rows), double(lane[k.LOGS], rows)
    part[:] = 0
    while first < last:
        end = min(first + AHEAD_ROWS, last)
        _row_sums(kernel, cols, w, r, first, end)
        for i in range(first, end):
            logs[i] = log(np.float64(r[i])) + (f[i] - base[i])
        _propose(lane, numbers, first, end, one)
        _add_rows(kernel, cols, t, part, first, end)
        first = end


@ordered
def columns_group(lane, group, one):
    """The column sums of one group of rows, with the weights that were decided on."""
    rows, cols = lane[k.ROWS], lane[k.COLS]
    groups = k.groups_of(rows)
    first, last = k.bounds(rows, groups, group)
    kernel, part = vector(lane[k.KERNEL], rows * cols, one), vector(lane[k.PARTS], groups * cols, one)
    part = part[group * cols : (group + 1) * cols]
    part[:] = 0
    _add_rows(kernel, cols, vector(lane[k.U], rows, one), part, first, last)


@ordered
def _errors(lane):
    """The row residual `sum_i a_i |rho_i - 1|`, and `-sum_i a_i L_i (f_i - x_i)`."""
    rows = lane[k.ROWS]
    a, logs = double(lane[k.EXACT_A], rows), double(lane[k.LOGS], rows)
    f, before = double(lane[k.STATE_F], rows), double(lane[k.BEFORE], rows)
    error = along = 0.0
    for i in range(rows):
        error += a[i] * abs(exp(logs[i]) - 1.0)
        along -= a[i] * logs[i] * (f[i] - before[i])
    return error, along


@ordered
def end_columns(lane, one):
    """ABSORB if the kernel cannot carry the next cycle, else DONE."""
    rows, cols = lane[k.ROWS], lane[k.COLS]
    c = vector(lane[k.C], cols, one)
    k.add_parts(vector(lane[k.PARTS], k.groups_of(rows) * cols, one), k.groups_of(rows), cols, c)
    if lane[k.STATE] == k.FRESH:
        # The kernel is absorbed at this very leg; the cycle looks at its columns.
        return DONE
    next_f, base, near = double(lane[k.NEXT_F], rows), double(lane[k.BASE_F], rows), True
    for i in range(rows):
        near &= abs(next_f[i] - base[i]) <= k.DRIFT
    return DONE if near and k.in_range(c) else ABSORB


@ordered
def end_sweep(lane, numbers, one):
    """Read the residual off a sweep, decide, and say what is to be done."""
    rows = lane[k.ROWS]
    if not k.in_range(vector(lane[k.R], rows, one)):
        return ABSORB
    error, along = _errors(lane)
    numbers[k.STALE] = error + numbers[k.BAND] + numbers[k.SUMS]
    if decide(numbers, error, along):
        return end_columns(lane, one)
    _propose(lane, numbers, 0, rows, one)
    return COLUMNS


@ordered
def end_absorb(lane, numbers, one):
    """Read the leg off an absorption, decide unless that was done, and say what is to be done."""
    rows = lane[k.ROWS]
    f, base, logs = double(lane[k.STATE_F], rows), double(lane[k.BASE_F], rows), double(lane[k.LOGS], rows)
    k.end_absorb(lane, numbers, one)
    if lane[k.STATE] == k.POISONED:
        return DONE
    for i in range(rows):
        logs[i] = f[i] - base[i]
    if numbers[k.DECIDED] == 0:
        error, along = _errors(lane)
        decide(numbers, error, along)
    _propose(lane, numbers, 0, rows, one)
    # The absorption has added up the columns of the plain leg.
    return DONE if numbers[k.STRIDE] == 1.0 and numbers[k.BETA] == 0.0 else COLUMNS


@ordered
def begin_cycle(lane, numbers, one):
    """Apply the pending f-leg and the g-leg after it. False if the g-leg needs the log domain."""
    rows, cols = lane[k.ROWS], lane[k.COLS]
    c, v, w = vector(lane[k.C], cols, one), vector(lane[k.V], cols, one), vector(lane[k.W], cols, one)
    b = vector(lane[k.B], cols, one)
    if lane[k.STATE] == k.FRESH:
        if not k.in_range(c):
            return False
        double(lane[k.BASE_G], cols)[:] = double(lane[k.STATE_G], cols)
    if lane[k.STATE] != k.ABSORBED:
        v[:] = one
    numbers[k.COLUMNS] = k.error_of(b, c, v)
    lane[k.STATE] = k.ABSORBED
    double(lane[k.STATE_F], rows)[:] = double(lane[k.NEXT_F], rows)
    double(lane[k.BEFORE], rows)[:] = double(lane[k.NEXT_X], rows)
    for j in range(cols):
        v[j] = one / c[j]
        w[j] = b[j] * v[j]
    numbers[k.DECIDED] = 0.0
    _expect(numbers)
    return True


@ordered
def log_leg(lane, numbers, one):
    """The pending f-leg and the g-leg after it, where column sums are out of the range of scalings."""
    rows, cols = lane[k.ROWS], lane[k.COLS]
    b, next_f = double(lane[k.EXACT_B], cols), double(lane[k.NEXT_F], rows)
    state_g, g = double(lane[k.STATE_G], cols), np.empty(cols)
    k.log_leg_to(lane, numbers, next_f, g, one)
    if not (all_finite(g) and all_finite(next_f)):
        lane[k.STATE] = k.POISONED
        numbers[k.STALE] = np.nan
        return
    error = 0.0
    for j in range(cols):
        error += b[j] * abs(np.expm1(state_g[j] - g[j]))
    numbers[k.COLUMNS], numbers[k.DECIDED] = error, 0.0
    double(lane[k.STATE_F], rows)[:] = next_f
    double(lane[k.BEFORE], rows)[:] = double(lane[k.NEXT_X], rows)
    state_g[:] = g


@ordered
def absorb(lane, numbers, one):
    """Measure the next f-leg in the log domain, absorb the kernel there, and make the next cycle ready."""
    groups = k.groups_of(lane[k.ROWS])
    for group in range(groups):
        k.absorb_group(lane, numbers, group, one)
    if end_absorb(lane, numbers, one) == COLUMNS:
        for group in range(groups):
            columns_group(lane, group, one)
        end_columns(lane, one)


@ordered
def cycle(lane, numbers, one):
    """One cycle of one lane, on one thread."""
    lane[k.DEPTH] += 1
    if lane[k.STATE] == k.POISONED:
        return
    groups = k.groups_of(lane[k.ROWS])
    if begin_cycle(lane, numbers, one):
        for group in range(groups):
            sweep_group(lane, numbers, group, one)
        todo = end_sweep(lane, numbers, one)
        if todo == COLUMNS:
            for group in range(groups):
                columns_group(lane, group, one)
            todo = end_columns(lane, one)
        if todo == DONE or not k.unfold(lane, one):
            return
    else:
        log_leg(lane, numbers, one)
    if lane[k.STATE] != k.POISONED:
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
            if lane[k.STATE] == k.HOMELESS:
                break
            # As core.protocol.is_held has it: NaN holds the lane, and nothing does under a stop of -inf.
            if stops[number] > -np.inf and not mine[k.STALE] > stops[number]:
                break


@ordered
def open_lanes(table, numbers, order, first, last, one):
    """Measure the first f-leg of lanes `order[first:last]`; a shared kernel is there already."""
    for place in range(first, last):
        lane, mine = table[order[place]], numbers[order[place]]
        rows = lane[k.ROWS]
        mine[k.BEST] = np.inf
        double(lane[k.BEFORE], rows)[:] = double(lane[k.STATE_F], rows)
        if not k.open_lane(lane, mine, one):
            continue
        if lane[k.STATE] == k.FRESH:
            absorb(lane, mine, one)
        elif lane[k.STATE] == k.COLD:
            f, base, r = double(lane[k.STATE_F], rows), double(lane[k.BASE_F], rows), vector(lane[k.R], rows, one)
            logs = double(lane[k.LOGS], rows)
            for i in range(rows):
                logs[i] = log(np.float64(r[i])) + (f[i] - base[i])
            # The first leg is plain, and the opening sweep has added up its columns.
            decide(mine, 0.0, 0.0)
            _propose(lane, mine, 0, rows, one)
