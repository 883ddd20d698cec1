"""The certificate of one lane, in NumPy, with costs by direct differences or by inner products."""

# pyright: basic

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from drainsinkhorn.backends.certificate.blocks import BLOCK_PAIRS, PRODUCT_DIM, own_costs
from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.model.result import Residual
from drainsinkhorn.numerics.arrays import library, to_numpy
from drainsinkhorn.numerics.costs import SMALLEST, UNIT, DotProduct
from drainsinkhorn.numerics.rounding import (
    CostBound,
    PlanSums,
    bound_costs,
    certified_residual,
    dot_error,
    product_error,
    target_rounding,
)


@dataclass
class Costs:
    """Costs between the points that carry weight: a matrix, or `factor` times squared distances or dot products.

    Attributes:
        bound: Bounds on their rounding errors.
        matrix: (n, m); None where points are given.
        x: (n, d), of length one for the cosine.
        y: (m, d).
        root: True if the cost is a distance and not its square.
        products: True if the cost is a dot product.
    """

    bound: CostBound
    matrix: Any = None
    x: Any = None
    y: Any = None
    root: bool = False
    products: bool = False

    @property
    def factor(self) -> float:
        """Factor of squared distances; of distances if `root`, of dot products if `products`."""
        return self.bound.factor


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


def certify_on_host(instance: Instance[Any], potentials: Potentials[Any], sweep: Sweep | None) -> Residual:
    """Certify one lane whose arrays NumPy can read; arguments as for `backends.certificate.certify`."""
    with np.errstate(all="ignore"):
        rows, cols = (_support(weights) for weights in (instance.a, instance.b))
        a, f = (_read(values, rows) for values in (instance.a, potentials.f))
        b, g = (_read(values, cols) for values in (instance.b, potentials.g))
        eps, costs = instance.eps, _costs(instance, rows, cols)
        log_a, log_b = np.log(a), np.log(b)
        own, other = f / eps + log_a, g / eps + log_b
        if sweep is not None and not _by_products(costs):
            swept = _Swept(*sweep(costs, eps, own, other))
        else:
            swept = _sweep(costs, eps, own, other)
        size_a, size_b = abs(f) / eps + abs(log_a), abs(g) / eps + abs(log_b)
        mean = float((swept.rows * size_a).sum()) + float((swept.cols * size_b).sum())
        targets, error = (a, b), None
        if not instance.marginals.are_hard:
            row, col = instance.marginals
            (masses_a, error_a), (masses_b, error_b) = _targets(a, f, row.kappa), _targets(b, g, col.kappa)
            targets, error = (masses_a, masses_b), max(error_a, error_b)
        sums = PlanSums(
            eps, len(a) + len(b), float(abs(swept.rows - targets[0]).sum()), float(abs(swept.cols - targets[1]).sum()),
            float(swept.rows.sum()), 4 * UNIT * mean, 4 * UNIT * (float(size_a.max()) + float(size_b.max())),
            float(swept.transport), costs.bound, costs.matrix is not None or costs.products, float(swept.added),
            float(swept.added_most), error,
        )  # fmt: skip
    return certified_residual(sums)


def _targets(weights: Any, potentials: Any, kappa: float) -> tuple[Any, float]:
    """Return `a_i exp(-kappa f_i)`, the masses that potentials ask for, and the sum of their rounding errors."""
    if kappa == 0.0:
        return weights, 0.0
    exponents = kappa * potentials
    masses = weights * np.exp(-exponents)
    return masses, target_rounding(kappa, len(weights), float((abs(exponents) * masses).sum()), float(masses.sum()))


def _support(weights: Any) -> Any:
    """Return indices of positive weights; None if all are positive."""
    weights = to_numpy(weights)
    return None if weights.all() else np.flatnonzero(weights)


def _read(values: Any, places: Any = None) -> Any:
    """Return an array of the caller, or its entries at `places`, as a NumPy array in float64."""
    values = to_numpy(values)
    return (values if places is None else values[places]).astype(np.float64)


def device_loader(like: Any) -> Callable[..., Any]:
    """Return a function that copies arrays, or the given rows of them, to the device of a tensor, in float64."""
    torch = sys.modules["torch"]

    def bring(values: Any, places: Any = None) -> Any:
        values = values.detach() if library(values) == "torch" else to_numpy(values)
        values = torch.as_tensor(values, device=like.device)
        return (values if places is None else values[torch.as_tensor(places, device=like.device)]).double()

    return bring


