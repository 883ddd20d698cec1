"""Finished plans from problems and potentials, for callers that have no Result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drainsinkhorn.model.couplings import Coupler, Couplings
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.run.validate import validate


def couple(
    backend: Coupler[Any], problems: Sequence[Problem[Any]], potentials: Sequence[Potentials[Any]]
) -> Couplings[Any]:
    """Return the finished plans of valid problems with these potentials. Arrays on a device are taken to be finite."""
    return backend.couple([validate(problem, tol=1.0, finite=True) for problem in problems], potentials)
