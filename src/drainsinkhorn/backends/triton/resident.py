"""Small lanes of which one program runs all cycles: their size classes, launches, and calls (`kernels.resident`).

Tiles are compile-time constants, so lanes are launched by size class. The class of a lane is a function of its own
sizes and arithmetic, never of its neighbours'.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false
# Kernels are called through Triton, arrays through torch, which is loaded when this backend is.

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch

from drainsinkhorn.backends.triton.buffers import Buffers
from drainsinkhorn.backends.triton.cycles import POLL, has_ended, to_progress, to_report
from drainsinkhorn.backends.triton.kernels import columns as c
from drainsinkhorn.backends.triton.kernels import resident as kernels
from drainsinkhorn.backends.triton.kernels.columns import Report
from drainsinkhorn.backends.triton.lanes import LaneSet, LaneTable, distinct
from drainsinkhorn.backends.triton.launcher import Launcher
from drainsinkhorn.backends.triton.launching import Download, Launch, prepared, stream_of
from drainsinkhorn.backends.triton.precision import in_float64
from drainsinkhorn.backends.triton.representation import Representation
from drainsinkhorn.backends.triton.tiles import options
from drainsinkhorn.core.protocol import Progress

LARGEST_SIDE = 16 * kernels.PARTS.value
"""Most points of a side for which there is a size class."""
SIDES, FLOAT64_ROWS, FLOAT64_COLUMNS = (32, 64, 128, 256, 512), (256, 512), (64, 256, 512)
"""Size classes of a side in float32; of rows and of columns in float64, where rows come in chunks anyway."""
IN_REGISTERS, SCORES_OF_WARP, MOST_WARPS = 64 * 128, 1024, 8
"""Scores that one program holds in registers at most, those of a warp, and most warps; with more scores ptxas spills.
Scores of larger classes are read in every leg, from a matrix that the caches hold."""
CHUNK, FLOAT64_CHUNK = 4096, 2048
"""Scores of a chunk of rows."""
WIDE, WIDE_REGISTERS = 256, 128
"""Columns from which chunks have all warps, and most registers of a thread then, so that two programs share a
multiprocessor."""
STAGES = 2
"""Stages of a pipeline: loops over chunks have no products that Triton would pipeline."""
LAUNCH_PAIRS, PROGRAM_PAIRS = 2**38, 2**31
"""Scores that one launch, and one program of it, computes at most, some tenths of a second: between two launches a call
can be interrupted."""
FLOAT64_COST = 32
"""Float32 scores that take as long as one in float64; each coordinate takes as long as one more."""


class SizeClass(NamedTuple):
    """Compile-time sizes of a program.

    Attributes:
        float64: Arithmetic is float64.
        n: Rows of the largest lane.
        m: Columns of the largest lane.
        chunk: Rows whose scores are in registers at once.
        warps: Warps of the program.
        registers: Most registers of a thread; 0 leaves them to the compiler.
    """

    float64: bool
    n: int
    m: int
    chunk: int
    warps: int
    registers: int = 0

    @property
    def constants(self) -> dict[str, int]:
        """Return constants and options of a launch."""
        return {"N": self.n, "M": self.m, "CHUNK": self.chunk, **options(self.warps, STAGES, self.registers)}


@lru_cache(maxsize=1024)
def size_class(size: tuple[int, int], *, float64: bool) -> SizeClass:
    """Return the size class of a lane of these sizes."""
    n, m = (
        next(side for side in sides if points <= side)
        for points, sides in zip(size, (FLOAT64_ROWS, FLOAT64_COLUMNS) if float64 else (SIDES, SIDES), strict=True)
    )
    if float64:
        return SizeClass(True, n, m, FLOAT64_CHUNK // m, MOST_WARPS // 2)
    if n * m <= IN_REGISTERS:
        return SizeClass(False, n, m, n, max(1, min(MOST_WARPS, n * m // SCORES_OF_WARP)))
    wide = m >= WIDE
    return SizeClass(False, n, m, CHUNK // m, MOST_WARPS if wide else MOST_WARPS // 2, WIDE_REGISTERS if wide else 0)


def _work(chosen: SizeClass, dim: int) -> int:
    """Return the float32 scores that take as long as one cycle of a lane of a class, in `dim` coordinates."""
    cost = FLOAT64_COST + dim if chosen.float64 else 1
    return 2 * chosen.n * chosen.m * cost


class ResidentLauncher:
    """Launches of the kernels of one-program lanes, one for each size class."""

    def __init__(self, form: Representation, table: LaneTable, buffers: Buffers, *, momentum: bool) -> None:
        self._table, self._buffers, self._momentum = table, buffers, momentum
        self._kind = {"DENSE": form.dense, "ROOTED": form.rooted}

    def by_class(self, lanes: LaneSet) -> list[tuple[SizeClass, LaneSet]]:
        """Return hard and soft lanes by size class; float64 comes first, then large lanes, since they run longest."""
        kinds, which = distinct(np.column_stack([lanes.column("size"), in_float64(lanes), lanes.column("is_soft")]))
        classes: dict[tuple[SizeClass, bool], list[int]] = defaultdict(list)
        for kind, (n, m, is_float64, is_soft) in enumerate(kinds):
            classes[size_class((n, m), float64=bool(is_float64)), bool(is_soft)].append(kind)
        ordered = sorted(classes.items(), reverse=True)
        return [(chosen, lanes.part(np.isin(which, some))) for (chosen, _), some in ordered]

    def measure(
        self, lanes: LaneSet, potentials: Any, vectors: Any, errors: Any, *, checks: bool = False
    ) -> list[Launch]:
        """Measure the rows at `potentials`: legs (log ratios if it checks) go to `vectors`, residuals to `errors`."""
        buffers = self._buffers
        return [
            prepared(
                kernels.measure_rows, (len(part),),
                self._table.fields, part.rows, buffers["points32"], buffers["points64"], buffers["vectors64"],
                potentials, vectors, errors, FLOAT64=chosen.float64, **self._kind, SOFT=part.any_soft,
                CHECKS=checks, **chosen.constants,
            )
            for chosen, part in self.by_class(lanes)
        ]  # fmt: skip

    def advance(self, chosen: SizeClass, lanes: LaneSet, cycles: int, *, first: bool, lockstep: bool) -> Launch:
        """Run up to so many cycles of lanes of one class; in lockstep one cycle."""
        buffers = self._buffers
        return prepared(
            kernels.resident, (len(lanes),),
            self._table.fields, lanes.rows, self._table.state, buffers["points32"], buffers["points64"],
            buffers["vectors64"], buffers["vectors32"], self._table.limits, self._table.halted, cycles, int(first),
            int(lockstep), FLOAT64=chosen.float64, **self._kind, MOMENTUM=self._momentum, SOFT=lanes.any_soft,
            **chosen.constants,
        )  # fmt: skip


class ResidentCycles:
    """Runs cycles of a pack whose lanes are in one program each. It has the methods of `cycles.Cycles`."""

    def __init__(self, launcher: Launcher, resident: ResidentLauncher, table: LaneTable, lanes: LaneSet) -> None:
        self._launcher, self._resident, self._table, self._lanes = launcher, resident, table, lanes
        self._report = torch.empty((len(lanes), c.REPORT.value), dtype=torch.float64, device=launcher.device)
        self._download: Download | None = None
        self._classes = resident.by_class(lanes)
        # The work of a lane depends on its class and, in float64, on its coordinates.
        work = [_work(chosen, int(part.column("dim").max()) if chosen.float64 else 0)
                for chosen, part in self._classes]  # fmt: skip
        together = sum(one * len(part) for one, (_, part) in zip(work, self._classes, strict=True))
        alone = max(work, default=0)
        self.span = max(1, min(LAUNCH_PAIRS // max(1, together), PROGRAM_PAIRS // max(1, alone)))
        """Cycles of a launch at most."""

    def run(self, cycles: int, stops: Sequence[float], *, lockstep: bool) -> Progress:
        """Launch cycles until all have run or all lanes are held, and return the progress of all lanes."""
        frozen = self._lanes.column("frozen")
        may_be_held, done = max(stops) > -math.inf, 0
        while done < cycles and not frozen.all():
            span = 1 if lockstep else min(self.span, cycles - done)
            self._launch(span, first=done == 0, lockstep=lockstep)
            done += span
            if may_be_held and done < cycles and (not lockstep or done % POLL == 0):
                report = self._read_report()
                if has_ended(report, frozen, lockstep):
                    return to_progress(report)
        return to_progress(self._read_report())

    def forget_launches(self) -> None:
        """Forget prepared launches, because buffers may have been replaced."""
        self._lanes.launches.clear()

    def _launch(self, cycles: int, *, first: bool, lockstep: bool) -> None:
        stream, halted = stream_of(self._launcher.device), self._table.halted
        if lockstep and not first:
            # A lane that passed in the last launch halts all lanes from this one on.
            torch.maximum(halted[:1], halted[1:], out=halted[:1])
        for chosen, lanes in self._classes:
            self._resident.advance(chosen, lanes, cycles, first=first, lockstep=lockstep)(stream)

    def _read_report(self) -> Report:
        """Return the report on all lanes; this waits for the device."""
        stream = stream_of(self._launcher.device)
        for launch in self._lanes.prepared("report", lambda: [self._launcher.report(self._lanes, self._report)]):
            launch(stream)
        download = self._download
        self._download = Download(self._report) if download is None else download.again(self._report)
        return to_report(self._download)
