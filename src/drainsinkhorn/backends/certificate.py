"""A certificate: both marginal residuals of emitted potentials, with a rigorous rounding bound.

Everything is computed in float64 from the caller's own arrays, by code that no pack uses. With

    P_ij = exp(f_i / eps + log a_i + g_j / eps + log b_j - C_ij / eps)

one sweep over the plan gives both sides: `row = sum_i |sum_j P_ij - a_i|`, `col = sum_j |sum_i P_ij - b_j|`.

Rounding, with u = 2^-53. Write P for the computed plan and E_ij for a bound on the error of the exponent of entry ij:

    E_ij = 4 u (|f_i| / eps + |log a_i|) + 4 u (|g_j| / eps + |log b_j|) + (4 u C_ij + e_ij) / eps

where e_ij bounds the error of the cost: (d + 4) u C_ij by differences, (2 d + 16) u (|x_i|^2 + |y_j|^2) by inner
products of centred points (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1), 0 for a dense matrix.
If every E_ij is below 0.1, the error of an entry is at most 1.06 E_ij P_ij, so that of a residual is at most

    1.06 sum_ij P_ij E_ij + (2 (n + m) + 32) u (1 + sum_ij P_ij)

where the last term covers exponentials, sums and the normalisation of the weights. The sums over P_ij need only the
two marginals of P and `sum_ij P_ij C_ij`. If some E_ij is not below 0.1, the bound is infinite. The float64
value of a cost of the caller's own (a Formula, a CostFn) counts as exact.
"""

# pyright: basic
# NumPy and torch arrays go through the same expressions.

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from drainsinkhorn.backends.arrays import library, to_numpy
from drainsinkhorn.backends.costs import SMALLEST, UNIT, point_cost
from drainsinkhorn.backends.door import caller_array
from drainsinkhorn.core.problem import Cost, Potentials, Problem
from drainsinkhorn.core.protocol import Emission
from drainsinkhorn.core.result import UNKNOWN, Residual

BLOCK_PAIRS = {"numpy": 2**16, "torch": 2**24}
"""Entries of the plan computed at once: few enough for a core's cache, or enough to occupy a GPU."""
PRODUCT_DIM = {"numpy": 128, "torch": 12}
"""From this number of coordinates on, squared distances are computed by inner products."""
FIRST_ORDER = 0.1
"""Largest error of an exponent for which `exp(E) - 1 <= 1.06 E`."""


@dataclass
class Costs:
    """Costs between the points that carry weight: a matrix, or `factor` times squared distances of points.

    Attributes:
        matrix: (n, m); None where points are given.
        x: (n, d), of length one for the cosine.
        y: (m, d).
        factor: Factor on the squared distance, or on the distance if `root`.
        root: Whether the cost is a distance rather than a squared distance.
        relative: Bound on the relative error of a cost.
        constant: Bound on the absolute error of a cost that is added to the relative one.
        largest: A bound on the absolute values of costs.
    """

    matrix: Any = None
    x: Any = None
    y: Any = None
    factor: float = 1.0
    root: bool = False
    relative: float = 0.0
    constant: float = 0.0
    largest: Any = math.inf


@dataclass
class _Swept:
    """Marginals of the plan, its transport cost, and the mean and largest error that inner products add to a cost."""

    rows: Any
    cols: Any
    transport: Any
    added: Any = 0.0
    added_most: Any = 0.0


Sweep = Callable[[Costs, float, Any, Any], tuple[Any, Any, float]]
"""From costs, eps and the exponents of both sides to both marginals of the plan and its transport cost, in NumPy, with
costs by direct differences."""


def certify(problem: Problem[Any], potentials: Potentials[Any], sweep: Sweep | None = None) -> Residual:
    """Return both residuals of the potentials, whose `band` bounds the rounding error of this computation.

    Args:
        problem: A validated problem.
        potentials: Potentials as they are emitted, over all points.
        sweep: A compiled sweep for arrays on the CPU; by default NumPy sweeps.
    """
    xp, bring = _namespace(problem)
    with np.errstate(all="ignore"):
        places = [_support(weights) for weights in (problem.a, problem.b)]
        a, f = (bring(values, places[0]) for values in (problem.a, potentials.f))
        b, g = (bring(values, places[1]) for values in (problem.b, potentials.g))
        eps, costs = problem.eps, _costs(xp, bring, problem, *places)
        log_a, log_b = xp.log(a), xp.log(b)
        own, other = f / eps + log_a, g / eps + log_b
        if xp is np and sweep is not None and not _by_products(xp, costs):
            swept = _Swept(*sweep(costs, eps, own, other))
        else:
            swept = _swept(xp, costs, eps, own, other)
        size_a, size_b = abs(f) / eps + abs(log_a), abs(g) / eps + abs(log_b)
        found = (
            abs(swept.rows - a).sum(), abs(swept.cols - b).sum(), swept.rows.sum(), size_a.max(), size_b.max(),
            (swept.rows * size_a).sum(), (swept.cols * size_b).sum(), swept.transport, costs.largest, swept.added,
            swept.added_most,
        )  # fmt: skip
    return _bounded(problem.eps, len(a) + len(b), costs, *_numbers(xp, found))


