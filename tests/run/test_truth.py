"""CONVERGED is true: the residual of what was emitted, recomputed here in float64, is within tol."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import cdist

import drainsinkhorn as ds
from drainsinkhorn.backends.cpu import CpuBackend
from tests.conftest import needs

PARTS, EACH = 10, 100
MAX_DEPTH = 150


def hostile(
    rng: np.random.Generator, most: int = 300, d: int | None = None, kinds: list[str] | None = None
) -> ds.Problem[Any]:
    n, m = np.exp(rng.uniform(0, np.log(most), size=2)).round().astype(int)
    d = int(rng.integers(1, 8)) if d is None else d
    offset = 10 ** rng.uniform(-1, 4) * rng.normal(size=d) / np.sqrt(d)
    dtype = rng.choice(["float32", "float64"])
    scale = 10 ** rng.uniform(-2, 2)
    x = (offset + scale * rng.normal(size=(n, d))).astype(dtype)
    y = (offset + scale * (rng.normal(size=(m, d)) + rng.normal(size=d))).astype(dtype)
    a, b = (10 ** rng.uniform(-12, 0, size=size) for size in (n, m))
    if rng.random() < 0.3:
        a[rng.random(n) < 0.3] = 0.0
        a[0] = 1.0
    kind = str(rng.choice(["sqeuclidean", "euclidean", "cosine"] if kinds is None else kinds))
    # The plan of a dot product is that of half the squared distance, which eps must suit.
    cost = cdist(x.astype(float), y.astype(float), "sqeuclidean" if kind.endswith("dot") else kind)
    eps = float(10 ** rng.uniform(-3, 0) * max(np.median(cost), 1e-12))
    tol = float(rng.choice([1e-2, 1e-3, 1e-4, 1e-6]))
    return ds.Problem(x=x, y=y, a=a / a.sum(), b=b / b.sum(), eps=eps, tol=tol, cost=kind)


def true_cost(problem: ds.Problem[Any]) -> Any:
    """SciPy's distances; its cosine, 1 - dot, is too coarse for nearly parallel vectors: that one in long double."""
    if problem.cost in ("dot", "negdot"):
        # In long double: a product of points far from the origin has fewer digits than the claim.
        products = np.einsum("ik,jk->ij", problem.x.astype(np.longdouble), problem.y.astype(np.longdouble))
        return -products if problem.cost == "negdot" else products
    if problem.cost != "cosine":
        return cdist(problem.x.astype(float), problem.y.astype(float), problem.cost)
    x, y = (p.astype(np.longdouble) for p in (problem.x, problem.y))
    x, y = (p / np.sqrt((p**2).sum(1, keepdims=True)) for p in (x, y))
    return (((x[:, None] - y[None]) ** 2).sum(-1) / 2).astype(float)


def true_residual(problem: ds.Problem[Any], potentials: ds.Potentials[Any]) -> float:
    """From what was emitted, with nothing of ours."""
    cost = true_cost(problem)
    f, g = (p.astype(np.float64) for p in potentials)
    a, b = (w.astype(np.float64) / w.astype(np.float64).sum() for w in (problem.a, problem.b))
    with np.errstate(over="ignore", invalid="ignore"):
        plan = np.where((a[:, None] > 0) & (b > 0), a[:, None] * b * np.exp((f[:, None] + g - cost) / problem.eps), 0.0)
    return float(max(np.abs(plan.sum(1) - a).sum(), np.abs(plan.sum(0) - b).sum()))


@pytest.mark.parametrize(
    "backend", ["reference", "cpu", CpuBackend(representation="streaming")], ids=["reference", "cpu", "cpu streaming"]
)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_converged_result_is_within_tol(part: int, backend: Any) -> None:
    rng = np.random.default_rng([11, part])
    batch = [hostile(rng) for _ in range(EACH)]
    solution = ds.solve(batch, backend=backend, max_depth=MAX_DEPTH, warn=False)
    assert_true(solution)


@pytest.mark.parametrize(("backend", "most"), [("ott", 16), ("keops", 300)])
def test_every_converged_result_over_other_libraries_is_within_tol(backend: str, most: int) -> None:
    needs({"ott": "ott", "keops": "pykeops"}[backend])
    rng = np.random.default_rng(12)
    # One dimension, and for OTT one size: compilation is what takes time there.
    batch = [hostile(rng, most=most, d=3) for _ in range(60)]
    assert_true(ds.solve(batch, backend=backend, max_depth=MAX_DEPTH, accelerate="none", warn=False), stride=20)


