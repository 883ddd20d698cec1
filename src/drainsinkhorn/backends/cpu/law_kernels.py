"""Compiled kernels of conditional laws: scores of some rows, their laws, and means under them. See `couplings`."""

from __future__ import annotations

import numpy as np

from drainsinkhorn.backends.cpu.primitives import dot, exp, maximum, ordered
from drainsinkhorn.backends.cpu.tiles import padded, squares

BLOCK = 16
"""Rows whose scores are computed together: some tiles."""


@ordered
def scores(kind, x, norms_x, panels, norms_y, factor, out):
    """`factor` times squared distances (or distances) of all rows of x, (n, d), to all columns of panels: `tiles`."""
    size, cols, dim = x.shape[0], out.shape[1], x.shape[1]
    block, rows, columns = np.empty((BLOCK, padded(cols))), x.ctypes.data, panels.ctypes.data
    for first in range(0, size, BLOCK):
        last = min(size, first + BLOCK)
        squares(kind, rows, norms_x.ctypes.data, columns, norms_y.ctypes.data, dim, cols, factor, first, last, block)
        for k in range(first, last):
            for j in range(cols):
                # Where a square was expanded rounding may have left less than nothing.
                out[k, j] = max(block[k - first, j], 0.0)


@ordered
def soften(scores, g, b, law, logs):
    """`law_kj ~ b_j exp(g_j - s_kj)`, each row summing to one, and the logarithms of the sums."""
    for k in range(logs.size):
        s, p = scores[k], law[k]
        for j in range(g.size):
            p[j] = g[j] - s[j]
        largest = maximum(p)
        for j in range(g.size):
            p[j] = exp(p[j] - largest)
        total = dot(p, b)
        for j in range(g.size):
            p[j] *= b[j] / total
        logs[k] = np.log(total) + largest


@ordered
def mean(weights, values, out):
    """`out = weights @ values.T`; values are (c, m)."""
    for c in range(values.shape[0]):
        v = values[c]
        for k in range(weights.shape[0]):
            out[k, c] = dot(weights[k], v)


@ordered
def draw(law, rows, numbers, out):
    """The first column at which the cumulative sum of a row passes its number times the row's sum."""
    cols = law.shape[1]
    for k in range(rows.size):
        p = law[rows[k]]
        total = 0.0
        for j in range(cols):
            total += p[j]
        target, passed, found = numbers[k] * total, 0.0, -1
        for j in range(cols):
            passed += p[j]
            if passed > target:
                found = j
                break
        if found < 0:
            # Rounding left the number at the very end: the last column that has any mass.
            found = cols - 1
            while found > 0 and p[found] == 0:
                found -= 1
        out[k] = found
