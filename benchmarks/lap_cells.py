"""Cells that `old_and_new.py` times: problems by name, through the public surface of the library alone.

Names with "cpu/" and "gpu/" are the rows of docs/benchmarks/cpu.md and gpu.md; "-plain" is plain Sinkhorn from zero, as
in their first tables, and the others are the default. Rows of real points need a folder with their .npz files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import drainsinkhorn as ds

PLAIN = {"accelerate": "none", "init": "zero"}
HOST = 10_000
"""Problems of the cells in which host time dominates."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What is solved in a lap.

    Attributes:
        make: From a device and a folder of data to positional arguments and keywords of `solve`.
        options: Further keywords.
        needs_data: Whether it reads a file.
    """

    make: Callable[[str, Path | None], tuple[tuple[Any, ...], dict[str, Any]]]
    options: dict[str, Any] = field(default_factory=dict)
    needs_data: bool = False


def on_device(device: str, array: Any) -> Any:
    """The array itself for "numpy", else a torch tensor on the device."""
    if device == "numpy":
        return array
    import torch

    return torch.as_tensor(array, device=device)


def listed(make: Callable[[], list[dict[str, Any]]]) -> Callable[[str, Path | None], Any]:
    """A list of Problem made from rows of their columns."""

    def build(device: str, _: Path | None) -> Any:
        rows = make()
        names = ("x", "y", "cost")
        moved = [row | {name: on_device(device, row[name]) for name in names if name in row} for row in rows]
        return ([ds.Problem(**row) for row in moved],), {}

    return build


def clouds(lanes: int, n: int, d: int, eps: float, *, ragged: bool = False) -> Callable[[], list[dict[str, Any]]]:
    """Pairs of Gaussian clouds, of n points or of n / 4 to n."""

    def make() -> list[dict[str, Any]]:
        rng, rows = np.random.default_rng(0), []
        for _ in range(lanes):
            size = int(rng.integers(n // 4, n)) if ragged else n
            centre = rng.normal(size=d)
            x, y = ((rng.normal(size=(size, d)) + k * centre).astype(np.float32) for k in (0, 1))
            rows.append({"x": x, "y": y, "eps": eps})
        return rows

    return make


def one_cost(lanes: int, n: int, eps: float) -> Callable[[], list[dict[str, Any]]]:
    """Problems that share a dense cost and differ in their source weights."""

    def make() -> list[dict[str, Any]]:
        rng, cost = np.random.default_rng(0), np.random.default_rng(1).random((n, n))
        masses = rng.random((lanes, n))
        return [{"cost": cost, "a": a / a.sum(), "eps": eps} for a in masses]

    return make


def spread_clouds(sizes: list[tuple[int, int]], d: int, eps: float, spreads: Any) -> list[dict[str, Any]]:
    """Pairs of eight-cluster mixtures; the spread of their centres grows."""
    rng = np.random.default_rng(0)

    def mixture(n: int, spread: float) -> Any:
        centres = spread * rng.normal(size=(8, d))
        return (centres[rng.integers(8, size=n)] + 0.3 * rng.normal(size=(n, d))).astype(np.float32)

    return [{"x": mixture(n, s), "y": mixture(m, s), "eps": eps} for (n, m), s in zip(sizes, spreads, strict=True)]


def ragged_pairs() -> list[dict[str, Any]]:
    rng = np.random.default_rng(1)
    sizes = [(int(n), int(m)) for n, m in rng.integers(100, 1501, size=(64, 2))]
    return spread_clouds(sizes, 3, 0.1, rng.uniform(0.3, 1.5, size=64))


def tight_clouds(n: int, d: int, lanes: int, eps: float, *, equal: bool = False) -> list[dict[str, Any]]:
    """Pairs of eight-cluster mixtures; the spread within their clusters grows, or all lanes are the same."""
    rows = []
    for lane in range(lanes):
        rng = np.random.default_rng([11, n, d, 0 if equal else lane])
        spread = 0.1 + 0.9 * (0 if equal else lane) / max(1, lanes - 1)
        x, y = (rng.normal(size=(8, d))[rng.integers(8, size=n)] + spread * rng.normal(size=(n, d)) for _ in range(2))
        rows.append({"x": x.astype(np.float32), "y": y.astype(np.float32), "eps": eps})
    return rows


def tiny(device: str, _: Path | None) -> Any:
    rng = np.random.default_rng(2)
    x, y = (rng.normal(size=(10_000, 32, 2)).astype(np.float32) + shift for shift in (0.0, np.float32(0.5)))
    return (ds.problems(on_device(device, x), on_device(device, y), eps=0.5),), {}


def marginals(device: str, _: Path | None) -> Any:
    rng = np.random.default_rng(3)
    cost = ((rng.uniform(size=(1024, 1, 2)) - rng.uniform(size=(1, 1024, 2))) ** 2).sum(-1).astype(np.float32)
    a, b = rng.dirichlet(np.ones(1024), size=(2, 256))
    return (ds.problems(cost=on_device(device, cost), a=a, b=b, eps=0.02),), {}


def host_stack(device: str, _: Path | None) -> Any:
    rng = np.random.default_rng(4)
    x, y = (on_device(device, rng.normal(size=(HOST, 8, 2)).astype(np.float32)) for _ in range(2))
    return (x, y), {"eps": 1.0}


def host_list(device: str, data: Path | None) -> Any:
    (x, y), _ = host_stack(device, data)
    return ([ds.Problem(x=p, y=q, eps=1.0) for p, q in zip(x, y, strict=True)],), {}


# Real points.


def windows(pairs: list[tuple[Any, Any]], share: float, device: str) -> Any:
    """Real clouds, centred and scaled so that the mean cost is about 1; eps is a share of it."""
    problems, step = [], 16 if device == "cuda" else 7
    for x, y in pairs:
        x, y = (np.asarray(points, dtype=np.float64) for points in (x, y))
        scale = ((x[::step, None] - y[None, ::step]) ** 2).sum(-1).mean() ** -0.5
        middle = x.mean(0)
        x, y = (on_device(device, ((points - middle) * scale).astype(np.float32)) for points in (x, y))
        problems.append(ds.Problem(x=x, y=y, eps=share))
    return (problems,), {}


def load(data: Path | None, name: str) -> Any:
    if data is None:
        raise SystemExit("cells of real points need --data DIR")
    return np.load(data / f"{name}.npz")


def lidar(device: str, data: Path | None) -> Any:
    scans = load(data, "kitti_0005_lidar")["xyz"][:, :: 2 if device == "cuda" else 16]
    return windows([(scans[i], scans[i + 1]) for i in range(8)], 0.005, device)


def metropt(device: str, data: Path | None) -> Any:
    rows = load(data, "metropt3")["failure_x"]
    rows = (rows - rows.mean(0)) / rows.std(0)
    return windows([(rows[:1024], rows[i * 1024 : (i + 1) * 1024]) for i in range(1, 9)], 0.01, device)


def umap(device: str, data: Path | None) -> Any:
    file, rng = load(data, "packer19"), np.random.default_rng(0)
    n, times, share = 2048, [(300, 400)] * 4, 0.01
    if device == "cuda":
        n, times, share = 8192, [(300, 400), (400, 500)] * 4, 0.005
    at = {when: file["umap"][file["umap_time"] == when] for when in (300, 400, 500)}
    pairs = [(rng.choice(at[early], n, False), rng.choice(at[late], n, False)) for early, late in times]
    return windows(pairs, share, device)


def pbmc(device: str, data: Path | None) -> Any:
    file, rng = load(data, "pbmc_ifnb"), np.random.default_rng(0)
    before, after = (file["pca"][(file["stimulated"] > 0) == side] for side in (False, True))
    return windows([(rng.choice(before, 2048, False), rng.choice(after, 2048, False)) for _ in range(4)], 0.05, device)


def small(name: str) -> Callable[[str, Path | None], Any]:
    """A case of small.py: a stack where sizes are equal, else a list."""

    def build(device: str, _: Path | None) -> Any:
        from small_cases import CASES

        case = CASES[name]
        x, y = ([on_device(device, points) for points in side] for side in case.make())
        if isinstance(case.points, int):
            return tuple(on_device(device, np.stack(side)) for side in (x, y)), {"eps": case.eps}
        return ([ds.Problem(x=own, y=other, eps=case.eps) for own, other in zip(x, y, strict=True)],), {}

    return build


CELLS: dict[str, Cell] = {
    "small": Cell(listed(clouds(512, 64, 2, 0.2))),
    "wide": Cell(listed(clouds(16, 512, 16, 1.0))),
    "ragged": Cell(listed(clouds(128, 128, 3, 0.2, ragged=True))),
    "scores": Cell(listed(clouds(8, 512, 200, 10.0))),
    "plain": Cell(listed(clouds(8, 1024, 8, 0.5)), {"accelerate": "none"}),
    "large": Cell(listed(clouds(4, 4096, 15, 1.0))),
    "shared": Cell(listed(one_cost(64, 256, 0.3))),
    "many stacked": Cell(small("stack64")),
    "many ragged": Cell(small("ragged")),
    "four": Cell(small("four512")),
    "one": Cell(small("one64")),
    "host list": Cell(host_list),
    "host stack": Cell(host_stack),
}
"""Cells by name."""
ROWS: dict[str, Cell] = {
    "cpu/clouds3": Cell(listed(lambda: spread_clouds([(1024, 1024)] * 16, 3, 0.1, np.linspace(0.3, 1.5, 16)))),
    "cpu/clouds50": Cell(listed(lambda: spread_clouds([(2048, 2048)] * 8, 50, 1.0, np.linspace(0.3, 1.5, 8)))),
    "cpu/ragged": Cell(listed(ragged_pairs)),
    "cpu/shared": Cell(marginals),
    "cpu/tiny": Cell(tiny),
    "cpu/lidar": Cell(lidar, needs_data=True),
    "cpu/metropt": Cell(metropt, needs_data=True),
    "cpu/umap": Cell(umap, needs_data=True),
    "cpu/pbmc": Cell(pbmc, needs_data=True),
    "gpu/m50": Cell(listed(lambda: tight_clouds(4096, 50, 16, 0.1))),
    "gpu/w15": Cell(listed(lambda: tight_clouds(16384, 15, 16, 0.1))),
    "gpu/w50": Cell(listed(lambda: tight_clouds(16384, 50, 8, 0.1))),
    "gpu/w3": Cell(listed(lambda: tight_clouds(8192, 3, 8, 0.02))),
    "gpu/s500": Cell(listed(lambda: tight_clouds(1024, 500, 8, 1.0))),
    "gpu/null": Cell(listed(lambda: tight_clouds(4096, 15, 8, 0.1, equal=True))),
    "gpu/lidar": Cell(lidar, needs_data=True),
    "gpu/umap": Cell(umap, needs_data=True),
}
"""Rows of the benchmark pages by name, with the default settings."""
for _name, _row in ROWS.items():
    CELLS[_name] = _row
    CELLS[f"{_name}-plain"] = Cell(_row.make, PLAIN, _row.needs_data)
