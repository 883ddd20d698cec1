"""Named batches of problems, for the demo and for benchmarks. A workload is one function in one module."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from drainsinkhorn.model.errors import BackendUnavailable, OptionsError
from drainsinkhorn.model.problem import Problem

Workload = Callable[[int], list[Problem[Any]]]
"""A seed to problems."""

WORKLOADS: dict[str, str] = {
    "digits": "drainsinkhorn.workloads.digits",
    "clouds": "drainsinkhorn.workloads.clouds",
}
"""Name to the module whose `problems(seed)` makes it and whose docstring describes it."""


def load(name: str) -> tuple[Workload, str]:
    """The workload of that name, and one line about it."""
    if name not in WORKLOADS:
        raise OptionsError(f"workload {name!r} is unknown; use one of {sorted(WORKLOADS)}")
    module = importlib.import_module(WORKLOADS[name])
    return _explained(module.problems), str(module.__doc__).splitlines()[0]


def _explained(workload: Workload) -> Workload:
    def problems(seed: int) -> list[Problem[Any]]:
        try:
            return workload(seed)
        except ImportError as error:
            raise BackendUnavailable(
                f"this workload needs a library ({error}); pip install 'drainsinkhorn[demo]'"
            ) from error

    return problems
