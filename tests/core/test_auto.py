"""What mode="auto" picks, and that it says why."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.core.events import Chosen
from drainsinkhorn.core.executor import execute
from drainsinkhorn.core.source import Admission, Batch
from drainsinkhorn.testing import ScriptedBackend, scripted


def picked(count: int | None, width: int = 8, **settings: Any) -> tuple[ds.Mode, str]:
    plan = ds.Options(width=width, **settings).plan(count)
    return plan.mode, plan.reason


def test_the_rules() -> None:
    assert picked(1) == (ds.MODES["width-one"], "there is one problem")
    assert picked(8) == (ds.MODES["compact"], "8 problems fit into one window of width 8")
    assert picked(9)[0] == ds.MODES["stream"]
    assert "9 problems exceed the width 8" in picked(9)[1]
    assert picked(None)[0] == ds.MODES["stream"]
    assert picked(9, audit=ds.Audit(every=ds.Geometric()))[0] == ds.MODES["compact"]


def test_nearly_equal_depths_are_not_compacted() -> None:
    mode, reason = picked(8, profile=ds.Profile(depths=[90, 97]))
    assert (mode.name, mode.min_shrink, mode.lockstep) == ("compact", math.inf, False)
    assert "depths from 90 to 97 end together, so nothing is compacted" in reason
    geometric = ds.Audit(every=ds.Geometric(8, 1.5))
    assert picked(8, profile=ds.Profile(depths=[60, 90]), audit=geometric)[0].min_shrink == math.inf
    assert picked(8, profile=ds.Profile(depths=[60, 91]), audit=geometric)[0].min_shrink == 1


def test_unequal_depths_compact_from_the_break_even_on() -> None:
    mode, reason = picked(8, profile=ds.Profile(depths=[5, 300], min_shrink=3))
    assert mode == ds.Mode(name="compact", min_shrink=3)
    assert "a repack pays from 3 lanes" in reason
    assert picked(8, profile=ds.Profile())[0] == ds.MODES["compact"]


def test_a_fixed_mode_ignores_the_profile() -> None:
    assert picked(8, mode="mask", profile=ds.Profile(depths=[9]))[0] == ds.MODES["mask"]


@pytest.mark.parametrize(
    "profile", [None, ds.Profile(depths=[40, 41]), ds.Profile(depths=[1, 99], min_shrink=3)], ids=["none", "eq", "un"]
)
def test_a_profile_true_or_false_changes_no_result(profile: ds.Profile | None) -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 6, 20, 2))
    eps = [0.1, 0.1, 1.0, 0.3, 0.05, 2.0]
    truth = ds.solve(x, y, eps=eps, mode="compact")
    solution = ds.solve(x, y, eps=eps, profile=profile)
    assert np.array_equal(solution.potentials.f, truth.potentials.f)
    assert np.array_equal(solution.potentials.g, truth.potentials.g)
    assert [r.depth for r in solution] == [r.depth for r in truth]
    assert sum(isinstance(choice, Chosen) and choice.what == "mode" for choice in solution.ledger.choices) == 1


def test_lanes_that_end_together_need_no_repack() -> None:
    ledger, depths = ds.Ledger(), (15, 16, 17, 18)
    waiting = Batch([Admission(ticket, scripted(depth)) for ticket, depth in enumerate(depths)])
    plan = ds.Options(profile=ds.Profile(depths=depths)).plan(4)
    list(execute(ScriptedBackend(), waiting, plan, ledger))
    assert ledger.depths == dict(enumerate(depths))
    assert (ledger.repacks, ledger.frozen) == (0, 0)


def test_bad_profiles() -> None:
    with pytest.raises(ds.OptionsError, match="at least 1, got"):
        ds.Profile(depths=[0])
    with pytest.raises(ds.OptionsError, match="min_shrink counts lanes"):
        ds.Profile(min_shrink=0)
    with pytest.raises(ds.OptionsError, match="profile must be a Profile"):
        ds.Options(profile=[3, 4])  # type: ignore[arg-type]
