"""One huge problem over many devices: each rank of a torch.distributed group holds some of its rows.

Every rank calls `solve` with the same problems and runs the same executor. A rank's kernels compute with its own rows
and all columns; `RowSharded` wraps them and combines the results of all ranks. Row sums need nothing from other ranks.
A column sum is combined from the partial sums of the ranks:

    log sum_i t_ij = M_j + log sum_r exp(L_rj - M_j),    L_rj over the rows of rank r,  M_j = max_r L_rj

Every number on which the executor bases a decision is reduced on rank 0 and broadcast, so all ranks take the same
decision about a lane.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.backends.conditionals import plain_couplings
from drainsinkhorn.backends.couplings import BlockCouplings
from drainsinkhorn.backends.dense import Geometry, Kernels
from drainsinkhorn.backends.lanes import LanePack
from drainsinkhorn.backends.products import solves_products
from drainsinkhorn.backends.reference import ReferenceLane
from drainsinkhorn.backends.support import part, restrict
from drainsinkhorn.core.protocol import Emission, Hints, Progress
from drainsinkhorn.model.errors import BackendUnavailable, FleetError, OptionsError
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.model.result import Residuals
from drainsinkhorn.numerics.costs import UNIT, require_form
from drainsinkhorn.numerics.memory import empty_torch_cache, memory_errors
from drainsinkhorn.numerics.rounding import SAFETY
from drainsinkhorn.run.journal import fingerprint

FORMS = ("distances", "matrix")
"""Forms of costs that it has kernels for."""

Vector = NDArray[np.float64]
T = TypeVar("T")


class Ranks:
    """A torch.distributed group: gloo between CPUs, nccl between GPUs."""

    def __init__(self, group: Any = None) -> None:
        try:
            import torch
            import torch.distributed as distributed
        except ImportError as error:
            raise BackendUnavailable(
                f"rows are shared out by torch ({error}); pip install 'drainsinkhorn[torch]'"
            ) from error
        if not distributed.is_available() or not distributed.is_initialized():
            raise FleetError(
                "torch.distributed has no group yet; call init_process_group first, or start with torchrun"
            )
        self._torch, self._distributed, self._group = torch, distributed, group
        self.rank, self.size = distributed.get_rank(group), distributed.get_world_size(group)
        self._root = 0 if group is None else distributed.get_global_rank(group, 0)
        self.device = "cuda" if distributed.get_backend(group) == "nccl" else "cpu"

    def combine(self, values: Vector, operation: Literal["SUM", "MAX", "MIN"]) -> Vector:
        """The sum, maximum or minimum over ranks, computed by rank 0, so that all ranks agree to the bit."""
        reduction = getattr(self._distributed.ReduceOp, operation)

        def exchange() -> Vector:
            tensor = self._torch.from_numpy(np.array(values, dtype=np.float64)).to(self.device)
            self._distributed.reduce(tensor, self._root, reduction, group=self._group)
            self._distributed.broadcast(tensor, self._root, group=self._group)
            return tensor.cpu().numpy()

        return self._together(exchange)

    def broadcast(self, values: Vector) -> Vector:
        """Return the values of rank 0, on every rank."""

        def exchange() -> Vector:
            tensor = self._torch.from_numpy(np.array(values, dtype=np.float64)).to(self.device)
            self._distributed.broadcast(tensor, self._root, group=self._group)
            return tensor.cpu().numpy()

        return self._together(exchange)

    def number(self, value: float, operation: Literal["SUM", "MAX", "MIN"]) -> float:
        """`combine` for one number."""
        return float(self.combine(np.array([value]), operation)[0])

    def all_true(self, mine: bool) -> bool:
        """Return True if `mine` is true on all ranks."""
        return self.number(float(mine), "MIN") == 1.0

    def gather(self, value: Any) -> list[Any]:
        """A value of every rank, in the order of the ranks; it must be possible to pickle them."""

        def exchange() -> list[Any]:
            values: list[Any] = [None] * self.size
            self._distributed.all_gather_object(values, value, group=self._group)
            return values

        return self._together(exchange)

    def gather_rows(self, rows: Any) -> Any:
        """A torch tensor with the rows of all ranks, in their order, on the device of this rank's rows.

        Args:
            rows: A tensor (n, ...); n may differ between ranks, the other dimensions and the dtype may not.
        """
        torch = self._torch
        sizes = self.gather(len(rows))
        # As bytes, since not every backend of torch.distributed can send every dtype.
        sent = rows.contiguous().reshape(-1).view(torch.uint8).to(self.device)
        width = rows.element_size() * int(np.prod(rows.shape[1:]))

        def exchange() -> Any:
            padded = sent.new_zeros(width * max(sizes))
            padded[: sent.numel()] = sent
            received = [torch.empty_like(padded) for _ in sizes]
            self._distributed.all_gather(received, padded, group=self._group)
            return torch.cat([part[: width * size] for part, size in zip(received, sizes, strict=True)])

        return self._together(exchange).to(rows.device).view(rows.dtype).reshape(-1, *rows.shape[1:])

    def agree(self, instances: Sequence[Instance[Any]]) -> None:
        """Make sure that all ranks were given the same problems."""
        digests = b"".join(fingerprint(instance.as_problem()) for instance in instances)
        digest = fingerprint(Problem(eps=len(instances), chain=digests))
        mine = np.frombuffer(digest, dtype=np.uint8).astype(np.float64)
        if not self.all_true(bool(np.array_equal(mine, self.broadcast(mine)))):
            raise FleetError(
                "ranks were given different problems; every rank must solve the same ones in the same order"
            )

    def _together(self, exchange: Callable[[], T]) -> T:
        try:
            return exchange()
        except RuntimeError as error:
            raise FleetError(
                f"rank {self.rank} of {self.size} cannot go on: another rank has died, failed or fallen silent "
                f"({' '.join(str(error).split())[:200]}); start all ranks again"
            ) from error


class RowSharded:
    """Kernels of a whole problem, whose rows are distributed over ranks: see `Kernels`.

    The kernels of this rank compute with its own rows; results for sums over rows are combined from all ranks.

    Args:
        instance: The whole problem, on its support.
        make: Makes the kernels of a problem; it is called with the rows of this rank.
        ranks: The group of processes over which the rows are distributed.
    """

    holds_all_rows: bool = False

    def __init__(self, instance: Instance[Any], make: Callable[[Instance[Any]], Kernels], ranks: Ranks) -> None:
        n, m = instance.shape
        bounds = [n * rank // ranks.size for rank in range(ranks.size + 1)]
        self._rows = slice(bounds[ranks.rank], bounds[ranks.rank + 1])
        self._n, self._ranks = n, ranks
        mine = np.arange(n)[self._rows]
        # A rank without rows has no kernels; it only listens.
        self._inner = make(part(instance, mine, np.arange(m))) if mine.size else None
        self.eps = instance.eps
        self.a, self.b = np.asarray(instance.a)[self._rows], np.asarray(instance.b)

    def log_row_ratio(self, f: Vector, g: Vector) -> Vector:
        """Log marginal ratios of the rows of this rank; ranks exchange nothing."""
        return np.empty(0) if self._inner is None else self._inner.log_row_ratio(f, g)

    def log_col_ratio(self, f: Vector, g: Vector) -> Vector:
        """Log marginal ratios of all columns, combined from all ranks."""
        mine = np.full(g.shape, -np.inf) if self._inner is None else self._inner.log_col_ratio(f, g)
        largest = self._ranks.combine(mine, "MAX")
        return largest + np.log(self._ranks.combine(np.exp(mine - largest), "SUM"))

    def band(self, f: Vector, g: Vector) -> float:
        """The largest bound of all ranks, plus the rounding of sums over rows of other ranks."""
        mine = 0.0 if self._inner is None else self._inner.band(f, g)
        return self._ranks.number(mine, "MAX") + SAFETY * UNIT * (self._n + self._ranks.size)

    def over_rows(self, values: Vector) -> float:
        """The sum over the rows of all ranks."""
        return self._ranks.number(float(np.sum(values)), "SUM")

    def over_cols(self, values: Vector) -> float:
        """The sum over the columns, which every rank has. Rank 0 broadcasts its sum, so all ranks have equal bits."""
        return float(self._ranks.broadcast(np.array([np.sum(values)]))[0])

    def most_over_rows(self, values: Vector) -> float:
        """The largest value over the rows of all ranks."""
        return self._ranks.number(float(np.max(values, initial=-np.inf)), "MAX")

    def finite(self, f: Vector, g: Vector) -> bool:
        """Whether every number of every rank is finite."""
        return self._ranks.all_true(bool(np.isfinite(f).all() and np.isfinite(g).all()))

    def split(self, f: Vector, g: Vector) -> tuple[Vector, Vector]:
        """Return f of the rows of this rank and g of all columns, both with the values that rank 0 was given."""
        both = self._ranks.broadcast(np.concatenate([f, g]))
        return both[: self._n][self._rows], both[self._n :]

    def join(self, f: Vector) -> Vector:
        """Return the potentials of all rows, (n,), from those of each rank's rows."""
        rows = np.zeros(self._n)
        rows[self._rows] = f
        return self._ranks.combine(rows, "SUM")


