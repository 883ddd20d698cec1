"""Solves a batch of 48 problems and draws one coupling and the work of the batch.

python examples/first_picture.py --out first-picture.png
"""

from __future__ import annotations

import argparse
from typing import Any

import matplotlib as mpl

mpl.use("agg")
import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

import drainsinkhorn as ds

SOURCE, TARGET, NEEDED, STATIC = "#2f6db5", "#d1662b", "#2f6db5", "#d9dee5"


def make_clouds(count: int, seed: int) -> tuple[list[Any], list[Any]]:
    """Pairs of a ring and three clusters, whose sizes and spreads differ from pair to pair."""
    rng = np.random.default_rng(seed)
    sources, targets = [], []
    for scale in np.geomspace(0.5, 2.0, count):
        n = int(rng.integers(150, 250))
        angles = rng.uniform(0, 2 * np.pi, size=n)
        ring = np.stack([np.cos(angles), np.sin(angles)], axis=1) + 0.08 * rng.normal(size=(n, 2))
        centres = np.array([[2.6, 0.9], [3.2, -0.6], [2.3, -1.1]])
        clusters = centres[rng.integers(3, size=n)] + 0.16 * rng.normal(size=(n, 2))
        sources.append(scale * ring)
        targets.append(scale * clusters)
    return sources, targets


def draw(solution: ds.Solution[Any], place: int, out: str) -> None:
    result = solution[place]
    x, y, images = result.problem.x, result.problem.y, result.barycentric_map()
    mpl.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False})
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.9), layout="constrained", dpi=130)
    left.plot(*np.stack([x, images], axis=1).transpose(2, 1, 0), color="#9aa5b1", linewidth=0.4, zorder=0)
    left.scatter(*x.T, s=9, color=SOURCE, label="x")
    left.scatter(*y.T, s=9, color=TARGET, label="y")
    left.set(title="One of 48 couplings: x and its barycentric map", xticks=[], yticks=[], aspect="equal")
    left.spines[:].set_visible(False)
    left.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, -0.12), ncols=2, handletextpad=0)
    survival, ledger = solution.ledger.survival, solution.ledger
    cycles = np.arange(1, len(survival) + 1)
    right.fill_between(cycles, len(solution), step="mid", color=STATIC, label="executed in addition by a static batch")
    right.fill_between(cycles, survival, step="mid", color=NEEDED, label="executed here")
    share = 1 - ledger.slots / (len(solution) * len(survival))
    right.set(title=f"Problems in the kernel, by cycle: {share:.0%} removed", xlabel="cycle", ylabel="problems")
    right.set(xlim=(1, len(survival)), ylim=(0, len(solution)))
    right.legend(frameon=True, loc="upper right", edgecolor="none")
    figure.canvas.draw()
    picture = Image.fromarray(np.asarray(figure.canvas.buffer_rgba())).convert("RGB")
    picture.quantize(64).save(out, optimize=True)  # a palette keeps the file small


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="first-picture.png")
    out = parser.parse_args().out
    sources, targets = make_clouds(48, seed=0)
    solution = ds.solve(sources, targets, eps=0.05, width=48)
    solution.raise_for_status()
    print(solution)
    draw(solution, 24, out)


if __name__ == "__main__":
    main()
