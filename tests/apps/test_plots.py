"""Plots of applications show the numbers of the tables and scores."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from drainsinkhorn import cells, plots, sensors
from drainsinkhorn.model.errors import ProblemError
from tests.conftest import needs

rng = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _figures() -> Iterator[None]:
    needs("matplotlib")
    import matplotlib.pyplot as plt

    yield
    plt.close("all")


def table(bootstraps: int = 0) -> cells.Table:
    mass = np.array([[0.3, 0.1, 0.1], [0.0, 0.002, 0.498]])
    draws = np.stack([mass * (1 + 0.1 * rng.normal(size=mass.shape)) for _ in range(bootstraps)] or [mass])[:bootstraps]
    return cells.Table(["stem", "<b>"], ["neuron", "glia", "a long name of a type"], mass, draws)


@pytest.mark.parametrize("bootstraps", [0, 3])
def test_transitions_show_shares(bootstraps: int) -> None:
    shown = table(bootstraps)
    ax = plots.transitions(shown)
    assert np.array_equal(ax.images[0].get_array(), shown.conditional)
    assert [t.get_text() for t in ax.get_yticklabels()] == ["stem", "<b>"]
    texts = [text.get_text().partition("\n") for text in ax.texts]
    # 0.4 % is not written.
    assert [first for first, _, _ in texts] == ["0.60", "0.20", "0.20", "1.00"]
    spread = shown.spread
    wanted = [] if spread is None else [f"±{spread[k]:.2f}" for k in ((0, 0), (0, 1), (0, 2), (1, 2))]
    assert [last for _, _, last in texts if last] == wanted
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("target", "source")


def scores(values: list[float], threshold: float = 1.0) -> sensors.Scores:
    array = np.array(values)
    return sensors.Scores(array, ~(array <= threshold), None, threshold)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "angle"), [("Neuroblast_ASG_AWA", 40.0), ("neuron", 0.0)])
def test_a_long_name_beside_short_ones_is_drawn_at_an_angle(name: str, angle: float) -> None:
    ax = plots.transitions(cells.Table(["a"], ["AWA", "AWB", "AWC", name], np.full((1, 4), 0.25), np.empty((0, 1, 4))))
    assert {text.get_rotation() for text in ax.get_xticklabels()} == {angle}


def test_drift_shows_threshold_alarms_and_scores_that_are_not_finite() -> None:
    ax = plots.drift(scores([0.5, 2.0, np.nan, 0.7]), times=np.array([0.0, 2.0, 4.0, 6.0]), unit="hour")
    calm, loud, broken = (np.asarray(group.get_offsets()) for group in ax.collections)
    assert calm.tolist() == [[0.0, 0.5], [6.0, 0.7]]
    assert loud.tolist() == [[2.0, 2.0]]
    assert broken.tolist() == [[4.0, 1.0]]
    assert ax.get_xlabel() == "hour"
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert names == ["no alarm: 2", "alarm: 1", "threshold 1", "not finite: 1"]
    assert ax.lines[1].get_ydata()[0] == 1.0


def test_drift_without_alarms_or_times() -> None:
    ax = plots.drift(scores([0.5, 0.7], threshold=np.inf))
    assert ax.get_xlabel() == "window"
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["no alarm: 2"]
    with pytest.raises(ProblemError, match="one for each of 2 windows"):
        plots.drift(scores([0.5, 0.7]), times=[1.0])
    dates = np.array(["2024-01-01", "2024-01-02"], dtype="datetime64[D]")
    assert plots.drift(scores([0.5, 0.7]), times=dates).get_xlabel() == "time"


def test_scores_have_the_threshold_of_their_detector() -> None:
    detector = sensors.Drift.fit(rng.normal(size=(8, 10, 2)), references=2)
    assert detector.score(rng.normal(size=(2, 10, 2))).threshold == detector.threshold