def _bounded(
    eps: float, points: int, costs: Costs, row: float, col: float, mass: float, size_a: float, size_b: float,
    mean_a: float, mean_b: float, transport: float, largest: float, added: float, added_most: float,
) -> Residual:  # fmt: skip
    """Return the residual with its bound, from the largest exponents, costs and added errors, and their plan means."""
    if math.isnan(row) or math.isnan(col):
        return UNKNOWN
    by_cost = 4 * UNIT + costs.relative
    worst = 4 * UNIT * (size_a + size_b) + (by_cost * largest + costs.constant + added_most) / eps
    if not worst < FIRST_ORDER:
        return Residual(row, col, math.inf)
    # Dense costs may be negative, so the transport cost does not bound their absolute values.
    size = abs(transport) if costs.matrix is None else largest * mass
    mean = 4 * UNIT * (mean_a + mean_b) + (by_cost * size + costs.constant * mass + added) / eps
    return Residual(row, col, 1.06 * mean + (2 * points + 32) * UNIT * (1 + mass))


def _numbers(xp: Any, values: Sequence[Any]) -> list[float]:
    """Copy scalars to the host, in one transfer."""
    if xp is np:
        return [float(value) for value in values]
    like = values[0]
    return xp.stack([xp.as_tensor(value, dtype=like.dtype, device=like.device) for value in values]).tolist()


def _support(weights: Any) -> Any:
    """Return indices of positive weights; None if all are positive."""
    weights = to_numpy(weights)
    return None if weights.all() else np.flatnonzero(weights)


def certificates(emissions: Sequence[Emission], broken: Sequence[bool], sweep: Sweep | None = None) -> list[Residual]:
    """Certify the emissions of lanes; a broken lane, whose state is not finite, has NaN residuals."""
    return [
        UNKNOWN if is_broken else certify(emission.problem, emission.potentials, sweep)
        for emission, is_broken in zip(emissions, broken, strict=True)
    ]


def on_device(array: Any) -> bool:
    """Whether an array is a torch tensor on a CUDA device; its problem is certified there."""
    return library(array) == "torch" and array.is_cuda


def _namespace(problem: Problem[Any]) -> tuple[Any, Any]:
    """Return NumPy or torch, by the problem's device, and a function that copies arrays there in float64."""
    like = caller_array(problem)
    if not on_device(like):

        def read(values: Any, places: Any = None) -> Any:
            values = to_numpy(values)
            return (values if places is None else values[places]).astype(np.float64)

        return np, read
    return sys.modules["torch"], device_loader(like)


def device_loader(like: Any) -> Callable[..., Any]:
    """Return a function that copies arrays, or the given rows of them, to the device of a tensor, in float64."""
    torch = sys.modules["torch"]

    def bring(values: Any, places: Any = None) -> Any:
        values = values.detach() if library(values) == "torch" else to_numpy(values)
        values = torch.as_tensor(values, device=like.device)
        return (values if places is None else values[torch.as_tensor(places, device=like.device)]).double()

    return bring


