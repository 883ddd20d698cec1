"""The look of all plots: colours, a context with the settings of matplotlib, and new axes.

Colours are those of Okabe and Ito, which people with any kind of colour vision can tell apart. Where two colours have
nearly the same grey in print, marks differ in shape too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from drainsinkhorn.model.errors import BackendUnavailable

SOURCE, TARGET = "#0072B2", "#D55E00"
"""Points of x, drawn as circles, and points of y, drawn as triangles."""
NEEDED, EXECUTED, STATIC = "#0072B2", "#0072B2", "#F3D9B1"
"""Slots that problems need, slots that a run executed, and slots of static batches."""
ALARM, LIMIT, LINE = "#D55E00", "#222222", "#4D4D4D"
"""Alarms, thresholds, and lines between matches."""
MASSES, LENGTHS, DARK = "Blues", "viridis", 0.85
"""Colour maps: mass on white, so that zero is the colour of the paper; lengths; and the share of the latter that is
dark enough for arrows on white."""
CYCLE = (SOURCE, TARGET, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LEGEND = {"ncols": 4, "borderaxespad": 0.3, "handletextpad": 0.3, "columnspacing": 1.5}
SETTINGS: dict[str, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.labelsize": 10,
    "figure.constrained_layout.use": True,
    "figure.dpi": 120,
    "font.size": 10,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
}


@contextmanager
def style() -> Iterator[None]:
    """Context in which matplotlib draws in the style of these plots; raises BackendUnavailable without matplotlib.

    Examples:
        >>> import matplotlib.pyplot as plt
        >>> from drainsinkhorn import plots
        >>> with plots.style():
        ...     figure, (left, right) = plt.subplots(1, 2)
        >>> figure.get_layout_engine() is not None
        True
        >>> plt.close(figure)
    """
    try:
        import matplotlib as mpl
        from cycler import cycler
    except ImportError as error:
        raise BackendUnavailable(f"plots need matplotlib ({error}); pip install 'drainsinkhorn[plot]'") from error
    settings: Any = {**SETTINGS, "axes.prop_cycle": cycler(color=CYCLE)}
    with mpl.rc_context(settings):
        yield


@contextmanager
def drawing(ax: Any, size: tuple[float, float] = (5.6, 4.2)) -> Iterator[Any]:
    """Context of one plot, in the style: yields the given Axes, or those of a new pyplot figure of `size` inches."""
    with style():
        if ax is None:
            import matplotlib.pyplot as plt

            ax = plt.subplots(figsize=size)[1]
        yield ax


def new_figure(width: float, height: float) -> Any:
    """Return a figure of this size in inches that pyplot does not keep; call it within `style()`."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def label(ax: Any, title: str, *names: str, note: str = "", above: bool = False) -> None:
    """Write the title, above a legend if it is `above` the axes, the names of the axes, and a note below them."""
    ax.set_title(title, pad=22 if above else None)
    for axis, name in zip("xyz", names, strict=False):
        getattr(ax, f"set_{axis}label")(f"{name}\n{note}" if note and axis == "x" and ax.name != "3d" else name)
    if note and ax.name == "3d":
        ax.text2D(0.5, -0.06, note, transform=ax.transAxes, ha="center", va="top", fontsize=9)


def legend_above(ax: Any) -> None:
    """Place the legend between the axes and the title, which `label` then moves up; marks have one size."""
    legend = ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), **LEGEND)
    for handle in legend.legend_handles:
        if hasattr(handle, "set_sizes"):
            handle.set_sizes([26])
            handle.set_alpha(1)
