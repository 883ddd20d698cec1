"""Commands about this machine: versions, backends, and the tiles of its GPU."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from typing import Any

from rich.console import Console

import drainsinkhorn
from drainsinkhorn.backends import REGISTRY, choose
from drainsinkhorn.backends import load as load_backend
from drainsinkhorn.cli.messages import JSON, escape, fail, print_json
from drainsinkhorn.cli.show import plain_table
from drainsinkhorn.model.errors import BackendUnavailable


def env(as_json: JSON = False) -> None:
    """What this machine and installation are, for bug reports."""
    facts: dict[str, Any] = {
        "drainsinkhorn": drainsinkhorn.__version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cores": os.cpu_count(),
    }
    for package in ("numpy", "rich", "typer", "matplotlib", "scikit-learn", "torch", "jax", "ray"):
        try:
            facts[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            facts[package] = None
    if as_json:
        print_json(facts)
        return
    table = plain_table(show_header=False)
    for name, value in facts.items():
        table.add_row(name, "not installed" if value is None else str(value))
    Console().print(table)


def tune(as_json: JSON = False) -> None:
    """Measure which tiles are fastest on this GPU (a few minutes), and keep them for later runs."""
    try:
        load_backend("triton")
        from drainsinkhorn.backends.triton import tiles, tuning

        gpu = tuning.gpu()
    except (BackendUnavailable, ImportError) as error:
        fail(str(error))
    best: dict[tuple[int, int], Any] = {}
    for trial in tuning.trials():
        best_so_far = best.get((trial.kind, trial.dp))
        if best_so_far is None or trial.cost < best_so_far.cost:
            best[trial.kind, trial.dp] = trial
    path = tiles.keep(gpu, {key: trial.tile for key, trial in best.items()})
    if as_json:
        print_json({"gpu": gpu, "file": str(path), "tiles": [t._asdict() for t in best.values()]})
        return
    table = plain_table("scores", "padded to", "tile", "us together", "us alone")
    for trial in best.values():
        size = f"{trial.tile['bm']} x {trial.tile['bn']}, {trial.tile['warps']} warps"
        table.add_row(tiles.KINDS[trial.kind], str(trial.dp), size, f"{trial.together:.1f}", f"{trial.alone:.1f}")
    Console().print(table)
    Console().print(f"kept in {escape(path)}", highlight=False, markup=False)


def backends(as_json: JSON = False) -> None:
    """Which backends can run here, and which one auto takes."""
    rows: list[dict[str, str]] = []
    for name, entry in REGISTRY.items():
        try:
            load_backend(name)
            state = "available"
        except BackendUnavailable as error:
            state = str(error)
        rows.append({"name": name, "state": state, "about": entry.about})
    auto, reason = choose()
    if as_json:
        print_json({"backends": rows, "auto": auto.name, "reason": reason})
        return
    table = plain_table("name", "state", "about")
    for row in rows:
        table.add_row(row["name"], row["state"], row["about"])
    console = Console()
    console.print(table)
    console.print(f"auto takes [bold]{auto.name}[/]: {reason}", highlight=False)
