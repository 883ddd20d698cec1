"""Fields of results that torch can differentiate: objectives by the envelope theorem, plans implicitly.

With `V = min_P <C, P> + eps KL(P | a b')` over plans between weights of mass 1,

    dV / dC_ij = P_ij        dV / da_i = f_i        dV / dx_i = sum_j P_ij dC(x_i, y_j)/dx_i

Objectives have second derivatives too (`grad.second`). Plans and transport costs are functions of the potentials, which
are differentiated as `grad.implicit` describes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from drainsinkhorn.apps.pot.result import FinishedProblem
from drainsinkhorn.grad.implicit import solve_marginals
from drainsinkhorn.grad.lanes import fix_gauge, refuse_zeros
from drainsinkhorn.grad.second import hessian_products
from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.couplings import Couplings
from drainsinkhorn.numerics.costs import as_cost, resolve_cost

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """The caller's tensors of one problem, with their derivatives.

    Attributes:
        matrix: Costs, (n, m); None with points.
        x: Source points, (n, d); None with a matrix.
        y: Target points, (m, d).
        a: Source weights, (n,), of any mass; None: uniform.
        b: Target weights, (m,).
        cost: The cost between points.
    """

    matrix: Any
    x: Any
    y: Any
    a: Any
    b: Any
    cost: Any


class LiveFields:
    """Fields of several problems as tensors that carry derivatives: see `result.Tensors`.

    Args:
        lanes: Finished problems.
        inputs: The caller's tensors, one entry for each problem.
        eps: Entropic strength.
        regulariser: "kl" or "entropy".
        implicit: Whether plans, potentials and transport costs carry derivatives too.
        fixed_plan: Whether transport costs carry derivatives at a plan that is held fixed, if not `implicit`.
    """

    def __init__(
        self,
        lanes: Sequence[FinishedProblem],
        inputs: Sequence[Inputs],
        *,
        eps: float,
        regulariser: str,
        implicit: bool,
        fixed_plan: bool,
    ) -> None:
        options = {"eps": eps, "regulariser": regulariser}
        self._fields = [LiveProblem(lane, own, **options) for lane, own in zip(lanes, inputs, strict=True)]
        self._implicit, self._fixed_plan = implicit, fixed_plan

    def values(self) -> list[Any] | None:
        """Objectives."""
        return [field.value() for field in self._fields]

    def linear_values(self) -> list[Any] | None:
        """Transport costs."""
        if self._implicit:
            return [(field.plan * field.costs).sum() for field in self._fields]
        return [(field.fixed_plan() * field.costs).sum() for field in self._fields] if self._fixed_plan else None

    def plans(self) -> list[Any] | None:
        """Dense plans."""
        return [field.plan for field in self._fields] if self._implicit else None

    def log_scalings(self) -> tuple[list[Any], list[Any]] | None:
        """Logarithms of scaling vectors."""
        if not self._implicit:
            return None
        pairs = [field.log_scalings for field in self._fields]
        return [u for u, _ in pairs], [v for _, v in pairs]


class LiveProblem:
    """One problem: its lane, the caller's tensors, and the fields that are computed from both."""

    def __init__(self, lane: FinishedProblem, inputs: Inputs, *, eps: float, regulariser: str) -> None:
        self._lane, self._inputs, self._eps, self._regulariser = lane, inputs, eps, regulariser
        self._first = inputs.x if inputs.matrix is None else inputs.matrix
        self._weights = [_unit_mass(weights, self._first) for weights in (inputs.a, inputs.b)]

    @cached_property
    def _couplings(self) -> Couplings[Any]:
        return replace(self._lane.result, warns=False).couplings

    @property
    def _is_solved(self) -> bool:
        return self._lane.is_solved

    def value(self) -> Tensor:
        """The objective."""
        lane, (a, b) = self._lane, self._weights
        if not self._is_solved:
            return self._first.sum() * torch.nan
        costs = self._couplings.transport_cost()[0]
        value: Any = _Value.apply(lane, self._couplings, costs.entropic, self._first, self._inputs.y, a, b)
        offset = lane.value(costs, self._eps, "kl") - lane.mass * costs.entropic
        if self._regulariser == "entropy":
            offset += lane.value(costs, self._eps, "entropy") - lane.value(costs, self._eps, "kl")
            for weights in (a, b):
                if weights is not None and weights.requires_grad:
                    term = self._eps * torch.special.entr(weights).sum()
                    value = value - (term - term.detach())
        return value * lane.mass + offset

    @cached_property
    def costs(self) -> Tensor:
        """The cost matrix, (n, m), with derivatives in the points or the caller's matrix."""
        own = self._inputs
        return own.matrix if own.matrix is not None else _cost_matrix(own.cost, own.x, own.y)

    def fixed_plan(self) -> Tensor:
        """The plan without derivatives."""
        pairs = self._lane.a.size * self._lane.b.size
        if not self._is_solved:
            return torch.full_like(self.costs, torch.nan)
        return (self._couplings.plan(max_pairs=pairs)[0] * self._lane.mass).to(self._first.dtype)

    @cached_property
    def _potentials(self) -> tuple[Tensor, Tensor]:
        """Logarithms of the scaling vectors for mass 1, `u = f / eps + log a` and `v = g / eps + log b`."""
        logs = [
            (torch.as_tensor(own, dtype=self._first.dtype, device=self._first.device) if live is None else live).log()
            for own, live in zip((self._lane.a, self._lane.b), self._weights, strict=True)
        ]
        if not self._is_solved:
            return logs[0] * torch.nan, logs[1] * torch.nan
        refuse_zeros([[self._lane.a], [self._lane.b]])
        pair: Any = _Potentials.apply(self._lane, self._couplings, self._eps, self.costs, *self._weights)
        f, g = pair
        f, g = fix_gauge(f, g, logs[1].exp(), g)
        return f / self._eps + logs[0], g / self._eps + logs[1]

    @cached_property
    def plan(self) -> Tensor:
        """The plan, (n, m)."""
        u, v = self._potentials
        return self._lane.mass * (u[:, None] + v[None, :] - self.costs / self._eps).exp()

    @cached_property
    def log_scalings(self) -> tuple[Tensor, Tensor]:
        """Logarithms of the scaling vectors of the plan."""
        half = torch.log(torch.tensor(self._lane.mass)).item() / 2
        return self._potentials[0] + half, self._potentials[1] + half


