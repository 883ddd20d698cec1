"""Entropic values, divergences and potentials that torch can differentiate, batched over problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import torch

from drainsinkhorn.core.options import check_settings
from drainsinkhorn.divergences import duals, with_clouds_themselves
from drainsinkhorn.grad.implicit import pull_back
from drainsinkhorn.grad.lanes import (
    COLUMNS,
    Task,
    fix_gauge,
    is_dense,
    lanes_of,
    make_task,
    plans_of,
    refuse_zeros,
    slopes_of,
)
from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.errors import ProblemError
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials, Problem

Tensor = torch.Tensor


def value(
    x: Any = None,
    y: Any = None,
    *,
    eps: Any = None,
    a: Any = None,
    b: Any = None,
    cost: Any = "sqeuclidean",
    **settings: Any,
) -> Tensor:
    """Entropic values `min_P sum P C + eps KL(P | a b')`, (W,), differentiable in points or costs, weights and eps.

    Derivatives are those of the dual value at the potentials (envelope theorem), of the first order only.

    Args:
        x: Points: shared (n, d), stacked (W, n, d), or a list of unequal clouds. None with matrices of costs.
        y: Points of the other side, in one of the forms of x.
        eps: A number or a tensor of one, `relative`, `sharpness`, or a list with one of them for each problem. Only
            tensors have derivatives.
            None: `relative(0.05)`. In a divergence, all three problems of a pair have the eps of x to y.
        a: Weights of x; normalised here, so that derivatives are those of the normalised problem. None: uniform.
        b: Weights of y, normalised likewise.
        cost: A name or a Cost; or tensors of costs, shared (n, m), stacked (W, n, m), or a list of them, whose
            derivatives are the plans and take as much memory as they do.
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
    check_settings(settings, value)
    lanes = lanes_of(x, y, a, b, eps, cost)
    return _values(lanes, cost, settings) if lanes else _nothing(x, y, cost)


def divergence(
    x: Any,
    y: Any,
    *,
    eps: Any = None,
    a: Any = None,
    b: Any = None,
    cost: str | Cost = "sqeuclidean",
    **settings: Any,
) -> Tensor:
    """Debiased Sinkhorn divergences, (W,), differentiable in points, weights and eps; arguments as for `value`.

    Examples:
        >>> x = torch.randn(4, 20, 2, requires_grad=True)
        >>> divergence(x, torch.randn(30, 2), eps=0.5).mean().backward()
        >>> tuple(x.grad.shape)
        (4, 20, 2)
    """
    check_settings(settings, divergence)
    pairs = lanes_of(x, y, a, b, eps, cost)
    if not pairs:
        return _nothing(x, y)
    lanes, within, sources = with_clouds_themselves(pairs)
    values = _values(lanes, cost, settings, sources)
    first, second = (values[[pair[side] for pair in within]] for side in (0, 1))
    return values[: len(pairs)] - first / 2 - second / 2


def potentials(
    x: Any = None,
    y: Any = None,
    *,
    eps: Any = None,
    a: Any = None,
    b: Any = None,
    cost: Any = "sqeuclidean",
    **settings: Any,
) -> list[Potentials[Tensor]]:
    """Potentials of every problem, differentiable in points or costs, weights and eps by implicit differentiation.

    Potentials are shifted so that g has mean zero under b. Solve to a small tol: the error of derivatives is of first
    order in the residual. Arguments as for `value`; weights must be positive. Derivatives with respect to eps need
    memory for the plans.

    Examples:
        >>> x = torch.randn(2, 20, 2, dtype=torch.float64, requires_grad=True)
        >>> pairs = potentials(x, torch.randn(30, 2, dtype=torch.float64), eps=0.5, tol=1e-6)
        >>> sum(f.square().mean() for f, g in pairs).backward()
    """
    check_settings(settings, potentials)
    lanes = lanes_of(x, y, a, b, eps, cost)
    if not lanes:
        return []
    task, tensors = _task(lanes, cost, settings)
    sides: Any = _Potentials.apply(task, *tensors)
    count = len(lanes)
    return [
        fix_gauge(f, g, 1 / len(g) if b is None else b, g.nan_to_num())
        for f, g, b in zip(sides[:count], sides[count:], tensors[3 * count : 4 * count], strict=True)
    ]


def _values(
    lanes: Sequence[Problem[Any]], cost: Any, settings: dict[str, Any], sources: Sequence[int] | None = None
) -> Tensor:
    task, tensors = _task(lanes, cost, settings, sources)
    values: Any = _Value.apply(task, *tensors)
    return values


