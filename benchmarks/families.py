"""Families of problems on which depth is studied: easy to hopeless, generated and real, reproducible by seed.

    python benchmarks/families.py                 # how many problems each family has, and their sizes
    python benchmarks/families.py --data DIR      # with real windows from the .npz files of a folder

Clouds are scaled so that the mean cost is 1 and eps is a share of it, unless a problem is about its own scale.
"""

from __future__ import annotations

import argparse
import itertools
import math
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import drainsinkhorn as ds

Named = tuple[str, ds.Problem[Any]]
Rng = np.random.Generator
EPS = (0.01, 0.02, 0.05, 0.1)


# Parts: clouds, weights, scaling.


def distances(x: Any, y: Any) -> Any:
    return ((x[:, None, :] - y[None, :, :]) ** 2).sum(-1)


def problem(x: Any, y: Any, eps: float, cost: str = "sqeuclidean", **weights: Any) -> ds.Problem[Any]:
    """A problem whose mean cost is 1; the cosine of random directions has that anyway."""
    squared = distances(x[::3], y[::3])
    scale = {"sqeuclidean": squared.mean() ** -0.5, "euclidean": 1 / np.sqrt(squared).mean(), "cosine": 1.0}[cost]
    middle = 0.0 if cost == "cosine" else x.mean(0)
    return ds.Problem(x=(x - middle) * scale, y=(y - middle) * scale, eps=eps, cost=cost, **weights)


def shape(p: ds.Problem[Any]) -> tuple[int, int]:
    """Rows and columns; every problem here has points."""
    assert p.x is not None
    assert p.y is not None
    return len(p.x), len(p.y)


def mixture(rng: Rng, n: int, centres: Any) -> Any:
    """Gaussian clusters of unequal mass."""
    labels = rng.choice(len(centres), size=n, p=rng.dirichlet(np.full(len(centres), 3.0)))
    return centres[labels] + 0.3 * rng.normal(size=(n, centres.shape[1]))


def pair(rng: Rng, n: int, m: int, d: int, *, spread: float = 1.0, apart: bool = False) -> tuple[Any, Any]:
    """Two mixtures over the same eight centres (so that mass must cross gaps), or each over its own."""
    centres = spread * rng.normal(size=(8, d))
    others = spread * rng.normal(size=(8, d)) if apart else centres
    return mixture(rng, n, centres), mixture(rng, m, others)


def sphere(rng: Rng, n: int) -> Any:
    x = rng.normal(size=(n, 3))
    return x / np.linalg.norm(x, axis=1, keepdims=True) + 0.01 * rng.normal(size=(n, 3))


def ball(rng: Rng, n: int) -> Any:
    return sphere(rng, n) * rng.uniform(size=(n, 1)) ** (1 / 3)


def helix(rng: Rng, n: int) -> Any:
    t = rng.uniform(0, 4 * np.pi, size=n)
    return np.stack([np.cos(t), np.sin(t), t / 6], axis=1) + 0.05 * rng.normal(size=(n, 3))


def sheets(rng: Rng, n: int) -> Any:
    """Two parallel planes."""
    return np.concatenate([rng.uniform(-1, 1, size=(n, 2)), rng.integers(2, size=(n, 1)) * 0.8], axis=1)


def uneven(rng: Rng, n: int, kind: str) -> Any:
    """Weights that are far from uniform; `tiny` reaches 1e-8 of the largest."""
    if kind == "dirichlet":
        weights = rng.dirichlet(np.full(n, 0.5)) + 1e-12
    elif kind == "lognormal":
        weights = np.exp(2 * rng.normal(size=n))
    elif kind == "ramp":
        weights = np.linspace(0.01, 1, n)
    else:
        weights = 10 ** rng.uniform(-8, 0, size=n)
        weights[0], weights[-1] = 1.0, 1e-8
    return weights / weights.sum()


# Families: a generator to named problems. A cost goes where a family makes sense for several.


def mixtures(rng: Rng, cost: str = "sqeuclidean", shares: tuple[float, ...] = EPS, copies: int = 3) -> Iterator[Named]:
    for d, eps, copy in itertools.product((3, 15, 50), shares, range(copies)):
        n = (256, 384, 512)[copy % 3]
        both = pair(rng, n, n, d, spread=rng.uniform(0.3, 1.5), apart=copy == 2)
        if cost == "sqeuclidean" and copy == 0:
            # As they are, unscaled, the mean cost being a few times d.
            yield f"raw-d{d}-n{n}-eps{eps}", ds.Problem(x=both[0], y=both[1], eps=eps)
        yield f"d{d}-n{n}-eps{eps}", problem(*both, eps, cost)


