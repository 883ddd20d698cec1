"""Large lanes of many coordinates: limits in bytes, matrices in blocks of rows, float64 legs by products."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.backends.triton import PACK_BYTES, POINT_BYTES, TritonBackend, launching, layout, precision, stacks
from drainsinkhorn.backends.triton.blocks import BlockLegs
from drainsinkhorn.backends.triton.kernels import columns as c
from drainsinkhorn.backends.triton.launcher import SAMPLES
from drainsinkhorn.backends.triton.precision import matrix_bytes
from drainsinkhorn.run.validate import validate
from drainsinkhorn.testing.auditor import marginal_errors
from tests.device import DEVICE, torch

# The interpreter computes in NumPy, which warns of overflow where a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
ROWS, COLS, DIM = 70, 50, 70


def problem(seed: int = 0, n: int = ROWS, m: int = COLS, **more: Any) -> ds.Problem[Any]:
    """Noise against points near a plane of few dimensions."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, DIM))
    y = 3 * rng.normal(size=(m, 4)) @ rng.normal(size=(4, DIM)) / 2 + 0.3 * rng.normal(size=(m, DIM))
    clouds = (torch.tensor(points.astype(np.float32), device=DEVICE) for points in (x, y))
    return ds.Problem(**dict(zip("xy", clouds, strict=True)), **({"eps": 100.0} | more))


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every lane above a thousand pairs is large, and its blocks have 16 rows."""
    monkeypatch.setattr(precision, "LARGE_PAIRS", 1000)
    monkeypatch.setattr(layout, "BLOCK_PAIRS", 20 * COLS)


def matrix(pack: Any) -> Any:
    """The cached scores of the first lane with the f that they contain, and that f."""
    place, size = pack._lanes.places[0], -(-COLS // 64) * 64
    at = [pack._table.offset(place, column.value) for column in (c.MATRIX, c.NORM)]
    scores = pack._buffers["points32"][at[0] : at[0] + ROWS * size].view(ROWS, size)[:, :COLS]
    return scores.double(), pack._buffers["vectors64"][at[1] : at[1] + ROWS]


def loaded(tol: float = 1e-3, **more: Any) -> Any:
    return TritonBackend(acceleration="momentum").pack([validate(problem(**more), tol)])


def test_blocks_of_rows_are_multiples_of_sixteen() -> None:
    assert layout.block_rows(8192, 8192) == 8192
    assert layout.block_rows(65536, 65536) == 1024
    assert layout.block_rows(100_000, 100_000) == 640
    assert layout.block_rows(100_000, 2**21) == 32
    assert layout.block_rows(40, 2**24) == 16
    assert layout.block_rows(5, 2**28) == 5


@pytest.mark.parametrize("by_library", [True, False])
def test_a_matrix_in_blocks_is_that_of_one_block(by_library: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit where each product is summed on its own; a library may round products of other shapes differently."""
    monkeypatch.setattr(precision, "LARGE_PAIRS", 1000)
    if by_library:
        monkeypatch.setattr(layout, "TOGETHER_PAIRS", 0)
    whole, base = matrix(loaded())
    monkeypatch.setattr(layout, "BLOCK_PAIRS", 20 * COLS)
    assert layout.block_rows(ROWS, COLS) == 16
    parts, levels = matrix(loaded())
    assert by_library or (torch.equal(whole, parts) and torch.equal(base, levels))
    assert float((base - levels).abs().max()) <= 1e-12
    assert float((whole - parts).abs().max()) <= 1e-5
    monkeypatch.setattr(precision, "LARGE_PAIRS", 2**25)
    exact, absorbed = matrix(loaded())
    # The f that is absorbed is rounded, and the matrix is exact for it.
    assert 0 < float((base - absorbed).abs().max()) <= 1e-5
    assert float(((exact - absorbed[:, None]) - (whole - base[:, None])).abs().max()) <= 1e-5


