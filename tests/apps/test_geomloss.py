"""SamplesLoss: values, derivatives and potentials equal those of GeomLoss where GeomLoss has converged."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from tests.conftest import needs

torch = needs("torch")
SamplesLoss: Any = ds.geomloss.SamplesLoss

BLUR = 1.5
SLOW = {"scaling": 0.99999, "diameter": 1.002 * BLUR}
"""A schedule of GeomLoss that spends all its steps at almost the final blur, and so converges."""
RNG = np.random.default_rng(0)


STEADY = {"scaling": 0.999998, "diameter": 1.002 * BLUR}
"""A slower one: after its 999 steps potentials are within some 1e-6 of the limit."""


def clouds(mass: float = 1.0) -> list[Any]:
    """Weights and points of three pairs: a, x, b, y."""
    a, b = (torch.tensor(mass * RNG.dirichlet(np.full(size, 5.0), 3)) for size in (20, 25))
    x, y = (torch.tensor(RNG.normal(size=(3, size, 2)) + shift) for size, shift in ((20, 0.0), (25, 0.3)))
    return [a, x, b, y]


def quartic(x: Any, y: Any) -> Any:
    """A cost that only a function can state."""
    squares = (x[:, :, None] - y[:, None]) ** 2
    return (squares + 0.1 * squares**2).sum(-1)


def distance(x: Any, y: Any) -> Any:
    """Euclidean distances with derivative 0 between equal points; GeomLoss's own are at least 1e-4."""
    squares = ((x[:, :, None] - y[:, None]) ** 2).sum(-1)
    return torch.where(squares > 0, squares, 1.0).sqrt() * (squares > 0)


def outputs(loss: Any, tensors: list[Any]) -> tuple[Any, list[Any]]:
    """Values, and derivatives in weights, less their mean, and points."""
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    values = loss(*leaves)
    values.sum().backward()
    grads = [leaf.grad for leaf in leaves]
    return values.detach(), [grad - grad.mean(-1, keepdim=True) if grad.ndim == 2 else grad for grad in grads]


@pytest.mark.parametrize("debias", [True, False])
@pytest.mark.parametrize("mass", [1.0, 2.5])
@pytest.mark.parametrize(("p", "cost"), [(1, None), (2, None), (2, quartic)])
def test_values_and_derivatives_are_those_of_geomloss(debias: bool, mass: float, p: int, cost: Any) -> None:
    geomloss, tensors = needs("geomloss"), clouds(mass)
    options = {"p": p, "blur": BLUR, "debias": debias, "cost": cost, "backend": "tensorized"}
    theirs, their_grads = outputs(geomloss.SamplesLoss("sinkhorn", **options, **SLOW), tensors)
    ours, our_grads = outputs(SamplesLoss("sinkhorn", **options, tol=1e-9), tensors)
    # GeomLoss adds 1e-8 to squared distances before it takes their roots.
    torch.testing.assert_close(ours, theirs, rtol=2e-4 if p == 1 and debias else 1e-6, atol=0)
    for own, other in zip(our_grads, their_grads, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-3, atol=2e-3 * float(other.abs().max()))