@pytest.mark.parametrize(
    "backend", ["reference", "cpu", CpuBackend(representation="streaming"), "ott", "keops"], ids=str
)
def test_every_converged_dot_product_is_within_tol(backend: Any) -> None:
    """The potentials themselves are large where points are far from the origin, so some tolerances are out of reach."""
    needs({"ott": "ott", "keops": "pykeops"}.get(str(backend), "numpy"))
    few = backend in ("ott", "keops")
    rng = np.random.default_rng(14)
    batch = [hostile(rng, 16 if few else 200, 3 if few else None, ["dot", "negdot"]) for _ in range(60)]
    solution = ds.solve(batch, backend=backend, max_depth=MAX_DEPTH, accelerate="none" if few else "auto", warn=False)
    assert_true(solution, stride=20 if backend == "ott" else 1, most_unverifiable=20)


def assert_true(solution: ds.Solution[Any], stride: int = 1, most_unverifiable: int = 3) -> None:
    unverifiable = 0
    for result in solution:
        tol = result.problem.tol
        truth = true_residual(result.problem, result.potentials)
        if result.converged:
            assert truth <= tol, f"problem {result.ticket} claims {result.residual}, truth {truth}, tol {tol}"
            assert result.residual.worst <= tol
        else:
            assert result.status is ds.Status.DEPTH_LIMIT, result.message
            assert truth > tol - 2 * result.residual.band
            hopeless = result.residual.band >= tol
            assert hopeless or "second run" in result.message
            assert MAX_DEPTH <= result.depth < MAX_DEPTH + stride
            unverifiable += hopeless
        # The band bounds the error of a plan entry, so of a residual near convergence.
        slack = result.residual.band * (1 + truth) + 1e-9 * truth
        assert abs(truth - max(result.residual.row, result.residual.col)) <= slack
    assert sum(r.converged for r in solution) >= len(solution) // 2, "the batch is meant to be solvable in the main"
    # Nearly parallel vectors far from the origin under the cosine cost: float64 does not hold their angles.
    assert unverifiable <= most_unverifiable


def test_hostile_float32_problems_converge_and_none_falsely() -> None:
    converged = 0
    for part in range(PARTS):
        rng = np.random.default_rng([13, part])
        made = [hostile(rng) for _ in range(EACH)]
        batch = [replace(p, x=p.x.astype("f4"), y=p.y.astype("f4"), tol=1e-3) for p in made]
        for result in ds.solve(batch, backend=CpuBackend(precision="float32")):
            assert not result.converged or true_residual(result.problem, result.potentials) <= 1e-3
            converged += result.converged
    assert converged >= 0.95 * PARTS * EACH


def test_a_tolerance_below_rounding_is_never_claimed() -> None:
    rng = np.random.default_rng(0)
    x, y = 1e4 + rng.normal(size=(40, 3)), 1e4 + rng.normal(size=(50, 3))
    result = ds.solve(x, y, eps=0.5, tol=1e-15, max_depth=400, warn=False)[0]
    assert result.status is ds.Status.DEPTH_LIMIT
    assert "below the rounding" in result.message


def test_float32_that_cannot_hold_tol_comes_back_wider_and_says_so() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 3)).astype("float32"), rng.normal(size=(40, 3)).astype("float32")
    held = ds.solve(x, y, eps=1.0, tol=1e-3)[0]
    assert (held.potentials.f.dtype, held.widened) == (np.float32, False)
    tight = ds.solve(x, y, eps=1.0, tol=1e-7)[0]
    assert (tight.potentials.f.dtype, tight.widened) == (np.float64, True)
    assert tight.converged
    far = ds.solve(x, y + 1000, eps=1.0, tol=1e-3)[0]
    assert far.converged
    assert far.widened


def exact_plan_residual(x: Any, y: Any, eps: float, result: ds.Result[Any]) -> float:
    """Row residual of euclidean transport in long double, whose squares do not underflow."""
    x, y, f, g = (np.asarray(v, dtype=np.longdouble) for v in (x, y, *result.potentials))
    cost = np.sqrt(((x[:, None] - y[None]) ** 2).sum(-1))
    plan = np.exp((f[:, None] + g - cost) / np.longdouble(eps)) / (len(x) * len(y))
    return float(max(np.abs(plan.sum(1) - 1 / len(x)).sum(), np.abs(plan.sum(0) - 1 / len(y)).sum()))


@pytest.mark.parametrize("scale", [1e-300, 1e-161, 1e-100, 1.0, 1e100, 1e161, 1e300])
def test_squares_that_would_under_or_overflow_change_nothing(scale: float) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 2)), rng.normal(size=(25, 2))
    result = ds.solve(scale * x, scale * y, eps=0.1 * scale, cost="euclidean")[0]
    assert result.converged
    assert exact_plan_residual(scale * x, scale * y, 0.1 * scale, result) <= 1e-3


