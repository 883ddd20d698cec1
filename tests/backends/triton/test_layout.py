"""What Triton's layout kernels make of clouds, against NumPy's float64."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from scipy.special import logsumexp

import drainsinkhorn as ds
from drainsinkhorn.backends import support
from drainsinkhorn.backends.reference import ReferenceBackend
from drainsinkhorn.backends.triton import TritonBackend, launching
from drainsinkhorn.backends.triton.kernels import columns as c
from drainsinkhorn.backends.triton.layout import Clouds, centre_clouds, gather_clouds, gaussian_starts
from drainsinkhorn.backends.triton.transfer import concatenate
from drainsinkhorn.numerics.starts import FLOOR, FULL_DIM, between, start
from drainsinkhorn.run.validate import validate
from tests.device import DEVICE, torch


def clouds(seed: int, lanes: int, n: int, m: int, dim: int, decay: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    spread = decay ** np.arange(dim)
    turn = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    x = rng.normal(size=(lanes, n, dim)) * spread
    y = (3 * rng.normal(size=(lanes, m, dim)) * spread[::-1]) @ turn + rng.normal(size=dim)
    return x, y


def loaded(x: Any, y: Any, a: np.ndarray | None = None) -> tuple[Clouds, Any, int]:
    """Stacks as lanes, their float64 vectors, of which weights are written, and where starts of columns begin."""
    (lanes, n, dim), m = x.shape, y.shape[1]
    a = np.full((lanes, n), 1 / n) if a is None else a
    vectors = np.concatenate([a.reshape(-1), np.full(lanes * m, 1 / m), np.zeros(lanes * m)])
    fields = np.zeros((lanes, c.FIELDS.value), dtype=np.int64)
    begins = (c.MASS.value, 0, n), (c.MASS.value + 1, lanes * n, m), (c.POTENTIAL.value + 1, lanes * (n + m), m)
    for column, begin, size in begins:
        fields[:, column] = begin + size * np.arange(lanes)
    fields[:, c.SIZE.value : c.SIZE.value + 2] = n, m
    table, sizes = torch.tensor(fields, device=DEVICE), np.array([[n, m]] * lanes)
    sides = (concatenate(list(side), torch.device(DEVICE)) for side in (x, y))
    clouds = gather_clouds(*sides, table, sizes, dim)
    return clouds, torch.tensor(vectors, device=DEVICE), lanes * (n + m)


def made(x: np.ndarray, y: np.ndarray, eps: float, a: np.ndarray | None = None) -> np.ndarray:
    """Starts of a stack, in nats."""
    both, vectors, begin = loaded(x, y, a)
    factors = torch.full((len(x),), 1 / (eps * math.log(2)), dtype=torch.float64, device=DEVICE)
    gaussian_starts(both, vectors, centre_clouds(both, factors)[0], factors, always=True)
    return vectors[begin:].cpu().numpy().reshape(len(x), -1) * math.log(2)


@pytest.mark.parametrize(("dim", "decay"), [(1, 1.0), (2, 1.0), (5, 0.5), (15, 0.8), (20, 1.0), (FULL_DIM + 6, 0.95)])
def test_gaussian_starts_are_those_of_numpy(dim: int, decay: float) -> None:
    x, y = clouds(dim, 2, 300, 170, dim, decay)
    found = made(x, y, 0.5)
    for lane in range(2):
        problem = validate(ds.Problem(x=x[lane], y=y[lane], eps=0.5, init="gaussian"), 1e-3)
        truth = start(problem)[1] / 0.5
        # Flooring the smallest variances differs by some 1e-6 of what they explain.
        assert np.abs(found[lane] - truth).max() <= 2e-4 * np.abs(truth).max()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("dim", [1, 13, 31, 50, 64])
def test_gaussian_starts_are_exact_but_for_the_floor(dim: int, dtype: type) -> None:
    x, y = (points.astype(dtype) for points in clouds(dim, 2, 333, 170, dim, 0.99))
    a = np.random.default_rng(7).uniform(0.5, 2.0, size=(2, 333))
    a /= a.sum(1, keepdims=True)
    found = made(x, y, 0.5, a)
    for lane in range(2):
        cov_x = np.cov(x[lane].T.astype(np.float64), aweights=a[lane], ddof=0).reshape(1, dim, dim)
        cov_y = np.cov(y[lane].T.astype(np.float64), ddof=0).reshape(1, dim, dim)
        cov_y += FLOOR * np.trace(cov_y[0]) * np.eye(dim)
        mean_x, mean_y = a[lane] @ x[lane], y[lane].astype(np.float64).mean(0)
        mean, matrix, slope = between(mean_x[None], cov_x, mean_y[None], cov_y, np.array([0.5]))
        around = y[lane] - mean
        truth = ((around @ matrix[0]) * around).sum(1) + around @ slope[0]
        assert np.abs(found[lane] - truth).max() <= 1e-10 * np.abs(truth).max()


@pytest.mark.parametrize("which", ["x", "y", "both"])
def test_clouds_that_are_one_point_start_finite(which: str) -> None:
    x, y = clouds(3, 1, 40, 50, 3)
    x = np.ones_like(x) if which != "y" else x
    y = np.ones_like(y) if which != "x" else y
    found = made(x, y, 0.5)
    truth = start(validate(ds.Problem(x=x[0], y=y[0], eps=0.5, init="gaussian"), 1e-3))[1] / 0.5
    assert np.allclose(found[0], truth, atol=1e-9 * max(1.0, np.abs(truth).max()))


def test_clouds_in_a_plane_start_finite() -> None:
    x, y = clouds(4, 1, 60, 60, 4)
    x[..., 3], y[..., 3] = x[..., 0], y[..., 1]
    found = made(x, y, 0.5)
    truth = start(validate(ds.Problem(x=x[0], y=y[0], eps=0.5, init="gaussian"), 1e-3))[1] / 0.5
    assert np.isfinite(found).all()
    assert np.abs(found[0] - truth).max() <= 1e-2 * np.abs(truth).max()


@pytest.mark.parametrize("dim", [6, 50, 70])
def test_a_lane_of_a_stack_starts_as_it_does_alone(dim: int) -> None:
    x, y = clouds(5, 3, 333, 150, dim)
    together = made(x, y, 0.3)
    for lane in range(3):
        assert np.array_equal(together[lane], made(x[lane : lane + 1], y[lane : lane + 1], 0.3)[0])


def test_launches_are_made_ready_only_for_tensors_that_begin_well() -> None:
    whole = torch.zeros(16, dtype=torch.float64)
    assert launching._values((whole, whole[2:], 3)) == [whole.data_ptr(), whole.data_ptr() + 16, 3]
    assert launching._values((whole, whole[1:], 3)) is None


def test_frames_hold_both_clouds() -> None:
    x, y = clouds(6, 2, 700, 90, 70)
    scales = torch.tensor([1.0, 0.5], dtype=torch.float64, device=DEVICE)
    middles, far = centre_clouds(loaded(x, torch.tensor(y, device=DEVICE).float())[0], scales)
    y = y.astype(np.float32).astype(np.float64)
    low, high = np.minimum(x.min(1), y.min(1)), np.maximum(x.max(1), y.max(1))
    assert np.array_equal(middles[:, 0].cpu().numpy(), low / 2 + high / 2)
    assert np.array_equal(middles[:, 1].cpu().numpy(), x.min(1) / 2 + x.max(1) / 2)
    assert np.allclose(far.cpu().numpy(), np.linalg.norm(high - low, axis=1) * [1.0, 0.5], rtol=1e-14)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("d", [2, 70])
def test_potentials_reach_new_points_on_the_device(d: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "FEW_PAIRS", 0)
    rng = np.random.default_rng(d)
    old, new = (
        ds.Problem(
            x=torch.tensor(rng.normal(size=(n, d))).to(DEVICE),
            y=torch.tensor(rng.normal(size=(m, d))).to(DEVICE) + 2,
            eps=0.05 * d,
        )
        for n, m in ((30, 41), (25, 33))
    )
    given = ds.Potentials(*(torch.tensor(rng.normal(size=size)).to(DEVICE) for size in (30, 41)))
    found = ds.extend(old, given, new, TritonBackend())
    assert found.f.device == new.x.device
    host = [replace(p, x=p.x.cpu().numpy(), y=p.y.cpu().numpy()) for p in (old, new)]
    wanted = ds.extend(host[0], ds.Potentials(given.f.cpu().numpy(), given.g.cpu().numpy()), host[1])
    for mine, theirs in zip(found, wanted, strict=True):
        assert np.allclose(mine.cpu().numpy(), theirs, atol=1e-5 * old.eps)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("single", [True, False])
def test_chains_carry_potentials_on_the_device(single: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "FEW_PAIRS", 0)
    rng = np.random.default_rng(5)
    scans = [torch.tensor(rng.normal(size=(n, 3))).to(DEVICE) for n in (24, 30, 27)]
    scans = [scan.float() if single else scan for scan in scans]
    links = [ds.Problem(x=x, y=y, eps=0.5, chain="clip") for x, y in pairwise(scans)]
    solution = ds.solve(links, tol=1e-4, backend=TritonBackend())
    solution.raise_for_status()
    alone = ds.solve([replace(link, chain=None, init="zero") for link in links], tol=1e-4, backend=TritonBackend())
    assert solution[1].potentials.f.device == scans[0].device
    assert solution[1].potentials.f.dtype == scans[0].dtype
    assert abs(solution[1].transport_cost().dual - alone[1].transport_cost().dual) < 1e-3


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_potentials_of_numpy_may_go_with_points_of_torch(dtype: Any) -> None:
    rng = np.random.default_rng(6)
    x, y = (rng.normal(size=(n, 3)) for n in (20, 26))
    given = ds.Potentials(*(rng.normal(size=n).astype(dtype) for n in (20, 26)))
    problem = validate(ds.Problem(x=torch.tensor(x).to(DEVICE), y=torch.tensor(y).to(DEVICE), eps=0.5), 1e-3)
    (found,) = TritonBackend().couple([problem], [given]).log_ratios("row")
    (wanted,) = ReferenceBackend().couple([validate(ds.Problem(x=x, y=y, eps=0.5), 1e-3)], [given]).log_ratios("row")
    assert str(found.dtype) == f"torch.{np.dtype(dtype)}"
    assert np.allclose(found.cpu().numpy(), wanted, atol=1e-5)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("d", [3, 0])
def test_points_without_weight_get_their_potentials_on_the_device(d: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "FEW_PAIRS", 0)
    rng = np.random.default_rng(d)
    a, b = (np.where(np.arange(size) % 4, 1.0, 0.0) for size in (30, 41))
    given = {"x": rng.normal(size=(30, d)), "y": rng.normal(size=(41, d))} if d else {"cost": rng.random((30, 41))}
    there = {name: torch.tensor(value).to(DEVICE) for name, value in given.items()}
    # A neighbour whose idle points lie anywhere.
    wild = {name: value.clone() for name, value in there.items()}
    if d:
        wild["x"][0] = 1e30
    problems = [ds.Problem(**some, a=a / a.sum(), b=b / b.sum(), eps=0.5) for some in (there, wild)]
    f, g = (
        part.cpu().numpy() for part in ds.solve(problems, max_depth=2, rescue=False, backend="triton")[0].potentials
    )
    cost = given["cost"] if d == 0 else cdist(given["x"], given["y"], "sqeuclidean")
    with np.errstate(divide="ignore"):
        wanted_f = -0.5 * logsumexp((g - cost) / 0.5 + np.log(b / b.sum()), axis=1)
        wanted_g = -0.5 * logsumexp((f[:, None] - cost) / 0.5 + np.log(a / a.sum())[:, None], axis=0)
    assert np.allclose(f[a == 0], wanted_f[a == 0], atol=1e-5)
    assert np.allclose(g[b == 0], wanted_g[b == 0], atol=1e-5)
