"""Float64 kernels that store no matrix: scaled costs are recomputed from the points with torch, some rows at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from drainsinkhorn.backends.dense import AllRows
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.numerics.costs import UNIT, cost_matrix
from drainsinkhorn.numerics.rounding import largest_potentials, rounding_bound

Vector = NDArray[np.float64]
CHUNK_PAIRS = 2**22
"""Pairs whose scaled costs are in memory at a time on a CPU; on a GPU sixteen times as many."""


class TorchKernels(AllRows):
    """A problem whose scaled costs `C / eps` ("scores") are computed by direct differences when they are needed.

    Args:
        instance: The problem, without points of weight zero.
        device: Name of the torch device that computes.
    """

    def __init__(self, instance: Instance[Any], device: str) -> None:
        n, m = instance.shape
        self.eps = instance.eps
        self.a, self.b = to_numpy(instance.a), to_numpy(instance.b)
        self._device = torch.device(device)
        self._cost, self._form = instance.cost, None if instance.is_dense else instance.cost.kind.distances
        points = (cost_matrix(instance)[0],) if self._form is None else instance.points
        self._points = [self._to_device(to_numpy(p).astype(np.float64)) for p in points]
        if self._form is not None and self._form.directions:
            self._points = [_unit_rows(p) for p in self._points]
        self._log_a, self._log_b = (self._to_device(w).log() for w in (self.a, self.b))
        chunk = max(1, CHUNK_PAIRS * (16 if self._device.type == "cuda" else 1) // m)
        self._chunks = [slice(first, min(n, first + chunk)) for first in range(0, n, chunk)]
        largest = max(float(scores.abs().max()) for _, scores in self._scores())
        self._rounding = UNIT * (largest + n + m)
        if self._form is not None:
            d = self._points[0].shape[1]
            scale = instance.cost.scale / self.eps
            self._rounding += scale * instance.cost.kind.rounding(d, largest / scale)

    def log_row_ratio(self, f: Vector, g: Vector) -> Vector:
        """`log (P 1)_i / a_i`."""
        shift = self._log_b + self._to_device(g) / self.eps
        parts = [torch.logsumexp(shift - scores, dim=1) for _, scores in self._scores()]
        return f / self.eps + torch.cat(parts).cpu().numpy()

    def log_col_ratio(self, f: Vector, g: Vector) -> Vector:
        """`log (P^T 1)_j / b_j`."""
        shift = self._log_a + self._to_device(f) / self.eps
        total = torch.full((len(g),), -math.inf, dtype=torch.float64, device=self._device)
        for rows, scores in self._scores():
            total = torch.logaddexp(total, torch.logsumexp(shift[rows, None] - scores, dim=0))
        return g / self.eps + total.cpu().numpy()

    def band(self, f: Vector, g: Vector) -> float:
        """Bound on the rounding error of a measured residual, as for dense kernels."""
        return float(rounding_bound(self._rounding, largest_potentials(f, g) / self.eps))

    def _to_device(self, values: Any) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self._device)

    def _scores(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """Scaled costs of some rows against all columns, chunk after chunk."""
        for rows in self._chunks:
            yield rows, self._costs(rows) / self.eps

    def _costs(self, rows: slice) -> torch.Tensor:
        if self._form is None:
            return self._points[0][rows]
        x, y = self._points
        total = torch.zeros((rows.stop - rows.start, len(y)), dtype=torch.float64, device=self._device)
        for k in range(x.shape[1]):
            total += (x[rows, k, None] - y[None, :, k]).square_()
        if self._form.root:
            total.sqrt_()
        return total.mul_(self._form.factor * self._cost.scale)


def _unit_rows(x: torch.Tensor) -> torch.Tensor:
    """Rows scaled to length one; first by their largest entry, so that squares neither overflow nor vanish."""
    x = x / x.abs().amax(dim=1, keepdim=True)
    return x / x.square().sum(dim=1, keepdim=True).sqrt()
