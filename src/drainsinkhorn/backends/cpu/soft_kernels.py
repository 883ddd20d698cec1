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

from drainsinkhorn.backends.cpu.primitives import double, exp, largest_of, log, maximum, ordered, reordered
from drainsinkhorn.numerics.costs import UNIT
from drainsinkhorn.numerics.soft import FARTHEST

ROUNDING = 2 * UNIT
"""Unit of the rounding error of `exp(-kappa f)`, with a factor of two for safety."""
SMALL_MASS, LARGE_MASS = 1e-200, 1e200
"""Masses between which sums are taken without a common factor: terms that underflow are below their rounding."""
NEAR = 2.0**-5
"""Sum of squares of `kappa lam L` below which `exp(kappa lam L)` is its series up to the fifth power."""


LARGEST_EXPONENT = 700.0
"""Exponents beyond this are clipped by `exp`."""


@ordered
def minimum(values):
    """Return the smallest of some numbers."""
    least = values[0]
    for value in values:
        least = min(least, value)
    return least


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
    if top > LARGEST_EXPONENT or -minimum(logs) > LARGEST_EXPONENT:
        # Weights over many decades: where the largest term is depends on them.
        for i in range(size):
            targets[i] = np.log(weights[i])
            ratios[i] = logs[i] + targets[i]
        top = maximum(ratios)
        for i in range(size):
            ratios[i] = exp(ratios[i] - top)
            mass += ratios[i]
            missed += abs(ratios[i] - exp(targets[i] - kappa * potentials[i] - top))
        return missed / mass, top + np.log(mass)
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
def in_range(mass):
    """True if a mass is neither so small nor so large that sums lose terms."""
    return mass > SMALL_MASS and mass < LARGE_MASS


@reordered
def row_sums(a, logs, f, before, kappa, damping, work):
    """Return five sums over the rows of a measured f-leg.

    In this order: numerator and denominator (the mass of the plan) of `numerics.soft.soft_residual`,
    `numerics.update.alignment`, A of `numerics.soft.translation`, and the sum of squares of `kappa lam L`. Exponentials
    have no common factor taken out, so sums may overflow or underflow; callers test this with `in_range`. A uses the
    series of `exp(kappa lam L)`, which is accurate if the sum of squares is below NEAR. `work` is scratch, (2 n,).
    """
    ratios, targets = work[: a.size], work[a.size :]
    for i in range(a.size):
        ratios[i] = exp(logs[i])
    for i in range(a.size):
        targets[i] = exp(-kappa * f[i])
    missed = mass = along = requested_mass = squares = 0.0
    for i in range(a.size):
        deviation = logs[i] + kappa * f[i]
        moved = kappa * damping * deviation
        missed += a[i] * abs(ratios[i] - targets[i])
        mass += a[i] * ratios[i]
        along -= a[i] * deviation * (f[i] - before[i])
        series = 0.5 + moved * (1.0 / 6.0 + moved * (1.0 / 24.0 + moved * (1.0 / 120.0)))
        series = 1.0 + moved * (1.0 + moved * series)
        requested_mass += a[i] * targets[i] * series
        squares += moved * moved
    return missed, mass, along, requested_mass, squares


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
    kappa, damping = lane.kappa, lane.damping
    work = double(lane.row_work, 2 * rows)
    missed, mass, along, requested_mass, squares = row_sums(a, logs, f, before, kappa, damping, work)
    lane.translation = 0.0
    # Written so that NaN is out of range.
    is_clipped = maximum(logs) > LARGEST_EXPONENT or -kappa * minimum(f) > LARGEST_EXPONENT
    if in_range(mass) and missed < LARGE_MASS and not is_clipped:
        if not lane.cooldown < np.inf:
            return missed / mass, along
        if lane.depth > 0 and squares < NEAR and in_range(requested_mass):
            own = requested_mass if kappa > 0 else exp(lane.log_row_mass)
            other = mass if lane.col_kappa > 0 else exp(lane.log_col_mass)
            lane.translation = translate(log_quotient(own, other), 0.0, kappa, damping, lane.col_kappa)
            return missed / mass, along
    error, log_mass = relative_residual(a, logs, f, kappa, work)
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
def log_quotient(own, other):
    """`log (own / other)` of two masses; of near ones by the series of `2 artanh((own - other) / (own + other))`."""
    apart = (own - other) / (own + other)
    square = apart * apart
    if square < 1e-4:
        return 2.0 * apart * (1.0 + square * (1.0 / 3.0 + square * 0.2))
    return log(own / other)


