"""Emit potentials in the caller's dtype if its rounding changes a residual by under a tenth of tol, else in a wider."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.backends.support import Couple, Support, extend_potentials
from drainsinkhorn.core.protocol import Emission
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
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
    return emissions([instance], [state], [support], couple)[0]


def emissions(
    instances: Sequence[Instance[Any]],
    states: Sequence[Rounded],
    supports: Sequence[Support | None],
    couple: Couple | None = None,
) -> list[Emission]:
    """Of many lanes together. `couple` computes potentials of points without weight, where those are many."""
    some = {place: support for place, support in enumerate(supports) if support is not None}
    known = dict[int, tuple[Vector, Vector]]()
    if some:
        whole = extend_potentials(list(some.values()), [(states[place].f, states[place].g) for place in some], couple)
        known = dict(zip(some, whole, strict=True))
    return [
        _emission(instance, Rounded(*known[place], state.dtype), idle=True)
        if place in known
        else _emission(instance, state)
        for place, (instance, state) in enumerate(zip(instances, states, strict=True))
    ]


def _emission(instance: Instance[Any], state: Rounded, *, idle: bool = False) -> Emission:
    like, name = instance.like, state.dtype
    f, g = state.f, state.g
    if idle and name in LARGEST:
        # A point without weight may lie beyond the range of the dtype; its potential is of no account.
        f, g = np.clip(f, -LARGEST[name], LARGEST[name]), np.clip(g, -LARGEST[name], LARGEST[name])
    own = name == float_name(like)
    return Emission(Potentials(*(to_caller(round_to(side, name), like, own=own) for side in (f, g))), not own, instance)


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

    def emissions(self, supports: Sequence[Support | None], couple: Couple | None = None) -> list[Emission]:
        """Copies of all lanes' states for their callers."""
        vectors = {name: (round_to(self.f, name), round_to(self.g, name)) for name in {*self.dtypes} - {"float64"}}
        f_at, g_at = self.f_at.tolist(), self.g_at.tolist()
        emitted: list[Any] = []
        others: dict[int, Rounded] = {}
        for place, (instance, name, support) in enumerate(zip(self.instances, self.dtypes, supports, strict=True)):
            rows, cols = slice(f_at[place], f_at[place + 1]), slice(g_at[place], g_at[place + 1])
            if support is None and type(instance.like) is np.ndarray:
                f, g = vectors.get(name, (self.f, self.g))
                emitted.append(Emission(Potentials(f[rows].copy(), g[cols].copy()), name != self.own[place], instance))
            else:
                others[place] = Rounded(self.f[rows], self.g[cols], name)
                emitted.append(None)
        given, idle = [self.instances[place] for place in others], [supports[place] for place in others]
        for place, found in zip(others, emissions(given, list(others.values()), idle, couple), strict=True):
            emitted[place] = found
        return emitted


def _moved(vector: Vector, at: NDArray[np.int64], name: str) -> Vector:
    """Return the largest change of each lane's potentials by rounding to a dtype."""
    return np.maximum.reduceat(np.abs(round_to(vector, name) - vector), at[:-1])
