"""Hostile problems: CI solves a tenth of what `make soak` does, or less, from fixed seeds; elsewhere seeds vary."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.model.result import Residual
from drainsinkhorn.testing import soak as module
from drainsinkhorn.testing.hostile import block_of, problem
from drainsinkhorn.testing.settings import SCOPES, available, setting
from drainsinkhorn.testing.soak import main, soak, soak_one
from tests.conftest import needs

SEED = 21 if os.environ.get("DRAIN_CI") else secrets.randbelow(2**31)
# Potentials that are not finite, batches that break where NumPy raises, and bands without a floor are still found.
COSTS = ("sqeuclidean", "sqeuclidean", "euclidean", "cosine")
SCOPE = replace(available(SCOPES["reference"]), largest=12, batch=10, costs=COSTS, strict_floats=False)


def assert_clean(tally: module.Tally) -> None:
    assert not tally.findings, "\n".join(["", str(tally), *map(str, tally.findings)])
    assert tally.judged >= tally.problems // 5, f"{tally}: too few converge to say anything"


@pytest.mark.parametrize("part", range(4))
def test_no_result_of_the_cpu_is_false(part: int) -> None:
    assert_clean(soak("cpu", 250, SEED + part))


def test_no_result_of_streaming_lanes_of_the_cpu_is_false() -> None:
    assert_clean(soak("cpu", 150, SEED, frugal=True))


def test_no_result_of_the_reference_is_false() -> None:
    assert_clean(soak("reference", 250, SEED))


@pytest.mark.parametrize(("backend", "library"), [("ott", "ott"), ("keops", "pykeops"), ("triton", "triton")])
def test_no_result_of_other_backends_is_false(backend: str, library: str) -> None:
    if backend == "triton":
        # It chooses the interpreter before anything imports Triton.
        from tests.device import CUDA

        if CUDA:
            pytest.skip("tests/backends/triton runs it on the device")
    needs(library)
    assert_clean(soak(backend, 25, SEED))


class TestGenerator:
    def test_a_seed_and_a_number_are_a_problem(self) -> None:
        for index in range(60):
            one, two = problem(5, index, SCOPE), problem(5, index, SCOPE)
            assert fingerprint(one) == fingerprint(two)
        assert fingerprint(problem(5, 0, SCOPE)) != fingerprint(problem(6, 0, SCOPE))
        assert setting(5, 3, SCOPE) == setting(5, 3, SCOPE)

    def test_it_draws_all_that_it_says(self) -> None:
        drawn = [problem(7, index, available(SCOPES["cpu"])) for index in range(1200)]
        usual = [p for p in drawn if isinstance(p.eps, float) and isinstance(p.tol, float) and p.tol > 0]
        assert min(p.tol for p in usual) < 1e-11
        assert max(p.tol for p in usual if p.tol < np.inf) == 0.5
        starts = [p.init for p in drawn if isinstance(p.init, Potentials)]
        sizes = np.array([np.abs(module.to_numpy(start.f)).max() for start in starts])
        assert np.isnan(sizes).any()
        assert np.isinf(sizes).any()
        assert ((sizes > 1e290) & (sizes < 1e301)).any()
        assert (sizes == 1e308).any()
        kinds = {str(getattr(p.x if p.x is not None else p.cost, "dtype", "")) for p in drawn}
        names = ("float16", "float32", "float64", "int8", "int32", "int64", "uint8", "bool")
        assert kinds >= set(names)
        needs("torch")
        assert kinds >= {f"torch.{name}" for name in (*names, "bfloat16")}
        weights = np.concatenate([module.to_numpy(p.a).astype(float) for p in drawn if p.a is not None])
        assert ((weights > 0) & (weights < 1e-308)).any()
        assert (weights == 0).any()
        assert (weights > 1e90).any()
        assert {len(p.x) for p in drawn if p.x is not None} >= {1, 2, 129}
        assert sum(p.chain is not None for p in drawn) > 50
        assert {p.cost for p in drawn if isinstance(p.cost, str)} >= {
            "sqeuclidean",
            "euclidean",
            "cosine",
            "dot",
            "negdot",
        }

    def test_eps_spans_twelve_decades_of_the_median_cost(self) -> None:
        ratios = []
        for index in range(800):
            drawn = problem(8, index, replace(SCOPE, dense=1.0, libraries=("numpy",)))
            if isinstance(drawn.eps, float) and hasattr(drawn.cost, "ndim"):
                sizes = np.abs(np.asarray(drawn.cost, dtype=float))
                ratios += [drawn.eps / np.median(sizes[sizes > 0])] if sizes.any() else []
        assert 0 < min(ratio for ratio in ratios if ratio > 0) < 1e-5
        assert 1e5 < max(ratio for ratio in ratios if ratio < np.inf) < 1.01e6

    def test_a_chain_has_the_same_cost_and_sizes(self) -> None:
        chained = next(i for i in range(0, 400, 4) if problem(9, i, SCOPE).chain is not None)
        drawn = [problem(9, i, SCOPE) for i in block_of(chained)]
        assert len({p.chain for p in drawn if not isinstance(p.chain, list)}) == 1


def fingerprint(drawn: Problem[Any]) -> Any:
    arrays = [drawn.x, drawn.y, drawn.a, drawn.b, drawn.cost, *(drawn.init if isinstance(drawn.init, tuple) else ())]
    return (
        drawn.chain,
        str(drawn.eps),
        drawn.tol,
        [repr(module.to_numpy(v).tolist()) for v in arrays if hasattr(v, "dtype")],
    )


def tampered(change: Callable[[list[ds.Result[Any]]], list[Any]]) -> Callable[..., Any]:
    """`solve` with its results changed."""
    return lambda problems, **options: change(list(ds.solve(problems, **options)))


def moved(results: list[ds.Result[Any]]) -> list[Any]:
    """Potentials that are a little off, and say that they are not."""

    def move(result: ds.Result[Any]) -> ds.Result[Any]:
        if not result.converged or result.emitted is None or not result.problem.tol < 0.1:
            return result
        f, g = (module.to_numpy(p).astype(np.float64) for p in result.emitted)
        return replace(result, emitted=Potentials(f + 3 * result.problem.tol * result.problem.eps, g))

    return [move(result) for result in results]


def emptied(results: list[ds.Result[Any]]) -> list[Any]:
    def empty(result: ds.Result[Any]) -> ds.Result[Any]:
        if result.emitted is None:
            return result
        return replace(result, emitted=Potentials(*(module.to_numpy(p) * np.nan for p in result.emitted)))

    return [empty(result) for result in results]


class TestFindings:
    """What the soak is for, it finds."""

    def found(self, monkeypatch: pytest.MonkeyPatch, change: Callable[[list[Any]], list[Any]]) -> module.Tally:
        monkeypatch.setattr(module, "solve", tampered(change))
        return soak("reference", 30, 4, scope=SCOPE)

    def test_honest_results_pass(self) -> None:
        assert_clean(soak("reference", 100, 4, scope=SCOPE))

    def test_false_results(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tally = self.found(monkeypatch, moved)
        assert tally.count("false") >= 8
        first = next(finding for finding in tally.findings if finding.kind == "false")
        assert first.alone
        assert f"--seed 4 --only {first.index}" in str(first)
        again = soak_one("reference", first.index, 4, scope=SCOPE)
        assert [(f.kind, f.index) for f in again.findings if f.index == first.index] == [("false", first.index)]

    def test_numbers_that_are_not_finite(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.found(monkeypatch, emptied).count("not finite") >= 20

    def test_bands_that_are_too_small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def boast(result: ds.Result[Any]) -> ds.Result[Any]:
            """Half the residual, and CONVERGED where that is enough."""
            residual = Residual(result.residual.row / 2, result.residual.col / 2, result.residual.band / 2)
            passed = residual.worst <= (result.problem.tol or 0.0)
            return replace(result, residual=residual, status=ds.Status.CONVERGED) if passed else result

        def understate(results: list[ds.Result[Any]]) -> list[Any]:
            return [result if result.emitted is None else boast(result) for result in results]

        tally = self.found(monkeypatch, understate)
        assert tally.understated > 0
        edge = next(finding for finding in tally.findings if finding.kind == "edge")
        assert f"--only {edge.index} --tol {edge.tol!r}" in str(edge)
        again = soak_one("reference", edge.index, 4, tol=edge.tol, scope=SCOPE)
        assert [finding.kind for finding in again.findings] == ["edge"]

    def test_lost_and_exchanged_results(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.found(monkeypatch, lambda results: results[:-1]).count("missing") == 3
        assert self.found(monkeypatch, lambda results: results[::-1]).count("missing") == 30

    def test_exceptions_and_who_causes_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        culprit = problem(4, 7, SCOPE)

        def explode(results: list[ds.Result[Any]]) -> list[Any]:
            if any(fingerprint(result.problem) == fingerprint(culprit) for result in results):
                raise RuntimeError("boom")
            return results

        tally = self.found(monkeypatch, explode)
        assert {(f.kind, f.index) for f in tally.findings if f.batch == 0} >= {("exception", 7)}
        assert "boom" in tally.findings[0].detail

    def test_bits_that_depend_on_the_mode(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def by_mode(problems: list[Any], **options: Any) -> Any:
            results = list(ds.solve(problems, **options))
            return moved(results) if options["mode"] == "mask" else results

        monkeypatch.setattr(module, "solve", by_mode)
        tally = soak("reference", 300, 4, scope=SCOPE)
        assert tally.compared > 0
        assert tally.count("unequal bits") > 0


def test_the_command_says_what_it_found(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    report = tmp_path / "findings.json"
    status = main(["--backend", "reference", "--problems", "50", "--seed", "3", "--report", str(report)])
    printed = capsys.readouterr().out
    assert "seed 3" in printed
    assert "50 problems" in printed
    assert report.exists()
    assert status == (1 if "--only" in printed or "--batch" in printed else 0)
