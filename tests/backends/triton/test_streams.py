"""The caller's current stream, from several threads and on any device: on CUDA devices alone."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import drainsinkhorn as ds
from drainsinkhorn.backends.triton import TritonBackend
from tests.device import CUDA, torch

pytestmark = pytest.mark.skipif(not CUDA, reason="the interpreter has no streams")
SLEEP = 200_000_000
"""Clock cycles for which a device is kept busy: about a tenth of a second."""


def clouds(seed: int, device: str = "cuda") -> tuple[Any, Any]:
    generator = torch.Generator(device).manual_seed(seed)
    x, y = (torch.randn(4, 600, 3, generator=generator, device=device) for _ in range(2))
    return x, y


def same(one: ds.Solution[Any], other: ds.Solution[Any]) -> bool:
    return all(torch.equal(p, q.to(p.device)) for p, q in zip(one.potentials, other.potentials, strict=True))


@pytest.mark.parametrize("with_gradients", [False, True])
def test_points_written_in_a_side_stream_are_read_after_they_are_written(with_gradients: bool) -> None:
    x, y = clouds(0)
    wanted = ds.solve(x, y, eps=0.1)
    images = ds.barycentric_map(wanted[0])
    torch.cuda.synchronize()
    late = torch.full_like(x, float("nan"))
    with torch.cuda.stream(torch.cuda.Stream()), torch.set_grad_enabled(with_gradients):
        torch.cuda._sleep(SLEEP)
        late.copy_(x)
        solution = ds.solve(late, y, eps=0.1)
        assert same(solution, wanted)
        assert torch.equal(ds.barycentric_map(solution[0]), images)


def test_nothing_waits_for_the_default_stream() -> None:
    x, y = clouds(0)
    wanted = ds.solve(x, y, eps=0.1)
    torch.cuda.synchronize()
    for _ in range(40):
        torch.cuda._sleep(SLEEP)
    with torch.cuda.stream(torch.cuda.Stream()):
        assert same(ds.solve(x, y, eps=0.1), wanted)
    assert not torch.cuda.default_stream().query(), "the default stream was still at work"
    torch.cuda.synchronize()


def test_two_threads_with_streams_of_their_own() -> None:
    pairs = [clouds(seed) for seed in range(2)]
    wanted = [ds.solve(x, y, eps=0.1) for x, y in pairs]
    torch.cuda.synchronize()
    failures = list[Any]()

    def work(place: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()), torch.no_grad():
                for _ in range(10):
                    assert same(ds.solve(*pairs[place], eps=0.1), wanted[place])
        except BaseException as error:  # noqa: BLE001  raised again in the main thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(place,)) for place in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one device")
def test_a_device_that_is_not_the_current_one() -> None:
    x, y = clouds(0)
    wanted = ds.solve(x, y, eps=0.1)
    there = ds.solve(x.to("cuda:1"), y.to("cuda:1"), eps=0.1, backend=TritonBackend(device="cuda:1"))
    assert same(wanted, there)
    assert there.potentials.f.device == torch.device("cuda:1")
    assert torch.cuda.current_device() == 0
