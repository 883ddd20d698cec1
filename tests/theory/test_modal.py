"""The modal response against what plain Sinkhorn really does."""

from __future__ import annotations

import builtins
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.backends import load
from drainsinkhorn.backends.reference import ReferenceLane
from drainsinkhorn.run.validate import validate
from drainsinkhorn.theory import Transfer, modal_response
from drainsinkhorn.workloads.clouds import problems
from tests.conftest import needs

SOLVED = {"backend": "reference", "accelerate": "none", "max_depth": 10**5}


def solved(problem: ds.Problem[Any]) -> ds.Potentials[Any]:
    result = ds.solve(replace(problem, tol=1e-11), **SOLVED)[0]
    assert result.converged
    return result.potentials


def near(problem: ds.Problem[Any], optimum: ds.Potentials[Any], error: Any) -> ds.Problem[Any]:
    """The problem, started with an error of g in units of eps."""
    return replace(problem, init=ds.Potentials(optimum.f, optimum.g + problem.eps * error))


def depth(problem: ds.Problem[Any], tol: float) -> int:
    return ds.solve(replace(problem, tol=tol), **SOLVED)[0].depth


CASES = [replace(p, eps=0.3) for seed in range(3) for p in problems(seed, count=3, sizes=(50, 110))]


@pytest.mark.parametrize("problem", CASES, ids=range(len(CASES)))
def test_depths_near_the_solution(problem: ds.Problem[Any]) -> None:
    optimum = solved(problem)
    start = near(problem, optimum, 1e-3 * np.random.default_rng(5).normal(size=optimum.g.size))
    modal = modal_response(start, optimum)
    for tol in (1e-5, 1e-6, 1e-7):
        measured = depth(start, tol)
        assert abs(modal.depth(tol) - measured) <= max(1, 0.1 * measured)


def test_residuals_cycle_by_cycle() -> None:
    problem = CASES[0]
    optimum = solved(problem)
    start = near(problem, optimum, 1e-5 * np.random.default_rng(0).normal(size=optimum.g.size))
    predicted = modal_response(start, optimum).residual(range(1, 41))
    lane = ReferenceLane(validate(start, 1e-9))
    for value in predicted:
        lane.cycle()
        true = float(np.sum(lane.geometry.a * np.abs(np.expm1(lane.pending))))
        assert value == pytest.approx(true, rel=1e-3)


def test_the_slowest_mode_alone_misses_what_the_spectrum_sees() -> None:
    """A start in a fast mode: lambda_2 predicts ten times the depth. A start in the slow one: both are right."""
    problem = max(CASES, key=lambda p: modal_response(p).eigenvalues[0])
    optimum = solved(problem)
    modal = modal_response(problem, optimum)
    plan = load("reference").couple([validate(problem, 1e-3)], [optimum]).plan(2**20)[0]
    transfer = Transfer(plan)
    for mode, wrong in ((8, True), (0, False)):
        shape = transfer.backward(modal._vectors[:, mode]) / transfer.root_b
        start = near(problem, optimum, 1e-4 * shape / np.abs(shape).max())
        response = modal_response(start, optimum)
        tol = 1e-3 * float(response.residual([1])[0])
        measured = depth(start, tol)
        assert abs(response.depth(tol) - measured) <= max(1, 0.1 * measured)
        assert (response.depth_slowest(tol) > 4 * measured) is wrong
        assert np.argmax(np.abs(response.alpha)) == mode
        assert response.captured == pytest.approx(1.0)


def test_the_gauge_is_no_mode() -> None:
    optimum = solved(CASES[0])
    shifted = modal_response(near(CASES[0], optimum, np.full(optimum.g.size, 3.0)), optimum)
    assert np.abs(shifted.alpha).max() < 1e-8
    assert shifted.depth(1e-6) == 1
    assert shifted.eigenvalues[0] < 1 - 1e-6


def test_modes_are_those_of_the_dense_cycle() -> None:
    plan = np.random.default_rng(0).uniform(0.1, 1.0, size=(6, 4))
    plan /= plan.sum()
    cycle = (plan / plan.sum(axis=1)[:, None]) @ (plan / plan.sum(axis=0)).T
    truth = np.sort(np.linalg.eigvals(cycle).real)[::-1]
    values, vectors = Transfer(plan).spectrum()
    assert values == pytest.approx(truth[1:4])
    assert vectors.T @ vectors == pytest.approx(np.eye(3), abs=1e-12)
    assert vectors.T @ np.sqrt(plan.sum(axis=1)) == pytest.approx(np.zeros(3), abs=1e-12)


def test_defect_is_the_weighted_norm() -> None:
    modal = modal_response(CASES[0])
    strength = (1 - modal.eigenvalues) * modal.alpha * modal.eigenvalues**4
    assert modal.defect([5])[0] == pytest.approx(np.linalg.norm(strength))
    # Cauchy-Schwarz: the L1 residual is at most the weighted L2 defect.
    k = range(1, 50)
    assert (modal.residual(k) <= modal.defect(k) * (1 + 1e-12)).all()
    assert (np.diff(modal.residual(k)) <= 0).all()


def test_part_of_the_spectrum() -> None:
    needs("scipy")
    x, y = np.random.default_rng(0).normal(size=(2, 200, 3))
    problem = ds.Problem(x=x, y=y, eps=0.5)
    optimum = solved(problem)
    whole, part = modal_response(problem, optimum), modal_response(problem, optimum, modes=10)
    assert part.eigenvalues == pytest.approx(whole.eigenvalues[:10])
    assert np.abs(part.alpha) == pytest.approx(np.abs(whole.alpha[:10]), rel=1e-5, abs=1e-9)
    assert part.captured == pytest.approx(float(part.alpha @ part.alpha / (whole.alpha @ whole.alpha)))
    assert part.depth(1e-6) == whole.depth(1e-6)


def test_points_without_weight_take_no_part() -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 20, 2))
    a = np.r_[np.zeros(5), np.ones(15)]
    with_idle = modal_response(ds.Problem(x=x, y=y, a=a, eps=0.5))
    without = modal_response(ds.Problem(x=x[5:], y=y, eps=0.5))
    assert with_idle.eigenvalues == pytest.approx(without.eigenvalues)
    assert with_idle.depth(1e-5) == without.depth(1e-5)


def test_errors_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).normal(size=(100, 2))
    problem = ds.Problem(x=x, y=x + 1, eps=1.0)
    modal = modal_response(problem)
    with pytest.raises(ds.OptionsError, match="tol must be"):
        modal.depth(0.0)
    with pytest.raises(ds.OptionsError, match="at least 1 cycle"):
        modal.residual([0])
    with pytest.raises(ds.ProblemError, match="eps must be"):
        modal_response(replace(problem, eps=-1.0))
    real = builtins.__import__

    def absent(name: str, *rest: Any) -> Any:
        if name.startswith("scipy"):
            raise ImportError("No module named 'scipy'")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(ds.BackendUnavailable, match=r"drainsinkhorn\[theory\]"):
        modal_response(problem, modes=5)


def test_one_point_is_solved_at_once() -> None:
    modal = modal_response(ds.Problem(x=np.zeros((1, 2)), y=np.ones((3, 2)), eps=1.0))
    assert modal.depth(1e-9) == modal.depth_slowest(1e-9) == 1
