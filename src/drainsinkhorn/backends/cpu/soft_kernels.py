"""Kernels of cached lanes with a soft marginal: relative residuals, translation, damped columns.

Potentials are in nats, so kappa stands for eps kappa. `update_kernels` calls these where a lane is soft; rows, sweeps
and absorptions are those of all lanes. Both potentials of a soft lane are explicit. With p the plain g-leg, the log
ratio of a column is `g - p`, and its damped leg is `lam p`: the scalings v are no longer `1 / c`.

The translation t of a leg adds `lam t` to f, which multiplies all column sums by `exp(lam t)`. So a sweep adds up
columns without it, and it is made good when these are read.
"""

# pyright: reportCallIssue=false, reportPrivateImportUsage=false, reportGeneralTypeIssues=false
# Numba gives intrinsics another signature than Python sees.

from __future__ import annotations

import numpy as np

from drainsinkhorn.backends.cpu.primitives import double, exp, largest_of, log, maximum, ordered
from drainsinkhorn.numerics.costs import UNIT
from drainsinkhorn.numerics.soft import FARTHEST

ROUNDING = 2 * UNIT
"""Unit of the rounding error of `exp(-kappa f)`, with a factor of two for safety."""


@ordered
def log_sum(weights, exponents):
    """`log sum_i w_i exp(e_i)`: `numerics.soft.log_total`. The exponents are overwritten."""
    top, total = maximum(exponents), 0.0
    for i in range(exponents.size):
        exponents[i] = exp(exponents[i] - top)
    for i in range(exponents.size):
        total += weights[i] * exponents[i]
    return top + np.log(total)


@ordered
def relative_residual(weights, logs, potentials, kappa, work):
    """The residual of a side relative to the mass of the plan, and log of that: `numerics.soft.soft_residual`.

    Terms `|r - exp(-kappa f)|` are differences here, which costs two exponentials a point that the compiler vectorises.
    `work` is scratch, (2 n,).
    """
    size, top = logs.size, maximum(logs)
    ratios, targets, missed, mass = work[:size], work[size : 2 * size], 0.0, 0.0
    for i in range(size):
        ratios[i] = exp(logs[i] - top)
    for i in range(size):
        targets[i] = exp(-kappa * potentials[i] - top)
    for i in range(size):
        mass += weights[i] * ratios[i]
        missed += weights[i] * abs(ratios[i] - targets[i])
    # Written so that NaN is kept.
    return missed / mass, top + np.log(mass)


@ordered
def target_rounding(lane, f, g):
    """The rounding error of `exp(-kappa f)` in a residual: `numerics.soft.soft_exponents`, as in `soft_bound`."""
    row = 2 * lane.kappa * largest_of(f) + 4 if lane.kappa > 0 else 0.0
    col = 2 * lane.col_kappa * largest_of(g) + 4 if lane.col_kappa > 0 else 0.0
    return ROUNDING * max(row, col)


@ordered
def soft_errors(lane):
    """Row residual and `numerics.update.alignment` of the measured leg; sets its translation if there is momentum."""
    rows, cols = lane.rows, lane.cols
    a, logs = double(lane.a64, rows), double(lane.logs, rows)
    f, before = double(lane.f, rows), double(lane.before, rows)
    kappa, damping, along = lane.kappa, lane.damping, 0.0
    work = double(lane.row_work, 2 * rows)
    error, log_mass = relative_residual(a, logs, f, kappa, work)
    for i in range(rows):
        along -= a[i] * (logs[i] + kappa * f[i]) * (f[i] - before[i])
    lane.translation = 0.0
    if lane.cooldown < np.inf:
        own, other = lane.log_row_mass, lane.log_col_mass
        if kappa > 0:
            exponents = work[:rows]
            for i in range(rows):
                exponents[i] = -kappa * (f[i] - damping * (logs[i] + kappa * f[i]))
            own = log_sum(a, exponents)
        if lane.col_kappa > 0:
            other = log_mass
            if lane.depth == 0:
                # Columns are not exact yet.
                other = log_sum(double(lane.b64, cols), -lane.col_kappa * double(lane.g, cols))
        lane.translation = translate(own, other, kappa, damping, lane.col_kappa)
    return error, along


@ordered
def translate(own, other, kappa, damping, col_kappa):
    """`numerics.soft.translation` in nats."""
    slope = kappa * damping + col_kappa
    if slope == 0.0:
        return 0.0
    shift = (own - other) / slope
    # Written so that NaN counts as out of range.
    return shift if abs(shift) <= FARTHEST else 0.0


@ordered
def apply_columns(lane, plain):
    """Apply the damped g-leg to g, `numerics.update.update`, and set the column residual where momentum needs it.

    Args:
        lane: The lane; its g is that before the translation.
        plain: p, the g after a plain leg, (m,), with f translated.
    """
    cols = lane.cols
    g, shift, damping = double(lane.g, cols), lane.translation, lane.col_damping
    lane.decided = 0.0
    if lane.rows_exact > 0 and lane.cooldown < np.inf:
        # The first part is `plain`.
        work = double(lane.col_work, 3 * cols)
        logs, moved, scratch = work[cols : 2 * cols], work[2 * cols :], np.empty(2 * cols)
        for j in range(cols):
            moved[j] = g[j] - shift
            logs[j] = moved[j] - plain[j]
        lane.col_residual = relative_residual(double(lane.b64, cols), logs, moved, lane.col_kappa, scratch)[0]
    for j in range(cols):
        g[j] = damping * plain[j]


@ordered
def apply_rows(lane):
    """Apply the pending f-leg, with its translation."""
    rows, shift = lane.rows, lane.damping * lane.translation
    f, next_f = double(lane.f, rows), double(lane.next_f, rows)
    before, next_x = double(lane.before, rows), double(lane.next_x, rows)
    for i in range(rows):
        f[i] = next_f[i] + shift
        before[i] = next_x[i] + shift


@ordered
def log_ratios_of(sums, potentials, base, out):
    """Write log ratios `log s_i + f_i - F_i` from the sums of an absorbed kernel."""
    for i in range(out.size):
        out[i] = log(np.float64(sums[i])) + (potentials[i] - base[i])
