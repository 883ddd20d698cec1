"""How a problem ended."""

from __future__ import annotations

import enum


class Status(enum.Enum):
    """How a problem ended. The value explains the status to users and gives advice."""

    CONVERGED = "both marginals are within tol, rounding included"
    DEPTH_LIMIT = "the depth limit came before tol: raise max_depth, eps or tol, or start from better potentials"
    NONFINITE = (
        "a number left the range of floating point: costs are too large for eps; rescale the points or raise eps"
    )
    INVALID = "the problem cannot be solved as given"
    EXPIRED = "its deadline came before tol: give it more time, raise eps or tol, or start from better potentials"
    QUARANTINED = "workers died while this was their only problem: check its size, or solve it in a process of its own"
