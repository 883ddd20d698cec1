"""Records of problems that enter a pack."""

# pyright: basic

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from drainsinkhorn.backends.emission import CHOICES, budget, least_damping
from drainsinkhorn.backends.triton.lanes import DTYPES, LANE
from drainsinkhorn.backends.triton.precision import has_blocks
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.instances import InstanceStack, strengths
from drainsinkhorn.model.marginal import BALANCED
from drainsinkhorn.numerics.arrays import float_name

HEAVIEST = 2.0**60
"""Largest mass of a side of a float32 lane: times the factors of potentials, weights do not overflow in sums."""


def describe(instances: Sequence[Instance[Any]], inner: Sequence[Instance[Any]]) -> Any:
    """Return records of LANE without what loading decides.

    Args:
        instances: The problems.
        inner: The same without points of zero weight, as they will be on the device.
    """
    records = np.zeros(len(instances), dtype=LANE)
    eps, tols = np.array(strengths(instances)), column(instances, operator.attrgetter("tol"))
    own = column(instances, lambda instance: _place(float_name(instance.like)))
    soft = column(instances, lambda instance: instance.marginals is not BALANCED and not instance.marginals.are_hard)
    dampings = np.ones(len(instances))
    for place in np.flatnonzero(soft).tolist():
        dampings[place] = least_damping(instances[place])
        records["kappa"][place] = max(side.kappa for side in instances[place].marginals)
    records["size"] = column(inner, operator.attrgetter("shape"))
    records["dim"] = column(inner, operator.attrgetter("dim"))
    records["in_blocks"] = column(inner, uses_blocks)
    records["own"], records["is_soft"], records["tol"], records["unit"] = own, soft, tols, eps * math.log(2)
    rounds = np.array([name in CHOICES for name in DTYPES] + [False])
    records["budget"] = np.where(rounds[own], budget(eps, tols, dampings), -1.0)
    known = dict[int, float]()
    records["least_weight"] = column(inner, lambda instance: _least_weight(instance, known))
    records["band"] = records["high_part_error"] = math.nan
    return records


def column(instances: Sequence[Instance[Any]], value: Callable[[Instance[Any]], Any]) -> Any:
    """Return a value of each problem as an array; it depends on neither its points nor its eps."""
    if isinstance(instances, InstanceStack):
        shared = np.asarray(value(instances.shared))
        return np.broadcast_to(shared, (len(instances), *shared.shape))
    return np.array([value(instance) for instance in instances])


def _place(name: str | None) -> int:
    """Return the place of a dtype in DTYPES; -1 for other dtypes."""
    return DTYPES.index(name) if name in DTYPES else -1


def uses_blocks(instance: Instance[Any]) -> bool:
    """Return whether float64 legs of a problem compute products in blocks of rows."""
    if instance.is_dense or instance.cost.kind.distances.root:
        return False
    return has_blocks(instance.shape, instance.dim)


def _least_weight(instance: Instance[Any], known: dict[int, float]) -> float:
    """Return the least weight of both sides; 0 if masses are above HEAVIEST, so that float64 is used.

    `known` caches the least entry of a vector by its identity, since many problems of a pack share weights.
    """
    if max(instance.masses) > HEAVIEST:
        return 0.0
    for weights in (instance.a, instance.b):
        if id(weights) not in known:
            known[id(weights)] = float(weights.min())
    return min(known[id(instance.a)], known[id(instance.b)])
