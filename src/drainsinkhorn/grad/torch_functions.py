"""Functions that torch records: values with two derivatives, and potentials with one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import torch

from drainsinkhorn.divergences import duals
from drainsinkhorn.grad.implicit import pull_back
from drainsinkhorn.grad.lanes import COLUMNS, Task, plans_of, refuse_zeros, slopes_of
from drainsinkhorn.grad.second import hessian_products
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.run.solution import Solution

Tensor = torch.Tensor


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


def float_dtype_of(tensors: Sequence[Any]) -> torch.dtype:
    """The widest floating dtype among tensors that are not numbers; float64 if all are integers."""
    floats = [
        tensor.dtype for tensor in tensors if tensor is not None and tensor.ndim and tensor.dtype.is_floating_point
    ]
    return reduce(torch.promote_types, floats) if floats else torch.float64


def _refuse_higher_order(order: str) -> None:
    """Raise where torch would record this backward: further derivatives would silently be zero."""
    if torch.is_grad_enabled():
        raise NotImplementedError(
            f"derivatives here are of the {order} order, but backward ran with create_graph=True for the next one; "
            "leave it out, or differentiate a dense Sinkhorn of your own"
        )


class Value(torch.autograd.Function):
    """Dual values of lanes; backward by the envelope theorem."""

    @staticmethod
    def forward(ctx: Any, task: Task, *tensors: Any) -> Any:
        """Solve lanes; return their dual values."""
        solution = task.solve(_detach_columns(tensors))
        ctx.state = _Solved(solution)
        # Plans read these again in backward; for saved tensors torch raises if they were modified in between.
        ctx.save_for_backward(*tensors)
        return torch.tensor(duals(solution), dtype=float_dtype_of(tensors), device=_device(tensors))

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Return slopes times cotangents."""
        (cotangents,) = grad_outputs
        slopes: Any = _Slopes.apply(ctx.state, ctx.needs_input_grad[1:], cotangents, *ctx.saved_tensors)
        return None, *slopes


class _Solved:
    """Solved lanes, and the plans of those that have potentials, with their numbers."""

    def __init__(self, solution: Solution[Any]) -> None:
        self.count, self.plans = len(solution), plans_of(solution)
        self.results = {k: result for k, result in enumerate(solution) if result.emitted is not None}

    def slopes(self, needs: Sequence[bool], tensors: Sequence[Any]) -> list[Any]:
        """First derivatives of the values in all columns that need them; None in the others."""
        count = self.count
        # A lane without potentials has no derivatives: they are NaN.
        slopes: list[Any] = [
            torch.full_like(tensor, torch.nan) if needed else None
            for tensor, needed in zip(tensors, needs, strict=True)
        ]
        for places, plans in self.plans:
            for column, name in enumerate(COLUMNS):
                if any(needs[column * count + k] for k in places):
                    own = slopes_of(plans, [self.results[k] for k in places], name)
                    for k, slope in zip(places, own, strict=True):
                        if needs[column * count + k]:
                            # A number would be rounded to float32.
                            wide = torch.float64 if isinstance(slope, float) else None
                            slopes[column * count + k] = torch.as_tensor(slope, dtype=wide)
        return slopes


class _Slopes(torch.autograd.Function):
    """Gradients of a sum of values times cotangents, in all columns; backward by Hessian products."""

    @staticmethod
    def forward(ctx: Any, state: _Solved, needs: Sequence[bool], cotangents: Any, *tensors: Any) -> Any:
        """Return slopes of values times cotangents."""
        ctx.state, ctx.needs = state, needs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(cotangents, *tensors)
        slopes = state.slopes(needs, tensors)
        return tuple(
            None if slope is None else _like(slope, tensor, cotangents[k % state.count])
            for k, (slope, tensor) in enumerate(zip(slopes, tensors, strict=True))
        )

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Return Hessians times motions."""
        _refuse_higher_order("second")
        state, (cotangents, *tensors) = ctx.state, ctx.saved_tensors
        count = state.count
        motions = [
            {
                name: grad_outputs[column * count + k].double()
                for column, name in enumerate(COLUMNS)
                if grad_outputs[column * count + k] is not None
            }
            for k in range(count)
        ]
        moving = [k for k, motion in enumerate(motions) if any(bool(one.any()) for one in motion.values())]
        scales = torch.zeros_like(cotangents)
        for k, slope in enumerate(state.slopes([one is not None for one in grad_outputs], tensors)):
            if slope is not None and k % count in moving:
                moved = grad_outputs[k]
                scales[k % count] += torch.where(moved == 0, 0.0, moved * slope.to(moved)).sum()
        returned: list[Any] = [
            None if not needed else torch.full_like(tensor, torch.nan if k % count in moving else 0.0)
            for k, (tensor, needed) in enumerate(zip(tensors, ctx.needs_input_grad[3:], strict=True))
        ]
        for places, plans in state.plans:
            lanes = [place for place, k in enumerate(places) if k in moving]
            if not lanes:
                continue
            chosen = [state.results[places[place]] for place in lanes]
            if len(lanes) < len(places):
                ((_, plans),) = plans_of(chosen)
            products = hessian_products(
                plans,
                [result.instance for result in chosen],
                [result.potentials for result in chosen],
                [motions[places[place]] for place in lanes],
            )
            for place, product in zip(lanes, products, strict=True):
                for column, name in enumerate(COLUMNS):
                    if returned[column * count + places[place]] is not None:
                        returned[column * count + places[place]] = torch.as_tensor(product[name])
        gradients = [
            None if one is None else _like(one, tensor, cotangents[k % count])
            for k, (one, tensor) in enumerate(zip(returned, tensors, strict=True))
        ]
        return None, None, scales, *gradients


class PotentialsOf(torch.autograd.Function):
    """All f, then all g; backward by implicit differentiation."""

    @staticmethod
    def forward(ctx: Any, task: Task, *tensors: Any) -> Any:
        """Solve lanes; return their potentials."""
        columns = _detach_columns(tensors)
        refuse_zeros(columns[2:4])
        solution = task.solve(columns)
        dtype, device = float_dtype_of(tensors), _device(tensors)
        pairs = [
            result.emitted
            or Potentials(*(torch.full((size,), torch.nan, dtype=dtype, device=device) for size in sizes))
            for result, sizes in zip(solution, _shapes(columns), strict=True)
        ]
        ctx.plans, ctx.lanes = plans_of(solution), len(solution)
        ctx.save_for_backward(*tensors)
        ctx.results = list(solution)
        return *(pair.f for pair in pairs), *(pair.g for pair in pairs)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Return cotangents of inputs."""
        _refuse_higher_order("first")
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
            instances = [_on(ctx.results[k].instance, u[0]) for k in places]
            needs = ctx.needs_input_grad[1:]
            wanted = {name for column, name in enumerate(COLUMNS) if any(needs[column * count + k] for k in places)}
            pulled = pull_back(plans, instances, u, v, wanted, [ctx.results[k].potentials for k in places])
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
    xs, ys, costs = columns[0], columns[1], columns[5]
    return [(len(x), len(y)) if cost is None else tuple(cost.shape) for x, y, cost in zip(xs, ys, costs, strict=True)]


def _on(instance: Instance[Any], like: Tensor) -> Instance[Any]:
    """The instance with its weights as tensors."""
    a, b = (torch.as_tensor(w, dtype=like.dtype, device=like.device) for w in (instance.a, instance.b))
    return replace(instance, a=a, b=b)
