"""Problems with soft marginals: validation, results, certificates, and everything a run does with them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.backends import load
from drainsinkhorn.cli.files import read_problems
from drainsinkhorn.core.options import STARTS
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.run.marginals import parse_price, prices_to_array
from drainsinkhorn.run.problem_arrays import problems_from_arrays
from drainsinkhorn.run.refutation import refute
from drainsinkhorn.run.validate import validate
from drainsinkhorn.serve.bodies import JSON, read_body
from drainsinkhorn.serve.limits import ServerLimits
from drainsinkhorn.testing import judgements
from drainsinkhorn.testing.auditor import judge, marginal_errors

SOLVERS = ["reference", "cpu", "cpu streaming"]
INF = math.inf


def cloud(seed: int, n: int = 40, m: int = 50, **more: Any) -> ds.Problem[Any]:
    rng = np.random.default_rng(seed)
    a, b = rng.uniform(0.2, 1, size=n), rng.uniform(0.2, 1, size=m)
    fields = {"a": a / a.sum(), "b": 1.6 * b / b.sum(), "eps": 0.1, "rho": 1.0, **more}
    return ds.Problem(x=rng.normal(size=(n, 2)), y=0.7 * rng.normal(size=(m, 2)) + 0.3, **fields)


def various() -> list[ds.Problem[Any]]:
    """Prices, masses, dtypes and costs of every kind."""
    rng = np.random.default_rng(0)
    a, b = rng.uniform(size=40), rng.uniform(size=50)
    a[[0, 7]], b[-1] = 0.0, 0.0
    dense = rng.uniform(0, 2, size=(40, 50))
    f4 = [part.astype("f4") for part in (cloud(8).x, cloud(8).y, cloud(8).a, cloud(8).b)]
    return [
        *(cloud(k, rho=rho) for k, rho in enumerate([0.01, 0.5, (2.0, 0.3), (INF, 1.0), (0.4, INF), 1e3, (None, 3.0)])),
        *(cloud(k, cost=cost) for k, cost in enumerate(("euclidean", "cosine", ds.Cost("sqeuclidean", 0.5)))),
        cloud(4, a=a, b=b),
        cloud(5, a=1e3 * a, b=1e-3 * b),
        cloud(6, a=None, b=None),
        replace(cloud(6), a=None, rho=(5.0, INF)),
        ds.Problem(cost=dense, eps=0.3, rho=0.7, a=a),
        ds.Problem(x=f4[0], y=f4[1], a=f4[2], b=f4[3], eps=0.5, rho=2.0),
        cloud(9, n=1, m=3),
        cloud(10, n=90, m=7, rho=(1.0, 30.0)),
        replace(cloud(11), y=cloud(11).y + 20),
        replace(cloud(11, rho=0.05), y=cloud(11).y + 20),
        cloud(12, tol=1e-10),
        cloud(13, tol=0.3),
        cloud(14, eps=ds.relative(0.05)),
    ]


@pytest.fixture(scope="module", params=SOLVERS)
def backend(request: pytest.FixtureRequest) -> Any:
    name, _, representation = request.param.partition(" ")
    return load(name).frugal() if representation else load(name)


@pytest.fixture(scope="module")
def solution(backend: Any) -> ds.Solution[Any]:
    solution = ds.solve(various(), backend=backend, recheck="all")
    solution.raise_for_status()
    return solution


def test_the_auditor_confirms_every_result(solution: ds.Solution[Any]) -> None:
    for result in solution:
        tol = result.instance.tol / 0.9
        asked = replace(result.problem, eps=result.eps)
        assert not judge(asked, result.potentials, tol).refutes(tol), result.ticket
        if result.plan().sum() > 0:
            assert max(marginal_errors(asked, result.potentials)) <= result.residual.worst + 1e-9


def test_bounds_hold_against_exact_solutions(solution: ds.Solution[Any], backend: Any) -> None:
    exact = ds.solve([replace(p, tol=1e-12) for p in various()], backend="reference", max_depth=1000, warn=False)
    checked = 0
    for result, best in zip(solution, exact, strict=True):
        if not best.converged:
            continue
        certificate, plan, optimal = result.certificate(), to_numpy(result.plan()), to_numpy(best.plan())
        slack = 1e-6 if plan.dtype == np.float32 else 1e-9
        assert np.abs(plan - optimal).sum() <= certificate.distance + slack * plan.sum(), result.ticket
        assert certificate.mass == pytest.approx(plan.sum(dtype=np.float64), rel=10 * slack + 2 * result.residual.worst)
        apart = best.transport_cost().dual - result.transport_cost().dual
        assert apart <= certificate.gap + 1e-9 * abs(best.transport_cost().dual) + result.residual.worst
        checked += 1
    assert checked >= len(solution) - 3


@pytest.mark.parametrize("certify", ["always", "auto"])
def test_lanes_leave_with_bands_that_hold(certify: Any, backend: Any) -> None:
    for result in ds.solve(various(), backend=backend, certify=certify, warn=False):
        if not result.converged:
            continue
        asked = replace(result.problem, eps=result.eps)
        truth = (
            judgements.in_decimal(judgements.PlanClaim.of(asked, result.potentials))
            if result.instance.a.size < 10
            else None
        )
        truth = truth or judge(asked, result.potentials, result.residual.worst)
        assert truth.worst - truth.error <= result.residual.worst, result.ticket


def test_infinite_prices_give_the_bits_of_balanced_problems(backend: Any) -> None:
    balanced = [replace(p, rho=None, b=None) for p in various()]
    infinite = [replace(p, rho=rho) for p, rho in zip(balanced, [INF, (INF, INF), (None, INF)] * 9, strict=False)]
    for one, other in zip(*(ds.solve(asked, backend=backend) for asked in (balanced, infinite)), strict=True):
        assert (one.status, one.depth, one.residual) == (other.status, other.depth, other.residual)
        assert all(np.array_equal(p, q) for p, q in zip(one.potentials, other.potentials, strict=True))


def test_nearly_infinite_prices_are_nearly_balanced(backend: Any) -> None:
    balanced, soft = (ds.solve([cloud(1, rho=rho, b=None, tol=1e-9)], backend=backend)[0] for rho in (None, 1e7))
    assert np.abs(balanced.plan() - soft.plan()).sum() < 1e-5


def test_hard_and_soft_lanes_share_a_pack(backend: Any) -> None:
    mixed = [replace(p, rho=None, b=None) if k % 2 else p for k, p in enumerate(various())]
    together, alone = (ds.solve(mixed, backend=backend, mode=mode) for mode in ("auto", "width-one"))
    for one, other in zip(together, alone, strict=True):
        assert (one.status, one.depth, one.residual) == (other.status, other.depth, other.residual)
        assert all(np.array_equal(p, q) for p, q in zip(one.potentials, other.potentials, strict=True))


@pytest.mark.parametrize("init", [*STARTS, "shifted"])
def test_starts_change_the_depth_alone(init: Any, backend: Any) -> None:
    problem = cloud(3, tol=1e-10)
    truth = ds.solve([problem], backend="reference")[0]
    if init == "shifted":
        init = ds.Potentials(truth.potentials.f + 3e3, truth.potentials.g - 3e3)
    result = ds.solve([replace(problem, init=init)], backend=backend)[0]
    assert result.converged
    assert np.abs(result.potentials.f - truth.potentials.f).max() < 1e-8


def test_potentials_are_not_recentred() -> None:
    start = ds.Potentials(np.full(40, 1e9), np.full(50, -1e9))
    assert validate(replace(cloud(1), init=start), 1e-3).init[0] is start.f
    assert validate(replace(cloud(1), init=ds.Potentials(np.full(40, 1e30), np.full(50, 0.0))), 1e-3).init == "zero"


def test_chains_go_on_from_their_predecessors(backend: Any) -> None:
    links = [cloud(1, rho=rho, tol=1e-8, chain="days") for rho in (1.0, 1.1, (1.1, 2.0), None)]
    links[-1] = replace(links[-1], b=None)
    apart = ds.solve([replace(link, chain=None) for link in links], backend=backend)
    chained = ds.solve(links, backend=backend)
    assert chained.converged
    assert chained[1].depth < apart[1].depth
    # Points of the second cloud are new.
    moved = [cloud(2, chain="days"), cloud(2, n=45, chain="days")]
    assert ds.solve(moved, backend=backend).converged


def test_points_without_weight_have_the_potential_of_a_light_one(backend: Any) -> None:
    problem = cloud(2, tol=1e-10)
    a = np.array(problem.a)
    light, without = a.copy(), a.copy()
    light[3], without[3] = 1e-13, 0.0
    first, second = ds.solve([replace(problem, a=light), replace(problem, a=without)], backend=backend)
    assert second.potentials.f[3] == pytest.approx(first.potentials.f[3], abs=1e-6)


def test_rechecks_refute_what_is_false() -> None:
    for ticket, problem in enumerate(various()):
        result = ds.solve([replace(problem, tol=1e-8)], backend="reference", warn=False)[0]
        instance, potentials = result.instance, result.potentials
        if not result.plan().sum() > 0:
            # The mass is below the range of float64, and so is everything that is compared.
            continue
        assert refute(instance, potentials, 1e-6, ticket=ticket, check_all=True) is None
        moved = ds.Potentials(potentials.f + 0.02 * result.eps, potentials.g)
        assert refute(instance, moved, 1e-3, ticket=ticket, check_all=True) is not None, ticket


def test_unequal_masses_need_a_soft_marginal() -> None:
    rejected, solved = ds.solve([cloud(1, rho=None), cloud(1, rho=(INF, 9.0))], backend="reference", warn=False)
    assert "needs equal masses" in rejected.message
    assert "rho" in rejected.message
    assert solved.converged
    assert solved.plan().sum() == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(
    ("rho", "words"),
    [
        (0.0, "rho must be positive, got 0.0"),
        (-1, "rho must be positive"),
        (math.nan, "rho must be positive, got nan"),
        (True, "got True"),
        ("soft", "got 'soft'"),
        ((1.0, 0.0), r"rho\[1\] must be positive"),
        ((1.0,), "rho has 1 entries"),
        (np.ones(3), "rho has 3 entries"),
        (1e-320, "reciprocal"),
        ({}, "rho must be positive"),
    ],
)
def test_bad_prices(rho: Any, words: str) -> None:
    bad, good = ds.solve([cloud(1, rho=rho), cloud(1)], backend="reference", warn=False)
    assert bad.status is ds.Status.INVALID
    with pytest.raises(ds.ProblemError, match=words):
        ds.solve([cloud(1, rho=rho)], strict=True, backend="reference")
    assert good.converged


def test_dot_products_far_from_the_origin_need_the_reference() -> None:
    problem = cloud(1, cost="dot", rho=(INF, 0.5))
    far = replace(problem, y=problem.y + 20)
    for backend in ("reference", "cpu"):
        assert ds.solve([problem], backend=backend)[0].converged
    assert ds.solve([far], backend="reference")[0].converged
    assert "leave the range of float32" in ds.solve([far], backend="cpu", warn=False)[0].message


class TestArguments:
    def test_lists_are_one_per_problem_and_tuples_are_pairs(self) -> None:
        x, y = np.zeros((2, 5, 2)), np.ones((2, 6, 2))
        assert [p.rho for p in ds.problems(x, y, eps=1.0, rho=(1.0, 2.0))] == [(1.0, 2.0)] * 2
        assert [p.rho for p in ds.problems(x, y, eps=1.0, rho=[1.0, (2.0, None)])] == [1.0, (2.0, None)]
        assert [p.rho for p in ds.problems(x, y, eps=1.0, rho=np.array([[1.0, 2.0], [3.0, INF]]))] == [(1, 2), (3, INF)]
        assert [p.rho for p in ds.problems(x[0], y[0], eps=1.0, rho=np.array([1.0, 2.0, 3.0]))] == [1.0, 2.0, 3.0]
        with pytest.raises(ds.ProblemError, match="rho for 3"):
            ds.problems(x, y, eps=1.0, rho=[1.0] * 3)
        with pytest.raises(ds.ProblemError, match="rho must be positive"):
            ds.problems(x, y, eps=1.0, rho=-1.0)
        with pytest.raises(ds.ProblemError, match="expected a number, a pair"):
            ds.problems(x, y, eps=1.0, rho=np.ones((2, 3)))

    @pytest.mark.parametrize("name", ["reach", "reg_m", "tau_a", "unbalanced"])
    def test_names_of_other_libraries_are_explained(self, name: str) -> None:
        with pytest.raises(ds.ProblemError, match="rho"):
            ds.Problem(x=None, **{name: 1.0})

    @pytest.mark.parametrize("rho", [0.5, (0.5, INF), [1.0, 2.0], [(1.0, None), 3.0], None])
    def test_files_and_requests_say_what_problems_say(self, rho: Any, tmp_path: Path) -> None:
        x, y = np.random.default_rng(0).normal(size=(2, 2, 5, 2))
        arrays = {"x": x, "y": y, "eps": np.array(0.5)}
        if rho is not None:
            arrays["rho"] = prices_to_array(rho)
        np.savez(tmp_path / "in.npz", **arrays)
        wanted = [validate(p, 1e-3).marginals for p in ds.problems(x, y, eps=0.5, rho=rho)]
        for read in (problems_from_arrays(arrays, "it"), read_problems(tmp_path / "in.npz")):
            assert [validate(p, 1e-3).marginals for p in read] == wanted

    def test_json_has_null_for_a_hard_marginal(self) -> None:
        body = b'{"x": [[[0.0], [1.0]]], "y": [[[0.0], [2.0]]], "eps": 0.5, "rho": [[1.5, null]]}'
        (problem,) = read_body(body, JSON, ServerLimits()).problems
        assert problem.rho == (1.5, INF)

    def test_texts(self) -> None:
        assert parse_price("2") == 2.0
        assert parse_price(" 2, inf") == (2.0, INF)
        for text in ("", "two", "1,2,3", "0", "-1,2"):
            with pytest.raises(ds.ProblemError, match="rho"):
                parse_price(text)
