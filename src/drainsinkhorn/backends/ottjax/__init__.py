"""The drain over OTT-JAX: stacked OTT problems, advanced by phases of OTT's own updates."""

# pyright: basic

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import jax
import ott

from drainsinkhorn.backends.couplings import BlockCouplings
from drainsinkhorn.backends.laws import plain_couplings
from drainsinkhorn.backends.ottjax.kernels import How
from drainsinkhorn.backends.ottjax.loading import filled_size
from drainsinkhorn.backends.ottjax.pack import OttPack, rung
from drainsinkhorn.backends.scores import scores
from drainsinkhorn.core.protocol import Hints
from drainsinkhorn.model.errors import BackendUnavailable, OptionsError
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.numerics.arrays import library
from drainsinkhorn.numerics.costs import require_form

FORMS = ("distances", "cost_fn", "matrix")
"""Forms of costs that it runs."""
OLDEST = (0, 6)
ROUNDING = 2.0**-23
"""What float32 costs a score, as part of it: products, norms and sums together."""


@dataclass(frozen=True, slots=True)
class OttBackend:
    """OTT-JAX on whatever device JAX has.

    Attributes:
        stride: Updates of a phase: lanes are looked at, and leave, at its end.
        precision: "auto" takes float32 where the scores allow it, else float64.
        kept_pairs: Pairs up to which a lane keeps its cost matrix; above, OTT's online point cloud computes it anew.
        batch_size: Rows at a time of an online point cloud; set, it is used whatever the size. None: by memory.
        device: "auto" is where the caller's JAX arrays lie, else JAX's default; "cpu", "gpu" or "tpu" its first one.
    """

    stride: int = 20
    precision: Literal["auto", "float32", "float64"] = "auto"
    kept_pairs: int = 2**24
    batch_size: int | None = None
    device: str = "auto"
    name: str = field(default="ott", init=False)
    bitwise: bool = field(default=False, init=False)
    accelerations: tuple[str, ...] = field(default=("none",), init=False)

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
        """Lanes of one size (filled up), cost and precision share packs."""
        return self._how(instance), str(self._device(instance))

    def width_for(self, lanes: int) -> int:
        """The next power of two."""
        return rung(lanes)

    def hints(self, instance: Instance[Any]) -> Hints:
        """Return precision, representation and phase, and a width whose matrices fit memory (on a CPU, its cache)."""
        (n, m), how = instance.shape, self._how(instance)
        kept = "kept costs" if how.kept else f"online costs, {how.batch} rows at a time"
        arithmetic = f"{'float32' if how.single else 'float64'}, {kept}, phases of {how.stride}"
        pairs = 2**18 if self._device(instance).platform == "cpu" else 2**28
        width = max(1, min(16, rung(pairs // (n * m) or 1)))
        return Hints(arithmetic, width, self.stride, self.stride, self.stride)

    def prepare(self, instances: Sequence[Instance[Any]]) -> None:
        """Nothing: jax compiles a width when it meets it, and keeps it for the process."""

    def pack(self, instances: Sequence[Instance[Any]]) -> OttPack:
        """Stack the lanes on the device and measure their first f-leg."""
        return OttPack(instances, self._how(instances[0]), self._device(instances[0]))

    def couple(self, instances: Sequence[Instance[Any]], potentials: Sequence[Potentials[Any]]) -> BlockCouplings:
        """Plans in plain NumPy, some rows at a time."""
        return plain_couplings(instances, potentials)

    def using(self, acceleration: str) -> OttBackend:
        """Itself: plain Sinkhorn is all it has."""
        return self

    def precise(self) -> OttBackend:
        """The same in float64."""
        return replace(self, precision="float64")

    def frugal(self) -> OttBackend:
        """Return the same backend with online costs for every lane that has points."""
        return replace(self, kept_pairs=1)

    def release(self) -> None:
        """Do nothing: JAX reuses its cached memory by itself."""

    def _how(self, instance: Instance[Any]) -> How:
        require_form(instance, self.name, FORMS)
        n, m = (filled_size(size) for size in instance.shape)
        kind = _kernel_kind(instance)
        d = 0 if kind == "dense" else instance.dim
        single = self.precision == "float32"
        if self.precision == "auto":
            single = ROUNDING * scores(instance).typical <= instance.tol / 10
        online = kind != "dense" and (self.batch_size is not None or n * m > self.kept_pairs)
        batch = (self.batch_size or max(1, 2**23 // max(n, m))) if online else 0
        return How(kind, n, m, d, single, batch, self.stride)

    def _device(self, instance: Instance[Any]) -> Any:
        like = instance.like
        if self.device != "auto":
            return jax.devices(self.device)[0]
        return next(iter(like.devices())) if library(like) == "jax" else jax.devices()[0]


def _kernel_kind(instance: Instance[Any]) -> Any:
    """The kind of a How."""
    kind = None if instance.is_dense else instance.cost.kind
    if kind is None or not ("cost_fn" in kind.forms or kind.distances is not None):
        return "dense"
    if kind.distances is None:
        return kind
    return "distances" if kind.distances.root else "squares"
