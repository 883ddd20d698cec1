"""Minibatches as problems: points where they lie, or, on a CPU and in many dimensions, their distances."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import torch

from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.errors import ProblemError
from drainsinkhorn.model.problem import Problem
from drainsinkhorn.numerics.arrays import to_numpy

MANY_DIMENSIONS, KEPT_PAIRS = 48, 2**22
"""From so many coordinates on, and up to so many pairs, a CPU keeps distances: solving and drawing look at them."""

Tensor = torch.Tensor


def refuse_other_than_tensors(**named: Any) -> None:
    """Raise for what is not a torch tensor."""
    for name, value in named.items():
        if not isinstance(value, torch.Tensor):
            advice = "write torch.as_tensor(...), with numbers in place of names"
            raise ProblemError(f"{name} must be a torch tensor, got {type(value).__name__}; {advice}")


def problems_of(
    pairs: Sequence[Sequence[Tensor]], eps: Sequence[float], scales: Sequence[float] | None = None, backend: Any = None
) -> list[Problem[Any]]:
    """The problems of minibatches, (n, ...) and (m, ...), with costs `scale |x0 - x1|^2`.

    Distances are computed on as many threads as `backend` has, if it says so.
    """
    flat = [[points.detach().reshape(len(points), -1) for points in pair] for pair in pairs]
    scales = [1.0] * len(flat) if scales is None else scales
    found: list[Problem[Any]] = [
        Problem(x=x, y=y, eps=strength, cost=Cost("sqeuclidean", scale))
        for (x, y), strength, scale in zip(flat, eps, scales, strict=True)
    ]
    kept = [place for place, pair in enumerate(flat) if _keeps(*pair)]
    if not kept or importlib.util.find_spec("numba") is None:
        return found
    from drainsinkhorn.backends.cpu.distances import squared_distances

    clouds = [[to_numpy(points) for points in flat[place]] for place in kept]
    matrices = squared_distances(clouds, [scales[place] for place in kept], getattr(backend, "threads", None))
    for place, costs in zip(kept, matrices, strict=True):
        if costs is not None:
            found[place] = Problem(cost=torch.from_numpy(costs), eps=eps[place])
    return found


def _keeps(x: Tensor, y: Tensor) -> bool:
    """True if distances of these points are to be kept."""
    many = x.shape[1] >= MANY_DIMENSIONS and 0 < len(x) * len(y) <= KEPT_PAIRS
    return many and x.shape[1] == y.shape[1] and all(p.device.type == "cpu" and p.is_floating_point() for p in (x, y))