class RowShardedPack(LanePack[ReferenceLane]):
    """Lanes whose rows are shared out. All ranks have room for a lane, or none admits it."""

    def __init__(
        self,
        instances: Sequence[Instance[Any]],
        make: Callable[[Instance[Any]], Kernels],
        ranks: Ranks,
        *,
        momentum: bool,
    ) -> None:
        self._make, self._ranks, self._momentum = make, ranks, momentum
        self._prepared: list[RowSharded] = []
        super().__init__(instances, self._open)

    def repack(self, keep: Sequence[int], admit: Sequence[Instance[Any]] = ()) -> None:
        """Keep these lanes, in this order, and append the admitted."""
        if admit:
            self._ranks.agree(admit)
            self._prepare(admit)
        with self._in_step():
            super().repack(keep, admit)

    def advance(self, cycles: int, stops: Sequence[float], *, lockstep: bool = False) -> Progress:
        """Run cycles one after another, in step with the other ranks."""
        with self._in_step():
            return super().advance(cycles, stops, lockstep=lockstep)

    def screen(self, lanes: Sequence[int]) -> list[float]:
        """Return row residuals, computed without updating potentials, in step with the other ranks."""
        with self._in_step():
            return super().screen(lanes)

    def verify(self, lanes: Sequence[int], *, exact: bool = False) -> Residuals:
        """Return both residuals of the states as they will be emitted, in step with the other ranks."""
        with self._in_step():
            return super().verify(lanes, exact=exact)

    def emit(self, lanes: Sequence[int]) -> Emission:
        """Return copies for the caller, in step with the other ranks."""
        with self._in_step():
            return super().emit(lanes)

    @contextmanager
    def _in_step(self) -> Iterator[None]:
        """A context for collective operations. A rank that runs out of memory in it raises FleetError and ends."""
        try:
            with memory_errors():
                yield
        except MemoryError as error:
            ranks = self._ranks
            raise FleetError(
                f"rank {ranks.rank} of {ranks.size} ran out of memory while all ranks computed together ({error}); use "
                'more ranks or kernels="streaming", and start all ranks again'
            ) from error

    def _prepare(self, instances: Sequence[Instance[Any]]) -> None:
        """Build the kernels of this rank; if memory does not suffice on one rank, raise MemoryError on all."""
        trouble = ""
        try:
            with memory_errors():
                self._prepared = [RowSharded(restrict(instance)[0], self._make, self._ranks) for instance in instances]
        except MemoryError as error:
            trouble = str(error) or "it has no memory left"
        if not self._ranks.all_true(not trouble):
            self._prepared = []
            raise MemoryError(trouble or "another rank has not enough memory")

    def _open(self, instance: Instance[Any]) -> ReferenceLane:
        return ReferenceLane(instance, momentum=self._momentum, kernels=lambda _: self._prepared.pop(0))


