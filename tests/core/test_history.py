"""The history of residuals, from the events of real runs."""

from __future__ import annotations

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.core.events import Narrowed

X = np.random.default_rng(0).normal(size=(4, 40, 2))


@pytest.mark.parametrize("mode", ["compact", "stream", "static"])
def test_every_problem_has_its_residuals(mode: str) -> None:
    history, audit = ds.ResidualHistory(), ds.Audit(every=1)
    solution = ds.solve(X, X + 1, eps=0.05, backend="reference", mode=mode, width=2, audit=audit, observe=history)
    assert len(history) == 4
    for result in solution:
        steps = history[result.ticket]
        assert [step.depth for step in steps] == list(range(1, result.depth + 1))
        assert steps[-1] == (result.depth, result.residual.worst)
        assert all(step.residual > 1e-3 for step in steps[:-1]) or mode == "static"
    plain = ds.solve(X, X + 1, eps=0.05, backend="reference", mode=mode, width=2)
    assert mode == "static" or np.array_equal(plain.potentials.f, solution.potentials.f)


def test_a_problem_that_runs_again_begins_anew() -> None:
    history = ds.ResidualHistory()
    ds.solve(X, X + 1, eps=0.05, backend="reference", observe=history)
    assert history[9] == []
    history(Narrowed(1, [2]))
    assert history[2] == []
    assert history[1]
