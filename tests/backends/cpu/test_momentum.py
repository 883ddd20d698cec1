"""Momentum: one set of rules in Python and compiled, the same depth everywhere, true on hostile inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import drainsinkhorn as ds
from drainsinkhorn.backends.cpu import CpuBackend
from drainsinkhorn.backends.cpu.lane_table import new_lanes
from drainsinkhorn.backends.cpu.leg_kernels import DRIFT
from drainsinkhorn.backends.cpu.update_kernels import decide
from drainsinkhorn.numerics.update import FAST, GROWTH, MAX_BACKOFF, OFFSET, PLAIN, STEP, Momentum, Stride
from drainsinkhorn.testing import marginal_errors

BACKENDS: dict[str, Any] = {
    "reference": "reference",
    "float32": CpuBackend(precision="float32", representation="cached"),
    "float64": CpuBackend(precision="float64", representation="cached"),
    "streaming": CpuBackend(representation="streaming"),
    "streaming float64": CpuBackend(representation="streaming", precision="float64"),
}
each_backend = pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)


class Compiled:
    """`decide` and the record it keeps its state in, driven as Momentum is."""

    def __init__(self) -> None:
        self.lane = new_lanes(1)[0]

    @property
    def rows_exact(self) -> bool:
        return bool(self.lane["rows_exact"] > 0)

    def measured_columns(self, error: float) -> None:
        self.lane["col_residual"] = error

    def stride(self, error: float, along: float) -> Stride:
        expected = self.lane["step"], self.lane["beta"]
        hit = decide(self.lane, error, along)
        found = Stride(self.lane["step"], self.lane["beta"])
        assert hit == (expected == found), "it says whether the decision is the expected one"
        assert self.lane["decided"] == 1
        return found


Leg = tuple[float, float, float]
"""Column residual, row residual, and how the leg lies to the last displacement."""


class Both:
    """Both sets of rules on the same numbers; they must agree on every decision."""

    def __init__(self) -> None:
        self.rules, self.compiled, self.legs = Momentum(), Compiled(), list[Leg]()

    def __call__(self, columns: float, error: float, along: float) -> Stride:
        if self.legs:
            # The first leg is measured before any columns are.
            self.rules.measured_columns(columns)
            self.compiled.measured_columns(columns)
        self.legs.append((columns, error, along))
        taken = self.rules.stride(error, along)
        assert self.compiled.stride(error, along) == taken, f"the last of {self.legs}"
        assert self.compiled.rows_exact == self.rules.rows_exact
        return taken


def agree(legs: list[Leg]) -> list[Stride]:
    both = Both()
    return [both(*leg) for leg in legs]


residuals = st.one_of(
    st.floats(1e-12, 2.0),
    st.sampled_from([0.0, math.nan, math.inf, 1e-300, 1e300, 1e-3, GROWTH * 1e-3, np.nextafter(GROWTH * 1e-3, 1)]),
)
directions = st.one_of(st.floats(-1, 1), st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, -5e-324]))


class TestRules:
    @settings(max_examples=1000)
    @given(st.lists(st.tuples(residuals, residuals, directions), max_size=60))
    def test_compiled_rules_are_the_rules(self, legs: list[Leg]) -> None:
        agree(legs)

    @pytest.mark.parametrize("seed", range(50))
    def test_on_long_runs_like_real_ones(self, seed: int) -> None:
        """Residuals that fall with noise, grow now and then, and are NaN now and then; all four rules take part."""
        rng = np.random.default_rng(seed)
        legs, error = list[Leg](), 1.0
        for _ in range(600):
            before, error = error, error * np.exp(rng.normal(-0.05, 0.3))
            grown = rng.choice([1.0, 1.0, 1.0, 3.0, 50.0], p=[0.4, 0.3, 0.27, 0.02, 0.01])
            shown = math.nan if rng.random() < 0.01 else float(error * grown)
            columns = float(before * rng.choice([1.0, 1.0, 3.0]))
            legs.append((columns, shown, float(rng.normal(0.5, 1))))
        taken = agree(legs)
        assert {stride.step for stride in taken} == {1.0, STEP}
        assert max(stride.beta for stride in taken) > 1 / (1 + OFFSET)

    def test_the_first_leg_is_plain_and_the_next_are_longer_and_longer(self) -> None:
        taken = agree([(1.0, 1.0, 0.0)] * 6)
        assert taken == [PLAIN, *(Stride(STEP, age / (age + OFFSET)) for age in range(1, 6))]

    def test_a_leg_against_the_last_displacement_restarts(self) -> None:
        taken = agree([(1.0, 1.0, 1.0)] * 4 + [(1.0, 1.0, -1e-9)] + [(1.0, 1.0, 1.0)] * 2)
        assert taken[4:] == [PLAIN, Stride(STEP, 1 / (1 + OFFSET)), Stride(STEP, 2 / (2 + OFFSET))]

    def test_a_lane_that_contracts_fast_by_itself_is_left_alone(self) -> None:
        slow, fast = math.sqrt(FAST) * 1.001, math.sqrt(FAST) * 0.999
        assert agree([(1.0, 1.0, 1.0)] * 1 + [(1.0, fast, 1.0)] * 5) == [PLAIN] * 6
        assert agree([(1.0, 1.0, 1.0)] * 1 + [(1.0, slow, 1.0)])[1] != PLAIN

    @pytest.mark.parametrize("bad", [5.0, math.nan, math.inf])
    def test_growth_and_nan_call_for_ever_more_plain_legs(self, bad: float) -> None:
        both, runs = Both(), list[int]()
        for _ in range(2):
            both(1.0, 1.0, 1.0)
        for _ in range(MAX_BACKOFF + 3):
            # The leg itself, then its cooldown.
            assert both(1.0, bad, 1.0) == PLAIN
            runs.append(0)
            while both(1.0, 1.0, 1.0) == PLAIN:
                runs[-1] += 1
        assert runs == [2 ** min(i, MAX_BACKOFF) for i in range(MAX_BACKOFF + 3)]


def mixture(rng: np.random.Generator, n: int, m: int, d: int) -> tuple[Any, Any]:
    centres = rng.normal(size=(5, d))
    return tuple(centres[rng.integers(5, size=s)] + 0.3 * rng.normal(size=(s, d)) for s in (n, m))  # type: ignore[return-value]


def varied() -> Iterator[ds.Problem[Any]]:
    """Shallow to deep, ragged, weighted, of every cost."""
    rng = np.random.default_rng(17)
    for cost, eps in (("sqeuclidean", 0.05), ("sqeuclidean", 0.5), ("euclidean", 0.05), ("cosine", 0.02)):
        for n, m, d in ((40, 40, 2), (120, 90, 5), (300, 33, 15), (5, 260, 3)):
            x, y = mixture(rng, n, m, d)
            a = rng.dirichlet(np.full(n, 0.5)) + 1e-9 if d == 5 else None
            yield ds.Problem(x=x, y=y, a=a, eps=eps * (d if cost == "sqeuclidean" else 1), cost=cost, init="zero")
    yield ds.Problem(cost=rng.uniform(size=(80, 70)), eps=0.02)


PROBLEMS = list(varied())


@pytest.fixture(scope="module")
def reference_depths() -> dict[float, list[int]]:
    return {
        tol: [r.depth for r in ds.solve(PROBLEMS, tol=tol, backend="reference", accelerate="momentum")]
        for tol in (1e-2, 1e-3)
    }


@each_backend
@pytest.mark.parametrize("tol", [1e-2, 1e-3])
def test_depth_is_the_same_everywhere(backend: Any, tol: float, reference_depths: dict[float, list[int]]) -> None:
    found = ds.solve(PROBLEMS, tol=tol, backend=backend, accelerate="momentum", rescue=False)
    assert found.converged
    assert {r.acceleration for r in found} == {"momentum"}
    for result, depth in zip(found, reference_depths[tol], strict=True):
        assert abs(result.depth - depth) <= 1, f"problem {result.ticket}: {result.depth}, reference {depth}"
        assert max(marginal_errors(result.problem, result.potentials)) <= tol


def test_it_saves_cycles_and_is_never_slower() -> None:
    plain, quick = (ds.solve(PROBLEMS, backend="cpu", accelerate=name, init="zero") for name in ("none", "momentum"))
    assert {r.acceleration for r in plain} == {"none"}
    assert sum(r.depth for r in quick) < 0.4 * sum(r.depth for r in plain)
    for p, q in zip(plain, quick, strict=True):
        assert q.depth <= 1.05 * p.depth + 1
    loose, tight = (ds.solve(PROBLEMS, backend="cpu", accelerate=name, tol=1e-7) for name in ("none", "momentum"))
    for p, q in zip(loose, tight, strict=True):
        assert np.abs(p.plan() - q.plan()).sum() < 1e-5


def hostile() -> dict[str, list[ds.Problem[Any]]]:
    rng = np.random.default_rng(23)
    x, y = mixture(rng, 150, 130, 3)
    made: dict[str, list[ds.Problem[Any]]] = {}

    def light(size: int) -> Any:
        weights = 10 ** rng.uniform(-8, 0, size=size)
        weights[0], weights[-1] = 1.0, 1e-8
        return weights / weights.sum()

    made["weights down to 1e-8"] = [
        ds.Problem(x=x, y=y, a=light(150), b=light(130), eps=eps) for eps in (0.5, 0.1, 0.03)
    ]
    # Potentials go hundreds of nats from where they start, so that kernels are absorbed many times.
    made["tiny eps"] = [
        ds.Problem(x=3 * x, y=3 * y + 2, eps=eps, init=s) for eps in (0.1, 0.03) for s in ("zero", None)
    ]
    made["far apart"] = [ds.Problem(x=x, y=y + shift, eps=0.2, init="zero") for shift in (10.0, 100.0)]
    # Lanes over one matrix that is too far from where they end: they have to leave it.
    lopsided = [rng.dirichlet(np.full(150, 0.1)) + 1e-6 for _ in range(6)]
    made["shared kernel to be left"] = ds.problems(x, y, a=[a / a.sum() for a in lopsided], eps=0.05)
    cost = rng.uniform(size=(150, 130)) * 4
    made["shared dense cost"] = ds.problems(cost=cost, a=[a / a.sum() for a in lopsided], eps=0.02)
    none = np.ones(150)
    none[rng.random(150) < 0.4] = 0.0
    void = np.r_[np.zeros(60), np.ones(70)]
    made["zero weights"] = [ds.Problem(x=x, y=y, a=none / none.sum(), b=void / void.sum(), eps=e) for e in (0.3, 0.05)]
    made["one to one"] = [ds.Problem(x=x[:1], y=y[:1], eps=0.1), ds.Problem(x=x[:1], y=y, eps=0.1)]
    made["the same cloud"] = [ds.Problem(x=x, y=x.copy(), eps=e, init="zero") for e in (0.5, 0.02)]
    made["off the origin"] = [ds.Problem(x=x + 1e4, y=y + 1e4, eps=0.1)]
    return made


HOSTILE = hostile()


@each_backend
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_inputs_converge_and_are_true(name: str, backend: Any) -> None:
    for result in ds.solve(HOSTILE[name], backend=backend, accelerate="momentum"):
        assert result.converged, result.message
        assert max(marginal_errors(result.problem, result.potentials)) <= 1e-3


def test_shared_kernels_are_shared_and_left() -> None:
    from drainsinkhorn.backends.cpu.pack import CpuPack
    from drainsinkhorn.run.validate import validate

    batch = [validate(p, 1e-3) for p in HOSTILE["shared kernel to be left"]]
    for dtype in ("f4", "f8"):
        pack = CpuPack(batch, np.dtype(dtype), 2, momentum=True)
        assert pack._table["is_shared"].all()
        pack.advance(200, [1e-3] * len(batch))
        assert not pack._table["is_shared"].any()


def test_potentials_go_far_where_they_are_said_to() -> None:
    for name in ("tiny eps", "far apart"):
        for result in ds.solve(HOSTILE[name], accelerate="momentum"):
            assert np.ptp(result.potentials.f) / result.problem.eps > 10 * DRIFT


@each_backend
@pytest.mark.parametrize("name", ["weights down to 1e-8", "tiny eps", "shared kernel to be left", "zero weights"])
def test_every_mode_gives_the_same_bits(name: str, backend: Any) -> None:
    batch = HOSTILE[name]

    def prints(**how: Any) -> list[Any]:
        # Bounded, since where problems end is not the matter here.
        found = ds.solve(batch, backend=backend, accelerate="momentum", max_depth=80, rescue=False, warn=False, **how)
        return [(r.depth, r.status, *(p.tobytes() for p in r.potentials)) for r in found]

    alone = prints(mode="width-one", audit=ds.Audit(every=1))
    for mode, width, every in (("compact", 8, 8), ("compact", 2, 3), ("mask", 3, 5), ("stream", 2, 1)):
        assert prints(mode=mode, width=width, audit=ds.Audit(every=every)) == alone, mode


@each_backend
def test_a_lane_that_overflows_says_so_and_disturbs_nobody(backend: Any) -> None:
    x, y = mixture(np.random.default_rng(1), 40, 30, 2)
    good = ds.Problem(x=x, y=y, eps=0.1)
    batch = [good, ds.Problem(x=1e200 * x, y=y, eps=0.1), good]
    among = ds.solve(batch, backend=backend, accelerate="momentum", warn=False)
    assert [r.status.name for r in among] == ["CONVERGED", "NONFINITE", "CONVERGED"]
    alone = ds.solve([good], backend=backend, accelerate="momentum")[0]
    assert all(np.array_equal(among[i].potentials.f, alone.potentials.f) for i in (0, 2))
