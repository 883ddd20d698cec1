"""The backend "ott": stacked problems of OTT-JAX, advanced by phases of OTT's own updates."""

# pyright: basic

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import jax
import ott

from drainsinkhorn.backends.conditionals import plain_couplings
from drainsinkhorn.backends.couplings import BlockCouplings
from drainsinkhorn.backends.ottjax.pack import OttPack, rung
from drainsinkhorn.backends.ottjax.precision import OttArithmetic, choose_arithmetic
from drainsinkhorn.backends.products import solves_products
from drainsinkhorn.core.protocol import Hints
from drainsinkhorn.model.errors import BackendUnavailable, OptionsError
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.numerics.arrays import library

OLDEST = (0, 6)
"""The oldest version of OTT-JAX that this backend runs with."""


@solves_products
@dataclass(frozen=True, slots=True)
class OttBackend:
    """OTT-JAX on any device of JAX.

    Attributes:
        stride: Updates of a phase: residuals are read back, and lanes leave, at its end.
        precision: "auto" takes float32 where it is accurate enough for tol, else float64.
        kept_pairs: Pairs up to which a lane keeps its cost matrix; above, OTT's online point cloud computes it anew.
        batch_size: Rows at a time of an online point cloud; set, it is used whatever the size. None: by memory.
        device: "auto" is the device of the caller's JAX arrays, else JAX's default; "cpu", "gpu" or "tpu" its first.
    """

    stride: int = 20
    precision: Literal["auto", "float32", "float64"] = "auto"
    kept_pairs: int = 2**24
    batch_size: int | None = None
    device: str = "auto"
    name: str = field(default="ott", init=False)
    bitwise: bool = field(default=False, init=False)
    accelerations: tuple[str, ...] = field(default=("none",), init=False)
    soft_marginals: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        version = str(vars(ott)["__version__"])
        if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < OLDEST:
            raise BackendUnavailable(
                f"backend 'ott' needs ott-jax 0.6 or newer, found {version}; pip install -U 'drainsinkhorn[ott]'"
            )
        for name in ("stride", "kept_pairs", "batch_size"):
            value = getattr(self, name)
            if (value is not None or name != "batch_size") and (type(value) is not int or value < 1):
                raise OptionsError(f"{name} must be an integer of at least 1, got {value!r}")

    def signature(self, instance: Instance[Any]) -> Hashable:
        """Lanes of one padded size, cost and precision share packs."""
        return self._arithmetic(instance), str(self._device(instance))

    def width_for(self, lanes: int) -> int:
        """The next power of two."""
        return rung(lanes)

    def hints(self, instance: Instance[Any]) -> Hints:
        """Return precision, representation and phase, and a width whose matrices fit memory (on a CPU, its cache)."""
        n, m = instance.shape
        pairs = 2**18 if self._device(instance).platform == "cpu" else 2**28
        width = max(1, min(16, rung(pairs // (n * m) or 1)))
        return Hints(self._arithmetic(instance).description, width, self.stride, self.stride, self.stride)

    def prepare(self, instances: Sequence[Instance[Any]]) -> None:
        """Do nothing: JAX compiles for a width when it is first run, and keeps the result for the process."""

    def pack(self, instances: Sequence[Instance[Any]]) -> OttPack:
        """Stack the lanes on the device and measure their first f-leg."""
        return OttPack(instances, self._arithmetic(instances[0]), self._device(instances[0]))

    def couple(self, instances: Sequence[Instance[Any]], potentials: Sequence[Potentials[Any]]) -> BlockCouplings:
        """Return plans in plain NumPy, which are computed some rows at a time."""
        return plain_couplings(instances, potentials)

    def using(self, acceleration: str) -> OttBackend:
        """Return itself: it has no acceleration."""
        return self

    def precise(self) -> OttBackend:
        """Return this backend in float64."""
        return replace(self, precision="float64")

    def frugal(self) -> OttBackend:
        """Return the same backend with online costs for every lane that has points."""
        return replace(self, kept_pairs=1)

    def release(self) -> None:
        """Do nothing: JAX reuses its cached memory by itself."""

    def _arithmetic(self, instance: Instance[Any]) -> OttArithmetic:
        return choose_arithmetic(instance, self.precision, self.kept_pairs, self.batch_size, self.stride)

    def _device(self, instance: Instance[Any]) -> Any:
        like = instance.like
        if self.device != "auto":
            return jax.devices(self.device)[0]
        return next(iter(like.devices())) if library(like) == "jax" else jax.devices()[0]
