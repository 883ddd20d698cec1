"""45 pairs of classes of handwritten digits (scikit-learn's, 8 x 8 pixels): couple one class's images to another's."""

from __future__ import annotations

from typing import Any

import numpy as np

from drainsinkhorn.model.problem import Problem


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
