"""Minibatches as problems: points where they lie, or, on a CPU and in many dimensions, their distances."""

from __future__ import annotations

from typing import Any

import torch

from drainsinkhorn.core.errors import ProblemError
from drainsinkhorn.core.problem import Cost, Problem

MANY_DIMENSIONS, KEPT_PAIRS = 48, 2**22
"""From so many coordinates on, and up to so many pairs, a CPU keeps distances made by one matrix product."""

Tensor = torch.Tensor


def refuse_other_than_tensors(**named: Any) -> None:
    """Raise for what is not a torch tensor."""
    for name, value in named.items():
        if not isinstance(value, torch.Tensor):
            advice = "write torch.as_tensor(...), with numbers in place of names"
            raise ProblemError(f"{name} must be a torch tensor, got {type(value).__name__}; {advice}")


def problem_of(x0: Tensor, x1: Tensor, eps: float, scale: float = 1.0) -> Problem[Any]:
    """The problem of a minibatch, (n, ...) and (m, ...), with costs `scale |x0 - x1|^2`."""
    x, y = (points.detach().reshape(len(points), -1) for points in (x0, x1))
    problem: Problem[Any] = Problem(x=x, y=y, eps=eps, cost=Cost("sqeuclidean", scale))
    many = x.shape[1] >= MANY_DIMENSIONS and len(x) * len(y) <= KEPT_PAIRS
    if x.is_cuda or not many or x.shape[1] != y.shape[1] or not bool(x.isfinite().all() & y.isfinite().all()):
        # The solver finds the words for what is wrong with points.
        return problem
    # Centred and in float64, what cancels in the product is 1e-16 of the largest squared norm.
    p, q = x.double(), y.double()
    middle = (p.mean(0) + q.mean(0)) / 2
    p, q = p - middle, q - middle
    norms = p.square().sum(1)[:, None] + q.square().sum(1)[None, :]
    costs = torch.addmm(norms, p, q.T, alpha=-2).clamp_(min=0).mul_(scale)
    return Problem(cost=costs, eps=eps)
