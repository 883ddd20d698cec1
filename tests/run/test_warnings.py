"""What raises, what warns and what is silent: arguments wrong for all, batches and plans that did not converge."""

from __future__ import annotations

import importlib.util
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from scipy.spatial.distance import cdist

import drainsinkhorn as ds
from drainsinkhorn.backends import load
from drainsinkhorn.run.validate import validate

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(3, 6, 2)), RNG.normal(size=(3, 7, 2))
EASY, DEEP = ds.Problem(x=X[0], y=Y[0], eps=1.0), ds.Problem(x=X[0], y=Y[0], eps=0.01, tol=1e-9)
BAD = ds.Problem(x=X[0], y=Y[0], eps=0.0)
BACKENDS = ["reference", "cpu"]
BACKENDS += [name for name, module in (("ott", "ott"), ("keops", "pykeops")) if importlib.util.find_spec(module)]


class TestArguments:
    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({"eps": 0}, "eps must be a positive finite number, got 0"),
            ({"eps": "auto"}, "eps must be a positive finite number, got 'auto'"),
            ({"eps": float("nan")}, "eps must be a positive finite number, got nan"),
            ({"cost": "manhattan"}, "cost 'manhattan' is unknown"),
            ({"cost": ds.Cost("sqeuclidean", -1.0)}, "the scale of the cost must be a positive finite number"),
            ({"y": RNG.normal(size=(3, 7, 4))}, "x has dimension 2 and y has 4"),
            ({"y": RNG.normal(size=(7, 4))}, "x has dimension 2 and y has 4"),
            ({"a": np.ones(5)}, "a must have one weight for each of 6 points, got 5"),
            ({"b": np.ones((3, 6))}, "b must have one weight for each of 7 points, got 6"),
            ({"init": "gaussian", "cost": "euclidean"}, 'init "gaussian" needs the cost sqeuclidean'),
        ],
    )
    def test_what_is_wrong_for_every_problem_raises(self, changed: dict[str, Any], message: str) -> None:
        columns = {"x": X, "y": Y, "eps": 0.5} | changed
        with pytest.raises(ds.ProblemError, match=message):
            ds.solve(columns.pop("x"), columns.pop("y"), backend="reference", **columns)

    def test_so_do_arguments_beside_dense_costs(self) -> None:
        with pytest.raises(ds.ProblemError, match="a must have one weight for each of 4 points, got 3"):
            ds.solve(cost=np.ones((2, 4, 5)), a=np.ones(3), eps=0.5, backend="reference")
        with pytest.raises(ds.ProblemError, match="eps must be"):
            ds.solve(cost=np.ones((4, 5)), eps=-1.0, backend="reference")

    def test_a_cost_that_the_backend_lacks_raises(self) -> None:
        with pytest.raises(ds.ProblemError, match="backend 'cpu' cannot compute the cost"):
            ds.solve(X, Y, eps=0.5, cost=ds.Formula("SqDist(x, y)"), backend="cpu")

    def test_what_arrays_hold_makes_single_problems_invalid(self) -> None:
        x = X.copy()
        x[1, 2, 0] = np.nan
        solution = ds.solve(x, Y, eps=[1.0, 1.0, 0.0], backend="reference", warn=False)
        assert [r.status.name for r in solution] == ["CONVERGED", "INVALID", "INVALID"]
        assert ds.solve([EASY, BAD], backend="reference", warn=False)[1].status is ds.Status.INVALID

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_no_backend_takes_an_unknown_name_for_another_cost(self, backend: str) -> None:
        with pytest.raises(ds.ProblemError, match="manhattan"):
            ds.solve([ds.Problem(x=X[0], y=Y[0], eps=1.0, cost=ds.Cost("manhattan"))], backend=backend, strict=True)

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_no_backend_takes_a_form_that_it_lacks_for_another(self, backend: str) -> None:
        unknown = validate(ds.Problem(x=X[0], y=Y[0], eps=1.0, cost=Manhattan()), 1e-3)
        engine = load(backend)
        if backend != "reference":
            with pytest.raises(ds.ProblemError, match="cannot compute the cost Manhattan"):
                engine.pack([unknown])
        plan = engine.couple([unknown], [ds.Potentials(np.zeros(6), np.zeros(7))]).plan(100)[0]
        assert np.allclose(plan, np.exp(-cdist(X[0], Y[0], "cityblock")) / 42)


