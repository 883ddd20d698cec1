"""The OTT-JAX drop-in over solvers, masses and geometries that only change how a solution is reached or written."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from tests.conftest import needs

jax = needs("jax")
needs("ott")

import jax.numpy as jnp  # noqa: E402
from ott.geometry import costs, epsilon_scheduler, geodesic, geometry, graph, grid, low_rank, pointcloud  # noqa: E402
from ott.problems.linear.linear_problem import LinearProblem  # noqa: E402
from ott.solvers.linear import acceleration  # noqa: E402
from ott.solvers.linear.sinkhorn import Sinkhorn, SinkhornState  # noqa: E402

Epsilon = epsilon_scheduler.Epsilon

import drainsinkhorn as ds  # noqa: E402
from drainsinkhorn import ott as drained  # noqa: E402

X, Y = (np.random.default_rng(seed).normal(size=(size, 2)).astype("float32") for seed, size in ((0, 14), (1, 17)))
WEIGHTS = (np.r_[0.0, np.linspace(1, 2, 13)], np.linspace(2, 1, 17))
A, B = (jnp.asarray(side / side.sum(), dtype="float32") for side in WEIGHTS)


def clouds(eps: float = 0.3, **settings: Any) -> LinearProblem:
    return LinearProblem(pointcloud.PointCloud(jnp.asarray(X), jnp.asarray(Y), epsilon=eps, **settings), A, B)


def assert_same(ours: Any, theirs: Any, atol: float = 1e-4) -> None:
    assert bool(ours.converged)
    n, m = theirs.geom.shape
    for axis, size in ((0, n), (1, m)):
        probe = jnp.asarray(np.random.default_rng(7).normal(size=size), dtype=theirs.f.dtype)
        np.testing.assert_allclose(ours.apply(probe, axis=axis), theirs.apply(probe, axis=axis), atol=atol)
    np.testing.assert_allclose(float(ours.reg_ot_cost), float(theirs.reg_ot_cost), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"lse_mode": False}, "lse_mode=False"),
        ({"momentum": acceleration.Momentum(start=30)}, "momentum"),
        ({"anderson": acceleration.AndersonAcceleration(memory=3)}, "anderson"),
        ({"parallel_dual_updates": True, "momentum": acceleration.Momentum(value=0.5)}, "parallel_dual_updates"),
        ({"norm_error": 2}, "norm_error"),
    ],
)
def test_settings_that_change_only_the_way_are_replaced_with_a_word(settings: Any, word: str) -> None:
    solver = Sinkhorn(threshold=1e-5, max_iterations=4000, **settings)
    with pytest.warns(ds.SubstitutionWarning, match=word):
        (ours,) = drained.solve([clouds()], solver)
    assert_same(ours, solver(clouds()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drained.solve([clouds()], solver, warn=False)


def test_no_word_where_nothing_is_replaced() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drained.solve([clouds()], Sinkhorn(recenter_potentials=True, min_iterations=20, implicit_diff=None))


@pytest.mark.parametrize("lse_mode", [True, False])
def test_f_is_centred_as_ott_centres_it(lse_mode: bool) -> None:
    solver = Sinkhorn(threshold=1e-5, recenter_potentials=True, lse_mode=lse_mode)
    (ours,) = drained.solve([clouds()], solver, warn=False)
    theirs = solver(clouds())
    for mine, other in ((ours.f, theirs.f), (ours.g, theirs.g)):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(other), atol=1e-5)
    finite = np.asarray(ours.f)[1:]
    assert np.asarray(ours.f)[0] == -np.inf
    assert abs(finite.mean()) < 1e-6


@pytest.mark.parametrize(("least", "most"), [(34, 2000), (50, 50)])
def test_min_iterations_run_before_the_first_check(least: int, most: int) -> None:
    solver = Sinkhorn(threshold=0.02, min_iterations=least, max_iterations=most)
    easy, deep = clouds(), clouds(eps=0.02)
    for ours, problem in zip(drained.solve([easy, deep], solver), (easy, deep), strict=True):
        theirs, first = solver(problem), -(-least // 10)
        mine, other = np.asarray(ours.errors), np.asarray(theirs.errors)
        assert mine.shape == other.shape
        assert np.isinf(mine[: first - 1]).all()
        assert 0 <= mine[first - 1] < np.inf
        assert int(ours.n_iters) >= min(least, most)
        if least % 10:
            assert int(ours.n_iters) == int(theirs.n_iters)
            assert bool(ours.converged) == bool(theirs.converged)
            np.testing.assert_allclose(mine, other, rtol=1e-2)
            np.testing.assert_allclose(np.asarray(ours.f), np.asarray(theirs.f), atol=1e-4)


@pytest.mark.parametrize("mass", [9.0, 0.02])
def test_equal_masses_other_than_one_are_scaled_and_scaled_back(mass: float) -> None:
    geom = clouds().geom
    problems = [LinearProblem(geom, A * mass, B * mass), clouds()]
    solver = Sinkhorn(threshold=1e-4 * mass)
    for ours, problem in zip(drained.solve(problems, solver), problems, strict=True):
        theirs = solver(problem)
        assert_same(ours, theirs, atol=1e-4 * mass)
        for mine, other in ((ours.f, theirs.f), (ours.g, theirs.g)):
            np.testing.assert_allclose(np.asarray(mine), np.asarray(other), atol=1e-4)
        np.testing.assert_allclose(float(ours.transport_mass), float(problem.a.sum()), rtol=1e-4)
        assert ours.n_iters == theirs.n_iters
        errors = [np.asarray(out.errors) for out in (ours, theirs)]
        np.testing.assert_allclose(errors[0], errors[1], rtol=0.05, atol=2e-6 * mass)


def test_unequal_masses_are_refused() -> None:
    geom = clouds().geom
    with pytest.raises(ds.ProblemError, match="problem 1 has unequal masses: a sums to 1 and b to 2"):
        drained.solve([clouds(), LinearProblem(geom, A, 2 * B)])
    with pytest.raises(ds.ProblemError, match=r"problem 0 has tau_b=0.0"):
        drained.solve([LinearProblem(geom, A, 2 * B, tau_a=0.9, tau_b=0.0)])


@pytest.mark.parametrize("taus", [(0.9, 0.7), (1.0, 0.8), (0.6, 1.0), (0.3, 0.999)])
@pytest.mark.parametrize("kind", ["points", "matrix"])
def test_soft_marginals_are_those_of_ott(taus: tuple[float, float], kind: str) -> None:
    with jax.enable_x64(True):
        x, y, a, b = (jnp.asarray(np.asarray(side, dtype="float64")) for side in (X, Y, *WEIGHTS))
        cloud = pointcloud.PointCloud(x, y, epsilon=0.3)
        geom = cloud if kind == "points" else geometry.Geometry(cloud.cost_matrix, epsilon=0.3)
        problem = LinearProblem(geom, a / a.sum(), 1.7 * b / b.sum(), taus[0], taus[1])
        ours, balanced = drained.solve([problem, clouds()], Sinkhorn(threshold=1e-11, max_iterations=20000))
        theirs = Sinkhorn(threshold=1e-11, max_iterations=20000)(problem)
        assert bool(ours.converged)
        assert bool(theirs.converged)
        np.testing.assert_allclose(ours.matrix, theirs.matrix, rtol=1e-5, atol=1e-14)
        np.testing.assert_allclose(float(ours.reg_ot_cost), float(theirs.reg_ot_cost), rtol=1e-8)
        np.testing.assert_allclose(float(ours.transport_mass), float(theirs.transport_mass), rtol=1e-8)
        np.testing.assert_allclose(ours.f[1:], theirs.f[1:], atol=1e-7)
        assert np.isneginf(ours.f[0])
        assert abs(ours.n_iters - theirs.n_iters) <= 10
        assert balanced.errors.shape == ours.errors.shape


@pytest.mark.parametrize("taus", [(1.0, 1.0), (0.9, 0.8)])
def test_schedules_of_epsilon_end_at_their_target(taus: tuple[float, float]) -> None:
    cost = clouds().geom.cost_matrix
    problems = [
        LinearProblem(geometry.Geometry(cost, epsilon=epsilon), A, B, *taus)
        for epsilon in (Epsilon(0.1, init=30.0, decay=0.9), Epsilon(0.3, init=0.5), 0.2, Epsilon(0.2, 5.0, 0.85))
    ]
    solver = Sinkhorn(threshold=1e-5, max_iterations=4000)
    for ours, problem in zip(drained.solve(problems, solver), problems, strict=True):
        theirs = solver(problem)
        assert_same(ours, theirs)
        assert abs(ours.n_iters - theirs.n_iters) <= 20
        assert np.count_nonzero(np.asarray(ours.errors) >= 0) * 10 == ours.n_iters


def test_schedules_that_do_not_reach_their_target_are_refused() -> None:
    cost = clouds().geom.cost_matrix
    for epsilon, words in ((Epsilon(0.1, 9.0), "pass decay below 1"), (Epsilon(0.1, 9.0, 0.9999), "max_iterations")):
        with pytest.raises(ds.ProblemError, match=f"problem 1 has a schedule of epsilon.*{words}"):
            drained.solve([clouds(), LinearProblem(geometry.Geometry(cost, epsilon=epsilon), A, B)])


def test_a_start_holds_for_soft_marginals() -> None:
    problem = LinearProblem(clouds().geom, A, 2 * B, tau_a=0.9, tau_b=0.9)
    (first,) = drained.solve([problem], Sinkhorn(threshold=1e-4))
    (again,) = drained.solve([problem], Sinkhorn(threshold=1e-3), init=[(first.f, first.g)])
    assert again.n_iters == 10
    assert first.n_iters > 10


def test_weights_normalised_in_half_precision_are_of_equal_mass() -> None:
    points = jnp.asarray(X, dtype="float16")
    geom = pointcloud.PointCloud(points, points[:9], epsilon=jnp.float16(0.5))
    (ours,) = drained.solve([LinearProblem(geom)], Sinkhorn(threshold=1e-2))
    assert bool(ours.converged)
    assert ours.f.dtype == jnp.float16


def grids() -> list[Any]:
    none: Any = [None]
    axes: Any = [
        jnp.asarray(np.sort(np.random.default_rng(size).uniform(size=size)), dtype="float32") for size in (3, 4, 5)
    ]
    return [
        grid.Grid(axes, cost_fns=[costs.SqPNorm(1.6)], epsilon=0.1),
        grid.Grid(axes, cost_fns=[costs.SqEuclidean(), costs.Euclidean()], epsilon=0.2),
        grid.Grid(axes, cost_fns=none, epsilon=0.2),
    ]


@pytest.mark.parametrize("place", range(3))
def test_grids_are_solved_from_their_points(place: int) -> None:
    geom = grids()[place]
    rng, size = np.random.default_rng(2), geom.shape[0]
    a, b = (jnp.asarray(rng.dirichlet(np.full(size, 3.0)), dtype="float32") for _ in range(2))
    problem, solver = LinearProblem(geom, a, b), Sinkhorn(threshold=1e-4)
    (ours,) = drained.solve([problem], solver)
    theirs = solver(problem)
    assert_same(ours, theirs)
    assert ours.n_iters == theirs.n_iters
    np.testing.assert_allclose(np.asarray(ours.f), np.asarray(theirs.f), atol=1e-4)


def of_matrices() -> dict[str, Any]:
    dense = jnp.asarray(clouds().geom.cost_matrix)
    half = jnp.asarray(np.abs(np.random.default_rng(5).normal(size=(31, 5))) + 0.1, dtype="float32")
    return {
        "low rank": clouds().geom.to_LRCGeometry(),
        "kernel of no eps": geometry.Geometry(kernel_matrix=jnp.exp(-dense / 3)),
        "low-rank kernel": low_rank.LRKGeometry(half[:14], half[14:], epsilon=0.3),
    }


@pytest.mark.parametrize(
    ("kind", "lse_mode"),
    [("low rank", True), ("low-rank kernel", True), ("kernel of no eps", False)],
)
def test_other_geometries_are_solved_from_their_matrix(kind: str, lse_mode: bool) -> None:
    problem = LinearProblem(of_matrices()[kind], A, B)
    solver = Sinkhorn(threshold=1e-5, lse_mode=lse_mode)
    (ours,) = drained.solve([problem], solver, warn=False)
    theirs = solver(problem)
    assert bool(ours.converged)
    assert bool(theirs.converged)
    for mine, other in ((ours.f[1:], theirs.f[1:]), (ours.g, theirs.g)):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(other), atol=2e-4)


def test_graphs_are_solved_over_their_kernel_matrix() -> None:
    adjacency = np.random.default_rng(4).uniform(size=(12, 12))
    adjacency = jnp.asarray((adjacency + adjacency.T) * (1 - np.eye(12)), dtype="float32")
    b = A[1:13] / A[1:13].sum()
    problems = [LinearProblem(kind.from_graph(adjacency, t=0.5), None, b) for kind in (graph.Graph, geodesic.Geodesic)]
    solver = Sinkhorn(threshold=1e-5, lse_mode=False)
    ours = drained.solve(problems, solver, warn=False)
    for out in ours:
        assert bool(out.converged)
        plan = np.asarray(out.matrix)
        np.testing.assert_allclose(plan.sum(axis=0), np.asarray(b), atol=1e-5)
        np.testing.assert_allclose(plan.sum(axis=1), 1 / 12, atol=1e-5)
    np.testing.assert_allclose(np.asarray(ours[1].matrix), np.asarray(solver(problems[1]).matrix), atol=1e-6)


def test_a_batch_of_kernels_has_a_leading_axis() -> None:
    kernels = jnp.stack([jnp.exp(-jnp.asarray(clouds().geom.cost_matrix) / share) for share in (2.0, 3.0)])
    stacked = jax.vmap(lambda kernel: LinearProblem(geometry.Geometry(kernel_matrix=kernel, epsilon=0.3)))(kernels)
    assert [bool(out.converged) for out in drained.solve(stacked)] == [True, True]


def test_progress_fn_is_called_as_ott_calls_it() -> None:
    calls: dict[str, list[Any]] = {"ours": [], "theirs": []}

    def note(whose: str) -> Any:
        def progress(status: Any) -> None:
            iteration, every, total, state = status
            assert isinstance(state, SinkhornState)
            calls[whose].append((int(iteration), int(every), int(total), np.asarray(state.errors).copy()))

        return progress

    def solver(whose: str) -> Sinkhorn:
        return Sinkhorn(
            threshold=1e-6, inner_iterations=7, max_iterations=35, min_iterations=15, progress_fn=note(whose)
        )

    drained.solve([clouds()], solver("ours"))
    solver("theirs")(clouds())
    jax.effects_barrier()
    assert len(calls["ours"]) == len(calls["theirs"]) == 35
    for mine, other in zip(calls["ours"], calls["theirs"], strict=True):
        assert mine[:3] == other[:3]
        assert mine[3].shape == other[3].shape
        np.testing.assert_allclose(mine[3], other[3], rtol=0.02, atol=2e-6)


@pytest.mark.parametrize("lse_mode", [True, False])
def test_a_start_is_taken_in_the_form_of_the_solver(lse_mode: bool) -> None:
    solver = Sinkhorn(threshold=1e-3, inner_iterations=1, lse_mode=lse_mode)
    cold, _ = drained.solve([clouds(), clouds()], solver, warn=False)
    start = (cold.f, cold.g) if lse_mode else cold.scalings
    warm, again = drained.solve([clouds(), clouds()], solver, init=[start, None], warn=False)
    assert int(warm.n_iters) == 1 < int(again.n_iters)
    with pytest.raises(ds.OptionsError, match="one start"):
        drained.solve([clouds()], solver, init=[start, start])


def test_a_call_under_jit_says_that_it_cannot_be_traced() -> None:
    def value(x: Any) -> Any:
        return drained.solve([LinearProblem(pointcloud.PointCloud(x, epsilon=0.3))])[0].reg_ot_cost

    for traced in (jax.jit(value), jax.grad(value)):
        with pytest.raises(ds.OptionsError, match="under jit, vmap or grad"):
            traced(jnp.asarray(X))