def _nothing(*points: Any) -> Tensor:
    """Return an empty tensor, the values of no problems."""
    tensors = [tensor for tensor in points if isinstance(tensor, torch.Tensor)]
    return torch.zeros(0, dtype=_float_dtype(tensors), device=tensors[0].device if tensors else None)


def _task(
    lanes: Sequence[Problem[Any]], cost: Any, settings: dict[str, Any], sources: Sequence[int] | None = None
) -> tuple[Task, list[Any]]:
    """Return the task, and all columns of the lanes in one list; weights are normalised."""
    dense = is_dense(cost)
    for lane in lanes:
        for name, array in (("cost", lane.cost),) if dense else (("x", lane.x), ("y", lane.y)):
            if not isinstance(array, torch.Tensor):
                raise ProblemError(f"{name} must be a torch tensor, got {type(array).__name__}")
    fixed: list[Any] = [None if isinstance(lane.eps, torch.Tensor) else lane.eps for lane in lanes]
    task = make_task(fixed, cost, settings, sources)
    # Each tensor is normalised once, so that lanes that share weights share the normalised weights.
    known: dict[int, Any] = {}

    def normalise(weights: Any, points: Any) -> Any:
        if weights is None:
            return None
        if id(weights) not in known:
            tensor = torch.as_tensor(weights, device=points.device)
            tensor = tensor if tensor.dtype.is_floating_point else tensor.double()
            # The absolute sum: dividing by a negative one would turn negative weights into valid ones.
            known[id(weights)] = tensor / tensor.sum().abs()
        return known[id(weights)]

    like = [(lane.cost, lane.cost) if dense else (lane.x, lane.y) for lane in lanes]
    columns = (
        [lane.x for lane in lanes],
        [lane.y for lane in lanes],
        [normalise(lane.a, x) for lane, (x, _) in zip(lanes, like, strict=True)],
        [normalise(lane.b, y) for lane, (_, y) in zip(lanes, like, strict=True)],
        [lane.eps if eps is None else None for lane, eps in zip(lanes, fixed, strict=True)],
        [lane.cost if dense else None for lane in lanes],
    )
    return task, [tensor for column in columns for tensor in column]


def _detach_columns(tensors: Sequence[Any]) -> list[list[Any]]:
    """Detached copies of the columns, each as a list."""
    count = len(tensors) // len(COLUMNS)
    # One detached tensor for each tensor, so that `solve` still sees which lanes share a cloud.
    known = {id(tensor): tensor if tensor is None else tensor.detach() for tensor in tensors}
    return [[known[id(tensor)] for tensor in tensors[k * count : (k + 1) * count]] for k in range(len(COLUMNS))]


def _like(gradient: Any, tensor: Any, scale: Any) -> Any:
    """Return `gradient * scale` with dtype and device of `tensor`; 0 where `scale`, the lane's cotangent, is 0."""
    scaled = torch.where(scale == 0, torch.zeros_like(gradient), gradient * scale)
    return scaled.to(dtype=tensor.dtype, device=tensor.device)


def _float_dtype(tensors: Sequence[Any]) -> torch.dtype:
    """The widest floating dtype among tensors that are not numbers; float64 if all are integers."""
    floats = [
        tensor.dtype for tensor in tensors if tensor is not None and tensor.ndim and tensor.dtype.is_floating_point
    ]
    return reduce(torch.promote_types, floats) if floats else torch.float64


def _refuse_second_order() -> None:
    """Raise where torch would record this backward: second derivatives would silently be zero."""
    if torch.is_grad_enabled():
        raise NotImplementedError(
            "derivatives of entropic values, divergences and potentials are of the first order, but backward ran with "
            "create_graph=True; leave it out, or differentiate a dense Sinkhorn of your own twice"
        )


