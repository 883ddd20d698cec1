"""From batched inputs to lanes and back: functions that `grad.torch` and `grad.jax` share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.couplings import Couplings
from drainsinkhorn.model.eps import is_descriptor
from drainsinkhorn.model.errors import ConvergenceWarning, ProblemError, warn
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.model.result import Result
from drainsinkhorn.numerics.arrays import is_array, to_caller, to_numpy
from drainsinkhorn.numerics.costs import as_cost
from drainsinkhorn.numerics.derivatives import price_slope, weight_slope
from drainsinkhorn.plans.consumers import couplings
from drainsinkhorn.run.marginals import parse_marginals, price_column
from drainsinkhorn.run.resolve import require_fixed, resolve_eps
from drainsinkhorn.run.solution import Solution
from drainsinkhorn.run.solve import DEFAULTS, solve
from drainsinkhorn.run.stack import problems


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """The inputs of a batch that are not differentiated.

    An eps that is relative, or a sharpness, is found when the lanes are solved, and is a constant for derivatives.

    Attributes:
        eps: The eps of every lane, a number or a descriptor; None where it is differentiated.
        sources: For every lane, the lane from whose points a descriptor of eps is resolved.
        cost: The cost between points, of all lanes; not used if lanes have matrices.
        settings: Keywords of `solve`.
        rho: The prices of both marginals of every lane, None where they are differentiated; None for a lane with two
            hard marginals.
    """

    eps: tuple[Any, ...]
    sources: tuple[int, ...]
    cost: Any
    settings: dict[str, Any]
    rho: tuple[Any, ...]

    def solve(self, columns: Sequence[Sequence[Any]]) -> Solution[Any]:
        """Solve lanes whose arrays carry no derivatives; warn of those that did not converge."""
        settings = dict(self.settings)
        warns = settings.pop("warn", True)
        solution = solve(self.problems(columns), warn=False, **settings)
        if warns:
            _warn_of_unconverged(solution)
        return solution

    def problems(self, columns: Sequence[Sequence[Any]], found: Sequence[float] = ()) -> list[Problem[Any]]:
        """The lanes as problems.

        Args:
            columns: Those of `COLUMNS`.
            found: The eps of all lanes, if descriptors were resolved before.
        """
        matrices = columns[5]
        known = found or [own if eps is None else eps for own, eps in zip(self.eps, columns[4], strict=True)]
        lanes = [
            Problem(
                x=x,
                y=y,
                a=a,
                b=b,
                eps=eps if is_descriptor(eps) else float(eps),
                cost=self.cost if matrix is None else matrix,
                rho=rho,
            )
            for x, y, a, b, eps, matrix, rho in zip(*columns[:4], known, matrices, self._prices(columns), strict=True)
        ]
        if found or not self.has_descriptors:
            return lanes
        places = sorted(set(self.sources))
        options = self.settings.get("options", DEFAULTS).with_fields(self.settings.get("tol"), self.settings)
        backend = self.settings.get("backend", "auto")
        stated = resolve_eps([lanes[place] for place in places], backend=backend, options=options)
        numbers = dict(zip(places, stated, strict=True))
        return [replace(lane, eps=numbers[source].eps) for lane, source in zip(lanes, self.sources, strict=True)]

    def _prices(self, columns: Sequence[Sequence[Any]]) -> list[Any]:
        """The rho of every lane."""
        return [
            fixed and tuple(float(own) if price is None else price for price, own in zip(fixed, live, strict=True))
            for fixed, live in zip(self.rho, zip(*columns[6:], strict=True), strict=True)
        ]

    @property
    def has_descriptors(self) -> bool:
        """True if an eps is relative or a sharpness."""
        return any(eps is not None and is_descriptor(eps) for eps in self.eps)


def make_task(
    strengths: Sequence[Any],
    cost: Any,
    settings: dict[str, Any],
    sources: Sequence[int] | None,
    prices: Sequence[Any],
) -> Task:
    """Return the task of lanes; ProblemError for an eps that falls.

    Args:
        strengths: The eps of each lane: a number, a descriptor, or None where it is differentiated.
        cost: As in Task; matrices are taken from the lanes.
        settings: As in Task.
        sources: As in Task; None: each lane has its own eps.
        prices: The rho in Task.
    """
    for own in strengths:
        # Here rather than in a callback of JAX, which hides the type of an error.
        require_fixed(own)
    eps = tuple(own if own is None or is_descriptor(own) else float(own) for own in strengths)
    places = tuple(range(len(eps)) if sources is None else sources)
    return Task(eps, places, None if is_dense(cost) else cost, settings, tuple(prices))


COLUMNS = ("x", "y", "a", "b", "eps", "cost", "rho_a", "rho_b")
"""What can be differentiated: points (None with a matrix), weights, eps (None if it is a number), matrices, and prices
of both marginals (None if they are numbers)."""


def lanes_of(x: Any, y: Any, a: Any, b: Any, eps: Any, cost: Any, rho: Any, is_live: Any) -> list[Problem[Any]]:
    """Lanes of batched inputs, each with views of its own arrays.

    The rho of a lane is None, or a pair of prices: numbers, or arrays without dimensions that may be differentiated.

    Args:
        x: Source points, in one of the forms of `problems`; None with matrices of costs.
        y: Target points.
        a: Source weights.
        b: Target weights.
        eps: Numbers, descriptors, or arrays that may be differentiated.
        cost: Cost between points, or matrices.
        rho: Prices in one of the forms of `problems`, or an array, (), (W,) or (W, 2), of the library that
            differentiates.
        is_live: Whether an object is such an array.
    """
    known = as_cost(cost)
    if not isinstance(known, Cost) and not (isinstance(cost, (list, tuple)) or is_array(cost)):
        raise ProblemError(f"cost must be a name, a Cost or matrices (n, m), got {type(cost).__name__}")
    if not isinstance(known, Cost) and (x is not None or y is not None):
        raise ProblemError("matrices of costs take the place of the points; leave x and y out, or name a cost")
    if rho is None:
        return problems(x, y, eps=eps, a=a, b=b, cost=cost)
    if is_live(rho) and rho.ndim > 0:
        rho = list(rho)
    elif is_array(rho) and not is_live(rho):
        rho, _ = price_column(rho)
    if isinstance(rho, list):
        lanes = problems(x, y, eps=eps, a=a, b=b, cost=cost, rho=[1.0] * len(rho))
        prices = [_price_pair(own, is_live) for own in rho] if len(rho) == len(lanes) else []
        return [replace(lane, rho=price) for lane, price in zip(lanes, prices, strict=True)]
    price = _price_pair(rho, is_live)
    return [replace(lane, rho=price) for lane in problems(x, y, eps=eps, a=a, b=b, cost=cost)]


def _price_pair(rho: Any, is_live: Any) -> Any:
    """Return the prices of both marginals of one lane; None if both are numbers and infinite."""
    if isinstance(rho, tuple) or (is_live(rho) and rho.ndim > 0):
        pair = tuple(rho)
        # Checks the number of prices, and all that are numbers.
        known = parse_marginals(tuple(1.0 if is_live(price) else price for price in pair))
    else:
        pair, known = (rho, rho), parse_marginals(1.0 if is_live(rho) else rho)
    if known.are_hard:
        return None
    return tuple(price if is_live(price) else side.rho for price, side in zip(pair, known, strict=True))


def is_dense(cost: Any) -> bool:
    """True for matrices of costs, False for a cost between points."""
    return not isinstance(as_cost(cost), Cost)


def slopes_of(plans: Couplings[Any], results: Sequence[Result[Any]], column: str) -> Sequence[Any]:
    """Return derivatives of the values of plans, by the envelope theorem, with respect to one of `COLUMNS`.

    They are `sum_j P_ij dC(x_i, y_j) / dx_i` for points, `KL(P | a b')` for eps, and the plan itself for a matrix of
    costs. Those with respect to weights are the potentials, or with a soft marginal `weight_slope`; those with respect
    to prices are `price_slope`.

    Args:
        plans: Finished plans.
        results: Their results.
        column: One of `COLUMNS`.
    """
    side = 0 if column in ("a", "rho_a") else 1
    if column in ("rho_a", "rho_b"):
        return [
            float(price_slope((one.a, one.b)[side], to_numpy(h[side]).astype(np.float64), one.marginals[side].kappa))
            for one, h in ((result.instance, result.potentials) for result in results)
        ]
    if column in ("a", "b"):
        slopes: list[Any] = [result.potentials[side] for result in results]
        if all(result.instance.marginals.are_hard for result in results):
            return slopes
        for k, (result, logs) in enumerate(zip(results, plans.log_ratios(("row", "col")[side]), strict=True)):
            one = result.instance
            if not one.marginals.are_hard:
                h, ratios = to_numpy(slopes[k]).astype(np.float64), np.exp(to_numpy(logs).astype(np.float64))
                value = weight_slope(h, ratios, one.marginals[side].kappa, one.eps, one.masses[1 - side])
                slopes[k] = to_caller(value, one.like)
        return slopes
    if column == "eps":
        return [cost.kl for cost in plans.transport_cost()]
    if column == "cost":
        return plans.plan(sum(math.prod(result.instance.shape) for result in results))
    return plans.slopes("row" if column == "x" else "col")


def plans_of(solution: Sequence[Result[Any]]) -> list[tuple[list[int], Couplings[Any]]]:
    """Plans of the lanes that have potentials, grouped by backend, with the numbers of these lanes."""
    solved = [k for k, result in enumerate(solution) if result.emitted is not None]
    return [([solved[i] for i in places], plans) for places, plans in couplings([solution[k] for k in solved])]


def fix_gauge(f: Any, g: Any, b: Any, finite: Any) -> Potentials[Any]:
    """Shift potentials so that `sum_j b_j g_j = 0`.

    All pairs `(f + t, g - t)` give the same plan. This condition selects one, so that potentials are a differentiable
    function of points and weights.

    `finite` is g with zeros for NaN, so that gradients of shared weights stay finite if one lane has no potentials.
    """
    shift = (b * finite).sum()
    return Potentials(f + shift, g - shift)


def refuse_zeros(columns: Sequence[Sequence[Any]]) -> None:
    """Raise ProblemError if a weight is zero; `columns` are all a and all b."""
    for name, column in zip("ab", columns, strict=True):
        for k, weights in enumerate(column):
            if weights is not None and bool((weights == 0).any()):
                raise ProblemError(f"{name} of problem {k} has weights of zero, whose potentials have no derivatives")


def _warn_of_unconverged(solution: Solution[Any]) -> None:
    failed = [r for r in solution if r.emitted is not None and not r.converged]
    if failed:
        worst = max(result.residual.worst for result in failed)
        warn(
            ConvergenceWarning(
                f"{len(failed)} of {len(solution)} problems did not converge (residual up to {worst:.2g}); values and "
                "derivatives are those of their last states; raise eps or max_depth",
                solution,
            )
        )
