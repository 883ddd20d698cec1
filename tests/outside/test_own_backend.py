"""A backend of a user's own: one lane at a time in plain NumPy, held to the contract and used by `solve`."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.backends.certificate import certify
from drainsinkhorn.backends.conditionals import plain_couplings
from drainsinkhorn.backends.emission import emission, round_state
from drainsinkhorn.backends.lanes import LanePack
from drainsinkhorn.core.protocol import Emission, Hints
from drainsinkhorn.numerics.costs import UNIT, cost_matrix, require_form
from drainsinkhorn.testing import check_backend
from tests.outside.costs import Chord, Uphill

FORMS = ("distances", "matrix")
"""Forms of costs that it runs."""


class ToyLane:
    """One problem's potentials, and its next f-leg, measured but not applied. Points without weight take part."""

    def __init__(self, instance: ds.Instance[Any]) -> None:
        self.instance, self.depth, self.frozen = instance, 0, False
        costs, error = cost_matrix(instance)
        self.scores = costs / instance.eps
        self.log_a, self.log_b = np.log(instance.a), np.log(instance.b)
        self.rounding = error / instance.eps + UNIT * (8 * np.abs(self.scores).max() + sum(instance.shape) + 64)
        # Starts by name only save cycles, so that zero will do for all of them.
        start = instance.init if isinstance(instance.init, ds.Potentials) else map(np.zeros, instance.shape)
        self.f, self.g = (np.asarray(side, dtype=np.float64) / instance.eps for side in start)
        self.measure()

    def row_ratios(self, f: Any, g: Any) -> Any:
        return f + _logsumexp(self.log_b + g - self.scores)

    def col_ratios(self, f: Any, g: Any) -> Any:
        return g + _logsumexp(self.log_a + f - self.scores.T)

    def band(self, f: Any, g: Any) -> float:
        return float(4 * (self.rounding + 4 * UNIT * (np.abs(f).max() + np.abs(g).max())))

    def measure(self) -> None:
        self.pending = self.row_ratios(self.f, self.g)
        self.stale = self.row_error(self.pending) + self.band(self.f, self.g)

    def row_error(self, ratios: Any) -> float:
        return float((self.instance.a * np.abs(np.expm1(ratios))).sum())

    def proposed(self) -> tuple[Any, Any]:
        f = self.f - self.pending
        return f, self.g - self.col_ratios(f, self.g)

    def cycle(self) -> None:
        f, g = self.proposed()
        self.depth += 1
        if np.isfinite(f).all() and np.isfinite(g).all():
            self.f, self.g = f, g
            self.measure()
        else:
            self.stale = math.nan

    def discarded_cycle(self) -> None:
        self.row_ratios(*self.proposed())

    def screen(self) -> float:
        if math.isnan(self.stale):
            return math.nan
        return self.row_error(self.row_ratios(self.f, self.g)) + self.band(self.f, self.g)

    def verify(self, *, exact: bool) -> ds.Residual:
        if math.isnan(self.stale):
            return ds.Residual(math.nan, math.nan, math.nan)
        if exact:
            return certify(self.instance, self.emit().potentials(0))
        eps, state = self.instance.eps, self.rounded()
        f, g = state.f / eps, state.g / eps
        col = float((self.instance.b * np.abs(np.expm1(self.col_ratios(f, g)))).sum())
        return ds.Residual(self.row_error(self.row_ratios(f, g)), col, self.band(f, g))

    def rounded(self) -> Any:
        return round_state(self.instance, self.instance.eps * self.f, self.instance.eps * self.g)

    def emit(self) -> Emission:
        return emission(self.instance, self.rounded(), None)


def _logsumexp(exponents: Any) -> Any:
    largest = exponents.max(axis=1)
    return largest + np.log(np.exp(exponents - largest[:, None]).sum(axis=1))


