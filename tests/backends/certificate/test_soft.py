"""Certificates of problems with a soft marginal compare the plan with what the potentials ask for, on every device."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.backends import certificate
from drainsinkhorn.backends.certificate import blocks
from drainsinkhorn.backends.reference import ReferenceLane
from drainsinkhorn.run.validate import validate
from tests.backends.certificate.test_batch import FORMS, assert_alike, batched, device, lane
from tests.backends.certificate.test_certificate import Long

__all__ = ["device"]

RNG = np.random.default_rng(0)
PROBLEM = ds.Problem(x=RNG.normal(size=(20, 2)), y=RNG.normal(size=(30, 2)), eps=0.3, rho=(0.5, 2.0))
PRICES = ((2.0, 3.0), (math.inf, 1.5), (4.0, math.inf), None, (30.0, 1.0))


@pytest.mark.usefixtures("device")
class TestOnADevice:
    """The code for a device runs on tensors of the CPU, and agrees with NumPy."""

    @pytest.mark.parametrize("dim", [3, 20])
    @pytest.mark.parametrize("form", FORMS)
    def test_soft_lanes_beside_hard_ones(self, form: str, dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(certificate, "certify_on_host", certify_on_host := Counted(certificate.certify_on_host))
        rng = np.random.default_rng(1)
        lanes = [solved(lane(rng, FORMS[form], 30, 25, dim, absent=k, rho=rho)) for k, rho in enumerate(PRICES)]
        for problem, potentials in lanes:
            idle = problem.a == 0
            potentials.f[idle] = math.inf
        found = batched(lanes)
        assert certify_on_host.calls == 0
        for residual, one in zip(found, lanes, strict=True):
            assert_alike(residual, certificate.certify(*one))

    @pytest.mark.parametrize("pairs", [1, 50, 700])
    def test_blocks_and_neighbours(self, pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(blocks.BLOCK_PAIRS, "torch", pairs)
        rng = np.random.default_rng(2)
        lanes = [solved(lane(rng, "sqeuclidean", 13, 17, 3, absent=k % 2, rho=PRICES[k % 5])) for k in range(10)]
        for residual, one in zip(batched(lanes), lanes, strict=True):
            assert_alike(residual, certificate.certify(*one))
            assert residual == batched([one])[0]

    @pytest.mark.parametrize("values", [(-1e5, 3e5), (1e16, -1e16), (-1e3, 1e3), (-4e4, -4e4), (3e4, 3e4)])
    def test_states_far_from_optimal(self, values: tuple[float, float]) -> None:
        state = ds.Potentials(np.full(20, values[0]), np.full(30, values[1]))
        (residual,) = batched([(validate(PROBLEM, 1e-6), state)])
        expected = certificate.certify(validate(PROBLEM, 1e-6), state)
        assert residual == pytest.approx(expected, rel=1e-6)

    def test_the_bound_holds_in_extended_precision(self) -> None:
        if np.finfo(Long).eps > 1e-18:
            pytest.skip("long double is no wider than double on this machine")
        rng = np.random.default_rng(3)
        lanes = list[Any]()
        for _ in range(60):
            rho = tuple(math.inf if rng.random() < 0.2 else 10.0 ** rng.uniform(-2, 3) for _ in range(2))
            n, m = (int(size) for size in rng.integers(1, 50, size=2))
            problem, state = lane(rng, "sqeuclidean", n, m, int(rng.integers(1, 30)), rho=rho)
            problem = replace(problem, a=problem.a * 10.0 ** rng.uniform(-6, 3) if min(rho) < math.inf else problem.a)
            lanes += [(problem, ds.Potentials(*map(np.copy, state))), solved((problem, state))]
        finite = 0
        for found, (problem, state) in zip(batched(lanes), lanes, strict=True):
            row, col = extended_residuals(problem, state)
            if found.band < math.inf:
                finite += 1
                assert abs(found.row - row) <= found.band
                assert abs(found.col - col) <= found.band
        assert finite >= 60


def solved(one: Any) -> Any:
    """A problem with its potentials after some cycles: the residual is small, and not zero."""
    problem, state = one
    cycles = ReferenceLane(problem)
    for _ in range(4):
        cycles.cycle()
    for part, weights, cycled in zip(state, (problem.a, problem.b), (cycles.f, cycles.g), strict=True):
        part[weights > 0] = cycled
    return problem, state


class Counted:
    """A function that counts its calls."""

    def __init__(self, function: Any) -> None:
        self.function, self.calls = function, 0

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        return self.function(*args)


def extended_residuals(problem: ds.Instance[Any], state: ds.Potentials[Any]) -> tuple[Any, Any]:
    """Residuals of squared distances in long double, relative to the mass of the plan with a soft marginal."""
    (f, g), (x, y) = ((part.astype(Long) for part in pair) for pair in (state, (problem.x, problem.y)))  # type: ignore[union-attr]
    a, b = (np.asarray(weights).astype(Long) for weights in (problem.a, problem.b))
    cost = ((x[:, None] - y[None]) ** 2).sum(-1) * Long(problem.cost.scale)
    plan = a[:, None] * b[None] * np.exp((f[:, None] + g[None] - cost) / Long(problem.eps))
    if problem.marginals.are_hard:
        return abs(plan.sum(1) - a / a.sum()).sum(), abs(plan.sum(0) - b / b.sum()).sum()
    wanted = [
        weights * np.exp(-Long(marginal.kappa) * part)
        for weights, part, marginal in zip((a, b), (f, g), problem.marginals, strict=True)
    ]
    return tuple(abs(plan.sum(1 - side) - wanted[side]).sum() / plan.sum() for side in (0, 1))


def test_a_state_out_of_range_is_far_from_optimal_and_not_broken() -> None:
    """Masses and what they are compared with exceed float64; a residual of NaN would end the lane."""
    instance = validate(PROBLEM, 1e-6)
    potentials = ds.Potentials(np.full(20, -1e5), np.full(30, 3e5))
    residual = certificate.certify(instance, potentials)
    assert (residual.row, residual.col, residual.band) == (math.inf, math.inf, math.inf)
    broken = certificate.certify(instance, ds.Potentials(np.full(20, math.nan), potentials.g))
    assert math.isnan(broken.worst)