def test_squared_distances_that_underflow_are_not_claimed() -> None:
    rng = np.random.default_rng(0)
    x, y = 1e-162 * rng.normal(size=(30, 2)), 1e-162 * rng.normal(size=(25, 2))
    result = ds.solve(x, y, eps=0.5e-162, cost=ds.Cost("sqeuclidean", 1e162), max_depth=50, warn=False)[0]
    assert not result.converged


@pytest.mark.parametrize("scale", [1e-25, 1e-22, 1.0, 1e20])
def test_float32_is_left_where_its_range_ends(scale: float) -> None:
    rng = np.random.default_rng(0)
    x, y = (scale * rng.normal(size=(30, 2))).astype("f4"), (scale * rng.normal(size=(25, 2))).astype("f4")
    result = ds.solve(x, y, eps=0.5 * scale**2, max_depth=500)[0]
    assert result.converged
    assert result.widened == (scale != 1.0)


def test_a_small_margin_widens_too() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 2)).astype("f4"), (rng.normal(size=(25, 2)) + 10).astype("f4")
    result = ds.solve(x, y, eps=0.2, tol=1e-3, audit=ds.Audit(margin=0.01), max_depth=3000)[0]
    assert result.converged
    assert result.widened
    assert result.residual.worst <= 1e-5


@pytest.mark.parametrize("far", [1e3, 1e6, 1e200])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_point_without_weight_may_lie_anywhere(far: float, dtype: str) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 2)), rng.normal(size=(25, 2))
    x[0], y[3] = min(far, 1e38 if dtype == "float32" else far), -7
    a, b = np.ones(30), np.ones(25)
    a[0] = b[3] = 0
    whole = ds.solve(x.astype(dtype), y.astype(dtype), a=a / 29, b=b / 24, eps=0.5)[0]
    rest = ds.solve(x[1:].astype(dtype), np.delete(y, 3, axis=0).astype(dtype), eps=0.5)[0]
    assert whole.converged
    assert (whole.depth, whole.widened) == (rest.depth, rest.widened)
    # Weights of 1 / 29 are not normalised to the same bits as uniform ones.
    assert np.allclose(whole.potentials.f[1:], rest.potentials.f, rtol=1e-6 if dtype == "float32" else 1e-13)
    assert all(np.isfinite(p).all() for p in whole.potentials)
    assert np.allclose(whole.plan()[1:, np.arange(25) != 3], rest.plan())
    assert whole.plan()[0].sum() == whole.plan()[:, 3].sum() == 0


def test_potentials_off_the_support_are_c_transforms() -> None:
    x, y = np.array([[0.0, 0], [50, 0]]), np.array([[0.0, 0], [30, 0]])
    result = ds.solve(x, y, a=np.array([1.0, 0]), eps=1.0)[0]
    f, g = result.potentials
    ratio = (0.5 * np.exp(f[:, None] + g - cdist(x, y, "sqeuclidean"))).sum(1)
    assert ratio == pytest.approx(1.0, abs=1e-3)


def test_a_widened_result_has_a_wide_plan() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 2)).astype("f4"), rng.normal(size=(200, 2)).astype("f4")
    result = ds.solve(x, y, eps=1.0, tol=1e-8)[0]
    assert np.abs(result.plan().sum(1) - 1 / 200).sum() <= 1e-8


LIBRARIES = {"ott": "ott", "keops": "pykeops"}
"""What a backend needs beyond this package."""


@pytest.mark.parametrize("backend", ["reference", "cpu", "ott", "keops"])
@pytest.mark.parametrize("far", [1e30, 1e200])
@pytest.mark.parametrize("cost", ["sqeuclidean", "euclidean"])
def test_where_points_without_mass_lie_does_not_matter(backend: str, cost: str, far: float) -> None:
    if backend in LIBRARIES:
        needs(LIBRARIES[backend])
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(12, 3)), rng.normal(size=(9, 3))
    a, b = np.r_[np.full(12, 1 / 12), 0, 0], np.r_[0, np.full(9, 1 / 9)]
    padded = ds.Problem(
        x=np.r_[x, np.full((2, 3), far)], y=np.r_[np.full((1, 3), -far), y], a=a, b=b, eps=0.5, cost=cost
    )
    alone, beside = ds.solve([ds.Problem(x=x, y=y, eps=0.5, cost=cost), padded], tol=1e-3, backend=backend)
    assert alone.converged
    assert beside.converged
    assert beside.depth == alone.depth
    assert np.allclose(beside.potentials.f[:12], alone.potentials.f, atol=1e-6)
    assert np.allclose(beside.potentials.g[1:], alone.potentials.g, atol=1e-6)
