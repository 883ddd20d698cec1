"""Plots of one coupling: matches between the clouds, the plan as a heat map, and the displacement of points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.core.audit import is_count
from drainsinkhorn.model.errors import OptionsError, ProblemError
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.model.result import Result, warn_of_plans
from drainsinkhorn.numerics.arrays import to_caller, to_numpy
from drainsinkhorn.plans.canvas import Canvas, draw_clouds, make_canvas, principal_axes, thin
from drainsinkhorn.plans.style import DARK, LENGTHS, LINE, MASSES, SOURCE, TARGET, drawing, label

Array = NDArray[Any]
ENTRIES = 2**24
"""Numbers that a plot of a plan holds at a time beside the points: 128 MB."""


def matches(
    result: Result[Any],
    *,
    kind: str = "top",
    lines: int = 300,
    coordinates: Sequence[int] | None = None,
    positions: tuple[Any, Any] | None = None,
    seed: int = 0,
    ax: Any = None,
) -> Any:
    """Draw both clouds, and lines from points of x to points of y; the more mass, the darker and wider the line.

    Points with more than two coordinates are drawn along the first two principal axes of both clouds together (the
    first three on 3-D Axes). Of large clouds some points and lines are drawn, at random, and the plot says how many.

    Args:
        result: The coupling.
        kind: "top": the top match of each point of x. "sample": pairs drawn from the plan.
        lines: Largest number of lines.
        coordinates: Two coordinates to draw (three on 3-D Axes), by number from 0; None: principal axes.
        positions: Where to draw the points, (n, 2) and (m, 2), for example in an embedding. Required for a dense cost,
            which has no points.
        seed: Seed of the draws.
        ax: The Axes to draw in, 2-D or 3-D; None: those of a new figure.

    Returns:
        The matplotlib Axes.

    Examples:
        >>> import matplotlib.pyplot as plt
        >>> import drainsinkhorn as ds
        >>> from drainsinkhorn import plots
        >>> rng = np.random.default_rng(0)
        >>> (result,) = ds.solve(rng.normal(size=(1, 20, 2)), rng.normal(size=(1, 30, 2)), eps=0.1)
        >>> ax = plots.matches(result)
        >>> ax.get_title()
        'Top match of each point of x'
        >>> plt.close(ax.figure)
    """
    if kind not in ("top", "sample"):
        raise OptionsError(f'kind must be "top" or "sample", got {kind!r}')
    if not is_count(lines):
        raise OptionsError(f"lines must be an integer of at least 1, got {lines!r}")
    instance, rng = result.instance, np.random.default_rng(seed)
    with drawing(ax) as ax:
        canvas = make_canvas(instance, coordinates, positions, _axes_of(ax))
        rows, cols, mass = _top_pairs(result, lines, rng) if kind == "top" else _drawn_pairs(result, lines, seed)
        _draw_lines(ax, canvas.x[rows], canvas.y[cols], mass)
        weighted = int(np.count_nonzero(to_numpy(instance.a)))
        left_out = draw_clouds(ax, canvas, instance, rng, faint=weighted > 2 * lines)
        if weighted > 2 * lines:
            for ends, colour, marker in ((canvas.x[rows], SOURCE, "o"), (canvas.y[cols], TARGET, "^")):
                ax.scatter(*ends.T, s=9, c=colour, marker=marker, linewidths=0, zorder=3)
        title = f"{lines:,} pairs drawn from the plan" if kind == "sample" else _title_of_matches(len(rows), weighted)
        label(ax, title + _status(result), *canvas.names, note=left_out, above=True)
    return ax


def displacement(
    result: Result[Any],
    *,
    arrows: int = 400,
    cell: float | None = None,
    coordinates: Sequence[int] | None = None,
    positions: tuple[Any, Any] | None = None,
    seed: int = 0,
    ax: Any = None,
) -> Any:
    """Draw an arrow from each point of x to its barycentric image; its colour is the distance in all coordinates.

    The image of a point is the mean of the points of y under its conditional distribution. Points with more than two
    coordinates are drawn along the first two principal axes of both clouds together (the first three on 3-D Axes).

    Args:
        result: The coupling.
        arrows: Largest number of arrows; of more points, some are drawn at random.
        cell: Side of squares in units of the points; each square with at least four points gets one arrow, the median
            of its points. None: one arrow for each point.
        coordinates: Two coordinates to draw (three on 3-D Axes), by number from 0; None: principal axes.
        positions: Where to draw the points, (n, 2) and (m, 2), for example in an embedding; arrows lead to the mean
            position. Required for a dense cost, which has no points.
        seed: Seed of the draws.
        ax: The Axes to draw in, 2-D or 3-D; None: those of a new figure.

    Returns:
        The matplotlib Axes.

    Examples:
        >>> import matplotlib.pyplot as plt
        >>> import drainsinkhorn as ds
        >>> from drainsinkhorn import plots
        >>> rng = np.random.default_rng(0)
        >>> (result,) = ds.solve(rng.normal(size=(1, 20, 2)), rng.normal(size=(1, 30, 2)), eps=0.1)
        >>> ax = plots.displacement(result)
        >>> ax.get_title()
        'Barycentric displacement of x'
        >>> plt.close(ax.figure)
    """
    if not is_count(arrows):
        raise OptionsError(f"arrows must be an integer of at least 1, got {arrows!r}")
    if cell is not None and not cell > 0:
        raise OptionsError(f"cell must be a positive length, got {cell!r}")
    instance, rng = result.instance, np.random.default_rng(seed)
    with drawing(ax) as ax:
        canvas = make_canvas(instance, coordinates, positions, _axes_of(ax))
        starts, moves, lengths = _moves(result, canvas)
        if cell is not None:
            starts, moves, lengths = _medians(starts, moves, lengths, cell)
        chosen = thin(len(starts), arrows, rng)
        left_out = draw_clouds(ax, canvas, instance, rng, faint=True)
        _draw_arrows(ax, starts[chosen], moves[chosen], lengths[chosen], bar=canvas.basis is not None)
        if cell is not None:
            left_out = f"each arrow is the median of a square with side {cell:g}"
        elif len(chosen) < len(starts):
            left_out = f"{len(chosen):,} of {len(starts):,} arrows are drawn"
        label(ax, "Barycentric displacement of x" + _status(result), *canvas.names, note=left_out, above=True)
    return ax


def plan(result: Result[Any], *, pixels: int = 256, order: Any = "given", ax: Any = None) -> Any:
    """Draw the plan as a heat map, in blocks of equally many rows and columns where it is larger than `pixels`.

    The colour is the mass of the entry, or the sum over the block, so all colours add up to the mass of the plan. No
    n x m array is made.

    Args:
        result: The coupling.
        pixels: Largest number of rows, and of columns, of the heat map.
        order: Order of the points: "given"; "principal", along the first principal axis of both clouds together, which
            shows structure of points in random order; or a pair of index arrays, (n,) and (m,).
        ax: The Axes to draw in; None: those of a new figure.

    Returns:
        The matplotlib Axes.

    Examples:
        >>> import matplotlib.pyplot as plt
        >>> import drainsinkhorn as ds
        >>> from drainsinkhorn import plots
        >>> rng = np.random.default_rng(0)
        >>> (result,) = ds.solve(rng.normal(size=(1, 20, 2)), rng.normal(size=(1, 30, 2)), eps=0.1)
        >>> ax = plots.plan(result, order="principal")
        >>> round(float(ax.images[0].get_array().sum()), 2)
        1.0
        >>> plt.close(ax.figure)
    """
    if not is_count(pixels):
        raise OptionsError(f"pixels must be an integer of at least 1, got {pixels!r}")
    n, m = result.instance.shape
    sides = _orders(result.instance, order)
    rows, cols = (_groups(side, pixels) for side in sides)
    blocks = _block_masses(result, rows, cols)
    with drawing(ax, (5.6, 4.6)) as ax:
        from matplotlib.colors import PowerNorm

        # The square root shows small masses beside the largest ones.
        norm = PowerNorm(0.5, vmin=0, vmax=max(float(blocks.max()), np.finfo(float).tiny))
        image = ax.imshow(blocks, cmap=MASSES, norm=norm, aspect="auto", extent=(-0.5, m - 0.5, n - 0.5, -0.5))
        ax.spines[["top", "right"]].set_visible(True)
        large = max(n, m) > pixels
        size = f" (about {n / len(blocks):.3g} x {m / len(blocks[0]):.3g} points)"
        ax.figure.colorbar(image, ax=ax, label=f"mass of a block{size}" if large else "mass of an entry")
        order_name = order if isinstance(order, str) else "yours"
        place = {"given": "index", "principal": "rank along the principal axis"}.get(
            order_name, "rank in the order given"
        )
        title = f"Plan between {n:,} and {m:,} points"
        label(ax, title + _status(result), f"point of y ({place})", f"point of x ({place})")
    return ax


def _title_of_matches(count: int, weighted: int) -> str:
    """Return the title of a plot that shows the top matches of `count` of the `weighted` points of x."""
    if count < weighted:
        return f"Top matches of {count:,} of {weighted:,} points of x"
    return "Top match of each point of x"


def _status(result: Result[Any]) -> str:
    return "" if result.converged else f" ({result.status.name})"


def _axes_of(ax: Any) -> int:
    return 3 if ax.name == "3d" else 2


def _some_rows(result: Result[Any], rows: Array) -> Array:
    """Return these rows of the plan, (k, m), from the problem of these points alone with the same potentials."""
    instance, potentials = result.instance, result.potentials
    fewer = {"x": instance.x, "matrix": instance.matrix}
    fewer = {name: None if array is None else array[rows] for name, array in fewer.items()}
    subproblem = replace(instance, **fewer, a=to_numpy(instance.a)[rows], init="zero", chain=None, uniform=False)
    plans = result.backend.couple([subproblem], [Potentials(potentials.f[rows], potentials.g)])
    (entries,) = plans.plan(len(rows) * subproblem.shape[1])
    return to_numpy(entries).astype(np.float64)


def _top_pairs(result: Result[Any], lines: int, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """Points of x with weight, at most `lines` of them; their top matches; and the masses of these pairs."""
    warn_of_plans([result])
    weighted = np.flatnonzero(to_numpy(result.instance.a))
    rows = weighted[thin(len(weighted), lines, rng)]
    step = max(1, ENTRIES // result.instance.shape[1])
    cols, mass = list[Array](), list[Array]()
    for first in range(0, len(rows), step):
        entries = _some_rows(result, rows[first : first + step])
        cols.append(entries.argmax(axis=1))
        mass.append(entries.max(axis=1))
    return rows, np.concatenate(cols), np.concatenate(mass)


def _drawn_pairs(result: Result[Any], lines: int, seed: int) -> tuple[Array, Array, Array]:
    """Pairs drawn from the plan, and how often each was drawn."""
    i, j = (to_numpy(side) for side in result.sample(lines, seed=seed))
    pairs, counts = np.unique(np.stack([i, j], axis=1), axis=0, return_counts=True)
    return pairs[:, 0], pairs[:, 1], counts


def _draw_lines(ax: Any, starts: Array, ends: Array, mass: Array) -> None:
    from matplotlib.collections import LineCollection
    from matplotlib.colors import to_rgba

    share = mass / max(float(mass.max()), np.finfo(float).tiny)
    colours = np.tile(to_rgba(LINE), (len(share), 1))
    colours[:, 3] = 0.2 + 0.5 * share
    segments, sizes = list(np.stack([starts, ends], axis=1)), 0.3 + 1.0 * share
    if ax.name == "3d":
        from mpl_toolkits.mplot3d.art3d import Line3DCollection

        ax.add_collection3d(Line3DCollection(segments, colors=colours, linewidths=sizes))
    else:
        ax.add_collection(LineCollection(segments, colors=colours, linewidths=sizes, zorder=2))


def _moves(result: Result[Any], canvas: Canvas) -> tuple[Array, Array, Array]:
    """Places of all points of x with weight, their displacements on the canvas, and the lengths of the latter."""
    weighted = np.flatnonzero(to_numpy(result.instance.a))
    if canvas.basis is None:
        (images,) = result.couplings.average([to_caller(canvas.y, result.instance.like)])
        moves = to_numpy(images).astype(np.float64) - canvas.x
        return canvas.x[weighted], moves[weighted], np.linalg.norm(moves[weighted], axis=1)
    points = to_numpy(result.instance.x).astype(np.float64)
    full = (to_numpy(result.barycentric_map()).astype(np.float64) - points)[weighted]
    return canvas.x[weighted], full @ canvas.basis, np.linalg.norm(full, axis=1)


def _medians(starts: Array, moves: Array, lengths: Array, cell: float) -> tuple[Array, Array, Array]:
    """Mean place, median displacement and median length for each square with at least four points."""
    where = np.unique(np.floor(starts / cell), axis=0, return_inverse=True)[1].ravel()
    order = np.argsort(where, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(where[order])) + 1)
    squares = [part for part in parts if len(part) >= 4]
    if not squares:
        raise OptionsError(f"no square with side {cell:g} holds four points of x; pass a larger cell")
    medians = [np.array([np.median(values[part], axis=0) for part in squares]) for values in (moves, lengths)]
    return np.array([starts[part].mean(0) for part in squares]), medians[0], medians[1]


def _draw_arrows(ax: Any, starts: Array, moves: Array, lengths: Array, *, bar: bool) -> None:
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    dark = ListedColormap(colormaps[LENGTHS](np.linspace(0, DARK, 256)))
    scale = ScalarMappable(Normalize(0, max(float(lengths.max()), np.finfo(float).tiny)), dark)
    if ax.name == "3d":
        ax.quiver(*starts.T, *moves.T, colors=scale.to_rgba(lengths), linewidths=0.8, arrow_length_ratio=0.25)
    else:
        exact = {"angles": "xy", "scale_units": "xy", "scale": 1}
        ax.quiver(*starts.T, *moves.T, color=scale.to_rgba(lengths), **exact, width=0.003, zorder=3)
        # Arrows do not count for the limits of the axes.
        ax.update_datalim(starts + moves)
        ax.autoscale_view()
    if bar:
        ax.figure.colorbar(scale, ax=ax, label="distance moved (units of x)", shrink=0.9)


def _orders(instance: Instance[Any], order: Any) -> list[Array]:
    """The order of the points of both sides, as index arrays."""
    if isinstance(order, str):
        if order == "given":
            return [np.arange(count) for count in instance.shape]
        if order != "principal":
            raise OptionsError(f'order must be "given", "principal" or a pair of index arrays, got {order!r}')
        if instance.is_dense:
            raise ProblemError("a dense cost has no points, and so no principal axis; pass order as index arrays")
        x, y = (to_numpy(side).astype(np.float64) for side in instance.points)
        axis = principal_axes(x, y, 1)[0][:, 0]
        return [np.argsort(side @ axis, kind="stable") for side in (x, y)]
    sides = [to_numpy(side) for side in order]
    if len(sides) != 2 or any(
        side.ndim != 1 or not np.array_equal(np.sort(side), np.arange(count))
        for side, count in zip(sides, instance.shape, strict=False)
    ):
        raise OptionsError(f"order must have each of the indices below {instance.shape} once, in two arrays")
    return sides


def _groups(order: Array, most: int) -> Array:
    """The block of each point: points that are neighbours in the order share one of at most `most` blocks."""
    count = len(order)
    groups = np.empty(count, dtype=np.int64)
    groups[order] = np.arange(count) * min(count, most) // count
    return groups


def _block_masses(result: Result[Any], rows: Array, cols: Array) -> Array:
    """Sum the plan over blocks of rows and columns, some columns of blocks at a time."""
    instance, count = result.instance, int(cols.max()) + 1
    blocks, step = np.zeros((int(rows.max()) + 1, count)), max(1, ENTRIES // (len(rows) + len(cols)))
    couplings = result.couplings
    for first in range(0, count, step):
        block_columns = np.arange(first, min(first + step, count))
        indicator = (cols[:, None] == block_columns).astype(np.float64)
        (sums,) = couplings.apply([to_caller(indicator, instance.like)])
        np.add.at(blocks, (rows[:, None], block_columns[None, :]), to_numpy(sums).astype(np.float64))
    return blocks