def _costs(instance: Instance[Any], rows: Any, cols: Any) -> Costs:
    """Return the costs between points that carry weight."""
    if instance.is_dense:
        return _matrix(_read(instance.matrix, rows), cols)
    cost, kind, dim = instance.cost, instance.cost.kind, instance.dim
    if isinstance(kind, DotProduct):
        return _dot_products(cost, _read(instance.x, rows), _read(instance.y, cols))
    if kind.distances is None:
        return _matrix(_read(own_costs(instance), rows), cols, float(kind.rounding(dim, 1.0)))
    x, y = _read(instance.x, rows), _read(instance.y, cols)
    if kind.distances.directions:
        x, y = unit_vectors(np, x), unit_vectors(np, y)
    box = _box(x, y)
    if kind.distances.root:
        # By a power of two, so that squares neither overflow nor vanish.
        unit = 2.0 ** math.frexp(float(box.max()))[1] if 0 < float(box.max()) < math.inf else 1.0
        x, y, box = x / unit, y / unit, box / unit
        return Costs(bound_costs(cost, dim, float((box * box).sum() ** 0.5), unit), x=x, y=y, root=True)
    return Costs(bound_costs(cost, dim, float((box * box).sum())), x=x, y=y)


def _matrix(matrix: Any, cols: Any, relative: float = 0.0) -> Costs:
    matrix = matrix if cols is None else matrix[:, cols]
    return Costs(CostBound(1.0, relative, 0.0, float(abs(matrix).max())), matrix)


def _dot_products(cost: Cost, x: Any, y: Any) -> Costs:
    """Return dot products; points are scaled by a power of two and its inverse, so that both sides are equally long."""
    ratio = float(abs(y).max()) / max(float(abs(x).max()), SMALLEST)
    unit = 2.0 ** (math.frexp(math.sqrt(ratio))[1] - 1) if 0 < ratio < math.inf else 1.0
    constant = cost.scale * x.shape[1] * SMALLEST
    return Costs(CostBound(cost.scale * cost.kind.sign, 0.0, constant, 0.0), x=x * unit, y=y / unit, products=True)


def _box(x: Any, y: Any) -> Any:
    """Return the extents of the box around both clouds."""
    return np.maximum(x.max(axis=0), y.max(axis=0)) - np.minimum(x.min(axis=0), y.min(axis=0))


def unit_vectors(xp: Any, points: Any) -> Any:
    """Return points scaled to length one, first by their largest coordinate so that squares stay in range.

    `costs.unit_rows` does this for NumPy alone.
    """
    points = points / xp.amax(abs(points), 1)[:, None]
    return points / xp.sqrt(xp.einsum("ij,ij->i", points, points))[:, None]


def _by_products(costs: Costs) -> bool:
    """Whether costs come from inner products: the cost needs them, or they are faster in so many coordinates."""
    if costs.matrix is not None or costs.root:
        return False
    return costs.products or costs.x.shape[1] >= PRODUCT_DIM["numpy"]


def _sweep(costs: Costs, eps: float, own: Any, other: Any) -> _Swept:
    """Sweep over the plan, some rows at a time."""
    rows, cols, transport = np.zeros_like(own), np.zeros_like(other), 0.0
    products = _by_products(costs)
    block: Any = _Products(costs) if products else _Differences(costs)
    step = max(1, BLOCK_PAIRS["numpy"] // len(other))
    for first in range(0, len(own), step):
        cost = block(first, first + step)
        plan = np.exp((own[first : first + step, None] + other[None, :]) - cost / eps)
        rows[first : first + step] = plan.sum(1)
        cols += plan.sum(0)
        plan *= cost
        transport = transport + plan.sum()
    swept = _Swept(rows, cols, transport)
    if products:
        norms_x, norms_y = block.norms
        error = dot_error if costs.products else product_error
        by_norm = abs(costs.factor) * error(costs.x.shape[1])
        swept.added = by_norm * ((rows * norms_x).sum() + (cols * norms_y).sum())
        swept.added_most = by_norm * (norms_x.max() + norms_y.max())
    return swept


class _Products:
    """Squared distances by inner products of centred points, or dot products of the points themselves."""

    def __init__(self, costs: Costs) -> None:
        middle = 0.0 if costs.products else costs.x.mean(0)
        self._x, y = costs.x - middle, costs.y - middle
        self._factor, self._y, self._squares = costs.factor, y.T, not costs.products
        self.norms = (self._x * self._x).sum(1), (y * y).sum(1)

    def __call__(self, first: int, last: int) -> Any:
        costs = self._x[first:last] @ self._y
        if not self._squares:
            costs *= self._factor
            return costs
        costs *= -2.0
        costs += self.norms[0][first:last, None]
        costs += self.norms[1][None, :]
        costs *= self._factor
        return costs


class _Differences:
    """Costs by direct differences, one coordinate at a time, or rows of a matrix."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs

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
        return costs.factor * (np.sqrt(total) if costs.root else total)
