"""Compiled kernels of the streaming representation: scores recomputed from the points in every leg, O(n d) memory.

Everything is in bits here: with `s_ij` the score and F, G the potentials over `eps ln 2`, the marginal ratio of a row
is `rho_i = sum_j b_j 2^(F_i + G_j - s_ij)`. A leg of the columns is the same function with the sides exchanged.

In float32, F and G are split: the part above STEP goes into the exponent, where sums of two such parts are exact, and
the rest into the weights, so that rounding is that of `s_ij` alone, which is small wherever there is mass. A row
whose ratio leaves the range is done again in float64 with its largest term taken out.

Rows are independent of one another, so threads share rows, and results do not depend on how many there are.
"""

# pyright: reportCallIssue=false, reportPrivateImportUsage=false

from __future__ import annotations

import math

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from drainsinkhorn.backends.cpu.primitives import dot, exp, maximum, ordered, reordered

STEP = 2.0**-6
"""Grid of the part of a potential that goes into the exponent, in bits."""

CHUNK = 512
"""Columns whose scores are held at a time, four rows of them within the first cache."""

LOW, HIGH = 2.0**-60, 2.0**60
"""Ratios outside are computed again with the largest term taken out."""


@intrinsic
def _float32_of_bits(typing, bits):
    return types.float32(types.int32), lambda _c, builder, _s, args: builder.bitcast(args[0], ir.FloatType())


@intrinsic
def _bits_of_float32(typing, value):
    return types.int32(types.float32), lambda _c, builder, _s, args: builder.bitcast(args[0], ir.IntType(32))


_MAGIC = np.float32(12582912.0)  # 1.5 * 2^23
_MAGIC_BITS = np.int32(_MAGIC.view(np.int32))
_LN2 = math.log(2.0)
_P6, _P5, _P4, _P3, _P2, _P1 = (np.float32(_LN2**k / math.factorial(k)) for k in range(6, 0, -1))
_ONE = np.float32(1.0)
_TINY, _HUGE = np.float32(-125.0), np.float32(125.0)
_BIAS, _SHIFT = np.int32(127), np.int32(23)


@ordered
def _exp2_single(x):
    """`2^x` in float32 to about one unit in the last place."""
    x = min(max(x, _TINY), _HUGE)
    t = x + _MAGIC
    r = x - (t - _MAGIC)
    p = _P6
    p = p * r + _P5
    p = p * r + _P4
    p = p * r + _P3
    p = p * r + _P2
    p = p * r + _P1
    p = p * r + _ONE
    return p * _float32_of_bits((_bits_of_float32(t) - _MAGIC_BITS + _BIAS) << _SHIFT)


@ordered
def _exp2_double(x):
    return exp(x * _LN2)


def _exp2(x):
    raise NotImplementedError


@overload(_exp2, inline="always")
def _exp2_overload(x):
    if x == types.float32:
        return lambda x: _exp2_single(x)
    return lambda x: _exp2_double(x)


@ordered
def distances(x, first, y, start, stop, root, out):
    """Squared distances (or distances) of four rows of x to columns start .. stop of y, which is (d, m)."""
    width = stop - start
    for q in range(4):
        o, xk, yk = out[q], x[first + q, 0], y[0, start:stop]
        for j in range(width):
            o[j] = (xk - yk[j]) * (xk - yk[j])
    for k in range(1, x.shape[1]):
        yk = y[k, start:stop]
        x0, x1, x2, x3 = x[first, k], x[first + 1, k], x[first + 2, k], x[first + 3, k]
        o0, o1, o2, o3 = out[0], out[1], out[2], out[3]
        for j in range(width):
            v = yk[j]
            o0[j] += (x0 - v) * (x0 - v)
            o1[j] += (x1 - v) * (x1 - v)
            o2[j] += (x2 - v) * (x2 - v)
            o3[j] += (x3 - v) * (x3 - v)
    if root:
        for q in range(4):
            o = out[q]
            for j in range(width):
                o[j] = np.sqrt(o[j])


@reordered
def _row_sum(o, width, f, g, w):
    total = w.dtype.type(0)
    for j in range(width):
        total += w[j] * _exp2((f + g[j]) - o[j])
    return total


@ordered
def ratio_rows(x, y, root, f_high, f_low, g_high, w, first, last, out):
    """`out_i = rho_i`, `numerics.update.log_ratios` before the logarithm, for rows first .. last.

    Their number is a multiple of four; x is padded to that.
    """
    cols = y.shape[1]
    scores = np.empty((4, CHUNK), dtype=x.dtype)
    for i in range(first, last, 4):
        t0 = t1 = t2 = t3 = 0.0
        for start in range(0, cols, CHUNK):
            stop = min(cols, start + CHUNK)
            width = stop - start
            distances(x, i, y, start, stop, root, scores)
            g, b = g_high[start:stop], w[start:stop]
            t0 += np.float64(_row_sum(scores[0], width, f_high[i], g, b))
            t1 += np.float64(_row_sum(scores[1], width, f_high[i + 1], g, b))
            t2 += np.float64(_row_sum(scores[2], width, f_high[i + 2], g, b))
            t3 += np.float64(_row_sum(scores[3], width, f_high[i + 3], g, b))
        out[i], out[i + 1] = t0 * f_low[i], t1 * f_low[i + 1]
        out[i + 2], out[i + 3] = t2 * f_low[i + 2], t3 * f_low[i + 3]


@ordered
def exact_rows(x, y, root, f, g, b, only_out_of_range, first, last, out):
    """`out_i = log rho_i` (nats) in float64: `numerics.update.log_ratios`, with the largest term taken out.

    With `only_out_of_range`, `out` holds ratios, and only rows outside LOW .. HIGH are computed; all become logarithms.
    """
    cols = y.shape[1]
    terms = np.empty(cols)
    for i in range(first, last):
        if only_out_of_range and out[i] >= LOW and out[i] <= HIGH:
            out[i] = np.log(out[i])
            continue
        terms[:] = 0
        for k in range(x.shape[1]):
            xk, yk = x[i, k], y[k]
            for j in range(cols):
                terms[j] += (xk - yk[j]) * (xk - yk[j])
        if root:
            for j in range(cols):
                terms[j] = np.sqrt(terms[j])
        for j in range(cols):
            terms[j] = (g[j] - terms[j]) * _LN2
        largest = maximum(terms)
        for j in range(cols):
            terms[j] = exp(terms[j] - largest)
        out[i] = np.log(dot(terms, b)) + largest + f[i] * _LN2


@ordered
def split(potential, weights, high, low, weighted):
    """Split potentials (bits): `high` on the grid, `low = 2^rest`, and `weighted = weights * low`."""
    for i in range(potential.size):
        grid = np.rint(potential[i] / STEP) * STEP
        high[i] = grid
        low[i] = exp((potential[i] - grid) * _LN2)
        weighted[i] = weights[i] * low[i]
