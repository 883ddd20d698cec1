"""Scores of the CPU backend: tiles against long double, their bound, and what must not depend on how they are cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.backends.cpu import CpuBackend
from drainsinkhorn.backends.cpu.distances import squared_distances
from drainsinkhorn.backends.cpu.pack import CpuPack
from drainsinkhorn.backends.cpu.primitives import double
from drainsinkhorn.backends.cpu.scores import extent, lay_out
from drainsinkhorn.backends.cpu.tiles import DIRECT, EXPANDED, ROOT, TALL, WIDE, padded_width, squares
from drainsinkhorn.run.validate import validate
from drainsinkhorn.testing import marginal_errors
from tests.conftest import needs

torch = needs("torch")
from drainsinkhorn.apps.flow.problems import problems_of  # noqa: E402  it imports torch

UNIT = 2.0**-53
SHAPES = [(1, 1, 1), (5, 3, 2), (TALL, WIDE, 7), (TALL + 1, WIDE + 1, 16), (37, 101, 50), (20, 33, 500)]


def clouds(n: int, m: int, d: int, seed: int = 0, offset: float = 3.0) -> tuple[Any, Any]:
    rng = np.random.default_rng([n, m, d, seed])
    return rng.normal(size=(n, d)) + offset, rng.normal(size=(m, d)) + offset + 0.5


def long_squares(x: Any, y: Any) -> Any:
    x, y = x.astype(np.longdouble), y.astype(np.longdouble)
    return sum((x[:, c, None] - y[None, :, c]) ** 2 for c in range(x.shape[1]))


def tiles(kind: int, x: Any, y: Any, factor: float = 1.0, first: int = 0, last: int | None = None) -> Any:
    last = len(x) if last is None else last
    laid = lay_out(x[None], y[None], extent(x[None], y[None]).middle if kind == EXPANDED else None)
    rows, norms, panels, others = (array.ctypes.data for array in laid)
    out = np.full((-(-(last - first) // TALL) * TALL, padded_width(len(y))), np.nan)
    squares(kind, rows, norms, panels, others, x.shape[1], len(y), factor, first, last, out)
    return out[: last - first, : len(y)].copy()


@pytest.mark.parametrize("shape", SHAPES)
def test_tiles_of_differences_are_as_exact_as_float64_allows(shape: Any) -> None:
    x, y = clouds(*shape)
    true = long_squares(x, y)
    assert (np.abs(tiles(DIRECT, x, y) - true) <= (shape[2] + 3) * UNIT * true).all()
    assert (np.abs(tiles(ROOT, x, y, 2.0) - 2 * np.sqrt(true)) <= (shape[2] + 5) * UNIT * 2 * np.sqrt(true)).all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("offset", [0.0, 1e3, 1e9])
def test_expanded_squares_keep_their_bound_wherever_the_clouds_lie(shape: Any, offset: float) -> None:
    x, y = clouds(*shape, offset=offset)
    x[0] += 100.0
    x[-1] = y[0]
    far = extent(x[None], y[None]).far[0]
    errors = np.abs(tiles(EXPANDED, x, y) - long_squares(x, y))
    assert errors.max() <= (shape[2] + 6) * UNIT * far**2


def test_the_extent_bounds_all_distances() -> None:
    x, y = clouds(40, 30, 20)
    far = extent(x[None], y[None]).far[0]
    assert np.sqrt(long_squares(x, y)).max() <= far <= 3 * np.sqrt(long_squares(x, y)).max()


@pytest.mark.parametrize("kind", [DIRECT, ROOT, EXPANDED])
def test_an_entry_does_not_depend_on_the_tile_it_is_in(kind: int) -> None:
    x, y = clouds(37, 101, 50)
    whole = tiles(kind, x, y)
    for first, last in ((0, 1), (3, 20), (30, 37)):
        assert np.array_equal(tiles(kind, x, y, first=first, last=last), whole[first:last])
    if kind != EXPANDED:
        # The middle, and with it the last bits of an expanded square, is the whole clouds'.
        assert np.array_equal(tiles(kind, x, y[40:60]), whole[:, 40:60])


def hostile(rng: np.random.Generator) -> ds.Problem[Any]:
    """Many coordinates, far from the origin, with copies of points on the other side, and eps from large to small."""
    n, m = (int(size) for size in np.exp(rng.uniform(0, np.log(200), size=2)).round())
    d = int(rng.choice([16, 17, 64, 130, 300]))
    x, y = rng.normal(size=(2, 200, d)) * 10 ** rng.uniform(-2, 2)
    x, y = x[:n], y[:m] + rng.normal(size=d) * 10 ** rng.uniform(-2, 0)
    y[: min(n, m) // 2] = x[: min(n, m) // 2]
    x, y = (points + 10 ** rng.uniform(-1, 4) for points in (x, y))
    a, b = (10 ** rng.uniform(-6, 0, size=size) for size in (n, m))
    mean = float(long_squares(x, y).mean())
    kind, share = str(rng.choice(["sqeuclidean", "cosine"])), 10 ** rng.uniform(-3, 0)
    eps = share * mean if kind == "sqeuclidean" else share * 0.1
    tol = float(rng.choice([1e-2, 1e-3, 1e-6]))
    return ds.Problem(x=x, y=y, a=a / a.sum(), b=b / b.sum(), eps=max(eps, 1e-12), tol=tol, cost=kind)


def test_residuals_in_many_coordinates_are_true() -> None:
    rng = np.random.default_rng(0)
    batch = [hostile(rng) for _ in range(150)]
    solution = ds.solve(batch, max_depth=300, rescue=False, warn=False)
    assert sum(r.converged for r in solution) > 100
    for problem, result in zip(batch, solution, strict=True):
        true = max(marginal_errors(problem, result.potentials))
        if result.converged:
            assert true <= (problem.tol or 0.0)
        # The band bounds the error of a plan entry, so of a residual near convergence.
        slack = result.residual.band * (1 + true) + 1e-9 * true
        assert abs(true - max(result.residual.row, result.residual.col)) <= slack


def test_an_exact_verify_takes_differences() -> None:
    x, y = clouds(50, 60, 200)
    problem = validate(ds.Problem(x=x, y=y, eps=20.0), tol=1e-9)
    pack = CpuPack([problem], np.dtype(np.float64), 1)
    pack.advance(5, [-np.inf])
    # What expanding would read is gone: only differences of points can still give the residual.
    lane = pack._table[0]
    for field, size in (("norms_x", 50), ("norms_y", 60), ("scores", 50 * 60)):
        double(lane[field], size)[:] = np.nan
    (seen,), (exact,) = pack.verify([0]).rows(), pack.verify([0], exact=True).rows()
    assert np.isfinite(exact.row)
    assert abs(seen.row - exact.row) <= seen.band + exact.band


@pytest.mark.parametrize("d", [16, 64, 130])
@pytest.mark.parametrize("acceleration", ["none", "momentum"])
def test_results_in_many_coordinates_are_the_same_to_the_bit(d: int, acceleration: str) -> None:
    sizes = [(60, 50), (33, 90), (300, 280), (300, 280), (7, 5)]
    batch = [
        ds.Problem(x=x, y=y, eps=0.02 * d) for x, y in (clouds(n, m, d, seed) for seed, (n, m) in enumerate(sizes))
    ]
    one = ds.solve(batch, backend=CpuBackend(threads=1), accelerate=acceleration)
    for other in (
        ds.solve(batch, backend=CpuBackend(threads=3), accelerate=acceleration),
        ds.solve(batch, width=2, mode="stream", accelerate=acceleration),
        [ds.solve([problem], accelerate=acceleration)[0] for problem in batch],
    ):
        for mine, yours in zip(one, other, strict=True):
            assert np.array_equal(mine.potentials.f, yours.potentials.f)
            assert (mine.depth, mine.residual) == (yours.depth, yours.residual)


def test_lanes_over_the_same_points_share_their_scores_to_the_bit() -> None:
    x, y = clouds(200, 190, 150)
    rng = np.random.default_rng(0)
    batch = [ds.Problem(x=x, y=y, a=rng.dirichlet(np.ones(200)), eps=8.0, init="zero") for _ in range(3)]
    together = ds.solve(batch, tol=1e-4)
    for problem, mine in zip(batch, together, strict=True):
        alone = ds.solve([problem], tol=1e-4)[0]
        assert mine.converged
        assert np.array_equal(mine.potentials.f, alone.potentials.f)


def test_laws_expand_squares_only_where_that_is_sharp() -> None:
    x, y = clouds(40, 30, 64)
    # Two clusters so far apart that squared norms leave no digits for the distances within one.
    x[::2, 0] += 1e6
    y[::2, 0] += 1e6
    problem = validate(ds.Problem(x=x, y=y, eps=3.0), 1e-3)
    found = CpuBackend().couple([problem], [ds.Potentials(np.zeros(40), np.zeros(30))]).barycentric_map()[0]
    logs = -long_squares(x, y) / 3
    law = np.exp(logs - logs.max(1, keepdims=True))
    law /= law.sum(1, keepdims=True)
    assert np.abs(found - law @ y)[:, 1:].max() < 1e-6


class TestDistances:
    def test_they_are_those_of_the_points(self) -> None:
        pairs = [clouds(n, m, 60) for n, m in ((3, 4), (50, 41))]
        for (x, y), found in zip(pairs, squared_distances(pairs, [1.0, 0.5], threads=2), strict=True):
            scale = 1.0 if len(x) == 3 else 0.5
            assert found is not None
            assert np.abs(found - scale * long_squares(x, y)).max() < 1e-11

    def test_minibatches_in_many_dimensions_bring_theirs(self) -> None:
        some = [torch.randn(8, 6, 10), torch.randn(9, 60)]
        (problem,) = problems_of([some], [1.0])
        assert torch.allclose(
            torch.as_tensor(problem.cost), torch.cdist(some[0].reshape(8, 60).double(), some[1].double()) ** 2
        )
        (few,) = problems_of([[torch.randn(8, 3), torch.randn(9, 3)]], [1.0])
        assert few.x is not None

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e200])
    def test_points_without_distances_are_left_to_the_solver(self, value: float) -> None:
        x = torch.randn(8, 60, dtype=torch.float64)
        x[2, 3] = value
        (problem,) = problems_of([[x, torch.randn(9, 60, dtype=torch.float64)]], [1.0])
        assert problem.x is not None

    def test_half_precision_is_read(self) -> None:
        x, y = torch.randn(8, 60).half(), torch.randn(9, 60).half()
        (problem,) = problems_of([[x, y]], [1.0])
        assert torch.allclose(torch.as_tensor(problem.cost), torch.cdist(x.double(), y.double()) ** 2)
