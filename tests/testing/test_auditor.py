"""The auditor is right about what float64 cannot tell, and its bounds hold."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.testing import judgements
from drainsinkhorn.testing.auditor import cost_row, judge, marginal_errors
from drainsinkhorn.testing.hostile import problem
from drainsinkhorn.testing.settings import SCOPES

SMALL = replace(SCOPES["cpu"], largest=8, libraries=("numpy",))


def gauged(size: float, eps: float = 0.5) -> tuple[ds.Problem[Any], ds.Potentials[Any]]:
    """A dense problem and its solution, shifted along the gauge."""
    cost = np.random.default_rng(0).random((6, 7))
    asked = ds.Problem(cost=cost, eps=eps)
    f, g = ds.solve([asked], tol=1e-13, backend="reference")[0].potentials
    return asked, ds.Potentials(f + size, g - size)


@pytest.mark.parametrize("size", [0.0, 1e3, 1e14, 1e300])
def test_potentials_of_any_size_are_judged_as_they_are(size: float) -> None:
    asked, potentials = gauged(size)
    judgement = judge(asked, potentials, 1e-12)
    # Rounded to the spacing of numbers of this size: what is left of the solution in exact arithmetic.
    spacing = float(np.spacing(size))
    assert (judgement.worst <= 1e-12) == (spacing < 1e-12)
    truth = judgements.in_decimal(judgements.PlanClaim.of(asked, potentials))
    assert judgement.worst == pytest.approx(truth.worst, abs=1e-14, rel=1e-12)


def test_more_precision_is_taken_only_where_float64_cannot_tell() -> None:
    asked, potentials = gauged(0.0)
    residual = max(marginal_errors(asked, potentials))
    assert judge(asked, potentials, 1e-3).arithmetic == "float64"
    truth = judgements.in_decimal(judgements.PlanClaim.of(asked, potentials))
    assert residual == pytest.approx(truth.worst, abs=1e-14)
    assert judge(asked, potentials, truth.worst + 1e-16).arithmetic == "double-double"
    exact = judge(asked, potentials, truth.worst)
    assert exact.arithmetic == "decimal"
    assert not exact.refutes(truth.worst)


@pytest.mark.parametrize("factor", [1 - 1e-9, 1 + 1e-9])
@pytest.mark.parametrize("kind", ["sqeuclidean", "euclidean", "cosine", "dot", "negdot"])
def test_a_residual_beside_tol_is_told_from_it(kind: str, factor: float) -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(9, 3)), rng.normal(size=(8, 3)) + 1e6 * (kind != "cosine")
    asked = ds.Problem(x=x, y=y, eps=30.0, cost=ds.Cost(kind, 1.3))
    potentials = ds.Potentials(np.zeros(9), -marginal_costs(asked))
    tol = factor * judgements.in_decimal(judgements.PlanClaim.of(asked, potentials)).worst
    assert judge(asked, potentials, tol).refutes(tol) == (factor < 1)


def marginal_costs(asked: ds.Problem[Any]) -> Any:
    """Negative c-transforms of zero, whose columns are right but for the rounding of large costs."""
    cost = np.array([cost_row(asked, i) for i in range(len(asked.x))])
    return asked.eps * np.log(np.exp((cost.min(axis=0) - cost) / asked.eps).mean(axis=0)) - cost.min(axis=0)


def test_every_arithmetic_is_within_its_bound_of_the_exact_one() -> None:
    compared = 0
    for index in range(200):
        asked = problem(3, index, SMALL)
        result = ds.solve([asked, ds.Problem(cost=np.eye(2), eps=1.0)], backend="reference", max_depth=5, rescue=False)[
            0
        ]
        if result.status is ds.Status.INVALID or not all(np.isfinite(p).all() for p in result.potentials):
            continue
        claim = judgements.PlanClaim.of(asked, result.potentials)
        truth = judgements.in_decimal(claim)
        for arithmetic in (judgements.in_float64, judgements.in_double_double):
            with np.errstate(all="ignore"):
                found = arithmetic(claim)
            if found.error < math.inf:
                assert abs(found.row - truth.row) <= found.error + truth.error, (index, found, truth)
                assert abs(found.col - truth.col) <= found.error + truth.error, (index, found, truth)
                compared += 1
    assert compared > 200


def test_points_without_weight_take_no_part() -> None:
    cost = np.array([[0.0, 1.0], [1e308, -1e308]])
    asked = ds.Problem(cost=cost, eps=1.0, a=np.array([1.0, 0.0]), b=np.array([0.5, 0.5]))
    potentials = ds.Potentials(np.array([0.0, 1e308]), np.array([0.0, 1.0]))
    assert judge(asked, potentials, 1e-12).worst == 0.0


SOFT = replace(SMALL, soft=1.0)


@pytest.mark.parametrize("seed", range(3))
def test_the_arithmetics_agree_on_soft_marginals(seed: int) -> None:
    asked = [problem(seed, index, SOFT) for index in range(40)]
    checked = 0
    for one, result in zip(asked, ds.solve(asked, backend="reference", max_depth=60, warn=False), strict=True):
        if result.emitted is None or result.instance.a.size * result.instance.b.size > 40:
            continue
        claim = judgements.PlanClaim.of(one, result.potentials)
        truth = judgements.in_decimal(claim)
        for arithmetic in (judgements.in_float64, judgements.in_double_double):
            with np.errstate(all="ignore"):
                found = arithmetic(claim)
            if math.isfinite(found.error):
                assert abs(found.row - truth.row) <= found.error + truth.error
                assert abs(found.col - truth.col) <= found.error + truth.error
                checked += 1
    assert checked >= 10


def test_a_soft_plan_may_have_a_mass_out_of_the_range_of_float64() -> None:
    # Both marginals ask for exp(12000) times their weights, and one entry of the plan has that mass.
    eps, rho = 1e-3, 1e-3
    asked = ds.Problem(cost=np.array([[-36.0]]), a=np.ones(1), b=np.ones(1), eps=eps, rho=rho)
    potentials = ds.Potentials(np.array([-12.0]), np.array([-12.0]))
    judgement = judge(asked, potentials, 1e-6)
    assert judgement.arithmetic == "decimal"
    assert judgement.worst <= 1e-10
    assert judge(asked, ds.Potentials(potentials.f + 1e-5, potentials.g), 1e-6).refutes(1e-6)


def test_a_soft_residual_is_relative_to_the_mass() -> None:
    rng = np.random.default_rng(5)
    cost, a, b = rng.uniform(size=(4, 5)), rng.uniform(size=4), 3 * rng.uniform(size=5)
    asked = ds.Problem(cost=cost, a=a, b=b, eps=0.4, rho=(0.7, math.inf))
    f, g = rng.normal(size=4), rng.normal(size=5)
    plan = a[:, None] * b * np.exp((f[:, None] + g - cost) / 0.4)
    row = np.abs(plan.sum(axis=1) - a * np.exp(-f / 0.7)).sum() / plan.sum()
    col = np.abs(plan.sum(axis=0) - b).sum() / plan.sum()
    potentials = ds.Potentials(f, g)
    assert marginal_errors(asked, potentials) == pytest.approx((row, col), rel=1e-12)
    for tol in (0.5 * row, row * (1 + 1e-9), row):
        judgement = judge(asked, potentials, tol)
        assert (judgement.row, judgement.col) == pytest.approx((row, col), rel=1e-12)
    assert judge(asked, potentials, max(row, col) * (1 - 1e-9)).refutes(max(row, col) * (1 - 1e-9))
