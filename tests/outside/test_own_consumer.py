"""A consumer of a user's own: built on `couplings`, batched over results of several backends, without a plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.plans.consumers import couplings
from tests.outside.costs import Chord, Manhattan
from tests.outside.test_own_backend import ToyBackend


def label_entropies(results: Iterable[ds.Result[Any]], labels: Sequence[Any], kinds: int) -> list[Any]:
    """Entropy in nats of the label that each point of x is sent to; `labels` are those of y, one array per result."""
    given = list(results)
    found: list[Any] = [None] * len(given)
    for places, plans in couplings(given):
        # (m, kinds) indicators: their means under a row's conditional distribution are probabilities of labels.
        indicators = [np.eye(kinds)[labels[place]] for place in places]
        for place, shares in zip(places, plans.average(indicators), strict=True):
            shares = np.asarray(shares, dtype=np.float64)
            found[place] = -(shares * np.log(np.where(shares > 0, shares, 1.0))).sum(axis=1)
    return found


def matched_masses(results: Iterable[ds.Result[Any]], rows: Sequence[Any], cols: Sequence[Any], kinds: int) -> Any:
    """Mass that each plan sends between points of equal labels."""
    given = list(results)
    found = np.zeros(len(given))
    for places, plans in couplings(given):
        sent = plans.apply([np.eye(kinds)[cols[place]] for place in places])
        for place, masses in zip(places, sent, strict=True):
            found[place] = np.asarray(masses)[np.arange(len(masses)), rows[place]].sum()
    return found


@pytest.fixture(scope="module")
def batch() -> Any:
    """Results of three backends in mixed order, with the labels of both sides."""
    rng, found = np.random.default_rng(0), list[Any]()
    costs = ["sqeuclidean", Manhattan(), Chord(), "euclidean", "cosine", Manhattan()]
    backends = ["cpu", "reference", "cpu", ToyBackend(), "reference", "cpu"]
    for k, (cost, backend) in enumerate(zip(costs, backends, strict=True)):
        x, y = rng.normal(size=(8 + k, 2)), rng.normal(size=(13 - k, 2)) + 0.5
        b = rng.uniform(0.5, 1.5, size=len(y))
        b[1] = 0.0
        found += ds.solve([ds.Problem(x=x, y=y, b=b / b.sum(), eps=0.4, cost=cost, tol=1e-8)], backend=backend)
    rows, cols = ([rng.integers(3, size=len(r.potentials[side])) for r in found] for side in (0, 1))
    return found, rows, cols


def test_entropies_are_those_of_the_dense_plans(batch: Any) -> None:
    results, _, labels = batch
    assert len(couplings(results)) == 3, "plans of one backend are consumed together"
    for result, label, entropies in zip(results, labels, label_entropies(results, labels, 3), strict=True):
        plan = result.plan()
        shares = np.stack([plan[:, label == kind].sum(axis=1) for kind in range(3)], axis=1)
        shares /= shares.sum(axis=1, keepdims=True)
        truth = -np.where(shares > 0, shares * np.log(np.where(shares > 0, shares, 1.0)), 0.0).sum(axis=1)
        assert np.allclose(entropies, truth, rtol=0, atol=1e-9)


def test_matched_masses_are_those_of_the_dense_plans(batch: Any) -> None:
    results, rows, cols = batch
    masses = matched_masses(results, rows, cols, 3)
    for result, row, col, mass in zip(results, rows, cols, masses, strict=True):
        assert abs(mass - result.plan()[row[:, None] == col[None, :]].sum()) <= 1e-9
    shuffled = [4, 0, 5, 2, 1, 3]
    again = matched_masses([results[k] for k in shuffled], *([side[k] for k in shuffled] for side in (rows, cols)), 3)
    assert np.array_equal(again, masses[shuffled])


def test_a_problem_without_potentials_is_named(batch: Any) -> None:
    (bad,) = ds.solve([ds.Problem(eps=-1.0, x=np.zeros((2, 1)), y=np.zeros((2, 1)))])
    with pytest.raises(ds.ProblemError, match="problem 0 has no potentials"):
        couplings([*batch[0], bad])
