"""Compiled sweep of a certificate: both marginals of a plan and its transport cost, from one exponential a pair.

See `backends.certificate` for the formulas and the bound, which holds for `exp` and the summation orders used here.
"""

# pyright: reportCallIssue=false

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.backends.certificate import Costs
from drainsinkhorn.backends.cpu.primitives import exp, ordered, reordered
from drainsinkhorn.backends.cpu.resources import each
from drainsinkhorn.backends.cpu.streaming_kernels import CHUNK, distances

Vector = NDArray[np.float64]

ROWS = 64
"""Rows that a thread takes at a time; a multiple of four."""


@reordered
def _add_row(costs, width, factor, own, other, columns):
    """Add a row of the plan to the sums of its columns; return its sum, and the sum of entries times costs."""
    mass = transport = 0.0
    for j in range(width):
        entry = exp((own + other[j]) - factor * costs[j])
        columns[j] += entry
        mass += entry
        transport += entry * costs[j]
    return mass, transport


@ordered
def sweep_points(x, y, root, factor, own, other, first, last, mass, columns):
    """Sweep rows first .. last, return their transport cost; x is (n, d), n a multiple of 4 by padding; y is (d, m)."""
    cols, total = y.shape[1], 0.0
    costs = np.empty((4, CHUNK))
    mass[first:last] = 0.0
    for i in range(first, last, 4):
        for start in range(0, cols, CHUNK):
            stop = min(cols, start + CHUNK)
            distances(x, i, y, start, stop, root, costs)
            for q in range(min(4, last - i)):
                row_mass, row_transport = _add_row(
                    costs[q], stop - start, factor, own[i + q], other[start:stop], columns[start:stop]
                )
                mass[i + q] += row_mass
                total += row_transport
    return total


@ordered
def sweep_matrix(costs, factor, own, other, first, last, mass, columns):
    """Sweep rows first .. last of a cost matrix and return their transport cost."""
    total = 0.0
    for i in range(first, last):
        row_mass, row_transport = _add_row(costs[i], costs.shape[1], factor, own[i], other, columns)
        mass[i] = row_mass
        total += row_transport
    return total


def compiled_sweep(
    costs: Costs, eps: float, own: Vector, other: Vector, *, threads: int
) -> tuple[Vector, Vector, float]:
    """Return both marginals of the plan and its transport cost; see `backends.certificate.Sweep`."""
    n, m = len(own), len(other)
    blocks = -(-n // ROWS)
    mass, columns, transports = np.empty(n), np.zeros((blocks, m)), [0.0] * blocks
    run: Any
    if costs.matrix is not None:
        # Dense costs have no factor of their own.
        factor, scale = 1 / eps, 1.0
        run = partial(sweep_matrix, np.ascontiguousarray(costs.matrix), factor)
    else:
        scale = costs.factor
        points = np.zeros((-(-n // 4) * 4, costs.x.shape[1]))
        points[:n] = costs.x
        run = partial(sweep_points, points, np.ascontiguousarray(costs.y.T), costs.root, scale / eps)

    def work(block: int) -> None:
        first, last = block * ROWS, min(n, (block + 1) * ROWS)
        transports[block] = run(own, other, first, last, mass, columns[block])

    each(threads, work, blocks)
    return mass, columns.sum(axis=0), scale * sum(transports)
