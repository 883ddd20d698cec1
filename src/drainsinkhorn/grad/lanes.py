"""From batched inputs to lanes and back: functions that `grad.torch` and `grad.jax` share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.couplings import Couplings
from drainsinkhorn.model.errors import ConvergenceWarning, ProblemError, warn
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.plans.consumers import couplings
from drainsinkhorn.run.solution import Solution
from drainsinkhorn.run.solve import solve
from drainsinkhorn.run.stack import problems


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """The inputs of a batch that are not differentiated.

    Attributes:
        eps: Entropic strength of every lane.
        cost: The cost between points, of all lanes.
        settings: Keywords of `solve`.
    """

    eps: tuple[float, ...]
    cost: str | Cost
    settings: dict[str, Any]

    def solve(
        self, xs: Sequence[Any], ys: Sequence[Any], weights: Sequence[Any], others: Sequence[Any]
    ) -> Solution[Any]:
        """Solve lanes whose arrays carry no derivatives; warn of those that did not converge."""
        settings = dict(self.settings)
        warns = settings.pop("warn", True)
        solution = solve(self.problems(xs, ys, weights, others), warn=False, **settings)
        if warns:
            _warn_of_unconverged(solution)
        return solution

    def problems(self, xs: Any, ys: Any, weights: Any, others: Any) -> list[Problem[Any]]:
        """The lanes as problems."""
        rows = zip(xs, ys, weights, others, self.eps, strict=True)
        return [Problem(x=x, y=y, a=a, b=b, eps=eps, cost=self.cost) for x, y, a, b, eps in rows]


def lanes_of(x: Any, y: Any, a: Any, b: Any, eps: Any, cost: Any) -> list[Problem[Any]]:
    """Lanes of batched inputs, each with views of its own arrays."""
    if not isinstance(cost, (str, Cost)):
        raise ProblemError("gradients are with respect to points: pass x and y and the name of a cost")
    return problems(x, y, eps=eps, a=a, b=b, cost=cost)


def plans_of(solution: Solution[Any]) -> list[tuple[list[int], Couplings[Any]]]:
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
