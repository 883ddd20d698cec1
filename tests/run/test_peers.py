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