class _Value(torch.autograd.Function):
    """Dual values of lanes; backward by the envelope theorem."""

    @staticmethod
    def forward(ctx: Any, task: Task, *tensors: Any) -> Any:
        solution = task.solve(_detach_columns(tensors))
        ctx.plans, ctx.lanes = plans_of(solution), len(solution)
        ctx.potentials = [result.emitted for result in solution]
        # Plans read these again in backward; for saved tensors torch raises if they were modified in between.
        ctx.save_for_backward(*tensors)
        return torch.tensor(duals(solution), dtype=_float_dtype(tensors), device=_device(tensors))

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        _refuse_second_order()
        (cotangents,) = grad_outputs
        tensors, count = ctx.saved_tensors, ctx.lanes
        needs = ctx.needs_input_grad[1:]
        # A lane without potentials has no derivatives: they are NaN, or zero where the cotangent is zero.
        gradients: list[Any] = [
            _like(torch.full_like(tensor, float("nan")), tensor, cotangents[k % count]) if needed else None
            for k, (tensor, needed) in enumerate(zip(tensors, needs, strict=True))
        ]
        for places, plans in ctx.plans:
            for column, name in enumerate(COLUMNS):
                if name not in "ab" and any(needs[column * count + k] for k in places):
                    own = [tensors[column * count + k] for k in places]
                    for k, tensor, slope in zip(places, own, slopes_of(plans, own, name), strict=True):
                        gradients[column * count + k] = _like(torch.as_tensor(slope), tensor, cotangents[k])
            for k in places:
                for column in (2, 3):
                    tensor = tensors[column * count + k]
                    if needs[column * count + k]:
                        gradients[column * count + k] = _like(ctx.potentials[k][column - 2], tensor, cotangents[k])
        return None, *(g if needed else None for g, needed in zip(gradients, needs, strict=True))


class _Potentials(torch.autograd.Function):
    """All f, then all g; backward by implicit differentiation."""

    @staticmethod
    def forward(ctx: Any, task: Task, *tensors: Any) -> Any:
        columns = _detach_columns(tensors)
        refuse_zeros(columns[2:4])
        solution = task.solve(columns)
        dtype, device = _float_dtype(tensors), _device(tensors)
        pairs = [
            result.emitted
            or Potentials(*(torch.full((size,), torch.nan, dtype=dtype, device=device) for size in sizes))
            for result, sizes in zip(solution, _shapes(columns), strict=True)
        ]
        ctx.plans, ctx.lanes = plans_of(solution), len(solution)
        ctx.save_for_backward(*tensors)
        ctx.instances = [None if result.emitted is None else result.instance for result in solution]
        return *(pair.f for pair in pairs), *(pair.g for pair in pairs)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        _refuse_second_order()
        cotangents = grad_outputs
        tensors, count = ctx.saved_tensors, ctx.lanes
        # A lane without potentials has no derivatives: they are NaN, or zero where the cotangent is zero.
        moved = [cotangents[k].any() | cotangents[count + k].any() for k in range(count)]
        returned: list[Any] = [
            _like(torch.full_like(tensor, torch.nan), tensor, moved[k % count]) if needed else None
            for k, (tensor, needed) in enumerate(zip(tensors, ctx.needs_input_grad[1:], strict=True))
        ]
        for places, plans in ctx.plans:
            # Cotangents are computed in float32 at least; a gradient is returned in the dtype of its input.
            wide = [c.to(torch.promote_types(c.dtype, torch.float32)) for c in cotangents]
            u, v = [wide[k] for k in places], [wide[count + k] for k in places]
            instances = [_on(ctx.instances[k], u[0]) for k in places]
            needs = ctx.needs_input_grad[1:]
            wanted = {name for column, name in enumerate(COLUMNS) if any(needs[column * count + k] for k in places)}
            pulled = pull_back(plans, instances, u, v, wanted)
            for column, name in enumerate(COLUMNS):
                for k, gradient in zip(places, pulled.get(name, ()), strict=name in pulled):
                    if ctx.needs_input_grad[1 + column * count + k]:
                        returned[column * count + k] = _like(
                            gradient, tensors[column * count + k], torch.ones((), device=gradient.device)
                        )
        return None, *returned


def _device(tensors: Sequence[Any]) -> torch.device:
    """The device of points or costs; eps may be on another."""
    return next(tensor.device for tensor in tensors if tensor is not None and tensor.ndim > 1)


def _shapes(columns: Sequence[Sequence[Any]]) -> list[tuple[int, int]]:
    """Points on each side of every lane."""
    xs, ys, *_, costs = columns
    return [(len(x), len(y)) if cost is None else tuple(cost.shape) for x, y, cost in zip(xs, ys, costs, strict=True)]


def _on(instance: Instance[Any], like: Tensor) -> Instance[Any]:
    """The instance with its weights as tensors."""
    a, b = (torch.as_tensor(w, dtype=like.dtype, device=like.device) for w in (instance.a, instance.b))
    return replace(instance, a=a, b=b)
