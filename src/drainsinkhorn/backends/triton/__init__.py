"""The GPU backend: Triton kernels behind the pack contract."""

# pyright: basic

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from typing import Any, Literal

import torch
import triton  # noqa: F401  without it there are no kernels, and the loader says what to install

from drainsinkhorn.backends.conditionals import plain_couplings
from drainsinkhorn.backends.couplings import BlockCouplings
from drainsinkhorn.backends.products import solves_products
from drainsinkhorn.backends.triton.couplings import TritonCouplings
from drainsinkhorn.backends.triton.lanes import FORMS
from drainsinkhorn.backends.triton.pack import TritonPack
from drainsinkhorn.backends.triton.precision import (
    Arithmetic,
    PrecisionPolicy,
    count_places,
    has_blocks,
    interpreted,
    matrix_bytes,
)
from drainsinkhorn.backends.triton.representation import Representation
from drainsinkhorn.backends.triton.resident import LARGEST_SIDE, size_class
from drainsinkhorn.backends.triton.tiles import DIRECT, PRODUCT, STORED
from drainsinkhorn.core.audit import EVERY
from drainsinkhorn.core.protocol import Hints
from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.errors import BackendUnavailable, OptionsError
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.marginal import BALANCED, Marginal, Marginals
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.numerics.costs import COSTS, require_form
from drainsinkhorn.numerics.memory import empty_torch_cache, memory_errors
from drainsinkhorn.numerics.products import has_products

RESIDENT_POINTS = 128
"""Most points of a side of lanes of which one program runs all cycles: with more, launches for cycles are faster."""
SPACING, HELD_SPACING = 32, 1024
"""Cycles between audits if lanes are not refilled; and at most, if lanes that have passed are held."""
WIDEST, WIDEST_RESIDENT = 2048, 16384
"""Most lanes that are recommended for a pack; and if one program runs all cycles of a lane, which costs no launches."""
PACK_BYTES, POINT_BYTES, FALLBACK_BYTES = 2**32, 24, 2**28
"""Most bytes of all lanes of a pack of recommended width, if they are large or have cached scores and `cached_bytes` is
not more; bytes of a coordinate while its lane is loaded; and `cached_bytes` by default without a CUDA device."""
REPORT_PAIRS = 2**42
"""Most pairs between two progress reports, which are about a second and a half."""


