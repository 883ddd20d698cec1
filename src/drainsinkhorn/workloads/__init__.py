"""Named batches of problems, for the demo and for benchmarks. A workload is one function in one module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from drainsinkhorn.model.errors import BackendUnavailable, OptionsError
from drainsinkhorn.model.problem import Problem
from drainsinkhorn.workloads import clouds, digits

Workload = Callable[[int], list[Problem[Any]]]
"""A function from a seed to problems."""

WORKLOADS = {"digits": digits, "clouds": clouds}
"""Names and modules. A module has `problems(seed)`, and the first line of its docstring describes them; its function
`draw(ax, results)` draws some of the couplings, for the picture of the demo."""


def load(name: str) -> tuple[Workload, str]:
    """Return the workload of that name and one line that describes it."""
    if name not in WORKLOADS:
        raise OptionsError(f"workload {name!r} is unknown; use one of {sorted(WORKLOADS)}")
    module = WORKLOADS[name]
    return _with_advice(module.problems), str(module.__doc__).splitlines()[0]


def _with_advice(workload: Workload) -> Workload:
    """Return the workload with its ImportError replaced by a BackendUnavailable that says what to install."""

    def problems(seed: int) -> list[Problem[Any]]:
        try:
            return workload(seed)
        except ImportError as error:
            raise BackendUnavailable(
                f"this workload needs a library ({error}); pip install 'drainsinkhorn[demo]'"
            ) from error

    return problems
