"""Converged results are recomputed from the caller's own arrays: what is false is withheld, what is true is not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.backends import load
from drainsinkhorn.backends.wrapped import WrappedBackend, WrappedPack
from drainsinkhorn.core.events import Finished
from drainsinkhorn.core.protocol import Pack, Progress
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.outcomes import Outcome, Outcomes
from drainsinkhorn.model.result import Residual, Residuals
from drainsinkhorn.model.status import Status
from drainsinkhorn.run import recheck, refutation
from drainsinkhorn.run.recheck import Recheck
from drainsinkhorn.run.refutation import refute
from drainsinkhorn.run.validate import validate

TOL = 1e-3


def cloud(seed: int, n: int = 40, m: int = 50, **more: Any) -> ds.Problem[Any]:
    rng = np.random.default_rng(seed)
    return ds.Problem(x=rng.normal(size=(n, 2)), y=0.7 * rng.normal(size=(m, 2)) + 0.3, **{"eps": 0.1, **more})


def various() -> list[ds.Problem[Any]]:
    """Every kind of problem whose potentials look different from the outside."""
    rng = np.random.default_rng(0)
    a, b = rng.uniform(size=40), rng.uniform(size=50)
    a[[0, 7]], b[-1] = 0.0, 0.0
    wide = 10.0 ** rng.uniform(-250, 0, size=40)
    dense = rng.uniform(-1, 2, size=(40, 50))
    far = cloud(5, a=a / a.sum(), b=b / b.sum())
    lost = np.array(far.x)
    lost[0] = 1e200
    return [
        *(cloud(k, cost=cost) for k, cost in enumerate(("sqeuclidean", "euclidean", "cosine"))),
        cloud(3, cost=ds.Cost("cosine", 3.0), eps=0.4),
        cloud(16, cost="negdot"),
        replace(cloud(17, cost=ds.Cost("dot", 2.0)), x=cloud(17).x + 100, eps=1.0),
        cloud(4, a=a / a.sum(), b=b / b.sum()),
        replace(far, x=lost),
        cloud(6, a=wide / wide.sum()),
        ds.Problem(cost=dense, eps=0.3),
        ds.Problem(cost=dense.astype("f4"), eps=0.3, a=a / a.sum(), b=b / b.sum()),
        *(replace(cloud(8, eps=0.5), x=p.x.astype(t), y=p.y.astype(t)) for t in ("f4", "f2") for p in [cloud(8)]),
        cloud(9, n=1, m=3),
        cloud(10, n=300, m=7),
        cloud(11, chain="days"),
        cloud(12, chain="days"),
        replace(cloud(13), x=(cloud(13).x + 1e6).astype("f4"), y=(cloud(13).y + 1e6).astype("f4"), eps=50.0),
        cloud(14, tol=1e-10),
        cloud(15, tol=0.3),
    ]


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("margin", [1.0, 0.5])
def test_true_results_stand_a_recheck_of_everything(backend: str, margin: float) -> None:
    solution = ds.solve(various(), backend=backend, recheck="all", audit=ds.Audit(margin=margin))
    assert sum(result.converged for result in solution) >= len(solution) - 1


def test_a_recheck_changes_no_result() -> None:
    plain, checked = (ds.solve(various(), backend="reference", recheck=how) for how in ("none", "all"))
    for one, other in zip(plain, checked, strict=True):
        assert one.depth == other.depth
        assert all(np.array_equal(p, q) for p, q in zip(one.potentials, other.potentials, strict=True))


def test_recalled_results_stand_a_recheck(tmp_path: Path) -> None:
    for _ in range(2):
        solution = ds.solve(various(), backend="reference", recheck="all", journal=tmp_path / "run")
        assert sum(result.converged for result in solution) >= len(solution) - 1


@pytest.mark.parametrize("problem", various(), ids=lambda problem: repr(problem.cost)[:20])
@pytest.mark.parametrize("side", [0, 1])
def test_what_is_ten_times_too_far_off_is_refuted_by_few_rows(problem: ds.Problem[Any], side: int) -> None:
    result = ds.solve([problem], backend="reference", recheck="none")[0]
    assert result.converged
    known = validate(problem, TOL)
    assert refute(known, result.potentials, float(known.tol or 0)) is None
    sides = [np.asarray(p, dtype=np.float64) for p in result.potentials]
    # All ratios grow by 10 tol, so that one marginal is off by 10 tol whatever the weights are.
    sides[side] = sides[side] + problem.eps * math.log1p(10 * float(known.tol or 0))
    for ticket in range(20):
        finding = refute(known, ds.Potentials(*sides), float(known.tol or 0), ticket=ticket)
        assert finding is not None
        assert finding.least > float(known.tol or 0)


@pytest.mark.parametrize("problem", [p for p in various() if p.tol is None], ids=lambda p: repr(p.cost)[:20])
def test_torch_finds_what_numpy_finds(problem: ds.Problem[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    f, g = ds.solve([problem], backend="reference")[0].potentials
    arrays = {name: getattr(problem, name) for name in ("x", "y", "a", "b", "cost")}
    moved = {name: torch.tensor(v) for name, v in arrays.items() if isinstance(v, np.ndarray)}
    known, there = validate(problem, TOL), validate(replace(problem, **moved), TOL)
    for off in (0.0, 10 * TOL):
        here = refute(known, ds.Potentials(f, g + problem.eps * off), TOL, ticket=3)
        monkeypatch.setattr(refutation, "device_or_host", lambda _: "device")
        state = ds.Potentials(torch.tensor(f), torch.tensor(g) + problem.eps * off)
        found = refute(there, state, TOL, ticket=3)
        monkeypatch.undo()
        assert (here is None) == (found is None) == (off == 0.0)
        assert here is None or here.least == pytest.approx(found.least, rel=1e-4)


def test_nan_and_infinite_potentials_are_refuted() -> None:
    known = validate(cloud(0), TOL)
    good = ds.solve([cloud(0)], backend="reference")[0].potentials
    for side in (0, 1):
        for value in (math.nan, math.inf, -math.inf, 1e308):
            bad = [np.array(p) for p in good]
            bad[side][3] = value
            assert refute(known, ds.Potentials(*bad), TOL, check_all=True) is not None


@pytest.mark.parametrize("shift", [0.0, 1e3, 1e10, 1e14, 1e100])
def test_the_bound_is_one_whatever_the_gauge(shift: float) -> None:
    """Against extended precision: nothing true is refuted, and rounding takes little from what is false."""
    problem = validate(cloud(0, n=30, m=20, eps=0.5), TOL)
    good = ds.solve([cloud(0, n=30, m=20, eps=0.5)], backend="reference", tol=1e-9)[0].potentials
    shifted = ds.Potentials(good.f + shift, good.g - shift)
    wide = [np.asarray(p, dtype=np.longdouble) for p in (problem.x, problem.y, *shifted, problem.a, problem.b)]
    x, y, f, g, a, b = wide
    with np.errstate(all="ignore"):
        ratio = np.exp((f[:, None] + g - ((x[:, None] - y) ** 2).sum(-1)) / problem.eps)
        row, col = a @ np.abs(ratio @ b - 1), b @ np.abs(a @ ratio - 1)
    worst = float(max(row, col))
    assert refute(problem, shifted, 1.0001 * worst + 1e-12, check_all=True) is None
    assert worst < 1e-8 or refute(problem, shifted, 0.9999 * worst, check_all=True) is not None


class Lying(WrappedPack):
    """Says of one problem that it has converged as soon as it moves."""

    def __init__(self, inner: Pack[Any], marked: float) -> None:
        super().__init__(inner)
        self.marked = marked

    def _is_marked(self, lane: int) -> bool:
        return self.inner.emit([lane]).instances[0].eps == self.marked

    def advance(self, cycles: int, stops: Sequence[float], *, lockstep: bool = False) -> Any:
        depths, stale = self.inner.advance(1, stops, lockstep=lockstep)
        return Progress(depths, [0.0 if self._is_marked(i) else value for i, value in enumerate(stale)])

    def verify(self, lanes: Sequence[int], *, exact: bool = False) -> Any:
        found = self.inner.verify(lanes, exact=exact).rows()
        said = (Residual(0.0, 0.0, 0.0) if self._is_marked(i) else r for i, r in zip(lanes, found, strict=True))
        return Residuals.from_rows(said)


@dataclass(frozen=True)
class LyingBackend(WrappedBackend):
    marked: float = 0.0

    def pack(self, problems: Sequence[ds.Problem[Any]]) -> Pack[Any]:
        return Lying(self.inner.pack(problems), self.marked)


def liar(marked: float) -> LyingBackend:
    return LyingBackend(load("reference"), marked)


def test_a_false_result_is_withheld_and_what_was_finished_is_kept() -> None:
    given = [cloud(0, eps=5.0), cloud(1, eps=0.01), cloud(2, eps=5.0)]
    options = {"mode": "width-one", "accelerate": "none", "init": "zero"}
    let_out = ds.solve(given, backend=liar(0.01), recheck="none", **options)
    assert let_out.converged
    with pytest.raises(ds.ContractError, match=r"problem 1 was reported as CONVERGED with residual 0.*above tol") as e:
        ds.solve(given, backend=liar(0.01), recheck="all", **options)
    assert list(e.value.results) == [0]
    assert np.array_equal(e.value.results[0].potentials.f, let_out[0].potentials.f)


def test_the_first_result_of_a_stream_and_of_a_large_solve_is_always_rechecked() -> None:
    with pytest.raises(ds.ContractError, match="problem 0 was reported"):
        list(ds.stream(iter([cloud(0, eps=0.01)]), backend=liar(0.01)))
    given = [cloud(k, n=720, m=720, eps=0.011 if k else 0.01) for k in range(16)]
    with pytest.raises(ds.ContractError, match="problem 0 was reported"):
        ds.solve(given, backend=liar(0.01), max_depth=2, rescue=False)


def test_a_false_result_never_reaches_the_journal(tmp_path: Path) -> None:
    with pytest.raises(ds.ContractError):
        list(ds.stream([cloud(0, eps=0.01)], backend=liar(0.01), journal=tmp_path / "run"))
    assert ds.solve([cloud(0, eps=0.01)], backend=load("reference"), journal=tmp_path / "run").converged


def test_what_a_journal_has_before_a_refuted_result_is_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems, check, finished = [cloud(0, tol=1e-10), cloud(1), cloud(2)], Recheck.check, set[int]()

    def stop_after_two(event: object) -> None:
        if isinstance(event, Finished):
            finished.add(event.ticket)
            if len(finished) == 2:
                raise KeyboardInterrupt

    with pytest.raises(ds.Interrupted):
        ds.solve(problems, backend="reference", observe=stop_after_two, journal=tmp_path / "run")
    assert finished == {1, 2}

    def refute_the_last(recheck: Recheck, instance: Any, outcome: Any) -> None:
        if outcome.ticket == 2:
            raise ds.ContractError("refuted")
        check(recheck, instance, outcome)

    monkeypatch.setattr(Recheck, "check", refute_the_last)
    # In this order all problems are read before the first one runs.
    options = ds.Options(recheck="all", order="grouped")
    stream = ds.stream(problems, backend="reference", journal=tmp_path / "run", options=options)
    assert next(stream).ticket == 1
    with pytest.raises(ds.ContractError, match="refuted"):
        next(stream)
    with pytest.raises(ds.ContractError, match="refuted") as refuted:
        ds.solve(problems, backend="reference", journal=tmp_path / "run", options=options)
    assert sorted(refuted.value.results) == [1]


def test_a_stray_lane_is_withheld_and_what_was_finished_is_kept() -> None:
    class Swapping(WrappedPack):
        def repack(self, keep: Sequence[int], admit: Sequence[ds.Problem[Any]] = ()) -> None:
            self.inner.repack(list(reversed(keep)), admit)

    class SwappingBackend(WrappedBackend):
        def pack(self, problems: Sequence[ds.Problem[Any]]) -> Pack[Any]:
            return Swapping(self.inner.pack(problems))

    given = [cloud(0, eps=5.0), cloud(1, eps=0.05), cloud(2, eps=0.04)]
    with pytest.raises(ds.ContractError, match="but emit returned the state of problem") as e:
        ds.solve(given, backend=SwappingBackend(load("reference")), mode="compact", recheck="none")
    assert list(e.value.results) == [0]


def ended(ticket: int, instance: Instance[Any], depth: int) -> Outcomes:
    zero = ds.Potentials(*map(np.zeros, instance.shape))
    outcome = Outcome(ticket, zero, Residual(1e-4 / (1 + ticket), 0.0, 0.0), Status.CONVERGED, depth)
    return Outcomes.from_rows([outcome])


@pytest.mark.parametrize(("n", "runs", "count", "most"), [(64, 1, 10_000, 80), (64, 1000, 1, 20), (512, 1, 400, 200)])
def test_few_results_are_rechecked_and_always_the_same(
    n: int, runs: int, count: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance, looked = validate(cloud(0, n=n, m=n), TOL), list[int]()
    monkeypatch.setattr(recheck, "refute", lambda *_, ticket, **__: looked.append(ticket))
    for _ in range(2):
        for run in range(runs):
            watch = Recheck("sampled", 1.0, "cpu", count)
            for ticket in range(count):
                outcomes = ended(ticket + run, instance, 30)
                for place in watch.select([instance], outcomes):
                    watch.check(instance, outcomes[place])
    half = len(looked) // 2
    assert 0 < half <= most
    assert looked[:half] == looked[half:]


def test_recheck_must_be_one_of_three() -> None:
    with pytest.raises(ds.OptionsError, match=r"recheck must be one of .*'sampled', 'all', 'none'"):
        ds.Options(recheck="some")  # type: ignore[arg-type]
