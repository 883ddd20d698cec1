"""The GPU backend: Triton kernels behind the pack contract."""

# pyright: basic

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

import torch
import triton  # noqa: F401  without it there are no kernels, and the loader says what to install

from drainsinkhorn.backends.conditionals import plain_couplings
from drainsinkhorn.backends.couplings import BlockCouplings
from drainsinkhorn.backends.triton import kernels as k
from drainsinkhorn.backends.triton.couplings import TritonCouplings
from drainsinkhorn.backends.triton.cycles import GLANCE
from drainsinkhorn.backends.triton.lane import FORMS
from drainsinkhorn.backends.triton.loading import How
from drainsinkhorn.backends.triton.pack import TritonPack
from drainsinkhorn.backends.triton.tiles import tile
from drainsinkhorn.core.audit import EVERY
from drainsinkhorn.core.protocol import Hints
from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.errors import BackendUnavailable
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.numerics.costs import COSTS, require_form
from drainsinkhorn.numerics.memory import empty_torch_cache, memory_errors

DIRECT_DIM, PACKED = 4, 16
"""Coordinates up to which one product of so many numbers makes scores; direct differences where it is not honest."""
SPACING, HELD_SPACING = 32, 1024
"""Cycles between audits where no vacancy waits for one; and, at most, where lanes that are done rest."""
PATIENCE = 2**42
"""Pairs between audits, about a second and a half: after that somebody wants to know how far it is."""
STREAMED_DIM = 64
"""Above so many coordinates a stored matrix is faster, where it fits."""