@solves_products
@dataclass(frozen=True, slots=True)
class RowShardedBackend:
    """Distributes the rows of every problem over the ranks of a torch.distributed group and computes in float64.

    Start the program on every rank (torchrun), call `torch.distributed.init_process_group`, and then `solve` with the
    same problems everywhere; every rank gets every result. Give the group a `timeout`: it is how long a rank waits for
    one that has fallen silent; one that has died is noticed at once.

    Attributes:
        kernels: "dense" keeps a rank's part of the matrix (16 bytes for each pair); "streaming" recomputes scores from
            the points with torch, on `device`; "auto" is "streaming" for an nccl group or if a rank has more than
            `dense_pairs` pairs, else "dense".
        device: Where streaming kernels run: a torch device; "auto" is cuda for an nccl group, else cpu.
        dense_pairs: Largest number of pairs of a rank for which "auto" is "dense".
        group: The group; None: all ranks.
        acceleration: "momentum" or "none"; `solve` sets it.
    """

    kernels: Literal["auto", "dense", "streaming"] = "auto"
    device: str = "auto"
    dense_pairs: int = 2**26
    group: Any = None
    acceleration: str = "none"
    name: str = field(default="row-sharded", init=False)
    stride: int = field(default=1, init=False)
    bitwise: bool = field(default=True, init=False)
    accelerations: tuple[str, ...] = field(default=("momentum", "none"), init=False)
    soft_marginals: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        if self.kernels not in ("auto", "dense", "streaming"):
            raise OptionsError(f'kernels must be "auto", "dense" or "streaming", got {self.kernels!r}')

    def signature(self, instance: Instance[Any]) -> Hashable:
        """Problems with the same kind of kernels share packs."""
        if self._streams(instance, Ranks(self.group)):
            require_form(instance, self.name, FORMS)
        return self._arithmetic(instance)

    def width_for(self, lanes: int) -> int:
        """The width of a pack is its number of lanes."""
        return lanes

    def hints(self, instance: Instance[Any]) -> Hints:
        """Return the kind of kernels and the number of ranks as arithmetic, and a width of 1, for huge problems."""
        return Hints(self._arithmetic(instance), 1)

    def prepare(self, instances: Sequence[Instance[Any]]) -> None:
        """Nothing to do."""

    def pack(self, instances: Sequence[Instance[Any]]) -> RowShardedPack:
        """Share the rows out and measure every lane's first f-leg."""
        ranks = Ranks(self.group)
        make = self._streaming(ranks) if self._streams(instances[0], ranks) else Geometry
        return RowShardedPack(instances, make, ranks, momentum=self.acceleration == "momentum")

    def couple(self, instances: Sequence[Instance[Any]], potentials: Sequence[Potentials[Any]]) -> BlockCouplings:
        """Plans in plain NumPy, some rows at a time, on every rank."""
        return plain_couplings(instances, potentials)

    def precise(self) -> RowShardedBackend:
        """Return itself: it always computes in float64."""
        return self

    def frugal(self) -> RowShardedBackend:
        """Return the same backend with `kernels="streaming"`."""
        return replace(self, kernels="streaming")

    def release(self) -> None:
        """Free the CUDA memory that torch caches."""
        empty_torch_cache()

    def using(self, acceleration: str) -> RowShardedBackend:
        """Return the same backend with plain Sinkhorn, or with momentum."""
        return replace(self, acceleration=acceleration)

    def _arithmetic(self, instance: Instance[Any]) -> str:
        ranks = Ranks(self.group)
        kernels = "streaming" if self._streams(instance, ranks) else "dense"
        return f"float64, {kernels}, rows over {ranks.size} ranks"

    def _streams(self, instance: Instance[Any], ranks: Ranks) -> bool:
        if self.kernels != "auto":
            return self.kernels == "streaming"
        n, m = instance.shape
        return ranks.device == "cuda" or n * m > self.dense_pairs * ranks.size

    def _streaming(self, ranks: Ranks) -> Callable[[Instance[Any]], Kernels]:
        from drainsinkhorn.fleet.torch_kernels import TorchKernels

        device = ranks.device if self.device == "auto" else self.device
        return lambda instance: TorchKernels(instance, device)
