"""A second opinion on converged results: some rows and columns, recomputed from the caller's own arrays.

For potentials (f, g) the marginal ratio of row i is

    rho_i = sum_j b_j exp((f_i + g_j - C_ij) / eps),        and the row residual is sum_i a_i |rho_i - 1|.

A sum over some rows cannot exceed the sum over all, so some rows whose sum exceeds tol, by more than float64 can be off
here, refute a claim of at most tol. Rows are drawn in proportion to their weights, so the mean of `|rho_i - 1|` over
them estimates the residual. Where the estimate is well above tol more rows are looked at, until they refute the claim,
the estimate falls, or all have been seen. Columns are treated alike.

Sums and costs are computed here alone, in float64 and by direct differences: on the host with NumPy or, for arrays on a
CUDA device, there with torch. With certificates (`backends.certificate`) a recheck shares how arrays are loaded and
directions are scaled.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.backends.certificate import device_loader, on_device, unit_vectors
from drainsinkhorn.core.events import Retired
from drainsinkhorn.model.errors import ContractError
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.model.status import Status
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.numerics.costs import SMALLEST, UNIT

Vector = NDArray[np.float64]

FIRST, SHARE = 0.01, 0.005
"""Parts of the work of a run that the recheck of its first result, and those of all later ones, may add to it."""
DEPTH = 30
"""Cycles of a typical problem, by which the work of a run is foreseen."""
ROWS, MORE = 8, 8
"""Rows, and columns, that are looked at first; and how many times as many if they make a claim suspicious."""
FEWEST, FIRST_ENTRIES = 2, 2**16
"""Fewer rows are looked at first where points are many or have many coordinates, down to FEWEST."""
SUSPICIOUS = 2.0
"""A claim is suspicious from this multiple of tol on. Few rows estimate a residual badly; more rows tell."""

OVERHEAD, ENTRY = {"host": 1e-4, "device": 5e-4}, {"host": 2e-9, "device": 1e-11}
"""Seconds that a recheck takes at least, and for each entry of a row: costs from d coordinates count as d + 8."""
PAIR = {"host": 3e-10, "device": 1e-12}
"""Seconds that a fast backend takes for one pair of points in one cycle."""
ON_DEVICE = ("triton", "keops", "ott")
"""Backends that may compute on a GPU, whose work is taken to be as quick as that whatever they really run on."""
CALLERS_OWN = 5e-3
"""Seconds that the library which evaluates a caller's own cost may take before it begins."""

SMALL_PAIRS, SMALL_WAIT = 2**14, 16
"""Of problems with fewer pairs of points only every so many-th is considered, on behalf of those before it."""

BLOCK = {"host": 2**18, "device": 2**26}
"""Coordinate differences that are held at once."""


class Finding(NamedTuple):
    """What was found on one side of a converged result.

    Attributes:
        side: "rows" or "columns".
        seen: How many of them were looked at.
        total: How many there are.
        least: What the residual of the side is at least: the sum over those seen, less its own rounding.
    """

    side: str
    seen: int
    total: int
    least: float