@dataclass(frozen=True, slots=True)
class TritonBackend:
    """Triton kernels on a CUDA device (or in Triton's interpreter, for tests).

    Attributes:
        device: A torch device; "auto" is the current CUDA device, the CPU under the interpreter.
        precision: "auto" takes float32 sums of split scores where sampled rows show them honest, else float64.
        stored_pairs: Pairs up to which a lane of many coordinates keeps its scores; a pair is four bytes.
        leading: Early cycles of many coordinates take one product of three: of leading halves alone.
        acceleration: "momentum" or "none"; `solve` sets it.
    """

    device: str = "auto"
    precision: Literal["auto", "float64"] = "auto"
    stored_pairs: int = 2**25
    leading: bool = True
    acceleration: str = "none"
    name: str = field(default="triton", init=False)
    stride: int = field(default=1, init=False)
    bitwise: bool = field(default=True, init=False)
    accelerations: tuple[str, ...] = field(default=("momentum", "none"), init=False)

    def __post_init__(self) -> None:
        there = interpreted() or torch.cuda.is_initialized() or torch.cuda.is_available()
        if self.device == "auto" and not there:
            raise BackendUnavailable("backend 'triton' needs a CUDA device, and torch sees none")

    def signature(self, instance: Instance[Any]) -> Hashable:
        """Lanes whose scores are computed alike share packs, whatever their sizes."""
        require_form(instance, self.name, FORMS)
        return self._how(instance)

    def width_for(self, lanes: int) -> int:
        """A pack is as wide as its lanes are many."""
        return lanes

    def hints(self, instance: Instance[Any]) -> Hints:
        """Return precision, representation, lanes that fill the device, and how often to audit them."""
        (n, m), how = instance.shape, self._how(instance)
        kinds = {k.DIRECT.value: "packed products", k.ROOT.value: "direct differences"}
        kinds |= {k.PRODUCT.value: "split products", k.STORED.value: "stored scores"}
        precision = f"float32 {kinds[how.kind]}, float64 where needed" if self.precision == "auto" else "float64"
        arithmetic = f"{precision}, {'cached' if how.kind == k.STORED.value else 'streaming'}"
        width = max(16, min(2048, 2**30 // (n * m)))
        # Lanes are held on the device at no cost, but an audit makes the device wait for the host.
        held = max(EVERY, min(HELD_SPACING, PATIENCE // (2 * n * m * width)))
        return Hints(arithmetic, width, draining=SPACING, held=held)

    @memory_errors()
    def prepare(self, instances: Sequence[Instance[Any]]) -> None:
        """Compile the kernels for such problems; Triton's interpreter compiles nothing."""
        if not interpreted():
            _compile(self._how(instances[0]), self.acceleration == "momentum", self._device(), self.precision)

    @memory_errors()
    def pack(self, instances: Sequence[Instance[Any]]) -> TritonPack:
        """Lay the lanes out on the device and measure their first f-leg."""
        for instance in instances:
            require_form(instance, self.name, FORMS)
        how, momentum = self._how(instances[0]), self.acceleration == "momentum"
        return TritonPack(
            instances, how, self._device(), momentum=momentum, precision=self.precision, couple=self.couple
        )

    @memory_errors()
    def couple(
        self, instances: Sequence[Instance[Any]], potentials: Sequence[Potentials[Any]]
    ) -> TritonCouplings | BlockCouplings:
        """Plans on the device: streamed, or with stored exponents where a pack would have them."""
        if all(instance.is_dense or instance.cost.kind.distances is not None for instance in instances):
            return TritonCouplings(instances, potentials, self._how, self._device())
        # A cost of the caller's own is evaluated on the host, some rows at a time.
        return plain_couplings(instances, potentials)

    def using(self, acceleration: str) -> TritonBackend:
        """Plain Sinkhorn, or with momentum."""
        return replace(self, acceleration=acceleration)

    def precise(self) -> TritonBackend:
        """The same in float64."""
        return replace(self, precision="float64")

    def frugal(self) -> TritonBackend:
        """Return the same backend with cached scores for dense costs only."""
        return replace(self, stored_pairs=0)

    def release(self) -> None:
        """Free the CUDA memory that torch caches."""
        empty_torch_cache()

    def _device(self) -> Any:
        name = ("cpu" if interpreted() else "cuda") if self.device == "auto" else self.device
        return torch.device(name, torch.cuda.current_device()) if name == "cuda" else torch.device(name)

    def _how(self, instance: Instance[Any]) -> How:
        """How its scores are computed."""
        form = None if instance.is_dense else instance.cost.kind.distances
        if form is None:
            return _made(k.STORED.value, 16, 1, True, False)
        (n, m), dim, rooted = instance.shape, instance.dim, form.root
        if dim > STREAMED_DIM and n * m <= self.stored_pairs:
            return _made(k.STORED.value, 16, 1, False, rooted)
        if rooted:
            return _made(k.ROOT.value, 16, 1, False, True)
        if dim <= DIRECT_DIM:
            return _made(k.DIRECT.value, dim, 1, False, False, PACKED)
        dp = 16 if dim <= 16 else 32 if dim <= 32 else 64
        slot = dp if dim + _places(dp) <= dp else 0
        return _made(k.PRODUCT.value, dp, -(-dim // dp), False, False, slot, self.leading and dp == k.ROOMY.value)


def _places(dp: int) -> int:
    """Coordinates that potentials need to enter the product of points of so many."""
    return 4 if dp == k.ROOMY.value else 1


def interpreted() -> bool:
    """True if Triton runs its kernels in Python."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


@lru_cache(maxsize=256)
def _made(kind: int, dp: int, chunks: int, dense: bool, rooted: bool, slot: int = 0, leads: bool = False) -> How:
    gpu = "" if interpreted() or not torch.cuda.is_available() else torch.cuda.get_device_name()
    return How(kind, dp, chunks, dense, rooted, slot, leads, **tile(kind, dp, gpu))


@lru_cache(maxsize=64)
def _compile(how: How, momentum: bool, device: Any, precision: str) -> None:
    """Run every kernel once on a tiny problem."""
    import numpy as np

    dim = 2
    if how.kind in (k.PRODUCT.value, k.DIRECT.value):
        dim = how.dp * how.chunks - (_places(how.dp) if how.slot == how.dp else 0)
    size = 40
    weights = np.full(size, 1 / size)
    points = np.random.default_rng(0).normal(size=(size, dim))
    matrix, x = (np.ones((size, size)), None) if how.dense else (None, points)
    cost = Cost(COSTS["euclidean" if how.rooted else "sqeuclidean"])
    for tol in (1.0, 1e-12):
        instance = Instance(x=x, y=x, a=weights, b=weights, eps=1.0, tol=tol, cost=cost, matrix=matrix)
        pack = TritonPack([instance], how, device, momentum=momentum, precision=precision)
        for small in (True, False):
            pack.small = small
            pack.advance(GLANCE + 2, [-1.0])
        pack.advance(1, [-1.0], lockstep=True)
        pack.verify([0])
        pack.verify([0], exact=True)
        pack.screen([0])
