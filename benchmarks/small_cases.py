"""The cases of small.py: small problems, from one to thousands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Case:
    """Problems, and peers that take them.

    Attributes:
        lanes: Number of problems.
        points: Points of each side, or the range of their number.
        dim: Coordinates.
        eps: Strength of the entropic term.
        spread: Standard deviation of the clouds.
        peers: Names of arms besides our own.
    """

    lanes: int
    points: int | tuple[int, int]
    dim: int
    eps: float
    spread: float = 1.0
    peers: tuple[str, ...] = ("ott-vmap", "pot-batch")

    def make(self) -> tuple[list[Any], list[Any]]:
        """Clouds x and y in float32."""
        rng = np.random.default_rng(0)
        low, high = self.points if isinstance(self.points, tuple) else (self.points, self.points)
        sizes = rng.integers(low, high + 1, size=(self.lanes, 2))
        sides = [
            [(self.spread * rng.normal(size=(size, self.dim)) + shift).astype(np.float32) for size in column]
            for column, shift in zip(sizes.T.tolist(), (0.0, 0.3 * self.spread), strict=True)
        ]
        return sides[0], sides[1]


CASES = {
    "one64": Case(1, 64, 2, 0.1, peers=("ott-serial",)),
    "one256": Case(1, 256, 2, 0.1, peers=("ott-serial",)),
    "stack16x256": Case(16, 256, 2, 0.1),
    "stack256x128": Case(256, 128, 16, 1.0),
    "stack128x128": Case(128, 128, 2, 0.1),
    "stack512x64": Case(512, 64, 2, 0.1),
    "stack1024x256": Case(1024, 256, 8, 0.5, peers=("ott-vmap",)),
    "stack64": Case(4096, 64, 2, 0.1, peers=("ott-vmap",)),
    "stack128": Case(4096, 128, 16, 1.0, peers=("ott-vmap",)),
    "ragged": Case(1024, (32, 256), 3, 0.1, peers=("ott-serial",)),
    "four512": Case(4, 512, 30, 1.0, spread=0.3, peers=("ott-serial", "ott-vmap")),
}
