"""What can be done with finished plans, and what a plan costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import A, Potentials


class TransportCost(NamedTuple):
    """What a plan costs.

    Attributes:
        transport: `sum_ij P_ij C_ij`.
        kl: `KL(P | a b') = sum_ij P_ij log(P_ij / (a_i b_j)) - P_ij + a_i b_j`.
        entropic: `transport + eps * kl`, what the problem minimises.
        dual: `sum_i a_i f_i + sum_j b_j g_j - eps (sum_ij P_ij - 1)`: never above the minimum, and off by a
            term of second order in the residual, so of all numbers here the one closest to it.
    """

    transport: float
    kl: float
    entropic: float
    dual: float


class Couplings(Protocol[A]):
    """Finished plans of some problems, consumed together, in their order. Nothing of size n x m is kept but by `plan`.

    A side is "row" (the points of x) or "col" (the points of y). What comes back lies where the problem's arrays lie.
    """

    def log_ratios(self, side: str = "row") -> list[A]:
        """`log (P 1)_i / a_i` for every point of the side."""
        ...

    def apply(self, values: Sequence[A], side: str = "row") -> list[A]:
        """`P @ values` ("row") or `P.T @ values` ("col"); values are (m,) or (m, ...), one array for each problem."""
        ...

    def average(self, values: Sequence[A], side: str = "row") -> list[A]:
        """Means of values under the conditional law of every point of the side, whatever its own weight."""
        ...

    def barycentric_map(self, side: str = "row") -> list[A]:
        """Conditional mean of the other cloud for every point of the side."""
        ...

    def top_match(self, side: str = "row") -> list[A]:
        """The point of the other side to which each point sends most mass; the first of equals."""
        ...

    def sample(self, count: int, seeds: Sequence[Any]) -> list[tuple[A, A]]:
        """Independent index pairs drawn from each plan."""
        ...

    def partners(self, rows: Sequence[A], seeds: Sequence[Any]) -> list[A]:
        """For given points of x, a point of y each, drawn independently from their laws."""
        ...

    def transport_cost(self) -> list[TransportCost]:
        """What each plan costs."""
        ...

    def slopes(self, side: str = "row", weights: Sequence[A] | None = None) -> list[A]:
        """`sum_j P_ij w_j dC(x_i, y_j)/dx_i`, shaped like the points of the side; weights of one if there are none."""
        ...

    def plan(self, max_pairs: int) -> list[A]:
        """Dense plans; refused above `max_pairs` entries in all."""
        ...


class Coupler(Protocol[A]):
    """What can build finished plans: every backend."""

    @property
    def name(self) -> str:
        """The name users ask for it by."""
        ...

    def couple(self, instances: Sequence[Instance[A]], potentials: Sequence[Potentials[A]]) -> Couplings[A]:
        """The finished plans of some instances with these potentials."""
        ...