def _unit_mass(weights: Any, like: Tensor) -> Any:
    """Weights over their sum, on the device and in the dtype of the costs; None stays None."""
    if weights is None:
        return None
    tensor = torch.as_tensor(weights, dtype=like.dtype, device=like.device)
    return tensor / tensor.sum()


def _cost_matrix(given: Any, x: Tensor, y: Tensor) -> Tensor:
    """Costs between points, (n, m), with derivatives."""
    cost = as_cost(given)
    form = resolve_cost(cost).kind.distances if isinstance(cost, Cost) and isinstance(cost.kind, str) else None
    if form is None:
        raise NotImplementedError(
            f"plans of the cost {given!r} have no derivatives here; pass grad='envelope', or call solve with a cost "
            "matrix that you computed in torch"
        )
    if form.directions:
        normalize = torch.nn.functional.normalize
        return cost.scale * (1 - normalize(x, dim=1) @ normalize(y, dim=1).T)
    distances = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")
    return cost.scale * (distances if form.root else distances.square())


def _refuse_higher_order(order: str) -> None:
    if torch.is_grad_enabled():
        raise NotImplementedError(
            f"derivatives of these fields are of the {order} order, but backward ran with create_graph=True for the "
            "next one"
        )


class _Value(torch.autograd.Function):
    """The entropic value of a problem with weights of mass 1; backward by the envelope theorem."""

    @staticmethod
    def forward(ctx: Any, lane: FinishedProblem, plans: Any, number: float, first: Any, y: Any, a: Any, b: Any) -> Any:
        ctx.lane, ctx.plans = lane, plans
        ctx.save_for_backward(first, y, a, b)
        return torch.tensor(number, dtype=first.dtype, device=first.device)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        slopes: Any = _Slopes.apply(ctx.lane, ctx.plans, ctx.needs_input_grad[3:], *grad_outputs, *ctx.saved_tensors)
        return None, None, None, *slopes