def digits(rng: Rng) -> Iterator[Named]:
    """Handwritten digits: random halves, low against high, pairs of classes; 10 and 30 principal components."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = images - images.mean(0)
    axes = np.linalg.svd(images, full_matrices=False)[2]
    for parts, eps in itertools.product((10, 30), (0.03, 0.1)):
        points = images @ axes[:parts].T
        order = rng.permutation(len(points))[:800]
        yield f"halves-pca{parts}-eps{eps}", problem(points[order[:400]], points[order[400:]], eps)
        low, high = (rng.choice(np.flatnonzero(side), 400, False) for side in (labels < 5, labels >= 5))
        yield f"low-high-pca{parts}-eps{eps}", problem(points[low], points[high], eps)
        for _ in range(3):
            one, other = rng.choice(10, 2, replace=False)
            name = f"class{one}-class{other}-pca{parts}-eps{eps}"
            yield name, problem(points[labels == one], points[labels == other], eps)


def clouds(rng: Rng, cost: str = "sqeuclidean", shares: tuple[float, ...] = (0.01, 0.03, 0.1)) -> Iterator[Named]:
    shapes = {"ball-sphere": (ball, sphere), "helix-ball": (helix, ball), "sheets-helix": (sheets, helix)}
    shapes["sphere-sphere"] = (sphere, sphere)
    for (name, (one, other)), eps in itertools.product(shapes.items(), shares):
        n = int(rng.integers(128, 513))
        shift = rng.normal(size=3) * 0.3
        yield f"{name}-n{n}-eps{eps}", problem(one(rng, n), other(rng, n) + shift, eps, cost)


def weighted(rng: Rng, cost: str = "sqeuclidean", shares: tuple[float, ...] = (0.02, 0.1)) -> Iterator[Named]:
    for kind, d, eps in itertools.product(("dirichlet", "lognormal", "ramp", "tiny"), (2, 10), shares):
        n, m = 256, 300
        weights = {"a": uneven(rng, n, kind), "b": uneven(rng, m, kind)}
        yield f"{kind}-d{d}-eps{eps}", problem(*pair(rng, n, m, d), eps, cost, **weights)


def ragged(rng: Rng, cost: str = "sqeuclidean", shares: tuple[float, ...] = (0.03, 0.1)) -> Iterator[Named]:
    for (n, m), eps in itertools.product(
        ((128, 512), (500, 130), (37, 411), (300, 301), (512, 17), (200, 450)), shares
    ):
        d = int(rng.integers(2, 20))
        yield f"{n}x{m}-d{d}-eps{eps}", problem(*pair(rng, n, m, d), eps, cost)


def hard(rng: Rng) -> Iterator[Named]:
    """Small eps."""
    for d, eps in itertools.product((2, 3, 10), (0.002, 0.005)):
        yield f"mixture-d{d}-eps{eps}", problem(*pair(rng, 192, 192, d), eps)
    for d in (2, 5):
        yield f"cube-d{d}-eps0.003", problem(rng.uniform(size=(160, d)), rng.uniform(size=(160, d)), 0.003)


def simple(rng: Rng) -> Iterator[Named]:
    """Cubes, shifted normals, grids on a line."""
    for d, eps in itertools.product((2, 5), (0.02, 0.1)):
        yield f"cube-d{d}-eps{eps}", problem(rng.uniform(size=(300, d)), rng.uniform(size=(300, d)), eps)
        shifted = rng.normal(size=(300, d)) * 0.7 + 1.5
        yield f"shifted-d{d}-eps{eps}", problem(rng.normal(size=(300, d)), shifted, eps)
    line = np.linspace(0, 1, 256)[:, None]
    for eps in (0.005, 0.02, 0.1):
        yield f"grid-eps{eps}", problem(line, np.linspace(0, 1, 300)[:, None], eps)
        bumps = [np.exp(-((line[:, 0] - at) ** 2) / 0.02) + 1e-3 for at in (0.2, 0.7)]
        yield f"grid-bumps-eps{eps}", problem(line, line, eps, a=bumps[0] / bumps[0].sum(), b=bumps[1] / bumps[1].sum())


def adversarial(rng: Rng, cost: str = "sqeuclidean") -> Iterator[Named]:
    """What a method tuned on clouds might trip over; scales are their own."""

    def raw(x: Any, y: Any, eps: float, **weights: Any) -> ds.Problem[Any]:
        return ds.Problem(x=x, y=y, eps=eps, cost=cost, **weights)

    x, y = rng.normal(size=(256, 3)), rng.normal(size=(256, 3)) + 0.5
    yield "same-eps0.02", raw(x, x.copy(), 0.02)
    yield "same-eps0.2", raw(x, x.copy(), 0.2)
    corners, others = np.array([[1.0, 0.0], [0.5, 1.0]]), np.array([[1.0, 0.2], [-0.3, 1.0]])
    yield "two-by-two", raw(corners, others, 0.05)
    yield "two-by-two-uneven", raw(corners, others, 0.05, a=np.array([0.3, 0.7]), b=np.array([0.7, 0.3]))
    for gap, eps in ((3.0, 0.1), (6.0, 0.5)):
        far = np.array([gap, 0.0, 0.0])
        left = rng.normal(size=(200, 3)) * 0.3 + (rng.uniform(size=(200, 1)) < 0.1) * far + 1.0
        right = rng.normal(size=(200, 3)) * 0.3 + (rng.uniform(size=(200, 1)) < 0.5) * far + 1.0
        yield f"far-clusters-gap{gap:g}", raw(left, right, eps)
    yield "huge-eps", raw(x, y, 1e3)
    yield "one-point", raw(x[:1], y, 0.1)
    yield "one-to-one", raw(x[:1], y[:1], 0.1)
    outlier = y.copy()
    outlier[0] = 20.0
    yield "outlier", raw(x, outlier, 0.2)
    copies = np.repeat(x[:32], 8, axis=0), np.repeat(y[:32], 8, axis=0)
    yield "duplicates", raw(*copies, 0.05)
    yield "duplicates-same", raw(copies[0], copies[0][::-1].copy(), 0.05)


def under(cost: str) -> Callable[[Rng], Iterator[Named]]:
    """The families that make sense under another cost."""

    def make(rng: Rng) -> Iterator[Named]:
        yield from (("mixture-" + name, p) for name, p in mixtures(rng, cost, (0.01, 0.03, 0.1), 2))
        yield from (("cloud-" + name, p) for name, p in clouds(rng, cost, (0.02, 0.1)))
        yield from (("weights-" + name, p) for name, p in weighted(rng, cost, (0.05,)))
        yield from (("ragged-" + name, p) for name, p in ragged(rng, cost, (0.05,)))
        yield from (("adversarial-" + name, p) for name, p in adversarial(rng, cost))

    return make


# Real windows: a generator and a folder to named problems.


def pick(rng: Rng, points: Any, count: int) -> Any:
    return np.asarray(points[np.sort(rng.choice(len(points), count, False))], dtype=float)


def lidar(rng: Rng, data: Path) -> Iterator[Named]:
    """Consecutive scans of a moving car."""
    with np.load(data / "kitti_0005_lidar.npz") as file:
        scans = file["xyz"]
    for (i, j), eps in itertools.product(((0, 1), (3, 4), (2, 8)), (0.005, 0.02)):
        yield f"scan{i}-scan{j}-eps{eps}", problem(pick(rng, scans[i], 512), pick(rng, scans[j], 512), eps)


def metropt(rng: Rng, data: Path) -> Iterator[Named]:
    """Sensor readings of a compressor: failures against each other and against health."""
    with np.load(data / "metropt3.npz") as file:
        failing, number, healthy, windows = (file[k] for k in ("failure_x", "failure_id", "normal_x", "window_x"))
        broken = file["window_is_anomaly"]
    mean, std = failing.mean(0), failing.std(0)
    groups = {f"failure{k}": (failing[number == k] - mean) / std for k in (1, 2, 3, 4)}
    groups["healthy"] = (healthy[:, : failing.shape[1]] - mean) / std
    for one, other in (("failure1", "failure3"), ("failure2", "failure4"), ("healthy", "failure1")):
        yield f"{one}-{other}-eps0.02", problem(pick(rng, groups[one], 400), pick(rng, groups[other], 400), 0.02)
    windows = (windows - windows.mean(0)) / (windows.std(0) + 1e-6)
    for eps in (0.02, 0.1):
        both = pick(rng, windows[~broken], 400), pick(rng, windows[broken], 280)
        yield f"windows-eps{eps}", problem(*both, eps)


def packer(rng: Rng, data: Path) -> Iterator[Named]:
    """Cells of an embryo at two ages."""
    with np.load(data / "packer19.npz") as file:
        scores, age, umap, umap_age = (file[k] for k in ("pca", "time_point", "umap", "umap_time"))
    early, late = scores[age == "400_minutes"], scores[age == "500_minutes"]
    for eps in (0.02, 0.1):
        yield f"pca-eps{eps}", problem(pick(rng, early, 400), pick(rng, late, 500), eps)
    for (t0, t1), eps in itertools.product(((300, 400), (400, 500)), (0.01, 0.05)):
        both = pick(rng, umap[umap_age == t0], 512), pick(rng, umap[umap_age == t1], 512)
        yield f"umap{t0}-{t1}-eps{eps}", problem(*both, eps)


def pbmc(rng: Rng, data: Path) -> Iterator[Named]:
    """Blood cells, control and stimulated."""
    with np.load(data / "pbmc_ifnb.npz") as file:
        scores, stimulated = file["pca"], file["stimulated"] > 0
    for parts, eps in itertools.product((10, 50), (0.02, 0.1)):
        both = pick(rng, scores[~stimulated, :parts], 512), pick(rng, scores[stimulated, :parts], 512)
        yield f"pca{parts}-eps{eps}", problem(*both, eps)


def images(rng: Rng, data: Path) -> Iterator[Named]:
    """Noise to photographs, in principal components."""
    with np.load(data / "imagenet200_32px_pca500.npz") as file:
        scores, step = file["scores_q"], float(file["step"])
    for parts, eps in itertools.product((50, 500), (0.02, 0.1)):
        photos = pick(rng, scores[:, :parts], 512) * step
        photos = photos / photos.std()
        yield f"pca{parts}-eps{eps}", problem(rng.normal(size=photos.shape), photos, eps)


GENERATED: dict[str, Callable[[Rng], Iterator[Named]]] = {
    "mixture": mixtures,
    "digits": digits,
    "cloud": clouds,
    "weights": weighted,
    "ragged": ragged,
    "hard": hard,
    "simple": simple,
    "adversarial": adversarial,
    "euclidean": under("euclidean"),
    "cosine": under("cosine"),
}
REAL: dict[str, Callable[[Rng, Path], Iterator[Named]]] = {
    "lidar": lidar,
    "metropt": metropt,
    "packer": packer,
    "pbmc": pbmc,
    "images": images,
}


def generator(seed: int, family: str) -> Rng:
    """One stream of numbers per family, so that a family does not depend on which others are made."""
    return np.random.default_rng([seed, zlib.crc32(family.encode())])


def families(seed: int, data: Path | None = None, only: list[str] | None = None) -> list[Named]:
    """Every problem as ("family/detail", problem); names are unique. Real windows need a data folder."""
    made: list[Named] = []
    for family, make in GENERATED.items():
        if only is None or family in only:
            made += [(f"{family}/{name}", p) for name, p in make(generator(seed, family))]
    for family, load in REAL.items():
        if data is not None and (only is None or family in only):
            made += [(f"{family}/{name}", p) for name, p in load(generator(seed, family), data)]
    return numbered(made)


def numbered(made: list[Named]) -> list[Named]:
    """Repeated names get a number."""
    seen: dict[str, int] = {}
    out: list[Named] = []
    for name, p in made:
        seen[name] = seen.get(name, 0) + 1
        out.append((name if seen[name] == 1 else f"{name}-{seen[name]}", p))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", type=Path, help="folder with the .npz files of the real windows")
    options = parser.parse_args()
    made = families(options.seed, options.data)
    for family, group in itertools.groupby(made, key=lambda named: named[0].split("/")[0]):
        sizes = [math.prod(shape(p)) for _, p in group]
        print(f"{family:<12} {len(sizes):>4} problems, {min(sizes)} to {max(sizes)} pairs")
    print(f"{'total':<12} {len(made):>4} problems")


if __name__ == "__main__":
    main()
