"""The Triton backend: on a CUDA device where there is one, in Triton's interpreter (and small) elsewhere."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.backends.triton import TritonBackend, cycles, precision, tiles
from drainsinkhorn.backends.triton.buffers import Arena
from drainsinkhorn.backends.triton.precision import Arithmetic
from drainsinkhorn.run import validate as validation
from drainsinkhorn.run.validate import validate
from drainsinkhorn.testing import PROMISES, Bench, marginal_errors
from tests.conftest import needs
from tests.device import CUDA, DEVICE, torch

# The interpreter computes in NumPy, which warns of overflow where a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

SLOW = ("lanes are independent", "looking changes nothing", "first passage does not depend on the calls")
"""Promises that take the interpreter longest; there they are run with momentum alone, elsewhere for every backend."""
PLAIN = ("answers agree with the reference", "calls add up", "a held lane rests", "frozen is frozen", "nan speaks")
"""Promises that the interpreter also runs with plain Sinkhorn; the others depend on no acceleration."""
HOST = (
    "settings travel",
    "emit copies",
    "backends say how they run",
    "work is counted",
    "an emission names its problem",
)
"""Promises that the host keeps, whatever the kernels; the interpreter runs them with momentum alone."""
BACKENDS = {
    "momentum": TritonBackend(acceleration="momentum"),
    "plain": TritonBackend(),
    "float64": TritonBackend(precision="float64", acceleration="momentum"),
}


def on_device(array: Any) -> Any:
    return torch.as_tensor(np.asarray(array, dtype=np.float32)).to(DEVICE)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("promise", PROMISES)
def test_promise(promise: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if backend == "float64":
        # As large lanes are run.
        monkeypatch.setattr(cycles, "SMALL", 0)
    omitted = {"momentum": (), "plain": set(PROMISES).difference(PLAIN), "float64": SLOW + HOST}
    if not CUDA and promise in omitted[backend]:
        pytest.skip("slow in the interpreter; run for another backend there, and for all on a CUDA device")
    for shape in [(13, 17, 3), (1, 1, 1), (1, 9, 20), (200, 5, 8), (700, 1501, 3)] if CUDA else [(7, 19, 3)]:
        PROMISES[promise](Bench(BACKENDS[backend], on_device, shape))


def problems() -> list[ds.Problem[Any]]:
    rng = np.random.default_rng(0)
    found: list[ds.Problem[Any]] = []
    for d, cost in ((2, "sqeuclidean"), (10, "sqeuclidean"), (3, "euclidean"), (5, "cosine"), (70, "sqeuclidean")):
        for n, m in ((70, 33), (20, 41)) if CUDA else ((30, 17),):
            x, y = on_device(rng.normal(size=(n, d))), on_device(0.3 + rng.normal(size=(m, d)))
            eps = {"sqeuclidean": 0.15 * d, "euclidean": 0.3, "cosine": 0.1}[cost]
            found.append(ds.Problem(x=x, y=y, eps=eps, cost=cost))
    found.append(ds.Problem(cost=on_device(rng.uniform(size=(40, 30))), eps=0.1))
    a = on_device(np.r_[0.0, rng.dirichlet(np.ones(29))])
    found.append(ds.Problem(x=on_device(rng.normal(size=(30, 2))), y=on_device(rng.normal(size=(20, 2))), a=a, eps=0.5))
    return found


def test_huge_starts_spoil_no_result() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(6, 2)), rng.normal(size=(7, 2))
    f, g = ds.solve([ds.Problem(x=x, y=y, eps=0.5)], backend="reference")[0].potentials
    starts = [(f + c, g - c) for c in (1e5, 1e14, 1e100, -1e300)]
    starts += [(np.full(6, c), np.full(7, c)) for c in (1e15, 1e17, 1e308)]
    starts += [(c * rng.uniform(-1, 1, 6), c * rng.uniform(-1, 1, 7)) for c in (1e12, 1e100)]
    batch = [ds.Problem(x=x, y=y, eps=0.5, init=ds.Potentials(*start)) for start in starts]
    for result in ds.solve(batch, backend="triton", max_depth=30):
        assert result.converged, result.message
        assert max(marginal_errors(result.problem, result.potentials)) <= 1e-3
    far = ds.Problem(x=1e160 * x, y=1e160 * y, eps=1e-3, init=ds.Potentials(f, g))
    result = ds.solve([far], backend="triton", max_depth=30, warn=False)[0]
    assert result.status is ds.Status.NONFINITE
    assert np.isfinite(result.potentials.f).all()
    assert np.isfinite(result.potentials.g).all()


def test_a_form_of_cost_that_has_no_kernel_is_refused_below_validation() -> None:
    given = ds.Problem(x=np.ones((3, 2)), y=np.zeros((4, 2)), eps=1.0, cost=ds.Formula("SqDist(x, y)"))
    with pytest.raises(ds.ProblemError, match="cannot compute the cost SqDist"):
        TritonBackend().pack([validate(given, 1e-3)])


@pytest.mark.parametrize("accelerate", ["momentum", "none"])
def test_parity_with_the_reference(accelerate: str) -> None:
    batch = problems()
    host = [
        ds.Problem(
            **{
                name: value.cpu().numpy() if hasattr(value, "cpu") else value
                for name, value in ((name, getattr(p, name)) for name in ("x", "y", "a", "eps", "cost"))
            }
        )
        for p in batch
    ]
    ours = ds.solve(batch, backend="triton", accelerate=accelerate)
    theirs = ds.solve(host, backend="reference", accelerate=accelerate)
    assert ours.converged
    for mine, other, problem in zip(ours, theirs, host, strict=True):
        assert abs(mine.depth - other.depth) <= 1
        assert mine.potentials.f.device == batch[mine.ticket].x.device if problem.x is not None else True
        f, g = (p.cpu().numpy() for p in mine.potentials)
        assert max(marginal_errors(problem, ds.Potentials(f, g))) <= 1e-3


def test_modes_are_equal_to_the_bit() -> None:
    rng = np.random.default_rng(1)
    sizes = [(400, 300), (50, 700), (129, 64), (1000, 1000)] if CUDA else [(20, 15), (5, 70), (65, 16)]
    for d in (3, 12, 80) if CUDA else (3, 80):
        batch = [
            ds.Problem(x=on_device(rng.normal(size=(n, d))), y=on_device(rng.normal(size=(m, d))), eps=0.5 * d * e)
            for (n, m), e in zip(sizes, (1.0, 0.5, 2.0, 0.7), strict=False)
        ]
        found = [
            [
                (r.depth, *(p.cpu().numpy().tobytes() for p in r.potentials))
                for r in ds.solve(batch, backend="triton", mode=mode, width=width, audit=ds.Audit(every=every))
            ]
            for mode, width, every in (("width-one", 1, 1), ("mask", 4, 3), ("compact", 4, 8), ("stream", 2, 5))
        ]
        assert found[0] == found[1] == found[2] == found[3]


def test_hard_problems_run_in_float64_and_are_true() -> None:
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(40, 8)), rng.normal(size=(40, 8)) + 1
    for scale, eps, tol in ((1.0, 0.05, 1e-3), (1.0, 2.0, 1e-9)):
        problem = ds.Problem(x=scale * x, y=scale * y, eps=eps, tol=tol)
        result = ds.solve([problem], backend="triton")[0]
        assert result.converged, result.message
        assert max(marginal_errors(problem, result.potentials)) <= tol


def test_one_bad_problem_harms_nobody() -> None:
    good = problems()[:2]
    batch = [*good, ds.Problem(x=1e200 * np.ones((5, 2)), y=np.ones((4, 2)), eps=1.0)]
    counts = ds.solve(batch, backend="triton").counts
    assert counts == {ds.Status.CONVERGED: 2, ds.Status.NONFINITE: 1}


def test_programs_that_share_columns_agree_with_one_that_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    batch = [
        ds.Problem(x=on_device(rng.normal(size=(20, d))), y=on_device(1 + rng.normal(size=(40, d))), eps=0.2 * d)
        for d in (3, 10, 70)
    ]
    alone = ds.solve(batch, backend="triton", max_depth=2, rescue=False)
    small = {key: {**tile, "bn": 16, "least": 1} for key, tile in tiles.TILES.items()}
    monkeypatch.setattr(tiles, "TILES", small)
    precision._represent.cache_clear()
    try:
        form = TritonBackend().policy.representation(validate(batch[0], 1e-3))
        assert max(form.shares((20, 40))) > 1
        shared = ds.solve([batch[0], *batch], backend="triton", max_depth=2, rescue=False)
        one = ds.solve(batch[:1], backend="triton", max_depth=2, rescue=False)[0]
    finally:
        precision._represent.cache_clear()
    for mine, other in zip(list(shared)[1:], alone, strict=True):
        assert torch.allclose(mine.potentials.f, other.potentials.f, rtol=1e-5, atol=1e-5)
    assert torch.equal(one.potentials.f, shared[0].potentials.f)
    assert torch.equal(one.potentials.g, shared[0].potentials.g)


def test_out_of_memory_halves_the_width_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    batch = [
        ds.Problem(x=on_device(rng.normal(size=(9, 2))), y=on_device(rng.normal(size=(8, 2))), eps=1.0)
        for _ in range(8)
    ]
    ds.solve(batch[:1], backend="triton")
    take, lane = Arena.take, 9 * 64

    def small(self: Arena, count: int) -> int:
        if self.buffer.dtype == torch.float32 and count > 4 * lane:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate too much.")
        return take(self, count)

    monkeypatch.setattr(Arena, "take", small)
    solution = ds.solve(batch, backend="triton", width=8)
    assert solution.converged
    assert solution.ledger.narrowed


def test_tiles_are_kept_for_a_gpu_and_bad_files_are_ignored(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    mine = tiles.Tile(bm=16, bn=32, warps=2, stages=2, least=4, registers=96, resident=5)
    path = tiles.keep("Some GPU 9000", {(tiles.PRODUCT, 16): mine})
    assert path == tmp_path / "drainsinkhorn" / "tiles-some-gpu-9000.json"
    assert tiles.tile(tiles.PRODUCT, 16, "Some GPU 9000") == mine
    assert tiles.tile(tiles.PRODUCT, 64, "Some GPU 9000") == tiles.TILES[tiles.PRODUCT, 64]
    assert tiles.tile(tiles.PRODUCT, 16, "Another") == tiles.TILES[tiles.PRODUCT, 16]
    for bad in ("{", "[]", path.read_text().replace("32", "33"), path.read_text().replace('"bm": 16', '"bm": -1')):
        path.write_text(bad)
        tiles.tuned.cache_clear()
        assert tiles.tile(tiles.PRODUCT, 16, "Some GPU 9000") == tiles.TILES[tiles.PRODUCT, 16]
    tiles.tuned.cache_clear()


@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
def test_tiles_are_measured_on_the_device_at_hand() -> None:
    from drainsinkhorn.backends.triton import tuning

    found = tuning.clouds(300, 3, 2)
    assert all(0 < time < 1e5 for time in tuning.measure(TritonBackend().policy.representation(found[0]), found))


@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
def test_a_million_points_run_in_linear_memory() -> None:
    rng = np.random.default_rng(6)
    x, y = (on_device(rng.normal(size=(1_000_000, 3))) for _ in range(2))
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    result = ds.solve([ds.Problem(x=x, y=y, eps=1.0)], backend="triton", max_depth=1, rescue=False)[0]
    assert result.depth == 1
    assert torch.cuda.max_memory_allocated() - held < 2e9


@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
def test_jax_arrays_on_the_device() -> None:
    jax = needs("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("this JAX has no CUDA device")
    rng = np.random.default_rng(7)
    x, y = (jax.numpy.asarray(rng.normal(size=(50, 4)), dtype="float32") for _ in range(2))
    result = ds.solve([ds.Problem(x=x, y=y, eps=1.0)], backend="triton")[0]
    assert result.converged
    assert isinstance(result.potentials.f, jax.Array)
    host = ds.Problem(x=np.asarray(x), y=np.asarray(y), eps=1.0)
    assert max(marginal_errors(host, ds.Potentials(*map(np.asarray, result.potentials)))) <= 1e-3


@pytest.mark.skipif(CUDA, reason="there is a CUDA device")
def test_without_a_device_the_backend_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(ds.BackendUnavailable, match="needs a CUDA device, and torch sees none"):
        ds.solve(np.zeros((2, 1)), np.zeros((2, 1)), eps=1.0, backend="triton")


def test_lanes_climb_to_the_arithmetic_that_is_accurate_enough_for_them() -> None:
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(24, 5)), rng.normal(size=(19, 5))
    near = ds.Problem(x=on_device(x), y=on_device(y), eps=1.0, tol=1e-3)
    # Scores of 2^17 bits do not fit the float16 parts of potentials; tol 0.4 is wide enough for float32, and soon met.
    far = ds.Problem(x=on_device(100 * x), y=on_device(100 * y), eps=1.0, tol=0.4)
    tight = [ds.Problem(x=on_device(x), y=on_device(y), eps=1.0, tol=tol) for tol in (1e-6, 2e-8, 1e-10)]
    problems = [near, far, *tight]
    backend = TritonBackend(acceleration="momentum")
    pack = backend.pack([validate(problem, 1e-3) for problem in problems])
    assert [Arithmetic(rung) for rung in pack._lanes.column("arithmetic")] == list(Arithmetic)
    together = ds.solve(problems, backend=backend, rescue=False)
    for problem, result in zip(problems, together, strict=True):
        row, col = marginal_errors(validate(problem, 1e-3), result.potentials)
        assert result.converged
        assert max(row, col) <= problem.tol
        alone = ds.solve([problem], backend=backend, rescue=False)[0]
        assert alone.depth == result.depth
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(alone.potentials, result.potentials, strict=True))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_problem_among_those_on_a_device_is_refused_alone(bad: float, monkeypatch: pytest.MonkeyPatch) -> None:
    if not CUDA:
        monkeypatch.setattr(validation, "is_on_device", lambda value: torch.is_tensor(value) and value.ndim == 2)
    rng = np.random.default_rng(9)
    batch = [
        ds.Problem(x=on_device(rng.normal(size=(9, 2))), y=on_device(rng.normal(size=(7, 2))), eps=1) for _ in "abc"
    ]
    assert validation.finite_on_device(batch)
    batch[1].y[3, 1] = bad
    assert not validation.finite_on_device(batch)
    fine, refused, also = ds.solve(batch, backend="triton")
    assert fine.converged
    assert also.converged
    assert refused.status is ds.Status.INVALID
    assert f"y[3, 1] is {bad}" in refused.message


@pytest.mark.parametrize("together", [20, 2**24])
@pytest.mark.parametrize("place", range(8))
def test_one_bad_entry_in_any_kind_of_value_on_a_device_is_seen(
    place: int, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not CUDA:
        monkeypatch.setattr(validation, "is_on_device", lambda value: torch.is_tensor(value) and value.ndim == 2)
    monkeypatch.setattr(validation, "TOGETHER", together)
    end = torch.finfo(torch.float64).max
    values = [
        torch.ones((5, 2), device=DEVICE),
        torch.full((7, 2), end, dtype=torch.float64, device=DEVICE),
        torch.ones((3, 2), device=DEVICE, requires_grad=True),
        torch.full((1, 2), -end, dtype=torch.float64, device=DEVICE).expand(20, 2),
        torch.ones((3, 9), device=DEVICE).T[::2],
        torch.ones((4, 3), device=DEVICE),
        torch.ones((4, 6), dtype=torch.float64, device=DEVICE),
        torch.ones((6, 6), dtype=torch.float64, device=DEVICE),
    ]

    def asked() -> bool:
        pairs = [ds.Problem(x=x, y=y, eps=1.0) for x, y in zip(values[:6:2], values[1:6:2], strict=True)]
        return validation.finite_on_device([*pairs, *(ds.Problem(cost=cost, eps=1.0) for cost in values[6:]), "odd"])

    assert asked()
    for bad in (np.nan, np.inf, -np.inf):
        with torch.no_grad():
            values[place][0, 1] = bad
        assert not asked()


@pytest.mark.skipif(CUDA, reason="counts the calls on stand-ins")
def test_values_on_a_device_are_looked_at_side_by_side_but_for_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[list[int]] = []
    cat = torch.cat

    def counted(block: list[Any]) -> Any:
        copied.append([len(value) for value in block])
        return cat(block)

    monkeypatch.setattr(validation, "is_on_device", lambda value: torch.is_tensor(value) and value.ndim == 2)
    monkeypatch.setattr(validation, "TOGETHER", 100)
    monkeypatch.setattr(torch, "cat", counted)
    clouds = [torch.zeros((n, 2)) for n in (20, 30, 51, 10, 20, 20)]
    pairs = zip(clouds[::2], clouds[1::2], strict=True)
    assert validation.finite_on_device([ds.Problem(x=x, y=y, eps=1.0) for x, y in pairs])
    assert copied == [[20, 30], [10, 20, 20]]
    copied.clear()
    assert validation.finite_on_device([ds.Problem(cost=torch.zeros((3, m)), eps=1.0) for m in (4, 5, 6)])
    assert copied == [[12, 15, 18]]

    def no_room(block: list[Any]) -> Any:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(torch, "cat", no_room)
    assert not validation.finite_on_device([ds.Problem(x=clouds[0], y=clouds[1], eps=1.0)])


def test_points_on_the_host_are_not_said_to_be_finite_on_a_device() -> None:
    points = torch.zeros((3, 2))
    assert not validation.finite_on_device([ds.Problem(x=points, y=points, eps=1.0)])
    assert not validation.finite_on_device([])


@pytest.mark.skipif(CUDA, reason="counts what NumPy warns of in the interpreter")
@pytest.mark.parametrize("dim", [5, 20])
def test_columns_past_the_end_make_no_row_be_done_again(dim: int) -> None:
    rng = np.random.default_rng(0)
    # Far apart: potentials of rows are above 2^7 bits, beyond what float32 holds as a power.
    x, y = rng.normal(size=(40, dim)).astype(np.float32), (rng.normal(size=(70, dim)) + 20).astype(np.float32)
    pack = TritonBackend().pack([validate(ds.Problem(x=x, y=y, eps=2.0, init="zero"), 1e-3)])
    assert Arithmetic(pack._lanes.column("arithmetic")[0]) is Arithmetic.AUGMENTED
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pack.advance(2, [-np.inf])
    assert not [w for w in caught if "invalid value" in str(w.message)]
