"""The cases of `same_bits.py`: every backend with each of its settings, drawn batches, and one case for each feature.

Only the public surface of the library is used, and the classes of the backends, so that the same file runs against
states whose modules lie elsewhere.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bit_features import FEATURES, OWN, Run, automatic, wrong_calls
from bit_problems import Draw, batch, scope_of, settings

import drainsinkhorn as ds

CLASSES = {
    "reference": ("drainsinkhorn.backends.reference", "ReferenceBackend"),
    "cpu": ("drainsinkhorn.backends.cpu", "CpuBackend"),
    "triton": ("drainsinkhorn.backends.triton", "TritonBackend"),
    "ott": ("drainsinkhorn.backends.ottjax", "OttBackend"),
    "keops": ("drainsinkhorn.backends.keops", "KeopsBackend"),
}
ARMS: dict[str, dict[str, dict[str, Any]]] = {
    "reference": {"dense": {}},
    "cpu": {
        "cached float32": {"representation": "cached", "precision": "float32"},
        "cached float64": {"representation": "cached", "precision": "float64"},
        "cached": {"representation": "cached"},
        "streaming": {"representation": "streaming"},
        "streaming float64": {"representation": "streaming", "precision": "float64"},
        "by size": {"cached_pairs": 1000, "threads": 1},
    },
    "triton": {
        "default": {},
        "float64": {"precision": "float64"},
        "nothing stored": {"frugal": True},
        "all products": {"leading": False},
    },
    "ott": {"default": {}, "float64": {"precision": "float64"}, "online": {"kept_pairs": 1}, "stride 5": {"stride": 5}},
    "keops": {"default": {}, "float64": {"precision": "float64"}},
}
"""Settings of each backend by name."""
SHARES = {"reference": 0.5, "cpu": 1.0, "triton": 0.15, "ott": 0.25, "keops": 0.25}
"""Part of the drawn problems that a backend is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Something to do with the library.

    Attributes:
        group: Name of the line of output that counts it.
        name: Unique name.
        solve: What it does: from a Run to what must be equal in both states, or an exception.
    """

    group: str
    name: str
    solve: Callable[[Run], Any]


def make_backend(name: str, arm: str) -> Any:
    """The backend object with the settings of an arm."""
    module, cls = CLASSES[name]
    chosen = dict(ARMS[name][arm])
    # A method that every state of the library has, whatever the name of its limit.
    is_frugal = chosen.pop("frugal", False)
    backend = getattr(importlib.import_module(module), cls)(**chosen)
    return backend.frugal() if is_frugal else backend


def drawn_cases(backend: str, device: str, count: int) -> Iterator[tuple[Case, int, str, str]]:
    """Batches of drawn problems, with their index, arm and acceleration; in turns over all arms."""
    accelerations = ("none",) if backend == "ott" else ("auto", "none")
    groups = [(arm, acceleration) for arm in ARMS[backend] for acceleration in accelerations]
    batches = max(len(groups), round(SHARES[backend] * count / scope_of(backend, device).batch))
    for index in range(batches):
        arm, acceleration = groups[index % len(groups)]
        group = f"{backend} {arm} {'momentum' if acceleration == 'auto' and backend != 'ott' else 'plain'}"
        case = Case(group=group, name=f"{group} drawn {index}", solve=solve_drawn)
        yield case, index, arm, acceleration


def solve_drawn(run: Run) -> Any:
    chosen = settings(run.draw, run.scope)
    return ds.solve(batch(run.draw, run.scope), **run.options, **chosen)


FEATURE_ARMS: dict[str, tuple[tuple[str, str], ...]] = {
    "reference": (("dense", "auto"), ("dense", "none")),
    "cpu": (*((arm, "auto") for arm in ARMS["cpu"]), ("cached", "none"), ("streaming", "none")),
    "triton": (("default", "auto"),),
    "ott": (("default", "none"),),
    "keops": (("default", "auto"),),
}
"""Arms and accelerations with which every feature is tried."""


def wrong_call(name: str) -> Callable[[Run], Any]:
    """A case that makes one of those calls."""

    def solve(run: Run) -> Any:
        x, y = run.clouds(1)
        return wrong_calls(x[0], y[0])[name]()

    return solve


def cases(backend: str, device: str, count: int, seed: int) -> dict[str, tuple[Case, Callable[[Path], Run]]]:
    """All cases of a backend by name, each with what makes its Run in an empty folder."""
    listed: dict[str, tuple[Case, Callable[[Path], Run]]] = {}

    def add(case: Case, index: int, arm: str, acceleration: str) -> None:
        def make_run(folder: Path) -> Run:
            run = Run(
                backend=backend, draw=Draw(seed, case.name, index), scope=scope_of(backend, device), folder=folder
            )
            made = make_backend(backend, arm) if arm else backend
            run.options = {"backend": made, "accelerate": acceleration, "observe": run.events.append}
            return run

        listed[case.name] = case, make_run

    for case, index, arm, acceleration in drawn_cases(backend, device, count):
        add(case, index, arm, acceleration)
    for arm, acceleration in FEATURE_ARMS[backend]:
        group = f"{backend} {arm} {'plain' if acceleration == 'none' else 'momentum'}"
        for number, solve in enumerate((*FEATURES, *OWN.get(backend, ()))):
            title = solve.__name__.replace("_", " ")
            add(Case(group=group, name=f"{group} {title}", solve=solve), number, arm, acceleration)
    if backend == "cpu":
        x = np.zeros((2, 2))
        for name in wrong_calls(x, x):
            add(Case(group="errors", name=f"errors {name}", solve=wrong_call(name)), 0, "", "auto")
        add(Case(group="automatic choices", name="automatic choices", solve=automatic), 0, "", "auto")
    return listed
