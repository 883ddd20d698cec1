"""Lanes of the Triton backend, the table of their rows on the device, and sets of lanes that are launched together."""

# pyright: basic

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from drainsinkhorn.backends.emission import CHOICES, budget, least_damping
from drainsinkhorn.backends.support import restrict
from drainsinkhorn.backends.triton.kernels import columns as c
from drainsinkhorn.backends.triton.launching import Launch, upload
from drainsinkhorn.backends.triton.precision import Arithmetic
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.marginal import BALANCED
from drainsinkhorn.numerics.arrays import float_name, to_numpy
from drainsinkhorn.numerics.costs import with_matrix

FORMS = ("distances", "matrix")
"""Forms of costs for which there are kernels."""
LN2 = math.log(2)
HEAVIEST = 2.0**60
"""Largest mass of a side of a float32 lane: times the factors of potentials, weights do not overflow in sums."""


class Lane:
    """A problem in a pack.

    Attributes:
        instance: The problem.
        inner: The problem without points of zero weight, as it is on the device.
        support: Which points `inner` has; None if all have weight.
        unit: Potential of one bit in units of the cost.
        budget: By how much rounding to the caller's dtype may move potentials; negative if potentials are not rounded.
        own: The caller's dtype.
        dtype: Dtype in which potentials are emitted.
        least_weight: The smallest weight of both sides; 0 if masses are above HEAVIEST, so that float64 is used.
        arithmetic: How its legs are computed.
        depth: Cycles it has run.
        place: Its row of the lane table; negative before it has one.
        group: The lanes with which it was loaded.
        row: Its number among them.
        size: Its rows and columns.
        programs: Programs of a leg of rows, and of columns.
        is_soft: One of its marginals is soft.
        frozen: It never changes again.
        broken: Its state is not finite.
    """

    __slots__ = (
        "arithmetic", "broken", "budget", "depth", "dtype", "frozen", "group", "inner", "instance", "is_soft",
        "least_weight", "own", "place", "programs", "row", "size", "support", "unit",
    )  # fmt: skip

    def __init__(self, instance: Instance[Any], least_weights: dict[int, float]) -> None:
        self.instance = instance
        inner, self.support = (instance, None) if instance.positive else restrict(instance)
        has_form = inner.matrix is not None or inner.cost.kind.distances is not None
        self.inner = inner if has_form else with_matrix(inner, FORMS)
        self.unit = instance.eps * LN2
        self.own = float_name(instance.like)
        self.is_soft = instance.marginals is not BALANCED and not instance.marginals.are_hard
        self.budget = -1.0
        if self.own in CHOICES:
            self.budget = budget(instance.eps, instance.tol, least_damping(instance) if self.is_soft else 1.0)
        self.dtype = "float64"
        self.broken = self.frozen = False
        least, other = _least(self.inner.a, least_weights), _least(self.inner.b, least_weights)
        self.least_weight = min(least, other) if max(instance.masses) <= HEAVIEST else 0.0
        self.arithmetic = Arithmetic.FLOAT64
        self.depth = 0
        self.place = self.row = -1
        self.group: Any = None
        self.size = self.programs = (0, 0)

    @property
    def is_float64(self) -> bool:
        """True if its legs are computed in float64."""
        return self.arithmetic is Arithmetic.FLOAT64

    @property
    def is_precise(self) -> bool:
        """True if its legs are in float64 or from points in three parts, not those of `kernels.leg.leg`."""
        return self.is_float64 or self.arithmetic.has_triples

    @property
    def band(self) -> float:
        """Rounding bound of a residual that is measured in float64."""
        return self.group.band[self.row]

    @property
    def high_part_error(self) -> float:
        """Estimated error of residuals from float16 high parts alone; NaN if the lane never uses these alone."""
        return self.group.high_part_errors[self.row]

    @property
    def offsets(self) -> list[int]:
        """Offsets of its potentials of rows and columns."""
        return self.group.offsets[self.row]


def _least(weights: Any, known: dict[int, float]) -> float:
    """Return the least weight; `known` caches it by identity, since many problems of a pack share weights."""
    least = known.get(id(weights))
    if least is None:
        least = known[id(weights)] = float(to_numpy(weights).min())
    return least


