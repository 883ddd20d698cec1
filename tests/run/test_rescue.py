"""Starts that are of no use, rescues that restart from them, floating-point settings, and observers that raise."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.backends.reference import ReferenceBackend
from drainsinkhorn.backends.wrapped import WrappedBackend, WrappedPack
from drainsinkhorn.model.result import Residuals
from drainsinkhorn.numerics.starts import usable_start
from drainsinkhorn.run.validate import validate
from drainsinkhorn.testing.auditor import marginal_errors

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(6, 2)), RNG.normal(size=(7, 2))
EPS, TOL = 0.5, 1e-3
SOLVED = ds.solve([ds.Problem(x=X, y=Y, eps=EPS)], backend="reference")[0].potentials
BACKENDS = ["reference", "cpu"]
BACKENDS += [name for name, module in (("ott", "ott"), ("keops", "pykeops")) if importlib.util.find_spec(module)]


def starting(f: Any, g: Any, **columns: Any) -> ds.Problem[Any]:
    return ds.Problem(x=X, y=Y, eps=EPS, init=ds.Potentials(f, g), **columns)


def shifted(c: float) -> ds.Problem[Any]:
    return starting(SOLVED.f + c, SOLVED.g - c)


def noisy(size: float) -> ds.Problem[Any]:
    rng = np.random.default_rng(1)
    return starting(size * rng.uniform(-1, 1, 6), size * rng.uniform(-1, 1, 7))


def check(result: ds.Result[Any]) -> None:
    assert result.converged, result.message
    assert np.isfinite(result.potentials.f).all()
    assert np.isfinite(result.potentials.g).all()
    assert max(marginal_errors(result.problem, result.potentials)) <= TOL


class TestStarts:
    @pytest.mark.parametrize("backend", BACKENDS)
    def test_a_shift_along_the_gauge_is_removed(self, backend: str) -> None:
        sizes = (1e5, -1e9, 1e14, 1e20, 1e100, -1e300)
        for result in ds.solve([shifted(c) for c in sizes], backend=backend, rescue=False, max_depth=100):
            check(result)
            assert np.abs(result.potentials.g).max() < 100

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_a_start_without_digits_is_not_used_and_the_result_says_so(self, backend: str) -> None:
        useless = [starting(np.full(6, c), np.full(7, c)) for c in (1e17, 1e100, 1e308)]
        useless += [noisy(1e100), noisy(1.7e308)]
        for result in ds.solve(useless, backend=backend, rescue=False, max_depth=100):
            check(result)
            assert "its start was not used" in result.message

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_a_run_that_its_start_spoiled_is_rescued(self, backend: str) -> None:
        spoiled = [noisy(1e12), noisy(3e15), starting(np.full(6, 1e15), np.full(7, 1e15))]
        for result in ds.solve(spoiled, backend=backend, max_depth=50):
            check(result)
            assert result.rescued

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_without_a_rescue_the_message_names_the_start(self, backend: str) -> None:
        result = ds.solve([noisy(1e14)], backend=backend, max_depth=50, rescue=False, warn=False)[0]
        assert not result.converged
        assert "its start" in result.message
        assert np.isfinite(result.potentials.f).all()

    def test_a_chain_hands_on_no_shift(self) -> None:
        links = [shifted(1e14), *(ds.Problem(x=X + 0.01 * k, y=Y, eps=EPS) for k in (1, 2))]
        chain = [ds.Problem(x=p.x, y=p.y, eps=EPS, init=p.init, chain="one") for p in links]
        for result in ds.solve(chain, backend="reference"):
            check(result)
            assert np.abs(result.potentials.g).max() < 100

    def test_a_link_whose_predecessor_was_spoiled_starts_well(self) -> None:
        chain = [starting(*noisy(1e15).init, chain="one"), ds.Problem(x=X + 0.01, y=Y, eps=EPS, chain="one")]  # type: ignore[misc]
        first, second = ds.solve(chain, backend="reference", max_depth=50)
        check(first)
        check(second)
        assert first.rescued
        assert not second.rescued

    def test_ordinary_starts_are_used_as_they_are(self) -> None:
        rng = np.random.default_rng(2)
        weights = np.full(6, 1 / 6), np.full(7, 1 / 7)
        for scale in (1e-6, 1.0, 1e4):
            for shift in (0.0, 3.0, -10.0):
                start = ds.Potentials(rng.normal(size=6) + shift, rng.normal(size=7) - shift)
                start = ds.Potentials(scale * start.f, scale * start.g)
                assert usable_start(start, scale * EPS, TOL, *weights) is start

    def test_potentials_of_points_without_weight_do_not_count(self) -> None:
        a = np.array([0.0, 0.2, 0.2, 0.2, 0.2, 0.2])
        f = np.r_[-1e300, SOLVED.f[1:] + 1e14]
        problem = starting(f, SOLVED.g - 1e14, a=a)
        assert np.abs(validate(problem, TOL).init.f).max() < 100  # type: ignore[union-attr]
        check(ds.solve([problem], backend="reference", rescue=False)[0])

    def test_whole_numbers_are_taken_too(self) -> None:
        problem = starting(np.full(6, 2**60), np.full(7, -(2**60)))
        assert np.abs(validate(problem, TOL).init.f).max() == 0  # type: ignore[union-attr]
        check(ds.solve([problem], backend="reference", rescue=False)[0])

    def test_the_callers_library_keeps_its_start(self) -> None:
        torch = pytest.importorskip("torch")
        f, g = torch.as_tensor(SOLVED.f) + 1e14, torch.as_tensor(SOLVED.g) - 1e14
        problem = ds.Problem(x=torch.as_tensor(X), y=torch.as_tensor(Y), eps=EPS, init=ds.Potentials(f, g))
        assert isinstance(validate(problem, TOL).init.f, torch.Tensor)  # type: ignore[union-attr]


class TestRescue:
    def test_a_rescue_that_came_nearer_gives_the_answer_and_its_own_depth(self) -> None:
        deep = ds.Problem(x=X, y=Y, eps=0.01, tol=1e-9, init="zero")
        first = ds.solve([deep], backend="reference", max_depth=9, rescue=False, warn=False)[0]
        result = ds.solve([deep], backend="reference", max_depth=9, warn=False)[0]
        assert result.rescued
        assert result.residual.worst < first.residual.worst
        assert f"the first ended at residual {first.residual.worst:.3g}" in result.message
        assert result.depth <= 9

    def test_costs_that_leave_floating_point_are_not_rescued_into_an_answer(self) -> None:
        huge = ds.Problem(x=X * 1e160, y=Y * 1e160, eps=1e-3)
        result = ds.solve([huge], backend="reference", warn=False)[0]
        assert (result.status, result.rescued) == (ds.Status.NONFINITE, False)
        assert "costs are too large for eps" in result.message
        assert "did not help" in result.message
        assert np.isfinite(result.potentials.f).all()

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_potentials_are_finite_whatever_left_floating_point(self, backend: str) -> None:
        far = [ds.Problem(x=X * scale, y=Y * scale, eps=1e-3) for scale in (1e100, 1e150, 1e154, 1e160)]
        start = ds.Potentials(SOLVED.f, SOLVED.g)
        far += [ds.Problem(x=X * 1e160, y=Y * 1e160, eps=1e-3, init=start)]
        for result in ds.solve(far, backend=backend, warn=False, max_depth=20):
            assert not result.converged
            assert np.isfinite(result.potentials.f).all(), result
            assert np.isfinite(result.potentials.g).all(), result

    def test_potentials_are_finite_even_if_a_backend_emits_others(self) -> None:
        class Poisoned(WrappedPack):
            def verify(self, lanes: Any, *, exact: bool = False) -> Any:
                unknown = [np.nan] * len(lanes)
                return Residuals(unknown, unknown, unknown)

            def emit(self, lanes: Any) -> Any:
                f, g = ([np.full(size, bad)] * len(lanes) for size, bad in ((6, np.nan), (7, np.inf)))
                return super().emit(lanes)._replace(f=f, g=g)

        class PoisonedBackend(WrappedBackend):
            def pack(self, instances: Any) -> Any:
                return Poisoned(self.inner.pack(instances))

        backend = PoisonedBackend(ReferenceBackend())
        result = ds.solve([ds.Problem(x=X, y=Y, eps=EPS)], backend=backend, rescue=False, warn=False)[0]
        assert result.status is ds.Status.NONFINITE
        assert not np.any(result.potentials.f)
        assert not np.any(result.potentials.g)

    def test_an_interrupt_counts_what_is_finished(self) -> None:
        def stop(event: object) -> None:
            if type(event).__name__ == "Rescuing":
                raise KeyboardInterrupt

        easy, deep = ds.Problem(x=X, y=Y, eps=1.0), ds.Problem(x=X, y=Y, eps=0.01, tol=1e-9)
        with pytest.raises(
            ds.Interrupted, match=r"1 of 2 problems finished; 1 more waited for their rescue"
        ) as stopped:
            ds.solve([easy, deep], backend="reference", max_depth=9, observe=stop)
        assert stopped.value.unrescued == {1}
        assert sorted(stopped.value.results) == [0, 1]


@pytest.fixture
def strict() -> Iterator[None]:
    """Warnings are errors, and so is every floating-point event of NumPy."""
    before = np.seterr(all="raise")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    np.seterr(**before)


def hostile() -> list[ds.Problem[Any]]:
    weights = np.array([1e-300, 1e-200, 0.0, 0.5, 0.25, 0.25])
    return [
        ds.Problem(x=X, y=Y, eps=EPS),
        ds.Problem(x=X * 1e160, y=Y * 1e160, eps=1e-3),
        ds.Problem(x=X * 1e-170, y=Y * 1e-170, eps=1e-300),
        ds.Problem(x=X, y=Y, eps=1e-6),
        ds.Problem(x=X, y=Y, eps=1e300),
        ds.Problem(x=X, y=Y, a=weights, eps=EPS),
        ds.Problem(x=X * 1e200, y=Y * 1e200, eps=1e200, cost="euclidean"),
        ds.Problem(x=X * 1e-200, y=Y * 1e200, eps=0.1, cost="cosine"),
        ds.Problem(x=X.astype(np.float32), y=Y.astype(np.float32), eps=1e-3),
        ds.Problem(cost=np.array([[0.0, 1e308], [-1e308, 0.0]]), eps=1e-3),
        ds.Problem(x=np.full((6, 2), np.nan), y=Y, eps=EPS),
        shifted(1e300),
        noisy(1e308),
    ]


class TestSettings:
    @pytest.mark.usefixtures("strict")
    @pytest.mark.parametrize("backend", ["reference", "cpu"])
    def test_floating_point_settings_change_nothing(self, backend: str) -> None:
        with np.errstate(all="ignore"):
            usual = ds.solve(hostile(), backend=backend, max_depth=30, warn=False)
        solution = ds.solve(hostile(), backend=backend, max_depth=30, warn=False)
        streamed = {r.ticket: r for r in ds.stream(iter(hostile()), backend=backend, max_depth=30, warn=False)}
        for one, other in zip(solution, usual, strict=True):
            assert (one.status, one.depth) == (other.status, other.depth) == (streamed[one.ticket].status, one.depth)
            if one.emitted is not None:
                np.testing.assert_array_equal(one.potentials.f, other.potentials.f)
        assert np.geterr()["over"] == "raise"

    @pytest.mark.usefixtures("strict")
    @pytest.mark.parametrize("backend", ["reference", "cpu"])
    def test_what_is_taken_from_results_does_not_see_them(self, backend: str) -> None:
        tiny = [ds.Problem(x=X, y=Y, eps=1e-3), ds.Problem(x=X * 1e3, y=Y, eps=1.0, tol=0.3)]
        for result in ds.solve(tiny, backend=backend, max_depth=3000):
            assert result.converged
            result.plan()
            result.apply(np.full(7, 1e-300))
            result.barycentric_map()
            result.top_match("col")
            result.sample(5, seed=0)
            result.transport_cost()

    @pytest.mark.usefixtures("strict")
    def test_the_callers_own_code_runs_under_the_callers_settings(self) -> None:
        seen: list[str] = []

        def feed() -> Iterator[ds.Problem[Any]]:
            for _ in range(3):
                seen.append(np.geterr()["over"])
                yield ds.Problem(x=X, y=Y, eps=EPS)

        def watch(event: object) -> None:
            seen.append(np.geterr()["over"])

        list(ds.stream(feed(), backend="reference", observe=watch))
        ds.solve(feed(), backend="reference", observe=watch)
        assert set(seen) == {"raise"}


class TestObservers:
    def failing(self, event: object) -> None:
        self.told = getattr(self, "told", 0) + 1
        if type(event).__name__ == "Retired":
            raise LookupError("the bar is gone")

    def test_solve_returns_everything_and_warns(self, caplog: pytest.LogCaptureFixture) -> None:
        batch = [ds.Problem(x=X, y=Y, eps=eps) for eps in (0.5, 1.0, 2.0)]
        with caplog.at_level(logging.WARNING), pytest.warns(ds.ObserverWarning, match="LookupError") as caught:
            solution = ds.solve(batch, backend="reference", observe=self.failing)
        assert solution.converged
        warned = caught[0].message
        assert isinstance(warned, ds.ObserverWarning)
        assert isinstance(warned.__cause__, LookupError)
        assert caught[0].filename == __file__
        assert "the run continues" in caplog.text
        told = self.told
        with pytest.raises(ds.ObserverWarning) as raised:
            ds.solve(batch, backend="reference", observe=self.failing)
        assert raised.value.solution.converged  # type: ignore[attr-defined]
        assert self.told == 2 * told, "an observer that raised is told no more"

    def test_a_stream_yields_everything_and_warns_at_its_end(self) -> None:
        stream = ds.stream([ds.Problem(x=X, y=Y, eps=EPS)] * 3, backend="reference", observe=self.failing)
        assert all(next(stream).converged for _ in range(3))
        with pytest.warns(ds.ObserverWarning), pytest.raises(StopIteration):
            next(stream)
        with pytest.raises(StopIteration):
            next(stream)
