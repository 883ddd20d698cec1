"""The gate: answers are audited in float64 with direct differences before anything is timed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.numerics.arrays import library, to_numpy
from drainsinkhorn.numerics.costs import is_squares, resolve_cost
from drainsinkhorn.testing.auditor import marginal_errors
from drainsinkhorn_bench.plan import Outcome

PAIRS = 2**22
"""Pairs of points that are looked at together."""


def residual(problem: Problem[Any], potentials: Potentials[Any], device: str = "cpu") -> float:
    """The larger L1 residual of the plan that these potentials stand for, in float64; NaN if it has none.

    Squared distances are summed coordinate by coordinate, as direct differences. Other costs go to the auditor that the
    backends are tested with.

    Args:
        problem: The problem.
        potentials: In this library's convention.
        device: Where to compute, for points that are no tensors; tensors are audited where they lie.
    """
    if not isinstance(problem.cost, str) or not is_squares(resolve_cost(Cost(problem.cost))):
        return _worst(*marginal_errors(problem, potentials))
    if library(problem.x) == "torch":
        return _torch(problem, potentials, problem.x.device)  # type: ignore[union-attr]
    if device == "cuda":
        return _torch(problem, potentials, device)
    x, y, f, g = (to_numpy(side).astype(np.float64) for side in (problem.x, problem.y, *potentials))
    return _numpy(problem, x, y, f, g)


def _worst(row: float, col: float) -> float:
    return math.nan if math.isnan(row) or math.isnan(col) else max(row, col)


def _weights(given: Any, size: int) -> Any:
    weights = np.ones(size) if given is None else to_numpy(given).astype(np.float64)
    return weights / weights.sum()


def _numpy(problem: Problem[Any], x: Any, y: Any, f: Any, g: Any) -> float:
    a, b = _weights(problem.a, len(x)), _weights(problem.b, len(y))
    step = max(1, PAIRS // len(y))
    row, columns = 0.0, np.zeros(len(y))
    with np.errstate(over="ignore", invalid="ignore"):
        for first in range(0, len(x), step):
            part = slice(first, first + step)
            scores = np.add.outer(f[part], g)
            for k in range(x.shape[1]):
                scores -= np.square(np.subtract.outer(x[part, k], y[:, k]))
            plan = np.exp(scores / float(problem.eps)) * a[part, None] * b
            row += float(np.abs(plan.sum(axis=1) - a[part]).sum())
            columns += plan.sum(axis=0)
        return _worst(row, float(np.abs(columns - b).sum()))


def _torch(problem: Problem[Any], potentials: Potentials[Any], device: Any) -> float:
    import torch

    double = {"dtype": torch.float64, "device": device}
    given = (side if library(side) == "torch" else to_numpy(side) for side in (problem.x, problem.y, *potentials))
    x, y, f, g = (torch.as_tensor(side).detach().to(**double) for side in given)
    a, b = (torch.as_tensor(_weights(w, len(p)), **double) for w, p in ((problem.a, x), (problem.b, y)))
    step = max(1, 4 * PAIRS // len(y))
    row, columns = torch.zeros((), **double), torch.zeros(len(y), **double)
    for first in range(0, len(x), step):
        part = slice(first, first + step)
        scores = f[part, None] + g[None, :]
        for k in range(x.shape[1]):
            scores -= (x[part, k, None] - y[None, :, k]).square_()
        plan = scores.div_(float(problem.eps)).exp_().mul_(a[part, None]).mul_(b)
        row += (plan.sum(1) - a[part]).abs().sum()
        columns += plan.sum(0)
    return _worst(float(row), float((columns - b).abs().sum()))


def judge(
    problems: Sequence[Problem[Any]], outcome: Outcome, tol: float, slack: float = 1.0, device: str = "cpu"
) -> tuple[bool, float | None, str]:
    """Whether an outcome passes, its largest audited residual (None if one is no number), and why not."""
    missing = len(problems) - len(outcome.answers)
    unknown = [place for place in outcome.answers if not 0 <= place < len(problems)]
    if unknown:
        return False, None, f"there is an answer to problem {unknown[0]}, and there are {len(problems)} problems"
    if not outcome.answers or (missing and not outcome.extrapolated):
        return False, None, f"{missing} of {len(problems)} problems have no answer"
    worst, over = 0.0, list[str]()
    for place, potentials in sorted(outcome.answers.items()):
        problem = problems[place]
        limit = slack * (problem.tol or tol)
        found = residual(problem, potentials, device)
        if math.isnan(found) or math.isinf(found):
            return False, None, f"problem {place} has no finite residual"
        worst = max(worst, found)
        if found > limit:
            over.append(f"problem {place} has a residual of {found:.3g}, more than {limit:.3g}")
    return not over, worst, "; ".join(over[:3]) + (f"; and {len(over) - 3} more" if len(over) > 3 else "")