@pytest.mark.parametrize(
    ("tol", "accelerate", "soft", "cached_bytes"),
    [
        (1e-3, "momentum", False, 2**28),
        (1e-8, "momentum", False, 2**28),
        (1e-8, "none", False, 0),
        (1e-3, "momentum", True, 2**28),
    ],
)
def test_large_lanes_converge(tol: float, accelerate: str, soft: bool, cached_bytes: int, small_blocks: None) -> None:
    given = problem(rho=3.0) if soft else problem()
    backend = TritonBackend(cached_bytes=cached_bytes)
    how: dict[str, Any] = {"tol": tol, "accelerate": accelerate, "rescue": False}
    result, truth = ds.solve([given], backend=backend, **how)[0], ds.solve([given], backend="reference", **how)[0]
    assert result.converged
    assert ("cached" in result.arithmetic) is (cached_bytes > 0)
    if not soft:
        assert max(marginal_errors(given, result.potentials)) <= tol
    close = {"rtol": 0.0, "atol": 30 * tol * given.eps}
    for ours, theirs in zip(result.potentials, truth.potentials, strict=True):
        ours, theirs = (side.double().cpu().numpy() for side in (ours, theirs))
        shift = 0.0 if soft else (ours - theirs).mean()
        np.testing.assert_allclose(ours - shift, theirs, **close)


@pytest.mark.usefixtures("small_blocks")
def test_float32_is_accurate_enough_where_scores_are_hundreds_of_bits() -> None:
    """Noise against a cloud like one of images: what the matrix has absorbed leaves small exponents where mass is."""
    rng, n, d = np.random.default_rng(4), 64, 400
    spectrum = 1 / np.arange(1, 21)
    low_rank = rng.normal(size=(n, 20)) * np.sqrt(0.9 * d * spectrum / spectrum.sum())
    x, y = rng.normal(size=(n, d)), low_rank @ np.linalg.qr(rng.normal(size=(d, 20)))[0].T
    x, y = (torch.tensor(c.astype(np.float32), device=DEVICE) for c in (x, y + 0.3 * rng.normal(size=(n, d))))
    costs = torch.cdist(x.double(), y.double()).square()
    eps = 0.03 * float(costs.std())
    assert float(costs.mean()) / eps / np.log(2) > 200
    given = ds.Problem(x=x, y=y, eps=eps)
    pack = TritonBackend().pack([validate(given, 1e-3)])
    assert pack._lanes.column("arithmetic")[0] == precision.Arithmetic.FLOAT32.value
    result = ds.solve([given], backend="triton", rescue=False)[0]
    assert result.converged
    assert result.residual.band <= 1e-5
    assert max(marginal_errors(given, result.potentials)) <= 1e-3


def test_large_lanes_have_the_same_bits_in_any_company(small_blocks: None) -> None:
    """Beside small lanes, which have direct differences, and beside lanes of other tolerances."""
    given = [problem(0), problem(1, 12, 9), problem(2, tol=1e-7), problem(3, 14, 30, tol=1e-7)]
    how: dict[str, Any] = {"backend": TritonBackend(), "rescue": False, "max_depth": 200}
    together = ds.solve(given, mode="stream", width=4, **how)
    assert all(result.converged for result in together)
    for one, result in zip(given, together, strict=True):
        assert max(marginal_errors(one, result.potentials)) <= (one.tol or 1e-3)
        alone = ds.solve([one], **how)[0]
        assert alone.residual == result.residual
        assert all(torch.equal(*pair) for pair in zip(alone.potentials, result.potentials, strict=True))


def test_samples_of_large_lanes_are_those_of_direct_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = [validate(problem(seed, n), 1e-3) for seed, n in ((0, ROWS), (1, 20))]
    pack = TritonBackend().pack(lanes)
    pack.advance(2, [-np.inf] * 2)
    chosen, potentials = pack._lanes, pack._buffers["vectors64"]
    truth = pack._launcher.sample(chosen, c.BOTH.value, potentials)
    for large in ([True, False], [True, True]):
        pack._table.host["in_blocks"] = large
        found = pack._launcher.sample(chosen, c.BOTH.value, potentials)
        for place, instance in enumerate(lanes):
            for side, size in enumerate(instance.shape):
                mine, theirs = (some[side, place, : min(size, SAMPLES)] for some in (found, truth))
                assert float((mine - theirs).abs().max()) <= 1e-11
        assert torch.equal(found[:, 1, :20], truth[:, 1, :20]) is (large == [True, False])


