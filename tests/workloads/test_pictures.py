"""The picture of the demo shows couplings of the workload beside the work of its run."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import drainsinkhorn as ds
from drainsinkhorn.workloads import clouds, digits
from drainsinkhorn.workloads.pictures import plot_demo
from tests.conftest import needs


def test_digits_show_images_and_their_matches(tmp_path: Path) -> None:
    needs("matplotlib")
    needs("sklearn")
    problems = digits.problems(0)[:3]
    solution = ds.solve(problems)
    figure = plot_demo("digits", solution, solution.ledger, str(tmp_path / "digits.png"))
    assert (tmp_path / "digits.png").stat().st_size > 20_000
    images, survival, widths = figure.axes
    sheet = np.asarray(images.images[0].get_array())
    step = digits.SIDE + digits.GAP
    parts = sheet.reshape(6, step, 3, step)[:, : digits.SIDE, :, : digits.SIDE].swapaxes(1, 2).reshape(6, 3, -1)
    for k, (problem, result) in enumerate(zip(problems, solution, strict=True)):
        row = int(np.abs(problem.x - parts[0, k]).sum(1).argmin())
        assert np.array_equal(parts[0, k], problem.x[row])
        assert np.allclose(parts[4, k], result.barycentric_map()[row])
        assert np.allclose(parts[2, k], (parts[0, k] + parts[4, k]) / 2)
        assert np.array_equal(parts[5, k], problem.y[result.top_match()[row]])
    assert survival.get_title() == f"Survival of 3 problems: {sum(solution.ledger.depths.values()):,} slots needed"
    assert widths.get_ylabel() == "lanes executed"


def test_clouds_show_the_matches_of_one_pair() -> None:
    needs("matplotlib")
    solution = ds.solve(clouds.problems(0, count=4, sizes=(20, 40)))
    ax = plot_demo("clouds", solution, solution.ledger).axes[0]
    deepest = max(solution, key=lambda result: result.depth)
    assert ax.get_title() == f"Top matches of one of 4 pairs (depth {deepest.depth})"
    assert len(ax.collections[0].get_segments()) == deepest.shape[0]
