"""The same potentials as OTT-JAX and POT, modulo the gauge, to 1e-4 relative at tol 1e-6 in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import cdist

import drainsinkhorn as ds
from tests.conftest import needs

RELATIVE = 1e-4
KINDS = ["sqeuclidean", "euclidean", "cosine", "negdot", "dot", "dense"]
# One seed each for those that compile for every shape.
BACKENDS = [*((name, seed) for name in ("reference", "cpu") for seed in range(3)), ("ott", 0), ("keops", 0)]


def make(kind: str, seed: int) -> tuple[ds.Problem[Any], Any]:
    rng = np.random.default_rng(seed)
    n, m = (int(v) for v in rng.integers(20, 90, size=2))
    x, y = rng.normal(size=(n, 3)) + 0.3, rng.normal(size=(m, 3))
    a, b = rng.uniform(0.2, 2, size=n), rng.uniform(0.2, 2, size=m)
    if kind.endswith("dot"):
        cost = (-1) ** (kind == "negdot") * x @ y.T
    else:
        cost = cdist(x, y, "sqeuclidean" if kind == "dense" else kind) ** (1.5 if kind == "dense" else 1)
    eps = float(0.2 * np.median(np.abs(cost)))
    points: Any = {"cost": cost} if kind == "dense" else {"x": x, "y": y, "cost": kind}
    return ds.Problem(a=a / a.sum(), b=b / b.sum(), eps=eps, tol=1e-6, **points), cost


def assert_same(ours: ds.Potentials[Any], f: Any, g: Any) -> None:
    """Shift the gauge so that f agrees in the mean, then compare both."""
    shift = float(np.mean(ours.f) - np.mean(f))
    for mine, theirs in ((ours.f - shift, f), (ours.g + shift, g)):
        assert np.abs(mine - theirs).max() <= RELATIVE * np.abs(theirs).max()


def skip_unless_taken(backend: str, kind: str) -> None:
    needs({"ott": "ott", "keops": "pykeops"}.get(backend, "numpy"))
    if (backend, kind) == ("keops", "dense"):
        pytest.skip("KeOps computes costs from points")


@pytest.mark.parametrize(("backend", "seed"), BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_pot(kind: str, seed: int, backend: str) -> None:
    ot: Any = needs("ot")
    skip_unless_taken(backend, kind)
    problem, cost = make(kind, seed)
    _, log = ot.sinkhorn(
        problem.a, problem.b, cost, problem.eps, method="sinkhorn_log", stopThr=1e-10, numItermax=20_000, log=True
    )
    # POT: P = exp(u + v - C / eps) with log-scalings u, v.
    u, v = np.log(log["u"]), np.log(log["v"])
    result = ds.solve([problem], backend=backend)[0]
    assert result.converged
    assert_same(result.potentials, problem.eps * (u - np.log(problem.a)), problem.eps * (v - np.log(problem.b)))


@pytest.mark.parametrize(("backend", "seed"), BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_ott(kind: str, seed: int, backend: str) -> None:
    jax: Any = needs("jax")
    needs("ott")
    skip_unless_taken(backend, kind)
    from ott.geometry import costs, geometry, pointcloud
    from ott.problems.linear.linear_problem import LinearProblem
    from ott.solvers.linear.sinkhorn import Sinkhorn

    problem, cost = make(kind, seed)
    with jax.enable_x64(True):
        fns = {"sqeuclidean": costs.SqEuclidean(), "euclidean": costs.Euclidean(), "cosine": costs.Cosine()}
        fns |= {"negdot": costs.NegDotProduct()}
        # OTT has no positive dot product.
        if kind not in fns:
            geom = geometry.Geometry(cost_matrix=jax.numpy.asarray(cost), epsilon=problem.eps)
        else:
            x, y = jax.numpy.asarray(problem.x), jax.numpy.asarray(problem.y)
            geom = pointcloud.PointCloud(x, y, cost_fn=fns[kind], epsilon=problem.eps)
        solver = Sinkhorn(threshold=1e-10, norm_error=1, max_iterations=20_000)
        weights = (jax.numpy.asarray(w) for w in (problem.a, problem.b))
        out = solver(LinearProblem(geom, *weights))
        assert bool(out.converged)
        f, g = np.asarray(out.f), np.asarray(out.g)
    result = ds.solve([problem], backend=backend)[0]
    # OTT: P = exp((f + g - C) / eps).
    assert_same(result.potentials, f - problem.eps * np.log(problem.a), g - problem.eps * np.log(problem.b))


SOFT = [(0.8, 0.8), (2.0, 0.3), (float("inf"), 1.5), (0.7, float("inf")), (40.0, 25.0)]
AGREE = 1e-5


class Soft:
    """A problem with soft marginals and unequal masses, solved to 1e-9."""

    def __init__(self, rho: tuple[float, float], backend: str, cost: Any = "sqeuclidean", mass: float = 1.7) -> None:
        needs({"ott": "ott", "keops": "pykeops"}.get(backend, "numpy"))
        rng = np.random.default_rng(3)
        self.x, self.y = rng.normal(size=(40, 3)) + 0.3, rng.normal(size=(50, 3))
        a, b = rng.uniform(0.2, 2, size=40), rng.uniform(0.2, 2, size=50)
        self.a, self.b = a / a.sum(), mass * b / b.sum()
        self.cost, self.rho = cdist(self.x, self.y, "sqeuclidean"), rho
        self.eps = 0.2 * float(np.median(self.cost))
        fields = {"x": self.x, "y": self.y, "a": self.a, "b": self.b, "eps": self.eps, "tol": 1e-9}
        (self.result,) = ds.solve([ds.Problem(**fields, cost=cost, rho=rho)], backend=backend)
        assert self.result.converged
        self.plan = self.result.plan()

    def agrees(self, plan: Any) -> None:
        plan = np.asarray(plan)
        assert np.abs(self.plan - plan).sum() <= AGREE * plan.sum()
        assert self.plan.sum() == pytest.approx(plan.sum(), rel=AGREE)


SOFT_BACKENDS = ["reference", "cpu", "ott", "keops"]


@pytest.mark.parametrize("backend", SOFT_BACKENDS)
@pytest.mark.parametrize("rho", SOFT)
def test_pot_with_soft_marginals(rho: tuple[float, float], backend: str) -> None:
    ot: Any = needs("ot")
    ours = Soft(rho, backend)
    plan = ot.unbalanced.sinkhorn_unbalanced(
        ours.a, ours.b, ours.cost, ours.eps, reg_m=rho, reg_type="kl", c=ours.a[:, None] * ours.b, stopThr=1e-13,
        numItermax=100_000,
    )  # fmt: skip
    ours.agrees(plan)
    costs = ours.result.transport_cost()
    assert costs.transport == pytest.approx(float((plan * ours.cost).sum()), rel=AGREE)

    def divergence(p: Any, q: Any) -> float:
        return float((p * np.log(p / q) - p + q).sum())

    prices = [r * divergence(plan.sum(axis=k), w) for k, r, w in ((1, rho[0], ours.a), (0, rho[1], ours.b)) if r < 1e9]
    kl = divergence(plan, ours.a[:, None] * ours.b)
    assert costs.kl == pytest.approx(kl, rel=AGREE)
    assert costs.entropic == pytest.approx(costs.transport + ours.eps * kl + sum(prices), rel=AGREE)
    assert costs.dual == pytest.approx(costs.entropic, rel=AGREE)


@pytest.mark.parametrize("backend", SOFT_BACKENDS)
@pytest.mark.parametrize("rho", SOFT)
def test_ott_with_soft_marginals(rho: tuple[float, float], backend: str) -> None:
    """OTT's reference measure counts points: its plan is ours for the cost `C + eps (log a_i + log b_j)`."""
    jax: Any = needs("jax")
    needs("ott")
    from ott.geometry import geometry
    from ott.problems.linear.linear_problem import LinearProblem
    from ott.solvers.linear.sinkhorn import Sinkhorn

    ours = Soft(rho, backend)
    with jax.enable_x64(True):
        # Its cost without our weights in the reference measure.
        cost = ours.cost - ours.eps * (np.log(ours.a)[:, None] + np.log(ours.b))
        geom = geometry.Geometry(cost_matrix=jax.numpy.asarray(cost), epsilon=ours.eps)
        taus = [1.0 if price == float("inf") else price / (price + ours.eps) for price in rho]
        weights = (jax.numpy.asarray(w) for w in (ours.a, ours.b))
        problem = LinearProblem(geom, *weights, tau_a=taus[0], tau_b=taus[1])
        out = Sinkhorn(threshold=1e-11, max_iterations=50_000)(problem)
        ours.agrees(out.matrix)


