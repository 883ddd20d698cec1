"""Blocks of plans and of costs of many lanes, for `backends.certificate.batch`.

The numbers of a lane do not depend on the lanes beside it, to the bit. torch chooses the order of a sum by the shape of
the whole array, and cuBLAS its kernel by the number of matrices. So all sums are taken by `sums`, which has one order
for one length, matrices are multiplied one by one, and everything else is elementwise or a maximum. `sums` adds
absolute values: all summands are positive, except products of a plan with dense costs or dot products, whose sum is not
used.
"""

# pyright: basic
# torch is loaded where a tensor is.

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from drainsinkhorn.model.instance import Instance
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.numerics.costs import DotProduct, evaluate
from drainsinkhorn.numerics.rounding import dot_error, product_error

BLOCK_PAIRS = {"numpy": 2**16, "torch": 2**24}
"""Entries that are computed at once: what stays in a core's cache, or what fills a device."""
PRODUCT_DIM = {"numpy": 128, "torch": 12}
"""Coordinates from which squared distances come from inner products."""
WEIGHTS, LOGS, ERRORS = range(3)
"""Vectors of a batch: weights, their logarithms, and errors of exponents."""
EXPONENT = 0x7FF0000000000000
"""Bits of the exponent of a float64: a positive number keeps the largest power of two that does not exceed it."""
LEAST_UNIT, MOST_UNIT = 2.0**-512, 2.0**1023
"""Units between which squares of scaled differences stay in range; the bound covers what is lost below."""


def to_device(values: Any, device: Any) -> Any:
    """Copy an array to the device without waiting for it; pageable memory has been read when the copy returns."""
    return sys.modules["torch"].from_numpy(values).to(device, non_blocking=True)


def norms(values: Any, origin: Any, p: float) -> Any:
    """Return p-norms over the last axis; the order in which a norm is summed depends on its length alone.

    They are computed as distances to the origin: torch's `cdist` has one block of threads for each distance.

    Args:
        values: (..., k).
        origin: Zeros, (k,) or longer.
        p: 1, 2 or infinity.
    """
    size = values.shape[-1]
    by_differences = "donot_use_mm_for_euclid_dist"
    distances = sys.modules["torch"].cdist(
        values.reshape(-1, size), origin[None, :size], p=p, compute_mode=by_differences
    )
    return distances.view(values.shape[:-1])


def sums(values: Any, origin: Any) -> Any:
    """Return sums of absolute values over the last axis, in an order that depends on its length alone."""
    return norms(values, origin, 1.0)


