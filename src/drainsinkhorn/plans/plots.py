"""Plots of a run: its survival curve, the lanes of the kernel over cycles, and the slots of other modes and widths."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from drainsinkhorn.core.ledger import Ledger
from drainsinkhorn.plans.style import EXECUTED, NEEDED, STATIC, drawing, label, new_figure, style


class HasLedger(Protocol):
    """A Solution, or another object with the account of a run."""

    @property
    def ledger(self) -> Ledger:
        """The account."""
        ...


def survival(run: Ledger | HasLedger, ax: Any = None) -> Any:
    """Draw how many problems needed each cycle; the area under the curve is the number of slots needed.

    A slot is one problem in one cycle. A static batch of all problems would execute the whole box, from the first
    cycle to that of the deepest problem.

    Args:
        run: A Solution, or its ledger.
        ax: The Axes to draw in; None: those of a new figure.

    Returns:
        The matplotlib Axes.

    Examples:
        >>> import matplotlib.pyplot as plt
        >>> import numpy as np
        >>> import drainsinkhorn as ds
        >>> from drainsinkhorn import plots
        >>> rng = np.random.default_rng(0)
        >>> solution = ds.solve(rng.normal(size=(5, 20, 2)), rng.normal(size=(5, 20, 2)), eps=0.1)
        >>> ax = plots.survival(solution)
        >>> ax.get_ylabel()
        'problems still at work'
        >>> plt.close(ax.figure)
    """
    ledger = _ledger_of(run)
    with drawing(ax) as ax:
        _draw_survival(ax, ledger.survival, len(ledger.depths))
    return ax


def widths(run: Ledger | HasLedger, ax: Any = None) -> Any:
    """Draw the lanes that the kernel executed in each cycle, in front of those of static batches.

    Both areas are numbers of slots: the slots executed, and those that static batches of the same width would execute,
    which are the executed and the removed ones together. Lanes that are held are not executed, so a run of cycles is
    drawn with its mean number of lanes.

    Args:
        run: A Solution, or its ledger.
        ax: The Axes to draw in; None: those of a new figure.

    Returns:
        The matplotlib Axes.

    Examples:
        >>> import matplotlib.pyplot as plt
        >>> import numpy as np
        >>> import drainsinkhorn as ds
        >>> from drainsinkhorn import plots
        >>> rng = np.random.default_rng(0)
        >>> solution = ds.solve(rng.normal(size=(5, 20, 2)), rng.normal(size=(5, 20, 2)), eps=0.1)
        >>> ax = plots.widths(solution)
        >>> ax.get_ylabel()
        'lanes executed'
        >>> plt.close(ax.figure)
    """
    ledger = _ledger_of(run)
    with drawing(ax) as ax:
        _draw_widths(ax, ledger)
    return ax


def plot_ledger(ledger: Ledger, path: str | None = None) -> Any:
    """Plot the survival curve, and the lanes of the kernel over its cycles in front of those of static batches.

    Args:
        ledger: The account of a run.
        path: Where to save the picture; the suffix decides the format.

    Returns:
        The matplotlib figure.
    """
    with style():
        figure = new_figure(10, 4)
        curve, right = figure.subplots(1, 2)
        _draw_survival(curve, ledger.survival, len(ledger.depths))
        _draw_widths(right, ledger)
    return save(figure, path)


def plot_explanation(ledger: Mapping[str, Any], said: Mapping[str, Any], path: str | None = None) -> Any:
    """Plot the survival curve of a saved ledger, the seconds of its steps, and the slots of other modes and widths.

    Args:
        ledger: The account as `drain solve` saves it.
        said: Its explanation: `what_if`, a list of modes and widths with their slots.
        path: Where to save the picture.
    """
    with style():
        figure = new_figure(14, 4.2)
        curve, times, slots = figure.subplots(1, 3)
        _draw_survival(curve, ledger["survival"], max(ledger["survival"], default=0))
        seconds = sorted(ledger["seconds"].items(), key=lambda item: item[1])
        times.barh([verb for verb, _ in seconds], [value for _, value in seconds], color=NEEDED)
        label(times, "Where the time went", "seconds")
        needed = min((choice["slots"] for choice in said["what_if"]), default=0)
        names = [f"{choice['mode']} {choice['width']}" for choice in said["what_if"]][::-1]
        spent = [choice["slots"] for choice in said["what_if"]][::-1]
        slots.barh(names, spent, color=STATIC, label="could be removed")
        slots.barh(names, [min(needed, count) for count in spent], color=EXECUTED, label="needed")
        slots.xaxis.get_major_locator().set_params(nbins=4)
        slots.xaxis.set_major_formatter("{x:,.0f}")
        label(slots, "The same depths in other modes and widths", "slots")
        if names:
            slots.legend(loc="lower right", frameon=True, edgecolor="none")
    return save(figure, path)


def plot_trials(curves: Mapping[str, Sequence[int]], path: str | None = None) -> Any:
    """Plot survival curves of one sample under several settings; the axis of cycles is logarithmic.

    Args:
        curves: The survival curve of each setting, by the name of the setting.
        path: Where to save the picture.
    """
    with style():
        figure = new_figure(7, 4.2)
        axes = figure.subplots()
        dashes = itertools.cycle(("-", "--", ":"))
        for name, curve in curves.items():
            steps = range(1, len(curve) + 2), [*curve, 0]
            axes.step(*steps, where="post", linestyle=next(dashes), label=f"{name}: {sum(curve):,} slots")
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.yaxis.get_major_locator().set_params(integer=True)
        label(axes, "Survival of the sample", "cycle of a problem", "problems still at work")
        axes.legend()
    return save(figure, path)


def save(figure: Any, path: str | None) -> Any:
    """Save the figure if there is a path, and return it."""
    if path is not None:
        figure.savefig(path, dpi=130)
    return figure


def _ledger_of(run: Ledger | HasLedger) -> Ledger:
    return run if isinstance(run, Ledger) else run.ledger


def _draw_survival(axes: Any, curve: Sequence[int], count: int) -> None:
    if curve:
        # The first bar is cycle 1, from 0 to 1, so that areas are slots.
        axes.stairs(curve, range(len(curve) + 1), fill=True, color=NEEDED)
        axes.set_xlim(0, len(curve))
        axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylim(0, max(1, count) * 1.05)
    axes.yaxis.get_major_locator().set_params(integer=True)
    title = f"Survival of {count:,} problems: {sum(curve):,} slots needed"
    label(axes, title, "cycle of a problem", "problems still at work")


def _draw_widths(axes: Any, ledger: Ledger) -> None:
    """Draw both traces as areas: lanes times cycles."""
    lanes = [slots / cycles for slots, (_, cycles) in zip(ledger.executed, ledger.widths, strict=True)]
    traces = (
        ([width for width, _ in ledger.static_widths], ledger.static_widths, STATIC, "static batches", 1),
        (lanes, ledger.widths, EXECUTED, "executed", 2),
    )
    for heights, runs, colour, name, order in traces:
        if runs:
            edges = list(itertools.accumulate((cycles for _, cycles in runs), initial=0))
            area = sum(height * cycles for height, (_, cycles) in zip(heights, runs, strict=True))
            axes.stairs(heights, edges, fill=True, color=colour, zorder=order, label=f"{name}: {round(area):,} slots")
    if ledger.widths:
        axes.set_xlim(left=0)
        axes.set_ylim(0, max(width for width, _ in [*ledger.widths, *ledger.static_widths]) * 1.25)
        axes.yaxis.get_major_locator().set_params(integer=True)
        axes.legend(loc="upper right", ncols=2)
    share = f" ({ledger.removed_slots / ledger.static_slots:.0%})" if ledger.static_slots else ""
    title = f"{ledger.slots:,} slots executed, {ledger.removed_slots:,} removed{share}"
    label(axes, title, "cycle of the kernel", "lanes executed")
