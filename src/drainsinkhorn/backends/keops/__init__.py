"""The backend "keops": lanes end to end, one symbolic reduction of PyKeOps for all of them, and no matrix in memory."""

# pyright: basic

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from drainsinkhorn.backends.conditionals import plain_couplings
from drainsinkhorn.backends.couplings import BlockCouplings
from drainsinkhorn.backends.keops.pack import KeopsPack
from drainsinkhorn.backends.keops.precision import KeopsArithmetic, choose_arithmetic
from drainsinkhorn.backends.keops.probe import require
from drainsinkhorn.backends.products import solves_products
from drainsinkhorn.core.protocol import Hints
from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.errors import OptionsError
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.numerics.arrays import library
from drainsinkhorn.numerics.memory import empty_torch_cache


@solves_products
@dataclass(frozen=True, slots=True)
class KeopsBackend:
    """PyKeOps on the CPU or a CUDA device.

    Attributes:
        precision: "auto" takes float32 where it is accurate enough for tol, else float64.
        device: "auto" is the device of the caller's tensors, the CPU for other arrays; else a torch device.
        acceleration: "momentum" or "none"; `solve` sets it.
    """

    precision: Literal["auto", "float32", "float64"] = "auto"
    device: str = "auto"
    acceleration: str = "none"
    name: str = field(default="keops", init=False)
    stride: int = field(default=1, init=False)
    bitwise: bool = field(default=True, init=False)
    accelerations: tuple[str, ...] = field(default=("momentum", "none"), init=False)
    soft_marginals: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        if self.precision not in ("auto", "float32", "float64"):
            raise OptionsError(f'precision must be "auto", "float32" or "float64", got {self.precision!r}')
        require("cuda" if self.device.startswith("cuda") else "cpu")

    def signature(self, instance: Instance[Any]) -> Hashable:
        """Lanes of one cost, dimension and precision share packs, whatever their sizes."""
        return self._arithmetic(instance)

    def width_for(self, lanes: int) -> int:
        """The width of a pack is its number of lanes."""
        return lanes

    def hints(self, instance: Instance[Any]) -> Hints:
        """Return precision, representation and device, and a width of sixteen lanes, or more if lanes are small."""
        n, m = instance.shape
        return Hints(self._arithmetic(instance).description, max(16, min(256, 2**24 // (n * m))))

    def prepare(self, instances: Sequence[Instance[Any]]) -> None:
        """Compile the formulas for such problems, or load them from disk; a warning says so once if it takes long."""
        arithmetic = self._arithmetic(instances[0])
        tiny = KeopsPack([_tiny(arithmetic)], arithmetic)
        tiny.advance(1, [0.0])
        tiny.verify([0])

    def pack(self, instances: Sequence[Instance[Any]]) -> KeopsPack:
        """Upload the lanes end to end and measure their first f-leg."""
        return KeopsPack(instances, self._arithmetic(instances[0]), momentum=self.acceleration == "momentum")

    def couple(self, instances: Sequence[Instance[Any]], potentials: Sequence[Potentials[Any]]) -> BlockCouplings:
        """Return plans in plain NumPy, which are computed some rows at a time."""
        return plain_couplings(instances, potentials)

    def using(self, acceleration: str) -> KeopsBackend:
        """Return this backend with another acceleration."""
        return replace(self, acceleration=acceleration)

    def precise(self) -> KeopsBackend:
        """Return this backend in float64."""
        return replace(self, precision="float64")

    def frugal(self) -> KeopsBackend:
        """Return itself: it keeps no matrix."""
        return self

    def release(self) -> None:
        """Free the CUDA memory that torch caches."""
        empty_torch_cache()

    def _arithmetic(self, instance: Instance[Any]) -> KeopsArithmetic:
        return choose_arithmetic(instance, self.precision, self._device(instance))

    def _device(self, instance: Instance[Any]) -> str:
        device = self.device
        if device == "auto":
            device = str(instance.like.device) if library(instance.like) == "torch" else "cpu"
        require(device.partition(":")[0])
        return device


def _tiny(arithmetic: KeopsArithmetic) -> Instance[Any]:
    """A problem of two points that is computed by that arithmetic."""
    points, weights = np.eye(2, arithmetic.dim) + 1.0, np.array([0.5, 0.5])
    cost = Cost(arithmetic.kind)
    return Instance(x=points, y=points, a=weights, b=weights, eps=1.0, tol=1.0, cost=cost, init="zero")
