from __future__ import annotations

import threading

import numpy as np
import pytest
from threadpoolctl import threadpool_info

import drainsinkhorn as ds
from drainsinkhorn.numerics import starts
from drainsinkhorn.numerics.blas import single_thread
from tests.gaussian import gaussian_starts


def blas_threads() -> set[int]:
    """Threads of NumPy's own BLAS; SciPy and torch may bring others, which factorise nothing here."""
    libraries = [library for library in threadpool_info() if library["user_api"] == "blas"]
    own = [library for library in libraries if "numpy" in library["filepath"]]
    return {library["num_threads"] for library in own or libraries}


class TestSingleThread:
    def test_threads_that_overlap_restore_the_number_of_threads(self) -> None:
        before, entered, ended = blas_threads(), threading.Event(), threading.Event()

        def other() -> None:
            with single_thread():
                entered.set()
                ended.wait(10)

        thread = threading.Thread(target=other)
        with single_thread():
            thread.start()
            assert entered.wait(10)
            assert blas_threads() == {1}
        ended.set()
        thread.join()
        assert blas_threads() == before
        with single_thread():
            assert blas_threads() == {1}
        assert blas_threads() == before

    def test_large_covariances_are_decomposed_by_one_thread(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[tuple[int, set[int]]] = []
        eigh = np.linalg.eigh

        def watched(matrices: np.ndarray) -> object:
            seen.append((matrices.shape[-1], blas_threads()))
            return eigh(matrices)

        monkeypatch.setattr(np.linalg, "eigh", watched)
        rng = np.random.default_rng(0)
        for dim in (3, 50):
            x, y = rng.normal(size=(80, dim)), 3 * rng.normal(size=(80, dim))
            ds.solve(x, y, eps=1.0, init="gaussian", max_depth=1, rescue=False, warn=False)
        assert {dim for dim, _ in seen} >= {3, 50}
        assert all(threads == {1} for dim, threads in seen if dim == 50)


CLOUDS = {
    "gaussian": lambda rng, size: rng.normal(size=size),
    "heavy tails": lambda rng, size: rng.standard_t(5, size=size),
    "clusters": lambda rng, size: rng.normal(size=size) + 4 * rng.integers(0, 2, size=(size[0], 1)),
    "boxes": lambda rng, size: rng.uniform(-1, 1, size=size) ** 3,
}


class TestNegligible:
    @pytest.mark.parametrize("kind", CLOUDS)
    def test_no_start_that_is_worthwhile_is_called_negligible(self, kind: str) -> None:
        rng, negligible = np.random.default_rng(len(kind)), 0
        for _ in range(150):
            n, dim = int(rng.integers(20, 300)), int(rng.integers(1, 60))
            eps = np.array([10.0 ** rng.uniform(-1, 3)])
            skew = rng.normal(size=(dim, dim)) * rng.choice([0.0, 0.1, 1.0]) + np.eye(dim)
            x, y = CLOUDS[kind](rng, (n, dim)) @ skew, CLOUDS[kind](rng, (n, dim)) + rng.choice([0.0, 0.1, 3.0])
            weights = np.full((1, n), 1 / n)
            moments = [(cloud.mean(0)[None], np.cov(cloud.T, bias=True).reshape(1, dim, dim)) for cloud in (x, y)]
            given = (*moments[0], *moments[1], eps)
            if starts.is_negligible(*given)[0]:
                negligible += 1
                whole = gaussian_starts(x[None], y[None], weights, weights, eps)
                assert not starts.worthwhile(whole, weights)[0]
                short = gaussian_starts(x[None], y[None], weights, weights, eps, always=False)
                assert not short.any()
        assert negligible > 10

    def test_a_negligible_start_decomposes_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=(2, 256, 50))
        expected = ds.solve(x, y, eps=20.0, init="zero")[0]
        monkeypatch.setattr(np.linalg, "eigh", None)
        for backend in ("cpu", "reference"):
            result = ds.solve(x, y, eps=20.0, backend=backend)[0]
            assert result.converged
            assert result.depth == expected.depth

    def test_lanes_of_one_stack_are_judged_alone(self) -> None:
        rng = np.random.default_rng(1)
        x, y = rng.normal(size=(2, 3, 100, 8))
        y[1] *= 5
        a = np.full((3, 100), 0.01)
        eps = np.full(3, 10.0)
        together = gaussian_starts(x, y, a, a, eps, always=False)
        assert [bool(each.any()) for each in together] == [False, True, False]
        assert np.array_equal(together[1], gaussian_starts(x[1:2], y[1:2], a[:1], a[:1], eps[:1])[0])
