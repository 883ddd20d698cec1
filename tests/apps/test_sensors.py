"""Drift of sensor windows and flow of LiDAR frames."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.sensors import Drift, frame_flow, windows

rng = np.random.default_rng(0)


def log(rows: int, shift: float = 0.0) -> Any:
    """Four correlated sensors of unequal units."""
    mixed = rng.normal(size=(rows, 4)) @ np.array([[1, 0.5, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0.9], [0, 0, 0, 0.1]])
    return (mixed + shift * np.array([1.0, 0, -1, 0])) * [1, 100, 0.01, 5] + [0, 1e4, 3, -2]


@pytest.fixture(scope="module")
def detector() -> Drift:
    return Drift.fit(windows(log(64 * 40), 64), references=3, quantile=0.95)


class TestDrift:
    def test_it_separates_drifted_windows(self, detector: Drift) -> None:
        healthy = detector.score(windows(log(64 * 20), 64))
        drifted = detector.score(windows(log(64 * 20, shift=1.0), 64))
        assert healthy.alarms.mean() <= 0.3
        assert drifted.alarms.all()
        assert drifted.values.min() > healthy.values.max()

    def test_scores_are_mean_divergences(self, detector: Drift) -> None:
        window = log(64)
        scaled = (window - detector.middle) / detector.scale
        alone = [ds.divergence(scaled, ref, eps=detector.eps).values[0] for ref in detector.references]
        assert detector.score([window]).values[0] == pytest.approx(np.mean(alone), rel=1e-6)

    def test_clouds_are_coupled_with_themselves_once(self, detector: Drift) -> None:
        found = detector.score(windows(log(64 * 5), 64))
        assert len(found.divergences.solution) == 5 * 3 + 5 + 3

    def test_the_threshold_is_the_quantile_of_windows_that_are_no_references(self, detector: Drift) -> None:
        assert len(detector.healthy) == 40 - 3
        assert detector.threshold == np.quantile(detector.healthy, 0.95)

    def test_windows_of_any_length_and_bad_ones(self, detector: Drift) -> None:
        bad = log(50)
        bad[3, 1] = np.nan
        with pytest.warns(ds.ConvergenceWarning, match="INVALID"):
            found = detector.score([log(40), bad, log(90, shift=2.0)])
        assert np.isnan(found.values).tolist() == [False, True, False]
        assert found.alarms.tolist()[1:] == [True, True]

    def test_a_sensor_that_never_moves_does_no_harm(self) -> None:
        healthy = windows(np.c_[log(64 * 10), np.full(64 * 10, 7.0)], 64)
        assert np.isfinite(Drift.fit(healthy, references=2).threshold)

    def test_bad_input(self, detector: Drift) -> None:
        with pytest.raises(ds.ProblemError, match="no windows of 64 rows"):
            windows(np.zeros((10, 2)), 64)
        with pytest.raises(ds.ProblemError, match="3 healthy windows are too few for 2 references"):
            Drift.fit(np.zeros((3, 10, 2)), references=2)
        with pytest.raises(ds.OptionsError, match="quantile=2"):
            Drift.fit(np.zeros((9, 10, 2)), quantile=2)
        with pytest.raises(ds.ProblemError, match=r"same sensors \(4\), got shapes"):
            detector.score([np.zeros((5, 3))])
        with pytest.raises(ds.ProblemError, match=r"\(W, rows, d\) or a list"):
            detector.score(np.zeros((5, 4)))
        with pytest.raises(ds.ProblemError, match="not finite"):
            Drift.fit(np.full((9, 10, 2), np.nan))


class TestFlow:
    def clip(self, frames: int, points: int = 150, step: float = 0.03) -> Any:
        scene, turn = rng.uniform(-1, 1, size=(points, 3)), 0.02
        spin = np.array([[np.cos(turn), -np.sin(turn), 0], [np.sin(turn), np.cos(turn), 0], [0, 0, 1]])
        found = [scene]
        for _ in range(frames - 1):
            found.append(found[-1] @ spin.T + [step, 0, 0])
        return found

    def test_a_moving_scene(self) -> None:
        clips = [self.clip(4), self.clip(3)]
        for flow, clip in zip(frame_flow(clips, eps=5e-4), clips, strict=True):
            assert all(result.converged for result in flow.results)
            for moved, x, y in zip(flow.displacement, clip[:-1], clip[1:], strict=True):
                off = np.linalg.norm(moved - (y - x), axis=1)
                assert np.median(off) < 0.2 * np.linalg.norm(y - x, axis=1).mean()

    def test_carry_saves_cycles_and_changes_little(self) -> None:
        # A scene that moves by as much in every frame: what one pair found is where the next one begins.
        clip = [frame + 0.02 * rng.normal(size=frame.shape) for frame in self.clip(6, step=0.5)]
        carried, fresh = (frame_flow([clip], eps=5e-3, carry=carry, init="zero")[0] for carry in (True, False))
        assert sum(r.depth for r in carried.results[1:]) < sum(r.depth for r in fresh.results[1:])
        assert np.abs(carried.displacement[3] - fresh.displacement[3]).max() < 0.02

    def test_a_bad_frame_harms_its_own_pairs_alone(self) -> None:
        clip = self.clip(5, 40)
        clip[2] = clip[2] * np.nan
        (flow,) = frame_flow([clip], eps=1e-2, warn=False)
        assert [moved is None for moved in flow.displacement] == [False, True, True, False]
        with pytest.raises(ds.ProblemError, match=r"clip 0 has 1 frame"):
            frame_flow([clip[:1]], eps=1.0)

    def test_a_clip_without_its_list(self) -> None:
        for clip in (self.clip(4, 40), np.stack(self.clip(4, 40))):
            with pytest.raises(ds.ProblemError, match=r"got frames of \[1\] dimensions; a single clip goes in a list"):
                frame_flow(clip, eps=1e-2)


def test_detectors_scores_and_flows_in_short(detector: Drift) -> None:
    scores = detector.score(windows(log(64 * 2, shift=3.0), 64))
    assert repr(scores) == f"Scores(2 windows, 2 alarms, threshold={detector.threshold:.6g})"
    assert repr(detector).startswith("Drift(3 references, 4 sensors, eps=")
    shown = repr(scores.divergences)
    assert shown.startswith("Divergences(6 pairs, values=(6,) float64, solution=Solution(")
    assert "\n" not in shown
    (flow,) = frame_flow([rng.normal(size=(3, 20, 2))], eps=0.5)
    assert repr(flow) == "Flow(2 pairs, 2 CONVERGED)"


def test_points_without_a_counterpart_are_not_matched() -> None:
    rng = np.random.default_rng(0)
    first = rng.normal(size=(80, 2))
    second, far = first[:60] + 0.1, np.r_[np.zeros(60, dtype=bool), np.ones(20, dtype=bool)]
    first[60:] += 20
    clip = [first, second, np.delete(second, 3, axis=0)]
    (hard,), (soft,) = (frame_flow([clip], eps=0.01, rho=rho) for rho in (None, 1.0))
    assert hard.matched is None
    assert soft.matched is not None
    assert [len(share) for share in soft.matched] == [80, 60]
    assert soft.matched[0][far].max() < 1e-6
    assert soft.matched[0][~far].min() > 0.9
    near = [np.abs(flow.displacement[0][~far] - 0.1).mean() for flow in (hard, soft)]
    assert near[1] < 0.05 < near[0]
