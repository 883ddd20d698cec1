"""What the host does around Triton's kernels: launches made ready, numbers sent and fetched, fields of lanes."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.backends.triton import TritonBackend, launcher, launching, layout, tiles
from drainsinkhorn.backends.triton.kernels import columns as c
from drainsinkhorn.backends.triton.transfer import concatenate
from drainsinkhorn.numerics.costs import COSTS
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
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])
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


def masses(a: list[Any], b: list[Any], uniform: list[bool]) -> list[list[Any]]:
    """Weights of both sides of lanes, as a pack has them on the device."""
    cost, rng = ds.Cost(COSTS["sqeuclidean"]), np.random.default_rng(0)
    instances = [
        ds.Instance(
            eps=1.0, tol=1e-3, a=p, b=q, cost=cost, x=rng.normal(size=(len(p), 2)), y=rng.normal(size=(len(q), 2)),
            uniform=flag,
        )
        for p, q, flag in zip(a, b, uniform, strict=True)
    ]  # fmt: skip
    pack = TritonBackend(resident_points=64).pack(instances)
    fields, vectors = pack._table.fields.cpu().numpy(), pack._buffers["vectors64"].cpu().numpy()
    starts = fields[:, c.MASS.value : c.MASS.value + 2]
    return [
        [vectors[k : k + len(own)] for k, own in zip(starts[:, side], (a, b)[side], strict=True)] for side in (0, 1)
    ]


@pytest.mark.parametrize("size", [1, 3, 41])
@pytest.mark.parametrize("other_size", [3, 7])
def test_weights_are_written_as_validation_makes_them(size: int, other_size: int) -> None:
    a, b = uniform(size), uniform(other_size)
    own = np.random.default_rng(1).dirichlet(np.ones(other_size))
    # Uniform weights of lanes of one size are one vector; others are stored once, whoever has them.
    lanes = [(a, b, True), (a, own, False), (b, own, False), (b, a, True), (a.copy(), b, False)]
    sides = [lane[0] for lane in lanes], [lane[1] for lane in lanes]
    for found, wanted in zip(masses(*sides, [lane[2] for lane in lanes]), sides, strict=True):
        assert all(np.array_equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("kind", ["numpy", "torch", "views", "transposed", "integers", "shared", "mixed"])
@pytest.mark.parametrize("compact", [False, True])
def test_arrays_of_any_kind_are_one_vector(kind: str, compact: bool) -> None:
    rng = np.random.default_rng(0)
    values: list[Any] = [rng.normal(size=(size, 2)) for size in (5, 1, 8)]
    if kind == "views":
        whole = torch.tensor(rng.normal(size=(7, 3, 2)), device=DEVICE)
        values = [whole[5], whole[0], whole[3, 1:]]
    elif kind == "transposed":
        values = [torch.tensor(value, device=DEVICE).T for value in values]
    elif kind == "integers":
        values = [(2**40 * value).astype(np.int64) + 1 for value in values]
    elif kind == "shared":
        values = [values[0]] * 3
    elif kind in ("torch", "mixed"):
        values = [torch.tensor(value, device=DEVICE) for value in values]
        values = values if kind == "torch" else [*values, rng.normal(size=3).astype(np.float32)]
    on_host = [value.cpu().numpy() if hasattr(value, "cpu") else value for value in values]
    device = torch.zeros(1, device=DEVICE).device
    flat, places = concatenate(values, device, compact=compact)
    assert flat.dtype in (torch.float32, torch.float64)
    if kind == "views":
        assert (flat.data_ptr() == values[1].data_ptr()) is not compact
    if compact:
        assert flat.numel() == (10 if kind == "shared" else sum(value.size for value in on_host))
    for place, value in zip(places, on_host, strict=True):
        assert np.array_equal(flat[place : place + value.size].cpu().numpy(), value.reshape(-1))


def test_lanes_of_any_sizes_are_loaded_by_the_same_number_of_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, rng = list[int](), np.random.default_rng(0)
    for lanes in (2, 6):
        launched = list[str]()
        run = layout.launch

        def count(kernel: Any, *args: Any, launched: list[str] = launched, run: Any = run, **constants: Any) -> None:
            launched.append(kernel.__name__)
            run(kernel, *args, **constants)

        instances = [
            validate(ds.Problem(x=rng.normal(size=(4 + k, 3)), y=rng.normal(size=(9 - k, 3)), eps=1.0), 1e-3)
            for k in range(lanes)
        ]
        with monkeypatch.context() as patch:
            patch.setattr(layout, "launch", count)
            TritonBackend(resident_points=64).pack(instances)
        counts.append(len(launched))
    assert counts[0] == counts[1] <= 12


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