class Recheck:
    """Rechecks converged results of a run as they end.

    Args:
        mode: "sampled": the first, then as many as SHARE of the run's work allows, some rows and columns of each;
            "all": every one, all its rows and columns; "none": no result.
        margin: The part of tol at which lanes are released; claims are held to tol itself.
        backend: The name of the backend, of which errors speak.
        count: Problems of the run; None: unknown. Of runs so small that FIRST of their work pays for no recheck, some
            have their first result rechecked: which, its ticket and residual decide.
    """

    def __init__(self, mode: str, margin: float, backend: str, count: int | None) -> None:
        self._mode, self._margin, self._backend = mode, margin, backend
        self._count = math.inf if count is None else count
        self._is_first = True
        # Seconds that may be spent, cycles that are not credited yet, and results until one is considered again.
        self._credit, self._cycles, self._wait = 0.0, 0, 1

    def __call__(self, retired: Retired) -> None:
        """Recheck a result if it is its turn; raises ContractError if its claim does not hold."""
        self._cycles += retired.depth
        self._wait -= 1
        if self._wait > 0 or retired.status is not Status.CONVERGED or self._mode == "none":
            return
        if self._mode == "all":
            self._judge(retired, whole=True)
            return
        instance, price = retired.instance, price_of(retired.instance)
        if self._is_first:
            due = _fraction(retired) * price <= FIRST * self._count * self._seconds(instance, DEPTH)
        else:
            self._credit += SHARE * self._seconds(instance, self._cycles)
            due = self._credit >= price
            self._credit -= price * due
        self._is_first, self._cycles = False, 0
        # To consider a small result takes longer than a part of its share.
        self._wait = 1 if math.prod(_shape(instance)[:2]) >= SMALL_PAIRS else SMALL_WAIT
        if due:
            self._judge(retired, whole=False)

    def _seconds(self, instance: Instance[Any], depth: int) -> float:
        """Seconds that a fast backend needs for so many cycles of a problem."""
        rows, cols, _ = _shape(instance)
        return depth * rows * cols * PAIR["device" if self._backend in ON_DEVICE else _where(instance)]

    def _judge(self, retired: Retired, *, whole: bool) -> None:
        instance, potentials = retired.instance, retired.potentials
        assert potentials is not None, "a converged result has potentials"
        tol = instance.tol / self._margin
        finding = refute(instance, potentials, tol, ticket=retired.ticket, whole=whole)
        if finding is not None:
            seen = f"all {finding.total}" if finding.seen == finding.total else f"{finding.seen} of {finding.total}"
            raise ContractError(
                f"backend {self._backend!r}: problem {retired.ticket} was reported as CONVERGED with residual "
                f"{retired.residual.worst:.3g}, but recomputed from its own arrays in float64 the residual of {seen} "
                f"{finding.side} is {finding.least:.3g}, above tol = {tol:.3g}. The result is withheld; the backend or "
                'the machine is at fault. Solve again with another backend, for example backend="reference"'
            )


def _fraction(retired: Retired) -> float:
    """A number in [0, 1) that depends on the ticket and the residual alone; equal parts of all are equally likely."""
    return hash((retired.ticket, retired.residual.row, retired.residual.col)) % 2**32 / 2**32


def price_of(instance: Instance[Any]) -> float:
    """Seconds that it takes to look at the first rows and columns of a problem."""
    (rows, cols, dim), where = _shape(instance), _where(instance)
    own = not instance.is_dense and instance.cost.kind.distances is None
    seen = _first_count(rows, cols, dim)
    return OVERHEAD[where] + CALLERS_OWN * own + ENTRY[where] * seen * (rows + cols) * (dim + 8)


def refute(
    instance: Instance[Any], potentials: Potentials[Any], tol: float, *, ticket: int = 0, whole: bool = False
) -> Finding | None:
    """What refutes that both residuals of an admitted problem are at most tol with these potentials; None: nothing.

    Args:
        instance: The problem in normal form.
        potentials: As they were emitted.
        tol: What the residuals were said not to exceed.
        ticket: Decides which rows and columns are looked at.
        whole: Look at all of them.
    """
    rows, cols, dim = _shape(instance)
    count = max(rows, cols) if whole else _first_count(rows, cols, dim)
    # The same fraction for the same ticket; fractions of neighbouring tickets are far apart.
    offset = (ticket + 1) * 0.6180339887498949 % 1.0
    with np.errstate(all="ignore"):
        state = _State(instance, potentials)
        sides = [_Side(state, 0), _Side(state, 1)]
        while sides:
            draws = [side.draw(count, offset) for side in sides]
            ratios = state.to_host([side.ratios(places) for side, places in zip(sides, draws, strict=True)])
            suspicious = list[_Side]()
            for side, places, ratio in zip(sides, draws, ratios, strict=True):
                total, estimate = side.sums(places, ratio)
                # Written so that NaN, which only a potential that is not finite gives, asks for more.
                if not total <= tol:
                    least, seen = side.least(places, ratio)
                    if not least <= tol * (1 + 4 * UNIT):
                        return Finding(side.name, seen, side.total, least)
                if estimate > SUSPICIOUS * tol and len(places) < side.total:
                    suspicious.append(side)
            sides, count = suspicious, count * MORE
    return None


