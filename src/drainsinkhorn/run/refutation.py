"""Refutation of a converged result: some rows and columns are recomputed from the caller's own arrays.

For potentials (f, g) the marginal ratio of row i is

    rho_i = sum_j b_j exp((f_i + g_j - C_ij) / eps),        and the row residual is sum_i a_i |rho_i - 1|

(where a marginal is soft, the target exp(-kappa f_i) takes the place of 1, see `run.claims`).

A sum over some rows cannot exceed the sum over all. So if the sum over some rows exceeds tol by more than its rounding
error in float64, the claim that the residual is at most tol is refuted. Rows are sampled in proportion to their
weights, so the mean of `|rho_i - 1|` over them estimates the residual. If the estimate is well above tol, more rows are
sampled, until they refute the claim, the estimate falls, or all rows were checked. Columns are treated alike.

Sums and costs are computed here alone, in float64 and by direct differences: on the host with NumPy or, for arrays on a
CUDA device, there with torch. Certificates (`backends.certificate`) and rechecks share only the code that loads arrays
and normalises directions.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.backends.certificate import device_loader, unit_vectors
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.numerics.arrays import on_cuda, to_numpy
from drainsinkhorn.numerics.costs import SMALLEST, UNIT, DotProduct, evaluate
from drainsinkhorn.run.claims import Claim, make_claim

Vector = NDArray[np.float64]

ROWS, MORE = 8, 8
"""Number of rows, and of columns, sampled first; factor by which it grows while the claim is suspicious."""

FEWEST, FIRST_ENTRIES = 2, 2**16
"""For many points or coordinates fewer rows are sampled first: FIRST_ENTRIES entries, but at least FEWEST rows."""

SUSPICIOUS = 2.0
"""A claim is suspicious if the estimate exceeds this multiple of tol: few rows estimate a residual poorly."""

OVERHEAD, ENTRY = {"host": 1e-4, "device": 5e-4}, {"host": 2e-9, "device": 1e-11}
"""Seconds of a recheck: a constant, and per entry of a row; an entry counts d + 8 times for d coordinates."""

CALLERS_OWN = 5e-3
"""Seconds that the library which evaluates a caller's own cost may take to start."""

BLOCK = {"host": 2**18, "device": 2**26}
"""Coordinate differences that are held at once."""


class Refutation(NamedTuple):
    """Evidence that refutes a converged result on one side.

    Attributes:
        side: "rows" or "columns".
        checked: Number of rows or columns that were checked.
        total: Number of rows or columns that have weight.
        least: Lower bound on the residual of the side: the sum over those checked, less its rounding error.
    """

    side: str
    checked: int
    total: int
    least: float


def price_of(instance: Instance[Any]) -> float:
    """Predict the seconds that a recheck of the rows and columns sampled first takes."""
    (rows, cols, dim), where = _shape(instance), device_or_host(instance)
    has_own_cost = _has_own_cost(instance)
    sampled = _first_count(rows, cols, dim)
    return OVERHEAD[where] + CALLERS_OWN * has_own_cost + ENTRY[where] * sampled * (rows + cols) * (dim + 8)


def refute(
    instance: Instance[Any], potentials: Potentials[Any], tol: float, *, ticket: int = 0, check_all: bool = False
) -> Refutation | None:
    """Return evidence that a residual of these potentials exceeds tol; None if there is none.

    Args:
        instance: The problem in normal form.
        potentials: As they were emitted.
        tol: Claimed bound on both residuals.
        ticket: Seed of the sample of rows and columns.
        check_all: Check all rows and columns.
    """
    rows, cols, dim = _shape(instance)
    count = max(rows, cols) if check_all else _first_count(rows, cols, dim)
    # The same fraction for the same ticket; fractions of neighbouring tickets are far apart.
    offset = (ticket + 1) * 0.6180339887498949 % 1.0
    with np.errstate(all="ignore"):
        state, claim = _State(instance, potentials), make_claim(instance, potentials, tol)
        sides, tol = [_Side(state, axis, claim) for axis in (0, 1)], claim.limit
        while sides:
            draws = [side.draw(count, offset) for side in sides]
            ratios = state.to_host([side.ratios(places) for side, places in zip(sides, draws, strict=True)])
            suspicious = list[_Side]()
            for side, places, ratio in zip(sides, draws, ratios, strict=True):
                total, estimate = side.sums(places, ratio)
                # Written so that NaN, which only non-finite potentials give, leads to the bound below.
                if not total <= tol:
                    least, checked = side.least(places, ratio)
                    if not least <= tol * (1 + 4 * UNIT):
                        return Refutation(side.name, checked, side.total, least)
                if estimate > SUSPICIOUS * tol and len(places) < side.total:
                    suspicious.append(side)
            sides, count = suspicious, count * MORE
    return None


def _shape(instance: Instance[Any]) -> tuple[int, int, int]:
    """Numbers of rows, columns and coordinates of a problem; 0 coordinates for a matrix."""
    return *instance.shape, instance.dim


