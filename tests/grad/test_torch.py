"""torch derivatives: gradcheck in float64, against autograd through dense Sinkhorn, batches, sharing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from tests.conftest import needs

torch = needs("torch")

from drainsinkhorn.grad import torch as grad  # noqa: E402

rng = np.random.default_rng(0)
TIGHT = {"tol": 1e-11, "max_depth": 5000}


def tensor(array: Any, *, needs_grad: bool = True) -> Any:
    return torch.tensor(array, dtype=torch.float64, requires_grad=needs_grad)


def weights(size: int) -> Any:
    return tensor(rng.uniform(0.5, 1.5, size=size))


COSTS = ["sqeuclidean", "euclidean", "cosine", "negdot", ds.Cost("sqeuclidean", 0.5), ds.Cost("euclidean", 2.0)]


@pytest.mark.parametrize("cost", COSTS, ids=str)
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_value(cost: Any, backend: str) -> None:
    x, y = tensor(rng.normal(size=(5, 2)) + 1), tensor(rng.normal(size=(4, 2)) + 1)
    a, b = weights(5), weights(4)

    def run(x: Any, y: Any, a: Any, b: Any) -> Any:
        return grad.value(x, y, a=a, b=b, eps=0.7, cost=cost, backend=backend, **TIGHT)

    assert torch.autograd.gradcheck(run, (x, y, a, b), atol=1e-6)


@pytest.mark.parametrize("cost", COSTS[:4], ids=str)
def test_divergence(cost: Any) -> None:
    x, y = tensor(rng.normal(size=(2, 5, 2)) + 1), tensor(rng.normal(size=(2, 4, 2)) + 1)
    a, b = tensor(rng.uniform(0.5, 1.5, size=(2, 5))), weights(4)

    def run(x: Any, y: Any, a: Any, b: Any) -> Any:
        return grad.divergence(x, y, a=a, b=b, eps=[0.7, 0.4], cost=cost, tol=1e-10, max_depth=5000)

    assert torch.autograd.gradcheck(run, (x, y, a, b), atol=1e-6)


@pytest.mark.parametrize("cost", COSTS[:4], ids=str)
def test_potentials(cost: Any) -> None:
    x, y = tensor(rng.normal(size=(5, 2)) + 1), tensor(rng.normal(size=(4, 2)) + 1)
    a, b = weights(5), weights(4)

    def run(x: Any, y: Any, a: Any, b: Any) -> Any:
        ((f, g),) = grad.potentials(x, y, a=a, b=b, eps=0.7, cost=cost, **TIGHT)
        return f, g

    assert torch.autograd.gradcheck(run, (x, y, a, b), atol=1e-6)


def test_a_plan_built_from_potentials_can_be_differentiated() -> None:
    """Of a ragged batch, through the barycentric map."""
    xs, ys = [tensor(rng.normal(size=(n, 2))) for n in (5, 3)], [tensor(rng.normal(size=(m, 2))) for m in (4, 6)]

    def run(*clouds: Any) -> Any:
        xs, ys = clouds[:2], clouds[2:]
        found = grad.potentials(list(xs), list(ys), eps=[0.5, 1.0], **TIGHT)
        images = []
        for x, y, (f, g), eps in zip(xs, ys, found, (0.5, 1.0), strict=True):
            cost = (x[:, None] - y[None]).square().sum(-1)
            images.append(torch.softmax((f[:, None] + g - cost) / eps, dim=1) @ y)
        return tuple(images)

    assert torch.autograd.gradcheck(run, (*xs, *ys), atol=1e-6)


def dense_value(x: Any, y: Any, eps: float) -> Any:
    """Autograd through every cycle of a dense log-domain Sinkhorn."""
    cost = (x[:, None] - y[None]).square().sum(-1)
    g = torch.zeros(len(y), dtype=x.dtype)
    for _ in range(400):
        f = -eps * torch.logsumexp((g - cost) / eps, dim=1) + eps * np.log(len(y))
        g = -eps * torch.logsumexp((f[:, None] - cost) / eps, dim=0) + eps * np.log(len(x))
    return f.mean() + g.mean()


def test_a_ragged_batch_against_unrolled_sinkhorn() -> None:
    xs = [tensor(rng.normal(size=(n, 3))) for n in (30, 12, 20)]
    ys = [tensor(rng.normal(size=(m, 3)) + 0.5) for m in (17, 25, 20)]
    found = grad.value(xs, ys, eps=1.0, tol=1e-9)
    ours = torch.autograd.grad((found * torch.tensor([1.0, -2.0, 0.5])).sum(), [*xs, *ys])
    theirs = [dense_value(x, y, 1.0) for x, y in zip(xs, ys, strict=True)]
    total = theirs[0] - 2 * theirs[1] + 0.5 * theirs[2]
    assert found.tolist() == pytest.approx([v.item() for v in theirs], rel=1e-8)
    for mine, other in zip(ours, torch.autograd.grad(total, [*xs, *ys]), strict=True):
        assert torch.allclose(mine, other, atol=1e-7)


def test_shared_points_gather_all_gradients() -> None:
    x, y = tensor(rng.normal(size=(6, 2))), tensor(rng.normal(size=(3, 5, 2)), needs_grad=False)
    grad.divergence(x, y, eps=0.5, tol=1e-9).sum().backward()
    alone = sum(torch.autograd.grad(grad.divergence(x, one, eps=0.5, tol=1e-9).sum(), x)[0] for one in y)
    assert torch.allclose(x.grad, alone, atol=1e-9)


def test_against_geomloss() -> None:
    """GeomLoss anneals, and its gradients come nearer to these as its scaling comes nearer to one."""
    geomloss, own = needs("geomloss"), np.random.default_rng(1)
    x, y = tensor(own.normal(size=(2, 20, 2))), tensor(own.normal(size=(2, 25, 2)) + 0.3, needs_grad=False)
    blur, off = 0.7, []
    ours = grad.divergence(x, y, eps=blur**2, cost=ds.Cost("sqeuclidean", 0.5), tol=1e-7)
    (mine,) = torch.autograd.grad(ours.sum(), x)
    for scaling in (0.99, 0.999):
        theirs = geomloss.SamplesLoss("sinkhorn", p=2, blur=blur, scaling=scaling, backend="tensorized")(x, y)
        (other,) = torch.autograd.grad(theirs.sum(), x)
        off.append(float((mine - other).abs().max() / other.abs().max()))
    assert off[1] < 2e-3
    assert off[1] < off[0] / 5


def test_a_bad_lane_is_nan_and_harms_nobody() -> None:
    points = rng.normal(size=(2, 6, 2))
    points[1, 0, 0] = np.nan
    x = tensor(points)
    found = grad.value(x, tensor(rng.normal(size=(5, 2))), eps=0.5)
    found[0].backward()
    assert found.isnan().tolist() == [False, True]
    assert x.grad[0].isfinite().all()


def test_float32_gradients_stay_float32() -> None:
    x = torch.randn(2, 30, 3, requires_grad=True)
    grad.value(x, torch.randn(2, 20, 3), eps=1.0).sum().backward()
    assert x.grad.dtype == torch.float32


def test_bad_input() -> None:
    x = tensor(rng.normal(size=(4, 2)))
    with pytest.raises(ds.ProblemError, match="y must be a torch tensor, got ndarray"):
        grad.value(x, np.ones((3, 2)), eps=1.0)
    with pytest.raises(ds.ProblemError, match="matrices of costs take the place of the points"):
        grad.value(x, x, eps=1.0, cost=torch.ones(4, 4))
    with pytest.raises(ds.ProblemError, match="cost must be a name, a Cost or matrices"):
        grad.value(x, x, eps=1.0, cost=3.0)
    with pytest.raises(ds.ProblemError, match="cost must be a torch tensor, got ndarray"):
        grad.value(cost=np.ones((4, 4)), eps=1.0)
    with pytest.raises(ds.ProblemError, match="a divergence needs points"):
        grad.divergence(None, None, eps=1.0, cost=torch.ones(4, 4))  # type: ignore[arg-type]
    with pytest.raises(ds.ProblemError, match="a of problem 0 has weights of zero"):
        grad.potentials(x, x, a=torch.tensor([0.0, 1, 1, 1]), eps=1.0)


def test_integers_give_floats() -> None:
    x, y = torch.tensor([[0, 1], [2, 3], [1, 1]]), torch.tensor([[1, 0], [2, 2]])
    for name in ("value", "divergence"):
        found, exact = (getattr(grad, name)(p, q, eps=0.7) for p, q in ((x, y), (x.double(), y.double())))
        assert found.dtype == torch.float64
        assert torch.allclose(found, exact)
    assert grad.value(x, y.float(), eps=0.7).dtype == torch.float32


@pytest.mark.parametrize("name", ["value", "divergence", "potentials"])
def test_writing_to_points_before_backward_raises(name: str) -> None:
    x, y = tensor(rng.normal(size=(5, 2))), tensor(rng.normal(size=(4, 2)), needs_grad=False)
    found = getattr(grad, name)(x, y, eps=0.7)
    loss = found[0].f.square().sum() if name == "potentials" else found.sum()
    y += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("name", ["value", "divergence"])
def test_a_bad_lane_does_not_poison_what_it_shares(name: str) -> None:
    points = rng.normal(size=(2, 6, 2))
    points[1, 0, 0] = np.nan
    y, b = tensor(rng.normal(size=(5, 2))), weights(5)
    found = getattr(grad, name)(tensor(points), y, b=b, eps=0.5)
    found[~found.isnan()].sum().backward()
    alone = getattr(grad, name)(tensor(points[0]), y, b=b, eps=0.5).sum()
    for one, other in zip((y.grad, b.grad), torch.autograd.grad(alone, (y, b)), strict=True):
        assert torch.allclose(one, other)


def test_negative_weights_are_not_turned_round() -> None:
    x, y = tensor(rng.normal(size=(5, 2))), tensor(rng.normal(size=(4, 2)))
    for name in ("value", "divergence"):
        assert getattr(grad, name)(x, y, a=-torch.ones(5), eps=0.7).isnan().all()
        assert getattr(grad, name)(x, y, a=torch.ones(5, dtype=torch.int64), eps=0.7).isfinite().all()
    ((f, g),) = grad.potentials(x, y, b=-torch.ones(4), eps=0.7)
    assert f.isnan().all()
    assert g.isnan().all()


def test_potentials_of_a_bad_lane_are_nan_and_harm_nobody() -> None:
    points = rng.normal(size=(2, 6, 2))
    points[1, 0, 0] = np.nan
    y, b = tensor(rng.normal(size=(5, 2))), weights(5)
    good, bad = grad.potentials(tensor(points), y, b=b, eps=0.5, tol=1e-8)
    assert bad.f.shape == (6,)
    assert bad.g.isnan().all()
    ours = torch.autograd.grad(good.f.square().sum(), (y, b))
    (alone,) = grad.potentials(tensor(points[0]), y, b=b, eps=0.5, tol=1e-8)
    for one, other in zip(ours, torch.autograd.grad(alone.f.square().sum(), (y, b)), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_no_problems_have_no_values() -> None:
    x, y = torch.zeros(0, 5, 2), torch.zeros(4, 2)
    assert grad.value(x, y, eps=1.0).shape == grad.divergence(x, y, eps=1.0).shape == (0,)
    assert grad.value(x, y, eps=1.0).dtype == torch.float32
    assert grad.potentials(x, y, eps=1.0) == []


def test_unconverged_problems_are_told() -> None:
    x, y = tensor(rng.normal(size=(2, 30, 2))), tensor(rng.normal(size=(30, 2)))
    with pytest.warns(RuntimeWarning, match="2 of 2 problems did not converge"):
        grad.value(x, y, eps=1e-4, max_depth=2, rescue=False)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_value_of_costs_and_eps(backend: str) -> None:
    cost, eps = tensor(rng.uniform(0, 3, size=(2, 5, 4))), tensor([0.7, 0.4])
    a, b = weights(5), weights(4)

    def run(cost: Any, eps: Any, a: Any, b: Any) -> Any:
        return grad.value(cost=cost, eps=eps, a=a, b=b, backend=backend, **TIGHT)

    assert torch.autograd.gradcheck(run, (cost, eps, a, b), atol=1e-6)


def test_divergence_of_a_shared_eps() -> None:
    x, y = tensor(rng.normal(size=(3, 5, 2))), tensor(rng.normal(size=(3, 4, 2)))

    def run(x: Any, eps: Any) -> Any:
        return grad.divergence(x, y, eps=eps, tol=1e-10, max_depth=5000)

    assert torch.autograd.gradcheck(run, (x, tensor(0.6)), atol=1e-6)


@pytest.mark.parametrize("dense", [True, False])
def test_potentials_of_costs_and_eps(dense: bool) -> None:
    x, y, eps = tensor(rng.normal(size=(5, 2)) + 1), tensor(rng.normal(size=(4, 2)) + 1), tensor(0.7)

    def run(x: Any, y: Any, eps: Any, b: Any) -> Any:
        points: dict[str, Any] = {"cost": (x[:, None] - y).square().sum(-1)} if dense else {"x": x, "y": y}
        ((f, g),) = grad.potentials(**points, eps=eps, b=b, **TIGHT)
        return f, g

    assert torch.autograd.gradcheck(run, (x, y, eps, weights(4)), atol=1e-6)


def test_an_eps_may_be_float32_among_points_in_float64() -> None:
    x = tensor(rng.normal(size=(5, 2)))
    eps = torch.tensor(0.5, requires_grad=True)
    value = grad.value(x, x + 1, eps=eps)
    assert value.dtype == torch.float64
    value.sum().backward()
    assert eps.grad is not None
    assert eps.grad.dtype == torch.float32


def test_constants_of_tensors_that_require_gradients_say_where_to_go() -> None:
    x, y = tensor(rng.normal(size=(2, 5, 2))), tensor(rng.normal(size=(4, 2)), needs_grad=False)
    with pytest.warns(ds.GradientWarning, match=r"use drainsinkhorn\.grad\.torch\.divergence"):
        ds.divergence(x, y, eps=0.5)
    solution = ds.solve(x, y, eps=0.5)
    with pytest.warns(ds.GradientWarning, match=r"use drainsinkhorn\.grad\.torch\.value") as caught:
        ds.transport_cost(solution)
    assert len(caught) == 1
    with pytest.warns(ds.GradientWarning):
        solution[0].transport_cost()
    with torch.no_grad():
        ds.divergence(x, y, eps=0.5)
        ds.transport_cost(solution)
    ds.divergence(x.detach(), y, eps=0.5)
