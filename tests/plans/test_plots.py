"""Areas of the plots of a run are the numbers of slots that their titles and legends say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn import plots
from tests.conftest import needs

rng = np.random.default_rng(0)
X, Y = rng.normal(size=(9, 30, 2)), rng.normal(size=(9, 25, 2)) + np.arange(9)[:, None, None] / 2
MODES = ("static", "mask", "compact", "stream", "width-one")


@pytest.fixture(autouse=True)
def _figures() -> Iterator[None]:
    needs("matplotlib")
    import matplotlib.pyplot as plt

    yield
    plt.close("all")


def areas(ax: Any) -> list[float]:
    """The area of each filled staircase, in the order in which they were drawn."""
    found = []
    for patch in ax.patches:
        values, edges, _ = patch.get_data()
        found.append(float((values * np.diff(edges)).sum()))
    return found


def numbers(text: str) -> list[int]:
    return [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*(?!%)\b(?!%)", text)]


@pytest.mark.parametrize("mode", MODES)
def test_areas_are_the_numbers_that_are_written(mode: str) -> None:
    ledger = ds.solve(X, Y, eps=0.05, mode=mode, width=4, backend="reference").ledger
    curve = plots.survival(ledger)
    assert curve.get_title() == f"Survival of 9 problems: {sum(ledger.depths.values()):,} slots needed"
    assert areas(curve) == [sum(ledger.depths.values())]

    ax = plots.widths(ledger)
    static, executed = areas(ax)
    assert static == ledger.static_slots
    assert executed == pytest.approx(ledger.slots)
    assert numbers(ax.get_title())[:2] == [ledger.slots, abs(ledger.removed_slots)]
    named = [numbers(text.get_text())[0] for text in ax.get_legend().get_texts()]
    assert named == [ledger.static_slots, ledger.slots]
    assert static == pytest.approx(executed + ledger.removed_slots)


def test_lanes_that_are_held_are_no_area() -> None:
    ledger = ds.solve(X, Y, eps=0.05, mode="compact", audit=ds.Audit(every=64), width=9, backend="reference").ledger
    assert ledger.slots < sum(width * cycles for width, cycles in ledger.widths)
    assert sum(ledger.executed) == ledger.slots
    assert areas(plots.widths(ledger))[1] == pytest.approx(ledger.slots)


def test_an_empty_run_and_given_axes() -> None:
    import matplotlib.pyplot as plt

    empty = ds.solve([])
    assert plots.survival(empty).get_title() == "Survival of 0 problems: 0 slots needed"
    assert plots.widths(empty).get_title() == "0 slots executed, 0 removed"
    with plots.style():
        _, (left, right) = plt.subplots(1, 2)
    assert plots.survival(empty, ax=left) is left
    assert not right.spines["top"].get_visible()


def test_the_style_ends_with_its_context() -> None:
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    with plots.style():
        assert dict(mpl.rcParams) != before
    assert dict(mpl.rcParams) == before
