"""Plans as sparse matrices in compressed rows, with a bound on the mass that was left out."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.backends.support import part
from drainsinkhorn.core.options import is_positive
from drainsinkhorn.model.brief import call
from drainsinkhorn.model.errors import ProblemError
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.model.result import MAX_PAIRS, Result, warn_of_plans
from drainsinkhorn.numerics.arrays import to_numpy

BLOCK_PAIRS = 2**21
"""Entries of the plan that are held at once."""
SUM_ROUNDING = 2.0**-52
"""Bound on the rounding error of adding a number to a sum of non-negative float64 numbers, relative to the sum."""


@dataclass(frozen=True, slots=True, eq=False)
class SparsePlan:
    """The largest entries of every row of a plan, in the arrays of compressed sparse rows (CSR).

    Attributes:
        data: Entries, row by row, in the dtype of the plan.
        indices: Column of each entry; columns ascend within a row.
        indptr: Row i has the entries `data[indptr[i]:indptr[i + 1]]`, (n + 1,).
        shape: (n, m).
        dropped: Upper bound on the mass of all entries left out, which is the L1 distance of the sparse plan from the
            dense one. The marginals of the sparse plan are within the result's residual plus this of the weights.
    """

    data: NDArray[Any]
    indices: NDArray[np.int64]
    indptr: NDArray[np.int64]
    shape: tuple[int, int]
    dropped: float

    def to_scipy(self) -> Any:
        """A csr_matrix of SciPy."""
        try:
            from scipy.sparse import csr_matrix
        except ImportError:
            raise ProblemError("to_scipy needs scipy: pip install scipy; data, indices and indptr need none") from None
        return csr_matrix((self.data, self.indices, self.indptr), shape=self.shape)

    def __repr__(self) -> str:
        n, m = self.shape
        return call("SparsePlan", f"{n:,} x {m:,}, {self.data.size:,} entries", dropped=self.dropped)


def sparse_plan(result: Result[Any], drop: float = 1e-3, *, max_entries: int = MAX_PAIRS) -> SparsePlan:
    """Return the largest entries of every row of a plan; of no row more than the share `drop` of its mass is left out.

    The plan is computed some rows at a time, so memory grows with the entries that are kept, not with n x m.

    Args:
        result: One result.
        drop: Largest share of the mass of a row that is left out; 0 leaves out zeros alone.
        max_entries: Largest number of entries that may be kept; ProblemError if more are needed.

    Examples:
        >>> import numpy as np
        >>> import drainsinkhorn as ds
        >>> x = np.random.default_rng(0).normal(size=(300, 2))
        >>> result = ds.solve(x, x + 1, eps=0.01)[0]
        >>> sparse = sparse_plan(result, drop=0.01)
        >>> sparse.data.size < 0.1 * 300 * 300, sparse.dropped <= 0.01
        (True, True)
    """
    if not isinstance(cast(object, result), Result):
        raise ProblemError(f"sparse_plan takes one Result, got {type(result).__name__}; call it for each of many")
    if drop != 0 and not (is_positive(drop) and drop < 1):
        raise ProblemError(f"drop is a share of the mass of a row, from 0 to below 1, got {drop!r}")
    warn_of_plans([result])
    instance, (f, g) = result.instance, result.potentials
    n, m = instance.shape
    cols, f = np.arange(m), to_numpy(f)
    blocks: list[tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64]]] = []
    dropped, entries, step = list[float](), 0, max(1, BLOCK_PAIRS // m)
    for first in range(0, n, step):
        rows = np.arange(first, min(first + step, n))
        # No row outside of this block is needed for its entries, so its weights need not have mass 1.
        block = replace(part(instance, rows, cols), init="zero", uniform=False, positive=False)
        plans = result.backend.couple([block], [Potentials(f[rows], g)])
        data, indices, counts, lost = _largest(to_numpy(plans.plan(rows.size * m)[0]), drop)
        blocks.append((data, indices, counts))
        dropped.append(lost)
        entries += data.size
        if entries > max_entries:
            raise ProblemError(
                f"rows 0 to {rows[-1]} of {n} alone need {entries} entries, and max_entries is {max_entries}; "
                f"leave out more than drop={drop:g}, or solve with a smaller eps"
            )
    data, indices, counts = (np.concatenate(column) for column in zip(*blocks, strict=True))
    indptr = np.concatenate([[0], np.cumsum(counts)])
    return SparsePlan(data, indices, indptr, (n, m), math.fsum(dropped) * (1 + SUM_ROUNDING))


def _largest(plan: NDArray[Any], drop: float) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64], float]:
    """Return the entries to keep of some rows, their columns, their number in each row, and the mass left out."""
    wide = plan.astype(np.float64)
    order = np.argsort(wide, axis=1, kind="stable")
    # Sums of the smallest entries of a row, in ascending order. Rounding enlarges the bound, not what is left out.
    sums = np.cumsum(np.take_along_axis(wide, order, axis=1), axis=1) * (1 + plan.shape[1] * SUM_ROUNDING)
    # A NaN is never left out: comparisons with it are false.
    counts = (sums <= drop * sums[:, -1:]).sum(axis=1)
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.broadcast_to(np.arange(plan.shape[1]), plan.shape), axis=1)
    is_kept = ranks >= counts[:, None]
    lost = math.fsum(sums[row, count - 1] for row, count in enumerate(counts.tolist()) if count)
    return plan[is_kept], np.nonzero(is_kept)[1], is_kept.sum(axis=1), lost
