"""Update kernels of cached lanes: a cycle reads the kernel matrix of a lane once.

Potentials are in nats here (f / eps). Let `K_ij = exp(F_i + G_j - S_ij)` be the kernel absorbed at the base (F, G),
with scores `S = C / eps`, and let the state be `f = F + log u`, `g = G + log v`. With `w = b v` the marginal ratio of
a row is `rho_i = u_i r_i`, `r_i = sum_j K_ij w_j`, so one sweep over K measures the next f-leg, `L_i = log r_i + f_i -
F_i`. While a row is in cache, the sweep also adds up what the g-leg after it needs, `c_j = sum_i K_ij t_i` with `t_i =
a_i exp(next f_i - F_i)`. A cycle is: apply the pending f-leg and the g-leg `v = 1 / c`, then one sweep.

The next f is that of `update_rule`. It needs the lane's decision about step and beta, which is known only once all rows
are measured. So a sweep uses the step that is expected (`expect`), and columns are added up again only where the
decision is another one, mostly at a restart.

**Scaled lanes.** Where every leg has step 1, beta 0 and damping 1, the rule is `next f = F - log r`, so `u = 1 / r` and
`t = a / r`. Such lanes keep u and compute neither logarithms nor exponentials; these would take longer than the sums
of a short row. The first leg from a cold start is computed so in every lane.

K underflows where u or v drift far from 1. Then it is absorbed anew at the pending plain f-leg, in float64 from the
points: `F_i = -log sum_j b_j exp(g_j - S_ij)`, `G = g`, which makes all row sums 1, and the lane is FRESH. Which state
a lane is in depends on its own numbers alone.

Sums have a fixed order: a row as the loop over it was compiled (a function of m), a column over blocks of four rows,
then over groups of rows. Threads share lanes or groups, never a sum, so results depend neither on threads nor on
other lanes.
"""

# pyright: reportCallIssue=false, reportPrivateImportUsage=false, reportGeneralTypeIssues=false
# Numba gives intrinsics another signature than Python sees.

from __future__ import annotations

import numpy as np

from drainsinkhorn.backends.cpu import leg_kernels as legs
from drainsinkhorn.backends.cpu import soft_kernels as soft
from drainsinkhorn.backends.cpu.lane_table import ABSORBED, COLD, FRESH, NEEDS_KERNEL, NOT_FINITE
from drainsinkhorn.backends.cpu.leg_kernels import DRIFT, HIGH, LOW, POTENTIALS, groups_of
from drainsinkhorn.backends.cpu.primitives import (
    all_finite,
    copy,
    double,
    exp,
    inlined,
    largest_of,
    log,
    maximum,
    ordered,
    vector,
)
from drainsinkhorn.backends.cpu.scores import BLOCK, cache_scores, load_scores
from drainsinkhorn.backends.cpu.tiles import padded_width
from drainsinkhorn.numerics.update import FAST, GROWTH, MAX_BACKOFF, OFFSET, STEP

LOG_ROWS, LOG_ENTRIES = 32, 4096
"""Rows of lanes that are not scaled that are measured before their columns are added up: their logarithms and
exponentials fill vector registers. Long rows are measured fewer at a time, so that they stay in the first cache."""

DONE, SWEEP, COLUMNS, ABSORB = range(4)
"""Phases of a cycle, each of which goes over all groups of rows: sweep the kernel, add up its columns again with the
weights t that were decided, or absorb it anew; DONE ends the cycle."""


# The rule, and the decision about step and beta.


@inlined
def update_rule(f, before, log_ratio, step, beta, damping, kappa, unit):
    """Return `f <- x + beta (x - before)` and `x = f - step lam (L + kappa f) / unit`; `numerics.update.update`.

    Streaming lanes apply the same function to NumPy arrays.

    Args:
        f: Potential before the update.
        before: x of the update before.
        log_ratio: Log marginal ratio L, in nats.
        step: Step of the leg.
        beta: Weight of the displacement x - before.
        damping: lam; 1 where the marginal is hard.
        kappa: eps kappa of the marginal, for potentials in `unit`; 0 where it is hard.
        unit: Unit of the potentials in nats.
    """
    x = f - step * damping * (log_ratio + kappa * f) / unit
    return x + beta * (x - before), x


