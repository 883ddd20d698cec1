"""Float64 sums over plans of large lanes of many coordinates, from products of points in blocks of rows.

They replace `kernels.plan.float64_average`, which loops over coordinates once for every few channels. Points are
centred on the middle of the box around both clouds, so products have the rounding bound of `backends.triton.blocks`. If
it exceeds MOST_ERROR, direct differences are computed.
"""

# pyright: basic
# torch is loaded when this backend is.

from __future__ import annotations

from typing import Any

import torch

from drainsinkhorn.backends.triton.layout import block_rows

MOST_ERROR = 1e-9
"""Largest error of a scaled cost from products, in bits."""
ROUNDING = 2.0**-53


def centred(x: Any, y: Any, factor: Any) -> tuple[Any, Any] | None:
    """Return points of both clouds, centred and scaled so that squared distances are scaled costs in bits, in float64.

    None: products of these points are not accurate enough. The host waits for the device.
    """
    x, y = x.double(), y.double()
    (low, high), (other_low, other_high) = (torch.aminmax(cloud, dim=0) for cloud in (x, y))
    low, high = torch.minimum(low, other_low), torch.maximum(high, other_high)
    largest = (high - low).square().sum() * factor
    # Written so that NaN is not accurate enough.
    if not float(largest) * (x.shape[1] + 3) * ROUNDING <= MOST_ERROR:
        return None
    middle, scale = low / 2 + high / 2, factor.sqrt()
    return (x - middle).mul_(scale), (y - middle).mul_(scale)


def averages(x: Any, y: Any, potential: Any, mass: Any, values: Any) -> tuple[Any, Any, Any, Any]:
    """Return log2 of sums without the own potential, means of exponents and of scaled costs, and means of values.

    The exponents are `potential_j - c_ij`.

    Args:
        x: Points of the rows, centred and scaled, (n, dim).
        y: Points of the columns, (m, dim).
        potential: Potentials of the columns in bits, (m,).
        mass: Their weights, (m,).
        values: Values of the columns, (m, channels), in float64.
    """
    parts, norms = [], (y * y).sum(1)
    step = block_rows(len(x), len(y))
    has_weight = mass > 0
    for first in range(0, len(x), step):
        rows = x[first : first + step]
        costs = ((rows * rows).sum(1)[:, None] + norms).addmm_(rows, y.T, alpha=-2.0).clamp_min_(0.0)
        exponents = torch.where(has_weight, potential - costs, -torch.inf)
        largest = exponents.amax(1)
        terms = torch.exp2(exponents - largest[:, None]).mul_(mass)
        total = terms.sum(1)
        price = costs.mul_(terms).sum(1)
        # Columns without weight have no exponent.
        entropy = torch.where(has_weight, exponents.mul_(terms), 0.0).sum(1)
        parts.append((total.log2() + largest, entropy / total, price / total, terms @ values / total[:, None]))
    logs, entropies, prices, means = (torch.cat(part) for part in zip(*parts, strict=True))
    return logs, entropies, prices, means
