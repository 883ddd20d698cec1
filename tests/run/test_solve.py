"""solve and stream: shapes in, libraries out, order, laziness, rescue, Ctrl-C, couplings."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.backends.reference import ReferenceBackend
from drainsinkhorn.model.outcomes import Outcomes
from drainsinkhorn.run.session import Session
from drainsinkhorn.testing import marginal_errors
from tests.conftest import needs

rng = np.random.default_rng(0)
X, Y = rng.normal(size=(4, 12, 2)), rng.normal(size=(4, 9, 2)) + 0.5


def single(i: int, **changes: Any) -> ds.Result[Any]:
    return ds.solve([ds.Problem(**{"x": X[i], "y": Y[i], "eps": 0.5, **changes})], warn=False)[0]


def same(one: ds.Result[Any], other: ds.Result[Any]) -> None:
    assert np.array_equal(one.potentials.f, other.potentials.f)
    assert np.array_equal(one.potentials.g, other.potentials.g)


def _solve_and_drop(problems: list[ds.Problem[Any]]) -> None:
    ds.solve(problems)


def _stream_to_the_end(problems: list[ds.Problem[Any]]) -> None:
    assert len(list(ds.stream(problems))) == 4


def _close_early(problems: list[ds.Problem[Any]]) -> None:
    stream = ds.stream(problems)
    assert next(stream).converged
    stream.close()
    assert not list(stream)


def _never_start(problems: list[ds.Problem[Any]]) -> None:
    ds.stream(problems)


def _read_from_an_iterable_that_raises(problems: list[ds.Problem[Any]]) -> None:
    def read() -> Any:
        yield from problems
        raise RuntimeError("no more")

    with contextlib.suppress(RuntimeError):
        list(ds.stream(read()))


def _watch_with_an_observer_that_raises(problems: list[ds.Problem[Any]]) -> None:
    def watch(event: object) -> None:
        raise ValueError(event)

    # A log record keeps the exception.
    with warnings.catch_warnings(), mock.patch.object(logging.getLogger("drainsinkhorn"), "disabled", True):
        warnings.simplefilter("ignore")
        ds.solve(problems, observe=watch)


def _turn_warnings_into_errors(problems: list[ds.Problem[Any]]) -> None:
    with warnings.catch_warnings(), contextlib.suppress(ds.ConvergenceWarning):
        warnings.simplefilter("error")
        ds.solve(problems, tol=1e-12, max_depth=1)


def _run_out_of_memory(problems: list[ds.Problem[Any]]) -> None:
    def close(session: Session) -> None:
        raise MemoryError

    with mock.patch("drainsinkhorn.run.session.Session.close", close), contextlib.suppress(ds.OutOfMemory):
        list(ds.stream(problems))


@pytest.mark.parametrize(
    "use",
    [
        _solve_and_drop,
        _stream_to_the_end,
        _close_early,
        _never_start,
        _read_from_an_iterable_that_raises,
        _watch_with_an_observer_that_raises,
        _turn_warnings_into_errors,
        _run_out_of_memory,
    ],
)
def test_arrays_are_let_go_without_the_garbage_collector(use: Callable[[list[ds.Problem[Any]]], None]) -> None:
    problems = [ds.Problem(x=X[i].copy(), y=Y[i].copy(), eps=0.5) for i in range(4)]
    arrays = [weakref.ref(problem.x) for problem in problems]
    gc.collect()
    gc.disable()
    try:
        use(problems)
        del problems
        assert all(array() is None for array in arrays)
    finally:
        gc.enable()


def test_a_stream_goes_on_after_an_interrupt_between_two_results() -> None:
    """An interrupt while outcomes that retired together are handed out loses none of them."""
    made, make = list[int](), Session.result

    def interrupted_once(session: Session, outcome: Any) -> Any:
        result = make(session, outcome)
        made.append(outcome.ticket)
        if len(made) == 2:
            raise KeyboardInterrupt
        return result

    stream, tickets = ds.stream([ds.Problem(x=X[0], y=Y[0], eps=0.5)] * 4), list[int]()
    with mock.patch("drainsinkhorn.run.session.Session.result", interrupted_once):
        tickets.append(next(stream).ticket)
        with pytest.raises(KeyboardInterrupt):
            next(stream)
        tickets += [result.ticket for result in stream]
    assert tickets == [0, 1, 2, 3]


def test_an_interrupt_while_a_row_is_read_loses_no_row() -> None:
    read, rows = Outcomes.__getitem__, list[int]()

    def interrupted_once(outcomes: Outcomes, place: int) -> Any:
        rows.append(place)
        if len(rows) == 2:
            raise KeyboardInterrupt
        return read(outcomes, place)

    stream, tickets = ds.stream([ds.Problem(x=X[0], y=Y[0], eps=0.5)] * 4, recheck="none"), list[int]()
    with mock.patch.object(Outcomes, "__getitem__", interrupted_once):
        for _ in range(6):
            with contextlib.suppress(KeyboardInterrupt, StopIteration):
                tickets.append(next(stream).ticket)
    assert tickets == [0, 1, 2, 3]


def test_two_threads_may_access_one_result_at_the_same_time() -> None:
    both, make, results = threading.Barrier(2, timeout=30), Session.result, list[ds.Result[Any]]()

    def together(session: Session, outcome: Any) -> Any:
        both.wait()
        return make(session, outcome)

    with mock.patch("drainsinkhorn.run.session.Session.result", together):
        solution = ds.solve(X, Y, eps=0.5)
        threads = [threading.Thread(target=lambda: results.append(solution[1])) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(results) == 2
    assert results[0] is results[1] is solution[1]


def test_errors_that_hold_results_can_be_pickled() -> None:
    result = single(0)
    interrupted = pickle.loads(pickle.dumps(ds.Interrupted({0: result}, 3, None, {0})))
    assert (str(interrupted), interrupted.total, interrupted.unrescued) == (
        "interrupted with 0 of 3 problems finished; 1 more waited for their rescue; see .results",
        3,
        {0},
    )
    short = pickle.loads(pickle.dumps(ds.OutOfMemory("short", {0: result}, None)))
    late = pickle.loads(pickle.dumps(ds.DeadlineError("late", result)))
    assert (str(short), str(late)) == ("short", "late")
    for copied in (interrupted.results[0], short.results[0], late.result):
        same(copied, result)


class TestBatches:
    def test_stacked(self) -> None:
        solution = ds.solve(X, Y, eps=0.5)
        assert len(solution) == 4
        for i, result in enumerate(solution):
            same(result, single(i))
        assert solution.potentials.f.shape == (4, 12)
        assert solution.potentials.g.shape == (4, 9)

    def test_shared_source(self) -> None:
        solution = ds.solve(X[0], Y, eps=0.5)
        same(solution[2], single(2, x=X[0]))

    def test_lists_of_unequal_clouds(self) -> None:
        solution = ds.solve([X[0], X[1, :5]], [Y[0, :3], Y[1]], eps=0.5)
        same(solution[1], single(1, x=X[1, :5]))
        with pytest.raises(ds.ProblemError, match="2 different shapes and cannot be stacked"):
            _ = solution.potentials

    def test_nested_lists_of_numbers(self) -> None:
        same(ds.solve(X[0].tolist(), Y[0].tolist(), eps=0.5)[0], single(0))
        same(ds.solve(X.tolist(), Y.tolist(), eps=0.5)[3], single(3))
        ragged = ds.solve([X[0].tolist(), X[1, :5].tolist()], Y[:2], eps=0.5)
        same(ragged[1], single(1, x=X[1, :5]))
        same(ds.solve([ds.Problem(x=X[0].tolist(), y=Y[0].tolist(), eps=0.5)])[0], single(0))

    def test_eps_and_tol_per_problem(self) -> None:
        solution = ds.solve(X, Y, eps=np.array([0.2, 0.5, 1, 2]), tol=[1e-2, 1e-3, 1e-5, 1e-7])
        for i, (eps, tol) in enumerate(zip([0.2, 0.5, 1, 2], [1e-2, 1e-3, 1e-5, 1e-7], strict=True)):
            same(solution[i], single(i, eps=eps, tol=tol))
            assert solution[i].residual.worst <= tol

    def test_marginals_per_problem_over_shared_points(self) -> None:
        a = rng.uniform(0.5, 1.5, size=(3, 12))
        solution = ds.solve(X[0], Y[0], a=a, eps=0.5)
        for i in range(3):
            same(solution[i], single(0, a=a[i], init="zero"))

    def test_dense_costs(self) -> None:
        cost = ((X[:, :, None] - Y[:, None]) ** 2).sum(-1)
        for i, result in enumerate(ds.solve(cost=cost, eps=0.5)):
            assert np.allclose(result.potentials.f, single(i, init="zero").potentials.f, atol=1e-10)
        assert len(ds.solve(cost=[cost[0], cost[1][:3]], eps=0.5)) == 2
        assert len(ds.solve(cost=cost[0], eps=[0.5, 1.0])) == 2

    def test_scaling_the_cost_is_scaling_eps(self) -> None:
        scaled = single(0, cost=ds.Cost("sqeuclidean", 3.0), eps=1.5)
        assert np.allclose(scaled.potentials.f, 3 * single(0).potentials.f)

    def test_integer_points_come_back_in_float64(self) -> None:
        for dtype in ("int32", "uint8", "bool"):
            result = ds.solve((3 * np.abs(X[0])).astype(dtype), (3 * np.abs(Y[0])).astype(dtype), eps=1.0)[0]
            assert result.potentials.f.dtype == np.float64
            assert result.widened

    def test_zero_weights_are_harmless(self) -> None:
        a = np.ones(12)
        a[:4] = 0
        result = single(0, a=a)
        assert result.converged
        assert np.isfinite(result.potentials.f).all()
        fewer = single(0, x=X[0, 4:])
        assert np.allclose(result.potentials.g - result.potentials.g[0], fewer.potentials.g - fewer.potentials.g[0])
        assert np.allclose(result.plan()[:4], 0)

    def test_warm_start_is_where_it_starts(self) -> None:
        cold = single(0, tol=1e-6)
        warm = single(0, tol=1e-6, init=cold.potentials)
        assert (warm.depth, cold.depth > 5) == (1, True)
        stacked = ds.solve(X, Y, eps=0.5, tol=1e-6, init=ds.solve(X, Y, eps=0.5, tol=1e-6).potentials)
        assert {result.depth for result in stacked} == {1}

    def test_nothing_to_solve(self) -> None:
        empty = ds.solve([])
        assert len(empty) == 0
        assert empty.converged
        empty.raise_for_status()
        with pytest.raises(ds.ProblemError, match="the solution is empty"):
            _ = empty.potentials

    def test_one_point_each(self) -> None:
        result = ds.solve(np.zeros((1, 1)), np.ones((1, 1)), eps=1.0)[0]
        assert (result.status, result.depth) == (ds.Status.CONVERGED, 1)
        assert result.plan() == pytest.approx(1.0)

    def test_inputs_are_not_changed(self) -> None:
        x, a = X[0].copy(), np.arange(1.0, 13.0)
        before = a.copy()
        ds.solve(x, Y[0], a=a, eps=0.5)
        assert np.array_equal(x, X[0])
        assert np.array_equal(a, before)


class TestPickle:
    def test_a_solution_there_and_back_twice(self) -> None:
        problems = [ds.Problem(x=x, y=y, eps=eps) for x, y, eps in zip(X, Y, (0.5, -1.0, 0.5, 0.1), strict=True)]
        solution: ds.Solution[Any] = ds.solve(problems, warn=False)
        for _ in range(2):
            again = pickle.loads(pickle.dumps(solution))
            assert repr(again) == repr(solution)
            assert again.ledger.depths == solution.ledger.depths
            assert [r.status for r in again] == [r.status for r in solution]
            same(again[-1], solution[3])
            assert again[0].transport_cost() == solution[0].transport_cost()
            solution = again

    def test_divergences(self) -> None:
        found = ds.divergence(X, Y, eps=0.5)
        again = pickle.loads(pickle.dumps(found))
        assert np.array_equal(again.values, found.values)
        same(again.parts(1)[2], found.parts(1)[2])


class TestLibraries:
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_torch(self, dtype: str) -> None:
        torch = needs("torch")
        x, y = (torch.as_tensor(v, dtype=getattr(torch, dtype)) for v in (X, Y))
        solution = ds.solve(x.requires_grad_(), y, eps=0.5)
        f = solution.potentials.f
        assert isinstance(f, torch.Tensor)
        assert (str(f.dtype), f.device, tuple(f.shape)) == (f"torch.{dtype}", x.device, (4, 12))
        assert not f.requires_grad
        result = solution[1]
        assert isinstance(result.plan(), torch.Tensor)
        assert isinstance(result.barycentric_map(), torch.Tensor)
        assert max(marginal_errors(result.problem, result.potentials)) <= 1e-3
        warm = ds.solve(x, y, eps=0.5, init=solution.potentials)
        assert {r.depth for r in warm} == {1}

    def test_torch_bfloat16_comes_back_wider_where_it_cannot_hold_tol(self) -> None:
        torch = needs("torch")
        result = ds.solve(torch.as_tensor(X[0]).bfloat16(), torch.as_tensor(Y[0]).bfloat16(), eps=0.5)[0]
        assert result.potentials.f.dtype == torch.float32
        assert result.widened

    def test_jax(self) -> None:
        jax = needs("jax")
        x, y = jax.numpy.asarray(X, dtype="float32"), jax.numpy.asarray(Y, dtype="float32")
        solution = ds.solve(x, y, eps=0.5)
        assert isinstance(solution.potentials.f, jax.Array)
        assert solution.potentials.f.dtype == "float32"
        assert solution[0].potentials.f.devices() == x.devices()
        tight = ds.solve(x, y, eps=0.5, tol=1e-8)
        assert tight[0].potentials.f.dtype == "float64"
        assert tight[0].widened
        assert isinstance(tight[0].potentials.f, jax.Array)

    def test_mixed_libraries_in_one_batch(self) -> None:
        torch = needs("torch")
        batch = [
            ds.Problem(x=X[0], y=Y[0], eps=0.5),
            ds.Problem(x=torch.as_tensor(X[1]), y=torch.as_tensor(Y[1]), eps=0.5),
        ]
        first, second = ds.solve(batch)
        assert isinstance(first.potentials.f, np.ndarray)
        assert isinstance(second.potentials.f, torch.Tensor)


class TestChoices:
    def test_auto_is_told(self) -> None:
        chosen = {choice.what: choice for choice in ds.solve(X, Y, eps=0.5).ledger.choices}
        assert (chosen["backend"].picked, chosen["mode"].picked) == ("cpu", "compact")
        assert "4 problems fit into one window" in chosen["mode"].reason

    def test_results_name_what_ran(self) -> None:
        result = single(0)
        assert (result.backend.name, result.arithmetic, result.acceleration) == ("cpu", "float32, cached", "momentum")
        assert result.problem.x is not None

    def test_certify_always_changes_no_reference_result(self) -> None:
        same(ds.solve([single(0).problem], certify="always")[0], single(0))


class TestGroups:
    def test_signatures_are_solved_apart_and_come_back_in_order(self) -> None:
        class ByShape(ReferenceBackend):
            def signature(self, problem: ds.Problem[Any]) -> Any:
                return problem.x.shape, problem.y.shape

        sizes = rng.integers(3, 6, size=40)
        batch = [ds.Problem(x=rng.normal(size=(n, 2)), y=rng.normal(size=(4, 2)), eps=0.5) for n in sizes]
        opened: list[Any] = []
        solution = ds.solve(batch, backend=ByShape(), mode="compact", width=5, observe=lambda e: opened.append(e))
        for result, problem in zip(solution, batch, strict=True):
            assert result.problem is problem
            same(result, ds.solve([problem], backend="reference")[0])
        windows = [event.tickets for event in opened if type(event).__name__ == "Opened"]
        assert all(len({sizes[t] for t in tickets}) == 1 for tickets in windows)
        assert len(windows) == sum(-(-np.count_nonzero(sizes == n) // 5) for n in (3, 4, 5))


class TestRescue:
    def deep(self) -> ds.Problem[Any]:
        return ds.Problem(x=X[0], y=Y[0], eps=0.02, tol=1e-4, init="zero")

    def test_a_depth_limit_is_rescued_with_as_many_cycles_again(self) -> None:
        depth = ds.solve([self.deep()], accelerate="none")[0].depth
        limit = depth // 2 + 1
        result = ds.solve([self.deep()], max_depth=limit, accelerate="none")[0]
        assert (result.status, result.rescued, result.depth) == (ds.Status.CONVERGED, True, depth - limit)
        solution = ds.solve([self.deep(), single(0).problem], max_depth=limit, accelerate="none")
        assert solution.ledger.rescue is not None
        assert solution.ledger.rescue.slots == depth - limit
        assert solution.ledger.slots == limit + solution[1].depth

    def test_without_rescue_it_is_reported_at_once(self) -> None:
        result = ds.solve([self.deep()], max_depth=7, rescue=False, warn=False)[0]
        assert (result.status, result.rescued, result.depth) == (ds.Status.DEPTH_LIMIT, False, 7)
        assert "raise max_depth" in result.message
        assert max(marginal_errors(result.problem, result.potentials)) == pytest.approx(
            result.residual.row, abs=result.residual.band
        )

    def test_a_stream_rescues_even_if_it_never_ends(self) -> None:
        def endless() -> Iterator[ds.Problem[Any]]:
            while True:
                yield self.deep()

        results = ds.stream(endless(), max_depth=40, lookahead=3)
        assert [next(results).rescued for _ in range(5)] == [True] * 5

    def test_a_failure_among_endless_successes_is_not_forgotten(self) -> None:
        def endless() -> Iterator[ds.Problem[Any]]:
            yield self.deep()
            while True:
                yield ds.Problem(x=X[0], y=Y[0], eps=1.0)

        results = ds.stream(endless(), max_depth=40, lookahead=20, width=4)
        assert 0 in [next(results).ticket for _ in range(60)]

    def test_ctrl_c_during_a_rescue_keeps_what_waits_for_it(self) -> None:
        def stop(event: object) -> None:
            if type(event).__name__ == "Rescuing":
                raise KeyboardInterrupt

        with pytest.raises(ds.Interrupted) as stopped:
            ds.solve([self.deep(), single(0).problem], max_depth=40, observe=stop)
        assert sorted(stopped.value.results) == [0, 1]
        assert stopped.value.results[0].status is ds.Status.DEPTH_LIMIT

    def test_a_tolerance_that_nothing_can_verify_is_not_run_twice(self) -> None:
        result = ds.solve(X[0], Y[0], eps=0.5, tol=1e-17, max_depth=50, warn=False)[0]
        assert (result.depth, result.rescued) == (50, False)


class TestStream:
    def test_good_problems_come_out_before_endless_bad_ones(self) -> None:
        def feed() -> Iterator[ds.Problem[Any]]:
            yield ds.Problem(x=X[0], y=Y[0], eps=1.0)
            while True:
                yield ds.Problem(x=X[0], y=Y[0], eps=-1.0)

        results = ds.stream(feed(), width=4)
        assert sorted(next(results).ticket for _ in range(6)) == list(range(6))

    def test_it_has_a_ledger(self) -> None:
        results = ds.stream([ds.Problem(x=X[0], y=Y[0], eps=1.0)])
        depth = next(results).depth
        assert results.ledger.slots == depth

    def test_results_come_as_they_drain(self) -> None:
        eps = [0.02, 1.0, 0.02, 1.0]
        batch = [ds.Problem(x=X[i], y=Y[i], eps=eps[i]) for i in range(4)]
        tickets = [result.ticket for result in ds.stream(batch, width=4, audit=ds.Audit(every=8))]
        assert sorted(tickets[:2]) == [1, 3]

    def test_it_is_lazy(self) -> None:
        read: list[int] = []

        def feed() -> Iterator[ds.Problem[Any]]:
            for i in range(1000):
                read.append(i)
                yield ds.Problem(x=X[i % 4], y=Y[i % 4], eps=1.0)

        results = ds.stream(feed(), width=4)
        assert not read
        next(results)
        assert len(read) <= 8
        results.close()

    def test_a_thousand_problems_refill_sixteen_lanes(self) -> None:
        made = [ds.Problem(x=X[i % 4, :6], y=Y[i % 4, :5], eps=0.3 + 0.01 * (i % 50)) for i in range(1000)]
        solution = ds.solve(made, width=16)
        assert solution.converged
        assert [result.ticket for result in solution] == list(range(1000))
        assert solution.ledger.refills == 984
        assert solution.ledger.slots == sum(result.depth for result in solution)

    def test_bad_ones_are_reported_in_the_stream(self) -> None:
        batch = [ds.Problem(x=X[0], y=Y[0], eps=-1.0)] * 3
        assert [r.status for r in ds.stream(batch, warn=False)] == [ds.Status.INVALID] * 3
        with pytest.raises(ds.ProblemError, match="problem 0: eps"):
            list(ds.stream(batch, strict=True))

    def test_an_error_of_the_producer_is_the_callers(self) -> None:
        def feed() -> Iterator[ds.Problem[Any]]:
            yield ds.Problem(x=X[0], y=Y[0], eps=1.0)
            raise RuntimeError("the producer broke")

        results = ds.stream(feed(), width=4)
        assert next(results).converged
        with pytest.raises(RuntimeError, match="the producer broke"):
            next(results)


LONG = """
import sys, numpy as np, drainsinkhorn as ds
rng = np.random.default_rng(0)
easy = [ds.Problem(x=rng.normal(size=(20, 2)), y=rng.normal(size=(20, 2)), eps=1.0) for _ in range(5)]
hard = [ds.Problem(x=50 * rng.normal(size=(300, 2)), y=50 * rng.normal(size=(300, 2)), eps=1e-3) for _ in range(8)]
"""


def interrupt(code: str) -> tuple[str, float]:
    """Run a script, send SIGINT once it says ready, and return its output and how long it took to end."""
    process = subprocess.Popen(
        # Solved once before, so that no compilation is interrupted.
        [sys.executable, "-c", LONG + "ds.solve(easy)\n" + textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(1.0)
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    return out, time.monotonic() - start


class TestInterrupt:
    def test_solve_returns_promptly_with_what_was_finished(self) -> None:
        out, seconds = interrupt(
            """
            print("ready", flush=True)
            try:
                ds.solve(easy + hard, max_depth=1_000_000)
            except ds.Interrupted as stopped:
                print(sorted(stopped.results), stopped.total, all(r.converged for r in stopped.results.values()))
            """
        )
        assert out == "[0, 1, 2, 3, 4] 13 True\n"
        assert seconds < 2

    def test_what_a_stream_yielded_stays_valid(self) -> None:
        out, seconds = interrupt(
            """
            kept = []
            try:
                for result in ds.stream(easy + hard, max_depth=1_000_000):
                    kept.append(result)
                    if len(kept) == 5:
                        print("ready", flush=True)
            except KeyboardInterrupt:
                from drainsinkhorn.testing import marginal_errors
                print(len(kept), all(max(marginal_errors(r.problem, r.potentials)) <= 1e-3 for r in kept))
            """
        )
        assert out == "5 True\n"
        assert seconds < 2


class TestCouplings:
    def plan(self, result: ds.Result[Any]) -> Any:
        cost = ((X[0][:, None] - Y[0][None]) ** 2).sum(-1)
        f, g = result.potentials
        return np.exp((f[:, None] + g - cost) / 0.5) / (12 * 9)

    def test_plan_apply_cost_and_map(self) -> None:
        result = single(0)
        plan, values = self.plan(result), rng.normal(size=(9, 3))
        cost = ((X[0][:, None] - Y[0][None]) ** 2).sum(-1)
        assert np.allclose(result.plan(), plan)
        assert np.allclose(result.apply(values), plan @ values)
        assert np.allclose(result.apply(np.ones(12), side="col"), plan.sum(0))
        assert result.transport_cost().transport == pytest.approx((plan * cost).sum())
        assert np.allclose(result.barycentric_map(), plan @ Y[0] / plan.sum(1, keepdims=True))
        assert np.allclose(result.barycentric_map("col"), plan.T @ X[0] / plan.sum(0)[:, None])
        with pytest.raises(ds.ProblemError, match='side must be "row" or "col"'):
            result.apply(values, side="up")

    def test_a_point_of_weight_zero_has_an_image_too(self) -> None:
        a = np.ones(12)
        a[0] = 0
        image = single(0, a=a).barycentric_map()
        assert np.isfinite(image).all()
        assert np.abs(image[0]).max() <= np.abs(Y[0]).max()

    def test_samples_follow_the_plan(self) -> None:
        result = single(0)
        i, j = result.sample(200_000, seed=0)
        counts = np.zeros((12, 9))
        np.add.at(counts, (i, j), 1)
        plan = result.plan()
        chi2 = ((counts - 200_000 * plan) ** 2 / (200_000 * plan)).sum()
        assert abs(chi2 - 107) < 5 * np.sqrt(2 * 107)
        assert np.array_equal(result.sample(10, seed=3)[0], result.sample(10, seed=3)[0])

    def test_an_invalid_problem_has_no_coupling(self) -> None:
        with pytest.raises(ds.ProblemError, match="problem 0 has no potentials: INVALID"):
            single(0, eps=-1).plan()
