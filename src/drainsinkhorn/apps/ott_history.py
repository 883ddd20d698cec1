"""The history of errors in OTT's format, which also calls the solver's `progress_fn`."""

# pyright: basic
# OTT's own types are narrower than what it takes.

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from ott.solvers.linear.sinkhorn import Sinkhorn, SinkhornState

from drainsinkhorn.core.events import Advanced


class History:
    """Residuals with one entry per `inner_iterations` updates, as OTT records them.

    An entry is inf if its residual was not measured because `min_iterations` had not been reached, and -1 if the
    problem had ended before.

    Attributes:
        of: Residuals in units of the caller's weights, one row for each problem.
    """

    def __init__(self, masses: Sequence[float], solver: Sinkhorn) -> None:
        self._solver = solver
        self._every = solver.inner_iterations
        self._masses = masses
        self._places = list(range(len(masses)))
        self._offset = 0
        self._reported = [0] * len(masses)
        self.of = np.full((len(masses), int(solver.outer_iterations)), -1.0)

    def resume(self, places: Sequence[int], offset: int) -> None:
        """Take the next run as the continuation of some problems after `offset` updates; its tickets count `places`."""
        self._places, self._offset = list(places), offset

    def note(self, event: Any) -> None:
        """Store the residuals of live lanes after an advance, and report them to `progress_fn`."""
        if isinstance(event, Advanced):
            for standing in event.standings():
                place = self._places[standing.ticket]
                entry = min((self._offset + standing.depth) // self._every, self.of.shape[1]) - 1
                measured = self._offset + standing.depth >= self._solver.min_iterations
                self.of[place, self._reported[place] : entry] = math.inf
                self.of[place, entry] = self._masses[place] * standing.stale if measured else math.inf
                self._report(place, entry + 1)

    def _report(self, place: int, entries: int) -> None:
        """Call `progress_fn` for every update that was not yet reported, with OTT's arguments."""
        first, self._reported[place] = self._reported[place], entries
        if self._solver.progress_fn is None:
            return
        total, every = self._solver.max_iterations, self._every
        for iteration in range(first * every, entries * every):
            entry, is_last = iteration // every, (iteration + 1) % every == 0
            errors: Any = np.where(np.arange(self.of.shape[1]) <= entry, self.of[place], -1.0)
            if not is_last:
                errors[entry] = math.inf
            state = SinkhornState((), errors=errors[:, None])
            self._solver.progress_fn((np.asarray(iteration), np.asarray(every), np.asarray(total), state))
