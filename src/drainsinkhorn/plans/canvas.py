"""Where the points of a coupling are drawn: at coordinates, along principal axes, or at places of the caller."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.model.errors import ProblemError
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.plans.style import SOURCE, TARGET, legend_above

Array = NDArray[Any]
POINTS = 1500
"""Points of each cloud that are drawn at most."""


class Canvas(NamedTuple):
    """Where points are drawn.

    Attributes:
        x: Places of the points of x, (n, k) with k = 2, or 3 on 3-D Axes.
        y: Places of the points of y, (m, k).
        names: Names of the k axes.
        basis: Matrix (d, k) that takes displacements of points to displacements of places; None for places of the
            caller's, and for points on a line.
    """

    x: Array
    y: Array
    names: list[str]
    basis: Array | None


def make_canvas(instance: Instance[Any], coordinates: Any, positions: Any, axes: int) -> Canvas:
    """Return where the points of a problem are drawn on Axes of 2 or 3 dimensions; see `pictures.matches`."""
    if positions is not None:
        places = [to_numpy(side).astype(np.float64) for side in positions]
        for name, side, count in zip("xy", places, instance.shape, strict=True):
            if side.shape != (count, axes):
                raise ProblemError(f"positions of {name} must have shape {(count, axes)}, got {side.shape}")
        return Canvas(places[0], places[1], [f"position {k}" for k in range(axes)], None)
    if instance.is_dense:
        raise ProblemError("a dense cost has no points to draw; pass positions=(of x, of y), (n, 2) and (m, 2)")
    x, y = (to_numpy(side).astype(np.float64) for side in instance.points)
    dim = x.shape[1]
    if coordinates is not None:
        chosen = list(coordinates)
        if len(chosen) != axes or not all(isinstance(c, (int, np.integer)) and -dim <= c < dim for c in chosen):
            raise ProblemError(f"coordinates must be {axes} numbers from 0 to {dim - 1}, got {coordinates!r}")
        basis = np.eye(dim)[:, chosen]
        return Canvas(x @ basis, y @ basis, [f"coordinate {c % dim}" for c in chosen], basis)
    if dim < axes:
        # Points on a line are drawn on two levels.
        levels = np.ones((len(x), axes - dim)), np.zeros((len(y), axes - dim))
        names = [f"coordinate {k}" for k in range(dim)] + ["y (0) and x (1)"] + [""] * (axes - dim - 1)
        return Canvas(np.c_[x, levels[0]], np.c_[y, levels[1]], names, None)
    if dim == axes:
        return Canvas(x, y, [f"coordinate {k}" for k in range(dim)], np.eye(dim))
    basis, shares = principal_axes(x, y, axes)
    names = [f"principal axis {k + 1} ({share:.0%} of the variance)" for k, share in enumerate(shares)]
    return Canvas(x @ basis, y @ basis, names, basis)


def principal_axes(x: Array, y: Array, count: int) -> tuple[Array, Array]:
    """Return the first principal axes of both clouds together, (d, count), and their shares of the variance.

    Of large clouds, evenly spaced points are used. The largest entry of each axis is positive.
    """
    points = np.concatenate([side[:: -(-len(side) // POINTS)] for side in (x, y)])
    points = points - points.mean(0)
    _, sizes, axes = np.linalg.svd(points, full_matrices=False)
    shares = sizes**2 / max(float((sizes**2).sum()), np.finfo(float).tiny)
    basis, shares = axes[:count].T, shares[:count]
    if basis.shape[1] < count:
        # Fewer points than axes: the missing ones have no variance.
        extra = count - basis.shape[1]
        basis, shares = np.c_[basis, np.zeros((len(basis), extra))], np.r_[shares, np.zeros(extra)]
    signs = np.sign(basis[np.abs(basis).argmax(0), np.arange(count)])
    return basis * np.where(signs == 0, 1, signs), shares


def thin(count: int, most: int, rng: np.random.Generator) -> Array:
    """Indices of all of `count` things, or of `most` of them drawn at random, in order."""
    return np.arange(count) if count <= most else np.sort(rng.choice(count, most, replace=False))


def draw_clouds(
    ax: Any, canvas: Canvas, instance: Instance[Any], rng: np.random.Generator, *, faint: bool = False
) -> str:
    """Draw the points of both sides, their area in proportion to their weights; return what was left out."""
    left_out = list[str]()
    sides = (
        ("x", canvas.x, instance.a, SOURCE, "o"),
        ("y", canvas.y, instance.b, TARGET, "^"),
    )
    for name, places, weights, colour, marker in sides:
        drawn = thin(len(places), POINTS, rng)
        weights = to_numpy(weights)[drawn]
        base = np.clip(4000 / len(drawn), 3, 26) * (0.7 if faint else 1)
        areas = base * np.clip(weights / max(float(weights.mean()), np.finfo(float).tiny), 0.1, 8)
        ax.scatter(
            *places[drawn].T, s=areas, c=colour, marker=marker, linewidths=0, alpha=0.35 if faint else 0.9,
            zorder=1 if faint else 3, label=f"{name}: {len(places):,} points",
        )  # fmt: skip
        if len(drawn) < len(places):
            left_out.append(f"{len(drawn):,} of {len(places):,} points of {name}")
    legend_above(ax)
    if ax.name != "3d" and canvas.basis is not None:
        ax.set_aspect("equal", adjustable="datalim")
    return f"{' and '.join(left_out)} are drawn" if left_out else ""