@pytest.mark.parametrize("debias", [True, False])
@pytest.mark.parametrize("reach", [0.5, 1.5, 6.0])
@pytest.mark.parametrize(("p", "cost"), [(1, None), (2, None), (2, quartic)])
def test_reach_is_that_of_geomloss(debias: bool, reach: float, p: int, cost: Any) -> None:
    geomloss, tensors = needs("geomloss"), clouds()
    # Masses from 0.2 to 4, unequal in every problem.
    for place, masses in ((0, (0.2, 1.0, 4.0)), (2, (1.5, 0.7, 2.0))):
        tensors[place] = tensors[place] * torch.tensor(masses)[:, None]
    options: dict[str, Any] = {"p": p, "blur": BLUR, "reach": reach, "debias": debias, "backend": "tensorized"}
    theirs = geomloss.SamplesLoss(**options, cost=distance if p == 1 else cost, **STEADY)
    ours = SamplesLoss(**options, cost=cost, tol=1e-10)
    grads: list[Any] = []
    for loss in (theirs, ours):
        leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        values = loss(*leaves)
        grads.append((values.detach(), *torch.autograd.grad(values.sum(), leaves)))
    torch.testing.assert_close(grads[1][0], grads[0][0], rtol=1e-5, atol=0)
    eps, rho = BLUR**p, reach**p
    for place, (other, own) in enumerate(zip(grads[0][1:], grads[1][1:], strict=True)):
        # Those of GeomLoss have the factor of its values; see `drainsinkhorn.apps.geomloss`.
        expected = other * (rho + eps) / (rho + eps / 2)
        if not debias and place in (0, 2):
            # A constant in GeomLoss's derivatives in weights, which finite differences of its values do not have.
            expected = expected - eps / 2
        torch.testing.assert_close(own, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("debias", [True, False])
def test_derivatives_with_reach_are_those_of_the_values_of_geomloss(debias: bool) -> None:
    geomloss, (a, x, b, y) = needs("geomloss"), clouds(2.0)
    a = a[:1].requires_grad_()
    x, b, y = x[:1].requires_grad_(), b[:1], y[:1]
    options: dict[str, Any] = {"blur": BLUR, "reach": 2.0, "debias": debias, "backend": "tensorized"}
    own = torch.autograd.grad(SamplesLoss(**options, tol=1e-10)(a, x, b, y)[0], [a, x])
    theirs, step = geomloss.SamplesLoss(**options, **STEADY), 1e-4
    for leaf, grad in zip((a, x), own, strict=True):
        direction = torch.tensor(RNG.normal(size=leaf.shape)) * (a.detach() if leaf is a else 1)
        moved = [
            theirs(
                *(side.detach() + sign * step * direction if side is leaf else side.detach() for side in (a, x, b, y))
            )
            for sign in (1, -1)
        ]
        slope = float((moved[0] - moved[1])[0]) / (2 * step)
        assert slope == pytest.approx(float((grad * direction).sum()), rel=1e-4)


def test_infinite_reach_is_balanced_and_uniform_weights_have_mass_one() -> None:
    a, x, b, y = clouds()
    torch.testing.assert_close(SamplesLoss(blur=BLUR, reach=math.inf)(a, x, b, y), SamplesLoss(blur=BLUR)(a, x, b, y))
    soft = SamplesLoss(blur=BLUR, reach=1.0, tol=1e-9)
    uniform = [torch.full(points.shape[:2], 1 / points.shape[1], dtype=points.dtype) for points in (x, y)]
    torch.testing.assert_close(soft(x, y), soft(uniform[0], x, uniform[1], y))
    torch.testing.assert_close(soft(x[0], y[0]), soft(x, y)[0])
    assert float(soft(2 * a, x, 2 * a, x).abs().max()) < 1e-9
    torch.testing.assert_close(soft(a, x, 3 * b, y), soft(3 * b, y, a, x))


def test_derivatives_in_reach_are_not_left_out_silently() -> None:
    reach, points = torch.tensor(2.0, requires_grad=True), torch.zeros(2, 1)
    with pytest.warns(ds.GradientWarning, match=r"functions of reach are constants.*with rho=reach\*\*p"):
        SamplesLoss(reach=reach)(points, points)
    SamplesLoss(reach=reach.detach())(points, points)


@pytest.mark.parametrize("debias", [True, False])
def test_soft_potentials_are_those_of_geomloss(debias: bool) -> None:
    geomloss, (a, x, b, y) = needs("geomloss"), clouds(1.5)
    options: dict[str, Any] = {"blur": BLUR, "reach": 2.0, "debias": debias, "potentials": True}
    theirs = geomloss.SamplesLoss(**options, backend="tensorized", **STEADY)(a, x, 2 * b, y)
    ours = SamplesLoss(**options, tol=1e-10)(a, x, 2 * b, y)
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=1e-5 * float(other.abs().max()))


@pytest.mark.parametrize("debias", [True, False])
@pytest.mark.parametrize("cost", [None, quartic])
def test_potentials_are_those_of_geomloss_up_to_a_constant(debias: bool, cost: Any) -> None:
    geomloss, tensors = needs("geomloss"), clouds(2.5)
    options = {"blur": BLUR, "debias": debias, "potentials": True, "cost": cost, "backend": "tensorized"}
    f, g = geomloss.SamplesLoss(**options, **SLOW)(*tensors)
    p, q = SamplesLoss(**options, tol=1e-9)(*tensors)
    torch.testing.assert_close(p[:, :, None] + q[:, None], f[:, :, None] + g[:, None], rtol=0, atol=2e-3)
    a, _, b, _ = tensors
    if not debias:
        torch.testing.assert_close((a * p).sum(1), (b * q).sum(1))
    single = SamplesLoss(**options, tol=1e-6)(*(tensor[0] for tensor in tensors))
    assert [tuple(side.shape) for side in single] == [(1, 20), (1, 25)]


