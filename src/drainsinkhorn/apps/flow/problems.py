"""Minibatches as problems: with their points, or, on a CPU and in many dimensions, with their cost matrix."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import torch

from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.eps import Eps
from drainsinkhorn.model.errors import ProblemError
from drainsinkhorn.model.problem import Problem
from drainsinkhorn.numerics.arrays import to_numpy

MANY_DIMENSIONS, MATRIX_PAIRS = 48, 2**22
"""Least number of coordinates and largest number of pairs for which a CPU computes a cost matrix, once for solving and
sampling."""

ENTRIES = ("x0", "x1", "label", "label of x0")
"""Names of the entries of a minibatch; a label belongs to a point of x1."""

Tensor = torch.Tensor


def refuse_other_than_tensors(**named: Any) -> None:
    """Raise ProblemError for the first argument that is not a torch tensor."""
    for name, value in named.items():
        if not isinstance(value, torch.Tensor):
            advice = "write torch.as_tensor(...), with numbers in place of names"
            raise ProblemError(f"{name} must be a torch tensor, got {type(value).__name__}; {advice}")


def check_minibatch(place: int, batch: Any) -> None:
    """Raise ProblemError unless a minibatch is `(x0, x1)`, with or without labels of x1 and x0, all torch tensors."""
    if not isinstance(batch, (tuple, list)) or not 2 <= len(batch) <= 4:
        actual = f"{len(batch)} entries" if isinstance(batch, (tuple, list)) else type(batch).__name__
        is_target = isinstance(batch, torch.Tensor) or (isinstance(batch, (tuple, list)) and len(batch) == 1)
        advice = "; if they are x1 alone, pass CouplingDataset(..., noise=torch.randn_like)" if is_target else ""
        raise ProblemError(
            f"minibatch {place} must be (x0, x1), (x0, x1, label) or (x0, x1, label, label of x0), got {actual}{advice}"
        )
    entries = {
        f"{name} of minibatch {place}": entry for name, entry in zip(ENTRIES, batch, strict=False) if entry is not None
    }
    refuse_other_than_tensors(**entries)


def problems_of(
    pairs: Sequence[Sequence[Tensor]],
    eps: Sequence[Eps],
    scales: Sequence[float] | None = None,
    backend: Any = None,
    rho: Any = None,
) -> list[Problem[Any]]:
    """The problems of minibatches with costs `scale |x0 - x1|^2`.

    Args:
        pairs: For each minibatch x0, (n, ...), and x1, (m, ...).
        eps: The eps of each.
        scales: Factor of the cost of each; None: 1.
        backend: Its `threads`, if it has that attribute, is the number of threads that compute cost matrices.
        rho: The price of soft marginals of all problems, see `Problem`.
    """
    flat = [[points.detach().reshape(len(points), -1) for points in pair] for pair in pairs]
    scales = [1.0] * len(flat) if scales is None else scales
    problems: list[Problem[Any]] = [
        Problem(x=x, y=y, eps=strength, cost=Cost("sqeuclidean", scale), rho=rho)
        for (x, y), strength, scale in zip(flat, eps, scales, strict=True)
    ]
    dense = [place for place, pair in enumerate(flat) if _wants_matrix(*pair)]
    if not dense or importlib.util.find_spec("numba") is None:
        return problems
    from drainsinkhorn.backends.cpu.distances import squared_distances

    clouds = [[to_numpy(points) for points in flat[place]] for place in dense]
    matrices = squared_distances(clouds, [scales[place] for place in dense], getattr(backend, "threads", None))
    for place, costs in zip(dense, matrices, strict=True):
        if costs is not None:
            problems[place] = Problem(cost=torch.from_numpy(costs), eps=eps[place], rho=rho)
    return problems


def _wants_matrix(x: Tensor, y: Tensor) -> bool:
    """True if the cost matrix of these points is to be computed once, instead of costs in every cycle."""
    many = x.shape[1] >= MANY_DIMENSIONS and 0 < len(x) * len(y) <= MATRIX_PAIRS
    return many and x.shape[1] == y.shape[1] and all(p.device.type == "cpu" and p.is_floating_point() for p in (x, y))
