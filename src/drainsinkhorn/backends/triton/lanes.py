"""The lane table of the Triton backend, a row for each lane, on the device and on the host; and sets of its rows.

What the host knows of a lane is a record (`LANE`), so that a step of a pack is a few operations on columns, however
many lanes there are.
"""

# pyright: basic

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from drainsinkhorn.backends.triton.kernels import columns as c
from drainsinkhorn.backends.triton.launching import Launch, upload

Places = NDArray[np.int64]
Flags = NDArray[np.bool_]

LANE = np.dtype(
    [
        ("size", np.int64, 2),
        ("programs", np.int64, 2),
        ("offsets", np.int64, 2),
        ("dim", np.int64),
        ("arithmetic", np.int8),
        ("own", np.int8),
        ("dtype", np.int8),
        ("is_soft", np.bool_),
        ("in_blocks", np.bool_),
        ("frozen", np.bool_),
        ("broken", np.bool_),
        ("rounded", np.bool_),
        ("depth", np.int64),
        ("tol", np.float64),
        ("unit", np.float64),
        ("budget", np.float64),
        ("kappa", np.float64),
        ("least_weight", np.float64),
        ("band", np.float64),
        ("high_part_error", np.float64),
        ("group", np.int64),
        ("number", np.int64),
        ("serial", np.int64),
    ]
)
"""What the host knows of a lane.

size: Its rows and columns.
programs: Programs of a leg of rows, and of columns.
offsets: Offsets of its potentials of rows and columns.
dim: Number of coordinates; 0 with a matrix.
arithmetic: How its legs are computed: the value of an `Arithmetic`.
own: The caller's dtype, a place in DTYPES; -1 for other dtypes.
dtype: Dtype in which its potentials are emitted, likewise.
is_soft: One of its marginals is soft.
in_blocks: Its float64 legs compute products in blocks of rows.
frozen: It never changes again.
broken: Its state is not finite.
rounded: Its state has not changed since it was rounded for `emit`.
depth: Cycles it has run.
tol: Residual at which it may leave.
unit: Potential of one bit in units of the cost.
budget: By how much rounding to the caller's dtype may move potentials; negative if potentials are not rounded.
kappa: The larger kappa of both marginals; 0 if both are hard.
least_weight: The smallest weight of both sides; 0 if masses are so large that float64 is used.
band: Rounding bound of a residual that is measured in float64; NaN until `LaneTable.bands` has read it.
high_part_error: Estimated error of residuals from float16 high parts alone; NaN if the lane never uses these alone.
group: The lanes with which it was loaded, as a number.
number: Its own number among these.
serial: A number that no other lane of the pack has ever had.
"""
DTYPES = ("float64", "float32", "float16", "bfloat16")
"""Dtypes of potentials by their places in records."""