def _first_count(rows: int, cols: int, dim: int) -> int:
    """Return the number of rows, and of columns, to sample first."""
    return max(FEWEST, min(ROWS, FIRST_ENTRIES // ((rows + cols) * (dim + 8))))


def device_or_host(instance: Instance[Any]) -> str:
    """Return "device" if a problem is recomputed on its CUDA device, else "host" (as with a caller's own cost)."""
    return "device" if not _has_own_cost(instance) and on_cuda(instance.like) else "host"


def _has_own_cost(instance: Instance[Any]) -> bool:
    """Whether costs are computed by code of the caller."""
    kind = instance.cost.kind
    return not instance.is_dense and kind.distances is None and not isinstance(kind, DotProduct)


class _State:
    """A problem and its potentials in float64, on the host or the device of the problem's arrays.

    Attributes:
        instance: The problem in normal form.
        where: "host" or "device".
        library: NumPy or torch.
        points: x and y, scaled to length one for the cosine; None with a dense cost.
        potentials: f and g; -inf for points without weight, so that they have no mass.
        mass: a and b.
        weights: a and b on the host.
    """

    def __init__(self, instance: Instance[Any], potentials: Potentials[Any]) -> None:
        self.instance, self.where = instance, device_or_host(instance)
        self.library: Any = sys.modules["torch"] if self.where == "device" else np
        self.load = device_loader(instance.like) if self.where == "device" else _to_float64
        self.weights: list[Any] = [_to_float64(instance.a), _to_float64(instance.b)]
        self.mass = [self.load(weights) for weights in self.weights]
        pairs = zip(self.mass, potentials, strict=True)
        self.potentials = [self.library.where(mass > 0, self.load(side), -math.inf) for mass, side in pairs]
        self.points: list[Any] = list(instance.points)
        form = None if instance.is_dense else instance.cost.kind.distances
        if not instance.is_dense:
            self.points = [self.load(points) for points in self.points]
        if form is not None and form.directions:
            self.points = [unit_vectors(self.library, points) for points in self.points]

    def to_host(self, parts: list[Any]) -> list[Vector]:
        """Return vectors as NumPy arrays, copied from a device in one transfer."""
        if self.where == "host":
            return parts
        together = self.library.cat(parts).cpu().numpy()
        return np.split(together, np.cumsum([len(part) for part in parts])[:-1])


class _Side:
    """One side of a state.

    Args:
        state: The state.
        axis: 0: rows; 1: columns.
        claim: What the potentials claim.

    Attributes:
        name: "rows" or "columns".
        total: Points of the side that have weight.
    """

    def __init__(self, state: _State, axis: int, claim: Claim) -> None:
        self._state, self._axis = state, axis
        self._targets, self._error = claim.targets[axis], claim.errors[axis]
        self._mass = 1.0 if state.instance.marginals.are_hard else state.instance.masses[axis]
        self.name = ("rows", "columns")[axis]
        self._weights = state.weights[axis]
        self.total = int(np.count_nonzero(self._weights))

    def draw(self, count: int, offset: float) -> NDArray[np.intp]:
        """Sample `count` indices in proportion to the weights, ascending; heavy points may occur more than once."""
        if count >= self.total:
            return np.flatnonzero(self._weights)
        cumulative = self._weights.cumsum()
        return cumulative.searchsorted(cumulative[-1] / count * (np.arange(count) + offset), side="right")

    def ratios(self, places: NDArray[np.intp]) -> Any:
        """Return the marginal ratio rho_i at each index."""
        return self._over_blocks(places, lambda logs, _, mass: self._state.library.exp(logs) @ mass, operator.add)

    def sums(self, places: NDArray[np.intp], ratio: Vector) -> tuple[float, float]:
        """Return the sum of `w_i |rho_i - target|` over distinct indices, and an estimate of that over all points."""
        errors = np.abs(ratio - self._target(places))
        total = float((self._weights[places] * _first(places)) @ errors)
        return total, total if len(places) == self.total else float(errors.mean()) * self._mass

    def _target(self, places: NDArray[np.intp]) -> Any:
        return self._targets if isinstance(self._targets, float) else self._targets[places]

    def least(self, places: NDArray[np.intp], ratio: Vector) -> tuple[float, int]:
        """Return a lower bound on the residual of the side, less all rounding here, and the number of points used.

        The relative error of a term `b_j exp(s_ij)` of a ratio is at most `(rounding of C + u |C|) / eps + 4 u |s|`:
        sum, difference and quotient round once each, and `|f + g| <= |C| + eps |s|`. For s < 0, `|s| exp(s) <= 1 / e`.
        """
        xp, eps = self._state.library, self._state.instance.eps
        logs = self._over_blocks(places, lambda logs, *_: xp.amax(logs, 1), xp.maximum)
        costs = self._over_blocks(places, lambda _, cost, *__: xp.amax(abs(cost), 1), xp.maximum)
        largest_log, largest_cost = self._state.to_host([logs, costs])
        nats = (self._rounding(places, largest_cost) + UNIT * largest_cost) / eps
        size = sum(map(len, self._state.weights))
        # An error of x <= 1/4 in an exponent gives a relative error of at most 2 x; exponents of 800 overflow.
        relative = 2 * nats + 8 * UNIT * np.clip(largest_log, 1, 800) + (size + 32) * UNIT
        low, high = (self._target(places) * (1 + sign * self._error) for sign in (-1, 1))
        above, below = ratio * (1 - relative) - high, low - ratio * (1 + relative)
        # Rows whose costs have larger rounding errors have no bound, and count as zero.
        errors = np.where(nats <= 0.25, np.maximum(np.maximum(above, below) - (size + 8) * UNIT * high, 0), 0.0)
        first = _first(places)
        return float((self._weights[places] * first) @ errors) * (1 - size * UNIT), int(first.sum())

    def _over_blocks(
        self, places: NDArray[np.intp], measure: Callable[[Any, Any, Any], Any], join: Callable[[Any, Any], Any]
    ) -> Any:
        """Apply a row-wise measure of `log(P_ij / (a_i b_j))`, C_ij and b_j to rows, block by block.

        Args:
            places: Indices of points of this side.
            measure: From blocks (rows, columns), (rows, columns) and (columns,) to one number for each row.
            join: Joins measures of the same rows over different columns.
        """
        state, other = self._state, 1 - self._axis
        own, others, mass = state.potentials[self._axis], state.potentials[other], state.mass[other]
        points, size = state.points[self._axis], len(others)
        room = max(1, BLOCK[state.where] // (1 if points is None else max(1, points.shape[1])))
        block_cols = min(size, room)
        block_rows, blocks = max(1, room // block_cols), list[Any]()
        for first in range(0, len(places), block_rows):
            rows, measured = places[first : first + block_rows], None
            row_potentials = own[rows][:, None]
            for begin in range(0, size, block_cols):
                cols = slice(begin, begin + block_cols)
                cost = self._costs(rows, cols)
                values = measure((row_potentials + others[cols] - cost) / state.instance.eps, cost, mass[cols])
                measured = values if measured is None else join(measured, values)
            blocks.append(measured)
        return blocks[0] if len(blocks) == 1 else state.library.concatenate(blocks)

    def _costs(self, rows: NDArray[np.intp], cols: slice) -> Any:
        """Return costs from some points of this side to some of the other."""
        state, instance = self._state, self._state.instance
        if instance.is_dense:
            matrix: Any = instance.matrix if state.where == "device" else to_numpy(instance.matrix)
            return state.load(matrix[cols, rows].T if self._axis else matrix[rows, cols])
        own, other = state.points[self._axis][rows], state.points[1 - self._axis][cols]
        scale, form = instance.cost.scale, instance.cost.kind.distances
        if isinstance(instance.cost.kind, DotProduct):
            return scale * instance.cost.kind.sign * (own @ other.T)
        if form is None:
            pair = (other, own) if self._axis else (own, other)
            costs = evaluate(instance.cost.kind, *pair)
            return scale * (costs.T if self._axis else costs)
        differences = own[:, None] - other
        squares = state.library.einsum("ijk,ijk->ij", differences, differences)
        return scale * form.factor * (state.library.sqrt(squares) if form.root else squares)

    def _rounding(self, places: NDArray[np.intp], largest_cost: Vector) -> Vector:
        """Return a bound on the rounding error of the costs of each row, from the largest absolute cost of the row."""
        state, instance = self._state, self._state.instance
        if instance.is_dense:
            return np.zeros_like(largest_cost)
        dim, form = instance.dim, instance.cost.kind.distances
        unit = (dim + 8) * UNIT
        if isinstance(instance.cost.kind, DotProduct):
            # A product may be small although its terms are large, so the bound has the lengths of both points.
            largest = [state.library.amax(abs(points), 1) for points in state.points]
            own, other = state.to_host([largest[self._axis][places], largest[1 - self._axis]])
            return unit * instance.cost.scale * (dim * own * float(other.max()) + dim * SMALLEST)
        if form is None:
            # The evaluated value counts as exact, but an evaluation in other blocks may round differently.
            return 16 * unit * largest_cost
        factor = instance.cost.scale * form.factor
        if form.root:
            return unit * largest_cost + factor * (math.sqrt(dim * SMALLEST) + (2 * unit if form.directions else 0.0))
        if form.directions:
            # Each direction has an error of `unit`, so a distance r = sqrt(C / c) has twice that, and c r^2 this one.
            return 4 * unit * np.sqrt(factor * largest_cost) + unit * largest_cost + 4 * factor * unit**2
        return unit * largest_cost + factor * dim * SMALLEST


def _first(places: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Mark the first of each run of equal indices in ascending order."""
    first = np.ones(len(places), dtype=bool)
    first[1:] = places[1:] != places[:-1]
    return first


def _to_float64(value: Any) -> Any:
    return to_numpy(value).astype(np.float64, copy=False)
