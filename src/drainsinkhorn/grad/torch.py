"""Entropic values, divergences and potentials that torch can differentiate, batched over problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from drainsinkhorn.backends.door import normal
from drainsinkhorn.core.errors import ProblemError
from drainsinkhorn.core.problem import Cost, Potentials, Problem
from drainsinkhorn.divergences import duals, with_clouds_themselves
from drainsinkhorn.grad.implicit import pull_back
from drainsinkhorn.grad.lanes import Task, gauged, lanes_of, plans_of

Tensor = torch.Tensor


def value(
    x: Any, y: Any, *, eps: Any, a: Any = None, b: Any = None, cost: str | Cost = "sqeuclidean", **settings: Any
) -> Tensor:
    """Entropic values `min_P sum P C + eps KL(P | a b')`, (W,), differentiable in points and weights.

    Derivatives are those of the dual value at the potentials (envelope theorem), of the first order only.

    Args:
        x: Points: shared (n, d), stacked (W, n, d), or a list of unequal clouds.
        y: Likewise.
        eps: A number, or one for each problem.
        a: Weights; normalised here, so that derivatives are those of the normalised problem.
        b: Likewise.
        cost: A name or a Cost.
        **settings: Keywords of `solve`: tol, backend, accelerate, ...

    Returns:
        One value for each problem; NaN for one that is INVALID.

    Examples:
        >>> x = torch.randn(4, 20, 2, requires_grad=True)
        >>> loss = value(x, torch.randn(30, 2), eps=0.5).sum()
        >>> loss.backward()
        >>> tuple(x.grad.shape)
        (4, 20, 2)
    """
    return _values(lanes_of(x, y, a, b, eps, cost), cost, settings)


def divergence(
    x: Any, y: Any, *, eps: Any, a: Any = None, b: Any = None, cost: str | Cost = "sqeuclidean", **settings: Any
) -> Tensor:
    """Debiased Sinkhorn divergences, (W,), differentiable in points and weights; arguments as for `value`.

    Examples:
        >>> x = torch.randn(4, 20, 2, requires_grad=True)
        >>> divergence(x, torch.randn(30, 2), eps=0.5).mean().backward()
        >>> tuple(x.grad.shape)
        (4, 20, 2)
    """
    pairs = lanes_of(x, y, a, b, eps, cost)
    lanes, within = with_clouds_themselves(pairs)
    found = _values(lanes, cost, settings)
    first, second = (found[[pair[side] for pair in within]] for side in (0, 1))
    return found[: len(pairs)] - first / 2 - second / 2


def potentials(
    x: Any, y: Any, *, eps: Any, a: Any = None, b: Any = None, cost: str | Cost = "sqeuclidean", **settings: Any
) -> list[Potentials[Tensor]]:
    """Potentials of every problem, differentiable in points and weights by implicit differentiation.

    They are shifted so that g is zero in the mean under b; solve to a small tol, since derivatives are as good as it.
    Arguments as for `value`; weights must be positive.

    Examples:
        >>> x = torch.randn(2, 20, 2, dtype=torch.float64, requires_grad=True)
        >>> pairs = potentials(x, torch.randn(30, 2, dtype=torch.float64), eps=0.5, tol=1e-6)
        >>> sum(f.square().mean() for f, g in pairs).backward()
    """
    lanes = lanes_of(x, y, a, b, eps, cost)
    task, tensors = _task(lanes, cost, settings)
    found: Any = _Potentials.apply(task, *tensors)
    count = len(lanes)
    others = tensors[3 * count :]
    return [
        gauged(found[k], found[count + k], 1 / len(found[count + k]) if others[k] is None else others[k])
        for k in range(count)
    ]


def _values(lanes: Sequence[Problem[Any]], cost: str | Cost, settings: dict[str, Any]) -> Tensor:
    task, tensors = _task(lanes, cost, settings)
    found: Any = _Value.apply(task, *tensors)
    return found


def _task(lanes: Sequence[Problem[Any]], cost: str | Cost, settings: dict[str, Any]) -> tuple[Task, list[Any]]:
    """What is not differentiated, and all x, y, a and b, one after the other, weights normalised."""
    for lane in lanes:
        for name, points in (("x", lane.x), ("y", lane.y)):
            if not isinstance(points, torch.Tensor):
                raise ProblemError(f"{name} must be a torch tensor, got {type(points).__name__}")
    task = Task(tuple(float(lane.eps) for lane in lanes), cost, settings)
    # Each given tensor is normalised once, so that lanes that share it still share it.
    known: dict[int, Any] = {}

    def weights(given: Any, points: Any) -> Any:
        if given is None:
            return None
        if id(given) not in known:
            tensor = torch.as_tensor(given, device=points.device)
            known[id(given)] = tensor / tensor.sum()
        return known[id(given)]

    columns = (
        [lane.x for lane in lanes],
        [lane.y for lane in lanes],
        [weights(lane.a, lane.x) for lane in lanes],
        [weights(lane.b, lane.y) for lane in lanes],
    )
    return task, [tensor for column in columns for tensor in column]


def _detached(tensors: Sequence[Any]) -> list[list[Any]]:
    count = len(tensors) // 4
    # One detached tensor for each given one: lanes that share a cloud must be seen to.
    known = {id(tensor): tensor if tensor is None else tensor.detach() for tensor in tensors}
    return [[known[id(tensor)] for tensor in tensors[k * count : (k + 1) * count]] for k in range(4)]


def _like(gradient: Any, tensor: Any, scale: Any) -> Any:
    """A gradient in the dtype of what it belongs to, times the cotangent of its lane."""
    return (gradient * scale).to(dtype=tensor.dtype, device=tensor.device)


class _Value(torch.autograd.Function):
    """Dual values of lanes; backward by the envelope theorem."""

    @staticmethod
    def forward(ctx: Any, task: Task, *tensors: Any) -> Any:
        solution = task.solve(*_detached(tensors))
        ctx.plans, ctx.lanes, ctx.tensors = plans_of(solution), len(solution), tensors
        ctx.potentials = [result.emitted for result in solution]
        first = tensors[0]
        dtype = first.dtype if first.is_floating_point() else torch.get_default_dtype()
        return torch.tensor(duals(solution), dtype=dtype, device=first.device)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangents: Any) -> Any:  # type: ignore[override]
        tensors, count = ctx.tensors, ctx.lanes
        needs = ctx.needs_input_grad[1:]
        # A lane without potentials has no derivatives: NaN tells.
        found: list[Any] = [
            torch.full_like(tensor, float("nan")) if needed and tensor is not None else None
            for tensor, needed in zip(tensors, needs, strict=True)
        ]
        for places, plans in ctx.plans:
            for column, side in ((0, "row"), (1, "col")):
                if any(needs[column * count + k] for k in places):
                    for k, slope in zip(places, plans.slopes(side), strict=True):
                        found[column * count + k] = _like(slope, tensors[column * count + k], cotangents[k])
            for k in places:
                for column in (2, 3):
                    tensor = tensors[column * count + k]
                    if needs[column * count + k]:
                        found[column * count + k] = _like(ctx.potentials[k][column - 2], tensor, cotangents[k])
        return None, *(g if needed else None for g, needed in zip(found, needs, strict=True))


class _Potentials(torch.autograd.Function):
    """All f, then all g; backward by implicit differentiation."""

    @staticmethod
    def forward(ctx: Any, task: Task, *tensors: Any) -> Any:
        columns = _detached(tensors)
        for name, column in (("a", columns[2]), ("b", columns[3])):
            for k, weights in enumerate(column):
                if weights is not None and not bool((weights > 0).all()):
                    raise ProblemError(
                        f"{name} of problem {k} has weights of zero, whose potentials have no derivatives"
                    )
        solution = task.solve(*columns)
        found = [result.potentials for result in solution]
        ctx.plans, ctx.tensors, ctx.lanes = plans_of(solution), tensors, len(solution)
        ctx.problems = [normal(problem) for problem in task.problems(*columns)]
        return *(pair.f for pair in found), *(pair.g for pair in found)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Any) -> Any:  # type: ignore[override]
        tensors, count = ctx.tensors, ctx.lanes
        found: list[Any] = [None] * len(tensors)
        for places, plans in ctx.plans:
            u, v = [cotangents[k] for k in places], [cotangents[count + k] for k in places]
            problems = [_on(ctx.problems[k], u[0]) for k in places]
            for column, gradients in enumerate(pull_back(plans, problems, u, v)):
                for k, gradient in zip(places, gradients, strict=True):
                    if ctx.needs_input_grad[1 + column * count + k]:
                        found[column * count + k] = _like(gradient, tensors[column * count + k], 1.0)
        return None, *found


def _on(problem: Problem[Any], like: Tensor) -> Problem[Any]:
    """The problem with its weights as tensors."""
    a, b = (torch.as_tensor(w, dtype=like.dtype, device=like.device) for w in (problem.a, problem.b))
    return replace(problem, a=a, b=b)