def _shape(instance: Instance[Any]) -> tuple[int, int, int]:
    """Rows, columns and coordinates of an admitted problem; 0 coordinates for a matrix."""
    return *instance.shape, instance.dim


def _first_count(rows: int, cols: int, dim: int) -> int:
    """Rows, and columns, to look at first."""
    return max(FEWEST, min(ROWS, FIRST_ENTRIES // ((rows + cols) * (dim + 8))))


def _where(instance: Instance[Any]) -> str:
    """Where to recompute: "device" if a problem's arrays lie on a CUDA device, unless the cost is the caller's own."""
    own = not instance.is_dense and instance.cost.kind.distances is None
    return "device" if not own and on_device(instance.like) else "host"


class _State:
    """A problem and its potentials in float64, where the problem's arrays lie.

    Attributes:
        instance: The problem in normal form.
        where: "host" or "device".
        library: NumPy or torch.
        points: x and y, directions for the cosine; None with a dense cost.
        potentials: f and g; -inf for points without weight, which send nothing.
        mass: a and b.
        weights: a and b on the host.
    """

    def __init__(self, instance: Instance[Any], potentials: Potentials[Any]) -> None:
        self.instance, self.where = instance, _where(instance)
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
        """Vectors as NumPy's, with one copy from a device for all of them."""
        if self.where == "host":
            return parts
        together = self.library.cat(parts).cpu().numpy()
        return np.split(together, np.cumsum([len(part) for part in parts])[:-1])


class _Side:
    """One side of a state.

    Args:
        state: The state.
        axis: 0: rows; 1: columns.

    Attributes:
        name: "rows" or "columns".
        total: Points of the side that have weight.
    """

    def __init__(self, state: _State, axis: int) -> None:
        self._state, self._axis = state, axis
        self.name = ("rows", "columns")[axis]
        self._weights = state.weights[axis]
        self.total = int(np.count_nonzero(self._weights))

    def draw(self, count: int, offset: float) -> NDArray[np.intp]:
        """Places of `count` points in proportion to their weights, ascending; heavy ones more than once."""
        if count >= self.total:
            return np.flatnonzero(self._weights)
        levels = self._weights.cumsum()
        return levels.searchsorted(levels[-1] / count * (np.arange(count) + offset), side="right")

    def ratios(self, places: NDArray[np.intp]) -> Any:
        """The marginal ratio of every place."""
        return self._over_blocks(places, lambda logs, _, mass: self._state.library.exp(logs) @ mass, operator.add)

    def sums(self, places: NDArray[np.intp], ratio: Vector) -> tuple[float, float]:
        """The sum of `w_i |rho_i - 1|` over distinct places, and an estimate of the sum over all."""
        errors = np.abs(ratio - 1)
        total = float((self._weights[places] * _first(places)) @ errors)
        return total, total if len(places) == self.total else float(errors.mean())

    def least(self, places: NDArray[np.intp], ratio: Vector) -> tuple[float, int]:
        """What the residual of the side is at least, whatever was rounded here, and how many points show it.

        A term `b_j exp(s_ij)` of a ratio is off by at most `(rounding of C + u |C|) / eps + 4 u |s|` times itself: sum,
        difference and quotient round once each, and `|f + g| <= |C| + eps |s|`. Where s < 0, `|s| exp(s) <= 1 / e`.
        """
        xp, eps = self._state.library, self._state.instance.eps
        top = self._over_blocks(places, lambda logs, *_: xp.amax(logs, 1), xp.maximum)
        far = self._over_blocks(places, lambda _, cost, *__: xp.amax(abs(cost), 1), xp.maximum)
        top, far = self._state.to_host([top, far])
        nats = (self._rounding(far) + UNIT * far) / eps
        size = sum(map(len, self._state.weights))
        # An error of x <= 1/4 in an exponent is one of at most 2 x in its exponential; an exponent of 800 overflows.
        relative = 2 * nats + 8 * UNIT * np.clip(top, 1, 800) + (size + 32) * UNIT
        above, below = ratio * (1 - relative) - 1, 1 - ratio * (1 + relative)
        # Where costs round by more, nothing can be said.
        errors = np.where(nats <= 0.25, np.maximum(np.maximum(above, below) - (size + 8) * UNIT, 0), 0.0)
        first = _first(places)
        return float((self._weights[places] * first) @ errors) * (1 - size * UNIT), int(first.sum())

    def _over_blocks(
        self, places: NDArray[np.intp], measure: Callable[[Any, Any, Any], Any], join: Callable[[Any, Any], Any]
    ) -> Any:
        """What a measure of `log (P_ij / (a_i b_j))`, C_ij and the weights b_j says of every place.

        Args:
            places: Points of this side.
            measure: From blocks (rows, columns), (rows, columns) and (columns,) to one number for each row.
            join: Joins measures of the same rows over different columns.
        """
        state, other = self._state, 1 - self._axis
        own, others, mass = state.potentials[self._axis], state.potentials[other], state.mass[other]
        points, size = state.points[self._axis], len(others)
        room = max(1, BLOCK[state.where] // (1 if points is None else max(1, points.shape[1])))
        wide = min(size, room)
        step, parts = max(1, room // wide), list[Any]()
        for first in range(0, len(places), step):
            rows, found = places[first : first + step], None
            mine = own[rows][:, None]
            for begin in range(0, size, wide):
                cols = slice(begin, begin + wide)
                cost = self._costs(rows, cols)
                some = measure((mine + others[cols] - cost) / state.instance.eps, cost, mass[cols])
                found = some if found is None else join(found, some)
            parts.append(found)
        return parts[0] if len(parts) == 1 else state.library.concatenate(parts)

    def _costs(self, rows: NDArray[np.intp], cols: slice) -> Any:
        """Costs from some points of this side to some of the other."""
        state, instance = self._state, self._state.instance
        if instance.is_dense:
            matrix: Any = instance.matrix if state.where == "device" else to_numpy(instance.matrix)
            return state.load(matrix[cols, rows].T if self._axis else matrix[rows, cols])
        own, other = state.points[self._axis][rows], state.points[1 - self._axis][cols]
        scale, form = instance.cost.scale, instance.cost.kind.distances
        if form is None:
            pair = (other, own) if self._axis else (own, other)
            costs = np.asarray(instance.cost.kind.pairwise(*pair), dtype=np.float64)
            return scale * (costs.T if self._axis else costs)
        apart = own[:, None] - other
        squares = state.library.einsum("ijk,ijk->ij", apart, apart)
        return scale * form.factor * (state.library.sqrt(squares) if form.root else squares)

    def _rounding(self, far: Vector) -> Vector:
        """A bound on the error of costs, given one on their size."""
        instance = self._state.instance
        if instance.is_dense:
            return np.zeros_like(far)
        dim, form = instance.dim, instance.cost.kind.distances
        unit = (dim + 8) * UNIT
        if form is None:
            # A caller's own is what its evaluation gives, which may round otherwise for other blocks.
            return 16 * unit * far
        factor = instance.cost.scale * form.factor
        if form.root:
            return unit * far + factor * (math.sqrt(dim * SMALLEST) + (2 * unit if form.directions else 0.0))
        if form.directions:
            # Directions are off by `unit` each, so a distance r = sqrt(C / c) by twice that, and c r^2 by this.
            return 4 * unit * np.sqrt(factor * far) + unit * far + 4 * factor * unit**2
        return unit * far + factor * dim * SMALLEST


def _first(places: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Of equal places in ascending order, True for the first."""
    first = np.ones(len(places), dtype=bool)
    first[1:] = places[1:] != places[:-1]
    return first


def _to_float64(value: Any) -> Any:
    return to_numpy(value).astype(np.float64, copy=False)
