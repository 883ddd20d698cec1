"""The compiled CPU backend: Numba kernels that run packs of lanes of unequal sizes without padding."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from drainsinkhorn.backends.couplings import BlockCouplings
from drainsinkhorn.backends.cpu.pack import FORMS, CpuPack, compile_kernels
from drainsinkhorn.backends.cpu.plan_kernels import compiled_couplings
from drainsinkhorn.backends.cpu.precision import CpuArithmetic, choose_arithmetic
from drainsinkhorn.backends.cpu.resources import MemoryBlock, default_threads
from drainsinkhorn.backends.cpu.streaming import StreamingPack
from drainsinkhorn.backends.products import solves_products
from drainsinkhorn.core.audit import EVERY
from drainsinkhorn.core.options import FEW_LANES
from drainsinkhorn.core.protocol import Hints
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.instances import representatives
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.numerics.costs import require_form

WIDEST, PAIRS = 4096, 2**26
"""Lanes of a pack at most, and their pairs of points: 256 MiB of kernels in float32."""
SPACING, SPACING_PAIRS = 256, 2**22
"""Cycles between audits of lanes that are held, at most, and pairs of points that one lane visits in between. A run
can be interrupted, and reports progress, only between audits."""


@solves_products
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
    soft_marginals: bool = field(default=True, init=False)

    def arithmetic(self, instance: Instance[Any]) -> CpuArithmetic:
        """How the lane of an instance computes."""
        n, m = instance.shape
        has_distances = not instance.is_dense and instance.cost.kind.distances is not None
        return choose_arithmetic(
            n, m, instance.tol, has_distances, self.precision, self.representation, self.cached_pairs
        )

    def signature(self, instance: Instance[Any]) -> Hashable:
        """Problems of one representation and precision share packs, whatever their sizes and costs."""
        require_form(instance, self.name, FORMS)
        return self.arithmetic(instance).description

    def width_for(self, lanes: int) -> int:
        """The width of a pack is its number of lanes."""
        return lanes

    def pack(self, instances: Sequence[Instance[Any]]) -> CpuPack | StreamingPack:
        """Build the lanes and measure their first f-leg."""
        for instance in {id(instance.cost.kind): instance for instance in representatives(instances)}.values():
            require_form(instance, self.name, FORMS)
        threads, arithmetic = self.threads or default_threads(), self.arithmetic(instances[0])
        momentum = self.acceleration == "momentum"
        if arithmetic.is_streaming:
            return StreamingPack(instances, arithmetic, threads, momentum=momentum)
        return CpuPack(instances, arithmetic.dtype, threads, momentum=momentum)

    def couple(self, instances: Sequence[Instance[Any]], potentials: Sequence[Potentials[Any]]) -> BlockCouplings:
        """Return plans in float64, which are computed some rows at a time, shared by the threads."""
        return compiled_couplings(instances, potentials, self.threads or default_threads())

    def hints(self, instance: Instance[Any]) -> Hints:
        """Return the arithmetic, and windows and spacings that keep the host's part of the work small."""
        n, m = instance.shape
        width = max(FEW_LANES, min(WIDEST, PAIRS // (n * m)))
        # Held lanes cost nothing, whereas an audit visits every live lane on the host.
        spacing = max(EVERY, min(SPACING, SPACING_PAIRS // (n * m)))
        return Hints(self.arithmetic(instance).description, width, refilled=spacing, held=spacing, pairs=PAIRS)

    def prepare(self, instances: Sequence[Instance[Any]]) -> None:
        """Compile the kernels, or load them from disk; logged once if it takes long."""
        compile_kernels(self.arithmetic(instances[0]).kernels)

    def using(self, acceleration: str) -> CpuBackend:
        """Return this backend with another acceleration."""
        return replace(self, acceleration=acceleration)

    def precise(self) -> CpuBackend:
        """Return this backend in float64."""
        return replace(self, precision="float64")

    def frugal(self) -> CpuBackend:
        """Return the same backend with streaming for every lane that has points."""
        return replace(self, representation="streaming")

    def release(self) -> None:
        """Free the memory kept from retired lanes."""
        MemoryBlock.release()
