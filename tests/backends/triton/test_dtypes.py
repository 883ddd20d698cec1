"""The Triton backend takes every dtype that the door lets in, and a failed repack leaves a pack as it was."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.backends.triton import TritonBackend
from drainsinkhorn.backends.triton import pack as module
from drainsinkhorn.numerics.arrays import float_name
from drainsinkhorn.run.validate import validate
from drainsinkhorn.testing.auditor import marginal_errors
from tests.device import DEVICE, torch

# The interpreter computes in NumPy, which warns of overflow where a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

RNG = np.random.default_rng(0)


def test_integers_beside_float32_are_not_rounded() -> None:
    near = torch.rand((20, 24), device=DEVICE)
    far = torch.from_numpy(RNG.integers(0, 40, size=(20, 24)) + 2**25).to(DEVICE)
    together, alone = (ds.solve(cost=costs, eps=2.0, backend="triton")[-1] for costs in ([near, far], [far]))
    assert torch.equal(together.potentials.f, alone.potentials.f)
    plan = np.exp(
        (alone.potentials.f.cpu().numpy()[:, None] + alone.potentials.g.cpu().numpy() - far.cpu().numpy()) / 2
    )
    assert together.converged
    assert np.abs(plan.mean(1) / 20 - 1 / 20).sum() <= 1e-3


def test_plans_of_large_integers_are_consumed_as_they_are() -> None:
    x, y = (2**26 + RNG.integers(0, 12, size=(size, 2)) for size in (20, 24))
    result, truth = (ds.solve([x], [y], eps=20.0, backend=backend)[0] for backend in ("triton", "reference"))
    assert np.abs(result.barycentric_map() - truth.barycentric_map()).max() < 1e-2
    assert math.isclose(result.transport_cost().transport, truth.transport_cost().transport, rel_tol=1e-3)


@pytest.mark.parametrize("dtype", [">f8", ">f4", np.longdouble])
def test_what_torch_does_not_know_is_converted(dtype: Any) -> None:
    x, y = (RNG.normal(size=(size, 2)).astype(np.float32) for size in (20, 24))
    other, plain = (
        ds.solve([p, p], [q, q], eps=2.0, backend="triton") for p, q in ((x.astype(dtype), y.astype(dtype)), (x, y))
    )
    assert other.converged
    assert np.allclose(other[0].barycentric_map(), plain[0].barycentric_map(), atol=1e-2)


@pytest.mark.parametrize("where", ["loading", "measuring"])
def test_lanes_go_on_after_a_repack_without_memory(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (
        validate(ds.Problem(x=RNG.normal(size=(n, 2)), y=RNG.normal(size=(n, 2)) + 1, eps=0.5), 1e-4) for n in (20, 60)
    )
    packs = [TritonBackend(acceleration="momentum").pack([first]) for _ in range(2)]
    for pack in packs:
        # Launches are made ready for the buffers there are.
        pack.advance(4, [-math.inf])
    before = packs[0]._buffers.mark()
    owner, name = (module, "load_group") if where == "loading" else (module.TritonPack, "_first_errors")
    found = getattr(owner, name)

    def late(*args: Any, **settings: Any) -> Any:
        found(*args, **settings)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate too much.")

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, late)
        with pytest.raises(MemoryError):
            packs[0].repack([0], [second])
    assert packs[0]._buffers.mark() == before
    assert packs[0].advance(4, [-math.inf]) == packs[1].advance(4, [-math.inf])
    packs[0].repack([0], [second])
    assert packs[0].verify([0]) == packs[1].verify([0])


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("shape", [(12, 12, 3), (9, 10, 70)])
@pytest.mark.parametrize("lanes", [1, 2])
def test_points_that_lie_coordinate_by_coordinate_are_the_same_points(
    lanes: int, shape: tuple[int, int, int], library: str
) -> None:
    n, m, dim = shape
    clouds = [RNG.normal(size=(size, dim)) for size in [n, m] * lanes]
    turned = [cloud.T.copy().T for cloud in clouds]
    if library == "torch":
        clouds = [torch.from_numpy(cloud).to(DEVICE) for cloud in clouds]
        turned = [cloud.T.contiguous().T for cloud in clouds]
    plain, other = (
        ds.solve(
            [ds.Problem(x=x, y=y, eps=dim) for x, y in zip(some[::2], some[1::2], strict=True)],
            backend="triton",
            max_depth=2,
            rescue=False,
        )
        for some in (clouds, turned)
    )
    for one, two in zip(plain, other, strict=True):
        assert one.depth == two.depth
        assert all(map(torch.equal, *(map(torch.as_tensor, result.potentials) for result in (one, two))))


@pytest.mark.parametrize(("library", "dtype"), [("numpy", "float16"), ("torch", "float16"), ("torch", "bfloat16")])
def test_sixteen_bits_come_back_where_they_hold_tol(library: str, dtype: str) -> None:
    clouds = [0.5 * RNG.normal(size=(size, 2)) for size in (20, 24)]
    x, y = (torch.from_numpy(p).to(DEVICE, getattr(torch, dtype)) for p in clouds)
    if library == "numpy":
        x, y = x.cpu().numpy(), y.cpu().numpy()
    weights = np.ones(20)
    weights[0] = 0
    for tol, name in ((0.3, dtype), (1e-3, "float32"), (1e-8, "float64")):
        problem = ds.Problem(x=x, y=y, eps=1.0, tol=tol)
        idle = ds.Problem(x=x, y=y, a=weights / 19, eps=1.0, tol=tol)
        ours, truth = (ds.solve([problem, idle], backend=backend) for backend in ("triton", "reference"))
        for result, other in zip(ours, truth, strict=True):
            assert result.converged
            assert {float_name(p) for p in result.potentials} == {name} == {float_name(p) for p in other.potentials}
            assert result.widened == other.widened == (name != dtype)
            assert max(marginal_errors(result.problem, result.potentials)) <= tol
