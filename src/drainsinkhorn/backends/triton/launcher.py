"""Launches of the kernels of a pack, with the tables and buffers that they read and write. It decides nothing."""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
# Kernels are called through Triton, arrays through torch, which is loaded when this backend is.

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from drainsinkhorn.backends.triton.blocks import BlockLegs
from drainsinkhorn.backends.triton.buffers import Buffers
from drainsinkhorn.backends.triton.kernels import columns as c
from drainsinkhorn.backends.triton.kernels import float64, soft, update, verify
from drainsinkhorn.backends.triton.kernels import leg as leg_kernels
from drainsinkhorn.backends.triton.lanes import LaneSet, LaneTable
from drainsinkhorn.backends.triton.launching import Launch, on, prepared, stream_of
from drainsinkhorn.backends.triton.precision import Arithmetic, beyond_float32, in_float64, in_triples
from drainsinkhorn.backends.triton.representation import Representation
from drainsinkhorn.backends.triton.triples import TripleLegs

ROWS, BLOCK, SAMPLES = 256, 256, 32
"""Rows of a program of `apply` or `split_potentials`, partial sums added at once, and rows compared with float64."""
ROUND_ROWS, ROUND_WARPS, SMALL_ROUND_ROWS, SMALL_ROUND_WARPS = 2048, 8, 128, 2
"""Rows that the one program of a lane rounds at once, and its warps; and those of lanes whose cycles it runs, too."""
BM64, BN64, WARPS64 = 16, 128, 4
"""Rows, columns and warps of a tile of a leg in float64."""
SAMPLE_BM, SAMPLE_BN, SAMPLE_WARPS = 1, 512, 8
"""The same for sampled rows: they are few, so each has a program of its own."""
SMALL_SAMPLES = 8, 64, 4
"""The same for lanes of which one program runs all cycles."""