def test_derivatives_in_weights_are_potentials() -> None:
    a, x, b, y = clouds(2.5)
    a.requires_grad_()
    b.requires_grad_()
    for debias in (True, False):
        grads = torch.autograd.grad(SamplesLoss(blur=BLUR, debias=debias, tol=1e-9)(a, x, b, y).sum(), [a, b])
        f, g = SamplesLoss(blur=BLUR, debias=debias, potentials=True, tol=1e-9)(a.detach(), x, b.detach(), y)
        both = f[:, :, None] + g[:, None]
        torch.testing.assert_close(grads[0][:, :, None] + grads[1][:, None], both, rtol=1e-6, atol=1e-7)


def test_all_ways_to_call_agree() -> None:
    a, x, b, y = clouds()
    uniform = SamplesLoss(blur=BLUR, tol=1e-8)
    batch = uniform(x, y)
    assert batch.shape == (3,)
    alone = uniform(x[1], y[1])
    assert alone.shape == ()
    torch.testing.assert_close(alone, batch[1])
    weighted = uniform(a, x, b, y)
    torch.testing.assert_close(uniform(a[..., None], x, b[..., None], y), weighted)
    labels = torch.zeros(20), torch.zeros(25)
    torch.testing.assert_close(uniform(labels[0], a[2], x[2], labels[1], b[2], y[2]), weighted[2])
    half = SamplesLoss(cost="(SqDist(X,Y) / IntCst(2))", blur=BLUR, tol=1e-8)
    torch.testing.assert_close(half(x, y), batch)
    torch.testing.assert_close(SamplesLoss(cost=ds.Cost("sqeuclidean", 0.5), blur=BLUR, tol=1e-8)(x, y), batch)


def test_float32_stays_float32_and_a_module_pickles() -> None:
    _, x, _, y = (tensor.float() for tensor in clouds())
    loss = pickle.loads(pickle.dumps(SamplesLoss(blur=BLUR)))
    assert loss(x, y).dtype == torch.float32
    assert loss(x.requires_grad_(), y).requires_grad
    loss.potentials = True
    with pytest.warns(ds.GradientWarning, match="potentials of SamplesLoss"):
        sides = loss(x, y)
    assert [side.dtype for side in sides] == [torch.float32, torch.float32]
    assert not any(side.requires_grad for side in sides)


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"loss": "gaussian"}, "no transport.*geomloss.SamplesLoss"),
        ({"loss": "energy"}, "no transport.*geomloss.SamplesLoss"),
        ({"p": 3}, "p=1, p=2.*GeomLoss"),
        ({"cost": "Exp(X-Y)"}, "p=1, p=2.*GeomLoss"),
    ],
)
def test_other_losses_are_refused(options: dict[str, Any], advice: str) -> None:
    with pytest.raises(NotImplementedError, match=advice):
        SamplesLoss(**options)
    loss = SamplesLoss()
    for name, value in options.items():
        setattr(loss, name, value)
    with pytest.raises(NotImplementedError, match=advice):
        loss(torch.zeros(2, 1), torch.ones(2, 1))


def test_bad_measures_are_named() -> None:
    a, x, b, y = clouds()
    loss = SamplesLoss(blur=BLUR)
    for args, message in (
        ((a, x, 2 * b, y), "equal masses"),
        ((-a, x, -b, y), "positive"),
        ((a, x, b), "3 arguments"),
        ((x[0], y), "as many dimensions"),
        ((x.numpy(), y), "x must be a tensor"),
        ((b, x, b, y), "a must be a tensor of shape"),
    ):
        with pytest.raises(ds.ProblemError, match=message):
            loss(*args)
    for reach in (-1.0, 0, math.nan, "1", [1.0, 2.0], 1e200, 1e-200):
        with pytest.raises(ds.OptionsError, match="reach must be a positive number"):
            SamplesLoss(reach=reach)
    for options, message in (
        ({"eps": 0.1}, "pass blur, where"),
        ({"rho": 0.1}, "pass reach, where"),
        ({"max_iter": 5}, "max_depth"),
    ):
        with pytest.raises(ds.OptionsError, match=message):
            SamplesLoss(**options)
    with pytest.raises(ds.OptionsError, match="unknown"):
        SamplesLoss("wasserstein")
