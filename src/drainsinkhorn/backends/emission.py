"""Emit potentials in the caller's dtype if its rounding changes a residual by under a tenth of tol, else in a wider."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.backends.support import Couple, Support, extend_potentials
from drainsinkhorn.core.protocol import Emission
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.numerics.arrays import LARGEST, float_name, round_to, to_caller
from drainsinkhorn.numerics.rounding import emission_budget as budget

Vector = NDArray[np.float64]

CHOICES: dict[str | None, tuple[str, ...]] = {
    "float16": ("float16", "float32"),
    "bfloat16": ("bfloat16", "float32"),
    "float32": ("float32",),
}
"""Dtypes narrower than float64 to try, in this order, by the caller's dtype. For other dtypes float64 is used."""
SHORT = ("float16", "bfloat16", "float32")
"""All these dtypes, in an order that agrees with every entry of CHOICES."""


class Rounded(NamedTuple):
    """Potentials as they will be emitted, held in float64, and the name of the dtype they will be emitted in."""

    f: Vector
    g: Vector
    dtype: str


def least_damping(instance: Instance[Any]) -> float:
    """Return the smaller damping of both marginals; 1 if both are hard."""
    return min(marginal.damping(instance.eps) for marginal in instance.marginals)


def round_state(instance: Instance[Any], f: Vector, g: Vector) -> Rounded:
    """Round a state to what its caller will get."""
    for name in CHOICES.get(float_name(instance.like), ()):
        short_f, short_g = round_to(f, name).astype(np.float64), round_to(g, name).astype(np.float64)
        with np.errstate(invalid="ignore"):
            moved = float(np.abs(short_f - f).max()) + float(np.abs(short_g - g).max())
        # Written so that NaN and inf, which overflow gives, lead to a wider dtype.
        if moved <= budget(instance.eps, instance.tol, least_damping(instance)):
            return Rounded(short_f, short_g, name)
    return Rounded(f, g, "float64")


def emission(
    instance: Instance[Any], state: Rounded, support: Support | None = None, couple: Couple | None = None
) -> Emission:
    """Copies of a rounded state in the caller's library and on the caller's device, for all points."""
    return emit_states([instance], [state], [support], couple)


def emit_states(
    instances: Sequence[Instance[Any]],
    states: Sequence[Rounded],
    supports: Sequence[Support | None],
    couple: Couple | None = None,
) -> Emission:
    """Copies of many lanes' rounded states for their callers, for all points.

    Args:
        instances: Problems of the lanes.
        states: Their rounded states, over the points that carry weight.
        supports: Which points carry weight; None: all of them.
        couple: Computes potentials of points without weight, where those are many.
    """
    weightless = {place: support for place, support in enumerate(supports) if support is not None}
    states, extended = list(states), list[tuple[Vector, Vector]]()
    if weightless:
        restricted = [(states[place].f, states[place].g) for place in weightless]
        extended = extend_potentials(list(weightless.values()), restricted, couple)
    for place, (f, g) in zip(weightless, extended, strict=True):
        name = states[place].dtype
        if name in LARGEST:
            # A point without weight may lie beyond the range of the dtype; its potential changes no result.
            f, g = np.clip(f, -LARGEST[name], LARGEST[name]), np.clip(g, -LARGEST[name], LARGEST[name])
        states[place] = Rounded(f, g, name)
    f, g, widened = list[Any](), list[Any](), list[bool]()
    for instance, state in zip(instances, states, strict=True):
        is_own = state.dtype == float_name(instance.like)
        f.append(to_caller(round_to(state.f, state.dtype), instance.like, own=is_own))
        g.append(to_caller(round_to(state.g, state.dtype), instance.like, own=is_own))
        widened.append(not is_own)
    return Emission(f, g, widened, list(instances))
