"""Plots of applications: transition tables of cells as heat maps, and scores of sensor windows over time."""

from __future__ import annotations

from typing import Any

import numpy as np

from drainsinkhorn.apps.cells import Table
from drainsinkhorn.apps.sensors import Scores
from drainsinkhorn.model.errors import ProblemError
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.plans.style import ALARM, LIMIT, MASSES, SOURCE, drawing, label, legend_above

SHOWN = 0.01
"""Smallest share that is written into its cell."""
LEVEL = 10
"""Characters of a name that fit below a column; if a name is longer, names are drawn at an angle."""


def transitions(table: Table, *, ax: Any = None) -> Any:
    """Draw a transition table: for each source, the share of its mass that goes to each target.

    Shares of at least 1 % are written into the cells, with their standard deviation over bootstraps if there are any.

    Args:
        table: The table, as `Timepoints.transitions` returns it.
        ax: The Axes to draw in; None: those of a new figure, which grows with the table.

    Returns:
        The matplotlib Axes.

    Examples:
        >>> import matplotlib.pyplot as plt
        >>> from drainsinkhorn import cells, plots
        >>> rng = np.random.default_rng(0)
        >>> course = cells.couple_timepoints({t: rng.normal(size=(40, 3)) for t in (0, 1)})
        >>> names = np.array(["stem", "neuron"] * 20)
        >>> ax = plots.transitions(course.transitions((names, names), pair=0))
        >>> [text.get_text() for text in ax.get_xticklabels()]
        ['neuron', 'stem']
        >>> plt.close(ax.figure)
    """
    shares, spread = table.conditional, table.spread
    k, l = shares.shape
    with drawing(ax, (max(3.6, 2.2 + 0.75 * l), max(2.8, 1.6 + 0.5 * k))) as ax:
        image = ax.imshow(shares, cmap=MASSES, vmin=0, vmax=1, aspect="auto")
        ax.spines[:].set(visible=True, color="#BBBBBB")
        ax.tick_params(length=0)
        ax.set_yticks(range(k), [str(name) for name in table.sources])
        ax.set_xticks(range(l), [str(name) for name in table.targets])
        if max((len(str(name)) for name in table.targets), default=0) > LEVEL or l > 8:
            for text in ax.get_xticklabels():
                text.set(rotation=40, ha="right", rotation_mode="anchor")
        for row, col in zip(*np.nonzero(shares >= SHOWN), strict=True):
            text = f"{shares[row, col]:.2f}" + ("" if spread is None else f"\n±{spread[row, col]:.2f}")
            dark = shares[row, col] > 0.55
            ax.text(col, row, text, ha="center", va="center", fontsize=8, color="white" if dark else "black")
        ax.figure.colorbar(image, ax=ax, label="share of the source's mass")
        label(ax, "Transitions" + ("" if spread is None else " ± standard deviation"), "target", "source")
    return ax


def drift(scores: Scores, *, times: Any = None, unit: str = "", ax: Any = None) -> Any:
    """Draw the scores of windows over time, with the threshold and the alarms.

    A score that is not finite, which is an alarm, is drawn as a cross at the upper edge.

    Args:
        scores: The scores, as `Drift.score` returns them.
        times: Times of the windows, (W,), numbers or dates; None: their numbers.
        unit: What times are, for the label of the axis: "hour", or "time (s)".
        ax: The Axes to draw in; None: those of a new figure.

    Returns:
        The matplotlib Axes.

    Examples:
        >>> import matplotlib.pyplot as plt
        >>> from drainsinkhorn import plots, sensors
        >>> rng = np.random.default_rng(0)
        >>> detector = sensors.Drift.fit(rng.normal(size=(12, 30, 2)))
        >>> scores = detector.score(rng.normal(size=(5, 30, 2)) + np.arange(5)[:, None, None])
        >>> ax = plots.drift(scores)
        >>> ax.get_xlabel()
        'window'
        >>> plt.close(ax.figure)
    """
    values, alarms = scores.values, scores.alarms
    places = np.arange(len(values)) if times is None else to_numpy(times)
    if places.shape != values.shape:
        raise ProblemError(f"times must be one for each of {len(values)} windows, got shape {places.shape}")
    finite = np.isfinite(values)
    with drawing(ax, (6.4, 3.8)) as ax:
        ax.plot(places, np.where(finite, values, np.nan), color=SOURCE, linewidth=0.8, alpha=0.5, zorder=1)
        calm, loud, broken = ~alarms, alarms & finite, ~finite
        ax.scatter(places[calm], values[calm], s=12, c=SOURCE, linewidths=0, label=f"no alarm: {calm.sum():,}")
        if loud.any():
            count = f"alarm: {loud.sum():,}"
            ax.scatter(places[loud], values[loud], s=24, c=ALARM, marker="^", linewidths=0, label=count)
        if np.isfinite(scores.threshold):
            name = f"threshold {scores.threshold:.3g}"
            ax.axhline(scores.threshold, color=LIMIT, linewidth=1.2, linestyle="--", label=name)
        if broken.any():
            edge = {"transform": ax.get_xaxis_transform(), "clip_on": False}
            count = f"not finite: {broken.sum():,}"
            ax.scatter(places[broken], np.ones(broken.sum()), s=30, c=ALARM, marker="x", label=count, **edge)
        low, high = ax.get_ylim()
        ax.set_ylim(min(0.0, low), high + 0.05 * (high - min(0.0, low)))
        legend_above(ax)
        name = unit or ("window" if times is None else "time")
        label(ax, "Drift from healthy windows", name, "Sinkhorn divergence (scaled sensors)", above=True)
    return ax
