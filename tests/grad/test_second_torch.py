"""Second derivatives and soft marginals in torch: gradcheck, gradgradcheck, and autograd through a dense Sinkhorn."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from tests.conftest import needs
from tests.run.test_soft import SOLVERS as ALL_SOLVERS

torch = needs("torch")

from drainsinkhorn.grad import torch as grad  # noqa: E402

INF = math.inf
SOLVERS = [name for name in ALL_SOLVERS if " " not in name]
"""Backends by name."""
TIGHT: dict[str, Any] = {"tol": 1e-12, "max_depth": 20_000, "backend": "reference"}
PRICES = [None, (0.8, 2.0), (INF, 0.7), (0.7, INF)]
COSTS = ["sqeuclidean", "euclidean", "cosine", "negdot"]


def tensor(array: Any) -> Any:
    return torch.tensor(array, dtype=torch.float64, requires_grad=True)


def inputs(seed: int = 0, mass: float = 1.4) -> list[Any]:
    rng = np.random.default_rng(seed)
    a, b = rng.uniform(0.5, 1.5, size=4), rng.uniform(0.5, 1.5, size=3)
    points = rng.normal(size=(4, 2)) + 1, rng.normal(size=(3, 2)) + 1
    return [tensor(array) for array in (*points, a / a.sum(), mass * b / b.sum())]


def costs_between(x: Any, y: Any, cost: str) -> Any:
    squares = (x[:, None] - y[None]).square().sum(-1)
    if cost == "cosine":
        return 1 - torch.nn.functional.normalize(x, dim=1) @ torch.nn.functional.normalize(y, dim=1).T
    return {"sqeuclidean": squares, "euclidean": squares.sqrt(), "negdot": -x @ y.T}[cost]


def unrolled(costs: Any, a: Any, b: Any, eps: Any, rho: Any, cycles: int = 400) -> tuple[Any, Any, Any]:
    """f, g and the dual value by a dense Sinkhorn in the log domain, all of whose cycles autograd records."""
    kappas = [0.0 if price is None else 1 / price for price in (rho or (None, None))]
    if rho is None:
        a, b = a / a.sum(), b / b.sum()
    f, g = torch.zeros_like(a), torch.zeros_like(b)
    for _ in range(cycles):
        f = -eps / (1 + eps * kappas[0]) * torch.logsumexp(b.log() + (g - costs) / eps, dim=1)
        g = -eps / (1 + eps * kappas[1]) * torch.logsumexp(a.log() + (f - costs.T) / eps, dim=1)
    mass = (a[:, None] * b * torch.exp((f[:, None] + g - costs) / eps)).sum()
    rewards = [
        (w * h).sum() if kappa == 0.0 else (w * (1 - torch.exp(-kappa * h))).sum() / kappa
        for w, h, kappa in zip((a, b), (f, g), kappas, strict=True)
    ]
    return f, g, rewards[0] + rewards[1] - eps * (mass - a.sum() * b.sum())


def hessians(loss: Any, arguments: list[Any]) -> list[Any]:
    """Gradients, and a product of the Hessian, of a function with numbers as values."""
    first = torch.autograd.grad(loss, arguments, create_graph=True)
    rng = np.random.default_rng(7)
    moved = sum((one * torch.tensor(rng.normal(size=tuple(one.shape)))).sum() for one in first)
    return [*first, *torch.autograd.grad(moved, arguments)]


@pytest.mark.parametrize("backend", SOLVERS)
@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("rho", PRICES, ids=str)
def test_values_against_autograd_through_sinkhorn(rho: Any, cost: str, backend: str) -> None:
    arguments, eps = inputs(mass=1.0 if rho is None else 1.4), tensor(0.6)
    x, y, a, b = arguments
    prices = None if rho is None else tuple(tensor(price) if price < INF else price for price in rho)
    live = [] if prices is None else [price for price in prices if isinstance(price, torch.Tensor)]
    value = grad.value(x, y, a=a, b=b, eps=eps, rho=prices, cost=cost, **{**TIGHT, "backend": backend})[0]
    dense = prices and tuple(price if isinstance(price, torch.Tensor) else None for price in prices)
    truth = unrolled(costs_between(x, y, cost), a, b, eps, dense)[2]
    assert value.item() == pytest.approx(truth.item(), rel=1e-10)
    everything = [*arguments, eps, *live]
    for ours, theirs in zip(hessians(value, everything), hessians(truth, everything), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("rho", [*PRICES[:2], 1.5], ids=str)
def test_gradcheck_and_gradgradcheck_of_values(rho: Any) -> None:
    def run(x: Any, y: Any, a: Any, b: Any) -> Any:
        return grad.value(x, y, a=a, b=b, eps=0.6, rho=rho, **TIGHT)

    assert torch.autograd.gradcheck(run, inputs(), atol=1e-6)
    assert torch.autograd.gradgradcheck(run, inputs(), atol=1e-5)


@pytest.mark.parametrize("soft", [False, True])
def test_gradcheck_and_gradgradcheck_of_divergences(soft: bool) -> None:
    def run(x: Any, y: Any, a: Any, b: Any, eps: Any, rho: Any) -> Any:
        return grad.divergence(x, y, a=a, b=b, eps=eps, rho=rho if soft else None, **TIGHT)

    arguments = [*inputs(1), tensor(0.6), tensor(0.9)]
    assert torch.autograd.gradcheck(run, arguments, atol=1e-6)
    assert torch.autograd.gradgradcheck(run, arguments, atol=1e-5)


def test_gradgradcheck_of_costs() -> None:
    _, _, a, b = inputs(2)
    cost = tensor(np.random.default_rng(3).uniform(0, 2, size=(2, 4, 3)))

    def run(cost: Any, a: Any, b: Any, eps: Any, rho: Any) -> Any:
        return grad.value(cost=cost, a=a, b=b, eps=eps, rho=rho, **TIGHT)

    arguments = (cost, a, b, tensor([0.5, 0.7]), tensor([[0.6, 2.0], [1.0, 1.0]]))
    assert torch.autograd.gradcheck(run, arguments, atol=1e-6)
    assert torch.autograd.gradgradcheck(run, arguments, atol=1e-5)


@pytest.mark.parametrize("rho", [0.8, None])
def test_hessian_products_are_differences_of_gradients(rho: Any) -> None:
    """Of a batch of unequal clouds, one of which has a point without weight."""
    rng = np.random.default_rng(4)
    xs, ys = [tensor(rng.normal(size=(n, 3))) for n in (12, 7)], [tensor(rng.normal(size=(n, 3))) for n in (9, 11)]
    weights = [torch.tensor(rng.uniform(0.2, 1, size=n)) for n in (12, 7)]
    weights[0][2] = 0.0
    weights = [w / w.sum() for w in weights]

    def gradients(clouds: list[Any], create_graph: bool = False) -> Any:
        values = grad.divergence(clouds, ys, a=weights, eps=[0.4, 0.8], rho=rho, **TIGHT)
        return torch.autograd.grad((values * torch.tensor([1.0, -2.0])).sum(), clouds, create_graph=create_graph)

    moves = [torch.tensor(rng.normal(size=tuple(x.shape))) for x in xs]
    moved = sum((one * move).sum() for one, move in zip(gradients(xs, create_graph=True), moves, strict=True))
    products, step = torch.autograd.grad(moved, xs), 1e-4
    sides = [gradients([(x + sign * step * m).detach().requires_grad_() for x, m in zip(xs, moves, strict=True)])
             for sign in (1, -1)]  # fmt: skip
    for product, up, down in zip(products, *sides, strict=True):
        assert torch.allclose(product, (up - down) / (2 * step), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", SOLVERS)
@pytest.mark.parametrize("rho", PRICES[1:], ids=str)
def test_potentials_of_soft_problems(rho: Any, backend: str) -> None:
    arguments = [*inputs(5), tensor(0.6)]
    prices = [tensor(price) for price in rho if price < INF]

    def run(x: Any, y: Any, a: Any, b: Any, eps: Any, *live: Any) -> Any:
        rest = iter(live)
        pair = tuple(next(rest) if price < INF else INF for price in rho)
        return tuple(grad.potentials(x, y, a=a, b=b, eps=eps, rho=pair, **{**TIGHT, "backend": backend})[0])

    assert torch.autograd.gradcheck(run, (*arguments, *prices), atol=1e-6)
    rest = iter(prices)
    dense = tuple(next(rest) if price < INF else None for price in rho)
    x, y, a, b, eps = arguments
    f, g, _ = unrolled(costs_between(x, y, "sqeuclidean"), a, b, eps, dense)
    for ours, theirs in zip(run(*arguments, *prices), (f, g), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-9)


def test_balanced_and_soft_problems_share_a_batch() -> None:
    rng = np.random.default_rng(6)
    x, y, a = tensor(rng.normal(size=(3, 5, 2))), tensor(rng.normal(size=(4, 2))), tensor(rng.uniform(1, 2, size=5))
    rho = [None, 0.7, (0.5, INF)]

    def run(k: int | None) -> list[Any]:
        own = (x, rho) if k is None else (x[k], rho[k])
        loss = grad.value(own[0], y, a=a, eps=0.5, rho=own[1], **TIGHT)
        return hessians(loss.sum(), [x, y, a])

    alone = [run(k) for k in range(3)]
    for together, *parts in zip(run(None)[:3], *(each[:3] for each in alone), strict=True):
        assert torch.allclose(together, sum(parts), atol=1e-9)


def test_orders_beyond_are_refused() -> None:
    x, y, *_ = inputs()
    ((f, _),) = grad.potentials(x, y, eps=0.7)
    with pytest.raises(NotImplementedError, match="of the first order"):
        torch.autograd.grad(f.sum(), x, create_graph=True)
    (slope,) = torch.autograd.grad(grad.value(x, y, eps=0.7).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="of the second order"):
        torch.autograd.grad(slope.square().sum(), x, create_graph=True)


def test_a_bad_lane_harms_no_hessian() -> None:
    points = np.random.default_rng(8).normal(size=(2, 5, 2))
    points[1, 0, 0] = np.nan
    x, y = tensor(points), tensor(np.random.default_rng(9).normal(size=(4, 2)))
    (slope,) = torch.autograd.grad(grad.value(x, y, eps=0.5, rho=1.0, **TIGHT)[0], y, create_graph=True)
    product = torch.autograd.grad(slope.square().sum(), [x, y])
    assert all(one.isfinite().all() for one in product)


def test_a_divergence_needs_one_price() -> None:
    x, y, *_ = inputs()
    with pytest.raises(ds.ProblemError, match="one price for both marginals"):
        grad.divergence(x, y, eps=0.5, rho=(1.0, 2.0))
    with pytest.raises(ds.ProblemError, match="rho must be positive"):
        grad.value(x, y, eps=0.5, rho=-1.0)
