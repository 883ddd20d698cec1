"""Emit potentials in the caller's dtype if its rounding changes a residual by under a tenth of tol, else in a wider."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.backends.support import Couple, Support, extend_potentials
from drainsinkhorn.core.protocol import Emission
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.numerics.arrays import LARGEST, float_name, round_to, to_caller

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


def budget(eps: Any, tol: Any) -> Any:
    """Bound on the change of potentials by rounding: it changes a residual by about a tenth of tol."""
    return eps * tol / 10


def rounded(instance: Instance[Any], f: Vector, g: Vector) -> Rounded:
    """Round a state to what its caller will get."""
    for name in CHOICES.get(float_name(instance.like), ()):
        short_f, short_g = round_to(f, name).astype(np.float64), round_to(g, name).astype(np.float64)
        with np.errstate(invalid="ignore"):
            moved = float(np.abs(short_f - f).max()) + float(np.abs(short_g - g).max())
        # Written so that NaN and inf, which overflow gives, lead to a wider dtype.
        if moved <= budget(instance.eps, instance.tol):
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
    states, whole = list(states), list[tuple[Vector, Vector]]()
    if weightless:
        restricted = [(states[place].f, states[place].g) for place in weightless]
        whole = extend_potentials(list(weightless.values()), restricted, couple)
    for place, (f, g) in zip(weightless, whole, strict=True):
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


class States:
    """States of many lanes, rounded together to what their callers will get; flat vectors, lane after lane.

    Args:
        instances: The lanes' problems.
        f: Potentials of the rows in nats; overwritten.
        f_at: Where each lane's begin, and the end.
        g: Potentials of the columns, likewise.
        g_at: Likewise.
    """

    def __init__(
        self, instances: Sequence[Instance[Any]], f: Vector, f_at: NDArray[np.int64], g: Vector, g_at: NDArray[np.int64]
    ) -> None:
        self.instances = instances
        self.eps = np.array([instance.eps for instance in instances])
        self.f, self.f_at, self.g, self.g_at = f, f_at, g, g_at
        f *= np.repeat(self.eps, np.diff(f_at))
        g *= np.repeat(self.eps, np.diff(g_at))
        self.own = [float_name(instance.like) for instance in instances]
        self.dtypes = ["float64"] * len(instances)
        kinds = {*self.own}
        for name in SHORT:
            callers = {own for own in kinds if name in CHOICES.get(own, ())}
            if callers:
                pairs = zip(self.own, self.dtypes, strict=True)
                self._round(np.array([dtype == "float64" and own in callers for own, dtype in pairs]), name)

    def _round(self, wanted: NDArray[np.bool_], name: str) -> None:
        """Round the potentials of those wanted lanes for which the dtype is accurate enough."""
        f, f_at, g, g_at = self.f, self.f_at, self.g, self.g_at
        with np.errstate(invalid="ignore"):
            moved = _moved(f, f_at, name) + _moved(g, g_at, name)
        # Written so that NaN and inf, which overflow gives, lead to a wider dtype.
        fits = wanted & (moved <= budget(self.eps, np.array([instance.tol for instance in self.instances])))
        for vector, at in ((f, f_at), (g, g_at)):
            short = np.repeat(fits, np.diff(at))
            vector[short] = round_to(vector[short], name)
        self.dtypes = [name if fit else dtype for fit, dtype in zip(fits.tolist(), self.dtypes, strict=True)]

    def emit(self, supports: Sequence[Support | None], couple: Couple | None = None) -> Emission:
        """Copies of all lanes' states for their callers; `supports` and `couple` as in `emit_states`."""
        dtypes = {*self.dtypes}
        rounded_vectors = {name: (round_to(self.f, name), round_to(self.g, name)) for name in dtypes - {"float64"}}
        f_at, g_at = self.f_at.tolist(), self.g_at.tolist()
        widened = [dtype != own for dtype, own in zip(self.dtypes, self.own, strict=True)]
        if len(dtypes) == 1:
            vectors = rounded_vectors.get(self.dtypes[0], (self.f, self.g))
            f, g = (
                [vector[first:last].copy() for first, last in pairwise(at)]
                for vector, at in zip(vectors, (f_at, g_at), strict=True)
            )
        else:
            pairs = [rounded_vectors.get(name, (self.f, self.g)) for name in self.dtypes]
            f = [pair[0][first:last].copy() for pair, (first, last) in zip(pairs, pairwise(f_at), strict=True)]
            g = [pair[1][first:last].copy() for pair, (first, last) in zip(pairs, pairwise(g_at), strict=True)]
        others = [
            place
            for place, (instance, support) in enumerate(zip(self.instances, supports, strict=True))
            if support is not None or type(instance.like) is not np.ndarray
        ]
        if others:
            states = [
                Rounded(self.f[f_at[i] : f_at[i + 1]], self.g[g_at[i] : g_at[i + 1]], self.dtypes[i]) for i in others
            ]
            given, weightless = [self.instances[i] for i in others], [supports[i] for i in others]
            emitted = emit_states(given, states, weightless, couple)
            for place, f_of, g_of, wider in zip(others, emitted.f, emitted.g, emitted.widened, strict=True):
                f[place], g[place], widened[place] = f_of, g_of, wider
        return Emission(f, g, widened, self.instances)


def _moved(vector: Vector, at: NDArray[np.int64], name: str) -> Vector:
    """Return the largest change of each lane's potentials by rounding to a dtype."""
    return np.maximum.reduceat(np.abs(round_to(vector, name) - vector), at[:-1])
