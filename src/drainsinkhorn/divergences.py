"""Sinkhorn divergences, debiased, of many pairs of clouds: all their problems are lanes of one batch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Unpack

import numpy as np

from drainsinkhorn.core.events import Observer, ignore
from drainsinkhorn.core.options import Options, Settings, check_settings
from drainsinkhorn.core.protocol import Backend
from drainsinkhorn.model.brief import call, count_of
from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.eps import is_descriptor
from drainsinkhorn.model.errors import ProblemError, warn_of_constants
from drainsinkhorn.model.problem import Problem
from drainsinkhorn.model.result import Result
from drainsinkhorn.numerics.arrays import float_dtype, is_array, to_caller
from drainsinkhorn.numerics.costs import DotProduct, as_cost
from drainsinkhorn.numerics.soft import debiasing_mass
from drainsinkhorn.plans.consumers import transport_costs
from drainsinkhorn.run.arguments import known_cost
from drainsinkhorn.run.resolve import resolve_eps
from drainsinkhorn.run.solution import Solution
from drainsinkhorn.run.solve import DEFAULTS, solve
from drainsinkhorn.run.stack import problems


@dataclass(frozen=True, slots=True, eq=False)
class Divergences:
    """Sinkhorn divergences and the results they were made of.

    Attributes:
        values: One for each pair, in the caller's library and dtype; NaN where a problem is INVALID.
        solution: All results of the batch: those between x and y first, then those within clouds.
        within: For each pair, the places in the solution of the results within x and within y.
    """

    values: Any
    solution: Solution[Any]
    within: list[tuple[int, int]]

    def parts(self, pair: int) -> tuple[Result[Any], Result[Any], Result[Any]]:
        """The results of a pair: x to y, x to x, y to y."""
        first, second = self.within[pair]
        return self.solution[pair], self.solution[first], self.solution[second]

    def __len__(self) -> int:
        """The number of pairs."""
        return len(self.within)

    def __repr__(self) -> str:
        return call("Divergences", count_of(len(self), "pair"), values=self.values, solution=self.solution)


def divergence(
    x: Any,
    y: Any,
    *,
    eps: Any = None,
    a: Any = None,
    b: Any = None,
    cost: Any = "sqeuclidean",
    rho: Any = None,
    tol: float | None = None,
    backend: str | Backend[Any] = "auto",
    options: Options = DEFAULTS,
    observe: Observer = ignore,
    **settings: Unpack[Settings],
) -> Divergences:
    """`OT(x, y) - OT(x, x) / 2 - OT(y, y) / 2` for every pair, OT being the entropic value, with the same eps.

    The three problems of every pair are lanes of one batch; a cloud that several pairs share is coupled with itself
    once. OT is the dual value of the potentials, whose error is of second order in the residual. Up to that error, a
    divergence is at least zero. With soft marginals `(eps / 2) (m_a - m_b)^2` is added, where `m_a` and `m_b` are the
    masses of both clouds (Sejourne and others, 2019). Values are constants; `drainsinkhorn.grad.torch.divergence` and
    `drainsinkhorn.grad.jax.divergence` can be differentiated.

    Args:
        x: Clouds: shared (n, d), stacked (W, n, d), or a list of unequal ones; see `problems`.
        y: Clouds of the other side, in one of the forms of x.
        eps: A number, `relative`, `sharpness`, or a list with one of them for each pair. None: `relative(0.05)`. All
            three problems of a pair have the same eps: one that is relative, or a sharpness, is found for x to y.
        a: Weights of x.
        b: Weights of y.
        cost: A name, Cost, PointCost, Formula or CostFn of OTT: a cost between points.
        rho: Price of soft marginals, the same for both sides: a number, or a list with one for each pair. None: hard.
        tol: Bound on the larger L1 marginal residual of every problem.
        backend: "auto", a name, or a Backend.
        options: All options at once; keywords below change single ones.
        observe: Receives every event of the run.
        **settings: Fields of Options.

    Examples:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> near, far = rng.normal(size=(2, 50, 3)), 1 + rng.normal(size=(2, 60, 3))
        >>> found = divergence(near, far, eps=0.5)
        >>> bool((found.values > 1).all()), len(found.solution)
        (True, 6)
    """
    check_settings(settings, divergence)
    pairs = problems(x, y, eps=eps, a=a, b=b, cost=cost, rho=rho)
    arrays = itertools.chain.from_iterable((pair.x, pair.y, pair.a, pair.b, pair.eps) for pair in pairs)
    warn_of_constants("the values of divergence", "drainsinkhorn.grad.torch.divergence", arrays)
    if any(is_descriptor(pair.eps) for pair in pairs):
        pairs = resolve_eps(pairs, backend=backend, options=options.with_fields(tol, settings))
    batch, within, _ = with_clouds_themselves(pairs)
    solution = solve(batch, tol=tol, backend=backend, options=options, observe=observe, **settings)
    return Divergences(_values(pairs, solution, within), solution, within)


class DivergenceProblems(NamedTuple):
    """Pairs of clouds, followed by each cloud coupled with itself.

    Attributes:
        problems: All problems.
        within: For each pair, the places of the problems within x and within y.
        sources: For each problem, the place of the pair whose eps it has.
    """

    problems: list[Problem[Any]]
    within: list[tuple[int, int]]
    sources: list[int]


def with_clouds_themselves(pairs: Sequence[Problem[Any]]) -> DivergenceProblems:
    """Return the pairs and each cloud coupled with itself, once for each eps that it is coupled with."""
    batch, places, sources = list(pairs), dict[Any, int](), list(range(len(pairs)))

    def place(pair: Problem[Any], number: int, points: Any, weights: Any) -> int:
        # An eps that is not found yet belongs to its pair alone.
        eps = number if is_descriptor(pair.eps) else pair.eps if isinstance(pair.eps, (int, float)) else id(pair.eps)
        key = (id(points), id(weights), is_descriptor(pair.eps), eps, _price_of(pair.rho))
        if key not in places:
            places[key] = len(batch)
            batch.append(replace(pair, x=points, y=points, a=weights, b=weights))
            sources.append(number)
        return places[key]

    within: list[tuple[int, int]] = []
    for number, pair in enumerate(pairs):
        cost = as_cost(pair.cost)
        if not isinstance(cost, Cost):
            raise ProblemError(
                "a divergence needs points: a dense cost between x and y says nothing of costs within them"
            )
        kind = known_cost(cost).kind
        if isinstance(kind, DotProduct) and kind.sign > 0:
            raise ProblemError(
                'a divergence of the cost "dot" may be negative and says nothing of how far clouds are apart; '
                'use "negdot", whose divergence is that of half the squared distance'
            )
        within.append((place(pair, number, pair.x, pair.a), place(pair, number, pair.y, pair.b)))
    return DivergenceProblems(batch, within, sources)


def _values(pairs: Sequence[Problem[Any]], solution: Solution[Any], within: Sequence[tuple[int, int]]) -> Any:
    values = debias(solution, within)
    like = pairs[0].x if pairs else None
    if not is_array(like):
        return values
    return to_caller(values.astype(float_dtype(like) or np.float64), like)


def debias(solution: Sequence[Result[Any]], within: Sequence[tuple[int, int]]) -> np.ndarray[Any, Any]:
    """Return the divergence of each pair from the results of pairs, followed by those of clouds with themselves."""
    dual = np.array(duals(solution))
    first, second = (dual[[pair[side] for pair in within]] for side in (0, 1))
    values: np.ndarray[Any, Any] = dual[: len(within)] - first / 2 - second / 2
    for place, result in enumerate(solution[: len(within)]):
        if result.emitted is not None and not result.instance.marginals.are_hard:
            values[place] += debiasing_mass(result.eps, result.instance.masses)
    return values


def _price_of(rho: Any) -> Any:
    """Return a key of the price of both marginals; ProblemError if they have unequal prices."""
    sides = tuple(rho.tolist()) if is_array(rho) and rho.ndim == 1 else rho
    if not isinstance(sides, (tuple, list)) or len(sides) != 2:
        return sides if isinstance(sides, (int, float)) else id(sides)
    first, second = (math.inf if side is None else side for side in sides)
    if first is not second and not (isinstance(first, (int, float)) and first == second):
        raise ProblemError(
            f"a divergence has one price for both marginals, so that it is symmetric, and rho is {rho!r}; pass a number"
        )
    return first if isinstance(first, (int, float)) else id(first)


def duals(solution: Sequence[Result[Any]]) -> list[float]:
    """Return dual values of results; NaN without potentials. The solve has already warned of unconverged problems."""
    places = [k for k, result in enumerate(solution) if result.emitted is not None]
    values = [float("nan")] * len(solution)
    for k, cost in zip(places, transport_costs([replace(solution[k], warns=False) for k in places]), strict=True):
        values[k] = cost.dual
    return values