@ordered
def expect(lane):
    """Set step and beta to those that the next decision is likely to choose."""
    if lane.cooldown > 0 or lane.was_fast > 0:
        lane.step, lane.beta = 1.0, 0.0
    else:
        lane.step = STEP
        lane.beta = (lane.age + 1) / (lane.age + 1 + OFFSET)


@ordered
def decide(lane, error, along):
    """Set step and beta of the pending leg by `numerics.update.Momentum`; True if `expect` has set the same."""
    step, beta = lane.step, lane.beta
    lane.decided = 1.0
    plain = True
    if lane.started == 0:
        lane.started = 1.0
    else:
        grown = lane.age > 0 and not error <= GROWTH * lane.best
        if error < lane.best:
            lane.best = error
        if grown:
            lane.cooldown = 2.0**lane.backoff
            lane.backoff = min(lane.backoff + 1, MAX_BACKOFF)
        fast = lane.rows_exact > 0 and error * error < FAST * lane.col_residual * lane.col_residual
        restart = lane.age > 0 and along < 0
        lane.was_fast = 1.0 if fast else 0.0
        plain = grown or lane.cooldown > 0 or fast or restart
        if not grown and lane.cooldown > 0:
            lane.cooldown -= 1
    if plain:
        lane.age, lane.rows_exact = 0.0, 1.0
        lane.step, lane.beta = 1.0, 0.0
    else:
        lane.age += 1
        lane.rows_exact = 0.0
        lane.step, lane.beta = STEP, lane.age / (lane.age + OFFSET)
    return step == lane.step and beta == lane.beta


@ordered
def propose(lane, first, last, one):
    """Compute f after the pending leg for rows first .. last - 1, and their weights t: `numerics.update.update`.

    Pass `np.int64(0)` where first is zero, here and to other kernels: a literal compiles a second version.
    """
    rows, step, beta, damping, kappa = lane.rows, lane.step, lane.beta, lane.damping, lane.kappa
    f, before, base = double(lane.f, rows), double(lane.before, rows), double(lane.base_f, rows)
    logs, next_f, next_x = double(lane.logs, rows), double(lane.next_f, rows), double(lane.next_x, rows)
    a, t = vector(lane.a, rows, one), vector(lane.t, rows, one)
    for i in range(first, last):
        next_f[i], next_x[i] = update_rule(f[i], before[i], logs[i], step, beta, damping, kappa, 1.0)
    # A loop of its own is vectorised.
    for i in range(first, last):
        t[i] = a[i] * exp(next_f[i] - base[i])


# What a phase does with a group of rows.


@ordered
def has_scalings(lane):
    """True if the pending leg is kept as scalings; the first leg from a cold start is so in every lane."""
    return lane.is_scaled or lane.state == COLD


