"""An eps that falls: hidden stages, one result at the last eps, with all that a single solve promises."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.core.events import Advanced, Lowered, Retired
from drainsinkhorn.core.executor import execute
from drainsinkhorn.core.forecast import Forecasts
from drainsinkhorn.fleet import wire
from drainsinkhorn.model.eps import FallingEps
from drainsinkhorn.model.errors import Interrupted
from drainsinkhorn.run import local
from drainsinkhorn.sensors import Drift
from drainsinkhorn.testing.auditor import judge
from tests.run.test_soft import cloud
from tests.run.test_truth import hostile

VALUES = [1.0, 0.3, 0.1, 0.03]
FALLING = ds.falling(VALUES, cycles=6)
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(6, 40, 2)), RNG.normal(size=(6, 50, 2)) + 0.5


def one(**fields: Any) -> ds.Problem[Any]:
    return ds.Problem(x=X[0], y=Y[0], **{"eps": FALLING, **fields})


def by_hand(problem: ds.Problem[Any], values: list[float], cycles: int, **options: Any) -> ds.Result[Any]:
    """The last of one solve for each value, each from the potentials of the one before; with the depth of all."""
    depth, chosen = 0, {"rescue": False, "warn": False, **options}
    for value in values[:-1]:
        (result,) = ds.solve([replace(problem, eps=value)], max_depth=cycles, **chosen)
        problem, depth = replace(problem, init=result.potentials), depth + result.depth
    (result,) = ds.solve([replace(problem, eps=values[-1])], **chosen)
    return replace(result, depth=depth + result.depth)


@pytest.mark.parametrize("accelerate", ["momentum", "none"])
def test_stages_are_solves_that_continue(accelerate: Any) -> None:
    cases: list[dict[str, Any]] = [{}, {"tol": 1e-7}]
    for options in cases:
        expected = by_hand(one(), VALUES, 6, accelerate=accelerate, **options)
        (result,) = ds.solve([one()], accelerate=accelerate, **options)
        assert (result.status, result.eps, result.depth) == (ds.Status.CONVERGED, 0.03, expected.depth)
        for own, other in zip(result.potentials, expected.potentials, strict=True):
            np.testing.assert_array_equal(own, other)
        tol = options.get("tol", 1e-3)
        assert not judge(replace(one(), eps=0.03), result.potentials, tol).refutes(tol)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_modes_give_the_same_bits(backend: str) -> None:
    problems = [*ds.problems(X, Y, eps=FALLING), *ds.problems(X[:2, :30], Y[:2], eps=ds.falling([0.5, 0.05], cycles=2))]
    problems += ds.problems(X[:3], Y[:3], eps=0.1)
    first = ds.solve(problems, backend=backend, mode="width-one")
    assert first.converged
    others: list[tuple[str, dict[str, Any]]] = [("compact", {}), ("stream", {"width": 2}), ("mask", {"width": 5})]
    for mode, more in others:
        for own, other in zip(ds.solve(problems, backend=backend, mode=mode, **more), first, strict=True):
            assert (own.status, own.depth, own.eps) == (other.status, other.depth, other.eps)
            np.testing.assert_array_equal(own.potentials.f, other.potentials.f)
    static = ds.solve(problems, backend=backend, mode="static")
    assert static.converged
    streamed = {result.ticket: result for result in ds.stream(problems, backend=backend, lookahead=3)}
    assert [streamed[place].depth for place in range(len(problems))] == [result.depth for result in first]


def test_statistics_of_the_cost_are_found() -> None:
    (share,) = ds.solve([one(eps=ds.falling([0.5, 0.2, 0.05], of="median", cycles=3))])
    (plain,) = ds.solve([one(eps=ds.relative(0.05, of="median"))])
    assert share.converged
    assert share.eps == plain.eps
    many = ds.solve(X, Y, eps=ds.falling([0.5, 0.05], of="mean"))
    assert [result.eps for result in many] == [result.eps for result in ds.solve(X, Y)]
    assert many[1].instance.eps == many[1].eps
    assert many[1].plan().shape == (40, 50)


def test_max_depth_counts_all_stages_and_the_last_one_always_runs() -> None:
    for limit in (1, 6, 7, 13, 20):
        (result,) = ds.solve([one(tol=1e-9)], max_depth=limit, rescue=False, warn=False)
        assert (result.status, result.depth, result.eps) == (ds.Status.DEPTH_LIMIT, limit, 0.03)
        true = judge(replace(one(), eps=0.03), result.potentials, 1e-9).worst
        assert result.residual.worst == pytest.approx(true, rel=1e-4), "the residual is that of the last eps"
        (own,) = ds.solve([one(tol=1e-9, max_depth=limit)], rescue=False, warn=False)
        assert own.depth == limit


def test_a_rescue_runs_at_the_last_eps() -> None:
    hard = one(tol=1e-6)
    depth = ds.solve([hard], accelerate="none")[0].depth
    (rescued,) = ds.solve([hard], accelerate="none", max_depth=depth - 5)
    assert (rescued.status, rescued.rescued, rescued.depth, rescued.eps) == (ds.Status.CONVERGED, True, 5, 0.03)


def test_observers_see_one_result_and_the_ledger_counts_every_cycle() -> None:
    events: list[Any] = []
    forecasts, history = Forecasts(), ds.ResidualHistory()

    def watch(event: Any) -> None:
        forecasts(event)
        history(event)
        events.append(event)
        if isinstance(event, Advanced):
            events.extend(event.standings())

    solution = ds.solve(X, Y, eps=FALLING, observe=watch, width=3, mode="stream")
    retired = [ticket for event in events if isinstance(event, Retired) for ticket in event.outcomes.tickets]
    assert sorted(retired) == list(range(6))
    lowered = [ticket for event in events if isinstance(event, Lowered) for ticket in event.tickets]
    assert sorted(lowered) == sorted(3 * list(range(6)))
    assert not forecasts.lanes()
    ledger = solution.ledger
    assert ledger.depths == {place: result.depth for place, result in enumerate(solution)}
    assert ledger.slots == sum(ledger.depths.values()), "lanes are held at their first passage"
    assert ledger.static_slots >= ledger.slots
    for place, result in enumerate(solution):
        depths = [step.depth for step in history[place]]
        assert depths == sorted(depths)
        assert depths[-1] == result.depth


def test_chains_continue_from_the_last_stage() -> None:
    alone = ds.solve([one()])[0]
    first, second, other = ds.solve([one(chain="k"), one(chain="k", eps=0.03), one(chain="z")])
    assert (first.depth, other.depth) == (alone.depth, alone.depth)
    assert second.depth < 3
    _, again = ds.solve([one(chain="k", eps=0.03), one(chain="k", eps=ds.falling([0.04, 0.03], cycles=1))])
    assert again.converged


def test_journals_recall_one_result(tmp_path: Path) -> None:
    problems, path = ds.problems(X, Y, eps=FALLING), tmp_path / "run.journal"
    first = ds.solve(problems[:4], journal=path)
    again = ds.solve(problems, journal=path)
    assert again.ledger.depths.keys() == {4, 5}
    for own, other in zip(again, first, strict=False):
        assert (own.depth, own.eps, own.status) == (other.depth, other.eps, other.status)
        np.testing.assert_array_equal(own.potentials.f, other.potentials.f)
    with pytest.raises(ds.DrainError, match="not the one that the journal"):
        ds.solve([one(eps=ds.falling(VALUES, cycles=7))], journal=path)


def test_problems_travel_to_workers() -> None:
    relative = ds.falling([0.5, 0.1], of="std", cycles=3, scale_rho=True)
    for eps in (FALLING, relative):
        (received,) = wire.receive(wire.send([0], [one(eps=eps)]))
        assert received.eps == eps


@pytest.mark.parametrize("scale_rho", [True, False])
def test_soft_marginals(scale_rho: bool) -> None:
    problem = cloud(0, eps=0.05, rho=(2.0, np.inf), tol=1e-7)
    (plain,) = ds.solve([problem])
    (result,) = ds.solve([replace(problem, eps=ds.falling([1.0, 0.2, 0.05], scale_rho=scale_rho))])
    assert result.converged
    assert not judge(problem, result.potentials, 1e-7).refutes(1e-7)
    np.testing.assert_allclose(result.plan(), plain.plan(), atol=1e-6 * plain.plan().max())


def test_no_hostile_problem_is_wrongly_converged() -> None:
    rng = np.random.default_rng(11)
    problems = [hostile(rng, most=40) for _ in range(150)]
    falls = [
        replace(p, eps=ds.falling(p.eps * np.geomspace(10 ** rng.uniform(0.1, 4), 1, rng.integers(2, 6)), cycles=4))
        for p in problems
    ]
    solution = ds.solve(falls, max_depth=400, warn=False)
    assert sum(result.converged for result in solution) > 100
    for problem, result in zip(problems, solution, strict=True):
        assert result.eps == pytest.approx(problem.eps, rel=1e-15)
        if result.converged:
            tol: Any = problem.tol
            assert not judge(replace(problem, eps=result.eps), result.potentials, tol).refutes(tol)


def test_deadlines_give_a_residual_at_the_last_eps() -> None:
    feed = ds.Feed[Any]()
    answer = feed.push(one(tol=1e-13, eps=ds.falling([1.0, 0.001], cycles=10**7), max_depth=10**8), deadline=0.05)
    feed.close()
    (result,) = ds.stream(feed, rescue=False, warn=False)
    assert result.status is ds.Status.EXPIRED
    assert result.eps == 0.001
    assert answer.done()


def test_results_of_an_interrupted_run_are_final(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any) -> Any:
        for count, event in enumerate(execute(*args)):
            if count == 2:
                raise KeyboardInterrupt
            yield event

    monkeypatch.setattr(local, "execute", interrupted)
    problems = [*ds.problems(X[:3], Y[:3], eps=FALLING), one(eps=5.0)]
    with pytest.raises(Interrupted) as stopped:
        ds.solve(problems, mode="width-one", backend="reference")
    assert all(result.eps in (0.03, 5.0) for result in stopped.value.results.values())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ds.falling([]), "at least one number"),
        (lambda: ds.falling([0.1, 0.3]), "number 1 is 0.3"),
        (lambda: ds.falling([0.1, 0.1]), "below the one before"),
        (lambda: ds.falling([np.inf, 0.1]), "number 0 is inf"),
        (lambda: ds.falling([1.0, -0.1]), "number 1 is -0.1"),
        (lambda: ds.falling([1.0, "x"]), "number 1 is 'x'"),  # type: ignore[list-item]
        (lambda: ds.falling([np.zeros(2), 0.1]), "number 0 is array.*ndarray"),  # type: ignore[list-item]
        (lambda: ds.falling([10**400, 0.1]), "number 0 of falling is beyond"),
        (lambda: ds.falling(0.1), "a list of numbers, got 0.1"),  # type: ignore[arg-type]
        (lambda: ds.falling([1.0, 0.1], cycles=0), "cycles of a stage"),
        (lambda: ds.falling([1.0, 0.1], of="mode"), "statistic|one of"),
        (lambda: FallingEps(0.1, (2.0, 3.0), 5), "multiples of an eps that falls"),
        (lambda: FallingEps(0.1, (np.nan,), 5), "at least 1 that fall"),
        (lambda: FallingEps(0.1, ("x",), 5), "falling computes them"),  # type: ignore[arg-type]
        (lambda: ds.divergence(X[0], Y[0], eps=FALLING), "solve and stream take an eps that falls"),
        (lambda: Drift.fit(X, references=2, eps=FALLING), "its last value, 0.03"),
    ],
)
def test_what_is_wrong_is_said(make: Any, message: str) -> None:
    with pytest.raises(ds.ProblemError, match=message):
        make()


def test_one_value_is_a_number() -> None:
    assert ds.falling([0.1]) == FallingEps(0.1, (), 10)
    assert type(ds.falling([0.1], cycles=np.int64(3)).cycles) is int  # type: ignore[arg-type]
    assert ds.solve([one(eps=ds.falling([0.1]))])[0].depth == ds.solve([one(eps=0.1)])[0].depth
    assert str(FALLING) == "0.03 in 4 stages"
