"""The protocol of finished plans, which backends implement and `plans` consumes, and the costs of a plan.

It is part of the model and not of `plans`, because `Result` and every backend refer to it, and neither `model` nor
`backends` may import `plans`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import A, Potentials


class TransportCost(NamedTuple):
    """The costs of a plan.

    Attributes:
        transport: `sum_ij P_ij C_ij`.
        kl: `KL(P | a b') = sum_ij P_ij log(P_ij / (a_i b_j)) - P_ij + a_i b_j`.
        entropic: `transport + eps * kl`, and the prices of soft marginals: the objective of the problem.
        dual: `sum_i a_i f_i + sum_j b_j g_j - eps (sum_ij P_ij - 1)`: never above the minimum of the objective, and
            below it by a term of second order in the residual, so the best estimate of that minimum. With a soft
            marginal it is `numerics.soft.soft_dual_value`.
        mass: `sum_ij P_ij`, the transported mass.
        penalty: `rho_a KL(P 1 | a) + rho_b KL(P' 1 | b)`, the prices of soft marginals, which `entropic` contains; 0 if
            both are hard.
    """

    transport: float
    kl: float
    entropic: float
    dual: float
    mass: float
    penalty: float


class Certificate(NamedTuple):
    """What is certain of a plan, computed from its potentials in float64, whether it converged or not.

    `distance` and `gap` bound how far the plan is from the optimal plan P* of the same problem; they are infinite where
    nothing is certain. See docs/guides/certificates.md.

    Attributes:
        row: Residual of the rows, as in Residual.
        col: Residual of the columns.
        band: A rigorous bound on the rounding error of both.
        mass: `sum_ij P_ij`, the transported mass.
        gap: Bound on how far the dual value is below the optimum, and with a soft marginal also on how far the
            objective of the plan is above it. A side that is hard, while the other is soft, is made exact first.
        distance: Bound on `sum_ij |P_ij - P*_ij|`.
    """

    row: float
    col: float
    band: float
    mass: float
    gap: float
    distance: float


class Couplings(Protocol[A]):
    """Finished plans of several problems, consumed together, in their order. Only `plan` stores n x m arrays.

    A side is "row" (the points of x) or "col" (the points of y). Returned arrays have the library and the device of the
    problem's arrays.
    """

    def log_ratios(self, side: str = "row") -> list[A]:
        """`log((P 1)_i / a_i)` for every point of the side."""
        ...

    def apply(self, values: Sequence[A], side: str = "row") -> list[A]:
        """`P @ values` ("row") or `P.T @ values` ("col"); values are (m,) or (m, ...), one array for each problem."""
        ...

    def average(self, values: Sequence[A], side: str = "row") -> list[A]:
        """Mean of the values under the conditional distribution of each point of the side, even if its weight is 0."""
        ...

    def barycentric_map(self, side: str = "row") -> list[A]:
        """Conditional mean of the other cloud for every point of the side."""
        ...

    def top_match(self, side: str = "row") -> list[A]:
        """Index of the point of the other side to which each point sends most mass; the first one if several do."""
        ...

    def sample(self, count: int, seeds: Sequence[Any]) -> list[tuple[A, A]]:
        """`count` independent index pairs (i, j) drawn from each plan, as two arrays (count,); one seed per plan."""
        ...

    def partners(self, rows: Sequence[A], seeds: Sequence[Any]) -> list[A]:
        """For each index of a point of x, the index of a point of y drawn from its conditional distribution."""
        ...

    def transport_cost(self) -> list[TransportCost]:
        """The costs of each plan."""
        ...

    def certificates(self) -> list[Certificate]:
        """What is certain of each plan."""
        ...

    def slopes(self, side: str = "row", weights: Sequence[A] | None = None) -> list[A]:
        """`sum_j P_ij w_j dC(x_i, y_j)/dx_i`, shaped like the points of the side; weights None: all 1."""
        ...

    def plan(self, max_pairs: int) -> list[A]:
        """Dense plans, (n, m); ProblemError if they have more than `max_pairs` entries in all."""
        ...


class Coupler(Protocol[A]):
    """Builds finished plans. Every backend is a Coupler."""

    @property
    def name(self) -> str:
        """The name by which users select the backend."""
        ...

    def couple(self, instances: Sequence[Instance[A]], potentials: Sequence[Potentials[A]]) -> Couplings[A]:
        """The finished plans of these instances with these potentials."""
        ...
