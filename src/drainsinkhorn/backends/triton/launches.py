"""What a pack launches: kernels with the tables, states and arenas that they read and write. It decides nothing."""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
# Kernels are called through Triton, arrays through torch, which is loaded when this backend is.

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from drainsinkhorn.backends.triton import kernels as k
from drainsinkhorn.backends.triton import lane_kernels, leg_kernels
from drainsinkhorn.backends.triton.arena import Arena
from drainsinkhorn.backends.triton.lane import Lane, largest
from drainsinkhorn.backends.triton.launching import Launch, prepared, stream_of, upload
from drainsinkhorn.backends.triton.loading import How

ROWS, BLOCK, SAMPLES = 256, 256, 32
"""Rows of a program of `apply` or `stage`, partial sums added at once, and rows compared with float64."""
FINDINGS = k.FINDINGS.value
"""Number of values that a check writes for each lane: see `_findings`."""
SETTLED, SETTLED_WARPS = 2048, 8
"""Rows that the one program of a lane settles at once, and its warps."""
WIDE_BM, WIDE_BN, WIDE_WARPS = 16, 64, 4
SAMPLE_BM, SAMPLE_BN, SAMPLE_WARPS = 1, 512, 8


class Launches:
    """The launches of a pack. `lanes` are those of `live`, for the grid; a name that ends in `_of` only makes ready."""

    how: How
    device: Any
    _lanes: list[Lane]
    _table: Any
    _states: list[Any]
    _arenas: dict[str, Arena]
    _most: list[tuple[int, int]]
    _limits: Any
    _halted: Any
    _parity: int
    _packed: int
    _momentum: bool
    _seated: dict[tuple[int, ...], Any]

    def _seats(self, lanes: Sequence[Lane]) -> Any:
        """Their rows of the table, on the device."""
        places = tuple([lane.place for lane in lanes])
        if places not in self._seated:
            self._seated[places] = upload(places, torch.int64, self.device)
        return self._seated[places]

    def _grid(self, lanes: Sequence[Lane], side: int, tile: int) -> tuple[int, int]:
        return -(-self._most_of(lanes, side)[0] // tile), len(lanes)

    def _most_of(self, lanes: Sequence[Lane], side: int) -> tuple[int, int]:
        return self._most[side] if lanes is self._lanes else largest(lanes, side)

    def _run(self, *launches: Launch) -> None:
        stream = stream_of(self.device)
        for launch in launches:
            launch(stream)

    def _leg(
        self, live: Any, lanes: Sequence[Lane], side: int, role: Any, vectors: Any = None, errors: Any = None
    ) -> None:
        self._run(*self._legs_of(live, lanes, side, role, self._parity, vectors, errors))

    def _legs_of(
        self, live: Any, lanes: Sequence[Lane], side: int, role: Any, parity: int, vectors: Any = None,
        errors: Any = None, *, fold: bool = False, lock: bool = False, goes_on: bool = False,
    ) -> list[Launch]:  # fmt: skip
        """One side of lanes that are not wide; lanes whose potentials fold have a launch of their own."""
        arenas = self._arenas
        wide = arenas["wide"].buffer
        programs = self._most_of(lanes, side)[1]
        check = role is k.CHECKED
        ways = {fold} if check else {way for lane in lanes if not lane.wide for way in self._ways(lane)}
        leads = self.how.leads and not check
        return [
            prepared(
                leg_kernels.leg, (programs, len(lanes)),
                self._table, live, self._states[parity], arenas["half"].buffer, arenas["single"].buffer, wide,
                arenas["vectors"].buffer if vectors is None else vectors, wide if errors is None else errors,
                arenas["counts"].buffer, self._limits, self._halted,
                **self.how.scores(folded), SIDE=side, ROLE=role.value, SLOT=self.how.slot, PACKED=self._packed,
                FOLD=folded, LEADS=leads, LOCK=lock, GOES_ON=goes_on, MOMENTUM=goes_on and self._momentum,
                WIDE_BM=WIDE_BM, BLOCK=BLOCK, **self.how.program,
            )
            for folded in sorted(ways)
        ]  # fmt: skip

    def _ways(self, lane: Lane) -> set[bool]:
        """Whether its potentials fold: while leading halves make its scores they do, if there is room at all."""
        return {lane.folded, lane.folded or (self.how.slot > 0 and not math.isnan(lane.blur))}

    def _exact(
        self, live: Any, lanes: Sequence[Lane], side: int, role: Any, potentials: Any = None, vectors: Any = None,
        errors: Any = None,
    ) -> None:  # fmt: skip
        self._run(self._exact_of(live, lanes, side, role, self._parity, potentials, vectors, errors))

    def _exact_of(
        self, live: Any, lanes: Sequence[Lane], side: int, role: Any, parity: int, potentials: Any = None,
        vectors: Any = None, errors: Any = None, samples: Any = None, *, lock: bool = False, goes_on: bool = False,
    ) -> Launch:  # fmt: skip
        wide, arenas = self._arenas["wide"].buffer, self._arenas
        # Sampled rows are few: one program for each.
        if samples is None:
            bm, bn, warps, grid = WIDE_BM, WIDE_BN, WIDE_WARPS, self._grid(lanes, side, WIDE_BM)
        else:
            bm, bn, warps = SAMPLE_BM, SAMPLE_BN, SAMPLE_WARPS
            grid = (-(-SAMPLES // bm), len(lanes), 2 if side == k.BOTH.value else 1)
        return prepared(
            leg_kernels.exact_leg, grid,
            self._table, live, self._states[parity], arenas["exact"].buffer, wide,
            wide if potentials is None else potentials, arenas["vectors"].buffer if vectors is None else vectors,
            wide if errors is None else errors, arenas["counts"].buffer, self._limits, self._halted,
            wide if samples is None else samples, SAMPLES,
            ROOTED=self.how.rooted, DENSE=self.how.dense, SIDE=side, ROLE=role.value, BM=bm, BN=bn,
            AT_ONCE=4 if self.how.packed else 16, LOCK=lock, GOES_ON=goes_on, MOMENTUM=goes_on and self._momentum,
            BLOCK=BLOCK, num_warps=warps,
        )  # fmt: skip

    def _stage_of(
        self, live: Any, lanes: Sequence[Lane], potentials: Any, vectors: Any, *, slot: int = 0, state: bool = False,
        after: tuple[Any, Any] | None = None,
    ) -> Launch:  # fmt: skip
        """Split potentials into what legs read: as legs of the `state` read them, or as checks do."""
        packed = self._packed if state or not self.how.packed else k.NONE.value
        legs, out = (vectors, potentials) if after is None else after
        most = max(self._grid(lanes, side, ROWS)[0] for side in (0, 1))
        return prepared(
            lane_kernels.stage, (most, len(lanes), 2),
            self._table, live, self._states[self._parity], potentials, self._arenas["half"].buffer, vectors,
            self._arenas["wide"].buffer, legs, out,
            ROWS=ROWS, SLOT=slot, PACKED=packed, AFTER=after is not None,
        )  # fmt: skip

    def _sample(self, live: Any, lanes: Sequence[Lane], side: int, potentials: Any) -> Any:
        """Log ratios of some rows (side 0) or of some rows and columns (BOTH) in float64."""
        samples = torch.empty((2, len(lanes), SAMPLES), dtype=torch.float64, device=self.device)
        self._run(self._exact_of(live, lanes, side, k.SAMPLED, self._parity, potentials, samples=samples))
        return samples

    def _settle_of(self, live: Any, lanes: Sequence[Lane], potentials: Any, given: Any, found: Any) -> Launch:
        return prepared(
            lane_kernels.settle, (len(lanes),),
            self._table, live, self._states[self._parity], self._arenas["wide"].buffer, potentials, given, found,
            SAMPLES, ROWS=SETTLED, BM=self.how.bm, WIDE_BM=WIDE_BM, BLOCK=BLOCK, COUNT=SAMPLES,
            num_warps=SETTLED_WARPS,
        )  # fmt: skip

    def _findings(self, lanes: Sequence[Lane]) -> Any:
        """Allocate the values that a check writes for each lane.

        Residuals of rows and columns, mean errors of sampled rows and columns, whether potentials are emitted in
        float32, whether the state is not finite, the sum of the largest potentials of both sides, and by how much
        their mean sizes exceed twice those of sampled rows (`scores.unsampled`), both in bits.
        """
        return torch.empty((len(lanes), FINDINGS), dtype=torch.float64, device=self.device)

    def _checked(
        self, live: Any, lanes: Sequence[Lane], errors: Any, vectors: Any, samples: Any, found: Any, **how: bool
    ) -> Any:
        self._run(self._checked_of(live, lanes, errors, vectors, samples, found, **how))
        return found.cpu()

    def _checked_of(
        self, live: Any, lanes: Sequence[Lane], errors: Any, vectors: Any, samples: Any, found: Any, *,
        opens: bool = False,
    ) -> Launch:  # fmt: skip
        return prepared(
            lane_kernels.checked, (len(lanes),),
            self._table, live, self._states[self._parity], self._arenas["wide"].buffer, errors, vectors, samples,
            found, SAMPLES, OPENS=opens, BM=self.how.bm, WIDE_BM=WIDE_BM, BLOCK=BLOCK, COUNT=SAMPLES,
        )  # fmt: skip

    def _apply_of(self, live: Any, lanes: Sequence[Lane], first: bool, parity: int) -> list[Launch]:
        """Reads the state at `parity`, leaves it at the other."""
        return [prepared(
            lane_kernels.apply, self._grid(lanes, 0, ROWS),
            self._table, live, self._states[parity], self._states[1 - parity], self._arenas["half"].buffer,
            self._arenas["vectors"].buffer, self._arenas["wide"].buffer, self._limits, self._halted, FIRST=first,
            MOMENTUM=self._momentum, BM=self.how.bm, WIDE_BM=WIDE_BM, BLOCK=BLOCK, ROWS=ROWS, SLOT=self.how.slot,
            PACKED=self._packed,
        )]  # fmt: skip

    def _look_of(self, live: Any, report: Any, parity: int, *, decided: bool = False) -> list[Launch]:
        """Depth and stale residual of lanes into `report`, whether they are held, and their bands."""
        return [prepared(
            lane_kernels.look, (len(live),),
            self._table, live, self._states[parity], self._arenas["wide"].buffer, self._limits, report,
            DECIDED=decided, BM=self.how.bm, WIDE_BM=WIDE_BM, BLOCK=BLOCK,
        )]  # fmt: skip
