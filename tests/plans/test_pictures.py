"""Plots of couplings show the plan: its masses, its top matches and its barycentric images."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn import plots
from drainsinkhorn.model.errors import BackendUnavailable, ConvergenceWarning, OptionsError, ProblemError
from drainsinkhorn.plans import canvas, pictures
from tests.conftest import needs

rng = np.random.default_rng(0)
N, M = 40, 30
X, Y = rng.normal(size=(N, 2)), rng.normal(size=(M, 2)) + 2


@pytest.fixture(autouse=True)
def _figures() -> Iterator[None]:
    needs("matplotlib")
    import matplotlib.pyplot as plt

    yield
    plt.close("all")


def solved(**given: Any) -> ds.Result[Any]:
    problem = ds.Problem(**{"x": X, "y": Y, "eps": 0.1, **given})
    return ds.solve([problem], backend="reference", warn=False)[0]


def segments(ax: Any) -> Any:
    return np.array(ax.collections[0].get_segments())


def pairs_of(ax: Any, x: Any = X, y: Any = Y) -> list[tuple[int, int]]:
    """The pair of points that each line joins."""
    found = []
    for start, end in segments(ax):
        found.append((int(np.abs(x - start).sum(1).argmin()), int(np.abs(y - end).sum(1).argmin())))
    return found


def axes_3d() -> Any:
    import matplotlib.pyplot as plt

    return plt.figure().add_subplot(projection="3d")


class TestMatches:
    def test_lines_lead_to_top_matches_and_darken_with_mass(self) -> None:
        result = solved(a=np.linspace(0.1, 1, N))
        ax = plots.matches(result)
        top, plan = result.top_match(), result.plan()
        assert pairs_of(ax) == list(enumerate(top))
        mass = plan[np.arange(N), top]
        alpha = ax.collections[0].get_colors()[:, 3]
        assert np.array_equal(np.argsort(alpha, kind="stable"), np.argsort(mass, kind="stable"))
        assert np.corrcoef(ax.collections[0].get_linewidths(), mass)[0, 1] > 0.999
        assert ax.get_title() == "Top match of each point of x"
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("coordinate 0", "coordinate 1")
        assert [t.get_text() for t in ax.get_legend().get_texts()] == ["x: 40 points", "y: 30 points"]

    def test_pairs_that_are_drawn_from_the_plan(self) -> None:
        result = solved()
        ax = plots.matches(result, kind="sample", lines=200, seed=3)
        i, j = result.sample(200, seed=3)
        assert set(pairs_of(ax)) == set(zip(i.tolist(), j.tolist(), strict=True))
        assert "200 pairs" in ax.get_title()

    def test_points_without_weight_have_no_line(self) -> None:
        weights = np.ones(N)
        weights[:5] = 0
        ax = plots.matches(solved(a=weights))
        assert {i for i, _ in pairs_of(ax)} == set(range(5, N))

    def test_large_clouds_are_thinned_and_the_plot_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(canvas, "POINTS", 20)
        monkeypatch.setattr(pictures, "ENTRIES", 4 * M)  # four rows of the plan at a time
        result = solved()
        ax = plots.matches(result, lines=10)
        assert ax.get_title() == "Top matches of 10 of 40 points of x"
        assert ax.get_xlabel() == "coordinate 0\n20 of 40 points of x and 20 of 30 points of y are drawn"
        assert len(ax.collections[1].get_offsets()) == 20
        top = result.top_match()
        assert all(top[i] == j for i, j in pairs_of(ax))

    def test_views(self) -> None:
        wide = {"x": rng.normal(size=(N, 5)) * [1, 9, 1, 1, 3], "y": rng.normal(size=(M, 5))}
        result = solved(**wide, eps=1.0)
        ax = plots.matches(result)
        assert ax.get_xlabel().startswith("principal axis 1 (")
        along = segments(ax)[:, 0, 0]
        assert abs(np.corrcoef(along, wide["x"][:, 1])[0, 1]) > 0.99
        ax = plots.matches(result, coordinates=(4, 0))
        assert np.array_equal(segments(ax)[:, 0], wide["x"][:, [4, 0]])
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("coordinate 4", "coordinate 0")
        assert plots.matches(result, ax=axes_3d()).get_zlabel().startswith("principal axis 3")
        line = solved(x=X[:, :1], y=Y[:, :1])
        assert np.array_equal(segments(plots.matches(line))[:, :, 1], np.tile([1.0, 0.0], (N, 1)))
        assert plots.matches(line, ax=axes_3d()).get_xlabel() == "coordinate 0"

    def test_a_dense_cost_needs_positions(self) -> None:
        result = solved(x=None, y=None, cost=((X[:, None] - Y) ** 2).sum(-1))
        with pytest.raises(ProblemError, match="pass positions="):
            plots.matches(result)
        assert pairs_of(plots.matches(result, positions=(X, Y))) == list(enumerate(result.top_match()))
        moved = plots.displacement(result, positions=(X, Y)).collections[-1]
        plan = result.plan()
        assert np.allclose(np.c_[moved.U, moved.V], plan @ Y / plan.sum(1, keepdims=True) - X)

    def test_bad_arguments(self) -> None:
        result = solved()
        for error, wrong in (
            (OptionsError, {"kind": "all"}),
            (OptionsError, {"lines": 0}),
            (ProblemError, {"coordinates": (0, 2)}),
            (ProblemError, {"coordinates": (0,)}),
            (ProblemError, {"positions": (X, Y[:3])}),
        ):
            with pytest.raises(error, match=next(iter(wrong))):
                plots.matches(result, **wrong)
        with pytest.raises(ProblemError, match="eps must be"):
            plots.matches(solved(eps=-1.0))

    def test_an_unconverged_plan_warns_and_is_named(self) -> None:
        (result,) = ds.solve([ds.Problem(x=X, y=Y, eps=0.01)], max_depth=2, rescue=False, warn=False)
        result = ds.Result(**{**{f: getattr(result, f) for f in result.__dataclass_fields__}, "warns": True})
        with pytest.warns(ConvergenceWarning, match="DEPTH_LIMIT"):
            ax = plots.matches(result)
        assert ax.get_title().endswith("(DEPTH_LIMIT)")

    @pytest.mark.parametrize("library", ["torch", "jax"])
    def test_arrays_of_other_libraries(self, library: str) -> None:
        module = needs(library)
        as_array = module.tensor if library == "torch" else module.numpy.asarray
        result = solved(x=as_array(X.astype(np.float32)), y=as_array(Y.astype(np.float32)))
        assert pairs_of(plots.matches(result)) == list(enumerate(solved().top_match()))
        assert plots.plan(result).images[0].get_array().shape == (N, M)
        assert plots.displacement(result) is not None


class TestDisplacement:
    def test_arrows_lead_to_barycentric_images(self) -> None:
        result = solved()
        ax = plots.displacement(result)
        arrows = ax.collections[-1]
        moves = result.barycentric_map() - X
        assert np.allclose(arrows.XY, X)
        assert np.allclose(np.c_[arrows.U, arrows.V], moves)
        bar = ax.figure.axes[1]
        assert bar.get_ylabel() == "distance moved (units of x)"
        assert bar.get_ylim()[1] == pytest.approx(np.linalg.norm(moves, axis=1).max())
        # All arrows lie within the axes.
        ends = X + moves
        assert (ends.min(0) >= [ax.get_xlim()[0], ax.get_ylim()[0]]).all()
        assert (ends.max(0) <= [ax.get_xlim()[1], ax.get_ylim()[1]]).all()

    def test_medians_of_squares(self) -> None:
        result = solved()
        ax = plots.displacement(result, cell=1.0)
        where = np.floor(X).astype(int)
        squares = [np.all(where == square, axis=1) for square in np.unique(where, axis=0)]
        wanted = [np.median((result.barycentric_map() - X)[k], axis=0) for k in squares if k.sum() >= 4]
        arrows = ax.collections[-1]
        assert np.allclose(np.c_[arrows.U, arrows.V], wanted)
        assert "median of a square with side 1" in ax.get_xlabel()
        with pytest.raises(OptionsError, match="larger cell"):
            plots.displacement(result, cell=1e-6)

    def test_thinning_projection_and_a_line(self) -> None:
        assert "7 of 40 arrows" in plots.displacement(solved(), arrows=7).get_xlabel()
        wide = solved(x=rng.normal(size=(N, 4)), y=rng.normal(size=(M, 4)), eps=1.0)
        assert len(plots.displacement(wide).collections[-1].U) == N
        assert plots.displacement(wide, ax=axes_3d()).get_title() == "Barycentric displacement of x"
        line = plots.displacement(solved(x=X[:, :1], y=Y[:, :1])).collections[-1]
        assert np.array_equal(line.V, -np.ones(N))


class TestPlan:
    def test_colours_are_the_plan(self) -> None:
        result = solved()
        ax = plots.plan(result)
        assert np.allclose(ax.images[0].get_array(), result.plan())
        assert ax.figure.axes[1].get_ylabel() == "mass of an entry"
        assert ax.get_ylabel() == "point of x (index)"

    def test_blocks_add_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        result = solved()
        monkeypatch.setattr(pictures, "ENTRIES", 3 * (N + M))  # three columns of blocks at a time
        shown = plots.plan(result, pixels=7)
        blocks = shown.images[0].get_array()
        plan = result.plan()
        rows, cols = np.arange(N) * 7 // N, np.arange(M) * 7 // M
        wanted = np.array([[plan[np.ix_(rows == i, cols == j)].sum() for j in range(7)] for i in range(7)])
        assert np.allclose(blocks, wanted)
        assert shown.figure.axes[1].get_ylabel() == "mass of a block (about 5.71 x 4.29 points)"

    def test_orders(self) -> None:
        result = solved()
        axis = np.linalg.svd(np.r_[X, Y] - np.r_[X, Y].mean(0))[2][0]
        axis *= np.sign(axis[np.abs(axis).argmax()])
        rows, cols = np.argsort(X @ axis), np.argsort(Y @ axis)
        for order in ("principal", (rows, cols)):
            shown = plots.plan(result, order=order).images[0].get_array()
            assert np.allclose(shown, result.plan()[np.ix_(rows, cols)])
        for wrong in ("sorted", (rows, cols[:3]), (rows, rows[:M])):
            with pytest.raises(OptionsError, match="order must"):
                plots.plan(result, order=wrong)

    def test_a_large_plan_needs_no_matrix(self) -> None:
        x = rng.normal(size=(3000, 2))
        (result,) = ds.solve([ds.Problem(x=x, y=x[:2500], eps=1.0)], tol=0.1, warn=False)
        plots.plan(result, pixels=8)
        tracemalloc.start()
        ax = plots.plan(result, pixels=8)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 8 * 3000 * 2500 / 4
        assert ax.images[0].get_array().sum() == pytest.approx(1, abs=0.1)


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    result = solved()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for draw in (plots.matches, plots.plan, plots.displacement):
        with pytest.raises(BackendUnavailable, match=r"drainsinkhorn\[plot\]"):
            draw(result)
