"""45 pairs of classes of handwritten digits (scikit-learn's, 8 x 8 pixels): couple one class's images to another's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from drainsinkhorn.model.problem import Problem
from drainsinkhorn.model.result import Result

COLUMNS, SIDE, GAP = 9, 8, 2
"""Images side by side in the picture, and pixels of an image and between images."""


def problems(seed: int) -> list[Problem[Any]]:
    """Every pair of classes, in a random order; classes hold 174 to 183 images. eps is 0.5 % of the median cost."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    classes = [images[labels == digit] / 16.0 for digit in range(10)]
    pairs = [(i, j) for i in range(10) for j in range(i)]
    pair_problems: list[Problem[Any]] = []
    for i, j in np.random.default_rng(seed).permutation(pairs):
        x, y = classes[i], classes[j]
        median = float(np.median(((x[::5, None] - y[None, ::5]) ** 2).sum(axis=-1)))
        pair_problems.append(Problem(x=x, y=y, eps=0.005 * median))
    return pair_problems


def draw(ax: Any, results: Sequence[Result[Any]]) -> None:
    """Draw an image of some pairs of classes, steps from it to its barycentric image, and its top match below."""
    shown = results[:: max(1, len(results) // COLUMNS)][:COLUMNS]
    names = ["image of x", "", "half-way", "", "its mean under\nthe plan", "its top match\nin y"]
    columns: list[Any] = []
    for result in shown:
        x: Any = result.problem.x
        y: Any = result.problem.y
        # The image nearest to the mean of its class.
        row = int(((x - x.mean(0)) ** 2).sum(1).argmin())
        start, end = x[row], result.barycentric_map()[row]
        way = [(1 - share) * start + share * end for share in np.linspace(0, 1, len(names) - 1)]
        columns.append([*way, y[int(result.top_match()[row])]])
    step = SIDE + GAP
    sheet = np.zeros((len(names) * step, len(columns) * step))
    for k, column in enumerate(columns):
        for l, image in enumerate(column):
            sheet[l * step : l * step + SIDE, k * step : k * step + SIDE] = image.reshape(SIDE, SIDE)
    ax.imshow(sheet, cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
    ax.spines[:].set_visible(False)
    ax.set_yticks([l * step + SIDE / 2 - 0.5 for l in range(len(names))], names)
    ax.set_xticks([])
    ax.tick_params(length=0)
    ax.set_xlabel(f"one image from each of {len(columns)} pairs of classes")
    ax.set_title(f"{len(results)} pairs of classes of digits, coupled image by image")
