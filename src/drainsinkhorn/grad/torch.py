"""Entropic values, divergences and potentials that torch can differentiate, batched over problems."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from drainsinkhorn.core.options import check_settings
from drainsinkhorn.divergences import with_clouds_themselves
from drainsinkhorn.grad.lanes import (
    Task,
    fix_gauge,
    is_dense,
    lanes_of,
    make_task,
)
from drainsinkhorn.grad.torch_functions import PotentialsOf, Value, float_dtype_of
from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.errors import ProblemError
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.numerics.soft import debiasing_mass

Tensor = torch.Tensor


def value(
    x: Any = None,
    y: Any = None,
    *,
    eps: Any = None,
    a: Any = None,
    b: Any = None,
    cost: Any = "sqeuclidean",
    rho: Any = None,
    **settings: Any,
) -> Tensor:
    """Optimal values, (W,), twice differentiable in points or costs, weights, eps and prices of soft marginals.

    The value is `min_P sum P C + eps KL(P | a b')`, and with soft marginals the prices `rho KL(P 1 | a)` are added.
    First derivatives are those of the dual value at the potentials (envelope theorem). Second derivatives
    (`create_graph=True`) follow from implicit derivatives of the potentials.

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
        rho: Price of soft marginals: a number, a tensor of one, a pair (a tuple) of them, a list of these with one
            entry for each problem, or a tensor (W,) or (W, 2). Only tensors have derivatives. With a soft marginal,
            weights keep their masses.
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
    lanes = lanes_of(x, y, a, b, eps, cost, rho, _is_live)
    return _values(lanes, cost, settings) if lanes else _nothing(x, y, cost)


def divergence(
    x: Any,
    y: Any,
    *,
    eps: Any = None,
    a: Any = None,
    b: Any = None,
    cost: str | Cost = "sqeuclidean",
    rho: Any = None,
    **settings: Any,
) -> Tensor:
    """Debiased Sinkhorn divergences, (W,), twice differentiable; arguments as for `value`, with one price a pair.

    Examples:
        >>> x = torch.randn(4, 20, 2, requires_grad=True)
        >>> divergence(x, torch.randn(30, 2), eps=0.5).mean().backward()
        >>> tuple(x.grad.shape)
        (4, 20, 2)
    """
    check_settings(settings, divergence)
    pairs = lanes_of(x, y, a, b, eps, cost, rho, _is_live)
    if not pairs:
        return _nothing(x, y)
    lanes, within, sources = with_clouds_themselves(pairs)
    values = _values(lanes, cost, settings, sources)
    first, second = (values[[pair[side] for pair in within]] for side in (0, 1))
    debiased = values[: len(pairs)] - first / 2 - second / 2
    if all(pair.rho is None for pair in pairs):
        return debiased
    terms = [debiasing_mass(*_masses(pair, lane)) for pair, lane in zip(pairs, values, strict=False)]
    return debiased + torch.stack(terms)


def _masses(pair: Problem[Any], like: Tensor) -> tuple[Any, tuple[Any, Any]]:
    """Return eps and the masses of both sides of a pair; equal masses if both marginals are hard."""
    if pair.rho is None:
        return like.detach() * 0, (0.0, 0.0)
    sides = [torch.ones(()) if w is None else torch.as_tensor(w).sum() for w in (pair.a, pair.b)]
    first, second = (side.to(dtype=like.dtype, device=like.device) for side in sides)
    eps = pair.eps if isinstance(pair.eps, torch.Tensor) else torch.tensor(float(pair.eps))
    return eps.to(dtype=like.dtype, device=like.device), (first, second)


def _is_live(value: Any) -> bool:
    """Whether a price is a tensor that may be differentiated; an infinite one is a constant."""
    return isinstance(value, torch.Tensor) and not (value.ndim == 0 and bool(value.isinf()))


