"""The compiled CPU backend: Numba kernels behind the pack contract, truly batched, truly ragged."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from drainsinkhorn.backends.cpu.pack import CpuPack, compile_kernels, type_band
from drainsinkhorn.backends.cpu.streaming import StreamingPack
from drainsinkhorn.backends.cpu.threads import default_threads
from drainsinkhorn.backends.door import sizes
from drainsinkhorn.core.problem import Cost, Potentials, Problem


@dataclass(frozen=True, slots=True)
class CpuBackend:
    """Compiled kernels on the CPU.

    Attributes:
        threads: Threads to use; None: the cores this process may use. Results do not depend on it.
        precision: "auto" takes float32 where its rounding is below a tenth of tol, else float64.
        representation: "cached" keeps a matrix per lane, "streaming" recomputes scores from the points; "auto" takes
            cached up to `cached_pairs` pairs. A dense cost is always cached.
        cached_pairs: Budget per lane for "auto"; a pair is 4 or 8 bytes.
    """

    threads: int | None = None
    precision: Literal["auto", "float32", "float64"] = "auto"
    representation: Literal["auto", "cached", "streaming"] = "auto"
    cached_pairs: int = 2**25
    name: str = field(default="cpu", init=False)
    stride: int = field(default=1, init=False)
    bitwise: bool = field(default=True, init=False)
    accelerations: tuple[str, ...] = field(default=("none",), init=False)

    def signature(self, problem: Problem[Any]) -> Hashable:
        """Problems of one representation and precision share packs, whatever their sizes and costs."""
        return self.describe(problem)

    def width_for(self, lanes: int) -> int:
        """A pack is as wide as its lanes are many."""
        return lanes

    def pack(self, problems: Sequence[Problem[Any]]) -> CpuPack | StreamingPack:
        """Build the lanes and measure their first f-leg."""
        threads = self.threads or default_threads()
        if self._streams(problems[0]):
            return StreamingPack(problems, threads, self.precision)
        return CpuPack(problems, self._dtype(problems[0]), threads)

    def couple(self, problem: Problem[Any], potentials: Potentials[Any]) -> Any:
        """The plan of a problem."""
        from drainsinkhorn.backends.reference import DenseCoupling

        return DenseCoupling(problem, potentials)

    def prepare(self, problems: Sequence[Problem[Any]]) -> None:
        """Compile the kernels, or load them from disk; said once if it takes a while."""
        compile_kernels(self._dtype(problems[0]), streaming=self._streams(problems[0]))

    def using(self, acceleration: str) -> CpuBackend:
        """Itself: it is plain Sinkhorn."""
        return self

    def describe(self, problem: Problem[Any]) -> str:
        """Precision and representation."""
        if self._streams(problem):
            climbs = "float32, float64 where needed" if self.precision == "auto" else self.precision
            return f"{climbs}, streaming"
        return f"{self._dtype(problem).name}, cached"

    def precise(self) -> CpuBackend:
        """The same in float64."""
        return replace(self, precision="float64")

    def _dtype(self, problem: Problem[Any]) -> np.dtype[Any]:
        if self.precision != "auto":
            return np.dtype(self.precision)
        single = np.dtype(np.float32)
        honest = type_band(*sizes(problem), single) <= float(problem.tol or 0) / 10
        return single if honest else np.dtype(np.float64)

    def _streams(self, problem: Problem[Any]) -> bool:
        if self.representation != "auto" or not isinstance(problem.cost, Cost):
            return self.representation == "streaming" and isinstance(problem.cost, Cost)
        n, m = sizes(problem)
        return n * m > self.cached_pairs
