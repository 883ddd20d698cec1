"""Soft marginals of the backends "ott" and "keops": the states are those of the reference, cycle by cycle."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.backends import load
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.run.validate import validate
from drainsinkhorn.testing.auditor import judge
from tests.conftest import needs
from tests.run.test_soft import cloud, various

MODULES = {"ott": "ott", "keops": "pykeops"}


@pytest.fixture(scope="module", params=MODULES)
def backend(request: pytest.FixtureRequest) -> str:
    needs(MODULES[request.param])
    return request.param


def solvable(backend: str) -> list[ds.Problem[Any]]:
    """Soft problems of every kind; KeOps computes costs from points alone."""
    return [problem for problem in various() if backend != "keops" or problem.x is not None]


def test_the_auditor_confirms_every_result(backend: str) -> None:
    for result in ds.solve(solvable(backend), backend=backend, recheck="all"):
        tol = result.instance.tol / 0.9
        # Without momentum and translation a nearly hard marginal takes too long.
        assert result.converged or (backend == "ott" and result.problem.rho == 1e3)
        if not result.converged:
            continue
        assert not judge(replace(result.problem, eps=result.eps), result.potentials, tol).refutes(tol), result.ticket


def test_depths_and_states_are_those_of_the_reference(backend: str) -> None:
    accelerations = ["none"] if backend == "ott" else ["none", "momentum"]
    for acceleration in accelerations:
        options: dict[str, Any] = {"accelerate": acceleration, "max_depth": 60, "rescue": False, "warn": False}
        problems = [replace(problem, tol=1e-11) for problem in solvable(backend)]
        if backend == "ott":
            # Lanes leave at the ends of phases, so that depths are compared where no lane leaves.
            problems = [replace(problem, tol=1e-15) for problem in problems]
        expected = ds.solve(problems, backend="reference", **options)
        for own, other in zip(ds.solve(problems, backend=backend, **options), expected, strict=True):
            assert abs(own.depth - other.depth) <= 1
            if own.depth == other.depth:
                scale = max(1.0, float(np.abs(to_numpy(other.potentials.f)).max()))
                short = to_numpy(other.potentials.f).dtype == np.float32
                gap = np.abs(to_numpy(own.potentials.f) - to_numpy(other.potentials.f)).max()
                assert gap <= (1e-5 if short else 1e-9) * scale


def test_hard_lanes_beside_soft_ones_are_solved_as_alone(backend: str) -> None:
    # JAX compiles everything for every shape; the first ones have one shape.
    given = solvable(backend)[: 8 if backend == "ott" else None]
    mixed = [replace(p, rho=None, b=None) if k % 2 else p for k, p in enumerate(given)]
    together, alone = (ds.solve(mixed, backend=backend, mode=mode) for mode in ("auto", "width-one"))
    for one, other in zip(together, alone, strict=True):
        assert (one.status, one.depth) == (other.status, other.depth)
        gap = np.abs(to_numpy(one.potentials.f) - to_numpy(other.potentials.f)).max()
        assert gap == 0 if backend == "keops" else gap <= 1e-5


def test_dot_products_have_the_plans_of_the_reference(backend: str) -> None:
    problems = [
        replace(cloud(k, n=12, m=15), cost=ds.Cost(kind, 0.7), rho=rho, tol=1e-5)
        for k, kind in enumerate(("dot", "negdot"))
        for rho in (1.0, (np.inf, 2.0), (0.5, np.inf))
    ]
    ours, theirs = ds.solve(problems, backend=backend), ds.solve(problems, backend="reference")
    for own, other in zip(ours, theirs, strict=True):
        assert own.converged, own.message
        assert not judge(own.problem, own.potentials, 1e-5).refutes(1e-5)
        plan = to_numpy(other.plan())
        np.testing.assert_allclose(to_numpy(own.plan()), plan, atol=1e-3 * plan.max())


def test_bands_hold_where_eps_is_far_larger_than_rho(backend: str) -> None:
    """Then potentials are far smaller than `eps log a`, and what rounds the latter changes what potentials ask for."""
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(n, 3)).astype(np.float32) for n in (7, 12))
    b = rng.uniform(1e-3, 1, size=12)
    for exponent in range(1, 10):
        problem = ds.Problem(x=x, y=y, b=b / b.sum(), eps=10.0**exponent, rho=(3.0, 0.1))
        # Potentials are emitted in float32, to which others are rounded.
        pack = load(backend).pack([validate(problem, 1e-2)])
        pack.advance(20, [-np.inf])
        (residual,), potentials = pack.verify([0]).rows(), pack.emit([0]).potentials(0)
        truth = judge(problem, potentials, residual.worst)
        assert abs(truth.row - residual.row) <= residual.band + truth.error
        assert abs(truth.col - residual.col) <= residual.band + truth.error
