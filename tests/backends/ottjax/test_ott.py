"""The drain over OTT-JAX: OTT's own numbers, few compilations, costs of the caller's own, and the drop-in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.conftest import needs

jax = needs("jax")
needs("ott")

import jax.numpy as jnp  # noqa: E402
from ott.geometry import costs, geometry, pointcloud  # noqa: E402
from ott.geometry.epsilon_scheduler import Epsilon  # noqa: E402
from ott.problems.linear.linear_problem import LinearProblem  # noqa: E402
from ott.solvers.linear.sinkhorn import Sinkhorn, SinkhornOutput  # noqa: E402

import drainsinkhorn as ds  # noqa: E402
from drainsinkhorn import ott as drained  # noqa: E402
from drainsinkhorn.backends import choose  # noqa: E402
from drainsinkhorn.backends.ottjax import OttBackend  # noqa: E402
from drainsinkhorn.backends.ottjax.pack import careful  # noqa: E402
from drainsinkhorn.run.validate import validate  # noqa: E402
from drainsinkhorn.testing import marginal_errors  # noqa: E402

UPDATES = 60


def cloud(seed: int, size: int, d: int = 3, shift: float = 0.0) -> Any:
    return jnp.asarray(np.random.default_rng(seed).normal(size=(size, d)) + shift, dtype="float32")


@pytest.mark.parametrize("batch_size", [None, 32])
def test_the_same_updates_give_the_potentials_of_ott_and_of_the_reference(batch_size: int | None) -> None:
    x, y, eps = cloud(0, 100), cloud(1, 120, shift=0.5), 0.5
    problem = validate(ds.Problem(x=x, y=y, eps=eps, init="zero"), 1e-3)
    pack = OttBackend(precision="float32", batch_size=batch_size).pack([problem])
    pack.advance(UPDATES, [-np.inf])
    f, g = (np.asarray(side) for side in pack.emit([0]).potentials(0))
    # OTT begins with the columns, so it gets the transposed problem, and our start in its convention.
    solver = Sinkhorn(min_iterations=UPDATES, max_iterations=UPDATES)
    start = tuple(jnp.full(size, eps * np.log(1 / size), "float32") for size in (120, 100))
    out = solver(LinearProblem(pointcloud.PointCloud(y, x, epsilon=eps)), init=start)
    theirs = np.asarray(out.g) + eps * np.log(100), np.asarray(out.f) + eps * np.log(120)
    ulps = 16 * np.finfo("float32").eps * np.abs(np.concatenate([f, g])).max()
    assert max(np.abs(f - theirs[0]).max(), np.abs(g - theirs[1]).max()) <= ulps
    reference = ds.backends.load("reference").pack([problem])
    reference.advance(UPDATES, [-np.inf])
    for mine, truth in zip((f, g), reference.emit([0]).potentials(0), strict=True):
        assert np.abs(mine - np.asarray(truth)).max() <= 1e-5


class Compilations:
    """Counts what jax compiles while it is entered."""

    def __enter__(self) -> Compilations:
        self.names: list[str] = []
        self._on = True
        jax.monitoring.register_event_duration_secs_listener(self._heard)
        return self

    def _heard(self, event: str, _: float, **more: Any) -> None:
        if self._on and event == "/jax/core/compile/backend_compile_duration":
            self.names.append(event)

    def __exit__(self, *_: object) -> None:
        self._on = False


def test_few_widths_are_compiled_and_a_second_solve_compiles_nothing() -> None:
    width, rng = 8, np.random.default_rng(0)
    x, y = rng.normal(size=(width, 37, 2)).astype("f4"), rng.normal(size=(width, 41, 2)).astype("f4")
    eps = np.geomspace(0.02, 2.0, width)
    backend = OttBackend(stride=3)
    seen: list[int] = []

    def note(event: Any) -> None:
        seen.append(getattr(event, "width", 0))

    solution = ds.solve(x, y, eps=eps, backend=backend, width=width, mode="compact", observe=note)
    assert solution.converged
    widths = {seen_width for seen_width in seen if seen_width}
    assert len(widths) <= np.log2(width) + 1
    assert widths <= {1, 2, 4, 8}
    with Compilations() as compiled:
        again = ds.solve(x, y, eps=eps, backend=backend, width=width, mode="compact")
    assert not compiled.names
    assert [r.depth for r in again] == [r.depth for r in solution]
    with Compilations() as compiled:
        ds.solve(x[:1], y[:1], eps=2.0, backend=OttBackend(stride=4))
    assert compiled.names, "the listener hears compilations"


def test_unequal_clouds_share_packs_and_modes_agree() -> None:
    batch = [
        ds.Problem(x=cloud(i, 20 + 3 * i), y=cloud(50 + i, 30 - i, shift=0.3), eps=0.1 + 0.1 * i) for i in range(6)
    ]
    compact = ds.solve(batch, backend="ott", mode="compact", width=8)
    alone = ds.solve(batch, backend="ott", mode="width-one")
    stream = ds.solve(batch, backend="ott", mode="stream", width=2)
    assert compact.converged
    for one, other, third in zip(compact, alone, stream, strict=True):
        assert one.depth == other.depth == third.depth
        assert one.depth % 20 == 0
        assert np.abs(np.asarray(one.potentials.f) - np.asarray(other.potentials.f)).max() <= 1e-5
        assert max(marginal_errors(one.problem, one.potentials)) <= 1e-3
    assert isinstance(compact[0].potentials.f, jax.Array)
    static = ds.solve(batch, backend="ott", mode="static", width=8)
    assert static.converged
    assert compact.ledger.slots < static.ledger.slots


@pytest.mark.parametrize("backend", ["ott", "reference", "auto"])
def test_a_cost_function_of_ott(backend: str) -> None:
    x, y = cloud(0, 30), cloud(1, 25, shift=0.4)
    solution = ds.solve(x, y, eps=0.3, cost=costs.PNormP(1.5), backend=backend)
    result = solution[0]
    assert result.converged
    assert result.backend.name == ("reference" if backend == "reference" else "ott")
    wide_x, wide_y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    matrix = (np.abs(wide_x[:, None] - wide_y[None]) ** 1.5).sum(-1) / 1.5
    f, g = (np.asarray(side, np.float64) for side in result.potentials)
    plan = np.exp((f[:, None] + g - matrix) / 0.3) / (30 * 25)
    assert np.abs(plan.sum(1) - 1 / 30).sum() <= 1e-3
    assert np.abs(plan.sum(0) - 1 / 25).sum() <= 1e-3
    assert result.transport_cost().transport == pytest.approx((plan * matrix).sum(), rel=1e-5)


def test_other_backends_refuse_a_cost_they_cannot_compute() -> None:
    with pytest.raises(ds.ProblemError, match=r"backend 'cpu' cannot compute the cost PNormP.*ott"):
        ds.solve(cloud(0, 9), cloud(1, 9), eps=0.3, cost=costs.PNormP(1.5), backend="cpu")


def test_what_auto_takes_for_jax_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = ds.Problem(x=cloud(0, 9), y=cloud(1, 9), eps=1.0)
    assert choose(problem)[0].name == "cpu"
    real = ds.backends.importlib.util.find_spec
    monkeypatch.setattr(ds.backends.importlib.util, "find_spec", lambda name: None if name == "numba" else real(name))
    picked, why = choose(problem)
    assert (picked.name, why) == ("ott", "the points are JAX arrays, and Numba is not installed")
    monkeypatch.setattr(ds.backends, "_jax_platform", lambda points: "gpu")
    picked, why = choose(problem)
    assert (picked.name, why) == ("ott", "the points are JAX arrays on a GPU")


def linear_problems() -> list[LinearProblem]:
    matrix = jnp.asarray(np.random.default_rng(3).uniform(size=(20, 30)), dtype="float32")
    weights = jnp.asarray(np.r_[0.0, np.full(19, 1 / 19)], dtype="float32")
    x, y = cloud(0, 40), cloud(1, 50, shift=0.3)
    return [
        LinearProblem(pointcloud.PointCloud(x, y, epsilon=0.5)),
        LinearProblem(pointcloud.PointCloud(x, y, epsilon=0.1)),
        LinearProblem(geometry.Geometry(cost_matrix=matrix, epsilon=0.05), a=weights),
        LinearProblem(pointcloud.PointCloud(x, y, epsilon=0.2, cost_fn=costs.SqPNorm(1.5), scale_cost="mean")),
    ]


def test_the_drop_in_gives_what_ott_gives() -> None:
    solver = Sinkhorn(threshold=1e-3)
    for problem, ours in zip(linear_problems(), drained.solve(linear_problems(), solver), strict=True):
        theirs = solver(problem)
        assert isinstance(ours, SinkhornOutput)
        assert bool(ours.converged)
        assert ours.n_iters == theirs.n_iters
        for mine, other in ((ours.f, theirs.f), (ours.g, theirs.g)):
            mine, other = np.asarray(mine), np.asarray(other)
            weighty = np.isfinite(other)
            assert np.array_equal(weighty, np.isfinite(mine))
            assert np.abs(mine[weighty] - other[weighty]).max() <= 1e-5
        assert float(ours.reg_ot_cost) == pytest.approx(float(theirs.reg_ot_cost), rel=1e-5)
        assert np.allclose(ours.matrix, theirs.matrix, atol=1e-6)


def test_the_drop_in_takes_a_batch_and_an_online_cloud() -> None:
    points = jnp.stack([cloud(i, 30) for i in range(4)])
    batch = jax.vmap(lambda x: LinearProblem(pointcloud.PointCloud(x, x + 1, epsilon=0.5)))(points)
    alone = [Sinkhorn()(LinearProblem(pointcloud.PointCloud(x, x + 1, epsilon=0.5))) for x in points]
    assert [int(out.n_iters) for out in drained.solve(batch)] == [int(out.n_iters) for out in alone]
    online = [LinearProblem(pointcloud.PointCloud(x, x + 1, epsilon=0.5, batch_size=7)) for x in points]
    for one, other in zip(drained.solve(online), alone, strict=True):
        # OTT's costs of points off the origin are the coarser ones.
        assert np.abs(np.asarray(one.f) - np.asarray(other.f)).max() <= 1e-4


def test_the_drop_in_says_what_it_does_not_do() -> None:
    x, y = cloud(0, 9), cloud(1, 9)
    plain = LinearProblem(pointcloud.PointCloud(x, y, epsilon=0.5))
    never = LinearProblem(pointcloud.PointCloud(x, y, epsilon=Epsilon(0.5, init=10.0, decay=1.0)))
    with pytest.raises(ds.ProblemError, match="schedule"):
        drained.solve([never])
    with pytest.raises(ds.ProblemError, match="leading axis"):
        drained.solve(plain)
    short = drained.solve([plain], Sinkhorn(max_iterations=10, threshold=1e-7))[0]
    assert not bool(short.converged)
    assert int(short.n_iters) == 10


def test_a_bad_problem_harms_nobody() -> None:
    bad = jnp.full((9, 3), jnp.nan)
    outs = drained.solve(
        [LinearProblem(pointcloud.PointCloud(p, cloud(1, 9), epsilon=0.5)) for p in (bad, cloud(0, 9))]
    )
    assert [bool(out.converged) for out in outs] == [False, True]
    assert np.isnan(np.asarray(outs[0].f)).all()


def test_an_old_ott_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ott.__version__", "0.5.1")
    with pytest.raises(ds.BackendUnavailable, match=r"needs ott-jax 0\.6 or newer, found 0\.5\.1"):
        OttBackend()


@pytest.mark.parametrize("settings", [{"stride": 0}, {"batch_size": 2.5}, {"kept_pairs": -1}])
def test_bad_settings(settings: Any) -> None:
    with pytest.raises(ds.OptionsError, match="must be an integer of at least 1"):
        OttBackend(**settings)


def reductions(jaxpr: Any, shape: tuple[int, ...], times: int = 1) -> int:
    """Passes over arrays of a shape that a program makes, loops multiplied out."""
    found = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name.startswith("reduce_") and equation.invars[0].aval.shape == shape:
            found += times
        inside = times * equation.params.get("length", 1)
        for part in equation.params.values():
            inner = getattr(part, "jaxpr", part)
            found += reductions(inner, shape, inside) if hasattr(inner, "eqns") else 0
    return found


def test_a_phase_passes_over_the_costs_four_times_a_cycle_and_scales_none_of_them() -> None:
    stride, width, n, m = 5, 2, 48, 64
    given = [validate(ds.Problem(x=cloud(i, n), y=cloud(9 + i, m), eps=0.3), 1e-3) for i in range(width)]
    pack = OttBackend(stride=stride).pack(given)
    with careful(pack._device):
        phase, moves = pack._kernels.phase, np.ones(width, bool)
        # A largest and a sum for each of two legs: neither the residual nor its band looks at all pairs again.
        assert reductions(jax.make_jaxpr(phase)(pack._stack, moves).jaxpr, (width, n, m)) == 4 * stride
        compiled = phase.lower(pack._stack, moves).compile().as_text()
    pairs = [line for line in compiled.splitlines() if f"f32[{width},{n},{m}]" in line]
    assert pairs
    assert not [line for line in pairs if " divide(" in line or " multiply(" in line]


def test_many_checks_at_once_say_what_each_says_alone() -> None:
    given = [validate(ds.Problem(x=cloud(i, 30), y=cloud(9 + i, 20), eps=0.2), 1e-3) for i in range(5)]
    pack = OttBackend(stride=2).pack(given)
    for _ in range(3):
        pack.advance(2, [-np.inf] * 5)
        for exact in (False, True):
            alone = [pack.verify([i], exact=exact).rows()[0] for i in (3, 0, 4)]
            assert pack.verify([3, 0, 4], exact=exact).rows() == alone
        before = [np.asarray(f) for f in pack.emit(range(5)).f]
        pack.advance(2, [-np.inf] * 5)
        assert all((np.asarray(after) != f).any() for after, f in zip(pack.emit(range(5)).f, before, strict=True))


@pytest.mark.parametrize(("dtype", "tol"), [("float16", 1e-4), ("float32", 1e-8)])
def test_costs_of_narrow_dtypes_are_checked_as_they_were_given(dtype: str, tol: float) -> None:
    cost = (100 * np.random.default_rng(0).uniform(size=(30, 20))).astype(dtype)
    result = ds.solve(cost=cost[None], eps=2.7, tol=tol, backend="ott")[0]
    assert result.converged
    assert max(marginal_errors(result.problem, result.potentials)) <= tol


def test_the_online_path_never_holds_a_matrix() -> None:
    n = 4096
    x, y = cloud(0, n), cloud(1, n, shift=0.2)
    backend = OttBackend(stride=1, kept_pairs=1, batch_size=64)
    problem = validate(ds.Problem(x=x, y=y, eps=2.0), 1e-3)
    pack = backend.pack([problem])
    assert max(part.size for part in pack._stack.values()) <= 32 * n
    with careful(pack._device):
        phase = pack._kernels.phase.lower(pack._stack, np.array([True])).compile()
    assert phase.memory_analysis().temp_size_in_bytes < 4 * n * n / 8


def test_the_auditor_does_not_take_a_cost_of_ones_own_for_another() -> None:
    problem = ds.Problem(x=cloud(0, 5), y=cloud(1, 4), eps=1.0, cost=costs.PNormP(1.5))
    for asked in (problem, validate(problem, 1e-3)):
        with pytest.raises(ds.ProblemError, match="the auditor knows the costs"):
            marginal_errors(asked, ds.Potentials(np.zeros(5), np.zeros(4)))


@pytest.mark.parametrize("dtype", ["longdouble", ">f4", ">f8", "float16"])
def test_points_of_dtypes_that_jax_does_not_know(dtype: str) -> None:
    rng = np.random.default_rng(8)
    x, y = (rng.normal(size=(n, 2)).astype(dtype) for n in (20, 24))
    found = ds.solve([ds.Problem(x=x, y=y, eps=0.5)], tol=1e-5, backend="ott")[0]
    wide = ds.Problem(x=x.astype(np.float64), y=y.astype(np.float64), eps=0.5)
    assert found.converged
    assert abs(found.transport_cost().dual - ds.solve([wide], tol=1e-5)[0].transport_cost().dual) < 1e-4
