"""Converts a problem to the arrays of a lane."""

# pyright: basic

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from drainsinkhorn.backends.cost_sizes import unit_weights
from drainsinkhorn.backends.keops.precision import KeopsArithmetic
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.numerics.costs import coordinate_factor, unit_rows
from drainsinkhorn.numerics.starts import start


@np.errstate(all="ignore")
def load_arrays(instance: Instance[Any], number: int, arithmetic: KeopsArithmetic) -> dict[str, Any]:
    """Return the arrays of a lane on its device, in float64; potentials are in nats.

    "short_x" and "short_y" are the points in the lane's own dtype.

    Args:
        instance: The problem, on the points that carry weight.
        number: The number of the lane.
        arithmetic: How the lane is computed.
    """
    n, m = instance.shape
    x, y, factor = _scale_points(instance)
    f, g = (side / instance.eps for side in start(instance))
    arrays = {
        "x": x, "y": y, "a": to_numpy(instance.a), "b": to_numpy(instance.b), "f": f, "g": g,
        "next": np.zeros(n), "before": f, "scale_x": np.full(n, factor), "scale_y": np.full(m, factor),
        "owner": np.full(n, number),
    }  # fmt: skip
    for side, size, marginal in zip("fg", (n, m), instance.marginals, strict=True):
        arrays[f"kappa_{side}"] = np.full(size, instance.eps * marginal.kappa)
        arrays[f"lam_{side}"] = np.full(size, marginal.damping(instance.eps))
    device = torch.device(arithmetic.device)
    moved = {name: torch.tensor(values, dtype=torch.float64, device=device) for name, values in arrays.items()}
    return moved | {f"short_{name}": moved[name].to(arithmetic.dtype) for name in ("x", "y")}


def _scale_points(instance: Instance[Any]) -> tuple[Any, Any, float]:
    """Return points whose squared distances (or distances) are costs over eps, and the factor 1.

    For a Formula, return the points as they are, and the factor from its values to costs over eps.
    """
    cost, form = instance.cost, instance.cost.kind.distances
    x, y = (to_numpy(points).astype(np.float64) for points in (instance.x, instance.y))
    if form is None:
        return x, y, cost.scale / instance.eps
    if form.directions:
        x, y = unit_rows(x), unit_rows(y)
    # One vector for both clouds, so that differences do not change.
    a, b = unit_weights(instance)
    centre = (a @ x + b @ y) / 2
    factor = coordinate_factor(cost, instance.eps)
    return factor * (x - centre), factor * (y - centre), 1.0
