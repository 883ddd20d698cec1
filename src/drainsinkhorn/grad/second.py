"""Second derivatives of optimal values: Hessians times motions of the inputs, batched over finished plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from drainsinkhorn.grad.implicit import soft_diagonals, solve_marginals
from drainsinkhorn.model.couplings import Couplings
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.numerics.derivatives import Motion, Optimum
from drainsinkhorn.numerics.slopes import require_slope


def hessian_products(
    plans: Couplings[Any],
    instances: Sequence[Instance[Any]],
    potentials: Sequence[Potentials[Any]],
    motions: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Return motions of the first derivatives of each value, by the names of inputs (`numerics.derivatives`).

    Args:
        plans: Finished plans.
        instances: Their problems.
        potentials: Their potentials.
        motions: Motions of the inputs of each problem in float64, by name: tensors, or NumPy arrays.
    """
    lanes, systems = list[Motion](), list[list[Any]]()
    extra: list[Any] = []
    for instance, pair, moved in zip(instances, potentials, motions, strict=True):
        require_slope(instance)
        at = _optimum(instance, pair, moved)
        lane = Motion(at, moved)
        lanes.append(lane)
        systems.append(lane.system()[0])
        extra.append(soft_diagonals(instance, at.potentials, at.weights))
    solved = solve_marginals(plans, [u for u, _ in systems], [v for _, v in systems], extra)
    return [lane.slopes(lane.fill(pair)) for lane, pair in zip(lanes, zip(*solved, strict=True), strict=True)]


def _optimum(instance: Instance[Any], potentials: Potentials[Any], moved: Mapping[str, Any]) -> Optimum:
    """The problem and its potentials in float64: tensors where the motions are, else NumPy arrays."""
    example = next(iter(moved.values()))

    def widen(array: Any) -> Any:
        if isinstance(example, (np.ndarray, np.generic, float)):
            return to_numpy(array).astype(np.float64)
        import torch

        return torch.as_tensor(array).detach().to(device=example.device, dtype=torch.float64)

    dense = instance.is_dense
    return Optimum(
        points=None if dense else (widen(instance.x), widen(instance.y)),
        matrix=widen(instance.matrix) if dense else None,
        cost=instance.cost,
        eps=instance.eps,
        weights=(widen(instance.a), widen(instance.b)),
        kappas=(instance.marginals.row.kappa, instance.marginals.col.kappa),
        potentials=(widen(potentials.f), widen(potentials.g)),
    )
