"""Certificates of many lanes at once, with torch on the device where their arrays lie.

The formulas and the bound are those of `backends.certificate`. Lanes of one shape form batches: their arrays have a
leading lane axis, and both sides of a lane are padded to one width. Padding repeats a point that carries weight, with
weight 0. Its exponent is -inf, so that it adds exact zeros to every sum, and it changes neither the box around the
points nor any maximum. Points without weight are replaced by padding.

The numbers of a lane do not depend on the lanes beside it, to the bit (`backends.certificate.blocks`).
Nothing is read back before all batches are launched, then all numbers are read back together.
"""

# pyright: basic
# torch is loaded where a tensor is.

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from drainsinkhorn.backends.certificate.blocks import (
    BLOCK_PAIRS,
    ERRORS,
    LOGS,
    PRODUCT_DIM,
    WEIGHTS,
    block_costs,
    sums,
    sweep_plans,
    to_device,
)
from drainsinkhorn.model.cost import Distances
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.model.result import Residual
from drainsinkhorn.numerics.arrays import library, to_numpy
from drainsinkhorn.numerics.costs import SMALLEST, UNIT, DotProduct
from drainsinkhorn.numerics.rounding import CostBound, PlanSums, bound_costs, certified_residual, target_rounding

Lane = tuple[Instance[Any], Potentials[Any]]
"""A validated problem and its potentials over all points."""


