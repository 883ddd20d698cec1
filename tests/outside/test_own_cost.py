"""Costs of a user's own on every backend: solved, verified and consumed as their matrices are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.backends import load
from drainsinkhorn.backends.cpu import CpuBackend
from tests.conftest import needs
from tests.device import DEVICE, torch
from tests.outside.costs import Chord, HalfSquare, InnerProduct, Manhattan, Uphill, direct

# Triton's interpreter computes in NumPy, which warns of overflow where a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

TOL = 1e-6
"""The plain backends and the compiled ones meet it in float64 alone."""
MATRIX: list[ds.PointCost] = [Manhattan(), Uphill(), InnerProduct()]
DISTANCES: list[Any] = [HalfSquare(), Chord(), Chord(3.0), "negdot"]
LIBRARIES = {"ott": "ott", "keops": "pykeops", "triton": "triton"}
CASES = [(kind, name) for kind in MATRIX for name in ("reference", "cpu", "ott", "triton")]
CASES += [(kind, name) for kind in DISTANCES for name in ("reference", "cpu", "ott", "keops", "triton")]


def backend_of(name: str) -> Any:
    if name in LIBRARIES:
        needs(LIBRARIES[name])
    return load(name)


def problem(kind: Any, seed: int = 0, n: int = 11, m: int = 15, scale: float = 1.0) -> ds.Problem[Any]:
    """Two clouds of unequal sizes; one point of each has no weight."""
    rng = np.random.default_rng(seed)
    a, b = rng.uniform(0.5, 1.5, size=n), rng.uniform(0.5, 1.5, size=m)
    a[2] = b[-1] = 0.0
    x, y = rng.normal(size=(n, 3)), rng.normal(size=(m, 3)) + 0.5
    return ds.Problem(x=x, y=y, a=a / a.sum(), b=b / b.sum(), eps=0.5, cost=ds.Cost(kind, scale), tol=TOL)


def matrix_of(given: ds.Problem[Any]) -> Any:
    cost: Any = given.cost
    return cost.scale * direct(cost.kind, np.asarray(given.x, dtype=float), np.asarray(given.y, dtype=float))


def dense(given: ds.Problem[Any]) -> ds.Problem[Any]:
    """The same problem with its matrix in place of its points."""
    return ds.Problem(cost=matrix_of(given), a=given.a, b=given.b, eps=given.eps, tol=given.tol)


def plan_of(result: ds.Result[Any]) -> Any:
    """The plan of a result in float64, from its potentials and the matrix alone."""
    given, (f, g) = result.problem, (np.asarray(p, dtype=float) for p in result.potentials)
    exponents = (f[:, None] + g[None, :] - matrix_of(given)) / given.eps
    return np.asarray(given.a)[:, None] * np.asarray(given.b) * np.exp(exponents)


def audit(result: ds.Result[Any]) -> None:
    """Both residuals, computed directly, are within tol and are what the result says."""
    plan = plan_of(result)
    row = float(np.abs(plan.sum(axis=1) - result.problem.a).sum())
    col = float(np.abs(plan.sum(axis=0) - result.problem.b).sum())
    assert result.converged, result.message
    assert max(row, col) <= TOL
    assert abs(result.residual.row - row) <= result.residual.band + 1e-12
    assert abs(result.residual.col - col) <= result.residual.band + 1e-12


@pytest.fixture(scope="module")
def solved() -> Any:
    """Solutions by cost and backend, each made once: two problems of unequal sizes and scales."""
    made: dict[Any, Any] = {}

    def solve(kind: Any, name: str) -> Any:
        if (kind, name) not in made:
            batch = [problem(kind), problem(kind, 1, 17, 9, scale=0.7)]
            made[kind, name] = ds.solve(batch, backend=backend_of(name), certify="always", recheck="all")
        return made[kind, name]

    return solve


@pytest.mark.parametrize(("kind", "name"), CASES, ids=str)
def test_potentials_are_those_of_the_matrix(solved: Any, kind: Any, name: str) -> None:
    for result in solved(kind, name):
        audit(result)
        (truth,) = ds.solve([replace(dense(result.problem), tol=1e-10)], backend="reference")
        # Potentials are unique up to a constant that moves from f to g; points without weight have theirs too.
        sums, others = (p.f[:, None] + p.g[None, :] for p in (result.potentials, truth.potentials))
        assert np.abs(sums - others).max() <= 1e-4


@pytest.mark.parametrize(("kind", "name"), CASES, ids=str)
def test_consumers_agree_with_the_plan(solved: Any, kind: Any, name: str) -> None:
    for result in solved(kind, name):
        plan, given = plan_of(result), result.problem
        assert np.abs(result.plan() - plan).max() <= 1e-6
        for side, mass, points in (("row", plan, given.y), ("col", plan.T, given.x)):
            heavy = mass.sum(axis=1) > 0
            means = (mass @ points)[heavy] / mass.sum(axis=1)[heavy, None]
            assert np.abs(result.barycentric_map(side)[heavy] - means).max() <= 1e-5
            assert np.array_equal(result.top_match(side)[heavy], mass.argmax(axis=1)[heavy])
            assert np.abs(result.apply(points, side) - mass @ points).max() <= 1e-6
        assert abs(result.transport_cost().transport - (plan * matrix_of(given)).sum()) <= 1e-6
        i, j = result.sample(4000, seed=3)
        counts = np.zeros(plan.shape)
        np.add.at(counts, (i, j), 1 / 4000)
        # In L1 4,000 draws from a plan of k entries miss it by sqrt(k / 4000) at most, on average.
        assert np.abs(counts - plan).sum() <= 1.5 * np.sqrt(plan.size / 4000)


@pytest.mark.parametrize("kind", MATRIX, ids=str)
def test_keops_refuses_a_cost_without_a_formula(kind: Any) -> None:
    (result,) = ds.solve([problem(kind)], backend=backend_of("keops"))
    assert result.status is ds.Status.INVALID
    assert f"backend 'keops' cannot compute the cost {kind}; use backend=\"auto\"" in result.message


def test_the_asymmetric_plan_is_that_of_pot() -> None:
    ot, given = needs("ot"), problem(Uphill())
    (result,) = ds.solve([replace(given, tol=1e-10)])
    rows, cols = np.flatnonzero(given.a), np.flatnonzero(given.b)
    part = np.ix_(rows, cols)
    theirs = ot.sinkhorn(given.a[rows], given.b[cols], matrix_of(given)[part], given.eps, stopThr=1e-12)
    assert np.abs(result.plan()[part] - theirs).max() <= 1e-7
    assert not np.allclose(matrix_of(given), direct(Uphill(), given.y, given.x).T), "it could not tell sides apart"


@pytest.mark.parametrize("name", ["reference", "cpu"])
@pytest.mark.parametrize("kind", [Uphill(), Chord(), "negdot"], ids=str)
def test_extended_potentials_are_soft_c_transforms(kind: Any, name: str) -> None:
    known, backend = problem(kind), backend_of(name)
    new = problem(kind, 5, 13, 8)
    f, g = ds.solve([known], backend=backend)[0].potentials
    found = ds.extend(known, ds.Potentials(f, g), new, backend)
    rows, cols = direct(kind, new.x, known.y), direct(kind, known.x, new.y)
    with np.errstate(divide="ignore"):
        from_g = -known.eps * np.log(np.exp((g - rows) / known.eps) @ known.b)
        from_f = -known.eps * np.log(known.a @ np.exp((f[:, None] - cols) / known.eps))
    assert np.allclose(found.f, from_g, atol=1e-10)
    assert np.allclose(found.g, from_f, atol=1e-10)


@pytest.mark.parametrize("kind", [Uphill(), HalfSquare(), Chord()], ids=str)
def test_a_chain_starts_from_its_predecessor(kind: Any) -> None:
    first, far = problem(kind), problem(kind, 9)
    one, two = ds.solve([replace(first, chain="k")] * 2)
    audit(one)
    audit(two)
    assert two.depth <= 2 < one.depth
    (extended,) = ds.solve([replace(far, init=ds.extend(first, one.potentials, far))])
    audit(extended)


@pytest.mark.parametrize("name", ["reference", "cpu", "ott", "keops", "triton"])
@pytest.mark.parametrize("start", ["auto", "gaussian"])
def test_a_factor_counts_as_a_scale_does(name: str, start: str) -> None:
    given = problem(HalfSquare())
    points = {"x": given.x, "y": given.y + 4.0, "a": given.a, "b": given.b, "eps": 0.5, "tol": TOL, "init": start}
    batch = [ds.Problem(**points, cost=cost) for cost in (HalfSquare(), ds.Cost("sqeuclidean", 0.5))]
    ours, theirs = ds.solve(batch, backend=backend_of(name))
    assert ours.converged
    assert ours.depth == theirs.depth
    assert np.allclose(ours.potentials.f, theirs.potentials.f, rtol=0, atol=1e-9)
    (cold,) = ds.solve([ds.Problem(**{**points, "init": "zero"}, cost=HalfSquare())], backend=backend_of(name))
    assert ours.depth < cold.depth, "the Gaussian start is near the answer"


def test_matrices_are_kept_where_points_would_stream() -> None:
    backend = CpuBackend(representation="streaming")
    kept, streamed = ds.solve([problem(Uphill()), problem(Chord())], backend=backend, recheck="all", certify="always")
    audit(kept)
    audit(streamed)
    assert "cached" in kept.arithmetic
    assert "streaming" in streamed.arithmetic


@pytest.mark.parametrize("kernels", ["dense", "streaming"])
def test_rows_that_ranks_share(kernels: str) -> None:
    from drainsinkhorn.fleet.rows import RowShardedBackend

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        backend = RowShardedBackend(kernels=kernels)
        for result in ds.solve([problem(kind) for kind in (*MATRIX, *DISTANCES)], backend=backend, certify="always"):
            audit(result)
    finally:
        torch.distributed.destroy_process_group()


def test_a_lane_does_not_depend_on_the_costs_of_its_neighbours() -> None:
    kinds = [Uphill(), "sqeuclidean", Chord(), Uphill(3.0), HalfSquare(), "cosine", "dot", "negdot"]
    together = ds.solve([problem(kind, seed) for seed, kind in enumerate(kinds)], backend="cpu")
    for seed, (kind, result) in enumerate(zip(kinds, together, strict=True)):
        (alone,) = ds.solve([problem(kind, seed)], backend="cpu")
        assert np.array_equal(alone.potentials.f, result.potentials.f)
        assert alone.depth == result.depth


@pytest.mark.parametrize("name", ["cpu", "triton"])
@pytest.mark.parametrize("kind", [Uphill(), Chord()], ids=str)
def test_tensors_come_back_as_tensors(kind: Any, name: str) -> None:
    given = problem(kind)
    x, y = (torch.as_tensor(points, device=DEVICE).float() for points in (given.x, given.y))
    own = ds.Problem(x=x, y=y, a=given.a, b=given.b, eps=0.5, cost=kind, tol=1e-3)
    (result,) = ds.solve([own], backend=backend_of(name), certify="always", recheck="all")
    assert result.converged
    assert result.potentials.f.dtype == torch.float32
    assert result.barycentric_map().shape == x.shape
    mass = np.asarray(result.plan().cpu(), dtype=float).sum(axis=1)
    assert np.abs(mass - given.a).sum() <= 2e-3


def test_nearly_equal_directions_keep_their_rounding() -> None:
    rng = np.random.default_rng(0)
    points = [np.ones(3) + 1e-9 * rng.normal(size=(size, 3)) for size in (9, 12)]
    for backend in ("reference", "cpu"):
        (result,) = ds.solve(
            [ds.Problem(x=points[0], y=points[1], eps=1e-9, cost=Chord(), tol=1e-3)], backend=backend, recheck="all"
        )
        # Unit vectors are off by 1e-16, so that costs of 1e-9 are known to seven digits, and residuals to as many nats.
        assert result.converged
        assert 1e-8 <= result.residual.band <= 1e-3


@dataclass(frozen=True)
class Ratio(ds.PointCost):
    """`sum_k |log x_k - log y_k|`, for positive coordinates."""

    def pairwise(self, x: Any, y: Any) -> Any:
        with np.errstate(all="ignore"):
            return np.abs(np.log(x)[:, None, :] - np.log(y)[None, :, :]).sum(axis=-1)


@pytest.mark.parametrize("name", ["reference", "cpu", "ott", "triton"])
def test_a_point_without_weight_may_have_no_cost(name: str) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.uniform(1, 2, size=(6, 2)), rng.uniform(1, 2, size=(8, 2))
    # log 0 is infinite.
    x[2], y[-1] = 0.0, 0.0
    a, b = np.ones(6), np.ones(8)
    a[2] = b[-1] = 0.0
    given = ds.Problem(x=x, y=y, a=a / 5, b=b / 7, eps=0.2, cost=Ratio(), tol=TOL)
    (result,) = ds.solve([given], backend=backend_of(name), certify="always")
    assert result.converged, result.message
    rows, cols = np.flatnonzero(a), np.flatnonzero(b)
    plan = result.plan()[np.ix_(rows, cols)]
    assert np.abs(plan.sum(axis=1) - 1 / 5).sum() <= 2 * TOL
    assert np.isfinite(result.potentials.f).all()


@dataclass(frozen=True)
class Flipped(ds.PointCost):
    """Gives (m, n) where (n, m) is asked for."""

    def pairwise(self, x: Any, y: Any) -> Any:
        return np.abs(y[:, None, :] - x[None, :, :]).sum(axis=-1)


@dataclass(frozen=True)
class Failing(ds.PointCost):
    """Raises."""

    def pairwise(self, x: Any, y: Any) -> Any:
        raise RuntimeError("no such table")


@dataclass
class Mutable(ds.PointCost):
    """Has no hash."""

    def pairwise(self, x: Any, y: Any) -> Any:
        return np.abs(x[:, None, :] - y[None, :, :]).sum(axis=-1)


class Unfinished(ds.PointCost):
    """Defines neither pairwise nor distances."""


BAD = {
    Flipped: r"pairwise of the cost Flipped gives shape \(2, 3\)",
    Failing: "no such table",
    Mutable: r"Mutable has no hash.*frozen=True",
    Unfinished: r"Unfinished must define pairwise\(x, y\)",
}


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.__name__)
@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_a_bad_cost_is_named_and_harms_no_neighbour(bad: Any, name: str) -> None:
    good, refused = ds.solve([problem(Manhattan()), problem(bad())], backend=name)
    audit(good)
    assert refused.status is ds.Status.INVALID
    with pytest.raises(ds.ProblemError, match=BAD[bad]):
        ds.solve([problem(bad())], backend=name, strict=True)


def test_the_zero_vector_has_no_chord() -> None:
    given = problem(Chord())
    given.x[4] = 0.0
    (result,) = ds.solve([given])
    assert "x[4] is the zero vector, which has no direction for the Chord cost" in result.message


@dataclass(frozen=True)
class Upper(HalfSquare):
    """Refuses points below zero."""

    def check(self, name: str, points: Any) -> None:
        if (points < 0).any():
            raise ds.ProblemError(f"{name} lies below zero")


def test_a_check_of_ones_own_is_asked_for_stacks_too() -> None:
    x = np.random.default_rng(0).uniform(1, 2, size=(3, 8, 2))
    x[1, 4, 0] = -1.0
    found = ds.solve(x, x + 1, eps=0.5, cost=Upper())
    assert [result.status.name for result in found] == ["CONVERGED", "INVALID", "CONVERGED"]


@pytest.mark.parametrize(("kind", "other"), [(Uphill(2.0), Uphill(2.5)), (Chord(1.0), Chord(2.0))], ids=str)
def test_a_journal_tells_parameters_apart(tmp_path: Path, kind: Any, other: Any) -> None:
    path = tmp_path / "run.journal"
    first = ds.solve([problem(kind)], journal=path)
    again = ds.solve([problem(kind)], journal=path)
    assert np.array_equal(first[0].potentials.f, again[0].potentials.f)
    with pytest.raises(ds.DrainError, match="is not the one that the journal"):
        ds.solve([problem(other)], journal=path)


@pytest.mark.parametrize("name", ["reference", "cpu", "triton"])
def test_slopes_are_known_for_squares_and_refused_for_others(name: str) -> None:
    (result,) = ds.solve([problem(HalfSquare())], backend=backend_of(name))
    plan, given = plan_of(result), result.problem
    # The slope of |x - y|^2 / 2 is x - y.
    slopes = plan.sum(axis=1)[:, None] * given.x - plan @ given.y
    assert np.abs(result.couplings.slopes("row")[0] - slopes).max() <= 1e-6
    for kind in (Uphill(), Chord()):
        (other,) = ds.solve([problem(kind)], backend=backend_of(name))
        with pytest.raises(ds.ProblemError, match=f"the slope of the cost {kind} is not known"):
            other.couplings.slopes("row")


def test_divergences_take_a_cost_of_ones_own() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(1, 9, 2)), rng.normal(size=(1, 12, 2)) + 1

    def value(p: Any, q: Any) -> float:
        (result,) = ds.solve([ds.Problem(cost=direct(Manhattan(), p, q), eps=0.5, tol=1e-9)])
        return result.transport_cost().dual

    truth = value(x[0], y[0]) - (value(x[0], x[0]) + value(y[0], y[0])) / 2
    found = ds.divergence(x, y, eps=0.5, cost=Manhattan(), tol=1e-9)
    assert abs(float(found.values[0]) - truth) <= 1e-7
