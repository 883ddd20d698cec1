"""The same potentials as OTT-JAX and POT, modulo the gauge, to 1e-4 relative at tol 1e-6 in float64."""

from __future__ import annotations

from functools import cache
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


@cache
def pot_potentials(kind: str, seed: int) -> Any:
    ot: Any = needs("ot")
    problem, cost = make(kind, seed)
    _, log = ot.sinkhorn(
        problem.a, problem.b, cost, problem.eps, method="sinkhorn_log", stopThr=1e-10, numItermax=20_000, log=True
    )
    # POT: P = exp(u + v - C / eps) with log-scalings u, v.
    u, v = np.log(log["u"]), np.log(log["v"])
    return problem.eps * (u - np.log(problem.a)), problem.eps * (v - np.log(problem.b))


@pytest.mark.parametrize(("backend", "seed"), BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_pot(kind: str, seed: int, backend: str) -> None:
    needs("ot")
    skip_unless_taken(backend, kind)
    result = ds.solve([make(kind, seed)[0]], backend=backend)[0]
    assert result.converged
    assert_same(result.potentials, *pot_potentials(kind, seed))


@cache
def ott_potentials(kind: str, seed: int) -> Any:
    jax: Any = needs("jax")
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
        # OTT: P = exp((f + g - C) / eps).
        f, g = np.asarray(out.f), np.asarray(out.g)
    return f - problem.eps * np.log(problem.a), g - problem.eps * np.log(problem.b)


@pytest.mark.parametrize(("backend", "seed"), BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_ott(kind: str, seed: int, backend: str) -> None:
    needs("ott")
    skip_unless_taken(backend, kind)
    result = ds.solve([make(kind, seed)[0]], backend=backend)[0]
    assert_same(result.potentials, *ott_potentials(kind, seed))


SOFT = [(0.8, 0.8), (2.0, 0.3), (float("inf"), 1.5), (0.7, float("inf")), (40.0, 25.0)]
AGREE = 1e-5


class Soft:
    """A problem with soft marginals and unequal masses."""

    def __init__(self, rho: tuple[float, float]) -> None:
        rng = np.random.default_rng(3)
        self.x, self.y = rng.normal(size=(40, 3)) + 0.3, rng.normal(size=(50, 3))
        a, b = rng.uniform(0.2, 2, size=40), rng.uniform(0.2, 2, size=50)
        self.a, self.b, self.rho = a / a.sum(), 1.7 * b / b.sum(), rho
        self.cost = cdist(self.x, self.y, "sqeuclidean")
        self.eps = 0.2 * float(np.median(self.cost))

    def solve(self, backend: str, cost: Any = "sqeuclidean") -> ds.Result[Any]:
        """To 1e-9."""
        needs({"ott": "ott", "keops": "pykeops"}.get(backend, "numpy"))
        fields = {"x": self.x, "y": self.y, "a": self.a, "b": self.b, "eps": self.eps, "tol": 1e-9}
        (result,) = ds.solve([ds.Problem(**fields, cost=cost, rho=self.rho)], backend=backend)
        assert result.converged
        return result


def assert_same_plan(ours: Any, theirs: Any) -> None:
    assert np.abs(ours - theirs).sum() <= AGREE * theirs.sum()
    assert ours.sum() == pytest.approx(theirs.sum(), rel=AGREE)


SOFT_BACKENDS = ["reference", "cpu", "ott", "keops"]


@cache
def pot_soft_plan(rho: tuple[float, float]) -> Any:
    ot: Any = needs("ot")
    given = Soft(rho)
    return ot.unbalanced.sinkhorn_unbalanced(
        given.a, given.b, given.cost, given.eps, reg_m=rho, reg_type="kl", c=given.a[:, None] * given.b, stopThr=1e-13,
        numItermax=100_000,
    )  # fmt: skip


@pytest.mark.parametrize("backend", SOFT_BACKENDS)
@pytest.mark.parametrize("rho", SOFT)
def test_pot_with_soft_marginals(rho: tuple[float, float], backend: str) -> None:
    needs("ot")
    given, plan = Soft(rho), pot_soft_plan(rho)
    result = given.solve(backend)
    assert_same_plan(result.plan(), plan)
    costs = result.transport_cost()
    assert costs.transport == pytest.approx(float((plan * given.cost).sum()), rel=AGREE)

    def divergence(p: Any, q: Any) -> float:
        return float((p * np.log(p / q) - p + q).sum())

    prices = [
        r * divergence(plan.sum(axis=k), w) for k, r, w in ((1, rho[0], given.a), (0, rho[1], given.b)) if r < 1e9
    ]
    kl = divergence(plan, given.a[:, None] * given.b)
    assert costs.kl == pytest.approx(kl, rel=AGREE)
    assert costs.entropic == pytest.approx(costs.transport + given.eps * kl + sum(prices), rel=AGREE)
    assert costs.dual == pytest.approx(costs.entropic, rel=AGREE)


@cache
def ott_soft_plan(rho: tuple[float, float]) -> Any:
    """OTT's reference measure counts points: its plan is ours for the cost `C + eps (log a_i + log b_j)`."""
    jax: Any = needs("jax")
    from ott.geometry import geometry
    from ott.problems.linear.linear_problem import LinearProblem
    from ott.solvers.linear.sinkhorn import Sinkhorn

    given = Soft(rho)
    with jax.enable_x64(True):
        # Its cost without our weights in the reference measure.
        cost = given.cost - given.eps * (np.log(given.a)[:, None] + np.log(given.b))
        geom = geometry.Geometry(cost_matrix=jax.numpy.asarray(cost), epsilon=given.eps)
        taus = [1.0 if price == float("inf") else price / (price + given.eps) for price in rho]
        weights = (jax.numpy.asarray(w) for w in (given.a, given.b))
        problem = LinearProblem(geom, *weights, tau_a=taus[0], tau_b=taus[1])
        return np.asarray(Sinkhorn(threshold=1e-11, max_iterations=50_000)(problem).matrix)


@pytest.mark.parametrize("backend", SOFT_BACKENDS)
@pytest.mark.parametrize("rho", SOFT)
def test_ott_with_soft_marginals(rho: tuple[float, float], backend: str) -> None:
    needs("ott")
    assert_same_plan(Soft(rho).solve(backend).plan(), ott_soft_plan(rho))


@pytest.mark.parametrize("backend", SOFT_BACKENDS)
@pytest.mark.parametrize("reach", [0.8, 2.5])
def test_geomloss_with_soft_marginals(reach: float, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """GeomLoss anneals eps in a fixed schedule and stops; here it iterates at the last eps until nothing changes."""
    torch: Any = needs("torch")
    needs("geomloss")
    from geomloss import SamplesLoss
    from geomloss._legacy import sinkhorn_samples

    given = Soft((reach**2, reach**2))
    result = given.solve(backend, ds.Cost("sqeuclidean", 0.5))
    schedule = sinkhorn_samples.scaling_parameters

    def iterate(*arguments: Any) -> Any:
        diameter, eps, eps_list, rho = schedule(*arguments)
        return diameter, eps, [*eps_list, *[eps] * 1500], rho

    monkeypatch.setattr(sinkhorn_samples, "scaling_parameters", iterate)
    settings = {"p": 2, "blur": given.eps**0.5, "reach": reach, "debias": False, "backend": "tensorized"}
    loss = SamplesLoss("sinkhorn", potentials=True, **settings)
    a, x, b, y = (torch.from_numpy(part) for part in (given.a, given.x, given.b, given.y))
    f, g = (part.numpy().ravel() for part in loss(a, x, b, y))
    scores = (f[:, None] + g - given.cost / 2) / given.eps
    assert_same_plan(result.plan(), given.a[:, None] * given.b * np.exp(scores))
    value = float(SamplesLoss("sinkhorn", **settings)(a, x, b, y))
    # Its value has half the sum of both masses in place of the mass of the reference measure.
    masses = float(given.a.sum()), float(given.b.sum())
    constant = given.eps * (sum(masses) / 2 - masses[0] * masses[1])
    assert value == pytest.approx(result.transport_cost().dual + constant, rel=AGREE)