@dataclass(frozen=True)
class ToyBackend:
    """Dense NumPy in float64."""

    lane: type[ToyLane] = ToyLane
    name: str = "toy"
    stride: int = 1
    bitwise: bool = True
    accelerations: tuple[str, ...] = ("none",)
    soft_marginals: bool = False

    def signature(self, instance: ds.Instance[Any]) -> Hashable:
        require_form(instance, self.name, FORMS)
        return self.name

    def width_for(self, lanes: int) -> int:
        return lanes

    def hints(self, instance: ds.Instance[Any]) -> Hints:
        return Hints("float64, dense", width=8, refilled=5, draining=5, held=5)

    def prepare(self, instances: Sequence[ds.Instance[Any]]) -> None:
        pass

    def pack(self, instances: Sequence[ds.Instance[Any]]) -> LanePack[ToyLane]:
        return LanePack(instances, self.lane)

    def couple(self, instances: Sequence[ds.Instance[Any]], potentials: Sequence[ds.Potentials[Any]]) -> Any:
        return plain_couplings(instances, potentials)

    def using(self, acceleration: str) -> ToyBackend:
        return self

    def precise(self) -> ToyBackend:
        return self

    def frugal(self) -> ToyBackend:
        return self

    def release(self) -> None:
        pass


@pytest.mark.parametrize("shape", [(13, 17, 3), (1, 1, 1), (1, 9, 2), (33, 40, 5)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_it_keeps_the_contract(dtype: str, shape: tuple[int, int, int]) -> None:
    check_backend(ToyBackend(), like=lambda values: np.asarray(values, dtype=dtype), shape=shape)


class Boastful(ToyLane):
    """Leaves out its rounding."""

    def band(self, f: Any, g: Any) -> float:
        return 0.0


class Forgetful(ToyLane):
    """Verifies the columns as the cycle left them."""

    def verify(self, *, exact: bool) -> ds.Residual:
        return super().verify(exact=exact)._replace(col=0.0)


@pytest.mark.parametrize(
    ("lane", "promise"), [(Boastful, "the screen is outward"), (Forgetful, "verify tells the truth")]
)
def test_the_contract_names_the_promise_that_is_broken(lane: type[ToyLane], promise: str) -> None:
    with pytest.raises(ds.ContractError, match=f"backend 'toy' breaks the promise '{promise}'"):
        check_backend(ToyBackend(lane))


@pytest.mark.parametrize("mode", ["compact", "mask", "width-one", "stream"])
def test_solve_runs_on_it(mode: Any) -> None:
    rng = np.random.default_rng(0)
    costs = ["sqeuclidean", "euclidean", "cosine", Uphill(), Chord()]
    batch = [
        ds.Problem(x=rng.normal(size=(9 + k, 2)), y=rng.normal(size=(14 - k, 2)), eps=0.3, cost=cost, tol=1e-8)
        for k, cost in enumerate(costs)
    ]
    batch.append(ds.Problem(cost=rng.uniform(size=(6, 7)), eps=0.1, tol=1e-8))
    ours = ds.solve(batch, backend=ToyBackend(), mode=mode, certify="always", recheck="all")
    theirs = ds.solve(batch, backend="reference", accelerate="none", certify="always", init="zero")
    for mine, truth in zip(ours, theirs, strict=True):
        assert mine.converged
        assert np.abs(mine.plan() - truth.plan()).max() <= 1e-6
        assert abs(mine.transport_cost().entropic - truth.transport_cost().entropic) <= 1e-6


def test_what_it_has_no_kernels_for_is_refused_by_name() -> None:
    points = np.random.default_rng(0).normal(size=(5, 2))
    (result,) = ds.solve(
        [ds.Problem(x=points, y=points, eps=1.0, cost=ds.Formula("SqDist(x, y)"))], backend=ToyBackend()
    )
    assert 'backend \'toy\' cannot compute the cost SqDist(x, y); use backend="keops" or "auto"' in result.message


def test_problems_with_soft_marginals_are_rejected() -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 6, 2))
    problems = [ds.Problem(x=x, y=y, eps=1.0, rho=2.0), ds.Problem(x=x, y=y, eps=1.0)]
    soft, hard = ds.solve(problems, backend=ToyBackend(), warn=False)
    assert soft.status is ds.Status.INVALID
    assert "backend 'toy' solves problems with two hard marginals" in soft.message
    assert hard.converged
    with pytest.raises(ds.ProblemError, match="two hard marginals"):
        ds.solve(x, y, eps=1.0, rho=2.0, backend=ToyBackend())