class Launcher:
    """Prepares and runs launches for sets of lanes. Methods whose names are nouns only prepare."""

    def __init__(
        self, representation: Representation, table: LaneTable, buffers: Buffers, device: Any, *, momentum: bool
    ) -> None:
        self.representation, self.device = representation, device
        self._table, self._buffers, self._momentum = table, buffers, momentum
        self._blocks = BlockLegs(table, buffers, momentum=momentum)
        self.triples = TripleLegs(table, buffers, momentum=momentum)

    def run(self, *launches: Launch) -> None:
        """Run launches in the current stream of the device."""
        stream = stream_of(self.device)
        with on(self.device):
            for launch in launches:
                launch(stream)

    def side(
        self, lanes: LaneSet, side: int, role: Any, *, lockstep: bool = False, fused: bool = False
    ) -> list[Launch]:
        """A leg of the state of lanes, whatever their arithmetic."""
        launches = self.legs(lanes, side, role, lockstep=lockstep, fused=fused)
        if beyond_float32(lanes).any():
            launches += self.float64_legs(lanes, side, role, lockstep=lockstep, fused=fused)
        return launches

    def legs(
        self, lanes: LaneSet, side: int, role: Any, vectors: Any = None, errors: Any = None, potentials: Any = None,
        *, inside: bool = False, lockstep: bool = False, fused: bool = False,
    ) -> list[Launch]:  # fmt: skip
        """A leg of lanes in float32. Lanes whose potentials are inside the product have a launch of their own.

        Args:
            lanes: The lanes.
            side: 0 for rows, 1 for columns.
            role: MEASURED, APPLIED or CHECKED.
            vectors: Potentials as legs read them, and where the measured leg (of a check, log ratios) is written; None:
                those of the state.
            errors: Where parts of residuals are written; None: where those of the state are.
            potentials: A copy of the buffer of float64 vectors with other potentials, which residuals of soft lanes
                need; None: those of the state.
            inside: Potentials of checked lanes are inside the product.
            lockstep: The first lane that passes its stop halts all.
            fused: The last program of a lane applies the leg.
        """
        parts = lanes.by_softness()
        if len(parts) > 1:
            flags: dict[str, Any] = {"inside": inside, "lockstep": lockstep, "fused": fused}
            return [
                launch for part in parts for launch in self.legs(part, side, role, vectors, errors, potentials, **flags)
            ]
        buffers, form, check = self._buffers, self.representation, role is c.CHECKED
        vectors64 = potentials if potentials is not None and lanes.any_soft else buffers["vectors64"]
        ways = {inside} if check else self._ways(lanes)
        return [
            prepared(
                leg_kernels.leg, (lanes.largest(side)[1], len(lanes)),
                self._table.fields, lanes.rows, self._table.state, buffers["points16"], buffers["points32"], vectors64,
                buffers["vectors32"] if vectors is None else vectors, vectors64 if errors is None else errors,
                buffers["counters"], self._table.limits, self._table.halted,
                **form.constants(way), SIDE=side, ROLE=role.value, PLACES=form.places, NORMS=form.norms, INSIDE=way,
                HIGH_PARTS=form.high_parts and not check, LOCKSTEP=lockstep, FUSED=fused,
                MOMENTUM=fused and self._momentum, SOFT=lanes.any_soft, BM64=BM64, BLOCK=BLOCK, **form.program,
            )
            for way in sorted(ways)
        ]  # fmt: skip

    def _ways(self, lanes: LaneSet) -> set[bool]:
        """Return the values of INSIDE for which lanes need a launch: whether potentials are inside the product.

        They always are in AUGMENTED lanes. In other float32 lanes they are while scores come from high parts alone, if
        points have free coordinates for them.
        """
        always = lanes.column("arithmetic") == Arithmetic.AUGMENTED.value
        at_first = always | (self.representation.places > 0) & ~np.isnan(lanes.column("high_part_error"))
        return {bool(way) for ways in (always, at_first) for way in ways[~beyond_float32(lanes)]}

    def float64_legs(
        self, lanes: LaneSet, side: int, role: Any, potentials: Any = None, vectors: Any = None, errors: Any = None,
        *, lockstep: bool = False, fused: bool = False,
    ) -> list[Launch]:  # fmt: skip
        """Return launches of a leg in float64, or from points in three parts.

        There is one for hard lanes, one for soft ones, and one for each large lane.
        """
        launches, flags = [], {"lockstep": lockstep, "fused": fused}
        vectors64, vectors32 = self._buffers["vectors64"], self._buffers["vectors32"]
        given = [
            own if given is None else given
            for given, own in zip((potentials, vectors, errors), (vectors64, vectors32, vectors64), strict=True)
        ]
        triples = in_triples(lanes)
        if triples.any():
            launches += self.triples.legs(lanes.part(triples), side, role, *given, block=BLOCK, **flags)
            lanes = lanes.part(~triples)
        large = lanes.column("in_blocks")
        if large.any():
            launches += [
                self._blocks.leg(self._table.select([place]), side, role, *given, tile=BM64, block=BLOCK, **flags)
                for place in lanes.places[large & in_float64(lanes)]
            ]
            lanes = lanes.part(~large)
        if len(lanes):
            parts = lanes.by_softness()
            launches += [self.float64_leg(part, side, role, potentials, vectors, errors, **flags) for part in parts]
        return launches

    def float64_leg(
        self, lanes: LaneSet, side: int, role: Any, potentials: Any = None, vectors: Any = None, errors: Any = None,
        samples: Any = None, *, lockstep: bool = False, fused: bool = False,
    ) -> Launch:  # fmt: skip
        """A leg in float64; with `samples`, log ratios of some rows (side 0), or of some rows and columns (BOTH)."""
        buffers, form = self._buffers, self.representation
        vectors64, at_once = buffers["vectors64"], 4 if form.packed or form.one_program else 16
        if samples is None:
            bm, bn, warps, grid = BM64, BN64, WARPS64, lanes.grid(side, BM64)
        else:
            bm, bn, warps = SMALL_SAMPLES if form.one_program else (SAMPLE_BM, SAMPLE_BN, SAMPLE_WARPS)
            most = min(SAMPLES, max(lanes.largest(which)[0] for which in (0, 1)))
            grid = (-(-most // bm), len(lanes), 2 if side == c.BOTH.value else 1)
        return prepared(
            float64.float64_leg, grid,
            self._table.fields, lanes.rows, self._table.state, buffers["points64"], vectors64,
            vectors64 if potentials is None else potentials, buffers["vectors32"] if vectors is None else vectors,
            vectors64 if errors is None else errors, buffers["counters"], self._table.limits, self._table.halted,
            vectors64 if samples is None else samples, SAMPLES,
            ROOTED=form.rooted, DENSE=form.dense, SIDE=side, ROLE=role.value, BM=bm, BN=bn,
            AT_ONCE=at_once, LOCKSTEP=lockstep, FUSED=fused, MOMENTUM=fused and self._momentum,
            SOFT=samples is None and lanes.any_soft, BLOCK=BLOCK, num_warps=warps,
        )  # fmt: skip

    def sample(self, lanes: LaneSet, side: int, potentials: Any) -> Any:
        """Run legs of sampled rows in float64 and return their log ratios, (2, lanes, SAMPLES)."""
        samples = torch.empty((2, len(lanes), SAMPLES), dtype=torch.float64, device=self.device)
        large = lanes.column("in_blocks")
        if not large.any():
            self.run(self.float64_leg(lanes, side, c.SAMPLED, potentials, samples=samples))
            return samples
        if not large.all():
            rest = torch.from_numpy(np.flatnonzero(~large)).to(self.device)
            samples[:, rest] = self.sample(lanes.part(~large), side, potentials)
        for number in np.flatnonzero(large).tolist():
            for which in (0, 1) if side == c.BOTH.value else (side,):
                self._blocks.sample(int(lanes.places[number]), which, potentials, samples[which, number])
        return samples

    def split(
        self, lanes: LaneSet, potentials: Any, vectors: Any, *, places: int = 0, state: bool = False,
        after: tuple[Any, Any] | None = None,
    ) -> Launch:  # fmt: skip
        """Split potentials into what legs read.

        Args:
            lanes: The lanes.
            potentials: Potentials in bits.
            vectors: Where the parts are written.
            places: Coordinates of a chunk to whose places they are written as well; 0: they are not.
            state: Split as legs of the state read them; otherwise as checks do.
            after: Measured legs, of which a plain one is applied first, and where the potentials after it are written.
        """
        norms = self.representation.norms if state or not self.representation.packed else c.NONE.value
        legs, out = (vectors, potentials) if after is None else after
        most = max(lanes.grid(side, ROWS)[0] for side in (0, 1))
        return prepared(
            verify.split_potentials, (most, len(lanes), 2),
            self._table.fields, lanes.rows, self._table.state, potentials, self._buffers["points16"], vectors,
            self._buffers["vectors64"], legs, out, ROWS=ROWS, PLACES=places, NORMS=norms, AFTER=after is not None,
            SOFT=lanes.any_soft,
        )  # fmt: skip

    def round_states(self, lanes: LaneSet, potentials: Any, emitted: Any, found: Any) -> Launch:
        """States as they will be emitted, in bits and in units of the cost."""
        is_small = self.representation.one_program
        rows, warps = (SMALL_ROUND_ROWS, SMALL_ROUND_WARPS) if is_small else (ROUND_ROWS, ROUND_WARPS)
        return prepared(
            verify.round_states, (len(lanes),),
            self._table.fields, lanes.rows, self._table.state, self._buffers["vectors64"], potentials, emitted, found,
            SAMPLES, ROWS=rows, SOFT=lanes.any_soft, BM=self.representation.bm, BM64=BM64, BLOCK=BLOCK,
            COUNT=SAMPLES, num_warps=warps,
        )  # fmt: skip

    def findings(self, lanes: LaneSet) -> Any:
        """Allocate the columns of `Findings` for each lane."""
        return torch.empty((len(lanes), c.FINDINGS.value), dtype=torch.float64, device=self.device)

    def check(
        self, lanes: LaneSet, errors: Any, vectors: Any, samples: Any, found: Any, *, opens: bool = False
    ) -> Launch:
        """Residuals of both sides, and errors of sampled rows; of lanes that open, also their bands."""
        return prepared(
            verify.check, (len(lanes),),
            self._table.fields, lanes.rows, self._table.state, self._buffers["vectors64"], errors, vectors, samples,
            found, SAMPLES, OPENS=opens, SOFT=lanes.any_soft, BM=self.representation.bm, BM64=BM64, BLOCK=BLOCK,
            COUNT=SAMPLES,
        )  # fmt: skip

    def apply(self, lanes: LaneSet, *, first: bool) -> list[Launch]:
        """The update of f by the measured leg, from the previous states to the current ones."""
        return [self._apply(part, first=first) for part in lanes.by_softness()]

    def _apply(self, lanes: LaneSet, *, first: bool) -> Launch:
        grid = lanes.grid(0, ROWS)
        if lanes.any_soft:
            # The columns of soft lanes are translated.
            grid = max(grid, lanes.grid(1, ROWS))
        return prepared(
            update.apply, grid,
            self._table.fields, lanes.rows, self._table.previous, self._table.state, self._buffers["points16"],
            self._buffers["vectors32"], self._buffers["vectors64"], self._table.limits, self._table.halted,
            FIRST=first, MOMENTUM=self._momentum, BM=self.representation.bm, BM64=BM64, BLOCK=BLOCK, ROWS=ROWS,
            PLACES=self.representation.places, NORMS=self.representation.norms, SOFT=lanes.any_soft,
        )  # fmt: skip

    def open_soft(self, lanes: LaneSet) -> Launch:
        """What the columns of soft lanes ask for at the start."""
        return prepared(
            soft.open_lanes, (len(lanes),), self._table.fields, lanes.rows, self._buffers["vectors64"], ROWS=ROWS
        )

    def report(self, lanes: LaneSet, report: Any, *, decided: bool = False) -> Launch:
        """The columns of `Report` for each lane."""
        return prepared(
            update.report_lanes, (len(lanes),),
            self._table.fields, lanes.rows, self._table.state, self._buffers["vectors64"], self._table.limits, report,
            DECIDED=decided, SOFT=lanes.any_soft, BM=self.representation.bm, BM64=BM64, BLOCK=BLOCK,
        )  # fmt: skip
