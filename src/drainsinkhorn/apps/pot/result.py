"""Results with the fields of POT's OTResult, computed from finished potentials when they are read."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.apps.pot.arguments import export
from drainsinkhorn.apps.pot.lazy import LazyPlan
from drainsinkhorn.model.couplings import Couplings, TransportCost
from drainsinkhorn.model.result import Result
from drainsinkhorn.numerics.arrays import library, to_numpy
from drainsinkhorn.plans.consumers import couplings

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class FinishedProblem:
    """A finished problem, its weights, and the mass that they had before they were normalised.

    Attributes:
        result: Its result.
        a: Source weights of mass 1, or as they were given if a marginal is soft, (n,).
        b: Target weights, (m,).
        mass: Sum of the source weights as the caller gave them, which is the mass of POT's plan; 1 if a marginal is
            soft.
        rho: Prices of soft marginals; None: both are hard.
    """

    result: Result[Any]
    a: Vector
    b: Vector
    mass: float
    rho: tuple[float, float] | None = None

    @property
    def is_solved(self) -> bool:
        """True if there are potentials, converged or not."""
        return self.result.emitted is not None

    def value(self, costs: TransportCost, eps: float, regulariser: str, transported: float = 1.0) -> float:
        """Return POT's objective of the plan: `sum P C + eps R(P)` with R(P) = KL(P | a b') or sum P log P.

        With soft marginals their prices are added. POT's KL(p | q) is `sum p log(p / q)`, without the masses of p and
        q. `transported` is the mass of the plan, which is used in this case alone.
        """
        if self.rho is not None:
            mass, masses = transported, (float(self.a.sum()), float(self.b.sum()))
            prices = [rho * (mass - own) for rho, own in zip(self.rho, masses, strict=True) if rho < math.inf]
            return costs.entropic + eps * (mass - masses[0] * masses[1]) + sum(prices)
        log_mass = float(np.log(self.mass))
        penalty = costs.kl - log_mass
        if regulariser == "entropy":
            penalty = costs.kl + negative_entropy(self.a) + negative_entropy(self.b) + log_mass
        return self.mass * (costs.transport + eps * penalty)

    def log_scalings(self, eps: float) -> tuple[Vector, Vector]:
        """Return the logarithms of POT's scaling vectors: `P = diag(u) exp(-C / eps) diag(v)`.

        Of all pairs `(log u + t, log v - t)`, which have one plan, it is the one with `sum_j b_j g_j = 0`, the gauge of
        potentials that are differentiated. With a soft marginal there is one pair, and `P = diag(u) K diag(v)` with
        `K = a b' exp(-C / eps)`, as in POT.
        """
        if self.result.emitted is None:
            return np.full(self.a.shape, np.nan), np.full(self.b.shape, np.nan)
        f, g = (to_numpy(side).astype(np.float64) / eps for side in self.result.emitted)
        if self.rho is not None:
            return f, g
        has_mass = self.b > 0
        shift = float((self.b[has_mass] * g[has_mass]).sum())
        half = float(np.log(self.mass)) / 2
        with np.errstate(divide="ignore"):
            return f + shift + np.log(self.a) + half, g - shift + np.log(self.b) + half


def negative_entropy(weights: Vector) -> float:
    """Return `sum w log w`; points without weight add 0."""
    positive = weights[weights > 0]
    return float((positive * np.log(positive)).sum())


class Tensors(Protocol):
    """Fields of a result as tensors of torch that carry derivatives, one for each problem; None: the field has none."""

    def values(self) -> list[Any] | None:
        """Objectives."""
        ...

    def linear_values(self) -> list[Any] | None:
        """Transport costs."""
        ...

    def plans(self) -> list[Any] | None:
        """Dense plans."""
        ...

    def log_scalings(self) -> tuple[list[Any], list[Any]] | None:
        """Logarithms of scaling vectors."""
        ...


class OTResult:
    """The answer to one problem, or to a batch of problems of one shape, under the names of POT's OTResult.

    Fields are computed when they are first read: a problem with many points needs no n x m memory unless `plan` is
    read. Arrays have the library, device and dtype of the cost matrix, or of the points. For a batch, every field has
    an axis of length W in front. Problems that are INVALID have NaN in every field.

    Attributes:
        solution: The results of this library, one for each problem.
        log: "niter" and "err", the cycles and the verified L1 residual of each problem, and what the called function
            adds.
    """

    def __init__(
        self,
        lanes: Sequence[FinishedProblem],
        solution: Sequence[Result[Any]],
        *,
        eps: float,
        regulariser: str,
        like: Any,
        stacked: bool,
        scalings: bool = False,
        tensors: Tensors | None = None,
    ) -> None:
        self.solution = solution
        self._scalings = scalings
        self._within: tuple[OTResult, ...] = ()
        self._lanes = list(lanes)
        self._eps, self._regulariser = eps, regulariser
        self._like, self._stacked, self._tensors = like, stacked, tensors
        self.log: dict[str, Any] = {
            "niter": self._of_each(lambda result: result.depth),
            "err": self._of_each(lambda result: result.residual.worst),
        }

    def less(self, first: OTResult, second: OTResult) -> OTResult:
        """Return this result with values less half of those of two others, which are added to its log.

        Args:
            first: The result between the source points and themselves.
            second: The result between the target points and themselves.
        """
        debiased = copy(self)
        debiased._within = (first, second)
        debiased.log = {**self.log, "res_aa": first, "res_bb": second, "res_ab": self}
        return debiased

    def _of_each(self, read: Callable[[Result[Any]], Any]) -> Any:
        """One entry for each problem of a batch, or that of the only problem."""
        entries = [read(lane.result) for lane in self._lanes]
        return entries if self._stacked else entries[0]

    @property
    def is_batch(self) -> bool:
        """True if fields have one entry for each problem of a batch."""
        return self._stacked

    @property
    def status(self) -> Any:
        """How the problem ended: "CONVERGED", or another name in `drainsinkhorn.Status`; for a batch a list."""
        return self._of_each(lambda result: result.status.name)

    @cached_property
    def _groups(self) -> list[tuple[list[int], Couplings[Any]]]:
        """Finished plans of the problems that have potentials, with their places."""
        solved = [place for place, lane in enumerate(self._lanes) if lane.is_solved]
        # The solve has already warned of problems that did not converge.
        groups = couplings([replace(self._lanes[place].result, warns=False) for place in solved])
        return [([solved[k] for k in places], plans) for places, plans in groups]

    def _per_lane(self, verb: Callable[[Couplings[Any]], Sequence[Any]]) -> list[Any]:
        """Call a method of finished plans; one value for each problem, None for one that is INVALID."""
        values: list[Any] = [None] * len(self._lanes)
        for places, plans in self._groups:
            for place, value in zip(places, verb(plans), strict=True):
                values[place] = value
        return values

    @cached_property
    def _costs(self) -> list[TransportCost | None]:
        return self._per_lane(lambda plans: plans.transport_cost())

    def _export(self, arrays: Sequence[Any]) -> Any:
        """Return NumPy arrays, one for each problem, in the caller's library and dtype."""
        return export(np.stack(arrays) if self._stacked else np.asarray(arrays[0]), self._like)

    def _join(self, tensors: Sequence[Any]) -> Any:
        return sys.modules["torch"].stack(list(tensors)) if self._stacked else tensors[0]

    def _numbers(self, value: Callable[[FinishedProblem, TransportCost], float]) -> Any:
        pairs = zip(self._lanes, self._costs, strict=True)
        return self._export([np.nan if costs is None else value(lane, costs) for lane, costs in pairs])

    @cached_property
    def value(self) -> Any:
        """`sum P C + reg KL(P | a b')`, or `sum P C + reg sum P log P` for reg_type "entropy"."""
        return self._objective() - sum(other.value / 2 for other in self._within)

    @cached_property
    def value_linear(self) -> Any:
        """The transport cost `sum P C`."""
        return self._transport() - sum(other.value_linear / 2 for other in self._within)

    def _objective(self) -> Any:
        tensors = self._tensors.values() if self._tensors else None
        if tensors is not None:
            return self._join(tensors)
        # Soft problems come alone, so that the mass is that of the only plan.
        mass = float(self._sums("row")[0].sum()) if self._lanes[0].rho is not None else 1.0
        return self._numbers(lambda lane, costs: lane.value(costs, self._eps, self._regulariser, mass))

    def _transport(self) -> Any:
        tensors = self._tensors.linear_values() if self._tensors else None
        if tensors is not None:
            return self._join(tensors)
        return self._numbers(lambda lane, costs: lane.mass * costs.transport)

    @property
    def value_quad(self) -> None:
        """None: there is no quadratic term."""

    @cached_property
    def plan(self) -> Any:
        """The dense plan, (n, m)."""
        tensors = self._tensors.plans() if self._tensors else None
        if tensors is not None:
            return self._join(tensors)
        pairs = sum(lane.a.size * lane.b.size for lane in self._lanes)
        dense = self._per_lane(lambda plans: plans.plan(max_pairs=max(1, pairs)))
        scaled = [_times(plan, lane) for plan, lane in zip(dense, self._lanes, strict=True)]
        if library(self._like) != "torch" or any(plan is None for plan in dense):
            return self._export([to_numpy(plan) for plan in scaled])
        return export(self._join(scaled), self._like)

    @cached_property
    def potentials(self) -> tuple[Any, Any]:
        """`(log u, log v)` with `P = diag(u) exp(-C / reg) diag(v)`, as `ot.solve` returns them.

        In this library's convention `f = reg (log u - log a)` and `g = reg (log v - log b)`, for weights of mass 1.
        """
        tensors = self._tensors.log_scalings() if self._tensors else None
        if tensors is not None:
            u, v = (self._join(side) for side in tensors)
        else:
            pairs = [lane.log_scalings(self._eps) for lane in self._lanes]
            u, v = (self._export([pair[side] for pair in pairs]) for side in (0, 1))
        return (exponential(u), exponential(v)) if self._scalings else (u, v)

    @property
    def potential_a(self) -> Any:
        """`log u`, (n,)."""
        return self.potentials[0]

    @property
    def potential_b(self) -> Any:
        """`log v`, (m,)."""
        return self.potentials[1]

    def _marginal(self, side: str) -> Any:
        return self._export(self._sums(side))

    def _sums(self, side: str) -> list[Vector]:
        """Sums of the rows ("row") or columns ("col") of each plan in float64."""
        logs = self._per_lane(lambda plans: plans.log_ratios(side))
        sums: list[Vector] = []
        for lane, log_ratios in zip(self._lanes, logs, strict=True):
            weights = lane.a if side == "row" else lane.b
            ratios = np.nan if log_ratios is None else np.exp(to_numpy(log_ratios).astype(np.float64))
            sums.append(np.where(weights > 0, lane.mass * weights * ratios, 0.0))
        return sums

    @cached_property
    def marginal_a(self) -> Any:
        """Sums of the rows of the plan, (n,)."""
        return self._marginal("row")

    @cached_property
    def marginal_b(self) -> Any:
        """Sums of the columns of the plan, (m,)."""
        return self._marginal("col")

    @property
    def marginals(self) -> tuple[Any, Any]:
        """Sums of the rows and of the columns of the plan."""
        return self.marginal_a, self.marginal_b

    @property
    def lazy_plan(self) -> LazyPlan | None:
        """The plan, of which only the indexed rows are computed: `lazy_plan[10:20]`; None for a batch."""
        if self._stacked or not self._lanes[0].is_solved:
            return None
        result = replace(self._lanes[0].result, warns=False)
        return LazyPlan(result, self._lanes[0].mass, self._like)

    @property
    def sparse_plan(self) -> Any:
        """The plan as a sparse matrix: SciPy's CSR for NumPy arrays, torch's for tensors; not for JAX or a batch."""
        if self._stacked or library(self._like) == "jax":
            raise NotImplementedError("there are no sparse plans of batches or of JAX arrays; use plan or lazy_plan")
        if library(self._like) == "torch":
            return self.plan.to_sparse_csr()
        from scipy.sparse import csr_matrix

        return csr_matrix(self.plan)

    def __repr__(self) -> str:
        shape = (self._lanes[0].a.size, self._lanes[0].b.size)
        return f"OTResult({f'{len(self._lanes)} problems, ' if self._stacked else ''}shape={shape}, {self.status})"


def exponential(logs: Any) -> Any:
    """Return the exponentials of an array, in its library."""
    kind = library(logs)
    if kind == "torch":
        return logs.exp()
    with np.errstate(over="ignore"):
        return sys.modules["jax"].numpy.exp(logs) if kind == "jax" else np.exp(logs)


def _times(plan: Any, lane: FinishedProblem) -> Any:
    """The plan with the caller's mass; NaN for an INVALID problem."""
    if plan is None:
        return np.full((lane.a.size, lane.b.size), np.nan)
    return plan if lane.mass == 1 else plan * lane.mass