@ordered
def sweep_rows(lane, kernel, sums, first, last, one):
    """Measure the next f-leg of some rows, and add up column sums with the weights t of the expected step and beta.

    Implements `numerics.update.log_ratios` of rows and columns.
    """
    rows, cols = lane.rows, lane.cols
    w, r, a = vector(lane.w, cols, one), vector(lane.row_sums, rows, one), vector(lane.a, rows, one)
    if has_scalings(lane):
        legs.sweep(kernel, cols, w, a, False, r, sums, first, last)
        return
    f, base, logs = double(lane.f, rows), double(lane.base_f, rows), double(lane.logs, rows)
    # A multiple of four, so that the order of column sums does not depend on it.
    size = max(8, min(LOG_ROWS, LOG_ENTRIES // cols // 4 * 4))
    while first < last:
        end = min(first + size, last)
        legs.sum_rows(kernel, cols, w, r, first, end)
        for i in range(first, end):
            logs[i] = log(np.float64(r[i])) + (f[i] - base[i])
        propose(lane, first, end, one)
        legs.add_rows(kernel, cols, vector(lane.t, rows, one), sums, first, end)
        first = end


@ordered
def absorb_rows(lane, kernel, sums, first, last, one):
    """Measure the f-leg of some rows in float64, `numerics.update.log_ratios`, and write their K absorbed there."""
    rows, cols = lane.rows, lane.cols
    base_f, g, weight = double(lane.base_f, rows), double(lane.g, cols), double(lane.b64, cols)
    a, block = vector(lane.a, rows, one), np.empty((BLOCK, padded_width(cols)))
    for start in range(first, last, BLOCK):
        end = min(last, start + BLOCK)
        load_scores(lane, lane.form, start, end, block)
        for i in range(start, end):
            x = block[i - start, :cols]
            base_f[i], scale = legs.plain_leg(x, g, weight)
            k = kernel[i * cols : (i + 1) * cols]
            for j in range(cols):
                k[j] = x[j] * scale
            ai = a[i]
            for j in range(cols):
                sums[j] += k[j] * ai


@ordered
def run_group(lane, phase, group, one):
    """Do the work of a phase for one group of rows."""
    rows, cols = lane.rows, lane.cols
    groups = groups_of(rows)
    first, last = legs.bounds(rows, groups, group)
    kernel, parts = vector(lane.kernel, rows * cols, one), vector(lane.group_sums, groups * cols, one)
    sums = parts[group * cols : (group + 1) * cols]
    sums[:] = 0
    if phase == SWEEP:
        sweep_rows(lane, kernel, sums, first, last, one)
    elif phase == COLUMNS:
        legs.add_rows(kernel, cols, vector(lane.t, rows, one), sums, first, last)
    else:
        absorb_rows(lane, kernel, sums, first, last, one)


# A cycle: `begin_cycle`, then phases until DONE.


@ordered
def log_leg(lane, one):
    """Apply the pending f-leg and the g-leg after it, where column sums are out of the range of scalings.

    The g-leg is read off the column sums of the fresh kernel where they are in the range of its precision, else
    measured by `log_columns`.
    """
    rows, cols = lane.rows, lane.cols
    c, state_g = vector(lane.col_sums, cols, one), double(lane.g, cols)
    a, b = double(lane.a64, rows), double(lane.b64, cols)
    f, g = double(lane.base_f if lane.is_scaled else lane.next_f, rows), np.empty(cols)
    if legs.in_range(c, legs.DEEP_LOW, legs.DEEP_HIGH):
        for j in range(cols):
            g[j] = state_g[j] - np.log(np.float64(c[j]))
    else:
        legs.log_columns(lane, lane.form, np.log(a) + f, g)
    if not (all_finite(g) and all_finite(f)):
        lane.state = NOT_FINITE
        lane.stale = np.nan
        return
    if not lane.is_scaled:
        lane.col_residual, lane.decided = legs.log_residual(b, state_g, g), 0.0
        copy(double(lane.before, rows), double(lane.next_x, rows))
    copy(double(lane.f, rows), f)
    copy(state_g, g)


@ordered
def leg_errors(lane):
    """The row residual of the measured leg, `numerics.residual.residual`, and `numerics.update.alignment`."""
    rows = lane.rows
    a, logs = double(lane.a64, rows), double(lane.logs, rows)
    f, before = double(lane.f, rows), double(lane.before, rows)
    error = along = 0.0
    # Exponentials are vectorised, whereas the order of a sum is kept.
    ratios = np.empty(rows)
    for i in range(rows):
        ratios[i] = exp(logs[i])
    for i in range(rows):
        error += a[i] * abs(ratios[i] - 1.0)
        along -= a[i] * logs[i] * (f[i] - before[i])
    return error, along


# A cycle, in parts that the host may share among threads.


@ordered
def begin_soft(lane, one):
    """`begin_cycle` of a soft lane. Where v would leave the range of scalings, the kernel is absorbed anew."""
    rows, cols, is_fresh = lane.rows, lane.cols, lane.state == FRESH
    c, v, w = vector(lane.col_sums, cols, one), vector(lane.v, cols, one), vector(lane.w, cols, one)
    b, g, base = vector(lane.b, cols, one), double(lane.g, cols), double(lane.base_g, cols)
    plain, f = double(lane.col_work, 3 * cols)[:cols], double(lane.f, rows)
    if is_fresh:
        copy(base, g)
    soft.apply_rows(lane)
    lane.decided = 0.0
    if legs.in_range(c, LOW, HIGH):
        if not soft.apply_near_columns(lane, c, b, v, w, DRIFT):
            lane.state = FRESH
            return ABSORB
        expect(lane)
        lane.state = ABSORBED
        return SWEEP
    if legs.in_range(c, legs.DEEP_LOW, legs.DEEP_HIGH):
        shift = lane.damping * lane.translation
        for j in range(cols):
            plain[j] = base[j] - log(np.float64(c[j])) - shift
    else:
        legs.log_columns(lane, lane.form, np.log(double(lane.a64, rows)) + f, plain)
    soft.apply_columns(lane, plain)
    if not (all_finite(g) and all_finite(f)):
        lane.state = NOT_FINITE
        lane.stale = np.nan
        return DONE
    lane.state = FRESH
    return ABSORB


@ordered
def begin_cycle(lane, one):
    """Apply the pending f-leg and the g-leg after it, `numerics.update.update`; return the first phase of the cycle."""
    rows, cols, is_fresh = lane.rows, lane.cols, lane.state == FRESH
    lane.depth += 1
    if lane.state == NOT_FINITE:
        return DONE
    if lane.is_soft:
        return begin_soft(lane, one)
    c, v, w = vector(lane.col_sums, cols, one), vector(lane.v, cols, one), vector(lane.w, cols, one)
    b = vector(lane.b, cols, one)
    if is_fresh:
        if not legs.in_range(c, LOW, HIGH):
            log_leg(lane, one)
            return DONE if lane.state == NOT_FINITE else ABSORB
        copy(double(lane.base_g, cols), double(lane.g, cols))
    if lane.is_scaled:
        u, r = vector(lane.u, rows, one), vector(lane.row_sums, rows, one)
        for i in range(rows):
            u[i] = one if is_fresh else one / r[i]
    else:
        if lane.state != ABSORBED:
            v[:] = one
        lane.col_residual, lane.decided = legs.scaled_residual(b, c, v), 0.0
        copy(double(lane.f, rows), double(lane.next_f, rows))
        copy(double(lane.before, rows), double(lane.next_x, rows))
        expect(lane)
    lane.state = ABSORBED
    for j in range(cols):
        v[j] = one / c[j]
        w[j] = b[j] * v[j]
    return SWEEP


@ordered
def is_near(lane, one):
    """True if the pending leg and the column sums are in the range in which the kernel can carry the next cycle."""
    rows = lane.rows
    if has_scalings(lane):
        near = legs.in_range(vector(lane.row_sums, rows, one), LOW, HIGH)
    else:
        next_f, base, near = double(lane.next_f, rows), double(lane.base_f, rows), True
        # A row of a soft lane may have far less mass than its weight, and adds nothing to columns then.
        lowest = -np.inf if lane.is_soft else -DRIFT
        for i in range(rows):
            away = next_f[i] - base[i]
            near &= away <= DRIFT and away >= lowest
    return near and legs.in_range(vector(lane.col_sums, lane.cols, one), LOW, HIGH)


@ordered
def leave_kernel(lane, one):
    """Make the state explicit, so that the kernel can be absorbed at it: ABSORB, or DONE if it has none of its own."""
    rows, cols = lane.rows, lane.cols
    f, g = np.empty(rows), np.empty(cols)
    legs.write_state(lane, one, f, g)
    copy(double(lane.f, rows), f)
    copy(double(lane.g, cols), g)
    lane.state = NEEDS_KERNEL if lane.is_shared else FRESH
    return ABSORB if lane.state == FRESH else DONE


@ordered
def end_sweep(lane, one):
    """Compute the row residual from a sweep and decide step and beta.

    The sweep has added up the columns with the step and beta that `expect` set. Returns False if the decision is
    another one, so that they must be added up again with the weights t that are written here.
    """
    rows = lane.rows
    r = vector(lane.row_sums, rows, one)
    along = 0.0
    if lane.is_scaled:
        error = legs.scaled_residual(vector(lane.a, rows, one), r, vector(lane.u, rows, one))
    elif lane.is_soft:
        error, along = soft.soft_errors(lane)
    else:
        error, along = leg_errors(lane)
    lane.stale = error + lane.bound + lane.sum_rounding
    if lane.is_soft:
        lane.stale = error + (lane.bound + lane.sum_rounding) * (1 + error)
    if lane.is_scaled or decide(lane, error, along):
        return True
    propose(lane, np.int64(0), rows, one)
    return False


@ordered
def finish_soft(lane):
    """The part of `end_absorb` that is different in a soft lane: residual, bound, translation and decision."""
    rows, cols = lane.rows, lane.cols
    f, g = double(lane.f, rows), double(lane.g, cols)
    lane.bound += soft.target_rounding(lane, f, g)
    if lane.decided == 0:
        error, along = soft.soft_errors(lane)
        decide(lane, error, along)
    else:
        work = double(lane.row_work, 2 * rows)
        error, _ = soft.relative_residual(double(lane.a64, rows), double(lane.logs, rows), f, lane.kappa, work)
    lane.stale = error + (lane.bound + lane.sum_rounding) * (1 + error)


@ordered
def end_absorb(lane, one):
    """Finish an absorption: measure the f-leg, and decide its step and beta unless they are decided already.

    The kernel is absorbed at the plain f-leg F, so the log marginal ratio of a row is f - F. Returns True if the column
    sums of the absorption are those of the decided leg, and False if they must be added up again.
    """
    rows = lane.rows
    f, base_f, a = double(lane.f, rows), double(lane.base_f, rows), double(lane.a64, rows)
    lane.bound = lane.score_rounding + POTENTIALS * (largest_of(base_f) + largest_of(double(lane.g, lane.cols)))
    # The columns may have been read off sums in the lane's precision.
    lane.stale = legs.log_residual(a, f, base_f) + lane.bound + lane.sum_rounding
    if not all_finite(base_f):
        lane.state = NOT_FINITE
        lane.stale = np.nan
    if lane.state == NOT_FINITE or lane.is_scaled:
        return True
    logs = double(lane.logs, rows)
    for i in range(rows):
        logs[i] = f[i] - base_f[i]
    if lane.is_soft:
        finish_soft(lane)
    elif lane.decided == 0:
        error, along = leg_errors(lane)
        decide(lane, error, along)
    propose(lane, np.int64(0), rows, one)
    # The absorption has added up the columns of the plain, undamped leg.
    return lane.step * lane.damping == 1.0 and lane.beta == 0.0 and lane.kappa == 0.0


@ordered
def end_cold(lane, one):
    """Read the first leg off a sweep with u = v = 1 from f = g = 0: it is plain, and gives f = F - log r."""
    rows = lane.rows
    base, r, a = double(lane.base_f, rows), vector(lane.row_sums, rows, one), double(lane.a64, rows)
    total = 0.0
    for i in range(rows):
        total += a[i] * abs(np.expm1(np.log(np.float64(r[i])) - base[i]))
    lane.bound = lane.score_rounding + POTENTIALS * largest_of(base)
    lane.stale = total + lane.bound + lane.sum_rounding
    if not lane.is_scaled:
        f, logs = double(lane.f, rows), double(lane.logs, rows)
        for i in range(rows):
            logs[i] = log(np.float64(r[i])) + (f[i] - base[i])
        decide(lane, 0.0, 0.0)
        propose(lane, np.int64(0), rows, one)


@ordered
def end_phase(lane, phase, one):
    """Finish a phase whose groups are done; returns the next one."""
    cols, groups = lane.cols, groups_of(lane.rows)
    if phase == SWEEP:
        if not (has_scalings(lane) or legs.in_range(vector(lane.row_sums, lane.rows, one), LOW, HIGH)):
            return leave_kernel(lane, one)
        if lane.state != COLD and not end_sweep(lane, one):
            return COLUMNS
    legs.add_parts(vector(lane.group_sums, groups * cols, one), groups, cols, vector(lane.col_sums, cols, one))
    if phase == ABSORB:
        return DONE if end_absorb(lane, one) else COLUMNS
    # The kernel of a FRESH lane is absorbed at this very leg; `begin_cycle` checks its columns.
    if lane.state != FRESH and not is_near(lane, one):
        return leave_kernel(lane, one)
    if lane.state == COLD:
        end_cold(lane, one)
    return DONE


@ordered
def run_phases(lane, phase, one):
    """Run all groups of a phase and the phases after it, on one thread."""
    while phase != DONE:
        for group in range(groups_of(lane.rows)):
            run_group(lane, phase, group, one)
        phase = end_phase(lane, phase, one)


# The parts of a cycle, called by the host: it costs more to pass a record than a table and a row number.


@ordered
def begin_row(table, row, one):
    """`begin_cycle` of the lane in a row of the table."""
    return begin_cycle(table[row], one)


@ordered
def run_row_group(table, row, phase, group, one):
    """`run_group` of the lane in a row of the table."""
    run_group(table[row], phase, group, one)


@ordered
def end_row_phase(table, row, phase, one):
    """`end_phase` of the lane in a row of the table."""
    return end_phase(table[row], phase, one)


@ordered
def run_lanes(table, order, first, last, cycles, stops, ran, one):
    """Run lanes `order[first:last]`, each until it is held or the cycles are over; adds cycles to `ran`."""
    for place in range(first, last):
        number = order[place]
        lane = table[number]
        for _ in range(cycles):
            run_phases(lane, begin_cycle(lane, one), one)
            ran[number] += 1
            if lane.state == NEEDS_KERNEL:
                break
            # As core.protocol.is_held: NaN holds the lane, and nothing does under a stop of -inf.
            if stops[number] > -np.inf and not lane.stale > stops[number]:
                break


# The first leg of a lane.


@ordered
def fill_cold_rows(lane, first, last, one):
    """Write rows of the kernel of a cold start, `K_ij = exp(F_i - S_ij)` with `F_i = min_j S_ij`, and F.

    Scores that belong to a shared kernel are cached here, once for all its lanes.
    """
    rows, cols = lane.rows, lane.cols
    kernel, base = vector(lane.kernel, rows * cols, one), double(lane.base_f, rows)
    if lane.scores and lane.is_shared:
        cache_scores(lane, first, last)
    block = np.empty((BLOCK, padded_width(cols)))
    for start in range(first, last, BLOCK):
        end = min(last, start + BLOCK)
        load_scores(lane, lane.form, start, end, block)
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
    """Copy the base of a shared kernel from the first of its lanes to the others."""
    rows = table[places[0]].rows
    base = double(table[places[0]].base_f, rows)
    for place in places[1:]:
        copy(double(table[place].base_f, rows), base)


@ordered
def open_lanes(table, order, first, last, one):
    """Measure the first f-leg of lanes `order[first:last]`; a shared kernel and its scores are there already."""
    for place in range(first, last):
        lane = table[order[place]]
        rows, cols = lane.rows, lane.cols
        copy(vector(lane.w, cols, one), vector(lane.b, cols, one))
        # The host has a bound on the scores, which says whether they are finite.
        if not abs(lane.score_rounding) < np.inf:
            lane.state = NOT_FINITE
            lane.stale = np.nan
            continue
        if not lane.is_scaled:
            copy(double(lane.before, rows), double(lane.f, rows))
        if lane.scores and not lane.is_shared:
            cache_scores(lane, np.int64(0), rows)
        if lane.state == COLD:
            double(lane.base_g, cols)[:] = 0
            if not lane.is_shared:
                fill_cold_rows(lane, np.int64(0), rows, one)
        run_phases(lane, SWEEP if lane.state == COLD else ABSORB, one)
