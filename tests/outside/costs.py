"""Costs of a user's own, by the recipe of CONTRIBUTING: each is one class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import drainsinkhorn as ds


@dataclass(frozen=True)
class Manhattan(ds.PointCost):
    """`sum_k |x_k - y_k|`."""

    def pairwise(self, x: Any, y: Any) -> Any:
        return np.abs(x[:, None, :] - y[None, :, :]).sum(axis=-1)


@dataclass(frozen=True)
class Uphill(ds.PointCost):
    """`|x - y|_1 + climb max(0, y_0 - x_0)`: not symmetric."""

    climb: float = 2.0

    def pairwise(self, x: Any, y: Any) -> Any:
        flat = np.abs(x[:, None, :] - y[None, :, :]).sum(axis=-1)
        return flat + self.climb * np.maximum(0.0, y[None, :, 0] - x[:, None, 0])


@dataclass(frozen=True)
class InnerProduct(ds.PointCost):
    """`-x'y`, which may be negative."""

    def pairwise(self, x: Any, y: Any) -> Any:
        return -(x @ y.T)


@dataclass(frozen=True)
class HalfSquare(ds.PointCost):
    """`|x - y|^2 / 2`."""

    @property
    def distances(self) -> ds.Distances:
        return ds.Distances(0.5)


@dataclass(frozen=True)
class Chord(ds.PointCost):
    """`length |x / |x| - y / |y||`."""

    length: float = 1.0

    @property
    def distances(self) -> ds.Distances:
        return ds.Distances(self.length, root=True, directions=True)


def direct(kind: ds.PointCost | str, x: Any, y: Any) -> Any:
    """All costs of one of these kinds, written without the library."""
    apart = x[:, None, :] - y[None, :, :]
    if isinstance(kind, HalfSquare):
        return (apart**2).sum(axis=-1) / 2
    if isinstance(kind, Chord):
        u, v = (points / np.linalg.norm(points, axis=1, keepdims=True) for points in (x, y))
        return kind.length * np.linalg.norm(u[:, None, :] - v[None, :, :], axis=-1)
    if isinstance(kind, InnerProduct) or kind == "negdot":
        return -np.einsum("ik,jk->ij", x, y)
    climb = kind.climb if isinstance(kind, Uphill) else 0.0
    return np.abs(apart).sum(axis=-1) + climb * np.clip(-apart[:, :, 0], 0, None)