def _costs(xp: Any, bring: Any, problem: Problem[Any], rows: Any, cols: Any) -> Costs:
    """Return the costs between points that carry weight."""
    cost = problem.cost
    if not isinstance(cost, Cost):
        return _matrix(bring(cost, rows), cols)
    scale, kind, dim = cost.scale, point_cost(cost), problem.x.shape[1]  # type: ignore[union-attr]
    if not isinstance(cost.kind, str):
        x, y = (to_numpy(points).astype(np.float64) for points in (problem.x, problem.y))
        found = _matrix(bring(scale * kind.matrix(x, y), rows), cols)
        found.relative = float(kind.rounding(dim, 1.0))
        return found
    x, y = bring(problem.x, rows), bring(problem.y, cols)
    if cost.kind == "cosine":
        # Half the squared distance of unit vectors, whose own rounding is the constant.
        x, y = unit_vectors(xp, x), unit_vectors(xp, y)
        largest = float((_box(xp, x, y) ** 2).sum()) / 2
        constant = scale * (float(kind.rounding(dim, largest)) + dim * SMALLEST)
        return Costs(None, x, y, scale / 2, False, (dim + 4) * UNIT, constant, scale * largest)
    box = _box(xp, x, y)
    if cost.kind == "euclidean":
        # Scaled by a power of two, so that squares neither overflow nor underflow.
        unit = 2.0 ** math.frexp(float(box.max()))[1] if 0 < float(box.max()) < math.inf else 1.0
        x, y, box = x / unit, y / unit, box / unit
        far, lost = (box * box).sum() ** 0.5, math.sqrt(dim * SMALLEST)
        factor = scale * unit
        return Costs(None, x, y, factor, True, (dim + 6) * UNIT, factor * lost, factor * far)
    return Costs(None, x, y, scale, False, (dim + 4) * UNIT, scale * dim * SMALLEST, scale * (box * box).sum())


def _matrix(matrix: Any, cols: Any) -> Costs:
    matrix = matrix if cols is None else matrix[:, cols]
    return Costs(matrix, largest=abs(matrix).max())


def _box(xp: Any, x: Any, y: Any) -> Any:
    """Return the extents of the box around both clouds."""
    low, high = xp.minimum(_least(x), _least(y)), xp.maximum(-_least(-x), -_least(-y))
    return high - low


def _least(points: Any) -> Any:
    return points.min(axis=0) if isinstance(points, np.ndarray) else points.amin(0)


def unit_vectors(xp: Any, points: Any) -> Any:
    """Return points scaled to length one, first by their largest coordinate so that squares stay in range.

    `costs.unit_rows` does this for NumPy alone.
    """
    points = points / xp.amax(abs(points), 1)[:, None]
    return points / xp.sqrt(xp.einsum("ij,ij->i", points, points))[:, None]


def _by_products(xp: Any, costs: Costs) -> bool:
    """Whether points have so many coordinates that inner products are faster than differences."""
    least = PRODUCT_DIM["numpy" if xp is np else "torch"]
    return costs.matrix is None and not costs.root and costs.x.shape[1] >= least


def _swept(xp: Any, costs: Costs, eps: float, own: Any, other: Any) -> _Swept:
    """Sweep over the plan in blocks of rows."""
    name = "numpy" if xp is np else "torch"
    rows, cols, transport = xp.zeros_like(own), xp.zeros_like(other), 0.0
    products = _by_products(xp, costs)
    block: Any = _Products(xp, costs) if products else _Differences(xp, costs)
    step = max(1, BLOCK_PAIRS[name] // len(other))
    for first in range(0, len(own), step):
        cost = block(first, first + step)
        plan = xp.exp((own[first : first + step, None] + other[None, :]) - cost / eps)
        rows[first : first + step] = plan.sum(1)
        cols += plan.sum(0)
        plan *= cost
        transport = transport + plan.sum()
    swept = _Swept(rows, cols, transport)
    if products:
        dim, norms_x, norms_y = costs.x.shape[1], *block.norms
        by_norm = costs.factor * (2 * dim + 16) * UNIT
        swept.added = by_norm * ((rows * norms_x).sum() + (cols * norms_y).sum())
        swept.added_most = by_norm * (norms_x.max() + norms_y.max())
    return swept


class _Products:
    """Squared distances by inner products of centred points."""

    def __init__(self, xp: Any, costs: Costs) -> None:
        middle = costs.x.mean(0)
        self._x, y = costs.x - middle, costs.y - middle
        self._factor, self._y = costs.factor, y.T if xp is np else y.T.contiguous()
        self.norms = (self._x * self._x).sum(1), (y * y).sum(1)

    def __call__(self, first: int, last: int) -> Any:
        found = self._x[first:last] @ self._y
        found *= -2.0
        found += self.norms[0][first:last, None]
        found += self.norms[1][None, :]
        found *= self._factor
        return found


class _Differences:
    """Costs by direct differences, one coordinate at a time, or rows of a matrix."""

    def __init__(self, xp: Any, costs: Costs) -> None:
        self._xp, self._costs = xp, costs

    def __call__(self, first: int, last: int) -> Any:
        costs = self._costs
        if costs.matrix is not None:
            return costs.matrix[first:last]
        total: Any = None
        for k in range(costs.x.shape[1]):
            apart = costs.x[first:last, k, None] - costs.y[None, :, k]
            apart *= apart
            if total is None:
                total = apart
            else:
                total += apart
        return costs.factor * (self._xp.sqrt(total) if costs.root else total)
