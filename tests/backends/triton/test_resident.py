"""Lanes of which one program runs all cycles: the same promises as other lanes, whatever their size class."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.backends.triton import TritonBackend, resident
from drainsinkhorn.backends.triton.kernels import columns as c
from drainsinkhorn.backends.triton.pack import TritonPack
from drainsinkhorn.backends.triton.resident import LARGEST_SIDE, ResidentCycles, ResidentLauncher, size_class
from drainsinkhorn.core.protocol import Progress
from drainsinkhorn.numerics.costs import cost_matrix
from drainsinkhorn.numerics.residual import residual
from drainsinkhorn.numerics.update import Momentum, alignment, log_ratios, update
from drainsinkhorn.run.validate import validate
from drainsinkhorn.testing import PROMISES, Bench, marginal_errors, soak
from tests.device import CUDA, DEVICE, torch

# The interpreter computes in NumPy, which warns of overflow where a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

LN2 = math.log(2)
MOMENTUM = TritonBackend(resident_points=LARGEST_SIDE, acceleration="momentum")
BACKENDS = {
    "momentum": MOMENTUM,
    "plain": TritonBackend(resident_points=LARGEST_SIDE),
    "float64": TritonBackend(resident_points=LARGEST_SIDE, precision="float64", acceleration="momentum"),
}
CHUNKED = ("calls add up", "nan speaks")
"""Promises that the interpreter also runs on lanes whose scores do not fit into registers."""
OTHERS = ("a held lane rests", "lockstep ends with the first hold", "frozen is frozen", "nan speaks", "every cost")
"""Promises that the interpreter also runs with plain Sinkhorn and in float64."""
SLOW = "slow in the interpreter; others of its kind are run there, and all on a CUDA device"
KINDS = {
    "registers": ((20, 15), {}),
    "chunks of rows": ((90, 130), {}),
    "one column": ((300, 1), {}),
    "float64": ((20, 15), {"precision": "float64"}),
    "chunks in float64": ((70, 66), {"precision": "float64"}),
}
"""Sizes and settings for every way in which a program holds scores."""


def on_device(array: Any) -> Any:
    return torch.as_tensor(np.asarray(array, dtype=np.float32)).to(DEVICE)


def cloud(n: int, m: int, d: int = 3, *, seed: int = 0, eps: float = 0.3, **settings: Any) -> ds.Problem[Any]:
    rng = np.random.default_rng([n, m, d, seed])
    x, y = rng.normal(size=(n, d)), 0.3 + rng.normal(size=(m, d))
    a = rng.dirichlet(np.ones(n)) if n > 1 else None
    return ds.Problem(x=on_device(x), y=on_device(y), a=a, eps=eps * d, **settings)


def pack_of(problems: list[ds.Problem[Any]], *, backend: TritonBackend = MOMENTUM, **settings: Any) -> TritonPack:
    backend = TritonBackend(resident_points=LARGEST_SIDE, acceleration=backend.acceleration, **settings)
    return backend.pack([validate(problem, 1e-3) for problem in problems])


def vector(pack: TritonPack, lane: int, column: Any, side: int = 0, name: str = "vectors64") -> Any:
    place = pack._lanes.places[lane]
    start, size = int(pack._table.fields[place, column.value + side]), pack._table.host["size"][place, side]
    return pack._buffers[name][start : start + size].cpu().numpy().astype(np.float64)


def memory(pack: TritonPack) -> list[Any]:
    """All that the next cycle reads of the lanes: the numbers of decisions, and vectors."""
    numbers = pack._table.state.cpu().numpy()
    found: list[Any] = []
    for lane, (place, size) in enumerate(zip(pack._lanes.places, pack._lanes.column("size"), strict=True)):
        found.append(np.delete(numbers[place], [c.HELD.value]))
        for side in (0, 1):
            parts = -(-size[side] // 16)
            found += [vector(pack, lane, c.POTENTIAL, side), vector(pack, lane, c.ERRORS, side)[:parts]]
        found += [vector(pack, lane, c.BEFORE), vector(pack, lane, c.ALIGNMENT)[:1]]
        found.append(vector(pack, place, c.LOG_RATIOS, name="vectors32"))
    return found


def same(one: list[Any], other: list[Any]) -> bool:
    return all(np.array_equal(mine, theirs, equal_nan=True) for mine, theirs in zip(one, other, strict=True))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("promise", PROMISES)
def test_promise(promise: str, backend: str) -> None:
    if not CUDA and backend != "momentum" and promise not in OTHERS:
        pytest.skip(SLOW)
    shapes = [(7, 19, 3), (1, 1, 1), (40, 33, 20), (64, 128, 2), (250, 130, 8), (31, 512, 3)] if CUDA else [(7, 19, 3)]
    if not CUDA and backend == "momentum" and promise in CHUNKED:
        shapes.append((70, 130, 3))
    for shape in shapes:
        PROMISES[promise](Bench(BACKENDS[backend], on_device, shape))


@pytest.mark.parametrize("acceleration", ["momentum", "none"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_call_of_many_cycles_and_many_calls_of_one_leave_the_same_memory(kind: str, acceleration: str) -> None:
    if not CUDA and acceleration == "none" and kind != "registers":
        pytest.skip(SLOW)
    size, settings = KINDS[kind]
    backend = TritonBackend(acceleration=acceleration)
    once, often, lockstep = (
        pack_of([cloud(*size), cloud(*size, seed=1, eps=0.1)], backend=backend, **settings) for _ in range(3)
    )
    told = once.advance(7, [-1.0, -1.0])
    again = [often.advance(1, [-1.0, -1.0]) for _ in range(7)][-1]
    # In lockstep every cycle is a launch.
    assert told == again == lockstep.advance(7, [-1.0, -1.0], lockstep=True)
    assert same(memory(once), memory(often))
    assert same(memory(once), memory(lockstep))
    assert told.depths == [7, 7]


@pytest.mark.parametrize("span", [1, 3])
def test_a_launch_has_so_many_cycles_that_a_call_can_be_interrupted(span: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problems, launched = [cloud(20, 15, eps=0.05), cloud(9, 40, eps=0.2)], list[int]()
    whole = pack_of(problems)
    told = whole.advance(1000, [1e-4, 1e-2])
    assert isinstance(whole._cycles, ResidentCycles)
    assert whole._cycles.span > 1000
    run = ResidentLauncher.advance

    def counted(self: Any, chosen: Any, lanes: Any, cycles: int, **how: bool) -> Any:
        launched.append(cycles)
        return run(self, chosen, lanes, cycles, **how)

    monkeypatch.setattr(ResidentLauncher, "advance", counted)
    classes = [size_class(size, float64=False) for size in ((20, 15), (9, 40))]
    monkeypatch.setattr(resident, "LAUNCH_PAIRS", span * sum(2 * chosen.n * chosen.m for chosen in classes))
    parts = pack_of(problems)
    assert parts.advance(1000, [1e-4, 1e-2]) == told
    assert same(memory(whole), memory(parts))
    assert set(launched) == {span}
    # Two classes; the call ends with the launch in which the last lane is held.
    assert len(launched) == 2 * -(-max(told.depths) // span)


def test_lanes_are_held_where_they_pass_and_move_on_when_they_are_rejected() -> None:
    problems = [cloud(20, 15), cloud(40, 50), cloud(20, 31)]
    pack, slow = pack_of(problems), pack_of(problems)
    stops = [1e-2, 1e-3, -math.inf]
    told = pack.advance(15, stops)
    passed: list[Any] = [None] * 3
    for _ in range(15):
        for lane, now in enumerate(zip(*slow.advance(1, stops), strict=True)):
            passed[lane] = passed[lane] or (now if now[1] <= stops[lane] else None)
    assert passed[:2] == list(zip(*told, strict=True))[:2]
    assert told.depths[2] == 15 > max(told.depths[:2])
    again = pack.advance(5, [1.0] * 3)
    assert again.depths == [depth + 1 for depth in told.depths]


def test_the_class_of_a_lane_is_that_of_its_own_size() -> None:
    for n, m in ((1, 1), (32, 32), (33, 32), (64, 128), (65, 129), (256, 1), (512, 512)):
        for float64 in (False, True):
            found = size_class((n, m), float64=float64)
            assert found.n >= n
            assert found.m >= m
            assert found.n % found.chunk == 0
    assert size_class((20, 15), float64=False) == size_class((32, 32), float64=False)
    small, large = cloud(20, 15), cloud(70, 130)
    alone, together = pack_of([small]), pack_of([large, small])
    alone.advance(4, [-1.0])
    together.advance(4, [-1.0, -1.0])
    numbers = [pack._table.state[pack._lanes.places[-1]].cpu().numpy() for pack in (alone, together)]
    assert np.array_equal(*numbers)
    assert np.array_equal(vector(alone, 0, c.POTENTIAL), vector(together, 1, c.POTENTIAL))


@pytest.mark.parametrize("cost", ["sqeuclidean", "euclidean", "dense"])
@pytest.mark.parametrize("kind", KINDS)
def test_measured_legs(kind: str, cost: str) -> None:
    """`measure_rows` and `resident`: log ratios, residuals of both sides and alignment are those of `numerics`."""
    if not CUDA and cost != "sqeuclidean" and kind not in ("registers", "chunks in float64"):
        pytest.skip(SLOW)
    (n, m), settings = KINDS[kind]
    given = cloud(n, m, eps=0.2)
    if cost == "dense":
        given = ds.Problem(cost=on_device(np.random.default_rng(0).uniform(size=(n, m))), a=given.a, eps=0.1)
    elif cost == "euclidean":
        given = ds.Problem(x=given.x, y=given.y, a=given.a, eps=0.2, cost=cost)
    instance, accuracy = validate(given, 1e-3), 1e-7 if settings else 1e-5
    pack = pack_of([given], **settings)
    last = vector(pack, 0, c.POTENTIAL, 1) * LN2
    scaled, a, b = cost_matrix(instance)[0] / instance.eps, np.asarray(instance.a), np.asarray(instance.b)
    for _ in range(3):
        f, g, before = (
            vector(pack, 0, column, side) * LN2 for column, side in ((c.POTENTIAL, 0), (c.POTENTIAL, 1), (c.BEFORE, 0))
        )
        ratios = log_ratios(f, g, np.log(b), scaled, 1.0)
        measured = vector(pack, 0, c.LOG_RATIOS, name="vectors32") * LN2
        assert np.abs(measured - ratios).max() <= accuracy * max(1.0, np.abs(ratios).max())
        assert vector(pack, 0, c.ERRORS)[0] == pytest.approx(residual(a, ratios), rel=10 * accuracy, abs=accuracy)
        if pack._lanes.column("depth")[0]:
            columns = vector(pack, 0, c.ERRORS, 1)[0]
            direction = vector(pack, 0, c.ALIGNMENT)[0] * LN2 * LN2
            assert direction == pytest.approx(alignment(a, ratios, f, before), rel=1e-3, abs=10 * accuracy)
            # The g-leg started from the g before it: its residual is that of the plan with the new f.
            columns_before = log_ratios(last, f, np.log(a), scaled.T, 1.0)
            assert columns == pytest.approx(residual(b, columns_before), rel=10 * accuracy, abs=10 * accuracy)
            assert np.abs(g - update(last, columns_before, 1.0)[0]).max() <= 10 * accuracy
        last = g
        pack.advance(1, [-math.inf])


def test_strides_are_those_of_the_rule() -> None:
    """`choose_stride`, as the resident kernel uses it, decides like `numerics.update.Momentum`."""
    seen = set()
    for seed, eps in ((0, 0.02), (1, 0.05), (2, 0.004)):
        pack, rule = pack_of([cloud(24, 19, seed=seed, eps=eps)]), Momentum()
        for _ in range(40):
            f, before = vector(pack, 0, c.POTENTIAL), vector(pack, 0, c.BEFORE)
            logs = vector(pack, 0, c.LOG_RATIOS, name="vectors32")
            if pack._lanes.column("depth")[0]:
                rule.measured_columns(vector(pack, 0, c.ERRORS, 1)[0])
            stride = rule.stride(vector(pack, 0, c.ERRORS)[0], vector(pack, 0, c.ALIGNMENT)[0])
            seen.add((stride.step, rule._cooldown > 0))
            pack.advance(1, [-math.inf])
            after, x = update(f, logs, 1.0, stride, before)
            scale = np.abs(f).max() + np.abs(logs).max() + 1
            assert np.abs(vector(pack, 0, c.POTENTIAL) - after).max() <= 1e-13 * scale
            assert np.abs(vector(pack, 0, c.BEFORE) - x).max() <= 1e-13 * scale
            numbers = pack._table.state[pack._lanes.places[0]].cpu().numpy()
            decided = [numbers[column.value] for column in (c.AGE, c.COOLDOWN, c.BACKOFF, c.ROWS_EXACT)]
            assert decided == [rule._age, rule._cooldown, rule._backoff, rule._rows_exact]
    assert len({step for step, _ in seen}) == 2


@pytest.mark.parametrize("acceleration", ["momentum", "none"])
def test_depths_are_those_of_the_reference(acceleration: str) -> None:
    rng = np.random.default_rng(0)
    sizes = [(int(n), int(m)) for n, m in rng.integers(1, 60, (6, 2))]
    problems = [cloud(n, m, d, eps=0.2) for (n, m), d in zip(sizes, (1, 2, 4, 10, 20, 70), strict=True)]
    problems.append(ds.Problem(cost=on_device(rng.uniform(size=(40, 30))), eps=0.1))
    host = [
        ds.Problem(**{
            name: value.cpu().numpy() if torch.is_tensor(value) else value
            for name, value in ((name, getattr(p, name)) for name in ("x", "y", "a", "eps", "cost"))
        })
        for p in problems
    ]  # fmt: skip
    ours = ds.solve(problems, backend=TritonBackend(resident_points=128), accelerate=acceleration)
    theirs = ds.solve(host, backend="reference", accelerate=acceleration)
    for mine, other, problem in zip(ours, theirs, host, strict=True):
        assert mine.converged, mine.message
        assert abs(mine.depth - other.depth) <= 1
        assert "one program for all cycles" in mine.arithmetic
        f, g = (part.cpu().numpy() for part in mine.potentials)
        assert max(marginal_errors(problem, ds.Potentials(f, g))) <= 1e-3


def test_modes_are_equal_to_the_bit() -> None:
    sizes = [(200, 300), (50, 500), (129, 64), (20, 31)] if CUDA else [(20, 15), (66, 130)]
    batch = [cloud(n, m, 2 + n % 5, eps=0.3 + n % 2) for n, m in sizes]
    batch += [cloud(20, 31, tol=1e-9, eps=1.0), cloud(33, 40, eps=0.2, cost="euclidean")]
    found = [
        [
            (r.status, r.depth, *r.residual, *(p.cpu().numpy().tobytes() for p in r.potentials))
            for r in ds.solve(batch, backend=MOMENTUM, mode=mode, width=width, audit=ds.Audit(every=every))
        ]
        for mode, width, every in (("width-one", 1, 1), ("mask", 6, 3), ("compact", 6, 8), ("stream", 2, 5))
    ]
    assert found[0] == found[1] == found[2] == found[3]


@pytest.mark.parametrize("kind", ["registers", "chunks of rows", "float64"])
def test_far_and_huge_starts_spoil_no_result(kind: str) -> None:
    """Sums leave the range of float32, so their largest terms are taken out; what is not finite is not entered."""
    (n, m), settings = KINDS[kind]
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(n, 2)), rng.normal(size=(m, 2))
    f, g = ds.solve([ds.Problem(x=x, y=y, eps=0.5)], backend="reference")[0].potentials
    starts = [(f + shift, g - shift) for shift in (1e5, 1e14, -1e300)]
    starts += [(100 * rng.uniform(-1, 1, n), 100 * rng.uniform(-1, 1, m)), (np.full(n, 1e308), np.full(m, 1e308))]
    batch = [ds.Problem(x=x, y=y, eps=0.5, init=ds.Potentials(*start)) for start in starts]
    backend = TritonBackend(resident_points=LARGEST_SIDE, **settings)
    if not CUDA and kind != "registers":
        # The interpreter runs some of them.
        batch = batch[1::2]
    for result in ds.solve(batch, backend=backend, max_depth=30):
        assert result.converged, result.message
        assert max(marginal_errors(result.problem, result.potentials)) <= 1e-3
    far = ds.Problem(x=1e160 * x, y=1e160 * y, eps=1e-3, init=ds.Potentials(f, g))
    beside = ds.Problem(x=x, y=y, eps=0.5)
    broken, fine = ds.solve([far, beside], backend=backend, max_depth=30, warn=False)
    assert broken.status is ds.Status.NONFINITE
    assert np.isfinite(broken.potentials.f).all()
    assert np.isfinite(broken.potentials.g).all()
    alone = ds.solve([beside], backend=backend, max_depth=30)[0]
    assert fine.converged
    assert np.array_equal(fine.potentials.f, alone.potentials.f)


def test_bounds_cover_the_true_residuals() -> None:
    """The bound of the screen is sampled with the arithmetic of the resident kernel, that of verify by verify."""
    rng = np.random.default_rng(5)
    covered = 0
    for seed in range(24 if CUDA else 5):
        n, m, d = (int(k) for k in (rng.integers(2, 80), rng.integers(2, 80), rng.integers(1, 30)))
        given = cloud(n, m, d, seed=seed, eps=float(rng.choice([0.05, 0.3, 1.0])), tol=float(rng.choice([1e-2, 1e-3])))
        pack = pack_of([given])
        instance = pack._instances[0]
        for _ in range(2):
            told = pack.advance(3, [-math.inf])
            f, g = (vector(pack, 0, c.POTENTIAL, side) * LN2 * instance.eps for side in (0, 1))
            row, _ = marginal_errors(instance, ds.Potentials(f, g))
            band = float(pack._table.state[pack._lanes.places[0], c.BAND.value])
            assert row <= told.stale[0] <= row + 2 * band
            assert abs(pack.screen([0])[0] - told.stale[0]) <= 2 * band
            (said,), emitted = pack.verify([0]).rows(), pack.emit([0]).potentials(0)
            true = marginal_errors(instance, ds.Potentials(*(part.cpu().numpy() for part in emitted)))
            assert max(true) <= max(said.row, said.col) + said.band
            covered += 1
    assert covered == (48 if CUDA else 10)


def test_a_frozen_lane_keeps_its_memory_in_every_class() -> None:
    for kind, (size, settings) in KINDS.items():
        pack = pack_of([cloud(*size), cloud(*size, seed=1)], **settings)
        pack.advance(2, [-1.0, -1.0])
        pack.freeze([0])
        before = memory(pack)
        told = pack.advance(3, [-1.0, -1.0])
        after = memory(pack)
        half = len(before) // 2
        assert told.depths == [2, 5], kind
        assert same(before[:half], after[:half]), kind
        assert not same(before[half:], after[half:]), kind
        assert pack.spent.slots == 2 * 2 + 2 * 3, kind


def test_in_lockstep_the_first_lane_that_passes_stops_all_classes() -> None:
    pack = pack_of([cloud(20, 15), cloud(70, 130, eps=0.05), cloud(20, 15, tol=1e-9)])
    assert isinstance(pack._cycles, ResidentCycles)
    assert len(pack._cycles._classes) == 3
    told = pack.advance(60, [1e-2, 1e-9, 1e-12], lockstep=True)
    assert len(set(told.depths)) == 1
    assert told.stale[0] <= 1e-2
    assert told.stale[1] > 1e-9
    assert told.stale[2] > 1e-12
    again = pack.advance(60, [1e-12] * 3)
    assert min(again.depths) > told.depths[0]


@pytest.mark.parametrize("kind", KINDS)
def test_looking_changes_no_memory(kind: str) -> None:
    size, settings = KINDS[kind]
    pack = pack_of([cloud(*size)], **settings)
    pack.advance(2, [-1.0])
    before = memory(pack)
    pack.screen([0])
    pack.verify([0])
    pack.verify([0], exact=True)
    pack.emit([0])
    assert same(before, memory(pack))


def test_points_without_weight_and_lanes_of_other_packs() -> None:
    rng = np.random.default_rng(0)
    a = np.r_[0.0, rng.dirichlet(np.ones(29))]
    problem = ds.Problem(x=on_device(rng.normal(size=(30, 2))), y=on_device(rng.normal(size=(20, 2))), a=a, eps=0.5)
    result = ds.solve([problem], backend=MOMENTUM)[0]
    assert result.converged
    assert np.isfinite(result.potentials.f.cpu().numpy()).all()
    backend = TritonBackend(resident_points=64)
    small, large, frugal = (
        backend.hints(validate(cloud(20, 15), 1e-3)),
        backend.hints(validate(cloud(65, 15), 1e-3)),
        backend.frugal().hints(validate(cloud(20, 15), 1e-3)),
    )
    assert "one program" in small.arithmetic
    assert "one program" not in large.arithmetic + frugal.arithmetic
    assert backend.signature(validate(cloud(20, 15), 1e-3)) == backend.signature(validate(cloud(64, 64, 20), 1e-3))
    assert backend.signature(validate(cloud(20, 15), 1e-3)) != backend.signature(validate(cloud(65, 15), 1e-3))
    assert small.width > large.width


def test_plans_do_not_depend_on_what_ran_the_cycles() -> None:
    problem = cloud(20, 15)
    result = ds.solve([problem], backend=MOMENTUM)[0]
    plans = [backend.couple([result.instance], [result.potentials]) for backend in (MOMENTUM, TritonBackend())]
    values = [np.random.default_rng(0).normal(size=(15, 2))]
    one, other = (torch.as_tensor(plan.apply(values, "row")[0]).cpu() for plan in plans)
    assert torch.equal(one, other)


@pytest.mark.parametrize("points", [-1, LARGEST_SIDE + 1])
def test_sizes_without_a_class_are_refused(points: int) -> None:
    with pytest.raises(ds.OptionsError, match=f"from 0 to {LARGEST_SIDE}, got {points}"):
        TritonBackend(resident_points=points)


def test_it_is_off_unless_it_is_asked_for() -> None:
    instance = validate(cloud(20, 15), 1e-3)
    assert not TritonBackend().policy.representation(instance).one_program


def test_a_launch_that_fails_loses_nothing_that_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    problems, run, count = [cloud(20, 15, seed=seed) for seed in range(6)], TritonPack.advance, [0]
    expected = {r.ticket: r.potentials.f for r in ds.solve(problems, backend=MOMENTUM, width=2)}

    def fail(self: TritonPack, *args: Any, **how: Any) -> Progress:
        count[0] += 1
        if count[0] == 2:
            raise MemoryError("CUDA out of memory")
        return run(self, *args, **how)

    monkeypatch.setattr(TritonPack, "advance", fail)
    solution = ds.solve(problems, backend=MOMENTUM, width=2)
    assert solution.converged
    assert solution.ledger.narrowed
    assert all(torch.equal(result.potentials.f, expected[result.ticket]) for result in solution)


@pytest.mark.parametrize("seed", [1] if not CUDA else range(4))
def test_no_result_of_hostile_problems_is_false(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "load", lambda _: TritonBackend(resident_points=LARGEST_SIDE))
    tally = soak.soak("triton", 20 if not CUDA else 500, seed)
    assert not tally.findings, "\n".join(["", str(tally), *map(str, tally.findings)])
    assert tally.judged >= tally.problems // 5, f"{tally}: too few converge to say anything"