@pytest.mark.parametrize("backend", SOFT_BACKENDS)
@pytest.mark.parametrize("reach", [0.8, 2.5])
def test_geomloss_with_soft_marginals(reach: float, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """GeomLoss anneals eps in a fixed schedule and stops; here it iterates at the last eps until nothing changes."""
    torch: Any = needs("torch")
    needs("geomloss")
    from geomloss import SamplesLoss
    from geomloss._legacy import sinkhorn_samples

    ours = Soft((reach**2, reach**2), backend, ds.Cost("sqeuclidean", 0.5))
    schedule = sinkhorn_samples.scaling_parameters

    def iterate(*arguments: Any) -> Any:
        diameter, eps, eps_list, rho = schedule(*arguments)
        return diameter, eps, [*eps_list, *[eps] * 1500], rho

    monkeypatch.setattr(sinkhorn_samples, "scaling_parameters", iterate)
    settings = {"p": 2, "blur": ours.eps**0.5, "reach": reach, "debias": False, "backend": "tensorized"}
    loss = SamplesLoss("sinkhorn", potentials=True, **settings)
    a, x, b, y = (torch.from_numpy(part) for part in (ours.a, ours.x, ours.b, ours.y))
    f, g = (part.numpy().ravel() for part in loss(a, x, b, y))
    scores = (f[:, None] + g - ours.cost / 2) / ours.eps
    ours.agrees(ours.a[:, None] * ours.b * np.exp(scores))
    value = float(SamplesLoss("sinkhorn", **settings)(a, x, b, y))
    # Its value has half the sum of both masses in place of the mass of the reference measure.
    masses = float(ours.a.sum()), float(ours.b.sum())
    constant = ours.eps * (sum(masses) / 2 - masses[0] * masses[1])
    assert value == pytest.approx(ours.result.transport_cost().dual + constant, rel=AGREE)