class LaneSet:
    """Lanes for which kernels are launched together.

    Attributes:
        lanes: The lanes.
        rows: Their rows of the lane table, int64 on the device.
        launches: Prepared launches by key.
        any_soft: True if a lane has a soft marginal.
    """

    __slots__ = ("_largest", "any_soft", "lanes", "launches", "rows")

    def __init__(self, lanes: list[Lane], rows: Any) -> None:
        self.lanes, self.rows = lanes, rows
        self.any_soft = any(lane.is_soft for lane in lanes)
        self._largest: tuple[tuple[int, int], tuple[int, int]] | None = None
        self.launches: dict[Any, list[Launch]] = {}

    def __len__(self) -> int:
        return len(self.lanes)

    def largest(self, side: int) -> tuple[int, int]:
        """Return the largest number of points, and of programs of a leg, of a lane of the set."""
        if self._largest is None:
            sizes = {(lane.size, lane.programs) for lane in self.lanes} or {((0, 0), (0, 0))}
            rows, cols = ((max(size[s] for size, _ in sizes), max(count[s] for _, count in sizes)) for s in (0, 1))
            self._largest = rows, cols
        return self._largest[side]

    def grid(self, side: int, tile: int) -> tuple[int, int]:
        """Return programs of `tile` points for the largest lane, and lanes."""
        return -(-self.largest(side)[0] // tile), len(self.lanes)

    def prepared(self, key: Any, prepare: Callable[[], list[Launch]]) -> list[Launch]:
        """Return what `prepare` returns, called once for each key."""
        if key not in self.launches:
            self.launches[key] = prepare()
        return self.launches[key]


class LaneTable:
    """Rows of lanes on the device: offsets of their numbers (fields), their states, and their stops.

    Attributes:
        fields: (rows, FIELDS), int64.
        states: Two tensors (rows, NUMBERS), float64: `apply` reads one and writes the other.
        parity: Which of them is current.
        limits: Residuals at which lanes are held, (rows,), float64.
        halted: Flags by which a lane stops all lanes in lockstep: in this launch, and from the next one on.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        self.fields = torch.empty((0, c.FIELDS.value), dtype=torch.int64, device=device)
        self.states = [torch.empty((0, c.NUMBERS.value), dtype=torch.float64, device=device)] * 2
        self.parity = 0
        self.limits = torch.empty(0, dtype=torch.float64, device=device)
        self.halted = torch.zeros(2, dtype=torch.int32, device=device)
        self._stops = np.zeros(0)
        self._may_be_halted = False
        self._vacant: list[int] = []
        self._rows: dict[tuple[int, ...], Any] = {}

    @property
    def state(self) -> Any:
        """The current states."""
        return self.states[self.parity]

    @property
    def previous(self) -> Any:
        """The states that `apply` reads."""
        return self.states[1 - self.parity]

    def flip(self) -> None:
        """Exchange the current and the previous states."""
        self.parity = 1 - self.parity

    def select(self, lanes: Sequence[Lane]) -> LaneSet:
        """Return lanes with their rows."""
        places = tuple([lane.place for lane in lanes])
        if places not in self._rows:
            self._rows[places] = upload(places, torch.int64, self._device)
        return LaneSet(list(lanes), self._rows[places])

    def by_softness(self, lanes: LaneSet) -> list[LaneSet]:
        """Return the lanes with two hard marginals and the others; the set itself if one of them is empty."""
        parts = [[lane for lane in lanes.lanes if lane.is_soft is flag] for flag in (False, True)]
        return [self.select(part) for part in parts] if all(parts) else [lanes]

    def forget_rows(self) -> None:
        """Forget rows of sets that were selected; `select` uploads them again."""
        self._rows.clear()

    def add(self, lanes: list[Lane], fields: Any, numbers: Any) -> None:
        """Give new lanes rows, vacant ones first, and fill them."""
        fields, numbers = upload(fields, torch.int64, self._device), upload(numbers, torch.float64, self._device)
        rows, short = len(self.fields), len(lanes) - len(self._vacant)
        if rows == 0:
            # The first lanes of all: their rows are the table.
            self.fields, self.states = fields, [torch.empty_like(numbers), torch.empty_like(numbers)]
            self.states[self.parity] = numbers
            for place, lane in enumerate(lanes):
                lane.place = place
            return
        if short > 0:
            more = max(short, rows)
            self.fields, *self.states = (_extend(rows, more) for rows in (self.fields, *self.states))
            self._vacant += range(rows + more - 1, rows - 1, -1)
        for lane in lanes:
            lane.place = self._vacant.pop()
        rows = self.select(lanes).rows
        self.fields[rows], self.state[rows] = fields, numbers

    def remove(self, lanes: Sequence[Lane]) -> None:
        """Make the rows of lanes vacant; lanes without one are ignored."""
        self._vacant += [lane.place for lane in lanes if lane.place >= 0]

    def fit_limits(self) -> None:
        """Make limits as long as the table. A MemoryError leaves them unchanged."""
        if len(self.limits) != len(self.fields):
            limits = torch.zeros(len(self.fields), dtype=torch.float64, device=self._device)
            self._stops, self.limits = np.zeros(len(self.fields)), limits

    def set_stops(self, lanes: Sequence[Lane], stops: Sequence[float]) -> None:
        """Set the residuals at which lanes are held; nothing is uploaded if they are known."""
        changed = self._stops.copy()
        changed[[lane.place for lane in lanes]] = stops
        if not np.array_equal(changed, self._stops):
            self._stops = changed
            self.limits.copy_(torch.from_numpy(changed), non_blocking=True)

    def release(self, *, may_halt: bool = False) -> None:
        """Clear the flags by which a lane may have halted all lanes in the last call.

        Args:
            may_halt: Whether a lane may set them in the next call.
        """
        if self._may_be_halted:
            self.halted.zero_()
        self._may_be_halted = may_halt


def _extend(rows: Any, more: int) -> Any:
    """Return the same rows, followed by rows of zeros."""
    extended = rows.new_zeros((len(rows) + more, rows.shape[1]))
    extended[: len(rows)] = rows
    return extended
