"""Where problems start: by name, from given potentials, from another problem's; and chains."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from scipy.special import logsumexp

import drainsinkhorn as ds
from drainsinkhorn.backends import load, support
from drainsinkhorn.backends.cpu import CpuBackend
from drainsinkhorn.testing.auditor import marginal_errors
from tests.gaussian import gaussian_starts

BACKENDS = ["reference", "cpu"]


def cloud(seed: int, n: int = 60, d: int = 3, shift: float = 0.0) -> Any:
    return np.random.default_rng(seed).normal(size=(n, d)) + shift


class TestGaussian:
    @pytest.mark.parametrize("backend", BACKENDS)
    def test_between_large_gaussian_samples_it_is_nearly_the_solution(self, backend: str) -> None:
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=(900, 2)) @ [[1.0, 0.3], [0.0, 0.5]], 2 + rng.normal(size=(900, 2))
        problems = [ds.Problem(x=x, y=y, eps=0.1, init=i) for i in ("gaussian", "zero")]
        start, zero = ds.solve(problems, tol=0.1, accelerate="none", backend=backend)
        assert start.depth < zero.depth / 3
        solved = ds.solve([ds.Problem(x=x, y=y, eps=0.1, tol=1e-6)], backend=backend)[0]
        assert np.std(start.potentials.g - solved.potentials.g) < 0.05 * np.std(solved.potentials.g)

    def test_backends_start_at_the_same_place(self) -> None:
        for d in (1, 3, 17, 64, 65):
            x, y = cloud(d, 30, d), 2 * cloud(d + 1, 20, d, shift=1)
            a = np.random.default_rng(d).dirichlet(np.ones(30))
            problem = ds.Problem(x=x, y=y, a=a, eps=3.0, cost=ds.Cost("sqeuclidean", 0.7))
            one, other = (
                ds.solve([problem], init="gaussian", max_depth=1, rescue=False, backend=b, warn=False)[0]
                for b in ("reference", CpuBackend(precision="float64"))
            )
            assert np.allclose(one.potentials.g, other.potentials.g, rtol=1e-9, atol=1e-9)
            assert np.allclose(one.potentials.f, other.potentials.f, rtol=1e-9, atol=1e-9)

    def test_a_start_does_not_depend_on_its_neighbours(self) -> None:
        for d in (1, 3, 17, 80):
            rng = np.random.default_rng(d)
            x, y = rng.normal(size=(7, 33, d)), rng.normal(size=(7, 21, d))
            a, b, eps = rng.dirichlet(np.ones(33), 7), rng.dirichlet(np.ones(21), 7), rng.uniform(0.1, 1, 7)
            whole = gaussian_starts(x, y, a, b, eps)
            for i in range(7):
                one = slice(i, i + 1)
                assert np.array_equal(gaussian_starts(x[one], y[one], a[one], b[one], eps[one])[0], whole[i])

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_it_saves_cycles_and_changes_no_answer(self, backend: str) -> None:
        batch = [ds.Problem(x=cloud(i), y=2 * cloud(100 + i, 50, shift=3), eps=0.5, tol=1e-6) for i in range(6)]
        zero, start = (ds.solve(batch, init=init, accelerate="none", backend=backend) for init in ("zero", "gaussian"))
        assert zero.converged
        assert start.converged
        assert sum(r.depth for r in start) < sum(r.depth for r in zero)
        for p, q in zip(zero, start, strict=True):
            assert np.abs(p.plan() - q.plan()).sum() < 1e-4

    @pytest.mark.parametrize("backend", BACKENDS)
    @pytest.mark.parametrize(
        "problem",
        [
            ds.Problem(x=np.ones((1, 2)), y=np.zeros((1, 2)), eps=1.0),
            ds.Problem(x=np.ones((5, 2)), y=np.ones((5, 2)), eps=1.0),
            ds.Problem(x=cloud(0), y=np.ones((5, 3)), eps=1.0),
            ds.Problem(x=1e7 + cloud(0), y=1e7 + cloud(1), eps=0.5),
            ds.Problem(x=cloud(0, 5, 100), y=cloud(1, 4, 100), eps=5.0),
            ds.Problem(x=cloud(0, 3, 30), y=cloud(1, 2, 30), eps=5.0),
            ds.Problem(x=1e-200 * cloud(0), y=1e-200 * cloud(1), eps=1.0),
            ds.Problem(x=1e100 * cloud(0), y=1e100 * cloud(1), eps=1e200),
            ds.Problem(x=cloud(0), y=cloud(1), eps=1e8),
            ds.Problem(x=cloud(0), y=cloud(1), a=np.r_[1.0, np.zeros(59)], eps=0.5),
        ],
    )
    def test_degenerate_clouds(self, problem: ds.Problem[Any], backend: str) -> None:
        result = ds.solve([problem], init="gaussian", backend=backend)[0]
        assert result.converged, result.message
        assert max(marginal_errors(problem, result.potentials)) <= 1e-3

    def test_it_is_the_default_for_squares_alone(self) -> None:
        x, y = cloud(0), 2 * cloud(1, shift=2)
        for cost in ("sqeuclidean", "euclidean"):
            default, zero = (ds.solve([ds.Problem(x=x, y=y, eps=0.5, cost=cost, init=i)])[0] for i in (None, "zero"))
            assert np.array_equal(default.potentials.f, zero.potentials.f) == (cost == "euclidean")

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_auto_leaves_it_where_it_moves_little(self, backend: str) -> None:
        x, y = cloud(0), 2 * cloud(1, shift=2)
        taken = list[str]()
        for eps in (0.5, 50.0):
            auto, zero, gaussian = (
                ds.solve(
                    [ds.Problem(x=x, y=y, eps=eps, init=i)], max_depth=1, rescue=False, backend=backend, warn=False
                )[0]
                for i in ("auto", "zero", "gaussian")
            )
            for name, start in (("zero", zero), ("gaussian", gaussian)):
                if np.allclose(auto.potentials.f, start.potentials.f, rtol=1e-5):
                    taken.append(name)
        assert taken == ["gaussian", "zero"]

    def test_problems_over_the_same_points_start_at_zero_and_share(self) -> None:
        a = np.random.default_rng(0).dirichlet(np.ones(60), 3)
        assert {p.init for p in ds.problems(cloud(0), cloud(1), a=a, eps=1.0)} == {"zero"}
        assert {p.init for p in ds.problems(np.stack([cloud(0)] * 3), cloud(1), a=a, eps=1.0)} == {None}

    def test_what_it_cannot_do_is_refused(self) -> None:
        result = ds.solve([ds.Problem(x=cloud(0), y=cloud(1), eps=1.0, cost="cosine", init="gaussian")], warn=False)[0]
        assert result.status is ds.Status.INVALID
        assert "needs the cost sqeuclidean or a dot product, this one is cosine" in result.message
        result = ds.solve([ds.Problem(x=cloud(0), y=cloud(1), eps=1.0, init="warm")], warn=False)[0]
        assert "init 'warm' is unknown; use one of ['auto', 'gaussian', 'zero']" in result.message
        with pytest.raises(ds.OptionsError, match="init must be one of"):
            ds.solve(cloud(0), cloud(1), eps=1.0, init="warm")


class TestExtend:
    def test_potentials_reach_new_points(self) -> None:
        old = ds.Problem(x=cloud(0, 400), y=cloud(1, 400, shift=1), eps=0.5, tol=1e-4)
        solved = ds.solve([old])[0]
        new = ds.Problem(x=cloud(2, 300), y=cloud(3, 350, shift=1), eps=0.5, tol=1e-2)
        start = ds.extend(old, solved.potentials, new)
        assert (start.f.shape, start.g.shape) == ((300,), (350,))
        depths = [
            ds.solve([ds.Problem(x=new.x, y=new.y, eps=0.5, tol=1e-1, init=i)], accelerate="none")[0].depth
            for i in (start, "zero")
        ]
        assert depths[0] < depths[1]

    def test_the_same_points_keep_theirs(self) -> None:
        old = ds.Problem(x=cloud(0), y=cloud(1), eps=0.5)
        solved = ds.solve([old])[0]
        start = ds.extend(old, solved.potentials, ds.Problem(x=cloud(0).copy(), y=cloud(5, 9), eps=0.5))
        assert np.array_equal(start.f, solved.potentials.f)
        assert start.g.shape == (9,)

    @pytest.mark.parametrize("cost", ["sqeuclidean", "euclidean", "cosine"])
    @pytest.mark.parametrize("backend", [None, *BACKENDS])
    @pytest.mark.parametrize("few", [0, support.FEW_PAIRS])
    def test_a_new_point_gets_its_soft_c_transform(
        self, backend: str | None, cost: str, few: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(support, "FEW_PAIRS", few)
        a, b = np.linspace(1, 2, 40), np.linspace(2, 1, 30)
        b[3] = 0.0
        old = ds.Problem(x=cloud(0, 40), y=cloud(1, 30, shift=1), a=a / a.sum(), b=b / b.sum(), eps=0.05, cost=cost)
        given = ds.Potentials(np.sin(np.arange(40.0)), np.cos(np.arange(30.0)))
        new = ds.Problem(x=cloud(2, 17) + 0.5, y=cloud(3, 19) - 0.5, eps=0.3, cost=cost)
        found = ds.extend(old, given, new, None if backend is None else load(backend))
        for points, others, weights, known, mine in (
            (new.x, old.y, old.b, given.g, found.f),
            (new.y, old.x, old.a, given.f, found.g),
        ):
            distance = cdist(points, others, cost)
            with np.errstate(divide="ignore"):
                wanted = -old.eps * logsumexp((known - distance) / old.eps + np.log(weights), axis=1)
            assert np.allclose(mine, wanted, atol=1e-6 * old.eps)

    def test_what_does_not_fit_is_refused(self) -> None:
        old = ds.Problem(x=cloud(0), y=cloud(1), eps=0.5)
        found = ds.solve([old])[0].potentials
        with pytest.raises(ds.ProblemError, match="one cost and one dimension"):
            ds.extend(old, found, ds.Problem(x=cloud(0, d=2), y=cloud(1, d=2), eps=0.5))
        with pytest.raises(ds.ProblemError, match="cannot start one of shape"):
            ds.extend(old, found, ds.Problem(cost=np.ones((3, 4)), eps=0.5))

    @pytest.mark.parametrize("dense", [False, True])
    @pytest.mark.parametrize("backend", BACKENDS)
    def test_points_without_weight_get_theirs_as_well(
        self, backend: str, dense: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        a, b = (np.where(np.arange(size) % 3, 1.0, 0.0) for size in (50, 40))
        given = {"cost": cdist(cloud(0, 50), cloud(1, 40))} if dense else {"x": cloud(0, 50), "y": cloud(1, 40)}
        problem = ds.Problem(a=a / a.sum(), b=b / b.sum(), eps=0.5, **given)
        settings = {"FEW_PAIRS": (support.FEW_PAIRS, 0, support.FEW_PAIRS), "CHUNK_PAIRS": (2**22, 2**22, 100)}
        found = []
        for turn in range(3):
            for name, values in settings.items():
                monkeypatch.setattr(support, name, values[turn])
            # A neighbour with other points that have weight changes nothing.
            found.append(ds.solve([problem, replace(problem, a=None)], backend=backend)[0].potentials)
        cost = given["cost"] if dense else cdist(given["x"], given["y"], "sqeuclidean")
        whole = found[0]
        with np.errstate(divide="ignore"):
            f = -0.5 * logsumexp((whole.g - cost) / 0.5 + np.log(problem.b), axis=1)
            g = -0.5 * logsumexp((whole.f[:, None] - cost) / 0.5 + np.log(problem.a)[:, None], axis=0)
        assert np.allclose(whole.f[a == 0], f[a == 0], atol=1e-12)
        assert np.allclose(whole.g[b == 0], g[b == 0], atol=1e-12)
        for other in found[1:]:
            assert np.allclose(whole.f, other.f, atol=1e-12)
            assert np.allclose(whole.g, other.g, atol=1e-12)
        assert np.array_equal(whole.f, found[2].f)


class TestChains:
    def drifting(self, count: int = 6, chain: Any = "drive") -> list[ds.Problem[Any]]:
        steps = [cloud(0, 80) + 0.02 * k for k in range(count + 1)]
        return [ds.Problem(x=p, y=q, eps=0.1, chain=chain) for p, q in itertools.pairwise(steps)]

    @pytest.mark.parametrize("backend", BACKENDS)
    @pytest.mark.parametrize("mode", ["auto", "compact", "mask", "width-one", "stream"])
    def test_each_starts_where_its_predecessor_ended(self, mode: str, backend: str) -> None:
        two = [*self.drifting(), *self.drifting(4, chain=7), ds.Problem(x=cloud(8), y=cloud(9), eps=0.5)]
        carried = ds.solve(two, mode=mode, width=3, accelerate="none", backend=backend)
        alone = ds.solve([ds.Problem(x=p.x, y=p.y, eps=p.eps) for p in two], accelerate="none", backend=backend)
        assert carried.converged
        assert [r.ticket for r in carried] == list(range(11))
        assert carried[0].depth == alone[0].depth
        assert carried[10].depth == alone[10].depth
        assert sum(r.depth for r in carried) < 0.7 * sum(r.depth for r in alone)
        for result in carried:
            assert max(marginal_errors(result.problem, result.potentials)) <= 1e-3

    def test_a_chain_is_what_its_links_are_one_by_one(self) -> None:
        links = self.drifting(4)
        carried = ds.solve(links)
        start: Any = None
        for link, result in zip(links, carried, strict=True):
            single = ds.solve([ds.Problem(x=link.x, y=link.y, eps=link.eps, init=start)])[0]
            assert np.array_equal(single.potentials.f, result.potentials.f)
            nxt = links[min(result.ticket + 1, 3)]
            start = ds.extend(link, result.potentials, nxt)

    @pytest.mark.parametrize("few", [0, support.FEW_PAIRS])
    def test_links_may_have_other_sizes_than_their_predecessors(
        self, few: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(support, "FEW_PAIRS", few)
        steps = [cloud(k, size) for k, size in enumerate((30, 41, 22, 35, 30))]
        links = [ds.Problem(x=p, y=q, eps=0.5, chain="drive") for p, q in itertools.pairwise(steps)]
        assert ds.solve(links).converged

    def test_a_bad_link_breaks_no_chain(self) -> None:
        links = self.drifting(5)
        links[1] = ds.Problem(x=links[1].x, y=np.full((80, 3), np.nan), eps=0.1, chain="drive")
        links[3] = ds.Problem(x=1e200 * links[3].x, y=links[3].y, eps=0.1, chain="drive")
        counts = ds.solve(links, warn=False).counts
        assert counts == {ds.Status.CONVERGED: 3, ds.Status.INVALID: 1, ds.Status.NONFINITE: 1}

    def test_a_stream_of_one_long_chain(self) -> None:
        found = [r.ticket for r in ds.stream(iter(self.drifting(30)), lookahead=4)]
        assert found == list(range(30))

    def test_a_key_must_be_hashable(self) -> None:
        result = ds.solve([ds.Problem(x=cloud(0), y=cloud(1), eps=1.0, chain=["a"])], warn=False)[0]
        assert "chain must be hashable" in result.message
