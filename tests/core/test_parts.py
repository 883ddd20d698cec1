"""Options, audits, ledger and results: small parts, checked by hand."""

from __future__ import annotations

import math
import subprocess
import sys
import weakref
from typing import Any

import pytest

from drainsinkhorn.core.audit import Audit, Geometric, Limits, judge
from drainsinkhorn.core.events import Advanced, Opened, Retired
from drainsinkhorn.core.ledger import Ledger, survival
from drainsinkhorn.core.options import MODES, Mode, Options
from drainsinkhorn.core.protocol import Spent
from drainsinkhorn.model.errors import OptionsError
from drainsinkhorn.model.outcomes import Outcome, Outcomes
from drainsinkhorn.model.problem import Problem
from drainsinkhorn.model.result import Residual, Residuals
from drainsinkhorn.model.status import Status


def test_core_needs_nothing_but_the_standard_library() -> None:
    code = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"numpy", "scipy", "torch", "jax", "rich", "typer", "matplotlib"}:
            raise ImportError(f"blocked: {name}")
sys.meta_path.insert(0, Blocker())
import types
package = types.ModuleType("drainsinkhorn")
package.__path__ = [sys.argv[1]]
sys.modules["drainsinkhorn"] = package
testing = types.ModuleType("drainsinkhorn.testing")
testing.__path__ = [sys.argv[1] + "/testing"]
sys.modules["drainsinkhorn.testing"] = testing
from drainsinkhorn.core.executor import execute
from drainsinkhorn.core.ledger import Ledger
from drainsinkhorn.core.options import Options
from drainsinkhorn.core.source import Admission, Batch
from drainsinkhorn.testing.scripted import ScriptedBackend, scripted
ledger = Ledger()
source = Batch([Admission(i, scripted(d)) for i, d in enumerate([3, 1, 4, 1, 5])])
list(execute(ScriptedBackend(), source, Options(mode="compact").plan(None), ledger))
print(ledger.slots, ledger.removed_slots)
"""
    import drainsinkhorn

    done = subprocess.run([sys.executable, "-c", code, drainsinkhorn.__path__[0]], capture_output=True, text=True)
    assert done.stdout == "14 11\n", done.stderr


def test_without_numba_auto_takes_the_reference_and_says_why() -> None:
    code = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"numba", "llvmlite"}:
            raise ModuleNotFoundError(f"blocked: {name}")
sys.meta_path.insert(0, Blocker())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "numba" else found(name, package)
import numpy as np, drainsinkhorn as ds
solution = ds.solve(np.zeros((3, 1)), np.ones((2, 1)), eps=1.0)
print(solution.converged, solution.ledger.choices[0].picked, solution.ledger.choices[0].reason, sep=";")
try:
    ds.solve(np.zeros((3, 1)), np.ones((2, 1)), eps=1.0, backend="cpu")
except ds.BackendUnavailable as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    first, second = done.stdout.splitlines()
    assert first == "True;reference;Numba is not installed, so the compiled CPU backend cannot run"
    assert "backend 'cpu' cannot be loaded: blocked: llvmlite" in second or "blocked: numba" in second


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tol": 0}, "tol must be a positive finite number, got 0"),
        ({"tol": math.nan}, "tol must be a positive finite number, got nan"),
        ({"tol": "small"}, "tol must be a positive finite number, got 'small'"),
        ({"width": 0}, "width must be an integer of at least 1, got 0"),
        ({"width": 2.5}, "width must be an integer of at least 1, got 2.5"),
        ({"max_depth": True}, "max_depth must be an integer of at least 1, got True"),
        ({"mode": "fast"}, "mode must be a Mode or one of .*'compact'.*got 'fast'"),
        ({"certify": "never"}, 'certify must be "auto" or "always"'),
        ({"audit": 8}, "audit must be an Audit, got 8"),
        (
            {"mode": "stream", "audit": Audit(every=Geometric())},
            "a geometric audit would check them ever more rarely",
        ),
    ],
)
def test_options_say_what_is_wrong(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        Options(**settings)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Audit(every=0), "at least 1 cycle, got 0"),
        (lambda: Audit(every=2.5), "a whole number of at least 1 cycle, got 2.5"),
        (lambda: Audit(every="8"), "a whole number of at least 1 cycle, got '8'"),
        (lambda: Audit(margin="1"), "margin must lie in"),
        (lambda: Geometric(1.5, 2.0), "a whole first >= 1"),
        (lambda: Geometric(8, 1e308), "ratio > 1"),
        (lambda: Mode(name="m", width=2.5), "width must be an integer"),
        (lambda: Mode(name="m", refill=1.5), "refill must be at least 1"),
        (lambda: Mode(name="m", min_shrink="a"), "min_shrink counts lanes"),
        (lambda: Audit(margin=1.5), r"margin must lie in \(0, 1\], got 1.5"),
        (lambda: Audit(screen="fast"), 'screen must be "free", "row" or "none"'),  # type: ignore[arg-type]
        (lambda: Geometric(0, 2.0), "first >= 1"),
        (lambda: Geometric(4, 1.0), "ratio > 1"),
        (lambda: Mode(name="m", min_shrink=0), "min_shrink counts lanes"),
        (lambda: Mode(name="m", refill=0), "refill must be at least 1 vacancy"),
        (lambda: Mode(name="m", refill=1, together=True), "cannot go with together"),
    ],
)
def test_parts_say_what_is_wrong(make: Any, message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        make()


def test_modes_are_the_table_of_the_design() -> None:
    table = {m.name: (m.width, m.together, m.min_shrink, m.freeze, m.refill, m.lockstep) for m in MODES.values()}
    assert table == {
        "width-one": (1, False, 1, True, None, False),
        "static": (None, True, math.inf, False, None, True),
        "mask": (None, False, math.inf, True, None, True),
        "compact": (None, False, 1, True, None, False),
        "stream": (None, False, 1, True, 1, False),
    }


@pytest.mark.parametrize(
    ("count", "picked", "why"),
    [
        (1, "width-one", "there is one problem"),
        (16, "compact", "16 problems fit into one window of width 16"),
        (17, "stream", "17 problems exceed the width 16"),
        (None, "stream", "problems keep coming"),
    ],
)
def test_auto_says_what_it_picked_and_why(count: int | None, picked: str, why: str) -> None:
    plan = Options().plan(count)
    assert plan.mode.name == picked
    assert why in plan.reason


def test_audit_times() -> None:
    def times(audit: Audit) -> list[int]:
        found, clock = [], 0
        for _ in range(5):
            clock = audit.following(clock)
            found.append(clock)
        return found

    assert times(Audit(every=8)) == [8, 16, 24, 32, 40]
    assert times(Audit(every=Geometric(8, 1.5))) == [8, 12, 18, 27, 41]
    assert Audit(every=Geometric(8, 1.5)).following(20) == 27


def test_survival_counts_lanes_that_each_cycle_needs() -> None:
    assert survival([3, 1, 0, 3]) == [3, 2, 2]
    assert sum(survival([3, 1, 0, 3])) == 7
    assert survival([]) == []


def test_ledger_by_hand() -> None:
    ledger = Ledger()
    ledger(Opened([0, 1, 2], 2, lambda lanes: lanes, Spent(0, 3)))
    ledger(Advanced(4, 3, 3, Spent(10, 20)))
    ledger(Advanced(1, 3, 3, Spent(1, 2)))
    ledger(Advanced(2, 1, 1, Spent(2, 4)))
    for tickets, depths in (([0, 1], [7, 4]), ([2], [2])):
        ledger(Retired([], Outcomes(depths=depths, tickets=tickets)))
    assert (ledger.slots, ledger.legs) == (13, 29)
    assert ledger.widths == [(3, 5), (1, 2)]
    # Static batches of width two: (7, 4) runs 7 cycles, then (2) runs 2.
    assert ledger.static_widths == [(2, 7), (1, 2)]
    assert ledger.static_slots == 16
    assert ledger.removed_slots == 3
    assert ledger.padding == pytest.approx(16 / 13 - 1)


def test_worst_residual_is_outward_and_nan_speaks() -> None:
    assert Residual(1e-3, 2e-3, 1e-4).worst == pytest.approx(2.1e-3)
    assert math.isnan(Residual(math.nan, 0.0, 0.0).worst)
    assert math.isnan(Residual(0.0, math.nan, 0.0).worst)


def test_problems_can_be_referred_to_weakly_and_hold_nothing_but_their_fields() -> None:
    problem: Problem[Any] = Problem(eps=1.0)
    assert weakref.ref(problem)() is problem
    assert not hasattr(problem, "__dict__")


def test_outcomes_are_rows_and_columns() -> None:
    outcomes = Outcomes()
    rows = [Outcome(t, None, Residual(0.1 * t, 0.2, 0.3), Status.DEPTH_LIMIT, 10 + t, detail=str(t)) for t in range(5)]
    for row in rows:
        outcomes.append(row)
    assert list(outcomes) == rows
    assert outcomes[-1] == rows[-1]
    assert list(outcomes[1:4]) == rows[1:4]
    again = outcomes[:2]
    again.extend(outcomes[2:])
    assert again == outcomes
    # What an interrupt leaves behind of a row without a ticket does not count, and is dropped.
    again.f.append(None)
    assert len(again) == 5
    again.append(rows[0])
    assert again[5] == rows[0]


@pytest.mark.parametrize(("stale", "statuses"), [(0.25, [Status.CONVERGED]), (0.3, [])])
def test_without_a_screen_a_lane_passes_where_its_lowered_hold_would_hold_it(
    stale: float, statuses: list[Status]
) -> None:
    """Otherwise it would leave earlier where audits are more frequent."""
    limits = Limits(depths=[5], stale=[stale], stops=[0.4], holds=[0.25], final={})
    audit = Audit(screen="none")
    _, _, found, _ = judge(
        limits,
        [0],
        audit,
        lambda _: [stale],
        lambda lanes, exact: Residuals([0.35], [0.1], [0.0]),
        exact=True,
        quorum=0,
    )
    assert found == statuses


@pytest.mark.parametrize(("depth", "certified"), [(40, False), (4000, True)])
def test_a_certificate_is_made_where_it_saves_cycles(depth: int, certified: bool) -> None:
    """A residual of 9e-4 with an estimate of 2e-4 has to fall by 12 percent to pass 1e-3."""
    exactly = list[bool]()

    def verify(lanes: Any, exact: bool) -> Residuals:
        exactly.append(exact)
        return Residuals([9e-4], [0.0], [1e-9 if exact else 2e-4])

    limits = Limits(depths=[depth], stale=[9e-4], stops=[1e-3], holds=[1e-3], final={})
    _, _, statuses, _ = judge(limits, [0], Audit(), lambda _: [9e-4], verify, exact=False, quorum=0)
    assert exactly == [False, True] if certified else [False]
    assert statuses == ([Status.CONVERGED] if certified else [])
