"""Squared distances of many pairs of clouds as matrices, for callers who read them more than once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.backends.cpu.resources import default_threads, each, empty_in_pool
from drainsinkhorn.backends.cpu.scores import extent, lay_out, score_matrix
from drainsinkhorn.backends.cpu.tiles import EXPANDED

Array = NDArray[np.float64]


def squared_distances(
    pairs: Sequence[Sequence[NDArray[Any]]], scales: Sequence[float], threads: int | None = None
) -> list[Array | None]:
    """`scale |x_i - y_j|^2` in float64 for clouds (n, d) and (m, d), pair by pair, shared out to threads.

    Squares are expanded around the middle of the common box: an entry is off by at most `(d + 6) u scale far^2` with
    u = 2^-53, far the sum of the largest distances of both clouds from that middle. A matrix depends on its pair alone.
    None stands for a pair whose points or squares are not finite.
    """
    matrices: list[Array | None] = [None] * len(pairs)

    def work(place: int) -> None:
        x, y = (empty_in_pool(1, *points.shape) for points in pairs[place])
        x[0], y[0] = pairs[place]
        layout = lay_out(x, y, extent(x, y).middle, empty_in_pool)
        if np.isfinite(layout.row_norms).all() and np.isfinite(layout.panel_norms).all():
            matrix = np.empty((x.shape[1], y.shape[1]))
            rows, norms, panels, others = (array[0] for array in layout)
            score_matrix(EXPANDED, rows, norms, panels, others, scales[place], matrix)
            matrices[place] = matrix

    each(threads or default_threads(), work, len(pairs))
    return matrices
