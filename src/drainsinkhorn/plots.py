"""Pictures of a run: what the survival curve needed, what the kernel executed, what a static batch would have spent."""

from __future__ import annotations

import itertools
from typing import Any

from drainsinkhorn.core.errors import BackendUnavailable
from drainsinkhorn.core.ledger import Ledger


def plot_ledger(ledger: Ledger, path: str | None = None) -> Any:
    """The survival curve; and the width of the kernel over its cycles, before the static batches it did without.

    Args:
        ledger: The account of a run.
        path: Where to save the picture; the suffix decides the format.

    Returns:
        The matplotlib figure.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise BackendUnavailable(f"plots need matplotlib ({error}); pip install 'drainsinkhorn[plot]'") from error
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_survival(left, ledger)
    _draw_widths(right, ledger)
    if path is not None:
        figure.savefig(path, dpi=130)
    return figure


NEEDED, REMOVED, EXECUTED = "#1f5f8b", "#f2c299", "#2e7d4f"


def _draw_survival(axes: Any, ledger: Ledger) -> None:
    curve = ledger.survival
    if curve:
        axes.stairs(curve, range(len(curve) + 1), fill=True, color=NEEDED)
        axes.set_xlim(0, len(curve))
    axes.set_ylim(0, max(1, len(ledger.depths)) * 1.05)
    axes.set_xlabel("cycle of a problem")
    axes.set_ylabel("problems still at work")
    axes.set_title(f"Survival of {len(ledger.depths)} problems")


def _draw_widths(axes: Any, ledger: Ledger) -> None:
    """Width over cycles; the title has the exact slots (here a lane that rests still counts as width)."""
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
