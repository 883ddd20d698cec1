"""The picture of a demo: couplings of a workload beside the work of its run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drainsinkhorn.core.ledger import Ledger
from drainsinkhorn.model.result import Result
from drainsinkhorn.plans.plots import save, survival, widths
from drainsinkhorn.plans.style import new_figure, style
from drainsinkhorn.workloads import WORKLOADS


def plot_demo(name: str, results: Sequence[Result[Any]], ledger: Ledger, path: str | None = None) -> Any:
    """Plot couplings of a workload, the survival curve of the run, and the lanes that were executed.

    Args:
        name: The name of the workload.
        results: Its results.
        ledger: The account of the run.
        path: Where to save the picture; the suffix decides the format.

    Returns:
        The matplotlib figure.
    """
    with style():
        figure = new_figure(15, 4.4)
        couplings, work, lanes = figure.subplots(1, 3, width_ratios=(1.15, 1, 1))
        WORKLOADS[name].draw(couplings, results)
        survival(ledger, ax=work)
        widths(ledger, ax=lanes)
        return save(figure, path)