@pytest.mark.parametrize("soft", [False, True])
def test_float64_legs_in_blocks_are_those_of_direct_differences(
    soft: bool, small_blocks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = validate(problem(rho=3.0) if soft else problem(), 1e-3)
    backend, legs = TritonBackend(precision="float64", cached_bytes=0, acceleration="momentum"), []
    for most in (1000, 10**9):
        monkeypatch.setattr(precision, "LARGE_PAIRS", most)
        pack = backend.pack([given])
        progress = pack.advance(3, [-np.inf])
        legs.append((progress.stale[0], pack.verify([0]), pack.screen([0])))
    (stale, checked, screened), (stale_there, checked_there, screened_there) = legs
    assert stale == pytest.approx(stale_there, abs=1e-11)
    assert screened[0] == pytest.approx(screened_there[0], abs=1e-11)
    assert checked.row[0] == pytest.approx(checked_there.row[0], abs=1e-11)
    assert checked.col[0] == pytest.approx(checked_there.col[0], abs=1e-11)


def test_the_limit_is_in_bytes_of_the_padded_matrix() -> None:
    given = validate(problem(), 1e-3)
    assert matrix_bytes(ROWS, COLS) == 4 * 128 * 64
    for cached_bytes, word in ((4 * 128 * 64, "cached"), (4 * 128 * 64 - 1, "streaming"), (0, "streaming")):
        backend = TritonBackend(cached_bytes=cached_bytes)
        assert word in backend.hints(given).arithmetic
        assert (backend.signature(given) == TritonBackend().signature(given)) is (word == "cached")
    for wrong in (-1, 2.0, "8 GB", True):
        with pytest.raises(ds.OptionsError, match="cached_bytes"):
            TritonBackend(cached_bytes=wrong)  # type: ignore[arg-type]


def test_the_default_limit_is_a_number_that_other_backends_inherit() -> None:
    backend = TritonBackend()
    assert type(backend.cached_bytes) is int
    assert backend.cached_bytes == 1 << backend.cached_bytes.bit_length() - 1, "a power of two"
    for other in (backend.precise(), backend.using("momentum")):
        assert other.cached_bytes == backend.cached_bytes
    assert backend.frugal().cached_bytes == 0


class Sized:
    """What hints and representation need of a problem of any size."""

    def __init__(self, n: int, m: int, dim: int, kind: str = "sqeuclidean") -> None:
        small = validate(ds.Problem(x=np.zeros((2, dim)), y=np.ones((2, dim)), eps=1.0, cost=kind), 1e-3)
        self.shape, self.dim, self.cost = (n, m), dim, small.cost
        self.is_dense, self.matrix = False, None


@pytest.mark.parametrize(
    ("n", "dim", "kind", "width", "word"),
    [
        (5000, 500, "sqeuclidean", 42, "cached"),
        (16384, 3072, "sqeuclidean", 16, "cached"),
        (65536, 3072, "sqeuclidean", 2, "cached"),
        (100_000, 3072, "sqeuclidean", 1, "cached"),
        (160_000, 3072, "sqeuclidean", 2, "streaming"),
        (65536, 50, "sqeuclidean", 16, "streaming"),
        (4096, 500, "euclidean", 64, "cached"),
        (16384, 500, "euclidean", 16, "streaming"),
    ],
)
def test_packs_of_huge_lanes_are_narrow(n: int, dim: int, kind: str, width: int, word: str) -> None:
    given: Any = Sized(n, n, dim, kind)
    hints = TritonBackend(cached_bytes=2**36).hints(given)
    assert (hints.width, word in hints.arithmetic) == (width, True)
    if word == "cached":
        assert hints.width * (matrix_bytes(n, n) + POINT_BYTES * 2 * n * dim) <= max(2**36, PACK_BYTES)


@pytest.mark.usefixtures("small_blocks")
def test_a_large_lane_streams_where_there_is_no_memory_for_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the matrix is made, or at verify, after the matrix has fit: then a lane runs again and has one."""
    given, calls = problem(), list[int]()

    def fail(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate too much.")

    sample = BlockLegs.sample

    def fail_once(*args: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            fail()
        sample(*args)

    with monkeypatch.context() as patch:
        patch.setattr(layout, "products", fail)
        streamed = ds.solve([given], backend="triton")[0]
    monkeypatch.setattr(BlockLegs, "sample", fail_once)
    again, truth = (ds.solve([given], backend="triton")[0] for _ in range(2))
    assert (streamed.streamed, again.streamed, truth.streamed) == (True, False, False)
    assert again.residual == truth.residual
    for result in (streamed, again):
        assert result.converged
        assert max(marginal_errors(given, result.potentials)) <= 1e-3
    assert ("streaming" in streamed.arithmetic, "cached" in again.arithmetic) == (True, True)


@pytest.mark.usefixtures("small_blocks")
def test_large_lanes_in_float64_have_no_matrix() -> None:
    backend = TritonBackend().precise()
    assert backend.hints(validate(problem(), 1e-3)).arithmetic == "float64, streaming"
    assert backend.hints(validate(problem(0, 20, 20), 1e-3)).arithmetic == "float64, cached"


def test_large_integers_are_left_to_triton() -> None:
    value = torch.zeros(16, dtype=torch.float64)
    assert launching._values((value, 2**31 - 1)) == [value.data_ptr(), 2**31 - 1]
    assert launching._values((value, 2**31)) is None


@pytest.mark.parametrize(("side", "far"), [("row", False), ("col", False), ("row", True)])
def test_float64_sums_over_plans_of_large_lanes(side: str, far: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By products in blocks; of points too far apart for these, by direct differences."""
    rng, weights = np.random.default_rng(5), np.r_[0.0, np.full(ROWS - 1, 1 / (ROWS - 1))]
    given = [problem(0, eps=400.0), problem(1, 40, 45, eps=400.0), problem(2, a=weights, eps=400.0)]
    given = [replace(one, x=one.x.double(), y=one.y.double()) for one in given]
    if far:
        for one in given:
            one.x[0] += 1e9
    instances = [validate(one, 1e-3) for one in given]
    potentials = [ds.Potentials(*(400.0 * rng.normal(size=size) for size in one.shape)) for one in instances]
    if far:
        for pair in potentials:
            pair.f[0] = 1e18 * DIM
    values = [rng.normal(size=(len(one.y if side == "row" else one.x), 5)) for one in given]
    used, averages = list[int](), stacks.averages

    def record(*args: Any) -> Any:
        used.append(len(args[0]))
        return averages(*args)

    monkeypatch.setattr(stacks, "averages", record)
    outcomes = []
    for most in (10**9, 1000):
        monkeypatch.setattr(precision, "LARGE_PAIRS", most)
        monkeypatch.setattr(layout, "BLOCK_PAIRS", 20 * COLS)
        plans = TritonBackend().couple(instances, potentials)
        kept = [cloud.clone() for one in given for cloud in (one.x, one.y)]
        costs = [tuple(each)[:4] for each in plans.transport_cost()]
        outcomes.append((plans.log_ratios(side), plans.average(values, side), costs))
        assert bool(used) is (most == 1000 and not far)
        assert all(torch.equal(*pair) for pair in zip(kept, (c for one in given for c in (one.x, one.y)), strict=True))
    for ours, theirs in zip(*outcomes, strict=True):
        for mine, truth in zip(ours, theirs, strict=True):
            assert torch.allclose(*map(torch.as_tensor, (mine, truth)), rtol=1e-9, atol=1e-10, equal_nan=True)