@ordered
def translate(own, other, kappa, damping, col_kappa):
    """`numerics.soft.translation` in nats."""
    slope = kappa * damping + col_kappa
    if slope == 0.0:
        return 0.0
    shift = (own - other) / slope
    # Written so that NaN counts as out of range.
    return shift if abs(shift) <= FARTHEST else 0.0


@reordered
def column_sums(b, c, g, base, moved, shift, kappa):
    """Return numerator and mass of `numerics.soft.soft_residual` of the columns, in one pass.

    Args:
        b: Weights, (m,).
        c: Sums of the absorbed kernel, without the translation of f.
        g: Potentials before the translation, (m,).
        base: Potentials in the kernel, (m,).
        moved: What the translation subtracts from g.
        shift: What it adds to f.
        kappa: That of the columns.
    """
    missed = mass = 0.0
    for j in range(b.size):
        here = g[j] - moved
        ratio, target = np.float64(c[j]) * exp(here - base[j] + shift), exp(-kappa * here)
        missed += b[j] * abs(ratio - target)
        mass += b[j] * ratio
    return missed, mass


@ordered
def scale_columns(c, b, g, base, v, w, damping, shift, drift, work):
    """Apply the damped g-leg to g, `numerics.update.update`, and write v and w; True if v stays within the drift.

    `work` is scratch, (m,). Loops of few arrays are vectorised.
    """
    far = 0
    for j in range(g.size):
        after = damping * (base[j] - log(np.float64(c[j])) - shift)
        g[j] = after
        work[j] = after - base[j]
    for j in range(g.size):
        # Written so that NaN is far.
        far += not work[j] <= drift
        scaling = exp(work[j])
        v[j] = scaling
        w[j] = b[j] * scaling
    return far == 0


@ordered
def apply_near_columns(lane, c, b, v, w, drift):
    """Apply the damped g-leg as `apply_columns`, from column sums in the range of scalings, and write v and w.

    Returns False if a scaling is out of that range.
    """
    cols = lane.cols
    g, base, shift = double(lane.g, cols), double(lane.base_g, cols), lane.damping * lane.translation
    if lane.rows_exact > 0 and lane.cooldown < np.inf:
        b64 = double(lane.b64, cols)
        missed, mass = column_sums(b64, c, g, base, lane.translation, shift, lane.col_kappa)
        # Written so that NaN is out of range.
        if in_range(mass) and missed < LARGE_MASS:
            lane.col_residual = missed / mass
        else:
            logs, moved = np.empty(cols), g - lane.translation
            for j in range(cols):
                logs[j] = log(np.float64(c[j])) + (moved[j] - base[j] + shift)
            lane.col_residual = relative_residual(b64, logs, moved, lane.col_kappa, np.empty(2 * cols))[0]
    return scale_columns(c, b, g, base, v, w, lane.col_damping, shift, drift, double(lane.col_work, cols))


@ordered
def apply_columns(lane, plain):
    """Apply the damped g-leg to g, `numerics.update.update`, and set the column residual where momentum needs it.

    It is for column sums out of the range of scalings; see `apply_near_columns`.

    Args:
        lane: The lane; its g is that before the translation.
        plain: p, the g after a plain leg, (m,), with f translated.
    """
    cols = lane.cols
    g, shift, damping = double(lane.g, cols), lane.translation, lane.col_damping
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