class Shape(NamedTuple):
    """What lanes of a batch have in common.

    Attributes:
        device: Where the lanes' arrays lie.
        form: "matrix", "own" (a cost of the caller's own, evaluated on the host), a DotProduct, or the form of
            distances.
        rows: Number of source points, n.
        cols: Number of target points, m.
        dim: Coordinates of a point; 0 for a matrix.
        dtypes: Dtypes of points or costs, and of potentials.
        soft: Whether a marginal is soft.
    """

    device: Any
    form: str | Distances | DotProduct
    rows: int
    cols: int
    dim: int
    dtypes: tuple[Any, Any]
    soft: bool

    @property
    def by_products(self) -> bool:
        """Whether squared distances come from inner products."""
        return isinstance(self.form, Distances) and not self.form.root and self.dim >= PRODUCT_DIM["torch"]

    @property
    def lanes(self) -> int:
        """Most lanes of a batch: their plans, and their points, have at most BLOCK_PAIRS numbers; at least 1."""
        most = max(self.rows * self.cols, 2 * self.width * self.dim)
        return max(1, BLOCK_PAIRS["torch"] // most)

    @property
    def width(self) -> int:
        """Number of points to which both sides are padded: that of the larger side."""
        return max(self.rows, self.cols)


def certify_batches(lanes: Sequence[Lane]) -> list[Residual]:
    """Certify lanes whose arrays are tensors: both residuals of each, with a bound on their rounding error."""
    if not lanes:
        return []
    torch = sys.modules["torch"]
    groups: dict[Shape, list[int]] = {}
    for number, (instance, potentials) in enumerate(lanes):
        groups.setdefault(_shape(instance, potentials), []).append(number)
    batches = list[tuple[Shape, list[int], Any]]()
    readings: dict[Any, list[Any]] = {}
    with torch.no_grad():
        for shape, numbers in groups.items():
            for first in range(0, len(numbers), shape.lanes):
                members = numbers[first : first + shape.lanes]
                batch = _Batch(shape, [lanes[number] for number in members])
                readings.setdefault(shape.device, []).append(batch.sums())
                batches.append((shape, members, batch.counts))
        numbers_of = {device: iter(_read_back(torch, parts)) for device, parts in readings.items()}
    residuals: dict[int, Residual] = {}
    for shape, members, counts in batches:
        for number, count in zip(members, counts, strict=True):
            residuals[number] = _residual(shape, lanes[number][0], count, *next(numbers_of[shape.device]))
    return [residuals[number] for number in range(len(lanes))]


def _read_back(torch: Any, parts: list[Any]) -> list[list[float]]:
    """Read the sums of all batches of a device, which waits for it once; return those of every lane."""
    if len(parts) == 1:
        return parts[0].tolist()
    numbers = iter(torch.cat([part.flatten() for part in parts]).tolist())
    return [list(islice(numbers, part.shape[1])) for part in parts for _ in range(len(part))]


def _shape(instance: Instance[Any], potentials: Potentials[Any]) -> Shape:
    like = instance.like
    n, m = len(instance.a), len(instance.b)
    kind = instance.cost.kind
    own = kind if isinstance(kind, DotProduct) else "own"
    form = "matrix" if instance.is_dense else kind.distances or own
    return Shape(
        like.device, form, n, m, 0 if form == "matrix" else like.shape[1], (like.dtype, potentials.f.dtype),
        not instance.marginals.are_hard,
    )  # fmt: skip


def _residual(
    shape: Shape, instance: Instance[Any], points: tuple[int, int], mass: float, _: float, transport: float,
    mean_a: float, mean_b: float, row: float, col: float, most_a: float, most_b: float, extent: float, unit: float,
    *targets: float,
) -> Residual:  # fmt: skip
    """Return the residual of a lane from what `_Batch.sums` says of it."""
    dense, form = not isinstance(shape.form, Distances), shape.form
    if isinstance(form, Distances):
        bound = bound_costs(instance.cost, shape.dim, extent if form.root else extent * extent, unit)
    elif isinstance(form, DotProduct):
        bound = CostBound(1.0, 0.0, instance.cost.scale * shape.dim * SMALLEST, 0.0)
    else:
        relative = 0.0 if instance.is_dense else float(instance.cost.kind.rounding(shape.dim, 1.0))
        bound = CostBound(1.0, relative, 0.0, extent)
    kappas = (marginal.kappa for marginal in instance.marginals)
    return certified_residual(
        PlanSums(
            instance.eps,
            sum(points),
            row,
            col,
            mass,
            point_mean=mean_a + mean_b,
            point_most=most_a + most_b,
            transport=bound.factor * transport,
            costs=bound,
            dense=dense,
            targets=max(map(target_rounding, kappas, points, targets[:2], targets[2:])) if shape.soft else None,
        )
    )


class _Batch:
    """Lanes of one shape on their device.

    Attributes:
        lanes: Problems with their potentials.
        counts: Points with weight of each lane, (rows, columns).
        index: Lane, side and place of points after padding, which broadcast to (lanes, 2, width); None if all points
            of all lanes carry weight.
        vectors: (3, lanes, 2, width), see WEIGHTS, LOGS and ERRORS.
        eps: (lanes, 1, 1).
        kappas: (lanes, 2, 1), of the marginals.
        factor: (lanes, 1, 1), what entries of a block of costs are multiplied with in an exponent.
        unit: (lanes, 1, 1), what coordinates are divided by.
        rows: (lanes, 1, 1), rows with weight.
        origin: Zeros, at least as many as a sum has terms; see `norms`.
    """

    def __init__(self, shape: Shape, lanes: Sequence[Lane]) -> None:
        self.shape, self.lanes = shape, lanes
        weights = [np.stack([to_numpy(getattr(instance, side)) for instance, _ in lanes]) for side in "ab"]
        places = list[Any]()
        if not all(side.all() for side in weights):
            weights, places = map(list, zip(*map(_support, weights), strict=True))
        rows, cols = (np.count_nonzero(side, axis=1) for side in weights)
        self.counts: list[tuple[int, int]] = list(zip(rows.tolist(), cols.tolist(), strict=True))
        self._upload(weights, rows)
        self.index = self._upload_places(places) if places else None

    def _upload(self, weights: list[Any], rows: Any) -> None:
        """Copy weights, what follows from them, and numbers of lanes to the device, all at once."""
        count, width = len(self.lanes), self.shape.width
        length = 6 * count * width
        end = length + 6 * count
        packed = np.zeros(end + max(width, self.shape.dim))
        vectors, numbers = packed[:length].reshape(3, count, 2, width), packed[length:end].reshape(6, count)
        for side, values in enumerate(weights):
            vectors[WEIGHTS, :, side, : values.shape[1]] = values
        with np.errstate(divide="ignore", over="ignore", under="ignore"):
            np.log(vectors[WEIGHTS], out=vectors[LOGS])
            # Padding has no error of its own.
            np.multiply(abs(vectors[LOGS]), 4 * UNIT, out=vectors[ERRORS], where=vectors[WEIGHTS] > 0)
            numbers[0] = [instance.eps for instance, _ in self.lanes]
            numbers[1] = [_factor(instance) for instance, _ in self.lanes] / numbers[0]
        numbers[2], numbers[3] = 1.0, rows
        numbers[4:] = np.transpose([[side.kappa for side in instance.marginals] for instance, _ in self.lanes])
        there = to_device(packed, self.shape.device)
        self.vectors = there[:length].view(3, count, 2, width)
        self.eps, self.factor, self.unit, self.rows = there[length : length + 4 * count].view(4, count, 1, 1).unbind()
        self.kappas = there[length + 4 * count : end].view(2, count, 1).transpose(0, 1)
        self.origin = there[end:]

    def _upload_places(self, places: list[Any]) -> Any:
        torch, device = sys.modules["torch"], self.shape.device
        padded = np.empty((len(self.lanes), 2, self.shape.width), dtype=np.int64)
        for side, chosen in enumerate(places):
            padded[:, side] = chosen[:, :1]
            padded[:, side, : chosen.shape[1]] = chosen
        lane, side = torch.arange(len(self.lanes), device=device), torch.arange(2, device=device)
        return lane[:, None, None], side[None, :, None], to_device(padded, device)

    def sums(self) -> Any:
        """Return (lanes, 11) numbers on the device, 15 of soft lanes, in the order of the arguments of `_residual`."""
        torch, count = sys.modules["torch"], len(self.lanes)
        potentials = self.join_sides([p.f for _, p in self.lanes], [p.g for _, p in self.lanes])
        weights, logs, errors = self.vectors
        wanted = self._targets(potentials) if self.shape.soft else weights
        errors.addcdiv_(potentials.abs(), self.eps, value=4 * UNIT)
        exponents = torch.addcdiv(logs, potentials, self.eps)
        costs = block_costs(self)
        # Marginals and, by rows, the transport cost; then errors times marginals, and errors of marginals.
        plan = sweep_plans(self, costs, exponents)
        values = torch.cat([plan, plan[:, :2] * errors, plan[:, :2] - wanted], 1)
        parts = [sums(values, self.origin), errors.amax(2), costs.extent, self.unit]
        if self.shape.soft:
            parts.append(sums(torch.cat([wanted * (self.kappas * potentials), wanted], 1), self.origin))
        return torch.cat([part.reshape(count, -1) for part in parts], 1)

    def _targets(self, potentials: Any) -> Any:
        """Return `a_i exp(-kappa f_i)`, the masses that potentials ask for, zero for padding."""
        weights = self.vectors[WEIGHTS]
        masses = weights * (self.kappas * potentials).neg_().exp_()
        return sys.modules["torch"].where(weights > 0, masses, 0.0)

    def join_sides(self, rows: Sequence[Any], cols: Sequence[Any]) -> Any:
        """Return arrays of both sides as one of shape (lanes, 2, width, ...) in float64, padded."""
        torch, wide = sys.modules["torch"], self.shape.width
        sides = [[_tensor(values, self.shape.device) for values in side] for side in (rows, cols)]
        if len({values.dtype for side in sides for values in side}) > 1:
            # Not every common dtype holds the numbers of both.
            sides = [[values.double() for values in side] for side in sides]
        parts = list[Any]()
        for values in (values for pair in zip(*sides, strict=True) for values in pair):
            parts.append(values)
            if len(values) < wide:
                parts.append(values[:1].expand(wide - len(values), *values.shape[1:]))
        both = torch.cat(parts).double()
        both = both.view(len(rows), 2, wide, *both.shape[1:])
        return both if self.index is None else both[self.index]


def _factor(instance: Instance[Any]) -> float:
    """Return the factor that turns squared distances, distances, dot products or entries of a matrix into costs."""
    kind, scale = instance.cost.kind, instance.cost.scale
    if instance.is_dense or (kind.distances is None and not isinstance(kind, DotProduct)):
        return 1.0
    return scale * (kind.distances.factor if kind.distances is not None else kind.sign)


def _support(weights: Any) -> tuple[Any, Any]:
    """Return weights and places of points, both (lanes, n), positive weights first; then padding."""
    places = np.argsort(weights == 0, axis=1, kind="stable")
    padding = np.arange(weights.shape[1]) >= np.count_nonzero(weights, axis=1)[:, None]
    places = np.where(padding, places[:, :1], places)
    return np.where(padding, 0.0, np.take_along_axis(weights, places, 1)), places


def _tensor(values: Any, device: Any) -> Any:
    if library(values) != "torch":
        return to_device(np.array(to_numpy(values)), device)
    return values if values.device == device else values.to(device)
