"""Growth of cells and soft marginals between time points, with the meaning that they have in moscot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.apps.cell_points import match_index, unknown_name
from drainsinkhorn.model.errors import ProblemError
from drainsinkhorn.numerics.arrays import to_numpy

Array = NDArray[Any]


def read_growth(data: Any, growth: Any, names: Sequence[Any], cells: Sequence[Array], index: Any) -> list[Array]:
    """Return the growth of the cells of each time point but the last.

    Args:
        data: The data of `couple_timepoints`.
        growth: A column of obs, one number for each cell, or a mapping from times where the data is one.
        names: Time points in order.
        cells: The places of the cells of each.
        index: Names of the cells; None: they have none.
    """
    if isinstance(data, Mapping) != isinstance(growth, Mapping):
        raise ProblemError("growth is a mapping from times to one number for each cell where the data is a mapping")
    each = list[Array]()
    if isinstance(growth, Mapping):
        each = [to_numpy(growth[name]) if name in growth else np.empty(0) for name in names[:-1]]
    else:
        if isinstance(growth, str):
            if not hasattr(data, "obs"):
                raise ProblemError(f"growth={growth!r} names a column of obs; pass the numbers of other data")
            if growth not in data.obs.columns:
                raise unknown_name("obs has no column", growth, data.obs.columns)
            growth = data.obs[growth]
        values = to_numpy(match_index(growth, index, "growth"))
        if values.shape != (data.shape[0],):
            raise ProblemError(f"growth must be one number for each of {data.shape[0]} cells, got shape {values.shape}")
        each = [values[places] for places in cells[:-1]]
    checked = list[Array]()
    for name, places, values in zip(names, cells, each, strict=False):
        if values.shape != places.shape:
            raise ProblemError(f"growth of time point {name!r} must be {len(places)} numbers, got {values.shape}")
        values = values.astype(np.float64)
        if not (np.isfinite(values).all() and (values >= 0).all() and values.sum() > 0):
            raise ProblemError(f"growth of time point {name!r} must be finite, not negative, and not all zero")
        checked.append(values)
    return checked


def check_taus(tau_a: Any, tau_b: Any) -> tuple[float, float]:
    """Return both taus; ProblemError if one is not above 0 and at most 1."""
    for name, tau in (("tau_a", tau_a), ("tau_b", tau_b)):
        if isinstance(tau, bool) or not isinstance(tau, (int, float)) or not 0 < tau <= 1:
            raise ProblemError(f"{name} must be above 0 and at most 1 (a hard marginal), got {tau!r}")
    return float(tau_a), float(tau_b)


def soft_fields(a: Array, b: Array, eps: Any, taus: tuple[float, float]) -> dict[str, Any]:
    """Return weights and prices of a problem whose entropic term counts cells: `a^tau` and `eps tau / (1 - tau)`.

    The docstring of `apps.ott_soft` derives why the plan is that of OTT, which moscot calls. Nothing is returned if
    both marginals are hard, or if eps is not a number, so that the problem says why.

    Args:
        a: Weights of source cells of mass 1.
        b: Weights of target cells of mass 1.
        eps: Strength of the entropic term.
        taus: `tau_a` and `tau_b`.
    """
    if taus == (1.0, 1.0) or not isinstance(eps, (int, float)):
        return {}
    rho = tuple(math.inf if tau == 1 else eps * tau / (1 - tau) for tau in taus)
    return {"a": a ** taus[0], "b": b ** taus[1], "rho": rho}