class LaneSet:
    """Lanes for which kernels are launched together.

    Attributes:
        places: Their rows of the lane table.
        rows: The same on the device, int64.
        launches: Prepared launches by key.
        any_soft: True if a lane has a soft marginal.
    """

    __slots__ = ("_largest", "_table", "any_soft", "launches", "places", "rows")

    def __init__(self, table: LaneTable, places: Places, rows: Any) -> None:
        self._table, self.places, self.rows = table, places, rows
        self.any_soft = bool(self.column("is_soft").any())
        self._largest: tuple[list[int], list[int]] | None = None
        self.launches: dict[Any, list[Launch]] = {}

    def __len__(self) -> int:
        return len(self.places)

    def column(self, name: str) -> Any:
        """Return what the host knows of each lane: one field of LANE."""
        return self._table.host[name][self.places]

    def bands(self) -> Any:
        """Return the rounding bounds of residuals that are measured in float64."""
        return self._table.bands(self.places)

    def part(self, chosen: Flags) -> LaneSet:
        """Return the lanes with a flag; the set itself if these are all."""
        return self if chosen.all() else self._table.select(self.places[chosen])

    def split(self, flags: Flags) -> list[LaneSet]:
        """Return the lanes without a flag and those with one; the set itself if one of them is empty."""
        return [self.part(~flags), self.part(flags)] if flags.any() and not flags.all() else [self]

    def by_softness(self) -> list[LaneSet]:
        """Return the lanes with two hard marginals and the others; the set itself if one of them is empty."""
        return self.split(self.column("is_soft")) if self.any_soft else [self]

    def largest(self, side: int) -> tuple[int, int]:
        """Return the largest number of points, and of programs of a leg, of a lane of the set."""
        if self._largest is None:
            sizes, programs = (self.column(name).max(0, initial=0).tolist() for name in ("size", "programs"))
            self._largest = sizes, programs
        sizes, programs = self._largest
        return sizes[side], programs[side]

    def grid(self, side: int, tile: int) -> tuple[int, int]:
        """Return programs of `tile` points for the largest lane, and lanes."""
        return -(-self.largest(side)[0] // tile), len(self)

    def prepared(self, key: Any, prepare: Callable[[], list[Launch]]) -> list[Launch]:
        """Return what `prepare` returns, called once for each key."""
        if key not in self.launches:
            self.launches[key] = prepare()
        return self.launches[key]


class LaneTable:
    """Rows of lanes: offsets of their numbers (fields), their states, and their stops; and records on the host.

    Attributes:
        fields: (rows, FIELDS), int64.
        states: Two tensors (rows, NUMBERS), float64: `apply` reads one and writes the other.
        parity: Which of them is current.
        limits: Residuals at which lanes are held, (rows,), float64.
        halted: Flags by which a lane stops all lanes in lockstep: in this launch, and from the next one on.
        host: Records (rows,) of LANE.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        self.fields = torch.empty((0, c.FIELDS.value), dtype=torch.int64, device=device)
        self.states = [torch.empty((0, c.NUMBERS.value), dtype=torch.float64, device=device)] * 2
        self.parity = 0
        self.limits = torch.empty(0, dtype=torch.float64, device=device)
        self.halted = torch.zeros(2, dtype=torch.int32, device=device)
        self.host = np.zeros(0, dtype=LANE)
        self._stops = np.zeros(0)
        self._may_be_halted = False
        self._vacant: list[int] = []
        self._rows: dict[bytes, Any] = {}
        self._groups: dict[int, Any] = {}
        self._next_group = self._next_serial = 0

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

    def select(self, places: Any) -> LaneSet:
        """Return the lanes of some rows."""
        places = np.asarray(places, dtype=np.int64)
        key = places.tobytes()
        if key not in self._rows:
            self._rows[key] = upload(places, torch.int64, self._device)
        return LaneSet(self, places, self._rows[key])

    def forget_rows(self) -> None:
        """Forget rows of sets that were selected; `select` uploads them again."""
        self._rows.clear()

    def add(self, records: Any, fields: Any, numbers: Any) -> Places:
        """Give new lanes rows, vacant ones first, fill these, and return them."""
        count = len(records)
        records["serial"] = np.arange(self._next_serial, self._next_serial + count)
        self._next_serial += count
        fields, numbers = upload(fields, torch.int64, self._device), upload(numbers, torch.float64, self._device)
        rows, short = len(self.fields), count - len(self._vacant)
        if rows == 0:
            # The first lanes of all: their rows are the table.
            self.fields, self.states = fields, [torch.empty_like(numbers), torch.empty_like(numbers)]
            self.states[self.parity], self.host = numbers, records
            return np.arange(count)
        if short > 0:
            extra_rows = max(short, rows)
            self.fields, *self.states = (_extend(rows, extra_rows) for rows in (self.fields, *self.states))
            self.host = np.concatenate([self.host, np.zeros(extra_rows, dtype=LANE)])
            self._vacant += range(rows + extra_rows - 1, rows - 1, -1)
        places = np.array([self._vacant.pop() for _ in range(count)], dtype=np.int64)
        chosen = self.select(places).rows
        self.fields[chosen], self.state[chosen], self.host[places] = fields, numbers, records
        return places

    def remove(self, places: Sequence[int] | Places) -> None:
        """Make rows vacant."""
        self._vacant += [int(place) for place in places]

    def mark(self) -> tuple[list[int], int, int]:
        """Return which rows and groups there are, for `restore`."""
        return list(self._vacant), len(self.fields), self._next_group

    def restore(self, mark: tuple[list[int], int, int]) -> None:
        """Make rows vacant that were added since the mark, and forget their groups."""
        vacant, rows, first_group = mark
        self._vacant = [*range(len(self.fields) - 1, rows - 1, -1), *vacant]
        for number in range(first_group, self._next_group):
            self._groups.pop(number, None)

    def add_group(self, group: Any) -> int:
        """Keep what lanes that were loaded together share, and return its number."""
        number, self._next_group = self._next_group, self._next_group + 1
        self._groups[number] = group
        return number

    def offset(self, place: int, column: int) -> int:
        """Return a number of the fields of a lane, from the host."""
        record = self.host[place]
        return int(self._groups[int(record["group"])].fields[record["number"], column])

    def leave(self, places: Places) -> list[Any]:
        """Count lanes out of their groups; return the groups that no lane is left in, which are forgotten."""
        empty = list[Any]()
        for number, count in zip(*np.unique(self.host["group"][places], return_counts=True), strict=True):
            group = self._groups[int(number)]
            group.lanes -= int(count)
            if group.lanes == 0:
                empty.append(self._groups.pop(int(number)))
        return empty

    def groups(self, places: Places) -> Iterator[tuple[Any, Places]]:
        """Return the groups of lanes, each with the rows of its lanes among these."""
        numbers = self.host["group"][places]
        for number in np.unique(numbers):
            yield self._groups[int(number)], places[numbers == number]

    def bands(self, places: Places) -> Any:
        """Return the rounding bounds of residuals that are measured in float64; the first call waits for the device."""
        unknown = places[np.isnan(self.host["band"][places])]
        for group, rows in self.groups(unknown):
            self.host["band"][rows] = group.bands[self.host["number"][rows]]
        return self.host["band"][places]

    def fit_limits(self) -> None:
        """Make limits as long as the table. A MemoryError leaves them unchanged."""
        if len(self.limits) != len(self.fields):
            limits = torch.zeros(len(self.fields), dtype=torch.float64, device=self._device)
            self._stops, self.limits = np.zeros(len(self.fields)), limits

    def set_stops(self, places: Places, stops: Sequence[float]) -> None:
        """Set the residuals at which lanes are held; nothing is uploaded if they are known."""
        changed = self._stops.copy()
        changed[places] = stops
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


def distinct(rows: Any) -> tuple[list[tuple[int, ...]], Any]:
    """Return the distinct rows of an array of integers, and the place of each row's among them."""
    if not len(rows) or (rows == rows[0]).all():
        return [tuple(row) for row in rows[:1].tolist()], np.zeros(len(rows), dtype=np.int64)
    unique_rows, which = np.unique(rows, axis=0, return_inverse=True)
    return [tuple(row) for row in unique_rows.tolist()], which.reshape(-1)


def _extend(rows: Any, more: int) -> Any:
    """Return the same rows, followed by rows of zeros."""
    extended = rows.new_zeros((len(rows) + more, rows.shape[1]))
    extended[: len(rows)] = rows
    return extended