@solves_products
@dataclass(frozen=True, slots=True)
class TritonBackend:
    """Triton kernels on a CUDA device (or in Triton's interpreter, for tests).

    Attributes:
        device: A torch device; "auto" is the current CUDA device, the CPU under the interpreter.
        precision: "auto" is float32 for lanes in which sampled rows show it to be accurate enough, else float64.
        cached_bytes: Most bytes of a matrix of scores, four for each pair of points, for which a lane of points in more
            than 64 coordinates caches its scores (of the euclidean cost: at most 2^25 pairs). Other lanes of points
            recompute scores in every leg. None is replaced by half of the device's total memory, rounded down to a
            power of two (2^28 without a CUDA device), when the backend is made: all workers that receive the backend
            use one limit.
        leading: True: early cycles of streaming lanes in more than 32 coordinates compute scores from one product, that
            of float16 high parts, in place of three.
        resident_points: Lanes with at most so many points on either side cache their scores, and one program runs all
            their cycles, without a launch between two cycles. At most 512; 0: there are no such lanes. None: 128, and
            0 in Triton's interpreter.
        acceleration: "momentum" or "none"; `solve` sets it.
        policy: Decisions about precision, made from the attributes above.
    """

    device: str = "auto"
    precision: Literal["auto", "float64"] = "auto"
    cached_bytes: int | None = None
    leading: bool = True
    resident_points: int | None = None
    acceleration: str = "none"
    name: str = field(default="triton", init=False)
    stride: int = field(default=1, init=False)
    bitwise: bool = field(default=True, init=False)
    accelerations: tuple[str, ...] = field(default=("momentum", "none"), init=False)
    soft_marginals: bool = field(default=True, init=False)
    policy: PrecisionPolicy = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        points = self.resident_points
        if points is None:
            points = 0 if interpreted() else RESIDENT_POINTS
        if not 0 <= points <= LARGEST_SIDE:
            raise OptionsError(f"resident_points counts points of a side, from 0 to {LARGEST_SIDE}, got {points!r}")
        if self.cached_bytes is not None and (type(self.cached_bytes) is not int or self.cached_bytes < 0):
            raise OptionsError(f"cached_bytes is a number of bytes, zero or more, got {self.cached_bytes!r}")
        has_device = interpreted() or torch.cuda.is_initialized() or torch.cuda.is_available()
        if self.device == "auto" and not has_device:
            raise BackendUnavailable("backend 'triton' needs a CUDA device, and torch sees none")
        momentum, float64 = self.acceleration == "momentum", self.precision == "float64"
        cached_bytes = _default_bytes(self.device) if self.cached_bytes is None else self.cached_bytes
        policy = PrecisionPolicy(float64, momentum, cached_bytes, self.leading, points)
        # Attributes that are derived here; the class is frozen. Workers and copies get the numbers, not None.
        object.__setattr__(self, "resident_points", points)
        object.__setattr__(self, "cached_bytes", cached_bytes)
        object.__setattr__(self, "policy", policy)

    def signature(self, instance: Instance[Any]) -> Hashable:
        """Return the representation of its scores: lanes of one representation share packs, whatever their sizes."""
        require_form(instance, self.name, FORMS)
        return self.policy.representation(instance)

    def width_for(self, lanes: int) -> int:
        """The width of a pack is its number of lanes."""
        return lanes

    def hints(self, instance: Instance[Any]) -> Hints:
        """Return precision, representation, lanes that fill the device, and how often to audit them."""
        (n, m), policy = instance.shape, self.policy
        form = policy.representation(instance)
        width = max(16, min(WIDEST_RESIDENT if form.one_program else WIDEST, 2**30 // (n * m)))
        is_cached = form.kind == STORED
        if not form.dense and (is_cached or has_blocks((n, m), instance.dim)):
            lane = is_cached * matrix_bytes(n, m) + POINT_BYTES * (n + m) * instance.dim
            width = min(width, max(1, max(policy.cached_bytes, PACK_BYTES) // lane))
        # Lanes are held on the device at no cost, but an audit makes the device wait for the host.
        held = max(EVERY, min(HELD_SPACING, REPORT_PAIRS // (2 * n * m * width)))
        return Hints(policy.describe(form), width, draining=SPACING, held=held)

    @memory_errors()
    def prepare(self, instances: Sequence[Instance[Any]]) -> None:
        """Compile the kernels for such problems; Triton's interpreter compiles nothing."""
        if not interpreted():
            form = self.policy.representation(instances[0])
            shapes = {instance.shape for instance in instances} if form.one_program else ()
            sizes = {size_class(shape, float64=False)[1:3] for shape in shapes} or {(40, 40)}
            softness = {not instance.marginals.are_hard for instance in instances}
            tight = any(not self.policy.may_suffice(Arithmetic.FLOAT32, instance.tol) for instance in instances)
            for size, is_soft in product(sorted(sizes), sorted(softness)):
                compile_kernels(form, self.policy, self._device(), size, is_soft, tight)

    @memory_errors()
    def pack(self, instances: Sequence[Instance[Any]]) -> TritonPack:
        """Load lanes onto the device and measure their first f-leg."""
        for instance in instances:
            require_form(instance, self.name, FORMS)
        policy = self.policy
        form = policy.representation(instances[0])
        return TritonPack(instances, form, self._device(), policy=policy, couple=self.couple)

    @memory_errors()
    def couple(
        self, instances: Sequence[Instance[Any]], potentials: Sequence[Potentials[Any]]
    ) -> TritonCouplings | BlockCouplings:
        """Return plans on the device: streamed, or with cached exponents where a pack would have cached scores."""
        if all(p.is_dense or p.cost.kind.distances is not None or has_products(p) for p in instances):
            # Plans are computed in the same way, whichever kernels ran the cycles and in whichever precision.
            policy = replace(self.policy, resident_points=0, float64=False)
            return TritonCouplings(instances, potentials, policy.representation, self._device())
        # A cost of the caller's own is evaluated on the host, some rows at a time.
        return plain_couplings(instances, potentials)

    def using(self, acceleration: str) -> TritonBackend:
        """Return the same backend with plain Sinkhorn, or with momentum."""
        return replace(self, acceleration=acceleration)

    def precise(self) -> TritonBackend:
        """Return the same backend in float64."""
        return replace(self, precision="float64")

    def frugal(self) -> TritonBackend:
        """Return the same backend with cached scores for dense costs only."""
        return replace(self, cached_bytes=0, resident_points=0)

    def release(self) -> None:
        """Free the CUDA memory that torch caches."""
        empty_torch_cache()

    def _device(self) -> Any:
        name = ("cpu" if interpreted() else "cuda") if self.device == "auto" else self.device
        return torch.device(name, torch.cuda.current_device()) if name == "cuda" else torch.device(name)


def _default_bytes(device: str) -> int:
    """Return half of the total memory of a CUDA device, rounded down to a power of two: free memory may vary."""
    chosen = torch.device("cuda" if device == "auto" else device)
    if interpreted() or chosen.type != "cuda" or (chosen.index or 0) >= torch.cuda.device_count():
        return FALLBACK_BYTES
    return 1 << (torch.cuda.get_device_properties(chosen).total_memory // 2).bit_length() - 1


@lru_cache(maxsize=256)
def compile_kernels(
    form: Representation, policy: PrecisionPolicy, device: Any, size: tuple[int, int] = (40, 40), is_soft: bool = False,
    tight: bool = False,
) -> None:  # fmt: skip
    """Run every kernel once on tiny problems of one size, with soft marginals or hard ones, so that it is compiled.

    Legs from points in three parts are compiled only for `tight` tolerances, and for problems of the most coordinates.
    """
    import numpy as np

    dim = 2
    if form.kind in (PRODUCT, DIRECT):
        dim = form.dp * form.chunks - (count_places(form.dp) if form.places == form.dp else 0)
    a, b = (np.full(points, 1 / points) for points in size)
    x, y = (np.random.default_rng(0).normal(size=(points, dim)) for points in size)
    sides: Any = {"x": None, "y": None, "matrix": np.ones(size)} if form.dense else {"x": x, "y": y, "matrix": None}
    cost = Cost(COSTS["euclidean" if form.rooted else "sqeuclidean"])
    marginals = Marginals(Marginal(1.0), Marginal(1.0)) if is_soft else BALANCED
    for tol in (1.0, 1e-6, 2e-8, 1e-12) if tight else (1.0, 1e-12):
        instance = Instance(**sides, a=a, b=b, eps=1.0, tol=tol, cost=cost, marginals=marginals)
        TritonPack([instance], form, device, policy=policy).compile()
