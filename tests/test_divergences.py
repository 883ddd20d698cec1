"""Sinkhorn divergences: against GeomLoss and OTT, positivity, sharing, and what bad problems do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from tests.conftest import needs
from tests.dense import cost_of

rng = np.random.default_rng(0)
X, Y = rng.normal(size=(3, 40, 2)), 0.5 + rng.normal(size=(3, 50, 2))


def test_against_geomloss() -> None:
    """GeomLoss has costs |x - y|^2 / 2 and eps = blur^2, and anneals: a scaling near one lets it converge."""
    torch, geomloss = needs("torch"), needs("geomloss")
    blur = 0.7
    theirs = geomloss.SamplesLoss("sinkhorn", p=2, blur=blur, scaling=0.995, backend="tensorized", debias=True)
    ours = ds.divergence(X, Y, eps=blur**2, cost=ds.Cost("sqeuclidean", 0.5), tol=1e-6)
    ours.solution.raise_for_status()
    a, b = rng.dirichlet(np.ones(40)), rng.dirichlet(np.ones(50))
    assert ours.values == pytest.approx(theirs(torch.tensor(X), torch.tensor(Y)).numpy(), rel=1.5e-4)
    weighted = ds.divergence(X[0], Y[0], a=a, b=b, eps=blur**2, cost=ds.Cost("sqeuclidean", 0.5), tol=1e-6)
    other = theirs(*(torch.tensor(v) for v in (a, X[0], b, Y[0])))
    assert weighted.values[0] == pytest.approx(float(other), rel=1.5e-4)


def test_against_ott() -> None:
    jax = needs("jax")
    needs("ott")
    from ott.geometry import pointcloud
    from ott.tools import sinkhorn_divergence

    with jax.enable_x64(True):
        theirs = sinkhorn_divergence.sinkhorn_divergence(
            pointcloud.PointCloud, jax.numpy.asarray(X[0]), jax.numpy.asarray(Y[0]), epsilon=0.5,
            solve_kwargs={"threshold": 1e-9},
        )[0]  # fmt: skip
        assert ds.divergence(X[0], Y[0], eps=0.5, tol=1e-7).values[0] == pytest.approx(float(theirs), rel=1e-6)


def test_values_are_those_of_dense_duals() -> None:
    found = ds.divergence(X, Y, eps=[0.3, 0.5, 1.0], tol=1e-8)
    for pair in range(3):
        duals = []
        for result in found.parts(pair):
            f, g = result.potentials
            plan = np.exp((f[:, None] + g - cost_of(result.problem)) / result.problem.eps) / (f.size * g.size)
            duals.append(f.mean() + g.mean() - result.problem.eps * (plan.sum() - 1))
        assert found.values[pair] == pytest.approx(duals[0] - (duals[1] + duals[2]) / 2, rel=1e-9)


def test_equal_clouds_have_none_and_others_some() -> None:
    assert ds.divergence(X, X.copy(), eps=0.5, tol=1e-6).values == pytest.approx(0.0, abs=1e-9)
    assert (ds.divergence(X, Y, eps=0.5).values > 0).all()


def test_ragged_batch_in_one_solve() -> None:
    clouds = [rng.normal(size=(n, 3)) for n in (10, 25, 17)]
    others = [1 + rng.normal(size=(n, 3)) for n in (12, 9, 30)]
    together = ds.divergence(clouds, others, eps=0.5)
    assert len(together.solution) == 9
    for k in range(3):
        assert together.values[k] == ds.divergence(clouds[k], others[k], eps=0.5).values[0]


def test_a_shared_cloud_is_coupled_with_itself_once() -> None:
    found = ds.divergence(X, Y[0], eps=0.5)
    assert len(found.solution) == 3 + 3 + 1
    assert [pair[1] for pair in found.within] == [found.within[0][1]] * 3
    assert found.values[1] == pytest.approx(ds.divergence(X[1], Y[0], eps=0.5).values[0], rel=1e-9)


def test_callers_get_their_own_arrays() -> None:
    torch = needs("torch")
    values = ds.divergence(torch.tensor(X, dtype=torch.float32), torch.tensor(Y, dtype=torch.float32), eps=0.5).values
    assert (values.dtype, tuple(values.shape)) == (torch.float32, (3,))


def test_a_bad_pair_is_nan_and_harms_nobody() -> None:
    bad: Any = X.copy()
    bad[1, 3, 0] = np.nan
    with pytest.warns(ds.ConvergenceWarning, match="2 INVALID"):
        found = ds.divergence(bad, Y, eps=0.5)
    assert np.isnan(found.values).tolist() == [False, True, False]
    with pytest.raises(ds.NotConverged, match="problem 1"):
        found.solution.raise_for_status()
    with pytest.raises(ds.ProblemError, match="a divergence needs points"):
        ds.divergence(None, None, cost=np.ones((3, 4)), eps=1.0)


def test_costs_of_the_callers_own() -> None:
    needs("pykeops")
    x, y = rng.normal(size=(2, 9, 2)), rng.normal(size=(2, 8, 2))
    named = ds.divergence(x, y, eps=0.5, backend="reference").values
    found = ds.divergence(x, y, eps=0.5, cost=ds.Formula("SqDist(x, y)"), backend="reference").values
    assert found == pytest.approx(named, abs=1e-5)
    with pytest.raises(ds.ProblemError, match="a divergence needs points"):
        ds.divergence(x, y, eps=0.5, cost=np.ones((9, 8)))


class TestSoft:
    """Divergences with soft marginals."""

    A, B = rng.uniform(0.5, 1.5, size=(3, 40)) / 40, rng.uniform(0.5, 3, size=(3, 50)) / 50

    @pytest.mark.parametrize("reach", [0.3, 1.0, 5.0])
    def test_against_geomloss(self, reach: float) -> None:
        torch, geomloss = needs("torch"), needs("geomloss")
        blur, half = 0.7, ds.Cost("sqeuclidean", 0.5)
        # GeomLoss anneals from its diameter, and its values come nearer to these as its scaling comes nearer to one.
        theirs = geomloss.SamplesLoss(
            "sinkhorn", p=2, blur=blur, reach=reach, scaling=0.9999, diameter=1.0, backend="tensorized", debias=True
        )
        clouds = self.A[:, :12], X[:, :12], self.B[:, :15], Y[:, :15]
        a, x, b, y = clouds
        ours = ds.divergence(x, y, a=a, b=b, eps=blur**2, rho=reach**2, cost=half, tol=1e-9, backend="reference")
        ours.solution.raise_for_status()
        others = theirs(*(torch.tensor(v) for v in clouds))
        assert ours.values == pytest.approx(others.numpy(), rel=1e-5)

    def test_the_mass_term_alone_separates_equal_clouds_of_unequal_mass(self) -> None:
        found = ds.divergence(X, X.copy(), a=self.A, b=3 * self.A, eps=0.5, rho=2.0, tol=1e-8, backend="reference")
        assert (found.values > 0).all()
        same = ds.divergence(X, X.copy(), a=self.A, b=self.A, eps=0.5, rho=2.0, tol=1e-8, backend="reference")
        assert same.values == pytest.approx(0.0, abs=1e-8)

    def test_infinite_prices_give_the_bits_of_balanced_ones(self) -> None:
        balanced, infinite = (ds.divergence(X, Y, eps=0.5, rho=rho, backend="reference") for rho in (None, np.inf))
        assert np.array_equal(balanced.values, infinite.values)

    def test_prices_of_pairs(self) -> None:
        found = ds.divergence(X, Y[0], eps=0.5, rho=[1.0, 1.0, 4.0], tol=1e-8, backend="reference")
        # Y[0] is coupled with itself once for each price.
        assert len(found.solution) == 3 + 3 + 2
        alone = ds.divergence(X[2], Y[0], eps=0.5, rho=(4.0, 4.0), tol=1e-8, backend="reference")
        assert found.values[2] == alone.values[0]
        with pytest.raises(ds.ProblemError, match="one price for both marginals"):
            ds.divergence(X, Y, eps=0.5, rho=(1.0, 2.0))
