"""Decisions, attacks and shadow replay: what the precision campaign says, and that it could say otherwise."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.backends import load
from drainsinkhorn.backends.cpu import CpuBackend
from drainsinkhorn.backends.wrapped import WrappedBackend, WrappedPack
from drainsinkhorn.core.protocol import Pack
from drainsinkhorn.model.result import Residuals
from drainsinkhorn.parallel import LocalFleet
from drainsinkhorn.run.validate import validate
from drainsinkhorn.testing import marginal_errors
from drainsinkhorn_bench import attacks, decisions
from drainsinkhorn_bench.shadow import shadow

STREAMING = CpuBackend(representation="streaming")


def test_tf32_keeps_ten_bits_and_rounds_to_even():
    one = np.float32(1)
    step = np.float32(2.0**-10)
    given = np.array([1, 1 + step, 1 + step / 2, 1 + 3 * step / 2, 1 + step / 2 + 2.0**-20, -3.1415927], np.float32)
    assert decisions.tf32(given)[:5].tolist() == [one, 1 + step, one, 1 + 2 * step, 1 + step]
    assert decisions.tf32(given)[5] == pytest.approx(-3.1415927, rel=2.0**-11)
    assert (decisions.tf32(given).view(np.uint32) & 0x1FFF == 0).all()


def test_products_are_as_good_as_their_bits():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 60, 20)).astype(np.float32)
    exact = x.astype(float) @ y.T.astype(float)
    error = {how: np.abs(decisions.product(x, y, how, "cpu") - exact).max() for how in ("fp32", "tf32", "split")}
    assert error["fp32"] < error["split"] < 1e-4 < 1e-3 < error["tf32"] < 1e-1


def test_raw_residuals_are_those_of_the_auditor_but_for_rounding():
    problem, state, truth = decisions.near(decisions.Cloud(64, 3, 0.1, weighted=True), 0)
    assert truth == max(marginal_errors(problem, state)) <= 1e-3
    assert decisions.raw_residual(problem, state, "fp32", "cpu") == pytest.approx(truth, rel=1e-2)


def test_guarded_decisions_agree_with_float64_and_raw_ones_do_not():
    found = list(decisions.decisions(decisions.CLOUDS, 0, STREAMING, "cpu"))
    assert len(found) == 120
    assert sum(case.float64 for case in found) == 60
    assert not [case.case for case in found if case.guarded != case.float64]
    assert sum(case.fp32 != case.float64 for case in found) >= 3
    assert sum(case.tf32 != case.float64 for case in found) >= 3
    assert 0 < sum(case.escalated for case in found) < len(found)


class Boastful(WrappedPack):
    """Says that it does not round."""

    def verify(self, lanes: Any, *, exact: bool = False) -> Residuals:
        return self.inner.verify(lanes)._replace(band=[0.0] * len(lanes))


class BoastfulBackend(WrappedBackend):
    def pack(self, problems: Any) -> Pack[Any]:
        return Boastful(self.inner.pack(problems))


def test_a_guard_without_a_band_would_be_found_out():
    found = decisions.decisions(decisions.CLOUDS[:2], 0, BoastfulBackend(STREAMING), "cpu")
    assert [case for case in found if case.guarded != case.float64]


def test_a_wrapped_backend_changes_nothing():
    problem = ds.Problem(x=np.random.default_rng(0).normal(size=(30, 2)), y=np.zeros((20, 2)) + 0.1, eps=0.5)
    plain, wrapped = (ds.solve([problem], backend=b)[0] for b in (load("reference"), WrappedBackend(load("reference"))))
    assert plain.depth == wrapped.depth
    assert np.array_equal(plain.potentials.f, wrapped.potentials.f)


def test_every_attack_is_stopped_by_whom_it_should_be():
    ended = dict(attacks.attacks(2, CpuBackend(), load("reference")))
    assert len(ended) == len(attacks.ATTACKS) >= 16
    assert {name: outcome.how for name, outcome in ended.items() if not outcome.as_foretold} == {}
    assert [name for name, outcome in ended.items() if not outcome.caught] == ["a later premature pass"]
    assert [name for name, outcome in ended.items() if outcome.let_out] == ["a later premature pass"]


@pytest.mark.parametrize(
    "attack", ["premature pass", "lanes swapped at repack", "verify says NaN", "NaN in the potentials"]
)
def test_an_attack_that_does_not_bite_is_not_called_caught(attack: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(attacks.ATTACKS, "nothing at all", attacks.ATTACKS[attack])
    with LocalFleet(1) as fleet:
        ended = attacks.strike(fleet, "nothing at all", load("reference"))
    assert not ended.as_foretold
    assert not ended.caught


def test_shadow_replay_counts_what_the_screen_turned_down():
    problems = [
        ds.Problem(x=rng.normal(size=(40, 2)), y=0.5 + s * rng.normal(size=(50, 2)), eps=0.1)
        for s, rng in zip((0.5, 1.0, 1.5), map(np.random.default_rng, range(3)), strict=True)
    ]
    found = shadow(problems, STREAMING, 1e-3, 3)
    assert found["events"] > 3
    assert found["missed_ready"] == 0
    assert 0 < found["largest_row_gap"] < 1e-4


class Blind(WrappedPack):
    """A screen that says no whatever it sees, for a while."""

    calls = 0

    def screen(self, lanes: Any) -> list[float]:
        self.calls += 1
        return [math.inf if self.calls < 200 else value for value in self.inner.screen(lanes)]


class BlindBackend(WrappedBackend):
    def pack(self, problems: Any) -> Pack[Any]:
        return Blind(self.inner.pack(problems))


def test_shadow_replay_sees_a_screen_that_misses_lanes():
    rng = np.random.default_rng(0)
    problem = ds.Problem(x=rng.normal(size=(40, 2)), y=rng.normal(size=(40, 2)), eps=1.0)
    assert shadow([problem], BlindBackend(load("reference")), 1e-3, 1)["missed_ready"] > 0


def test_a_state_is_verified_exactly_as_it_was_given():
    problem, state, _ = decisions.near(decisions.Cloud(64, 3, 0.1), 0)
    pack = STREAMING.pack([validate(replace(problem, init=state), 1e-3)])
    emitted = pack.emit([0]).potentials(0)
    assert all(np.array_equal(a, b) for a, b in zip(emitted, state, strict=True))
