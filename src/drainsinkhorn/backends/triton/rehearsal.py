"""Determine which kernels a pack will launch, and compile them ahead.

The methods of a pack run on small problems of the same kind, in a context in which launches are recorded and not
executed. Tensors are on the host and filled with zeros, so every value that is read back is zero: each lane then
chooses the fastest arithmetic that its tolerance allows. Kernels of other arithmetic, of calls in lockstep and of the
row screen are recorded in a second run, and compiled in the background while the solve runs.
"""

# pyright: basic

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from drainsinkhorn.backends.triton import compiling
from drainsinkhorn.backends.triton.cycles import POLL, SMALL
from drainsinkhorn.backends.triton.launching import on
from drainsinkhorn.backends.triton.pack import TritonPack
from drainsinkhorn.backends.triton.precision import Arithmetic, PrecisionPolicy
from drainsinkhorn.backends.triton.representation import Representation
from drainsinkhorn.backends.triton.resident import size_class
from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.instances import representatives
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.numerics.arrays import float_name
from drainsinkhorn.numerics.costs import COSTS

_log = logging.getLogger("drainsinkhorn")

COLUMNS = 64
"""Points of the columns of a small problem, at most."""
LOOKED_AT = 64
"""Number of first problems of a pack whose kinds are determined. Later problems are considered only if they
are the first with hard or with soft marginals or, in packs of one program per lane, the first of a shape."""

_rehearsed: set[Hashable] = set()
"""Kinds of problems that were rehearsed in this process."""


class _Float32Policy(PrecisionPolicy):
    """Decisions about precision for lanes that have no room for potentials inside the product."""

    __slots__ = ()

    def first_arithmetic(self, least_weights: Any, has_room: Any) -> Any:
        """Return float32, with potentials added to the product, for all lanes."""
        return np.full(len(least_weights), Arithmetic.FLOAT32.value)


class _TriplePolicy(PrecisionPolicy):
    """Decisions about precision for lanes that points in three parts are accurate enough for."""

    __slots__ = ()

    def has_triples(self, form: Representation, dims: Any, extents: Any) -> Any:
        """Return that legs use points in three parts, where scores and coordinates allow it."""
        return super().has_triples(form, dims, np.ones_like(extents))


class _Zeros(TorchFunctionMode):
    """Tensors that would not be initialised are zeros, so that each rehearsal makes the same decisions."""

    def __torch_function__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        filled = {
            torch.empty: torch.zeros,
            torch.empty_like: torch.zeros_like,
            torch.Tensor.new_empty: torch.Tensor.new_zeros,
        }
        return filled.get(function, function)(*args, **(kwargs or {}))


def compile_kernels(instances: Sequence[Instance[Any]], policy: PrecisionPolicy, device: Any) -> None:
    """Compile the kernels of a pack of such problems, several at once; those that few lanes need, in the background."""
    form = policy.representation(instances[0])
    kinds, noted = dict[Hashable, Instance[Any]](), set[Hashable]()
    for place, instance in enumerate(representatives(instances)):
        differs = instance.shape if form.one_program else None, instance.marginals.are_hard
        if place < LOOKED_AT or differs not in noted:
            noted.add(differs)
            # All problems of a stack have one kind, so its first one stands for all.
            example = instances[0] if place == 0 else instance
            kinds.setdefault(_kind(example, form, policy), example)
    new = [key for key in kinds if (key, form, policy, device) not in _rehearsed]
    if not new:
        return
    _rehearsed.update((key, form, policy, device) for key in new)
    try:
        with on(device), np.errstate(all="ignore"):
            needed = compiling.collect_tasks(lambda: [_solve(kinds[key], form, policy) for key in new])
            others = compiling.collect_tasks(lambda: [_solve_otherwise(kinds[key], form, policy) for key in new])
    except Exception as error:  # noqa: BLE001  a rehearsal saves time alone: Triton compiles at the first launch
        _log.debug("kernels are compiled one by one: %r", error)
        return
    compiling.compile_tasks(needed, others)


def _settings(policy: PrecisionPolicy) -> list[Any]:
    """Return the attributes of a policy, in their order."""
    return [getattr(policy, each.name) for each in fields(policy)]


def _kind(instance: Instance[Any], form: Representation, policy: PrecisionPolicy) -> Hashable:
    """Return what decides which kernels a lane needs, beside its values."""
    n, m = instance.shape
    sizes = size_class((n, m), float64=False) if form.one_program else n <= SMALL
    start = instance.init if isinstance(instance.init, str) else "given"
    rung = _first_rung(policy, instance.tol)
    cost = None if form.dense else instance.cost.kind
    return sizes, instance.dim, _dtype(instance), cost, start, instance.marginals.are_hard, instance.uniform, rung


@lru_cache(maxsize=1024)
def _first_rung(policy: PrecisionPolicy, tol: float) -> int:
    """Return the fastest arithmetic that may be accurate enough for a tolerance, as a number."""
    return int(policy.least_rungs(tol))


def _dtype(instance: Instance[Any]) -> str:
    """Return the dtype in which coordinates or costs come to the device: all but float32 are made float64."""
    return "float32" if float_name(instance.like) == "float32" else "float64"


def _small(instance: Instance[Any], form: Representation) -> Instance[Any]:
    """Return a problem of the same kind that is cheap to load."""
    n, m = instance.shape
    if form.one_program:
        # Lanes of a class have the same kernels, but need not have the same sizes.
        n, m = size_class((n, m), float64=False)[1:3]
    else:
        n, m = min(n, SMALL + 1), min(m, COLUMNS)
    dtype = np.dtype(_dtype(instance))
    sides: dict[str, Any] = {"x": np.ones((n, instance.dim), dtype), "y": np.ones((m, instance.dim), dtype)}
    if form.dense:
        sides = {"x": None, "y": None, "matrix": np.ones((n, m), dtype), "cost": Cost(COSTS["sqeuclidean"])}
    start = instance.init if isinstance(instance.init, str) else Potentials(np.zeros(n, dtype), np.zeros(m, dtype))
    weights = {"a": np.full(n, 1 / n), "b": np.full(m, 1 / m), "positive": True}
    return replace(instance, **sides, **weights, init=start, chain=None)


def _solve(instance: Instance[Any], form: Representation, policy: PrecisionPolicy) -> TritonPack:
    """Load a small problem, run cycles until the first polls, verify and emit."""
    if not policy.float64 and policy.least_rungs(instance.tol) > Arithmetic.FLOAT32.value:
        policy = _TriplePolicy(*_settings(policy))
    with _Zeros():
        pack = TritonPack([_small(instance, form)], form, torch.device("cpu"), policy=policy)
        pack.advance(POLL + 2, [-1.0])
        pack.verify([0])
        pack.emit([0])
    return pack


def _solve_otherwise(instance: Instance[Any], form: Representation, policy: PrecisionPolicy) -> None:
    """Use what a solve may need: calls in lockstep, the row screen, and other arithmetic."""
    policies = [policy]
    if not policy.float64:
        if form.places:
            policies.append(_Float32Policy(*_settings(policy)))
        policies.append(replace(policy, float64=True))
    for each in policies:
        # A tolerance at which no other arithmetic is needed than the first.
        pack = _solve(replace(instance, tol=max(instance.tol, 1.0)), form, each)
        with _Zeros():
            pack.advance(1, [-1.0], lockstep=True)
            pack.screen([0])