class _Slopes(torch.autograd.Function):
    """Slopes of the entropic value times a cotangent; backward by Hessian products."""

    @staticmethod
    def forward(ctx: Any, lane: FinishedProblem, plans: Any, needs: Any, cotangent: Any, *tensors: Any) -> Any:
        ctx.lane, ctx.plans = lane, plans
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(cotangent, *tensors)
        slopes = _slopes(lane, plans, needs, tensors)
        return tuple(
            None if slope is None else (slope * cotangent).to(dtype=tensor.dtype, device=tensor.device)
            for slope, tensor in zip(slopes, tensors, strict=True)
        )

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        _refuse_higher_order("second")
        cotangent, *tensors = ctx.saved_tensors
        result, names = ctx.lane.result, ("cost" if tensors[1] is None else "x", "y", "a", "b")
        motion = {name: moved.double() for name, moved in zip(names, grad_outputs, strict=True) if moved is not None}
        if not motion:
            return (None,) * (4 + len(tensors))
        slopes = _slopes(ctx.lane, ctx.plans, [moved is not None for moved in grad_outputs], tensors)
        scale = sum((m * s.to(m)).sum() for m, s in zip(grad_outputs, slopes, strict=True) if s is not None)
        (product,) = hessian_products(ctx.plans, [result.instance], [result.potentials], [motion])
        gradients = [
            (product[name] * cotangent).to(dtype=tensor.dtype, device=tensor.device) if needed else None
            for name, tensor, needed in zip(names, tensors, ctx.needs_input_grad[4:], strict=True)
        ]
        return None, None, None, scale, *gradients


def _slopes(lane: FinishedProblem, plans: Any, needs: Sequence[bool], tensors: Sequence[Any]) -> list[Any]:
    """First derivatives of the entropic value in costs or points, y, a and b; None where they are not needed."""
    pairs, is_dense = lane.a.size * lane.b.size, tensors[1] is None
    f, g = map(torch.as_tensor, lane.result.potentials)
    slopes = (
        lambda: plans.plan(max_pairs=pairs)[0] if is_dense else plans.slopes("row")[0],
        lambda: plans.slopes("col")[0],
        lambda: f,
        lambda: g,
    )
    return [torch.as_tensor(slope()) if needed else None for slope, needed in zip(slopes, needs, strict=True)]


class _Potentials(torch.autograd.Function):
    """f and g of a problem with costs C and weights of mass 1; backward by implicit differentiation."""

    @staticmethod
    def forward(ctx: Any, lane: FinishedProblem, plans: Any, eps: float, costs: Any, a: Any, b: Any) -> Any:
        ctx.lane, ctx.plans, ctx.eps = lane, plans, eps
        ctx.save_for_backward(costs, a, b)
        return tuple(
            torch.as_tensor(side, device=costs.device).to(costs.dtype).clone() for side in lane.result.potentials
        )

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        _refuse_higher_order("first")
        tensors, plans = ctx.saved_tensors, ctx.plans
        dense = plans.plan(max_pairs=ctx.lane.a.size * ctx.lane.b.size)[0]
        u, v = (cotangent.to(dense.dtype) for cotangent in grad_outputs)
        (p,), (q,) = solve_marginals(plans, [u], [v])
        own = [torch.as_tensor(w, dtype=p.dtype, device=p.device) for w in (ctx.lane.a, ctx.lane.b)]
        gradients = (
            dense * (p[:, None] + q[None, :]),
            -ctx.eps * (dense @ q) / own[0],
            -ctx.eps * (dense.T @ p) / own[1],
        )
        returned = [
            gradient.to(dtype=tensor.dtype, device=tensor.device) if needed else None
            for gradient, tensor, needed in zip(gradients, tensors, ctx.needs_input_grad[3:], strict=True)
        ]
        return None, None, None, *returned
