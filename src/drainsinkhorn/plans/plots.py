"""Plots of a run: its survival curve, the width of the kernel over cycles, and the slots of other modes and widths."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from drainsinkhorn.core.ledger import Ledger
from drainsinkhorn.model.errors import BackendUnavailable


def plot_ledger(ledger: Ledger, path: str | None = None) -> Any:
    """Plot the survival curve, and the width of the kernel over its cycles in front of that of static batches.

    Args:
        ledger: The account of a run.
        path: Where to save the picture; the suffix decides the format.

    Returns:
        The matplotlib figure.
    """
    figure = _figure(10, 4)
    survival, widths = figure.subplots(1, 2)
    _draw_survival(survival, ledger.survival, len(ledger.depths))
    _draw_widths(widths, ledger)
    return _save(figure, path)


def plot_explanation(ledger: Mapping[str, Any], said: Mapping[str, Any], path: str | None = None) -> Any:
    """Plot the survival curve of a saved ledger, the seconds of its steps, and the slots of other modes and widths.

    Args:
        ledger: The account as `drain solve` saves it.
        said: Its explanation: `what_if`, a list of modes and widths with their slots.
        path: Where to save the picture.
    """
    figure = _figure(14, 4.2)
    survival, times, slots = figure.subplots(1, 3)
    _draw_survival(survival, ledger["survival"], max(ledger["survival"], default=0))
    seconds = sorted(ledger["seconds"].items(), key=lambda item: item[1])
    times.barh([verb for verb, _ in seconds], [value for _, value in seconds], color=NEEDED)
    times.set_xlabel("seconds")
    times.set_title("Where the time went")
    needed = min((choice["slots"] for choice in said["what_if"]), default=0)
    names = [f"{choice['mode']} {choice['width']}" for choice in said["what_if"]][::-1]
    spent = [choice["slots"] for choice in said["what_if"]][::-1]
    slots.barh(names, spent, color=REMOVED, label="could be removed")
    slots.barh(names, [min(needed, count) for count in spent], color=EXECUTED, label="needed")
    slots.set_xlabel("slots")
    slots.xaxis.get_major_locator().set_params(nbins=4)
    slots.xaxis.set_major_formatter("{x:,.0f}")
    slots.set_title("The same depths in other modes and widths")
    if names:
        slots.legend(loc="lower right")
    return _save(figure, path)


def plot_trials(curves: Mapping[str, Sequence[int]], path: str | None = None) -> Any:
    """Plot survival curves of one sample under several settings; the axis of cycles is logarithmic.

    Args:
        curves: The survival curve of each setting, by the name of the setting.
        path: Where to save the picture.
    """
    figure = _figure(7, 4.2)
    axes = figure.subplots()
    for name, curve in curves.items():
        axes.step(range(1, len(curve) + 2), [*curve, 0], where="post", label=f"{name}: {sum(curve):,} slots")
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("cycle of a problem")
    axes.set_ylabel("problems still at work")
    axes.set_title("Survival of the sample")
    axes.legend()
    return _save(figure, path)


def _figure(width: float, height: float) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise BackendUnavailable(f"plots need matplotlib ({error}); pip install 'drainsinkhorn[plot]'") from error
    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: Any, path: str | None) -> Any:
    """Save the figure if there is a path, and return it."""
    if path is not None:
        figure.savefig(path, dpi=130)
    return figure


NEEDED, REMOVED, EXECUTED = "#1f5f8b", "#f2c299", "#2e7d4f"


def _draw_survival(axes: Any, curve: Sequence[int], count: int) -> None:
    if curve:
        axes.stairs(curve, range(len(curve) + 1), fill=True, color=NEEDED)
        axes.set_xlim(0, len(curve))
    axes.set_ylim(0, max(1, count) * 1.05)
    axes.set_xlabel("cycle of a problem")
    axes.set_ylabel("problems still at work")
    axes.set_title(f"Survival of {count} problems")


def _draw_widths(axes: Any, ledger: Ledger) -> None:
    """Draw width over cycles. A held lane counts as width here; the title has the exact number of slots."""
    runs = ((ledger.static_widths, REMOVED, "removed"), (ledger.widths, EXECUTED, "executed"))
    for widths, colour, label in runs:
        if widths:
            edges = list(itertools.accumulate((cycles for _, cycles in widths), initial=0))
            axes.stairs([width for width, _ in widths], edges, fill=True, color=colour, label=label)
    if ledger.widths:
        axes.set_xlim(left=0)
        axes.set_ylim(0, max(width for width, _ in [*ledger.widths, *ledger.static_widths]) * 1.25)
        axes.yaxis.get_major_locator().set_params(integer=True)
        axes.legend(loc="upper right", ncols=2)
    axes.set_xlabel("cycle of the kernel")
    axes.set_ylabel("width (lanes executed)")
    share = ledger.removed_slots / ledger.static_slots if ledger.static_slots else 0.0
    axes.set_title(f"{ledger.slots:,} slots spent, {ledger.removed_slots:,} removed ({share:.0%})")