def sweep_plans(batch: Any, costs: Any, exponents: Any) -> Any:
    """Sweep over the plans, some rows at a time.

    Returns marginals of rows and columns, and sums over rows of `P_ij` times a block of costs: (lanes, 3, width), zero
    for padding. Several lanes are swept with all their rows at once; a single lane may be too large for that.
    """
    torch, shape = sys.modules["torch"], batch.shape
    own, other = exponents[:, 0, : shape.rows], exponents[:, 1, : shape.cols]
    step = max(1, BLOCK_PAIRS["torch"] // (len(exponents) * shape.cols))
    rows, transport, cols = list[Any](), list[Any](), None
    for first in range(0, shape.rows, step):
        cost = costs(first, min(shape.rows, first + step))
        plan = own[:, first : first + step, None] + other[:, None, :]
        plan.addcmul_(cost, batch.factor, value=-1.0).exp_()
        rows.append(sums(plan, batch.origin))
        columns = sums(plan.transpose(1, 2), batch.origin)
        cols = columns if cols is None else cols.add_(columns)
        transport.append(sums(plan.mul_(cost), batch.origin))
    if len(rows) > 1:
        rows, transport = [torch.cat(rows, 1)], [torch.cat(transport, 1)]
    return torch.stack([_pad(values, shape.width) for values in (rows[0], cols, transport[0])], 1)


def _pad(values: Any, width: int) -> Any:
    missing = width - values.shape[1]
    return values if missing == 0 else sys.modules["torch"].nn.functional.pad(values, (0, missing))


def own_costs(instance: Instance[Any]) -> Any:
    """Return costs of the caller's own, which are evaluated on the host."""
    x, y = (to_numpy(points).astype(np.float64) for points in (instance.x, instance.y))
    return instance.cost.scale * evaluate(instance.cost.kind, x, y)


def block_costs(batch: Any) -> Any:
    """Return what computes blocks of costs without their factor; it has the extent of all costs once all are swept."""
    if batch.shape.form in ("matrix", "own"):
        return _Matrices(batch)
    points = batch.join_sides([p.x for p, _ in batch.lanes], [p.y for p, _ in batch.lanes])
    if isinstance(batch.shape.form, DotProduct):
        return _DotProducts(batch, points)
    if batch.shape.form.directions:
        points /= norms(points, batch.origin, math.inf)[..., None]
        points /= norms(points, batch.origin, 2.0)[..., None]
    if batch.shape.form.root:
        # By a power of two, so that squares neither overflow nor vanish.
        reach = _diagonal(points, math.inf)
        batch.unit = (reach.view(sys.modules["torch"].int64) & EXPONENT).view(reach.dtype)
        batch.unit.clamp_(LEAST_UNIT, MOST_UNIT)
        points /= batch.unit[..., None]
        batch.factor = batch.factor * batch.unit
    return (_Products if batch.shape.by_products else _Differences)(batch, points)


def _box(points: Any) -> tuple[Any, Any]:
    """Return the corners of the box around both clouds, each (lanes, 1, d)."""
    return sys.modules["torch"].aminmax(points.flatten(1, 2), dim=1, keepdim=True)


def _diagonal(points: Any, p: float) -> Any:
    """Return the p-norm of the diagonal of the box around both clouds, (lanes, 1, 1)."""
    return sys.modules["torch"].cdist(*_box(points), p=p)


def _middle(batch: Any, x: Any, low: Any) -> Any:
    """Return the mean of points x, (lanes, n, d), of every lane, (lanes, 1, d), without padding."""
    torch, above = sys.modules["torch"], x - low
    if batch.index is not None:
        above *= batch.vectors[WEIGHTS][:, 0, : batch.shape.rows, None] > 0
    return torch.addcdiv(low, sums(above.transpose(1, 2), batch.origin)[:, None], batch.rows)


def _multiply(x: Any, y: Any, out: Any, alpha: float) -> None:
    """Add `alpha` times the products of points, (lanes, k, d) and (lanes, d, m), to `out`, lane by lane."""
    for lane, own, other in zip(out.unbind(), x.unbind(), y.unbind(), strict=True):
        lane.addmm_(own, other, alpha=alpha)


def _empty(like: Any, rows: int, cols: int) -> Any:
    """Return matrices (lanes, rows, cols) that begin at multiples of 16 bytes in every lane, as in a lane alone.

    cuBLAS may choose kernels by it.
    """
    size = rows * cols
    return like.new_empty((len(like), size + size % 2))[:, :size].view(len(like), rows, cols)


class _DotProducts:
    """Dot products, whose error is added to the errors of exponents.

    Points are scaled by a power of two and its inverse, so that both sides are about equally long.
    """

    def __init__(self, batch: Any, points: Any) -> None:
        torch, (n, m) = sys.modules["torch"], (batch.shape.rows, batch.shape.cols)
        largest = norms(points, batch.origin, math.inf).amax(2)
        ratio = (largest[:, 1] / largest[:, 0]).sqrt()
        unit = (ratio.view(torch.int64) & EXPONENT).view(ratio.dtype)
        unit = torch.where((ratio > 0) & torch.isfinite(ratio) & (unit > 0), unit, 1.0)
        points *= torch.stack([unit, 1 / unit], 1)[:, :, None, None]
        squares = sums(points * points, batch.origin)
        batch.vectors[ERRORS].addcmul_(squares, batch.factor.abs(), value=dot_error(batch.shape.dim))
        self.extent = torch.zeros_like(batch.unit)
        self._x, self._y = points[:, 0, :n], points[:, 1, :m].transpose(1, 2)

    def __call__(self, first: int, last: int) -> Any:
        products = _empty(self._y, last - first, self._y.shape[2]).zero_()
        _multiply(self._x[:, first:last], self._y, products, 1.0)
        return products


class _Products:
    """Squared distances by inner products of centred points, whose error is added to the errors of exponents."""

    def __init__(self, batch: Any, points: Any) -> None:
        n, m = batch.shape.rows, batch.shape.cols
        low, high = _box(points)
        self.extent = sys.modules["torch"].cdist(low, high)
        points -= _middle(batch, points[:, 0, :n], low)[:, None]
        squares = sums(points * points, batch.origin)
        batch.vectors[ERRORS].addcmul_(squares, batch.factor, value=product_error(batch.shape.dim))
        self._x, self._y = points[:, 0, :n], points[:, 1, :m].transpose(1, 2)
        self._norms = squares[:, 0, :n, None], squares[:, 1, None, :m]

    def __call__(self, first: int, last: int) -> Any:
        torch, norms = sys.modules["torch"], self._norms
        squares = _empty(norms[1], last - first, norms[1].shape[2])
        torch.add(norms[0][:, first:last], norms[1], out=squares)
        _multiply(self._x[:, first:last], self._y, squares, -2.0)
        return squares


class _Differences:
    """Squared distances, or distances if the cost is made of these, by differences of one coordinate at a time."""

    def __init__(self, batch: Any, points: Any) -> None:
        self.extent, self._root = _diagonal(points, 2.0), batch.shape.form.root
        self._x, self._y = points[:, 0, : batch.shape.rows, None], points[:, 1, None, : batch.shape.cols]

    def __call__(self, first: int, last: int) -> Any:
        squares: Any = None
        for x, y in zip(self._x[:, first:last].unbind(3), self._y.unbind(3), strict=True):
            apart = x - y
            squares = apart.mul_(apart) if squares is None else squares.addcmul_(apart, apart)
        return squares.sqrt_() if self._root else squares


class _Matrices:
    """Rows of dense costs."""

    def __init__(self, batch: Any) -> None:
        torch, self.extent = sys.modules["torch"], None
        if batch.shape.form == "own":
            matrices = [to_device(own_costs(instance), batch.shape.device) for instance, _ in batch.lanes]
        else:
            matrices = [instance.matrix for instance, _ in batch.lanes]
        # A single matrix is read where it is.
        self._matrices: Any = matrices[0][None] if len(matrices) == 1 else torch.stack(matrices)
        self._index: Any = None
        if batch.index is not None:
            lane, _, places = batch.index
            self._index = lane, places[:, 0, : batch.shape.rows, None], places[:, 1, None, : batch.shape.cols]

    def __call__(self, first: int, last: int) -> Any:
        torch = sys.modules["torch"]
        if self._index is None:
            block = self._matrices[:, first:last].double()
        else:
            lane, rows, cols = self._index
            block = self._matrices[lane, rows[:, first:last], cols].double()
        extent = torch.linalg.vector_norm(block, math.inf, (1, 2))
        self.extent = extent if self.extent is None else torch.maximum(self.extent, extent)
        return block
