"""A backend and a pack that pass every call on to another; subclasses change some of the methods."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from drainsinkhorn.core.protocol import Backend, Emission, Hints, Pack, Progress, Spent
from drainsinkhorn.model.couplings import Couplings
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.model.result import Residuals


class WrappedPack:
    """See core.protocol.Pack."""

    def __init__(self, inner: Pack[Any]) -> None:
        self.inner = inner

    @property
    def width(self) -> int:
        """See Pack."""
        return self.inner.width

    @property
    def spent(self) -> Spent:
        """See Pack."""
        return self.inner.spent

    def advance(self, cycles: int, stops: Sequence[float], *, lockstep: bool = False) -> Progress:
        """See Pack."""
        return self.inner.advance(cycles, stops, lockstep=lockstep)

    def screen(self, lanes: Sequence[int]) -> Sequence[float]:
        """See Pack."""
        return self.inner.screen(lanes)

    def verify(self, lanes: Sequence[int], *, exact: bool = False) -> Residuals:
        """See Pack."""
        return self.inner.verify(lanes, exact=exact)

    def emit(self, lanes: Sequence[int]) -> Emission:
        """See Pack."""
        return self.inner.emit(lanes)

    def freeze(self, lanes: Sequence[int]) -> None:
        """See Pack."""
        self.inner.freeze(lanes)

    def repack(self, keep: Sequence[int], admit: Sequence[Instance[Any]] = ()) -> None:
        """See Pack."""
        self.inner.repack(keep, admit)


@dataclass(frozen=True)
class WrappedBackend:
    """See core.protocol.Backend.

    Attributes:
        inner: The backend that computes.
    """

    inner: Backend[Any]

    @property
    def name(self) -> str:
        """Name of the backend that computes."""
        return self.inner.name

    @property
    def stride(self) -> int:
        """See Backend."""
        return self.inner.stride

    @property
    def bitwise(self) -> bool:
        """See Backend."""
        return self.inner.bitwise

    @property
    def accelerations(self) -> Sequence[str]:
        """See Backend."""
        return self.inner.accelerations

    @property
    def soft_marginals(self) -> bool:
        """See Backend."""
        return self.inner.soft_marginals

    def signature(self, instance: Instance[Any]) -> Hashable:
        """See Backend."""
        return self.inner.signature(instance)

    def width_for(self, lanes: int) -> int:
        """See Backend."""
        return self.inner.width_for(lanes)

    def hints(self, instance: Instance[Any]) -> Hints:
        """See Backend."""
        return self.inner.hints(instance)

    def prepare(self, instances: Sequence[Instance[Any]]) -> None:
        """See Backend."""
        self.inner.prepare(instances)

    def pack(self, instances: Sequence[Instance[Any]]) -> Pack[Any]:
        """See Backend."""
        return WrappedPack(self.inner.pack(instances))

    def couple(self, instances: Sequence[Instance[Any]], potentials: Sequence[Potentials[Any]]) -> Couplings[Any]:
        """See Backend."""
        return self.inner.couple(instances, potentials)

    def using(self, acceleration: str) -> WrappedBackend:
        """See Backend."""
        return replace(self, inner=self.inner.using(acceleration))

    def precise(self) -> Backend[Any]:
        """The inner backend in float64, not wrapped: a rescue is a separate run."""
        return self.inner.precise()

    def frugal(self) -> WrappedBackend:
        """See Backend."""
        return replace(self, inner=self.inner.frugal())

    def release(self) -> None:
        """See Backend."""
        self.inner.release()