def potentials(
    x: Any = None,
    y: Any = None,
    *,
    eps: Any = None,
    a: Any = None,
    b: Any = None,
    cost: Any = "sqeuclidean",
    rho: Any = None,
    **settings: Any,
) -> list[Potentials[Tensor]]:
    """Potentials of every problem, differentiable once in points or costs, weights, eps and prices, implicitly.

    Potentials between two hard marginals are shifted so that g has mean zero under b. Solve to a small tol: the error
    of derivatives is of first order in the residual. Arguments as for `value`; weights must be positive. Derivatives
    with respect to eps need memory for the plans.

    Examples:
        >>> x = torch.randn(2, 20, 2, dtype=torch.float64, requires_grad=True)
        >>> pairs = potentials(x, torch.randn(30, 2, dtype=torch.float64), eps=0.5, tol=1e-6)
        >>> sum(f.square().mean() for f, g in pairs).backward()
    """
    check_settings(settings, potentials)
    lanes = lanes_of(x, y, a, b, eps, cost, rho, _is_live)
    if not lanes:
        return []
    task, tensors = _task(lanes, cost, settings)
    sides: Any = PotentialsOf.apply(task, *tensors)
    count = len(lanes)
    return [
        fix_gauge(f, g, 1 / len(g) if b is None else b, g.nan_to_num()) if lane.rho is None else Potentials(f, g)
        for f, g, b, lane in zip(sides[:count], sides[count:], tensors[3 * count : 4 * count], lanes, strict=True)
    ]


def _values(
    lanes: Sequence[Problem[Any]], cost: Any, settings: dict[str, Any], sources: Sequence[int] | None = None
) -> Tensor:
    task, tensors = _task(lanes, cost, settings, sources)
    values: Any = Value.apply(task, *tensors)
    return values


def _nothing(*points: Any) -> Tensor:
    """Return an empty tensor, the values of no problems."""
    tensors = [tensor for tensor in points if isinstance(tensor, torch.Tensor)]
    return torch.zeros(0, dtype=float_dtype_of(tensors), device=tensors[0].device if tensors else None)


def _task(
    lanes: Sequence[Problem[Any]], cost: Any, settings: dict[str, Any], sources: Sequence[int] | None = None
) -> tuple[Task, list[Any]]:
    """Return the task, and all columns of the lanes in one list; weights between hard marginals are normalised."""
    dense = is_dense(cost)
    for lane in lanes:
        for name, array in (("cost", lane.cost),) if dense else (("x", lane.x), ("y", lane.y)):
            if not isinstance(array, torch.Tensor):
                raise ProblemError(f"{name} must be a torch tensor, got {type(array).__name__}")
    fixed: list[Any] = [None if isinstance(lane.eps, torch.Tensor) else lane.eps for lane in lanes]
    rhos: list[Any] = [lane.rho for lane in lanes]
    prices = [rho and tuple(None if _is_live(price) else price for price in rho) for rho in rhos]
    live = [[rho[side] if rho and _is_live(rho[side]) else None for rho in rhos] for side in (0, 1)]
    task = make_task(fixed, cost, settings, sources, prices)
    # Each tensor is normalised once, so that lanes that share weights share the normalised weights.
    known: dict[tuple[int, bool], Any] = {}

    def normalise(weights: Any, points: Any, rho: Any) -> Any:
        if weights is None:
            return None
        key = id(weights), rho is None
        if key not in known:
            tensor = torch.as_tensor(weights, device=points.device)
            tensor = tensor if tensor.dtype.is_floating_point else tensor.double()
            # The absolute sum: dividing by a negative one would turn negative weights into valid ones.
            known[key] = tensor / tensor.sum().abs() if rho is None else tensor
        return known[key]

    like = [(lane.cost, lane.cost) if dense else (lane.x, lane.y) for lane in lanes]
    columns = (
        [lane.x for lane in lanes],
        [lane.y for lane in lanes],
        [normalise(lane.a, x, lane.rho) for lane, (x, _) in zip(lanes, like, strict=True)],
        [normalise(lane.b, y, lane.rho) for lane, (_, y) in zip(lanes, like, strict=True)],
        [lane.eps if eps is None else None for lane, eps in zip(lanes, fixed, strict=True)],
        [lane.cost if dense else None for lane in lanes],
        *live,
    )
    return task, [tensor for column in columns for tensor in column]
