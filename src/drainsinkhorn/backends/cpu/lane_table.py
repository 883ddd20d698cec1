"""The lane table: one record for each cached lane, which the host and the kernels share.

Vectors and matrices of a lane lie in memory blocks; the record holds their addresses. n and m are the numbers of rows
and columns of the lane, and its precision is the dtype of its kernel, float32 or float64. Potentials are in nats.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

SHORT_VECTORS = (
    "a",  # weights of rows, (n,), in the lane's precision, as all of these
    "b",  # weights of columns, (m,)
    "u",  # scalings of rows, (n,): f = F + log u, if the lane is scaled
    "v",  # scalings of columns, (m,): g = G + log v
    "w",  # b v, (m,)
    "t",  # weights of rows in the column sums: a exp(next f - F), (n,); not if the lane is scaled
    "row_sums",  # sum_j K_ij w_j, (n,)
    "col_sums",  # sum_i K_ij t_i, (m,)
    "group_sums",  # column sums of each group of rows, (groups, m)
)
DOUBLE_VECTORS = (
    "a64",  # weights of rows, (n,), in float64, as all of these
    "b64",  # weights of columns, (m,)
    "f",  # potentials of rows, (n,); not of a scaled lane that is ABSORBED
    "g",  # potentials of columns, (m,); not of a lane that is ABSORBED, unless it is soft
    "base_f",  # F, (n,)
    "base_g",  # G, (m,)
    "before",  # x of the last update, (n,); this and the next three only of lanes that are not scaled
    "next_f",  # f after the pending leg, (n,)
    "next_x",  # x of the pending leg, (n,)
    "logs",  # log marginal ratios L of the pending leg, (n,)
    "row_work",  # scratch, (2 n,); this and the next only of lanes that are soft
    "col_work",  # scratch, (3 m,)
)
_MATRICES = (
    "kernel",  # K_ij = exp(F_i + G_j - S_ij), (n, m), in the lane's precision
    "scores",  # cached scores S, (n, m), in float64; 0 if they are computed whenever they are needed
    "x",  # points of rows, (n, d), or a matrix of costs in its own precision, (n, m)
    "y",  # points of columns in panels
    "norms_x",  # squared norms of points, where squares are expanded
    "norms_y",
)
_INTEGERS = (
    "rows",
    "cols",
    "dim",  # coordinates of a point
    "form",  # how scores are computed: a kind of tile, DENSE32 or DENSE64
    "depth",  # cycles that were run
    "state",  # COLD, FRESH, ABSORBED, NEEDS_KERNEL or NOT_FINITE
    "is_shared",  # 1 if other lanes read the same kernel
    "is_scaled",  # 1 if every f-leg is plain and undamped, so that f is kept as scalings u
    "is_soft",  # 1 if a marginal is soft; f and g of such a lane are always explicit
)
_NUMBERS = (
    "factor",  # turns a cost into a score
    "stale",  # row residual with its rounding bound; NaN if the lane is NOT_FINITE
    "bound",  # rounding bound of what float64 measured
    "sum_rounding",  # what sums in the lane's precision add to that
    "score_rounding",  # rounding bound of a score
    "damping",  # lambda of the rows: 1 / (1 + eps kappa)
    "kappa",  # eps kappa of the rows: 0 where their marginal is hard
    "col_damping",  # lambda of the columns; these and the next three are used by soft lanes alone
    "col_kappa",  # eps kappa of the columns
    "log_row_mass",  # log of the mass of the weights a
    "log_col_mass",  # and of b
    "translation",  # t of the pending leg: f + lam t, g - t
    "step",  # of the pending leg
    "beta",  # of the pending leg
    "decided",  # 1 if step and beta are decided, 0 if they are expected
    "age",  # this and the next six: the state of `numerics.update.Momentum`
    "best",
    "col_residual",
    "cooldown",  # inf: momentum never begins, every leg is plain
    "backoff",
    "rows_exact",
    "started",
    "was_fast",  # 1 if the last leg was plain since plain legs contract fast
)

ADDRESSES = (*SHORT_VECTORS, *DOUBLE_VECTORS, *_MATRICES)
"""Fields that are addresses. A record begins with them."""
_WORDS = (*ADDRESSES, *_INTEGERS)
LANE = np.dtype([(name, np.int64) for name in _WORDS] + [(name, np.float64) for name in _NUMBERS])
"""The record of a lane."""

DENSE32, DENSE64 = range(3, 5)
"""Forms of scores besides the kinds of tile: x is a matrix of costs in float32 or float64."""

COLD, FRESH, ABSORBED, NEEDS_KERNEL, NOT_FINITE = range(5)
"""States of a lane.

COLD: at its start; the base of the kernel does not depend on weights, so that lanes over the same costs can share it.
FRESH: f and g are explicit, and the kernel is absorbed at the pending f-leg.
ABSORBED: potentials are base and scalings. NEEDS_KERNEL: as FRESH, but the kernel is shared, so the lane waits for
memory of its own. NOT_FINITE: a potential was not finite; the lane no longer changes.
"""


def new_lanes(count: int) -> NDArray[Any]:
    """Return records of lanes at depth zero that no kernel has measured yet."""
    table = np.zeros(count, dtype=LANE)
    table["best"], table["damping"], table["col_damping"] = np.inf, 1.0, 1.0
    return table


def words(table: NDArray[Any]) -> NDArray[np.int64]:
    """The records as rows of 8-byte words, (lanes, fields), without a copy.

    NumPy copies rows at once, but records field by field.
    """
    return table.view(np.int64).reshape(len(table), LANE.itemsize // 8)


def records(rows: NDArray[np.int64]) -> NDArray[Any]:
    """Rows of 8-byte words, (lanes, fields), as records, without a copy: the inverse of `words`."""
    return rows.view(LANE)[:, 0]