@dataclass(frozen=True)
class Manhattan(ds.PointCost):
    """A cost in a form that no backend knows; the reference evaluates any."""

    forms: ClassVar[tuple[str, ...]] = ("of its own",)

    def pairwise(self, x: Any, y: Any) -> Any:
        return cdist(x, y, "cityblock")


class TestBatches:
    def test_a_batch_warns_once_with_counts_and_advice(self) -> None:
        with pytest.warns(ds.ConvergenceWarning) as caught:
            ds.solve([EASY, DEEP, BAD, DEEP], backend="reference", max_depth=5)
        assert len(caught) == 1
        text = str(caught[0].message)
        assert text.startswith("3 of 4 problems did not converge")
        assert "2 DEPTH_LIMIT" in text
        assert "1 INVALID" in text
        assert "raise max_depth" in text
        assert caught[0].filename == __file__

    def test_where_warnings_are_errors_the_solution_is_not_lost(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(ds.ConvergenceWarning) as raised:
                ds.solve([EASY, BAD], backend="reference")
        assert raised.value.solution[0].converged  # type: ignore[index]

    def test_it_can_be_silenced(self) -> None:
        assert not ds.solve([BAD], backend="reference", warn=False).converged
        assert not ds.solve([BAD], backend="reference", options=ds.Options(warn=False)).converged
        assert [r.status.name for r in ds.stream([BAD], backend="reference", warn=False)] == ["INVALID"]

    def test_a_converged_batch_is_silent(self) -> None:
        ds.solve([EASY], backend="reference")

    def test_a_stream_warns_at_its_end(self) -> None:
        stream = ds.stream([EASY, BAD], backend="reference")
        assert {next(stream).ticket, next(stream).ticket} == {0, 1}
        with (
            pytest.warns(ds.ConvergenceWarning, match="1 of 2 problems did not converge"),
            pytest.raises(StopIteration),
        ):
            next(stream)
        with pytest.raises(StopIteration):
            next(stream)


class TestPlans:
    def test_what_is_taken_from_an_unconverged_result_warns(self) -> None:
        with pytest.warns(ds.ConvergenceWarning):
            easy, deep = ds.solve([EASY, DEEP], backend="reference", max_depth=5)
        taken = {
            "plan": lambda r: r.plan(),
            "apply": lambda r: r.apply(np.ones(7)),
            "map": lambda r: r.barycentric_map(),
            "match": lambda r: r.top_match(),
            "sample": lambda r: r.sample(3, seed=0),
            "cost": lambda r: r.transport_cost(),
        }
        for take in taken.values():
            take(easy)
            with pytest.warns(ds.ConvergenceWarning, match=r"problem 1 did not converge \(DEPTH_LIMIT") as caught:
                take(deep)
            assert len(caught) == 1
            assert caught[0].filename == __file__

    def test_it_can_be_silenced(self) -> None:
        _, deep = ds.solve([EASY, DEEP], backend="reference", max_depth=5, warn=False)
        assert deep.plan().shape == (6, 7)

    def test_a_batch_of_them_warns_once(self) -> None:
        with pytest.warns(ds.ConvergenceWarning):
            solution = ds.solve([EASY, DEEP, DEEP], backend="reference", max_depth=5)
        for take in (ds.plan, ds.barycentric_map, ds.top_match, ds.transport_cost, lambda s: ds.sample(s, 2, seed=0)):
            with pytest.warns(ds.ConvergenceWarning, match=r"problem 1 .*, and 1 more") as caught:
                take(solution)
            assert len(caught) == 1
