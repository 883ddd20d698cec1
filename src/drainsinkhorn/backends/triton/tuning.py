"""The fastest tiles on the GPU at hand: every candidate runs on several lanes of its kind, and on one alone."""

# pyright: basic, reportCallIssue=false, reportArgumentType=false
# Kernels are called through Triton, arrays through torch, which is loaded when this backend is.

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
import triton

from drainsinkhorn.backends.triton import TritonBackend
from drainsinkhorn.backends.triton.pack import TritonPack
from drainsinkhorn.backends.triton.precision import PrecisionPolicy
from drainsinkhorn.backends.triton.representation import Representation
from drainsinkhorn.backends.triton.tiles import DIRECT, PRODUCT, STORED, Tile, made
from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.errors import BackendUnavailable
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.numerics.costs import COSTS
from drainsinkhorn.numerics.weights import uniform

SHAPES: dict[tuple[int, int], tuple[int, int, int]] = {
    (DIRECT, 2): (8192, 2, 8),
    (DIRECT, 3): (8192, 3, 8),
    (PRODUCT, 16): (16384, 15, 4),
    (PRODUCT, 32): (8192, 30, 8),
    (PRODUCT, 64): (8192, 50, 8),
    (STORED, 16): (1024, 500, 8),
}
"""Rows, coordinates and lanes on which a kind is measured."""

DIRECT_TILES = [(64, 128, 4, 3, 8, 128, 4), (64, 128, 4, 3, 8, 0, 3), (64, 128, 4, 2, 8, 0, 3),
                (64, 256, 4, 2, 4, 0, 2), (32, 128, 4, 3, 8, 0, 7), (128, 128, 4, 3, 4, 0, 2)]  # fmt: skip
CANDIDATES: dict[tuple[int, int], list[tuple[int, int, int, int, int, int, int]]] = {
    (DIRECT, 2): DIRECT_TILES,
    (DIRECT, 3): DIRECT_TILES,
    (PRODUCT, 16): [(64, 128, 4, 3, 8, 0, 3), (64, 128, 4, 3, 8, 128, 4), (64, 128, 4, 2, 8, 128, 4),
                    (128, 64, 4, 2, 8, 0, 3), (64, 64, 4, 3, 8, 0, 5), (64, 256, 4, 2, 4, 0, 2)],
    (PRODUCT, 32): [(64, 128, 4, 2, 8, 0, 3), (64, 128, 4, 3, 8, 0, 3), (64, 128, 4, 2, 8, 128, 4),
                    (128, 64, 4, 2, 8, 0, 2), (64, 64, 4, 3, 8, 0, 4), (64, 256, 4, 2, 4, 0, 2)],
    (PRODUCT, 64): [(128, 64, 4, 2, 8, 0, 3), (64, 128, 4, 3, 8, 0, 2), (64, 128, 4, 2, 8, 128, 2),
                    (64, 64, 4, 3, 8, 0, 3), (64, 256, 4, 2, 4, 0, 1)],
    (STORED, 16): [(16, 128, 4, 3, 2, 0, 7), (32, 128, 4, 3, 2, 0, 4), (32, 128, 8, 3, 2, 0, 3),
                   (64, 64, 4, 3, 2, 0, 5), (32, 64, 4, 3, 4, 0, 7)],
}  # fmt: skip
"""Rows, columns, warps, stages, least blocks, registers, programs on a multiprocessor of an H200."""


class Trial(NamedTuple):
    """One tile on one kind: microseconds per lane and leg, with all lanes and for a lane alone."""

    kind: int
    dp: int
    tile: Tile
    together: float
    alone: float

    @property
    def cost(self) -> float:
        """Mean of both times; `together` counts twice, since only the last lanes of a window run alone."""
        return (2 * self.together + self.alone) / 3


def gpu() -> str:
    """The name of the GPU at hand."""
    if not torch.cuda.is_available():
        raise BackendUnavailable("tiles are measured on a GPU: drain tune needs a CUDA device, and torch sees none")
    return str(torch.cuda.get_device_name())


def trials(kinds: list[tuple[int, int]] | None = None) -> Iterator[Trial]:
    """Run every candidate of every kind; one that does not fit the GPU is left out."""
    for kind, dp in kinds or list(SHAPES):
        n, d, width = SHAPES[kind, dp]
        instances = clouds(n, d, width)
        form = TritonBackend().policy.representation(instances[0])
        for numbers in CANDIDATES[kind, dp]:
            tile = made(*numbers)
            try:
                together, alone = measure(replace(form, **tile), instances)
            except triton.runtime.errors.OutOfResources:
                continue
            yield Trial(kind, dp, tile, together, alone)


def measure(form: Representation, instances: list[Instance[Any]]) -> tuple[float, float]:
    """Microseconds per lane and leg, the mean of both sides: all lanes, and one alone."""
    pack = TritonPack(instances, form, torch.device("cuda"), policy=PrecisionPolicy())
    pack.advance(2, [-1.0] * pack.width)
    times = []
    for lanes in (range(pack.width), [0]):
        pack.repack(list(lanes))
        times.append(sum(_time_leg(pack, side) for side in (0, 1)) / 2)
    return times[0], times[1]


def _time_leg(pack: TritonPack, side: int) -> float:
    time = triton.testing.do_bench(lambda: pack.run_leg(side), warmup=10, rep=30, return_mode="median")
    return 1000 * float(time) / pack.width


def clouds(n: int, d: int, width: int) -> list[Any]:
    """Return validated problems on the device."""
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(width, n, d)).astype(np.float32) for _ in range(2))
    cost, weights = Cost(COSTS["sqeuclidean"]), uniform(n)
    sides = ({"x": torch.tensor(p).cuda(), "y": torch.tensor(q).cuda()} for p, q in zip(x, y, strict=True))
    shared = {"a": weights, "b": weights, "eps": 0.2 * d, "tol": 1e-3, "cost": cost, "init": "auto", "uniform": True}
    return [Instance(**side, **shared) for side in sides]
