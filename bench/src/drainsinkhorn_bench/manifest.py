"""The manifest: the frozen, hashed description of a campaign on a machine.

Whatever could change a result is in it: the source, the inputs, every option of every arm, unit and study, the clock,
versions of what runs, the machine and the environment variables that numerical libraries read. It is written once.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import drainsinkhorn
import drainsinkhorn_bench
from drainsinkhorn.model.errors import FileError, OptionsError
from drainsinkhorn_bench import meters
from drainsinkhorn_bench.plan import Campaign, Place
from drainsinkhorn_bench.records import FORMAT, MANIFEST

PACKAGES = (
    "numpy", "numba", "llvmlite", "scipy", "torch", "triton", "jax", "jaxlib", "ott-jax", "POT", "geomloss", "pykeops",
    "keopscore", "flash-sinkhorn", "scikit-learn", "anndata", "ray", "nvidia-cublas-cu12", "nvidia-cuda-runtime-cu12",
)  # fmt: skip
"""Whose version could change a result or a time."""
VARIABLES = ("OMP_", "MKL_", "OPENBLAS_", "NUMBA_", "CUDA_", "NVIDIA_", "XLA_", "JAX_", "TRITON_", "TORCH_", "DRAIN_")
"""Beginnings of the environment variables that numerical libraries read."""
LEFT_OUT = ("_VERSION", "_CACHE_DIR", "_HOME", "_PATH", "_REQUIRE_CUDA", "DRAIN_CI")
"""Endings of those among them that say where something lies."""

Manifest = dict[str, Any]


def digest(value: Any) -> str:
    """Return the sha256 of the canonical JSON text of a value: keys sorted, no spaces."""
    text = json.dumps(value, allow_nan=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def file_digest(path: Path) -> str:
    """sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def manifest(campaign: Campaign, place: Place) -> Manifest:
    """Describe a campaign here and now."""
    body = {
        "format": FORMAT,
        "campaign": campaign.name,
        "title": campaign.title,
        "scale": campaign.scale,
        "source": source(),
        "inputs": dict(campaign.inputs),
        "options": dict(campaign.options),
        "arms": [
            {"name": arm.name, "label": arm.label, "options": dict(arm.options), "slack": arm.slack}
            for arm in campaign.arms
        ],
        "units": [
            {
                "name": unit.name,
                "tol": unit.tol,
                "options": dict(unit.options),
                "arms": [arm.name for arm in campaign.arms_of(unit)],
                "repeats": unit.repeats,
                "warmups": unit.warmups,
                "theory": unit.theory,
                "modal": unit.modal,
            }
            for unit in campaign.units
        ],
        "contrasts": [
            {
                "name": contrast.name,
                "numerator": contrast.numerator,
                "denominator": contrast.denominator,
                "endpoint": contrast.endpoint,
                "paper": None if contrast.paper is None else dict(contrast.paper),
                "units": None if contrast.units is None else list(contrast.units),
            }
            for contrast in campaign.contrasts
        ],
        "studies": [{"name": study.name, "options": dict(study.options)} for study in campaign.studies],
        "clock": meters.clock_facts(place),
        "versions": versions(),
        "environment": environment(),
        "machine": meters.machine(place.device),
        "seed": campaign.seed,
    }
    try:
        return {**body, "hash": digest(body)}
    except (TypeError, ValueError) as error:
        raise OptionsError(f"campaign {campaign.name} has options that are no JSON: {error}") from error


def source() -> dict[str, Any]:
    """Commit, whether files differ from it, and a hash of both packages' files, which holds without git too."""
    packages = [Path(file).parent for file in (drainsinkhorn.__file__, drainsinkhorn_bench.__file__)]
    tree = {
        str(path.relative_to(package.parent)): file_digest(path)
        for package in packages
        for path in sorted(package.rglob("*.py"))
    }
    commit = _git(packages[0], "rev-parse", "HEAD")
    states = [_git(package, "status", "--porcelain", "--", ".") for package in packages]
    dirty = None if None in states else any(states)
    return {"commit": commit, "dirty": dirty, "tree_hash": digest(tree)}


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def versions() -> dict[str, str]:
    """Return versions of Python, of this library and of those PACKAGES that are installed."""
    found = {"python": meters.python(), "drainsinkhorn": drainsinkhorn.__version__}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def environment() -> dict[str, str]:
    """Environment variables that numerical libraries read."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(VARIABLES) and not name.endswith(LEFT_OUT)
    }


def freeze(folder: Path, made: Manifest) -> None:
    """Write the manifest; if the folder already has one, raise FileError unless both are equal."""
    path = folder / MANIFEST
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        whole = path.with_suffix(".tmp")
        whole.write_text(json.dumps(made, allow_nan=False, indent=1, sort_keys=True) + "\n")
        whole.replace(path)
        return
    try:
        there: Manifest = json.loads(path.read_text())
    except ValueError as error:
        raise FileError(f"{path} is no manifest ({error}); remove the folder {folder} to begin anew") from error
    if {**there, "hash": None} != {**json.loads(json.dumps(made)), "hash": None} or there["hash"] != made["hash"]:
        changed = "; ".join(differences(there, made))
        edited = there.get("hash") == made["hash"] or not changed
        raise FileError(
            f"{folder} holds records of another manifest ({'the file was edited: ' if edited else ''}{changed}); "
            "name another --out, or restore what changed"
        )


def differences(old: Any, new: Any, path: str = "") -> Iterator[str]:
    """Where two manifests differ, as sentences; the hash itself is not mentioned."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted(old.keys() | new.keys()):
            if path or key != "hash":
                yield from differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for place, (before, after) in enumerate(zip(old, new, strict=True)):
            name = after.get("name", place) if isinstance(after, Mapping) else place
            yield from differences(before, after, f"{path}[{name}]")
    elif old != new:
        yield f"{path}: {_short(old)} became {_short(new)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
