"""The drain over PyKeOps: lanes end to end, one symbolic reduction for all of them, no matrix anywhere."""

# pyright: basic

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from drainsinkhorn.backends.couplings import BlockCouplings
from drainsinkhorn.backends.keops.pack import How, KeopsPack
from drainsinkhorn.backends.keops.probe import require
from drainsinkhorn.backends.laws import plain_couplings
from drainsinkhorn.backends.scores import scores
from drainsinkhorn.core.protocol import Hints
from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.errors import OptionsError
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.numerics.arrays import library
from drainsinkhorn.numerics.costs import require_form
from drainsinkhorn.numerics.memory import empty_torch_cache

ROUNDING = 2.0**-23
"""What float32 costs a score, as part of it."""


FORMS = ("distances", "formula")
"""Forms of costs that it runs."""


@dataclass(frozen=True, slots=True)
class KeopsBackend:
    """PyKeOps on the CPU or a CUDA device.

    Attributes:
        precision: "auto" takes float32 where the scores allow it, else float64.
        device: "auto" is where the caller's tensors lie, the CPU for other arrays; else a torch device.
        acceleration: "momentum" or "none"; `solve` sets it.
    """

    precision: Literal["auto", "float32", "float64"] = "auto"
    device: str = "auto"
    acceleration: str = "none"
    name: str = field(default="keops", init=False)
    stride: int = field(default=1, init=False)
    bitwise: bool = field(default=True, init=False)
    accelerations: tuple[str, ...] = field(default=("momentum", "none"), init=False)

    def __post_init__(self) -> None:
        if self.precision not in ("auto", "float32", "float64"):
            raise OptionsError(f'precision must be "auto", "float32" or "float64", got {self.precision!r}')
        require("cuda" if self.device.startswith("cuda") else "cpu")

    def signature(self, instance: Instance[Any]) -> Hashable:
        """Lanes of one cost, dimension and precision share packs, whatever their sizes."""
        return self._how(instance)

    def width_for(self, lanes: int) -> int:
        """A pack is as wide as its lanes are many."""
        return lanes

    def hints(self, instance: Instance[Any]) -> Hints:
        """Return precision, representation and device, and sixteen lanes, more where they are small."""
        (n, m), how = instance.shape, self._how(instance)
        arithmetic = f"{'float32' if how.single else 'float64'}, streaming by KeOps on {how.device}"
        return Hints(arithmetic, max(16, min(256, 2**24 // (n * m))))

    def prepare(self, instances: Sequence[Instance[Any]]) -> None:
        """Compile the formulas for such problems, or load them from disk; said once if it takes a while."""
        how = self._how(instances[0])
        tiny = KeopsPack([_tiny(how)], how)
        tiny.advance(1, [0.0])
        tiny.verify([0])

    def pack(self, instances: Sequence[Instance[Any]]) -> KeopsPack:
        """Lay the lanes end to end and measure their first f-leg."""
        return KeopsPack(instances, self._how(instances[0]), momentum=self.acceleration == "momentum")

    def couple(self, instances: Sequence[Instance[Any]], potentials: Sequence[Potentials[Any]]) -> BlockCouplings:
        """Plans in plain NumPy, some rows at a time."""
        return plain_couplings(instances, potentials)

    def using(self, acceleration: str) -> KeopsBackend:
        """Plain Sinkhorn, or with momentum."""
        return replace(self, acceleration=acceleration)

    def precise(self) -> KeopsBackend:
        """The same in float64."""
        return replace(self, precision="float64")

    def frugal(self) -> KeopsBackend:
        """Return itself: it keeps no matrix."""
        return self

    def release(self) -> None:
        """Free the CUDA memory that torch caches."""
        empty_torch_cache()

    def _how(self, instance: Instance[Any]) -> How:
        require_form(instance, self.name, FORMS)
        single = self.precision == "float32"
        if self.precision == "auto":
            single = ROUNDING * scores(instance).typical <= instance.tol / 10
        return How(instance.cost.kind, instance.dim, single, self._device(instance))

    def _device(self, instance: Instance[Any]) -> str:
        device = self.device
        if device == "auto":
            device = str(instance.like.device) if library(instance.like) == "torch" else "cpu"
        require(device.partition(":")[0])
        return device


def _tiny(how: How) -> Instance[Any]:
    import numpy as np

    points, weights = np.eye(2, how.dim) + 1.0, np.array([0.5, 0.5])
    return Instance(x=points, y=points, a=weights, b=weights, eps=1.0, tol=1.0, cost=Cost(how.kind), init="zero")
