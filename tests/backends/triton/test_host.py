"""What the host does around Triton's kernels: launches made ready, numbers sent and fetched, fields of lanes."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.backends.triton import TritonBackend, compile_kernels, launcher, launching, tiles
from drainsinkhorn.backends.triton import pack as module
from drainsinkhorn.backends.triton.buffers import Buffers, aligned
from drainsinkhorn.backends.triton.layout import clouds, together
from drainsinkhorn.backends.triton.loading import Views, _fill_masses
from drainsinkhorn.numerics.weights import uniform
from drainsinkhorn.run.validate import validate
from tests.device import DEVICE, torch

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


class Kernel:
    """A kernel that writes down how it is compiled and launched."""

    __name__ = "kernel"
    arg_names = ("place", "count", "BLOCK")

    def __init__(self, refuses: bool = False) -> None:
        self.compiled, self.direct, self.by_triton, self.refuses = 0, [], [], refuses

    def warmup(self, *args: Any, grid: Any, **constants: Any) -> Any:
        self.compiled += 1
        return SimpleNamespace(run=self.run, function=17, packed_metadata="packed")

    def run(self, *args: Any) -> None:
        if self.refuses:
            raise TypeError("other arguments are wanted")
        self.direct.append(args)

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **constants: self.by_triton.append((grid, args, constants))


@pytest.fixture
def forms(monkeypatch: pytest.MonkeyPatch) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    monkeypatch.setattr(launching, "_forms", found)
    return found


def test_launches_of_one_form_compile_once_and_differ_in_their_values(forms: dict[Any, Any]) -> None:
    kernel, place = Kernel(), torch.empty(4, device="meta")
    for count in (3, 5):
        launching.prepared(kernel, (7, count), place, count, BLOCK=64, num_warps=4)(11)
    assert (kernel.compiled, len(forms), kernel.by_triton) == (1, 1, [])
    start = (None, None, None, place.data_ptr())
    assert kernel.direct == [(7, c, 1, 11, 17, "packed", *start, c, 64) for c in (3, 5)]
    launching.prepared(kernel, (7,), place, 3, BLOCK=128, num_warps=4)(11)
    launching.prepared(kernel, (7,), place.double(), 3, BLOCK=128, num_warps=4)(11)
    assert kernel.compiled == 3


def test_a_launcher_that_wants_other_arguments_is_left_to_triton(forms: dict[Any, Any]) -> None:
    kernel, place = Kernel(refuses=True), torch.empty(4, device="meta")
    launching.prepared(kernel, (7,), place, 3, BLOCK=64)(11)
    assert kernel.by_triton == [((7,), (place, 3), {"BLOCK": 64})]


def test_a_device_without_a_number_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    active = SimpleNamespace(get_current_stream=lambda index: 100 + index)
    monkeypatch.setattr(launching, "driver", SimpleNamespace(active=active))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert [launching.stream_of(torch.device(name)) for name in ("cuda", "cuda:1", "cpu")] == [103, 101, 0]


def test_kernels_are_compiled_and_launched_for_the_device_of_their_arguments(
    forms: dict[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    current, seen = [0], list[tuple[str, int]]()

    class Device:
        def __init__(self, device: Any) -> None:
            self.index = device.index

        def __enter__(self) -> None:
            self.before, current[0] = current[0], self.index

        def __exit__(self, *_: object) -> None:
            current[0] = self.before

    class Watched(Kernel):
        def warmup(self, *args: Any, **settings: Any) -> Any:
            seen.append(("compiled", current[0]))
            return super().warmup(*args, **settings)

        def run(self, *args: Any) -> None:
            seen.append(("launched", current[0]))

    monkeypatch.setattr(torch.cuda, "device", Device)
    monkeypatch.setattr(launching, "stream_of", lambda device: 7)
    monkeypatch.setattr(launcher, "stream_of", lambda device: 7)
    place = SimpleNamespace(device=torch.device("cuda:1"), dtype=torch.float32, data_ptr=lambda: 64)
    launching.launch(kernel := Watched(), (7,), place, 3, BLOCK=64)
    ready = launching.prepared(kernel, (7,), place, 5, BLOCK=64)
    launcher.Launcher(None, None, None, torch.device("cuda:1"), momentum=True).run(ready)  # type: ignore[arg-type]
    assert seen == [("compiled", 1), ("launched", 1), ("launched", 1)]
    assert current == [0]


def test_numbers_arrive_as_they_were_sent() -> None:
    sent = np.random.default_rng(0).normal(size=(3, 5))
    there = launching.upload(sent, torch.float64, DEVICE)
    found = launching.Download(there * 1.0)
    sent = sent.copy()
    there.zero_()
    assert np.array_equal(found.read(), sent)
    assert np.array_equal(found.again(there + 2.0).read(), np.full((3, 5), 2.0))


def test_vectors_are_views_of_their_buffers() -> None:
    buffers = Buffers(DEVICE)
    start, size = buffers.take("vectors64", 64), 70
    start = buffers.take("vectors64", 2 * aligned(size))
    views = Views(buffers, 2)
    views.place("MASS", 0, "vectors64", start, size)
    views["MASS", 0][1, 69] = 3.0
    assert "MASS" in views
    assert views["MASS", 0].shape == (2, size)
    assert "NORM" not in views
    assert float(buffers["vectors64"][start + aligned(size) + 69]) == 3.0
    assert float(buffers["vectors64"].sum()) == 3.0


def masses(a: list[Any], b: list[Any]) -> list[Any]:
    """Weights of both sides of some lanes, as they are written."""
    buffers = Buffers(DEVICE)
    views = Views(buffers, len(a))
    for side, weights in enumerate((a, b)):
        start = buffers.take("vectors64", len(a) * aligned(len(weights[0])))
        views.place("MASS", side, "vectors64", start, len(weights[0]))
    instances = [ds.Instance(eps=1.0, tol=1e-3, a=p, b=q, cost=ds.Cost()) for p, q in zip(a, b, strict=True)]
    _fill_masses(instances, views, DEVICE)
    return [views["MASS", side].cpu().numpy() for side in (0, 1)]


@pytest.mark.parametrize("size", [1, 3, 41])
@pytest.mark.parametrize("other_size", [3, 7])
def test_uniform_weights_are_written_as_validation_makes_them(size: int, other_size: int) -> None:
    a, b = uniform(size), uniform(other_size)
    wanted = [np.stack([a, a]), np.stack([b, b])]
    for found in (masses([a, a], [b, b]), masses([a, a.copy()], [b, b]), masses([a, a], [b, b.copy()])):
        assert all(np.array_equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_two_stacks_are_one_only_where_the_second_lies_behind_the_first() -> None:
    both = torch.arange(24.0, device=DEVICE).reshape(4, 3, 2)
    whole = together(both[:2], both[2:])
    assert torch.equal(whole, both)
    assert whole.data_ptr() == both.data_ptr()
    assert together(both[:2], both[2:].clone()) is None
    assert together(both[2:], both[:2]) is None
    assert together(both[:1], both[2:3]) is None
    assert together(both[:2], both[2:].double()) is None


def test_stacks_are_not_one_that_has_more_lanes_than_a_launch() -> None:
    both = torch.zeros((2**16, 1, 1), device=DEVICE)
    assert together(both[: 2**15], both[2**15 :]) is None
    assert len(together(both[2 : 2**15], both[2**15 : -2])) == 2**16 - 4


@pytest.mark.parametrize("size", [8, 9])
def test_clouds_of_one_kind_are_stacked_one_behind_the_other_if_both_begin_well(size: int) -> None:
    xs, ys = ([torch.full((size, 3), float(k), device=DEVICE) for k in keys] for keys in ((1, 2, 3), (4, 5, 6)))
    x, y = clouds(xs, ys, torch.device(DEVICE))
    assert (together(x, y) is not None) == (size == 8)
    assert x[:, 0, 0].tolist() == [1, 2, 3]
    assert y[:, 0, 0].tolist() == [4, 5, 6]
    shared, _ = clouds([xs[0]] * 3, ys, torch.device(DEVICE))
    assert shared.stride(0) == 0


def test_stops_are_told_only_where_they_change() -> None:
    rng = np.random.default_rng(1)
    x, y = torch.as_tensor(rng.normal(size=(2, 9, 2)), dtype=torch.float32).to(DEVICE)
    problem = validate(ds.Problem(x=x, y=y, eps=0.5), 1e-3)
    pack = TritonBackend().pack([problem] * 3)
    pack.advance(1, [-1.0, -2.0, -3.0])
    told = pack._table._stops
    pack.advance(1, [-1.0, -2.0, -3.0])
    assert pack._table._stops is told
    pack.repack([2, 0])
    pack.advance(1, [-3.0, -1.0])
    assert pack._table._stops is told
    pack.advance(1, [-3.0, -4.0])
    assert pack._table.limits.cpu().tolist() == [-4.0, -2.0, -3.0]


@pytest.mark.parametrize(
    ("size", "kind", "dp", "shares"),
    [(8192, tiles.DIRECT, 3, 4), (16384, tiles.PRODUCT, 16, 2), (16384, tiles.PRODUCT, 64, 3), (100, tiles.ROOT, 16, 1),
     (8192, tiles.PRODUCT, 64, 6), (1024, tiles.STORED, 16, 4), (10**6, tiles.DIRECT, 3, 1)],
)  # fmt: skip
def test_a_lane_alone_fills_the_device_where_it_can(size: int, kind: int, dp: int, shares: int) -> None:
    tile = tiles.TILES[kind, dp]
    found = tiles.splits(size, size, tile["bm"], tile["bn"], tile["least"], tile["resident"])
    assert found == shares
    waves = -(-size // tile["bm"]) * found / (tile["resident"] * tiles.MULTIPROCESSORS)
    assert waves / math.ceil(waves) >= tiles.FILLED or found == max(1, size // tile["bn"] // tile["least"])


def test_what_is_compiled_beforehand_is_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny problems of `prepare` run every verb of a pack."""
    ran: set[str] = set()
    for name in ("advance", "verify", "screen"):
        verb = getattr(module.TritonPack, name)

        def noted(pack: Any, *args: Any, name: str = name, verb: Any = verb, **settings: Any) -> Any:
            ran.add(name + "".join(sorted(settings)))
            return verb(pack, *args, **settings)

        monkeypatch.setattr(module.TritonPack, name, noted)
    backend = TritonBackend(acceleration="momentum")
    form = backend.policy.representation(validate(ds.Problem(x=np.ones((3, 2)), y=np.zeros((3, 2)), eps=1.0), 1e-3))
    compile_kernels.__wrapped__(form, backend.policy, torch.device(DEVICE))
    assert ran == {"advance", "advancelockstep", "verify", "verifyexact", "screen"}
