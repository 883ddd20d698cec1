"""The compiled CPU backend: Numba kernels behind the pack contract, truly batched, truly ragged."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from drainsinkhorn.backends.couplings import BlockCouplings
from drainsinkhorn.backends.cpu.laws import compiled_couplings
from drainsinkhorn.backends.cpu.loading import type_band
from drainsinkhorn.backends.cpu.pack import FORMS, CpuPack, compile_kernels
from drainsinkhorn.backends.cpu.resources import MemoryBlock, default_threads
from drainsinkhorn.backends.cpu.streaming import StreamingPack
from drainsinkhorn.core.protocol import Hints
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.numerics.costs import require_form


@dataclass(frozen=True, slots=True)
class CpuBackend:
    """Compiled kernels on the CPU.

    Attributes:
        threads: Threads to use; None: the cores this process may use. Results do not depend on it.
        precision: "auto" takes float32 where its rounding is below a tenth of tol, else float64.
        representation: "cached" keeps a matrix per lane, "streaming" recomputes scores from the points; "auto" takes
            cached up to `cached_pairs` pairs. A dense cost is always cached. If memory does not suffice for a lane
            alone, it streams whatever this says, and its result is marked `streamed`.
        cached_pairs: Budget per lane for "auto"; a pair is 4 or 8 bytes.
        acceleration: "momentum" or "none"; `solve` sets it.
    """

    threads: int | None = None
    precision: Literal["auto", "float32", "float64"] = "auto"
    representation: Literal["auto", "cached", "streaming"] = "auto"
    cached_pairs: int = 2**25
    acceleration: str = "none"
    name: str = field(default="cpu", init=False)
    stride: int = field(default=1, init=False)
    bitwise: bool = field(default=True, init=False)
    accelerations: tuple[str, ...] = field(default=("momentum", "none"), init=False)

    def signature(self, instance: Instance[Any]) -> Hashable:
        """Problems of one representation and precision share packs, whatever their sizes and costs."""
        require_form(instance, self.name, FORMS)
        return self._how(instance)[0]

    def width_for(self, lanes: int) -> int:
        """A pack is as wide as its lanes are many."""
        return lanes

    def pack(self, instances: Sequence[Instance[Any]]) -> CpuPack | StreamingPack:
        """Build the lanes and measure their first f-leg."""
        for instance in instances:
            require_form(instance, self.name, FORMS)
        threads = self.threads or default_threads()
        _, streams, dtype = self._how(instances[0])
        momentum = self.acceleration == "momentum"
        if streams:
            return StreamingPack(instances, threads, self.precision, momentum=momentum)
        return CpuPack(instances, dtype, threads, momentum=momentum)

    def couple(self, instances: Sequence[Instance[Any]], potentials: Sequence[Potentials[Any]]) -> BlockCouplings:
        """Plans in float64, some rows at a time, shared by the threads."""
        return compiled_couplings(instances, potentials, self.threads or default_threads())

    def hints(self, instance: Instance[Any]) -> Hints:
        """Return precision, representation and a width."""
        n, m = instance.shape
        # Many small lanes keep the threads busy and the host's part of the work small.
        return Hints(self._how(instance)[0], max(16, min(512, 2**26 // (n * m))))

    def prepare(self, instances: Sequence[Instance[Any]]) -> None:
        """Compile the kernels, or load them from disk; said once if it takes a while."""
        _, streams, dtype = self._how(instances[0])
        compile_kernels(dtype, streaming=streams, momentum=not streams and self.acceleration == "momentum")

    def using(self, acceleration: str) -> CpuBackend:
        """Plain Sinkhorn, or with momentum."""
        return replace(self, acceleration=acceleration)

    def precise(self) -> CpuBackend:
        """The same in float64."""
        return replace(self, precision="float64")

    def frugal(self) -> CpuBackend:
        """Return the same backend with streaming for every lane that has points."""
        return replace(self, representation="streaming")

    def release(self) -> None:
        """Free the memory kept from retired lanes."""
        MemoryBlock.release()

    def _how(self, instance: Instance[Any]) -> tuple[str, bool, np.dtype[Any]]:
        """Its description, whether it streams, and the precision of cached lanes."""
        n, m = instance.shape
        points = not instance.is_dense and instance.cost.kind.distances is not None
        return _how(n, m, instance.tol, points, self.precision, self.representation, self.cached_pairs)


@lru_cache(maxsize=4096)
def _how(
    n: int, m: int, tol: float, points: bool, precision: str, representation: str, cached_pairs: int
) -> tuple[str, bool, np.dtype[Any]]:
    streams = representation == "streaming" or (representation == "auto" and n * m > cached_pairs)
    if streams and points:
        climbs = "float32, float64 where needed" if precision == "auto" else precision
        return f"{climbs}, streaming", True, np.dtype(np.float64)
    if precision == "auto":
        precision = "float32" if type_band(n, m, np.dtype(np.float32)) <= tol / 10 else "float64"
    return f"{precision}, cached", False, np.dtype(precision)
